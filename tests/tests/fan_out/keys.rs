//! Key versions: new rows take the newest, old rows open with theirs, `rekey` moves them.

use anyhow::{Context, Result};
use outhaul_tests::fan_out::plan::write_key;
use outhaul_tests::fan_out::{Ground, Plan, Stage};
use outhaul_tests::on_each_storage;
use outhaul_tests::process::poll;
use outhaul_tests::receiver::{Answer, Gate};
use outhaul_tests::rig::Config;
use std::collections::BTreeMap;

on_each_storage!(
    a_key_is_rotated_in_mid_run,
    a_key_version_that_is_not_configured_is_an_integrity_failure,
    another_key_under_the_same_version_is_an_integrity_failure,
    a_key_that_cannot_be_read_for_now_ends_nothing,
    rekey_moves_rows_to_the_newest_key,
    a_relay_that_begins_anew_does_not_say_that_it_runs,
);

/// Two keys, the first one for new rows.
fn with_both(config: Config) -> Config {
    config
        .set("secrets.newer.file", "newer.key")
        .set_all("relays.0.fan_out", r#"keys = [ { version = "k2", secret = "newer" }, { version = "k1", secret = "sealing" } ]"#)
}

fn with_new_only(config: Config) -> Config {
    config.set("secrets.newer.file", "newer.key").set_all("relays.0.fan_out", r#"keys = [ { version = "k2", secret = "newer" } ]"#)
}

/// Deliveries by key version.
fn versions(stage: &mut Stage) -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for delivery in stage.database.deliveries()? {
        *counts.entry(delivery.key_version).or_default() += 1;
    }
    Ok(counts)
}

fn a_key_is_rotated_in_mid_run(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("crm")?;
    stage.database.hold_deliveries()?;
    let mut host = stage.host()?;
    for number in 1..=20 {
        stage.event("orders", Some("k"), number.to_string().as_bytes())?;
    }
    stage.database.wait_for_deliveries("twenty", |all| all.len() == 20)?;
    write_key(stage.rig.path(), "newer", 2)?;
    stage.reconfigure(with_both)?;
    host.reload("applied")?;
    for number in 21..=40 {
        stage.event("orders", Some("k"), number.to_string().as_bytes())?;
    }
    stage.database.wait_for_deliveries("forty", |all| all.len() == 40)?;
    assert_eq!(versions(&mut stage)?, BTreeMap::from([("k1".to_owned(), 20), ("k2".to_owned(), 20)]));
    stage.database.release_deliveries()?;
    let ended = stage.database.wait_for_ended(40)?;
    assert!(ended.iter().all(|one| one.outcome() == ("complete", None)), "{ended:?}");
    let bodies: Vec<u64> =
        stage.requests("crm").iter().map(|request| Ok(std::str::from_utf8(&request.body)?.parse()?)).collect::<Result<_>>()?;
    assert_eq!(bodies, (1..=40).collect::<Vec<_>>(), "in order, across the rotation");
    host.shut_down()
}

/// A delivery under the first key that waits.
fn waiting(ground: Ground<'_>) -> Result<Stage> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("crm")?;
    stage.database.hold_deliveries()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    assert_eq!(stage.database.delivery("crm")?.key_version, "k1");
    Ok(stage)
}

fn a_key_version_that_is_not_configured_is_an_integrity_failure(ground: Ground<'_>) -> Result<()> {
    let mut stage = waiting(ground)?;
    write_key(stage.rig.path(), "newer", 2)?;
    stage.reconfigure(with_new_only)?;
    stage.lose_subscriptions()?;
    stage.database.release_deliveries()?;
    stage.rig.drain()?;
    let delivery = stage.database.delivery("crm")?;
    assert_eq!(delivery.outcome(), ("quarantined", Some("integrity_failure")));
    assert!(delivery.error.as_ref().is_some_and(|error| error.contains("k1")), "it says which version: {delivery:?}");
    assert_eq!(stage.receiver.requests().len(), 0);
    Ok(())
}

fn another_key_under_the_same_version_is_an_integrity_failure(ground: Ground<'_>) -> Result<()> {
    let mut stage = waiting(ground)?;
    write_key(stage.rig.path(), "sealing", 9)?;
    stage.database.release_deliveries()?;
    stage.rig.drain()?;
    assert_eq!(stage.database.delivery("crm")?.outcome(), ("quarantined", Some("integrity_failure")));
    assert_eq!(stage.receiver.requests().len(), 0);
    Ok(())
}

fn a_key_that_cannot_be_read_for_now_ends_nothing(ground: Ground<'_>) -> Result<()> {
    let mut stage = waiting(ground)?;
    let (key, away) = (stage.rig.path().join("sealing.key"), stage.rig.path().join("sealing.away"));
    std::fs::rename(&key, &away)?;
    stage.database.release_deliveries()?;
    // Whether it says so at once, or waits for the key: nothing is ended and nothing is sent.
    let tried = stage.rig.run(&["drain", "--json"])?;
    assert!(tried.errors.contains("sealing"), "it says which secret: {tried:?}");
    assert_eq!((stage.database.delivery("crm")?.state, stage.receiver.requests().len()), ("pending".to_owned(), 0));
    std::fs::rename(&away, &key)?;
    stage.database.run("UPDATE outbox_deliveries SET leased_by = NULL")?;
    stage.database.make_due()?;
    stage.rig.drain()?;
    assert_eq!((stage.database.delivery("crm")?.state, stage.requests("crm").len()), ("complete".to_owned(), 1));
    Ok(())
}

fn rekey_moves_rows_to_the_newest_key(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("a")?;
    stage.subscribe("b")?;
    stage.database.hold_deliveries()?;
    for number in 0..30 {
        stage.event("orders", Some(&format!("k{number}")), b"x")?;
    }
    stage.rig.drain()?;
    // One that does not open is reported and left as it is.
    stage.database.run("UPDATE outbox_deliveries SET principal_id = 'edited' WHERE seq = (SELECT min(seq) FROM outbox_deliveries)")?;
    write_key(stage.rig.path(), "newer", 2)?;
    stage.reconfigure(with_both)?;
    let before = stage.database.deliveries()?;
    let rekeyed = stage.fanout("rekey", &["--json"])?;
    let answer: serde_json::Value = serde_json::from_str(&rekeyed.output).with_context(|| format!("not JSON: {rekeyed:?}"))?;
    assert_eq!((&answer["resealed"], &answer["version"]), (&59.into(), &"k2".into()), "{answer}");
    let left = answer["left"].as_array().context("what was left")?;
    assert!(rekeyed.code != Some(0) && left.len() == 1 && left[0]["id"] == before[0].id.as_str(), "{rekeyed:?}");
    assert_eq!(versions(&mut stage)?, BTreeMap::from([("k1".to_owned(), 1), ("k2".to_owned(), 59)]));
    let same = |deliveries: &[outhaul_tests::fan_out::rows::Delivery]| -> Vec<(String, String, u64)> {
        deliveries.iter().map(|one| (one.id.clone(), one.idempotency_key.clone(), one.attempts)).collect()
    };
    assert_eq!(same(&stage.database.deliveries()?), same(&before), "nothing else of them changes");
    // The old key is not needed any more but for the one that was left.
    stage.reconfigure(with_new_only)?;
    stage.database.release_deliveries()?;
    stage.rig.drain()?;
    let ended = stage.database.wait_for_ended(60)?;
    assert_eq!(ended.iter().filter(|one| one.outcome() == ("complete", None)).count(), 59);
    assert_eq!(stage.receiver.requests().len(), 59);
    Ok(())
}

/// Between two turns of a relay its key is looked at, which here takes as long as it likes: the file is a pipe.
fn a_relay_that_begins_anew_does_not_say_that_it_runs(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("crm")?;
    let gate = Gate::closed();
    stage.answer("crm", Answer::status(204).behind(&gate));
    let mut host = stage.ready_host()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.wait_for_requests("crm", 1)?;
    stage.reconfigure(|config| config.set("relays.0.fan_out.max_subscribers", 7))?;
    host.reload("applied")?;
    host.process().errors().wait_for_line("begins anew")?;
    let (key, pipe) = (stage.rig.path().join("sealing.key"), stage.rig.path().join("pipe"));
    let content = std::fs::read(&key)?;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600))?;
    std::fs::hard_link(&pipe, stage.rig.path().join("linked"))?;
    std::fs::rename(stage.rig.path().join("linked"), &key)?;
    gate.open();
    poll("the relay to be opening", || {
        let (status, text) = host.get("/readyz")?;
        Ok(status == 503 && text.contains("\"state\":\"opening\""))
    })?;
    // From then on it is a file again, and the one who reads the pipe gets it.
    std::fs::write(stage.rig.path().join("good"), &content)?;
    std::fs::rename(stage.rig.path().join("good"), &key)?;
    std::fs::write(&pipe, &content)?;
    poll("the relay to run", || Ok(host.get("/readyz")?.0 == 200))?;
    stage.event("orders", Some("k"), b"y")?;
    stage.wait_for_accepted("crm", 2)?;
    host.shut_down()
}
