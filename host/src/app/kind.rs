//! What the kinds of adapters have in common, as far as being loaded and replaced is concerned.

use super::adapters::Adapters;
use super::place::{Candidate, Place};
use super::{App, AppError, Attempt};
use crate::config::Config;
use crate::config::model::{Adapter, Publisher, Router};
use crate::plugin::{Generation, PreparedPublisher, PreparedRouter, PreparedStorage, PublisherPlugin, RouterPlugin, Slot, StoragePlugin};
use std::future::Future;
use std::sync::Arc;

/// A storage, a publisher or a router.
pub(super) trait Kind: Sized + Send + Sync + 'static {
    /// `storages`, `publishers` or `routers`.
    const SECTION: &'static str;

    /// Its component, compiled.
    type Prepared: Send + Sync + 'static;

    /// Its configuration; none: there is no such section.
    fn adapter<'a>(config: &'a Config, name: &str) -> Option<&'a Adapter>;

    /// Finds, checks and compiles its component.
    fn prepare(
        app: &App,
        config: &Config,
        name: &str,
        attempt: Attempt<'_>,
    ) -> impl Future<Output = Result<Self::Prepared, AppError>> + Send;

    /// Which component was prepared.
    fn prepared(prepared: &Self::Prepared) -> &Generation;

    /// Opens it.
    fn open(app: &App, config: &Config, name: &str, prepared: &Self::Prepared) -> impl Future<Output = Result<Arc<Self>, AppError>> + Send;

    /// Puts a candidate in the place of the generation that is there, now or when its relay is ready for that.
    fn put(adapters: &Adapters, name: &str, place: &Place<Self>, slot: &Slot<Self>, candidate: Candidate<Self>);

    /// What it is.
    fn generation(&self) -> &Generation;
}

impl Kind for StoragePlugin {
    const SECTION: &'static str = "storages";

    type Prepared = PreparedStorage;

    fn adapter<'a>(config: &'a Config, name: &str) -> Option<&'a Adapter> {
        config.storages.get(name)
    }

    async fn prepare(app: &App, config: &Config, name: &str, attempt: Attempt<'_>) -> Result<PreparedStorage, AppError> {
        let prepared = app.prepare_storage(config, storage(config, name)?, attempt).await?;
        let fans_out = config.relays.iter().find(|relay| relay.storage == name && relay.fan_out.is_some());
        match fans_out.filter(|_| !prepared.has_fan_out()) {
            Some(relay) => Err(AppError::NoFanOut { storage: name.to_owned(), relay: relay.name.clone() }),
            None => Ok(prepared),
        }
    }

    fn prepared(prepared: &PreparedStorage) -> &Generation {
        prepared.generation()
    }

    async fn open(app: &App, config: &Config, name: &str, prepared: &PreparedStorage) -> Result<Arc<Self>, AppError> {
        app.open_storage(config, storage(config, name)?, prepared).await
    }

    fn put(adapters: &Adapters, name: &str, place: &Place<Self>, slot: &Slot<Self>, candidate: Candidate<Self>) {
        adapters.put_storage(name, place, slot, candidate);
    }

    fn generation(&self) -> &Generation {
        Self::generation(self)
    }
}

impl Kind for PublisherPlugin {
    const SECTION: &'static str = "publishers";

    type Prepared = PreparedPublisher;

    fn adapter<'a>(config: &'a Config, name: &str) -> Option<&'a Adapter> {
        config.publishers.get(name).map(|publisher| &publisher.adapter)
    }

    async fn prepare(app: &App, config: &Config, name: &str, attempt: Attempt<'_>) -> Result<PreparedPublisher, AppError> {
        app.prepare_publisher(config, publisher(config, name)?, attempt).await
    }

    fn prepared(prepared: &PreparedPublisher) -> &Generation {
        prepared.generation()
    }

    async fn open(app: &App, config: &Config, name: &str, prepared: &PreparedPublisher) -> Result<Arc<Self>, AppError> {
        app.open_publisher(config, publisher(config, name)?, prepared).await
    }

    fn put(adapters: &Adapters, name: &str, place: &Place<Self>, slot: &Slot<Self>, candidate: Candidate<Self>) {
        adapters.take_over(name, place, slot, candidate);
    }

    fn generation(&self) -> &Generation {
        Self::generation(self)
    }
}

impl Kind for RouterPlugin {
    const SECTION: &'static str = "routers";

    type Prepared = PreparedRouter;

    fn adapter<'a>(config: &'a Config, name: &str) -> Option<&'a Adapter> {
        config.routers.iter().find(|router| router.name == name).and_then(Router::plugin)
    }

    async fn prepare(app: &App, config: &Config, name: &str, attempt: Attempt<'_>) -> Result<PreparedRouter, AppError> {
        app.prepare_router(config, router(config, name)?, attempt).await
    }

    fn prepared(prepared: &PreparedRouter) -> &Generation {
        prepared.generation()
    }

    async fn open(app: &App, config: &Config, name: &str, prepared: &PreparedRouter) -> Result<Arc<Self>, AppError> {
        app.open_router(config, router(config, name)?, prepared).await
    }

    fn put(adapters: &Adapters, name: &str, place: &Place<Self>, slot: &Slot<Self>, candidate: Candidate<Self>) {
        adapters.take_over(name, place, slot, candidate);
    }

    fn generation(&self) -> &Generation {
        Self::generation(self)
    }
}

fn storage<'a>(config: &'a Config, name: &str) -> Result<&'a Adapter, AppError> {
    config.storages.get(name).ok_or_else(|| absent::<StoragePlugin>(name))
}

fn publisher<'a>(config: &'a Config, name: &str) -> Result<&'a Publisher, AppError> {
    config.publishers.get(name).ok_or_else(|| absent::<PublisherPlugin>(name))
}

fn router<'a>(config: &'a Config, name: &str) -> Result<&'a Adapter, AppError> {
    RouterPlugin::adapter(config, name).ok_or_else(|| absent::<RouterPlugin>(name))
}

/// The configuration has no such section.
pub(super) fn absent<P: Kind>(name: &str) -> AppError {
    AppError::NoSuchAdapter { kind: P::SECTION, name: name.to_owned() }
}
