//! PostgreSQL to Apache Kafka: what is in the topic is what was in the table, read back by clients that are not the project's. Cases
//! 7, 8 and 14 of the list in cases.rs are here.

use anyhow::{Context, Result};
use outhaul_services::kafka::{PASSWORD, USER};
use outhaul_services::{Cluster, ClusterOptions, Database, Kafka, Listener, Major, or_skip};
use outhaul_tests::kafka::{Reader, Record, partitions_by_java, read_by_java};
use outhaul_tests::ledger::{Event, Report};
use outhaul_tests::outbox::DELIVERED;
use outhaul_tests::postgres::{self, Outbox};
use outhaul_tests::process::poll;
use outhaul_tests::rig::{Config, Rig};
use std::collections::BTreeMap;
use std::fs;

/// A database on the newer version, the broker, and a topic name that nobody else uses.
fn services() -> Result<Option<(Database, Kafka, String)>> {
    let (Some(server), Some(kafka)) = (outhaul_services::postgres(Major::V17), outhaul_services::kafka()) else { return Ok(None) };
    Ok(Some((server.create_database()?, kafka, format!("t{:012x}", rand::random_range(0..1_u64 << 48)))))
}

fn stage(database: &Database, kafka: &Kafka, change: impl FnOnce(Config) -> Config) -> Result<(Outbox, Rig)> {
    let rig = Rig::new(&change(Config::to_kafka(kafka)?.on_postgres(&database.url())))?;
    Ok((Outbox::of(database)?, rig))
}

fn same(config: Config) -> Config {
    config
}

/// The first record with this payload.
fn with_payload<'a>(records: &'a [Record], payload: Option<&[u8]>) -> Result<&'a Record> {
    records.iter().find(|record| record.payload.as_deref() == payload).with_context(|| format!("no record with {payload:?}"))
}

#[test]
fn a_record_has_key_headers_id_and_time_of_its_row_and_a_tombstone_is_no_empty_payload() -> Result<()> {
    let Some((database, kafka, topic)) = services()? else { return Ok(()) };
    kafka.create_topic(&topic, 6)?;
    let (mut outbox, rig) = stage(&database, &kafka, same)?;
    let id = rig.enqueue(&["--topic", &topic, "--key", "o17 ü", "--header", "tenant=acme", "--payload", "one"])?;
    postgres::insert(outbox.client(), &topic, Some("gone"), None)?;
    postgres::insert(outbox.client(), &topic, Some("empty"), Some(b""))?;
    postgres::insert(outbox.client(), &topic, None, Some(b"\x00\xff"))?;
    assert_eq!(rig.drain()?["sent"], 4);

    let records = Reader::new(&kafka.bootstrap())?.wait_for(&topic, 4)?;
    assert_eq!(records, read_by_java(&kafka, &topic)?, "both readers see the same");
    let one = with_payload(&records, Some(b"one"))?;
    assert_eq!(one.key_text(), Some("o17 ü"));
    assert_eq!(one.header("tenant").collect::<Vec<_>>(), [Some(&b"acme"[..])]);
    assert_eq!(one.header("outhaul-id").collect::<Vec<_>>(), [Some(id.as_bytes())]);
    assert!(one.timestamp.is_some_and(|time| time > 1_600_000_000_000), "{one:?}");
    assert_eq!(with_payload(&records, None)?.key_text(), Some("gone"));
    assert_eq!(with_payload(&records, Some(b""))?.key_text(), Some("empty"));
    assert_eq!(with_payload(&records, Some(b"\x00\xff"))?.key, None);
    Ok(())
}

