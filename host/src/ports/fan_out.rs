//! What fan-out needs from outside: a storage that keeps deliveries, and a router that knows the subscribers.

use super::{ClaimRequest, Claimed};
use crate::domain::{Batch, Column, Failure};
use async_trait::async_trait;
use std::time::Duration;

#[cfg(test)]
pub(crate) mod memory;

/// Events under a lease, to be expanded. The columns have one value a message of the batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Events {
    /// Leased and refused rows.
    pub claimed: Claimed,
    /// Tenants; empty text: none.
    pub tenants: Vec<String>,
    /// Emission generations, from 1.
    pub generations: Vec<u32>,
}

/// How an event was expanded: so many deliveries, next in the batch that comes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expansion {
    /// Id of the event.
    pub event: String,
    /// Its generation, as claimed.
    pub generation: u32,
    /// Deliveries.
    pub deliveries: u32,
}

/// What is written back to deliveries. The code of each failure is a word of [`crate::fan_out::Code`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryVerdict {
    /// The subscriber has it.
    Complete,
    /// Due again after the delay.
    Retry {
        /// Why.
        failure: Failure,
        /// By the database's clock.
        delay: Duration,
    },
    /// Not tried: the attempt is given back.
    Release {
        /// By the database's clock.
        delay: Duration,
    },
    /// On purpose not sent any more.
    Suppressed(Failure),
    /// Not sent as it is.
    Quarantined(Failure),
}

/// One verdict for many deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliverySettlement {
    /// What is written back.
    pub verdict: DeliveryVerdict,
    /// Ids.
    pub ids: Column,
}

/// Counts of deliveries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct DeliveryStats {
    /// Neither complete nor suppressed nor quarantined.
    pub pending: u64,
    /// Pending, due now and not leased.
    pub due: u64,
    /// Pending and under a lease.
    pub leased: u64,
    /// Suppressed.
    pub suppressed: u64,
    /// Quarantined.
    pub quarantined: u64,
    /// Age of the oldest pending delivery in milliseconds.
    pub oldest_pending_ms: Option<u64>,
}

/// What the pipeline needs of a storage that keeps deliveries. See `storage-fan-out` of the WIT package.
#[async_trait]
pub trait FanOutStorage: Send + Sync {
    /// Leases events; of one tenant, or of all in turn.
    async fn claim_events(&self, request: &ClaimRequest, tenant: Option<&str>) -> Result<Events, Failure>;
    /// Inserts deliveries and completes their events; returns the events no longer held.
    async fn expand(&self, worker: &str, expansions: &[Expansion], deliveries: &Batch) -> Result<Vec<String>, Failure>;
    /// Leases deliveries; of one tenant, or of all in turn. Those older than the horizon are quarantined.
    async fn claim_deliveries(&self, request: &ClaimRequest, tenant: Option<&str>, horizon: Option<Duration>) -> Result<Claimed, Failure>;
    /// Writes verdicts; returns the ids no longer held.
    async fn settle_deliveries(&self, worker: &str, settlements: &[DeliverySettlement]) -> Result<Vec<String>, Failure>;
    /// Renews leases; returns the ids no longer held.
    async fn extend_deliveries(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure>;
    /// Counts.
    async fn delivery_stats(&self) -> Result<DeliveryStats, Failure>;
}

/// What came of asking for a new emission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reemitted {
    /// The event will be expanded again, as this generation.
    Generation(u32),
    /// The tenant has no such event.
    Unknown,
    /// It waits to be expanded as this generation: nothing was changed.
    Pending(u32),
}

/// State of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "described in wit/fan-out.wit")]
pub enum DeliveryState {
    Pending,
    Leased,
    Complete,
    Suppressed,
    Quarantined,
}

/// Which deliveries of a tenant are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    /// The tenant.
    pub tenant: String,
    /// None: every state.
    pub state: Option<DeliveryState>,
    /// None: every event.
    pub event: Option<String>,
    /// None: every subscriber.
    pub subscriber: Option<String>,
    /// Empty: every id.
    pub ids: Vec<String>,
}

