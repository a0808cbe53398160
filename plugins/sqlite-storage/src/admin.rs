//! What the command line needs: inserting, paging, and what becomes of settled rows.

use crate::fan_out;
use crate::layout::{Layout, state_literal};
use crate::outbox::{Outbox, Ready, statement};
use crate::statements::Sql;
use crate::time::{self, NOW_MS};
use outbox_table::config::{OnDelivered, PayloadEncoding, TimeUnit};
use outbox_table::database::{Database, Results, Statement, Transaction, Value};
use outbox_table::insert::{self, Shape};
use outbox_table::page::{self, MAX_PAGE};
use outbox_table::search::Trouble;
use outbox_table::settle::millis;
use outhaul_sdk::{Batch, Column, Failure, Filter, Message, Page, RowState};

impl<D: Database> Outbox<D> {
    /// Inserts messages in one transaction; returns their ids.
    ///
    /// # Errors
    /// `invalid-message` if the table cannot hold one of them; else those of the database.
    pub fn enqueue(&mut self, batch: &Batch) -> Result<Vec<String>, Failure> {
        let text = self.text_payloads();
        let ready = self.ready()?;
        let statements = batch.messages().map(|message| insert(ready, message, text)).collect::<Result<Vec<_>, _>>()?;
        let count = statements.len();
        let rows = self.writer.execute(statements).map_err(|error| self.failed(&error, "inserting"))?;
        let ready = self.ready()?;
        let mut results = Results::new(rows);
        (0..count).map(|_| Ok(ready.decoding.ids.read(&mut results.next_rows()?)?.text(0).into_owned())).collect()
    }

