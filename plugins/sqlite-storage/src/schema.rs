//! The DDL: outhaul's own table, or the table of leases beside an existing one.

use outbox_table::config::Config;
use outbox_table::ident::{Ident, TableName, literal};
use outhaul_sdk::Failure;

/// Statements, each with what it is for.
pub(crate) type Ddl = Vec<(String, String)>;

/// What the configuration needs. `integer_ids`: the type of the existing table's ids.
pub(crate) fn ddl(config: &Config, integer_ids: bool) -> Result<Ddl, Failure> {
    match (&config.columns, &config.lease_table) {
        (None, _) => own(&config.table, config.fan_out.is_some()),
        (Some(_), Some(name)) => Ok(vec![leases(&config.table.sibling(ident(name)?), integer_ids)]),
        (Some(_), None) => Ok(Vec::new()),
    }
}

/// As text for a migration.
pub(crate) fn text(config: &Config, ddl: &Ddl) -> String {
    if ddl.is_empty() {
        let state = &config.columns.as_ref().map(|columns| columns.state.to_string()).unwrap_or_default();
        return format!(
            "-- Nothing to create: {} has everything that its configuration names.\n-- An index by state keeps claims fast as settled rows pile up, if it has none:\n--   CREATE INDEX ... ON {} ({state});\n",
            config.table, config.table.table
        );
    }
    let mut text = String::from(
        "-- In the database's WAL mode (`PRAGMA journal_mode = WAL`, once: the file remembers it), readers and the one writer do not\n-- wait for each other.\n",
    );
    for (purpose, statement) in ddl {
        text.push_str(&format!("\n-- {purpose}\n{statement};\n"));
    }
    if let (Some(columns), Some(tenant)) = (&config.columns, config.tenant()) {
        let order = columns.order.as_ref().map_or_else(|| "order".to_owned(), ToString::to_string);
        text.push_str(&format!(
            "\n-- To find the events of each tenant, and which tenants there are, an index is worth having; left to you, as the table is yours:\n\
             --   CREATE INDEX ... ON {} ({}, {tenant}, {order});\n",
            config.table.table, columns.state
        ));
    }
    text
}

fn own(table: &TableName, fan_out: bool) -> Result<Ddl, Failure> {
    let tenant = if fan_out { "\n    tenant       TEXT    NOT NULL DEFAULT '' CHECK (typeof(tenant) = 'text')," } else { "" };
    let index = |suffix: &str| ident(&format!("{}_{suffix}", table.table.name())).map(|name| table.sibling(name));
    let on = &table.table;
    Ok(vec![
        (
            "Times are milliseconds since the Unix epoch. `available_at` is due time, retry time and end of lease in one.\n-- A producer inserts topic, key, headers (JSON) and payload; rows with the same key are delivered in the order of their ids.".to_owned(),
            format!(
                "CREATE TABLE IF NOT EXISTS {table} (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,{tenant}
    topic        TEXT    NOT NULL,
    key          TEXT,
    status       TEXT    NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'done', 'dead')),
    attempts     INTEGER NOT NULL DEFAULT 0,
    available_at INTEGER NOT NULL DEFAULT 0,
    leased_by    TEXT,
    created_at   INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)),
    done_at      INTEGER,
    last_error   TEXT,
    headers      TEXT,
    payload      BLOB
)"
            ),
        ),
        (
            "What is claimed next: only unsettled rows, so it stays small whatever the table holds.".to_owned(),
            format!("CREATE INDEX IF NOT EXISTS {} ON {on} (id) WHERE status = 'pending'", index("pending")?),
        ),
        (
            "From key to key, when the front of the table is waiting.".to_owned(),
            format!("CREATE INDEX IF NOT EXISTS {} ON {on} (key, id) WHERE status = 'pending'", index("key_pending")?),
        ),
        ("Dead rows, for whoever looks at them.".to_owned(), format!("CREATE INDEX IF NOT EXISTS {} ON {on} (id) WHERE status = 'dead'", index("dead")?)),
    ])
}

fn leases(side: &TableName, integer_ids: bool) -> (String, String) {
    let id = if integer_ids { "INTEGER" } else { "TEXT" };
    // WITHOUT ROWID: one look-up by a text id instead of two.
    let without = if integer_ids { "" } else { " WITHOUT ROWID" };
    (
        "Leases beside a table that has no columns for them: a row while a message is leased or waits for its retry.\n-- Times are milliseconds since the Unix epoch. `born` tells the row from a later one with the same id.".to_owned(),
        format!(
            "CREATE TABLE IF NOT EXISTS {side} (
    id           {id} NOT NULL PRIMARY KEY,
    born         BLOB,
    leased_by    TEXT,
    lease_until  INTEGER NOT NULL DEFAULT 0,
    available_at INTEGER NOT NULL DEFAULT 0,
    attempts     INTEGER NOT NULL DEFAULT 0,
    last_error   TEXT
){without}"
        ),
    )
}

pub(crate) fn ident(name: &str) -> Result<Ident, Failure> {
    Ident::new(name).map_err(|fault| Failure::invalid_configuration(format!("the name {}: {fault}", literal(name))))
}

/// The table of leases, if the configuration has one.
pub(crate) fn lease_table(config: &Config) -> Result<Option<TableName>, Failure> {
    config.lease_table.as_deref().map(|name| ident(name).map(|name| config.table.sibling(name))).transpose()
}

/// Refuses a table of another kind under the name of the table of leases.
pub(crate) fn check_leases(side: &TableName, info: &crate::inspect::TableInfo) -> Result<(), Failure> {
    for name in ["id", "leased_by", "lease_until", "available_at", "attempts", "last_error", "born"] {
        if info.column(name).is_none() {
            return Err(Failure::invalid_configuration(format!(
                "`lease_table`: the table {side} has no column `{name}` (columns: {}); name a table that does not exist yet, and create it with `outhaul schema --apply`",
                info.column_names()
            )));
        }
    }
    Ok(())
}
