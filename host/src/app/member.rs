//! One relay of the process: its adapters opened (again and again, where a database is away), its table watched, its pipeline run; and
//! all of it anew, when its configuration or its storage has changed in a way that a running pipeline cannot follow.

use super::adapters::Adapters;
use super::status::{Phase, RelayStatus};
use super::turn::Turn;
use super::{App, AppError, backlog, wake, worker_name};
use crate::config::model::Relay;
use crate::metrics::RelayLabels;
use crate::plugin::{Slot, StoragePlugin};
use crate::ports::Storage;
use crate::relay::{self, Lanes, Mode, Parts, Shutdown, Summary};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// Waits between attempts to open what cannot be reached: from the first, doubling, to the last.
const REOPEN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// One relay of the process.
pub(super) struct Member {
    pub(super) app: App,
    /// Its name.
    pub(super) name: String,
    pub(super) status: Arc<RelayStatus>,
    pub(super) adapters: Arc<Adapters>,
    pub(super) turn: Arc<Turn>,
    pub(super) mode: Mode,
}

/// What a turn of a relay needs.
struct Opened {
    relay: Relay,
    storage: Arc<Slot<StoragePlugin>>,
    publishers: BTreeMap<String, Lanes>,
}

impl Member {
    /// Opens it and runs it, until it is drained or shut down.
    pub(super) async fn run(self, shutdown: Shutdown) -> Result<Summary, AppError> {
        let result = self.turns(shutdown).await;
        self.status.set(Phase::Ended);
        result
    }

    async fn turns(&self, shutdown: Shutdown) -> Result<Summary, AppError> {
        let (mut total, mut first) = (Summary::default(), true);
        loop {
            // A signal while adapters are being opened ends it there: nothing has been claimed.
            let opened = tokio::select! {
                opened = self.open(std::mem::take(&mut first)) => opened?,
                () = shutdown.graceful.cancelled() => return Ok(total),
            };
            let storage = opened.relay.storage.clone();
            let (summary, anew) = self.work(opened, &shutdown).await?;
            total += summary;
            if !anew {
                return Ok(total);
            }
            self.adapters.take_over_waiting(&storage, &self.turn);
        }
    }

    /// Opens the adapters; in [`Mode::Run`] until it succeeds. Only at the very first try of the process is a wrong configuration the end
    /// of it: later other relays are at work, and who changes files under a running process is told why they are refused.
    async fn open(&self, mut first: bool) -> Result<Opened, AppError> {
        let mut wait = REOPEN.0;
        loop {
            let error = match self.try_open().await {
                Ok(opened) => return Ok(opened),
                Err(error) if self.mode == Mode::Drain || (first && error.is_configuration()) => return Err(error),
                Err(error) => error,
            };
            first = false;
            let again_in = humantime::format_duration(wait);
            if error.is_configuration() {
                tracing::error!(relay = self.name, %again_in, "not started yet: {error}");
            } else {
                tracing::warn!(relay = self.name, %again_in, "not started yet: {error}");
            }
            self.status.set(Phase::Waiting(error.to_string()));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // There is another configuration, or somebody asks: it may be what helps.
                () = self.turn.asked() => {}
                () = self.status.wake.notified() => {}
            }
            wait = (wait * 2).min(REOPEN.1);
        }
    }

    async fn try_open(&self) -> Result<Opened, AppError> {
        let config = self.adapters.config();
        let Some(relay) = config.relays.iter().find(|relay| relay.name == self.name) else {
            return Err(AppError::RelayEnded { relay: self.name.clone(), reason: "it is not in the configuration".to_owned() });
        };
        // Nothing is in flight: a storage that has waited for that does not wait for the publishers too.
        self.adapters.take_over_waiting(&relay.storage, &self.turn);
        let (storage, publishers) = tokio::try_join!(self.adapters.storage(&relay.storage), self.adapters.publishers(relay))?;
        Ok(Opened { relay: relay.clone(), storage, publishers })
    }

    /// Runs the pipeline. Returns what it did, and whether it is to begin anew.
    async fn work(&self, opened: Opened, shutdown: &Shutdown) -> Result<(Summary, bool), AppError> {
        let Opened { relay, storage, publishers } = opened;
        // Another name for each turn: what an earlier one has left under a lease is not its own.
        let worker = worker_name();
        let routes: Vec<String> = relay.routes.iter().map(|route| format!("{} -> {}", route.topic, route.publisher)).collect();
        tracing::info!(relay = relay.name, storage = relay.storage, routes = routes.join(", "), worker, "relay started");
        self.status.set(Phase::Running);
        let storage: Arc<dyn Storage> = storage;
        let _beside = self.beside(&relay, &storage);
        let (name, storage_name, lease) = (relay.name.clone(), relay.storage.clone(), relay.lease);
        let parts = Parts {
            config: relay,
            storage,
            publishers,
            metrics: self.app.metrics.clone(),
            worker,
            wake: Arc::clone(&self.status.wake),
            mode: self.mode,
            health: Arc::clone(&self.status.health),
        };
        let turn = Shutdown { graceful: shutdown.graceful.child_token(), forced: shutdown.forced.child_token() };
        let anew = async {
            self.turn.asked().await;
            tracing::info!(relay = name, "begins anew: finishing what is in flight first");
            turn.graceful.cancel();
            // By then no lease is left to wait for.
            tokio::time::sleep(lease).await;
            turn.forced.cancel();
            std::future::pending::<std::convert::Infallible>().await
        };
        let ended = tokio::select! {
            ended = relay::run(parts, turn.clone()) => ended,
            never = anew => match never {},
        };
        let summary = ended.map_err(|failure| AppError::Call { storage: storage_name, call: "draining", failure })?;
        let asked = shutdown.graceful.is_cancelled();
        if self.mode == Mode::Run && !turn.graceful.is_cancelled() {
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
        Ok((summary, self.mode == Mode::Run && !asked))
    }

    /// What looks after itself beside the pipeline, and ends with it.
    fn beside(&self, relay: &Relay, storage: &Arc<dyn Storage>) -> Vec<AbortOnDropHandle<()>> {
        let mut beside = Vec::new();
        if self.mode == Mode::Drain {
            return beside;
        }
        let config = self.adapters.config();
        let adapter = config.storages.get(&relay.storage);
        if let Some(watch) = adapter.and_then(|adapter| wake::watch(&storage.description().wake, adapter, &self.app.databases)) {
            let listening = self.app.metrics.listening.get_or_create_owned(&RelayLabels { relay: relay.name.clone() });
            let watching = watch.run(relay.name.clone(), relay.poll.wake_check, listening, Arc::clone(&self.status.wake));
            beside.push(AbortOnDropHandle::new(tokio::spawn(watching)));
        }
        if let Some(admin) = config.admin {
            let counting = backlog::run(relay.name.clone(), Arc::clone(storage), self.app.metrics.clone(), admin.stats_interval);
            beside.push(AbortOnDropHandle::new(tokio::spawn(counting)));
        }
        beside
    }
}
