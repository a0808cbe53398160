//! From the table to Apache Kafka, by the command line: the publisher as a component in the real host.

use anyhow::{Context, Result};
use outhaul_services::Kafka;
use outhaul_tests::kafka::{Reader, read_by_java};
use outhaul_tests::rig::{Config, Rig};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;

fn topic(kafka: &Kafka, name: &str, partitions: i32) -> Result<String> {
    let topic = format!("{name}-{:08x}", rand::random::<u32>());
    kafka.create_topic(&topic, partitions)?;
    Ok(topic)
}

#[test]
fn messages_arrive_with_everything_that_they_had() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = topic(&kafka, "shapes", 1)?;
        let rig = Rig::new(&Config::to_kafka(&kafka)?.set("publishers.events.config.compression", compression))?;
        // As much as fits into a megabyte with the rest: half of it cannot be compressed.
        let large: Vec<u8> = (0..1_000_000).map(|index| if index % 2 == 0 { b'x' } else { rand::random() }).collect();
        let file = rig.path().join("large");
        fs::write(&file, &large)?;
        let enqueue = |line: &[&str]| rig.run(&[&["enqueue", "--topic", &topic, "--key", "k"], line].concat())?.success();
        let mut ids = vec![enqueue(&["--payload", "one", "--header", "h=1", "--header", "h=2", "--header", "traceparent=00-ab"])?];
        ids.push(enqueue(&["--tombstone"])?);
        ids.push(enqueue(&["--payload", ""])?);
        ids.push(enqueue(&["--payload-file", file.to_str().context("path")?])?);
        assert_eq!(rig.drain()?["sent"], 4);

        let records = read_by_java(&kafka, &topic)?;
        let payloads: Vec<Option<&[u8]>> = records.iter().map(|record| record.payload.as_deref()).collect();
        assert!(payloads == [Some(&b"one"[..]), None, Some(b""), Some(&large)], "{compression}");
        let headers: Vec<&[u8]> = records[0].header("h").flatten().collect();
        assert_eq!(headers, [b"1", b"2"], "{compression}");
        for (record, id) in records.iter().zip(&ids) {
            assert_eq!(record.key_text(), Some("k"));
            assert_eq!(record.header("outhaul-id").flatten().collect::<Vec<_>>(), [id.trim().as_bytes()]);
            assert!(record.timestamp.is_some_and(|millis| millis > 1_700_000_000_000));
        }
    }
    Ok(())
}

#[test]
fn many_keys_keep_their_order_over_all_lanes() -> Result<()> {
    const MESSAGES: usize = 4000;
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = topic(&kafka, "lanes", 5)?;
    let rig = Rig::new(&Config::to_kafka(&kafka)?)?;
    let lines: String = (0..MESSAGES)
        .map(|index| json!({ "topic": topic, "key": format!("key-{}", index % 37), "payload": index.to_string() }).to_string() + "\n")
        .collect();
    let file = rig.path().join("lines.jsonl");
    fs::write(&file, lines)?;
    rig.run(&["enqueue", "--jsonl", file.to_str().context("path")?])?.success()?;
    assert_eq!(rig.drain()?["sent"], MESSAGES);
    let mut by_key: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for record in Reader::new(&kafka.bootstrap())?.read(&topic)? {
        let payload = String::from_utf8(record.payload.context("a payload")?)?;
        by_key.entry(String::from_utf8(record.key.context("a key")?)?).or_default().push(payload.parse()?);
    }
    assert_eq!(by_key.len(), 37);
    assert_eq!(by_key.values().map(Vec::len).sum::<usize>(), MESSAGES, "each once");
    for (key, numbers) in by_key {
        assert!(numbers.is_sorted_by(|before, after| before < after), "{key}: {numbers:?}");
    }
    Ok(())
}

/// Reported at kafkajs 665 and librdkafka 977, and at logstash-output-kafka 190.
#[test]
fn what_kafka_can_never_take_ends_dead_at_once_and_stops_nobody() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = topic(&kafka, "good", 1)?;
    let rig = Rig::new(&Config::to_kafka(&kafka)?.set("publishers.events.config.max_request_bytes", "10KiB"))?;
    let large = "x".repeat(11_000);
    for (topic, payload) in [("Dont care", "a"), (&topic, "b"), ("заказы", "c"), (&topic, large.as_str()), (&topic, "d")] {
        rig.run(&["enqueue", "--topic", topic, "--payload", payload])?.success()?;
    }
    let summary = rig.drain()?;
    assert_eq!((&summary["sent"], &summary["failed"], &summary["retried"]), (&json!(2), &json!(3), &json!(0)));
    let list = rig.run(&["dead", "list", "--json"])?.json()?;
    let reasons: Vec<&str> = list["rows"].as_array().context("rows")?.iter().filter_map(|row| row["last_error"].as_str()).collect();
    for (reason, said) in
        reasons.iter().zip(["`Dont care` cannot be a topic", "`заказы` cannot be a topic", "`max_request_bytes` is 10240"])
    {
        assert!(reason.contains(said), "{reason}");
    }
    assert_eq!(reasons.len(), 3);
    assert_eq!(Reader::new(&kafka.bootstrap())?.count(&topic)?, 2);
    Ok(())
}

#[test]
fn what_is_wrong_with_the_configuration_is_told_before_it_starts() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let config = Config::to_kafka(&kafka)?.set("publishers.events.config.in_flight", 6);
    let finished = Rig::new(&config)?.run(&["check"])?;
    assert_ne!(finished.code, Some(0));
    let said = finished.output + &finished.errors;
    assert!(said.contains("publishers.events.config.in_flight: must be from 1 to 5"), "{said}");
    Ok(())
}
