//! What is seen from outside: health, readiness, metrics, and the ways to wake an idle host.

use anyhow::Result;
use outhaul_tests::host::Host;
use outhaul_tests::outbox::{self, DELIVERED};
use outhaul_tests::process::poll;
use outhaul_tests::receiver::{Answer, Gate, Receiver};
use outhaul_tests::rig::{Config, Rig};
use rustix::process::Signal;

/// An idle host that would not look again for ten minutes.
const ASLEEP: &str = r#"poll = { min = "10m", max = "10m", wake_check = "10m" }"#;

#[test]
fn health_and_metrics_tell_what_happened() -> Result<()> {
    let receiver = Receiver::start(|request| {
        Answer::status(match (request.path.as_str(), request.earlier) {
            ("/bad", _) => 400,
            ("/slow", 0) => 503,
            _ => 204,
        })
    })?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    let host = rig.host()?;
    assert_eq!(host.get("/healthz")?.0, 200);
    let outbox = rig.outbox()?;
    for topic in ["good", "bad", "slow", "good"] {
        outbox.add(topic, None, b"x")?;
    }
    receiver.wait_for_accepted(3)?;
    assert_eq!(host.get("/readyz")?.0, 200);
    assert_eq!(host.get("/nothing")?.0, 404);
    for (name, value) in [("outhaul_delivered_total", 3.0), ("outhaul_retried_total", 1.0), ("outhaul_dead_total", 1.0)] {
        host.wait_for_metric(name, value)?;
        let is = host.metric(name)?;
        assert!((is - value).abs() < 0.5, "{name} is {is}, expected {value}");
    }
    assert!(host.metric("outhaul_in_flight")?.abs() < 0.5);
    assert!(host.metric("outhaul_claimed_total")? >= 5.0);
    assert!(host.metric("outhaul_adapter_calls_total")? > 0.0);
    for call in ["claim", "settle", "publish"] {
        is_histogram(&host, &format!("outhaul_{call}_duration_seconds"))?;
    }
    host.shut_down()
}

/// Of each series, buckets that grow up to the number of observations, from a millisecond on; and something was observed.
fn is_histogram(host: &Host, name: &str) -> Result<()> {
    let text = host.metrics()?;
    assert!(text.contains(&format!("# TYPE {name} histogram\n")), "{text}");
    let counts = text
        .lines()
        .filter(|line| line.starts_with(&format!("{name}_bucket{{")))
        .map(|line| Ok((line, line.rsplit(' ').next().unwrap_or_default().parse::<u64>()?)))
        .collect::<Result<Vec<_>>>()?;
    assert!(counts.len() > 10 && counts[0].0.contains("le=\"0.001\""), "{name}: {counts:?}");
    assert!(counts.is_sorted_by_key(|(_, count)| count), "{name}: {counts:?}");
    let (last, all) = counts[counts.len() - 1];
    assert!(last.contains("le=\"+Inf\"") && all > 0, "{name}: {last}");
    assert!(text.contains(&format!("{name}_count{{")) && host.metric(&format!("{name}_sum"))? > 0.0, "{text}");
    Ok(())
}

/// Waits until a gauge has this very value.
fn wait_for_gauge(host: &Host, name: &str, value: f64) -> Result<()> {
    poll(&format!("{name} to be {value}"), || Ok((host.metric(name)? - value).abs() < 0.5))
}

#[test]
fn metrics_show_what_waits_and_what_is_under_way() -> Result<()> {
    let gate = Gate::closed();
    let receiver = Receiver::start({
        let gate = gate.clone();
        move |_| Answer::status(204).behind(&gate)
    })?;
    let rig = Rig::new(&Config::to(receiver.address())?.set("admin.stats_interval", "50ms"))?;
    let host = rig.host()?;
    let outbox = rig.outbox()?;
    for _ in 0..3 {
        outbox.add("orders", None, b"twelve bytes")?;
    }
    receiver.wait_for_requests(1)?;
    // The receiver holds them: they are claimed, and neither delivered nor dead.
    wait_for_gauge(&host, "outhaul_in_flight", 3.0)?;
    assert!(host.metric("outhaul_in_flight_size_bytes")? >= 3.0 * 12.0, "{}", host.metrics()?);
    wait_for_gauge(&host, "outhaul_backlog", 3.0)?;
    host.wait_for_metric("outhaul_oldest_pending_seconds", 0.2)?;
    wait_for_gauge(&host, "outhaul_backlog_due", 0.0)?;
    gate.open();
    receiver.wait_for_accepted(3)?;
    for name in ["outhaul_in_flight", "outhaul_in_flight_size_bytes", "outhaul_backlog"] {
        wait_for_gauge(&host, name, 0.0)?;
    }
    poll("nothing to be pending", || Ok(host.metric("outhaul_oldest_pending_seconds")?.abs() < 0.01))?;
    host.shut_down()
}

