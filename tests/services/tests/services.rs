//! The services themselves: what a test may rely on.

use anyhow::{Context, Result};
use outhaul_services::kafka::{self, Cluster, ClusterOptions, Listener};
use outhaul_services::postgres::{Major, Postgres, ServerOptions};
use std::process::Stdio;

#[test]
fn each_major_version_is_the_one_that_it_says() -> Result<()> {
    for major in Major::ALL {
        let Some(server) = outhaul_services::postgres(major) else { continue };
        let version: String = server.connect("postgres")?.query_one("SHOW server_version", &[])?.get(0);
        assert!(version.starts_with(&format!("{major}.")), "{version}");
        let fsync: String = server.connect("postgres")?.query_one("SHOW fsync", &[])?.get(0);
        assert_eq!(fsync, "on", "what is measured here is true");
    }
    Ok(())
}

#[test]
fn databases_are_of_one_test_and_go_with_it() -> Result<()> {
    let Some(server) = outhaul_services::postgres(Major::V17) else { return Ok(()) };
    let (one, two) = (server.create_database()?, server.create_database()?);
    one.connect()?.batch_execute("CREATE TABLE t (id int)")?;
    assert!(two.connect()?.batch_execute("SELECT * FROM t").is_err());
    let name = one.name().to_owned();
    // A connection that is still there does not keep it.
    let _connection = one.connect()?;
    drop(one);
    let left = server.connect("postgres")?.query("SELECT 1 FROM pg_database WHERE datname = $1", &[&name])?;
    assert!(left.is_empty());
    Ok(())
}

#[test]
fn the_pooler_gives_each_transaction_any_connection() -> Result<()> {
    let Some(pooler) = outhaul_services::pgbouncer() else { return Ok(()) };
    let database = pooler.server.create_database()?;
    let mut first = outhaul_services::postgres::connect(&pooler.url(database.name()))?;
    let mut second = outhaul_services::postgres::connect(&pooler.url(database.name()))?;
    let backend = "SELECT pg_backend_pid()";
    let mut pid = |open: bool| -> Result<i32> {
        if open {
            let mut transaction = first.transaction()?;
            let pid: i32 = transaction.query_one(backend, &[])?.get(0);
            let other: i32 = second.query_one(backend, &[])?.get(0);
            assert_ne!(pid, other, "while one transaction is open the other has another connection");
            transaction.commit()?;
            return Ok(pid);
        }
        Ok(second.query_one(backend, &[])?.get(0))
    };
    pid(true)?;
    // The last one that was given back is given out next, to whoever asks.
    let shared = pid(false)?;
    assert_eq!(first.query_one(backend, &[])?.get::<_, i32>(0), shared);
    Ok(())
}

#[test]
fn a_killed_server_comes_back_with_what_was_committed() -> Result<()> {
    for major in Major::ALL {
        let options = ServerOptions { fsync: false, ..ServerOptions::default() };
        let Some(mut server) = outhaul_services::or_skip(Postgres::start_with(major, &options)) else { continue };
        let database = server.create_database()?;
        database.connect()?.batch_execute("CREATE TABLE t (id int); INSERT INTO t VALUES (7)")?;
        let mut busy = database.connect()?;
        server.kill()?;
        assert!(busy.batch_execute("SELECT 1").is_err());
        assert!(database.connect().is_err());
        server.start_again()?;
        let id: i32 = database.connect()?.query_one("SELECT id FROM t", &[])?.get(0);
        assert_eq!(id, 7);
        server.restart()?;
        database.connect()?;
    }
    Ok(())
}

#[test]
fn the_shared_broker_takes_passwords_over_tls() -> Result<()> {
    let Some(kafka) = outhaul_services::kafka() else { return Ok(()) };
    let address = kafka.addresses(Listener::SaslSsl).join(",");
    let topic = format!("sasl-{:08x}", rand::random::<u32>());
    kafka.create_topic(&topic, 3)?;
    let describe = |password: &str| -> Result<std::process::Output> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("client.properties");
        let login = "org.apache.kafka.common.security.scram.ScramLoginModule";
        let lines = [
            "security.protocol=SASL_SSL".to_owned(),
            "sasl.mechanism=SCRAM-SHA-512".to_owned(),
            format!("sasl.jaas.config={login} required username=\"{}\" password=\"{password}\";", kafka::USER),
            "ssl.truststore.type=PEM".to_owned(),
            format!("ssl.truststore.location={}", kafka.certificates.ca().display()),
        ];
        std::fs::write(&file, lines.join("\n"))?;
        let mut command = kafka.java().command("org.apache.kafka.tools.TopicCommand");
        command.args(["--bootstrap-server", &address, "--describe", "--topic", &topic, "--command-config"]).arg(&file);
        command.stdin(Stdio::null()).output().context("cannot run java")
    };
    let output = describe(kafka::PASSWORD)?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("PartitionCount: 3"), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let refused = describe("wrong")?;
    assert!(!refused.status.success());
    Ok(())
}

#[test]
fn three_brokers_go_on_with_two() -> Result<()> {
    let options = ClusterOptions { brokers: 3, ..ClusterOptions::default() };
    let Some(mut cluster) = outhaul_services::or_skip(Cluster::start(options)) else { return Ok(()) };
    cluster.create_topic("before", 6)?;
    cluster.kill(0)?;
    assert!(!cluster.is_up(0));
    cluster.start_again(0)?;
    cluster.create_topic("after", 6)?;
    Ok(())
}