    /// Rows in insertion order.
    ///
    /// # Errors
    /// Those of the database; `invalid-message` if `after` is not from an earlier page.
    pub fn browse(&mut self, filter: &Filter, after: Option<&str>, limit: u32, with_messages: bool) -> Result<Page, Failure> {
        let after: i64 = match after {
            None => i64::MIN,
            Some(text) => text.parse().map_err(|_| Failure::invalid_message(format!("`{text}` is not where a page ended")))?,
        };
        let limit = limit.clamp(1, MAX_PAGE);
        let ready = self.ready()?;
        let sql = Sql(&ready.layout);
        let state = |state| state_condition(&ready.layout, state);
        let mut parameters = vec![Value::Integer(after), Value::Integer(i64::from(limit))];
        let conditions = conditions(ready, filter, filter.state.map(state).as_deref(), &mut parameters);
        let rows = format!(
            "FROM {} WHERE {order} > ?1{}{conditions} ORDER BY {order} LIMIT ?2",
            sql.from(""),
            sql.usable_id(),
            order = sql.order()
        );
        let [code, error, due_in] = row_columns(&ready.layout);
        let statements = vec![
            statement(
                format!("SELECT {} {rows}", sql.message("t.", &sql.attempts(), with_messages)),
                parameters.clone(),
                ready.decoding.columns(),
            ),
            statement(format!("SELECT {code}, {error}, {due_in}, {} {rows}", sql.attempts()), parameters, page::COLUMNS.to_vec()),
        ];
        let results = self.reader.execute(statements).map_err(|error| self.failed(&error, "reading rows"))?;
        let ready = self.ready()?;
        let mut results = Results::new(results);
        let fetched = ready.decoding.read(&mut results.next_rows()?)?;
        let last = fetched.last_order();
        let batch = ready.decoding.decode(fetched, true).batch;
        let rows = page::rows(&batch, &mut results.next_rows()?)?;
        let full = rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Page { rows, messages: with_messages.then_some(batch), next: last.filter(|_| full).map(|order| order.to_string()) })
    }

    /// Dead rows become pending, with no attempts counted; returns how many.
    ///
    /// # Errors
    /// Those of the database.
    pub fn requeue(&mut self, filter: &Filter) -> Result<u64, Failure> {
        let ready = self.ready()?;
        let change = format!("UPDATE {} SET {}", ready.layout.table(), requeued(&ready.layout));
        self.change_dead(filter, &change, fan_out::note_requeued, "requeuing dead rows")
    }

    /// Dead rows are deleted; returns how many.
    ///
    /// # Errors
    /// Those of the database.
    pub fn discard(&mut self, filter: &Filter) -> Result<u64, Failure> {
        let ready = self.ready()?;
        let change = format!("DELETE FROM {}", ready.layout.table());
        self.change_dead(filter, &change, fan_out::note_gone, "discarding dead rows")
    }

    /// Runs `change` on dead rows; their leases beside the table are forgotten. What `note` makes of the query for their
    /// ids comes first.
    fn change_dead(
        &mut self,
        filter: &Filter,
        change: &str,
        note: impl Fn(&Layout, &str) -> Result<Option<String>, Failure>,
        doing: &str,
    ) -> Result<u64, Failure> {
        if filter.state.is_some_and(|state| state != RowState::Dead) {
            return Ok(0);
        }
        let ready = self.ready()?;
        let layout = &ready.layout;
        let mut parameters = Vec::new();
        let dead = state_condition(layout, RowState::Dead);
        let conditions = conditions(ready, filter, Some(&dead), &mut parameters);
        let id = &layout.columns.id;
        let rows = format!("SELECT t.{id} FROM {} AS t WHERE true{conditions}", layout.table());
        let mut statements = Vec::new();
        if let Some(note) = note(layout, &rows)? {
            statements.push(statement(note, parameters.clone(), Vec::new()));
        }
        if let Some(side) = &layout.side {
            statements.push(statement(format!("DELETE FROM {side} WHERE id IN ({rows})"), parameters.clone(), Vec::new()));
        }
        statements.push(statement(format!("{change} WHERE {id} IN ({rows})"), parameters, Vec::new()));
        let results = self.writer.execute(statements).map_err(|error| self.failed(&error, doing))?;
        Ok(results.last().map_or(0, |rows| rows.changed))
    }

    /// Delivered rows that were settled longer ago than that are deleted, at most `limit`; returns how many.
    ///
    /// # Errors
    /// `invalid-configuration` if the table does not say when; else those of the database.
    pub fn purge(&mut self, older_than_ms: u64, limit: u32) -> Result<u64, Failure> {
        let ready = self.ready()?;
        let layout = &ready.layout;
        let (table, id) = (layout.table(), &layout.columns.id);
        let mut statements = Vec::new();
        if let Some(side) = &layout.side {
            // Leases whose rows somebody else has deleted.
            let orphans =
                format!("SELECT l.id FROM {side} AS l WHERE NOT EXISTS (SELECT 1 FROM {table} AS t WHERE t.{id} = l.id) LIMIT ?1");
            statements.push(statement(
                format!("DELETE FROM {side} WHERE id IN ({orphans})"),
                vec![Value::Integer(i64::from(limit))],
                Vec::new(),
            ));
        }
        if layout.config.on_delivered == OnDelivered::Delete {
            if !statements.is_empty() {
                self.writer.execute(statements).map_err(|error| self.failed(&error, "purging"))?;
            }
            return Ok(0);
        }
        let Some(at) = layout.columns.done_at.as_ref().or(layout.columns.created_at.as_ref()) else {
            return Err(Failure::invalid_configuration("purging needs `columns.done_at`, or else `columns.created_at`"));
        };
        let settled = time::millis(layout.created_unit(), &format!("t.{at}"));
        let order = Sql(layout).order();
        // The row with the highest number stays: SQLite would give its number out again.
        let keep =
            if layout.info.autoincrement { String::new() } else { format!(" AND {order} < (SELECT max({order}) FROM {table} AS t)") };
        statements.push(statement(
            format!(
                "DELETE FROM {table} WHERE {id} IN (SELECT t.{id} FROM {table} AS t WHERE {} AND {settled} < {NOW_MS} - ?1{keep} ORDER BY {order} LIMIT ?2) \
                 RETURNING {id}",
                state_condition(layout, RowState::Delivered)
            ),
            vec![millis(older_than_ms), Value::Integer(i64::from(limit))],
            vec![ready.decoding.ids.column()],
        ));
        match self.delete(statements) {
            Ok(deleted) => Ok(deleted),
            Err(Trouble::Sql(error)) => Err(self.failed(&error, "purging")),
            Err(Trouble::Failure(failure)) => Err(failure),
        }
    }

    /// Runs statements of which the last one deletes rows and returns their ids, and deletes what was noted of those; how many there were.
    fn delete(&self, statements: Vec<Statement>) -> Result<u64, Trouble> {
        let (transaction, mut results) = self.writer.begin(statements)?;
        let deleted = results.last().map_or(0, |rows| rows.changed);
        let mut then = Vec::new();
        if let (Some(ready), Some(rows)) = (&self.ready, results.pop())
            && let Some(note) = fan_out::note_gone(&ready.layout, "SELECT value FROM json_each(?1)")?
        {
            let ids = ready.decoding.ids.read(&mut Results::new(vec![rows]).next_rows()?)?;
            then.push(statement(note, vec![ids.into_value()], Vec::new()));
        }
        transaction.commit(then)?;
        Ok(deleted)
    }
}

