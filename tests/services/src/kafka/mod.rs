//! Apache Kafka without ZooKeeper: one broker that the tests share, or a cluster of a test that disturbs it.

mod admin;
mod broker;
mod cluster;
mod java;

pub use cluster::{Cluster, ClusterOptions};
pub use java::JavaTools;

use crate::certificates::Certificates;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version under test.
pub const VERSION: &str = "4.3.1";

/// A user of the listeners with SASL, by any of PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
pub const USER: &str = "alice";

/// The user's password.
pub const PASSWORD: &str = "alice-secret";

/// How clients may come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listener {
    /// Without anything. Whoever comes in here may do everything.
    Plaintext,
    /// A password, no TLS.
    SaslPlaintext,
    /// A password and TLS.
    SaslSsl,
    /// TLS with a certificate of the client, and no password.
    Mtls,
    /// TLS with a server certificate that has expired, and no password.
    Expired,
    /// For the brokers among themselves.
    Controller,
}

impl Listener {
    /// Those for clients. Without SASL and TLS only the first.
    pub const CLIENTS: [Self; 5] = [Self::Plaintext, Self::SaslPlaintext, Self::SaslSsl, Self::Mtls, Self::Expired];

    /// Its name in the broker's configuration.
    fn name(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
            Self::Mtls => "MTLS",
            Self::Expired => "EXPIRED",
            Self::Controller => "CONTROLLER",
        }
    }

    /// Its protocol.
    fn protocol(self) -> &'static str {
        match self {
            Self::Plaintext | Self::Controller => "PLAINTEXT",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
            Self::Mtls | Self::Expired => "SSL",
        }
    }
}

/// The ports of one broker on 127.0.0.1.
pub type Ports = BTreeMap<Listener, u16>;

/// Running brokers. Topics are not created by asking for them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kafka {
    brokers: Vec<Ports>,
    /// What the brokers show over TLS, and who signed that.
    pub certificates: Certificates,
    java: JavaTools,
}

impl Kafka {
    /// Addresses of all brokers, comma-separated, without password and TLS.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        self.addresses(Listener::Plaintext).join(",")
    }

    /// Addresses of all brokers at a listener: empty if it has none of these.
    #[must_use]
    pub fn addresses(&self, listener: Listener) -> Vec<String> {
        self.brokers.iter().filter_map(|ports| Some(format!("127.0.0.1:{}", ports.get(&listener)?))).collect()
    }

    /// Creates a topic, on three brokers if there are so many, and waits until all of its partitions have leaders.
    ///
    /// # Errors
    /// If it exists or cannot be created.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<()> {
        self.create_topic_with(name, partitions, &[])
    }

    /// The same with settings: `max.message.bytes` and the like.
    ///
    /// # Errors
    /// As [`Self::create_topic`].
    pub fn create_topic_with(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) -> Result<()> {
        let replicas = i32::try_from(self.brokers.len().min(3))?;
        admin::create_topic(&self.bootstrap(), name, partitions, replicas, settings).with_context(|| format!("topic {name}"))
    }

    /// Whether every partition of a topic has a leader and all of its replicas are in sync: then a broker may be killed.
    ///
    /// # Errors
    /// If no broker answers, or there is no such topic.
    pub fn is_in_sync(&self, topic: &str) -> Result<bool> {
        admin::is_in_sync(&self.bootstrap(), topic)
    }

    /// Forbids a user, `User:alice` for instance, to write to topics that begin with a prefix.
    ///
    /// # Errors
    /// If the brokers refuse.
    pub fn deny_writes(&self, principal: &str, prefix: &str) -> Result<()> {
        let bootstrap = self.bootstrap();
        let line = ["--bootstrap-server", &bootstrap, "--add", "--deny-principal", principal, "--operation", "Write", "--topic", prefix];
        self.java.run("org.apache.kafka.tools.AclCommand", line.into_iter().chain(["--resource-pattern-type", "prefixed"]))?;
        Ok(())
    }

    /// Kafka's own programs.
    #[must_use]
    pub fn java(&self) -> JavaTools {
        self.java.clone()
    }

    /// How many brokers there are.
    #[must_use]
    pub fn brokers(&self) -> usize {
        self.brokers.len()
    }
}
