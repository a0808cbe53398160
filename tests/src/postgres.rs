//! The producer's side in PostgreSQL: rows written in transactions of its own, and what the table says about them.

use crate::ledger::Event;
use crate::outbox::{Row, describe};
use crate::process::poll;
use crate::rig::{Config, Rig};
use ::postgres::{Client, GenericClient};
use anyhow::{Context, Result};
use outhaul_services::{Database, Major, Postgres};
use std::collections::BTreeSet;

/// Runs a test on each major version that can be had.
///
/// # Errors
/// If it fails: on which.
pub fn on_each_major(test: impl Fn(&Postgres) -> Result<()>) -> Result<()> {
    for server in Major::ALL.into_iter().filter_map(outhaul_services::postgres) {
        test(&server).with_context(|| format!("on PostgreSQL {}", server.major))?;
    }
    Ok(())
}

/// A database of its own with its table, the producer's side of it, and a folder with this configuration, moved there.
///
/// # Errors
/// If any of it fails.
pub fn stage(server: &Postgres, config: Config) -> Result<(Database, Outbox, Rig)> {
    let database = server.create_database()?;
    let rig = Rig::new(&config.on_postgres(&database.url()))?;
    let outbox = Outbox::of(&database)?;
    Ok((database, outbox, rig))
}

/// A connection to a database with the table `outbox`, as `outhaul schema` makes it.
pub struct Outbox {
    client: Client,
}

impl Outbox {
    /// Connects to a database of a test.
    ///
    /// # Errors
    /// If there is no connection to be had.
    pub fn of(database: &Database) -> Result<Self> {
        Self::connect(&database.url())
    }

    /// Connects by URL.
    ///
    /// # Errors
    /// If there is no connection to be had.
    pub fn connect(url: &str) -> Result<Self> {
        Ok(Self { client: outhaul_services::postgres::connect(url)? })
    }

    /// The connection itself, for everything out of the ordinary.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Commits one message; returns its id.
    ///
    /// # Errors
    /// If the database refuses it.
    pub fn add(&mut self, topic: &str, key: Option<&str>, payload: &[u8]) -> Result<String> {
        insert(&mut self.client, topic, key, Some(payload))
    }

    /// Commits events in one transaction, in their order.
    ///
    /// # Errors
    /// If the database refuses them.
    pub fn add_events(&mut self, topic: &str, events: &[Event]) -> Result<()> {
        insert_events(&mut self.client, topic, events)
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
    pub fn rows(&mut self) -> Result<Vec<Row>> {
        let sql = "SELECT id::text, payload, status, attempts::bigint, leased_by, last_error, \
             (extract(epoch FROM available_at - clock_timestamp()) * 1000)::bigint FROM outbox ORDER BY outbox.id";
        let rows = self.client.query(sql, &[])?;
        let row = |row: &::postgres::Row| Row {
            id: row.get(0),
            event: row.get::<_, Option<&[u8]>>(1).and_then(|payload| Event::from_payload(payload).ok()),
            status: row.get(2),
            attempts: row.get(3),
            leased_by: row.get(4),
            last_error: row.get(5),
            due_in_ms: row.get(6),
        };
        Ok(rows.iter().map(row).collect())
    }

    /// Waits until the rows are as `enough` wants them. A table cannot be waited for: this looks again and again.
    ///
    /// # Errors
    /// If that does not happen in time: with the rows as they are.
    pub fn wait_for_rows(&mut self, what: &str, enough: impl Fn(&[Row]) -> bool) -> Result<Vec<Row>> {
        poll(what, || Ok(enough(&self.rows()?))).with_context(|| describe(&self.rows().unwrap_or_default()))?;
        self.rows()
    }

    /// Waits until no row is pending.
    ///
    /// # Errors
    /// If that does not happen in time: with the rows as they are.
    pub fn wait_until_settled(&mut self) -> Result<()> {
        poll("every row to be settled", || Ok(self.count("pending")? == 0)).with_context(|| describe(&self.rows().unwrap_or_default()))
    }

    /// The row with this id.
    ///
    /// # Errors
    /// If there is none.
    pub fn row(&mut self, id: &str) -> Result<Row> {
        self.rows()?.into_iter().find(|row| row.id == id).with_context(|| format!("no row {id}"))
    }

    /// How many rows are in a state.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn count(&mut self, status: &str) -> Result<usize> {
        let count: i64 = self.client.query_one("SELECT count(*) FROM outbox WHERE status = $1", &[&status])?.get(0);
        Ok(count.try_into()?)
    }