/// What makes a settled row pending again, with no attempts counted.
pub(crate) fn requeued(layout: &Layout) -> String {
    let mut sets = Vec::new();
    if let Some(pending) = layout.config.states.pending.first() {
        sets.push(format!("{} = {}", layout.columns.state, state_literal(pending)));
    }
    if let Some(attempts) = &layout.columns.attempts {
        sets.push(format!("{attempts} = 0"));
    }
    for column in [&layout.columns.available_at, &layout.columns.lease_until].into_iter().flatten() {
        sets.push(format!("{column} = {}", time::now(layout.unit())));
    }
    if let Some(done) = layout.columns.done_at.as_ref().filter(|done| !layout.is_not_null(done)) {
        sets.push(format!("{done} = NULL"));
    }
    sets.join(", ")
}

/// The condition for rows in a state, the table seen as `t`.
fn state_condition(layout: &Layout, state: RowState) -> String {
    let sql = Sql(layout);
    let is = |value| format!("t.{} = {}", layout.columns.state, state_literal(value));
    match state {
        RowState::Pending => format!("{} AND NOT {}", sql.unsettled("t."), sql.leased()),
        RowState::Leased => format!("{} AND {}", sql.unsettled("t."), sql.leased()),
        RowState::Delivered => is(&layout.config.states.delivered),
        RowState::Dead => is(&layout.config.states.dead),
    }
}

/// `AND ..` for a filter; its values are appended to the parameters.
fn conditions(ready: &Ready, filter: &Filter, state: Option<&str>, parameters: &mut Vec<Value>) -> String {
    let mut text = String::new();
    let known = {
        let layout = &ready.layout;
        let mut states: Vec<String> = layout.config.states.unsettled().into_iter().map(state_literal).collect();
        states.extend([state_literal(&layout.config.states.delivered), state_literal(&layout.config.states.dead)]);
        format!("t.{} IN ({})", layout.columns.state, states.join(", "))
    };
    text.push_str(&format!(" AND {}", state.unwrap_or(&known)));
    if let Some(topic) = &filter.topic {
        match &ready.layout.columns.topic {
            Some(column) => {
                parameters.push(Value::Text(topic.clone()));
                text.push_str(&format!(" AND t.{column} = ?{}", parameters.len()));
            }
            None if ready.decoding.topic.as_ref() != Some(topic) => text.push_str(" AND false"),
            None => {}
        }
    }
    if !filter.ids.is_empty() {
        // What cannot be an id of the table is in no row.
        let (ids, _) = ready.decoding.ids.parameter(&Column::of_texts(&filter.ids));
        parameters.push(ids);
        text.push_str(&format!(" AND t.{} IN (SELECT value FROM json_each(?{}))", ready.layout.columns.id, parameters.len()));
    }
    text
}

