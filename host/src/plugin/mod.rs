//! Adapters that are WebAssembly components: loaded, linked within their grants, run in sandboxes, seen by the pipeline as the
//! ports of [`crate::ports`]. Nothing outside of this module knows of WebAssembly.
//!
//! The way of a component: [`catalog`] finds and reads its file, [`manifest`] says what it is and asks for, [`cache`] compiles it
//! once, [`grants`] decides what it may reach, [`state`] links it, [`instance`] runs it, and [`storage`], [`publisher`] and
//! [`router`] check everything that comes back. [`pins`] says which files may be loaded at all; [`sightings`] notices new ones, and a [`slot`] has
//! the generation that calls are given to.

mod bindings;
mod cache;
mod call;
mod catalog;
mod clock;
mod convert;
mod convert_fan_out;
mod denials;
mod engine;
mod fan_out;
mod grants;
mod identity;
mod inspect;
mod instance;
mod limits;
mod log;
mod manifest;
mod net;
mod pins;
mod prepared;
mod publisher;
mod router;
mod sightings;
mod slot;
mod sql_host;
mod state;
mod storage;

pub use clock::Skew;
pub use grants::Request;
pub use inspect::{Inspection, inspect, inspect_bytes};
pub use manifest::ComponentFault;
pub use pins::{Pin, Pins, PinsError};
pub use prepared::{PreparedPublisher, PreparedRouter, PreparedStorage};
pub use publisher::PublisherPlugin;
pub use router::RouterPlugin;
pub use sightings::{STILL, Sight, Sightings};
pub use slot::Slot;
pub use storage::StoragePlugin;

use crate::config::model::{Adapter as AdapterConfig, Publisher as PublisherConfig, SecretSource};
use crate::domain::{Failure, FailureCode};
use crate::metrics::Metrics;
use crate::oci::{Component as Pulled, PullError};
use crate::secrets::Secrets;
use crate::sql::Databases;
use cache::Cache;
use denials::Denials;
use grants::Policy;
use identity::{Identity, Kind};
use manifest::Anatomy;
use net::http::HttpClient;
use net::tls::Tls;
use state::{Shared, State};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
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
    /// The pins name another component, or none.
    #[error("{}", unpinned(.path, .found, .pinned.as_deref(), .pins))]
    Pinned {
        /// The file.
        path: PathBuf,
        /// Its SHA-256.
        found: String,
        /// The one that it must have; none: it is not pinned.
        pinned: Option<String>,
        /// The file of the pins.
        pins: PathBuf,
    },
    /// It is in a registry, and cannot be had from there.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The pins cannot be used.
    #[error(transparent)]
    Pins(#[from] PinsError),
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

fn unpinned(path: &Path, found: &str, pinned: Option<&str>, pins: &Path) -> String {
    let (path, pins) = (path.display(), pins.display());
    match pinned {
        Some(pinned) => format!(
            "{path} is not the component that {pins} pins: its SHA-256 is {found}, pinned is {pinned}; put the pinned one back, or \
             review the new one and run `outhaul plugin pin`"
        ),
        None => format!("{path} is not pinned in {pins}: review it (its SHA-256 is {found}) and run `outhaul plugin pin`"),
    }
}

impl PluginError {
    /// Whether trying again later may help: a database that is locked, a registry that is away, not a wrong configuration.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Open(failure) => matches!(failure.code, FailureCode::Unavailable | FailureCode::Timeout | FailureCode::Network),
            Self::Pull(error) => error.is_transient(),
            _ => false,
        }
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

/// What a generation of an adapter is made from, besides its own settings.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// Directory of components.
    pub directory: &'a Path,
    /// The component, where it comes from a registry; none: it is in the directory.
    pub pulled: Option<&'a Pulled>,
    /// What components must be; none: any.
    pub pins: Option<&'a Pins>,
    /// The secrets that can be granted; none: those that the host was made with.
    pub secrets: Option<&'a BTreeMap<String, SecretSource>>,
    /// The generation's number, from 1.
    pub generation: u64,
    /// Gets the SHA-256 of the component that was read, whatever becomes of it; none: nobody asks.
    pub read: Option<&'a OnceLock<String>>,
}

impl<'a> Origin<'a> {
    /// A first generation of whatever is in a directory.
    #[must_use]
    pub fn first(directory: &'a Path) -> Self {
        Self { directory, pulled: None, pins: None, secrets: None, generation: 1, read: None }
    }
}

/// Which component a generation runs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Generation {
    /// From 1; one more for each that took the place of another in this process.
    #[serde(rename = "generation")]
    pub number: u64,
    /// The file that it was read from.
    pub file: PathBuf,
    /// SHA-256 of what was read, in hexadecimal.
    pub sha256: String,
    /// `version` of its manifest.
    pub version: Option<String>,
}

impl Generation {
    fn of(file: &catalog::File, number: u64) -> Self {
        Self { number, file: file.path.clone(), sha256: file.digest.clone(), version: file.anatomy.version.clone() }
    }
}

