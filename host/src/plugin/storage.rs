//! Storages that are components: the ports [`Storage`] and [`StorageAdmin`] over the world `storage-adapter` and its optional
//! exports.
//!
//! Several instances work at once, so that claiming, settling and renewing leases do not wait for each other.

use super::Generation;
use super::bindings::{outbox, sql, storage_admin, storage_export as export, storage_fan_out, storage_fused};
use super::convert;
use super::fan_out::CALLS;
use super::instance::{Adapter, BoxFuture, Call, World};
use super::manifest::Anatomy;
use super::state::State;
use crate::domain::{Batch, Column, Failure, FailureCode, Settlement};
use crate::ports::{ClaimRequest, Claimed, Description, Filter, Page, Stats, Storage, StorageAdmin, Turn, WakeSource};
use async_trait::async_trait;
use std::collections::HashSet;
use std::time::Duration;
use wasmtime::Store;
use wasmtime::component::{HasSelf, Instance, InstancePre, Linker};

/// Instances of one storage: one each for claim, settle and extend, and one for what a person asks. With fan-out, deliveries have as many
/// calls again, and events are expanded by two at once.
pub(super) fn instances(anatomy: &Anatomy) -> usize {
    if anatomy.has_fan_out() { 9 } else { 4 }
}

/// The exports of the world: the required one and those that the component has besides.
pub(super) struct StorageWorld {
    storage: export::GuestIndices,
    fused: Option<storage_fused::GuestIndices>,
    admin: Option<storage_admin::GuestIndices>,
    fan_out: Option<storage_fan_out::GuestIndices>,
}

/// The exports of one instance.
pub(super) struct Exports {
    storage: export::Guest,
    fused: Option<storage_fused::Guest>,
    admin: Option<storage_admin::Guest>,
    pub(super) fan_out: Option<storage_fan_out::Guest>,
}

impl StorageWorld {
    pub(super) fn of(pre: &InstancePre<State>, anatomy: &Anatomy) -> wasmtime::Result<Self> {
        Ok(Self {
            storage: export::GuestIndices::new(pre)?,
            fused: anatomy.has_fused().then(|| storage_fused::GuestIndices::new(pre)).transpose()?,
            admin: anatomy.has_admin().then(|| storage_admin::GuestIndices::new(pre)).transpose()?,
            fan_out: anatomy.has_fan_out().then(|| storage_fan_out::GuestIndices::new(pre)).transpose()?,
        })
    }

    /// What the host offers to storages besides what every adapter gets.
    pub(super) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
        sql::add_to_linker::<State, HasSelf<State>>(linker, |state| state)
    }
}

impl World for StorageWorld {
    type Exports = Exports;
    type Opened = export::Description;

    fn calls(&self) -> Vec<&'static str> {
        let fused = self.fused.as_ref().map(|_| "settle-and-claim");
        let fan_out = self.fan_out.as_ref().map(|_| CALLS).into_iter().flatten();
        ["claim", "settle", "extend", "stats"].into_iter().chain(fused).chain(fan_out).collect()
    }

    fn load(&self, store: &mut Store<State>, instance: &Instance) -> wasmtime::Result<Exports> {
        Ok(Exports {
            storage: self.storage.load(&mut *store, instance)?,
            fused: self.fused.as_ref().map(|fused| fused.load(&mut *store, instance)).transpose()?,
            admin: self.admin.as_ref().map(|admin| admin.load(&mut *store, instance)).transpose()?,
            fan_out: self.fan_out.as_ref().map(|fan_out| fan_out.load(&mut *store, instance)).transpose()?,
        })
    }

    fn open<'a>(
        exports: &'a Exports,
        store: &'a mut Store<State>,
        config: &'a str,
    ) -> BoxFuture<'a, wasmtime::Result<Result<export::Description, outbox::Failure>>> {
        Box::pin(async move { exports.storage.call_open(store, config).await })
    }
}

/// Refuses a description whose wake source names a database that the storage was not granted: the host would watch it.
pub(super) fn check_description(adapter: &Adapter<StorageWorld>, description: Description) -> Result<Description, Failure> {
    let (WakeSource::DataVersion(database) | WakeSource::Notification { database, .. }) = &description.wake else {
        return Ok(description);
    };
    match adapter.shared().policy.check_database(database) {
        Ok(()) => Ok(description),
        Err(denial) => Err(adapter.nonsense("open", &format!("returned a wake source that it may not have: {denial}"))),
    }
}

