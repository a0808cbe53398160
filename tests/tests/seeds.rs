//! The three tables that the project started from, drained as they are: created by their own DDL, configured by the files in
//! examples/tables/ that users copy, run through the scenarios that their own tests have.

use anyhow::{Context, Result};
use outhaul_tests::places;
use outhaul_tests::process::poll;
use outhaul_tests::receiver::{Answer, Receiver};
use outhaul_tests::rig::{Config, Rig};
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use std::fs;

/// A table as some service made it, with the host's configuration for it.
struct Table {
    rig: Rig,
    connection: Connection,
    receiver: Receiver,
}

/// Long enough that a drain is over before a retry is due.
const BACKOFF: &str = r#"backoff = { base = "2s", factor = 1.0, max = "2s", jitter = 0.0 }"#;

impl Table {
    fn new(example: &str, ddl: &str, receiver: Receiver, max_attempts: i64, more: impl FnOnce(Config) -> Config) -> Result<Self> {
        let rig = Rig::empty()?;
        let connection = Connection::open(rig.database())?;
        connection.execute_batch(ddl)?;
        let file = places::checkout().join("examples/tables").join(example);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let config = Config::parse(&text)?
            .moved_to(&rig.database(), receiver.address())?
            .set("relays.0.max_attempts", max_attempts)
            .set_all("relays.0", BACKOFF);
        rig.configure(&more(config))?;
        // What the configuration needs besides the service's table: nothing, or a table of leases.
        rig.run(&["schema", "--apply"])?.success()?;
        Ok(Self { rig, connection, receiver })
    }

    /// `sent`, `failed` and `retried` of one drain.
    fn drain(&self) -> Result<Value> {
        let summary = self.rig.drain()?;
        Ok(json!({ "sent": summary["sent"], "failed": summary["failed"], "retried": summary["retried"] }))
    }

    /// Drains until something was due, as a scheduled job would.
    fn drain_until_due(&self) -> Result<Value> {
        let mut last = Value::Null;
        poll("something due", || {
            last = self.drain()?;
            Ok(last != nothing())
        })?;
        Ok(last)
    }

    /// One row of a query, each column as text.
    fn row(&self, sql: &str) -> Result<Vec<Option<String>>> {
        let row = self.connection.query_row(sql, [], |row| {
            (0..row.as_ref().column_count())
                .map(|index| {
                    Ok(match row.get_ref(index)? {
                        rusqlite::types::ValueRef::Null => None,
                        rusqlite::types::ValueRef::Integer(value) => Some(value.to_string()),
                        rusqlite::types::ValueRef::Real(value) => Some(value.to_string()),
                        rusqlite::types::ValueRef::Text(text) | rusqlite::types::ValueRef::Blob(text) => {
                            Some(String::from_utf8_lossy(text).into_owned())
                        }
                    })
                })
                .collect::<rusqlite::Result<Vec<_>>>()
        })?;
        Ok(row)
    }
}

fn sent() -> Value {
    json!({"sent": 1, "failed": 0, "retried": 0})
}
fn failed() -> Value {
    json!({"sent": 0, "failed": 1, "retried": 0})
}
fn retried() -> Value {
    json!({"sent": 0, "failed": 0, "retried": 1})
}
fn nothing() -> Value {
    json!({"sent": 0, "failed": 0, "retried": 0})
}

fn texts(values: &[Option<String>]) -> Vec<&str> {
    values.iter().map(|value| value.as_deref().unwrap_or("NULL")).collect()
}

/// Fails each message's first attempt.
fn fails_once() -> Result<Receiver> {
    Receiver::start(|request| if request.earlier == 0 { Answer::status(503).body("state API timeout") } else { Answer::status(200) })
}

fn always_fails() -> Result<Receiver> {
    Receiver::start(|_| Answer::status(503).body("state API permanently down"))
}

/// Has everything already, and says so with 409.
fn has_it_already() -> Result<Receiver> {
    Receiver::start(|_| Answer::status(409).body("already submitted"))
}

mod txoutbox {
    use super::*;

    const DDL: &str = "
        CREATE TABLE IF NOT EXISTS outbox (
            id          INTEGER PRIMARY KEY AUTOINCREMENT,
            topic       TEXT    NOT NULL,
            key         TEXT,
            payload     BLOB    NOT NULL,
            headers     TEXT    NOT NULL DEFAULT '{}',
            status      TEXT    NOT NULL DEFAULT 'pending',
            attempts    INTEGER NOT NULL DEFAULT 0,
            retry_at    REAL,
            leased_by   TEXT,
            lease_until REAL,
            last_error  TEXT,
            created_at  REAL    NOT NULL
        );
        CREATE INDEX IF NOT EXISTS outbox_pending_idx ON outbox (status, id);";

