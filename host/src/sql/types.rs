//! The words of the `sql` capability: statements, values, rows. They mirror `interface sql` of the WIT package, which says what
//! each of them means.

use crate::domain::Column;
use std::time::{Duration, Instant};

/// Which SQL a database speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    Mysql,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads, on a connection of their own: they never wait for a writer. Writes are refused.
    ReadOnly,
    /// Reads and writes. In SQLite the transactions of one process take turns, in the order in which they asked.
    ReadWrite,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// A 64-bit integer.
    Integer(i64),
    /// A 64-bit float.
    Real(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// An array of integers: JSON text in SQLite, `bigint[]` in Postgres.
    Integers(Vec<i64>),
    /// An array of texts, none allowed: JSON text in SQLite, `text[]` in Postgres. Checked before use: it may come from a guest.
    Texts(Column),
}

/// The type that a statement asks for in a column of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    /// 64-bit integers.
    Integer,
    /// 64-bit floats; integers are converted.
    Real,
    /// Text. Numbers are written out, in Postgres values of every type; bytes that are not UTF-8 (SQLite) are replaced.
    Text,
    /// Bytes; text is handed out as its bytes.
    Bytes,
}

impl ColumnType {
    /// The name used in error texts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Real => "real",
            Self::Text => "text",
            Self::Bytes => "bytes",
        }
    }
}

/// One SQL statement.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// The statement, alone: a second one behind it is refused.
    pub sql: String,
    /// `?1`, `?2`, ... in SQLite; `$1`, `$2`, ... in Postgres.
    pub parameters: Vec<Value>,
    /// The types of the columns that it returns. Empty for a statement that returns no rows.
    pub columns: Vec<ColumnType>,
    /// How many rows it must change (or return, if it returns rows), or else all is rolled back.
    pub must_change: Option<u64>,
}

impl Statement {
    /// A statement without parameters and without a result.
    pub fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), parameters: Vec::new(), columns: Vec::new(), must_change: None }
    }

    /// The same with parameters.
    #[must_use]
    pub fn bind(mut self, parameters: impl IntoIterator<Item = Value>) -> Self {
        self.parameters.extend(parameters);
        self
    }

    /// The same, returning columns of these types.
    #[must_use]
    pub fn returning(mut self, columns: impl IntoIterator<Item = ColumnType>) -> Self {
        self.columns.extend(columns);
        self
    }

    /// The same, having to change exactly so many rows.
    #[must_use]
    pub fn must_change(mut self, rows: u64) -> Self {
        self.must_change = Some(rows);
        self
    }
}

/// One column of a result. `nulls` is empty, or has one byte a value where 1 means NULL; the value there is 0.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Integers.
    Integers {
        /// The values.
        values: Vec<i64>,
        /// Null marks.
        nulls: Vec<u8>,
    },
    /// Floats.
    Reals {
        /// The values.
        values: Vec<f64>,
        /// Null marks.
        nulls: Vec<u8>,
    },
    /// Text, valid UTF-8.
    Texts(Column),
    /// Bytes.
    Bytes(Column),
}

impl Values {
    /// An empty column of the given type.
    #[must_use]
    pub fn empty(of: ColumnType) -> Self {
        match of {
            ColumnType::Integer => Self::Integers { values: Vec::new(), nulls: Vec::new() },
            ColumnType::Real => Self::Reals { values: Vec::new(), nulls: Vec::new() },
            ColumnType::Text => Self::Texts(Column::default()),
            ColumnType::Bytes => Self::Bytes(Column::default()),
        }
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Integers { values, .. } => values.len(),
            Self::Reals { values, .. } => values.len(),
            Self::Texts(column) | Self::Bytes(column) => column.len(),
        }
    }

    /// Whether it has no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a statement did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    /// Rows changed by an INSERT, UPDATE or DELETE.
    pub changed: u64,
    /// One entry for each of [`Statement::columns`], all of the same length.
    pub columns: Vec<Values>,
}

/// What one call may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The call ends by then: waiting for locks with `busy`, a statement that runs with `timeout`.
    pub deadline: Instant,
    /// Most bytes of all results of the call together (`limits.returned_bytes` of the adapter). A value counts with its bytes,
    /// a number with 8.
    pub max_result_bytes: usize,
}

impl Bounds {
    /// Bounds that end so long from now.
    #[must_use]
    pub fn within(time: Duration, max_result_bytes: usize) -> Self {
        let now = Instant::now();
        // A time that no clock can hold is as good as a year.
        let deadline = now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600));
        Self { deadline, max_result_bytes }
    }

    /// Time left; zero if the deadline has passed.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}
