//! What the tables of fan-out say, of either database.

use super::database::Database;
use crate::process::poll;
use anyhow::{Context, Result};

/// A delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// `delivery_id`.
    pub id: String,
    /// Tenant.
    pub tenant: String,
    /// Event.
    pub event: String,
    /// Generation of the event.
    pub generation: u64,
    /// Subscriber.
    pub subscriber: String,
    /// `pending`, `complete`, `suppressed` or `quarantined`.
    pub state: String,
    /// Claims so far.
    pub attempts: u64,
    /// Code of the last failure.
    pub code: Option<String>,
    /// What was recorded with it.
    pub error: Option<String>,
    /// The worker that holds it.
    pub leased_by: Option<String>,
    /// The same for every attempt.
    pub idempotency_key: String,
    /// Which key it is sealed with.
    pub key_version: String,
    /// Whether it has an envelope.
    pub is_sealed: bool,
}

impl Delivery {
    /// State and code.
    #[must_use]
    pub fn outcome(&self) -> (&str, Option<&str>) {
        (&self.state, self.code.as_deref())
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Id.
    pub id: String,
    /// `pending`, `done` or `dead`.
    pub status: String,
    /// Claims so far.
    pub attempts: u64,
    /// The worker that holds it.
    pub leased_by: Option<String>,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

/// An emission of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emission {
    /// Event.
    pub event: String,
    /// Generation.
    pub generation: u64,
    /// `pending`, `expanded` or `quarantined`.
    pub state: String,
    /// How many deliveries it had.
    pub deliveries: u64,
    /// Why it is quarantined.
    pub code: Option<String>,
}

impl Database {
    /// Every delivery, in the order of insertion.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn deliveries(&mut self) -> Result<Vec<Delivery>> {
        let sql = "SELECT delivery_id, account_id, notification_id, emission_generation, subscriber_id, state, attempts, error_code, \
             last_error, leased_by, idempotency_key, key_version, CASE WHEN envelope IS NULL THEN 0 ELSE 1 END \
             FROM outbox_deliveries ORDER BY seq";
        self.rows(sql)?
            .into_iter()
            .map(|row| {
                let [
                    id,
                    tenant,
                    event,
                    generation,
                    subscriber,
                    state,
                    attempts,
                    code,
                    error,
                    leased_by,
                    idempotency_key,
                    key_version,
                    sealed,
                ] = fields(row)?;
                Ok(Delivery {
                    id: id.context("delivery_id")?,
                    tenant: tenant.context("account_id")?,
                    event: event.context("notification_id")?,
                    generation: number(generation)?,
                    subscriber: subscriber.context("subscriber_id")?,
                    state: state.context("state")?,
                    attempts: number(attempts)?,
                    code,
                    error,
                    leased_by,
                    idempotency_key: idempotency_key.context("idempotency_key")?,
                    key_version: key_version.context("key_version")?,
                    is_sealed: sealed.as_deref() == Some("1"),
                })
            })
            .collect()
    }

