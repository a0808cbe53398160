//! One relay of the process: its adapters opened (again and again, where a database is away), its table watched, its pipeline run.

use super::status::{Phase, RelayStatus};
use super::{App, AppError, backlog, wake};
use crate::config::model::Relay;
use crate::metrics::RelayLabels;
use crate::plugin::{PublisherPlugin, StoragePlugin};
use crate::ports::Storage;
use crate::relay::{self, Lanes, Mode, Parts, Shutdown, Summary};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio_util::task::AbortOnDropHandle;

/// Waits between attempts to open what cannot be reached: from the first, doubling, to the last.
const REOPEN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Publishers, opened once however many relays send through them.
pub(super) struct Publishers(BTreeMap<String, OnceCell<Arc<PublisherPlugin>>>);

impl Publishers {
    pub(super) fn new(relays: &[Relay]) -> Self {
        let names = relays.iter().flat_map(|relay| &relay.routes).map(|route| (route.publisher.clone(), OnceCell::new()));
        Self(names.collect())
    }

    /// The publishers that a relay's routes name.
    async fn of(&self, app: &App, relay: &Relay) -> Result<BTreeMap<String, Lanes>, AppError> {
        let mut lanes = BTreeMap::new();
        for route in &relay.routes {
            let (Some(cell), Some(config)) = (self.0.get(&route.publisher), app.config.publishers.get(&route.publisher)) else { continue };
            if !lanes.contains_key(&route.publisher) {
                let publisher = Arc::clone(cell.get_or_try_init(|| app.publisher(config)).await?);
                let entry = Lanes { publisher, lanes: config.lanes, batch: config.batch, batch_bytes: config.batch_bytes };
                lanes.insert(route.publisher.clone(), entry);
            }
        }
        Ok(lanes)
    }
}

/// One relay of the process.
pub(super) struct Member {
    pub(super) app: App,
    pub(super) relay: Relay,
    pub(super) status: Arc<RelayStatus>,
    pub(super) publishers: Arc<Publishers>,
    pub(super) worker: String,
    pub(super) mode: Mode,
}

impl Member {
    /// Opens it and runs it, until it is drained or shut down.
    pub(super) async fn run(self, shutdown: Shutdown) -> Result<Summary, AppError> {
        let status = Arc::clone(&self.status);
        // A signal while adapters are being opened ends it there: nothing has been claimed.
        let opened = tokio::select! {
            opened = self.open() => Some(opened),
            () = shutdown.graceful.cancelled() => None,
        };
        let result = match opened {
            None => Ok(Summary::default()),
            Some(Err(error)) => Err(error),
            Some(Ok((storage, publishers))) => self.work(storage, publishers, shutdown).await,
        };
        status.set(Phase::Ended);
        result
    }

    /// Opens the adapters; in [`Mode::Run`] until it succeeds, as long as trying again can help.
    async fn open(&self) -> Result<(Arc<StoragePlugin>, BTreeMap<String, Lanes>), AppError> {
        let mut wait = REOPEN.0;
        loop {
            let error = match self.try_open().await {
                Ok(opened) => return Ok(opened),
                Err(error) if self.mode == Mode::Drain || error.is_configuration() => return Err(error),
                Err(error) => error,
            };
            tracing::warn!(relay = self.relay.name, again_in = %humantime::format_duration(wait), "not started yet: {error}");
            self.status.set(Phase::Waiting(error.to_string()));
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(REOPEN.1);
        }
    }

    async fn try_open(&self) -> Result<(Arc<StoragePlugin>, BTreeMap<String, Lanes>), AppError> {
        let Some(adapter) = self.app.config.storages.get(&self.relay.storage) else {
            let reason = format!("there is no storage {:?}", self.relay.storage);
            return Err(AppError::RelayEnded { relay: self.relay.name.clone(), reason });
        };
        tokio::try_join!(self.app.storage(adapter), self.publishers.of(&self.app, &self.relay))
    }

    async fn work(self, storage: Arc<StoragePlugin>, publishers: BTreeMap<String, Lanes>, shutdown: Shutdown) -> Result<Summary, AppError> {
        let Self { app, relay, status, worker, mode, .. } = self;
        let routes: Vec<String> = relay.routes.iter().map(|route| format!("{} -> {}", route.topic, route.publisher)).collect();
        tracing::info!(relay = relay.name, storage = relay.storage, routes = routes.join(", "), worker, "relay started");
        status.set(Phase::Running);
        let storage: Arc<dyn Storage> = storage;
        // Both look after themselves, and end with the relay.
        let mut beside = Vec::new();
        if mode == Mode::Run {
            let adapter = app.config.storages.get(&relay.storage);
            if let Some(watch) = adapter.and_then(|adapter| wake::watch(&storage.description().wake, adapter, &app.databases)) {
                let labels = RelayLabels { relay: relay.name.clone() };
                let listening = app.metrics.listening.get_or_create_owned(&labels);
                let watching = watch.run(relay.name.clone(), relay.poll.wake_check, listening, Arc::clone(&status.wake));
                beside.push(AbortOnDropHandle::new(tokio::spawn(watching)));
            }
            if let Some(admin) = app.config.admin {
                let counting = backlog::run(relay.name.clone(), Arc::clone(&storage), app.metrics.clone(), admin.stats_interval);
                beside.push(AbortOnDropHandle::new(tokio::spawn(counting)));
            }
        }
        let (name, storage_name) = (relay.name.clone(), relay.storage.clone());
        let parts = Parts {
            config: relay,
            storage,
            publishers,
            metrics: app.metrics,
            worker,
            wake: Arc::clone(&status.wake),
            mode,
            health: Arc::clone(&status.health),
        };
        let asked = shutdown.graceful.clone();
        let summary =
            relay::run(parts, shutdown).await.map_err(|failure| AppError::Call { storage: storage_name, call: "draining", failure })?;
        if mode == Mode::Run && !asked.is_cancelled() {
            return Err(AppError::RelayEnded { relay: name, reason: "nobody had asked it to".to_owned() });
        }
        tracing::info!(
            relay = name,
            sent = summary.sent,
            failed = summary.failed,
            retried = summary.retried,
            released = summary.released,
            late = summary.late,
            "relay ended"
        );
        Ok(summary)
    }
}
