//! The whole capability against real files, with other writers that are real connections and real processes.

mod cost;
mod files;
mod guests;
mod locks;
mod transactions;
mod values;
mod watch;

use crate::config::model;
use crate::sql::{Access, Bounds, ColumnType, Connection, Databases, Rows, SqlError, Statement, Value, Values};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tempfile::TempDir;

/// Long enough for the slowest machine; calls that are to fail at a deadline take a shorter one.
pub(super) fn bounds() -> Bounds {
    Bounds::within(Duration::from_secs(60), 1 << 20)
}

/// A database file with the table `t(id INTEGER PRIMARY KEY, v)`.
pub(super) struct Fixture {
    pub(super) databases: Databases,
    pub(super) path: PathBuf,
    _dir: TempDir,
}

pub(super) fn databases(path: &Path) -> Databases {
    databases_with(path, false)
}

pub(super) fn databases_with(path: &Path, applies_schema: bool) -> Databases {
    let settings = model::Sqlite { path: path.to_owned(), synchronous_full: true, applies_schema };
    Databases::new(&BTreeMap::from([("main".to_owned(), model::Database::Sqlite(settings))]), &BTreeMap::new())
}

pub(super) fn create(path: &Path, journal_mode: &str) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.pragma_update(None, "journal_mode", journal_mode).unwrap();
    connection.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, v)").unwrap();
}

impl Fixture {
    pub(super) fn new(journal_mode: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.db");
        create(&path, journal_mode);
        Self { databases: databases(&path), path, _dir: dir }
    }

    /// In WAL mode.
    pub(super) fn wal() -> Self {
        Self::new("wal")
    }

    pub(super) async fn open(&self) -> Connection {
        self.databases.open("main", Access::ReadWrite).await.unwrap()
    }

    /// Another connection to the same file, as any other program would have it.
    pub(super) fn other(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(&self.path).unwrap()
    }

    /// Rows in the table, as another program sees them.
    pub(super) fn count(&self) -> i64 {
        self.other().query_row("SELECT count(*) FROM t", (), |row| row.get(0)).unwrap()
    }
}

pub(super) fn insert(value: i64) -> Statement {
    Statement::new("INSERT INTO t (v) VALUES (?1)").bind([Value::Integer(value)])
}

pub(super) fn select() -> Statement {
    Statement::new("SELECT count(*) FROM t").returning([ColumnType::Integer])
}

/// The number that [`select`] found.
pub(super) fn found(rows: &[Rows]) -> i64 {
    match rows.last().unwrap().columns.first() {
        Some(Values::Integers { values, .. }) => values[0],
        other => panic!("not a number: {other:?}"),
    }
}

pub(super) async fn run(connection: &Connection, statement: Statement) -> Result<Rows, SqlError> {
    connection.execute(vec![statement], bounds()).await.map(|mut rows| rows.remove(0))
}

/// Polls once. The job, if the turn was free, is with the thread afterwards.
pub(super) fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
