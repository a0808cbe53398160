//! Quarantined deliveries that an operator wants to be tried again. The trigger logs it.

use super::list::narrowed;
use crate::outbox::{Outbox, statement};
use crate::time::NOW_MS;
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
        let table = &self.beside()?.tables.deliveries;
        let mut parameters = vec![Value::Text(filter.tenant.clone())];
        let narrowed = narrowed(filter, &mut parameters);
        // What has no envelope could only be quarantined again.
        let sql = format!(
            "UPDATE {table} SET state = 'pending', attempts = 0, available_at = {NOW_MS}, leased_by = NULL, done_at = NULL, \
             error_code = NULL, last_error = NULL WHERE seq IN (SELECT t.seq FROM {table} AS t WHERE t.account_id = ?1 \
             AND t.state = 'quarantined' AND t.envelope IS NOT NULL{narrowed})"
        );
        let rows = self
            .writer
            .execute(vec![statement(sql, parameters, Vec::new())])
            .map_err(|error| self.failed(&error, "requeuing deliveries"))?;
        // They are due in front of where claims have looked.
        self.delivery_turns.forget();
        Ok(rows.first().map_or(0, |rows| rows.changed))
    }
}