    /// Events that are claimed and not settled: the worker of each and what it is.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn held(&mut self) -> Result<Vec<(String, Event)>> {
        let sql = "SELECT leased_by, payload FROM outbox WHERE status = 'pending' AND leased_by IS NOT NULL";
        self.client.query(sql, &[])?.iter().map(|row| Ok((row.get(0), Event::from_payload(row.get(1))?))).collect()
    }
}

/// Adds one message; returns its id. For transactions of several.
///
/// # Errors
/// If the database refuses it.
pub fn insert(client: &mut impl GenericClient, topic: &str, key: Option<&str>, payload: Option<&[u8]>) -> Result<String> {
    let sql = "INSERT INTO outbox (topic, key, payload) VALUES ($1, $2, $3) RETURNING id::text";
    Ok(client.query_one(sql, &[&topic, &key, &payload])?.get(0))
}

/// Adds events in their order, by one statement.
///
/// # Errors
/// If the database refuses them.
pub fn insert_events(client: &mut impl GenericClient, topic: &str, events: &[Event]) -> Result<()> {
    let keys: Vec<&str> = events.iter().map(|event| event.key.as_str()).collect();
    let payloads: Vec<Vec<u8>> = events.iter().map(|event| event.payload().into_bytes()).collect();
    let sql = "INSERT INTO outbox (topic, key, payload) \
         SELECT $1, t.key, t.payload FROM unnest($2::text[], $3::bytea[]) WITH ORDINALITY AS t(key, payload, place) ORDER BY t.place";
    client.execute(sql, &[&topic, &keys, &payloads])?;
    Ok(())
}

/// A producer's connection through restarts of its database: it connects again, and finds out whether the transaction that was lost
/// with the connection had been committed.
pub struct Persistent {
    url: String,
    outbox: Option<Outbox>,
}

impl Persistent {
    /// For a database by URL. Connects when it is needed.
    #[must_use]
    pub fn new(url: String) -> Self {
        Self { url, outbox: None }
    }

    /// Commits events in one transaction. They must be of keys that nobody else writes.
    ///
    /// # Errors
    /// If the database is away for longer than [`crate::process::PATIENCE`].
    pub fn add_events(&mut self, topic: &str, events: &[Event]) -> Result<()> {
        let mut unsure = false;
        let mut last = None;
        poll("the database", || {
            if let Err(error) = self.try_add(topic, events, unsure) {
                (self.outbox, unsure, last) = (None, true, Some(error));
                return Ok(false);
            }
            Ok(true)
        })
        .with_context(|| last.map_or_else(String::new, |error| format!("the producer failed: {error:#}")))
    }

    fn try_add(&mut self, topic: &str, events: &[Event], unsure: bool) -> Result<()> {
        let outbox = match &mut self.outbox {
            Some(outbox) => outbox,
            missing => missing.insert(Outbox::connect(&self.url)?),
        };
        if unsure && let Some(first) = events.first() {
            let sql = "SELECT 1 FROM outbox WHERE key = $1 AND payload = $2";
            if outbox.client.query_opt(sql, &[&first.key, &first.payload().into_bytes()])?.is_some() {
                return Ok(());
            }
        }
        outbox.add_events(topic, events)
    }
}
