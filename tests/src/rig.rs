//! A folder with a database and a configuration, and the command line on it.

use crate::host::Host;
use crate::outbox::Outbox;
use crate::places;
use crate::process::{self, Process};
use anyhow::{Context, Result, bail};
use outhaul_services::{Kafka, Listener};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A configuration on its way to a file.
#[derive(Debug, Clone)]
pub struct Config(toml::Table);

impl Config {
    /// One relay `orders` from the table `outbox` of `outbox.db` to a receiver, every topic at its own path. Retries come soon, so
    /// that tests are quick.
    ///
    /// # Errors
    /// If the components are not built.
    pub fn to(receiver: SocketAddr) -> Result<Self> {
        let publisher = format!(
            r#"
            plugin = "http-publisher"
            allow_hosts = ["{receiver}"]
            config = {{ url = "http://{receiver}/{{topic}}" }}
            "#
        );
        Self::with_publisher("webhooks", &publisher)
    }

    /// The same to Kafka, every topic to the topic of its name.
    ///
    /// # Errors
    /// If the components are not built.
    pub fn to_kafka(kafka: &Kafka) -> Result<Self> {
        let brokers = kafka.addresses(Listener::Plaintext);
        let publisher = format!(
            r#"
            plugin = "kafka-publisher"
            allow_hosts = {brokers:?}
            config = {{ brokers = {brokers:?} }}
            "#
        );
        Self::with_publisher("events", &publisher)
    }

    fn with_publisher(name: &str, publisher: &str) -> Result<Self> {
        let text = format!(
            r#"
            [log]
            format = "json"
            [admin]
            listen = "127.0.0.1:0"
            [databases.main]
            url = "sqlite:outbox.db"
            [storages.outbox]
            plugin = "sqlite-storage"
            database = "main"
            config = {{ table = "outbox" }}
            [publishers.{name}]
            {publisher}
            [[relays]]
            name = "orders"
            storage = "outbox"
            routes = [ {{ topic = "*", publisher = "{name}" }} ]
            backoff = {{ base = "50ms", factor = 2.0, max = "1s", jitter = 0.25 }}
            "#
        );
        Self::parse(&text)
    }

    /// From the table `outbox` of a PostgreSQL database instead, by its URL.
    #[must_use]
    pub fn on_postgres(self, url: &str) -> Self {
        self.set("databases.main.url", url).set("storages.outbox.plugin", "postgres-storage")
    }

    /// Reads a configuration and puts in the folders of the built components.
    ///
    /// # Errors
    /// If it is not TOML, or the components are not built.
    pub fn parse(text: &str) -> Result<Self> {
        let mut config = Self(text.parse().context("the configuration is not TOML")?);
        config = config.set("plugins.dir", path_text(&places::plugins()?)?);
        Ok(config.set("plugins.cache", path_text(&places::compiled()?)?))
    }

    /// With the fixture `evil-publisher` as the publisher `evil`, for the topic `evil`. Needs [`Rig::with_fixtures`].
    #[must_use]
    pub fn with_evil_publisher(self) -> Self {
        self.set_all("publishers.evil", "plugin = \"evil-publisher\"\nlimits = { memory = \"32MiB\" }")
            .set_all("relays.0", r#"routes = [ { topic = "evil", publisher = "evil" }, { topic = "*", publisher = "webhooks" } ]"#)
    }

    /// Turns a configuration written for production into one for a test, and leaves everything else in it as it is: the database, the
    /// receiver, a log that can be read by programs, any free admin port.
    ///
    /// # Errors
    /// If there is more than one database or publisher, so that it is not clear which is which.
    pub fn moved_to(self, database: &Path, receiver: SocketAddr) -> Result<Self> {
        let only = |section: &str| -> Result<String> {
            let names: Vec<&String> =
                self.0.get(section).and_then(toml::Value::as_table).into_iter().flat_map(|table| table.keys()).collect();
            match names[..] {
                [name] => Ok(format!("{section}.{name}")),
                _ => bail!("expected one entry in [{section}], found {names:?}"),
            }
        };
        let (main, publisher) = (only("databases")?, only("publishers")?);
        Ok(self
            .set(&format!("{main}.url"), format!("sqlite:{}", path_text(database)?))
            .set(&format!("{publisher}.allow_hosts"), vec![receiver.to_string()])
            .set(&format!("{publisher}.config.url"), format!("http://{receiver}/{{topic}}"))
            .set("log.format", "json")
            .set("admin.listen", "127.0.0.1:0"))
    }

    /// Sets the value at a path such as `relays.0.max_attempts`; tables on the way are created.
    ///
    /// # Panics
    /// If the path goes through something that is neither a table nor an array that long: a mistake in the test.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<toml::Value>) -> Self {
        let (last, way) = path.rsplit_once('.').map_or((path, None), |(way, last)| (last, Some(way)));
        let mut table = &mut self.0;
        let mut steps = way.into_iter().flat_map(|way| way.split('.')).peekable();
        while let Some(step) = steps.next() {
            let index = steps.next_if(|next| next.parse::<usize>().is_ok());
            let mut value = table.entry(step).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            if let Some(index) = index {
                value = &mut value[index.parse::<usize>().expect("checked above")];
            }
            table = value.as_table_mut().unwrap_or_else(|| panic!("`{step}` of `{path}` is no table"));
        }
        table.insert(last.to_owned(), value.into());
        self
    }

