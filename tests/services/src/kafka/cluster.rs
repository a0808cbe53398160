//! Brokers that are started together, and disturbed one by one.

use super::broker::{Plan, ports};
use super::{JavaTools, Kafka, admin};
use crate::certificates::Certificates;
use crate::daemon::{self, Daemon, Life};
use crate::ground::Ground;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::ops::Deref;
use std::path::PathBuf;

/// Options of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// How many brokers, each a controller as well: an even number has no majority after half of them are gone.
    pub brokers: usize,
    /// Listeners for passwords and TLS, beside the plain one.
    pub sasl_ssl: bool,
    /// Whether a topic comes into being when somebody asks for it.
    pub auto_create_topics: bool,
    /// Heap of each broker, in MiB.
    pub heap: u32,
    /// Settings of `server.properties`.
    pub settings: Vec<(String, String)>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self { brokers: 1, sasl_ssl: false, auto_create_topics: false, heap: 256, settings: Vec::new() }
    }
}

/// A cluster of a test's own. Stopped when dropped, and its data removed; it does not outlive the thread that started it.
pub struct Cluster {
    kafka: Kafka,
    plan: Plan,
    brokers: Vec<Broker>,
}

struct Broker {
    folder: PathBuf,
    daemon: Option<Daemon>,
    life: Life,
}

impl Cluster {
    /// Starts one and waits until all brokers know of each other.
    ///
    /// # Errors
    /// If it cannot be had, or does not start.
    pub fn start(options: ClusterOptions) -> Result<Self> {
        let ground = Ground::here()?;
        let folders = (0..options.brokers).map(|_| ground.private("kafka")).collect::<Result<Vec<_>>>()?;
        let first = folders.first().context("a cluster without brokers")?;
        let certificates = Certificates::create(first.join("certificates"), None)?;
        Self::create(options, folders, certificates, Life::Bound("KILL"))
    }

    /// Starts a broker that goes on when this program has ended.
    ///
    /// # Errors
    /// If it cannot be had, or does not start.
    pub(crate) fn shared(folder: PathBuf, certificates: Certificates) -> Result<Kafka> {
        let options = ClusterOptions { sasl_ssl: true, heap: 384, ..ClusterOptions::default() };
        let mut cluster = Self::create(options, vec![folder], certificates, Life::Detached)?;
        for broker in &mut cluster.brokers {
            broker.daemon = None;
        }
        Ok(cluster.kafka.clone())
    }

    fn create(options: ClusterOptions, folders: Vec<PathBuf>, certificates: Certificates, life: Life) -> Result<Self> {
        let java = JavaTools::get()?;
        let brokers = folders.iter().map(|_| ports(options.sasl_ssl)).collect::<Result<Vec<_>>>()?;
        let kafka = Kafka { brokers: brokers.clone(), certificates: certificates.clone(), java: java.clone() };
        let plan = Plan {
            brokers,
            certificates,
            java,
            sasl_ssl: options.sasl_ssl,
            auto_create_topics: options.auto_create_topics,
            heap: options.heap,
            settings: options.settings,
        };
        let brokers = folders.into_iter().map(|folder| Broker { folder, daemon: None, life }).collect();
        let mut cluster = Self { kafka, plan, brokers };
        for (index, broker) in cluster.brokers.iter_mut().enumerate() {
            cluster.plan.prepare(index, &broker.folder)?;
            broker.daemon = Some(cluster.plan.start(&broker.folder, broker.life)?);
        }
        for index in 0..cluster.brokers.len() {
            cluster.wait_for(index)?;
        }
        Ok(cluster)
    }

    /// `kill -9` of the broker with this index, from 0.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill(&mut self, index: usize) -> Result<()> {
        self.end(index, Signal::KILL)
    }

    /// Lets a broker go in peace: it hands its partitions over first.
    ///
    /// # Errors
    /// If it does not run.
    pub fn stop(&mut self, index: usize) -> Result<()> {
        self.end(index, Signal::TERM)
    }

    /// Starts a broker where it was, on the same ports, and waits until it knows all others that run.
    ///
    /// # Errors
    /// If it runs, or does not start.
    pub fn start_again(&mut self, index: usize) -> Result<()> {
        let broker = self.brokers.get_mut(index).context("no such broker")?;
        if broker.daemon.is_some() {
            bail!("broker {index} runs already");
        }
        broker.daemon = Some(self.plan.start(&broker.folder, broker.life)?);
        self.wait_for(index)
    }

    /// Whether a broker has been started and not been stopped.
    #[must_use]
    pub fn is_up(&self, index: usize) -> bool {
        self.brokers.get(index).is_some_and(|broker| broker.daemon.is_some())
    }

    /// What the brokers show over TLS.
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        &self.kafka.certificates
    }

    /// Waits until a broker knows as many brokers as run.
    fn wait_for(&mut self, index: usize) -> Result<()> {
        let running = self.brokers.iter().filter(|broker| broker.daemon.is_some()).count();
        let address = self.kafka.addresses(super::Listener::Plaintext).swap_remove(index);
        let daemon = self.brokers[index].daemon.as_mut().context("the broker does not run")?;
        daemon.wait_until(|| match admin::brokers(&address)? {
            known if known >= running => Ok(()),
            known => bail!("it knows {known} of {running} brokers"),
        })
    }

    fn end(&mut self, index: usize, signal: Signal) -> Result<()> {
        let broker = self.brokers.get_mut(index).context("no such broker")?;
        broker.daemon.take().with_context(|| format!("broker {index} does not run"))?.stop(signal)
    }
}

impl Deref for Cluster {
    type Target = Kafka;

    fn deref(&self) -> &Kafka {
        &self.kafka
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.life == Life::Detached {
            return;
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.stop(Signal::KILL);
        }
        // What is left is removed by the next `services up` or `down`.
        let _ = daemon::clear(&self.folder);
    }
}
