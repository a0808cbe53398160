//! The component: what the host calls, and what it offers.

use crate::config::Settings;
use crate::producer::{Producer, Surroundings};
use crate::sandbox::SandboxConnector;
use outhaul_sdk::{Batch, Failure, Outcome, Publisher, progress, secrets};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

struct KafkaPublisher {
    producer: Producer<SandboxConnector>,
}

impl Publisher for KafkaPublisher {
    fn open(config: &str) -> Result<Self, Failure> {
        let settings = Settings::parse(config)?;
        // A secret that is missing from the start is a mistake of the operator; one that goes missing later makes messages wait.
        settings.credentials(secrets::get)?;
        // Instances begin at different brokers and partitions.
        let [.., low, _, _] = RandomState::new().build_hasher().finish().to_be_bytes();
        let connector = SandboxConnector { tls: settings.tls };
        Ok(Self { producer: Producer::new(settings, connector, usize::from(low)) })
    }

    fn publish(&mut self, batch: &Batch, deadline: Duration) -> Vec<Outcome> {
        self.producer.publish(batch, deadline, &Host)
    }
}

/// What the host offers.
struct Host;

impl Surroundings for Host {
    fn wall_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn secret(&self, name: &str) -> Option<String> {
        secrets::get(name)
    }

    fn report(&self, index: usize, outcome: &Outcome) {
        // An index comes from a batch whose columns are counted in 32 bits.
        if let Ok(index) = u32::try_from(index) {
            progress::report(index, outcome);
        }
    }

    fn pause(&self, pause: Duration) {
        std::thread::sleep(pause);
    }
}

outhaul_sdk::export_publisher!(KafkaPublisher);
outhaul_sdk::manifest!("../manifest.toml");
