//! Settling and renewing: verdicts in one transaction.

use crate::outbox::Outbox;
use outbox_table::database::{Database, Results, Statement};
use outbox_table::settle::Written;
use outhaul_sdk::{Column, Failure, Settlement};

impl<D: Database> Outbox<D> {
    /// Writes verdicts in one transaction; returns the ids no longer held.
    ///
    /// # Errors
    /// Those of the database; nothing is written then.
    pub fn settle(&mut self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        let mut statements = Vec::new();
        let written = self.ready()?.verdicts.settle(worker, settlements, &mut statements);
        self.run(written, statements, "settling")
    }

    /// Lets leases end so long from now; returns the ids no longer held.
    ///
    /// # Errors
    /// Those of the database, `timeout` at once if another transaction has locked a row; nothing is written then.
    pub fn extend(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure> {
        let mut statements = Vec::new();
        let written = self.ready()?.verdicts.extend(worker, ids, lease_ms, &mut statements);
        self.run(written, statements, "renewing leases")
    }

    fn run(&mut self, written: Written<'_>, statements: Vec<Statement>, doing: &str) -> Result<Vec<String>, Failure> {
        if statements.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.writer.execute(statements).map_err(|error| self.failed(&error, doing))?;
        self.ready()?.verdicts.lost(written, &mut Results::new(rows))
    }
}
