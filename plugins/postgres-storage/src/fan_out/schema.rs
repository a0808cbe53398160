//! The DDL of fan-out: the tables beside the events, and the triggers that keep the log of what changed.
//!
//! The log has no gaps, and its positions come in the order of commits: whoever appends to it takes one lock of the transaction and keeps it
//! until the end. Triggers that run once a statement, after it, take that lock when all rows of the statement are locked already; and no
//! call of the storage waits for a row after its first statement that is logged. So nobody who holds the lock waits for somebody else.

use crate::names::derived;
use crate::ops::literal;
use crate::schema::Ddl;
use outbox_table::fan_out::Tables;
use outbox_table::ident::{Ident, NameFault, TableName};

/// The first half of the lock's key; the second one is the log's number in the database.
const LOCK: &str = "1869968488";

/// Outhaul's own table of events gets a column for tenants, and indexes by it.
pub(crate) fn tenants(events: &TableName, tenant: &Ident) -> Result<Ddl, NameFault> {
    let index = |suffix: &str, columns: &str| {
        let name = derived(&events.table, suffix)?;
        Ok(format!("CREATE INDEX IF NOT EXISTS {name} ON {events} ({columns}) WHERE status = 'pending'"))
    };
    Ok(vec![
        (
            "Whose event it is: its subscribers are looked for among those of this tenant.",
            format!("ALTER TABLE {events} ADD COLUMN IF NOT EXISTS {tenant} text NOT NULL DEFAULT ''"),
        ),
        ("From tenant to tenant, and what is claimed next of each.", index("tenant_pending", &format!("{tenant}, id"))?),
        ("From key to key of a tenant.", index("tenant_key_pending", &format!("{tenant}, key, id"))?),
    ])
}

/// The tables, by names that PostgreSQL does not cut.
///
/// # Errors
/// If a name cannot be made.
pub(crate) fn tables(events: &TableName) -> Result<Tables, NameFault> {
    let beside = |suffix: &str| derived(&events.table, suffix).map(|name| events.sibling(name));
    Ok(Tables {
        deliveries: beside("deliveries")?,
        emissions: beside("emissions")?,
        status: beside("status")?,
        heads: beside("status_heads")?,
        readers: beside("readers")?,
    })
}

/// Everything beside the events. The names of the tables have their schema: triggers run with any search path.
pub(crate) fn beside(tables: &Tables) -> Result<Ddl, NameFault> {
    let mut ddl = deliveries(&tables.deliveries)?;
    ddl.extend(log_tables(tables));
    ddl.extend(triggers(tables)?);
    Ok(ddl)
}

fn deliveries(table: &TableName) -> Result<Ddl, NameFault> {
    let index = |suffix: &str, columns: &str, condition: &str| {
        let name = derived(&table.table, suffix)?;
        Ok(format!("CREATE INDEX IF NOT EXISTS {name} ON {table} ({columns}){condition}"))
    };
    let pending = " WHERE state = 'pending'";
    Ok(vec![
        (
            "A delivery for each event, generation and subscriber. The columns from account_id to order_key are sealed with the envelope: a row in\n-- which one of them was changed is not sent. `available_at` is due time, retry time and end of lease in one.\n-- No index begins with the tenant but those for claims and pages: with another one, a search of one tenant would seem as cheap.",
            format!(
                "CREATE TABLE IF NOT EXISTS {table} (
    seq                      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id               text        NOT NULL,
    delivery_id              text        NOT NULL UNIQUE,
    subscriber_id            text        NOT NULL,
    principal_id             text        NOT NULL,
    notification_id          text        NOT NULL,
    notification_type        text        NOT NULL,
    emission_generation      bigint      NOT NULL,
    idempotency_key          text        NOT NULL,
    destination_sha256       text        NOT NULL,
    subscription_fingerprint text        NOT NULL,
    signing_scope_id         text,
    cause_kind               text        NOT NULL,
    cause_id                 text        NOT NULL,
    cause_generation         bigint      NOT NULL,
    consumer_namespace       text        NOT NULL,
    auth_mode                text        NOT NULL,
    body_sha256              text        NOT NULL,
    envelope_version         bigint      NOT NULL,
    key_version              text        NOT NULL,
    order_key                text,
    envelope                 bytea,
    state                    text        NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'complete', 'suppressed', 'quarantined')),
    attempts                 integer     NOT NULL DEFAULT 0,
    available_at             timestamptz NOT NULL DEFAULT now(),
    leased_by                text,
    created_at               timestamptz NOT NULL DEFAULT now(),
    done_at                  timestamptz,
    error_code               text,
    last_error               text,
    UNIQUE (notification_id, account_id, emission_generation, subscriber_id)
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
        ("From tenant to tenant, and what is claimed next of each.", index("pending", "account_id, seq", pending)?),
        ("From key to key of a tenant.", index("key_pending", "account_id, order_key, seq", pending)?),
        ("Pages of a tenant.", index("tenant", "account_id, seq", "")?),
        ("What was not sent, for whoever looks at it.", index("ended", "seq", " WHERE state IN ('suppressed', 'quarantined')")?),
    ])
}

