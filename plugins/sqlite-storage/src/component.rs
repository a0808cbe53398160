//! The glue to the sandbox: the one opened [`Outbox`] over the host's connections, and the manifest.

use crate::Outbox;
use outbox_table::database::{SqlError, SqlErrorCode};
use outhaul_sdk::sql::{Connection, Dialect};
use outhaul_sdk::{
    Batch, ClaimRequest, Claimed, Column, Counts, DeliveryCounts, DeliveryFilter, DeliveryPage, DeliverySettlement, Description, Events,
    Expansion, Failure, FanOutStorage, Filter, Page, Reemitted, SealedPage, Settlement, StatusChange, Storage, Turn, log,
};

outhaul_sdk::manifest!("../manifest.toml");

/// The component.
struct SqliteStorage(Outbox<Connection>);

impl SqliteStorage {
    fn tell(&mut self) {
        if let Some(text) = self.0.notice() {
            log::write(log::Level::Warn, &text, &[]);
        }
    }
}

impl Storage for SqliteStorage {
    fn open(config: &str) -> Result<(Self, Description), Failure> {
        let (outbox, description) = Outbox::open(config, |database, access| {
            let connection = Connection::open(database, access)?;
            match connection.dialect() {
                Dialect::Sqlite => Ok(connection),
                other => Err(SqlError {
                    code: SqlErrorCode::Denied,
                    detail: format!("`{database}` is a {other:?} database, and this is the adapter for SQLite"),
                }),
            }
        })?;
        Ok((Self(outbox), description))
    }
    fn claim(&mut self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        let claimed = self.0.claim(request);
        self.tell();
        claimed
    }
    fn settle(&mut self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        self.0.settle(worker, settlements)
    }
    fn settle_and_claim(&mut self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        let turn = self.0.settle_and_claim(settlements, request);
        self.tell();
        turn
    }
    fn extend(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure> {
        self.0.extend(worker, ids, lease_ms)
    }
    fn stats(&mut self) -> Result<Counts, Failure> {
        self.0.stats()
    }
    fn schema(&mut self) -> Result<String, Failure> {
        self.0.schema()
    }
    fn create_schema(&mut self) -> Result<(), Failure> {
        self.0.create_schema()
    }
    fn enqueue(&mut self, batch: &Batch) -> Result<Vec<String>, Failure> {
        self.0.enqueue(batch)
    }
    fn browse(&mut self, filter: &Filter, after: Option<&str>, limit: u32, with_messages: bool) -> Result<Page, Failure> {
        self.0.browse(filter, after, limit, with_messages)
    }
    fn requeue(&mut self, filter: &Filter) -> Result<u64, Failure> {
        self.0.requeue(filter)
    }
    fn discard(&mut self, filter: &Filter) -> Result<u64, Failure> {
        self.0.discard(filter)
    }
    fn purge(&mut self, older_than_ms: u64, limit: u32) -> Result<u64, Failure> {
        self.0.purge(older_than_ms, limit)
    }
}

impl FanOutStorage for SqliteStorage {
    fn claim_events(&mut self, request: &ClaimRequest, tenant: Option<&str>) -> Result<Events, Failure> {
        let events = self.0.claim_events(request, tenant);
        self.tell();
        events
    }
    fn expand(&mut self, worker: &str, expansions: &[Expansion], deliveries: &Batch) -> Result<Vec<String>, Failure> {
        self.0.expand(worker, expansions, deliveries)
    }
    fn claim_deliveries(&mut self, request: &ClaimRequest, tenant: Option<&str>, horizon_ms: u64) -> Result<Claimed, Failure> {
        let claimed = self.0.claim_deliveries(request, tenant, horizon_ms);
        self.tell();
        claimed
    }
    fn settle_deliveries(&mut self, worker: &str, settlements: &[DeliverySettlement]) -> Result<Vec<String>, Failure> {
        self.0.settle_deliveries(worker, settlements)
    }
    fn extend_deliveries(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure> {
        self.0.extend_deliveries(worker, ids, lease_ms)
    }
    fn delivery_stats(&mut self) -> Result<DeliveryCounts, Failure> {
        self.0.delivery_stats()
    }
    fn reemit(&mut self, tenant: &str, event: &str) -> Result<Reemitted, Failure> {
        self.0.reemit(tenant, event)
    }
    fn list_deliveries(&mut self, filter: &DeliveryFilter, after: Option<&str>, limit: u32) -> Result<DeliveryPage, Failure> {
        self.0.list_deliveries(filter, after, limit)
    }
    fn requeue_deliveries(&mut self, filter: &DeliveryFilter) -> Result<u64, Failure> {
        self.0.requeue_deliveries(filter)
    }
    fn list_sealed(&mut self, newest: &str, after: Option<&str>, limit: u32, max_bytes: u64) -> Result<SealedPage, Failure> {
        self.0.list_sealed(newest, after, limit, max_bytes)
    }
    fn reseal(&mut self, deliveries: &Batch, previous: &Column) -> Result<u32, Failure> {
        self.0.reseal(deliveries, previous)
    }
    fn read_status(&mut self, tenant: &str, after: u64, limit: u32) -> Result<Vec<StatusChange>, Failure> {
        self.0.read_status(tenant, after, limit)
    }
    fn checkpoint(&mut self, tenant: &str, reader: &str) -> Result<u64, Failure> {
        self.0.checkpoint(tenant, reader)
    }
    fn advance(&mut self, tenant: &str, reader: &str, expected: u64, through: u64) -> Result<bool, Failure> {
        self.0.advance(tenant, reader, expected, through)
    }
    fn purge_deliveries(&mut self, older_than_ms: u64, limit: u32) -> Result<u64, Failure> {
        self.0.purge_deliveries(older_than_ms, limit)
    }
}

outhaul_sdk::export_storage!(SqliteStorage: fan_out);
