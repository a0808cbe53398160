//! What a generation of an adapter is made of, besides its component: where any of it changes, a new generation is due.

use crate::config::Config;
use crate::config::model::{Adapter, SecretSource};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Everything that is read once, when an adapter is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recipe {
    pub(super) adapter: Adapter,
    /// Instances of a publisher; none: it is none.
    lanes: Option<usize>,
    /// Where the secrets come from that it is granted. Their values are read each time that it asks.
    secrets: BTreeMap<String, SecretSource>,
    /// The content of its files for TLS: a renewed certificate is a change.
    tls: Vec<(PathBuf, Option<[u8; 32]>)>,
}

impl Recipe {
    /// As things are now.
    pub(super) async fn of(config: &Config, adapter: &Adapter) -> Self {
        let granted = |name: &String| Some((name.clone(), config.secrets.get(name)?.clone()));
        let client = adapter.grants.tls_client.iter().flat_map(|client| [&client.certificate, &client.key]);
        let mut tls = Vec::new();
        for file in adapter.grants.tls_ca_file.iter().chain(client) {
            tls.push((file.clone(), digest(file).await));
        }
        Self {
            adapter: adapter.clone(),
            lanes: config.publishers.get(&adapter.name).map(|publisher| publisher.lanes),
            secrets: adapter.grants.secrets.iter().filter_map(granted).collect(),
            tls,
        }
    }
}

/// Of a file; none: it cannot be read, which whoever loads it will say.
pub(super) async fn digest(file: &Path) -> Option<[u8; 32]> {
    tokio::fs::read(file).await.ok().map(|content| Sha256::digest(content).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const CONFIG: &str = r#"
secrets.key.env = "A"
secrets.other.env = "B"
[publishers.p]
plugin = "x"
allow_secrets = ["key"]
tls_ca_file = "ca.pem"
[publishers.q]
plugin = "x"
"#;

    #[tokio::test]
    async fn what_is_read_at_loading_makes_the_difference() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outhaul.toml");
        let of = async |text: &str| {
            let config = parse(text, &file).unwrap();
            Recipe::of(&config, &config.publishers["p"].adapter).await
        };
        std::fs::write(folder.path().join("ca.pem"), "one").unwrap();
        let before = of(CONFIG).await;
        assert_eq!(of(CONFIG).await, before);
        assert_eq!(of(&CONFIG.replace("\"B\"", "\"C\"")).await, before, "a secret of others");
        assert_ne!(of(&CONFIG.replace("\"A\"", "\"C\"")).await, before);
        assert_ne!(of(&CONFIG.replace("[publishers.q]", "lanes = 7\n[publishers.q]")).await, before);
        assert_ne!(of(&CONFIG.replacen("\"x\"", "\"y\"", 1)).await, before);
        std::fs::write(folder.path().join("ca.pem"), "two").unwrap();
        assert_ne!(of(CONFIG).await, before, "a renewed certificate");
    }
}
