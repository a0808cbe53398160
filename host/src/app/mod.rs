//! Everything put together: databases, components, storages, publishers and relays, out of one configuration.

mod adapters;
mod around;
mod backlog;
mod error;
mod fan_outs;
mod halves;
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
use crate::config::model::{Adapter, Database, Publisher, Relay, Router, RouterKind, Subscriber, SubscriptionTable};
use crate::domain::Failure;
use crate::metrics::{Metrics, RelayLabels};
use crate::oci::{self, Component, PullError, Registries};
use crate::plugin::{
    Origin, Pins, PinsError, PluginError, PluginHost, PluginHostOptions, PreparedPublisher, PreparedRouter, PreparedStorage,
    PublisherPlugin, RouterPlugin, StoragePlugin,
};
use crate::ports::{WakeSource, fan_out};
use crate::router::{ListRouter, TableRouter};
use crate::secrets::Secrets;
use crate::sql::{Databases, Dialect};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

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
    /// The databases, for storages that are plain Rust.
    pub(crate) fn databases(&self) -> &Databases {
        &self.databases
    }

    /// Wakes a relay when its table may have new rows, until the handle is dropped; none: polling only.
    pub(crate) fn wake(&self, relay: &Relay, storage: &Adapter, source: &WakeSource, wake: &Arc<Notify>) -> Option<AbortOnDropHandle<()>> {
        let watch = wake::watch(source, storage, &self.databases)?;
        let listening = self.metrics.listening.get_or_create_owned(&RelayLabels { relay: relay.name.clone() });
        let watching = watch.run(relay.name.clone(), relay.poll.wake_check, listening, Arc::clone(wake));
        Some(AbortOnDropHandle::new(tokio::spawn(watching)))
    }

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
        self.load_storage(&self.config, adapter).await
    }

    /// Opens a publisher.
    ///
    /// # Errors
    /// Its component cannot be loaded, linked or opened.
    pub async fn publisher(&self, publisher: &Publisher) -> Result<Arc<PublisherPlugin>, AppError> {
        self.load_publisher(&self.config, publisher).await
    }

    /// Opens a router, of whatever kind.
    ///
    /// # Errors
    /// Its component cannot be loaded, linked or opened. What is built in opens nothing before it is asked.
    pub async fn router(&self, router: &Router) -> Result<Arc<dyn fan_out::Router>, AppError> {
        match router.plugin() {
            Some(adapter) => Ok(self.load_router(&self.config, adapter).await?),
            None => self.built_in_router(&self.config, router),
        }
    }

    /// A router that is no component, by a configuration that may be newer than the one that this was made of.
    fn built_in_router(&self, config: &Config, router: &Router) -> Result<Arc<dyn fan_out::Router>, AppError> {
        match &router.kind {
            RouterKind::List(list) => Ok(Arc::new(list_router(config, &router.name, list))),
            RouterKind::Table(table) => Ok(Arc::new(self.table_router(config, &router.name, table))),
            RouterKind::Plugin(_) => Err(AppError::NoSuchAdapter { kind: "routers", name: router.name.clone() }),
        }
    }

    /// Opens a router, and looks whether what it reads is there: its table, or the secrets that its list names.
    ///
    /// # Errors
    /// As [`App::router`], and what is not there.
    pub async fn probe_router(&self, router: &Router) -> Result<(), AppError> {
        let probed = match &router.kind {
            RouterKind::Plugin(adapter) => return self.load_router(&self.config, adapter).await.map(|_| ()),
            RouterKind::List(list) => list_router(&self.config, &router.name, list).probe().await,
            RouterKind::Table(table) => self.table_router(&self.config, &router.name, table).probe().await,
        };
        probed.map_err(|failure| self.router_failed(router, failure))
    }

    /// The DDL of the table that a router reads; none: it reads none. Opens nothing.
    #[must_use]
    pub fn router_schema(&self, router: &Router) -> Option<String> {
        let RouterKind::Table(table) = &router.kind else { return None };
        let dialect = match self.config.databases.get(&table.database)? {
            Database::Sqlite(_) => Dialect::Sqlite,
            Database::Postgres(_) => Dialect::Postgres,
        };
        Some(self.table_router(&self.config, &router.name, table).schema(dialect))
    }

    /// Creates the table that a router reads, and a SQLite file that does not exist yet. Running it again changes nothing. Returns
    /// whether the router reads a table.
    ///
    /// # Errors
    /// The database does not do it.
    pub async fn create_router_schema(&self, router: &Router) -> Result<bool, AppError> {
        let RouterKind::Table(table) = &router.kind else { return Ok(false) };
        if let Some(Database::Sqlite(_)) = self.config.databases.get(&table.database) {
            let created = self.databases.create(&table.database).await;
            created.map_err(|source| AppError::CreateDatabase { name: table.database.clone(), source })?;
        }
        let created = self.table_router(&self.config, &router.name, table).create().await;
        created.map(|()| true).map_err(|failure| self.router_failed(router, failure))
    }

    fn table_router(&self, config: &Config, name: &str, table: &SubscriptionTable) -> TableRouter {
        TableRouter::new(name, table.clone(), self.databases.clone(), Secrets::new(config.secrets.clone()))
    }

    fn router_failed(&self, router: &Router, failure: Failure) -> AppError {
        let place = self.config.places.first([format!("routers.{}", router.name)]);
        AppError::Router { name: router.name.clone(), place: place.map(Box::new), failure }
    }

    /// Opens the first generation of a storage.
    async fn load_storage(&self, config: &Config, adapter: &Adapter) -> Result<Arc<StoragePlugin>, AppError> {
        let prepared = self.prepare_storage(config, adapter, Attempt::FIRST).await?;
        self.open_storage(config, adapter, &prepared).await
    }

    /// The same for a publisher.
    async fn load_publisher(&self, config: &Config, publisher: &Publisher) -> Result<Arc<PublisherPlugin>, AppError> {
        let prepared = self.prepare_publisher(config, publisher, Attempt::FIRST).await?;
        self.open_publisher(config, publisher, &prepared).await
    }

    /// The same for a router that is a component.
    async fn load_router(&self, config: &Config, adapter: &Adapter) -> Result<Arc<RouterPlugin>, AppError> {
        let prepared = self.prepare_router(config, adapter, Attempt::FIRST).await?;
        self.open_router(config, adapter, &prepared).await
    }

    /// Finds, checks and compiles a storage.
    async fn prepare_storage(&self, config: &Config, adapter: &Adapter, attempt: Attempt<'_>) -> Result<PreparedStorage, AppError> {
        if let Some((database, file)) = self.absent_database(adapter) {
            let place = config.places.first([format!("databases.{database}.url")]);
            return Err(AppError::AbsentDatabase { storage: adapter.name.clone(), database, place: place.map(Box::new), file });
        }
        let prepared = async {
            let (pins, pulled) = (pins(config)?, pulled(config, adapter).await?);
            self.plugins.prepare_storage(origin(config, pulled.as_ref(), pins.as_ref(), attempt), &adapter.plugin).await
        };
        prepared.await.map_err(|error| not_opened(config, "storages", adapter, error))
    }

    /// Opens what was prepared, by settings that may be others.
    async fn open_storage(&self, config: &Config, adapter: &Adapter, prepared: &PreparedStorage) -> Result<Arc<StoragePlugin>, AppError> {
        let origin = origin(config, None, None, Attempt::of(prepared.generation().number));
        let opened = self.plugins.open_storage(prepared, origin, adapter).await;
        opened.map_err(|error| not_opened(config, "storages", adapter, error))
    }

    /// Finds, checks and compiles a publisher.
    async fn prepare_publisher(&self, config: &Config, publisher: &Publisher, attempt: Attempt<'_>) -> Result<PreparedPublisher, AppError> {
        let adapter = &publisher.adapter;
        let prepared = async {
            let (pins, pulled) = (pins(config)?, pulled(config, adapter).await?);
            self.plugins.prepare_publisher(origin(config, pulled.as_ref(), pins.as_ref(), attempt), &adapter.plugin).await
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
        let origin = origin(config, None, None, Attempt::of(prepared.generation().number));
        let opened = self.plugins.open_publisher(prepared, origin, publisher).await;
        opened.map_err(|error| not_opened(config, "publishers", &publisher.adapter, error))
    }

    /// Finds, checks and compiles a router that is a component.
    async fn prepare_router(&self, config: &Config, adapter: &Adapter, attempt: Attempt<'_>) -> Result<PreparedRouter, AppError> {
        let prepared = async {
            let (pins, pulled) = (pins(config)?, pulled(config, adapter).await?);
            self.plugins.prepare_router(origin(config, pulled.as_ref(), pins.as_ref(), attempt), &adapter.plugin).await
        };
        prepared.await.map_err(|error| not_opened(config, "routers", adapter, error))
    }

    /// Opens what was prepared, by settings that may be others.
    async fn open_router(&self, config: &Config, adapter: &Adapter, prepared: &PreparedRouter) -> Result<Arc<RouterPlugin>, AppError> {
        let origin = origin(config, None, None, Attempt::of(prepared.generation().number));
        let opened = self.plugins.open_router(prepared, origin, adapter).await;
        opened.map_err(|error| not_opened(config, "routers", adapter, error))
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

fn list_router(config: &Config, name: &str, list: &[Subscriber]) -> ListRouter {
    ListRouter::new(name, list.to_vec(), Secrets::new(config.secrets.clone()))
}

/// Which generation is to be made.
#[derive(Debug, Clone, Copy)]
struct Attempt<'a> {
    /// Its number.
    generation: u64,
    /// Gets the SHA-256 of the component that was read, whatever becomes of it.
    read: Option<&'a OnceLock<String>>,
}

impl Attempt<'_> {
    /// The first one of an adapter.
    const FIRST: Self = Self::of(1);

    /// What is read of it is nobody's concern.
    const fn of(generation: u64) -> Self {
        Self { generation, read: None }
    }
}

fn origin<'a>(config: &'a Config, pulled: Option<&'a Component>, pins: Option<&'a Pins>, attempt: Attempt<'a>) -> Origin<'a> {
    let Attempt { generation, read } = attempt;
    Origin { directory: &config.plugins.dir, pulled, pins, secrets: Some(&config.secrets), generation, read }
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
