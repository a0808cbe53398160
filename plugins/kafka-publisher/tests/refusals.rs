//! What a real broker refuses, and what is refused before it is asked: outcomes and texts.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests stop at the first surprise"
)]

mod common;

use anyhow::Result;
use common::{CALL, Publisher, batch_of, fresh, rejected, retried};
use kafka_publisher::record::{Builder, Header, Record};
use outhaul_sdk::{FailureCode, NewMessage, Outcome};
use outhaul_services::kafka::{PASSWORD, USER};
use outhaul_services::{Kafka, Listener};
use outhaul_tests::kafka::{Reader, read_by_java};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn brokers(kafka: &Kafka) -> Vec<String> {
    kafka.addresses(Listener::Plaintext)
}

/// The largest payload whose record batch, all alone with key `k` and id `0`, has so many bytes.
fn payload_for(batch_bytes: usize) -> usize {
    let size = |payload: &[u8]| {
        let headers = [Header { prefix: "", name: "outhaul-id", value: b"0" }];
        Builder::default().size_with(&Record { timestamp: 0, key: Some(b"k"), value: Some(payload), headers: &headers })
    };
    let payload = vec![0; batch_bytes];
    let overhead = size(&payload) - batch_bytes;
    let found = batch_bytes - overhead;
    assert_eq!(size(&payload[..found]), batch_bytes);
    found
}

/// Reported at logstash-output-kafka 190: a message over the limit was tried for ever, and all behind it waited.
#[test]
fn sizes_are_exact_before_sending_and_at_the_broker() -> Result<()> {
    const LIMIT: usize = 10_000;
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = fresh("sizes");
    kafka.create_topic_with(&topic, 1, &[("max.message.bytes", &LIMIT.to_string())])?;
    let payload = vec![b'x'; LIMIT];
    let limit = payload_for(LIMIT);
    let message =
        |bytes: usize| NewMessage { id: "0", topic: &topic, key: Some("k"), payload: Some(&payload[..bytes]), ..NewMessage::default() };
    for (configured, said) in [(LIMIT, "`max_request_bytes` is 10000"), (1 << 20, "(MESSAGE_TOO_LARGE 10)")] {
        let mut publisher = Publisher::new(&brokers(&kafka), json!({ "max_request_bytes": configured }));
        publisher.deliver(&batch_of(&[message(limit - 1)]));
        publisher.deliver(&batch_of(&[message(limit)]));
        let outcomes = publisher.publish(&batch_of(&[message(limit + 1)]));
        let failure = rejected(&outcomes[0]);
        assert_eq!(failure.code, FailureCode::TooLarge);
        assert!(failure.detail.contains(said), "{}", failure.detail);
    }
    assert_eq!(Reader::new(&kafka.bootstrap())?.count(&topic)?, 4);
    Ok(())
}

#[test]
fn of_many_only_the_one_that_is_too_large_is_rejected() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = fresh("one-too-large");
    kafka.create_topic_with(&topic, 1, &[("max.message.bytes", "5000")])?;
    let payload = vec![b'x'; 6000];
    let ids: Vec<String> = (0..200).map(|index| index.to_string()).collect();
    let messages: Vec<_> = ids
        .iter()
        .enumerate()
        .map(|(index, id)| {
            let payload = if index == 101 { &payload[..] } else { &payload[..200] };
            NewMessage { id, topic: &topic, key: Some(["a", "b"][index % 2]), payload: Some(payload), ..NewMessage::default() }
        })
        .collect();
    let outcomes = Publisher::new(&brokers(&kafka), json!({})).publish(&batch_of(&messages));
    for (index, outcome) in outcomes.iter().enumerate() {
        match index {
            101 => assert_eq!(rejected(outcome).code, FailureCode::TooLarge),
            // Its key's later ones wait for the host to say that it is dead.
            _ if index > 101 && index % 2 == 1 => assert_eq!(*outcome, Outcome::Held, "{index}"),
            _ => assert_eq!(*outcome, Outcome::Delivered, "{index}"),
        }
    }
    assert_eq!(Reader::new(&kafka.bootstrap())?.count(&topic)?, 150);
    Ok(())
}

