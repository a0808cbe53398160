//! The claim itself: locks what a search has chosen, and leases what may be leased.
//!
//! Between the search and this statement, other workers and producers go on. So each row is locked (skipping what others have locked),
//! and looked at again as it is by now: unsettled, due, attempts left. Of each key an unbroken run from its first chosen row is kept: where
//! one falls out, the later ones do, too. That is enough where the search has seen the key from its first unsettled row on: a row of
//! the key that the search has not seen was committed later, and so comes later, if producers of one key wait for each other. Where the
//! search has started behind the front of the table, the key's first row must be the table's first one as well (`probe`).
//!
//! Leases beside the table take two steps. A statement sees other tables as they were when it began, even after it has waited for a
//! lock; so the rows are locked first, and their leases are judged by a later statement.

use crate::ops::{CONCAT, EQ, GE, LT, NE, PLUS, text};
use crate::statements::{LOCK, Sql, template};
use crate::time::{Clock, later};
use outbox_table::database::ColumnType;
use outbox_table::decode::Decoding;
use outbox_table::settle::Change;
use outbox_table::template::{Slot, Template};

/// The statements of a claim.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// Leases in the table: leases rows of `Ids`, whose keys are numbered by `KeyOf`, and returns their messages. Leases beside it: leases those of
    /// them that are in `Locked`, and returns their ids.
    pub(crate) lease: Template,
    /// The same, where a key's first row must be the table's first one of that key.
    pub(crate) probe: Template,
    /// Ends rows of `Ids` dead that are due and were claimed at least `Attempts` times; returns their ids.
    pub(crate) refuse: Template,
    /// Of deliveries: ends rows of `Ids` dead that are due, were tried, and are older than `Horizon`, with the code that they have; returns
    /// their ids.
    pub(crate) expire: Option<Template>,
    pub(crate) beside: Option<Beside>,
}

/// What leases beside the table need.
#[derive(Debug, Clone)]
pub(crate) struct Beside {
    /// Locks rows of `Ids`, skipping what others have locked; returns the ids.
    pub(crate) lock: Template,
    /// Writes into the table what a lease writes there.
    pub(crate) mark: Option<Template>,
    /// The messages of `Ids`.
    pub(crate) read: Template,
    /// Forgets the leases of rows that were ended.
    pub(crate) ended: Option<Template>,
}

impl Claim {
    pub(crate) fn new(sql: Sql<'_>, decoding: &Decoding) -> Self {
        let beside = sql.0.side.is_some();
        let lease = |probe: bool| if beside { sql.lease_beside(decoding, probe) } else { sql.lease_within(decoding, probe) };
        Self {
            lease: lease(false),
            probe: lease(sql.0.has_key_index),
            refuse: sql.refuse(decoding),
            expire: sql.expire(decoding),
            beside: beside.then(|| Beside {
                lock: sql.lock_free(decoding),
                mark: sql.mark(),
                read: sql.read(decoding),
                ended: sql.write_side(Change::Dead, &format!("l.id {}", sql.any_id(Slot::Ids))),
            }),
        }
    }
}

