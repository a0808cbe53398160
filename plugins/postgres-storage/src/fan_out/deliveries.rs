//! What the command line and the metrics need of deliveries: counts, pages, other keys, and what becomes of old ones.

use super::rows;
use crate::ops::{EQ, GT, LE, LT, MINUS, NE, text};
use crate::outbox::{Outbox, statement};
use crate::statements::Sql;
use crate::time::{Clock, millis, now_ms};
use outbox_table::database::{ColumnType, Database, Results, Statement, Value};
use outbox_table::fan_out::{Counted, Listed};
use outbox_table::page::MAX_PAGE;
use outbox_table::settle::{self, Written};
use outbox_table::template::Slot;
use outhaul_sdk::{Batch, Column, DeliveryCounts, DeliveryFilter, DeliveryPage, DeliverySettlement, DeliveryState, Failure, SealedPage};

const INTEGER: ColumnType = ColumnType::Integer;

impl<D: Database> Outbox<D> {
    /// Writes verdicts in one transaction; returns the ids no longer held.
    ///
    /// # Errors
    /// Those of the database; nothing is written then.
    pub fn settle_deliveries(&mut self, worker: &str, settlements: &[DeliverySettlement]) -> Result<Vec<String>, Failure> {
        let mut statements = Vec::new();
        let written = self.fan_out()?.deliveries.verdicts.settle_deliveries(worker, settlements, &mut statements);
        self.run_of_deliveries(written, statements, "settling deliveries")
    }

