//! What the command line needs: inserting, paging, and what becomes of settled rows.

use crate::inspect::Kind;
use crate::layout::Layout;
use crate::ops::{EQ, LT, MINUS, text};
use crate::outbox::{Outbox, Ready, statement};
use crate::statements::{LOCK, Sql, after};
use crate::time::{self, Clock, now_ms};
use outbox_table::config::PayloadEncoding;
use outbox_table::database::{Database, Results, SqlErrorCode, Statement, Value};
use outbox_table::ident::Ident;
use outbox_table::ids::IdKind;
use outbox_table::insert::{self, Shape};
use outbox_table::page::{self, MAX_PAGE, text_of};
use outbox_table::search::Place;
use outbox_table::settle::millis;
use outbox_table::template::Slot;
use outhaul_sdk::{Batch, Column, Failure, Filter, Message, Page, RowState};

/// Stands between the two values of a place. A time has none.
const BETWEEN: char = '|';

impl<D: Database> Outbox<D> {
    /// Inserts messages in one transaction; returns their ids.
    ///
    /// # Errors
    /// `invalid-message` if the table cannot hold one of them; else those of the database.
    pub fn enqueue(&mut self, batch: &Batch) -> Result<Vec<String>, Failure> {
        let ready = self.ready()?;
        let statements = batch.messages().map(|message| insert(ready, message)).collect::<Result<Vec<_>, _>>()?;
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
    pub fn browse(&mut self, filter: &Filter, page: Option<&str>, limit: u32, with_messages: bool) -> Result<Page, Failure> {
        let limit = limit.clamp(1, MAX_PAGE);
        let ready = self.ready()?;
        let sql = Sql(&ready.layout);
        let place = page.map(|text| place(ready, text)).transpose()?;
        let mut parameters = vec![Value::Integer(i64::from(limit))];
        let behind = match &place {
            None => String::new(),
            Some(place) => {
                let mut behind = sql.behind();
                for slot in [Slot::After, Slot::AfterToo] {
                    if behind.contains(&slot.to_string()) {
                        parameters.push(after(Some(place), slot));
                        behind = behind.replace(&slot.to_string(), &format!("${}", parameters.len()));
                    }
                }
                format!(" AND {behind}")
            }
        };
        let state = filter.state.map(|state| state_condition(&ready.layout, state));
        let conditions = conditions(ready, filter, state.as_deref(), &mut parameters);
        let rows = format!("FROM {} WHERE true{behind}{conditions} ORDER BY {} LIMIT CAST($1 AS bigint)", sql.from(), sql.order());
        let [code, error, due_in] = row_columns(&ready.layout);
        let attempts = sql.attempts();
        let shown = sql.place().into_iter().map(|place| text(&place)).collect::<Vec<_>>();
        let mut columns = page::COLUMNS.to_vec();
        columns.extend(shown.iter().map(|_| outbox_table::database::ColumnType::Bytes));
        let statements = vec![
            statement(
                format!("SELECT {} {rows}", sql.message(&ready.decoding, &attempts, with_messages)),
                parameters.clone(),
                ready.decoding.columns(),
            ),
            statement(format!("SELECT {code}, {error}, {due_in}, {attempts}, {} {rows}", shown.join(", ")), parameters, columns),
        ];
        let places = shown.len();
        let is_text = matches!(place, Some(Place::Texts(_)));
        let results = self.reader.execute(statements).map_err(|error| match page {
            // Such a place may be of any type, and the database is the first to read it as such; numbers were read above.
            Some(page) if is_text && error.code == SqlErrorCode::TypeMismatch => no_page(page),
            _ => self.failed(&error, "reading rows"),
        })?;
        let ready = self.ready()?;
        let mut results = Results::new(results);
        let fetched = ready.decoding.read(&mut results.next_rows()?)?;
        let batch = ready.decoding.decode(fetched, true).batch;
        let mut reader = results.next_rows()?;
        let rows = page::rows(&batch, &mut reader)?;
        let places = (0..places).map(|_| reader.bytes()).collect::<Result<Vec<Column>, _>>()?;
        let full = rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let last = rows.len().checked_sub(1).filter(|_| full);
        let next = last.map(|at| places.iter().map(|place| text_of(place, at)).collect::<Vec<_>>().join(&BETWEEN.to_string()));
        Ok(Page { rows, messages: with_messages.then_some(batch), next })
    }

    /// Dead rows become pending, with no attempts counted; returns how many.
    ///
    /// # Errors
    /// Those of the database.
    pub fn requeue(&mut self, filter: &Filter) -> Result<u64, Failure> {
        let ready = self.ready()?;
        let layout = &ready.layout;
        let sets = pending_again(layout);
        let change = format!("UPDATE {} AS t SET {}", layout.table(), sets.join(", "));
        let told = Sql(layout).requeued();
        self.change_dead(filter, (&change, told.as_deref()), LOCK, "requeuing dead rows")
    }

    /// Dead rows are deleted; returns how many.
    ///
    /// # Errors
    /// Those of the database.
    pub fn discard(&mut self, filter: &Filter) -> Result<u64, Failure> {
        let ready = self.ready()?;
        let change = format!("DELETE FROM {} AS t", ready.layout.table());
        let told = Sql(&ready.layout).gone();
        self.change_dead(filter, (&change, told.as_deref()), "FOR UPDATE", "discarding dead rows")
    }

    /// Runs `change` on dead rows; their leases beside the table are forgotten.
    /// `told`: what is said of the rows in `r`, in the same statement.
    fn change_dead(&mut self, filter: &Filter, (change, told): (&str, Option<&str>), lock: &str, doing: &str) -> Result<u64, Failure> {
        if filter.state.is_some_and(|state| state != RowState::Dead) {
            return Ok(0);
        }
        let ready = self.ready()?;
        let layout = &ready.layout;
        let mut parameters = Vec::new();
        let dead = state_condition(layout, RowState::Dead);
        let conditions = conditions(ready, filter, Some(&dead), &mut parameters);
        let id = Sql(layout).id();
        let mut statements = Vec::new();
        let rows = format!("SELECT {id} FROM {} AS t WHERE true{conditions} ORDER BY {id} {lock} OF t", layout.table());
        if let Some(side) = &layout.side {
            // Locked, so that the rows whose leases are forgotten are those that change.
            let sql = format!("DELETE FROM {side} AS l WHERE l.id {EQ} ANY (ARRAY({rows}))");
            statements.push(statement(sql, parameters.clone(), Vec::new()));
        }
        let change = match told {
            Some(told) => {
                let rows = rows.replacen(&id, &format!("{id} AS id"), 1);
                format!("WITH r AS MATERIALIZED ({rows}), {told} {change} WHERE {id} {EQ} ANY (ARRAY(SELECT r.id FROM r))")
            }
            None => format!("{change} WHERE true{conditions}"),
        };
        statements.push(statement(change, parameters, Vec::new()));
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
        let (table, sql) = (layout.table(), Sql(layout));
        let id = sql.id();
        let mut statements = Vec::new();
        if let Some(side) = &layout.side {
            // Leases whose rows somebody else has deleted.
            let orphans = format!(
                "SELECT l.id FROM {side} AS l WHERE NOT EXISTS (SELECT 1 FROM {table} AS t WHERE {id} {EQ} l.id) \
                 LIMIT CAST($1 AS bigint) FOR UPDATE OF l SKIP LOCKED"
            );
            statements.push(statement(
                format!("DELETE FROM {side} AS l WHERE l.id {EQ} ANY (ARRAY({orphans}))"),
                vec![Value::Integer(i64::from(limit))],
                Vec::new(),
            ));
        }
        if layout.deletes() {
            if !statements.is_empty() {
                self.writer.execute(statements).map_err(|error| self.failed(&error, "purging"))?;
            }
            return Ok(0);
        }
        let Some(at) = layout.columns.done_at.as_ref().or(layout.columns.created_at.as_ref()) else {
            return Err(Failure::invalid_configuration("purging needs `columns.done_at`, or else `columns.created_at`"));
        };
        let settled = time::millis(layout.clock(at), &sql.column(at));
        let old = format!(
            "SELECT {id} AS id FROM {table} AS t WHERE {} AND {settled} {LT} ({} {MINUS} CAST($1 AS bigint)) ORDER BY {} \
             LIMIT CAST($2 AS bigint) FOR UPDATE OF t SKIP LOCKED",
            state_condition(layout, RowState::Delivered),
            now_ms(),
            sql.order()
        );
        statements.push(statement(
            format!(
                "WITH r AS MATERIALIZED ({old}){} DELETE FROM {table} AS t WHERE {id} {EQ} ANY (ARRAY(SELECT r.id FROM r))",
                sql.gone().map(|gone| format!(", {gone}")).unwrap_or_default()
            ),
            vec![millis(older_than_ms), Value::Integer(i64::from(limit))],
            Vec::new(),
        ));
        let results = self.writer.execute(statements).map_err(|error| self.failed(&error, "purging"))?;
        Ok(results.last().map_or(0, |rows| rows.changed))
    }
}

/// What makes a settled row pending again, with no attempts counted.
pub(crate) fn pending_again(layout: &Layout) -> Vec<String> {
    let mut sets = Vec::new();
    if let Some(pending) = layout.config.states.pending.first() {
        sets.push(format!("{} = {}", layout.columns.state, layout.state(pending)));
    }
    if let Some(attempts) = &layout.columns.attempts {
        sets.push(format!("{attempts} = 0"));
    }
    for column in [&layout.columns.available_at, &layout.columns.lease_until].into_iter().flatten() {
        sets.push(format!("{column} = {}", time::now(layout.clock(column))));
    }
    if let Some(done) = layout.columns.done_at.as_ref().filter(|done| !layout.is_not_null(done)) {
        sets.push(format!("{done} = NULL"));
    }
    sets
}

/// Where a page ended.
fn place(ready: &Ready, text: &str) -> Result<Place, Failure> {
    let wrong = || no_page(text);
    match ready.decoding.place_texts {
        0 => text.parse().map(Place::Number).map_err(|_| wrong()),
        1 => Ok(Place::Texts(vec![text.to_owned()])),
        _ => text.split_once(BETWEEN).map(|(first, second)| Place::Texts(vec![first.to_owned(), second.to_owned()])).ok_or_else(wrong),
    }
}

fn no_page(text: &str) -> Failure {
    Failure::invalid_message(format!("`{text}` is not where a page ended"))
}

/// The condition for rows in a state.
fn state_condition(layout: &Layout, state: RowState) -> String {
    let sql = Sql(layout);
    let is = |value| format!("{} {EQ} {}", sql.column(&layout.columns.state), layout.state(value));
    match state {
        RowState::Pending => format!("{} AND NOT {}", sql.unsettled(), sql.leased()),
        RowState::Leased => format!("{} AND {}", sql.unsettled(), sql.leased()),
        RowState::Delivered => is(&layout.config.states.delivered),
        RowState::Dead => is(&layout.config.states.dead),
    }
}

/// `AND ..` for a filter; its values are appended to the parameters.
fn conditions(ready: &Ready, filter: &Filter, state: Option<&str>, parameters: &mut Vec<Value>) -> String {
    let layout = &ready.layout;
    let states = &layout.config.states;
    let mut known: Vec<String> = states.unsettled().into_iter().map(|state| layout.state(state)).collect();
    known.push(layout.state(&states.dead));
    if !layout.deletes() {
        known.push(layout.state(&states.delivered));
    }
    let known = format!("{} {EQ} ANY (ARRAY[{}])", Sql(layout).column(&layout.columns.state), known.join(", "));
    let mut conditions = format!(" AND {}", state.unwrap_or(&known));
    if let Some(topic) = &filter.topic {
        match &layout.columns.topic {
            Some(column) => {
                parameters.push(Value::Text(topic.clone()));
                conditions.push_str(&format!(
                    " AND {} {EQ} {}",
                    text(&Sql(layout).column(column)),
                    text(&format!("${}", parameters.len()))
                ));
            }
            None if ready.decoding.topic.as_ref() != Some(topic) => conditions.push_str(" AND false"),
            None => {}
        }
    }
    if !filter.ids.is_empty() {
        // What cannot be an id of the table is in no row.
        let (ids, _) = ready.decoding.ids.parameter(&Column::of_texts(&filter.ids));
        parameters.push(ids);
        conditions.push_str(&format!(" AND {} {EQ} ANY (CAST(${} AS {}[]))", Sql(layout).id(), parameters.len(), layout.id_type));
    }
    conditions
}

/// State as a number, last error, and how long until it is due.
fn row_columns(layout: &Layout) -> [String; 3] {
    let sql = Sql(layout);
    let states = &layout.config.states;
    let state = sql.column(&layout.columns.state);
    let delivered = if layout.deletes() { String::new() } else { format!("WHEN {state} {EQ} {} THEN 2 ", layout.state(&states.delivered)) };
    let code = format!("CASE {delivered}WHEN {state} {EQ} {} THEN 3 WHEN {} THEN 1 ELSE 0 END", layout.state(&states.dead), sql.leased());
    let mut until: Vec<String> = [&layout.columns.available_at, &layout.columns.lease_until]
        .into_iter()
        .flatten()
        .map(|column| time::millis(layout.clock(column), &sql.column(column)))
        .collect();
    if layout.side.is_some() {
        until.extend(["l.lease_until", "l.available_at"].map(|column| time::millis(Clock::Zoned, column)));
    }
    if let (false, Some(created)) = (layout.config.visibility_delay.is_zero(), &layout.columns.created_at) {
        let created = time::millis(layout.clock(created), &sql.column(created));
        until.push(format!("({created} OPERATOR(pg_catalog.+) {})", layout.config.visibility_delay.as_millis()));
    }
    // NULL is left out by greatest().
    let due_in =
        format!("CASE WHEN {} THEN greatest(0, (greatest(0, {}) {MINUS} {})) ELSE 0 END", sql.unsettled(), until.join(", "), now_ms());
    let error = match (&layout.columns.last_error, &layout.side) {
        (Some(column), _) => text(&sql.column(column)),
        (None, Some(_)) => "l.last_error".to_owned(),
        (None, None) => text("NULL"),
    };
    [code, error, due_in]
}

/// The insertion of a message.
fn insert(ready: &Ready, message: Message<'_>) -> Result<Statement, Failure> {
    let layout = &ready.layout;
    let columns = &layout.columns;
    let info = |name: &Ident| layout.info.column(name);
    let shape = Shape {
        text_payload: layout.text_payload() || ready.decoding.encoding != PayloadEncoding::Bytes,
        json_payload: layout.kind(&columns.payload) == Kind::Json || ready.decoding.encoding == PayloadEncoding::Json,
        takes_ids: info(&columns.id).is_some_and(|id| !id.always_identity && !id.generated),
    };
    let mut names: Vec<String> = Vec::new();
    let mut values = Vec::new();
    let mut parameters = Vec::new();
    for (column, value) in insert::values(&layout.config, columns, &ready.decoding, shape, message)? {
        // Bytes that are written as text into a column of bytes are its bytes.
        let value = match value {
            Value::Text(text) if layout.kind(&column) == Kind::Bytea => Value::Bytes(text.into_bytes()),
            value => value,
        };
        parameters.push(value);
        names.push(column.to_string());
        let given = format!("${}", parameters.len());
        let given = if matches!(layout.kind(&column), Kind::Bytea | Kind::Integer) { given } else { text(&given) };
        values.push(format!("CAST({given} AS {})", layout.type_of(&column)));
    }
    let mut add = |column: &Ident, value: String| {
        if !names.contains(&column.to_string()) {
            names.push(column.to_string());
            values.push(value);
        }
    };
    if let Some(pending) = layout.config.states.pending.first() {
        add(&columns.state, layout.state(pending));
    }
    let open = |column: &Ident| info(column).is_some_and(|info| !info.has_default && !info.generated);
    if layout.ids != IdKind::Integer && open(&columns.id) {
        add(&columns.id, format!("CAST({} AS {})", text("pg_catalog.gen_random_uuid()"), layout.id_type));
    }
    if let Some(created) = columns.created_at.as_ref().filter(|created| info(created).is_some_and(|info| !info.generated)) {
        add(created, time::now(layout.clock(created)));
    }
    // Columns that must be there and say nothing yet.
    let needed = |column: &Ident| open(column) && layout.is_not_null(column);
    let past = |column: &Option<Ident>| column.as_ref().map_or("''", |column| time::long_ago(layout.clock(column)));
    for (column, value) in [
        (&columns.attempts, "0"),
        (&columns.available_at, past(&columns.available_at)),
        (&columns.lease_until, past(&columns.lease_until)),
        (&columns.leased_by, "''"),
        (&columns.last_error, "''"),
        (&columns.done_at, past(&columns.done_at)),
        (&columns.headers, "'{}'"),
    ] {
        if let Some(column) = column.as_ref().filter(|column| needed(column)) {
            add(column, value.to_owned());
        }
    }
    let id = Sql(layout).id();
    let shown = if layout.ids == IdKind::Integer { format!("CAST({id} AS bigint)") } else { text(&id) };
    let sql = format!("INSERT INTO {} AS t ({}) VALUES ({}) RETURNING {shown}", layout.table(), names.join(", "), values.join(", "));
    Ok(statement(sql, parameters, vec![ready.decoding.ids.column()]))
}
