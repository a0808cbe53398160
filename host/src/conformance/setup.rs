//! How a component is set up to be tested or driven: what the command line says, and what a `conformance.toml` beside the component
//! says where the command line is silent.
//!
//! It becomes a configuration like any other (one adapter called `adapter`, one database called `main`), read by the code that reads
//! an operator's file: what is refused there is refused here, with the name of the option.

use super::beside::Beside;
use crate::config::model::{Database, RouterKind};
use crate::config::{self, Config, Problem};
use crate::plugin::{Inspection, PluginError, inspect};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Table, Value};

/// Name of the adapter in the configuration.
const NAME: &str = "adapter";

/// Where the configuration would be, if it were a file: nowhere. Relative paths are those of the current folder.
const NOWHERE: &str = "command-line";

/// Largest file of settings, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// What is said of a component.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SetupArgs {
    /// The adapter's own settings (`config` in outhaul.toml), as a TOML file.
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// One of these settings, written as in TOML (may be repeated; wins over --settings).
    #[arg(long = "set", value_name = "KEY = VALUE")]
    set: Vec<String>,
    /// For a storage: its database, as in outhaul.toml (left out: fresh SQLite files). For a router: the one that it may read.
    #[arg(long, value_name = "URL", env = "OUTHAUL_TEST_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// A secret that the adapter may read, and the environment variable that holds it (may be repeated).
    #[arg(long = "secret", value_name = "NAME=VARIABLE", value_parser = pair)]
    secrets: Vec<(String, String)>,
    /// What the adapter may reach besides (may be repeated).
    #[arg(long = "allow-host", value_name = "HOST:PORT")]
    allow_hosts: Vec<String>,
    /// Run the commands and grant the hosts that a conformance.toml beside the component names. Whoever can write it can then do on this
    /// machine what you can do: read it first.
    #[arg(long)]
    trust_beside: bool,
    /// How long one call may take.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    call_timeout: Duration,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, variable)) if !name.is_empty() && !variable.is_empty() => Ok((name.to_owned(), variable.to_owned())),
        _ => Err("write NAME=VARIABLE".to_owned()),
    }
}

/// Why a component cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SetupError {
    /// The file is no component's by its name.
    #[error("{} is not a component's file by its name: it must end in .wasm", .0.display())]
    Name(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}: {error}", .file.display())]
    Unreadable { file: PathBuf, error: std::io::Error },
    /// A file of settings is wrong.
    #[error("{}: {reason}", .file.display())]
    File { file: PathBuf, reason: String },
    /// A file beside the component asks for what only the operator can allow.
    #[error(
        "{} asks {what}: whoever brought the component may have written that; read it, then say --trust-beside, or give {option} yourself",
        .file.display()
    )]
    Untrusted { file: PathBuf, what: String, option: &'static str },
    /// An option is wrong.
    #[error("--set {text:?} is not a key and its value as in TOML ({reason}): write it as in --set 'table = \"outbox\"'")]
    Set { text: String, reason: String },
    /// What was read cannot be.
    #[error("{}", .0.join("; "))]
    Refused(Vec<String>),
    /// The file is another kind of component.
    #[error(
        "{} is no adapter: it exports {exports}; an adapter exports storage, publisher or router of outhaul:adapter@0.1",
        .file.display()
    )]
    NoAdapter { file: PathBuf, exports: String },
    /// The component cannot be loaded or opened.
    #[error(transparent)]
    Plugin(#[from] PluginError),
}

/// The kinds of adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Storage,
    Publisher,
    Router,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Publisher => "publisher",
            Self::Router => "router",
        }
    }
}

/// A component and everything that is said of it.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) inspection: Inspection,
    pub(crate) kind: Kind,
    /// What `conformance.toml` says besides.
    pub(crate) beside: Beside,
    /// Where the component is.
    pub(crate) folder: PathBuf,
    /// Its name there, without `.wasm`.
    pub(crate) plugin: String,
    settings: Table,
    /// None: fresh files.
    pub(crate) database: Option<String>,
    secrets: Vec<(String, String)>,
    allow_hosts: Vec<String>,
    pub(crate) call_timeout: Duration,
}

