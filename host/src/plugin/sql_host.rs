//! The `sql` import: databases for adapters, through [`crate::sql`]. Grants are checked at opening; every statement is bounded by
//! (a little before) the deadline of the adapter's call and by `limits.returned_bytes`; what a call leaves open is rolled back when it ends.

use super::bindings::sql;
use super::convert::{column_in, column_out};
use super::state::State;
use crate::sql::{Access, Bounds, ColumnType, Connection, Dialect, Rows, SqlError, SqlErrorCode, Statement, Transaction, Value, Values};
use wasmtime::component::Resource;

/// Connections that one instance may hold, and transactions: a storage needs two and one.
const MAX_OPEN: usize = 16;

/// A connection, as a resource of a guest.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "the generated bindings export it again")]
pub struct HostConnection(Connection);

/// A transaction, as a resource of a guest. None: it has ended.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "the generated bindings export it again")]
pub struct HostTransaction(Option<Transaction>);

/// The resources that an instance has open.
#[derive(Debug, Default)]
pub(super) struct OpenTransactions {
    transactions: Vec<u32>,
    connections: usize,
}

impl State {
    fn bounds(&self) -> Bounds {
        Bounds { deadline: self.gate.sql_deadline(), max_result_bytes: self.shared.limits.returned_bytes }
    }

    /// Rolls back what the guest's call left open. The guest keeps its handles; using one is an error.
    pub(super) fn roll_back_open_transactions(&mut self) {
        for handle in std::mem::take(&mut self.transactions.transactions) {
            if let Ok(transaction) = self.table.get_mut(&Resource::<HostTransaction>::new_borrow(handle))
                && transaction.0.take().is_some()
            {
                let identity = &self.shared.identity;
                tracing::warn!(
                    adapter = identity.name,
                    generation = identity.generation,
                    "rolled back a transaction that a call left open"
                );
            }
        }
    }

    fn forget(&mut self, handle: u32) {
        self.transactions.transactions.retain(|open| *open != handle);
    }
}

impl sql::Host for State {}

impl sql::HostConnection for State {
    async fn open(&mut self, database: String, access: sql::Access) -> wasmtime::Result<Result<Resource<HostConnection>, sql::Error>> {
        let granted = self.shared.policy.check_database(&database);
        if let Err(denial) = granted {
            self.shared.denials.tell(&self.notes, &denial.to_string());
            return Ok(Err(error_out(SqlError::new(SqlErrorCode::Denied, denial.to_string()))));
        }
        if self.transactions.connections >= MAX_OPEN {
            return Err(wasmtime::Error::msg(format!("it opened more than {MAX_OPEN} database connections")));
        }
        let access = match access {
            sql::Access::ReadOnly => Access::ReadOnly,
            sql::Access::ReadWrite => Access::ReadWrite,
        };
        let connection = match self.shared.databases.open(&database, access).await {
            Ok(connection) => connection,
            Err(error) => return Ok(Err(error_out(error))),
        };
        let resource = self.table.push(HostConnection(connection))?;
        self.transactions.connections += 1;
        Ok(Ok(resource))
    }

    async fn dialect(&mut self, connection: Resource<HostConnection>) -> wasmtime::Result<sql::Dialect> {
        Ok(match self.table.get(&connection)?.0.dialect() {
            Dialect::Sqlite => sql::Dialect::Sqlite,
            Dialect::Postgres => sql::Dialect::Postgres,
            Dialect::Mysql => sql::Dialect::Mysql,
        })
    }

    async fn execute(
        &mut self,
        connection: Resource<HostConnection>,
        statements: Vec<sql::Statement>,
    ) -> wasmtime::Result<Result<Vec<sql::Rows>, sql::Error>> {
        let bounds = self.bounds();
        let connection = self.table.get(&connection)?.0.clone();
        Ok(rows_out(connection.execute(statements_in(statements), bounds).await))
    }

    async fn begin(
        &mut self,
        connection: Resource<HostConnection>,
        statements: Vec<sql::Statement>,
    ) -> wasmtime::Result<Result<(Resource<HostTransaction>, Vec<sql::Rows>), sql::Error>> {
        if self.transactions.transactions.len() >= MAX_OPEN {
            return Err(wasmtime::Error::msg(format!("it opened more than {MAX_OPEN} transactions at once")));
        }
        let bounds = self.bounds();
        let connection = self.table.get(&connection)?.0.clone();
        match connection.begin(statements_in(statements), bounds).await {
            Ok((transaction, rows)) => {
                let resource = self.table.push(HostTransaction(Some(transaction)))?;
                self.transactions.transactions.push(resource.rep());
                Ok(Ok((resource, rows.into_iter().map(row_out).collect())))
            }
            Err(error) => Ok(Err(error_out(error))),
        }
    }

