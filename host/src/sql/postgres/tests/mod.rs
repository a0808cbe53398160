//! The whole capability against real servers of two major versions, and a real pooler.

mod cost;
mod faults;
mod guests;
mod pooler;
mod tls;
mod transactions;
mod values;

use crate::config;
use crate::sql::{Access, Bounds, ColumnType, Connection, Databases, Rows, SqlError, Statement, Value, Values};
use outhaul_services::{Database, Major};
use std::future::Future;
use std::path::Path;
use std::time::Duration;

/// Long enough for the slowest machine; calls that are to fail at a deadline take a shorter one.
pub(super) fn bounds() -> Bounds {
    Bounds::within(Duration::from_secs(60), 1 << 20)
}

pub(super) fn databases(url: &str, more: &str) -> Databases {
    let text = format!("[databases.main]\nurl = {url:?}\n{more}");
    let config = config::parse(&text, Path::new("x.toml")).unwrap();
    Databases::new(&config.databases, &config.secrets)
}

/// A database of its own, with the table `t(id bigserial, v text)`.
pub(super) struct Fixture {
    pub(super) database: Database,
    pub(super) databases: Databases,
}

impl Fixture {
    pub(super) fn new(major: Major) -> Option<Self> {
        let database = outhaul_services::postgres(major)?.create_database().unwrap();
        let databases = databases(&database.url(), "");
        let fixture = Self { database, databases };
        fixture.sql("CREATE TABLE t (id bigserial PRIMARY KEY, v text)");
        Some(fixture)
    }

    pub(super) async fn open(&self) -> Connection {
        self.databases.open("main", Access::ReadWrite).await.unwrap()
    }

    /// Runs statements as any other program would.
    pub(super) fn sql(&self, sql: &str) {
        other(&self.database.url(), sql);
    }

    /// The first column of the first row, as another program sees it.
    pub(super) fn number(&self, sql: &str) -> i64 {
        let (url, sql) = (self.database.url(), sql.to_owned());
        aside(move || outhaul_services::postgres::connect(&url).unwrap().query_one(&sql, &[]).unwrap().get(0))
    }

    /// Rows in the table, as another program sees them.
    pub(super) fn count(&self) -> i64 {
        self.number("SELECT count(*) FROM t")
    }
}

/// Runs statements over a connection of the test's own.
pub(super) fn other(url: &str, sql: &str) {
    let (url, sql) = (url.to_owned(), sql.to_owned());
    aside(move || outhaul_services::postgres::connect(&url).unwrap().batch_execute(&sql).unwrap());
}

/// On a thread of its own: the client of the tests has a runtime of its own, which may not wait within another one.
pub(super) fn aside<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(run).join().unwrap()
}

pub(super) fn wait_for<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Runs a test on each version of the server that there is.
pub(super) fn on_each(test: impl AsyncFn(&Fixture)) {
    for major in Major::ALL {
        if let Some(fixture) = Fixture::new(major) {
            wait_for(test(&fixture));
        }
    }
}

pub(super) fn insert(value: &str) -> Statement {
    Statement::new("INSERT INTO t (v) VALUES ($1)").bind([Value::Text(value.to_owned())])
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
