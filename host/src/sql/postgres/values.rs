//! Parameters out, results in.
//!
//! Parameters travel in binary form, under the types of the contract. Results travel as text, so that every type of the server,
//! whatever extension it comes from, is handed out as the server itself writes it; only bytes that are known to be `bytea` come as
//! they are, because their text form is twice as long.

use super::fault::Fault;
use crate::domain::Column;
use crate::sql::{ColumnType, SqlErrorCode, Value, Values};
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, RowDescriptionBody};
use postgres_protocol::types::{ArrayDimension, array_to_sql, bytea_to_sql, float8_to_sql, int8_to_sql, text_to_sql};
use postgres_protocol::{IsNull, Oid};
use std::error::Error;

/// Types by their number in `pg_type`, which never changes.
mod oid {
    use postgres_protocol::Oid;

    pub(super) const UNSPECIFIED: Oid = 0;
    pub(super) const BOOL: Oid = 16;
    pub(super) const BYTEA: Oid = 17;
    pub(super) const INT8: Oid = 20;
    pub(super) const INT2: Oid = 21;
    pub(super) const INT4: Oid = 23;
    pub(super) const TEXT: Oid = 25;
    pub(super) const OID: Oid = 26;
    pub(super) const FLOAT4: Oid = 700;
    pub(super) const FLOAT8: Oid = 701;
    pub(super) const TEXT_ARRAY: Oid = 1009;
    pub(super) const INT8_ARRAY: Oid = 1016;
    pub(super) const NUMERIC: Oid = 1700;
}

/// What each value of a result costs on top of its bytes, in bytes: its offset or its number.
const VALUE_BYTES: usize = 8;

/// The format codes of the protocol.
const TEXT_FORMAT: i16 = 0;
const BINARY_FORMAT: i16 = 1;

/// The type under which a parameter is sent.
pub(super) fn type_of(value: &Value) -> Oid {
    match value {
        Value::Null => oid::UNSPECIFIED,
        Value::Integer(_) => oid::INT8,
        Value::Real(_) => oid::FLOAT8,
        Value::Text(_) => oid::TEXT,
        Value::Bytes(_) => oid::BYTEA,
        Value::Integers(_) => oid::INT8_ARRAY,
        Value::Texts(_) => oid::TEXT_ARRAY,
    }
}