    fn table(receiver: Receiver, max_attempts: i64) -> Result<Table> {
        Table::new("txoutbox.toml", DDL, receiver, max_attempts, |config| config)
    }

    fn insert(table: &Table, key: &str, payload: &[u8]) -> Result<()> {
        table.connection.execute(
            "INSERT INTO outbox (topic, key, payload, headers, created_at) VALUES ('orders', ?1, ?2, '{\"tenant\":\"acme\"}', unixepoch('subsec'))",
            params![key, payload],
        )?;
        Ok(())
    }

    #[test]
    fn transient_failure_then_done_and_the_followers_wait() -> Result<()> {
        let table = table(fails_once()?, 5)?;
        insert(&table, "k", b"one")?;
        insert(&table, "k", b"two")?;
        assert_eq!(table.drain()?, retried(), "the second row waits behind the first");
        assert_eq!(texts(&table.row("SELECT status, attempts FROM outbox WHERE id = 1")?), ["pending", "1"]);
        assert_eq!(texts(&table.row("SELECT status, attempts FROM outbox WHERE id = 2")?), ["pending", "0"], "waiting costs no attempt");

        let (mut sent, mut again) = (0, 0);
        poll("both rows", || {
            let summary = table.drain()?;
            sent += summary["sent"].as_u64().unwrap_or_default();
            again += summary["retried"].as_u64().unwrap_or_default();
            Ok(sent == 2)
        })?;
        assert_eq!(again, 1, "the second row failed once as well");
        assert_eq!(table.drain()?, nothing());
        let state = table.row("SELECT status, attempts, leased_by, lease_until FROM outbox WHERE id = 1")?;
        assert_eq!(texts(&state), ["done", "2", "NULL", "NULL"]);
        let bodies: Vec<_> =
            table.receiver.requests().iter().filter(|request| request.accepted()).map(|request| request.body.to_vec()).collect();
        assert_eq!(bodies, [b"one", b"two"]);
        assert_eq!(table.receiver.requests()[0].header("tenant"), Some("acme"));
        Ok(())
    }

    #[test]
    fn exhaustion_ends_dead_with_the_reason() -> Result<()> {
        let table = table(always_fails()?, 2)?;
        insert(&table, "k", b"one")?;
        assert_eq!(table.drain()?, retried());
        assert_eq!(table.drain_until_due()?, failed());
        let row = table.row("SELECT status, attempts, last_error FROM outbox")?;
        assert_eq!(texts(&row)[..2], ["dead", "2"]);
        assert!(texts(&row)[2].contains("503"), "{row:?}");
        assert_eq!(table.drain()?, nothing());
        Ok(())
    }
}

mod outbox_event {
    use super::*;

    const DDL: &str = "
        CREATE TABLE outbox_event (
            outbox_event_id TEXT PRIMARY KEY,
            aggregate_id TEXT NOT NULL,
            event_type TEXT NOT NULL,
            payload TEXT NOT NULL,
            delivery_state TEXT NOT NULL DEFAULT 'pending',
            attempts INTEGER NOT NULL DEFAULT 0,
            last_error TEXT
        );";

    const EVENT: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    const PAYLOAD: &str = r#"{"claim_id": "c1", "idempotency_key": "sub"}"#;

    fn table(receiver: Receiver, max_attempts: i64) -> Result<Table> {
        let table = Table::new("outbox-event.toml", DDL, receiver, max_attempts, |config| config)?;
        table.connection.execute(
            "INSERT INTO outbox_event (outbox_event_id, aggregate_id, event_type, payload) \
             VALUES (?1, 'c1', 'state_claim_submission_requested', ?2)",
            [EVENT, PAYLOAD],
        )?;
        Ok(table)
    }

    fn state(table: &Table) -> Result<Vec<Option<String>>> {
        table.row("SELECT delivery_state, attempts, last_error FROM outbox_event")
    }

    #[test]
    fn transient_failure_then_sent_and_a_second_drain_does_nothing() -> Result<()> {
        let table = table(fails_once()?, 3)?;
        assert_eq!(table.drain()?, retried());
        let after = state(&table)?;
        assert_eq!(texts(&after)[..2], ["pending", "1"], "it is not advanced by a failure");
        assert!(texts(&after)[2].contains("503"), "{after:?}");
        assert_eq!(table.drain_until_due()?, sent());
        assert_eq!(texts(&state(&table)?)[..2], ["sent", "2"]);
        assert_eq!(table.drain()?, nothing());

        let requests = table.receiver.requests();
        assert_eq!(requests.len(), 2);
        let request = &requests[1];
        assert_eq!((request.id.as_str(), request.path.as_str()), (EVENT, "/state_claim_submission_requested"));
        assert_eq!(request.body, PAYLOAD, "the exact stored text");
        Ok(())
    }

