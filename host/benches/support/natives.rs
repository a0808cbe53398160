//! The same adapters as plain Rust.

use outhaul::bench::native;
use outhaul::config::Config;
use outhaul::ports::Storage;
use outhaul::sql::Databases;
use std::sync::Arc;

/// The storage `outbox` of a configuration.
pub async fn storage(config: &Config) -> Arc<dyn Storage> {
    let databases = Databases::new(&config.databases, &config.secrets);
    native::storage(&config.storages["outbox"], &databases).await.expect("a storage with a native form").expect("a storage")
}
