//! A pooler in transaction mode: each transaction may run on another connection, so that nothing of a session outlives one. LISTEN
//! seems to work there and is never heard of again.

use crate::daemon::{Daemon, Life};
use crate::ground::{Account, free_port};
use crate::postgres::{self, PASSWORD, Postgres, USER};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// A running pooler, in front of every database of one server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pgbouncer {
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// The server behind it: create databases there.
    pub server: Postgres,
}

impl Pgbouncer {
    /// URL of a database, with user and password.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// Starts one that goes on when this program has ended.
    ///
    /// # Errors
    /// If it is not installed, or does not start.
    pub(crate) fn shared(server: Postgres, folder: &Path, account: Option<Account>) -> Result<Self> {
        let program = installed()?;
        let port = free_port()?;
        let file = folder.join("pgbouncer.ini");
        fs::write(&file, configuration(folder, port, server.port)).context("cannot write pgbouncer.ini")?;
        fs::write(folder.join("users.txt"), format!("\"{USER}\" \"{PASSWORD}\"\n")).context("cannot write users.txt")?;
        if let Some(account) = account {
            account.own(folder)?;
        }
        let pooler = Self { port, server };
        let mut daemon = Daemon::start(folder, account, Life::Detached, &program, [&file])?;
        daemon.wait_until(|| postgres::connect(&pooler.url("postgres")).map(drop))?;
        Ok(pooler)
    }
}

fn configuration(folder: &Path, port: u16, server: u16) -> String {
    // extra_float_digits is what Java's and Rust's drivers ask for at the start of each connection; whoever runs pgbouncer with them
    // has this line.
    format!(
        "[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
server_idle_timeout = 30
ignore_startup_parameters = extra_float_digits
",
        users = folder.join("users.txt").display()
    )
}

fn installed() -> Result<PathBuf> {
    // Debian has it where users do not look.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"].map(PathBuf::from));
    match places.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => bail!("pgbouncer is not installed (Debian: apt-get install pgbouncer; macOS: brew install pgbouncer)"),
    }
}
