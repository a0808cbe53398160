//! kafka-publisher as a component in the host, called as a relay calls it.

use crate::Contestant;
use crate::shape::Shape;
use anyhow::{Context as _, Result, bail};
use outhaul::config;
use outhaul::domain::{Batch, NewMessage, Outcome};
use outhaul::metrics::Metrics;
use outhaul::plugin::{PluginHost, PluginHostOptions, PublisherPlugin};
use outhaul::ports::{LeaseEnd, PublishCall, Publisher as _, Workers};
use outhaul::sql::Databases;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Longest call.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct Component {
    runtime: Runtime,
    publisher: Arc<PublisherPlugin>,
    calls: Vec<Batch>,
}

impl Component {
    pub(crate) fn load(shape: &Shape, plugins: &Path) -> Result<Self> {
        let runtime = Runtime::new()?;
        let hosts: Vec<&str> = shape.bootstrap.split(',').collect();
        let text = format!(
            "[plugins]\ndir = {plugins:?}\n[publishers.kafka]\nplugin = \"kafka-publisher\"\nallow_hosts = {hosts:?}\nlanes = 1\n\
             [publishers.kafka.config]\n{}",
            toml::to_string(&shape.config())?
        );
        let config = config::parse(&text, Path::new("outhaul.toml"))?;
        let options = PluginHostOptions {
            cache: config.plugins.cache.clone(),
            metrics: Metrics::new(),
            databases: Databases::new(&config.databases, &BTreeMap::new()),
            secrets: BTreeMap::new(),
        };
        let publisher = config.publishers.get("kafka").context("the publisher is configured")?;
        let host = PluginHost::new(options)?;
        let publisher = runtime.block_on(host.publisher(plugins, publisher))?;
        let payload = shape.payload();
        let calls = shape.calls().map(|range| {
            let mut batch = Batch::default();
            for index in range {
                let id = Shape::id(index);
                batch.push(&NewMessage {
                    id: Some(&id),
                    topic: &shape.topic,
                    payload: Some(&payload),
                    attempts: 1,
                    ..NewMessage::default()
                });
            }
            batch
        });
        Ok(Self { runtime, publisher, calls: calls.collect() })
    }
}

impl Contestant for Component {
    fn run(&mut self) -> Result<Duration> {
        // A call takes its batch for good; the copies are not its work.
        let calls = self.calls.clone();
        self.runtime.block_on(async {
            let began = Instant::now();
            for batch in calls {
                let (reports, _received) = mpsc::unbounded_channel();
                let lease = Arc::new(LeaseEnd::new(tokio::time::Instant::now() + 2 * DEADLINE));
                let call =
                    PublishCall { deadline: DEADLINE, reports, cancel: CancellationToken::new(), lease, workers: Workers::default() };
                let outcomes = self.publisher.publish(batch, call).await.map_err(|failure| anyhow::anyhow!("{failure}"))?;
                if let Some(other) = outcomes.iter().find(|outcome| **outcome != Outcome::Delivered) {
                    bail!("not delivered: {other:?}");
                }
            }
            Ok(began.elapsed())
        })
    }
}
