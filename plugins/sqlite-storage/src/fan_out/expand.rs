//! Expanding events, and having them expanded again.

use super::FanOut;
use crate::admin::requeued;
use crate::claim::not_ready;
use crate::outbox::{Outbox, statement};
use crate::statements::Sql;
use crate::time::NOW_MS;
use outbox_table::database::{ColumnType, Database, Results, Statement, Transaction, Value};
use outbox_table::fan_out::{ROUTING, Tables, delivery_values, given_out_again};
use outbox_table::search::Trouble;
use outbox_table::template::Slot;
use outhaul_sdk::{Batch, Column, Expansion, Failure, Reemitted, Settlement, Verdict};
use std::collections::HashSet;

/// An event and what is to be inserted for it.
struct Planned<'a> {
    expansion: &'a Expansion,
    /// The values of each delivery.
    deliveries: Vec<Vec<Value>>,
    /// Whose they are; none: there are none.
    tenant: Option<String>,
}

impl<D: Database> Outbox<D> {
    /// Inserts the deliveries of events and completes the events, in one transaction; returns the events that the worker no longer holds,
    /// or that are of another generation by now: nothing of theirs is inserted.
    ///
    /// # Errors
    /// `invalid-message` if the deliveries are not those of the events; `invalid_payload` if one of them is there with another body; else
    /// those of the database. Nothing is written then.
    pub fn expand(&mut self, worker: &str, expansions: &[Expansion], deliveries: &Batch) -> Result<Vec<String>, Failure> {
        let planned = plan(expansions, deliveries)?;
        self.fan_out()?;
        if planned.is_empty() {
            return Ok(Vec::new());
        }
        match self.insert_expanded(worker, &planned) {
            Ok(lost) => Ok(lost),
            Err(Trouble::Sql(error)) => Err(given_out_again(&error).unwrap_or_else(|| self.failed(&error, "expanding events"))),
            Err(Trouble::Failure(failure)) => Err(failure),
        }
    }

    fn insert_expanded(&self, worker: &str, planned: &[Planned<'_>]) -> Result<Vec<String>, Trouble> {
        let (Some(ready), Some(FanOut { tables, of_events, .. })) = (&self.ready, &self.fan_out) else {
            return Err(Trouble::Failure(not_ready()));
        };
        let ids = Column::of_texts(planned.iter().map(|planned| &planned.expansion.event));
        let (given, _) = ready.decoding.ids.parameter(&ids);
        let (transaction, rows) =
            self.writer.begin(vec![of_events.fill(|slot| if slot == Slot::Ids { given.clone() } else { Value::Null })])?;
        let known = self.read_of_events(rows.into_iter().next())?;
        let is_meant = |planned: &&Planned<'_>| {
            known.get(&planned.expansion.event).is_some_and(|(tenant, generation)| {
                *generation == planned.expansion.generation && planned.tenant.as_ref().is_none_or(|meant| meant == tenant)
            })
        };
        let meant: Vec<&Planned<'_>> = planned.iter().filter(is_meant).collect();
        let ids = Column::of_texts(meant.iter().map(|planned| &planned.expansion.event));
        let delivered = [Settlement { verdict: Verdict::Delivered, ids }];
        let mut statements = Vec::new();
        let written = ready.verdicts.settle(worker, &delivered, &mut statements);
        let rows = transaction.execute(statements)?;
        let not_held = ready.verdicts.lost(written, &mut Results::new(rows))?;

        let held: Vec<&&Planned<'_>> = meant.iter().filter(|planned| !not_held.contains(&planned.expansion.event)).collect();
        let mut statements = Vec::new();
        let insertion = insertion(tables);
        for planned in &held {
            let tenant = known.get(&planned.expansion.event).map(|(tenant, _)| tenant.as_str()).unwrap_or_default();
            // Before its emission: a delivery that is there without one is another event's.
            statements.extend(planned.deliveries.iter().map(|values| statement(insertion.clone(), values.clone(), Vec::new())));
            statements.push(expanded(tables, planned, tenant));
        }
        transaction.commit(statements)?;
        let held: HashSet<&str> = held.iter().map(|planned| planned.expansion.event.as_str()).collect();
        let events = planned.iter().map(|planned| &planned.expansion.event);
        Ok(events.filter(|event| !held.contains(event.as_str())).cloned().collect())
    }

    /// Makes a settled event pending again, as its next generation.
    ///
    /// # Errors
    /// Those of the database; nothing is changed then.
    pub fn reemit(&mut self, tenant: &str, event: &str) -> Result<Reemitted, Failure> {
        self.fan_out()?;
        let reemitted = match self.emit_again(tenant, event) {
            Ok(reemitted) => reemitted,
            Err(Trouble::Sql(error)) => return Err(self.failed(&error, "emitting the event again")),
            Err(Trouble::Failure(failure)) => return Err(failure),
        };
        if matches!(reemitted, Reemitted::Generation(_)) {
            // It is due in front of where claims have looked.
            self.looking.forget();
            self.event_turns.forget();
        }
        Ok(reemitted)
    }

