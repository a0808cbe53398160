//! Reading the log of what changed, and the checkpoints of its readers.

use crate::ops::{EQ, GE, GT, LE, text};
use crate::outbox::{Outbox, statement};
use crate::time::{Clock, millis};
use outbox_table::database::{ColumnType, Database, Results, Value};
use outbox_table::fan_out::Logged;
use outbox_table::page::MAX_PAGE;
use outhaul_sdk::{Failure, StatusChange};

/// A position as a parameter; none: no log comes so far.
fn position(position: u64) -> Option<Value> {
    i64::try_from(position).ok().map(Value::Integer)
}

impl<D: Database> Outbox<D> {
    /// Changes of a tenant behind a position, in order.
    ///
    /// # Errors
    /// Those of the database.
    pub fn read_status(&mut self, tenant: &str, after: u64, limit: u32) -> Result<Vec<StatusChange>, Failure> {
        let status = &self.fan_out()?.tables.status;
        let Some(after) = position(after) else { return Ok(Vec::new()) };
        let sql = format!(
            "SELECT s.position, {}, s.notification_id, s.generation, s.delivery_id, s.subscriber_id, s.state, s.code FROM {status} AS s \
             WHERE s.account_id {EQ} {} AND s.position {GT} CAST($2 AS bigint) ORDER BY s.position LIMIT CAST($3 AS bigint)",
            millis(Clock::Zoned, "s.at"),
            text("$1"),
        );
        let limit = Value::Integer(i64::from(limit.clamp(1, MAX_PAGE)));
        let statement = statement(sql, vec![Value::Text(tenant.to_owned()), after, limit], Logged::COLUMNS.to_vec());
        let rows = self.reader.execute(vec![statement]).map_err(|error| self.failed_at_fan_out(&error, "reading the log"))?;
        Logged::read(&mut Results::new(rows).next_rows()?)
    }

    /// Up to where a reader has read; 0: it has not begun.
    ///
    /// # Errors
    /// Those of the database.
    pub fn checkpoint(&mut self, tenant: &str, reader: &str) -> Result<u64, Failure> {
        let readers = &self.fan_out()?.tables.readers;
        let sql = format!("SELECT r.position FROM {readers} AS r WHERE r.account_id {EQ} {} AND r.reader {EQ} {}", text("$1"), text("$2"));
        let parameters = vec![Value::Text(tenant.to_owned()), Value::Text(reader.to_owned())];
        let statement = statement(sql, parameters, vec![ColumnType::Integer]);
        let rows = self.reader.execute(vec![statement]).map_err(|error| self.failed_at_fan_out(&error, "reading a checkpoint"))?;
        Ok(Results::new(rows).next_rows()?.integers()?.count(0))
    }

    /// Moves the checkpoint of a reader from `expected` to `through`; false: it was not there, or may not go there.
    ///
    /// # Errors
    /// Those of the database.
    pub fn advance(&mut self, tenant: &str, reader: &str, expected: u64, through: u64) -> Result<bool, Failure> {
        let tables = &self.fan_out()?.tables;
        let (Some(from), Some(to)) = (position(expected), position(through)) else { return Ok(false) };
        let (tenant_given, reader_given) = (text("$1"), text("$2"));
        // The head of a tenant may have been deleted by hand; the next change makes it anew of the log.
        // Whoever comes second waits for the first one, and then finds the checkpoint elsewhere.
        let sql = format!(
            "INSERT INTO {readers} AS r (account_id, reader, position) SELECT {tenant_given}, {reader_given}, CAST($4 AS bigint) \
             WHERE CAST($4 AS bigint) {GE} CAST($3 AS bigint) AND CAST($4 AS bigint) {LE} \
             coalesce(greatest((SELECT h.position FROM {heads} AS h WHERE h.account_id {EQ} {tenant_given}), (SELECT s.position FROM {status} AS s \
             WHERE s.account_id {EQ} {tenant_given} ORDER BY s.position DESC LIMIT 1)), 0) AND (CAST($3 AS bigint) {EQ} 0 OR \
             EXISTS (SELECT 1 FROM {readers} AS k WHERE k.account_id {EQ} {tenant_given} AND k.reader {EQ} {reader_given})) \
             ON CONFLICT (account_id, reader) DO UPDATE SET position = excluded.position WHERE r.position {EQ} CAST($3 AS bigint) \
             RETURNING r.position",
            readers = tables.readers,
            heads = tables.heads,
            status = tables.status,
        );
        let parameters = vec![Value::Text(tenant.to_owned()), Value::Text(reader.to_owned()), from, to];
        let statement = statement(sql, parameters, vec![ColumnType::Integer]);
        let rows = self.writer.execute(vec![statement]).map_err(|error| self.failed_at_fan_out(&error, "moving a checkpoint"))?;
        Ok(!Results::new(rows).next_rows()?.integers()?.is_empty())
    }
}
