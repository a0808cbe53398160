//! Statements: binding parameters, stepping, packing columns.

use super::busy::CallClock;
use super::connection::{Open, Settings};
use super::fault::{Fault, Stage};
use super::thread::Work;
use crate::domain::Column;
use crate::sql::place::place;
use crate::sql::{ColumnType, Rows, SqlErrorCode, Statement, Value, Values};
use rusqlite::types::{Null, ValueRef};
use rusqlite::{CachedStatement, Row};
use std::fmt::Write;

/// What each value of a result costs on top of its bytes, in bytes: its offset or its number.
const VALUE_BYTES: usize = 8;

/// Runs all statements of a call.
pub(super) fn all(open: &Open, settings: &Settings, clock: &CallClock, work: &Work) -> Result<Vec<Rows>, Fault> {
    let mut budget = Budget { left: work.bounds.max_result_bytes, limit: work.bounds.max_result_bytes };
    open.bound_values(work.bounds.max_result_bytes).map_err(|error| Fault::of(&error, Stage::Run, settings))?;
    let mut results = Vec::with_capacity(work.statements.len());
    for (index, statement) in work.statements.iter().enumerate() {
        // SQLite looks at the deadline every thousand instructions; many short statements never get there.
        let rows = if clock.passed() {
            Err(Fault::harmless(SqlErrorCode::Timeout, "the deadline of the call passed before it began; raise limits.call_timeout"))
        } else {
            one(open, settings, statement, &mut budget)
        };
        results.push(rows.map_err(|fault| fault.at(&place(index, work.statements.len(), &statement.sql)))?);
    }
    Ok(results)
}

/// How many bytes of result are left to the call.
struct Budget {
    left: usize,
    limit: usize,
}

impl Budget {
    fn take(&mut self, bytes: usize) -> Result<(), Fault> {
        match self.left.checked_sub(bytes.saturating_add(VALUE_BYTES)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Fault::harmless(
                SqlErrorCode::TypeMismatch,
                format!("its result is over the limit of {} bytes: ask for fewer rows, or raise limits.returned_bytes", self.limit),
            )),
        }
    }
}

fn one(open: &Open, settings: &Settings, statement: &Statement, budget: &mut Budget) -> Result<Rows, Fault> {
    open.guard.expect(&statement.sql);
    let mut prepared =
        open.connection.prepare_cached(&statement.sql).map_err(|error| refused(open, Fault::of(&error, Stage::Prepare, settings)))?;
    let found = prepared.column_count();
    if found != statement.columns.len() {
        // The kept form may be older than the schema.
        prepared.discard();
        return Err(Fault::harmless(
            SqlErrorCode::TypeMismatch,
            format!("it returns {found} columns, but the types of {} were asked for", statement.columns.len()),
        ));
    }
    bind(&mut prepared, &statement.parameters, settings)?;

    let before = open.connection.total_changes();
    let mut columns: Vec<Values> = statement.columns.iter().map(|of| Values::empty(*of)).collect();
    let mut count: u64 = 0;
    {
        let mut rows = prepared.raw_query();
        while let Some(row) = rows.next().map_err(|error| refused(open, Fault::of(&error, Stage::Run, settings)))? {
            count += 1;
            for (index, column) in columns.iter_mut().enumerate() {
                push(column, row, index, budget, settings)?;
            }
        }
    }
    // SQLite's count stands until the next INSERT, UPDATE or DELETE: only if something has changed is it ours.
    let changed = if open.connection.total_changes() == before { 0 } else { open.connection.changes() };
    if let Some(expected) = statement.must_change {
        let (found, verb) = if statement.columns.is_empty() { (changed, "changed") } else { (count, "returned") };
        if found != expected {
            return Err(Fault::harmless(
                SqlErrorCode::Changed,
                format!("it {verb} {found} rows instead of {expected}; the transaction was rolled back"),
            ));
        }
    }
    Ok(Rows { changed, columns })
}

/// Says why, if it was the guard that refused: SQLite says no more than "not authorized", and not always with the same code. Table-valued
/// pragmas are judged while the statement runs.
fn refused(open: &Open, fault: Fault) -> Fault {
    match open.guard.take_refusal() {
        Some(reason) => Fault::harmless(SqlErrorCode::Denied, reason),
        None => fault,
    }
}

