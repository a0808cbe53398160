//! One relay of the process: its adapters opened (again and again, where a database is away), its table watched, its pipeline run; and
//! all of it anew, when its configuration or its storage has changed in a way that a running pipeline cannot follow.

use super::adapters::Adapters;
use super::status::{Phase, RelayStatus};
use super::turn::Turn;
use super::{App, AppError, backlog, halves, worker_name};
use crate::config::model::Relay;
use crate::fan_out::keys::Keyring;
use crate::plugin::{Slot, StoragePlugin};
use crate::ports::fan_out::{FanOutStorage, Router};
use crate::relay::{Lanes, Mode, Parts, Shutdown, Summary};
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
    /// Of its deliveries, where it has `fan_out`.
    pub(super) deliveries: Option<Arc<RelayStatus>>,
    pub(super) adapters: Arc<Adapters>,
    pub(super) turn: Arc<Turn>,
    pub(super) mode: Mode,
}

/// What a turn of a relay needs.
pub(super) struct Opened {
    pub(super) relay: Relay,
    pub(super) storage: Arc<Slot<StoragePlugin>>,
    pub(super) publishers: BTreeMap<String, Lanes>,
    /// Where it has `fan_out`.
    pub(super) router: Option<(Arc<dyn Router>, Keyring)>,
}

/// What its pipelines did, by the names under which they show.
pub(super) type Summaries = BTreeMap<String, Summary>;

impl Member {
    /// Opens it and runs it, until it is drained or shut down.
    pub(super) async fn run(self, shutdown: Shutdown) -> Result<Summaries, AppError> {
        let result = self.turns(shutdown).await;
        self.set(&Phase::Ended);
        result
    }

    fn set(&self, phase: &Phase) {
        for status in self.deliveries.iter().chain([&self.status]) {
            status.set(phase.clone());
        }
    }

    /// Somebody asks it, or its deliveries, to look.
    async fn woken(&self) {
        match &self.deliveries {
            None => self.status.wake.notified().await,
            Some(deliveries) => tokio::select! {
                () = self.status.wake.notified() => {}
                () = deliveries.wake.notified() => {}
            },
        }
    }

    async fn turns(&self, shutdown: Shutdown) -> Result<Summaries, AppError> {
        let (mut total, mut first) = (Summaries::new(), true);
        for status in self.deliveries.iter().chain([&self.status]) {
            total.insert(status.name.clone(), Summary::default());
        }
        loop {
            // A signal while adapters are being opened ends it there: nothing has been claimed.
            let opened = tokio::select! {
                opened = self.open(std::mem::take(&mut first)) => opened?,
                () = shutdown.graceful.cancelled() => return Ok(total),
            };
            let storage = opened.relay.storage.clone();
            let (summaries, anew) = self.work(opened, &shutdown).await?;
            for (name, summary) in summaries {
                *total.entry(name).or_default() += summary;
            }
            if !anew {
                return Ok(total);
            }
            self.adapters.take_over_waiting(&storage, &self.turn);
        }
    }

    /// A first try may last: a configuration or a file that has come meanwhile is not what the process was started with.
    fn is_of_the_start(&self, error: &AppError) -> bool {
        Arc::ptr_eq(&self.app.config, &self.adapters.config()) && !error.is_of_file_changed_since(self.adapters.began)
    }

