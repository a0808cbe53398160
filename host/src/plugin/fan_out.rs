//! Storages that keep deliveries: the ports [`FanOutStorage`] and [`FanOutAdmin`] over the optional export `storage-fan-out`. Whatever
//! comes back is checked here.

use super::bindings::{outbox, storage_fan_out};
use super::convert::{batch_out, column_out, millis};
use super::convert_fan_out as convert;
use super::instance::BoxFuture;
use super::state::State;
use super::storage::StoragePlugin;
use crate::domain::{Batch, Column, Failure, FailureCode};
use crate::fan_out::binding::COLUMNS;
use crate::ports::fan_out::{
    Change, DeliveryFilter, DeliveryPage, DeliverySettlement, DeliveryStats, Events, Expansion, FanOutAdmin, FanOutStorage, Reemitted,
    SealedPage,
};
use crate::ports::{ClaimRequest, Claimed};
use async_trait::async_trait;
use std::time::Duration;
use wasmtime::Store;

/// What a relay calls of it, by the names under which calls are counted.
pub(super) const CALLS: [&str; 6] =
    ["claim-events", "expand", "claim-deliveries", "settle-deliveries", "extend-deliveries", "delivery-stats"];

impl StoragePlugin {
    /// Calls an export of the interface.
    async fn fan_out<R, F>(&self, name: &'static str, run: F) -> Result<R, Failure>
    where
        R: Send + 'static,
        F: for<'a> FnOnce(&'a storage_fan_out::Guest, &'a mut Store<State>) -> BoxFuture<'a, wasmtime::Result<Result<R, outbox::Failure>>>
            + Send
            + 'static,
    {
        if !self.has_fan_out() {
            let text = format!(
                "{}: its component does not export outhaul:adapter/storage-fan-out, so it cannot {name}",
                self.adapter.shared().identity
            );
            return Err(Failure::new(FailureCode::InvalidConfiguration, text));
        }
        self.adapter
            .try_call(self.of(name), move |exports, store| match &exports.fan_out {
                Some(fan_out) => run(fan_out, store),
                None => Box::pin(std::future::ready(Err(wasmtime::Error::msg("the export storage-fan-out is missing")))),
            })
            .await
    }

    /// Deliveries have the routing columns as headers, and no others.
    fn check_columns(&self, call: &'static str, batch: &Batch) -> Result<(), Failure> {
        let names = batch.header_names.iter().flatten();
        match names.into_iter().find(|name| !COLUMNS.iter().any(|column| column.as_bytes() == *name)) {
            None => Ok(()),
            Some(name) => {
                let name = String::from_utf8_lossy(name);
                Err(self.nonsense(call, &format!("returned the header \"{name}\", which is no routing column of a delivery")))
            }
        }
    }

    fn check_page(&self, call: &'static str, what: &str, found: usize, limit: u32) -> Result<(), Failure> {
        if found > usize::try_from(limit).unwrap_or(usize::MAX) {
            return Err(self.nonsense(call, &format!("returned {found} {what} where at most {limit} were asked for")));
        }
        Ok(())
    }
}

#[async_trait]
impl FanOutStorage for StoragePlugin {
    async fn claim_events(&self, request: &ClaimRequest, tenant: Option<&str>) -> Result<Events, Failure> {
        const CALL: &str = "claim-events";
        let (out, only) = (self.request_out(request), tenant.map(str::to_owned));
        let events = self
            .fan_out(CALL, move |guest, store| Box::pin(async move { guest.call_claim_events(store, &out, only.as_deref()).await }))
            .await?;
        let (claimed, tenants, generations) = convert::events_in(events);
        self.check_claimed(CALL, &claimed, request)?;
        let messages = claimed.batch.len();
        // Empty: there are no tenants.
        let tenants = if tenants.is_empty() { Column::of_texts(vec![""; messages]) } else { tenants };
        tenants
            .check_text(messages)
            .and_then(|()| tenants.check_present())
            .map_err(|fault| self.nonsense(CALL, &format!("returned a column of tenants that {fault}")))?;
        let tenants: Vec<String> = (0..messages).map(|index| tenants.text(index).unwrap_or_default().to_owned()).collect();
        if let Some(other) = tenant.and_then(|tenant| tenants.iter().find(|one| *one != tenant)) {
            return Err(self.nonsense(CALL, &format!("returned an event of the tenant {other:?}, which it was not asked for")));
        }
        if generations.len() != messages || generations.contains(&0) {
            let text = format!("returned {} generations for {messages} messages, or one of them is 0", generations.len());
            return Err(self.nonsense(CALL, &text));
        }
        Ok(Events { claimed, tenants, generations })
    }

