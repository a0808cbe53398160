//! What arrives, read back from a real broker by librdkafka and by Apache Kafka's own consumer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests stop at the first surprise"
)]

mod common;

use anyhow::Result;
use common::{Publisher, batch_of, fresh};
use outhaul_sdk::{Batch, NewMessage, Outcome};
use outhaul_services::{Kafka, Listener};
use outhaul_tests::kafka::{Reader, Record, partitions_by_java, read_by_java};
use serde_json::json;

const MEGABYTE: usize = 1_000_000;

fn brokers(kafka: &Kafka) -> Vec<String> {
    kafka.addresses(Listener::Plaintext)
}

/// One message of every shape.
fn shapes(topic: &str, large: &[u8]) -> Batch {
    let base = NewMessage { topic, created_at: 1_700_000_000_123, ..NewMessage::default() };
    let headers: &[(&str, &[u8])] = &[("h", b"1"), ("h", b""), ("traceparent", b"00-ab"), ("h", b"1"), ("\u{e9}", b"\xff\0")];
    batch_of(&[
        NewMessage { id: "headers", key: Some("a"), headers, payload: Some(b"x"), ..base },
        NewMessage { id: "tombstone", key: Some("a"), payload: None, ..base },
        NewMessage { id: "empty", key: Some("a"), payload: Some(b""), ..base },
        NewMessage { id: "empty-key", key: Some(""), payload: Some(b"\0\xff"), ..base },
        NewMessage { id: "no-key", key: None, payload: Some("заказ".as_bytes()), ..base },
        NewMessage { id: "large", key: Some("a"), payload: Some(large), ..base },
        NewMessage { id: "older", key: Some("a"), payload: Some(b"y"), created_at: 1_600_000_000_000, ..base },
    ])
}

/// What should have become of it: key, payload, headers, timestamp, by id.
fn check(batch: &Batch, records: &[Record]) {
    assert_eq!(records.len(), batch.len());
    for message in batch.messages() {
        let id = |record: &&Record| record.header("outhaul-id").eq([Some(message.id().as_bytes())]);
        let record = records.iter().find(id).unwrap_or_else(|| panic!("{} is missing", message.id()));
        assert_eq!(record.key.as_deref(), message.key().map(str::as_bytes), "{}", message.id());
        assert!(record.payload.as_deref() == message.payload(), "{}", message.id());
        assert_eq!(record.timestamp, message.created_at().map(|millis| i64::try_from(millis).unwrap()), "{}", message.id());
        let mut headers: Vec<(String, Option<Vec<u8>>)> =
            message.headers().map(|(name, value)| (name.to_owned(), Some(value.to_vec()))).collect();
        headers.push(("outhaul-id".into(), Some(message.id().as_bytes().to_vec())));
        assert_eq!(record.headers, headers, "{}", message.id());
    }
    let order: Vec<_> = records.iter().filter(|record| record.key_text() == Some("a")).collect();
    let ids: Vec<_> = order.iter().flat_map(|record| record.header("outhaul-id")).flatten().map(String::from_utf8_lossy).collect();
    assert_eq!(ids, ["headers", "tombstone", "empty", "large", "older"]);
}

#[test]
fn every_shape_comes_back_whatever_the_compression() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let reader = Reader::new(&kafka.bootstrap())?;
    // Half of it repeats itself, half of it does not.
    let large: Vec<u8> = (0..MEGABYTE).map(|index| if index % 2 == 0 { 7 } else { rand::random() }).collect();
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = fresh(&format!("shapes-{compression}"));
        kafka.create_topic(&topic, 3)?;
        let batch = shapes(&topic, &large);
        Publisher::new(&brokers(&kafka), json!({ "compression": compression })).deliver(&batch);
        // librdkafka does not know zstd here.
        if compression != "zstd" {
            check(&batch, &reader.read(&topic)?);
        }
        check(&batch, &read_by_java(&kafka, &topic)?);
    }
    Ok(())
}

#[test]
fn keys_go_where_the_java_client_sends_them() -> Result<()> {
    const COUNT: i32 = 17;
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = fresh("partitions");
    kafka.create_topic(&topic, COUNT)?;
    let keys: Vec<String> = (0..10_000).map(|index| format!("{}{index}", "ключ-".repeat(index % 5))).collect();
    let mut publisher = Publisher::new(&brokers(&kafka), json!({}));
    for keys in keys.chunks(1000) {
        let messages: Vec<_> =
            keys.iter().map(|key| NewMessage { id: key, topic: &topic, key: Some(key), ..NewMessage::default() }).collect();
        publisher.deliver(&batch_of(&messages));
    }
    let bytes: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let expected = partitions_by_java(&kafka.java(), &bytes, COUNT)?;
    let records = Reader::new(&kafka.bootstrap())?.read(&topic)?;
    assert_eq!(records.len(), keys.len());
    let found: std::collections::HashMap<&str, i32> = records.iter().map(|record| (record.key_text().unwrap(), record.partition)).collect();
    let differ = keys.iter().zip(&expected).filter(|(key, partition)| found[key.as_str()] != **partition).count();
    assert_eq!(differ, 0);
    Ok(())
}

