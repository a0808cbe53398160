//! Quarantined deliveries that an operator wants to be tried again. The trigger logs it.

use super::deliveries::narrowed;
use crate::ops::{EQ, text};
use crate::outbox::{Outbox, statement};
use crate::statements::LOCK;
use crate::time::{Clock, now};
use outbox_table::database::{Database, Value};
use outbox_table::fan_out::only_quarantined;
use outhaul_sdk::{DeliveryFilter, Failure};

impl<D: Database> Outbox<D> {
    /// Makes quarantined deliveries that the filter names pending again; returns how many.
    ///
    /// # Errors
    /// `invalid-message` if the filter names another state; else those of the database. Nothing is changed then.
    pub fn requeue_deliveries(&mut self, filter: &DeliveryFilter) -> Result<u64, Failure> {
        only_quarantined(filter)?;
        let table = &self.fan_out()?.tables.deliveries;
        let mut parameters = vec![Value::Text(filter.tenant.clone())];
        let narrowed = narrowed(filter, &mut parameters);
        // Locked in their order, so that two of these never wait for each other. What has no envelope could only be quarantined again.
        let sql = format!(
            "WITH r AS MATERIALIZED (SELECT t.seq FROM {table} AS t WHERE t.account_id {EQ} {} AND t.state {EQ} 'quarantined' \
             AND t.envelope IS NOT NULL{narrowed} ORDER BY t.seq {LOCK} OF t) \
             UPDATE {table} AS t SET state = 'pending', attempts = 0, available_at = {}, leased_by = NULL, done_at = NULL, \
             error_code = NULL, last_error = NULL WHERE t.seq {EQ} ANY (ARRAY(SELECT r.seq FROM r))",
            text("$1"),
            now(Clock::Zoned),
        );
        let rows = self.writer.execute(vec![statement(sql, parameters, Vec::new())]);
        let rows = rows.map_err(|error| self.failed_at_fan_out(&error, "requeuing deliveries"))?;
        // They are due in front of where claims have looked.
        self.forget_turns();
        Ok(rows.last().map_or(0, |rows| rows.changed))
    }
}