    #[test]
    fn exhaustion_ends_failed_with_the_reason() -> Result<()> {
        let table = table(always_fails()?, 2)?;
        assert_eq!(table.drain()?, retried());
        assert_eq!(table.drain_until_due()?, failed());
        let row = state(&table)?;
        assert_eq!(texts(&row)[..2], ["failed", "2"]);
        assert!(texts(&row)[2].contains("503"), "{row:?}");
        Ok(())
    }

    #[test]
    fn a_receiver_that_has_it_already_counts_as_success() -> Result<()> {
        let table = table(has_it_already()?, 3)?;
        assert_eq!(table.drain()?, sent());
        assert_eq!(texts(&state(&table)?)[0], "sent");
        Ok(())
    }
}

mod transactional_outbox {
    use super::*;

    const DDL: &str = "
        CREATE TABLE IF NOT EXISTS transactional_outbox (
            seq_id INTEGER PRIMARY KEY AUTOINCREMENT,
            event_id TEXT NOT NULL UNIQUE,
            topic TEXT NOT NULL,
            aggregate_id TEXT NOT NULL,
            payload_json TEXT NOT NULL,
            status TEXT NOT NULL DEFAULT 'PENDING' CHECK(status IN ('PENDING', 'PROCESSING', 'DEAD_LETTER')),
            attempt_count INTEGER NOT NULL DEFAULT 0,
            available_at_epoch REAL NOT NULL DEFAULT 0.0,
            locked_until_epoch REAL NOT NULL DEFAULT 0.0,
            last_error TEXT,
            created_at_epoch REAL NOT NULL
        );
        CREATE INDEX IF NOT EXISTS idx_outbox_poll ON transactional_outbox (status, available_at_epoch, seq_id);";

    fn table(receiver: Receiver, max_attempts: i64) -> Result<Table> {
        let table = Table::new("transactional-outbox.toml", DDL, receiver, max_attempts, |config| config)?;
        table.connection.execute(
            "INSERT INTO transactional_outbox (event_id, topic, aggregate_id, payload_json, status, available_at_epoch, created_at_epoch) \
             VALUES ('e1', 'orders', 'a1', '{\"a\": 1}', 'PENDING', unixepoch('subsec'), unixepoch('subsec'))",
            [],
        )?;
        Ok(table)
    }

    fn count(table: &Table) -> Result<i64> {
        Ok(table.connection.query_row("SELECT count(*) FROM transactional_outbox", [], |row| row.get(0))?)
    }

    #[test]
    fn a_delivered_row_is_deleted_after_a_transient_failure() -> Result<()> {
        let table = table(fails_once()?, 5)?;
        assert_eq!(table.drain()?, retried());
        let row = table.row("SELECT status, attempt_count, last_error FROM transactional_outbox")?;
        assert_eq!(texts(&row)[..2], ["PENDING", "1"]);
        assert!(texts(&row)[2].contains("503"), "{row:?}");
        assert_eq!(table.drain_until_due()?, sent());
        assert_eq!(count(&table)?, 0);
        assert_eq!(table.drain()?, nothing());
        let requests = table.receiver.requests();
        assert_eq!((requests[0].id.as_str(), &requests[0].body[..]), ("e1", &b"{\"a\": 1}"[..]));
        Ok(())
    }

    #[test]
    fn exhaustion_ends_in_dead_letter_with_the_reason() -> Result<()> {
        let table = table(always_fails()?, 2)?;
        assert_eq!(table.drain()?, retried());
        assert_eq!(table.drain_until_due()?, failed());
        let row = table.row("SELECT status, attempt_count, last_error FROM transactional_outbox")?;
        assert_eq!(texts(&row)[..2], ["DEAD_LETTER", "2"]);
        assert!(texts(&row)[2].contains("503"), "{row:?}");
        Ok(())
    }

    #[test]
    fn a_row_that_a_crashed_worker_left_in_processing_is_delivered() -> Result<()> {
        let table = table(Receiver::accepting()?, 5)?;
        table.connection.execute(
            "UPDATE transactional_outbox SET status = 'PROCESSING', attempt_count = 1, locked_until_epoch = unixepoch('subsec') - 1",
            [],
        )?;
        assert_eq!(table.drain()?, sent());
        assert_eq!(count(&table)?, 0);
        Ok(())
    }
}