fn log_tables(tables: &Tables) -> Ddl {
    let Tables { emissions, status, heads, readers, .. } = tables;
    vec![
        (
            "An event is emitted once, and again for each time that this was asked for: its generation is the highest in here, else 1.",
            format!(
                "CREATE TABLE IF NOT EXISTS {emissions} (
    notification_id text        NOT NULL,
    account_id      text        NOT NULL,
    generation      bigint      NOT NULL,
    state           text        NOT NULL CHECK (state IN ('pending', 'expanded', 'quarantined')),
    deliveries      bigint      NOT NULL DEFAULT 0,
    error_code      text,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (account_id, notification_id, generation)
)"
            ),
        ),
        (
            "What changed, in a sequence for each tenant: without gaps, in the order of commits. Written by triggers.",
            format!(
                "CREATE TABLE IF NOT EXISTS {status} (
    account_id      text        NOT NULL,
    position        bigint      NOT NULL,
    at              timestamptz NOT NULL,
    subject         text        NOT NULL CHECK (subject IN ('event', 'delivery')),
    notification_id text        NOT NULL,
    generation      bigint      NOT NULL,
    delivery_id     text,
    subscriber_id   text,
    state           text        NOT NULL,
    code            text,
    PRIMARY KEY (account_id, position)
)"
            ),
        ),
        (
            "The last position of each tenant.",
            format!("CREATE TABLE IF NOT EXISTS {heads} (account_id text PRIMARY KEY, position bigint NOT NULL) WITH (fillfactor = 50)"),
        ),
        (
            "Up to where each reader has read.",
            format!(
                "CREATE TABLE IF NOT EXISTS {readers} (
    account_id text   NOT NULL,
    reader     text   NOT NULL,
    position   bigint NOT NULL,
    PRIMARY KEY (account_id, reader)
)"
            ),
        ),
    ]
}

/// Which rows a trigger gets to see.
const NEW: &str = "REFERENCING NEW TABLE AS after";
const BOTH: &str = "REFERENCING OLD TABLE AS before NEW TABLE AS after";

fn triggers(tables: &Tables) -> Result<Ddl, NameFault> {
    let Tables { deliveries, emissions, .. } = tables;
    let log_deliveries = deliveries.sibling(derived(&deliveries.table, "log")?);
    let log_emissions = emissions.sibling(derived(&emissions.table, "log")?);
    let trigger = |table: &TableName, suffix: &str, event: &str, rows: &str, function: &TableName| {
        let name = derived(&table.table, suffix)?;
        Ok(format!("CREATE OR REPLACE TRIGGER {name} AFTER {event} ON {table} {rows} FOR EACH STATEMENT EXECUTE FUNCTION {function}()"))
    };
    Ok(vec![
        (
            "Logs what becomes of deliveries, whoever changes them: the relay, or somebody by hand.",
            function(&log_deliveries, &of_deliveries(tables)),
        ),
        ("Once a statement, however many rows it changes.", trigger(deliveries, "log", "UPDATE", BOTH, &log_deliveries)?),
        ("Logs what becomes of events.", function(&log_emissions, &of_emissions(tables))),
        ("Emitted.", trigger(emissions, "log", "INSERT", NEW, &log_emissions)?),
        ("Emitted, after something else had become of it.", trigger(emissions, "log_change", "UPDATE", BOTH, &log_emissions)?),
    ])
}

