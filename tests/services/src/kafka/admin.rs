//! Questions to the brokers, by librdkafka: nothing of the project's own takes part.

use anyhow::{Context, Result, bail};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::time::{Duration, Instant};

/// How long one question may take.
const QUESTION: Duration = Duration::from_secs(5);

/// How long something may take that a busy cluster does.
const PATIENCE: Duration = Duration::from_secs(30);

fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    // Brokers are asked before they are up, and while some are down.
    config.set("bootstrap.servers", bootstrap).set("reconnect.backoff.ms", "20").set("reconnect.backoff.max.ms", "100");
    config
}

/// How many brokers a broker knows of.
///
/// # Errors
/// If none answers.
pub(super) fn brokers(bootstrap: &str) -> Result<usize> {
    let consumer: BaseConsumer = client(bootstrap).create()?;
    let metadata = consumer.fetch_metadata(None, QUESTION)?;
    Ok(metadata.brokers().len())
}

pub(super) fn create_topic(bootstrap: &str, name: &str, partitions: i32, replicas: i32, settings: &[(&str, &str)]) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = client(bootstrap).create()?;
    let topic = settings
        .iter()
        .fold(NewTopic::new(name, partitions, TopicReplication::Fixed(replicas)), |topic, (setting, value)| topic.set(setting, value));
    let runtime = tokio::runtime::Builder::new_current_thread().build().context("no runtime")?;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE));
    let results = runtime.block_on(admin.create_topics([&topic], &options))?;
    for result in results {
        result.map_err(|(_, code)| anyhow::anyhow!("it was not created: {code}"))?;
    }
    let end = Instant::now() + PATIENCE;
    loop {
        let metadata = admin.inner().fetch_metadata(Some(name), QUESTION)?;
        let leaders = metadata.topics().iter().flat_map(|topic| topic.partitions()).filter(|partition| partition.leader() >= 0).count();
        if leaders == usize::try_from(partitions)? {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("only {leaders} of its {partitions} partitions have a leader");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn is_in_sync(bootstrap: &str, topic: &str) -> Result<bool> {
    let consumer: BaseConsumer = client(bootstrap).create()?;
    let metadata = consumer.fetch_metadata(Some(topic), QUESTION)?;
    let partitions = metadata.topics().first().map(|topic| topic.partitions()).unwrap_or_default();
    if partitions.is_empty() {
        bail!("there is no topic {topic}");
    }
    Ok(partitions.iter().all(|partition| partition.leader() >= 0 && partition.isr().len() == partition.replicas().len()))
}
