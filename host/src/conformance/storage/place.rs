//! A database on which nothing has happened, for each clause: a new SQLite file; or, where the operator has named a database, that
//! one, emptied. Only a database that was empty at the start is ever emptied: everything in it comes from the clauses.

use crate::conformance::clause::Stop;
use crate::conformance::setup::SetupError;
use crate::conformance::subject::StorageSubject;
use crate::sql::{Access, Bounds, ColumnType, Databases, Dialect, SqlError, Statement, Values};
use std::time::Duration;
use tempfile::TempDir;

/// How long the kit's own statements may take.
const WITHIN: Duration = Duration::from_secs(20);

/// What the kit's own statements return at most.
const MOST_BYTES: usize = 1 << 20;

/// The name of the database in the configuration.
const MAIN: &str = "main";

/// Which schemas of a PostgreSQL database are not the server's.
macro_rules! not_the_servers {
    () => {
        "n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'"
    };
}

/// Their names.
const SCHEMAS: &str = concat!("SELECT n.nspname::text FROM pg_namespace AS n WHERE ", not_the_servers!(), " ORDER BY n.nspname");

/// Everything in a PostgreSQL database that is not the server's. Whatever is in a schema depends on it in `pg_depend`, of whatever kind
/// it is: tables, views, functions, types, operators. Besides: the schemas themselves, extensions, and what is in no schema.
const COUNT_POSTGRES: &str = concat!(
    "SELECT (SELECT count(*) FROM pg_depend AS d JOIN pg_namespace AS n ON d.refobjid = n.oid \
              WHERE d.refclassid = 'pg_namespace'::regclass AND ",
    not_the_servers!(),
    ") + (SELECT count(*) FROM pg_namespace AS n WHERE n.nspname <> 'public' AND ",
    not_the_servers!(),
    ") + (SELECT count(*) FROM pg_extension WHERE extname <> 'plpgsql') \
       + (SELECT count(*) FROM pg_largeobject_metadata) \
       + (SELECT count(*) FROM pg_publication) \
       + (SELECT count(*) FROM pg_event_trigger) \
       + (SELECT count(*) FROM pg_foreign_server)"
);

/// The same of a SQLite file.
const COUNT_SQLITE: &str = "SELECT count(*) FROM sqlite_master";

/// The database of one clause.
pub(crate) struct Place {
    pub(crate) url: String,
    /// Of a file: goes with the place.
    folder: Option<TempDir>,
}

impl Place {
    /// Another one like it; where there is one only, the same, emptied.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) async fn again(&self, subject: &StorageSubject) -> Result<Self, Stop> {
        if self.folder.is_some() {
            return Places::Files.set(subject).await;
        }
        let database = Database::of(subject, &self.url).map_err(|error| unusable(error.to_string()))?;
        Places::Given(self.url.clone(), database).set(subject).await
    }
}

/// Where the databases of the clauses are.
pub(crate) enum Places {
    /// New files.
    Files,
    /// One that the operator has named: its URL, and the kit's own connections to it.
    Given(String, Database),
}

impl Places {
    /// Looks at the database that was named, if one was.
    ///
    /// # Errors
    /// If it cannot be reached, or is not empty.
    pub(crate) async fn new(given: Option<&str>, subject: &StorageSubject) -> Result<Self, SetupError> {
        let Some(url) = given else { return Ok(Self::Files) };
        let refused = |text: String| SetupError::Refused(vec![format!("--database {text}")]);
        if url.starts_with("sqlite:") {
            return Err(refused("is a SQLite file: leave the option out, each clause gets a new file".to_owned()));
        }
        let here = Database::of(subject, url)?;
        match here.objects().await.map_err(|error| refused(error.to_string()))? {
            0 => Ok(Self::Given(url.to_owned(), here)),
            objects => Err(refused(format!(
                "is not empty ({objects} tables, indexes and the like): everything in it would be dropped for each clause, so name a database \
                 that was made for this"
            ))),
        }
    }

    /// Clauses that can run at once. Two are enough to use the time in which others wait, and few enough not to disturb each other.
    pub(crate) fn at_once(&self) -> usize {
        match self {
            Self::Files => 2,
            Self::Given(..) => 1,
        }
    }

    /// An empty database.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) async fn set(&self, subject: &StorageSubject) -> Result<Place, Stop> {
        match self {
            Self::Files => {
                let folder = tempfile::tempdir().map_err(|error| unusable(error.to_string()))?;
                let url = format!("sqlite:{}", folder.path().join("outbox.db").display());
                let database = Database::of(subject, &url).map_err(|error| unusable(error.to_string()))?;
                database.databases.create(MAIN).await.map_err(|error| unusable(error.to_string()))?;
                Ok(Place { url, folder: Some(folder) })
            }
            Self::Given(url, database) => {
                database.empty().await.map_err(|error| unusable(error.to_string()))?;
                Ok(Place { url: url.clone(), folder: None })
            }
        }
    }

    /// Leaves a database that was named as it was found.
    ///
    /// # Errors
    /// If that fails.
    pub(crate) async fn clear(&self, subject: &StorageSubject) -> Result<(), Stop> {
        match self {
            Self::Files => Ok(()),
            Self::Given(..) => self.set(subject).await.map(|_| ()),
        }
    }
}

fn unusable(why: String) -> Stop {
    Stop::failed("an empty database to begin with", why)
}

/// A database as the kit itself sees it.
pub(crate) struct Database {
    databases: Databases,
}

impl Database {
    /// By its URL; not opened yet.
    ///
    /// # Errors
    /// If that is no URL of a database.
    pub(crate) fn of(subject: &StorageSubject, url: &str) -> Result<Self, SetupError> {
        let config = subject.setup.configure(Some(url), &[], &[])?;
        Ok(Self { databases: Databases::new(&config.databases, &config.secrets) })
    }

    /// How many tables and the like are in it: of every kind of object.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn objects(&self) -> Result<i64, SqlError> {
        let connection = self.databases.open(MAIN, Access::ReadOnly).await?;
        let sql = match connection.dialect() {
            Dialect::Sqlite => COUNT_SQLITE,
            _ => COUNT_POSTGRES,
        };
        let rows = connection.execute(vec![Statement::new(sql).returning([ColumnType::Integer])], bounds()).await?;
        Ok(match rows.first().and_then(|rows| rows.columns.first()) {
            Some(Values::Integers { values, .. }) => values.first().copied().unwrap_or_default(),
            _ => 0,
        })
    }

    /// Drops everything that is in it.
    async fn empty(&self) -> Result<(), SqlError> {
        let connection = self.databases.open(MAIN, Access::ReadWrite).await?;
        let list = Statement::new(SCHEMAS).returning([ColumnType::Text]);
        let rows = connection.execute(vec![list], bounds()).await?;
        let mut statements = Vec::new();
        if let Some(Values::Texts(names)) = rows.first().and_then(|rows| rows.columns.first()) {
            let drop =
                |index| Statement::new(format!("DROP SCHEMA \"{}\" CASCADE", names.text(index).unwrap_or_default().replace('"', "\"\"")));
            statements.extend((0..names.len()).map(drop));
        }
        statements.push(Statement::new("CREATE SCHEMA public"));
        connection.execute(statements, bounds()).await.map(|_| ())
    }
}

fn bounds() -> Bounds {
    Bounds::within(WITHIN, MOST_BYTES)
}
