//! Events, subscriptions, a receiver, and the command line on them.

use super::Ground;
use super::database::{Database, Place, optional, text};
use super::plan::{Plan, write_keys};
use crate::host::Host;
use crate::receiver::{Answer, Receiver, Request};
use crate::rig::{Config, Finished, Rig};
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The tenant of everything that names no other.
pub const TENANT: &str = "acme";

/// A subscription as it is inserted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Subscription<'a> {
    /// None: [`TENANT`].
    pub tenant: Option<&'a str>,
    /// None: the path `/TENANT/SUBSCRIBER` of the receiver.
    pub url: Option<&'a str>,
    /// None: every topic.
    pub topics: Option<&'a str>,
    /// Names signing material.
    pub scope: Option<&'a str>,
    /// JSON.
    pub authentication: Option<&'a str>,
    /// Gets nothing.
    pub is_inactive: bool,
}

/// The answers of the receiver by path.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<HashMap<String, Answer>>>);

impl Answers {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that a test needs.
pub struct Stage {
    /// The folder with the configuration.
    pub rig: Rig,
    /// The configuration, to be changed.
    pub config: Config,
    /// All endpoints: one path each.
    pub receiver: Receiver,
    /// Events and deliveries.
    pub database: Database,
    /// Subscriptions.
    pub subscriptions: Database,
    answers: Answers,
    // Dropped last: the databases are removed with it.
    _servers: Vec<outhaul_services::Database>,
}

impl Ground<'_> {
    /// Sets everything up.
    ///
    /// # Errors
    /// If any of it fails.
    pub fn stage(self, plan: &Plan) -> Result<Stage> {
        let answers = Answers::default();
        let script = answers.clone();
        let receiver = Receiver::start(move |request| script.lock().get(&request.path).cloned().unwrap_or_else(|| Answer::status(204)))?;
        let rig = Rig::empty()?;
        let (events, subscribers, servers) = self.places(&rig)?;
        write_keys(rig.path())?;
        let config = plan.config(self, &events, &subscribers, receiver.address())?;
        rig.configure(&config)?;
        rig.run(&["schema", "--storage", "outbox", "--apply"])?.success()?;
        let mut subscriptions = Database::at(&subscribers)?;
        subscriptions.run(
            "CREATE TABLE subscriptions (tenant TEXT NOT NULL, subscriber TEXT NOT NULL, url TEXT NOT NULL, event_types TEXT, \
             signing_scope TEXT, authentication TEXT, principal TEXT NOT NULL DEFAULT '', revision TEXT NOT NULL DEFAULT '1', \
             active BOOLEAN NOT NULL DEFAULT TRUE)",
        )?;
        let database = Database::at(&events)?;
        Ok(Stage { rig, config, receiver, database, subscriptions, answers, _servers: servers })
    }

    /// Databases for events and for subscriptions.
    fn places(self, rig: &Rig) -> Result<(Place, Place, Vec<outhaul_services::Database>)> {
        match self {
            Ground::Sqlite => {
                let subscriptions = rig.path().join("subscriptions.db");
                crate::outbox::Outbox::create_database(&rig.database())?;
                // That of the subscriptions is not in WAL mode, so that a writer can keep readers waiting.
                Ok((Place::File(rig.database()), Place::File(subscriptions), Vec::new()))
            }
            Ground::Postgres(server) => {
                let databases = [server.create_database()?, server.create_database()?];
                let [events, subscriptions] = databases.each_ref().map(|database| Place::Server(database.url()));
                Ok((events, subscriptions, databases.into()))
            }
        }
    }
}

