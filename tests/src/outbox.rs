//! The producer's side: rows written in transactions of its own, and what the table says about them.

use crate::ledger::Event;
use crate::process::poll;
use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, params};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A producer may wait this long for others: longer than any host is stopped while it holds the lock.
const BUSY: Duration = Duration::from_secs(60);

/// State of a delivered row.
pub const DELIVERED: &str = "done";

/// A connection to a database with the table `outbox`, as `outhaul schema` makes it.
pub struct Outbox {
    connection: Connection,
}

/// A row, as far as tests look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its id.
    pub id: String,
    /// What is in it, if it was made by [`Event::payload`].
    pub event: Option<Event>,
    /// `pending`, [`DELIVERED`] or `dead`.
    pub status: String,
    /// Claims so far.
    pub attempts: i64,
    /// The worker that holds it.
    pub leased_by: Option<String>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// Milliseconds until it is due or its lease ends, by the database's clock; negative: since.
    pub due_in_ms: i64,
}

impl Outbox {
    /// Makes an empty database that readers and a writer can share.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create_database(path: &Path) -> Result<()> {
        let connection = Connection::open(path).with_context(|| format!("cannot create {}", path.display()))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        Ok(())
    }

    /// Opens an existing one.
    ///
    /// # Errors
    /// If it is not there.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).with_context(|| format!("cannot open {}", path.display()))?;
        connection.busy_timeout(BUSY)?;
        // The crash tests are about processes, not about power cuts.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(Self { connection })
    }

    /// The connection itself, for everything out of the ordinary.
    #[must_use]
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Commits one message; returns its id.
    ///
    /// # Errors
    /// If the database refuses it.
    pub fn add(&self, topic: &str, key: Option<&str>, payload: &[u8]) -> Result<String> {
        insert(&self.connection, topic, key, payload)
    }

    /// Commits events in one transaction, in their order.
    ///
    /// # Errors
    /// If the database refuses them.
    pub fn add_events(&mut self, topic: &str, events: &[Event]) -> Result<()> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for event in events {
            insert(&transaction, topic, Some(&event.key), event.payload().as_bytes())?;
        }
        Ok(transaction.commit()?)
    }

    /// Commits `count` events of each of `keys` keys, interleaved; returns them.
    ///
    /// # Errors
    /// If the database refuses them.
    pub fn fill(&mut self, topic: &str, keys: u64, count: u64) -> Result<BTreeSet<Event>> {
        let events: Vec<Event> =
            (1..=count).flat_map(|number| (0..keys).map(move |key| Event { key: format!("k{key}"), number })).collect();
        self.add_events(topic, &events)?;
        Ok(events.into_iter().collect())
    }

    /// Every row, in insertion order.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn rows(&self) -> Result<Vec<Row>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT id, payload, status, attempts, leased_by, last_error, \
             available_at - CAST(unixepoch('subsec') * 1000 AS INTEGER) FROM outbox ORDER BY rowid",
        )?;
        let rows = statement.query_map([], |row| {
            let payload: Option<Vec<u8>> = row.get(1)?;
            Ok(Row {
                id: row.get::<_, i64>(0)?.to_string(),
                event: payload.and_then(|payload| Event::from_payload(&payload).ok()),
                status: row.get(2)?,
                attempts: row.get(3)?,
                leased_by: row.get(4)?,
                last_error: row.get(5)?,
                due_in_ms: row.get(6)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Waits until the rows are as `enough` wants them. A table cannot be waited for: this looks again and again.
    ///
    /// # Errors
    /// If that does not happen in time: with the rows as they are.
    pub fn wait_for_rows(&self, what: &str, enough: impl Fn(&[Row]) -> bool) -> Result<Vec<Row>> {
        poll(what, || Ok(enough(&self.rows()?))).with_context(|| describe(&self.rows().unwrap_or_default()))?;
        self.rows()
    }

    /// The row with this id.
    ///
    /// # Errors
    /// If there is none.
    pub fn row(&self, id: &str) -> Result<Row> {
        self.rows()?.into_iter().find(|row| row.id == id).with_context(|| format!("no row {id}"))
    }

    /// How many rows are in a state.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn count(&self, status: &str) -> Result<usize> {
        Ok(self.connection.query_row("SELECT count(*) FROM outbox WHERE status = ?1", [status], |row| row.get::<_, i64>(0))?.try_into()?)
    }

    /// When each row was inserted, by its id: Unix milliseconds, by the database's clock.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn created(&self) -> Result<HashMap<String, u64>> {
        let mut statement = self.connection.prepare("SELECT id, created_at FROM outbox")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?.to_string(), row.get::<_, i64>(1)?.unsigned_abs())))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Whether somebody holds the write lock for a long time.
    ///
    /// # Errors
    /// If it cannot be tried for another reason.
    pub fn is_locked(&mut self) -> Result<bool> {
        // Far longer than any transaction of a host or a producer takes.
        self.connection.busy_timeout(Duration::from_secs(1))?;
        let locked = match self.connection.transaction_with_behavior(TransactionBehavior::Immediate).and_then(Transaction::rollback) {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => true,
            other => other.map(|()| false)?,
        };
        self.connection.busy_timeout(BUSY)?;
        Ok(locked)
    }

    /// Events that are claimed and not settled: the worker of each and what it is.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn held(&self) -> Result<Vec<(String, Event)>> {
        let mut statement =
            self.connection.prepare_cached("SELECT leased_by, payload FROM outbox WHERE status = 'pending' AND leased_by IS NOT NULL")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
        rows.map(|row| row.map_err(Into::into).and_then(|(worker, payload)| Ok((worker, Event::from_payload(&payload)?)))).collect()
    }
}

