//! A SQLite file behind the `sql` capability's trait, as `interface sql` describes it.

use crate::database::{Access, ColumnType, Database, Dialect, Named, Rows, SqlError, SqlErrorCode, Statement, Transaction, Value, Values};
use crate::{Column, sql};
use rusqlite::types::{ToSqlOutput, Value as Stored, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Longest wait for another connection's lock: longer than any test that does not hang.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    /// The statements of this thread: text and parameters.
    static RUN: RefCell<Vec<(String, String)>> = const { RefCell::new(Vec::new()) };
}

/// The last statement of this thread that contains `part`: its text, and its parameters for a person.
#[must_use]
pub fn last_statement(part: &str) -> Option<(String, String)> {
    RUN.with_borrow(|run| run.iter().rfind(|(sql, _)| sql.contains(part)).cloned())
}

/// A connection. The name of its database is the path of the file, which must exist already, as in the host.
#[derive(Debug, Clone)]
pub struct Sqlite(Rc<Connection>);

/// An open transaction.
#[derive(Debug)]
pub struct OpenTransaction(Option<Rc<Connection>>);

impl Named for Sqlite {
    fn open(name: &str, access: Access) -> Result<Self, SqlError> {
        let flags = match access {
            Access::ReadOnly => OpenFlags::SQLITE_OPEN_READ_ONLY,
            Access::ReadWrite => OpenFlags::SQLITE_OPEN_READ_WRITE,
        };
        let connection = Connection::open_with_flags(name, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(error)?;
        connection.busy_timeout(PATIENCE).map_err(error)?;
        connection.set_prepared_statement_cache_capacity(64);
        // No test pulls the plug: waiting for the disk would only take time.
        connection.pragma_update(None, "synchronous", "OFF").map_err(error)?;
        Ok(Self(Rc::new(connection)))
    }
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }
}

impl Database for Sqlite {
    type Transaction = OpenTransaction;
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        let (transaction, rows) = self.begin(statements)?;
        transaction.commit(Vec::new())?;
        Ok(rows)
    }
    fn begin(&self, statements: Vec<Statement>) -> Result<(OpenTransaction, Vec<Rows>), SqlError> {
        // A transaction that reads first and then writes could not wait for another writer.
        let begin = if self.0.is_readonly("main").map_err(error)? { "BEGIN" } else { "BEGIN IMMEDIATE" };
        self.0.execute_batch(begin).map_err(error)?;
        let transaction = OpenTransaction(Some(Rc::clone(&self.0)));
        let rows = transaction.execute(statements)?;
        Ok((transaction, rows))
    }
}

impl OpenTransaction {
    fn connection(&self) -> Result<&Connection, SqlError> {
        self.0.as_deref().ok_or_else(|| fail(SqlErrorCode::Other, "the transaction is over".to_owned()))
    }
}

impl Transaction for OpenTransaction {
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        let connection = self.connection()?;
        statements.into_iter().map(|statement| run(connection, &statement)).collect()
    }
    fn commit(mut self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        let rows = self.execute(statements)?;
        self.connection()?.execute_batch("COMMIT").map_err(error)?;
        self.0 = None;
        Ok(rows)
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            // It fails only where SQLite has rolled back by itself: then that is what was wanted.
            let _ = connection.execute_batch("ROLLBACK");
        }
    }
}

fn run(connection: &Connection, statement: &Statement) -> Result<Rows, SqlError> {
    RUN.with_borrow_mut(|run| run.push((statement.sql.clone(), format!("{:?}", statement.parameters))));
    let mut prepared = connection.prepare_cached(&statement.sql).map_err(error)?;
    if prepared.parameter_count() != statement.parameters.len() {
        return Err(fail(SqlErrorCode::Syntax, format!("{} parameters for {}", statement.parameters.len(), statement.sql)));
    }
    for (at, value) in statement.parameters.iter().enumerate() {
        prepared.raw_bind_parameter(at + 1, bound(value)?).map_err(error)?;
    }
    let mut columns: Vec<Values> = statement.columns.iter().map(|column| empty(*column)).collect();
    let mut returned = 0;
    let mut rows = prepared.raw_query();
    while let Some(row) = rows.next().map_err(error)? {
        if row.as_ref().column_count() != columns.len() && !columns.is_empty() {
            return Err(fail(SqlErrorCode::TypeMismatch, format!("{} columns for {}", columns.len(), statement.sql)));
        }
        returned += 1;
        for (at, column) in columns.iter_mut().enumerate() {
            append(column, row.get_ref(at).map_err(error)?)
                .map_err(|what| fail(SqlErrorCode::TypeMismatch, format!("column {at} of {}: {what}", statement.sql)))?;
        }
    }
    drop(rows);
    let changed = if prepared.readonly() { 0 } else { connection.changes() };
    let count = if statement.columns.is_empty() { changed } else { returned };
    if statement.must_change.is_some_and(|must| must != count) {
        return Err(fail(SqlErrorCode::Changed, format!("{count} rows changed")));
    }
    Ok(Rows { changed, columns })
}