    /// Opens the adapters; in [`Mode::Run`] until it succeeds. Only at the very first try of the process is a wrong configuration the end
    /// of it: later other relays are at work, and who changes files under a running process is told why they are refused.
    async fn open(&self, mut first: bool) -> Result<Opened, AppError> {
        let mut wait = REOPEN.0;
        // One that begins anew has ended what it did before.
        self.set(&Phase::Opening);
        loop {
            let error = match self.try_open().await {
                Ok(opened) => return Ok(opened),
                Err(error) if self.mode == Mode::Drain => return Err(error),
                Err(error) if first && error.is_configuration() && self.is_of_the_start(&error) => return Err(error),
                Err(error) => error,
            };
            first = false;
            let again_in = humantime::format_duration(wait);
            if error.is_configuration() {
                tracing::error!(relay = self.name, %again_in, "not started yet: {error}");
            } else {
                tracing::warn!(relay = self.name, %again_in, "not started yet: {error}");
            }
            self.set(&Phase::Waiting(error.to_string()));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // There is another configuration, or somebody asks: it may be what helps.
                () = self.turn.asked() => {}
                () = async {
                    // An application may ask with each row that it writes.
                    tokio::time::sleep(REOPEN.0).await;
                    self.woken().await;
                } => {}
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
        let router = match &relay.fan_out {
            None => None,
            Some(fan_out) => {
                let keys = Keyring::of(&config, fan_out);
                keys.check().await.map_err(|fault| AppError::Key { relay: relay.name.clone(), fault })?;
                Some((self.adapters.router(&fan_out.router).await?, keys))
            }
        };
        Ok(Opened { relay: relay.clone(), storage, publishers, router })
    }

    /// Runs the pipelines. Returns what they did, and whether the relay is to begin anew.
    async fn work(&self, opened: Opened, shutdown: &Shutdown) -> Result<(Summaries, bool), AppError> {
        // Another name for each turn: what an earlier one has left under a lease is not its own.
        let worker = worker_name();
        let relay = opened.relay.clone();
        let routes: Vec<String> = match &relay.fan_out {
            Some(fan_out) => vec![format!("fan-out by {} -> {}", fan_out.router, fan_out.publisher)],
            None => relay.routes.iter().map(|route| format!("{} -> {}", route.topic, route.publisher)).collect(),
        };
        tracing::info!(relay = relay.name, storage = relay.storage, routes = routes.join(", "), worker, "relay started");
        self.set(&Phase::Running);
        let deliveries: Arc<dyn FanOutStorage> = Arc::clone(&opened.storage) as _;
        let halves = halves::of(self, opened, &worker);
        let _beside = self.beside(&relay, &halves, &deliveries);
        let lease = halves.iter().map(|half| half.config.lease).max().unwrap_or(relay.lease);
        let (name, storage_name) = (relay.name, relay.storage);
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
            ended = halves::run(halves, &turn) => ended,
            never = anew => match never {},
        };
        let summaries = ended.map_err(|failure| AppError::Call { storage: storage_name, call: "draining", failure })?;
        let asked = shutdown.graceful.is_cancelled();
        if self.mode == Mode::Run && !turn.graceful.is_cancelled() {
            return Err(AppError::RelayEnded { relay: name, reason: "nobody had asked it to".to_owned() });
        }
        for (relay, summary) in &summaries {
            let Summary { sent, failed, retried, released, late, breaker_open: _ } = summary;
            tracing::info!(relay, sent, failed, retried, released, late, "relay ended");
        }
        Ok((summaries, self.mode == Mode::Run && !asked))
    }

    /// What looks after itself beside the pipelines, and ends with them.
    fn beside(&self, relay: &Relay, halves: &[Parts], deliveries: &Arc<dyn FanOutStorage>) -> Vec<AbortOnDropHandle<()>> {
        let mut beside = Vec::new();
        if self.mode == Mode::Drain {
            return beside;
        }
        let config = self.adapters.config();
        let adapter = config.storages.get(&relay.storage);
        for Parts { config: half, storage, wake, .. } in halves {
            beside.extend(adapter.and_then(|adapter| self.app.wake(half, adapter, &storage.description().wake, wake)));
            if let Some(admin) = config.admin {
                let (name, metrics, interval) = (half.name.clone(), self.app.metrics.clone(), admin.stats_interval);
                let counting = match &relay.fan_out {
                    Some(fan_out) if fan_out.deliveries.name == name => {
                        tokio::spawn(backlog::run_deliveries(name, Arc::clone(deliveries), metrics, interval))
                    }
                    _ => tokio::spawn(backlog::run(name, Arc::clone(storage), metrics, interval)),
                };
                beside.push(AbortOnDropHandle::new(counting));
            }
        }
        beside
    }
}