#[test]
fn a_header_names_the_partition_and_is_not_passed_on() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = fresh("by-header");
    kafka.create_topic(&topic, 3)?;
    let message = |id, key, value: &'static [u8]| (id, key, [("Partition", value)]);
    let rows = [message("0", Some("a"), b"2"), message("1", None, b"1"), message("2", Some("b"), b"3"), message("3", Some("c"), b"x")];
    let messages: Vec<_> =
        rows.iter().map(|(id, key, headers)| NewMessage { id, topic: &topic, key: *key, headers, ..NewMessage::default() }).collect();
    let mut publisher = Publisher::new(&brokers(&kafka), json!({ "partition_header": "partition" }));
    let outcomes = publisher.publish(&batch_of(&messages));
    assert_eq!(common::rejected(&outcomes[2]).detail, format!("header `partition` names partition 3; topic {topic} has 3, from 0 to 2"));
    assert_eq!(common::rejected(&outcomes[3]).detail, "the value of header `partition` is not the number of a partition");
    let records = Reader::new(&kafka.bootstrap())?.read(&topic)?;
    let found: Vec<_> = records.iter().map(|record| (record.partition, record.key_text(), record.headers.len())).collect();
    assert_eq!(found, [(1, None, 1), (2, Some("a"), 1)]);

    // More partitions than the publisher remembers: it asks before it ends the message.
    let arguments = ["--bootstrap-server", &kafka.bootstrap(), "--alter", "--topic", &topic, "--partitions", "4"];
    kafka.java().run("org.apache.kafka.tools.TopicCommand", arguments)?;
    let grown = NewMessage { id: "4", topic: &topic, headers: &[("partition", b"3")], ..NewMessage::default() };
    assert_eq!(publisher.publish(&batch_of(&[grown])), [Outcome::Delivered]);
    Ok(())
}

#[test]
fn messages_without_a_key_go_round_and_topics_come_from_a_template() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = fresh("round");
    kafka.create_topic(&topic, 3)?;
    let (prefix, rest) = topic.split_once('-').unwrap();
    let mut publisher = Publisher::new(&brokers(&kafka), json!({ "topic": format!("{prefix}-{{topic}}") }));
    for _ in 0..6 {
        let message = NewMessage { id: "1", topic: rest, payload: Some(b"x"), ..NewMessage::default() };
        publisher.deliver(&batch_of(&[message.clone(), message]));
    }
    let records = Reader::new(&kafka.bootstrap())?.read(&topic)?;
    let count = |partition| records.iter().filter(|record| record.partition == partition).count();
    assert_eq!([0, 1, 2].map(count), [4, 4, 4]);
    Ok(())
}

/// A key whose messages fill many record batches, among others: in order, and each once.
#[test]
fn order_holds_over_many_batches() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = fresh("order");
    kafka.create_topic(&topic, 2)?;
    let ids: Vec<String> = (0..3000).map(|index| index.to_string()).collect();
    let payload = [b'x'; 100];
    let messages: Vec<_> = ids
        .iter()
        .enumerate()
        .map(|(index, id)| {
            let key = [Some("a"), Some("b"), None, Some("a"), Some("c")][index % 5];
            NewMessage { id, topic: &topic, key, payload: Some(&payload), ..NewMessage::default() }
        })
        .collect();
    let mut publisher = Publisher::new(&brokers(&kafka), json!({ "max_request_bytes": 4096, "in_flight": 5 }));
    publisher.deliver(&batch_of(&messages));
    let records = Reader::new(&kafka.bootstrap())?.read(&topic)?;
    assert_eq!(records.len(), ids.len());
    for key in ["a", "b", "c"] {
        let numbers: Vec<usize> = records
            .iter()
            .filter(|record| record.key_text() == Some(key))
            .map(|record| std::str::from_utf8(record.header("outhaul-id").next().unwrap().unwrap()).unwrap().parse().unwrap())
            .collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{key}");
    }
    Ok(())
}
