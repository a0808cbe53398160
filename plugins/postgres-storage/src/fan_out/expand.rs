//! Expansion: the deliveries of events go in and the events are completed, in one transaction; and events that are to be emitted again.

use super::{FanOut, rows};
use crate::admin;
use crate::ops::{EQ, NE, PLUS, text};
use crate::outbox::{Outbox, Ready, statement};
use crate::statements::{Emission, LOCK, Sql};
use outbox_table::database::{ColumnType, Database, Results, Transaction, Value};
use outbox_table::fan_out::given_out_again;
use outbox_table::ident::TableName;
use outbox_table::ids::IdKind;
use outbox_table::search::names;
use outbox_table::settle::Change;
use outbox_table::template::Slot;
use outhaul_sdk::{Batch, Column, Expansion, Failure, Reemitted};
use std::collections::HashSet;

impl<D: Database> Outbox<D> {
    /// Inserts deliveries and completes their events, as far as `worker` holds them and they are of that generation; returns the ids of the
    /// others.
    ///
    /// # Errors
    /// `invalid-message` if a delivery cannot be stored; `invalid_payload` if one is there with another body; else those of the database. Nothing is written then.
    pub fn expand(&mut self, worker: &str, expansions: &[Expansion], deliveries: &Batch) -> Result<Vec<String>, Failure> {
        if expansions.is_empty() {
            return Ok(Vec::new());
        }
        let given = rows::given(expansions, deliveries)?;
        let FanOut { events, tables, .. } = self.fan_out()?;
        let kind = events.decoding.ids;
        // What cannot be in the table is held by nobody.
        let takes: Vec<bool> = expansions.iter().map(|expansion| kind.takes(&expansion.event)).collect();
        let places: Vec<i64> = (1..).zip(&takes).filter(|(_, takes)| **takes).map(|(place, _)| place).collect();
        let known = || expansions.iter().zip(&takes).filter(|(_, takes)| **takes).map(|(expansion, _)| expansion);
        let mut tenants = Column::new();
        given.tenants.iter().zip(&takes).filter(|(_, takes)| **takes).for_each(|(tenant, _)| tenants.push(tenant));
        let (ids, _) = kind.parameter(&Column::of_texts(known().map(|expansion| expansion.event.as_str())));
        let mut parameters = vec![
            Value::Text(worker.to_owned()),
            ids.clone(),
            Value::Integers(places),
            Value::Integers(known().map(|expansion| i64::from(expansion.generation)).collect()),
            Value::Integers(known().map(|expansion| i64::from(expansion.deliveries)).collect()),
            Value::Texts(tenants),
            Value::Integers(given.events),
        ];
        parameters.extend(given.columns);
        let lock = Sql(&events.layout).lock().fill(|slot| if slot == Slot::Ids { ids.clone() } else { Value::Null });
        let expand = statement(expand_text(events, &tables.deliveries), parameters, vec![events.decoding.ids.column()]);
        // What is held is judged by a statement that begins when the rows are locked.
        let written = self.writer.execute(vec![lock, expand]);
        let written = written.map_err(|error| given_out_again(&error).unwrap_or_else(|| self.failed(&error, "expanding events")))?;
        let mut results = Results::new(written);
        results.next_rows()?;
        let held = self.fan_out()?.events.decoding.ids.read(&mut results.next_rows()?)?;
        let held: HashSet<String> = names(&held.into_value()).into_iter().collect();
        Ok(expansions.iter().map(|expansion| &expansion.event).filter(|event| !held.contains(*event)).cloned().collect())
    }

    /// Makes a settled event pending again, as its next generation.
    ///
    /// # Errors
    /// Those of the database; nothing is written then.
    pub fn reemit(&mut self, tenant: &str, event: &str) -> Result<Reemitted, Failure> {
        let ready = &self.fan_out()?.events;
        let ids = ready.decoding.ids;
        if !ids.takes(event) {
            return Ok(Reemitted::Unknown);
        }
        let (look, again) = (look_texts(ready), again_texts(ready));
        let given = vec![ids.parameter(&Column::of_texts([event])).0, Value::Text(tenant.to_owned())];
        let statements = look.into_iter().map(|sql| statement(sql, given.clone(), vec![ColumnType::Integer])).collect();
        let doing = "emitting an event again";
        let (transaction, rows) = self.writer.begin(statements).map_err(|error| self.failed(&error, doing))?;
        let mut results = Results::new(rows);
        let states = results.next_rows()?.integers()?;
        let generation = results.next_rows()?.integers()?.count(0);
        let generation = u32::try_from(generation).unwrap_or(u32::MAX);
        match states.get(0) {
            Some(1) => {
                let statements = again.into_iter().map(|sql| statement(sql, given.clone(), Vec::new())).collect();
                transaction.commit(statements).map_err(|error| self.failed(&error, doing))?;
                Ok(Reemitted::Generation(generation.saturating_add(1)))
            }
            Some(0) => Ok(Reemitted::Pending(generation)),
            _ => Ok(Reemitted::Unknown),
        }
    }
}

/// Whom an event belongs to, is it the tenant in `$2`; and the event is in `$1`.
fn given(sql: Sql<'_>, emission: &Emission) -> String {
    format!("{} {EQ} ANY (CAST($1 AS {}[])) AND {} {EQ} {}", sql.id(), sql.0.id_type, emission.tenant, text("$2"))
}

