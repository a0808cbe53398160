//! Parameters out, results in.
//!
//! Parameters travel under the types of the contract. sqlx asks for results in binary form, which only the type itself can write
//! out: the types that tables of messages are made of are known here (`text` writes them); any other is refused, and has to be cast.

use super::fault::Fault;
use super::text::{self, Unreadable};
use crate::sql::{ColumnType, SqlErrorCode, Value, Values};
use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgColumn, PgRow, PgTypeInfo, PgTypeKind, PgValueFormat};
use sqlx::{Arguments, Column as _, Postgres, Row, Type, TypeInfo, ValueRef};
use std::borrow::Cow;

/// What each value of a result costs on top of its bytes, in bytes: its offset or its number.
const VALUE_BYTES: usize = 8;

/// The type under which a parameter is sent. NULL has none: the statement says what it is.
pub(super) fn type_of(value: &Value) -> PgTypeInfo {
    match value {
        Value::Null => PgTypeInfo::with_oid(Oid(0)),
        Value::Integer(_) => <i64 as Type<Postgres>>::type_info(),
        Value::Real(_) => <f64 as Type<Postgres>>::type_info(),
        Value::Text(_) => <str as Type<Postgres>>::type_info(),
        Value::Bytes(_) => <[u8] as Type<Postgres>>::type_info(),
        Value::Integers(_) => <[i64] as Type<Postgres>>::type_info(),
        Value::Texts(_) => <[&str] as Type<Postgres>>::type_info(),
    }
}

/// A statement with the types of its parameters behind it: sqlx keeps prepared statements by their text alone, and a parameter of
/// another type makes another statement.
pub(super) fn with_types(sql: &str, parameters: &[Value]) -> String {
    let name = |value| match value {
        &Value::Null => "null",
        Value::Integer(_) => "i",
        Value::Real(_) => "r",
        Value::Text(_) => "t",
        Value::Bytes(_) => "b",
        Value::Integers(_) => "i[]",
        Value::Texts(_) => "t[]",
    };
    let names: Vec<&str> = parameters.iter().map(name).collect();
    // On a line of its own: the statement may end in a comment.
    format!("{sql}\n/* {} */", names.join(", "))
}

/// Parameters as they are sent.
pub(super) fn arguments(parameters: &[Value]) -> Result<PgArguments, Fault> {
    let mut arguments = PgArguments::default();
    arguments.reserve(parameters.len(), 0);
    for (parameter, position) in parameters.iter().zip(1..) {
        arguments
            .add(Parameter(parameter))
            .map_err(|error| Fault::harmless(SqlErrorCode::TypeMismatch, format!("parameter {position} cannot be sent: {error}")))?;
    }
    Ok(arguments)
}

/// A parameter.
struct Parameter<'a>(&'a Value);

impl Type<Postgres> for Parameter<'_> {
    fn type_info() -> PgTypeInfo {
        type_of(&Value::Null)
    }
}

impl<'q> Encode<'q, Postgres> for Parameter<'_> {
    fn encode_by_ref(&self, out: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        match self.0 {
            Value::Null => Ok(IsNull::Yes),
            Value::Integer(integer) => Encode::<Postgres>::encode_by_ref(integer, out),
            Value::Real(real) => Encode::<Postgres>::encode_by_ref(real, out),
            Value::Text(text) => Encode::<Postgres>::encode_by_ref(text, out),
            Value::Bytes(bytes) => Encode::<Postgres>::encode_by_ref(bytes, out),
            Value::Integers(integers) => Encode::<Postgres>::encode_by_ref(integers, out),
            Value::Texts(texts) => {
                let texts: Vec<Option<&str>> = (0..texts.len()).map(|index| texts.text(index)).collect();
                Encode::<Postgres>::encode_by_ref(&texts, out)
            }
        }
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(type_of(self.0))
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

/// What a column holds, as far as the host can read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    /// Of 2, 4 or 8 bytes.
    Integer,
    Oid,
    Float4,
    Float8,
    Numeric,
    /// Whatever travels as its own text.
    Text,
    Jsonb,
    Uuid,
    Bytea,
    Date,
    Timestamp,
    TimestampTz,
    Void,
}

