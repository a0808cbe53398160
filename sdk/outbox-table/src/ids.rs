//! Ids: text to the host, and whatever type they have in the table.

use crate::database::{ColumnType, Integers, Reader, Value};
use outhaul_sdk::{Column, Failure};
use std::borrow::Cow;

/// Which ids a table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdKind {
    /// 64-bit integers, or smaller ones.
    Integer,
    /// Text.
    #[default]
    Text,
    /// UUIDs: text in their one printed form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    Uuid,
}

impl IdKind {
    /// The type to ask for.
    #[must_use]
    pub fn column(self) -> ColumnType {
        match self {
            Self::Integer => ColumnType::Integer,
            Self::Text | Self::Uuid => ColumnType::Bytes,
        }
    }

    /// The next column, as ids.
    ///
    /// # Errors
    /// If the database driver broke its promise.
    pub fn read(self, reader: &mut Reader) -> Result<Ids, Failure> {
        Ok(match self {
            Self::Integer => Ids::Integers(reader.integers()?),
            Self::Text | Self::Uuid => Ids::Texts(reader.bytes()?),
        })
    }

    /// Ids from outside as a parameter; and those that cannot be ids of the table.
    #[must_use]
    pub fn parameter(self, ids: &Column) -> (Value, Vec<String>) {
        let mut others = Vec::new();
        let texts = (0..ids.len()).map(|at| ids.text(at).unwrap_or_default());
        match self {
            Self::Text => (Value::Texts(ids.clone()), others),
            Self::Integer => {
                let mut numbers = Vec::with_capacity(ids.len());
                for text in texts {
                    match number(text) {
                        Some(number) => numbers.push(number),
                        None => others.push(text.to_owned()),
                    }
                }
                (Value::Integers(numbers), others)
            }
            Self::Uuid => {
                let (uuids, rest): (Vec<&str>, Vec<&str>) = texts.partition(|text| is_uuid(text));
                others.extend(rest.into_iter().map(str::to_owned));
                (Value::Texts(Column::of_texts(uuids)), others)
            }
        }
    }

    /// Whether `id` can be an id of the table.
    #[must_use]
    pub fn takes(self, id: &str) -> bool {
        match self {
            Self::Integer => number(id).is_some(),
            Self::Text => true,
            Self::Uuid => is_uuid(id),
        }
    }

    /// One id as a parameter.
    #[must_use]
    pub fn value(self, id: &str) -> Value {
        match self {
            Self::Integer => number(id).map_or(Value::Null, Value::Integer),
            Self::Text | Self::Uuid => Value::Text(id.to_owned()),
        }
    }

    /// Parameters of ids, as one.
    pub(crate) fn joined(lists: Vec<Value>) -> Value {
        let mut lists = lists.into_iter();
        let mut all = lists.next().unwrap_or(Value::Null);
        for list in lists {
            match (&mut all, list) {
                (Value::Integers(all), Value::Integers(more)) => all.extend(more),
                (Value::Texts(all), Value::Texts(more)) => {
                    for text in more.iter() {
                        all.push(text);
                    }
                }
                _ => {}
            }
        }
        all
    }
}

/// The number that a text is, written as ids are handed out: `07` and `+7` are not the row 7.
fn number(text: &str) -> Option<i64> {
    let is_printed = match text.strip_prefix('-').unwrap_or(text).as_bytes() {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', ..] => true,
        _ => false,
    };
    if is_printed { text.parse().ok() } else { None }
}

/// Whether the text is a UUID as databases print it. They read other spellings too, but never hand them out.
fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
}

/// Ids of rows, in the type that the table has.
#[derive(Debug, Clone)]
pub enum Ids {
    /// Numbers.
    Integers(Integers),
    /// Text.
    Texts(Column),
}

impl Ids {
    /// Number of ids.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Integers(ids) => ids.len(),
            Self::Texts(ids) => ids.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Id `index` as text.
    #[must_use]
    pub fn text(&self, index: usize) -> Cow<'_, str> {
        match self {
            Self::Integers(ids) => Cow::Owned(ids.get(index).unwrap_or_default().to_string()),
            Self::Texts(ids) => String::from_utf8_lossy(ids.get(index).unwrap_or_default()),
        }
    }

    /// As a parameter of a statement.
    #[must_use]
    pub fn into_value(self) -> Value {
        match self {
            Self::Integers(ids) => Value::Integers((0..ids.len()).filter_map(|at| ids.get(at)).collect()),
            Self::Texts(ids) => Value::Texts(ids),
        }
    }

    /// Those whose bytes are no text, and so can be named to nobody. Ascending.
    #[must_use]
    pub fn unusable(&self) -> Vec<usize> {
        match self {
            Self::Integers(_) => Vec::new(),
            Self::Texts(ids) => (0..ids.len()).filter(|at| std::str::from_utf8(ids.get(*at).unwrap_or_default()).is_err()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_an_id_is_named_and_not_sent() {
        let uuid = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
        let given = Column::of_texts(["7", "x", uuid, "7C9E6679-7425-40DE-944B-E07FC1F90AE7", ""]);
        let (value, others) = IdKind::Integer.parameter(&given);
        assert!(matches!(value, Value::Integers(ids) if ids == [7]));
        assert_eq!(others.len(), 4);
        let (value, others) = IdKind::Uuid.parameter(&given);
        assert!(matches!(value, Value::Texts(ids) if ids.len() == 1 && ids.text(0) == Some(uuid)));
        assert_eq!(others.len(), 4);
        assert!(IdKind::Text.parameter(&given).1.is_empty());
    }

    #[test]
    fn a_number_has_one_spelling() {
        for id in ["0", "7", "70", "-7", "9223372036854775807", "-9223372036854775808"] {
            assert_eq!(number(id).map(|number| number.to_string()).as_deref(), Some(id));
        }
        for id in ["", "-", "07", "+7", " 7", "7 ", "-0", "00", "-07", "7.0", "1e3", "9223372036854775808"] {
            assert!(number(id).is_none() && !IdKind::Integer.takes(id), "{id}");
        }
    }
}
