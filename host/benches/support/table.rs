//! A table in SQLite or PostgreSQL, of outhaul's own or of another shape, with rows in it, behind the component of its storage. Commits do not wait for the
//! disk: what is measured is what the databases do with the SQL, and disks are as different as machines.

use super::{components, configuration, run};
use outhaul::config::Config;
use outhaul::plugin::StoragePlugin;
use outhaul::ports::StorageAdmin as _;
use outhaul_services::Postgres;
use rusqlite::Connection;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;

/// Which SQL a storage is configured to.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// Order per key.
    pub strict: bool,
    /// Delivered rows are deleted, not marked.
    pub delete: bool,
    /// What table it is.
    pub shape: Shape,
}

/// What table a storage works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Outhaul's own.
    Own,
    /// An existing one with other columns and states, and two columns where outhaul's own has one time.
    Mapped,
    /// An existing one without columns for leases, and a table of leases beside it.
    LeaseTable,
}

impl Shape {
    /// The statements that make it, where outhaul does not. The columns that [`Table::add`] writes are called the same in all.
    fn statements(self, number: &str, bytes: &str, time: &str) -> Option<String> {
        let leases = match self {
            Self::Own => return None,
            Self::Mapped => format!(", tries INTEGER NOT NULL DEFAULT 0, retry_at {time}, lease_until {time}, worker TEXT"),
            Self::LeaseTable => String::new(),
        };
        Some(format!(
            "CREATE TABLE outbox (event {number}, topic TEXT NOT NULL, key TEXT, payload {bytes}, phase TEXT NOT NULL DEFAULT 'NEW'{leases}); \
             CREATE INDEX outbox_new ON outbox (event) WHERE phase = 'NEW'; \
             CREATE INDEX outbox_key_new ON outbox (key, event) WHERE phase = 'NEW';"
        ))
    }

    /// What of the configuration says so.
    fn config(self) -> &'static str {
        match self {
            Self::Own => "",
            Self::Mapped => {
                ", columns = { id = \"event\", topic = \"topic\", key = \"key\", payload = \"payload\", state = \"phase\", attempts = \"tries\", \
                 available_at = \"retry_at\", lease_until = \"lease_until\", leased_by = \"worker\" }, \
                 states = { pending = \"NEW\", delivered = \"SENT\", dead = \"FAILED\" }"
            }
            Self::LeaseTable => {
                ", columns = { id = \"event\", topic = \"topic\", key = \"key\", payload = \"payload\", state = \"phase\" }, \
                 states = { pending = \"NEW\", delivered = \"SENT\", dead = \"FAILED\" }, lease_table = \"outbox_leases\""
            }
        }
    }

    /// All tables that are written to.
    fn tables(self) -> &'static str {
        if self == Self::LeaseTable { "outbox, outbox_leases" } else { "outbox" }
    }
}

/// As storages are configured where nothing is said.
pub const STRICT: Form = Form { strict: true, delete: false, shape: Shape::Own };

/// How rows look.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// How many there are at first.
    pub count: usize,
    /// Bytes of each payload.
    pub payload: usize,
    /// How many keys they have in turn.
    pub keys: usize,
}

enum Place {
    Sqlite { sql: Connection, _folder: tempfile::TempDir },
    // The connection goes before the database that it would keep from being dropped.
    Postgres { run: Box<dyn Fn(&str)>, _database: outhaul_services::Database },
}

/// A table with rows.
pub struct Table {
    /// What its storage was configured with.
    pub config: Config,
    /// The component.
    pub storage: Arc<StoragePlugin>,
    place: Place,
    shape: Shape,
    rows: Rows,
    /// Rows that were ever written.
    written: Cell<usize>,
}

impl Table {
    /// In a new SQLite file.
    pub fn sqlite(form: Form, rows: Rows) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let sql = Connection::open(folder.path().join("outbox.db")).expect("a database");
        sql.pragma_update(None, "journal_mode", "wal").expect("WAL");
        let config = storage("sqlite-storage", "url = \"sqlite:outbox.db\"\nsynchronous = \"normal\"", form, folder.path());
        if let Some(statements) = form.shape.statements("INTEGER PRIMARY KEY AUTOINCREMENT", "BLOB", "INTEGER") {
            sql.execute_batch(&statements).expect("an existing table");
        }
        Self::new(config, Place::Sqlite { sql, _folder: folder }, form.shape, rows)
    }

    /// In a new database of this server.
    pub fn postgres(server: &Postgres, form: Form, rows: Rows) -> Self {
        let database = server.create_database().expect("a database");
        let client = RefCell::new(database.connect().expect("a connection"));
        let run = Box::new(move |sql: &str| client.borrow_mut().batch_execute(sql).expect(sql));
        run(&format!("ALTER DATABASE {} SET synchronous_commit = off", database.name()));
        let config = storage("postgres-storage", &format!("url = {:?}", database.url()), form, Path::new("."));
        if let Some(statements) = form.shape.statements("bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "bytea", "timestamptz") {
            run(&statements);
        }
        Self::new(config, Place::Postgres { run, _database: database }, form.shape, rows)
    }

    fn new(config: Config, place: Place, shape: Shape, rows: Rows) -> Self {
        let storage = run(components::storage(&config));
        run(storage.create_schema()).expect("a table");
        let table = Self { config, storage, place, shape, rows, written: Cell::new(0) };
        table.add(rows.count);
        match &table.place {
            Place::Sqlite { sql, .. } => sql.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); ANALYZE;").expect("statistics"),
            Place::Postgres { run, .. } => run(&format!("VACUUM ANALYZE {}", shape.tables())),
        }
        table
    }

    /// Writes so many rows behind all others.
    pub fn add(&self, count: usize) {
        let Rows { payload, keys, .. } = self.rows;
        let first = self.written.get();
        let last = first + count - 1;
        self.written.set(last + 1);
        let insert = "INSERT INTO outbox (topic, key, payload) SELECT 'orders.created', 'order-' || (i % ";
        match &self.place {
            Place::Sqlite { sql, .. } => {
                let numbers = format!("numbers(i) AS (VALUES ({first}) UNION ALL SELECT i + 1 FROM numbers WHERE i < {last})");
                let payload = format!("CAST(printf('%.*c', {payload}, 'a') AS BLOB)");
                let insert = format!("WITH RECURSIVE {numbers} {insert}{keys}), {payload} FROM numbers");
                sql.execute_batch(&insert).expect("rows");
            }
            Place::Postgres { run, .. } => {
                run(&format!("{insert}{keys}), convert_to(repeat('a', {payload}), 'UTF8') FROM generate_series({first}, {last}) AS i"));
            }
        }
    }

    /// What the server does by itself from time to time, seldomer than a bench makes dead rows.
    pub fn tidy(&self) {
        if let Place::Postgres { run, .. } = &self.place {
            run(&format!("VACUUM {}", self.shape.tables()));
        }
    }
}

fn storage(plugin: &str, database: &str, form: Form, folder: &Path) -> Config {
    let Form { strict, delete, shape } = form;
    let shape = shape.config();
    let on_delivered = if delete { "delete" } else { "mark" };
    let text = format!(
        "[databases.main]\n{database}\n[storages.outbox]\nplugin = {plugin:?}\ndatabase = \"main\"\n\
         config = {{ strict_order = {strict}, on_delivered = {on_delivered:?}{shape} }}\n"
    );
    configuration(&text, folder)
}