    fn emit_again(&self, tenant: &str, event: &str) -> Result<Reemitted, Trouble> {
        let (Some(ready), Some(FanOut { tables, of_events, .. })) = (&self.ready, &self.fan_out) else {
            return Err(Trouble::Failure(not_ready()));
        };
        if !ready.decoding.ids.takes(event) {
            return Ok(Reemitted::Unknown);
        }
        let layout = &ready.layout;
        let sql = Sql(layout);
        let (table, id) = (layout.table(), &layout.columns.id);
        let ids = ready.decoding.ids.parameter(&Column::of_texts([event])).0;
        let of_ids = "IN (SELECT value FROM json_each(?1))";
        let states = &layout.config.states;
        let settled = [&states.delivered, &states.dead].map(crate::layout::state_literal).join(", ");
        let state = format!(
            "SELECT CASE WHEN {} THEN 0 WHEN t.{} IN ({settled}) THEN 1 ELSE 2 END FROM {table} AS t WHERE t.{id} {of_ids}",
            sql.unsettled("t."),
            layout.columns.state,
        );
        let (transaction, rows) = self.writer.begin(vec![
            of_events.fill(|slot| if slot == Slot::Ids { ids.clone() } else { Value::Null }),
            statement(state, vec![ids.clone()], vec![ColumnType::Integer]),
        ])?;
        let mut rows = rows.into_iter();
        let known = self.read_of_events(rows.next())?;
        let state = Results::new(rows.collect()).next_rows()?.integers()?.get(0);
        let generation = match (known.get(event).filter(|(owner, _)| owner == tenant), state) {
            (Some((_, generation)), Some(0)) => return Ok(Reemitted::Pending(*generation)),
            (Some((_, generation)), Some(1)) => generation.saturating_add(1),
            _ => return Ok(Reemitted::Unknown),
        };
        let mut statements =
            vec![statement(format!("UPDATE {table} SET {} WHERE {id} {of_ids}", requeued(layout)), vec![ids.clone()], Vec::new())];
        if let Some(side) = &layout.side {
            statements.push(statement(format!("DELETE FROM {side} WHERE id {of_ids}"), vec![ids], Vec::new()));
        }
        statements.push(statement(
            format!(
                "INSERT INTO {} (notification_id, generation, account_id, state, deliveries, at) VALUES (?1, ?2, ?3, 'pending', 0, {NOW_MS})",
                tables.emissions
            ),
            vec![Value::Text(event.to_owned()), Value::Integer(i64::from(generation)), Value::Text(tenant.to_owned())],
            Vec::new(),
        ));
        transaction.commit(statements)?;
        Ok(Reemitted::Generation(generation))
    }
}

/// Which deliveries are whose, checked.
fn plan<'a>(expansions: &'a [Expansion], deliveries: &Batch) -> Result<Vec<Planned<'a>>, Failure> {
    let mut messages = deliveries.messages();
    let mut planned = Vec::with_capacity(expansions.len());
    let mut seen = HashSet::new();
    for expansion in expansions {
        if !seen.insert(&expansion.event) {
            return Err(Failure::invalid_message(format!("the event {} is there twice", expansion.event)));
        }
        let mut plan = Planned { expansion, deliveries: Vec::new(), tenant: None };
        for _ in 0..expansion.deliveries {
            let message = messages.next().ok_or_else(|| Failure::invalid_message("there are fewer deliveries than the events say"))?;
            let (tenant, values) = delivery_values(message, &expansion.event, expansion.generation)?;
            if plan.tenant.as_ref().is_some_and(|known| *known != tenant) {
                return Err(Failure::invalid_message(format!("the deliveries of the event {} are of two tenants", expansion.event)));
            }
            plan.tenant = Some(tenant);
            plan.deliveries.push(values);
        }
        planned.push(plan);
    }
    if messages.next().is_some() {
        return Err(Failure::invalid_message("there are more deliveries than the events say"));
    }
    Ok(planned)
}

/// The emission of an event is expanded.
fn expanded(tables: &Tables, planned: &Planned<'_>, tenant: &str) -> Statement {
    let Expansion { event, generation, deliveries } = planned.expansion;
    let sql = format!(
        "INSERT INTO {} (notification_id, generation, account_id, state, deliveries, at) VALUES (?1, ?2, ?3, 'expanded', ?4, {NOW_MS}) \
         ON CONFLICT (notification_id, generation) DO UPDATE SET state = excluded.state, deliveries = excluded.deliveries, \
         error_code = NULL, at = excluded.at",
        tables.emissions
    );
    let parameters = vec![
        Value::Text(event.clone()),
        Value::Integer(i64::from(*generation)),
        Value::Text(tenant.to_owned()),
        Value::Integer(i64::from(*deliveries)),
    ];
    statement(sql, parameters, Vec::new())
}

/// Inserts a delivery that is not there yet. If there is one of another body, or of an event that is gone (its emission is gone with it), the
/// column that may not be NULL ends the transaction.
fn insertion(tables: &Tables) -> String {
    let names: Vec<&str> = ROUTING.iter().map(|column| column.name).chain(["envelope"]).collect();
    let values: Vec<String> = (1..=names.len()).map(|number| format!("?{number}")).collect();
    format!(
        "INSERT INTO {} ({}, created_at) VALUES ({}, {NOW_MS}) \
         ON CONFLICT (account_id, notification_id, emission_generation, subscriber_id) DO UPDATE SET body_sha256 = NULL \
         WHERE body_sha256 <> excluded.body_sha256 OR NOT EXISTS (SELECT 1 FROM {} AS e \
         WHERE e.notification_id = excluded.notification_id AND e.generation = excluded.emission_generation)",
        tables.deliveries,
        names.join(", "),
        values.join(", "),
        tables.emissions
    )
}
