//! Adapters as components, loaded by one engine. Compiled code is kept from run to run.

use super::places;
use outhaul::config::Config;
use outhaul::metrics::Metrics;
use outhaul::plugin::{PluginHost, PluginHostOptions, PublisherPlugin, Skew, StoragePlugin};
use outhaul::sql::Databases;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

/// A host without databases, with its compiled code in this folder; none: nothing is kept.
pub fn host(cache: Option<PathBuf>) -> PluginHost {
    let databases = Databases::new(&BTreeMap::new(), &BTreeMap::new());
    let options = PluginHostOptions { cache, metrics: Metrics::new(), databases, secrets: BTreeMap::new() };
    PluginHost::new(options).expect("an engine")
}

fn shared() -> &'static PluginHost {
    static HOST: LazyLock<PluginHost> = LazyLock::new(|| host(Some(places::compiled())));
    &HOST
}

/// The storage `outbox` of a configuration.
pub async fn storage(config: &Config) -> Arc<StoragePlugin> {
    let host = shared().elsewhere(Databases::new(&config.databases, &config.secrets), Skew::None);
    host.storage(&places::plugins(), &config.storages["outbox"]).await.expect("a storage")
}

/// The publisher `null` of a configuration, which is a fixture.
pub async fn null_publisher(config: &Config) -> Arc<PublisherPlugin> {
    shared().publisher(&places::fixtures(), &config.publishers["null"]).await.expect("a publisher")
}
