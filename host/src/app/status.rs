//! What the process says of its relays: whether each is at work, and what is in its way.

use crate::relay::Health;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// What a relay is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Its adapters are being opened.
    Opening,
    /// Opening failed and is tried again; the reason.
    Waiting(String),
    /// At work.
    Running,
    /// It has ended.
    Ended,
}

/// One relay, seen from outside.
#[derive(Debug)]
pub struct RelayStatus {
    /// Its name.
    pub name: String,
    /// Wakes it.
    pub wake: Arc<Notify>,
    /// What it says of itself while it runs.
    pub health: Arc<Health>,
    phase: Mutex<Phase>,
}

impl RelayStatus {
    /// A relay that has not started.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), wake: Arc::default(), health: Arc::default(), phase: Mutex::new(Phase::Opening) }
    }

    /// Tells what it is doing now.
    pub fn set(&self, phase: Phase) {
        // The value is written in one step: a panic elsewhere cannot have left it half-written.
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn phase(&self) -> Phase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn report(&self) -> RelayReport {
        let (state, mut reason) = match self.phase() {
            Phase::Opening => ("opening", Some("its adapters are not open yet".to_owned())),
            Phase::Waiting(reason) => ("waiting", Some(reason)),
            Phase::Running => ("running", None),
            Phase::Ended => ("ended", Some("it has ended".to_owned())),
        };
        if reason.is_none() {
            reason = self.health.storage_error().map(|error| format!("its storage does not answer: {error}"));
        }
        RelayReport { relay: self.name.clone(), ready: reason.is_none(), state, reason, open_breakers: self.health.open_breakers() }
    }
}

/// Every relay of the process.
#[derive(Debug, Clone)]
pub struct Status {
    relays: Arc<[Arc<RelayStatus>]>,
    stopping: CancellationToken,
}

/// What `/readyz` answers.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether every relay is at work and the process is not shutting down.
    pub ready: bool,
    /// Whether the process is shutting down.
    pub stopping: bool,
    /// One entry a relay.
    pub relays: Vec<RelayReport>,
}

/// One relay in what `/readyz` answers.
#[derive(Debug, Serialize)]
pub struct RelayReport {
    /// Its name.
    pub relay: String,
    /// Whether it is at work.
    pub ready: bool,
    /// `opening`, `waiting`, `running` or `ended`.
    pub state: &'static str,
    /// Why it is not ready.
    pub reason: Option<String>,
    /// Publishers whose destination is down. They do not make the process unready: no restart and no other instance would
    /// reach that destination, while the other routes go on.
    pub open_breakers: Vec<String>,
}

impl Status {
    /// The relays of a process that shuts down when `stopping` is cancelled.
    #[must_use]
    pub fn new(relays: Vec<Arc<RelayStatus>>, stopping: CancellationToken) -> Self {
        Self { relays: relays.into(), stopping }
    }

    /// How things are now.
    #[must_use]
    pub fn report(&self) -> Report {
        let relays: Vec<RelayReport> = self.relays.iter().map(|relay| relay.report()).collect();
        let stopping = self.stopping.is_cancelled();
        Report { ready: !stopping && relays.iter().all(|relay| relay.ready), stopping, relays }
    }

    /// Lets every relay look for work now; returns their names.
    pub fn wake(&self) -> Vec<String> {
        self.relays
            .iter()
            .map(|relay| {
                relay.wake.notify_one();
                relay.name.clone()
            })
            .collect()
    }

    /// What wakes each relay.
    #[must_use]
    pub fn wakes(&self) -> Vec<Arc<Notify>> {
        self.relays.iter().map(|relay| Arc::clone(&relay.wake)).collect()
    }
}
