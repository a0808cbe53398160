//! The status log: every change once, in order, and readers that share a checkpoint.

use anyhow::{Context, Result, bail};
use outhaul_tests::fan_out::{Ground, Plan, Stage, TENANT};
use outhaul_tests::host::Host;
use outhaul_tests::on_each_storage;
use outhaul_tests::receiver::Answer;
use serde_json::Value;
use std::collections::BTreeMap;

on_each_storage!(
    every_change_is_logged_once_in_order_and_without_gaps,
    pages_follow_each_other,
    four_readers_race_on_one_checkpoint_by_command,
    four_readers_race_on_one_checkpoint_by_the_admin_api,
    a_checkpoint_moves_only_from_where_it_is_forward_and_not_past_the_end,
    readers_and_tenants_do_not_see_each_other,
    what_is_asked_wrongly_is_refused_by_the_name_of_the_parameter,
);

fn changes(answer: &Value) -> Result<Vec<Value>> {
    answer["changes"].as_array().cloned().with_context(|| format!("no changes in {answer}"))
}

fn positions(changes: &[Value]) -> Vec<u64> {
    changes.iter().map(|change| change["position"].as_u64().unwrap_or_default()).collect()
}

/// As `subject subscriber generation state code`.
fn told(change: &Value) -> String {
    let text = |name: &str| change[name].as_str().unwrap_or("-").to_owned();
    format!("{} {} {} {} {}", text("subject"), text("subscriber"), change["generation"], text("state"), text("code"))
}

fn every_change_is_logged_once_in_order_and_without_gaps(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    for subscriber in ["good", "gone", "shaky"] {
        stage.subscribe(subscriber)?;
    }
    stage.answer("gone", Answer::status(410));
    stage.answer("shaky", Answer::status(503));
    let host = stage.ready_host()?;
    let id = stage.event("orders", Some("k"), b"x")?;
    stage.wait_for_requests("shaky", 4)?;
    stage.answer_well("shaky");
    stage.database.wait_for_ended(3)?;
    stage.resubscribe("gone", "active = FALSE")?;
    stage.fanout_json("reemit", &[&id])?;
    stage.database.wait_for_ended(5)?;
    let log = changes(&stage.fanout_json("status", &["--after", "0", "--limit", "1000"])?)?;
    assert_eq!(positions(&log), (1..=log.len() as u64).collect::<Vec<_>>());
    assert!(log.iter().all(|change| change["event"] == id.as_str()), "{log:?}");
    let log: Vec<String> = log.iter().map(told).collect();
    assert_eq!(log[0], "event - 1 expanded -");
    let count = |line: &str| log.iter().filter(|seen| seen.as_str() == line).count();
    for line in [
        "delivery good 1 complete -",
        "delivery gone 1 quarantined permanent_http",
        // However often it was tried: what it waits for has not changed.
        "delivery shaky 1 pending retryable_http",
        "delivery shaky 1 complete -",
        "event - 2 pending -",
        "event - 2 expanded -",
        "delivery good 2 complete -",
        "delivery shaky 2 complete -",
    ] {
        assert_eq!(count(line), 1, "{line:?} in {log:#?}");
    }
    assert_eq!(log.len(), 9, "{log:#?}");
    let place = |line: &str| log.iter().position(|seen| seen == line);
    assert!(place("delivery shaky 1 pending retryable_http") < place("delivery shaky 1 complete -"));
    assert!(place("event - 2 pending -") < place("event - 2 expanded -"));
    // What an operator does by hand is in it too.
    stage.database.run("UPDATE outbox_deliveries SET state = 'suppressed', error_code = 'by_hand' WHERE subscriber_id = 'gone'")?;
    let last = changes(&stage.fanout_json("status", &["--after", "9"])?)?;
    assert_eq!(last.iter().map(told).collect::<Vec<_>>(), ["delivery gone 1 suppressed by_hand"]);
    host.shut_down()
}

/// A log of so many events of one tenant.
fn with_log(ground: Ground<'_>, events: usize) -> Result<(Stage, u64)> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("crm")?;
    for _ in 0..events {
        stage.event("orders", None, b"x")?;
    }
    stage.rig.drain()?;
    stage.database.wait_for_ended(events)?;
    Ok((stage, 2 * events as u64))
}

