//! What a storage offers beside [`Storage`] to keep the deliveries of fan-out: a trait, and the types of its calls.

use crate::bindings::storage::exports::outhaul::adapter::storage_fan_out as exported;
use crate::storage::{ClaimRequest, Claimed, Storage};
use crate::{Batch, Column, Failure};

pub use exported::{
    Change as StatusChange, Delivery, DeliveryCounts, DeliveryFilter, DeliveryPage, DeliverySettlement, DeliveryState, DeliveryVerdict,
    Events, Expansion, Reemitted, SealedPage, Subject,
};

/// A storage that keeps deliveries. The calls are described in `wit/fan-out.wit`.
#[allow(clippy::missing_errors_doc, reason = "all return the failures that wit/fan-out.wit describes")]
pub trait FanOutStorage: Storage {
    /// Leases events that are due, of one tenant or of all in turn.
    fn claim_events(&mut self, request: &ClaimRequest, tenant: Option<&str>) -> Result<Events, Failure>;
    /// Inserts deliveries and completes their events in one transaction; returns the events no longer held.
    fn expand(&mut self, worker: &str, expansions: &[Expansion], deliveries: &Batch) -> Result<Vec<String>, Failure>;
    /// Leases deliveries that are due, of one tenant or of all in turn.
    fn claim_deliveries(&mut self, request: &ClaimRequest, tenant: Option<&str>, horizon_ms: u64) -> Result<Claimed, Failure>;
    /// Writes verdicts; returns ids no longer held.
    fn settle_deliveries(&mut self, worker: &str, settlements: &[DeliverySettlement]) -> Result<Vec<String>, Failure>;
    /// Renews leases; returns ids no longer held.
    fn extend_deliveries(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure>;
    /// Counts.
    fn delivery_stats(&mut self) -> Result<DeliveryCounts, Failure>;
    /// Makes a settled event pending again, as its next generation.
    fn reemit(&mut self, tenant: &str, event: &str) -> Result<Reemitted, Failure>;
    /// Deliveries in the order of insertion.
    fn list_deliveries(&mut self, filter: &DeliveryFilter, after: Option<&str>, limit: u32) -> Result<DeliveryPage, Failure>;
    /// Makes quarantined deliveries pending again; returns how many.
    fn requeue_deliveries(&mut self, filter: &DeliveryFilter) -> Result<u64, Failure>;
    /// Deliveries that are sealed under another key version.
    fn list_sealed(&mut self, newest: &str, after: Option<&str>, limit: u32, max_bytes: u64) -> Result<SealedPage, Failure>;
    /// Replaces envelopes that still have the key version before; returns how many.
    fn reseal(&mut self, deliveries: &Batch, previous: &Column) -> Result<u32, Failure>;
    /// Changes behind a position.
    fn read_status(&mut self, tenant: &str, after: u64, limit: u32) -> Result<Vec<StatusChange>, Failure>;
    /// Up to where a reader has read.
    fn checkpoint(&mut self, tenant: &str, reader: &str) -> Result<u64, Failure>;
    /// Moves it, if it is where it is expected.
    fn advance(&mut self, tenant: &str, reader: &str, expected: u64, through: u64) -> Result<bool, Failure>;
    /// Old complete and suppressed deliveries are deleted.
    fn purge_deliveries(&mut self, older_than_ms: u64, limit: u32) -> Result<u64, Failure>;
}