fn bind(prepared: &mut CachedStatement<'_>, parameters: &[Value], settings: &Settings) -> Result<(), Fault> {
    let expected = prepared.parameter_count();
    if expected != parameters.len() {
        return Err(Fault::of(&rusqlite::Error::InvalidParameterCount(parameters.len(), expected), Stage::Run, settings));
    }
    for (parameter, position) in parameters.iter().zip(1usize..) {
        let mismatch = |problem: &str| Fault::harmless(SqlErrorCode::TypeMismatch, format!("parameter {position} {problem}"));
        match parameter {
            Value::Null => prepared.raw_bind_parameter(position, Null),
            Value::Integer(integer) => prepared.raw_bind_parameter(position, integer),
            // SQLite would store NULL.
            Value::Real(real) if real.is_nan() => return Err(mismatch("is not a number, which SQLite cannot hold")),
            Value::Real(real) => prepared.raw_bind_parameter(position, real),
            Value::Text(text) => prepared.raw_bind_parameter(position, text.as_str()),
            Value::Bytes(bytes) => prepared.raw_bind_parameter(position, bytes.as_slice()),
            Value::Integers(integers) => prepared.raw_bind_parameter(position, json_integers(integers)),
            Value::Texts(texts) => {
                texts.check_text(texts.len()).map_err(|fault| mismatch(&fault.to_string()))?;
                prepared.raw_bind_parameter(position, json_texts(texts).map_err(|fault| mismatch(&fault.to_string()))?)
            }
        }
        .map_err(|error| Fault::of(&error, Stage::Run, settings).at(&format!("parameter {position}: ")))?;
    }
    Ok(())
}

/// `[1,2,3]`
fn json_integers(integers: &[i64]) -> String {
    let mut json = String::with_capacity(2 + integers.len() * 8);
    json.push('[');
    for (index, integer) in integers.iter().enumerate() {
        if index > 0 {
            json.push(',');
        }
        // Writing to a String cannot fail.
        let _ = write!(json, "{integer}");
    }
    json.push(']');
    json
}

/// `["a",null]`
fn json_texts(texts: &Column) -> Result<String, serde_json::Error> {
    serde_json::to_string(&(0..texts.len()).map(|index| texts.text(index)).collect::<Vec<_>>())
}

/// Appends one value of a row to its column, converted to the type asked for.
fn push(column: &mut Values, row: &Row<'_>, index: usize, budget: &mut Budget, settings: &Settings) -> Result<(), Fault> {
    let value = row.get_ref(index).map_err(|error| Fault::of(&error, Stage::Run, settings))?;
    match (column, value) {
        (Values::Integers { values, nulls }, ValueRef::Integer(integer)) => {
            budget.take(0)?;
            push_number(values, nulls, Some(integer));
        }
        (Values::Integers { values, nulls }, ValueRef::Null) => {
            budget.take(0)?;
            push_number(values, nulls, None);
        }
        (Values::Reals { values, nulls }, ValueRef::Real(real)) => {
            budget.take(0)?;
            push_number(values, nulls, Some(real));
        }
        // Integers over 2^53 lose their last digits: a real was asked for.
        #[expect(clippy::cast_precision_loss)]
        (Values::Reals { values, nulls }, ValueRef::Integer(integer)) => {
            budget.take(0)?;
            push_number(values, nulls, Some(integer as f64));
        }
        (Values::Reals { values, nulls }, ValueRef::Null) => {
            budget.take(0)?;
            push_number(values, nulls, None);
        }
        (Values::Texts(texts), ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => {
            budget.take(bytes.len())?;
            match std::str::from_utf8(bytes) {
                Ok(_) => texts.push(Some(bytes)),
                Err(_) => {
                    let replaced = String::from_utf8_lossy(bytes);
                    budget.take(replaced.len().saturating_sub(bytes.len()))?;
                    texts.push(Some(replaced.as_bytes()));
                }
            }
        }
        (Values::Texts(texts), ValueRef::Integer(integer)) => {
            let text = integer.to_string();
            budget.take(text.len())?;
            texts.push(Some(text.as_bytes()));
        }
        (Values::Texts(texts), ValueRef::Real(real)) => {
            // With a point even where it is whole, as SQLite writes it: 1.0, 1e300.
            let text = format!("{real:?}");
            budget.take(text.len())?;
            texts.push(Some(text.as_bytes()));
        }
        (Values::Bytes(all), ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => {
            budget.take(bytes.len())?;
            all.push(Some(bytes));
        }
        (Values::Texts(values) | Values::Bytes(values), ValueRef::Null) => {
            budget.take(0)?;
            values.push(None);
        }
        (column, value) => return Err(mismatch(column, value, row, index)),
    }
    Ok(())
}

fn push_number<T: Copy + Default>(values: &mut Vec<T>, nulls: &mut Vec<u8>, value: Option<T>) {
    if value.is_none() && nulls.is_empty() {
        nulls.resize(values.len(), 0);
    }
    values.push(value.unwrap_or_default());
    if value.is_none() || !nulls.is_empty() {
        nulls.push(u8::from(value.is_none()));
    }
}

fn mismatch(column: &Values, value: ValueRef<'_>, row: &Row<'_>, index: usize) -> Fault {
    let asked = match column {
        Values::Integers { .. } => ColumnType::Integer,
        Values::Reals { .. } => ColumnType::Real,
        Values::Texts(_) => ColumnType::Text,
        Values::Bytes(_) => ColumnType::Bytes,
    };
    let name = row.as_ref().column_name(index).unwrap_or("?");
    Fault::harmless(
        SqlErrorCode::TypeMismatch,
        format!("column {} ({name}) holds a value of type {}, but {} was asked for", index + 1, value.data_type(), asked.name()),
    )
}
