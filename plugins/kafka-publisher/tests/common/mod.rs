//! What the tests against brokers share: a publisher without a sandbox, and messages for it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use kafka_publisher::config::Settings;
use kafka_publisher::producer::{Producer, Surroundings};
use kafka_publisher::transport::PlainConnector;
use outhaul_sdk::{Batch, Failure, NewMessage, Outcome};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::time::Duration;

/// As long as a call of the host may take by default.
pub(crate) const CALL: Duration = Duration::from_secs(10);

/// A publisher in this process, and what it reports.
pub(crate) struct Publisher {
    producer: Producer<PlainConnector>,
    password: Option<String>,
    pub(crate) reported: RefCell<Vec<(usize, Outcome)>>,
}

impl Publisher {
    /// Writes to these brokers, with further keys of the configuration.
    pub(crate) fn new(brokers: &[String], extra: Value) -> Self {
        let mut config = json!({ "brokers": brokers });
        config.as_object_mut().unwrap().append(&mut extra.as_object().unwrap().clone());
        let settings = Settings::parse(&config.to_string()).unwrap();
        let producer = Producer::new(settings, PlainConnector, rand::random::<u8>().into());
        Self { producer, password: None, reported: RefCell::default() }
    }

    /// With this password as the secret `kafka`.
    pub(crate) fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// One call.
    pub(crate) fn publish(&mut self, batch: &Batch) -> Vec<Outcome> {
        self.publish_within(batch, CALL)
    }

    /// One call with a deadline.
    pub(crate) fn publish_within(&mut self, batch: &Batch, deadline: Duration) -> Vec<Outcome> {
        self.reported.borrow_mut().clear();
        let surroundings = Recorder { password: self.password.clone(), reported: &self.reported };
        let outcomes = self.producer.publish(batch, deadline, &surroundings);
        assert_eq!(outcomes.len(), batch.len());
        // What is reported early is what is returned.
        for (index, outcome) in self.reported.borrow().iter() {
            assert_eq!(&outcomes[*index], outcome);
        }
        outcomes
    }

    /// One call in which everything is delivered.
    pub(crate) fn deliver(&mut self, batch: &Batch) {
        let outcomes = self.publish(batch);
        let failed: Vec<_> = outcomes.iter().enumerate().filter(|(_, outcome)| **outcome != Outcome::Delivered).take(3).collect();
        assert!(failed.is_empty(), "{failed:?}");
    }
}

struct Recorder<'a> {
    password: Option<String>,
    reported: &'a RefCell<Vec<(usize, Outcome)>>,
}

impl Surroundings for Recorder<'_> {
    fn wall_ms(&self) -> i64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        i64::try_from(since.as_millis()).unwrap()
    }

    fn secret(&self, name: &str) -> Option<String> {
        self.password.clone().filter(|_| name == "kafka")
    }

    fn report(&self, index: usize, outcome: &Outcome) {
        self.reported.borrow_mut().push((index, outcome.clone()));
    }

    fn pause(&self, pause: Duration) {
        std::thread::sleep(pause);
    }
}

/// A name for a topic that no other test has.
pub(crate) fn fresh(name: &str) -> String {
    format!("{name}-{:08x}", rand::random::<u32>())
}

/// A batch of these messages.
pub(crate) fn batch_of(messages: &[NewMessage<'_>]) -> Batch {
    let mut batch = Batch::new();
    for message in messages {
        batch.push(message);
    }
    batch
}

/// The failure of an outcome that ends a message, or of one that is tried again.
pub(crate) fn rejected(outcome: &Outcome) -> &Failure {
    match outcome {
        Outcome::Reject(failure) => failure,
        other => panic!("not rejected: {other:?}"),
    }
}

/// The failure of an outcome that is tried again.
pub(crate) fn retried(outcome: &Outcome) -> &Failure {
    match outcome {
        Outcome::Retry(failure) => failure,
        other => panic!("not to be tried again: {other:?}"),
    }
}
