//! A PostgreSQL server of this machine: shared by the tests, or one of a test that disturbs it.

mod binaries;
mod server;

pub use server::{Server, ServerOptions};

use crate::certificates::Certificates;
use ::postgres::{Client, NoTls};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// The super-user of every server here.
pub const USER: &str = "outhaul";

/// Its password.
pub const PASSWORD: &str = "outhaul-secret";

/// The major versions that the suite runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Major {
    /// PostgreSQL 15.
    V15,
    /// PostgreSQL 17.
    V17,
}

impl Major {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::V15, Self::V17];

    /// 15 or 17.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::V15 => 15,
            Self::V17 => 17,
        }
    }
}

impl fmt::Display for Major {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.number())
    }
}

/// A running server. It takes connections with and without TLS; whoever presents the client certificate of [`Certificates`] may come
/// in as [`crate::certificates::CLIENT`] without a password, over TLS only.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Postgres {
    /// Its version.
    pub major: Major,
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// Folder of its unix socket; none where the path would be too long for one.
    pub socket: Option<PathBuf>,
    /// What it shows over TLS, and who signed that.
    pub certificates: Certificates,
}

impl Postgres {
    /// Starts a server of the test's own, with the default options. It ends with the value, and with the thread that started it.
    ///
    /// # Errors
    /// If it cannot be had, or does not start.
    pub fn start(major: Major) -> Result<Server> {
        Self::start_with(major, &ServerOptions::default())
    }

    /// The same with other options.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(major: Major, options: &ServerOptions) -> Result<Server> {
        Server::private(major, options)
    }

    /// URL of a database, with user and password.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// A connection to one of its databases.
    ///
    /// # Errors
    /// If there is none to be had.
    pub fn connect(&self, database: &str) -> Result<Client> {
        connect(&self.url(database))
    }

    /// A database of the test's own.
    ///
    /// # Errors
    /// If the server does not create it.
    pub fn create_database(&self) -> Result<Database> {
        let name = format!("test_{:012x}", rand::random_range(0..1_u64 << 48));
        self.connect("postgres")?.batch_execute(&format!("CREATE DATABASE {name}")).context("cannot create a database")?;
        Ok(Database { name, server: self.clone() })
    }
}

/// A database of one test; dropped with the value, connections to it or not.
#[derive(Debug)]
pub struct Database {
    name: String,
    server: Postgres,
}

impl Database {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL, with user and password.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// The server that it is on.
    #[must_use]
    pub fn server(&self) -> &Postgres {
        &self.server
    }

    /// A connection to it.
    ///
    /// # Errors
    /// If there is none to be had.
    pub fn connect(&self) -> Result<Client> {
        self.server.connect(&self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // In vain if the test has taken its server down: the data goes with it.
        if let Ok(mut client) = self.server.connect("postgres") {
            let _ = client.batch_execute(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        }
    }
}

/// A connection by URL, without TLS.
///
/// # Errors
/// If there is none to be had in ten seconds.
pub fn connect(url: &str) -> Result<Client> {
    let mut config: ::postgres::Config = url.parse().context("not a URL of PostgreSQL")?;
    config.connect_timeout(std::time::Duration::from_secs(10));
    config.connect(NoTls).context("cannot connect to PostgreSQL")
}

/// The longest path of a socket (`sun_path` is 104 bytes on macOS and 108 on Linux, with the end mark), less the file's name.
const LONGEST_SOCKET_FOLDER: usize = 104 - 1 - "/.s.PGSQL.65535.lock".len();

fn socket_in(folder: &Path) -> Option<PathBuf> {
    (folder.as_os_str().len() <= LONGEST_SOCKET_FOLDER).then(|| folder.to_owned())
}