fn pages_follow_each_other(ground: Ground<'_>) -> Result<()> {
    let (stage, last) = with_log(ground, 25)?;
    let mut seen = Vec::new();
    let mut after = 0;
    loop {
        let page = changes(&stage.fanout_json("status", &["--after", &after.to_string(), "--limit", "7"])?)?;
        assert!(page.len() <= 7);
        let Some(end) = positions(&page).last().copied() else { break };
        seen.extend(positions(&page));
        after = end;
    }
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());
    Ok(())
}

/// Lets four readers take turns until the log is at its end; returns who has taken which positions.
fn race(last: u64, step: impl Fn(usize) -> Result<Option<Vec<u64>>> + Sync) -> Result<BTreeMap<u64, usize>> {
    let taken = std::sync::Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|reader| {
                let (step, taken) = (&step, &taken);
                scope.spawn(move || -> Result<()> {
                    loop {
                        // None: another one was quicker.
                        let Some(positions) = step(reader)? else { continue };
                        if positions.is_empty() {
                            return Ok(());
                        }
                        let mut taken = taken.lock().map_err(|_| anyhow::anyhow!("a reader panicked"))?;
                        for position in positions {
                            if let Some(other) = taken.insert(position, reader) {
                                bail!("position {position} was taken by {other} and {reader}");
                            }
                        }
                    }
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))?)
    })?;
    let taken = taken.into_inner()?;
    assert_eq!(taken.keys().copied().collect::<Vec<_>>(), (1..=last).collect::<Vec<_>>(), "each position once, and all of them");
    Ok(taken)
}

fn four_readers_race_on_one_checkpoint_by_command(ground: Ground<'_>) -> Result<()> {
    let (stage, last) = with_log(ground, 20)?;
    let rig = &stage.rig;
    race(last, |_| {
        let read = ["fanout", "status", "orders", "--tenant", TENANT, "--json", "--reader", "crm", "--limit", "5", "--advance"];
        let finished = rig.run(&read)?;
        // Whoever lost the race has read and taken nothing.
        if finished.code != Some(0) {
            assert!(finished.errors.contains("checkpoint"), "{finished:?}");
            return Ok(None);
        }
        Ok(Some(positions(&changes(&finished.json()?)?)))
    })?;
    Ok(())
}

/// Asks the admin API.
fn api(host: &Host, method: &str, path: &str) -> Result<(u16, Value)> {
    let (status, text) = host.ask(method, &format!("/api/fan-out/orders/{path}"))?;
    Ok((status, serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))?))
}

fn four_readers_race_on_one_checkpoint_by_the_admin_api(ground: Ground<'_>) -> Result<()> {
    let (stage, last) = with_log(ground, 100)?;
    let host = stage.ready_host()?;
    let refusals = std::sync::atomic::AtomicUsize::new(0);
    race(last, |_| {
        let (status, checkpoint) = api(&host, "GET", &format!("checkpoints/crm?tenant={TENANT}"))?;
        assert_eq!(status, 200, "{checkpoint}");
        let expected = checkpoint["checkpoint"].as_u64().with_context(|| format!("no checkpoint in {checkpoint}"))?;
        let (status, page) = api(&host, "GET", &format!("status?tenant={TENANT}&after={expected}&limit=9"))?;
        assert_eq!(status, 200, "{page}");
        let positions = positions(&changes(&page)?);
        let Some(through) = positions.last() else { return Ok(Some(Vec::new())) };
        let (status, answer) = api(&host, "PUT", &format!("checkpoints/crm?tenant={TENANT}&expected={expected}&through={through}"))?;
        match status {
            200 => Ok(Some(positions)),
            409 => {
                refusals.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(None)
            }
            _ => bail!("{status}: {answer}"),
        }
    })?;
    println!("{} were refused", refusals.into_inner());
    host.shut_down()
}

fn a_checkpoint_moves_only_from_where_it_is_forward_and_not_past_the_end(ground: Ground<'_>) -> Result<()> {
    let (stage, last) = with_log(ground, 5)?;
    let host = stage.ready_host()?;
    let advance = |expected: u64, through: u64| -> Result<u16> {
        Ok(api(&host, "PUT", &format!("checkpoints/r?tenant={TENANT}&expected={expected}&through={through}"))?.0)
    };
    assert_eq!(advance(1, 3)?, 409, "it has not begun");
    assert_eq!(advance(0, 3)?, 200);
    assert_eq!(advance(0, 4)?, 409, "a stale expectation");
    assert_eq!(advance(3, 2)?, 400, "backwards");
    assert_eq!(advance(3, last + 1)?, 409, "past the end");
    assert_eq!(advance(3, 3)?, 200, "where it is");
    let by_command = |expected: &str, through: &str| {
        stage.fanout("status", &["--tenant", TENANT, "--reader", "r", "--expected", expected, "--through", through])
    };
    let stale = by_command("0", "4")?;
    assert!(stale.code != Some(0) && stale.errors.contains("checkpoint"), "{stale:?}");
    by_command("3", &last.to_string())?.success()?;
    let (_, checkpoint) = api(&host, "GET", &format!("checkpoints/r?tenant={TENANT}"))?;
    assert_eq!(checkpoint["checkpoint"], last);
    host.shut_down()
}

