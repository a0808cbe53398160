//! What is in a topic, read by somebody else's code: librdkafka, or Apache Kafka's own consumer.

use crate::places;
use crate::process::{PATIENCE, poll};
use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use outhaul_services::{JavaTools, Kafka};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long one question to a broker may take.
const QUESTION: Duration = Duration::from_secs(10);

/// A record as it is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The partition.
    pub partition: i32,
    /// Its place there.
    pub offset: i64,
    /// Milliseconds since the Unix epoch.
    pub timestamp: Option<i64>,
    /// The key, if it has one.
    pub key: Option<Vec<u8>>,
    /// The payload; none: a tombstone.
    pub payload: Option<Vec<u8>>,
    /// All headers in their order, repeated ones as often as they are there.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// The values of a header.
    pub fn header<'a>(&'a self, name: &str) -> impl Iterator<Item = Option<&'a [u8]>> {
        self.headers.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_deref())
    }

    /// The key as text.
    #[must_use]
    pub fn key_text(&self) -> Option<&str> {
        std::str::from_utf8(self.key.as_deref()?).ok()
    }
}

/// Reads with librdkafka, which does not know zstd here.
pub struct Reader {
    consumer: BaseConsumer,
}

impl Reader {
    /// A reader of these brokers.
    ///
    /// # Errors
    /// If librdkafka refuses.
    pub fn new(bootstrap: &str) -> Result<Self> {
        let consumer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("group.id", "outhaul-tests")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            // Nobody answers for a broker that is down: the next one is asked soon.
            .set("reconnect.backoff.max.ms", "500")
            .create()
            .context("no consumer")?;
        Ok(Self { consumer })
    }

    /// First and next offset of each partition of a topic.
    ///
    /// # Errors
    /// If the topic is not there or a partition has no leader.
    pub fn offsets(&self, topic: &str) -> Result<BTreeMap<i32, (i64, i64)>> {
        let metadata = self.consumer.fetch_metadata(Some(topic), QUESTION)?;
        let topic_metadata = metadata.topics().first().context("no such topic")?;
        if let Some(error) = topic_metadata.error() {
            bail!("topic {topic}: {error:?}");
        }
        let ids = topic_metadata.partitions().iter().map(rdkafka::metadata::MetadataPartition::id);
        ids.map(|id| Ok((id, self.consumer.fetch_watermarks(topic, id, QUESTION)?))).collect()
    }

    /// How many records a topic has.
    ///
    /// # Errors
    /// As [`Self::offsets`].
    pub fn count(&self, topic: &str) -> Result<usize> {
        let total: i64 = self.offsets(topic)?.values().map(|(first, next)| next - first).sum();
        Ok(total.try_into()?)
    }

    /// Waits until a topic has so many records, and reads them.
    ///
    /// # Errors
    /// If they do not come in time.
    pub fn wait_for(&self, topic: &str, count: usize) -> Result<Vec<Record>> {
        poll(&format!("{count} records in {topic}"), || Ok(self.count(topic)? >= count))
            .with_context(|| format!("{} are there", self.count(topic).unwrap_or_default()))?;
        self.read(topic)
    }

    /// Everything that is in a topic now: partition by partition, each in its order.
    ///
    /// # Errors
    /// If it cannot be read to its end.
    pub fn read(&self, topic: &str) -> Result<Vec<Record>> {
        let mut records: BTreeMap<i32, Vec<Record>> = BTreeMap::new();
        self.visit(topic, |record| {
            records.entry(record.partition).or_default().push(record);
            Ok(())
        })?;
        Ok(records.into_values().flatten().collect())
    }

    /// Shows everything that is in a topic now, each partition in its order, but those mixed.
    ///
    /// # Errors
    /// If it cannot be read to its end, or `visit` fails.
    pub fn visit(&self, topic: &str, mut visit: impl FnMut(Record) -> Result<()>) -> Result<()> {
        let ends = self.offsets(topic)?;
        let mut left: BTreeSet<i32> = ends.iter().filter(|(_, (first, next))| first < next).map(|(id, _)| *id).collect();
        let mut assignment = TopicPartitionList::new();
        for id in &left {
            assignment.add_partition_offset(topic, *id, Offset::Beginning)?;
        }
        self.consumer.assign(&assignment)?;
        let mut end = Instant::now() + PATIENCE;
        while !left.is_empty() {
            match self.consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => {
                    end = Instant::now() + PATIENCE;
                    let (partition, offset) = (message.partition(), message.offset());
                    if left.contains(&partition) && offset < ends[&partition].1 {
                        visit(record(&message))?;
                    }
                    if offset + 1 >= ends[&partition].1 {
                        left.remove(&partition);
                    }
                }
                // Fewer than the end says: the last offsets may be of markers, which are no records.
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    left.remove(&partition);
                }
                // Brokers go away and come back under this reader; only time tells.
                Some(Err(_)) | None if Instant::now() < end => {}
                Some(Err(error)) => return Err(error).with_context(|| format!("cannot read {topic} to its end")),
                None => bail!("{topic} could not be read to its end: partitions {left:?} are left"),
            }
        }
        Ok(self.consumer.unassign()?)
    }
}