/// Refuses what the server could not read. `position` counts from 1.
pub(super) fn check(value: &Value, position: usize) -> Result<(), Fault> {
    let mismatch = |problem: &str| Err(Fault::harmless(SqlErrorCode::TypeMismatch, format!("parameter {position} {problem}")));
    match value {
        Value::Text(text) if text.contains('\0') => mismatch("holds a NUL character, which no text of PostgreSQL can"),
        Value::Texts(texts) => match texts.check_text(texts.len()) {
            Err(fault) => mismatch(&fault.to_string()),
            Ok(()) if texts.data.contains(&0) => mismatch("holds a NUL character, which no text of PostgreSQL can"),
            Ok(()) => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Writes a parameter in binary form.
pub(super) fn write(value: &Value, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
    match value {
        Value::Null => return Ok(IsNull::Yes),
        Value::Integer(integer) => int8_to_sql(*integer, out),
        Value::Real(real) => float8_to_sql(*real, out),
        Value::Text(text) => text_to_sql(text, out),
        Value::Bytes(bytes) => bytea_to_sql(bytes, out),
        Value::Integers(integers) => array_to_sql(
            dimension(integers.len())?,
            oid::INT8,
            integers,
            |integer, out| {
                int8_to_sql(*integer, out);
                Ok(IsNull::No)
            },
            out,
        )?,
        Value::Texts(texts) => array_to_sql(
            dimension(texts.len())?,
            oid::TEXT,
            (0..texts.len()).map(|index| texts.text(index)),
            |text, out| match text {
                Some(text) => {
                    text_to_sql(text, out);
                    Ok(IsNull::No)
                }
                None => Ok(IsNull::Yes),
            },
            out,
        )?,
    }
    Ok(IsNull::No)
}

/// An empty array has no dimension.
fn dimension(len: usize) -> Result<Option<ArrayDimension>, std::num::TryFromIntError> {
    let len = i32::try_from(len)?;
    Ok((len > 0).then_some(ArrayDimension { len, lower_bound: 1 }))
}

/// A column of a result, as the server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    name: String,
    of: Oid,
}

/// Reads a description.
pub(super) fn fields(body: &RowDescriptionBody) -> Result<Vec<Field>, Fault> {
    let fields = body.fields().map(|field| Ok(Field { name: field.name().to_owned(), of: field.type_oid() }));
    fields.collect().map_err(|error| Fault::protocol(&error.to_string()))
}

/// The format in which a column is asked for.
pub(super) fn format(field: &Field, asked: ColumnType) -> i16 {
    if asked == ColumnType::Bytes && field.of == oid::BYTEA { BINARY_FORMAT } else { TEXT_FORMAT }
}

/// Refuses a result that does not fit what was asked for.
pub(super) fn check_fields(fields: &[Field], asked: &[ColumnType]) -> Result<(), Fault> {
    if fields.len() != asked.len() {
        return Err(Fault::harmless(
            SqlErrorCode::TypeMismatch,
            format!("it returns {} columns, but the types of {} were asked for", fields.len(), asked.len()),
        ));
    }
    for (index, (field, asked)) in fields.iter().zip(asked).enumerate() {
        let fits = match asked {
            ColumnType::Integer => matches!(field.of, oid::INT2 | oid::INT4 | oid::INT8 | oid::BOOL | oid::OID),
            ColumnType::Real => matches!(field.of, oid::FLOAT4 | oid::FLOAT8 | oid::NUMERIC | oid::INT2 | oid::INT4 | oid::INT8),
            ColumnType::Text | ColumnType::Bytes => true,
        };
        if !fits {
            return Err(Fault::harmless(
                SqlErrorCode::TypeMismatch,
                format!(
                    "column {} ({}) is of a type that cannot be handed out as {}: ask for text, or cast it in the statement",
                    index + 1,
                    field.name,
                    asked.name()
                ),
            ));
        }
    }
    Ok(())
}

/// How many bytes of result are left to the call.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
    limit: usize,
}

impl Budget {
    pub(super) fn new(limit: usize) -> Self {
        Self { left: limit, limit }
    }

    /// The longest row that can still fit: each of its values comes with four bytes of length, and hexadecimal bytes are twice as
    /// long as what they stand for. The host's own statements return a few hundred bytes.
    pub(super) fn longest_row(&self, columns: usize) -> usize {
        self.left.saturating_mul(2).saturating_add(columns.saturating_mul(8)).saturating_add(1024)
    }

    fn take(&mut self, bytes: usize) -> Result<(), Fault> {
        match self.left.checked_sub(bytes.saturating_add(VALUE_BYTES)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            // The rest of the result is still on its way: closing the connection is the only way not to read it.
            None => Err(Fault::lost(
                SqlErrorCode::TypeMismatch,
                format!("its result is over the limit of {} bytes: ask for fewer rows, or raise limits.returned_bytes", self.limit),
            )),
        }
    }
}

/// Appends a row to the columns of its result. `formats` are those asked for; a shorter list: text.
pub(super) fn push_row(
    columns: &mut [Values],
    row: &DataRowBody,
    fields: &[Field],
    formats: &[i16],
    budget: &mut Budget,
) -> Result<(), Fault> {
    let malformed = |error: std::io::Error| Fault::protocol(&error.to_string());
    let mut ranges = row.ranges();
    for (index, (column, field)) in columns.iter_mut().zip(fields).enumerate() {
        let Some(range) = ranges.next().map_err(malformed)? else { return Err(Fault::protocol("a row is too short")) };
        let value = range.map(|range| row.buffer().get(range).unwrap_or_default());
        let binary = formats.get(index) == Some(&BINARY_FORMAT);
        push(column, value, field, binary, budget)?;
    }
    if ranges.next().map_err(malformed)?.is_some() {
        return Err(Fault::protocol("a row is too long"));
    }
    Ok(())
}

fn push(column: &mut Values, value: Option<&[u8]>, field: &Field, binary: bool, budget: &mut Budget) -> Result<(), Fault> {
    let bytes = match (&mut *column, value) {
        (Values::Integers { .. } | Values::Reals { .. }, _) | (_, None) => 0,
        (Values::Bytes(_), Some(value)) if field.of == oid::BYTEA && !binary => value.len().saturating_sub(2) / 2,
        (_, Some(value)) => value.len(),
    };
    budget.take(bytes)?;
    match column {
        Values::Integers { values, nulls } => push_number(values, nulls, value.map(|value| integer(value, field)).transpose()?),
        Values::Reals { values, nulls } => push_number(values, nulls, value.map(|value| real(value, field)).transpose()?),
        Values::Texts(texts) => {
            if value.is_some_and(|value| std::str::from_utf8(value).is_err()) {
                return Err(Fault::protocol(&format!("column {} is not UTF-8", field.name)));
            }
            texts.push(value);
        }
        Values::Bytes(all) => match value {
            Some(value) if field.of == oid::BYTEA && !binary => push_hexadecimal(all, value, field)?,
            value => all.push(value),
        },
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

fn unreadable(field: &Field) -> Fault {
    Fault::protocol(&format!("a value of column {} cannot be read", field.name))
}

fn integer(text: &[u8], field: &Field) -> Result<i64, Fault> {
    match text {
        b"t" => Ok(1),
        b"f" => Ok(0),
        text => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(|| unreadable(field)),
    }
}

/// Digits beyond what a float holds are lost: a real was asked for.
fn real(text: &[u8], field: &Field) -> Result<f64, Fault> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(|| unreadable(field))
}

/// `\x0aff`: the host sets `bytea_output` to `hex` in each transaction.
fn push_hexadecimal(column: &mut Column, text: &[u8], field: &Field) -> Result<(), Fault> {
    let digits = text.strip_prefix(b"\\x").ok_or_else(|| unreadable(field))?;
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(unreadable(field));
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    column.push(Some(&bytes.ok_or_else(|| unreadable(field))?));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(of: Oid) -> Field {
        Field { name: "c".to_owned(), of }
    }

    #[test]
    fn numbers_are_read_as_the_server_writes_them() {
        assert_eq!(integer(b"-9223372036854775808", &field(oid::INT8)), Ok(i64::MIN));
        assert_eq!((integer(b"t", &field(oid::BOOL)), integer(b"f", &field(oid::BOOL))), (Ok(1), Ok(0)));
        assert_eq!(real(b"1e+300", &field(oid::FLOAT8)), Ok(1e300));
        assert_eq!(real(b"-Infinity", &field(oid::FLOAT8)), Ok(f64::NEG_INFINITY));
        assert!(real(b"NaN", &field(oid::NUMERIC)).unwrap().is_nan());
        assert!(integer(b"1.5", &field(oid::INT8)).is_err() && real(b"", &field(oid::FLOAT8)).is_err());
    }

    #[test]
    fn hexadecimal_bytes_are_read() {
        let mut column = Column::default();
        for text in [b"\\x".as_slice(), b"\\x00ff", b"\\xAbcD"] {
            push_hexadecimal(&mut column, text, &field(oid::BYTEA)).unwrap();
        }
        assert_eq!(column.data, [0x00, 0xff, 0xab, 0xcd]);
        for text in [b"00".as_slice(), b"\\x0", b"\\x0g", b""] {
            assert!(push_hexadecimal(&mut column, text, &field(oid::BYTEA)).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_budget_counts_bytes_and_values() {
        let mut budget = Budget::new(20);
        budget.take(4).unwrap();
        let fault = budget.take(1).unwrap_err();
        assert!(fault.lost && fault.error.code == SqlErrorCode::TypeMismatch, "{fault:?}");
        budget.take(0).unwrap();
    }
}
