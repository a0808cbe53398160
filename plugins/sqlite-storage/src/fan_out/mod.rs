//! Fan-out: events and deliveries claimed by tenants in turn (`claim`), events expanded and emitted again (`expand`), verdicts on deliveries
//! (`settle`), deliveries listed, sealed anew and purged (`list`), the log of what changed (`status`), events that are
//! nobody's (`strays`), and the tables (`schema`).

mod claim;
mod expand;
mod list;
mod requeue;
pub(crate) mod schema;
mod settle;
mod status;
mod strays;

pub(crate) use schema::{check, is_there};

use crate::inspect;
use crate::layout::{Layout, state_literal};
use crate::outbox::{Outbox, Ready};
use crate::statements::template;
use crate::time::NOW_MS;
use outbox_table::config::Config;
use outbox_table::database::{ColumnType, Database};
use outbox_table::fan_out::{Tables, deliveries};
use outbox_table::ident::Ident;
use outbox_table::template::{Slot, Template};
use outhaul_sdk::Failure;

/// What is beside the table of events.
#[derive(Debug)]
pub(crate) struct FanOut {
    tables: Tables,
    /// The events, tenant by tenant; none: there are no tenants.
    events: Option<Ready>,
    deliveries: Ready,
    /// Id, tenant and generation of the events in `Ids`.
    of_events: Template,
    /// Whoever runs the storage was told of events that are nobody's.
    told_of_strays: bool,
}

impl<D: Database> Outbox<D> {
    /// The tables of fan-out, and the statements of the events' table.
    ///
    /// # Errors
    /// `invalid-configuration` if they are not configured, or not there; else those of the database.
    fn fan_out(&mut self) -> Result<(), Failure> {
        if self.config.fan_out.is_none() {
            return Err(Failure::invalid_configuration(
                "`fan_out` is missing: set `fan_out = {}` in the storage's config, and create the tables with `outhaul schema --apply`",
            ));
        }
        self.ready()?;
        if self.fan_out.is_some() {
            return Ok(());
        }
        let tables = tables(&self.config)?;
        let read = |config: Config| {
            let info = inspect::table(&self.reader, &config.table)?
                .ok_or_else(|| inspect::missing(&self.reader, &config.table, "fan_out", true))?;
            Layout::new(config, info)
        };
        let events = read(self.config.clone())?;
        let of_events = of_events(&events, &tables);
        let by_tenant = self.config.tenant().map(|tenant| Ready::new(&self.reader, events.by_tenant(tenant))).transpose()?;
        let layout = read(deliveries(&self.config, &tables))?.by_tenant(Ident::of("account_id"));
        let deliveries = Ready::new(&self.reader, layout)?;
        self.fan_out = Some(FanOut { tables, events: by_tenant, deliveries, of_events, told_of_strays: false });
        self.look_for_strays()
    }

    /// The tables of fan-out, ready.
    fn beside(&mut self) -> Result<&FanOut, Failure> {
        self.fan_out()?;
        self.fan_out.as_ref().ok_or_else(crate::claim::not_ready)
    }
}

/// The tables that the configuration asks for.
fn tables(config: &Config) -> Result<Tables, Failure> {
    Tables::of(&config.table).map_err(|fault| Failure::invalid_configuration(format!("`table`: names of tables beside it: {fault}")))
}

/// The id of an event as the tables of fan-out have it.
fn event_id(layout: &Layout) -> String {
    format!("CAST(t.{} AS TEXT)", layout.columns.id)
}

/// The tenant of an event.
fn tenant(layout: &Layout) -> String {
    layout.config.tenant().map_or_else(|| "''".to_owned(), |tenant| format!("CAST(t.{tenant} AS TEXT)"))
}

/// The generation that an event has reached.
fn generation(layout: &Layout, tables: &Tables) -> String {
    format!("ifnull((SELECT max(e.generation) FROM {} AS e WHERE e.notification_id = {}), 1)", tables.emissions, event_id(layout))
}

fn of_events(layout: &Layout, tables: &Tables) -> Template {
    let id = &layout.columns.id;
    let text = format!(
        "SELECT t.{id}, {}, {} FROM {} AS t WHERE t.{id} IN (SELECT value FROM json_each({}))",
        tenant(layout),
        generation(layout, tables),
        layout.table(),
        Slot::Ids
    );
    let ids = if layout.integer_ids { ColumnType::Integer } else { ColumnType::Bytes };
    template(&text, &[ids, ColumnType::Bytes, ColumnType::Integer])
}

/// Notes that of the events in `Ids` those that are dead now will not be expanded, with `Code`; none: there is no fan-out.
pub(crate) fn note_dead(layout: &Layout) -> Result<Option<Template>, Failure> {
    if layout.config.fan_out.is_none() {
        return Ok(None);
    }
    let tables = tables(&layout.config)?;
    let text = format!(
        "INSERT INTO {} (notification_id, generation, account_id, state, deliveries, error_code, at) \
         SELECT {}, {}, {}, 'quarantined', 0, {}, {NOW_MS} FROM {} AS t WHERE t.{} IN (SELECT value FROM json_each({})) AND t.{} = {} \
         ON CONFLICT (notification_id, generation) DO UPDATE SET state = excluded.state, error_code = excluded.error_code, at = excluded.at \
         WHERE state = 'pending'",
        tables.emissions,
        event_id(layout),
        generation(layout, &tables),
        tenant(layout),
        Slot::Code,
        layout.table(),
        layout.columns.id,
        Slot::Ids,
        layout.columns.state,
        state_literal(&layout.config.states.dead),
    );
    Ok(Some(template(&text, &[])))
}

/// Forgets the emissions of events that are to be deleted, or are deleted; the query gives their ids.
pub(crate) fn note_gone(layout: &Layout, ids: &str) -> Result<Option<String>, Failure> {
    if layout.config.fan_out.is_none() {
        return Ok(None);
    }
    let emissions = tables(&layout.config)?.emissions;
    Ok(Some(format!("WITH r(i) AS ({ids}) DELETE FROM {emissions} WHERE notification_id IN (SELECT CAST(i AS TEXT) FROM r)")))
}

/// Notes that dead events, whose ids the query gives, wait to be expanded again.
pub(crate) fn note_requeued(layout: &Layout, ids: &str) -> Result<Option<String>, Failure> {
    if layout.config.fan_out.is_none() {
        return Ok(None);
    }
    let emissions = tables(&layout.config)?.emissions;
    Ok(Some(format!(
        "WITH r(i) AS ({ids}) UPDATE {emissions} SET state = 'pending', error_code = NULL, at = {NOW_MS} WHERE state = 'quarantined' \
         AND (notification_id, generation) IN (SELECT e.notification_id, max(e.generation) FROM r CROSS JOIN {emissions} AS e \
         ON e.notification_id = CAST(r.i AS TEXT) GROUP BY e.notification_id)"
    )))
}
