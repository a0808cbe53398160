//! The DDL: outhaul's own table, or the table of leases beside an existing one.

use crate::layout::Layout;
use crate::names::derived;
use crate::ops::literal;
use outbox_table::config::Config;
use outbox_table::ident::{Ident, NameFault, TableName};
use outhaul_sdk::Failure;

/// Statements, each with what it is for.
pub(crate) type Ddl = Vec<(&'static str, String)>;

/// Outhaul's own table, whose trigger notifies `channel`; none: it has no trigger.
pub(crate) fn own(table: &TableName, channel: Option<&str>) -> Result<Ddl, Failure> {
    let name = |suffix: &str| derived(&table.table, suffix).map_err(invalid);
    let on = |index: &str, columns: &str, state: &str| {
        Ok::<_, Failure>(format!("CREATE INDEX IF NOT EXISTS {} ON {table} ({columns}) WHERE status = '{state}'", name(index)?))
    };
    let mut ddl = vec![
        (
            "A producer inserts topic, key, headers (JSON as text: order and duplicates stay) and payload, in the transaction of its business\n-- rows. Rows with the same key are delivered in the order of their ids. `available_at` is due time, retry time and end of lease in one.\n-- Half of each page is left free, so that a lease rewrites its row in place (measured: all of them; at 70, 44 of 100; at 100, 1) and no
-- index grows by it. The table is vacuumed by what has changed, not by its size.",
            format!(
                "CREATE TABLE IF NOT EXISTS {table} (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic        text        NOT NULL,
    key          text,
    status       text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'done', 'dead')),
    attempts     integer     NOT NULL DEFAULT 0,
    available_at timestamptz NOT NULL DEFAULT now(),
    leased_by    text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    done_at      timestamptz,
    last_error   text,
    headers      text,
    payload      bytea
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
)"
            ),
        ),
        ("What is claimed next: only unsettled rows, so it stays small whatever the table holds.", on("pending", "id", "pending")?),
        ("From key to key, and to the first row of each.", on("key_pending", "key, id", "pending")?),
        ("Dead rows, for whoever looks at them.", on("dead", "id", "dead")?),
    ];
    let (trigger, function) = (name("notify")?, table.sibling(name("notify")?));
    let Some(channel) = channel else {
        ddl.push((
            "No trigger notifies of new rows (`notify = false`): the relay polls.",
            format!("DROP TRIGGER IF EXISTS {trigger} ON {table}"),
        ));
        ddl.push(("Nor is there its function.", format!("DROP FUNCTION IF EXISTS {function}()")));
        return Ok(ddl);
    };
    ddl.extend([
        (
            "Wakes the relay with each commit that inserts. PostgreSQL refuses PREPARE TRANSACTION (two-phase commit) after a NOTIFY: producers\n-- that use it need a table without function and trigger, `notify = false`; then the relay polls.",
            format!(
                "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS \
                 'BEGIN PERFORM pg_notify(''{channel}'', ''''); RETURN NULL; END'"
            ),
        ),
        (
            "Once a statement, however many rows it inserts.",
            format!(
                "CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
            ),
        ),
    ]);
    Ok(ddl)
}

/// The table of leases, if the configuration has one.
pub(crate) fn beside(layout: &Layout) -> Ddl {
    let Some(side) = &layout.side else { return Vec::new() };
    vec![(
        "Leases beside a table that has no columns for them: a row while a message is leased or waits for its retry.\n-- `born` tells the row from a later one with the same id.",
        format!(
            "CREATE TABLE IF NOT EXISTS {side} (
    id           {} NOT NULL PRIMARY KEY,
    born         text        NOT NULL,
    leased_by    text,
    lease_until  timestamptz NOT NULL DEFAULT 'epoch',
    available_at timestamptz NOT NULL DEFAULT 'epoch',
    attempts     integer     NOT NULL DEFAULT 0,
    last_error   text
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000)",
            layout.id_type
        ),
    )]
}

/// As text for a migration.
pub(crate) fn text(config: &Config, ddl: &Ddl) -> String {
    if ddl.is_empty() {
        let columns = config.columns.as_ref();
        let named = |name: Option<&Ident>| name.map(ToString::to_string).unwrap_or_default();
        let order = columns.map(|columns| named(columns.order.as_ref().or(Some(&columns.id)))).unwrap_or_default();
        let state = columns.map(|columns| named(Some(&columns.state))).unwrap_or_default();
        let pending = config.states.pending.first().map(|state| literal(&crate::layout::state_text(state))).unwrap_or_default();
        return format!(
            "-- Nothing to create: {table} has everything that its configuration names.\n-- Partial indexes keep claims fast as settled rows pile up, if it has none:\n--   CREATE INDEX ... ON {table} ({order}) WHERE {state} = {pending};\n",
            table = config.table
        );
    }
    let mut text = String::from("-- PostgreSQL 14 or later. Running it again changes nothing.\n");
    for (purpose, statement) in ddl {
        text.push_str(&format!("\n-- {purpose}\n{statement};\n"));
    }
    text
}

fn invalid(fault: NameFault) -> Failure {
    Failure::invalid_configuration(format!("`table`: {fault}"))
}

/// Refuses a table of another kind under the name of the table of leases.
pub(crate) fn check_leases(side: &TableName, info: &crate::inspect::TableInfo) -> Result<(), Failure> {
    for name in ["id", "leased_by", "lease_until", "available_at", "attempts", "last_error", "born"] {
        if info.column(&Ident::of(name)).is_none() {
            return Err(Failure::invalid_configuration(format!(
                "`lease_table`: the table {side} has no column `{name}` (columns: {}); name a table that does not exist yet, and create it with `outhaul schema --apply`",
                info.column_names()
            )));
        }
    }
    Ok(())
}