impl Stage {
    /// Starts `outhaul run`.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn host(&self) -> Result<Host> {
        self.rig.host()
    }

    /// The same, once its relay has begun: from then on the admin API answers.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn ready_host(&self) -> Result<Host> {
        let mut host = self.host()?;
        host.process().errors().wait_for_line("relay started")?;
        Ok(host)
    }

    /// Changes the configuration file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn reconfigure(&mut self, change: impl FnOnce(Config) -> Config) -> Result<()> {
        self.config = change(self.config.clone());
        self.rig.configure(&self.config)
    }

    /// What a subscriber's endpoint answers from now on; without, 204.
    pub fn answer(&self, subscriber: &str, answer: Answer) {
        self.answers.lock().insert(path(TENANT, subscriber), answer);
    }

    /// A subscriber's endpoint answers 204 again.
    pub fn answer_well(&self, subscriber: &str) {
        self.answers.lock().remove(&path(TENANT, subscriber));
    }

    /// The endpoint of a subscriber.
    #[must_use]
    pub fn url(&self, subscriber: &str) -> String {
        format!("http://{}{}", self.receiver.address(), path(TENANT, subscriber))
    }

    /// A subscriber to everything.
    ///
    /// # Errors
    /// If the database refuses it.
    pub fn subscribe(&mut self, subscriber: &str) -> Result<()> {
        self.subscribe_as(subscriber, Subscription::default())
    }

    /// A subscriber.
    ///
    /// # Errors
    /// If the database refuses it.
    pub fn subscribe_as(&mut self, subscriber: &str, subscription: Subscription<'_>) -> Result<()> {
        let tenant = subscription.tenant.unwrap_or(TENANT);
        let usual = format!("http://{}{}", self.receiver.address(), path(tenant, subscriber));
        self.subscriptions.run(&format!(
            "INSERT INTO subscriptions (tenant, subscriber, url, event_types, signing_scope, authentication, active) \
             VALUES ({}, {}, {}, {}, {}, {}, {})",
            text(tenant),
            text(subscriber),
            text(subscription.url.unwrap_or(&usual)),
            optional(subscription.topics),
            optional(subscription.scope),
            optional(subscription.authentication),
            if subscription.is_inactive { "FALSE" } else { "TRUE" },
        ))
    }

    /// Changes a subscription: `SET` of an update.
    ///
    /// # Errors
    /// If the database refuses it.
    pub fn resubscribe(&mut self, subscriber: &str, set: &str) -> Result<()> {
        self.subscriptions.run(&format!("UPDATE subscriptions SET {set} WHERE subscriber = {}", text(subscriber)))
    }

    /// Commits an event; returns its id.
    ///
    /// # Errors
    /// If the database refuses it.
    pub fn event(&mut self, topic: &str, key: Option<&str>, payload: &[u8]) -> Result<String> {
        self.event_of(TENANT, topic, key, payload)
    }

    /// Commits an event of a tenant; returns its id.
    ///
    /// # Errors
    /// If the database refuses it.
    pub fn event_of(&mut self, tenant: &str, topic: &str, key: Option<&str>, payload: &[u8]) -> Result<String> {
        let sql = format!(
            "INSERT INTO outbox (tenant, topic, key, payload) VALUES ({}, {}, {}, {}) RETURNING id",
            text(tenant),
            text(topic),
            optional(key),
            self.database.bytes(payload)
        );
        let rows = self.database.rows(&sql)?;
        rows.into_iter().flatten().next().flatten().context("no id")
    }

    /// Commits many events in one transaction; each key's in their order.
    ///
    /// # Errors
    /// If the database refuses them.
    pub fn events_of(&mut self, tenant: &str, topic: &str, events: &[crate::ledger::Event]) -> Result<()> {
        insert_events(&mut self.database, tenant, topic, events)
    }

    /// The requests to a subscriber, in the order of arrival.
    #[must_use]
    pub fn requests(&self, subscriber: &str) -> Vec<Request> {
        self.requests_of(TENANT, subscriber)
    }

    /// The requests to a subscriber of a tenant, in the order of arrival.
    #[must_use]
    pub fn requests_of(&self, tenant: &str, subscriber: &str) -> Vec<Request> {
        let path = path(tenant, subscriber);
        self.receiver.look(|log| log.iter().filter(|request| request.path == path).cloned().collect())
    }

    /// Waits until a subscriber has accepted so many requests.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub fn wait_for_accepted(&self, subscriber: &str, count: usize) -> Result<()> {
        let path = path(TENANT, subscriber);
        let accepted = |request: &&Request| request.path == path && request.accepted();
        self.receiver.wait_for(&format!("{count} accepted by {subscriber}"), |log| log.iter().filter(accepted).count() >= count)?;
        Ok(())
    }

    /// Waits until a subscriber was asked so many times.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub fn wait_for_requests(&self, subscriber: &str, count: usize) -> Result<()> {
        let path = path(TENANT, subscriber);
        let to = |request: &&Request| request.path == path;
        self.receiver.wait_for(&format!("{count} requests to {subscriber}"), |log| log.iter().filter(to).count() >= count)?;
        Ok(())
    }

    /// `outhaul fanout COMMAND orders ...`.
    ///
    /// # Errors
    /// If it does not end. A failure of the command is none.
    pub fn fanout(&self, command: &str, arguments: &[&str]) -> Result<Finished> {
        self.rig.run(&[&["fanout", command, "orders"], arguments].concat())
    }

    /// The same for [`TENANT`], with `--json`: what it printed.
    ///
    /// # Errors
    /// If it fails.
    pub fn fanout_json(&self, command: &str, arguments: &[&str]) -> Result<serde_json::Value> {
        self.fanout(command, &[&["--tenant", TENANT, "--json"], arguments].concat())?.json()
    }

    /// Lets nobody read the subscriptions until it is dropped: a router that keeps its caller waiting.
    ///
    /// # Errors
    /// If they cannot be locked.
    pub fn lock_subscriptions(&self) -> Result<Locked> {
        let mut holder = self.subscriptions.again()?;
        let lock = if holder.is_sqlite() { "BEGIN EXCLUSIVE" } else { "BEGIN; LOCK TABLE subscriptions IN ACCESS EXCLUSIVE MODE" };
        holder.run_bare(lock)?;
        Ok(Locked { holder })
    }

    /// Takes the table of subscriptions away: a router that fails.
    ///
    /// # Errors
    /// If it is not there.
    pub fn lose_subscriptions(&mut self) -> Result<()> {
        self.subscriptions.run("ALTER TABLE subscriptions RENAME TO subscriptions_away")
    }

    /// Gives it back.
    ///
    /// # Errors
    /// If it is not away.
    pub fn find_subscriptions(&mut self) -> Result<()> {
        self.subscriptions.run("ALTER TABLE subscriptions_away RENAME TO subscriptions")
    }
}

/// The table of subscriptions, locked.
pub struct Locked {
    holder: Database,
}

impl Locked {
    /// Lets readers in again.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn unlock(mut self) -> Result<()> {
        self.holder.run_bare("ROLLBACK")
    }
}

/// Commits many events in one transaction; each key's in their order.
///
/// # Errors
/// If the database refuses them.
pub fn insert_events(database: &mut Database, tenant: &str, topic: &str, events: &[crate::ledger::Event]) -> Result<()> {
    let statements: Vec<String> = events
        .chunks(500)
        .map(|chunk| {
            let rows: Vec<String> = chunk
                .iter()
                .map(|event| {
                    let payload = database.bytes(event.payload().as_bytes());
                    format!("({}, {}, {}, {payload})", text(tenant), text(topic), text(&event.key))
                })
                .collect();
            format!("INSERT INTO outbox (tenant, topic, key, payload) VALUES {}", rows.join(", "))
        })
        .collect();
    database.run(&statements.join("; "))
}

/// The path of a subscriber's endpoint.
#[must_use]
pub fn path(tenant: &str, subscriber: &str) -> String {
    format!("/{tenant}/{subscriber}")
}