    /// The one delivery to a subscriber.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn delivery(&mut self, subscriber: &str) -> Result<Delivery> {
        let found: Vec<_> = self.deliveries()?.into_iter().filter(|delivery| delivery.subscriber == subscriber).collect();
        let [delivery] =
            <[Delivery; 1]>::try_from(found).map_err(|found| anyhow::anyhow!("not one delivery to {subscriber}: {found:?}"))?;
        Ok(delivery)
    }

    /// Waits until the deliveries are as `enough` wants them.
    ///
    /// # Errors
    /// If that does not happen in time: with the deliveries as they are.
    pub fn wait_for_deliveries(&mut self, what: &str, enough: impl Fn(&[Delivery]) -> bool) -> Result<Vec<Delivery>> {
        let mut last = Vec::new();
        let waited = poll(what, || {
            last = self.deliveries()?;
            Ok(enough(&last))
        });
        waited.with_context(|| format!("{} deliveries, the first are {:#?}", last.len(), last.iter().take(12).collect::<Vec<_>>()))?;
        Ok(last)
    }

    /// Waits until every delivery has ended, and there are so many.
    ///
    /// # Errors
    /// As [`Self::wait_for_deliveries`].
    pub fn wait_for_ended(&mut self, count: usize) -> Result<Vec<Delivery>> {
        self.wait_for_deliveries(&format!("{count} deliveries to end"), |all| {
            all.len() == count && all.iter().all(|delivery| delivery.state != "pending")
        })
    }

    /// Every event, in the order of insertion.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn events(&mut self) -> Result<Vec<Event>> {
        self.rows("SELECT id, status, attempts, leased_by, last_error FROM outbox ORDER BY id")?
            .into_iter()
            .map(|row| {
                let [id, status, attempts, leased_by, error] = fields(row)?;
                Ok(Event { id: id.context("id")?, status: status.context("status")?, attempts: number(attempts)?, leased_by, error })
            })
            .collect()
    }

    /// The event with this id.
    ///
    /// # Errors
    /// If there is none.
    pub fn event(&mut self, id: &str) -> Result<Event> {
        self.events()?.into_iter().find(|event| event.id == id).with_context(|| format!("no event {id}"))
    }

    /// Waits until the events are as `enough` wants them.
    ///
    /// # Errors
    /// If that does not happen in time: with the events as they are.
    pub fn wait_for_events(&mut self, what: &str, enough: impl Fn(&[Event]) -> bool) -> Result<Vec<Event>> {
        let mut last = Vec::new();
        let waited = poll(what, || {
            last = self.events()?;
            Ok(enough(&last))
        });
        waited.with_context(|| format!("{} events, the first are {:#?}", last.len(), last.iter().take(12).collect::<Vec<_>>()))?;
        Ok(last)
    }

    /// Every emission, by event and generation.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn emissions(&mut self) -> Result<Vec<Emission>> {
        let sql = "SELECT notification_id, generation, state, deliveries, error_code FROM outbox_emissions \
             ORDER BY CAST(notification_id AS INTEGER), generation";
        self.rows(sql)?
            .into_iter()
            .map(|row| {
                let [event, generation, state, deliveries, code] = fields(row)?;
                Ok(Emission {
                    event: event.context("notification_id")?,
                    generation: number(generation)?,
                    state: state.context("state")?,
                    deliveries: number(deliveries)?,
                    code,
                })
            })
            .collect()
    }

    /// Lets whatever waits be due now.
    ///
    /// # Errors
    /// If the table cannot be changed.
    pub fn make_due(&mut self) -> Result<()> {
        let past = self.in_ms(-1000);
        self.run(&format!(
            "UPDATE outbox SET available_at = {past} WHERE status = 'pending' AND leased_by IS NULL; \
             UPDATE outbox_deliveries SET available_at = {past} WHERE state = 'pending' AND leased_by IS NULL"
        ))
    }

    /// Lets deliveries that are inserted from now on wait for an hour.
    ///
    /// # Errors
    /// If the table cannot be changed.
    pub fn hold_deliveries(&mut self) -> Result<()> {
        let later = self.in_ms(3_600_000);
        let statement = format!("UPDATE outbox_deliveries SET available_at = {later} WHERE seq = NEW.seq");
        self.trigger("held_for_the_test", "outbox_deliveries INSERT", "NEW.state = 'pending'", &statement)
    }

    /// Lets them go.
    ///
    /// # Errors
    /// If the table cannot be changed.
    pub fn release_deliveries(&mut self) -> Result<()> {
        self.drop_trigger("held_for_the_test")?;
        self.make_due()
    }
}

fn fields<const N: usize>(row: Vec<Option<String>>) -> Result<[Option<String>; N]> {
    row.try_into().map_err(|row| anyhow::anyhow!("a row of another width: {row:?}"))
}

fn number(value: Option<String>) -> Result<u64> {
    let value = value.context("no number")?;
    value.parse().with_context(|| format!("not a number: {value}"))
}