fn readers_and_tenants_do_not_see_each_other(ground: Ground<'_>) -> Result<()> {
    let (mut stage, last) = with_log(ground, 3)?;
    stage.event_of("other", "orders", None, b"x")?;
    stage.rig.drain()?;
    let other = stage.fanout("status", &["--tenant", "other", "--json"])?.json()?;
    assert_eq!(changes(&other)?.iter().map(told).collect::<Vec<_>>(), ["event - 1 expanded -"], "positions of its own");
    assert_eq!(positions(&changes(&other)?), [1]);
    let ours = stage.fanout_json("status", &["--after", "0", "--limit", "1000"])?;
    assert_eq!(positions(&changes(&ours)?).len() as u64, last);
    for reader in ["a", "b"] {
        let read = stage.fanout_json("status", &["--reader", reader, "--advance", "--limit", "1000"])?;
        assert_eq!(changes(&read)?.len() as u64, last, "each reader has a checkpoint of its own");
    }
    Ok(())
}

fn what_is_asked_wrongly_is_refused_by_the_name_of_the_parameter(ground: Ground<'_>) -> Result<()> {
    let (stage, _) = with_log(ground, 1)?;
    let host = stage.ready_host()?;
    let (long, nul) = ("r".repeat(4000), "%00");
    for (method, path, told) in [
        ("GET", format!("deliveries?tenant={TENANT}&after=garbage"), "after: "),
        ("GET", format!("deliveries?tenant={TENANT}&after={nul}"), "after: "),
        ("GET", format!("deliveries?tenant={TENANT}{nul}"), "tenant: "),
        ("GET", format!("deliveries?tenant={TENANT}&event={nul}"), "event: "),
        ("GET", format!("deliveries?tenant={TENANT}&subscriber={nul}"), "subscriber: "),
        ("GET", format!("deliveries?tenant={TENANT}&id={nul}"), "id: "),
        ("GET", format!("status?tenant={TENANT}&after=garbage"), "after: "),
        ("GET", format!("status?tenant={nul}"), "tenant: "),
        ("GET", format!("checkpoints/r{nul}?tenant={TENANT}"), "reader: "),
        ("GET", format!("checkpoints/{long}?tenant={TENANT}"), "reader: "),
        ("PUT", format!("checkpoints/{long}?tenant={TENANT}&expected=0&through=1"), "reader: has 4000 bytes, and may have 512"),
        ("PUT", format!("checkpoints/r?tenant={long}&expected=0&through=0"), "tenant: "),
        ("POST", format!("reemit?tenant={TENANT}&event={nul}"), "event: "),
    ] {
        let (status, answer) = api(&host, method, &path)?;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.contains(told), "{method} {}: {status} {answer}", path.get(..60).unwrap_or(&path));
    }
    // The longest that may be.
    let reader = "\u{e9}".repeat(256);
    stage.fanout("status", &["--tenant", TENANT, "--reader", &reader, "--expected", "0", "--through", "1"])?.success()?;
    for (command, arguments) in [
        ("list", &["--after", "garbage"][..]),
        ("status", &["--after", "garbage"]),
        ("status", &["--reader", &long]),
        ("status", &["--reader", "r", "--expected", "x", "--through", "1"]),
    ] {
        let refused = stage.fanout(command, &[&["--tenant", TENANT], arguments].concat())?;
        assert_eq!(refused.code, Some(2), "{command} {arguments:?}: {}", refused.errors);
        assert!(refused.errors.contains(arguments[if arguments.len() > 2 { 2 } else { 0 }]), "{}", refused.errors);
    }
    let refused = stage.rig.run(&["dead", "list", "--after", "garbage"])?;
    assert!(refused.code == Some(2) && refused.errors.contains("--after"), "{refused:?}");
    host.shut_down()
}
