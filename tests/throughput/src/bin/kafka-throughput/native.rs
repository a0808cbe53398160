//! kafka-publisher as plain Rust, on this thread.

use crate::Contestant;
use crate::shape::Shape;
use anyhow::{Result, bail};
use kafka_publisher::config::Settings;
use kafka_publisher::producer::{Producer, Surroundings};
use kafka_publisher::transport::PlainConnector;
use outhaul_sdk::{Batch, NewMessage, Outcome};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest call.
const DEADLINE: Duration = Duration::from_secs(30);

struct Process;

impl Surroundings for Process {
    fn wall_ms(&self) -> i64 {
        SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_millis()).ok()).unwrap_or_default()
    }

    fn secret(&self, _name: &str) -> Option<String> {
        None
    }

    fn report(&self, _index: usize, _outcome: &Outcome) {}
    fn pause(&self, pause: Duration) {
        std::thread::sleep(pause);
    }
}

pub(crate) struct Native {
    producer: Producer<PlainConnector>,
    calls: Vec<Batch>,
}

impl Native {
    pub(crate) fn new(shape: &Shape) -> Result<Self> {
        let settings = Settings::parse(&shape.config().to_string()).map_err(|failure| anyhow::anyhow!(failure.detail))?;
        let payload = shape.payload();
        let calls = shape.calls().map(|range| {
            let mut batch = Batch::default();
            for index in range {
                let id = Shape::id(index);
                batch.push(&NewMessage { id: &id, topic: &shape.topic, payload: Some(&payload), attempts: 1, ..NewMessage::default() });
            }
            batch
        });
        Ok(Self { producer: Producer::new(settings, PlainConnector, 0), calls: calls.collect() })
    }
}

impl Contestant for Native {
    fn run(&mut self) -> Result<Duration> {
        let began = Instant::now();
        for call in &self.calls {
            let outcomes = self.producer.publish(call, DEADLINE, &Process);
            if let Some(other) = outcomes.iter().find(|outcome| **outcome != Outcome::Delivered) {
                bail!("not delivered: {other:?}");
            }
        }
        Ok(began.elapsed())
    }
}
