//! What the opening of an adapter depends on besides its settings and its component, and what may be mended in place: the files of
//! secrets and for TLS, the pins, the files of databases. Where any of it changes, what was refused is tried again.

use super::pins;
use crate::config::Config;
use crate::config::model::{Adapter, ClientCertificate, Database, Router, SecretSource};
use crate::oci::Pinned;
use crate::plugin;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What changes whenever a file is written or replaced. Nothing is read: a secret leaves no trace here, and a pipe blocks nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

/// How things were, or are now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Around {
    /// None: it cannot be looked at, as a rule because it is not there.
    files: BTreeMap<PathBuf, Option<Stamp>>,
    /// Whether the files of databases are there. What is in them changes all the time.
    databases: BTreeMap<PathBuf, bool>,
    /// What the pins say of a component, or what is wrong with them.
    pinned: BTreeMap<String, String>,
}

impl Around {
    /// Around one adapter.
    pub(super) async fn of(config: &Config, adapter: &Adapter) -> Self {
        let mut around = Self::default();
        around.add(config, adapter).await;
        around
    }

    /// Around all adapters of a configuration, the files of their components included, and around the keys of fan-outs.
    pub(super) async fn of_all(config: &Config) -> Self {
        let mut around = Self::default();
        let publishers = config.publishers.values().map(|publisher| &publisher.adapter);
        for adapter in config.storages.values().chain(publishers).chain(config.routers.iter().filter_map(Router::plugin)) {
            around.add(config, adapter).await;
            if Pinned::in_plugin(&adapter.plugin).is_none() {
                around.look_at(plugin::file(&config.plugins.dir, &adapter.plugin)).await;
            }
        }
        let keys = config.relays.iter().filter_map(|relay| relay.fan_out.as_ref()).flat_map(|fan_out| &fan_out.keys);
        for file in keys.filter_map(|key| secret_file(config, &key.secret)) {
            around.look_at(file.clone()).await;
        }
        around
    }

    async fn add(&mut self, config: &Config, adapter: &Adapter) {
        let grants = &adapter.grants;
        let mut secrets: Vec<&String> = grants.secrets.iter().collect();
        let mut files = tls(grants.tls_ca_file.as_ref(), grants.tls_client.as_ref());
        for database in grants.databases.iter().filter_map(|name| config.databases.get(name)) {
            match database {
                Database::Sqlite(sqlite) => {
                    let there = tokio::fs::try_exists(&sqlite.path).await.unwrap_or(false);
                    self.databases.insert(sqlite.path.clone(), there);
                }
                Database::Postgres(postgres) => {
                    secrets.extend(postgres.secrets());
                    files.extend(tls(postgres.tls_ca_file.as_ref(), postgres.tls_client.as_ref()));
                }
            }
        }
        if let Some(Ok(pinned)) = Pinned::in_plugin(&adapter.plugin)
            && let Some(registry) = config.registries.get(&pinned.registry)
        {
            secrets.extend(registry.credentials.iter().map(|credentials| &credentials.password));
            files.extend(tls(registry.tls_ca_file.as_ref(), registry.tls_client.as_ref()));
        }
        for file in files.into_iter().chain(secrets.into_iter().filter_map(|name| secret_file(config, name))) {
            self.look_at(file.clone()).await;
        }
        self.pinned.insert(adapter.plugin.clone(), pinned(config, &adapter.plugin));
    }

    async fn look_at(&mut self, file: PathBuf) {
        let stamp = stamp(&file).await;
        self.files.insert(file, stamp);
    }
}

fn tls<'a>(authorities: Option<&'a PathBuf>, client: Option<&'a ClientCertificate>) -> Vec<&'a PathBuf> {
    authorities.into_iter().chain(client.into_iter().flat_map(|client| [&client.certificate, &client.key])).collect()
}

/// A variable of the environment does not change while the process runs.
fn secret_file<'a>(config: &'a Config, name: &str) -> Option<&'a PathBuf> {
    match config.secrets.get(name)? {
        SecretSource::File(file) => Some(file),
        SecretSource::Env(_) => None,
    }
}

fn pinned(config: &Config, plugin: &str) -> String {
    match pins(config) {
        Ok(Some(pins)) => pins.of(plugin).unwrap_or_default().to_owned(),
        Ok(None) => "anything".to_owned(),
        Err(error) => error.to_string(),
    }
}

async fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = tokio::fs::metadata(file).await.ok()?;
    if !metadata.is_file() {
        // A pipe changes whenever it is read, by whoever tries again as well.
        return Some(Stamp { device: metadata.dev(), inode: metadata.ino(), bytes: 0, changed: (0, 0) });
    }
    Some(Stamp { device: metadata.dev(), inode: metadata.ino(), bytes: metadata.len(), changed: (metadata.ctime(), metadata.ctime_nsec()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const CONFIG: &str = r#"
secrets.key.file = "key"
secrets.other.file = "other"
secrets.password.file = "password"
databases.main.url = "sqlite:a.db"
databases.server = { url = "postgres://u@localhost/d", password = { secret = "password" } }
[storages.s]
plugin = "x"
database = "main"
[storages.t]
plugin = "x"
database = "server"
[publishers.p]
plugin = "x"
allow_secrets = ["key"]
tls_ca_file = "ca.pem"
"#;

    #[tokio::test]
    async fn what_can_be_mended_in_place_makes_the_difference_to_whom_it_concerns() {
        let folder = tempfile::tempdir().unwrap();
        let config = parse(CONFIG, &folder.path().join("outhaul.toml")).unwrap();
        let look = async || {
            let (s, t) = (&config.storages["s"], &config.storages["t"]);
            [Around::of(&config, s).await, Around::of(&config, t).await, Around::of(&config, &config.publishers["p"].adapter).await]
        };
        let mut before = look().await;
        assert_eq!(look().await, before);
        for (file, content, concerned) in [
            ("key", "a", [false, false, true]),
            ("key", "longer", [false, false, true]),
            ("other", "a", [false; 3]),
            ("ca.pem", "a", [false, false, true]),
            ("password", "a", [false, true, false]),
            ("a.db", "", [true, false, false]),
            ("a.db", "what is in it is no matter", [false; 3]),
            ("outhaul.lock", &format!("plugins.x.sha256 = \"{}\"", "0".repeat(64)), [true; 3]),
            ("outhaul.lock", "damaged", [true; 3]),
        ] {
            std::fs::write(folder.path().join(file), content).unwrap();
            let after = look().await;
            let differ: Vec<bool> = before.iter().zip(&after).map(|(before, after)| before != after).collect();
            assert_eq!(differ, concerned, "{file}: {content}");
            before = after;
        }
    }

    #[tokio::test]
    async fn a_whole_configuration_depends_on_its_components_too() {
        let folder = tempfile::tempdir().unwrap();
        let config = parse(CONFIG, &folder.path().join("outhaul.toml")).unwrap();
        let before = Around::of_all(&config).await;
        std::fs::create_dir(folder.path().join("plugins")).unwrap();
        std::fs::write(folder.path().join("plugins/y.wasm"), "nobody's").unwrap();
        assert_eq!(Around::of_all(&config).await, before);
        std::fs::write(folder.path().join("plugins/x.wasm"), "theirs").unwrap();
        assert_ne!(Around::of_all(&config).await, before);
    }
}
