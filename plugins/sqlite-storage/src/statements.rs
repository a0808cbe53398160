//! The text of every statement of the pipeline, built once when the storage is opened.
//!
//! The fence is in each statement that writes a verdict: only rows that the worker still holds and that are not settled.

use crate::layout::{Layout, state_literal};
use crate::time::{self, NOW_MS, later, long_ago, passed};
use outbox_table::config::{OnDelivered, TimeUnit};
use outbox_table::database::ColumnType;
use outbox_table::decode::Decoding;
use outbox_table::ident::{Ident, literal};
use outbox_table::settle::{Change, Fenced};
use outbox_table::template::{Placeholder, Slot, Template};

/// What a row costs in a batch beside its values: offsets, marks, numbers.
const ROW_BYTES: usize = 128;

/// A statement of SQLite.
pub(crate) fn template(text: &str, columns: &[ColumnType]) -> Template {
    Template::new(Placeholder::Question, text, columns)
}

/// A column of texts, compared byte by byte whatever the table says.
fn exact(column: &str) -> String {
    format!("{column} COLLATE BINARY")
}

/// Expressions over the table and its leases, from which statements are put together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sql<'a>(pub(crate) &'a Layout);

impl Sql<'_> {
    /// A column of the table, seen as `t`.
    pub(crate) fn column(self, name: &Ident) -> String {
        format!("t.{name}")
    }

    /// `FROM` with the leases, the table seen as `t`.
    pub(crate) fn from(self, indexed: &str) -> String {
        let table = format!("{} AS t {indexed}", self.0.table());
        match &self.0.side {
            Some(side) => format!("{table} LEFT JOIN {side} AS l ON l.id = t.{} AND l.born IS {}", self.0.columns.id, self.born()),
            None => table,
        }
    }

    /// What tells a row from an earlier one with the same id, whose lease may still be there: when it was created, or else its place.
    fn born(self) -> String {
        self.0.columns.created_at.as_ref().map_or_else(|| self.order(), |created| self.column(created))
    }

    /// Neither delivered nor dead. `prefix` stands before the column; a `+` keeps the planner from walking an index of states.
    pub(crate) fn unsettled(self, prefix: &str) -> String {
        let states: Vec<String> = self.0.config.states.unsettled().into_iter().map(state_literal).collect();
        match states.as_slice() {
            [only] => format!("{prefix}{} = {only}", self.0.columns.state),
            several => format!("{prefix}{} IN ({})", self.0.columns.state, several.join(", ")),
        }
    }

    /// What a search looks at: rows neither delivered nor dead, of one tenant where it goes tenant by tenant.
    pub(crate) fn waiting(self) -> String {
        let unsettled = self.unsettled("t.");
        match &self.0.by_tenant {
            Some(tenant) => format!("{unsettled} AND {} = {}", exact(&self.column(tenant)), Slot::Tenant),
            None => unsettled,
        }
    }

    /// Tenants with unsettled rows, at most `Limit`: the first ones, and those behind `Tenant`. From tenant to tenant, where an index allows it.
    pub(crate) fn tenants(self, indexed: &str) -> Option<[Template; 2]> {
        let tenant = exact(&self.column(self.0.by_tenant.as_ref()?));
        let (table, unsettled) = (self.0.table(), self.unsettled("t."));
        let next = |behind: &str| {
            format!(
                "SELECT {tenant} FROM {table} AS t {indexed} WHERE {unsettled}{behind} AND typeof({tenant}) IN ('integer', 'text') \
                 ORDER BY {tenant} LIMIT 1"
            )
        };
        let following = next(&format!(" AND {tenant} > h.a"));
        Some([String::new(), format!(" AND {tenant} > {}", Slot::Tenant)].map(|behind| {
            let text = format!(
                "WITH RECURSIVE h(a, n) AS (SELECT ({}), 1 UNION ALL SELECT ({following}), h.n + 1 FROM h WHERE h.a IS NOT NULL AND h.n < {}) \
                 SELECT CAST(a AS TEXT) FROM h WHERE a IS NOT NULL ORDER BY n",
                next(&behind),
                Slot::Limit,
            );
            template(&text, &[ColumnType::Bytes])
        }))
    }

    /// Due now and not leased; 2 for a delivery that was tried and is older than `Horizon` as well.
    fn due_or_too_old(self) -> String {
        match (self.0.is_deliveries(), &self.0.columns.created_at) {
            (true, Some(created)) => format!(
                "CASE WHEN {} THEN iif({horizon} > 0 AND {} > 0 AND {} < {NOW_MS} - {horizon}, 2, 1) ELSE 0 END",
                self.due(),
                self.attempts(),
                time::millis(self.0.created_unit(), &self.column(created)),
                horizon = Slot::Horizon,
            ),
            _ => self.due(),
        }
    }

    /// Due now and not leased.
    pub(crate) fn due(self) -> String {
        let layout = self.0;
        let mut conditions = Vec::new();
        if let Some(column) = &layout.columns.available_at {
            conditions.push(passed(layout.unit(), &self.column(column)));
        }
        if let Some(column) = &layout.columns.lease_until {
            conditions.push(passed(layout.unit(), &self.column(column)));
        }
        if layout.side.is_some() {
            conditions.push(passed(TimeUnit::Ms, "l.lease_until"));
            if layout.columns.available_at.is_none() {
                conditions.push(passed(TimeUnit::Ms, "l.available_at"));
            }
        }
        if let (false, Some(column)) = (layout.config.visibility_delay.is_zero(), &layout.columns.created_at) {
            let created = time::millis(layout.created_unit(), &self.column(column));
            conditions.push(format!("ifnull({created} + {} <= {NOW_MS}, 1)", layout.config.visibility_delay.as_millis()));
        }
        conditions.join(" AND ")
    }

    /// Under a lease.
    pub(crate) fn leased(self) -> String {
        let layout = self.0;
        let mut either = Vec::new();
        if layout.side.is_some() {
            either.push(format!("NOT {}", passed(TimeUnit::Ms, "l.lease_until")));
        }
        if let Some(column) = &layout.columns.lease_until {
            either.push(format!("NOT {}", passed(layout.unit(), &self.column(column))));
        } else if let (None, Some(due), Some(holder)) = (&layout.side, layout.due_column(), &layout.columns.leased_by) {
            either.push(format!("(ifnull({}, '') <> '' AND NOT {})", self.column(holder), passed(layout.unit(), &self.column(due))));
        }
        format!("({})", either.join(" OR "))
    }

    /// Claims so far.
    pub(crate) fn attempts(self) -> String {
        match &self.0.columns.attempts {
            // A cast, since a column may hold anything, and one row must not fail the others.
            Some(column) => format!("CAST(ifnull({}, 0) AS INTEGER)", self.column(column)),
            None => "ifnull(l.attempts, 0)".to_owned(),
        }
    }

    /// The key as text, or NULL.
    pub(crate) fn key(self) -> String {
        self.0.columns.key.as_ref().map_or_else(|| "NULL".to_owned(), |key| format!("CAST(t.{key} AS TEXT)"))
    }

    /// Leaves rows alone whose id could not be used to settle them, or that have no place in the order.
    pub(crate) fn usable_id(self) -> String {
        let mut text = String::new();
        if self.0.id_needs_check {
            text.push_str(&format!(" AND typeof(t.{}) = '{}'", self.0.columns.id, if self.0.integer_ids { "integer" } else { "text" }));
        }
        if !self.0.order_is_rowid {
            text.push_str(&format!(" AND typeof({}) = 'integer'", self.order()));
        }
        text
    }

    /// The order, seen through `t`.
    pub(crate) fn order(self) -> String {
        format!("t.{}", self.0.order)
    }

    /// Bytes that a message takes in a batch, read without its contents. Headers count twice: as they are stored, and as the text and
    /// the offsets that they become.
    pub(crate) fn size(self) -> String {
        let columns = &self.0.columns;
        let extra = self.0.config.extra_headers.keys().map(|name| format!("t.\"{}\"", name.replace('"', "\"\"")));
        let once = [Some(&columns.payload), columns.key.as_ref(), columns.topic.as_ref(), Some(&columns.id)];
        let once = once.into_iter().flatten().map(|name| self.column(name));
        let twice = columns.headers.iter().map(|name| self.column(name)).chain(extra);
        let lengths: Vec<String> = once
            .map(|column| format!("ifnull(octet_length({column}), 0)"))
            .chain(twice.map(|column| format!("2 * ifnull(octet_length({column}), 0)")))
            .collect();
        format!("{} + {ROW_BYTES}", lengths.join(" + "))
    }

    /// What a scan returns: order, id, key, due, attempts, bytes.
    pub(crate) fn scanned(self) -> String {
        let id = if self.0.id_is_order { String::new() } else { format!("t.{} AS i, ", self.0.columns.id) };
        format!(
            "{} AS o, {id}{} AS k, {} AS d, {} AS a, {} AS s",
            self.order(),
            self.key(),
            self.due_or_too_old(),
            self.attempts(),
            self.size()
        )
    }

    pub(crate) fn scanned_columns(self, decoding: &Decoding) -> Vec<ColumnType> {
        let mut columns = vec![ColumnType::Integer];
        if !self.0.id_is_order {
            columns.push(decoding.ids.column());
        }
        columns.extend([ColumnType::Bytes, ColumnType::Integer, ColumnType::Integer, ColumnType::Integer]);
        columns
    }

    /// Rows from the front of the table. Loose order asks for due rows only: nothing else has to be known of the rest.
    pub(crate) fn scan(self, indexed: &str, decoding: &Decoding) -> Template {
        let due = if self.0.config.strict_order && self.0.columns.key.is_some() { String::new() } else { format!(" AND {}", self.due()) };
        let order = self.order();
        let text = format!(
            "SELECT {} FROM {} WHERE {} AND {order} > {}{}{due} ORDER BY {order} LIMIT {}",
            self.scanned(),
            self.from(indexed),
            self.waiting(),
            Slot::After,
            self.usable_id(),
            Slot::Limit
        );
        template(&text, &self.scanned_columns(decoding))
    }

    /// The columns of messages as [`Decoding`] reads them; `prefix` stands before each column of the table. Without `content`, headers and
    /// payload stay in the database.
    pub(crate) fn message(self, prefix: &str, attempts: &str, content: bool) -> String {
        let layout = self.0;
        let columns = &layout.columns;
        // Everything is asked for as bytes and checked by the decoder: one row that is not UTF-8 must not fail the others.
        let text = |name: &Ident| format!("CAST({prefix}{name} AS TEXT)");
        let mut parts = vec![format!("{prefix}{}", layout.order)];
        if !layout.id_is_order {
            parts.push(format!("{prefix}{}", columns.id));
        }
        parts.extend([&columns.topic, &columns.key].into_iter().flatten().map(text));
        let payload = format!("{prefix}{}", columns.payload);
        if content {
            parts.extend(columns.headers.as_ref().map(text));
            parts.push(format!("CASE WHEN typeof({payload}) IN ('integer', 'real') THEN CAST({payload} AS TEXT) ELSE {payload} END"));
        } else {
            parts.extend(columns.headers.as_ref().map(|_| "NULL".to_owned()));
            parts.push("NULL".to_owned());
        }
        parts.push(attempts.to_owned());
        let created = columns.created_at.as_ref().map(|column| time::millis(layout.created_unit(), &format!("{prefix}{column}")));
        parts.push(created.unwrap_or_else(|| "0".to_owned()));
        for name in layout.config.extra_headers.keys() {
            // Checked when the configuration was read: a name that exists in the table.
            parts.push(format!("CAST({prefix}\"{}\" AS TEXT)", name.replace('"', "\"\"")));
        }
        parts.join(", ")
    }

    /// Leases the rows in `Ids` and returns their messages, in the last statement's result.
    pub(crate) fn claim(self, decoding: &Decoding) -> Vec<Template> {
        let layout = self.0;
        let columns = &layout.columns;
        let mut sets = Vec::new();
        if let Some(attempts) = &columns.attempts {
            sets.push(format!("{attempts} = ifnull({attempts}, 0) + 1"));
        }
        if let Some(holder) = &columns.leased_by {
            sets.push(format!("{holder} = {}", Slot::Worker));
        }
        if let Some(lease) = layout.lease_column() {
            sets.push(format!("{lease} = {}", later(layout.unit(), &Slot::Millis.to_string())));
        }
        if let Some(leased) = &layout.config.states.leased {
            sets.push(format!("{} = {}", columns.state, state_literal(leased)));
        }
        let table = layout.table();
        let given = format!("{} IN (SELECT value FROM json_each({}))", columns.id, Slot::Ids);
        let update = format!("UPDATE {table} SET {} WHERE {given}", sets.join(", "));
        let Some(side) = &layout.side else {
            let attempts = columns.attempts.as_ref().map_or_else(|| "1".to_owned(), |attempts| format!("CAST({attempts} AS INTEGER)"));
            return vec![template(&format!("{update} RETURNING {}", self.message("", &attempts, true)), &decoding.columns())];
        };
        let lease = format!(
            "INSERT INTO {side} (id, born, leased_by, lease_until, attempts) SELECT t.{id}, {}, {}, {}, 1 \
             FROM json_each({}) AS j CROSS JOIN {table} AS t ON t.{id} = j.value WHERE true \
             ON CONFLICT (id) DO UPDATE SET born = excluded.born, leased_by = excluded.leased_by, lease_until = excluded.lease_until, \
             attempts = iif(born IS excluded.born, attempts, 0) + 1, available_at = iif(born IS excluded.born, available_at, 0), \
             last_error = iif(born IS excluded.born, last_error, NULL)",
            self.born(),
            Slot::Worker,
            later(TimeUnit::Ms, &Slot::Millis.to_string()),
            Slot::Ids,
            id = columns.id,
        );
        let read = format!("SELECT {} FROM {} WHERE t.{given}", self.message("t.", &self.attempts(), true), self.from(""));
        let mut templates = vec![template(&lease, &[])];
        if !sets.is_empty() {
            templates.push(template(&update, &[]));
        }
        templates.push(template(&read, &decoding.columns()));
        templates
    }

    /// What a change writes into the table.
    fn sets(self, change: Change) -> Vec<String> {
        let layout = self.0;
        let columns = &layout.columns;
        let mut sets = Vec::new();
        let mut set = |column: Option<&Ident>, value: String| {
            if let Some(column) = column {
                sets.push(format!("{column} = {value}"));
            }
        };
        let millis = Slot::Millis.to_string();
        if change == Change::Extend {
            set(layout.lease_column(), later(layout.unit(), &millis));
            return sets;
        }
        let nothing = |column: &Ident, otherwise: &str| if layout.is_not_null(column) { otherwise.to_owned() } else { "NULL".to_owned() };
        if let Some(holder) = &columns.leased_by {
            set(Some(holder), nothing(holder, "''"));
        }
        let ends = matches!(change, Change::Delivered | Change::Dead | Change::Suppressed);
        if let Some(lease) = layout.lease_column().filter(|lease| ends || layout.due_column() != Some(lease)) {
            // Where due time and lease are one column, it is of no account once the row is settled.
            if layout.due_column() != Some(lease) {
                set(Some(lease), nothing(lease, long_ago(layout.unit())));
            }
        }
        let states = &layout.config.states;
        match change {
            Change::Delivered => set(Some(&columns.state), state_literal(&states.delivered)),
            Change::Dead => set(Some(&columns.state), state_literal(&states.dead)),
            Change::Suppressed => set(Some(&columns.state), literal("suppressed")),
            _ => {
                set(layout.due_column(), later(layout.unit(), &millis));
                if let (true, Some(pending)) = (states.unsettled().len() > 1, states.pending.first()) {
                    set(Some(&columns.state), state_literal(pending));
                }
            }
        }
        if ends {
            set(columns.done_at.as_ref(), time::now(layout.created_unit()).to_owned());
        }
        if matches!(change, Change::Retry | Change::Dead | Change::Suppressed) {
            set(columns.last_error.as_ref(), Slot::Text.to_string());
            set(columns.code.as_ref(), Slot::Code.to_string());
        }
        if layout.is_deliveries() && matches!(change, Change::Delivered | Change::Suppressed) {
            set(Some(&columns.payload), "NULL".to_owned());
        }
        if layout.is_deliveries() && change == Change::Delivered {
            set(columns.last_error.as_ref(), "NULL".to_owned());
            set(columns.code.as_ref(), "NULL".to_owned());
        }
        if let (Change::Release, Some(attempts)) = (change, &columns.attempts) {
            set(Some(attempts), format!("max(ifnull({attempts}, 0) - 1, 0)"));
        }
        sets
    }

    /// What a change writes into the leases beside the table; none: the lease is deleted.
    fn side_sets(self, change: Change) -> Option<String> {
        let columns = &self.0.columns;
        let error = |sets: &mut Vec<String>| {
            if columns.last_error.is_none() {
                sets.push(format!("last_error = {}", Slot::Text));
            }
        };
        let due = format!("available_at = {}", later(TimeUnit::Ms, &Slot::Millis.to_string()));
        let mut sets = match change {
            Change::Extend => return Some(format!("lease_until = {}", later(TimeUnit::Ms, &Slot::Millis.to_string()))),
            Change::Delivered | Change::Suppressed => return None,
            // What the table has no column for is kept for whoever looks at the dead row.
            Change::Dead if columns.last_error.is_some() && columns.attempts.is_some() => return None,
            Change::Dead | Change::Retry | Change::Release => vec!["leased_by = NULL".to_owned(), "lease_until = 0".to_owned()],
        };
        match change {
            Change::Dead => error(&mut sets),
            Change::Retry => {
                sets.push(due);
                error(&mut sets);
            }
            _ => {
                sets.push(due);
                sets.push("attempts = max(attempts - 1, 0)".to_owned());
            }
        }
        Some(sets.join(", "))
    }

    /// A change to the rows in `Ids` that `Worker` holds.
    pub(crate) fn fenced(self, change: Change, decoding: &Decoding) -> Fenced {
        let layout = self.0;
        let id = &layout.columns.id;
        let given = format!("json_each({})", Slot::Ids);
        let held = match (&layout.side, &layout.columns.leased_by) {
            (Some(side), _) => format!(
                "{id} IN (SELECT l.id FROM {given} AS j CROSS JOIN {side} AS l ON l.id = j.value \
                 CROSS JOIN {} AS t ON t.{id} = l.id WHERE l.leased_by = {} AND l.born IS {})",
                layout.table(),
                Slot::Worker,
                self.born()
            ),
            (None, Some(holder)) => format!("{id} IN (SELECT value FROM {given}) AND {holder} = {}", Slot::Worker),
            (None, None) => "false".to_owned(),
        };
        let fence = format!("{held} AND {}", self.unsettled("+"));
        let then = layout.side.as_ref().map(|side| {
            let rows = format!("WHERE id IN (SELECT value FROM {given}) AND leased_by = {}", Slot::Worker);
            let text = match self.side_sets(change) {
                Some(sets) => format!("UPDATE {side} SET {sets} {rows}"),
                None => format!("DELETE FROM {side} {rows}"),
            };
            template(&text, &[])
        });
        Fenced { first: template(&format!("{} RETURNING {id}", self.write(change, &fence)), &[decoding.ids.column()]), then }
    }

    /// Ends the rows in `Ids` dead, in the transaction that has just read them.
    pub(crate) fn refuse(self) -> Vec<Template> {
        let given = format!("IN (SELECT value FROM json_each({}))", Slot::Ids);
        let mut templates = vec![template(&self.write(Change::Dead, &format!("{} {given}", self.0.columns.id)), &[])];
        if let Some(side) = &self.0.side {
            let text = match self.side_sets(Change::Dead) {
                Some(sets) => format!("UPDATE {side} SET {sets} WHERE id {given}"),
                None => format!("DELETE FROM {side} WHERE id {given}"),
            };
            templates.push(template(&text, &[]));
        }
        templates
    }

    /// Of deliveries: ends the rows in `Ids` for their age, with the code that each has; returns ids and codes.
    pub(crate) fn refuse_old(self, decoding: &Decoding) -> Option<Template> {
        let columns = &self.0.columns;
        let (code, error) = (columns.code.as_ref()?, columns.last_error.as_ref()?);
        let mut sets = self.sets(Change::Dead);
        sets.retain(|set| !set.starts_with(&format!("{code} =")) && !set.starts_with(&format!("{error} =")));
        sets.push(format!("{code} = ifnull({code}, {})", Slot::Code));
        sets.push(format!("{error} = substr({} || ifnull('; the last failure: ' || {error}, ''), 1, 4096)", Slot::Text));
        let id = &columns.id;
        let text = format!(
            "UPDATE {} SET {} WHERE {id} IN (SELECT value FROM json_each({})) RETURNING {id}, {code}",
            self.0.table(),
            sets.join(", "),
            Slot::Ids
        );
        Some(template(&text, &[decoding.ids.column(), ColumnType::Bytes]))
    }

    /// Writes each configured state into one unsettled row, as verdicts and claims do; with the key of the configuration.
    pub(crate) fn try_states(self) -> Vec<(&'static str, Template)> {
        let (states, config) = (&self.0.config.states, &self.0.config);
        let id = &self.0.columns.id;
        let one =
            format!("{id} IN (SELECT t.{id} FROM {} AS t WHERE {}{} LIMIT 1)", self.0.table(), self.unsettled("t."), self.usable_id());
        let mut texts = vec![("states.dead", self.write(Change::Dead, &one))];
        if config.on_delivered == OnDelivered::Mark {
            texts.push(("states.delivered", self.write(Change::Delivered, &one)));
        }
        if states.unsettled().len() > 1 {
            texts.push(("states.pending", self.write(Change::Retry, &one)));
        }
        if let Some(leased) = &states.leased {
            let set = format!("{} = {}", self.0.columns.state, state_literal(leased));
            texts.push(("states.leased", format!("UPDATE {} SET {set} WHERE {one}", self.0.table())));
        }
        texts.into_iter().map(|(key, text)| (key, template(&text, &[]))).collect()
    }

    fn write(self, change: Change, rows: &str) -> String {
        let table = self.0.table();
        if change == Change::Delivered && self.0.config.on_delivered == OnDelivered::Delete {
            return format!("DELETE FROM {table} WHERE {rows}");
        }
        let mut sets = self.sets(change);
        if sets.is_empty() {
            // Everything is written beside the table; the rows are named all the same.
            sets.push(format!("{id} = {id}", id = self.0.columns.state));
        }
        format!("UPDATE {table} SET {} WHERE {rows}", sets.join(", "))
    }

    /// Counts: unsettled, due, leased, age of the oldest; then dead.
    pub(crate) fn stats(self) -> [Template; 2] {
        let integer = ColumnType::Integer;
        let columns = &self.0.columns;
        let oldest = columns.created_at.as_ref().map_or_else(
            || "NULL".to_owned(),
            |created| format!("{NOW_MS} - min({})", time::millis(self.0.created_unit(), &self.column(created))),
        );
        let unsettled = format!(
            "SELECT count(*), ifnull(sum({}), 0), ifnull(sum({}), 0), {oldest} FROM {} WHERE {}",
            self.due(),
            self.leased(),
            self.from(""),
            self.unsettled("t.")
        );
        let dead =
            format!("SELECT count(*) FROM {} WHERE {} = {}", self.0.table(), columns.state, state_literal(&self.0.config.states.dead));
        [template(&unsettled, &[integer; 4]), template(&dead, &[integer])]
    }
}
