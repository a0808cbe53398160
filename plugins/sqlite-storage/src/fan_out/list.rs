//! Deliveries for whoever looks at them: listed, counted, sealed under a new key, purged.

use crate::outbox::{Outbox, statement};
use crate::statements::Sql;
use crate::time::NOW_MS;
use outbox_table::database::{ColumnType, Database, Results, Statement, Value};
use outbox_table::fan_out::{Counted, Listed};
use outbox_table::page::MAX_PAGE;
use outbox_table::settle::millis;
use outhaul_sdk::{Batch, Column, DeliveryCounts, DeliveryFilter, DeliveryPage, DeliveryState, Failure, SealedPage};

impl<D: Database> Outbox<D> {
    /// Counts.
    ///
    /// # Errors
    /// Those of the database.
    pub fn delivery_stats(&mut self) -> Result<DeliveryCounts, Failure> {
        self.fan_out()?;
        self.look_for_strays()?;
        let fan_out = self.beside()?;
        let [unsettled, _] = &fan_out.deliveries.stats;
        let ended = format!(
            "SELECT ifnull(sum(state = 'suppressed'), 0), ifnull(sum(state = 'quarantined'), 0) FROM {} \
             WHERE state IN ('suppressed', 'quarantined')",
            fan_out.tables.deliveries
        );
        let statements =
            vec![unsettled.fill(|_| Value::Null), statement(ended, Vec::new(), vec![ColumnType::Integer, ColumnType::Integer])];
        let rows = self.reader.execute(statements).map_err(|error| self.failed(&error, "counting deliveries"))?;
        Counted::read(&mut Results::new(rows))
    }

    /// Deliveries of a tenant in the order of insertion.
    ///
    /// # Errors
    /// Those of the database; `invalid-message` if `after` is not from an earlier page.
    pub fn list_deliveries(&mut self, filter: &DeliveryFilter, after: Option<&str>, limit: u32) -> Result<DeliveryPage, Failure> {
        let after = place(after)?;
        let limit = limit.clamp(1, MAX_PAGE);
        let fan_out = self.beside()?;
        let sql = Sql(&fan_out.deliveries.layout);
        let leased = sql.leased();
        let mut parameters = vec![Value::Text(filter.tenant.clone()), Value::Integer(after), Value::Integer(i64::from(limit))];
        let mut conditions = match filter.state {
            None => String::new(),
            Some(DeliveryState::Pending) => format!(" AND t.state = 'pending' AND NOT {leased}"),
            Some(DeliveryState::Leased) => format!(" AND t.state = 'pending' AND {leased}"),
            Some(DeliveryState::Complete) => " AND t.state = 'complete'".to_owned(),
            Some(DeliveryState::Suppressed) => " AND t.state = 'suppressed'".to_owned(),
            Some(DeliveryState::Quarantined) => " AND t.state = 'quarantined'".to_owned(),
        };
        conditions.push_str(&narrowed(filter, &mut parameters));
        let text = format!(
            "SELECT t.seq, t.delivery_id, t.notification_id, t.notification_type, t.subscriber_id, t.idempotency_key, t.key_version, \
             CAST(t.emission_generation AS INTEGER), \
             CASE t.state WHEN 'complete' THEN 2 WHEN 'suppressed' THEN 3 WHEN 'quarantined' THEN 4 ELSE {leased} END, \
             CAST(t.attempts AS INTEGER), CASE t.state WHEN 'pending' THEN max(0, CAST(t.available_at AS INTEGER) - {NOW_MS}) ELSE 0 END, \
             t.error_code, t.last_error, CAST(t.created_at AS INTEGER) \
             FROM {} AS t WHERE t.account_id = ?1 AND t.seq > ?2{conditions} ORDER BY t.seq LIMIT ?3",
            fan_out.tables.deliveries
        );
        let rows = self
            .reader
            .execute(vec![statement(text, parameters, Listed::COLUMNS.to_vec())])
            .map_err(|error| self.failed(&error, "listing deliveries"))?;
        let (deliveries, last) = Listed::read(&mut Results::new(rows).next_rows()?)?;
        let is_full = deliveries.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(DeliveryPage { deliveries, next: last.filter(|_| is_full).map(|place| place.to_string()) })
    }

