//! Adapters that are WebAssembly components: loaded, linked within their grants, run in sandboxes, seen by the pipeline as the
//! ports of [`crate::ports`]. Nothing outside of this module knows of WebAssembly.
//!
//! The way of a component: [`catalog`] finds and reads its file, [`manifest`] says what it is and asks for, [`cache`] compiles it
//! once, [`grants`] decides what it may reach, [`state`] links it, [`instance`] runs it, and [`storage`] and [`publisher`] check
//! everything that comes back.

mod bindings;
mod cache;
mod call;
mod catalog;
mod convert;
mod denials;
mod engine;
mod grants;
mod identity;
mod inspect;
mod instance;
mod limits;
mod log;
mod manifest;
mod net;
mod publisher;
mod sql_host;
mod state;
mod storage;

pub use grants::Request;
pub use inspect::{Inspection, inspect};
pub use manifest::ComponentFault;
pub use publisher::PublisherPlugin;
pub use storage::StoragePlugin;

use crate::config::model::{Adapter as AdapterConfig, Publisher as PublisherConfig, SecretSource};
use crate::domain::{Failure, FailureCode};
use crate::metrics::Metrics;
use crate::secrets::Secrets;
use crate::sql::Databases;
use cache::Cache;
use denials::Denials;
use grants::Policy;
use identity::{Identity, Kind};
use instance::Adapter;
use manifest::Anatomy;
use net::http::HttpClient;
use net::tls::Tls;
use state::{Shared, State};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::StorageWorld;
use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre, Linker};

/// Why an adapter could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// The engine does not run on this machine.
    #[error("the WebAssembly engine cannot start: {0}")]
    Engine(String),
    /// The configured name cannot be a file's.
    #[error("plugin = \"{plugin}\" is not a component's name: give the name of a file in plugins.dir, without `.wasm`")]
    Name {
        /// The name.
        plugin: String,
    },
    /// There is no such component.
    #[error("there is no {path}; {present}")]
    Missing {
        /// The file looked for.
        path: PathBuf,
        /// What there is instead.
        present: String,
    },
    /// The file cannot be read.
    #[error("{path} cannot be read: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is not an adapter that this host can run.
    #[error("{path} {fault}")]
    Component {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: ComponentFault,
    },
    /// It does not compile.
    #[error("{path} cannot be compiled: {reason}")]
    Compile {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// It imports what the host does not offer.
    #[error("{path} needs what this host does not offer: {reason}")]
    Import {
        /// The file.
        path: PathBuf,
        /// Names the import.
        reason: String,
    },
    /// One of the files for TLS cannot be used.
    #[error("{key} = \"{file}\" cannot be used: {reason}")]
    TlsFile {
        /// `tls_ca_file`, `tls_cert_file` or `tls_key_file`.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// Its `open` failed. Where the code is `unavailable`, trying again later may help.
    #[error("{0}")]
    Open(Failure),
}

impl PluginError {
    /// Whether trying again later may help: a database that is locked or away, not a wrong configuration.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Open(failure) if matches!(failure.code, FailureCode::Unavailable | FailureCode::Timeout | FailureCode::Network))
    }
}

/// What the host gives to adapters.
#[derive(Debug)]
pub struct PluginHostOptions {
    /// Directory of compiled code; none: compiled afresh at each start.
    pub cache: Option<PathBuf>,
    /// Where calls are counted.
    pub metrics: Metrics,
    /// The databases that can be granted.
    pub databases: Databases,
    /// The secrets that can be granted.
    pub secrets: BTreeMap<String, SecretSource>,
}

/// Loads adapters. Clones share one engine, cache and clock.
#[derive(Clone)]
pub struct PluginHost(Arc<Inner>);

struct Inner {
    engine: Engine,
    cache: Option<Cache>,
    metrics: Metrics,
    databases: Databases,
    secrets: Secrets,
}

impl std::fmt::Debug for PluginHost {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("PluginHost")
    }
}

impl PluginHost {
    /// Starts the engine.
    ///
    /// # Errors
    /// If it does not run on this machine.
    pub fn new(options: PluginHostOptions) -> Result<Self, PluginError> {
        let engine = engine::start()?;
        let cache = options.cache.map(|directory| Cache::new(directory, &engine));
        let secrets = Secrets::new(options.secrets);
        Ok(Self(Arc::new(Inner { engine, cache, metrics: options.metrics, databases: options.databases, secrets })))
    }

