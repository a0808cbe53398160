//! Everything put together: databases, components, storages, publishers and relays, out of one configuration.

mod backlog;
mod error;
mod host;
mod member;
mod signals;
pub mod status;
mod wake;
mod worker;

pub use error::AppError;
pub use host::{Outcome, run};
pub use worker::worker_name;

use crate::config::Config;
use crate::config::model::{Adapter, Database, Publisher};
use crate::metrics::Metrics;
use crate::plugin::{PluginError, PluginHost, PluginHostOptions, PublisherPlugin, StoragePlugin};
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
        if let Some((database, file)) = self.absent_database(adapter) {
            let place = self.config.places.first([format!("databases.{database}.url")]);
            return Err(AppError::AbsentDatabase { storage: adapter.name.clone(), database, place: place.map(Box::new), file });
        }
        let opened = self.plugins.storage(&self.config.plugins.dir, adapter).await;
        opened.map_err(|error| self.not_opened("storages", adapter, error))
    }

    /// Opens a publisher.
    ///
    /// # Errors
    /// Its component cannot be loaded, linked or opened.
    pub async fn publisher(&self, publisher: &Publisher) -> Result<Arc<PublisherPlugin>, AppError> {
        let opened = self.plugins.publisher(&self.config.plugins.dir, publisher).await;
        opened.map_err(|error| self.not_opened("publishers", &publisher.adapter, error))
    }

    fn not_opened(&self, kind: &'static str, adapter: &Adapter, error: PluginError) -> AppError {
        let place = error::place(kind, &adapter.name, &self.config.places, &error);
        AppError::Open { kind, name: adapter.name.clone(), place, source: error.into() }
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
