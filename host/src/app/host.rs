//! The process: its relays side by side, its admin address, and its end by signals.

use super::adapters::Adapters;
use super::inventory::Inventory;
use super::member::Member;
use super::reload::Reload;
use super::signals::Signals;
use super::status::{RelayStatus, Status};
use super::turn::Turn;
use super::{App, AppError};
use crate::admin;
use crate::config;
use crate::config::model::Relay;
use crate::relay::{Mode, Shutdown, Summary};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

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
        let mut total = Summary::default();
        self.relays.values().for_each(|one| total += *one);
        total
    }
}

/// Runs the named relays (none: all) until they are drained, or until a signal.
///
/// # Errors
/// The configuration cannot be brought to life, or a relay ended by itself. The other relays are ended gracefully then.
pub async fn run(app: &App, names: &[String], mode: Mode) -> Result<Outcome, AppError> {
    let relays = chosen(app, names)?;
    for warning in config::warnings(&app.config).iter().filter(|warning| relays.iter().any(|relay| relay.name == warning.relay)) {
        tracing::warn!(relay = warning.relay, key = warning.place.as_ref().map(ToString::to_string), "{}", warning.text);
    }
    for (database, place) in config::written_passwords(&app.config) {
        tracing::warn!(database, key = place.map(|place| place.to_string()), "{}", config::WRITTEN_PASSWORD);
    }
    let shutdown = Shutdown::default();
    let statuses: Vec<Arc<RelayStatus>> = relays.iter().flat_map(Relay::names).map(|name| Arc::new(RelayStatus::new(name))).collect();
    let status = Status::new(statuses.clone(), shutdown.graceful.clone());
    let signals = Signals::install().map_err(AppError::Signals)?;
    let inventory = Arc::new(Inventory::new(std::path::absolute(&app.config.file).unwrap_or_else(|_| app.config.file.clone())));
    let turns: BTreeMap<String, Arc<Turn>> = relays.iter().map(|relay| (relay.name.clone(), Arc::default())).collect();
    let adapters = Arc::new(Adapters::new(app.clone(), turns.clone(), Arc::clone(&inventory)));
    let reload = Arc::new(Notify::new());
    let hangup = status.wakes().into_iter().chain([Arc::clone(&reload)]).collect();
    let watching = signals.watch(shutdown.clone(), hangup, app.config.shutdown_grace);
    let _signals = AbortOnDropHandle::new(tokio::spawn(watching));
    let (mut _admin, mut _reload) = (None, None);
    if mode == Mode::Run {
        if let Some(settings) = app.config.admin {
            let (metrics, forced) = (app.metrics.clone(), shutdown.forced.clone());
            let serve = admin::listen(settings.listen, status, Arc::clone(&inventory), Arc::clone(&adapters) as _, metrics, forced).await?;
            _admin = Some(AbortOnDropHandle::new(tokio::spawn(serve)));
        }
        let keeping = Reload { adapters: Arc::clone(&adapters), inventory, metrics: app.metrics.clone(), hangup: reload };
        // What shuts down is not changed any more.
        let stopping = shutdown.graceful.clone();
        _reload = Some(AbortOnDropHandle::new(tokio::spawn(async move { stopping.run_until_cancelled(keeping.run()).await })));
    }

    let (mut tasks, mut names) = (JoinSet::new(), HashMap::new());
    let mut statuses = statuses.into_iter();
    for relay in &relays {
        // In the order of `Relay::names`.
        let Some(status) = statuses.next() else { break };
        let deliveries = if relay.fan_out.is_some() { statuses.next() } else { None };
        let name = relay.name.clone();
        let turn = turns.get(&name).cloned().unwrap_or_default();
        let member = Member { app: app.clone(), name: name.clone(), status, deliveries, adapters: Arc::clone(&adapters), turn, mode };
        names.insert(tasks.spawn(member.run(shutdown.clone())).id(), name);
    }
    let mut outcome = Outcome::default();
    let mut first_error = None;
    while let Some(ended) = tasks.join_next_with_id().await {
        let (id, result) = match ended {
            Ok((id, result)) => (id, result),
            Err(error) => {
                (error.id(), Err(AppError::RelayEnded { relay: String::new(), reason: format!("a fault in outhaul itself: {error}") }))
            }
        };
        let relay = names.remove(&id).unwrap_or_default();
        let error = match result {
            Ok(summaries) => {
                outcome.relays.extend(summaries);
                continue;
            }
            Err(AppError::RelayEnded { reason, .. }) => AppError::RelayEnded { relay, reason },
            Err(error) => error,
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
