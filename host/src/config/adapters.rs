//! `[storages.NAME]`, `[publishers.NAME]`, and `[routers.NAME]` that are components: which one, what it may reach, what it may use, and
//! its own settings.

use super::grants;
use super::model::{Adapter, ClientCertificate, Grants, Limits, Publisher};
use super::problem::{listed, suggestion};
use super::section::{Located, Range, Section, check_name};
use crate::oci::Pinned;
use ipnet::IpNet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An engine's stack, globals and tables alone take close to 1 MiB: with less, a slip of the unit ("256KB") would read as a broken
/// adapter. Linear memory of a 32-bit component ends at 4 GiB.
const MEMORY: Range = Range { min: 1 << 20, max: 4 << 30 };
/// Offsets in columns are 32 bits.
const BYTES: Range = Range { min: 1, max: (4 << 30) - 1 };
/// Each lane holds an instance with memory of its own.
const LANES: Range = Range { min: 1, max: 256 };
/// Beyond a few hundred nothing is gained; this bounds the memory that one call takes.
const BATCH: Range = Range { min: 1, max: 100_000 };

/// What sections may refer to.
pub(super) struct Names<'a> {
    /// `[databases.NAME]`
    pub(super) databases: Vec<&'a str>,
    /// `[secrets.NAME]`
    pub(super) secrets: Vec<&'a str>,
    /// The configuration file's folder.
    pub(super) folder: &'a Path,
}

/// A storage with what relays are checked against.
pub(super) struct StorageEntry {
    pub(super) adapter: Adapter,
    pub(super) call_timeout: Located<Duration>,
    pub(super) returned_bytes: Located<usize>,
}

/// A publisher with what relays are checked against.
pub(super) struct PublisherEntry {
    pub(super) publisher: Publisher,
    pub(super) memory: Located<usize>,
}

/// Reads a storage; none where something without a default is missing or wrong.
pub(super) fn storage(name: &str, section: Section<'_>, names: &Names<'_>) -> Option<StorageEntry> {
    let database = section.required("database", "\"main\" (a [databases.NAME] of this file)");
    let mut common = common(&section, names);
    if let Some(place) = section.place_in("config", "database") {
        section.problem(place, "config.database", "is set by the host: write `database` beside `config`, not in it");
    }
    let known = database.filter(|database| refers(&section, database, "database", "database", &names.databases));
    section.finish();
    let database = known?.value.to_owned();
    common.config.insert("database".to_owned(), database.clone().into());
    common.grants.databases.push(database);
    let (call_timeout, returned_bytes) = (common.call_timeout, common.returned_bytes);
    Some(StorageEntry { adapter: common.adapter(name)?, call_timeout, returned_bytes })
}

/// Reads a publisher; none where something without a default is missing or wrong.
pub(super) fn publisher(name: &str, section: Section<'_>, names: &Names<'_>) -> Option<PublisherEntry> {
    let common = common(&section, names);
    let lanes = section.number("lanes", 4usize, LANES).value;
    let batch = section.number("batch", 100usize, BATCH).value;
    let batch_bytes = section.size("batch_bytes", 4 << 20, BYTES);
    let memory = common.memory;
    if batch_bytes.value >= memory.value {
        let text = format!(
            "batch_bytes ({}) must be smaller than limits.memory ({}): a batch is copied into the adapter's memory",
            batch_bytes.shown_size(),
            memory.shown_size()
        );
        let (at, key) = if batch_bytes.written { (batch_bytes.at, "batch_bytes") } else { (memory.at, "limits.memory") };
        section.problem(at, key, text);
    }
    section.finish();
    let publisher = Publisher { adapter: common.adapter(name)?, lanes, batch, batch_bytes: batch_bytes.value };
    Some(PublisherEntry { publisher, memory })
}

/// Reads a router that is a component; none where something without a default is missing or wrong.
pub(super) fn router(name: &str, section: Section<'_>, names: &Names<'_>) -> Option<Adapter> {
    let database = section.text("database").filter(|database| refers(&section, database, "database", "database", &names.databases));
    let mut common = common(&section, names);
    if let Some(place) = section.place_in("config", "database") {
        section.problem(place, "config.database", "is set by the host: write `database` beside `config`, not in it");
    }
    section.finish();
    if let Some(database) = database {
        common.config.insert("database".to_owned(), database.value.into());
        common.grants.databases.push(database.value.to_owned());
    }
    common.adapter(name)
}

struct Common {
    plugin: Option<String>,
    grants: Grants,
    memory: Located<usize>,
    call_timeout: Located<Duration>,
    returned_bytes: Located<usize>,
    config: serde_json::Map<String, serde_json::Value>,
}