/// Reported at kafkajs 665 and librdkafka 977.
#[test]
fn bad_and_missing_topics_stop_nobody_else() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let (topic, missing) = (fresh("good"), fresh("missing"));
    kafka.create_topic(&topic, 1)?;
    let long = "x".repeat(250);
    let bad = ["Dont care", "abc!@#$", &long, "", ".", "заказы"];
    let message = |topic| NewMessage { id: "0", topic, ..NewMessage::default() };
    let messages: Vec<_> = bad.into_iter().chain([missing.as_str(), &topic]).map(message).collect();
    let mut publisher = Publisher::new(&brokers(&kafka), json!({}));
    let start = Instant::now();
    let outcomes = publisher.publish(&batch_of(&messages));
    assert!(start.elapsed() < CALL / 4, "{:?}", start.elapsed());
    for outcome in &outcomes[..6] {
        assert_eq!(rejected(outcome).code, FailureCode::InvalidMessage);
    }
    assert_eq!(
        rejected(&outcomes[5]).detail,
        "`заказы` cannot be a topic of Kafka: 'з' is not allowed, only letters of ASCII, digits, `.`, `_` and `-`"
    );
    let unknown = retried(&outcomes[6]);
    assert_eq!(unknown.code, FailureCode::Unavailable);
    assert!(
        unknown.detail.starts_with(&format!("topic {missing}: the topic does not exist, and the broker does not create topics by itself")),
        "{}",
        unknown.detail
    );
    assert_eq!(outcomes[7], Outcome::Delivered);
    // The same instance notices that the topic is there now.
    let reported = publisher.reported.take();
    kafka.create_topic(&missing, 1)?;
    publisher.deliver(&batch_of(&messages[6..]));
    // What can be sent does not wait for what cannot.
    assert!(reported.contains(&(7, Outcome::Delivered)));
    Ok(())
}

#[test]
fn a_compacted_topic_takes_keys_only_and_the_broker_says_which_are_at_fault() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = fresh("compacted");
    kafka.create_topic_with(&topic, 1, &[("cleanup.policy", "compact")])?;
    let message = |id, key| NewMessage { id, topic: &topic, key, payload: Some(b"x"), ..NewMessage::default() };
    let batch =
        batch_of(&[message("0", Some("a")), message("1", None), message("2", Some("b")), message("3", Some("a")), message("4", None)]);
    let outcomes = Publisher::new(&brokers(&kafka), json!({})).publish(&batch);
    for index in [1, 4] {
        let failure = rejected(&outcomes[index]);
        assert_eq!(failure.code, FailureCode::InvalidMessage);
        assert!(failure.detail.contains("(INVALID_RECORD 87)"), "{}", failure.detail);
    }
    for index in [0, 2, 3] {
        assert_eq!(outcomes[index], Outcome::Delivered);
    }
    assert_eq!(Reader::new(&kafka.bootstrap())?.count(&topic)?, 3);
    Ok(())
}

fn sasl(mechanism: &str) -> Value {
    json!({ "sasl": { "mechanism": mechanism, "username": USER, "password": { "secret": "kafka" } } })
}

