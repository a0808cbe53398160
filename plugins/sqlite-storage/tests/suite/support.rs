//! A table to test with, on the SDK's SQLite.

use outbox_table::database::Named as _;
use outhaul_sdk::testing;
use outhaul_sdk::{ClaimRequest, Claimed, Failure, Verdict};
use rusqlite::Connection;
use rusqlite::types::Value as Stored;
use sqlite_storage::Outbox;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use outhaul_sdk::testing::{Sqlite, dead, ids, retry, settlement};

/// The last statement of this thread that contains `part`: text and parameters.
pub(crate) fn last_run(part: &str) -> (String, String) {
    testing::last_statement(part).expect(part)
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

pub(crate) fn settle(outbox: &mut Outbox<Sqlite>, worker: &str, verdict: Verdict, ids: &[String]) -> Vec<String> {
    outbox.settle(worker, &[settlement(verdict, ids)]).expect("settle")
}