    async fn expand(&self, worker: &str, expansions: &[Expansion], deliveries: &Batch) -> Result<Vec<String>, Failure> {
        const CALL: &str = "expand";
        let (worker, out, batch) = (worker.to_owned(), convert::expansions_out(expansions), batch_out(deliveries.clone()));
        let lost =
            self.fan_out(CALL, move |guest, store| Box::pin(async move { guest.call_expand(store, &worker, &out, &batch).await })).await?;
        let given = Column::of_texts(expansions.iter().map(|expansion| &expansion.event));
        self.check_lost(CALL, &lost, std::iter::once(&given))?;
        Ok(lost)
    }

    async fn claim_deliveries(&self, request: &ClaimRequest, tenant: Option<&str>, horizon: Option<Duration>) -> Result<Claimed, Failure> {
        const CALL: &str = "claim-deliveries";
        let (out, only, horizon) = (self.request_out(request), tenant.map(str::to_owned), horizon.map_or(0, millis));
        let claimed = self
            .fan_out(CALL, move |guest, store| {
                Box::pin(async move { guest.call_claim_deliveries(store, &out, only.as_deref(), horizon).await })
            })
            .await?;
        let claimed = super::convert::claimed_in(claimed);
        self.check_claimed(CALL, &claimed, request)?;
        self.check_columns(CALL, &claimed.batch)?;
        Ok(claimed)
    }

    async fn settle_deliveries(&self, worker: &str, settlements: &[DeliverySettlement]) -> Result<Vec<String>, Failure> {
        const CALL: &str = "settle-deliveries";
        let (worker, out) = (worker.to_owned(), convert::settlements_out(settlements));
        let lost = self
            .fan_out(CALL, move |guest, store| Box::pin(async move { guest.call_settle_deliveries(store, &worker, &out).await }))
            .await?;
        self.check_lost(CALL, &lost, settlements.iter().map(|settlement| &settlement.ids))?;
        Ok(lost)
    }

    async fn extend_deliveries(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        const CALL: &str = "extend-deliveries";
        let (worker, out, lease_ms) = (worker.to_owned(), column_out(ids.clone()), millis(lease));
        let lost = self
            .fan_out(CALL, move |guest, store| Box::pin(async move { guest.call_extend_deliveries(store, &worker, &out, lease_ms).await }))
            .await?;
        self.check_lost(CALL, &lost, std::iter::once(ids))?;
        Ok(lost)
    }

    async fn delivery_stats(&self) -> Result<DeliveryStats, Failure> {
        let counts = self.fan_out("delivery-stats", |guest, store| Box::pin(async move { guest.call_delivery_stats(store).await })).await?;
        Ok(convert::stats_in(counts))
    }
}

#[async_trait]
impl FanOutAdmin for StoragePlugin {
    async fn reemit(&self, tenant: &str, event: &str) -> Result<Reemitted, Failure> {
        let (tenant, event) = (tenant.to_owned(), event.to_owned());
        let reemitted =
            self.fan_out("reemit", move |guest, store| Box::pin(async move { guest.call_reemit(store, &tenant, &event).await })).await?;
        Ok(convert::reemitted_in(reemitted))
    }

