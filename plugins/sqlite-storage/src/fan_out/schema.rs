//! The tables of fan-out: their DDL, and whether they are there.
//!
//! The log is written by triggers: whatever changes the state of a delivery or of an emission is in it, an operator's own SQL included.

use super::tables;
use crate::inspect::TableInfo;
use crate::outbox::statement;
use crate::schema::{Ddl, ident};
use outbox_table::config::{Config, OWN_TENANT};
use outbox_table::database::{ColumnType, Database, Results, Value};
use outbox_table::failure;
use outbox_table::fan_out::{Kind, ROUTING, Tables};
use outbox_table::ident::{Ident, TableName};
use outbox_table::page::text_of;
use outhaul_sdk::{Column, Failure};

/// Now, in milliseconds. What runs it may be an older SQLite than the host's: no `subsec`.
const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)";

/// A name beside a table's, in the same schema.
fn beside(table: &TableName, suffix: &str) -> Result<TableName, Failure> {
    ident(&format!("{}_{suffix}", table.table.name())).map(|name| table.sibling(name))
}

/// The triggers: on emissions that are new, on those that change, on deliveries that change.
fn triggers(tables: &Tables) -> Result<[TableName; 3], Failure> {
    Ok([beside(&tables.emissions, "log_new")?, beside(&tables.emissions, "log")?, beside(&tables.deliveries, "log")?])
}

/// What the configuration needs beside the table of events, which is as `events` says if it is there.
pub(crate) fn ddl(config: &Config, events: Option<&TableInfo>) -> Result<Ddl, Failure> {
    if config.fan_out.is_none() {
        return Ok(Vec::new());
    }
    let tables = tables(config)?;
    let mut ddl = Vec::new();
    if config.columns.is_none() {
        own(&config.table, events, &mut ddl)?;
    }
    deliveries(&tables, &mut ddl)?;
    log(&tables, &mut ddl);
    log_triggers(&tables, &mut ddl)?;
    Ok(ddl)
}

/// Outhaul's own table of events: tenants.
fn own(table: &TableName, events: Option<&TableInfo>, ddl: &mut Ddl) -> Result<(), Failure> {
    if events.is_some_and(|info| info.column(OWN_TENANT).is_none()) {
        ddl.push((
            // What is no text, such as bytes that were bound for a name, would be in no tenant's turn.
            "Whose event it is; empty: nobody's in particular.".to_owned(),
            format!("ALTER TABLE {table} ADD COLUMN {OWN_TENANT} TEXT NOT NULL DEFAULT '' CHECK (typeof({OWN_TENANT}) = 'text')"),
        ));
    }
    let on = &table.table;
    ddl.push((
        "What is expanded next, tenant by tenant.".to_owned(),
        format!("CREATE INDEX IF NOT EXISTS {} ON {on} ({OWN_TENANT}, id) WHERE status = 'pending'", beside(table, "tenant_pending")?),
    ));
    ddl.push((
        "From key to key of a tenant.".to_owned(),
        format!(
            "CREATE INDEX IF NOT EXISTS {} ON {on} ({OWN_TENANT}, key, id) WHERE status = 'pending'",
            beside(table, "tenant_key_pending")?
        ),
    ));
    Ok(())
}

