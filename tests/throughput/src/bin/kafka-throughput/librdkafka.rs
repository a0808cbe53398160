//! librdkafka, with a thread that takes its reports.

use crate::Contestant;
use crate::shape::{ID_HEADER, Shape};
use anyhow::{Result, bail};
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest run: past it something is broken.
const PATIENCE: Duration = Duration::from_secs(120);

/// Counts what was acknowledged.
#[derive(Clone, Default)]
struct Reports(Arc<AtomicUsize>);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub(crate) struct Librdkafka {
    producer: ThreadedProducer<Reports>,
    reports: Reports,
    topic: String,
    ids: Vec<String>,
    payload: Vec<u8>,
}

impl Librdkafka {
    pub(crate) fn new(shape: &Shape) -> Result<Self> {
        let reports = Reports::default();
        let producer = ClientConfig::new()
            .set("bootstrap.servers", &shape.bootstrap)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("max.in.flight.requests.per.connection", shape.in_flight.to_string())
            .set("batch.num.messages", shape.batch.to_string())
            // Its queue is never the limit: all of a run fits in.
            .set("queue.buffering.max.messages", (shape.messages + 1).to_string())
            .set("queue.buffering.max.kbytes", "1048576")
            .create_with_context(reports.clone())?;
        let ids = (0..shape.messages).map(Shape::id).collect();
        Ok(Self { producer, reports, topic: shape.topic.clone(), ids, payload: shape.payload() })
    }
}

/// How many messages the only partition of a topic has.
pub(crate) fn count(bootstrap: &str, topic: &str) -> Result<i64> {
    let consumer: BaseConsumer = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
    let (first, next) = consumer.fetch_watermarks(topic, 0, PATIENCE)?;
    Ok(next - first)
}

impl Contestant for Librdkafka {
    fn run(&mut self) -> Result<Duration> {
        let before = self.reports.0.load(Ordering::Relaxed);
        let began = Instant::now();
        for id in &self.ids {
            let headers = OwnedHeaders::new_with_capacity(1).insert(Header { key: ID_HEADER, value: Some(id) });
            let record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&self.topic).payload(self.payload.as_slice()).headers(headers);
            self.producer.send(record).map_err(|(error, _)| error)?;
        }
        self.producer.flush(PATIENCE)?;
        let elapsed = began.elapsed();
        let acknowledged = self.reports.0.load(Ordering::Relaxed) - before;
        if acknowledged != self.ids.len() {
            bail!("librdkafka delivered {acknowledged} of {}", self.ids.len());
        }
        Ok(elapsed)
    }
}
