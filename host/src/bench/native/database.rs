//! The host's own databases, offered to storage code that runs as plain Rust: the same drivers as behind the sandbox.

use super::convert::{column_in, column_out};
use crate::config::model::Limits;
use crate::sql;
use outbox_table::database::{Database, Transaction};
use outhaul_sdk::sql as guest;

/// As the host bounds the calls of a component for which no other limits are configured.
fn bounds() -> sql::Bounds {
    let limits = Limits::default();
    sql::Bounds::within(limits.call_timeout, limits.returned_bytes)
}

/// A connection of the host.
#[derive(Debug)]
pub struct HostDatabase(sql::Connection);

/// A transaction of the host.
#[derive(Debug)]
pub struct HostTransaction(std::cell::RefCell<sql::Transaction>);

impl HostDatabase {
    /// Opens a database of the configuration.
    ///
    /// # Errors
    /// Those of the host.
    pub fn open(databases: &sql::Databases, name: &str, access: guest::Access) -> Result<Self, guest::Error> {
        let access = match access {
            guest::Access::ReadOnly => sql::Access::ReadOnly,
            guest::Access::ReadWrite => sql::Access::ReadWrite,
        };
        databases.open_blocking(name, access).map(Self).map_err(error_out)
    }
}

impl Database for HostDatabase {
    type Transaction = HostTransaction;

    fn execute(&self, statements: Vec<guest::Statement>) -> Result<Vec<guest::Rows>, guest::Error> {
        self.0.execute_blocking(statements_in(statements), bounds()).map(rows_out).map_err(error_out)
    }

    fn begin(&self, statements: Vec<guest::Statement>) -> Result<(HostTransaction, Vec<guest::Rows>), guest::Error> {
        let (transaction, rows) = self.0.begin_blocking(statements_in(statements), bounds()).map_err(error_out)?;
        Ok((HostTransaction(transaction.into()), rows_out(rows)))
    }
}

impl Transaction for HostTransaction {
    fn execute(&self, statements: Vec<guest::Statement>) -> Result<Vec<guest::Rows>, guest::Error> {
        self.0.borrow_mut().execute_blocking(statements_in(statements), bounds()).map(rows_out).map_err(error_out)
    }

    fn commit(self, statements: Vec<guest::Statement>) -> Result<Vec<guest::Rows>, guest::Error> {
        self.0.into_inner().commit_blocking(statements_in(statements), bounds()).map(rows_out).map_err(error_out)
    }
}

fn statements_in(statements: Vec<guest::Statement>) -> Vec<sql::Statement> {
    let value = |value| match value {
        guest::Value::Null => sql::Value::Null,
        guest::Value::Integer(value) => sql::Value::Integer(value),
        guest::Value::Real(value) => sql::Value::Real(value),
        guest::Value::Text(value) => sql::Value::Text(value),
        guest::Value::Bytes(value) => sql::Value::Bytes(value),
        guest::Value::Integers(values) => sql::Value::Integers(values),
        guest::Value::Texts(values) => sql::Value::Texts(column_in(values)),
    };
    let column = |column| match column {
        guest::ColumnType::Integer => sql::ColumnType::Integer,
        guest::ColumnType::Real => sql::ColumnType::Real,
        guest::ColumnType::Text => sql::ColumnType::Text,
        guest::ColumnType::Bytes => sql::ColumnType::Bytes,
    };
    let statement = |statement: guest::Statement| sql::Statement {
        sql: statement.sql,
        parameters: statement.parameters.into_iter().map(value).collect(),
        columns: statement.columns.into_iter().map(column).collect(),
        must_change: statement.must_change,
    };
    statements.into_iter().map(statement).collect()
}

fn rows_out(rows: Vec<sql::Rows>) -> Vec<guest::Rows> {
    let values = |values| match values {
        sql::Values::Integers { values, nulls } => guest::Values::Integers(guest::Integers { values, nulls }),
        sql::Values::Reals { values, nulls } => guest::Values::Reals(guest::Reals { values, nulls }),
        sql::Values::Texts(column) => guest::Values::Texts(column_out(column)),
        sql::Values::Bytes(column) => guest::Values::Bytes(column_out(column)),
    };
    let rows_of = |rows: sql::Rows| guest::Rows { changed: rows.changed, columns: rows.columns.into_iter().map(values).collect() };
    rows.into_iter().map(rows_of).collect()
}

fn error_out(error: sql::SqlError) -> guest::Error {
    use guest::ErrorCode as To;
    use sql::SqlErrorCode as From;
    let code = match error.code {
        From::Denied => To::Denied,
        From::Unavailable => To::Unavailable,
        From::Busy => To::Busy,
        From::ReadOnly => To::ReadOnly,
        From::Missing => To::Missing,
        From::Constraint => To::Constraint,
        From::Syntax => To::Syntax,
        From::TypeMismatch => To::TypeMismatch,
        From::Changed => To::Changed,
        From::Timeout => To::Timeout,
        From::Other => To::Other,
    };
    guest::Error { code, detail: error.detail }
}