fn deliveries(tables: &Tables, ddl: &mut Ddl) -> Result<(), Failure> {
    let table = &tables.deliveries;
    let on = &table.table;
    let columns: String = ROUTING
        .iter()
        .map(|column| {
            let kind = match column.kind {
                Kind::Text => "TEXT    NOT NULL",
                Kind::OptionalText => "TEXT",
                Kind::Number => "INTEGER NOT NULL",
            };
            let rule = match column.name {
                // What is no text is nobody's: it would be in no tenant's turn.
                "account_id" => " CHECK (typeof(account_id) = 'text')",
                "delivery_id" => " UNIQUE",
                _ => "",
            };
            format!("    {:<24} {kind}{rule},\n", column.name)
        })
        .collect();
    ddl.push((
        "Deliveries: an event for a subscriber. The columns from account_id to order_key are what the envelope was sealed with: a row in which one\n-- of them is changed is not delivered. `available_at` is due time, retry time and end of lease in one.".to_owned(),
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (
    seq                      INTEGER PRIMARY KEY AUTOINCREMENT,
{columns}    state                    TEXT    NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'complete', 'suppressed', 'quarantined')),
    attempts                 INTEGER NOT NULL DEFAULT 0,
    available_at             INTEGER NOT NULL DEFAULT 0,
    leased_by                TEXT,
    created_at               INTEGER NOT NULL DEFAULT ({NOW}),
    done_at                  INTEGER,
    error_code               TEXT,
    last_error               TEXT,
    envelope                 BLOB,
    UNIQUE (account_id, notification_id, emission_generation, subscriber_id)
)"
        ),
    ));
    for (purpose, suffix, index) in [
        ("What is delivered next, tenant by tenant.", "pending", "(account_id, seq) WHERE state = 'pending'"),
        ("From key to key of a tenant.", "key_pending", "(account_id, order_key, seq) WHERE state = 'pending'"),
        ("What was not delivered, for whoever looks at it.", "ended", "(state) WHERE state IN ('suppressed', 'quarantined')"),
    ] {
        ddl.push((purpose.to_owned(), format!("CREATE INDEX IF NOT EXISTS {} ON {on} {index}", beside(table, suffix)?)));
    }
    ddl.push((
        "Emissions of events: expanded, quarantined, or asked for again. An event that is in no row here waits for its first one."
            .to_owned(),
        format!(
            "CREATE TABLE IF NOT EXISTS {} (
    notification_id TEXT    NOT NULL,
    generation      INTEGER NOT NULL,
    account_id      TEXT    NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('pending', 'expanded', 'quarantined')),
    deliveries      INTEGER NOT NULL DEFAULT 0,
    error_code      TEXT,
    at              INTEGER NOT NULL,
    PRIMARY KEY (notification_id, generation)
) WITHOUT ROWID",
            tables.emissions
        ),
    ));
    Ok(())
}

fn log(tables: &Tables, ddl: &mut Ddl) {
    ddl.push((
        "The status log: what changed, in one sequence a tenant. It is only ever added to.".to_owned(),
        format!(
            "CREATE TABLE IF NOT EXISTS {} (
    account_id      TEXT    NOT NULL,
    position        INTEGER NOT NULL,
    at              INTEGER NOT NULL,
    subject         TEXT    NOT NULL,
    notification_id TEXT    NOT NULL,
    generation      INTEGER NOT NULL,
    delivery_id     TEXT,
    subscriber_id   TEXT,
    state           TEXT    NOT NULL,
    code            TEXT,
    PRIMARY KEY (account_id, position)
) WITHOUT ROWID",
            tables.status
        ),
    ));
    ddl.push((
        "The last position of each tenant's log.".to_owned(),
        format!(
            "CREATE TABLE IF NOT EXISTS {} (
    account_id TEXT    NOT NULL PRIMARY KEY,
    position   INTEGER NOT NULL
) WITHOUT ROWID",
            tables.heads
        ),
    ));
    ddl.push((
        "How far readers of the log are.".to_owned(),
        format!(
            "CREATE TABLE IF NOT EXISTS {} (
    account_id TEXT    NOT NULL,
    reader     TEXT    NOT NULL,
    position   INTEGER NOT NULL,
    PRIMARY KEY (account_id, reader)
) WITHOUT ROWID",
            tables.readers
        ),
    ));
}