/// The version of the WebAssembly engine.
#[must_use]
pub fn engine_version() -> &'static str {
    wasmtime_environ::VERSION
}

/// The file of a plugin in a directory.
#[must_use]
pub fn file(directory: &Path, plugin: &str) -> PathBuf {
    catalog::path(directory, plugin)
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
    /// How far the clock of its guests is off.
    skew: Skew,
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
        Ok(Self(Arc::new(Inner { engine, cache, metrics: options.metrics, databases: options.databases, secrets, skew: Skew::None })))
    }

    /// Loads and opens a storage: its first generation, from whatever component is in the directory.
    ///
    /// # Errors
    /// As [`PluginHost::load_storage`].
    pub async fn storage(&self, directory: &Path, adapter: &AdapterConfig) -> Result<Arc<StoragePlugin>, PluginError> {
        self.load_storage(Origin::first(directory), adapter).await
    }

    /// Loads and opens a publisher: its first generation, from whatever component is in the directory.
    ///
    /// # Errors
    /// As [`PluginHost::load_publisher`].
    pub async fn publisher(&self, directory: &Path, publisher: &PublisherConfig) -> Result<Arc<PublisherPlugin>, PluginError> {
        self.load_publisher(Origin::first(directory), publisher).await
    }

    /// Loads and opens a generation of a storage.
    ///
    /// # Errors
    /// If there is no such component, it is not pinned, it is not a storage, it does not link, or its `open` fails.
    pub async fn load_storage(&self, origin: Origin<'_>, adapter: &AdapterConfig) -> Result<Arc<StoragePlugin>, PluginError> {
        let prepared = self.prepare_storage(origin, &adapter.plugin).await?;
        self.open_storage(&prepared, origin, adapter).await
    }

    /// Loads and opens a generation of a publisher.
    ///
    /// # Errors
    /// If there is no such component, it is not pinned, it is not a publisher, it does not link, or its `open` fails.
    pub async fn load_publisher(&self, origin: Origin<'_>, publisher: &PublisherConfig) -> Result<Arc<PublisherPlugin>, PluginError> {
        let prepared = self.prepare_publisher(origin, &publisher.adapter.plugin).await?;
        self.open_publisher(&prepared, origin, publisher).await
    }

    /// Loads and opens a generation of a router.
    ///
    /// # Errors
    /// If there is no such component, it is not pinned, it is not a router, it does not link, or its `open` fails.
    pub async fn load_router(&self, origin: Origin<'_>, adapter: &AdapterConfig) -> Result<Arc<RouterPlugin>, PluginError> {
        let prepared = self.prepare_router(origin, &adapter.plugin).await?;
        self.open_router(&prepared, origin, adapter).await
    }

    /// Compiles a component, or loads what was compiled before, and links it.
    async fn link(
        &self,
        file: catalog::File,
        world: fn(&mut Linker<State>) -> wasmtime::Result<()>,
    ) -> Result<InstancePre<State>, PluginError> {
        let catalog::File { path, bytes, digest, anatomy } = file;
        let host = self.clone();
        // Compiling takes seconds of all cores: not on the threads that run calls.
        let compiled = tokio::task::spawn_blocking(move || match &host.0.cache {
            Some(cache) => cache.load(&host.0.engine, &bytes, &digest),
            None => Component::from_binary(&host.0.engine, &bytes),
        })
        .await;
        let compile = |reason: String| PluginError::Compile { path: path.clone(), reason };
        let component = compiled.map_err(|error| compile(error.to_string()))?.map_err(|error| compile(format!("{error:#}")))?;
        let mut linker = Linker::new(&self.0.engine);
        state::link(&mut linker).and_then(|()| world(&mut linker)).map_err(|error| PluginError::Engine(format!("{error:#}")))?;
        linker.instantiate_pre(&component).map_err(|error| absent(path, &anatomy.imports, &error))
    }

    fn shared(&self, kind: Kind, adapter: &AdapterConfig, anatomy: &Anatomy, origin: Origin<'_>) -> Result<Arc<Shared>, PluginError> {
        let identity = Identity { kind, name: adapter.name.clone(), generation: origin.generation };
        let secrets = origin.secrets.map_or_else(|| self.0.secrets.clone(), |sources| Secrets::new(sources.clone()));
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
            secrets,
            skew: self.0.skew,
        }))
    }
}

/// Why a component does not link. The engine names the import in the words of its linker, and below that what is not as it should be.
fn absent(path: PathBuf, imports: &[String], error: &wasmtime::Error) -> PluginError {
    let told = error.to_string();
    let Some(name) = imports.iter().find(|import| told.contains(&format!("`{import}`"))) else { return import(&path, error) };
    let cause = error.root_cause().to_string();
    let reason = if cause.ends_with("implementation is missing") {
        format!("it imports {name}, which this host does not have")
    } else {
        format!("it imports {name}, which this host has in another form: {cause}")
    };
    PluginError::Import { path, reason }
}

fn import(path: &Path, error: &wasmtime::Error) -> PluginError {
    PluginError::Import { path: path.to_owned(), reason: format!("{error:#}") }
}
