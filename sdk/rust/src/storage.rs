//! The storage side: a trait with everything a storage can offer, and the slot that holds the opened instance.

use crate::bindings::storage::exports::outhaul::adapter as exported;
use crate::{Batch, Column, Failure};

pub use exported::storage::{
    ClaimRequest, Claimed, Counts, Description, Notification as NotificationSource, Refusal, Retry, Settlement, Verdict, WakeSource,
};
pub use exported::storage_admin::{Filter, Page, Row, RowState};
pub use exported::storage_fused::Turn;

/// A storage adapter. The calls are described in `wit/outbox.wit`.
#[allow(clippy::missing_errors_doc, reason = "all return the failures that wit/outbox.wit describes")]
pub trait Storage: Sized {
    /// Opens the database that `config` names; changes nothing in it.
    fn open(config: &str) -> Result<(Self, Description), Failure>;
    /// Leases rows that are due.
    fn claim(&mut self, request: &ClaimRequest) -> Result<Claimed, Failure>;
    /// Writes verdicts; returns ids no longer held.
    fn settle(&mut self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure>;
    /// Both in one transaction.
    fn settle_and_claim(&mut self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure>;
    /// Renews leases; returns ids no longer held.
    fn extend(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure>;
    /// Counts.
    fn stats(&mut self) -> Result<Counts, Failure>;
    /// The DDL as text.
    fn schema(&mut self) -> Result<String, Failure>;
    /// Runs the DDL.
    fn create_schema(&mut self) -> Result<(), Failure>;
    /// Inserts messages; returns their ids.
    fn enqueue(&mut self, batch: &Batch) -> Result<Vec<String>, Failure>;
    /// Rows in insertion order.
    fn browse(&mut self, filter: &Filter, after: Option<&str>, limit: u32, with_messages: bool) -> Result<Page, Failure>;
    /// Dead rows become pending.
    fn requeue(&mut self, filter: &Filter) -> Result<u64, Failure>;
    /// Dead rows are deleted.
    fn discard(&mut self, filter: &Filter) -> Result<u64, Failure>;
    /// Old delivered rows are deleted.
    fn purge(&mut self, older_than_ms: u64, limit: u32) -> Result<u64, Failure>;
}

/// The least that works as a storage: the world `storage-adapter`. The calls are described in `wit/outbox.wit`. Without the rest of
/// [`Storage`], a relay settles and claims in two calls, and the commands that fill and look at the table (`outhaul enqueue`, `schema`,
/// `dead`, `purge`) do not work with it. Every [`Storage`] is one.
#[allow(clippy::missing_errors_doc, reason = "all return the failures that wit/outbox.wit describes")]
pub trait MinimalStorage: Sized {
    /// Opens the database that `config` names; changes nothing in it.
    fn open(config: &str) -> Result<(Self, Description), Failure>;
    /// Leases rows that are due.
    fn claim(&mut self, request: &ClaimRequest) -> Result<Claimed, Failure>;
    /// Writes verdicts; returns ids no longer held.
    fn settle(&mut self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure>;
    /// Renews leases; returns ids no longer held.
    fn extend(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure>;
    /// Counts.
    fn stats(&mut self) -> Result<Counts, Failure>;
}

impl<S: Storage> MinimalStorage for S {
    fn open(config: &str) -> Result<(Self, Description), Failure> {
        <S as Storage>::open(config)
    }

    fn claim(&mut self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        Storage::claim(self, request)
    }

    fn settle(&mut self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        Storage::settle(self, worker, settlements)
    }

    fn extend(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure> {
        Storage::extend(self, worker, ids, lease_ms)
    }

    fn stats(&mut self) -> Result<Counts, Failure> {
        Storage::stats(self)
    }
}

/// Holds the opened instance.
#[derive(Debug)]
pub struct StorageSlot<S>(std::cell::RefCell<Option<S>>);

impl<S: MinimalStorage> StorageSlot<S> {
    /// An empty slot.
    #[must_use]
    pub const fn new() -> Self {
        Self(std::cell::RefCell::new(None))
    }

    /// Opens.
    ///
    /// # Errors
    /// Those of the adapter.
    pub fn open(&self, config: &str) -> Result<Description, Failure> {
        let (storage, description) = S::open(config)?;
        *self.0.borrow_mut() = Some(storage);
        Ok(description)
    }

    /// Calls the opened instance.
    ///
    /// # Errors
    /// Those of the call; `invalid-configuration` if it was not opened.
    pub fn call<T>(&self, call: impl FnOnce(&mut S) -> Result<T, Failure>) -> Result<T, Failure> {
        match self.0.borrow_mut().as_mut() {
            Some(storage) => call(storage),
            None => Err(Failure::invalid_configuration("the storage was called before open")),
        }
    }
}

impl<S: MinimalStorage> Default for StorageSlot<S> {
    fn default() -> Self {
        Self::new()
    }
}
