//! The `sql` capability: databases by name, for adapters that hold nothing but SQL.
//!
//! [`Databases`] knows what the operator configured and opens nothing by itself. A [`Connection`] runs lists of statements, each
//! list in one transaction; a [`Transaction`] stays open between calls and is rolled back when it is dropped. Both come in two
//! forms: asynchronous for the host, `..._blocking` for adapters that are plain Rust on plain threads (see [`blocking`]).
//!
//! `sqlite` and `postgres` are the kinds of databases so far. Another one is another variant of the `Backend` enums here, and of
//! [`crate::config::model::Database`].

pub mod blocking;
mod error;
mod place;
mod postgres;
mod sqlite;
mod types;

pub use error::{SqlError, SqlErrorCode};
pub use types::{Access, Bounds, ColumnType, Dialect, Rows, Statement, Value, Values};

use crate::config::model;
use crate::secrets::Secrets;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The version of SQLite that is built in.
#[must_use]
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

/// The configured databases, by name. Cheap to make and to clone; threads and files are opened at first use, shared by all
/// clones, and closed with the last handle.
#[derive(Debug, Clone)]
pub struct Databases {
    by_name: Arc<BTreeMap<String, Backend>>,
}

#[derive(Debug)]
enum Backend {
    Sqlite(sqlite::Database),
    Postgres(postgres::Database),
}

impl Databases {
    /// Takes the `[databases.NAME]` and `[secrets.NAME]` tables of the configuration.
    #[must_use]
    pub fn new(configured: &BTreeMap<String, model::Database>, secrets: &BTreeMap<String, model::SecretSource>) -> Self {
        let secrets = Secrets::new(secrets.clone());
        let by_name = configured.iter().map(|(name, database)| {
            let backend = match database {
                model::Database::Sqlite(settings) => Backend::Sqlite(sqlite::Database::new(name, settings)),
                model::Database::Postgres(settings) => Backend::Postgres(postgres::Database::new(name, settings, &secrets)),
            };
            (name.clone(), backend)
        });
        Self { by_name: Arc::new(by_name.collect()) }
    }

    fn backend(&self, name: &str) -> Result<&Backend, SqlError> {
        self.by_name.get(name).ok_or_else(|| {
            SqlError::new(
                SqlErrorCode::Denied,
                format!("there is no database {name:?} in the configuration: add [databases.{name}] with its url, or correct the name"),
            )
        })
    }

    /// Opens a database, or shares what is open already.
    ///
    /// # Errors
    /// `denied` for a name that is not configured; `unavailable`, `read-only` or `busy` where it cannot be opened. A
    /// database that is lost later is opened again by the next call that needs it.
    pub async fn open(&self, name: &str, access: Access) -> Result<Connection, SqlError> {
        match self.backend(name)? {
            Backend::Sqlite(database) => Ok(Connection { backend: ConnectionBackend::Sqlite(database.open(access).await?) }),
            Backend::Postgres(database) => Ok(Connection { backend: ConnectionBackend::Postgres(database.open(access).await?) }),
        }
    }

    /// [`Databases::open`] for plain threads.
    ///
    /// # Errors
    /// As [`Databases::open`].
    pub fn open_blocking(&self, name: &str, access: Access) -> Result<Connection, SqlError> {
        match self.backend(name)? {
            Backend::Sqlite(database) => Ok(Connection { backend: ConnectionBackend::Sqlite(database.open_blocking(access)?) }),
            Backend::Postgres(database) => Ok(Connection { backend: ConnectionBackend::Postgres(database.open_blocking(access)?) }),
        }
    }

    /// Creates a database that does not exist yet, and says whether it did. For an operator who asks for it: nothing else in the
    /// host creates a database.
    ///
    /// # Errors
    /// `denied` for a name that is not configured; `unavailable` where it cannot be created.
    pub async fn create(&self, name: &str) -> Result<bool, SqlError> {
        match self.backend(name)? {
            Backend::Sqlite(database) => database.create().await,
            Backend::Postgres(database) => Err(database.create()),
        }
    }

