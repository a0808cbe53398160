//! The text of the statements of the pipeline, built once when the storage is opened: what they are put together from, the scan, verdicts
//! and counts. (`lock` has the claim, `walk` the walk from key to key.)
//!
//! The fence is in each statement that writes a verdict: only rows that the worker still holds and that are not settled.

use crate::inspect::Kind;
use crate::layout::{Layout, Order, Role};
use crate::ops::{EQ, GE, GT, LE, LT, MINUS, PLUS, TIMES, text};
use crate::time::{self, Clock, later, long_ago, now_ms, passed};
use outbox_table::database::{ColumnType, Value};
use outbox_table::decode::Decoding;
use outbox_table::ident::{Ident, TableName};
use outbox_table::search::Place;
use outbox_table::settle::{Change, Fenced};
use outbox_table::template::{Placeholder, Slot, Template};

/// What a row costs in a batch beside its values: offsets, marks, numbers.
const ROW_BYTES: usize = 128;

/// Characters of the longest integer, and of a UUID: not worth a look at each.
const INTEGER_BYTES: &str = "20";
const UUID_BYTES: &str = "36";

/// Whether values of a kind are kept in another form than they are sent in, and may be large.
fn is_written_out(kind: Kind) -> bool {
    matches!(kind, Kind::Json | Kind::Other)
}

/// How rows are locked that will be changed, but not deleted: rows of another table that refer to them may come and go meanwhile.
pub(crate) const LOCK: &str = "FOR NO KEY UPDATE";

/// A statement of Postgres.
pub(crate) fn template(text: &str, columns: &[ColumnType]) -> Template {
    Template::new(Placeholder::Dollar, text, columns)
}

/// A place as parameters.
pub(crate) fn after(place: Option<&Place>, slot: Slot) -> Value {
    match (place, slot) {
        (Some(Place::Number(order)), Slot::After) => Value::Integer(*order),
        (Some(Place::Texts(texts)), Slot::After) => texts.first().map_or(Value::Null, |text| Value::Text(text.clone())),
        (Some(Place::Texts(texts)), Slot::AfterToo) => texts.get(1).map_or(Value::Null, |text| Value::Text(text.clone())),
        _ => Value::Null,
    }
}

/// How an event is named among the emissions: expressions.
#[derive(Debug)]
pub(crate) struct Emission {
    pub(crate) table: TableName,
    /// As text.
    pub(crate) tenant: String,
    /// As text.
    pub(crate) event: String,
    pub(crate) generation: String,
}

/// Expressions over the table and its leases, from which statements are put together. The table is seen as `t`, the leases as `l`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sql<'a>(pub(crate) &'a Layout);