/// Refuses what the host refuses.
fn bound(value: &Value) -> Result<ToSqlOutput<'_>, SqlError> {
    let json = |fault: serde_json::Error| fail(SqlErrorCode::TypeMismatch, fault.to_string());
    Ok(ToSqlOutput::Owned(match value {
        Value::Null => Stored::Null,
        Value::Integer(number) => Stored::Integer(*number),
        Value::Real(number) => Stored::Real(*number),
        Value::Text(text) => Stored::Text(text.clone()),
        Value::Bytes(bytes) => Stored::Blob(bytes.clone()),
        Value::Integers(numbers) => Stored::Text(serde_json::to_string(numbers).map_err(json)?),
        Value::Texts(texts) => {
            let utf_8 = |at| texts.get(at).map(std::str::from_utf8).transpose();
            let texts: Result<Vec<Option<&str>>, _> = (0..texts.len()).map(utf_8).collect();
            let texts = texts.map_err(|fault| fail(SqlErrorCode::TypeMismatch, fault.to_string()))?;
            Stored::Text(serde_json::to_string(&texts).map_err(json)?)
        }
    }))
}

fn empty(column: ColumnType) -> Values {
    match column {
        ColumnType::Integer => Values::Integers(sql::Integers { values: Vec::new(), nulls: Vec::new() }),
        ColumnType::Real => Values::Reals(sql::Reals { values: Vec::new(), nulls: Vec::new() }),
        ColumnType::Text => Values::Texts(Column::new()),
        ColumnType::Bytes => Values::Bytes(Column::new()),
    }
}

fn append(column: &mut Values, value: ValueRef<'_>) -> Result<(), String> {
    match (column, value) {
        (Values::Integers(column), ValueRef::Integer(number)) => {
            column.values.push(number);
            column.nulls.push(0);
        }
        (Values::Integers(column), ValueRef::Null) => {
            column.values.push(0);
            column.nulls.push(1);
        }
        (Values::Reals(column), ValueRef::Real(number)) => {
            column.values.push(number);
            column.nulls.push(0);
        }
        (Values::Reals(column), ValueRef::Null) => {
            column.values.push(0.0);
            column.nulls.push(1);
        }
        (Values::Texts(column) | Values::Bytes(column), ValueRef::Null) => column.push(None),
        (Values::Texts(column) | Values::Bytes(column), ValueRef::Text(text)) => column.push(Some(text)),
        (Values::Bytes(column), ValueRef::Blob(bytes)) => column.push(Some(bytes)),
        (Values::Texts(column), ValueRef::Integer(number)) => column.push(Some(number.to_string().as_bytes())),
        (Values::Texts(column), ValueRef::Real(number)) => column.push(Some(number.to_string().as_bytes())),
        (_, other) => return Err(format!("a value of type {}", other.data_type())),
    }
    Ok(())
}

fn fail(code: SqlErrorCode, detail: String) -> SqlError {
    SqlError { code, detail }
}

#[allow(clippy::needless_pass_by_value, reason = "the form that map_err wants")]
fn error(error: rusqlite::Error) -> SqlError {
    let detail = error.to_string();
    let code = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => SqlErrorCode::Busy,
        Some(ErrorCode::ReadOnly) => SqlErrorCode::ReadOnly,
        Some(ErrorCode::CannotOpen | ErrorCode::NotADatabase) => SqlErrorCode::Unavailable,
        Some(ErrorCode::ConstraintViolation) => SqlErrorCode::Constraint,
        _ if detail.contains("no such") => SqlErrorCode::Missing,
        _ if detail.contains("syntax error") => SqlErrorCode::Syntax,
        _ => SqlErrorCode::Other,
    };
    fail(code, detail)
}
