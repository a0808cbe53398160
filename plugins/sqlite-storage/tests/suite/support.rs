//! A real SQLite behind the `sql` capability's trait, as the WIT package describes it; and a table to test with.

use outbox_table::database::{Access, ColumnType, Database, Rows, SqlError, SqlErrorCode, Statement, Transaction, Value, Values};
use outhaul_sdk::{Batch, ClaimRequest, Claimed, Column, Failure, FailureCode, Retry, Settlement, Verdict, sql};
use rusqlite::types::{ToSqlOutput, Value as Stored, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use sqlite_storage::Outbox;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

thread_local! {
    /// The statements of this thread: text and parameters.
    static RUN: RefCell<Vec<(String, String)>> = const { RefCell::new(Vec::new()) };
}

/// The last statement of this thread that contains `part`: text and parameters.
pub(crate) fn last_run(part: &str) -> (String, String) {
    RUN.with_borrow(|run| run.iter().rfind(|(sql, _)| sql.contains(part)).cloned()).expect(part)
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Sqlite(Rc<Connection>);

/// An open transaction.
pub(crate) struct Open(Option<Rc<Connection>>);

impl Sqlite {
    pub(crate) fn open(path: &str, access: Access) -> Result<Self, SqlError> {
        let flags = match access {
            Access::ReadOnly => OpenFlags::SQLITE_OPEN_READ_ONLY,
            Access::ReadWrite => OpenFlags::SQLITE_OPEN_READ_WRITE,
        };
        let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(error)?;
        connection.busy_timeout(Duration::from_secs(60)).map_err(error)?;
        connection.set_prepared_statement_cache_capacity(64);
        // No test pulls the plug: waiting for the disk would only take time.
        connection.pragma_update(None, "synchronous", "OFF").map_err(error)?;
        Ok(Self(Rc::new(connection)))
    }
}

impl Database for Sqlite {
    type Transaction = Open;
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        let (transaction, rows) = self.start(statements)?;
        transaction.commit(Vec::new())?;
        Ok(rows)
    }
    fn begin(&self, statements: Vec<Statement>) -> Result<(Open, Vec<Rows>), SqlError> {
        self.start(statements)
    }
}

impl Sqlite {
    fn start(&self, statements: Vec<Statement>) -> Result<(Open, Vec<Rows>), SqlError> {
        // A transaction that reads first and then writes could not wait for another writer.
        let begin = if self.0.is_readonly("main").map_err(error)? { "BEGIN" } else { "BEGIN IMMEDIATE" };
        self.0.execute_batch(begin).map_err(error)?;
        let transaction = Open(Some(Rc::clone(&self.0)));
        let rows = transaction.execute(statements)?;
        Ok((transaction, rows))
    }
}

impl Transaction for Open {
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        let connection = self.0.as_ref().expect("open");
        statements.into_iter().map(|statement| run(connection, &statement)).collect()
    }
    fn commit(mut self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        let rows = self.execute(statements)?;
        self.0.as_ref().expect("open").execute_batch("COMMIT").map_err(error)?;
        self.0 = None;
        Ok(rows)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.execute_batch("ROLLBACK").expect("roll back");
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
    Ok(ToSqlOutput::Owned(match value {
        Value::Null => Stored::Null,
        Value::Integer(number) => Stored::Integer(*number),
        Value::Real(number) => Stored::Real(*number),
        Value::Text(text) => Stored::Text(text.clone()),
        Value::Bytes(bytes) => Stored::Blob(bytes.clone()),
        Value::Integers(numbers) => Stored::Text(serde_json::to_string(numbers).expect("json")),
        Value::Texts(texts) => {
            let utf_8 = |at| texts.get(at).map(std::str::from_utf8).transpose();
            let texts: Result<Vec<Option<&str>>, _> = (0..texts.len()).map(utf_8).collect();
            let texts = texts.map_err(|fault| fail(SqlErrorCode::TypeMismatch, fault.to_string()))?;
            Stored::Text(serde_json::to_string(&texts).expect("json"))
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

/// A database file, and a connection that looks at it from outside.
pub(crate) struct Bench {
    /// Deleted when dropped.
    _dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
    pub(crate) sql: Connection,
}

impl Bench {
    /// A file with what `ddl` creates.
    pub(crate) fn new(ddl: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("outbox.db");
        let sql = Connection::open(&path).expect("a database");
        sql.busy_timeout(Duration::from_secs(60)).expect("time-out");
        sql.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF").expect("wal");
        sql.execute_batch(ddl).expect("ddl");
        Self { _dir: dir, path, sql }
    }

    /// Outhaul's own table, with further configuration keys (`,"a":1`).
    pub(crate) fn own(more: &str) -> (Self, Outbox<Sqlite>) {
        let bench = Self::new("");
        let mut outbox = bench.open(more);
        outbox.create_schema().expect("schema");
        (bench, outbox)
    }

    pub(crate) fn config(&self, more: &str) -> String {
        config(&self.path, more)
    }

    pub(crate) fn open(&self, more: &str) -> Outbox<Sqlite> {
        open(&self.config(more)).expect("open")
    }

    /// Inserts a row into outhaul's own table.
    pub(crate) fn insert(&self, key: Option<&str>, payload: &str) -> String {
        self.sql.execute("INSERT INTO outbox (topic, key, payload) VALUES ('t', ?1, ?2)", (key, payload.as_bytes())).expect("insert");
        self.sql.last_insert_rowid().to_string()
    }

    pub(crate) fn run(&self, sql: &str) -> usize {
        self.sql.execute(sql, ()).expect(sql)
    }

    /// One value as text; `NULL` for none.
    pub(crate) fn value(&self, sql: &str) -> String {
        let value: Stored = self.sql.query_row(sql, (), |row| row.get(0)).expect(sql);
        match value {
            Stored::Null => "NULL".to_owned(),
            Stored::Integer(number) => number.to_string(),
            Stored::Real(number) => number.to_string(),
            Stored::Text(text) => text,
            Stored::Blob(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        }
    }
}

pub(crate) fn config(path: &Path, more: &str) -> String {
    format!("{{\"database\":{}{more}}}", serde_json::Value::from(path.to_str().expect("utf-8")))
}

pub(crate) fn open(config: &str) -> Result<Outbox<Sqlite>, Failure> {
    Outbox::open(config, Sqlite::open).map(|(outbox, _)| outbox)
}

pub(crate) fn request(worker: &str, limit: u32) -> ClaimRequest {
    ClaimRequest { worker: worker.to_owned(), limit, max_bytes: 1 << 30, lease_ms: 60_000, max_attempts: 0, max_message_bytes: 1 << 20 }
}

pub(crate) fn claim(outbox: &mut Outbox<Sqlite>, worker: &str, limit: u32) -> Claimed {
    outbox.claim(&request(worker, limit)).expect("claim")
}

pub(crate) fn ids(batch: &Batch) -> Vec<String> {
    batch.messages().map(|message| message.id().to_owned()).collect()
}

pub(crate) fn settle(outbox: &mut Outbox<Sqlite>, worker: &str, verdict: Verdict, ids: &[String]) -> Vec<String> {
    outbox.settle(worker, &[settlement(verdict, ids)]).expect("settle")
}

pub(crate) fn settlement(verdict: Verdict, ids: &[String]) -> Settlement {
    Settlement { verdict, ids: Column::of_texts(ids) }
}

pub(crate) fn retry(detail: &str, delay_ms: u64) -> Verdict {
    Verdict::Retry(Retry { failure: Failure::of(FailureCode::Network, detail), delay_ms })
}

pub(crate) fn dead(detail: &str) -> Verdict {
    Verdict::Dead(Failure::of(FailureCode::InvalidMessage, detail))
}