/// A storage that runs in the sandbox.
pub struct StoragePlugin {
    pub(super) adapter: Adapter<StorageWorld>,
    description: Description,
    has_fused: bool,
    has_admin: bool,
    has_fan_out: bool,
    generation: Generation,
}

impl std::fmt::Debug for StoragePlugin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "StoragePlugin({})", self.adapter.shared().identity)
    }
}

impl StoragePlugin {
    pub(super) fn new(adapter: Adapter<StorageWorld>, description: Description, anatomy: &Anatomy, generation: Generation) -> Self {
        let (has_fused, has_admin, has_fan_out) = (anatomy.has_fused(), anatomy.has_admin(), anatomy.has_fan_out());
        Self { adapter, description, has_fused, has_admin, has_fan_out, generation }
    }

    /// Which component it is.
    #[must_use]
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Whether the component exports `settle-and-claim`, whether or not it prefers it.
    #[must_use]
    pub fn has_fused(&self) -> bool {
        self.has_fused
    }

    /// Whether the component exports what the command line needs ([`StorageAdmin`]).
    #[must_use]
    pub fn has_admin(&self) -> bool {
        self.has_admin
    }

    /// Whether the component keeps deliveries ([`crate::ports::fan_out::FanOutStorage`]).
    #[must_use]
    pub fn has_fan_out(&self) -> bool {
        self.has_fan_out
    }

    pub(super) fn of(&self, name: &'static str) -> Call {
        Call::of(name, self.adapter.shared().limits.call_timeout)
    }

    pub(super) fn nonsense(&self, call: &'static str, text: &str) -> Failure {
        self.adapter.nonsense(call, text)
    }

    /// The request, with no more bytes than the adapter can hand over and hold: after the commit it is too late to find that out.
    pub(super) fn request_out(&self, request: &ClaimRequest) -> export::ClaimRequest {
        let most = self.adapter.shared().limits.most_claimed_bytes();
        let mut out = convert::request_out(request);
        out.max_bytes = out.max_bytes.min(u64::try_from(most).unwrap_or(u64::MAX));
        out
    }

    pub(super) fn check_claimed(&self, call: &'static str, claimed: &Claimed, request: &ClaimRequest) -> Result<(), Failure> {
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        claimed.batch.check(limit).map_err(|fault| self.nonsense(call, &format!("returned a broken batch: {fault}")))
    }

    /// Ids that the guest says are lost must be among those that it was given.
    pub(super) fn check_lost<'a>(
        &self,
        call: &'static str,
        lost: &[String],
        given: impl Iterator<Item = &'a Column>,
    ) -> Result<(), Failure> {
        if lost.is_empty() {
            return Ok(());
        }
        let given: HashSet<&[u8]> = given.flat_map(Column::iter).flatten().collect();
        match lost.iter().find(|id| !given.contains(id.as_bytes())) {
            Some(id) => Err(self.nonsense(call, &format!("returned the id \"{id}\", which it was not given"))),
            None => Ok(()),
        }
    }

    /// Calls an export of the admin interface.
    async fn admin<R, F>(&self, name: &'static str, run: F) -> Result<R, Failure>
    where
        R: Send + 'static,
        F: for<'a> FnOnce(&'a storage_admin::Guest, &'a mut Store<State>) -> BoxFuture<'a, wasmtime::Result<Result<R, outbox::Failure>>>
            + Send
            + 'static,
    {
        if !self.has_admin {
            let text = format!(
                "{}: its component does not export outhaul:adapter/storage-admin, so it cannot {name}",
                self.adapter.shared().identity
            );
            return Err(Failure::new(FailureCode::InvalidConfiguration, text));
        }
        self.adapter
            .try_call(self.of(name), move |exports, store| match &exports.admin {
                Some(admin) => run(admin, store),
                None => Box::pin(std::future::ready(Err(wasmtime::Error::msg("the export storage-admin is missing")))),
            })
            .await
    }
}

#[async_trait]
impl Storage for StoragePlugin {
    fn description(&self) -> Description {
        self.description.clone()
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        let out = self.request_out(request);
        let claimed = self
            .adapter
            .try_call(self.of("claim"), move |exports, store| Box::pin(async move { exports.storage.call_claim(store, &out).await }))
            .await?;
        let claimed = convert::claimed_in(claimed);
        self.check_claimed("claim", &claimed, request)?;
        Ok(claimed)
    }