    /// Listens to a channel of a database. Opens nothing: the first [`Listener::heard`] does.
    ///
    /// # Errors
    /// `denied` for a name that is not configured; `syntax` for a name that no channel can have; `other` for a kind of database
    /// that has no notifications.
    pub fn listen(&self, name: &str, channel: &str) -> Result<Listener, SqlError> {
        match self.backend(name)? {
            Backend::Postgres(database) => Ok(Listener { listener: database.listen(channel)? }),
            Backend::Sqlite(_) => {
                let text = format!("database {name:?}: SQLite has no notifications: watch for commits instead");
                Err(SqlError::new(SqlErrorCode::Other, text))
            }
        }
    }

    /// Watches a database for commits. Opens nothing: the first [`ChangeWatch::changed`] does.
    ///
    /// # Errors
    /// `denied` for a name that is not configured; `other` for a kind of database that counts no commits.
    pub fn watch(&self, name: &str) -> Result<ChangeWatch, SqlError> {
        match self.backend(name)? {
            Backend::Sqlite(database) => Ok(ChangeWatch { watch: database.watch() }),
            Backend::Postgres(_) => {
                let text = format!("database {name:?}: PostgreSQL counts no commits: listen to a channel instead");
                Err(SqlError::new(SqlErrorCode::Other, text))
            }
        }
    }
}

/// An open database. Clones share it.
#[derive(Debug, Clone)]
pub struct Connection {
    backend: ConnectionBackend,
}

#[derive(Debug, Clone)]
enum ConnectionBackend {
    Sqlite(sqlite::Connection),
    Postgres(postgres::Connection),
}