/// Rows for the message of a test that has waited in vain.
pub(crate) fn describe(rows: &[Row]) -> String {
    let lines: Vec<String> = rows.iter().take(20).map(|row| format!("{row:?}")).collect();
    format!("{} rows, the first are:\n{}", rows.len(), lines.join("\n"))
}

/// Adds one message; returns its id. For transactions of several.
///
/// # Errors
/// If the database refuses it.
pub fn insert(connection: &Connection, topic: &str, key: Option<&str>, payload: &[u8]) -> Result<String> {
    let sql = "INSERT INTO outbox (topic, key, payload) VALUES (?1, ?2, ?3)";
    connection.prepare_cached(sql)?.execute(params![topic, key, payload])?;
    Ok(connection.last_insert_rowid().to_string())
}

/// A service that writes events all the time, each transaction for keys of its own, some of them rolled back.
pub struct Producer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<BTreeSet<Event>>>,
}

/// How a [`Producer`] works.
#[derive(Debug, Clone)]
pub struct Habits {
    /// Its keys are `PREFIX0`, `PREFIX1`, ...: no two producers may share one.
    pub prefix: String,
    /// How many keys.
    pub keys: u64,
    /// Pause between two transactions.
    pub pause: Duration,
    /// It waits while more rows than this are pending, so that a long run does not end in a long clean-up.
    pub most_pending: usize,
    /// For its choices.
    pub seed: u64,
}

impl Producer {
    /// Starts it.
    #[must_use]
    pub fn start(database: PathBuf, habits: Habits) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut outbox = Outbox::open(&database)?;
            let mut random = StdRng::seed_from_u64(habits.seed);
            let mut next = vec![1u64; usize::try_from(habits.keys)?];
            let mut committed = BTreeSet::new();
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(habits.pause);
                if outbox.count("pending")? > habits.most_pending {
                    continue;
                }
                let roll_back = random.random_bool(0.1);
                let transaction = outbox.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let mut events = Vec::new();
                let mut numbers = next.clone();
                for _ in 0..random.random_range(1..=5) {
                    let key = random.random_range(0..next.len());
                    // What is rolled back has numbers that no committed event has: it must never be received.
                    let number = if roll_back { numbers[key] + ROLLED_BACK } else { numbers[key] };
                    let event = Event { key: format!("{}{key}", habits.prefix), number };
                    insert(&transaction, "orders", Some(&event.key), event.payload().as_bytes())?;
                    numbers[key] += 1;
                    events.push(event);
                }
                if roll_back {
                    transaction.rollback()?;
                } else {
                    transaction.commit()?;
                    next = numbers;
                    committed.extend(events);
                }
            }
            Ok(committed)
        });
        Self { stop, thread }
    }

    /// Stops it; returns what it committed.
    ///
    /// # Errors
    /// If one of its transactions failed.
    pub fn finish(self) -> Result<BTreeSet<Event>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the producer panicked"))?.context("the producer failed")
    }
}

/// Added to the numbers of events that are rolled back.
const ROLLED_BACK: u64 = 1 << 40;