/// State as a number, last error, and how long until it is due.
fn row_columns(layout: &Layout) -> [String; 3] {
    let sql = Sql(layout);
    let states = &layout.config.states;
    let state = &layout.columns.state;
    let code = format!(
        "CASE WHEN t.{state} = {} THEN 2 WHEN t.{state} = {} THEN 3 WHEN {} THEN 1 ELSE 0 END",
        state_literal(&states.delivered),
        state_literal(&states.dead),
        sql.leased()
    );
    let mut until: Vec<String> = [&layout.columns.available_at, &layout.columns.lease_until]
        .into_iter()
        .flatten()
        .map(|column| sql.column(column))
        .map(|column| format!("iif({}, 0, {})", time::passed(layout.unit(), &column), time::millis(layout.unit(), &column)))
        .collect();
    if layout.side.is_some() {
        until.extend(
            ["lease_until", "available_at"].map(|column| format!("ifnull({}, 0)", time::millis(TimeUnit::Ms, &format!("l.{column}")))),
        );
    }
    if let (false, Some(created)) = (layout.config.visibility_delay.is_zero(), &layout.columns.created_at) {
        let created = time::millis(layout.created_unit(), &sql.column(created));
        until.push(format!("ifnull({created}, 0) + {}", layout.config.visibility_delay.as_millis()));
    }
    // A second argument keeps max() from being the aggregate.
    let due_in = format!("CASE WHEN {} THEN max(0, max(0, {}) - {NOW_MS}) ELSE 0 END", sql.unsettled("t."), until.join(", "));
    let error = match (&layout.columns.last_error, &layout.side) {
        (Some(column), _) => format!("CAST(t.{column} AS TEXT)"),
        (None, Some(_)) => "l.last_error".to_owned(),
        (None, None) => "NULL".to_owned(),
    };
    [code, error, due_in]
}

/// 128 random bits in hexadecimal, of functions that a host lets adapters call (`randomblob` takes any length, and is none of them).
fn random_id() -> String {
    let digits = "0,".repeat(31);
    format!("(SELECT group_concat(substr('0123456789abcdef', 1 + (random() & 15), 1), '') FROM json_each('[{digits}0]'))")
}

/// The insertion of a message.
fn insert(ready: &Ready, message: Message<'_>, text: bool) -> Result<Statement, Failure> {
    let layout = &ready.layout;
    let columns = &layout.columns;
    let shape = Shape { text_payload: text, json_payload: text && ready.decoding.encoding == PayloadEncoding::Json, takes_ids: true };
    let mut names = Vec::new();
    let mut values = Vec::new();
    let mut parameters = Vec::new();
    for (column, value) in insert::values(&layout.config, columns, &ready.decoding, shape, message)? {
        names.push(column.to_string());
        parameters.push(value);
        values.push(format!("?{}", parameters.len()));
    }
    if let Some(pending) = layout.config.states.pending.first() {
        names.push(columns.state.to_string());
        values.push(state_literal(pending));
    }
    if message.id().is_empty() && !layout.integer_ids {
        names.push(columns.id.to_string());
        values.push(random_id());
    }
    if let Some(created) = &columns.created_at {
        names.push(created.to_string());
        values.push(time::now(layout.created_unit()).to_owned());
    }
    // Columns that must be there and say nothing yet.
    let needed =
        |column: &outbox_table::ident::Ident| layout.info.column(column.name()).is_some_and(|info| info.not_null && !info.has_default);
    let zero = |value: &str| value.to_owned();
    for (column, value) in [
        (&columns.attempts, zero("0")),
        (&columns.available_at, zero(time::long_ago(layout.unit()))),
        (&columns.lease_until, zero(time::long_ago(layout.unit()))),
        (&columns.leased_by, zero("''")),
        (&columns.last_error, zero("''")),
        (&columns.done_at, zero(time::long_ago(layout.created_unit()))),
    ] {
        if let Some(column) = column.as_ref().filter(|column| needed(column)) {
            names.push(column.to_string());
            values.push(value);
        }
    }
    if let Some(headers) = columns.headers.as_ref().filter(|headers| needed(headers) && !names.contains(&headers.to_string())) {
        names.push(headers.to_string());
        values.push("'{}'".to_owned());
    }
    let sql = format!("INSERT INTO {} ({}) VALUES ({}) RETURNING {}", layout.table(), names.join(", "), values.join(", "), columns.id);
    Ok(statement(sql, parameters, vec![ready.decoding.ids.column()]))
}
