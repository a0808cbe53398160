//! One broker, which is a controller as well: its configuration, its data, its process.

use super::{JavaTools, Listener, PASSWORD, Ports, USER};
use crate::certificates::Certificates;
use crate::daemon::{Daemon, Life};
use crate::ground::free_port;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Any 16 bytes in base64: a cluster of tests never meets another.
const CLUSTER_ID: &str = "b3V0aGF1bCB0ZXN0cyA0NA";

/// What all brokers of a cluster know.
pub(super) struct Plan {
    pub(super) brokers: Vec<Ports>,
    pub(super) certificates: Certificates,
    pub(super) java: JavaTools,
    /// Listeners for passwords and TLS.
    pub(super) sasl_ssl: bool,
    pub(super) auto_create_topics: bool,
    /// Heap of each, in MiB.
    pub(super) heap: u32,
    pub(super) settings: Vec<(String, String)>,
}

/// Free ports for the listeners of a broker.
pub(super) fn ports(sasl_ssl: bool) -> Result<Ports> {
    let clients = if sasl_ssl { &Listener::CLIENTS[..] } else { &Listener::CLIENTS[..1] };
    clients.iter().chain([&Listener::Controller]).map(|&listener| Ok((listener, free_port()?))).collect()
}

impl Plan {
    /// Writes the configuration of the broker with this index and formats its data folder.
    pub(super) fn prepare(&self, index: usize, folder: &Path) -> Result<()> {
        let file = configuration(folder);
        let lines: Vec<String> = self.properties(index, folder).into_iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        fs::write(&file, lines.concat()).with_context(|| format!("cannot write {}", file.display()))?;
        let mut line = vec!["format".into(), "-t".into(), CLUSTER_ID.into(), "-c".into(), file.display().to_string()];
        if self.sasl_ssl {
            for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                line.extend(["--add-scram".into(), format!("{mechanism}=[name={USER},password={PASSWORD}]")]);
            }
        }
        self.java.run("kafka.tools.StorageTool", line).context("cannot format the broker's folder")?;
        Ok(())
    }

    /// Starts the process.
    pub(super) fn start(&self, folder: &Path, life: Life) -> Result<Daemon> {
        Daemon::start(folder, None, life, Path::new("java"), self.java.broker(self.heap, &configuration(folder)))
    }

    fn properties(&self, index: usize, folder: &Path) -> BTreeMap<String, String> {
        let ports = &self.brokers[index];
        let replicas = self.brokers.len().min(3).to_string();
        let list = |what: &dyn Fn(Listener, u16) -> String, all: bool| -> String {
            let chosen = ports.iter().filter(|(listener, _)| all || **listener != Listener::Controller);
            chosen.map(|(&listener, &port)| what(listener, port)).collect::<Vec<_>>().join(",")
        };
        let address = |listener: Listener, port: u16| format!("{}://127.0.0.1:{port}", listener.name());
        let voters: Vec<String> = self
            .brokers
            .iter()
            .enumerate()
            .map(|(index, ports)| format!("{}@127.0.0.1:{}", index + 1, ports[&Listener::Controller]))
            .collect();
        let mut properties: BTreeMap<String, String> = [
            ("process.roles", "broker,controller"),
            ("controller.listener.names", "CONTROLLER"),
            ("inter.broker.listener.name", "PLAINTEXT"),
            // A killed broker's partitions move when its session ends; 9 s by default.
            ("broker.session.timeout.ms", "2000"),
            ("broker.heartbeat.interval.ms", "500"),
            ("group.initial.rebalance.delay.ms", "0"),
            ("offsets.topic.num.partitions", "1"),
            ("share.coordinator.state.topic.num.partitions", "1"),
            ("transaction.state.log.num.partitions", "1"),
            ("transaction.state.log.min.isr", "1"),
            ("share.coordinator.state.topic.min.isr", "1"),
            // It compacts, which nothing here asks for, and takes 128 MiB for that.
            ("log.cleaner.enable", "false"),
            ("num.network.threads", "2"),
            ("num.io.threads", "4"),
            ("num.recovery.threads.per.data.dir", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        properties.extend(
            [
                ("node.id", (index + 1).to_string()),
                ("controller.quorum.voters", voters.join(",")),
                ("listeners", list(&address, true)),
                ("advertised.listeners", list(&address, false)),
                ("listener.security.protocol.map", list(&|listener, _| format!("{}:{}", listener.name(), listener.protocol()), true)),
                ("log.dirs", folder.join("data").display().to_string()),
                ("auto.create.topics.enable", self.auto_create_topics.to_string()),
                ("default.replication.factor", replicas.clone()),
                ("offsets.topic.replication.factor", replicas.clone()),
                ("transaction.state.log.replication.factor", replicas.clone()),
                ("share.coordinator.state.topic.replication.factor", replicas),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        if self.sasl_ssl {
            properties.extend(self.security());
        }
        properties.extend(self.settings.iter().cloned());
        properties
    }

    fn security(&self) -> Vec<(String, String)> {
        let modules = "org.apache.kafka.common.security";
        let store = |name: &str| self.certificates.key_store(name).display().to_string();
        let mut properties = vec![
            ("sasl.enabled.mechanisms".to_owned(), "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512".to_owned()),
            ("ssl.keystore.type".into(), "PEM".into()),
            ("ssl.keystore.location".into(), store("server")),
            ("ssl.truststore.type".into(), "PEM".into()),
            ("ssl.truststore.location".into(), self.certificates.ca().display().to_string()),
            ("listener.name.mtls.ssl.client.auth".into(), "required".into()),
            ("listener.name.expired.ssl.keystore.type".into(), "PEM".into()),
            ("listener.name.expired.ssl.keystore.location".into(), store("expired")),
            // Everything is allowed until a test forbids it; whoever comes in without a name may forbid.
            ("authorizer.class.name".into(), "org.apache.kafka.metadata.authorizer.StandardAuthorizer".into()),
            ("allow.everyone.if.no.acl.found".into(), "true".into()),
            ("super.users".into(), "User:ANONYMOUS".into()),
        ];
        for listener in ["sasl_plaintext", "sasl_ssl"] {
            let jaas = |mechanism: &str| format!("listener.name.{listener}.{mechanism}.sasl.jaas.config");
            properties.push((jaas("plain"), format!("{modules}.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\";")));
            for mechanism in ["scram-sha-256", "scram-sha-512"] {
                properties.push((jaas(mechanism), format!("{modules}.scram.ScramLoginModule required;")));
            }
        }
        properties
    }
}

fn configuration(folder: &Path) -> PathBuf {
    folder.join("broker.properties")
}