/// A delivery, as an operator sees it: nothing of what is sealed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Delivery {
    /// Id.
    pub id: String,
    /// Id of the event.
    pub event: String,
    /// Generation of the event.
    pub generation: u32,
    /// Topic of the event.
    pub topic: String,
    /// Subscriber.
    pub subscriber: String,
    /// The same for every attempt.
    pub idempotency_key: String,
    /// Version of the key that it is sealed with.
    pub key_version: String,
    /// State.
    pub state: DeliveryState,
    /// Claims so far.
    pub attempts: u32,
    /// Milliseconds until it is due.
    pub due_in_ms: u64,
    /// Code of the last failure.
    pub code: Option<String>,
    /// What was recorded with it.
    pub detail: Option<String>,
    /// Unix milliseconds.
    pub created_at: u64,
}

/// A page of deliveries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryPage {
    /// In the order of insertion.
    pub deliveries: Vec<Delivery>,
    /// Where the next page starts; none: this was the last.
    pub next: Option<String>,
}

/// Sealed deliveries, as messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SealedPage {
    /// With routing columns as headers and envelopes as payloads.
    pub deliveries: Batch,
    /// Where the next page starts; none: this was the last.
    pub next: Option<String>,
}

/// What a change is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "described in wit/fan-out.wit")]
pub enum Subject {
    Event,
    Delivery,
}

/// An entry of the status log.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Change {
    /// In the sequence of its tenant.
    pub position: u64,
    /// Unix milliseconds, by the database's clock.
    pub at: u64,
    /// What it is about.
    pub subject: Subject,
    /// Id of the event.
    pub event: String,
    /// Generation of the event.
    pub generation: u32,
    /// Id of the delivery.
    pub delivery: Option<String>,
    /// Its subscriber.
    pub subscriber: Option<String>,
    /// What it has become.
    pub state: String,
    /// Why.
    pub code: Option<String>,
}

/// What the command line and the admin API need of it.
#[async_trait]
pub trait FanOutAdmin: Send + Sync {
    /// Makes a settled event pending again, as its next generation.
    async fn reemit(&self, tenant: &str, event: &str) -> Result<Reemitted, Failure>;
    /// Deliveries in the order of insertion.
    async fn list_deliveries(&self, filter: &DeliveryFilter, after: Option<&str>, limit: u32) -> Result<DeliveryPage, Failure>;
    /// Makes quarantined deliveries that the filter names pending again; returns how many.
    async fn requeue_deliveries(&self, filter: &DeliveryFilter) -> Result<u64, Failure>;
    /// Deliveries that are sealed under another key version.
    async fn list_sealed(&self, newest: &str, after: Option<&str>, limit: u32, max_bytes: u64) -> Result<SealedPage, Failure>;
    /// Replaces envelopes that still have the key version before; returns how many.
    async fn reseal(&self, deliveries: &Batch, previous: &Column) -> Result<u32, Failure>;
    /// Changes behind a position.
    async fn read_status(&self, tenant: &str, after: u64, limit: u32) -> Result<Vec<Change>, Failure>;
    /// Up to where a reader has read.
    async fn checkpoint(&self, tenant: &str, reader: &str) -> Result<u64, Failure>;
    /// Moves it, if it is where it is expected.
    async fn advance(&self, tenant: &str, reader: &str, expected: u64, through: u64) -> Result<bool, Failure>;
    /// Old complete and suppressed deliveries are deleted, at most `limit`.
    async fn purge_deliveries(&self, older_than: Duration, limit: u32) -> Result<u64, Failure>;
}

/// A subscriber as it is now. No `Debug`: URL and authentication are not for logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Tenant.
    pub tenant: String,
    /// Unique within the tenant.
    pub subscriber: String,
    /// On whose behalf; may be empty.
    pub principal: String,
    /// Absolute URL.
    pub url: String,
    /// Names signing material.
    pub signing_scope: Option<String>,
    /// JSON object.
    pub authentication: Option<String>,
    /// Changes whenever the subscription does.
    pub revision: String,
}

/// Asks for one subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry {
    /// Tenant.
    pub tenant: String,
    /// Subscriber.
    pub subscriber: String,
    /// Topic of the event.
    pub topic: String,
}

/// Says who subscribes to what. An error of the call stands for each answer.
#[async_trait]
pub trait Router: Send + Sync {
    /// The subscribers of each event: one snapshot; as many answers as events.
    async fn expand(
        &self,
        events: &Batch,
        tenants: &[String],
        deadline: Duration,
    ) -> Result<Vec<Result<Vec<Subscription>, Failure>>, Failure>;
    /// Each subscription as it is now; as many answers as inquiries.
    async fn current(&self, inquiries: &[Inquiry], deadline: Duration) -> Result<Vec<Result<Option<Subscription>, Failure>>, Failure>;
}
