//! Everything put together: databases, components, storages, publishers and relays, out of one configuration.

mod adapters;
mod around;
mod backlog;
mod error;
mod host;
pub mod inventory;
mod kind;
mod member;
mod place;
mod recipe;
mod reload;
mod second_try;
mod signals;
pub mod status;
mod take_over;
mod turn;
mod wake;
mod watch;
mod worker;

pub use error::AppError;
pub use host::{Outcome, run};
pub use worker::worker_name;

use crate::config::Config;
use crate::config::model::{Adapter, Database, Publisher};
use crate::metrics::Metrics;
use crate::oci::{self, Component, PullError, Registries};
use crate::plugin::{
    Origin, Pins, PinsError, PluginError, PluginHost, PluginHostOptions, PreparedPublisher, PreparedStorage, PublisherPlugin, StoragePlugin,
};
use crate::sql::Databases;
use std::path::PathBuf;
use std::sync::Arc;

/// A configuration brought to life. Opens nothing by itself.
#[derive(Debug, Clone)]
pub struct App {
    /// What it was made of.
    pub config: Arc<Config>,
    /// Where everything counts.
    pub metrics: Metrics,
    databases: Databases,
    plugins: PluginHost,
}

impl App {
    /// Starts the engine; must be called within a tokio runtime.
    ///
    /// # Errors
    /// The engine does not run on this machine.
    pub fn new(config: Config) -> Result<Self, AppError> {
        let (metrics, databases) = (Metrics::new(), Databases::new(&config.databases, &config.secrets));
        let plugins = PluginHost::new(PluginHostOptions {
            cache: config.plugins.cache.clone(),
            metrics: metrics.clone(),
            databases: databases.clone(),
            secrets: config.secrets.clone(),
        });
        let plugins = plugins.map_err(AppError::Engine)?;
        Ok(Self { config: Arc::new(config), metrics, databases, plugins })
    }

    /// Opens a storage.
    ///
    /// # Errors
    /// Its database file is absent, or its component cannot be loaded, linked or opened.
    pub async fn storage(&self, adapter: &Adapter) -> Result<Arc<StoragePlugin>, AppError> {
        self.load_storage(&self.config, adapter, 1).await
    }

    /// Opens a publisher.
    ///
    /// # Errors
    /// Its component cannot be loaded, linked or opened.
    pub async fn publisher(&self, publisher: &Publisher) -> Result<Arc<PublisherPlugin>, AppError> {
        self.load_publisher(&self.config, publisher, 1).await
    }

    /// Opens a generation of a storage by a configuration that may be newer than the one that this was made of.
    async fn load_storage(&self, config: &Config, adapter: &Adapter, generation: u64) -> Result<Arc<StoragePlugin>, AppError> {
        let prepared = self.prepare_storage(config, adapter, generation).await?;
        self.open_storage(config, adapter, &prepared).await
    }

    /// The same for a publisher.
    async fn load_publisher(&self, config: &Config, publisher: &Publisher, generation: u64) -> Result<Arc<PublisherPlugin>, AppError> {
        let prepared = self.prepare_publisher(config, publisher, generation).await?;
        self.open_publisher(config, publisher, &prepared).await
    }

    /// Finds, checks and compiles a storage.
    async fn prepare_storage(&self, config: &Config, adapter: &Adapter, generation: u64) -> Result<PreparedStorage, AppError> {
        if let Some((database, file)) = self.absent_database(adapter) {
            let place = config.places.first([format!("databases.{database}.url")]);
            return Err(AppError::AbsentDatabase { storage: adapter.name.clone(), database, place: place.map(Box::new), file });
        }
        let prepared = async {
            let (pins, pulled) = (pins(config)?, pulled(config, adapter).await?);
            self.plugins.prepare_storage(origin(config, pulled.as_ref(), pins.as_ref(), generation), &adapter.plugin).await
        };
        prepared.await.map_err(|error| not_opened(config, "storages", adapter, error))
    }