impl Setup {
    /// Looks at the component and reads everything.
    ///
    /// # Errors
    /// The first that is wrong.
    pub(crate) async fn read(file: PathBuf, args: SetupArgs) -> Result<Self, SetupError> {
        let SetupArgs { settings, set, database, secrets, allow_hosts, trust_beside, call_timeout } = args;
        let name = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".wasm"));
        let plugin = name.filter(|name| !name.is_empty()).ok_or_else(|| SetupError::Name(file.clone()))?.to_owned();
        let folder = match file.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let inspection = inspect(&file).await?;
        let kind = kind(&inspection)?;
        let beside = Beside::read(&folder, trust_beside)?;
        let mut merged = beside.config();
        if let Some(file) = settings {
            let gone = || std::io::Error::from(std::io::ErrorKind::NotFound);
            let text = text(&file)?.ok_or_else(|| SetupError::Unreadable { file: file.clone(), error: gone() })?;
            let table: Table = toml::from_str(&text).map_err(|error| SetupError::File { file, reason: error.message().to_owned() })?;
            merge(&mut merged, table);
        }
        for text in set {
            let table: Result<Table, _> = toml::from_str(&text);
            let refused = |reason: String| SetupError::Set { text: text.clone(), reason };
            let table = table.map_err(|error| refused(error.message().replace('\n', ", ")))?;
            if table.is_empty() {
                return Err(refused("there is none".to_owned()));
            }
            merge(&mut merged, table);
        }
        let allow_hosts = if allow_hosts.is_empty() { beside.allow_hosts()? } else { allow_hosts };
        Ok(Self { inspection, kind, beside, folder, plugin, settings: merged, database, secrets, allow_hosts, call_timeout })
    }

    /// The adapter's own settings.
    pub(crate) fn settings(&self) -> &Table {
        &self.settings
    }

    /// The values of the secrets that it was given, as far as they are set.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = String> {
        self.secrets.iter().filter_map(|(_, variable)| std::env::var(variable).ok())
    }

    /// The adapter's own settings, with those of `over` in their place or besides.
    pub(crate) fn settings_with(&self, over: Table) -> Table {
        let mut settings = self.settings.clone();
        merge(&mut settings, over);
        settings
    }

    /// The configuration of a host that runs the component. In the settings, each of `fill` is put where its name stands in braces;
    /// `reach` is granted besides.
    ///
    /// # Errors
    /// Everything that is refused.
    pub(crate) fn configure(&self, database: Option<&str>, fill: &[(&str, &str)], reach: &[String]) -> Result<Config, SetupError> {
        self.configure_as(self.settings.clone(), database, fill, reach)
    }

    /// The same with other settings.
    ///
    /// # Errors
    /// Everything that is refused.
    pub(crate) fn configure_as(
        &self,
        settings: Table,
        database: Option<&str>,
        fill: &[(&str, &str)],
        reach: &[String],
    ) -> Result<Config, SetupError> {
        let mut config = Value::Table(settings);
        put(&mut config, fill);
        let texts = |texts: &mut dyn Iterator<Item = &String>| Value::Array(texts.map(|text| Value::from(text.as_str())).collect());
        let timeout = humantime::format_duration(self.call_timeout).to_string();
        let mut adapter = Table::from_iter([
            ("plugin".to_owned(), Value::from(NAME)),
            ("allow_hosts".to_owned(), texts(&mut self.allow_hosts.iter().chain(reach))),
            ("allow_secrets".to_owned(), texts(&mut self.secrets.iter().map(|(name, _)| name))),
            ("limits".to_owned(), only("call_timeout", timeout)),
            ("config".to_owned(), config),
        ]);
        let secret = |(name, variable): &(String, String)| (name.clone(), only("env", variable.as_str()));
        let mut root = Table::from_iter([("secrets".to_owned(), Value::Table(self.secrets.iter().map(secret).collect()))]);
        let section = match self.kind {
            Kind::Publisher => "publishers",
            Kind::Storage => "storages",
            Kind::Router => "routers",
        };
        // A router needs none, and a publisher has none.
        let database = match self.kind {
            Kind::Publisher => None,
            Kind::Storage => Some(database.unwrap_or_default()),
            Kind::Router => database,
        };
        if let Some(url) = database {
            let mut main = Table::from_iter([("url".to_owned(), Value::from(url))]);
            if url.starts_with("sqlite:") {
                // What is lost with the power is only a test.
                main.insert("synchronous".to_owned(), "normal".into());
            }
            root.insert("databases".to_owned(), only("main", main));
            adapter.insert("database".to_owned(), "main".into());
        }
        root.insert(section.to_owned(), only(NAME, adapter));
        let mut config = config::parse(&root.to_string(), Path::new(NOWHERE)).map_err(|problems| {
            let told = problems.list.iter().map(|Problem { key, text, .. }| format!("{}{text}", option_of(key)));
            SetupError::Refused(told.collect())
        })?;
        // The database is there for the test, and nobody else's.
        for database in config.databases.values_mut() {
            if let Database::Sqlite(sqlite) = database {
                sqlite.applies_schema = true;
            }
        }
        config.plugins.dir.clone_from(&self.folder);
        let adapters = config.storages.values_mut().chain(config.publishers.values_mut().map(|publisher| &mut publisher.adapter));
        // The name of a file may be one that no key of an operator's file could have.
        adapters.for_each(|adapter| adapter.plugin.clone_from(&self.plugin));
        for router in &mut config.routers {
            if let RouterKind::Plugin(adapter) = &mut router.kind {
                adapter.plugin.clone_from(&self.plugin);
            }
        }
        Ok(config)
    }
}

/// A table of one key.
fn only(key: &str, value: impl Into<Value>) -> Value {
    Table::from_iter([(key.to_owned(), value.into())]).into()
}