impl Connection {
    /// Which SQL it speaks.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match &self.backend {
            ConnectionBackend::Sqlite(_) => Dialect::Sqlite,
            ConnectionBackend::Postgres(_) => Dialect::Postgres,
        }
    }

    /// Runs statements in one transaction, and commits.
    ///
    /// Once the statements are on their way, dropping the future does not stop them: they commit or not, as if the answer had
    /// been lost.
    ///
    /// # Errors
    /// See [`SqlErrorCode`]; nothing of the list stays in the database.
    pub async fn execute(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        match &self.backend {
            ConnectionBackend::Sqlite(connection) => connection.execute(statements, bounds).await,
            ConnectionBackend::Postgres(connection) => connection.execute(statements, bounds).await,
        }
    }

    /// Starts a transaction that may write, and runs the first statements in it. In SQLite other writers wait until it ends; in
    /// Postgres it is READ COMMITTED.
    ///
    /// # Errors
    /// See [`SqlErrorCode`]; the transaction is rolled back.
    pub async fn begin(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<(Transaction, Vec<Rows>), SqlError> {
        match &self.backend {
            ConnectionBackend::Sqlite(connection) => {
                let (transaction, rows) = connection.begin(statements, bounds).await?;
                Ok((Transaction { backend: TransactionBackend::Sqlite(transaction) }, rows))
            }
            ConnectionBackend::Postgres(connection) => {
                let (transaction, rows) = connection.begin(statements, bounds).await?;
                Ok((Transaction { backend: TransactionBackend::Postgres(transaction) }, rows))
            }
        }
    }

    /// [`Connection::execute`] for plain threads.
    ///
    /// # Errors
    /// As [`Connection::execute`].
    pub fn execute_blocking(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        match &self.backend {
            ConnectionBackend::Sqlite(connection) => connection.execute_blocking(statements, bounds),
            ConnectionBackend::Postgres(connection) => connection.execute_blocking(statements, bounds),
        }
    }

    /// [`Connection::begin`] for plain threads.
    ///
    /// # Errors
    /// As [`Connection::begin`].
    pub fn begin_blocking(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<(Transaction, Vec<Rows>), SqlError> {
        match &self.backend {
            ConnectionBackend::Sqlite(connection) => {
                let (transaction, rows) = connection.begin_blocking(statements, bounds)?;
                Ok((Transaction { backend: TransactionBackend::Sqlite(transaction) }, rows))
            }
            ConnectionBackend::Postgres(connection) => {
                let (transaction, rows) = connection.begin_blocking(statements, bounds)?;
                Ok((Transaction { backend: TransactionBackend::Postgres(transaction) }, rows))
            }
        }
    }
}

/// An open transaction. Dropping it rolls back, and so does any error.
#[derive(Debug)]
pub struct Transaction {
    backend: TransactionBackend,
}

#[derive(Debug)]
enum TransactionBackend {
    Sqlite(sqlite::Transaction),
    Postgres(postgres::Transaction),
}

impl Transaction {
    /// Runs further statements.
    ///
    /// # Errors
    /// See [`SqlErrorCode`]; the transaction is rolled back, and later calls say so.
    pub async fn execute(&mut self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        match &mut self.backend {
            TransactionBackend::Sqlite(transaction) => transaction.execute(statements, bounds).await,
            TransactionBackend::Postgres(transaction) => transaction.execute(statements, bounds).await,
        }
    }

    /// Runs the last statements and commits.
    ///
    /// # Errors
    /// See [`SqlErrorCode`]; the transaction is rolled back.
    pub async fn commit(self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        match self.backend {
            TransactionBackend::Sqlite(transaction) => transaction.commit(statements, bounds).await,
            TransactionBackend::Postgres(transaction) => transaction.commit(statements, bounds).await,
        }
    }

    /// [`Transaction::execute`] for plain threads.
    ///
    /// # Errors
    /// As [`Transaction::execute`].
    pub fn execute_blocking(&mut self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        match &mut self.backend {
            TransactionBackend::Sqlite(transaction) => transaction.execute_blocking(statements, bounds),
            TransactionBackend::Postgres(transaction) => transaction.execute_blocking(statements, bounds),
        }
    }

    /// [`Transaction::commit`] for plain threads.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_blocking(self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        match self.backend {
            TransactionBackend::Sqlite(transaction) => transaction.commit_blocking(statements, bounds),
            TransactionBackend::Postgres(transaction) => transaction.commit_blocking(statements, bounds),
        }
    }
}

/// Tells whether a database has changed.
#[derive(Debug)]
pub struct ChangeWatch {
    watch: sqlite::ChangeWatch,
}

impl ChangeWatch {
    /// Whether any connection, of this process or another, has committed since the last call. The first call says yes, and so
    /// does the first one after the file was replaced: nothing is known of what came before.
    ///
    /// # Errors
    /// `unavailable` or `busy`, where the file cannot be read now. Later calls try again.
    pub async fn changed(&mut self) -> Result<bool, SqlError> {
        self.watch.changed().await
    }
}

/// Hears notifications of one channel, on a connection of its own.
#[derive(Debug)]
pub struct Listener {
    listener: postgres::Listener,
}

/// What came of listening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The connection is there, and notifications come through. Those from before were missed.
    Connected,
    /// One came, or several.
    Notification,
    /// They did not come through in time: something between host and server (a pooler in transaction mode) swallows them, or the server is
    /// slow. There is no connection; the next call opens another one and looks again.
    Never,
}

impl Listener {
    /// Waits for a notification. The first call, and the first one after an error, connects, and says so or that it was in vain.
    /// May be dropped at any time.
    ///
    /// # Errors
    /// `unavailable`, `read-only` or `timeout`: there is no connection. The next call opens another one.
    pub async fn heard(&mut self) -> Result<Heard, SqlError> {
        self.listener.heard().await
    }

    /// Whether a pooler is known to stand between host and server.
    #[must_use]
    pub fn behind_pooler(&self) -> bool {
        self.listener.behind_pooler()
    }
}