fn kind(column: &PgColumn) -> Option<Kind> {
    let of = column.type_info();
    // Numbers in `pg_type`, which never change.
    Some(match of.oid().map_or(0, |oid| oid.0) {
        16 => Kind::Bool,
        17 => Kind::Bytea,
        20 | 21 | 23 => Kind::Integer,
        26 => Kind::Oid,
        700 => Kind::Float4,
        701 => Kind::Float8,
        1700 => Kind::Numeric,
        // "char", name, text, json, unknown, bpchar, varchar
        18 | 19 | 25 | 114 | 705 | 1042 | 1043 => Kind::Text,
        3802 => Kind::Jsonb,
        2950 => Kind::Uuid,
        1082 => Kind::Date,
        1114 => Kind::Timestamp,
        1184 => Kind::TimestampTz,
        2278 => Kind::Void,
        _ if matches!(of.kind(), PgTypeKind::Enum(_)) || of.name().eq_ignore_ascii_case("citext") => Kind::Text,
        _ => return None,
    })
}

/// Refuses a result that does not fit what was asked for.
pub(super) fn check_columns(columns: &[PgColumn], asked: &[ColumnType]) -> Result<(), Fault> {
    if columns.len() != asked.len() {
        return Err(Fault::harmless(
            SqlErrorCode::TypeMismatch,
            format!("it returns {} columns, but the types of {} were asked for", columns.len(), asked.len()),
        ));
    }
    for (index, (column, asked)) in columns.iter().zip(asked).enumerate() {
        let kind = kind(column);
        let fits = match asked {
            ColumnType::Integer => matches!(kind, Some(Kind::Integer | Kind::Bool | Kind::Oid)),
            ColumnType::Real => matches!(kind, Some(Kind::Float4 | Kind::Float8 | Kind::Numeric | Kind::Integer)),
            ColumnType::Text | ColumnType::Bytes => kind.is_some(),
        };
        if !fits {
            return Err(Fault::harmless(
                SqlErrorCode::TypeMismatch,
                format!(
                    "column {} ({}) is of the type {}, which cannot be handed out as {}: cast it in the statement, as in {}::text",
                    index + 1,
                    column.name(),
                    column.type_info().name(),
                    asked.name(),
                    column.name()
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

/// Appends a row to the columns of its result, of which the types were checked.
pub(super) fn push_row(columns: &mut [Values], row: &PgRow, budget: &mut Budget) -> Result<(), Fault> {
    for (index, column) in columns.iter_mut().enumerate() {
        let value = row.try_get_raw(index).map_err(|error| Fault::of(&error))?;
        let of = row.try_column(index).map_err(|error| Fault::of(&error))?;
        let unreadable = |_| Fault::protocol(&format!("a value of column {} cannot be read", of.name()));
        let bytes = match value.is_null() {
            true => None,
            false => Some(value.as_bytes().map_err(|_| Unreadable).map_err(unreadable)?),
        };
        let kind = kind(of).filter(|_| bytes.is_none() || value.format() == PgValueFormat::Binary);
        let kind = kind.ok_or(Unreadable).map_err(unreadable)?;
        push(column, bytes, kind, budget, &unreadable)?;
    }
    Ok(())
}

fn push(
    column: &mut Values,
    value: Option<&[u8]>,
    kind: Kind,
    budget: &mut Budget,
    unreadable: &impl Fn(Unreadable) -> Fault,
) -> Result<(), Fault> {
    match column {
        Values::Integers { values, nulls } => {
            budget.take(0)?;
            push_number(values, nulls, value.map(|value| integer(value, kind)).transpose().map_err(unreadable)?);
        }
        Values::Reals { values, nulls } => {
            budget.take(0)?;
            push_number(values, nulls, value.map(|value| real(value, kind)).transpose().map_err(unreadable)?);
        }
        Values::Bytes(all) if kind == Kind::Bytea => {
            budget.take(value.map_or(0, <[u8]>::len))?;
            all.push(value);
        }
        Values::Texts(all) | Values::Bytes(all) => {
            let written = value.map(|value| write(value, kind)).transpose().map_err(unreadable)?;
            budget.take(written.as_deref().map_or(0, <[u8]>::len))?;
            all.push(written.as_deref());
        }
    }
    Ok(())
}

/// A value as the server would write it.
fn write(value: &[u8], kind: Kind) -> Result<Cow<'_, [u8]>, Unreadable> {
    let owned = |text: String| Cow::Owned(text.into_bytes());
    let utf8 = |text: &'_ [u8]| if std::str::from_utf8(text).is_ok() { Ok(()) } else { Err(Unreadable) };
    Ok(match kind {
        Kind::Bool => Cow::Borrowed(if integer(value, kind)? == 1 { b"t" } else { b"f" }),
        Kind::Integer | Kind::Oid => owned(integer(value, kind)?.to_string()),
        Kind::Float4 => owned(text::float4(f32::from_be_bytes(text::array(value)?))),
        Kind::Float8 => owned(text::float8(f64::from_be_bytes(text::array(value)?))),
        Kind::Numeric => owned(text::numeric(value)?),
        Kind::Text => {
            utf8(value)?;
            Cow::Borrowed(value)
        }
        // The first byte is the version of the format.
        Kind::Jsonb => match value {
            [1, json @ ..] => {
                utf8(json)?;
                Cow::Borrowed(json)
            }
            _ => return Err(Unreadable),
        },
        Kind::Uuid => owned(text::uuid(text::array(value)?)),
        Kind::Bytea => owned(text::hexadecimal(value)),
        Kind::Date => owned(text::date(i32::from_be_bytes(text::array(value)?))),
        Kind::Timestamp => owned(text::timestamp(i64::from_be_bytes(text::array(value)?), "")),
        Kind::TimestampTz => owned(text::timestamp(i64::from_be_bytes(text::array(value)?), "+00")),
        Kind::Void => Cow::Borrowed(b""),
    })
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

fn integer(value: &[u8], kind: Kind) -> Result<i64, Unreadable> {
    match (kind, value) {
        (Kind::Bool, [byte]) => Ok(i64::from(*byte != 0)),
        (Kind::Oid, value) => Ok(u32::from_be_bytes(text::array(value)?).into()),
        (_, [_, _]) => Ok(i16::from_be_bytes(text::array(value)?).into()),
        (_, [_, _, _, _]) => Ok(i32::from_be_bytes(text::array(value)?).into()),
        (_, value) => Ok(i64::from_be_bytes(text::array(value)?)),
    }
}

/// Digits beyond what a float holds are lost: a real was asked for.
fn real(value: &[u8], kind: Kind) -> Result<f64, Unreadable> {
    match kind {
        Kind::Float4 => Ok(f32::from_be_bytes(text::array(value)?).into()),
        Kind::Float8 => Ok(f64::from_be_bytes(text::array(value)?)),
        Kind::Numeric => text::numeric(value)?.parse().map_err(|_| Unreadable),
        // Through its text: the nearest float, without a cast.
        _ => integer(value, kind)?.to_string().parse().map_err(|_| Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read() {
        assert_eq!(integer(&i64::MIN.to_be_bytes(), Kind::Integer), Ok(i64::MIN));
        assert_eq!((integer(&[1], Kind::Bool), integer(&[0], Kind::Bool)), (Ok(1), Ok(0)));
        assert_eq!(integer(&u32::MAX.to_be_bytes(), Kind::Oid), Ok(u32::MAX.into()));
        assert_eq!(real(&1e300_f64.to_be_bytes(), Kind::Float8), Ok(1e300));
        assert_eq!(real(&7_i16.to_be_bytes(), Kind::Integer), Ok(7.0));
        assert!(integer(&[1, 2, 3], Kind::Integer).is_err() && real(&[], Kind::Float8).is_err() && integer(b"", Kind::Bool).is_err());
    }

    #[test]
    fn other_types_make_another_text() {
        assert_eq!(with_types("SELECT $1 -- c", &[Value::Null, Value::Integers(vec![])]), "SELECT $1 -- c\n/* null, i[] */");
        assert_ne!(with_types("SELECT 1\n/* null */", &[]), with_types("SELECT 1", &[Value::Null]));
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
