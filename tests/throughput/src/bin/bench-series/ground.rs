//! A fresh table for each run, and `outhaul bench` on it: what an earlier run has left never counts in a later one.

use anyhow::{Context as _, Result, bail, ensure};
use outhaul::bench::model::Report;
use outhaul_services::Server;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
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

/// What a run came to.
pub(crate) struct Ran {
    pub(crate) report: Report,
    /// What is wrong with it, although there is a report.
    pub(crate) fault: Option<String>,
}

impl Ran {
    /// The report is kept whatever the command says at its end.
    fn of(output: &Output, line: &str) -> Result<Self> {
        let failed = || format!("outhaul {line} failed ({})", output.status);
        match serde_json::from_slice::<Report>(&output.stdout) {
            Ok(report) => Ok(Self { fault: (!output.status.success()).then(|| failed() + ", after its report"), report }),
            Err(error) if output.status.success() => Err(error).context(format!("outhaul {line} printed something else than a report")),
            Err(_) => bail!("{}{}", failed(), reason(&output.stdout)),
        }
    }
}

/// Why a command failed, as the JSON of it says; nothing where it printed something else.
fn reason(stdout: &[u8]) -> String {
    let document: serde_json::Value = serde_json::from_slice(stdout).unwrap_or_default();
    document.get("error").and_then(serde_json::Value::as_str).map(|error| format!(": {error}")).unwrap_or_default()
}

impl Bench {
    pub(crate) fn new(host: PathBuf, plugins: PathBuf, server: Option<Server>) -> Result<Self> {
        ensure!(host.exists(), "{} does not exist: build it with `cargo build --release --package outhaul`", host.display());
        Ok(Self { host, plugins, server, cache: tempfile::tempdir()? })
    }

    /// One `outhaul bench` with these arguments, on a database of its own.
    pub(crate) fn run(&self, kind: Kind, setup: Setup, arguments: &[String]) -> Result<Ran> {
        let folder = tempfile::tempdir()?;
        // Dropped at the end, and its data with it.
        let database = match kind {
            Kind::Sqlite => None,
            Kind::Postgres => Some(self.server.as_ref().context("no server was started")?.create_database()?),
        };
        let url = database.as_ref().map_or_else(|| "sqlite:outbox.db".to_owned(), outhaul_services::Database::url);
        let text = configuration(&self.plugins, self.cache.path(), kind, &url, setup);
        std::fs::write(folder.path().join("outhaul.toml"), text).context("cannot write the configuration")?;
        let schema = self.outhaul(folder.path(), &["schema".to_owned(), "--apply".to_owned()])?;
        ensure!(schema.status.success(), "outhaul schema --apply failed ({})", schema.status);
        let line: Vec<String> = ["bench", "--json"].into_iter().map(str::to_owned).chain(arguments.iter().cloned()).collect();
        Ran::of(&self.outhaul(folder.path(), &line)?, &line.join(" "))
    }

    /// Runs a command of the host; what it printed. What it says goes to stderr, progress among it.
    fn outhaul(&self, folder: &Path, arguments: &[String]) -> Result<Output> {
        let mut command = Command::new(&self.host);
        command.current_dir(folder).args(arguments).stderr(Stdio::inherit()).env_remove("OUTHAUL_CONFIG").env_remove("RUST_LOG");
        command.output().with_context(|| format!("cannot run {}", self.host.display()))
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
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

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
    fn a_report_is_kept_although_the_command_fails() {
        let run = include_str!("run.json");
        let machine = r#"{ "cpu": "c", "cores": 2, "memory_bytes": 1, "system": "s" }"#;
        let report = format!(r#"{{ "machine": {machine}, "versions": {{}}, "started_at": "now", "runs": [{run}] }}"#);
        let ended = |code: i32, stdout: &str| {
            let output = Output { status: ExitStatus::from_raw(code << 8), stdout: stdout.into(), stderr: Vec::new() };
            Ran::of(&output, "bench").map(|ran| (ran.report.runs.len(), ran.fault)).map_err(|error| error.to_string())
        };
        let fault = "outhaul bench failed (exit status: 1), after its report".to_owned();
        assert_eq!(ended(0, &report), Ok((1, None)));
        assert_eq!(ended(1, &report), Ok((1, Some(fault))));
        assert_eq!(
            ended(1, r#"{ "error": "no table", "exit_code": 1 }"#),
            Err("outhaul bench failed (exit status: 1): no table".to_owned())
        );
        assert_eq!(ended(1, "{"), Err("outhaul bench failed (exit status: 1)".to_owned()));
        assert_eq!(ended(0, "{}"), Err("outhaul bench printed something else than a report".to_owned()));
    }

    #[test]
    fn a_host_that_is_not_built_is_named() {
        let error = Bench::new("/none/outhaul".into(), "/p".into(), None).err().unwrap().to_string();
        assert!(error.starts_with("/none/outhaul does not exist: build it"), "{error}");
    }
}
