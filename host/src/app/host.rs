//! Relays running in one process: opened (again and again, where a database is away), watched, woken, and ended by signals.

use super::status::{Phase, RelayStatus, Status};
use super::{App, AppError, backlog, signals::Signals, wake, worker_name};
use crate::admin;
use crate::config::model::Relay;
use crate::plugin::{PublisherPlugin, StoragePlugin};
use crate::ports::Storage;
use crate::relay::{self, Lanes, Mode, Parts, Shutdown, Summary};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::task::{JoinError, JoinSet};
use tokio_util::task::AbortOnDropHandle;

/// Waits between attempts to open what cannot be reached: from the first, doubling, to the last.
const REOPEN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What became of the relays.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What each did, by its name.
    pub relays: BTreeMap<String, Summary>,
    /// Whether the process was asked to end.
    pub interrupted: bool,
    /// Whether it was ended at once.
    pub forced: bool,
}

impl Outcome {
    /// All relays together.
    #[must_use]
    pub fn total(&self) -> Summary {
        self.relays.values().fold(Summary::default(), |sum, one| Summary {
            sent: sum.sent.saturating_add(one.sent),
            failed: sum.failed.saturating_add(one.failed),
            retried: sum.retried.saturating_add(one.retried),
            released: sum.released.saturating_add(one.released),
            late: sum.late.saturating_add(one.late),
        })
    }
}

/// Runs the named relays (none: all) until they are drained, or until a signal.
///
/// # Errors
/// The configuration cannot be brought to life, or a relay ended by itself. The other relays are ended gracefully then.
pub async fn run(app: &App, names: &[String], mode: Mode) -> Result<Outcome, AppError> {
    let relays = chosen(app, names)?;
    let shutdown = Shutdown::default();
    let statuses: Vec<Arc<RelayStatus>> = relays.iter().map(|relay| Arc::new(RelayStatus::new(&relay.name))).collect();
    let status = Status::new(statuses.clone(), shutdown.graceful.clone());
    let signals = Signals::install().map_err(AppError::Signals)?;
    let watching = signals.watch(shutdown.clone(), status.wakes(), app.config.shutdown_grace);
    let _signals = AbortOnDropHandle::new(tokio::spawn(watching));
    let _admin = match (mode, app.config.admin) {
        (Mode::Run, Some(settings)) => {
            let serve = admin::listen(settings.listen, status, app.metrics.clone(), shutdown.forced.clone()).await?;
            Some(AbortOnDropHandle::new(tokio::spawn(serve)))
        }
        _ => None,
    };

    let worker = worker_name();
    let publishers = Arc::new(Publishers::new(&relays));
    let mut tasks = JoinSet::new();
    for (relay, status) in relays.into_iter().zip(statuses) {
        let one = One { app: app.clone(), relay, status, publishers: Arc::clone(&publishers), worker: worker.clone(), mode };
        tasks.spawn(one.run(shutdown.clone()));
    }
    let mut outcome = Outcome::default();
    let mut first_error = None;
    while let Some(ended) = tasks.join_next().await {
        let error = match ended.map_err(|error| panicked(&error)) {
            Ok((name, Ok(summary))) => {
                outcome.relays.insert(name, summary);
                continue;
            }
            Ok((_, Err(error))) | Err(error) => error,
        };
        // The process is what a supervisor restarts: a process with half of its relays would look healthy.
        if first_error.is_none() && !tasks.is_empty() {
            tracing::error!("ending the other relays: {error}");
        }
        first_error.get_or_insert(error);
        shutdown.graceful.cancel();
    }
    outcome.interrupted = shutdown.graceful.is_cancelled();
    outcome.forced = shutdown.forced.is_cancelled();
    first_error.map_or(Ok(outcome), Err)
}

fn chosen(app: &App, names: &[String]) -> Result<Vec<Relay>, AppError> {
    let all = &app.config.relays;
    if all.is_empty() {
        return Err(AppError::NoRelays(app.config.file.clone()));
    }
    if let Some(name) = names.iter().find(|name| all.iter().all(|relay| relay.name != **name)) {
        let known = all.iter().map(|relay| relay.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(AppError::NoSuchRelay { name: name.clone(), known });
    }
    Ok(all.iter().filter(|relay| names.is_empty() || names.contains(&relay.name)).cloned().collect())
}

fn panicked(error: &JoinError) -> AppError {
    AppError::RelayEnded { relay: "(unknown)".to_owned(), reason: format!("a fault in outhaul itself: {error}") }
}

/// Publishers, opened once however many relays send through them.
struct Publishers(BTreeMap<String, OnceCell<Arc<PublisherPlugin>>>);

impl Publishers {
    fn new(relays: &[Relay]) -> Self {
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
struct One {
    app: App,
    relay: Relay,
    status: Arc<RelayStatus>,
    publishers: Arc<Publishers>,
    worker: String,
    mode: Mode,
}

impl One {
    async fn run(self, shutdown: Shutdown) -> (String, Result<Summary, AppError>) {
        let name = self.relay.name.clone();
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
        (name, result)
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
        let watch =
            app.config.storages.get(&relay.storage).and_then(|adapter| wake::watch(&storage.description().wake, adapter, &app.databases));
        // Both look after themselves, and end with the relay.
        let _watch = watch
            .filter(|_| mode == Mode::Run)
            .map(|watch| AbortOnDropHandle::new(tokio::spawn(wake::run(watch, relay.poll.wake_check, Arc::clone(&status.wake)))));
        let _backlog = app.config.admin.filter(|_| mode == Mode::Run).map(|admin| {
            let count = backlog::run(relay.name.clone(), Arc::clone(&storage), app.metrics.clone(), admin.stats_interval);
            AbortOnDropHandle::new(tokio::spawn(count))
        });
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