/// The body of the deliveries' trigger. Leases and renewals are not logged, and take no lock.
fn of_deliveries(tables: &Tables) -> String {
    let pairs = |columns: &str| {
        format!(
            "SELECT u.*, lag(u.state) OVER w AS was, lag(u.error_code) OVER w AS had FROM ({}) AS u \
             WINDOW w AS (PARTITION BY u.seq ORDER BY u.side)",
            both(columns)
        )
    };
    let changed = "p.side = 1 AND (p.was <> p.state OR (p.state = 'pending' AND p.had IS DISTINCT FROM p.error_code))";
    let few = pairs("seq, state, error_code");
    let all = pairs("seq, account_id, notification_id, emission_generation, delivery_id, subscriber_id, state, error_code");
    let changes = format!(
        "SELECT p.account_id, p.seq AS place, '' AS place_too, 'delivery' AS subject, p.notification_id, p.emission_generation AS generation, \
         p.delivery_id, p.subscriber_id, p.state, p.error_code AS code FROM ({all}) AS p WHERE {changed}"
    );
    format!(
        "BEGIN
  IF NOT EXISTS (SELECT 1 FROM ({few}) AS p WHERE {changed}) THEN
    RETURN NULL;
  END IF;
  {}
  {}
  RETURN NULL;
END",
        lock(tables),
        append(tables, &changes)
    )
}

/// The body of the emissions' trigger.
fn of_emissions(tables: &Tables) -> String {
    let changes = |rows: &str| {
        append(
            tables,
            &format!(
                "SELECT p.account_id, p.at AS place, p.notification_id AS place_too, 'event' AS subject, p.notification_id, p.generation, \
                 CAST(NULL AS text) AS delivery_id, CAST(NULL AS text) AS subscriber_id, p.state, p.error_code AS code FROM {rows}"
            ),
        )
    };
    let updated = format!(
        "(SELECT u.*, lag(u.state) OVER (PARTITION BY u.account_id, u.notification_id, u.generation ORDER BY u.side) AS was FROM ({}) AS u) AS p \
         WHERE p.side = 1 AND p.was <> p.state",
        both("account_id, notification_id, generation, state, error_code, at")
    );
    format!(
        "BEGIN
  IF NOT EXISTS (SELECT 1 FROM after) THEN
    RETURN NULL;
  END IF;
  {}
  IF TG_OP = 'INSERT' THEN
    {}
  ELSE
    {}
  END IF;
  RETURN NULL;
END",
        lock(tables),
        changes("after AS p"),
        changes(&updated)
    )
}

/// Rows before and after, to be paired by sorting. A join would be planned at the first call, when there may be a single row of each, and
/// go through all pairs of rows for ever after.
fn both(columns: &str) -> String {
    format!("SELECT 0 AS side, {columns} FROM before UNION ALL SELECT 1, {columns} FROM after")
}

/// Waits until all who have appended before are committed.
fn lock(tables: &Tables) -> String {
    let log = literal(&tables.status.to_string());
    format!("PERFORM pg_advisory_xact_lock({LOCK}, CAST(CAST(CAST({log} AS regclass) AS oid) AS integer));")
}

/// Appends changes, in the order of their places. A head that somebody has deleted or put back is made anew of the log.
fn append(tables: &Tables, changes: &str) -> String {
    let Tables { status, heads, .. } = tables;
    format!(
        "WITH p AS MATERIALIZED ({changes}), \
         c AS MATERIALIZED (SELECT p.*, row_number() OVER (PARTITION BY p.account_id ORDER BY p.place, p.place_too) AS n, \
         count(*) OVER (PARTITION BY p.account_id) AS changes FROM p), \
         h AS (INSERT INTO {heads} AS h (account_id, position) SELECT c.account_id, count(*) + coalesce(greatest( \
         (SELECT g.position FROM {heads} AS g WHERE g.account_id = c.account_id), \
         (SELECT s.position FROM {status} AS s WHERE s.account_id = c.account_id ORDER BY s.position DESC LIMIT 1)), 0) \
         FROM c GROUP BY c.account_id \
         ON CONFLICT (account_id) DO UPDATE SET position = excluded.position RETURNING h.account_id, h.position) \
         INSERT INTO {status} (account_id, position, at, subject, notification_id, generation, delivery_id, subscriber_id, state, code) \
         SELECT c.account_id, h.position - c.changes + c.n, clock_timestamp(), c.subject, c.notification_id, c.generation, c.delivery_id, \
         c.subscriber_id, c.state, c.code FROM c JOIN h ON h.account_id = c.account_id;"
    )
}

fn function(name: &TableName, body: &str) -> String {
    // A name in it may hold dollars.
    let mut tag = "$log$".to_owned();
    while body.contains(&tag) {
        tag.insert(1, '_');
    }
    // A plan is made when the log may be empty, and kept: it is to go by the index, as is right once the log is long.
    format!(
        "CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off \
         AS {tag}{body}{tag}"
    )
}