#[test]
fn keys_go_where_the_java_client_would_send_them_and_stay_in_order() -> Result<()> {
    const PARTITIONS: i32 = 7;
    let Some((database, kafka, topic)) = services()? else { return Ok(()) };
    kafka.create_topic(&topic, PARTITIONS)?;
    let (mut outbox, rig) = stage(&database, &kafka, same)?;
    let host = rig.host()?;
    let committed = outbox.fill(&topic, 50, 20)?;
    let records = Reader::new(&kafka.bootstrap())?.wait_for(&topic, committed.len())?;
    outbox.wait_until_settled()?;
    host.shut_down()?;
    let accepted =
        records.iter().map(|record| Event::from_payload(record.payload.as_deref().context("payload")?)).collect::<Result<Vec<_>>>()?;
    Report::new(&committed, &accepted).check(&BTreeMap::new())?;
    let homes: BTreeMap<&[u8], i32> = records.iter().map(|record| (record.key.as_deref().unwrap_or_default(), record.partition)).collect();
    let keys: Vec<&[u8]> = homes.keys().copied().collect();
    assert_eq!(homes.into_values().collect::<Vec<_>>(), partitions_by_java(&kafka.java(), &keys, PARTITIONS)?);
    Ok(())
}

/// Case 7 (tulios/kafkajs#665, librdkafka#977): names that no topic can have.
#[test]
fn case_07_a_topic_that_cannot_be_is_dead_at_once_and_the_others_go_on() -> Result<()> {
    let Some((database, kafka, topic)) = services()? else { return Ok(()) };
    kafka.create_topic(&topic, 1)?;
    let (mut outbox, rig) = stage(&database, &kafka, same)?;
    let long = "x".repeat(250);
    let names = ["Dont care", "abc!@#$", &long, "", ".", "заказы"];
    let bad = names.map(|name| outbox.add(name, Some("k"), b"x")).into_iter().collect::<Result<Vec<_>>>()?;
    let good = outbox.add(&topic, Some("k"), b"x")?;
    let summary = rig.drain()?;
    assert_eq!((summary["sent"].as_u64(), summary["failed"].as_u64()), (Some(1), Some(6)), "{summary}");
    assert_eq!(outbox.row(&good)?.status, DELIVERED);
    for (name, id) in names.iter().zip(&bad) {
        let row = outbox.row(id)?;
        let reason = row.last_error.clone().unwrap_or_default();
        println!("{name:?}: {reason}");
        assert_eq!((row.status.as_str(), row.attempts), ("dead", 1), "{name:?}: {row:?}");
        assert!(reason.contains("topic"), "{name:?}: {reason}");
    }
    Ok(())
}

/// Case 8 (logstash-output-kafka#190): payloads about as large as may be. The limit is found out: it is the greatest that passes.
#[test]
fn case_08_what_is_too_large_is_dead_at_its_first_attempt_and_one_byte_less_passes() -> Result<()> {
    const LIMIT: usize = 20_000;
    let Some((database, kafka, topic)) = services()? else { return Ok(()) };
    // The broker takes more than the client is allowed to send: nothing that is refused has been sent.
    kafka.create_topic(&topic, 1)?;
    let change = |config: Config| config.set("publishers.events.config.max_request_bytes", i64::try_from(LIMIT).unwrap_or_default());
    let (mut outbox, rig) = stage(&database, &kafka, change)?;
    // What is around a payload in a record and a batch is less than this.
    let mut sizes: Vec<usize> = (LIMIT - 200..=LIMIT + 1).collect();
    sizes.push(2 * LIMIT);
    let ids = sizes.iter().map(|size| outbox.add(&topic, Some("k"), &vec![b'x'; *size])).collect::<Result<Vec<_>>>()?;
    rig.drain()?;
    let rows = outbox.rows()?;
    assert_eq!(rows.iter().map(|row| &row.id).collect::<Vec<_>>(), ids.iter().collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row.attempts == 1), "nothing is tried twice");
    let dead: Vec<bool> = rows.iter().map(|row| row.status == "dead").collect();
    let passed = dead.iter().filter(|dead| !**dead).count();
    assert!(passed > 0 && passed < sizes.len() - 1, "{passed} of {} passed", sizes.len());
    assert!(dead.is_sorted(), "up to the limit all pass, beyond it none");
    let reason = rows[passed].last_error.clone().unwrap_or_default();
    println!("the first of {} bytes: {reason}", sizes[passed]);
    assert!(reason.contains("max_request_bytes"), "{reason}");
    let records = Reader::new(&kafka.bootstrap())?.read(&topic)?;
    let received: Vec<usize> = records.iter().map(|record| record.payload.as_deref().unwrap_or_default().len()).collect();
    assert_eq!(received, sizes[..passed]);
    Ok(())
}