    /// Opens what was prepared, by settings that may be others.
    async fn open_storage(&self, config: &Config, adapter: &Adapter, prepared: &PreparedStorage) -> Result<Arc<StoragePlugin>, AppError> {
        let origin = origin(config, None, None, prepared.generation().number);
        let opened = self.plugins.open_storage(prepared, origin, adapter).await;
        opened.map_err(|error| not_opened(config, "storages", adapter, error))
    }

    /// Finds, checks and compiles a publisher.
    async fn prepare_publisher(&self, config: &Config, publisher: &Publisher, generation: u64) -> Result<PreparedPublisher, AppError> {
        let adapter = &publisher.adapter;
        let prepared = async {
            let (pins, pulled) = (pins(config)?, pulled(config, adapter).await?);
            self.plugins.prepare_publisher(origin(config, pulled.as_ref(), pins.as_ref(), generation), &adapter.plugin).await
        };
        prepared.await.map_err(|error| not_opened(config, "publishers", adapter, error))
    }

    /// Opens what was prepared, by settings that may be others.
    async fn open_publisher(
        &self,
        config: &Config,
        publisher: &Publisher,
        prepared: &PreparedPublisher,
    ) -> Result<Arc<PublisherPlugin>, AppError> {
        let origin = origin(config, None, None, prepared.generation().number);
        let opened = self.plugins.open_publisher(prepared, origin, publisher).await;
        opened.map_err(|error| not_opened(config, "publishers", &publisher.adapter, error))
    }

    /// Name and file of a storage's database, if there is no such file yet.
    #[must_use]
    pub fn absent_database(&self, adapter: &Adapter) -> Option<(String, PathBuf)> {
        let mut granted = adapter.grants.databases.iter().filter_map(|name| Some((name, self.config.databases.get(name)?)));
        granted.find_map(|(name, database)| match database {
            Database::Sqlite(sqlite) if matches!(sqlite.path.try_exists(), Ok(false)) => Some((name.clone(), sqlite.path.clone())),
            Database::Sqlite(_) | Database::Postgres(_) => None,
        })
    }

    /// Creates the databases of a storage that do not exist yet.
    ///
    /// # Errors
    /// A file cannot be created.
    pub async fn create_databases(&self, adapter: &Adapter) -> Result<(), AppError> {
        for name in &adapter.grants.databases {
            self.databases.create(name).await.map_err(|source| AppError::CreateDatabase { name: name.clone(), source })?;
        }
        Ok(())
    }
}

fn origin<'a>(config: &'a Config, pulled: Option<&'a Component>, pins: Option<&'a Pins>, generation: u64) -> Origin<'a> {
    Origin { directory: &config.plugins.dir, pulled, pins, secrets: Some(&config.secrets), generation }
}

/// The component of an adapter, where it comes from a registry.
async fn pulled(config: &Config, adapter: &Adapter) -> Result<Option<Component>, PullError> {
    match oci::Pinned::in_plugin(&adapter.plugin) {
        Some(Ok(pinned)) => Registries::of(config).component(&pinned).await.map(Some),
        // Without a digest it is no name of a file either, which whoever looks for the file will say.
        Some(Err(_)) | None => Ok(None),
    }
}

/// The pins of a configuration as they are now; none: any component is loaded.
///
/// # Errors
/// They cannot be used, or are not there although the configuration wants some.
fn pins(config: &Config) -> Result<Option<Pins>, PinsError> {
    match Pins::read(&config.plugins.pins)? {
        None if config.plugins.pinned => Err(PinsError {
            file: config.plugins.pins.clone(),
            reason: "are not there, and plugins.pinned = true wants them: write them with `outhaul plugin pin`".to_owned(),
        }),
        pins => Ok(pins),
    }
}

fn not_opened(config: &Config, kind: &'static str, adapter: &Adapter, error: PluginError) -> AppError {
    let place = error::place(kind, &adapter.name, &config.places, &error);
    AppError::Open { kind, name: adapter.name.clone(), place, source: error.into() }
}