    /// Lets leases end so long from now; returns the ids no longer held.
    ///
    /// # Errors
    /// Those of the database, `timeout` at once if another transaction has locked a row; nothing is written then.
    pub fn extend_deliveries(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure> {
        let mut statements = Vec::new();
        let written = self.fan_out()?.deliveries.verdicts.extend(worker, ids, lease_ms, &mut statements);
        self.run_of_deliveries(written, statements, "renewing leases of deliveries")
    }

    fn run_of_deliveries(&mut self, written: Written<'_>, statements: Vec<Statement>, doing: &str) -> Result<Vec<String>, Failure> {
        if statements.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.writer.execute(statements).map_err(|error| self.failed_at_fan_out(&error, doing))?;
        self.fan_out()?.deliveries.verdicts.lost(written, &mut Results::new(rows))
    }

    /// Counts.
    ///
    /// # Errors
    /// Those of the database.
    pub fn delivery_stats(&mut self) -> Result<DeliveryCounts, Failure> {
        let fan_out = self.fan_out()?;
        let [pending, _] = &fan_out.deliveries.stats;
        let ended = format!(
            "SELECT pg_catalog.count(*) FILTER (WHERE t.state {EQ} 'suppressed'), pg_catalog.count(*) FILTER (WHERE t.state {EQ} 'quarantined') \
             FROM {} AS t WHERE t.state {EQ} ANY (ARRAY['suppressed', 'quarantined'])",
            fan_out.tables.deliveries
        );
        let statements = vec![pending.fill(|_| Value::Null), statement(ended, Vec::new(), vec![INTEGER, INTEGER])];
        let rows = self.reader.execute(statements).map_err(|error| self.failed_at_fan_out(&error, "counting deliveries"))?;
        Counted::read(&mut Results::new(rows))
    }

    /// Deliveries of a tenant in the order of insertion.
    ///
    /// # Errors
    /// Those of the database; `invalid-message` if `after` is not from an earlier page.
    pub fn list_deliveries(&mut self, filter: &DeliveryFilter, after: Option<&str>, limit: u32) -> Result<DeliveryPage, Failure> {
        let fan_out = self.fan_out()?;
        let sql = Sql(&fan_out.deliveries.layout);
        let limit = limit.clamp(1, MAX_PAGE);
        let mut parameters = vec![Value::Text(filter.tenant.clone()), place(after)?, Value::Integer(i64::from(limit))];
        let mut conditions = narrowed(filter, &mut parameters);
        conditions.push_str(&match filter.state {
            None => String::new(),
            Some(DeliveryState::Pending) => format!(" AND {} AND NOT {}", sql.unsettled(), sql.leased()),
            Some(DeliveryState::Leased) => format!(" AND {} AND {}", sql.unsettled(), sql.leased()),
            Some(DeliveryState::Complete) => format!(" AND t.state {EQ} {}", text("'complete'")),
            Some(DeliveryState::Suppressed) => format!(" AND t.state {EQ} {}", text("'suppressed'")),
            Some(DeliveryState::Quarantined) => format!(" AND t.state {EQ} {}", text("'quarantined'")),
        });
        let state = format!(
            "CAST(CASE WHEN t.state {EQ} 'complete' THEN 2 WHEN t.state {EQ} 'suppressed' THEN 3 WHEN t.state {EQ} 'quarantined' THEN 4 \
             WHEN {} THEN 1 ELSE 0 END AS bigint)",
            sql.leased()
        );
        let due = format!(
            "CASE WHEN {} THEN greatest(0, ({} {MINUS} {})) ELSE 0 END",
            sql.unsettled(),
            millis(Clock::Zoned, "t.available_at"),
            now_ms()
        );
        let (tenant, behind) = (text("$1"), "CAST($2 AS bigint)");
        let (rows, order) = if filter.event.is_some() || !filter.ids.is_empty() {
            (format!("t.account_id {EQ} {tenant} AND t.seq {GT} {behind}"), "t.seq")
        } else {
            // By the index of tenants: that of the order has the deliveries of all.
            let rows = format!("ROW(t.account_id, t.seq) {GT} ROW({tenant}, {behind}) AND t.account_id {LE} {tenant}");
            (rows, "t.account_id, t.seq")
        };
        let read = format!(
            "SELECT t.seq, t.delivery_id, t.notification_id, t.notification_type, t.subscriber_id, t.idempotency_key, t.key_version, \
             t.emission_generation, {state}, CAST(t.attempts AS bigint), {due}, t.error_code, t.last_error, {} FROM {} AS t \
             WHERE {rows}{conditions} ORDER BY {order} LIMIT CAST($3 AS bigint)",
            millis(Clock::Zoned, "t.created_at"),
            fan_out.tables.deliveries,
        );
        let rows = self.reader.execute(vec![statement(read, parameters, Listed::COLUMNS.to_vec())]);
        let rows = rows.map_err(|error| self.failed_at_fan_out(&error, "listing deliveries"))?;
        let (deliveries, last) = Listed::read(&mut Results::new(rows).next_rows()?)?;
        let full = deliveries.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let next = last.filter(|_| full).map(|place| place.to_string());
        Ok(DeliveryPage { deliveries, next })
    }

    /// Deliveries that have an envelope under another key version than `newest`.
    ///
    /// # Errors
    /// Those of the database; `invalid-message` if `after` is not from an earlier page.
    pub fn list_sealed(&mut self, newest: &str, after: Option<&str>, limit: u32, max_bytes: u64) -> Result<SealedPage, Failure> {
        let ready = &self.fan_out()?.deliveries;
        let sql = Sql(&ready.layout);
        let (table, limit) = (ready.layout.table(), limit.clamp(1, MAX_PAGE));
        let sealed = "t.envelope IS NOT NULL";
        let find = format!(
            "SELECT t.seq, {} FROM {table} AS t WHERE {sealed} AND t.key_version {NE} {} AND t.seq {GT} CAST($2 AS bigint) ORDER BY t.seq \
             LIMIT CAST($3 AS bigint)",
            sql.size(true),
            text("$1"),
        );
        let read = format!(
            "SELECT {} FROM {table} AS t WHERE {sealed} AND t.seq {EQ} ANY (CAST($1 AS bigint[]))",
            sql.message(&ready.decoding, &sql.attempts(), true)
        );
        let columns = ready.decoding.columns();
        let parameters = vec![Value::Text(newest.to_owned()), place(after)?, Value::Integer(i64::from(limit))];
        let doing = "listing envelopes";
        let found = self.reader.execute(vec![statement(find, parameters, vec![INTEGER, INTEGER])]);
        let found = found.map_err(|error| self.failed_at_fan_out(&error, doing))?;
        let mut reader = Results::new(found).next_rows()?;
        let (places, sizes) = (reader.integers()?, reader.integers()?);
        let mut bytes = 0_u64;
        let fits = |row: &usize| {
            bytes = bytes.saturating_add(sizes.count(*row));
            *row == 0 || bytes <= max_bytes
        };
        let fitting: Vec<i64> = (0..places.len()).take_while(fits).filter_map(|row| places.get(row)).collect();
        let more = fitting.len() < places.len() || places.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let next = fitting.last().filter(|_| more).map(ToString::to_string);
        if fitting.is_empty() {
            return Ok(SealedPage { deliveries: Batch::new(), next });
        }
        let rows = self.reader.execute(vec![statement(read, vec![Value::Integers(fitting)], columns)]);
        let rows = rows.map_err(|error| self.failed_at_fan_out(&error, doing))?;
        let decoding = &self.fan_out()?.deliveries.decoding;
        let fetched = decoding.read(&mut Results::new(rows).next_rows()?)?;
        Ok(SealedPage { deliveries: decoding.decode(fetched, true).batch, next })
    }

    /// Replaces envelope and key version of deliveries that still have an envelope under the version in `previous`; returns how many.
    ///
    /// # Errors
    /// `invalid-message` if a delivery has no envelope or no key version; else those of the database. Nothing is written then.
    pub fn reseal(&mut self, deliveries: &Batch, previous: &Column) -> Result<u32, Failure> {
        if deliveries.len() != previous.len() {
            return Err(Failure::invalid_message(format!("{} envelopes, and {} key versions before", deliveries.len(), previous.len())));
        }
        if deliveries.is_empty() {
            return Ok(0);
        }
        let ready = &self.fan_out()?.deliveries;
        let mut versions = Column::new();
        for message in deliveries.messages() {
            let mut found = message.headers().filter(|(name, _)| *name == "key_version").map(|(_, value)| value);
            let (Some(version), None) = (found.next(), found.next()) else {
                let what = format!("delivery {} of the batch: it must have one `key_version`", message.index() + 1);
                return Err(Failure::invalid_message(what));
            };
            versions.push(Some(version));
        }
        let ids = Value::Texts(deliveries.ids.clone());
        let lock = Sql(&ready.layout).lock().fill(|slot| if slot == Slot::Ids { ids.clone() } else { Value::Null });
        let sql = format!(
            "UPDATE {} AS t SET envelope = {}, key_version = y.version FROM ROWS FROM ({}, {}, {}, {}, {}) \
             AS y(id, version, previous, start, size) WHERE t.delivery_id {EQ} ANY (CAST($1 AS pg_catalog.text[])) \
             AND t.delivery_id {EQ} y.id AND t.key_version {EQ} y.previous AND t.envelope IS NOT NULL",
            ready.layout.table(),
            rows::envelope(4),
            rows::unnest(1, "pg_catalog.text"),
            rows::unnest(2, "pg_catalog.text"),
            rows::unnest(3, "pg_catalog.text"),
            rows::unnest(5, "bigint"),
            rows::unnest(6, "bigint"),
        );
        let mut parameters = vec![ids, Value::Texts(versions), Value::Texts(previous.clone())];
        parameters.extend(rows::envelopes(deliveries)?);
        let written = self.writer.execute(vec![lock, statement(sql, parameters, Vec::new())]);
        let written = written.map_err(|error| self.failed_at_fan_out(&error, "writing envelopes"))?;
        Ok(u32::try_from(written.last().map_or(0, |rows| rows.changed)).unwrap_or(u32::MAX))
    }

    /// Complete and suppressed deliveries that ended longer ago than that are deleted, at most `limit`; returns how many.
    ///
    /// # Errors
    /// Those of the database.
    pub fn purge_deliveries(&mut self, older_than_ms: u64, limit: u32) -> Result<u64, Failure> {
        let table = &self.fan_out()?.tables.deliveries;
        let sql = format!(
            "DELETE FROM {table} AS t WHERE t.seq {EQ} ANY (ARRAY(SELECT t.seq FROM {table} AS t WHERE t.state {EQ} ANY (ARRAY['complete', \
             'suppressed']) AND {} {LT} ({} {MINUS} CAST($1 AS bigint)) ORDER BY t.seq LIMIT CAST($2 AS bigint) FOR UPDATE OF t SKIP LOCKED))",
            millis(Clock::Zoned, "t.done_at"),
            now_ms()
        );
        let parameters = vec![settle::millis(older_than_ms), Value::Integer(i64::from(limit))];
        let rows = self.writer.execute(vec![statement(sql, parameters, Vec::new())]);
        let rows = rows.map_err(|error| self.failed_at_fan_out(&error, "purging deliveries"))?;
        Ok(rows.last().map_or(0, |rows| rows.changed))
    }
}

/// The conditions of a filter that are not about tenant and state, for rows `t`.
pub(super) fn narrowed(filter: &DeliveryFilter, parameters: &mut Vec<Value>) -> String {
    let mut conditions = String::new();
    for (column, value) in [("notification_id", &filter.event), ("subscriber_id", &filter.subscriber)] {
        if let Some(value) = value {
            parameters.push(Value::Text(value.clone()));
            conditions.push_str(&format!(" AND t.{column} {EQ} {}", text(&format!("${}", parameters.len()))));
        }
    }
    if !filter.ids.is_empty() {
        parameters.push(Value::Texts(Column::of_texts(&filter.ids)));
        conditions.push_str(&format!(" AND t.delivery_id {EQ} ANY (CAST(${} AS pg_catalog.text[]))", parameters.len()));
    }
    conditions
}

/// Where a page ended.
fn place(after: Option<&str>) -> Result<Value, Failure> {
    match after {
        None => Ok(Value::Integer(i64::MIN)),
        Some(text) => text.parse().map(Value::Integer).map_err(|_| Failure::invalid_message(format!("`{text}` is not where a page ended"))),
    }
}