/// Inserts, completes, and returns the ids of the events that were held. If a delivery is there with another body, or of an event that is gone
/// (its emission is gone with it), the column that may not be NULL ends the transaction. Parameters: worker; ids, places, generations, numbers of deliveries
/// and tenants of events; the place of the event of each delivery; and the columns of the deliveries.
fn expand_text(events: &Ready, deliveries: &TableName) -> String {
    let (layout, sql) = (&events.layout, Sql(&events.layout));
    let Some(emission) = sql.emission() else { return String::new() };
    let Emission { table: emissions, tenant, event, generation } = emission;
    let id = sql.id();
    let of_held = format!("{EQ} ANY (ARRAY(SELECT h.id FROM h))");
    let complete = sql.write(Change::Delivered, &format!("{id} {of_held}")).map(|write| format!(", w AS ({write})")).unwrap_or_default();
    let forget = layout.side.as_ref().map(|side| format!(", s AS (DELETE FROM {side} AS l WHERE l.id {of_held})")).unwrap_or_default();
    let rows = rows::Inserted::from(8);
    let number = |parameter| rows::unnest(parameter, "bigint");
    format!(
        "WITH x AS MATERIALIZED (SELECT x.* FROM ROWS FROM ({}, {}, {}, {}, {}) AS x(id, place, generation, deliveries, tenant)), \
         h AS MATERIALIZED (SELECT x.place, x.generation, x.deliveries, y.id, y.account_id, y.notification_id FROM x CROSS JOIN LATERAL \
         (SELECT {id} AS id, {tenant} AS account_id, {event} AS notification_id FROM {} AS t WHERE {id} {EQ} x.id AND {} AND {} \
         AND {generation} {EQ} x.generation AND {tenant} {EQ} coalesce(x.tenant, {tenant}) OFFSET 0) AS y), \
         d AS (INSERT INTO {deliveries} AS v ({}) SELECT {} FROM ROWS FROM ({}, {}) WITH ORDINALITY AS y(place, {}, n) \
         WHERE y.place {EQ} ANY (ARRAY(SELECT h.place FROM h)) ORDER BY y.n \
         ON CONFLICT (account_id, notification_id, emission_generation, subscriber_id) DO UPDATE SET body_sha256 = NULL \
         WHERE v.body_sha256 {NE} excluded.body_sha256 OR NOT EXISTS (SELECT 1 FROM {emissions} AS m WHERE m.account_id {EQ} v.account_id \
         AND m.notification_id {EQ} v.notification_id AND m.generation {EQ} v.emission_generation)), \
         e AS (INSERT INTO {emissions} (account_id, notification_id, generation, state, deliveries) \
         SELECT h.account_id, h.notification_id, h.generation, 'expanded', h.deliveries FROM h ORDER BY h.place \
         ON CONFLICT (account_id, notification_id, generation) DO UPDATE SET state = excluded.state, deliveries = excluded.deliveries, \
         error_code = NULL, at = excluded.at){complete}{forget} SELECT {} FROM h",
        rows::unnest(2, &layout.id_type),
        number(3),
        number(4),
        number(5),
        rows::unnest(6, "pg_catalog.text"),
        layout.table(),
        sql.held(&text("$1")),
        sql.still_unsettled(),
        rows.columns,
        rows.values,
        number(7),
        rows.arrays,
        rows.names,
        if events.decoding.ids == IdKind::Integer { "CAST(h.id AS bigint)".to_owned() } else { text("h.id") },
    )
}

/// Locks the event, and says whether it is settled (1) or waits (0); then its generation. A statement of its own: it begins when the row is
/// locked.
fn look_texts(events: &Ready) -> Vec<String> {
    let (layout, sql) = (&events.layout, Sql(&events.layout));
    let Some(emission) = sql.emission() else { return Vec::new() };
    let (table, given) = (layout.table(), given(sql, &emission));
    let settled = [&layout.config.states.delivered, &layout.config.states.dead].map(|state| layout.state(state)).join(", ");
    let state = sql.column(&layout.columns.state);
    vec![
        format!(
            "SELECT CAST(CASE WHEN {} THEN 0 ELSE 1 END AS bigint) FROM {table} AS t WHERE {given} AND ({} OR {state} {EQ} ANY (ARRAY[{settled}])) \
             {LOCK} OF t",
            sql.unsettled(),
            sql.unsettled(),
        ),
        format!("SELECT {} FROM {table} AS t WHERE {given}", emission.generation),
    ]
}

/// Makes it pending, and says so among the emissions.
fn again_texts(events: &Ready) -> Vec<String> {
    let (layout, sql) = (&events.layout, Sql(&events.layout));
    let Some(emission) = sql.emission() else { return Vec::new() };
    let (table, given) = (layout.table(), given(sql, &emission));
    let Emission { table: emissions, tenant, event, generation } = emission;
    let mut texts = vec![format!("UPDATE {table} AS t SET {} WHERE {given}", admin::pending_again(layout).join(", "))];
    texts.extend(
        layout.side.as_ref().map(|side| {
            format!("DELETE FROM {side} AS l WHERE l.id {EQ} ANY (ARRAY(SELECT {} FROM {table} AS t WHERE {given}))", sql.id())
        }),
    );
    texts.push(format!(
        "INSERT INTO {emissions} (account_id, notification_id, generation, state) \
         SELECT {tenant}, {event}, ({generation} {PLUS} 1), 'pending' FROM {table} AS t WHERE {given}"
    ));
    texts
}
