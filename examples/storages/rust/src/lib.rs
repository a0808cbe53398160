//! A storage over one table in SQLite: the whole contract of `outbox.wit`, strict order included.
//!
//! It is generic over the database: in the component that is the host's connection, in `tests/` the SDK's SQLite. Each call is one
//! transaction, and the database's clock alone judges what is due. The calls are in `claim`, `settle` and `admin`.

mod admin;
mod claim;
mod settle;
mod statement;

use outhaul_sdk::database::failure::of_sql;
use outhaul_sdk::database::{Access, ColumnType, Dialect, Named, Results, Transaction};
use outhaul_sdk::{
    Batch, ClaimRequest, Claimed, Column, Counts, Description, Failure, Filter, Page, Settlement, Storage, Turn, WakeSource, parse_config,
};
use serde::Deserialize;
use statement::statement;

outhaul_sdk::export_storage!(Rows<outhaul_sdk::sql::Connection>);
outhaul_sdk::manifest!("../manifest.toml");

/// The adapter's table, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The host's name of the database.
    database: String,
    #[serde(default = "default_table")]
    table: String,
}

fn default_table() -> String {
    "outbox_rows".to_owned()
}

/// The opened storage.
#[derive(Debug)]
pub struct Rows<D> {
    database: D,
    /// Letters, digits and `_`: needs no quotes.
    table: String,
}

impl<D: Named> Rows<D> {
    /// Starts a transaction; the second is its time, in milliseconds of the database's clock since the Unix epoch.
    fn begin(&self, doing: &str) -> Result<(D::Transaction, i64), Failure> {
        let clock = statement("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)", [], &[ColumnType::Integer]);
        let (transaction, rows) = self.database.begin(vec![clock]).map_err(|error| of_sql(&error, doing))?;
        let now = Results::new(rows).next_rows()?.integers()?.get(0);
        Ok((transaction, now.ok_or_else(|| Failure::invalid_configuration("the database has no clock"))?))
    }

    /// Runs a call as one transaction: committed if it succeeds, rolled back if not.
    fn call<T>(&self, doing: &str, work: impl FnOnce(&D::Transaction, i64) -> Result<T, Failure>) -> Result<T, Failure> {
        let (transaction, now) = self.begin(doing)?;
        let made = work(&transaction, now)?;
        transaction.commit(Vec::new()).map_err(|error| of_sql(&error, doing))?;
        Ok(made)
    }
}

/// A time so far ahead; beyond what the database can count, the last that it can.
fn after(now: i64, milliseconds: u64) -> i64 {
    now.saturating_add(i64::try_from(milliseconds).unwrap_or(i64::MAX))
}

impl<D: Named> Storage for Rows<D> {
    fn open(config: &str) -> Result<(Self, Description), Failure> {
        let config: Config = parse_config(config)?;
        let is_plain = |character: char| character.is_ascii_alphanumeric() || character == '_';
        if !config.table.starts_with(|first: char| first.is_ascii_alphabetic()) || !config.table.chars().all(is_plain) {
            return Err(Failure::invalid_configuration("`table`: must be ASCII letters, digits and `_`, a letter first"));
        }
        let database = D::open(&config.database, Access::ReadWrite).map_err(|error| of_sql(&error, "opening `database`"))?;
        if database.dialect() != Dialect::Sqlite {
            return Err(Failure::invalid_configuration("`database`: this storage is for SQLite"));
        }
        let description = Description { strict_order: true, prefers_fused: true, wake: WakeSource::DataVersion(config.database) };
        Ok((Self { database, table: config.table }, description))
    }

    fn claim(&mut self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        self.call("claiming", |transaction, now| claim::claim(transaction, &self.table, now, request))
    }

    fn settle(&mut self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        self.call("settling", |transaction, now| settle::settle(transaction, &self.table, now, worker, settlements))
    }

    fn settle_and_claim(&mut self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        self.call("settling and claiming", |transaction, now| {
            let lost = settle::settle(transaction, &self.table, now, &request.worker, settlements)?;
            Ok(Turn { lost, claimed: claim::claim(transaction, &self.table, now, request)? })
        })
    }

    fn extend(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure> {
        self.call("renewing leases", |transaction, now| settle::extend(transaction, &self.table, after(now, lease_ms), worker, ids))
    }

    fn stats(&mut self) -> Result<Counts, Failure> {
        self.call("counting", |transaction, now| admin::stats(transaction, &self.table, now))
    }

    fn schema(&mut self) -> Result<String, Failure> {
        Ok(admin::schema(&self.table).map(|statement| format!("{statement};\n")).concat())
    }

    fn create_schema(&mut self) -> Result<(), Failure> {
        let statements = admin::schema(&self.table).map(|text| statement(text, [], &[]));
        self.database.execute(statements.into()).map(drop).map_err(|error| of_sql(&error, "creating the table"))
    }

    fn enqueue(&mut self, batch: &Batch) -> Result<Vec<String>, Failure> {
        self.call("inserting", |transaction, now| admin::enqueue(transaction, &self.table, now, batch))
    }

    fn browse(&mut self, filter: &Filter, after: Option<&str>, limit: u32, with_messages: bool) -> Result<Page, Failure> {
        self.call("browsing", |transaction, now| admin::browse(transaction, &self.table, now, filter, after, limit, with_messages))
    }

    fn requeue(&mut self, filter: &Filter) -> Result<u64, Failure> {
        self.call("requeueing", |transaction, now| admin::requeue(transaction, &self.table, now, filter))
    }

    fn discard(&mut self, filter: &Filter) -> Result<u64, Failure> {
        self.call("discarding", |transaction, _| admin::discard(transaction, &self.table, filter))
    }

    fn purge(&mut self, older_than_ms: u64, limit: u32) -> Result<u64, Failure> {
        self.call("purging", |transaction, now| admin::purge(transaction, &self.table, now, older_than_ms, limit))
    }
}