    /// Sets several values, written as TOML: `config.max_concurrent = 8` and the like, relative to a path.
    ///
    /// # Panics
    /// If the text is not TOML: a mistake in the test.
    #[must_use]
    pub fn set_all(self, path: &str, text: &str) -> Self {
        let values: toml::Table = text.parse().unwrap_or_else(|error| panic!("not TOML: {error}"));
        values.into_iter().fold(self, |config, (name, value)| config.set(&format!("{path}.{name}"), value))
    }

    /// Whether the database is a file of SQLite.
    fn is_on_a_file(&self) -> bool {
        let url = |database: &toml::Value| database.get("url").and_then(toml::Value::as_str).is_some_and(|url| url.starts_with("sqlite:"));
        self.0.get("databases").and_then(toml::Value::as_table).is_some_and(|databases| databases.values().any(url))
    }

    /// The file's text.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.to_string()
    }
}

/// The folder. Removed when dropped, unless the test fails.
pub struct Rig {
    folder: Option<TempDir>,
    path: PathBuf,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; none: ended by a signal.
    pub code: Option<i32>,
    /// What it printed.
    pub output: String,
    /// What it logged.
    pub errors: String,
}

impl Finished {
    /// What it printed, if it went well.
    ///
    /// # Errors
    /// If it did not: with everything it wrote.
    pub fn success(self) -> Result<String> {
        if self.code != Some(0) {
            bail!("exit code {:?}\n{}\n{}", self.code, self.output, self.errors);
        }
        Ok(self.output)
    }

    /// What it printed, as JSON.
    ///
    /// # Errors
    /// If it did not go well, or printed something else.
    pub fn json(self) -> Result<serde_json::Value> {
        let output = self.success()?;
        serde_json::from_str(&output).with_context(|| format!("not JSON: {output}"))
    }

    /// What it said, if it failed with this code: what it logged, and what it had printed before.
    ///
    /// # Errors
    /// If it did not: with everything it wrote.
    pub fn failure(self, code: i32) -> Result<String> {
        if self.code != Some(code) {
            bail!("expected exit code {code}, it was {:?}\n{}\n{}", self.code, self.output, self.errors);
        }
        Ok(format!("{}\n{}", self.errors, self.output))
    }
}

