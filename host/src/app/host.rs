//! The process: its relays side by side, its admin address, and its end by signals.

use super::member::{Member, Publishers};
use super::signals::Signals;
use super::status::{RelayStatus, Status};
use super::{App, AppError, worker_name};
use crate::admin;
use crate::config;
use crate::config::model::Relay;
use crate::relay::{Mode, Shutdown, Summary};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
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
        self.relays.values().fold(Summary::default(), |sum, one| Summary {
            sent: sum.sent.saturating_add(one.sent),
            failed: sum.failed.saturating_add(one.failed),
            retried: sum.retried.saturating_add(one.retried),
            released: sum.released.saturating_add(one.released),
            late: sum.late.saturating_add(one.late),
            breaker_open: sum.breaker_open || one.breaker_open,
        })
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
    let (mut tasks, mut names) = (JoinSet::new(), HashMap::new());
    for (relay, status) in relays.into_iter().zip(statuses) {
        let name = relay.name.clone();
        let member = Member { app: app.clone(), relay, status, publishers: Arc::clone(&publishers), worker: worker.clone(), mode };
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
            Ok(summary) => {
                outcome.relays.insert(relay, summary);
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
