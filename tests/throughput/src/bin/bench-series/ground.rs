//! A fresh table for each run, and `outhaul bench` on it: what an earlier run has left never counts in a later one.

use anyhow::{Context as _, Result, bail, ensure};
use outhaul::bench::model::Report;
use outhaul_services::Server;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Kind {
    /// A file of SQLite.
    Sqlite,
    /// A database of PostgreSQL.
    Postgres,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
        })
    }
}

/// The host, and what it needs.
pub(crate) struct Bench {
    host: PathBuf,
    plugins: PathBuf,
    server: Option<Server>,
    /// Compiled adapters, shared by all runs.
    cache: TempDir,
}

/// What differs in the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    /// Requests at once of each instance of the publisher.
    pub(crate) concurrency: u32,
    /// Delivered rows are deleted.
    pub(crate) deletes: bool,
}

impl Bench {
    pub(crate) fn new(host: PathBuf, plugins: PathBuf, server: Option<Server>) -> Result<Self> {
        ensure!(host.exists(), "{} does not exist: build it with `cargo build --release --package outhaul`", host.display());
        Ok(Self { host, plugins, server, cache: tempfile::tempdir()? })
    }

    /// One `outhaul bench` with these arguments, on a database of its own.
    pub(crate) fn run(&self, kind: Kind, setup: Setup, arguments: &[String]) -> Result<Report> {
        let folder = tempfile::tempdir()?;
        // Dropped at the end, and its data with it.
        let database = match kind {
            Kind::Sqlite => None,
            Kind::Postgres => Some(self.server.as_ref().context("no server was started")?.create_database()?),
        };
        let url = database.as_ref().map_or_else(|| "sqlite:outbox.db".to_owned(), outhaul_services::Database::url);
        let text = configuration(&self.plugins, self.cache.path(), kind, &url, setup);
        std::fs::write(folder.path().join("outhaul.toml"), text).context("cannot write the configuration")?;
        self.outhaul(folder.path(), &["schema".to_owned(), "--apply".to_owned()])?;
        let line: Vec<String> = ["bench", "--json"].into_iter().map(str::to_owned).chain(arguments.iter().cloned()).collect();
        let output = self.outhaul(folder.path(), &line)?;
        serde_json::from_str(&output).with_context(|| format!("outhaul {} printed something else than a report", line.join(" ")))
    }

    /// Runs a command of the host; what it printed. What it says goes to stderr, progress among it.
    fn outhaul(&self, folder: &Path, arguments: &[String]) -> Result<String> {
        let mut command = Command::new(&self.host);
        command.current_dir(folder).args(arguments).stderr(Stdio::inherit()).env_remove("OUTHAUL_CONFIG").env_remove("RUST_LOG");
        let output = command.output().with_context(|| format!("cannot run {}", self.host.display()))?;
        if !output.status.success() {
            bail!("outhaul {} failed ({})", arguments.join(" "), output.status);
        }
        String::from_utf8(output.stdout).context("the output is not UTF-8")
    }
}

fn configuration(plugins: &Path, cache: &Path, kind: Kind, url: &str, setup: Setup) -> String {
    let plugin = match kind {
        Kind::Sqlite => "sqlite-storage",
        Kind::Postgres => "postgres-storage",
    };
    let Setup { concurrency, deletes } = setup;
    let on_delivered = if deletes { "delete" } else { "mark" };
    // With a thousand messages in a call, its end, where fewer requests are under way, hardly counts.
    format!(
        r#"
        [log]
        filter = "warn"
        [plugins]
        dir = {plugins:?}
        cache = {cache:?}
        [databases.main]
        url = {url:?}
        [storages.outbox]
        plugin = "{plugin}"
        database = "main"
        config = {{ table = "outbox", on_delivered = "{on_delivered}" }}
        [publishers.webhooks]
        plugin = "http-publisher"
        batch = 1000
        config = {{ url = "http://127.0.0.1:9/", concurrency = {concurrency} }}
        [[relays]]
        name = "bench"
        storage = "outbox"
        routes = [ {{ topic = "*", publisher = "webhooks" }} ]
        in_flight = 20000
        "#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use outhaul::config;

    #[test]
    fn the_configuration_is_one() {
        for (kind, url, deletes) in [(Kind::Sqlite, "sqlite:a.db", true), (Kind::Postgres, "postgres://a@127.0.0.1/b", false)] {
            let text = configuration(Path::new("/p"), Path::new("/c"), kind, url, Setup { concurrency: 4, deletes });
            let parsed = config::parse(&text, Path::new("/f/outhaul.toml")).unwrap();
            assert_eq!(parsed.relays.len(), 1);
            assert!(text.contains(if deletes { "\"delete\"" } else { "\"mark\"" }));
        }
    }

    #[test]
    fn a_host_that_is_not_built_is_named() {
        let error = Bench::new("/none/outhaul".into(), "/p".into(), None).err().unwrap().to_string();
        assert!(error.starts_with("/none/outhaul does not exist: build it"), "{error}");
    }
}
