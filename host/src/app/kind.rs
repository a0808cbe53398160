//! What the two kinds of adapters have in common, as far as being loaded and replaced is concerned.

use super::{App, AppError};
use crate::config::Config;
use crate::config::model::Adapter;
use crate::plugin::{Generation, PublisherPlugin, StoragePlugin};
use std::future::Future;
use std::sync::Arc;

/// A storage or a publisher.
pub(super) trait Kind: Sized + Send + Sync + 'static {
    /// `storages` or `publishers`.
    const SECTION: &'static str;

    /// Its configuration; none: there is no such section.
    fn adapter<'a>(config: &'a Config, name: &str) -> Option<&'a Adapter>;

    /// Loads and opens it.
    fn load(app: &App, config: &Config, name: &str, generation: u64) -> impl Future<Output = Result<Arc<Self>, AppError>> + Send;

    /// What it is.
    fn generation(&self) -> &Generation;
}

impl Kind for StoragePlugin {
    const SECTION: &'static str = "storages";

    fn adapter<'a>(config: &'a Config, name: &str) -> Option<&'a Adapter> {
        config.storages.get(name)
    }

    async fn load(app: &App, config: &Config, name: &str, generation: u64) -> Result<Arc<Self>, AppError> {
        let storage = config.storages.get(name).ok_or_else(|| absent::<Self>(name))?;
        app.load_storage(config, storage, generation).await
    }

    fn generation(&self) -> &Generation {
        Self::generation(self)
    }
}

impl Kind for PublisherPlugin {
    const SECTION: &'static str = "publishers";

    fn adapter<'a>(config: &'a Config, name: &str) -> Option<&'a Adapter> {
        config.publishers.get(name).map(|publisher| &publisher.adapter)
    }

    async fn load(app: &App, config: &Config, name: &str, generation: u64) -> Result<Arc<Self>, AppError> {
        let publisher = config.publishers.get(name).ok_or_else(|| absent::<Self>(name))?;
        app.load_publisher(config, publisher, generation).await
    }

    fn generation(&self) -> &Generation {
        Self::generation(self)
    }
}

/// The configuration has no such section.
pub(super) fn absent<P: Kind>(name: &str) -> AppError {
    AppError::NoSuchAdapter { kind: P::SECTION, name: name.to_owned() }
}