fn log_triggers(tables: &Tables, ddl: &mut Ddl) -> Result<(), Failure> {
    // In the body of a trigger, tables are those of its own schema. A head that somebody has deleted is made anew of the log.
    let (status, heads) = (&tables.status.table, &tables.heads.table);
    let body = |of: &str| {
        format!(
            "BEGIN
    INSERT INTO {heads} (account_id, position)
        VALUES (NEW.account_id, 1 + ifnull((SELECT max(s.position) FROM {status} AS s WHERE s.account_id = NEW.account_id), 0))
        ON CONFLICT (account_id) DO UPDATE SET position = max(position + 1, excluded.position);
    INSERT INTO {status} (account_id, position, at, subject, notification_id, generation, delivery_id, subscriber_id, state, code)
        SELECT NEW.account_id, h.position, {NOW}, {of}
        FROM {heads} AS h WHERE h.account_id = NEW.account_id;
END"
        )
    };
    let event = body("'event', NEW.notification_id, NEW.generation, NULL, NULL, NEW.state, NEW.error_code");
    let delivery =
        body("'delivery', NEW.notification_id, NEW.emission_generation, NEW.delivery_id, NEW.subscriber_id, NEW.state, NEW.error_code");
    let [emitted, emission, delivered] = triggers(tables)?;
    let (emissions, deliveries) = (&tables.emissions.table, &tables.deliveries.table);
    for (purpose, trigger) in [
        ("Every emission is logged.", format!("{emitted} AFTER INSERT ON {emissions}\n{event}")),
        ("So is what becomes of it.", format!("{emission} AFTER UPDATE OF state ON {emissions} WHEN NEW.state IS NOT OLD.state\n{event}")),
        (
            "And what becomes of a delivery. Leases are not logged.",
            format!(
                "{delivered} AFTER UPDATE OF state, error_code ON {deliveries}\nWHEN NEW.state IS NOT OLD.state OR (NEW.state = 'pending' AND NEW.error_code IS NOT OLD.error_code)\n{delivery}"
            ),
        ),
    ] {
        ddl.push((purpose.to_owned(), format!("CREATE TRIGGER IF NOT EXISTS {trigger}")));
    }
    Ok(())
}

/// What is not there of the tables and triggers.
fn missing<D: Database>(database: &D, config: &Config) -> Result<Vec<String>, Failure> {
    let tables = tables(config)?;
    let named = |names: &[&TableName]| names.iter().map(|name| name.table.name().to_owned()).collect::<Vec<String>>();
    let triggers = triggers(&tables)?;
    let wanted: Vec<(&str, String)> = named(&tables.all())
        .into_iter()
        .map(|name| ("table", name))
        .chain(named(&triggers.each_ref()).into_iter().map(|name| ("trigger", name)))
        .collect();
    let schema = config.table.schema.clone().unwrap_or_else(|| Ident::of("main"));
    let sql = format!(
        "SELECT type, name FROM {schema}.sqlite_schema WHERE type IN ('table', 'trigger') AND name IN (SELECT value FROM json_each(?1))"
    );
    let names = Value::Texts(Column::of_texts(wanted.iter().map(|(_, name)| name)));
    let rows = database
        .execute(vec![statement(sql, vec![names], vec![ColumnType::Bytes, ColumnType::Bytes])])
        .map_err(|error| failure::of_sql(&error, "reading the schema"))?;
    let mut reader = Results::new(rows).next_rows()?;
    let (types, names) = (reader.bytes()?, reader.bytes()?);
    let found: Vec<(String, String)> = (0..names.len()).map(|at| (text_of(&types, at), text_of(&names, at))).collect();
    let is_found = |kind: &str, name: &str| found.iter().any(|(found_kind, found)| found_kind == kind && found == name);
    Ok(wanted.into_iter().filter(|(kind, name)| !is_found(kind, name)).map(|(kind, name)| format!("{kind} `{name}`")).collect())
}

/// Whether everything that fan-out needs is there, or nothing is needed.
pub(crate) fn is_there<D: Database>(database: &D, config: &Config, events: &TableInfo) -> Result<bool, Failure> {
    let has_tenant = || config.columns.is_some() || events.column(OWN_TENANT).is_some();
    Ok(config.fan_out.is_none() || (has_tenant() && missing(database, config)?.is_empty()))
}

/// Refuses a configuration with fan-out where the tables are not there.
pub(crate) fn check<D: Database>(database: &D, config: &Config) -> Result<(), Failure> {
    if config.fan_out.is_none() {
        return Ok(());
    }
    match missing(database, config)?.as_slice() {
        [] => Ok(()),
        missing => Err(Failure::invalid_configuration(format!(
            "`fan_out`: there is no {} in the database; `outhaul schema` prints what creates it, `outhaul schema --apply` creates it",
            missing.join(", no ")
        ))),
    }
}