fn record(message: &impl Message) -> Record {
    let headers = message.headers().into_iter().flat_map(Headers::iter);
    Record {
        partition: message.partition(),
        offset: message.offset(),
        timestamp: message.timestamp().to_millis(),
        key: message.key().map(<[u8]>::to_vec),
        payload: message.payload().map(<[u8]>::to_vec),
        headers: headers.map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect(),
    }
}

/// Everything that is in a topic now, read by Apache Kafka's consumer, whatever it is compressed by: partition by partition, each in
/// its order.
///
/// # Errors
/// If it cannot be read.
pub fn read_by_java(kafka: &Kafka, topic: &str) -> Result<Vec<Record>> {
    let lines = kafka.java().run(source("Reader.java"), [kafka.bootstrap().as_str(), topic])?;
    let mut records = lines.lines().map(record_from_json).collect::<Result<Vec<_>>>()?;
    records.sort_by_key(|record| (record.partition, record.offset));
    Ok(records)
}

/// The partition that Apache Kafka's producer gives to each key.
///
/// # Errors
/// If the program fails.
pub fn partitions_by_java(java: &JavaTools, keys: &[&[u8]], count: i32) -> Result<Vec<i32>> {
    let mut command = java.command(source("Partitions.java"));
    let mut process = command.arg(count.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot run java")?;
    let lines: String = keys.iter().map(|key| BASE64.encode(key) + "\n").collect();
    // It prints only when it has read everything, so neither waits for the other.
    process.stdin.take().context("no pipe")?.write_all(lines.as_bytes())?;
    let output = process.wait_with_output()?;
    if !output.status.success() {
        bail!("Partitions.java failed ({})", output.status);
    }
    String::from_utf8(output.stdout)?.lines().map(|line| line.parse().context("not a partition")).collect()
}

fn source(name: &str) -> std::path::PathBuf {
    places::checkout().join("tests/java").join(name)
}

fn record_from_json(line: &str) -> Result<Record> {
    let value: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
    let bytes = |value: &Value| value.as_str().map(|text| BASE64.decode(text).context("not base64")).transpose();
    let header = |pair: &Value| -> Result<(String, Option<Vec<u8>>)> {
        Ok((String::from_utf8(bytes(&pair[0])?.context("a header without a name")?)?, bytes(&pair[1])?))
    };
    Ok(Record {
        partition: value["partition"].as_i64().context("no partition")?.try_into()?,
        offset: value["offset"].as_i64().context("no offset")?,
        timestamp: value["timestamp"].as_i64(),
        key: bytes(&value["key"])?,
        payload: bytes(&value["payload"])?,
        headers: value["headers"].as_array().context("no headers")?.iter().map(header).collect::<Result<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::message::{Header, OwnedHeaders};
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

    /// Both readers see the same, and all of it.
    #[test]
    fn both_readers_see_headers_tombstones_and_empty_payloads() -> Result<()> {
        let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
        let topic = format!("readers-{:08x}", rand::random::<u32>());
        kafka.create_topic(&topic, 3)?;
        let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", kafka.bootstrap()).create()?;
        let send = |record: BaseRecord<'_, str, [u8]>| producer.send(record).map_err(|(error, _)| error);
        let header = |value| Header { key: "h", value };
        let headers = OwnedHeaders::new().insert(header(Some("1"))).insert(header(Some("2"))).insert(header(None::<&str>));
        send(BaseRecord::to(&topic).key("k").payload(&b"one"[..]).partition(1).timestamp(1_700_000_000_000).headers(headers))?;
        send(BaseRecord::to(&topic).key("k").partition(1))?;
        send(BaseRecord::to(&topic).payload(&b""[..]).partition(2))?;
        producer.flush(QUESTION)?;
        let records = Reader::new(&kafka.bootstrap())?.wait_for(&topic, 3)?;
        assert_eq!(records, read_by_java(&kafka, &topic)?);
        let shapes: Vec<_> = records.iter().map(|record| (record.partition, record.key_text(), record.payload.as_deref())).collect();
        assert_eq!(shapes, [(1, Some("k"), Some(&b"one"[..])), (1, Some("k"), None), (2, None, Some(&b""[..]))]);
        assert_eq!(records[0].header("h").collect::<Vec<_>>(), [Some(&b"1"[..]), Some(&b"2"[..]), None]);
        assert_eq!(records[0].timestamp, Some(1_700_000_000_000));
        Ok(())
    }

    #[test]
    fn the_java_client_tells_where_keys_go() -> Result<()> {
        let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
        // Known values of Kafka's murmur2 (its own UtilsTest): "21" is -973932308, which is made positive by the lowest 31 bits.
        let partitions = partitions_by_java(&kafka.java(), &[b"21", b"foobar", b""], 1000)?;
        let expected = [-973_932_308_i32, -790_332_482, 275_646_681].map(|hash| (hash & i32::MAX) % 1000);
        assert_eq!(partitions, expected);
        Ok(())
    }
}
