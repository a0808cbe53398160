//! Components that are read, compiled and linked once, and opened as often as wanted: what a generation is made of in a running
//! host, and what a conformance run or a test driver opens again and again, for other databases and with another idea of time.

use super::clock::Skew;
use super::identity::Kind;
use super::instance::Adapter;
use super::manifest::{Anatomy, ComponentFault};
use super::publisher::{PublisherPlugin, PublisherWorld};
use super::router::{self, RouterPlugin, RouterWorld};
use super::state::State;
use super::storage::{self, StoragePlugin, StorageWorld};
use super::{AdapterConfig, Generation, Inner, Origin, PluginError, PluginHost, PublisherConfig, catalog, convert, import};
use crate::sql::Databases;
use std::sync::Arc;
use wasmtime::component::{InstancePre, Linker};

struct Prepared {
    pre: InstancePre<State>,
    anatomy: Anatomy,
    generation: Generation,
}

/// A storage's component, ready to be opened.
pub struct PreparedStorage(Prepared);

/// A publisher's component, ready to be opened.
pub struct PreparedPublisher(Prepared);

/// A router's component, ready to be opened.
pub struct PreparedRouter(Prepared);

impl PreparedStorage {
    /// Which component it is.
    #[must_use]
    pub fn generation(&self) -> &Generation {
        &self.0.generation
    }

    /// Whether it keeps deliveries.
    #[must_use]
    pub fn has_fan_out(&self) -> bool {
        self.0.anatomy.has_fan_out()
    }
}

impl PreparedPublisher {
    /// Which component it is.
    #[must_use]
    pub fn generation(&self) -> &Generation {
        &self.0.generation
    }
}

impl PreparedRouter {
    /// Which component it is.
    #[must_use]
    pub fn generation(&self) -> &Generation {
        &self.0.generation
    }
}

impl PluginHost {
    /// The same engine and compiled code, with other databases, and with guests whose clock is off.
    #[must_use]
    pub fn elsewhere(&self, databases: Databases, skew: Skew) -> Self {
        let Inner { engine, cache, metrics, secrets, .. } = &*self.0;
        let (engine, cache, metrics, secrets) = (engine.clone(), cache.clone(), metrics.clone(), secrets.clone());
        Self(Arc::new(Inner { engine, cache, metrics, databases, secrets, skew }))
    }

    /// Reads, compiles and links a storage.
    ///
    /// # Errors
    /// If there is no such component, it is not pinned, it is not a storage, or it does not link.
    pub async fn prepare_storage(&self, origin: Origin<'_>, plugin: &str) -> Result<PreparedStorage, PluginError> {
        self.prepare(origin, plugin, Anatomy::check_storage, StorageWorld::link).await.map(PreparedStorage)
    }

    /// Reads, compiles and links a publisher.
    ///
    /// # Errors
    /// If there is no such component, it is not pinned, it is not a publisher, or it does not link.
    pub async fn prepare_publisher(&self, origin: Origin<'_>, plugin: &str) -> Result<PreparedPublisher, PluginError> {
        self.prepare(origin, plugin, Anatomy::check_publisher, PublisherWorld::link).await.map(PreparedPublisher)
    }

    /// Reads, compiles and links a router.
    ///
    /// # Errors
    /// If there is no such component, it is not pinned, it is not a router, or it does not link.
    pub async fn prepare_router(&self, origin: Origin<'_>, plugin: &str) -> Result<PreparedRouter, PluginError> {
        self.prepare(origin, plugin, Anatomy::check_router, RouterWorld::link).await.map(PreparedRouter)
    }

    async fn prepare(
        &self,
        origin: Origin<'_>,
        plugin: &str,
        check: fn(&Anatomy) -> Result<(), ComponentFault>,
        world: fn(&mut Linker<State>) -> wasmtime::Result<()>,
    ) -> Result<Prepared, PluginError> {
        let file = catalog::find(origin, plugin).await?;
        let (anatomy, generation) = (file.anatomy.clone(), Generation::of(&file, origin.generation));
        check(&anatomy).map_err(|fault| PluginError::Component { path: file.path.clone(), fault })?;
        Ok(Prepared { pre: self.link(file, world).await?, anatomy, generation })
    }

    /// Opens a storage.
    ///
    /// # Errors
    /// If it does not export what its world has, its files for TLS cannot be used, or its `open` fails.
    pub async fn open_storage(
        &self,
        prepared: &PreparedStorage,
        origin: Origin<'_>,
        adapter: &AdapterConfig,
    ) -> Result<Arc<StoragePlugin>, PluginError> {
        let Prepared { pre, anatomy, generation } = &prepared.0;
        let world = StorageWorld::of(pre, anatomy).map_err(|error| import(&generation.file, &error))?;
        let shared = self.shared(Kind::Storage, adapter, anatomy, origin)?;
        let config = adapter.config.to_string();
        let loaded = Adapter::new(world, shared, pre.clone(), config, self.0.metrics.clone(), storage::instances(anatomy));
        let description = loaded.start().await.map_err(PluginError::Open)?;
        let description = convert::description_in(description, anatomy.has_fused());
        let description = storage::check_description(&loaded, description).map_err(PluginError::Open)?;
        Ok(Arc::new(StoragePlugin::new(loaded, description, anatomy, generation.clone())))
    }

    /// Opens a publisher.
    ///
    /// # Errors
    /// If it does not export what its world has, its files for TLS cannot be used, or its `open` fails.
    pub async fn open_publisher(
        &self,
        prepared: &PreparedPublisher,
        origin: Origin<'_>,
        publisher: &PublisherConfig,
    ) -> Result<Arc<PublisherPlugin>, PluginError> {
        let Prepared { pre, anatomy, generation } = &prepared.0;
        let adapter = &publisher.adapter;
        let world = PublisherWorld::of(pre).map_err(|error| import(&generation.file, &error))?;
        let shared = self.shared(Kind::Publisher, adapter, anatomy, origin)?;
        let config = adapter.config.to_string();
        let loaded = Adapter::new(world, shared, pre.clone(), config, self.0.metrics.clone(), publisher.lanes);
        loaded.start().await.map_err(PluginError::Open)?;
        Ok(Arc::new(PublisherPlugin::new(loaded, generation.clone())))
    }

    /// Opens a router.
    ///
    /// # Errors
    /// If it does not export what its world has, its files for TLS cannot be used, or its `open` fails.
    pub async fn open_router(
        &self,
        prepared: &PreparedRouter,
        origin: Origin<'_>,
        adapter: &AdapterConfig,
    ) -> Result<Arc<RouterPlugin>, PluginError> {
        let Prepared { pre, anatomy, generation } = &prepared.0;
        let world = RouterWorld::of(pre).map_err(|error| import(&generation.file, &error))?;
        let shared = self.shared(Kind::Router, adapter, anatomy, origin)?;
        let config = adapter.config.to_string();
        let loaded = Adapter::new(world, shared, pre.clone(), config, self.0.metrics.clone(), router::INSTANCES);
        loaded.start().await.map_err(PluginError::Open)?;
        Ok(Arc::new(RouterPlugin::new(loaded, generation.clone())))
    }
}
