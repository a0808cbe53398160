//! A database of either kind, by SQL that both understand: values go in as literals and come out as text.

use ::postgres::{Client, SimpleQueryMessage};
use anyhow::{Context, Result};
use outhaul_services::postgres;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A row: each value as text.
pub type Values = Vec<Option<String>>;

/// Longer than anybody holds the lock of a file.
const BUSY: Duration = Duration::from_secs(60);

/// Where a database is.
#[derive(Debug, Clone)]
pub enum Place {
    /// A file of SQLite.
    File(PathBuf),
    /// A database of PostgreSQL, by URL.
    Server(String),
}

/// A connection.
pub struct Database {
    place: Place,
    connection: Kind,
}

enum Kind {
    Sqlite(Connection),
    Postgres(Client),
}

impl Database {
    /// Opens a file of SQLite.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn sqlite(file: &Path) -> Result<Self> {
        let connection = Connection::open(file).with_context(|| format!("cannot open {}", file.display()))?;
        connection.busy_timeout(BUSY)?;
        // The runs are about processes, not about power cuts.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(Self { place: Place::File(file.to_owned()), connection: Kind::Sqlite(connection) })
    }

    /// Connects to PostgreSQL.
    ///
    /// # Errors
    /// If there is no connection to be had.
    pub fn postgres(url: &str) -> Result<Self> {
        Ok(Self { place: Place::Server(url.to_owned()), connection: Kind::Postgres(postgres::connect(url)?) })
    }

    /// Another connection to the same database.
    ///
    /// # Errors
    /// If there is none to be had.
    pub fn again(&self) -> Result<Self> {
        Self::at(&self.place)
    }

    /// A connection to a database.
    ///
    /// # Errors
    /// If there is none to be had.
    pub fn at(place: &Place) -> Result<Self> {
        match place {
            Place::File(file) => Self::sqlite(file),
            Place::Server(url) => Self::postgres(url),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Whether it is SQLite.
    #[must_use]
    pub fn is_sqlite(&self) -> bool {
        matches!(self.connection, Kind::Sqlite(_))
    }

    /// Runs statements, all of them in one transaction.
    ///
    /// # Errors
    /// If the database refuses one.
    pub fn run(&mut self, sql: &str) -> Result<()> {
        let done = match &mut self.connection {
            Kind::Sqlite(connection) => connection
                .execute_batch(&format!("BEGIN IMMEDIATE; {sql}; COMMIT"))
                .map_err(anyhow::Error::from)
                .inspect_err(|_| drop(connection.execute_batch("ROLLBACK"))),
            // Several statements in one message are one transaction.
            Kind::Postgres(client) => client.batch_execute(sql).map_err(Into::into),
        };
        done.with_context(|| shortened(sql))
    }

    /// Runs statements one by one, as a session that manages its transactions by itself.
    ///
    /// # Errors
    /// If the database refuses one.
    pub fn run_bare(&mut self, sql: &str) -> Result<()> {
        let done = match &mut self.connection {
            Kind::Sqlite(connection) => connection.execute_batch(sql).map_err(anyhow::Error::from),
            Kind::Postgres(client) => client.batch_execute(sql).map_err(Into::into),
        };
        done.with_context(|| shortened(sql))
    }

    /// Whether nobody holds the lock of a database that has one for all writers.
    ///
    /// # Errors
    /// If it cannot be tried for another reason.
    pub fn can_write(&mut self) -> Result<bool> {
        let Kind::Sqlite(connection) = &mut self.connection else { return Ok(true) };
        connection.busy_timeout(Duration::from_millis(200))?;
        let tried = connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK");
        connection.busy_timeout(BUSY)?;
        match tried {
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => Ok(false),
            tried => Ok(tried.map(|()| true)?),
        }
    }

    /// The rows that a statement returns.
    ///
    /// # Errors
    /// If the database refuses it.
    pub fn rows(&mut self, sql: &str) -> Result<Vec<Values>> {
        let rows = match &mut self.connection {
            Kind::Sqlite(connection) => sqlite_rows(connection, sql),
            Kind::Postgres(client) => postgres_rows(client, sql),
        };
        rows.with_context(|| shortened(sql))
    }

    /// The one number that a statement returns.
    ///
    /// # Errors
    /// If it returns something else.
    pub fn number(&mut self, sql: &str) -> Result<u64> {
        let rows = self.rows(sql)?;
        let value = rows.first().and_then(|row| row.first()).cloned().flatten().with_context(|| format!("no number: {sql}"))?;
        value.parse().with_context(|| format!("not a number: {value:?} of {sql}"))
    }

    /// A literal of bytes.
    #[must_use]
    pub fn bytes(&self, bytes: &[u8]) -> String {
        let hex = hex(bytes);
        if self.is_sqlite() { format!("x'{hex}'") } else { format!("'\\x{hex}'::bytea") }
    }

    /// An expression for the moment in so many milliseconds.
    #[must_use]
    pub fn in_ms(&self, ms: i64) -> String {
        if self.is_sqlite() {
            format!("(CAST(unixepoch('subsec') * 1000 AS INTEGER) + {ms})")
        } else {
            format!("(clock_timestamp() + {ms} * interval '1 millisecond')")
        }
    }

    /// Runs a statement for each row that is inserted into a table or changed in it, after that; `NEW` is the row.
    ///
    /// # Errors
    /// If the database refuses it.
    pub fn trigger(&mut self, name: &str, on: &str, condition: &str, statement: &str) -> Result<()> {
        let (table, event) = on.split_once(' ').context("a trigger is on TABLE EVENT")?;
        let sql = if self.is_sqlite() {
            format!("CREATE TRIGGER {name} AFTER {event} ON {table} WHEN {condition} BEGIN {statement}; END")
        } else {
            format!(
                "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $body$BEGIN {statement}; RETURN NULL; END$body$; \
                 CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION {name}()"
            )
        };
        self.run(&sql)
    }

    /// Takes a trigger away.
    ///
    /// # Errors
    /// If there is none.
    pub fn drop_trigger(&mut self, name: &str) -> Result<()> {
        if self.is_sqlite() { self.run(&format!("DROP TRIGGER {name}")) } else { self.run(&format!("DROP FUNCTION {name} CASCADE")) }
    }

    /// A statement for a trigger that fails the statement which has set it off.
    #[must_use]
    pub fn refusal(&self) -> &'static str {
        if self.is_sqlite() { "SELECT RAISE(ABORT, 'not today')" } else { "RAISE EXCEPTION 'not today'" }
    }

    /// Everything in all tables, as text: to look for what must not be in it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn everything(&mut self) -> Result<String> {
        let tables = if self.is_sqlite() {
            "SELECT name FROM sqlite_schema WHERE type = 'table'"
        } else {
            "SELECT quote_ident(table_name) FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
        };
        let mut text = String::new();
        for table in self.rows(tables)?.into_iter().flatten().flatten() {
            writeln!(text, "-- {table}")?;
            for row in self.rows(&format!("SELECT * FROM {table}"))? {
                writeln!(text, "{}", row.iter().map(|value| value.as_deref().unwrap_or("NULL")).collect::<Vec<_>>().join("|"))?;
            }
        }
        Ok(text)
    }
}