    /// Loads and opens a storage.
    ///
    /// # Errors
    /// If there is no such component, it is not a storage, it does not link, or its `open` fails.
    pub async fn storage(&self, directory: &Path, adapter: &AdapterConfig) -> Result<Arc<StoragePlugin>, PluginError> {
        let file = catalog::find(directory, &adapter.plugin).await?;
        let (path, anatomy) = (file.path.clone(), file.anatomy.clone());
        anatomy.check_storage().map_err(|fault| PluginError::Component { path: path.clone(), fault })?;
        let pre = self.link(file, StorageWorld::link).await?;
        let world = StorageWorld::of(&pre, &anatomy).map_err(|error| import(&path, &error))?;
        let shared = self.shared(Kind::Storage, adapter, &anatomy)?;
        let loaded = Adapter::new(world, shared, pre, adapter.config.to_string(), self.0.metrics.clone(), storage::INSTANCES);
        let description = loaded.start().await.map_err(PluginError::Open)?;
        let description =
            storage::check_description(&loaded, convert::description_in(description, anatomy.has_fused())).map_err(PluginError::Open)?;
        Ok(Arc::new(StoragePlugin::new(loaded, description, anatomy.has_admin())))
    }

    /// Loads and opens a publisher.
    ///
    /// # Errors
    /// If there is no such component, it is not a publisher, it does not link, or its `open` fails.
    pub async fn publisher(&self, directory: &Path, publisher: &PublisherConfig) -> Result<Arc<PublisherPlugin>, PluginError> {
        let adapter = &publisher.adapter;
        let file = catalog::find(directory, &adapter.plugin).await?;
        let (path, anatomy) = (file.path.clone(), file.anatomy.clone());
        anatomy.check_publisher().map_err(|fault| PluginError::Component { path: path.clone(), fault })?;
        let pre = self.link(file, publisher::PublisherWorld::link).await?;
        let world = publisher::PublisherWorld::of(&pre).map_err(|error| import(&path, &error))?;
        let shared = self.shared(Kind::Publisher, adapter, &anatomy)?;
        let loaded = Adapter::new(world, shared, pre, adapter.config.to_string(), self.0.metrics.clone(), publisher.lanes);
        loaded.start().await.map_err(PluginError::Open)?;
        Ok(Arc::new(PublisherPlugin::new(loaded)))
    }

    /// Compiles a component, or loads what was compiled before, and links it.
    async fn link(
        &self,
        file: catalog::File,
        world: fn(&mut Linker<State>) -> wasmtime::Result<()>,
    ) -> Result<InstancePre<State>, PluginError> {
        let path = file.path;
        let host = self.clone();
        // Compiling takes seconds of all cores: not on the threads that run calls.
        let compiled = tokio::task::spawn_blocking(move || match &host.0.cache {
            Some(cache) => cache.load(&host.0.engine, &file.bytes, &file.digest),
            None => Component::from_binary(&host.0.engine, &file.bytes),
        })
        .await;
        let compile = |reason: String| PluginError::Compile { path: path.clone(), reason };
        let component = compiled.map_err(|error| compile(error.to_string()))?.map_err(|error| compile(format!("{error:#}")))?;
        let mut linker = Linker::new(&self.0.engine);
        state::link(&mut linker).and_then(|()| world(&mut linker)).map_err(|error| PluginError::Engine(format!("{error:#}")))?;
        linker.instantiate_pre(&component).map_err(|error| import(&path, &error))
    }

    fn shared(&self, kind: Kind, adapter: &AdapterConfig, anatomy: &Anatomy) -> Result<Arc<Shared>, PluginError> {
        let identity = Identity { kind, name: adapter.name.clone(), generation: 1 };
        let policy = Arc::new(Policy::new(identity.section(), adapter.grants.clone(), anatomy.requests.clone()));
        for key in policy.unused_grants() {
            tracing::warn!(adapter = identity.name, "granted but without effect, because of the component's manifest: {key}");
        }
        let denials = Arc::new(Denials::new(identity.clone()));
        let tls = Tls::new(Arc::clone(&policy), Arc::clone(&denials))?;
        let http = HttpClient::new(&tls, adapter.limits.returned_bytes);
        Ok(Arc::new(Shared {
            log: Arc::new(log::AdapterLog::new(identity.clone(), self.0.metrics.clone())),
            identity,
            limits: adapter.limits,
            policy,
            denials,
            http: Arc::new(http),
            tls,
            databases: self.0.databases.clone(),
            secrets: self.0.secrets.clone(),
        }))
    }
}

fn import(path: &Path, error: &wasmtime::Error) -> PluginError {
    PluginError::Import { path: path.to_owned(), reason: format!("{error:#}") }
}