    async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        let (worker, out) = (worker.to_owned(), convert::settlements_out(settlements));
        let lost = self
            .adapter
            .try_call(self.of("settle"), move |exports, store| {
                Box::pin(async move { exports.storage.call_settle(store, &worker, &out).await })
            })
            .await?;
        self.check_lost("settle", &lost, settlements.iter().map(|settlement| &settlement.ids))?;
        Ok(lost)
    }

    async fn settle_and_claim(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        let (out, claim) = (convert::settlements_out(settlements), self.request_out(request));
        let turn = self
            .adapter
            .try_call(self.of("settle-and-claim"), move |exports, store| {
                Box::pin(async move {
                    match &exports.fused {
                        Some(fused) => fused.call_settle_and_claim(store, &out, &claim).await,
                        None => Err(wasmtime::Error::msg("the export storage-fused is missing")),
                    }
                })
            })
            .await?;
        self.check_lost("settle-and-claim", &turn.lost, settlements.iter().map(|settlement| &settlement.ids))?;
        let claimed = convert::claimed_in(turn.claimed);
        self.check_claimed("settle-and-claim", &claimed, request)?;
        Ok(Turn { lost: turn.lost, claimed })
    }

    async fn extend(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        let (worker, out, lease_ms) = (worker.to_owned(), convert::column_out(ids.clone()), convert::millis(lease));
        let lost = self
            .adapter
            .try_call(self.of("extend"), move |exports, store| {
                Box::pin(async move { exports.storage.call_extend(store, &worker, &out, lease_ms).await })
            })
            .await?;
        self.check_lost("extend", &lost, std::iter::once(ids))?;
        Ok(lost)
    }

    async fn stats(&self) -> Result<Stats, Failure> {
        let counts = self
            .adapter
            .try_call(self.of("stats"), |exports, store| Box::pin(async move { exports.storage.call_stats(store).await }))
            .await?;
        Ok(convert::stats_in(counts))
    }
}

#[async_trait]
impl StorageAdmin for StoragePlugin {
    async fn schema(&self) -> Result<String, Failure> {
        self.admin("schema", |admin, store| Box::pin(async move { admin.call_schema(store).await })).await
    }

    async fn create_schema(&self) -> Result<(), Failure> {
        self.admin("create-schema", |admin, store| Box::pin(async move { admin.call_create_schema(store).await })).await
    }

    async fn enqueue(&self, batch: &Batch) -> Result<Vec<String>, Failure> {
        let (messages, batch) = (batch.len(), convert::batch_out(batch.clone()));
        let ids = self.admin("enqueue", move |admin, store| Box::pin(async move { admin.call_enqueue(store, &batch).await })).await?;
        if ids.len() != messages {
            return Err(self.nonsense("enqueue", &format!("returned {} ids for {messages} messages", ids.len())));
        }
        Ok(ids)
    }

    async fn browse(&self, filter: &Filter, after: Option<&str>, limit: u32, with_messages: bool) -> Result<Page, Failure> {
        let (filter, after) = (convert::filter_out(filter), after.map(str::to_owned));
        let page = self
            .admin("browse", move |admin, store| {
                Box::pin(async move { admin.call_browse(store, &filter, after.as_deref(), limit, with_messages).await })
            })
            .await?;
        let page = convert::page_in(page);
        let (rows, limit) = (page.rows.len(), usize::try_from(limit).unwrap_or(usize::MAX));
        if rows > limit {
            return Err(self.nonsense("browse", &format!("returned {rows} rows where at most {limit} were asked for")));
        }
        if let Some(batch) = &page.messages {
            batch.check(limit).map_err(|fault| self.nonsense("browse", &format!("returned a broken batch: {fault}")))?;
            if batch.len() != rows {
                return Err(self.nonsense("browse", &format!("returned {} messages for {rows} rows", batch.len())));
            }
        }
        Ok(page)
    }

    async fn requeue(&self, filter: &Filter) -> Result<u64, Failure> {
        let filter = convert::filter_out(filter);
        self.admin("requeue", move |admin, store| Box::pin(async move { admin.call_requeue(store, &filter).await })).await
    }

    async fn discard(&self, filter: &Filter) -> Result<u64, Failure> {
        let filter = convert::filter_out(filter);
        self.admin("discard", move |admin, store| Box::pin(async move { admin.call_discard(store, &filter).await })).await
    }

    async fn purge(&self, older_than: Duration, limit: u32) -> Result<u64, Failure> {
        let older_than_ms = convert::millis(older_than);
        self.admin("purge", move |admin, store| Box::pin(async move { admin.call_purge(store, older_than_ms, limit).await })).await
    }
}
