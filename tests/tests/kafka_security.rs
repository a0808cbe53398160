//! From the table to a real Kafka that wants to know who is there: logins, authorities, certificates of clients, rights; and what the
//! operator reads in the row where something is wrong. `cargo test --test kafka_security -- --nocapture` prints the texts.

use anyhow::{Context, Result};
use outhaul_services::kafka::{PASSWORD, USER};
use outhaul_services::{Cluster, ClusterOptions, Kafka, Listener, or_skip};
use outhaul_tests::kafka::Reader;
use outhaul_tests::outbox::DELIVERED;
use outhaul_tests::rig::{Config, Rig};
use std::path::PathBuf;

fn text(path: PathBuf) -> Result<String> {
    path.into_os_string().into_string().ok().context("the path is no text")
}

/// A relay to a listener of the broker, with TLS, that gives up at the first failure. Who it is and whom it trusts is still open.
fn to(kafka: &Kafka, listener: Listener) -> Result<Config> {
    let address = kafka.addresses(listener).pop().context("the shared broker has every listener")?;
    Config::parse(&format!(
        r#"
        [log]
        format = "json"
        [admin]
        listen = "127.0.0.1:0"
        [databases.main]
        url = "sqlite:outbox.db"
        [storages.outbox]
        plugin = "sqlite-storage"
        database = "main"
        config = {{ table = "outbox" }}
        [publishers.kafka]
        plugin = "kafka-publisher"
        allow_hosts = ["{address}"]
        config = {{ brokers = ["{address}"], tls = true }}
        [[relays]]
        name = "orders"
        storage = "outbox"
        routes = [ {{ topic = "*", publisher = "kafka" }} ]
        max_attempts = 1
        publish_timeout = "5s"
        "#
    ))
}

fn trusting(config: Config, authority: PathBuf) -> Result<Config> {
    Ok(config.set("publishers.kafka.tls_ca_file", text(authority)?))
}

/// With a user's name, and the password from a secret that [`with_password`] writes.
fn logging_in(config: Config, mechanism: &str) -> Config {
    config.set("secrets.kafka.file", "password").set("publishers.kafka.allow_secrets", vec!["kafka"]).set_all(
        "publishers.kafka.config",
        &format!("sasl = {{ mechanism = \"{mechanism}\", username = \"{USER}\", password = {{ secret = \"kafka\" }} }}"),
    )
}

fn with_password(config: &Config, password: &str) -> Result<Rig> {
    let rig = Rig::new(config)?;
    std::fs::write(rig.path().join("password"), password)?;
    Ok(rig)
}

/// A topic of one partition that no other test knows.
fn topic(kafka: &Kafka, name: &str) -> Result<String> {
    let name = format!("security-{name}-{}", std::process::id());
    kafka.create_topic(&name, 1)?;
    Ok(name)
}

/// Relays one message; why it was not delivered, if it was not.
fn attempt(rig: &Rig, topic: &str, payload: &[u8]) -> Result<Option<String>> {
    let id = rig.outbox()?.add(topic, Some("key"), payload)?;
    rig.drain()?;
    let row = rig.outbox()?.row(&id)?;
    if row.status == DELIVERED {
        return Ok(None);
    }
    let reason = row.last_error.with_context(|| format!("no reason was recorded: {}", row.status))?;
    println!("{reason}\n");
    Ok(Some(reason))
}

fn refused(rig: &Rig, topic: &str, said: &[&str]) -> Result<()> {
    refused_with(rig, topic, b"secret", said)
}

fn refused_with(rig: &Rig, topic: &str, payload: &[u8], said: &[&str]) -> Result<()> {
    let reason = attempt(rig, topic, payload)?.context("it was delivered")?;
    for said in said {
        assert!(reason.contains(said), "{said} is missing in: {reason}");
    }
    assert!(!reason.contains(PASSWORD), "{reason}");
    Ok(())
}

/// Payloads of a topic's only partition, read by librdkafka without password and TLS.
fn read_back(kafka: &Kafka, topic: &str, count: usize) -> Result<Vec<Vec<u8>>> {
    let records = Reader::new(&kafka.bootstrap())?.wait_for(topic, count)?;
    Ok(records.into_iter().map(|record| record.payload.unwrap_or_default()).collect())
}

