//! The `sql` capability as a trait. In a component it is the host's; natively (tests, benchmarks) it is a driver, and the same
//! storage code runs on both.

pub mod failure;

use crate::sql;
use crate::{Column, Failure, FailureCode};

pub use crate::sql::{Access, ColumnType, Dialect, Error as SqlError, ErrorCode as SqlErrorCode, Rows, Statement, Value, Values};

/// A connection. See `interface sql` in `wit/outbox.wit` for what each call promises.
#[allow(clippy::missing_errors_doc, reason = "all return the errors that wit/outbox.wit describes")]
pub trait Database {
    /// An open transaction.
    type Transaction: Transaction;
    /// Runs the statements in one transaction.
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError>;
    /// Starts a transaction that may write, and runs the first statements in it.
    fn begin(&self, statements: Vec<Statement>) -> Result<(Self::Transaction, Vec<Rows>), SqlError>;
}

/// A database that is opened by the name that the operator gave it.
pub trait Named: Database + Sized {
    /// Opens it.
    ///
    /// # Errors
    /// Not granted, not known or not reachable.
    fn open(name: &str, access: Access) -> Result<Self, SqlError>;
    /// Which SQL it understands.
    fn dialect(&self) -> Dialect;
}

/// A transaction; dropping it rolls it back.
#[allow(clippy::missing_errors_doc, reason = "all return the errors that wit/outbox.wit describes")]
pub trait Transaction {
    /// Runs statements.
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError>;
    /// Runs the last statements and commits.
    fn commit(self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError>;
}

impl Database for sql::Connection {
    type Transaction = sql::Transaction;
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        Self::execute(self, &statements)
    }
    fn begin(&self, statements: Vec<Statement>) -> Result<(sql::Transaction, Vec<Rows>), SqlError> {
        Self::begin(self, &statements)
    }
}

impl Named for sql::Connection {
    fn open(name: &str, access: Access) -> Result<Self, SqlError> {
        Self::open(name, access)
    }
    fn dialect(&self) -> Dialect {
        Self::dialect(self)
    }
}

impl Transaction for sql::Transaction {
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        Self::execute(self, &statements)
    }
    fn commit(self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        Self::commit(self, &statements)
    }
}

/// Integers of a result, some of them none.
#[derive(Debug, Clone, Default)]
pub struct Integers {
    values: Vec<i64>,
    nulls: Vec<u8>,
}

impl Integers {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Value `index`; none if it is none, or out of range.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<i64> {
        if self.nulls.get(index).is_some_and(|mark| *mark == 1) { None } else { self.values.get(index).copied() }
    }

    /// Value `index` as a count; 0 where it is none or negative.
    #[must_use]
    pub fn count(&self, index: usize) -> u64 {
        self.get(index).and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
    }
}

impl FromIterator<i64> for Integers {
    fn from_iter<I: IntoIterator<Item = i64>>(values: I) -> Self {
        Self { values: values.into_iter().collect(), nulls: Vec::new() }
    }
}

/// Reads the results of a call in the order in which they were asked for.
#[derive(Debug)]
pub struct Results(std::vec::IntoIter<Rows>);

impl Results {
    /// Of a call.
    #[must_use]
    pub fn new(rows: Vec<Rows>) -> Self {
        Self(rows.into_iter())
    }

    /// The next statement's result.
    ///
    /// # Errors
    /// If there is none: the database driver broke its promise.
    pub fn next_rows(&mut self) -> Result<Reader, Failure> {
        let rows = self.0.next().ok_or_else(|| broken("fewer results than statements"))?;
        Ok(Reader { changed: rows.changed, columns: rows.columns.into_iter() })
    }
}

/// Reads the columns of one result in the order in which they were asked for.
#[derive(Debug)]
pub struct Reader {
    /// Rows changed.
    pub changed: u64,
    columns: std::vec::IntoIter<Values>,
}

impl Reader {
    /// The next column, asked for as integers.
    ///
    /// # Errors
    /// If it is not there: the database driver broke its promise.
    pub fn integers(&mut self) -> Result<Integers, Failure> {
        match self.columns.next() {
            Some(Values::Integers(column)) => Ok(Integers { values: column.values, nulls: column.nulls }),
            _ => Err(broken("a column of integers is missing")),
        }
    }

    /// The next column, asked for as bytes or text.
    ///
    /// # Errors
    /// If it is not there: the database driver broke its promise.
    pub fn bytes(&mut self) -> Result<Column, Failure> {
        match self.columns.next() {
            Some(Values::Bytes(column) | Values::Texts(column)) => Ok(column),
            _ => Err(broken("a column of bytes is missing")),
        }
    }
}

fn broken(what: &str) -> Failure {
    Failure::of(FailureCode::Other("sql-result".to_owned()), format!("the database driver returned {what}"))
}
