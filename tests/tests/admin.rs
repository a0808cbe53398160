//! What is seen from outside: health, readiness, metrics, and the ways to wake an idle host.

use anyhow::Result;
use outhaul_tests::receiver::{Answer, Receiver};
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
    assert!(host.metric("outhaul_publish_duration_seconds_count")? > 0.0);
    assert!(host.metric("outhaul_settle_duration_seconds_count")? > 0.0);
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
