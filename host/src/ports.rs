//! What the pipeline needs from outside: a storage and a publisher. The pipeline knows these traits only, not WebAssembly:
//! adapters that are components and adapters that are plain Rust (tests, benchmarks) run in the same engine.

pub mod fan_out;

use crate::domain::{Batch, Column, Failure, Outcome, Settlement};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How the host learns of new rows sooner than by polling.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum WakeSource {
    /// Polling only.
    #[default]
    None,
    /// SQLite: watch the named database for commits of other connections.
    DataVersion(String),
    /// Postgres: listen to a channel of the named database.
    Notification {
        /// Database, by its name in the configuration.
        database: String,
        /// Channel.
        channel: String,
    },
}

/// What the pipeline has to know of an opened storage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Description {
    /// Rows of a key are claimed only behind all earlier ones.
    pub strict_order: bool,
    /// One fused settle-and-claim is faster than two calls at once, and the storage offers it.
    pub fused: bool,
    /// How to learn of new rows.
    pub wake: WakeSource,
}

/// See `claim-request` of the WIT package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Who claims.
    pub worker: String,
    /// At most so many rows.
    pub limit: u32,
    /// At most so many bytes of payload; the first row may be larger.
    pub max_bytes: u64,
    /// How long the lease lasts.
    pub lease: Duration,
    /// A row claimed so often already ends dead instead; 0: never.
    pub max_attempts: u32,
    /// A larger row ends dead instead.
    pub max_message_bytes: u64,
}

/// Rows that a claim leased, and rows that it ended dead instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claimed {
    /// Leased, in order.
    pub batch: Batch,
    /// Ended dead: id and reason.
    pub refused: Vec<(String, Failure)>,
    /// The search was cut short: claim again at once.
    pub unfinished: bool,
}

/// The result of a fused call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turn {
    /// Ids that the worker no longer held.
    pub lost: Vec<String>,
    /// What was claimed.
    pub claimed: Claimed,
}

/// Counts of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Neither delivered nor dead.
    pub pending: u64,
    /// Pending, due now and not leased.
    pub due: u64,
    /// Pending and under a lease.
    pub leased: u64,
    /// Ended dead.
    pub dead: u64,
    /// Age of the oldest pending row in milliseconds.
    pub oldest_pending_ms: Option<u64>,
}

