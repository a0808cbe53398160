//! Verdicts on deliveries, and their leases; as for events, in one transaction.

use crate::outbox::Outbox;
use outbox_table::database::{Database, Results, Statement};
use outbox_table::settle::Written;
use outhaul_sdk::{Column, DeliverySettlement, Failure};

impl<D: Database> Outbox<D> {
    /// Writes verdicts on deliveries in one transaction; returns the ids no longer held.
    ///
    /// # Errors
    /// Those of the database; nothing is written then.
    pub fn settle_deliveries(&mut self, worker: &str, settlements: &[DeliverySettlement]) -> Result<Vec<String>, Failure> {
        let mut statements = Vec::new();
        let written = self.beside()?.deliveries.verdicts.settle_deliveries(worker, settlements, &mut statements);
        self.run_beside(written, statements, "settling deliveries")
    }

    /// Lets leases of deliveries end so long from now; returns the ids no longer held.
    ///
    /// # Errors
    /// Those of the database; nothing is written then.
    pub fn extend_deliveries(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure> {
        let mut statements = Vec::new();
        let written = self.beside()?.deliveries.verdicts.extend(worker, ids, lease_ms, &mut statements);
        self.run_beside(written, statements, "renewing leases of deliveries")
    }

    fn run_beside(&mut self, written: Written<'_>, statements: Vec<Statement>, doing: &str) -> Result<Vec<String>, Failure> {
        if statements.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.writer.execute(statements).map_err(|error| self.failed(&error, doing))?;
        self.beside()?.deliveries.verdicts.lost(written, &mut Results::new(rows))
    }
}