impl Rig {
    /// An empty folder.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn empty() -> Result<Self> {
        let folder = TempDir::with_prefix("outhaul-").context("no temporary folder")?;
        Ok(Self { path: folder.path().to_owned(), folder: Some(folder) })
    }

    /// An existing folder, which stays.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self { folder: None, path: folder.to_owned() }
    }

    /// A folder with this configuration and, in its database, the table that `outhaul schema --apply` creates.
    ///
    /// # Errors
    /// If any of it fails.
    pub fn new(config: &Config) -> Result<Self> {
        let rig = Self::empty()?;
        rig.prepare(config)?;
        Ok(rig)
    }

    /// The same, with the fixtures' components beside the adapters'.
    ///
    /// # Errors
    /// If any of it fails.
    pub fn with_fixtures(config: &Config) -> Result<Self> {
        let rig = Self::empty()?;
        rig.copy_components()?;
        rig.prepare(&config.clone().set("plugins.dir", "plugins"))?;
        Ok(rig)
    }

    /// Copies the adapters' and the fixtures' components into the folder `plugins`.
    ///
    /// # Errors
    /// If they are not built, or cannot be copied.
    pub fn copy_components(&self) -> Result<()> {
        let folder = self.path.join("plugins");
        std::fs::create_dir(&folder)?;
        for built in [places::plugins()?, places::fixtures()?] {
            for file in std::fs::read_dir(&built).with_context(|| format!("cannot read {}", built.display()))? {
                let file = file?;
                std::fs::copy(file.path(), folder.join(file.file_name()))?;
            }
        }
        Ok(())
    }

    /// Writes the configuration, and creates the database, if it is a file, and its table.
    ///
    /// # Errors
    /// If any of it fails.
    pub fn prepare(&self, config: &Config) -> Result<()> {
        self.configure(config)?;
        if config.is_on_a_file() {
            // The database must exist: outhaul does not create files that it was not asked for.
            Outbox::create_database(&self.database())?;
        }
        self.run(&["schema", "--storage", "outbox", "--apply"])?.success()?;
        Ok(())
    }

    /// Writes the configuration.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn configure(&self, config: &Config) -> Result<()> {
        std::fs::write(self.config(), config.text()).context("cannot write the configuration")
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.path.join("outhaul.toml")
    }

    /// The database file of [`Config::to`].
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.path.join("outbox.db")
    }

    /// The producer's side of the table.
    ///
    /// # Errors
    /// If the database cannot be opened.
    pub fn outbox(&self) -> Result<Outbox> {
        Outbox::open(&self.database())
    }

    /// Starts `outhaul run`.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn host(&self) -> Result<Host> {
        Host::start(&self.config())
    }

    /// Starts an outhaul command.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(&self, arguments: &[&str]) -> Result<Process> {
        self.start_as(arguments, |_| {})
    }

    fn start_as(&self, arguments: &[&str], change: impl FnOnce(&mut Command)) -> Result<Process> {
        let mut command = process::bound(&places::outhaul()?);
        command.arg("--config").arg(self.config()).args(arguments).env_remove("RUST_LOG");
        change(&mut command);
        Process::start(&mut command)
    }

    /// Runs an outhaul command to its end.
    ///
    /// # Errors
    /// If it does not end. A failure of the command is none.
    pub fn run(&self, arguments: &[&str]) -> Result<Finished> {
        self.run_as(arguments, |_| {})
    }

    /// The same, with something changed about the process: its user, for instance.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_as(&self, arguments: &[&str], change: impl FnOnce(&mut Command)) -> Result<Finished> {
        let mut process = self.start_as(arguments, change)?;
        let status = process.wait().with_context(|| format!("outhaul {arguments:?}"))?;
        Ok(Finished { code: status.code(), output: process.output().text(), errors: process.errors().text() })
    }

    /// `outhaul enqueue`: the id that it prints.
    ///
    /// # Errors
    /// If it fails.
    pub fn enqueue(&self, arguments: &[&str]) -> Result<String> {
        Ok(self.run(&[&["enqueue", "--storage", "outbox"], arguments].concat())?.success()?.trim().to_owned())
    }

    /// Enqueues a message with this many bytes in headers of 100 KB: the id.
    ///
    /// # Errors
    /// If it fails.
    pub fn enqueue_with_headers(&self, bytes: usize) -> Result<String> {
        let headers: Vec<String> = (0..bytes.div_ceil(100_000)).map(|at| format!("x-large-{at}={}", "x".repeat(100_000))).collect();
        let arguments = headers.iter().flat_map(|header| ["--header", header]);
        self.enqueue(&["--topic", "large", "--payload", "x"].into_iter().chain(arguments).collect::<Vec<_>>())
    }

    /// `outhaul drain --json`: its summary.
    ///
    /// # Errors
    /// If it fails.
    pub fn drain(&self) -> Result<serde_json::Value> {
        self.run(&["drain", "--json"])?.json()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(folder) = self.folder.take()
        {
            eprintln!("kept for a look: {}", folder.keep().display());
        }
    }
}

fn path_text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_set_in_tables_and_in_arrays() {
        let config = Config("[[relays]]\nname = \"a\"".parse().unwrap());
        let config = config.set("relays.0.batch", 7).set_all("storages.outbox.config", "table = \"t\"").set("shutdown_grace", "1s");
        let table: toml::Table = config.text().parse().unwrap();
        assert_eq!(table["relays"][0]["batch"].as_integer(), Some(7));
        assert_eq!(table["relays"][0]["name"].as_str(), Some("a"));
        assert_eq!(table["storages"]["outbox"]["config"]["table"].as_str(), Some("t"));
        assert_eq!(table["shutdown_grace"].as_str(), Some("1s"));
    }
}