/// A literal of text.
#[must_use]
pub fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

/// The same, or `NULL`.
#[must_use]
pub fn optional(value: Option<&str>) -> String {
    value.map_or_else(|| "NULL".to_owned(), text)
}

/// Bytes in hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn sqlite_rows(connection: &Connection, sql: &str) -> Result<Vec<Values>> {
    let mut statement = connection.prepare(sql)?;
    let width = statement.column_count();
    let rows = statement.query_map([], |row| {
        (0..width)
            .map(|column| {
                Ok(match row.get_ref(column)? {
                    ValueRef::Null => None,
                    ValueRef::Integer(value) => Some(value.to_string()),
                    ValueRef::Real(value) => Some(value.to_string()),
                    ValueRef::Text(value) => Some(String::from_utf8_lossy(value).into_owned()),
                    ValueRef::Blob(value) => Some(hex(value)),
                })
            })
            .collect()
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn postgres_rows(client: &mut Client, sql: &str) -> Result<Vec<Values>> {
    let messages = client.simple_query(sql)?;
    Ok(messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect()),
            _ => None,
        })
        .collect())
}

/// A statement for the text of an error.
fn shortened(sql: &str) -> String {
    sql.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_come_back_as_they_went_in() {
        let folder = tempfile::tempdir().unwrap();
        let mut database = Database::sqlite(&folder.path().join("a.db")).unwrap();
        database.run("CREATE TABLE t (a TEXT, b BLOB, c INTEGER); CREATE TABLE log (a TEXT)").unwrap();
        database.trigger("noted", "t INSERT", "NEW.c = 7", "INSERT INTO log VALUES (NEW.a)").unwrap();
        let insert = format!("INSERT INTO t VALUES ({}, {}, 7) RETURNING c", text("it's"), database.bytes(b"\0\xff"));
        assert_eq!(database.rows(&insert).unwrap(), [[Some("7".to_owned())]]);
        database.run("INSERT INTO t VALUES (NULL, NULL, 8)").unwrap();
        let rows = database.rows("SELECT a, b, c FROM t ORDER BY c").unwrap();
        assert_eq!(rows[0], [Some("it's".to_owned()), Some("00ff".to_owned()), Some("7".to_owned())]);
        assert_eq!(rows[1], [None, None, Some("8".to_owned())]);
        assert!(database.everything().unwrap().contains("it's|00ff|7"));
        assert_eq!(database.number("SELECT count(*) FROM log").unwrap(), 1);
        let refusal = database.refusal();
        database.trigger("refused", "t INSERT", "NEW.c = 9", refusal).unwrap();
        assert!(database.run("INSERT INTO t VALUES (NULL, NULL, 6); INSERT INTO t VALUES (NULL, NULL, 9)").is_err());
        assert_eq!(database.number("SELECT count(*) FROM t").unwrap(), 2, "all or nothing");
        database.drop_trigger("refused").unwrap();
        database.run("INSERT INTO t VALUES (NULL, NULL, 9)").unwrap();
    }
}