/// A table of outbox rows, worked off under leases. Every call is atomic and may be repeated after a failure.
#[async_trait]
pub trait Storage: Send + Sync {
    /// What was said at opening.
    fn description(&self) -> Description;
    /// Leases rows that are due.
    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Failure>;
    /// Writes verdicts; returns the ids no longer held.
    async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure>;
    /// Settles, then claims, in one transaction. Only called where the description says `fused`.
    async fn settle_and_claim(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure>;
    /// Renews leases; returns the ids no longer held.
    async fn extend(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure>;
    /// Counts.
    async fn stats(&self) -> Result<Stats, Failure>;
}

/// Up to when the messages of a publish call are surely ours; moves on as their leases are renewed.
///
/// For whoever sends bytes: looked at right before they leave. After a pause of the whole process (SIGSTOP, a frozen
/// container) the clock knows at once what no timer has told yet.
#[derive(Debug)]
pub struct LeaseEnd {
    start: Instant,
    millis: AtomicU64,
}

impl LeaseEnd {
    /// Ends at `until`.
    #[must_use]
    pub fn new(until: Instant) -> Self {
        let end = Self { start: Instant::now(), millis: AtomicU64::new(0) };
        end.set(until);
        end
    }

    /// Moves the end.
    pub fn set(&self, until: Instant) {
        let millis = until.saturating_duration_since(self.start).as_millis();
        self.millis.store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Whether nothing more may be sent.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.start.elapsed().as_millis() >= u128::from(self.millis.load(Ordering::Acquire))
    }
}

/// Under which worker name each message of a publish call was claimed.
#[derive(Debug, Clone, Default)]
pub struct Workers {
    base: Arc<str>,
    epochs: Vec<u32>,
}

impl Workers {
    /// Of messages that a worker claimed in these epochs.
    #[must_use]
    pub fn new(base: Arc<str>, epochs: Vec<u32>) -> Self {
        Self { base, epochs }
    }

    /// The name under which message `index` is held.
    #[must_use]
    pub fn of(&self, index: usize) -> String {
        Self::name(&self.base, self.epochs.get(index).copied().unwrap_or_default())
    }

    /// The worker name of an epoch: a new epoch starts whenever a lease has ended, so that rows claimed before it can be told from
    /// rows claimed again since.
    #[must_use]
    pub fn name(base: &str, epoch: u32) -> String {
        format!("{base}.{epoch}")
    }
}

/// One publish call: how long it may take, where outcomes go as they come, and when to give up.
#[derive(Debug, Clone)]
pub struct PublishCall {
    /// The call may take so long.
    pub deadline: Duration,
    /// Early outcomes by message index. Bounded by the batch: the first report of each message counts.
    pub reports: mpsc::UnboundedSender<(usize, Outcome)>,
    /// Up to when anything may be sent.
    pub lease: Arc<LeaseEnd>,
    /// Cancelled when the leases of the messages are over: nothing more may be sent.
    pub cancel: CancellationToken,
    /// Who holds the messages.
    pub workers: Workers,
}

/// Sends messages to where they belong.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// Sends a batch: as many outcomes as messages, in their order. A failure means that the call itself went wrong (trap,
    /// time-out, nonsense): messages without a reported outcome are of unknown fate.
    async fn publish(&self, batch: Batch, call: PublishCall) -> Result<Vec<Outcome>, Failure>;
}

/// The state of a row, as an operator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RowState {
    /// Waiting to be claimed.
    Pending,
    /// Under a lease.
    Leased,
    /// Done.
    Delivered,
    /// Ended dead.
    Dead,
}

impl RowState {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Leased => "leased",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

/// Which rows an operator means.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// None: every state.
    pub state: Option<RowState>,
    /// None: every topic.
    pub topic: Option<String>,
    /// Empty: every id.
    pub ids: Vec<String>,
}

/// A row, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Row {
    /// Id.
    pub id: String,
    /// Topic.
    pub topic: String,
    /// Key.
    pub key: Option<String>,
    /// State.
    pub state: RowState,
    /// Claims so far.
    pub attempts: u32,
    /// Last recorded failure.
    pub last_error: Option<String>,
    /// Unix milliseconds; 0: unknown.
    pub created_at: u64,
    /// Milliseconds until it is due.
    pub due_in_ms: u64,
}

/// A page of rows.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The rows.
    pub rows: Vec<Row>,
    /// Their messages, if asked for.
    pub messages: Option<Batch>,
    /// Where the next page starts; none: this was the last.
    pub next: Option<String>,
}

/// What the command line needs of a storage.
#[async_trait]
pub trait StorageAdmin: Send + Sync {
    /// The DDL, as SQL text.
    async fn schema(&self) -> Result<String, Failure>;
    /// Runs the DDL.
    async fn create_schema(&self) -> Result<(), Failure>;
    /// Inserts messages; returns their ids.
    async fn enqueue(&self, batch: &Batch) -> Result<Vec<String>, Failure>;
    /// Rows in insertion order.
    async fn browse(&self, filter: &Filter, after: Option<&str>, limit: u32, with_messages: bool) -> Result<Page, Failure>;
    /// Dead rows become pending again.
    async fn requeue(&self, filter: &Filter) -> Result<u64, Failure>;
    /// Dead rows are deleted.
    async fn discard(&self, filter: &Filter) -> Result<u64, Failure>;
    /// Old delivered rows are deleted, at most `limit`.
    async fn purge(&self, older_than: Duration, limit: u32) -> Result<u64, Failure>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_end_is_over_when_it_is_and_moves_when_renewed() {
        let second = Duration::from_secs(1);
        let lease = LeaseEnd::new(Instant::now() + second);
        assert!(!lease.is_over());
        tokio::time::advance(second).await;
        assert!(lease.is_over());
        lease.set(Instant::now() + second);
        assert!(!lease.is_over());
    }
}