#[test]
fn every_mechanism_logs_in_over_tls() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = topic(&kafka, "right")?;
    for (count, mechanism) in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"].into_iter().enumerate() {
        let config = trusting(logging_in(to(&kafka, Listener::SaslSsl)?, mechanism), kafka.certificates.ca())?;
        let rig = with_password(&config, PASSWORD)?;
        assert_eq!(attempt(&rig, &topic, mechanism.as_bytes())?, None);
        assert_eq!(read_back(&kafka, &topic, count + 1)?.last().map(Vec::as_slice), Some(mechanism.as_bytes()));
    }
    Ok(())
}

#[test]
fn large_messages_and_many_go_through_tls_as_they_are() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = topic(&kafka, "large")?;
    let config = trusting(logging_in(to(&kafka, Listener::SaslSsl)?, "SCRAM-SHA-512"), kafka.certificates.ca())?;
    let rig = with_password(&config, PASSWORD)?;
    let payloads: Vec<Vec<u8>> = (0..40_u8).map(|number| vec![number; 20_000 * usize::from(number)]).collect();
    for payload in &payloads {
        rig.outbox()?.add(&topic, Some("key"), payload)?;
    }
    rig.drain()?;
    assert_eq!(rig.outbox()?.count(DELIVERED)?, payloads.len());
    assert!(read_back(&kafka, &topic, payloads.len())? == payloads, "what was read is not what was written");
    Ok(())
}

#[test]
fn a_wrong_password_or_user_is_told_in_the_brokers_words() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = topic(&kafka, "password")?;
    for mechanism in ["PLAIN", "SCRAM-SHA-512"] {
        let config = trusting(logging_in(to(&kafka, Listener::SaslSsl)?, mechanism), kafka.certificates.ca())?;
        let rig = with_password(&config, "wrong")?;
        refused(&rig, &topic, &["unauthorized: ", &format!("the broker refused the login of `{USER}`: ")])?;
    }
    Ok(())
}

#[test]
fn a_broker_that_is_not_to_be_trusted_gets_nothing() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = topic(&kafka, "trust")?;
    let config = logging_in(to(&kafka, Listener::SaslSsl)?, "SCRAM-SHA-512");
    let rig = with_password(&config, PASSWORD)?;
    let unknown = "TLS with 127.0.0.1 failed: its certificate was issued by an unknown authority";
    refused(&rig, &topic, &["network: ", unknown, ": add tls_ca_file = \"FILE.pem\" under [publishers.kafka]"])?;
    let rig = with_password(&trusting(config, kafka.certificates.other_ca())?, PASSWORD)?;
    refused(&rig, &topic, &[unknown, ", which is neither one of the system's nor in tls_ca_file ("])?;
    let rig = Rig::new(&trusting(to(&kafka, Listener::Expired)?, kafka.certificates.ca())?)?;
    refused(&rig, &topic, &["TLS with 127.0.0.1 failed: its certificate has expired at 2020-12-31T00:00:00Z"])
}

#[test]
fn tls_is_told_from_its_absence() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = topic(&kafka, "absence")?;
    let rig = Rig::new(&trusting(to(&kafka, Listener::Plaintext)?, kafka.certificates.ca())?)?;
    refused(&rig, &topic, &["TLS with 127.0.0.1 failed: the other side hung up during the handshake: does it speak TLS on this port?"])?;
    let rig = Rig::new(&to(&kafka, Listener::SaslSsl)?.set("publishers.kafka.config.tls", false))?;
    refused(&rig, &topic, &["TLS"])
}

#[test]
fn a_client_certificate_is_as_good_as_a_password() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = topic(&kafka, "mtls")?;
    let certificates = &kafka.certificates;
    let without = trusting(to(&kafka, Listener::Mtls)?, certificates.ca())?;
    let with = |certificate: PathBuf, key: PathBuf| -> Result<Config> {
        let config = without.clone().set("publishers.kafka.tls_cert_file", text(certificate)?);
        Ok(config.set("publishers.kafka.tls_key_file", text(key)?))
    };
    refused(
        &Rig::new(&without)?,
        &topic,
        &["it asks for a client certificate", "add tls_cert_file and tls_key_file under [publishers.kafka]"],
    )?;
    let other = with(certificates.other_client_certificate(), certificates.other_client_key())?;
    refused(&Rig::new(&other)?, &topic, &["it refuses the client certificate in tls_cert_file ("])?;
    let right = with(certificates.client_certificate(), certificates.client_key())?;
    assert_eq!(attempt(&Rig::new(&right)?, &topic, b"certified")?, None);
    assert_eq!(read_back(&kafka, &topic, 1)?, [b"certified"]);
    Ok(())
}