    async fn list_deliveries(&self, filter: &DeliveryFilter, after: Option<&str>, limit: u32) -> Result<DeliveryPage, Failure> {
        const CALL: &str = "list-deliveries";
        let (filter, after) = (convert::filter_out(filter), after.map(str::to_owned));
        let page = self
            .fan_out(CALL, move |guest, store| {
                Box::pin(async move { guest.call_list_deliveries(store, &filter, after.as_deref(), limit).await })
            })
            .await?;
        let page = convert::page_in(page);
        self.check_page(CALL, "deliveries", page.deliveries.len(), limit)?;
        Ok(page)
    }

    async fn requeue_deliveries(&self, filter: &DeliveryFilter) -> Result<u64, Failure> {
        let filter = convert::filter_out(filter);
        self.fan_out("requeue-deliveries", move |guest, store| Box::pin(async move { guest.call_requeue_deliveries(store, &filter).await }))
            .await
    }

    async fn list_sealed(&self, newest: &str, after: Option<&str>, limit: u32, max_bytes: u64) -> Result<SealedPage, Failure> {
        const CALL: &str = "list-sealed";
        let (newest, after) = (newest.to_owned(), after.map(str::to_owned));
        let page = self
            .fan_out(CALL, move |guest, store| {
                Box::pin(async move { guest.call_list_sealed(store, &newest, after.as_deref(), limit, max_bytes).await })
            })
            .await?;
        let page = convert::sealed_in(page);
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        page.deliveries.check(most).map_err(|fault| self.nonsense(CALL, &format!("returned a broken batch: {fault}")))?;
        self.check_columns(CALL, &page.deliveries)?;
        Ok(page)
    }

    async fn reseal(&self, deliveries: &Batch, previous: &Column) -> Result<u32, Failure> {
        const CALL: &str = "reseal";
        let (given, batch, previous) = (deliveries.len(), batch_out(deliveries.clone()), column_out(previous.clone()));
        let replaced =
            self.fan_out(CALL, move |guest, store| Box::pin(async move { guest.call_reseal(store, &batch, &previous).await })).await?;
        if usize::try_from(replaced).map_or(true, |replaced| replaced > given) {
            return Err(self.nonsense(CALL, &format!("says that it has replaced {replaced} envelopes of {given}")));
        }
        Ok(replaced)
    }

    async fn read_status(&self, tenant: &str, after: u64, limit: u32) -> Result<Vec<Change>, Failure> {
        const CALL: &str = "read-status";
        let tenant = tenant.to_owned();
        let changes = self
            .fan_out(CALL, move |guest, store| Box::pin(async move { guest.call_read_status(store, &tenant, after, limit).await }))
            .await?;
        self.check_page(CALL, "changes", changes.len(), limit)?;
        let changes: Vec<Change> = changes.into_iter().map(convert::change_in).collect();
        let positions: Vec<u64> = std::iter::once(after).chain(changes.iter().map(|change| change.position)).collect();
        // Whoever reads on behind the last one must miss nothing.
        if !positions.is_sorted_by(|before, next| before < next) {
            return Err(self.nonsense(CALL, &format!("returned changes that do not grow from position {after}")));
        }
        Ok(changes)
    }

    async fn checkpoint(&self, tenant: &str, reader: &str) -> Result<u64, Failure> {
        let (tenant, reader) = (tenant.to_owned(), reader.to_owned());
        self.fan_out("checkpoint", move |guest, store| Box::pin(async move { guest.call_checkpoint(store, &tenant, &reader).await })).await
    }

    async fn advance(&self, tenant: &str, reader: &str, expected: u64, through: u64) -> Result<bool, Failure> {
        let (tenant, reader) = (tenant.to_owned(), reader.to_owned());
        self.fan_out("advance", move |guest, store| {
            Box::pin(async move { guest.call_advance(store, &tenant, &reader, expected, through).await })
        })
        .await
    }

    async fn purge_deliveries(&self, older_than: Duration, limit: u32) -> Result<u64, Failure> {
        let older_than_ms = millis(older_than);
        self.fan_out("purge-deliveries", move |guest, store| {
            Box::pin(async move { guest.call_purge_deliveries(store, older_than_ms, limit).await })
        })
        .await
    }
}