    /// Deliveries that have an envelope under another key version; at most `limit`, and at most `max_bytes`, but one.
    ///
    /// # Errors
    /// Those of the database; `invalid-message` if `after` is not from an earlier page.
    pub fn list_sealed(&mut self, newest: &str, after: Option<&str>, limit: u32, max_bytes: u64) -> Result<SealedPage, Failure> {
        let after = place(after)?;
        let limit = limit.clamp(1, MAX_PAGE);
        let deliveries = &self.beside()?.deliveries;
        let sql = Sql(&deliveries.layout);
        let table = deliveries.layout.table();
        let within = format!(
            "WITH s AS MATERIALIZED (SELECT t.seq AS o, {} AS size FROM {table} AS t \
             WHERE t.envelope IS NOT NULL AND t.key_version <> ?1 AND t.seq > ?2 ORDER BY t.seq LIMIT ?3), \
             c AS (SELECT o, sum(size) OVER (ORDER BY o) AS total FROM s)",
            sql.size()
        );
        let page = format!(
            "{within} SELECT {} FROM {table} AS t WHERE t.seq IN (SELECT o FROM c WHERE total <= ?4 OR o = (SELECT min(o) FROM c)) ORDER BY t.seq",
            sql.message("t.", &sql.attempts(), true)
        );
        let parameters = vec![
            Value::Text(newest.to_owned()),
            Value::Integer(after),
            Value::Integer(i64::from(limit)),
            Value::Integer(i64::try_from(max_bytes).unwrap_or(i64::MAX)),
        ];
        let more = format!("{within} SELECT count(*) FROM c");
        let statements = vec![
            statement(page, parameters.clone(), deliveries.decoding.columns()),
            statement(more, parameters.into_iter().take(3).collect(), vec![ColumnType::Integer]),
        ];
        let rows = self.reader.execute(statements).map_err(|error| self.failed(&error, "reading sealed deliveries"))?;
        let mut results = Results::new(rows);
        let decoding = &self.beside()?.deliveries.decoding;
        let fetched = decoding.read(&mut results.next_rows()?)?;
        let last = fetched.last_order();
        let batch = decoding.decode(fetched, true).batch;
        let found = results.next_rows()?.integers()?.count(0);
        let is_whole = found < u64::from(limit) && found == u64::try_from(batch.len()).unwrap_or(u64::MAX);
        Ok(SealedPage { deliveries: batch, next: last.filter(|_| !is_whole).map(|place| place.to_string()) })
    }

    /// Replaces envelope and key version of deliveries that still have an envelope under the version before; returns how many.
    ///
    /// # Errors
    /// `invalid-message` if a delivery has no envelope or no key version; else those of the database. Nothing is replaced then.
    pub fn reseal(&mut self, deliveries: &Batch, previous: &Column) -> Result<u32, Failure> {
        let sql = format!(
            "UPDATE {} SET envelope = ?1, key_version = ?2 WHERE delivery_id = ?3 AND key_version = ?4 AND envelope IS NOT NULL",
            self.beside()?.tables.deliveries
        );
        let replacement = |message: outhaul_sdk::Message<'_>| -> Option<Statement> {
            let version =
                message.headers().find(|(name, _)| *name == "key_version").and_then(|(_, value)| std::str::from_utf8(value).ok())?;
            let parameters = vec![
                Value::Bytes(message.payload()?.to_vec()),
                Value::Text(version.to_owned()),
                Value::Text(message.id().to_owned()),
                Value::Text(previous.text(message.index())?.to_owned()),
            ];
            Some(statement(sql.clone(), parameters, Vec::new()))
        };
        let statements: Option<Vec<Statement>> = deliveries.messages().map(replacement).collect();
        let statements = statements.ok_or_else(|| {
            Failure::invalid_message("a delivery to be sealed anew lacks its envelope, its key version or the one before")
        })?;
        if statements.is_empty() {
            return Ok(0);
        }
        let rows = self.writer.execute(statements).map_err(|error| self.failed(&error, "sealing deliveries anew"))?;
        Ok(u32::try_from(rows.iter().map(|rows| rows.changed).sum::<u64>()).unwrap_or(u32::MAX))
    }

    /// Deletes complete and suppressed deliveries that ended longer ago than that, at most `limit`; returns how many.
    ///
    /// # Errors
    /// Those of the database.
    pub fn purge_deliveries(&mut self, older_than_ms: u64, limit: u32) -> Result<u64, Failure> {
        let table = &self.beside()?.tables.deliveries;
        let sql = format!(
            "DELETE FROM {table} WHERE seq IN (SELECT t.seq FROM {table} AS t WHERE t.state IN ('complete', 'suppressed') \
             AND t.done_at < {NOW_MS} - ?1 ORDER BY t.seq LIMIT ?2)"
        );
        let parameters = vec![millis(older_than_ms), Value::Integer(i64::from(limit))];
        let rows =
            self.writer.execute(vec![statement(sql, parameters, Vec::new())]).map_err(|error| self.failed(&error, "purging deliveries"))?;
        Ok(rows.first().map_or(0, |rows| rows.changed))
    }
}

/// The conditions of a filter that are not about tenant and state, for rows `t`.
pub(super) fn narrowed(filter: &DeliveryFilter, parameters: &mut Vec<Value>) -> String {
    let mut conditions = String::new();
    let mut add = |condition: &str, value: Value| {
        parameters.push(value);
        conditions.push_str(&format!(" AND {}", condition.replace("??", &format!("?{}", parameters.len()))));
    };
    if let Some(event) = &filter.event {
        add("t.notification_id = ??", Value::Text(event.clone()));
    }
    if let Some(subscriber) = &filter.subscriber {
        add("t.subscriber_id = ??", Value::Text(subscriber.clone()));
    }
    if !filter.ids.is_empty() {
        add("t.delivery_id IN (SELECT value FROM json_each(??))", Value::Texts(Column::of_texts(&filter.ids)));
    }
    conditions
}

/// Where a page starts.
fn place(after: Option<&str>) -> Result<i64, Failure> {
    match after {
        None => Ok(i64::MIN),
        Some(text) => text.parse().map_err(|_| Failure::invalid_message(format!("`{text}` is not where a page ended"))),
    }
}