#[test]
fn what_the_broker_does_not_allow_is_told_with_what_would() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let config = trusting(logging_in(to(&kafka, Listener::SaslSsl)?, "SCRAM-SHA-512"), kafka.certificates.ca())?;
    let rig = with_password(&config, PASSWORD)?;

    refused(&rig, "security-nowhere", &["unavailable: topic security-nowhere: the topic does not exist", "UNKNOWN_TOPIC_OR_PARTITION 3"])?;

    let small = format!("security-small-{}", std::process::id());
    kafka.create_topic_with(&small, 1, &[("max.message.bytes", "10000")])?;
    refused_with(
        &rig,
        &small,
        &[b'x'; 20_000],
        &["too-large: ", "larger than the topic takes (`max.message.bytes`)", "MESSAGE_TOO_LARGE 10"],
    )?;

    let forbidden = topic(&kafka, "forbidden")?;
    kafka.deny_writes(&format!("User:{USER}"), "security-forbidden-")?;
    refused(&rig, &forbidden, &["unauthorized: ", "this user may not write to the topic", "TOPIC_AUTHORIZATION_FAILED 29"])?;
    Ok(())
}

/// The others are known from what the first one says of them; all of them have one address, and a port each.
#[test]
fn every_broker_of_a_cluster_must_be_granted_and_the_others_go_on() -> Result<()> {
    let options = ClusterOptions { brokers: 3, sasl_ssl: true, ..ClusterOptions::default() };
    let Some(cluster) = or_skip(Cluster::start(options)) else { return Ok(()) };
    let topic = "security-cluster";
    cluster.create_topic(topic, 6)?;
    let addresses = cluster.addresses(Listener::SaslSsl);
    let config = |granted: &[String]| -> Result<Config> {
        let config = to(&cluster, Listener::SaslSsl)?.set("publishers.kafka.config.brokers", vec![addresses[0].clone()]);
        let config = trusting(logging_in(config, "SCRAM-SHA-512"), cluster.certificates.ca())?;
        Ok(config.set("publishers.kafka.allow_hosts", granted.to_vec()))
    };
    let rig = with_password(&config(&addresses[..2])?, PASSWORD)?;
    for key in 0..60 {
        rig.outbox()?.add(topic, Some(&key.to_string()), b"x")?;
    }
    rig.drain()?;
    let rows = rig.outbox()?.rows()?;
    let delivered = rows.iter().filter(|row| row.status == DELIVERED).count();
    assert!((1..60).contains(&delivered), "{delivered} of 60 went to the two that are granted");
    for row in rows.iter().filter(|row| row.status != DELIVERED) {
        let reason = row.last_error.as_deref().context("no reason was recorded")?;
        assert!(reason.contains(&format!("{} is not granted: set allow_hosts = [", addresses[2])), "{reason}");
    }
    assert_eq!(Reader::new(&cluster.bootstrap())?.wait_for(topic, delivered)?.len(), delivered);

    let rig = with_password(&config(&addresses)?, PASSWORD)?;
    for key in 0..60 {
        rig.outbox()?.add(topic, Some(&key.to_string()), b"y")?;
    }
    rig.drain()?;
    assert_eq!(rig.outbox()?.count(DELIVERED)?, 60);
    Ok(())
}

#[test]
fn a_broker_that_is_not_granted_is_denied_with_the_line_to_add() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let topic = topic(&kafka, "grants")?;
    let address = kafka.addresses(Listener::Mtls).pop().context("the shared broker has every listener")?;
    for tls in [true, false] {
        let config = to(&kafka, Listener::Mtls)?.set("publishers.kafka.allow_hosts", vec!["kafka.example.com:9092"]);
        let rig = Rig::new(&config.set("publishers.kafka.config.tls", tls))?;
        let line = format!("set allow_hosts = [\"kafka.example.com:9092\", \"{address}\"] under [publishers.kafka]");
        refused(&rig, &topic, &["invalid-configuration: ", &line])?;
    }
    Ok(())
}