impl Sql<'_> {
    /// Rows that are still to be had, with what the chain needs of them; `slot` has their ids.
    fn free(self, slot: Slot, lock: bool) -> String {
        let most = format!("CAST({} AS bigint)", Slot::Attempts);
        let order: String =
            self.order_columns().iter().zip(["o1", "o2"]).map(|((column, _), name)| format!(", {column} AS {name}")).collect();
        let key = self.0.columns.key.as_ref().filter(|_| self.0.key_type.is_some());
        let key = key.map(|key| format!(", {} AS native", self.column(key))).unwrap_or_default();
        let tenant = self.0.tenant.as_ref().map(|tenant| format!(", {} AS tenant", self.column(tenant))).unwrap_or_default();
        format!(
            "SELECT {id} AS id{key}{tenant}{order} FROM {} WHERE {id} {} AND {} AND {} AND ({most} {EQ} 0 OR {} {LT} {most}){}",
            self.from(),
            self.any_id(slot),
            self.still_unsettled(),
            self.due(),
            self.attempts(),
            if lock { format!(" ORDER BY {} {LOCK} OF t SKIP LOCKED", self.id()) } else { String::new() },
            id = self.id(),
        )
    }

    /// `WITH` up to `g`: chosen rows with `mine` (locked by us, and to be had) and `chain` (so are all earlier ones of its key).
    fn chain(self, slot: Slot, lock: bool, probe: bool) -> String {
        // Keys are numbers here, which are sorted sooner than texts; 0: there is none.
        let chosen = format!(
            "WITH c AS (SELECT x.id, CASE WHEN x.key {NE} 0 THEN x.key END AS key, x.n FROM ROWS FROM \
             (pg_catalog.unnest(CAST({} AS {}[])), pg_catalog.unnest(CAST({} AS bigint[]))) WITH ORDINALITY AS x(id, key, n)), \
             l AS MATERIALIZED ({})",
            Slot::Ids,
            self.0.id_type,
            Slot::KeyOf,
            self.free(slot, lock),
        );
        let Some(key) = self.0.columns.key.as_ref().filter(|_| probe) else {
            return format!(
                "{chosen}, g AS (SELECT c.id, c.key, l.id IS NOT NULL AS mine, \
                 pg_catalog.bool_and(l.id IS NOT NULL) OVER (PARTITION BY c.key ORDER BY c.n) AS chain FROM c LEFT JOIN l ON l.id {EQ} c.id)"
            );
        };
        let order: Vec<String> = self.order_columns().into_iter().map(|(column, _)| column).collect();
        let names = if order.len() == 1 { "k.o1" } else { "k.o1, k.o2" };
        let head = format!(
            "CASE WHEN k.place {EQ} 1 THEN NOT EXISTS (SELECT 1 FROM {} AS t WHERE {}{} AND {} {EQ} k.native \
             AND ROW({}) {LT} ROW({names})) ELSE true END",
            self.0.table(),
            self.unsettled(),
            self.of_tenant("k.tenant"),
            self.column(key),
            order.join(", "),
        );
        format!(
            "{chosen}, k AS MATERIALIZED (SELECT l.*, c.id AS chosen, c.key, c.n, l.id IS NOT NULL AS mine, \
             pg_catalog.row_number() OVER (PARTITION BY c.key ORDER BY c.n) AS place FROM c LEFT JOIN l ON l.id {EQ} c.id), \
             g AS (SELECT k.chosen AS id, k.key, k.mine, \
             pg_catalog.bool_and(k.mine AND {head}) OVER (PARTITION BY k.key ORDER BY k.n) AS chain FROM k)"
        )
    }

    /// The rows to lease, after [`Sql::chain`]: a list for `= ANY`.
    fn kept(self) -> String {
        let kept = if self.0.config.strict_order { "g.mine AND (g.key IS NULL OR g.chain)" } else { "g.mine" };
        format!("{EQ} ANY (ARRAY(SELECT g.id FROM g WHERE {kept}))")
    }

    fn lease_within(self, decoding: &Decoding, probe: bool) -> Template {
        let layout = self.0;
        let (emitted, more) = self.emitted();
        let text = format!(
            "{} UPDATE {} AS t SET {} WHERE {} {} RETURNING {}{emitted}",
            self.chain(Slot::Ids, true, probe),
            layout.table(),
            self.lease_sets().join(", "),
            self.id(),
            self.kept(),
            self.message(decoding, &self.attempts(), true)
        );
        template(&text, &[decoding.columns(), more].concat())
    }

    fn lease_beside(self, decoding: &Decoding, probe: bool) -> Template {
        let layout = self.0;
        let Some(side) = &layout.side else { return self.lease_within(decoding, probe) };
        let text = format!(
            "{} INSERT INTO {side} AS l (id, born, leased_by, lease_until, attempts) \
             SELECT {id}, {}, {}, {}, 1 FROM {} AS t WHERE {id} {} \
             ON CONFLICT (id) DO UPDATE SET born = excluded.born, leased_by = excluded.leased_by, lease_until = excluded.lease_until, \
             attempts = (CASE WHEN l.born {EQ} excluded.born THEN l.attempts ELSE 0 END {PLUS} 1), \
             available_at = CASE WHEN l.born {EQ} excluded.born THEN l.available_at ELSE 'epoch' END, \
             last_error = CASE WHEN l.born {EQ} excluded.born THEN l.last_error END RETURNING {}",
            self.chain(Slot::Locked, false, probe),
            self.born(),
            text(&Slot::Worker.to_string()),
            later(Clock::Zoned, &Slot::Millis.to_string()),
            layout.table(),
            self.kept(),
            if decoding.ids == outbox_table::ids::IdKind::Integer { "CAST(l.id AS bigint)".to_owned() } else { text("l.id") },
            id = self.id(),
        );
        template(&text, &[decoding.ids.column()])
    }

    fn refuse(self, decoding: &Decoding) -> Template {
        let (id, table) = (self.id(), self.0.table());
        let free = format!(
            "SELECT {id} AS id FROM {} WHERE {id} {} AND {} AND {} AND {} {GE} CAST({} AS bigint)",
            self.from(),
            self.any_id(Slot::Ids),
            self.still_unsettled(),
            self.due(),
            self.attempts(),
            Slot::Attempts
        );
        // Beside the table, they are locked by an earlier statement.
        let lock = if self.0.side.is_none() { format!(" ORDER BY {id} {LOCK} OF t SKIP LOCKED") } else { String::new() };
        let rows = format!("{id} {EQ} ANY (ARRAY(SELECT f.id FROM f))");
        let write = self.write(Change::Dead, &rows).unwrap_or_else(|| format!("UPDATE {table} AS t SET {id} = {id} WHERE {rows}"));
        let text = self.ending(Change::Dead, &format!("f AS MATERIALIZED ({free}{lock}), "), &write);
        template(&text, &[decoding.ids.column()])
    }

    fn expire(self, decoding: &Decoding) -> Option<Template> {
        let (columns, id, table) = (&self.0.columns, self.id(), self.0.table());
        let code = columns.code.as_ref()?;
        let free = format!(
            "SELECT {id} AS id FROM {table} AS t WHERE {id} {} AND {} AND {} AND {} ORDER BY {id} {LOCK} OF t SKIP LOCKED",
            self.any_id(Slot::Ids),
            self.still_unsettled(),
            self.due(),
            self.too_old()?,
        );
        let error = columns.last_error.as_ref()?;
        let mut sets: Vec<String> = self.sets(Change::Dead);
        sets.retain(|set| !set.starts_with(&format!("{code} =")) && !set.starts_with(&format!("{error} =")));
        sets.push(format!("{code} = coalesce({}, {})", self.column(code), text(&Slot::Code.to_string())));
        // What was recorded last says why it was not sent.
        let last = format!("coalesce('; the last failure: ' {CONCAT} {}, '')", self.column(error));
        sets.push(format!("{error} = pg_catalog.left(({} {CONCAT} {last}), 4096)", text(&Slot::Text.to_string())));
        let sql = format!(
            "WITH f AS MATERIALIZED ({free}) UPDATE {table} AS t SET {} WHERE {id} {EQ} ANY (ARRAY(SELECT f.id FROM f)) RETURNING {id}, {}",
            sets.join(", "),
            self.column(code)
        );
        Some(template(&sql, &[decoding.ids.column(), ColumnType::Bytes]))
    }

    fn lock_free(self, decoding: &Decoding) -> Template {
        let id = self.id();
        let shown = if decoding.ids == outbox_table::ids::IdKind::Integer { format!("CAST({id} AS bigint)") } else { text(&id) };
        let text = format!(
            "SELECT {shown} FROM {} AS t WHERE {id} {} AND {} ORDER BY {id} {LOCK} OF t SKIP LOCKED",
            self.0.table(),
            self.any_id(Slot::Ids),
            self.still_unsettled()
        );
        template(&text, &[decoding.ids.column()])
    }

    fn mark(self) -> Option<Template> {
        let sets = self.lease_sets();
        if sets.is_empty() {
            return None;
        }
        let text = format!("UPDATE {} AS t SET {} WHERE {} {}", self.0.table(), sets.join(", "), self.id(), self.any_id(Slot::Ids));
        Some(template(&text, &[]))
    }

    fn read(self, decoding: &Decoding) -> Template {
        let message = self.message(decoding, &self.attempts(), true);
        let (emitted, more) = self.emitted();
        let text = format!("SELECT {message}{emitted} FROM {} WHERE {} {}", self.from(), self.id(), self.any_id(Slot::Ids));
        template(&text, &[decoding.columns(), more].concat())
    }
}
