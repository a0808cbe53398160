//! The component under test, compiled once, and opened as a host opens it: as often as wanted, each time as if in another process.

use super::setup::{Kind, Setup, SetupError};
use crate::config::model::Router;
use crate::metrics::Metrics;
use crate::plugin::{
    Origin, PluginHost, PluginHostOptions, PreparedPublisher, PreparedRouter, PreparedStorage, PublisherPlugin, RouterPlugin, Skew,
    StoragePlugin,
};
use crate::sql::Databases;
use std::collections::BTreeMap;
use std::sync::Arc;
use toml::Table;

/// A storage under test.
pub(crate) struct StorageSubject {
    pub(crate) setup: Setup,
    host: PluginHost,
    prepared: PreparedStorage,
}

/// A publisher under test.
pub(crate) struct PublisherSubject {
    pub(crate) setup: Setup,
    host: PluginHost,
    prepared: PreparedPublisher,
}

/// A router under test.
pub(crate) struct RouterSubject {
    pub(crate) setup: Setup,
    host: PluginHost,
    prepared: PreparedRouter,
}

/// What is under test.
pub(crate) enum Subject {
    Storage(StorageSubject),
    Publisher(PublisherSubject),
    Router(RouterSubject),
}

impl Subject {
    /// Compiles and links the component.
    ///
    /// # Errors
    /// If that is not possible, or what was said of it is refused.
    pub(crate) async fn load(setup: Setup) -> Result<Self, SetupError> {
        // Any database will do: none is opened here.
        let config = setup.configure(Some(setup.database.as_deref().unwrap_or("sqlite:none.db")), &[], &[])?;
        let host = PluginHost::new(PluginHostOptions {
            cache: config.plugins.cache,
            metrics: Metrics::new(),
            databases: Databases::new(&BTreeMap::new(), &BTreeMap::new()),
            secrets: config.secrets,
        })?;
        let origin = Origin::first(&setup.folder);
        Ok(match setup.kind {
            Kind::Storage => {
                let prepared = host.prepare_storage(origin, &setup.plugin).await?;
                Self::Storage(StorageSubject { host, prepared, setup })
            }
            Kind::Publisher => {
                let prepared = host.prepare_publisher(origin, &setup.plugin).await?;
                Self::Publisher(PublisherSubject { host, prepared, setup })
            }
            Kind::Router => {
                let prepared = host.prepare_router(origin, &setup.plugin).await?;
                Self::Router(RouterSubject { host, prepared, setup })
            }
        })
    }
}

/// An open storage, and its databases as this host sees them: with connections of its own, as another process would have.
#[derive(Clone)]
pub(crate) struct OpenStorage {
    pub(crate) plugin: Arc<StoragePlugin>,
    pub(crate) databases: Databases,
}

impl StorageSubject {
    /// Opens it on a database.
    ///
    /// # Errors
    /// If it does not open.
    pub(crate) async fn open(&self, database: &str, fill: &[(&str, &str)], skew: Skew) -> Result<OpenStorage, SetupError> {
        self.open_as(self.setup.settings().clone(), database, fill, skew).await
    }

    /// The same with other settings.
    ///
    /// # Errors
    /// If it does not open.
    pub(crate) async fn open_as(
        &self,
        settings: Table,
        database: &str,
        fill: &[(&str, &str)],
        skew: Skew,
    ) -> Result<OpenStorage, SetupError> {
        let config = self.setup.configure_as(settings, Some(database), fill, &[])?;
        let databases = Databases::new(&config.databases, &config.secrets);
        let host = self.host.elsewhere(databases.clone(), skew);
        let adapter = config.storages.into_values().next().ok_or_else(|| SetupError::Refused(vec!["there is no storage".to_owned()]))?;
        let plugin = host.open_storage(&self.prepared, Origin::first(&self.setup.folder), &adapter).await?;
        Ok(OpenStorage { plugin, databases })
    }
}

impl PublisherSubject {
    /// Opens it with these settings and `fill` in them, able to reach `reach` besides what it was granted.
    ///
    /// # Errors
    /// If it does not open.
    pub(crate) async fn open_as(
        &self,
        settings: Table,
        fill: &[(&str, &str)],
        reach: &[String],
    ) -> Result<Arc<PublisherPlugin>, SetupError> {
        let config = self.setup.configure_as(settings, None, fill, reach)?;
        let publisher = config.publishers.into_values().next();
        let publisher = publisher.ok_or_else(|| SetupError::Refused(vec!["there is no publisher".to_owned()]))?;
        Ok(self.host.open_publisher(&self.prepared, Origin::first(&self.setup.folder), &publisher).await?)
    }
}

impl RouterSubject {
    /// Opens it with these settings, on the database that it was given, if it was given one.
    ///
    /// # Errors
    /// If it does not open.
    pub(crate) async fn open_as(&self, settings: Table) -> Result<Arc<RouterPlugin>, SetupError> {
        let config = self.setup.configure_as(settings, self.setup.database.as_deref(), &[], &[])?;
        let host = self.host.elsewhere(Databases::new(&config.databases, &config.secrets), Skew::None);
        let adapter = config.routers.iter().find_map(Router::plugin);
        let adapter = adapter.ok_or_else(|| SetupError::Refused(vec!["there is no router".to_owned()]))?;
        Ok(host.open_router(&self.prepared, Origin::first(&self.setup.folder), adapter).await?)
    }
}