    async fn drop(&mut self, connection: Resource<HostConnection>) -> wasmtime::Result<()> {
        self.table.delete(connection)?;
        self.transactions.connections = self.transactions.connections.saturating_sub(1);
        Ok(())
    }
}

impl sql::HostTransaction for State {
    async fn execute(
        &mut self,
        transaction: Resource<HostTransaction>,
        statements: Vec<sql::Statement>,
    ) -> wasmtime::Result<Result<Vec<sql::Rows>, sql::Error>> {
        let bounds = self.bounds();
        match &mut self.table.get_mut(&transaction)?.0 {
            Some(open) => Ok(rows_out(open.execute(statements_in(statements), bounds).await)),
            None => Ok(Err(ended())),
        }
    }

    async fn commit(
        &mut self,
        transaction: Resource<HostTransaction>,
        statements: Vec<sql::Statement>,
    ) -> wasmtime::Result<Result<Vec<sql::Rows>, sql::Error>> {
        let bounds = self.bounds();
        self.forget(transaction.rep());
        match self.table.delete(transaction)?.0 {
            Some(open) => Ok(rows_out(open.commit(statements_in(statements), bounds).await)),
            None => Ok(Err(ended())),
        }
    }

    async fn drop(&mut self, transaction: Resource<HostTransaction>) -> wasmtime::Result<()> {
        self.forget(transaction.rep());
        self.table.delete(transaction)?;
        Ok(())
    }
}

fn ended() -> sql::Error {
    let text = "the transaction has ended: it was rolled back when the call that began it returned";
    error_out(SqlError::new(SqlErrorCode::Other, text))
}

fn statements_in(statements: Vec<sql::Statement>) -> Vec<Statement> {
    statements
        .into_iter()
        .map(|statement| Statement {
            sql: statement.sql,
            parameters: statement.parameters.into_iter().map(value_in).collect(),
            columns: statement
                .columns
                .into_iter()
                .map(|column| match column {
                    sql::ColumnType::Integer => ColumnType::Integer,
                    sql::ColumnType::Real => ColumnType::Real,
                    sql::ColumnType::Text => ColumnType::Text,
                    sql::ColumnType::Bytes => ColumnType::Bytes,
                })
                .collect(),
            must_change: statement.must_change,
        })
        .collect()
}

fn value_in(value: sql::Value) -> Value {
    match value {
        sql::Value::Null => Value::Null,
        sql::Value::Integer(number) => Value::Integer(number),
        sql::Value::Real(number) => Value::Real(number),
        sql::Value::Text(text) => Value::Text(text),
        sql::Value::Bytes(bytes) => Value::Bytes(bytes),
        sql::Value::Integers(numbers) => Value::Integers(numbers),
        sql::Value::Texts(texts) => Value::Texts(column_in(texts)),
    }
}

fn rows_out(rows: Result<Vec<Rows>, SqlError>) -> Result<Vec<sql::Rows>, sql::Error> {
    rows.map(|rows| rows.into_iter().map(row_out).collect()).map_err(error_out)
}

fn row_out(rows: Rows) -> sql::Rows {
    sql::Rows {
        changed: rows.changed,
        columns: rows
            .columns
            .into_iter()
            .map(|values| match values {
                Values::Integers { values, nulls } => sql::Values::Integers(sql::Integers { values, nulls }),
                Values::Reals { values, nulls } => sql::Values::Reals(sql::Reals { values, nulls }),
                Values::Texts(column) => sql::Values::Texts(column_out(column)),
                Values::Bytes(column) => sql::Values::Bytes(column_out(column)),
            })
            .collect(),
    }
}

fn error_out(error: SqlError) -> sql::Error {
    let code = match error.code {
        SqlErrorCode::Denied => sql::ErrorCode::Denied,
        SqlErrorCode::Unavailable => sql::ErrorCode::Unavailable,
        SqlErrorCode::Busy => sql::ErrorCode::Busy,
        SqlErrorCode::ReadOnly => sql::ErrorCode::ReadOnly,
        SqlErrorCode::Missing => sql::ErrorCode::Missing,
        SqlErrorCode::Constraint => sql::ErrorCode::Constraint,
        SqlErrorCode::Syntax => sql::ErrorCode::Syntax,
        SqlErrorCode::TypeMismatch => sql::ErrorCode::TypeMismatch,
        SqlErrorCode::Changed => sql::ErrorCode::Changed,
        SqlErrorCode::Timeout => sql::ErrorCode::Timeout,
        SqlErrorCode::Other => sql::ErrorCode::Other,
    };
    sql::Error { code, detail: error.detail }
}
