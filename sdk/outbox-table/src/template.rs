//! Statements whose text is built once, when the storage is opened, and filled with values at each call.

use crate::database::{ColumnType, Statement, Value};
use std::fmt::{self, Write as _};

/// A value that a statement needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// Ids of rows, as an array.
    Ids,
    /// Who holds, or is to hold, the rows.
    Worker,
    /// A duration in milliseconds.
    Millis,
    /// The text of a failure.
    Text,
    /// Rows after this place in the order.
    After,
    /// At most so many rows.
    Limit,
    /// Keys after this one.
    Key,
    /// At most so many keys.
    Keys,
    /// Ids of the rows that this transaction has locked, as an array.
    Locked,
    /// The keys of the rows in `Ids`, numbered, as an array.
    KeyOf,
    /// A number of attempts.
    Attempts,
    /// Where the place in the order is made of two values: rows after this second one.
    AfterToo,
    /// Whose rows.
    Tenant,
    /// How old a row may be in milliseconds that was tried; 0: as old as it gets.
    Horizon,
    /// The word of a failure.
    Code,
}

impl Slot {
    const ALL: [Self; 15] = [
        Self::Ids,
        Self::Worker,
        Self::Millis,
        Self::Text,
        Self::After,
        Self::Limit,
        Self::Key,
        Self::Keys,
        Self::Locked,
        Self::KeyOf,
        Self::Attempts,
        Self::AfterToo,
        Self::Tenant,
        Self::Horizon,
        Self::Code,
    ];

    fn letter(self) -> char {
        match self {
            Self::Ids => 'i',
            Self::Worker => 'w',
            Self::Millis => 'm',
            Self::Text => 't',
            Self::After => 'a',
            Self::Limit => 'l',
            Self::Key => 'k',
            Self::Keys => 'n',
            Self::Locked => 'h',
            Self::KeyOf => 'y',
            Self::Attempts => 'c',
            Self::AfterToo => 'b',
            Self::Tenant => 'u',
            Self::Horizon => 'z',
            Self::Code => 'e',
        }
    }
}

/// A mark that no name and no literal can hold: [`crate::ident`] refuses NUL, and so do state values.
impl fmt::Display for Slot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\0{}", self.letter())
    }
}

/// How a dialect writes parameters: `?1` or `$1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholder {
    /// SQLite.
    Question,
    /// Postgres.
    Dollar,
}

/// A statement's text, what it needs, and what it returns.
#[derive(Debug, Clone)]
pub struct Template {
    sql: String,
    slots: Vec<Slot>,
    columns: Vec<ColumnType>,
}

impl Template {
    /// From text with [`Slot`]s written into it.
    #[must_use]
    pub fn new(placeholder: Placeholder, text: &str, columns: &[ColumnType]) -> Self {
        let mut slots = Vec::new();
        let mut pieces = text.split('\0');
        let mut sql = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let mut rest = piece.chars();
            let letter = rest.next();
            if let Some(slot) = Slot::ALL.into_iter().find(|slot| Some(slot.letter()) == letter) {
                let index = slots.iter().position(|known| *known == slot).unwrap_or_else(|| {
                    slots.push(slot);
                    slots.len() - 1
                });
                let mark = match placeholder {
                    Placeholder::Question => '?',
                    Placeholder::Dollar => '$',
                };
                // Writing to a string cannot fail.
                let _infallible = write!(sql, "{mark}{}", index + 1);
            }
            sql.push_str(rest.as_str());
        }
        Self { sql, slots, columns: columns.to_vec() }
    }

    /// The statement with its values.
    pub fn fill(&self, mut value: impl FnMut(Slot) -> Value) -> Statement {
        Statement {
            sql: self.sql.clone(),
            parameters: self.slots.iter().map(|slot| value(*slot)).collect(),
            columns: self.columns.clone(),
            must_change: None,
        }
    }

    /// Its text.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_numbered_by_first_use() {
        let text = format!("a = {} AND b = {} AND c = {}", Slot::Worker, Slot::Ids, Slot::Worker);
        let template = Template::new(Placeholder::Question, &text, &[ColumnType::Integer]);
        assert_eq!(template.sql(), "a = ?1 AND b = ?2 AND c = ?1");
        let filled = template.fill(|slot| if slot == Slot::Worker { Value::Integer(1) } else { Value::Null });
        assert!(matches!(filled.parameters.as_slice(), [Value::Integer(1), Value::Null]), "{:?}", filled.parameters);
        assert_eq!(Template::new(Placeholder::Dollar, &text, &[]).sql(), "a = $1 AND b = $2 AND c = $1");
    }
}