impl Sql<'_> {
    /// A column of the table.
    pub(crate) fn column(self, name: &Ident) -> String {
        format!("t.{name}")
    }

    pub(crate) fn id(self) -> String {
        self.column(&self.0.columns.id)
    }

    /// `FROM` with the leases.
    pub(crate) fn from(self) -> String {
        let table = format!("{} AS t", self.0.table());
        match &self.0.side {
            Some(side) => format!("{table} LEFT JOIN {side} AS l ON l.id {EQ} {} AND l.born {EQ} {}", self.id(), self.born()),
            None => table,
        }
    }

    /// What tells a row from an earlier one with the same id, whose lease may still be there: when it was created, or else its place.
    pub(crate) fn born(self) -> String {
        let (order, created) = (self.order_columns(), self.0.columns.created_at.as_ref());
        let column =
            created.map_or_else(|| order.first().map_or_else(|| self.id(), |(column, _)| column.clone()), |name| self.column(name));
        let of = created.map(|name| self.0.kind(name)).or(match &self.0.order {
            Order::Stamped(name) => Some(self.0.kind(name)),
            _ => None,
        });
        // JSON has one form of times, whatever DateStyle says.
        let shown = if matches!(of, Some(Kind::Zoned | Kind::Unzoned)) { format!("pg_catalog.to_json({column})") } else { column };
        format!("coalesce({}, '')", text(&shown))
    }

    /// An array of ids as a list for `= ANY`.
    pub(crate) fn any_id(self, slot: Slot) -> String {
        format!("{EQ} ANY (CAST({slot} AS {}[]))", self.0.id_type)
    }

    /// Neither delivered nor dead.
    pub(crate) fn unsettled(self) -> String {
        self.is_unsettled(&self.column(&self.0.columns.state))
    }

    /// The same, of rows that are found by their ids. In words that no partial index is known to serve: for a table without statistics the
    /// planner thinks that one of keys and ids is tiny, and reads it from end to end for each statement (measured: 5 ms for 700 rows of 30,000,
    /// in place of 0.5 ms by the ids).
    pub(crate) fn still_unsettled(self) -> String {
        let column = self.column(&self.0.columns.state);
        self.is_unsettled(&format!("coalesce({column}, {column})"))
    }

    fn is_unsettled(self, column: &str) -> String {
        let states: Vec<String> = self.0.config.states.unsettled().into_iter().map(|state| self.0.state(state)).collect();
        match states.as_slice() {
            [only] => format!("{column} {EQ} {only}"),
            several => format!("{column} {EQ} ANY (ARRAY[{}])", several.join(", ")),
        }
    }

    /// What a search keeps to: unsettled rows, of one tenant where it goes by tenant.
    pub(crate) fn searched(self) -> String {
        let tenant = self.of_tenant(&text(&Slot::Tenant.to_string()));
        format!("{}{tenant}", self.unsettled())
    }

    /// `AND ..` for rows of a tenant, which is given as text.
    pub(crate) fn of_tenant(self, given: &str) -> String {
        let Some(tenant) = &self.0.tenant else { return String::new() };
        format!(" AND {} {EQ} CAST({given} AS {})", self.column(tenant), self.0.type_of(tenant))
    }

    /// Tenants with unsettled rows, so many of them: from the first one, and behind one. Goes from one to the next by an index.
    pub(crate) fn tenants(self) -> Option<[Template; 2]> {
        let (tenant, table, unsettled) = (self.column(self.0.tenant.as_ref()?), self.0.table(), self.unsettled());
        let first = format!("CAST({} AS {})", text(&Slot::Key.to_string()), self.0.type_of(self.0.tenant.as_ref()?));
        Some([String::new(), format!(" AND {tenant} {GT} {first}")].map(|behind| {
            let sql = format!(
                "WITH RECURSIVE h(k, n) AS ((SELECT {tenant}, 1 FROM {table} AS t WHERE {unsettled}{behind} ORDER BY {tenant} LIMIT 1) \
                 UNION ALL SELECT x.k, (h.n {PLUS} 1) FROM h CROSS JOIN LATERAL (SELECT {tenant} AS k FROM {table} AS t \
                 WHERE {unsettled} AND {tenant} {GT} h.k ORDER BY {tenant} LIMIT 1) AS x WHERE h.n {LT} CAST({} AS bigint)) \
                 SELECT {} FROM h ORDER BY h.n",
                Slot::Keys,
                text("h.k"),
            );
            template(&sql, &[ColumnType::Bytes])
        }))
    }

    /// Due now and not leased.
    pub(crate) fn due(self) -> String {
        let layout = self.0;
        let columns = [&layout.columns.available_at, &layout.columns.lease_until];
        let mut conditions: Vec<String> =
            columns.into_iter().flatten().map(|column| passed(layout.clock(column), &self.column(column))).collect();
        if layout.side.is_some() {
            conditions.push(passed(Clock::Zoned, "l.lease_until"));
            if layout.columns.available_at.is_none() {
                conditions.push(passed(Clock::Zoned, "l.available_at"));
            }
        }
        if let (false, Some(created)) = (layout.config.visibility_delay.is_zero(), &layout.columns.created_at) {
            let created = time::millis(layout.clock(created), &self.column(created));
            let delay = layout.config.visibility_delay.as_millis();
            conditions.push(format!("coalesce({created} OPERATOR(pg_catalog.<=) ({} {MINUS} {delay}), true)", now_ms()));
        }
        conditions.join(" AND ")
    }

    /// Under a lease.
    pub(crate) fn leased(self) -> String {
        let layout = self.0;
        let mut either = Vec::new();
        if layout.side.is_some() {
            either.push(format!("NOT {}", passed(Clock::Zoned, "l.lease_until")));
        }
        if let Some(column) = &layout.columns.lease_until {
            either.push(format!("NOT {}", passed(layout.clock(column), &self.column(column))));
        } else if let (None, Some(due), Some(holder)) = (&layout.side, layout.due_column(), &layout.columns.leased_by) {
            let holder = text(&self.column(holder));
            either.push(format!(
                "(coalesce({holder}, '') OPERATOR(pg_catalog.<>) '' AND NOT {})",
                passed(layout.clock(due), &self.column(due))
            ));
        }
        format!("({})", either.join(" OR "))
    }

    /// Claims so far.
    pub(crate) fn attempts(self) -> String {
        match &self.0.columns.attempts {
            Some(column) => format!("CAST(coalesce({}, 0) AS bigint)", self.column(column)),
            None => "CAST(coalesce(l.attempts, 0) AS bigint)".to_owned(),
        }
    }

    /// The key as text, or NULL.
    pub(crate) fn key(self) -> String {
        self.0.columns.key.as_ref().map_or_else(|| text("NULL"), |key| text(&self.column(key)))
    }

    /// What the order is made of, and the types of its values, as SQL.
    pub(crate) fn order_columns(self) -> Vec<(String, String)> {
        let layout = self.0;
        let id = || (self.id(), layout.id_type.clone());
        match &layout.order {
            Order::Number(column) => vec![(self.column(column), "bigint".to_owned())],
            Order::Stamped(column) => vec![(self.column(column), layout.type_of(column).to_owned()), id()],
            Order::Id => vec![id()],
        }
    }

    /// The order, for `ORDER BY` and indexes.
    pub(crate) fn order(self) -> String {
        let columns: Vec<String> = self.order_columns().into_iter().map(|(column, _)| column).collect();
        columns.join(", ")
    }

    /// Behind the place in the slots.
    pub(crate) fn behind(self) -> String {
        let (columns, values) = self.places();
        match (columns.as_slice(), values.as_slice()) {
            ([only], [value]) => format!("{only} {GT} {value}"),
            (columns, values) => format!("ROW({}) {GT} ROW({})", columns.join(", "), values.join(", ")),
        }
    }

    /// What the order is made of, and the values of the place in the slots.
    fn places(self) -> (Vec<String>, Vec<String>) {
        // A text goes in as text, whatever is made of it.
        let value = |(slot, (column, kind)): (Slot, (String, String))| {
            let given = if kind == "bigint" { slot.to_string() } else { text(&slot.to_string()) };
            (column, format!("CAST({given} AS {kind})"))
        };
        [Slot::After, Slot::AfterToo].into_iter().zip(self.order_columns()).map(value).unzip()
    }

    /// What a scan goes through, from the front or from behind a place, and in which order.
    ///
    /// That a row is the tenant's is said by two bounds. If it were said by one value, an index by the order alone would seem to do as well,
    /// and that has the rows of all tenants.
    fn gone_through(self, behind: bool) -> (String, String) {
        let (unsettled, order) = (self.unsettled(), self.order());
        let Some(tenant) = &self.0.tenant else {
            return (if behind { format!("{unsettled} AND {}", self.behind()) } else { unsettled }, order);
        };
        let given = format!("CAST({} AS {})", text(&Slot::Tenant.to_string()), self.0.type_of(tenant));
        let tenant = self.column(tenant);
        let from = if behind {
            let (columns, values) = self.places();
            format!("ROW({tenant}, {}) {GT} ROW({given}, {})", columns.join(", "), values.join(", "))
        } else {
            format!("{tenant} {GE} {given}")
        };
        (format!("{unsettled} AND {from} AND {tenant} {LE} {given}"), format!("{tenant}, {order}"))
    }

    /// The place, as the host side reads it.
    pub(crate) fn place(self) -> Vec<String> {
        match &self.0.order {
            Order::Number(column) => vec![format!("CAST({} AS bigint)", self.column(column))],
            // JSON has one form of times, whatever DateStyle says, and infinite ones too.
            Order::Stamped(column) => {
                vec![format!("pg_catalog.btrim({}, '\"')", text(&format!("pg_catalog.to_json({})", self.column(column)))), text(&self.id())]
            }
            Order::Id => vec![text(&self.id())],
        }
    }

    fn place_columns(self) -> Vec<ColumnType> {
        match &self.0.order {
            Order::Number(_) => vec![ColumnType::Integer],
            Order::Stamped(_) => vec![ColumnType::Bytes; 2],
            Order::Id => vec![ColumnType::Bytes],
        }
    }

    /// The id, as the host side reads it.
    pub(crate) fn shown_id(self) -> String {
        if self.0.ids == outbox_table::ids::IdKind::Integer { format!("CAST({} AS bigint)", self.id()) } else { text(&self.id()) }
    }

    /// Whether the size of a row is an estimate to the scan: the text form of such a column cannot be measured without writing it out.
    pub(crate) fn estimates(self) -> bool {
        self.measured().into_iter().any(|name| is_written_out(self.0.kind(&name)))
    }

    /// The columns that make up a message's size.
    fn measured(self) -> Vec<Ident> {
        let columns = &self.0.columns;
        let extra = self.0.config.extra_headers.keys().filter_map(|name| Ident::new(name.as_str()).ok());
        let named = [Some(&columns.payload), columns.key.as_ref(), columns.topic.as_ref(), Some(&columns.id), columns.headers.as_ref()];
        named.into_iter().flatten().cloned().chain(extra).collect()
    }

    /// Bytes that a message takes in a batch. Headers count twice: as they are stored, and as the text and the offsets that they become.
    /// Text and bytes are measured without being read; so is JSON and whatever else is written out, unless it is to be `exact`: by what it
    /// takes up in the table, compressed.
    pub(crate) fn size(self, exact: bool) -> String {
        let layout = self.0;
        let columns = &layout.columns;
        let length = |name: &Ident| {
            let (column, kind) = (self.column(name), layout.kind(name));
            let bytes = match kind {
                Kind::Integer => return INTEGER_BYTES.to_owned(),
                Kind::Uuid => return UUID_BYTES.to_owned(),
                Kind::Text | Kind::Bytea => format!("pg_catalog.octet_length({column})"),
                kind if is_written_out(kind) && !exact => format!("pg_catalog.pg_column_size({column})"),
                _ => format!("pg_catalog.octet_length({})", text(&column)),
            };
            format!("coalesce(CAST({bytes} AS bigint), 0)")
        };
        let extra: Vec<Ident> = layout.config.extra_headers.keys().filter_map(|name| Ident::new(name.as_str()).ok()).collect();
        let once = [Some(&columns.payload), columns.key.as_ref(), columns.topic.as_ref(), Some(&columns.id)];
        let once = once.into_iter().flatten().map(length);
        let twice = columns.headers.iter().chain(&extra).map(|name| format!("(2 {TIMES} {})", length(name)));
        let sum = once.chain(twice).collect::<Vec<_>>().join(" OPERATOR(pg_catalog.+) ");
        format!("({sum} OPERATOR(pg_catalog.+) {ROW_BYTES})")
    }

    /// What a scan returns: place, id, key, due, attempts, bytes (0 where they are of no account), each with its name.
    pub(crate) fn scanned(self, decoding: &Decoding) -> String {
        let mut parts: Vec<String> = self.place().into_iter().zip(["o", "o2"]).map(|(place, name)| format!("{place} AS {name}")).collect();
        if !decoding.id_is_order {
            parts.push(format!("{} AS i", self.shown_id()));
        }
        let due = self.due();
        parts.push(format!("{} AS k", self.key()));
        parts.push(match self.too_old() {
            Some(too_old) => format!("CASE WHEN NOT ({due}) THEN 0 WHEN {too_old} THEN 2 ELSE 1 END AS d"),
            None => format!("CAST(({due}) AS integer) AS d"),
        });
        parts.push(format!("{} AS a", self.attempts()));
        parts.push(format!("CASE WHEN {due} THEN {} ELSE 0 END AS s", self.size(false)));
        parts.join(", ")
    }

    /// Of deliveries: tried, and older than `Horizon`.
    pub(crate) fn too_old(self) -> Option<String> {
        let columns = &self.0.columns;
        let (Role::Deliveries, Some(created)) = (&self.0.role, &columns.created_at) else { return None };
        let horizon = format!("CAST({} AS bigint)", Slot::Horizon);
        let age = format!("({} {MINUS} {})", now_ms(), time::millis(self.0.clock(created), &self.column(created)));
        Some(format!("({horizon} {GT} 0 AND {} {GT} 0 AND {age} {GT} {horizon})", self.attempts()))
    }

    /// The names that [`Sql::scanned`] gives.
    pub(crate) fn scanned_names(self, decoding: &Decoding) -> Vec<&'static str> {
        let mut names = vec!["o", "o2"];
        names.truncate(self.place_columns().len());
        if !decoding.id_is_order {
            names.push("i");
        }
        names.extend(["k", "d", "a", "s"]);
        names
    }

    pub(crate) fn scanned_columns(self, decoding: &Decoding) -> Vec<ColumnType> {
        let mut columns = self.place_columns();
        if !decoding.id_is_order {
            columns.push(decoding.ids.column());
        }
        columns.extend([ColumnType::Bytes, ColumnType::Integer, ColumnType::Integer, ColumnType::Integer]);
        columns
    }

    /// Rows from the front of the table, and rows behind a place; the limit comes behind. Loose order asks for due rows only: nothing else has to be known of the
    /// rest.
    pub(crate) fn scan(self, decoding: &Decoding) -> [Template; 2] {
        let due = if self.0.config.strict_order && self.0.columns.key.is_some() { String::new() } else { format!(" AND {}", self.due()) };
        [false, true].map(|behind| {
            let (rows, order) = self.gone_through(behind);
            let text = format!("SELECT {} FROM {} WHERE {rows}{due} ORDER BY {order}", self.scanned(decoding), self.from(),);
            template(&text, &self.scanned_columns(decoding))
        })
    }

    /// Ids and sizes of `Ids`; none: the scan has measured them.
    pub(crate) fn weigh(self, decoding: &Decoding) -> Option<Template> {
        let (id, size) = (self.id(), self.size(true));
        let text = format!("SELECT {}, {size} FROM {} AS t WHERE {id} {}", self.shown_id(), self.0.table(), self.any_id(Slot::Ids));
        self.estimates().then(|| template(&text, &[decoding.ids.column(), ColumnType::Integer]))
    }

    /// The columns of messages as [`Decoding`] reads them. Without `content`, headers and payload stay in the database.
    pub(crate) fn message(self, decoding: &Decoding, attempts: &str, content: bool) -> String {
        let layout = self.0;
        let columns = &layout.columns;
        let shown = |name: &Ident| if layout.kind(name) == Kind::Bytea { self.column(name) } else { text(&self.column(name)) };
        let mut parts = if decoding.place_texts == 0 { self.place() } else { Vec::new() };
        if !decoding.id_is_order {
            parts.push(self.shown_id());
        }
        parts.extend([&columns.topic, &columns.key].into_iter().flatten().map(shown));
        if content {
            parts.extend(columns.headers.as_ref().map(shown));
            parts.push(shown(&columns.payload));
        } else {
            parts.extend(columns.headers.as_ref().map(|_| text("NULL")));
            parts.push(text("NULL"));
        }
        parts.push(attempts.to_owned());
        let created = columns.created_at.as_ref().map(|column| time::millis(layout.clock(column), &self.column(column)));
        parts.push(created.unwrap_or_else(|| "CAST(0 AS bigint)".to_owned()));
        parts.extend(layout.config.extra_headers.keys().filter_map(|name| Ident::new(name.as_str()).ok()).map(|name| shown(&name)));
        parts.join(", ")
    }

    /// What a lease writes into the table.
    pub(crate) fn lease_sets(self) -> Vec<String> {
        let layout = self.0;
        let columns = &layout.columns;
        let mut sets = Vec::new();
        if let Some(attempts) = &columns.attempts {
            sets.push(format!("{attempts} = (coalesce({}, 0) OPERATOR(pg_catalog.+) 1)", self.column(attempts)));
        }
        if let Some(holder) = &columns.leased_by {
            sets.push(format!("{holder} = {}", text(&Slot::Worker.to_string())));
        }
        if let Some(lease) = layout.lease_column() {
            sets.push(format!("{lease} = {}", later(layout.clock(lease), &Slot::Millis.to_string())));
        }
        if let Some(leased) = &layout.config.states.leased {
            sets.push(format!("{} = {}", columns.state, layout.state(leased)));
        }
        sets
    }

    /// What a change writes into the table.
    pub(crate) fn sets(self, change: Change) -> Vec<String> {
        let layout = self.0;
        let columns = &layout.columns;
        let mut sets = Vec::new();
        let millis = Slot::Millis.to_string();
        if change == Change::Extend {
            sets.extend(layout.lease_column().map(|lease| format!("{lease} = {}", later(layout.clock(lease), &millis))));
            return sets;
        }
        let nothing = |column: &Ident, otherwise: &str| if layout.is_not_null(column) { otherwise.to_owned() } else { "NULL".to_owned() };
        if let Some(holder) = &columns.leased_by {
            sets.push(format!("{holder} = {}", nothing(holder, "''")));
        }
        // Where due time and lease are one column, it is written below, or of no account once the row is settled.
        if let Some(lease) = layout.lease_column().filter(|lease| layout.due_column() != Some(*lease)) {
            sets.push(format!("{lease} = {}", nothing(lease, long_ago(layout.clock(lease)))));
        }
        let states = &layout.config.states;
        match change {
            Change::Delivered => sets.push(format!("{} = {}", columns.state, layout.state(&states.delivered))),
            Change::Suppressed => sets.push(format!("{} = 'suppressed'", columns.state)),
            Change::Dead => sets.push(format!("{} = {}", columns.state, layout.state(&states.dead))),
            _ => {
                sets.extend(layout.due_column().map(|due| format!("{due} = {}", later(layout.clock(due), &millis))));
                if let (true, Some(pending)) = (states.unsettled().len() > 1, states.pending.first()) {
                    sets.push(format!("{} = {}", columns.state, layout.state(pending)));
                }
            }
        }
        if matches!(change, Change::Delivered | Change::Suppressed | Change::Dead) {
            sets.extend(columns.done_at.as_ref().map(|done| format!("{done} = {}", time::now(layout.clock(done)))));
        }
        if matches!(change, Change::Retry | Change::Suppressed | Change::Dead) {
            sets.extend(columns.last_error.as_ref().map(|column| format!("{column} = {}", self.cut_error(column))));
        }
        if let Some(code) = &columns.code {
            match change {
                Change::Delivered => sets.push(format!("{code} = NULL")),
                Change::Retry | Change::Suppressed | Change::Dead => sets.push(format!("{code} = {}", text(&Slot::Code.to_string()))),
                _ => {}
            }
        }
        // Nobody needs the envelope any more.
        if matches!((&layout.role, change), (Role::Deliveries, Change::Delivered | Change::Suppressed)) {
            sets.push(format!("{} = NULL", columns.payload));
        }
        if let (Change::Release, Some(attempts)) = (change, &columns.attempts) {
            sets.push(format!("{attempts} = greatest((coalesce({}, 0) {MINUS} 1), 0)", self.column(attempts)));
        }
        sets
    }

    /// The failure's text, within what the column takes.
    fn cut_error(self, column: &Ident) -> String {
        let given = text(&Slot::Text.to_string());
        match self.0.info.column(column).and_then(|info| info.most_characters) {
            Some(most) => format!("pg_catalog.left({given}, {most})"),
            None => given,
        }
    }

    /// What a change writes into the leases beside the table; none: the lease is deleted.
    pub(crate) fn side_sets(self, change: Change) -> Option<String> {
        let columns = &self.0.columns;
        let millis = Slot::Millis.to_string();
        let due = format!("available_at = {}", later(Clock::Zoned, &millis));
        let mut sets = match change {
            Change::Extend => return Some(format!("lease_until = {}", later(Clock::Zoned, &millis))),
            Change::Delivered | Change::Suppressed => return None,
            // What the table has no column for is kept for whoever looks at the dead row.
            Change::Dead if columns.last_error.is_some() && columns.attempts.is_some() => return None,
            Change::Dead | Change::Retry | Change::Release => vec!["leased_by = NULL".to_owned(), "lease_until = 'epoch'".to_owned()],
        };
        match change {
            Change::Dead => {}
            Change::Retry => sets.push(due),
            _ => {
                sets.push(due);
                sets.push(format!("attempts = greatest((l.attempts {MINUS} 1), 0)"));
            }
        }
        if matches!(change, Change::Dead | Change::Retry) && columns.last_error.is_none() {
            sets.push(format!("last_error = {}", text(&Slot::Text.to_string())));
        }
        Some(sets.join(", "))
    }

    /// A change to leases beside the table.
    pub(crate) fn write_side(self, change: Change, rows: &str) -> Option<Template> {
        let side = self.0.side.as_ref()?;
        let text = match self.side_sets(change) {
            Some(sets) => format!("UPDATE {side} AS l SET {sets} WHERE {rows}"),
            None => format!("DELETE FROM {side} AS l WHERE {rows}"),
        };
        Some(template(&text, &[]))
    }

    /// Rows that a worker holds, which is given as text.
    pub(crate) fn held(self, worker: &str) -> String {
        let layout = self.0;
        match (&layout.side, &layout.columns.leased_by) {
            (Some(side), _) => format!(
                "EXISTS (SELECT 1 FROM {side} AS l WHERE l.id {EQ} {} AND l.leased_by {EQ} {worker} AND l.born {EQ} {})",
                self.id(),
                self.born()
            ),
            (None, Some(holder)) => format!("{} {EQ} {worker}", text(&self.column(holder))),
            (None, None) => "false".to_owned(),
        }
    }

    /// A change to the rows in `Ids` that `Worker` holds.
    pub(crate) fn fenced(self, change: Change, decoding: &Decoding) -> Fenced {
        let layout = self.0;
        let (id, given) = (self.id(), self.any_id(Slot::Ids));
        let worker = text(&Slot::Worker.to_string());
        let held = self.held(&worker);
        let rows = format!("{id} {given} AND {held} AND {}", self.still_unsettled());
        let ids = [decoding.ids.column()];
        let first = match self.write(change, &rows) {
            Some(write) => template(&self.ending(change, "", &write), &ids),
            // Everything is written beside the table; the rows are locked already.
            None => template(&format!("SELECT {} FROM {} AS t WHERE {rows}", self.shown_id(), layout.table()), &ids),
        };
        Fenced { first, then: self.write_side(change, &format!("l.id {given} AND l.leased_by {EQ} {worker}")) }
    }

    /// A statement that writes a change behind `tables` (of `WITH`, each with a comma behind it), and returns the ids. What makes an event
    /// dead says so among the emissions.
    pub(crate) fn ending(self, change: Change, tables: &str, write: &str) -> String {
        let tables = if tables.is_empty() { String::new() } else { format!("WITH {}", tables.trim_end_matches(", ")) };
        let Some(emission) = self.emission().filter(|_| change == Change::Dead) else {
            return format!("{tables} {write} RETURNING {}", self.shown_id());
        };
        let Emission { table, tenant, event, generation, .. } = emission;
        let with = if tables.is_empty() { "WITH".to_owned() } else { format!("{tables},") };
        format!(
            "{with} w AS ({write} RETURNING {} AS id, {tenant} AS account_id, {event} AS notification_id, {generation} AS generation), \
             e AS (INSERT INTO {table} AS e (account_id, notification_id, generation, state, error_code) \
             SELECT w.account_id, w.notification_id, w.generation, 'quarantined', {} FROM w \
             ON CONFLICT (account_id, notification_id, generation) DO UPDATE SET state = excluded.state, error_code = excluded.error_code, \
             at = excluded.at) SELECT w.id FROM w",
            self.shown_id(),
            text(&Slot::Code.to_string())
        )
    }

    /// What says among the emissions that the events in `r` are to be expanded again as the generation that they are.
    pub(crate) fn requeued(self) -> Option<String> {
        let Emission { table, tenant, event, generation } = self.emission()?;
        Some(format!(
            "e AS (INSERT INTO {table} AS e (account_id, notification_id, generation, state) SELECT {tenant}, {event}, {generation}, 'pending' \
             FROM {} AS t WHERE {} {EQ} ANY (ARRAY(SELECT r.id FROM r)) ON CONFLICT (account_id, notification_id, generation) \
             DO UPDATE SET state = excluded.state, error_code = NULL, at = excluded.at)",
            self.0.table(),
            self.id()
        ))
    }

    /// What forgets the emissions of the events in `r`, which are deleted.
    pub(crate) fn gone(self) -> Option<String> {
        let Emission { table, tenant, event, .. } = self.emission()?;
        Some(format!(
            "e AS (DELETE FROM {table} AS e USING (SELECT {tenant} AS account_id, {event} AS notification_id FROM {} AS t \
             WHERE {} {EQ} ANY (ARRAY(SELECT r.id FROM r)) OFFSET 0) AS x \
             WHERE e.account_id {EQ} x.account_id AND e.notification_id {EQ} x.notification_id)",
            self.0.table(),
            self.id()
        ))
    }

    /// How an event is named among the emissions; none: the table has no events of fan-out.
    pub(crate) fn emission(self) -> Option<Emission> {
        let Role::Events { tenant, emissions } = &self.0.role else { return None };
        let tenant = tenant.as_ref().map_or_else(|| text("''"), |tenant| text(&self.column(tenant)));
        let event = text(&self.id());
        let highest = format!(
            "(SELECT pg_catalog.max(e.generation) FROM {emissions} AS e WHERE e.account_id {EQ} {tenant} AND e.notification_id {EQ} {event})"
        );
        Some(Emission { table: emissions.clone(), generation: format!("coalesce({highest}, 1)"), tenant, event })
    }

    /// What is read of claimed events beside their messages: id, tenant, generation.
    pub(crate) fn emitted(self) -> (String, Vec<ColumnType>) {
        match self.emission() {
            Some(Emission { tenant, event, generation, .. }) if self.0.tells_emissions => {
                (format!(", {event}, {tenant}, {generation}"), vec![ColumnType::Bytes, ColumnType::Bytes, ColumnType::Integer])
            }
            _ => (String::new(), Vec::new()),
        }
    }

    /// Locks the rows in `Ids`, in the order of their ids.
    pub(crate) fn lock(self) -> Template {
        let text = format!(
            "SELECT pg_catalog.count(*) FROM (SELECT 1 FROM {} AS t WHERE {id} {} ORDER BY {id} {} OF t) AS x",
            self.0.table(),
            self.any_id(Slot::Ids),
            if self.0.deletes() { "FOR UPDATE" } else { LOCK },
            id = self.id(),
        );
        template(&text, &[ColumnType::Integer])
    }

    /// Locks the rows in `Ids` for a renewal; fails at once if another transaction has locked one of them.
    pub(crate) fn lock_at_once(self) -> Template {
        let text = format!(
            "SELECT pg_catalog.count(*) FROM (SELECT 1 FROM {} AS t WHERE {id} {} ORDER BY {id} FOR NO KEY UPDATE OF t NOWAIT) AS x",
            self.0.table(),
            self.any_id(Slot::Ids),
            id = self.id(),
        );
        template(&text, &[ColumnType::Integer])
    }

    /// Writes a change into rows; none: it writes nothing there.
    pub(crate) fn write(self, change: Change, rows: &str) -> Option<String> {
        let table = self.0.table();
        if change == Change::Delivered && self.0.deletes() {
            return Some(format!("DELETE FROM {table} AS t WHERE {rows}"));
        }
        let sets = self.sets(change);
        if sets.is_empty() { None } else { Some(format!("UPDATE {table} AS t SET {} WHERE {rows}", sets.join(", "))) }
    }

    /// Writes each configured state into one unsettled row, as verdicts and claims do; with the key of the configuration.
    pub(crate) fn try_states(self) -> Vec<(&'static str, Template)> {
        let (layout, states, id) = (self.0, &self.0.config.states, self.id());
        let one = format!(
            "{id} {EQ} ANY (ARRAY(SELECT {id} FROM {} AS t WHERE {} LIMIT 1 {LOCK} SKIP LOCKED))",
            layout.table(),
            self.unsettled()
        );
        let mut texts = vec![("states.dead", self.write(Change::Dead, &one))];
        if !layout.deletes() {
            texts.push(("states.delivered", self.write(Change::Delivered, &one)));
        }
        if states.unsettled().len() > 1 {
            texts.push(("states.pending", self.write(Change::Retry, &one)));
        }
        if let Some(leased) = &states.leased {
            let set = format!("{} = {}", layout.columns.state, layout.state(leased));
            texts.push(("states.leased", Some(format!("UPDATE {} AS t SET {set} WHERE {one}", layout.table()))));
        }
        texts.into_iter().filter_map(|(key, text)| text.map(|text| (key, template(&text, &[])))).collect()
    }

    /// Counts: unsettled, due, leased, age of the oldest; then dead.
    pub(crate) fn stats(self) -> [Template; 2] {
        let integer = ColumnType::Integer;
        let columns = &self.0.columns;
        let oldest = columns.created_at.as_ref().map_or_else(
            || "CAST(NULL AS bigint)".to_owned(),
            |created| format!("({} {MINUS} pg_catalog.min({}))", now_ms(), time::millis(self.0.clock(created), &self.column(created))),
        );
        let unsettled = format!(
            "SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE {}), pg_catalog.count(*) FILTER (WHERE {}), {oldest} FROM {} WHERE {}",
            self.due(),
            self.leased(),
            self.from(),
            self.unsettled()
        );
        let dead = format!(
            "SELECT pg_catalog.count(*) FROM {} AS t WHERE {} {EQ} {}",
            self.0.table(),
            self.column(&columns.state),
            self.0.state(&self.0.config.states.dead)
        );
        [template(&unsettled, &[integer; 4]), template(&dead, &[integer])]
    }
}
