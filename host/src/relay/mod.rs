//! The pipeline: claims rows, publishes them, settles them, all three at the same time.
//!
//! ```text
//!               claim                    assemble                  outcomes                 settle
//!   storage ------------> dispatcher -----------------> lanes ------------------> settler ----------> storage
//!                (queues per key)      (publish calls)             (groups)    (fused with the next claim
//!                                                                               where the storage prefers it)
//! ```
//! One task, [`pipeline`], owns all state and decides; it never waits for I/O. Calls to the storage and to publishers run as
//! tasks beside it and report back as events. What it decides with is pure and lives in files of its own: [`dispatcher`] (what
//! may be published next), [`settler`] (what is written together), [`poller`] (when to claim), [`breaker`] (whether the
//! destination lives), [`routes`] (which publisher).
//!
//! A message's way, and the verdict at each end:
//!
//! ```text
//!   claimed --> queued --> in a call --+--> delivered ................ Delivered
//!     |           |  ^         |       +--> retry, attempts left ..... Retry, its key's followers: Release
//!     |           |  +---------+       +--> retry, attempts used up .. Dead
//!     |           |                    +--> settled by the publisher .. nothing: it is written already
//!     |           |                    +--> nobody to ask (halves) .. Release, after the first time
//!     |           |                    +--> lost ..................... nothing, its key's followers: Release
//!     |           |   held, or the     +--> reject ................... Dead
//!     |           |   call failed      +--> outage, breaker open ..... Release
//!     |           +--> shutdown, or breaker open ..................... Release
//!     |           +--> lease over .................................... nothing: no longer ours
//!     +--> no route, too large ....................................... Dead
//! ```
//!
//! # Leases
//! A message is ours until `lease_until`, counted from before the claim was sent: always earlier than the database's own end.
//! [`renewal`] renews what is in memory, verdicts that wait to be written included, once a third of the lease is gone. A message is given to a lane only while a quarter of
//! its lease is left, and a call is cancelled when the lease of any of its messages ends. After a lease has ended (the process
//! was stopped, the storage was out of reach) later claims are made under a new worker name: what was claimed before can then
//! not be written back over a claim of our own.

mod breaker;
mod dispatcher;
mod faults;
mod guard;
mod half;
mod health;
mod lane;
mod leases;
mod outcomes;
mod parties;
mod pipeline;
mod poller;
mod renewal;
mod routes;
mod settler;
mod store;
#[cfg(test)]
mod tests;
mod waits;

pub use half::{Half, Parties};
pub use health::Health;

use crate::config;
use crate::domain::Failure;
use crate::metrics::Metrics;
use crate::ports::{Publisher, Storage};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Whether to go on for ever, or until nothing is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Until shutdown.
    Run,
    /// Until nothing is due and nothing is in flight.
    Drain,
}

/// A publisher and how it is called.
#[derive(Clone)]
pub struct Lanes {
    /// The publisher.
    pub publisher: Arc<dyn Publisher>,
    /// Calls at once.
    pub lanes: usize,
    /// Most messages of a call.
    pub batch: usize,
    /// Most bytes of a call.
    pub batch_bytes: usize,
}

/// What a relay is made of.
pub struct Parts {
    /// Its configuration.
    pub config: config::model::Relay,
    /// Where rows come from.
    pub storage: Arc<dyn Storage>,
    /// Every publisher that the routes name.
    pub publishers: BTreeMap<String, Lanes>,
    /// Where it counts.
    pub metrics: Metrics,
    /// Worker name: unique for each process start.
    pub worker: String,
    /// Cuts an idle wait short.
    pub wake: Arc<Notify>,
    /// For ever, or until drained.
    pub mode: Mode,
    /// What it says of itself.
    pub health: Arc<Health>,
    /// Cancelled when what inserts its rows has ended: a drain does not end before. None: nothing of this process does.
    pub feeder: Option<CancellationToken>,
    /// Half of a fan-out; none: a pipeline that publishes rows.
    pub half: Option<Half>,
}

/// How to end.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Stop claiming, finish what is in flight, settle, hand the rest back.
    pub graceful: CancellationToken,
    /// End at once; leases run out by themselves.
    pub forced: CancellationToken,
}

/// What a relay did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Delivered and settled.
    pub sent: u64,
    /// Ended dead.
    pub failed: u64,
    /// Failed and waiting for a retry.
    pub retried: u64,
    /// Handed back untried.
    pub released: u64,
    /// Verdicts refused because the lease had passed to another worker.
    pub late: u64,
    /// A drain ended early because every publisher's circuit breaker was open: rows that are due may be left.
    pub breaker_open: bool,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.sent = self.sent.saturating_add(other.sent);
        self.failed = self.failed.saturating_add(other.failed);
        self.retried = self.retried.saturating_add(other.retried);
        self.released = self.released.saturating_add(other.released);
        self.late = self.late.saturating_add(other.late);
        self.breaker_open = self.breaker_open || other.breaker_open;
    }
}

/// Runs a relay until it is drained or shut down.
///
/// # Errors
/// In [`Mode::Drain`], when the storage fails several times in a row; the failure is the storage's. [`Mode::Run`] goes on trying.
pub async fn run(parts: Parts, shutdown: Shutdown) -> Result<Summary, Failure> {
    pipeline::Pipeline::new(parts).run(shutdown).await
}