#[test]
fn what_waits_behind_a_failure_of_its_key_is_counted_as_held() -> Result<()> {
    let receiver = Receiver::start(|request| Answer::status(if request.path == "/first" && request.earlier == 0 { 503 } else { 204 }))?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    let host = rig.host()?;
    let mut table = rig.outbox()?;
    // In one transaction, so that they are claimed at once.
    let transaction = table.connection().transaction()?;
    outbox::insert(&transaction, "first", Some("k"), b"x")?;
    outbox::insert(&transaction, "second", Some("k"), b"x")?;
    transaction.commit()?;
    let requests = receiver.wait_for_accepted(2)?;
    assert_eq!(requests.iter().map(|request| request.path.as_str()).collect::<Vec<_>>(), ["/first", "/first", "/second"]);
    table.wait_for_rows("both to be settled", |rows| rows.iter().all(|row| row.status == DELIVERED))?;
    assert!((host.metric("outhaul_held_total")? - 1.0).abs() < 0.5, "{}", host.metrics()?);
    host.shut_down()
}

#[test]
fn faults_and_restarts_of_adapters_are_counted_from_zero() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let config = Config::to(receiver.address())?.with_evil_publisher().set("relays.0.max_attempts", 1);
    let rig = Rig::with_fixtures(&config)?;
    let mut host = rig.host()?;
    // By then every adapter is open.
    host.process().errors().wait_for_line("relay started")?;
    let outbox = rig.outbox()?;
    let samples = |expected: &[(&str, u64)]| -> Result<()> {
        let text = host.metrics()?;
        for (name, value) in expected {
            assert!(text.lines().any(|line| line == format!("outhaul_adapter_{name} {value}")), "{name} is not {value} in:\n{text}");
        }
        Ok(())
    };
    // Before the first fault the series are there already, so that `increase()` sees it.
    let still = [
        ("faults_total{adapter=\"webhooks\",call=\"publish\"}", 0),
        ("faults_total{adapter=\"outbox\",call=\"claim\"}", 0),
        ("faults_total{adapter=\"evil\",call=\"open\"}", 0),
        ("restarts_total{adapter=\"webhooks\"}", 0),
        ("restarts_total{adapter=\"outbox\"}", 0),
    ];
    samples(&still)?;
    samples(&[("faults_total{adapter=\"evil\",call=\"publish\"}", 0), ("restarts_total{adapter=\"evil\"}", 0)])?;
    for payload in ["panic", "innocent"] {
        let id = outbox.add("evil", None, payload.as_bytes())?;
        outbox.wait_for_rows("the row to be settled", |rows| rows.iter().all(|row| row.id != id || row.status != "pending"))?;
    }
    samples(&still)?;
    samples(&[
        ("calls_total{adapter=\"evil\",call=\"open\"}", 2),
        ("calls_total{adapter=\"evil\",call=\"publish\"}", 2),
        ("faults_total{adapter=\"evil\",call=\"publish\"}", 1),
        ("restarts_total{adapter=\"evil\"}", 1),
    ])?;
    assert_eq!((outbox.count("dead")?, outbox.count(DELIVERED)?), (1, 1));
    host.shut_down()
}

#[test]
fn an_idle_host_is_woken_by_post_and_by_sighup() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let rig = Rig::new(&Config::to(receiver.address())?.set_all("relays.0", ASLEEP))?;
    let mut host = rig.host()?;
    let outbox = rig.outbox()?;
    outbox.add("first", None, b"x")?;
    assert!(host.post("/wake")?.0 < 300);
    receiver.wait_for_accepted(1)?;
    outbox.add("second", None, b"x")?;
    host.process().signal(Signal::HUP)?;
    receiver.wait_for_accepted(2)?;
    host.shut_down()
}

#[test]
fn a_commit_wakes_a_host_long_before_it_would_look() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let config = Config::to(receiver.address())?.set_all("relays.0", r#"poll = { min = "10m", max = "10m", wake_check = "10ms" }"#);
    let rig = Rig::new(&config)?;
    let host = rig.host()?;
    let outbox = rig.outbox()?;
    for count in 1..=3 {
        outbox.add("orders", None, b"x")?;
        receiver.wait_for_accepted(count)?;
    }
    host.shut_down()
}

#[test]
fn readiness_goes_red_and_green_with_the_storage() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    let mut host = rig.host()?;
    let mut outbox = rig.outbox()?;
    outbox.connection().execute_batch("ALTER TABLE outbox RENAME TO away")?;
    host.process().errors().wait_for_line("the storage fails")?;
    let (status, text) = host.get("/readyz")?;
    assert!(status == 503 && text.contains("outbox"), "{status} {text}");
    assert_eq!(host.get("/healthz")?.0, 200, "the process itself is well");
    outbox.connection().execute_batch("ALTER TABLE away RENAME TO outbox")?;
    host.process().errors().wait_for_line("the storage answers again")?;
    assert_eq!(host.get("/readyz")?.0, 200);
    outbox.add("orders", None, b"x")?;
    receiver.wait_for_accepted(1)?;
    host.shut_down()
}