impl Common {
    fn adapter(self, name: &str) -> Option<Adapter> {
        Some(Adapter {
            name: name.to_owned(),
            plugin: self.plugin?,
            grants: self.grants,
            limits: Limits {
                memory_bytes: self.memory.value,
                call_timeout: self.call_timeout.value,
                returned_bytes: self.returned_bytes.value,
            },
            config: serde_json::Value::Object(self.config),
        })
    }
}

fn common(section: &Section<'_>, names: &Names<'_>) -> Common {
    let plugin =
        section.required("plugin", "\"NAME\" (the file NAME.wasm in the plugin directory)").filter(|plugin| is_plugin(section, plugin));
    let hosts = section.texts("allow_hosts").iter().filter_map(|entry| kept(section, entry, "allow_hosts", grants::host)).collect();
    let networks: Vec<IpNet> =
        section.texts("allow_networks").iter().filter_map(|entry| kept(section, entry, "allow_networks", grants::network)).collect();
    let secrets = section.texts("allow_secrets");
    let secrets = secrets.into_iter().filter(|secret| refers(section, secret, "allow_secrets", "secret", &names.secrets));
    let secrets = secrets.map(|secret| secret.value.to_owned()).collect();
    let tls_ca_file = pem_file(section, "tls_ca_file", names.folder).map(|file| file.value);
    let tls_client = client_certificate(section, names.folder);

    let defaults = Limits::default();
    let limits = section.section("limits");
    let memory = limits.size("memory", defaults.memory_bytes, MEMORY);
    let call_timeout = limits.duration("call_timeout", defaults.call_timeout, false);
    let returned_bytes = limits.size("returned_bytes", defaults.returned_bytes, BYTES);
    limits.finish();

    Common {
        plugin: plugin.map(|plugin| plugin.value.to_owned()),
        grants: Grants { hosts, networks, databases: Vec::new(), secrets, tls_ca_file, tls_client },
        memory,
        call_timeout,
        returned_bytes,
        config: section.free("config"),
    }
}

/// The file that a key names; an empty one is reported, and there all the same, so that it is reported once.
pub(super) fn pem_file(section: &Section<'_>, key: &'static str, folder: &Path) -> Option<Located<PathBuf>> {
    let file = section.text(key)?;
    if file.value.is_empty() {
        section.problem(file.at, key, "is empty: name a PEM file, or leave it out");
    }
    Some(file.with(folder.join(file.value)))
}

/// `tls_cert_file` and `tls_key_file`.
pub(super) fn client_certificate(section: &Section<'_>, folder: &Path) -> Option<ClientCertificate> {
    let certificate = pem_file(section, "tls_cert_file", folder);
    let key = pem_file(section, "tls_key_file", folder);
    match (certificate, key) {
        (Some(certificate), Some(key)) => Some(ClientCertificate { certificate: certificate.value, key: key.value }),
        (Some(certificate), None) => {
            section.problem(certificate.at, "tls_cert_file", "is of no use without its key: add tls_key_file = \"FILE.pem\"");
            None
        }
        (None, Some(key)) => {
            section.problem(key.at, "tls_key_file", "is of no use without its certificate: add tls_cert_file = \"FILE.pem\"");
            None
        }
        (None, None) => None,
    }
}

/// Whether it is the name of a file in the plugin directory, or a reference to a component in a registry; if not, that is reported.
fn is_plugin(section: &Section<'_>, plugin: &Located<&str>) -> bool {
    let problem = if let Some(pinned) = Pinned::in_plugin(plugin.value) {
        pinned.err()
    } else if let Some(bare) = plugin.value.strip_suffix(".wasm") {
        Some(format!("leave \".wasm\" away: plugin = {bare:?}"))
    } else {
        check_name(plugin.value).err()
    };
    problem.map(|problem| section.problem(plugin.at, "plugin", problem)).is_none()
}

/// Reads one entry of a list; a wrong one is reported and left out.
fn kept<T>(section: &Section<'_>, entry: &Located<&str>, key: &str, read: impl Fn(&str) -> Result<T, String>) -> Option<T> {
    read(entry.value).map_err(|error| section.problem(entry.at, key, error)).ok()
}

/// Whether a name that refers to another section is one of those that there are; if not, that is reported.
pub(super) fn refers(section: &Section<'_>, name: &Located<&str>, key: &str, kind: &str, known: &[&str]) -> bool {
    let found = known.contains(&name.value);
    if !found {
        let text = format!("there is no {kind} {:?} in this file{}; {kind}s: {}", name.value, suggestion(name.value, known), listed(known));
        section.problem(name.at, key, text);
    }
    found
}
