//! The configuration of a relay with fan-out.

use super::Ground;
use super::database::Place;
use crate::rig::Config;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::path::Path;

/// What is to be different from the usual.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    changes: Vec<(String, String)>,
    hosts: Vec<String>,
}

/// The publisher's key for the signing scope `acme`.
pub const SIGNING_KEY: [u8; 32] = [7; 32];

impl Plan {
    /// The usual.
    #[must_use]
    pub fn usual() -> Self {
        Self::default()
    }

    /// With settings, written as TOML, below a path.
    #[must_use]
    pub fn with(mut self, path: &str, settings: &str) -> Self {
        self.changes.push((path.to_owned(), settings.to_owned()));
        self
    }

    /// With an address that the publisher may reach.
    #[must_use]
    pub fn reaching(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// The configuration: one relay `orders` from the table `outbox` to the subscribers in the table `subscriptions`, which is in a
    /// database of its own. Retries come soon, so that tests are quick.
    ///
    /// # Errors
    /// If the components are not built.
    pub fn config(&self, ground: Ground<'_>, events: &Place, subscriptions: &Place, receiver: SocketAddr) -> Result<Config> {
        let storage = match ground {
            Ground::Sqlite => "sqlite-storage",
            Ground::Postgres(_) => "postgres-storage",
        };
        let mut hosts = self.hosts.clone();
        hosts.push(receiver.to_string());
        let text = format!(
            r#"
            [log]
            format = "json"
            [admin]
            listen = "127.0.0.1:0"
            [databases.main]
            url = {events:?}
            [databases.subscribers]
            url = {subscribers:?}
            [secrets.sealing]
            file = "sealing.key"
            [secrets.signing]
            file = "signing.key"
            [storages.outbox]
            plugin = "{storage}"
            database = "main"
            config = {{ table = "outbox", fan_out = {{}} }}
            [publishers.webhooks]
            plugin = "http-publisher"
            allow_hosts = {hosts:?}
            allow_secrets = ["signing"]
            config = {{ signing_scopes = {{ acme = {{ scheme = "standard-webhooks", secret = "signing" }} }} }}
            [routers.subscriptions]
            database = "subscribers"
            table = "subscriptions"
            [[relays]]
            name = "orders"
            storage = "outbox"
            backoff = {{ base = "20ms", factor = 2.0, max = "200ms", jitter = 0.25 }}
            poll = {{ min = "5ms", max = "50ms" }}
            [relays.fan_out]
            router = "subscriptions"
            publisher = "webhooks"
            keys = [ {{ version = "k1", secret = "sealing" }} ]
            delivery = {{ backoff = {{ base = "20ms", factor = 2.0, max = "200ms", jitter = 0.25 }}, poll = {{ min = "5ms", max = "50ms" }} }}
            "#,
            events = url(events)?,
            subscribers = url(subscriptions)?,
        );
        let config = Config::parse(&text)?;
        Ok(self.changes.iter().fold(config, |config, (path, settings)| config.set_all(path, settings)))
    }
}

fn url(place: &Place) -> Result<String> {
    Ok(match place {
        Place::File(file) => format!("sqlite:{}", file.to_str().context("the folder's name is not UTF-8")?),
        Place::Server(url) => url.clone(),
    })
}

/// Writes the keys that the configuration names.
///
/// # Errors
/// If they cannot be written.
pub fn write_keys(folder: &Path) -> Result<()> {
    use base64::Engine;
    write_key(folder, "sealing", 1)?;
    let signing = base64::prelude::BASE64_STANDARD.encode(SIGNING_KEY);
    std::fs::write(folder.join("signing.key"), format!("whsec_{signing}\n")).context("cannot write signing.key")
}

/// Writes a key for sealing into the file `NAME.key`; returns its text.
///
/// # Errors
/// If it cannot be written.
pub fn write_key(folder: &Path, name: &str, seed: u8) -> Result<String> {
    let key = super::database::hex(&[seed.wrapping_mul(37).wrapping_add(5); 32]);
    std::fs::write(folder.join(format!("{name}.key")), format!("{key}\n")).with_context(|| format!("cannot write {name}.key"))?;
    Ok(key)
}