#[test]
fn logins_are_right_or_named() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let (topic, forbidden) = (fresh("login"), fresh("forbidden"));
    kafka.create_topic(&topic, 1)?;
    kafka.create_topic(&forbidden, 1)?;
    kafka.deny_writes(&format!("User:{USER}"), &forbidden)?;
    let address = kafka.addresses(Listener::SaslPlaintext);
    let batch = batch_of(&[NewMessage { id: "0", topic: &topic, payload: Some(b"x"), ..NewMessage::default() }]);
    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
        Publisher::new(&address, sasl(mechanism)).with_password(PASSWORD).deliver(&batch);
        let start = Instant::now();
        let outcomes = Publisher::new(&address, sasl(mechanism)).with_password("wrong").publish(&batch);
        let failure = retried(&outcomes[0]);
        assert_eq!(failure.code, FailureCode::Unauthorized, "{mechanism}");
        assert!(failure.detail.contains(&format!("the broker refused the login of `{USER}`: ")), "{}", failure.detail);
        assert!(!failure.detail.contains("wrong"), "{}", failure.detail);
        assert!(start.elapsed() < CALL / 4, "{mechanism}: a wrong password is not tried again and again");
    }
    assert_eq!(Reader::new(&kafka.bootstrap())?.count(&topic)?, 3);

    let outcomes = Publisher::new(&address, sasl("PLAIN")).publish(&batch);
    assert!(retried(&outcomes[0]).detail.contains("there is no secret `kafka`"));
    let outcomes = Publisher::new(&address, json!({})).publish(&batch);
    assert!(retried(&outcomes[0]).detail.contains("it may expect TLS (`tls`) or a login (`sasl`)"), "{outcomes:?}");

    let mixed = batch_of(&[
        NewMessage { id: "1", topic: &forbidden, ..NewMessage::default() },
        NewMessage { id: "2", topic: &topic, ..NewMessage::default() },
    ]);
    let outcomes = Publisher::new(&address, sasl("SCRAM-SHA-512")).with_password(PASSWORD).publish(&mixed);
    let failure = retried(&outcomes[0]);
    assert_eq!(failure.code, FailureCode::Unauthorized);
    assert_eq!(
        failure.detail,
        format!("topic {forbidden}: this user may not write to the topic: grant WRITE and DESCRIBE on it (TOPIC_AUTHORIZATION_FAILED 29)")
    );
    assert_eq!(outcomes[1], Outcome::Delivered);
    Ok(())
}

#[test]
fn who_is_no_broker_is_told_within_the_deadline() {
    let batch = batch_of(&[NewMessage { id: "0", topic: "t", ..NewMessage::default() }]);
    let deadline = Duration::from_secs(1);
    let publish = |address: String| {
        let start = Instant::now();
        let outcomes = Publisher::new(&[address], json!({})).publish_within(&batch, deadline);
        assert!(start.elapsed() < deadline, "{:?}", start.elapsed());
        retried(&outcomes[0]).clone()
    };

    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let failure = publish(nobody.to_string());
    assert_eq!(failure.code, FailureCode::Network);
    assert!(failure.detail.starts_with(&format!("{nobody}: no connection: ")), "{}", failure.detail);

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(publish(silent.local_addr().unwrap().to_string()).code, FailureCode::Timeout);

    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = web.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in web.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let failure = publish(address);
    assert!(failure.detail.contains("this is no Kafka broker, or it expects TLS"), "{}", failure.detail);
}

#[test]
fn the_tls_port_is_told_to_a_plain_client() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let batch = batch_of(&[NewMessage { id: "0", topic: "t", ..NewMessage::default() }]);
    let outcomes = Publisher::new(&kafka.addresses(Listener::Mtls), json!({})).publish(&batch);
    assert!(retried(&outcomes[0]).detail.contains("TLS"), "{outcomes:?}");
    Ok(())
}

/// Compression that was chosen for one topic is read back from another by the consumer of Kafka itself even if nothing shrinks.
#[test]
fn what_does_not_shrink_is_sent_as_it_is() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = fresh("incompressible");
    kafka.create_topic(&topic, 1)?;
    let payload: Vec<u8> = (0..500).map(|_| rand::random()).collect();
    let batch = batch_of(&[NewMessage { id: "0", topic: &topic, payload: Some(&payload), ..NewMessage::default() }]);
    Publisher::new(&brokers(&kafka), json!({ "compression": "zstd" })).deliver(&batch);
    assert_eq!(read_by_java(&kafka, &topic)?[0].payload.as_deref(), Some(payload.as_slice()));
    Ok(())
}
