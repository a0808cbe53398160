//! The log of what changed, and how far its readers are.

use crate::outbox::{Outbox, statement};
use outbox_table::database::{ColumnType, Database, Results, Value};
use outbox_table::fan_out::Logged;
use outbox_table::page::MAX_PAGE;
use outhaul_sdk::{Failure, StatusChange};

impl<D: Database> Outbox<D> {
    /// Changes of a tenant behind a position, in order, at most `limit`.
    ///
    /// # Errors
    /// Those of the database.
    pub fn read_status(&mut self, tenant: &str, after: u64, limit: u32) -> Result<Vec<StatusChange>, Failure> {
        let status = &self.beside()?.tables.status;
        let Ok(after) = i64::try_from(after) else { return Ok(Vec::new()) };
        let sql = format!(
            "SELECT position, at, notification_id, generation, delivery_id, subscriber_id, state, code FROM {status} \
             WHERE account_id = ?1 AND position > ?2 ORDER BY position LIMIT ?3"
        );
        let parameters = vec![Value::Text(tenant.to_owned()), Value::Integer(after), Value::Integer(i64::from(limit.clamp(1, MAX_PAGE)))];
        let rows = self
            .reader
            .execute(vec![statement(sql, parameters, Logged::COLUMNS.to_vec())])
            .map_err(|error| self.failed(&error, "reading the status log"))?;
        Logged::read(&mut Results::new(rows).next_rows()?)
    }

    /// Up to where a reader has read; 0: it has not begun.
    ///
    /// # Errors
    /// Those of the database.
    pub fn checkpoint(&mut self, tenant: &str, reader: &str) -> Result<u64, Failure> {
        let readers = &self.beside()?.tables.readers;
        let sql = format!("SELECT position FROM {readers} WHERE account_id = ?1 AND reader = ?2");
        let parameters = vec![Value::Text(tenant.to_owned()), Value::Text(reader.to_owned())];
        let rows = self
            .reader
            .execute(vec![statement(sql, parameters, vec![ColumnType::Integer])])
            .map_err(|error| self.failed(&error, "reading a checkpoint"))?;
        Ok(Results::new(rows).next_rows()?.integers()?.count(0))
    }

    /// Moves the checkpoint of a reader from `expected` to `through`; false if it is not there, or `through` is before it or past the end.
    ///
    /// # Errors
    /// Those of the database; nothing is changed then.
    pub fn advance(&mut self, tenant: &str, reader: &str, expected: u64, through: u64) -> Result<bool, Failure> {
        let tables = &self.beside()?.tables;
        let (readers, heads, status) = (&tables.readers, &tables.heads, &tables.status);
        let (Ok(from), Ok(to)) = (i64::try_from(expected), i64::try_from(through)) else { return Ok(false) };
        let sql = format!(
            "INSERT INTO {readers} (account_id, reader, position) SELECT ?1, ?2, ?4 \
             WHERE ?3 <= ?4 AND ?4 <= max(ifnull((SELECT h.position FROM {heads} AS h WHERE h.account_id = ?1), 0), \
             ifnull((SELECT max(s.position) FROM {status} AS s WHERE s.account_id = ?1), 0)) \
             AND ?3 = ifnull((SELECT r.position FROM {readers} AS r WHERE r.account_id = ?1 AND r.reader = ?2), 0) \
             ON CONFLICT (account_id, reader) DO UPDATE SET position = excluded.position"
        );
        let parameters = vec![Value::Text(tenant.to_owned()), Value::Text(reader.to_owned()), Value::Integer(from), Value::Integer(to)];
        let rows = self
            .writer
            .execute(vec![statement(sql, parameters, Vec::new())])
            .map_err(|error| self.failed(&error, "moving a checkpoint"))?;
        Ok(rows.first().is_some_and(|rows| rows.changed == 1))
    }
}