#[test]
fn a_record_of_a_megabyte_passes_and_one_too_large_for_its_topic_is_told_by_the_broker() -> Result<()> {
    let Some((database, kafka, topic)) = services()? else { return Ok(()) };
    let small = format!("{topic}-small");
    kafka.create_topic(&topic, 1)?;
    kafka.create_topic_with(&small, 1, &[("max.message.bytes", "5000")])?;
    let (mut outbox, rig) = stage(&database, &kafka, same)?;
    let payload: Vec<u8> = (0..1_000_000_u32).map(|place| place.to_le_bytes()[0] ^ place.to_le_bytes()[1]).collect();
    outbox.add(&topic, Some("k"), &payload)?;
    let large = outbox.add(&small, Some("k"), &payload[..6_000])?;
    let fits = outbox.add(&small, Some("k"), &payload[..4_000])?;
    rig.drain()?;
    assert_eq!(Reader::new(&kafka.bootstrap())?.read(&topic)?[0].payload.as_deref(), Some(&payload[..]));
    let row = outbox.row(&large)?;
    assert_eq!((row.status.as_str(), row.attempts), ("dead", 1), "{row:?}");
    println!("too large for its topic: {}", row.last_error.unwrap_or_default());
    assert_eq!(outbox.row(&fits)?.status, DELIVERED);
    Ok(())
}

/// Case 14 (svix/svix-webhooks#1844): the only broker goes away in mid-run, killed and shut down, and comes back.
#[test]
fn case_14_a_broker_that_goes_away_and_comes_back_loses_nothing() -> Result<()> {
    let Some(server) = outhaul_services::postgres(Major::V17) else { return Ok(()) };
    // This broker creates topics that it is asked for: nobody else does here.
    let options = ClusterOptions { auto_create_topics: true, ..ClusterOptions::default() };
    let Some(mut cluster) = or_skip(Cluster::start(options)) else { return Ok(()) };
    let topic = "orders";
    let database = server.create_database()?;
    let fast = "publish_timeout = \"2s\"\nlease = \"5s\"\nmax_attempts = 0";
    let change = |config: Config| config.set("storages.outbox.limits.call_timeout", "3s").set_all("relays.0", fast);
    let (mut outbox, rig) = stage(&database, &cluster, change)?;
    let host = rig.host()?;
    let reader = Reader::new(&cluster.bootstrap())?;
    let mut committed = outbox.fill(topic, 10, 20)?;
    outbox.wait_until_settled()?;
    for round in 0..2 {
        if round == 0 {
            cluster.kill(0)?
        } else {
            cluster.stop(0)?
        }
        let events: Vec<Event> =
            (0..200).map(|place| Event { key: format!("k{}", place % 10), number: 21 + round * 20 + place / 10 }).collect();
        outbox.add_events(topic, &events)?;
        committed.extend(events);
        // The first attempts have failed when a row waits for its retry.
        outbox.wait_for_rows("a retry", |rows| {
            rows.iter().any(|row| row.attempts > 0 && row.leased_by.is_none() && row.status == "pending")
        })?;
        cluster.start_again(0)?;
        outbox.wait_until_settled()?;
        poll("/readyz to be 200", || Ok(host.get("/readyz")?.0 == 200))?;
    }
    host.shut_down()?;
    let accepted = reader
        .read(topic)?
        .iter()
        .map(|record| Event::from_payload(record.payload.as_deref().context("payload")?))
        .collect::<Result<Vec<_>>>()?;
    let report = Report::new(&committed, &accepted);
    println!("{report}");
    report.check(&report.duplicates)
}