/// The option that a key of the configuration comes from.
fn option_of(key: &str) -> String {
    let mut parts = key.splitn(4, '.');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("databases"), ..) => "--database ".to_owned(),
        (Some("secrets"), Some(name), ..) => format!("--secret {name}: "),
        (_, _, Some("config"), Some(key)) => format!("the setting {key}: "),
        (_, _, Some(allow), _) if allow.starts_with("allow_hosts") => "--allow-host ".to_owned(),
        (_, _, Some(allow), _) if allow.starts_with("allow_secrets") => "--secret ".to_owned(),
        (_, _, Some("limits"), _) => "--call-timeout ".to_owned(),
        _ => format!("{key}: "),
    }
}

fn kind(inspection: &Inspection) -> Result<Kind, SetupError> {
    let exports = |interface: &str| inspection.exports.iter().any(|export| export.split('@').next() == Some(interface));
    if exports("outhaul:adapter/storage") {
        Ok(Kind::Storage)
    } else if exports("outhaul:adapter/publisher") {
        Ok(Kind::Publisher)
    } else if exports("outhaul:adapter/router") {
        Ok(Kind::Router)
    } else {
        let exports = if inspection.exports.is_empty() { "nothing".to_owned() } else { inspection.exports.join(", ") };
        Err(SetupError::NoAdapter { file: inspection.file.clone(), exports })
    }
}

/// The text of a file; none: there is no such file.
pub(super) fn text(file: &Path) -> Result<Option<String>, SetupError> {
    let unreadable = |error| SetupError::Unreadable { file: file.to_owned(), error };
    match std::fs::metadata(file) {
        Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
            Err(unreadable(std::io::Error::other(format!("it is larger than {MAX_FILE_BYTES} bytes"))))
        }
        Ok(_) => std::fs::read_to_string(file).map(Some).map_err(unreadable),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error)),
    }
}

/// Puts what `over` says in the place of what `table` says; tables in it are merged.
fn merge(table: &mut Table, over: Table) {
    for (key, value) in over {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(inner)), Value::Table(over)) => merge(inner, over),
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}

/// Puts values where their names stand in braces.
fn put(value: &mut Value, fill: &[(&str, &str)]) {
    match value {
        Value::String(text) => fill.iter().for_each(|(name, with)| *text = text.replace(&format!("{{{name}}}"), with)),
        Value::Array(items) => items.iter_mut().for_each(|item| put(item, fill)),
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| put(value, fill)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(settings: &str, kind: Kind) -> Setup {
        Setup {
            inspection: Inspection::of_world(None, ""),
            kind,
            beside: Beside::default(),
            folder: "built".into(),
            plugin: "an adapter".to_owned(),
            settings: toml::from_str(settings).unwrap(),
            database: None,
            secrets: vec![("key".to_owned(), "KEY".to_owned())],
            allow_hosts: vec!["127.0.0.1:9".to_owned()],
            call_timeout: Duration::from_secs(5),
        }
    }

    #[test]
    fn what_is_said_becomes_a_configuration() {
        let setup = setup("table = \"t{clause}\"\n[columns]\nid = [\"x{clause}\", 1]\n", Kind::Storage);
        let config = setup.configure(Some("sqlite:/tmp/a.db"), &[("clause", "7")], &["127.0.0.1:10".to_owned()]).unwrap();
        let storage = &config.storages[NAME];
        let expected = serde_json::json!({ "table": "t7", "columns": { "id": ["x7", 1] }, "database": "main" });
        assert_eq!((&storage.config, storage.plugin.as_str()), (&expected, "an adapter"));
        assert_eq!((storage.grants.hosts.len(), storage.grants.secrets.as_slice()), (2, &["key".to_owned()][..]));
        assert_eq!(storage.limits.call_timeout, Duration::from_secs(5));
    }

    #[test]
    fn a_router_has_a_database_only_if_it_is_given_one() {
        let setup = setup("a = 1", Kind::Router);
        let adapter = |config: Config| config.routers[0].plugin().unwrap().clone();
        let without = adapter(setup.configure(None, &[], &[]).unwrap());
        assert_eq!((without.plugin.as_str(), without.config), ("an adapter", serde_json::json!({ "a": 1 })));
        let with = adapter(setup.configure(Some("sqlite:/tmp/a.db"), &[], &[]).unwrap());
        assert_eq!(
            (with.grants.databases.as_slice(), with.config),
            (&["main".to_owned()][..], serde_json::json!({ "a": 1, "database": "main" }))
        );
    }

    #[test]
    fn what_is_refused_has_the_name_of_its_option() {
        let mut setup = setup("database = \"other\"", Kind::Storage);
        setup.allow_hosts = vec!["nowhere".to_owned()];
        let told = setup.configure(Some("oracle:x"), &[], &[]).unwrap_err().to_string();
        for expected in
            ["--database the scheme \"oracle\" is not supported", "--allow-host \"nowhere\" has no port", "the setting database: "]
        {
            assert!(told.contains(expected), "{expected}: {told}");
        }
    }

    #[test]
    fn later_settings_win_key_by_key() {
        let mut table: Table = toml::from_str("a = 1\n[b]\nc = 1\nd = 1").unwrap();
        merge(&mut table, toml::from_str("a = [2]\nb.c = 2").unwrap());
        assert_eq!(table, toml::from_str("a = [2]\n[b]\nc = 2\nd = 1").unwrap());
    }
}
