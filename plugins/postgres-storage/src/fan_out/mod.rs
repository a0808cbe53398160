//! Fan-out: a delivery for each subscriber of an event, and a log of what changed.
//!
//! The deliveries' table is an outbox like any other: it is claimed, settled and decoded by the code that does so for events. What is
//! more is here: `schema` (DDL and triggers), `claim` (tenants in turn), `expand` (events into deliveries, and again), `rows` (deliveries into
//! parameters), `deliveries` (verdicts, counts, pages, keys), `log` (changes and their readers).

mod claim;
mod deliveries;
mod expand;
mod log;
mod requeue;
mod rows;
pub(crate) mod schema;

use crate::inspect;
use crate::layout::{Layout, Role};
use crate::outbox::{Outbox, Ready};
use outbox_table::database::{Database, SqlError};
use outbox_table::fan_out::{Tables, Turns, deliveries as as_outbox};
use outbox_table::ident::{Ident, NameFault};
use outbox_table::search::Progress;
use outhaul_sdk::Failure;

/// The tables of fan-out, once they are there.
#[derive(Debug)]
pub(crate) struct FanOut {
    pub(crate) tables: Tables,
    /// The events, searched by tenant if there are any.
    pub(crate) events: Ready,
    pub(crate) deliveries: Ready,
    /// How far claims have looked.
    pub(crate) turns_of_events: Turns<Progress>,
    pub(crate) turns_of_deliveries: Turns<Progress>,
}

impl<D: Database> Outbox<D> {
    /// The tables of fan-out.
    pub(crate) fn fan_out(&mut self) -> Result<&mut FanOut, Failure> {
        let fan_out = match self.fan_out.take() {
            Some(fan_out) => fan_out,
            None => self.look_at_fan_out()?,
        };
        Ok(self.fan_out.insert(fan_out))
    }

    fn look_at_fan_out(&mut self) -> Result<FanOut, Failure> {
        if self.config.fan_out.is_none() {
            return Err(Failure::invalid_configuration(
                "`fan_out` is not set in this storage's configuration: set `fan_out = {}`, and create the tables with `outhaul schema --apply`",
            ));
        }
        let layout = self.ready()?.layout.clone();
        let tables = schema::tables(&layout.info.name).map_err(invalid)?;
        for table in [&tables.emissions, &tables.status, &tables.heads, &tables.readers] {
            inspect::table(&self.reader, table, "fan_out")?.ok_or_else(|| inspect::missing(&self.reader, table, "fan_out", true))?;
        }
        let info = inspect::table(&self.reader, &tables.deliveries, "fan_out")?
            .ok_or_else(|| inspect::missing(&self.reader, &tables.deliveries, "fan_out", true))?;
        let deliveries = Layout::new(as_outbox(&self.config, &tables), info)?.with_role(Role::Deliveries);
        let mut events = Ready::new(layout.telling_emissions());
        events.states_tried = self.config.columns.is_none();
        let mut deliveries = Ready::new(deliveries.by_tenant(Ident::of("account_id")));
        deliveries.states_tried = true;
        Ok(FanOut { tables, events, deliveries, turns_of_events: Turns::default(), turns_of_deliveries: Turns::default() })
    }

    /// The failure for a database error in a call of fan-out.
    pub(crate) fn failed_at_fan_out(&mut self, error: &SqlError, doing: &str) -> Failure {
        self.forget_turns();
        self.failed(error, doing)
    }

    /// What was seen in a transaction that did not commit is worth nothing.
    fn forget_turns(&mut self) {
        if let Some(fan_out) = &mut self.fan_out {
            fan_out.turns_of_events.forget();
            fan_out.turns_of_deliveries.forget();
        }
    }
}

/// A name that cannot be made.
pub(crate) fn invalid(fault: NameFault) -> Failure {
    Failure::invalid_configuration(format!("`fan_out`: {fault}"))
}