/// A configuration for a listener with TLS, with the secrets' files in the rig's folder.
fn secured(kafka: &Kafka, database: &Database, listener: Listener, sasl: bool, ca: &std::path::Path) -> Result<Config> {
    let addresses = kafka.addresses(listener);
    let config = Config::to_kafka(kafka)?
        .on_postgres(&database.url())
        .set("publishers.events.allow_hosts", addresses.clone())
        .set("publishers.events.tls_ca_file", ca.to_str().context("path")?)
        .set_all("publishers.events.config", &format!("brokers = {addresses:?}\ntls = true"))
        .set("relays.0.max_attempts", 1);
    let login = format!(r#"sasl = {{ mechanism = "SCRAM-SHA-512", username = "{USER}", password = {{ secret = "kafka" }} }}"#);
    Ok(if sasl {
        config
            .set("secrets.kafka.file", "password")
            .set("publishers.events.allow_secrets", vec!["kafka"])
            .set_all("publishers.events.config", &login)
    } else {
        config
    })
}

#[test]
fn over_tls_with_a_password_records_arrive_and_every_refusal_says_why() -> Result<()> {
    let Some((database, kafka, topic)) = services()? else { return Ok(()) };
    kafka.create_topic(&topic, 2)?;
    let forbidden = format!("{topic}-forbidden");
    kafka.create_topic(&forbidden, 1)?;
    kafka.deny_writes(&format!("User:{USER}"), &forbidden)?;
    let rig = Rig::empty()?;
    let password = rig.path().join("password");
    fs::write(&password, PASSWORD)?;
    let (ca, other) = (kafka.certificates.ca(), kafka.certificates.other_ca());
    let good = secured(&kafka, &database, Listener::SaslSsl, true, &ca)?;
    rig.prepare(&good)?;
    let mut outbox = Outbox::of(&database)?;
    outbox.add(&topic, Some("k"), b"secret")?;
    assert_eq!(rig.drain()?["sent"], 1);
    assert_eq!(Reader::new(&kafka.bootstrap())?.wait_for(&topic, 1)?[0].payload.as_deref(), Some(&b"secret"[..]));

    let mut refused = |what: &str, config: &Config, topic: &str, parts: &[&str]| -> Result<()> {
        rig.configure(config)?;
        let id = outbox.add(topic, Some("k"), b"x")?;
        let drained = rig.run(&["drain", "--json"])?;
        let row = outbox.row(&id)?;
        let told = format!("{}{}", row.last_error.clone().unwrap_or_default(), drained.errors);
        println!("{what}: {}", row.last_error.unwrap_or_else(|| drained.errors.lines().last().unwrap_or_default().to_owned()));
        for part in parts {
            assert!(told.contains(part), "{what}: {part:?} is not in {told}");
        }
        assert_ne!(row.status, DELIVERED, "{what}");
        // What waits for better times would be in the way of the next one.
        outbox.client().execute("DELETE FROM outbox", &[])?;
        Ok(())
    };
    fs::write(&password, "wrong")?;
    refused("wrong password", &good, &topic, &["SCRAM-SHA-512"])?;
    fs::write(&password, PASSWORD)?;
    refused("wrong authority", &secured(&kafka, &database, Listener::SaslSsl, true, &other)?, &topic, &["certificate"])?;
    refused("expired certificate", &secured(&kafka, &database, Listener::Expired, false, &ca)?, &topic, &["expired"])?;
    refused("unknown topic", &good, &format!("{topic}-unknown"), &["unknown"])?;
    refused("forbidden topic", &good, &forbidden, &["authoriz"])?;
    Ok(())
}

#[test]
fn a_client_certificate_is_enough_where_the_broker_asks_for_one() -> Result<()> {
    let Some((database, kafka, topic)) = services()? else { return Ok(()) };
    kafka.create_topic(&topic, 1)?;
    let text = |path: std::path::PathBuf| path.to_str().map(str::to_owned).context("path");
    let config = secured(&kafka, &database, Listener::Mtls, false, &kafka.certificates.ca())?;
    let certified = config
        .clone()
        .set("publishers.events.tls_cert_file", text(kafka.certificates.client_certificate())?)
        .set("publishers.events.tls_key_file", text(kafka.certificates.client_key())?);
    let rig = Rig::new(&certified)?;
    let mut outbox = Outbox::of(&database)?;
    outbox.add(&topic, None, b"x")?;
    assert_eq!(rig.drain()?["sent"], 1);
    rig.configure(&config)?;
    let id = outbox.add(&topic, None, b"x")?;
    rig.run(&["drain", "--json"])?;
    assert_ne!(outbox.row(&id)?.status, DELIVERED, "without a certificate nobody comes in");
    Ok(())
}
