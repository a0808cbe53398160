//! Deliveries, each by itself: leases, attempts, order, budgets, and what every attempt sends.

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use outhaul_tests::fan_out::plan::SIGNING_KEY;
use outhaul_tests::fan_out::stage::Subscription;
use outhaul_tests::fan_out::{Ground, Plan};
use outhaul_tests::on_each_storage;
use outhaul_tests::process::poll;
use outhaul_tests::receiver::{Answer, Request};
use sha2::Sha256;
use std::collections::BTreeSet;
use std::time::Duration;

on_each_storage!(
    each_delivery_has_its_own_lease_and_attempts,
    order_is_per_key_and_subscriber_so_that_a_dead_endpoint_holds_up_only_itself,
    what_is_behind_a_failed_delivery_is_claimed_once_and_not_with_each_of_its_tries,
    a_slow_endpoint_holds_up_only_itself,
    events_without_a_key_do_not_wait_for_each_other,
    without_a_budget_of_attempts_a_delivery_is_tried_on_and_on,
    with_a_budget_of_attempts_it_ends_quarantined,
    a_horizon_ends_what_was_tried_for_too_long_and_nothing_else,
    every_attempt_sends_the_same_bytes_and_idempotency_key_signed_afresh,
    a_lease_that_is_over_sends_nothing,
    a_delivery_of_a_host_that_died_is_delivered_by_the_next_one,
    a_lease_that_ran_out_at_the_last_attempt_ends_quarantined,
    the_envelope_is_erased_once_the_delivery_is_complete,
);

/// A lease has to be longer than a call to the storage may take.
const QUICK: &str = r#"limits = { call_timeout = "1s" }"#;

fn each_delivery_has_its_own_lease_and_attempts(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    for subscriber in ["well", "ill", "slow"] {
        stage.subscribe(subscriber)?;
    }
    stage.answer("ill", Answer::status(503));
    stage.answer("slow", Answer::status(204).after(Duration::from_secs(2)));
    let host = stage.host()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.wait_for_requests("ill", 3)?;
    let of = |stage: &mut outhaul_tests::fan_out::Stage, subscriber: &str| stage.database.delivery(subscriber);
    poll("the well one", || Ok(of(&mut stage, "well")?.state == "complete"))?;
    // While the slow one still is under its first lease, the ill one has had several.
    let slow = of(&mut stage, "slow")?;
    assert_eq!((slow.state.as_str(), slow.attempts, slow.leased_by.is_some()), ("pending", 1, true), "{slow:?}");
    stage.answer_well("ill");
    let ended = stage.database.wait_for_ended(3)?;
    let attempts = |subscriber: &str| ended.iter().find(|one| one.subscriber == subscriber).map(|one| one.attempts);
    assert_eq!((attempts("well"), attempts("slow")), (Some(1), Some(1)));
    assert_eq!(attempts("ill"), Some(stage.requests("ill").len() as u64), "counted at each claim");
    host.shut_down()
}

/// The numbers in the bodies, in the order of their first acceptance.
fn numbers(requests: &[Request]) -> Result<Vec<u64>> {
    let mut seen = BTreeSet::new();
    let mut order = Vec::new();
    for request in requests.iter().filter(|request| request.accepted()) {
        let number = std::str::from_utf8(&request.body)?.parse()?;
        if seen.insert(number) {
            order.push(number);
        }
    }
    Ok(order)
}

fn order_is_per_key_and_subscriber_so_that_a_dead_endpoint_holds_up_only_itself(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    for subscriber in ["a", "dead", "c"] {
        stage.subscribe(subscriber)?;
    }
    stage.answer("dead", Answer::status(503));
    let host = stage.host()?;
    for number in 1..=30 {
        stage.event("orders", Some("k"), number.to_string().as_bytes())?;
    }
    stage.wait_for_accepted("a", 30)?;
    stage.wait_for_accepted("c", 30)?;
    stage.wait_for_requests("dead", 5)?;
    for subscriber in ["a", "c"] {
        assert_eq!(numbers(&stage.requests(subscriber))?, (1..=30).collect::<Vec<_>>(), "{subscriber}");
    }
    assert!(stage.requests("dead").iter().all(|request| request.body == "1"), "nothing overtakes the first one");
    let followers = stage.database.deliveries()?.into_iter().filter(|one| one.subscriber == "dead").skip(1);
    // What is under a lease now has one, which it gives back.
    assert!(followers.into_iter().all(|one| one.attempts <= 1), "followers that were not tried have no attempts counted");
    stage.answer_well("dead");
    stage.wait_for_accepted("dead", 30)?;
    assert_eq!(numbers(&stage.requests("dead"))?, (1..=30).collect::<Vec<_>>());
    host.shut_down()
}

fn what_is_behind_a_failed_delivery_is_claimed_once_and_not_with_each_of_its_tries(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("dead")?;
    stage.answer("dead", Answer::status(503));
    stage.database.hold_deliveries()?;
    for number in 1..=50 {
        stage.event("orders", Some("k"), number.to_string().as_bytes())?;
    }
    stage.rig.drain()?;
    stage.database.release_deliveries()?;
    let host = stage.host()?;
    stage.wait_for_requests("dead", 10)?;
    let claimed = host.metric("outhaul_claimed_total{relay=\"orders.deliveries\"}")?;
    let tried = stage.requests("dead").len();
    // All of them at first; then the first one for each try, and perhaps for one that is about to begin.
    let most = u32::try_from(50 + tried)?;
    assert!(claimed <= f64::from(most), "{claimed} were claimed for {tried} tries of the first of 50");
    stage.answer_well("dead");
    stage.wait_for_accepted("dead", 50)?;
    assert_eq!(numbers(&stage.requests("dead"))?, (1..=50).collect::<Vec<_>>());
    host.shut_down()
}

fn a_slow_endpoint_holds_up_only_itself(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    for subscriber in ["well", "slow"] {
        stage.subscribe(subscriber)?;
    }
    stage.answer("slow", Answer::status(204).after(Duration::from_millis(500)));
    let host = stage.host()?;
    for number in 1..=40 {
        stage.event("orders", Some("k"), number.to_string().as_bytes())?;
    }
    stage.wait_for_accepted("well", 40)?;
    // Forty half seconds would be twenty.
    let slow = stage.requests("slow").len();
    assert!(slow < 20, "{slow} requests to the slow one while the other one had forty");
    stage.answer_well("slow");
    stage.wait_for_accepted("slow", 40)?;
    assert_eq!(numbers(&stage.requests("slow"))?, (1..=40).collect::<Vec<_>>());
    host.shut_down()
}

fn events_without_a_key_do_not_wait_for_each_other(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("crm")?;
    stage.receiver.set_script(|request| Answer::status(if request.body == "1" { 503 } else { 204 }));
    let host = stage.host()?;
    for number in 1..=10 {
        stage.event("orders", None, number.to_string().as_bytes())?;
    }
    stage.wait_for_accepted("crm", 9)?;
    stage.receiver.set_script(|_| Answer::status(204));
    stage.database.wait_for_ended(10)?;
    host.shut_down()
}

/// An event of the relay may be tried four times; its deliveries have no such limit.
fn without_a_budget_of_attempts_a_delivery_is_tried_on_and_on(ground: Ground<'_>) -> Result<()> {
    let quick = r#"backoff = { base = "5ms", factor = 1.0, max = "5ms", jitter = 0.0 }"#;
    let plan = Plan::usual().with("relays.0", "max_attempts = 4\nbreaker = { failures = 0 }").with("relays.0.fan_out.delivery", quick);
    let mut stage = ground.stage(&plan)?;
    stage.subscribe("crm")?;
    stage.answer("crm", Answer::status(503));
    let host = stage.host()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.wait_for_requests("crm", 25)?;
    let delivery = stage.database.delivery("crm")?;
    assert_eq!(delivery.state, "pending");
    stage.answer_well("crm");
    let ended = stage.database.wait_for_ended(1)?;
    assert!(ended[0].outcome().0 == "complete" && ended[0].attempts > 25, "{ended:?}");
    host.shut_down()
}

fn with_a_budget_of_attempts_it_ends_quarantined(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual().with("relays.0.fan_out.delivery", "max_attempts = 3"))?;
    stage.subscribe("crm")?;
    stage.answer("crm", Answer::status(503));
    let host = stage.host()?;
    stage.event("orders", Some("k"), b"1")?;
    stage.event("orders", Some("k"), b"2")?;
    let ended = stage.database.wait_for_ended(2)?;
    for delivery in &ended {
        assert_eq!((delivery.outcome(), delivery.attempts), (("quarantined", Some("retryable_http")), 3));
        assert!(delivery.is_sealed, "what is quarantined keeps its envelope");
    }
    let bodies: Vec<_> = stage.requests("crm").iter().map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect();
    assert_eq!(bodies, ["1", "1", "1", "2", "2", "2"]);
    host.shut_down()
}

fn a_horizon_ends_what_was_tried_for_too_long_and_nothing_else(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual().with("relays.0.fan_out", "horizon = \"24h\""))?;
    for subscriber in ["old", "young", "untried"] {
        stage.subscribe(subscriber)?;
    }
    stage.database.hold_deliveries()?;
    stage.event("orders", None, b"x")?;
    stage.rig.drain()?;
    let hour = 3_600_000;
    let (long_ago, lately) = (stage.database.in_ms(-25 * hour), stage.database.in_ms(-23 * hour));
    stage.database.run(&format!(
        "UPDATE outbox_deliveries SET created_at = {long_ago} WHERE subscriber_id IN ('old', 'untried'); \
         UPDATE outbox_deliveries SET created_at = {lately} WHERE subscriber_id = 'young'; \
         UPDATE outbox_deliveries SET attempts = 7, error_code = 'retryable_http' WHERE subscriber_id IN ('old', 'young')"
    ))?;
    stage.database.release_deliveries()?;
    stage.rig.drain()?;
    stage.database.wait_for_ended(3)?;
    assert_eq!(stage.database.delivery("old")?.outcome(), ("quarantined", Some("retryable_http")), "with the code that it had");
    assert_eq!(stage.database.delivery("young")?.state, "complete");
    assert_eq!(stage.database.delivery("untried")?.state, "complete", "everybody gets one attempt, however late");
    assert_eq!(["old", "young", "untried"].map(|subscriber| stage.requests(subscriber).len()), [0, 1, 1]);
    Ok(())
}

fn every_attempt_sends_the_same_bytes_and_idempotency_key_signed_afresh(ground: Ground<'_>) -> Result<()> {
    // Timestamps of signatures are in seconds.
    let second = r#"backoff = { base = "1100ms", factor = 1.0, max = "1100ms", jitter = 0.0 }"#;
    let mut stage = ground.stage(&Plan::usual().with("relays.0.fan_out.delivery", second))?;
    stage.subscribe_as("crm", Subscription { scope: Some("acme"), ..Default::default() })?;
    stage.receiver.set_script(|request| Answer::status(if request.number < 2 { 503 } else { 204 }));
    let host = stage.host()?;
    let body = b"{\"a\": \"\\u001B\",  \"b\":1.0}\xff";
    let id = stage.event("orders.placed", Some("k"), body)?;
    stage.database.wait_for_ended(1)?;
    let answer = stage.fanout_json("reemit", &[&id])?;
    assert_eq!(answer["generation"], 2, "{answer}");
    stage.database.wait_for_ended(2)?;
    let requests = stage.requests("crm");
    assert_eq!(requests.len(), 4);
    let mut stamps = BTreeSet::new();
    for request in &requests {
        assert_eq!(&request.body[..], body);
        let header = |name: &str| request.header(name).with_context(|| format!("no header {name}"));
        let stamp = header("webhook-timestamp")?;
        assert_eq!(header("webhook-id")?, request.id);
        let mut expected = Hmac::<Sha256>::new_from_slice(&SIGNING_KEY)?;
        expected.update(format!("{}.{stamp}.", request.id).as_bytes());
        expected.update(&request.body);
        assert_eq!(header("webhook-signature")?, format!("v1,{}", BASE64.encode(expected.finalize().into_bytes())));
        stamps.insert(stamp.to_owned());
    }
    assert!(stamps.len() >= 3, "signed afresh for each attempt: {stamps:?}");
    let ids: Vec<&str> = requests.iter().map(|request| request.id.as_str()).collect();
    assert_eq!(ids[..3], [ids[0]; 3], "the same key for every attempt");
    assert_ne!(ids[3], ids[0], "a new generation has a new one");
    host.shut_down()
}

/// The host stands still between claim and request for longer than its lease, and somebody else has taken the delivery since.
fn a_lease_that_is_over_sends_nothing(ground: Ground<'_>) -> Result<()> {
    let short = "lease = \"2s\"\npublish_timeout = \"1500ms\"";
    let mut stage =
        ground.stage(&Plan::usual().with("relays.0", short).with("relays.0.fan_out.delivery", short).with("storages.outbox", QUICK))?;
    stage.subscribe("crm")?;
    stage.database.hold_deliveries()?;
    let mut host = stage.host()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.database.wait_for_deliveries("a delivery", |all| all.len() == 1)?;
    let locked = stage.lock_subscriptions()?;
    stage.database.release_deliveries()?;
    stage.database.wait_for_deliveries("a claim", |all| all[0].leased_by.is_some())?;
    host.process().freeze()?;
    // Frozen in the middle of a write it would keep everybody out.
    while !stage.database.can_write()? {
        host.process().thaw()?;
        host.process().freeze()?;
    }
    let past = stage.database.in_ms(0);
    poll("the lease to end", || {
        Ok(stage.database.number(&format!("SELECT count(*) FROM outbox_deliveries WHERE available_at < {past}"))? == 1)
    })?;
    let later = stage.database.in_ms(3_600_000);
    stage.database.run(&format!("UPDATE outbox_deliveries SET leased_by = 'thief', attempts = attempts + 1, available_at = {later}"))?;
    locked.unlock()?;
    host.process().thaw()?;
    // Whatever it had under way comes to an end before this event does.
    stage.event("orders", None, b"after")?;
    stage.wait_for_accepted("crm", 1)?;
    let delivery = stage.database.deliveries()?.remove(0);
    assert_eq!((delivery.state.as_str(), delivery.leased_by.as_deref()), ("pending", Some("thief")), "{delivery:?}");
    host.shut_down()?;
    let bodies: Vec<_> = stage.requests("crm").into_iter().map(|request| request.body).collect();
    assert_eq!(bodies, ["after"], "nothing was sent under the lease that was over");
    Ok(())
}

fn a_delivery_of_a_host_that_died_is_delivered_by_the_next_one(ground: Ground<'_>) -> Result<()> {
    let short = "lease = \"2s\"\npublish_timeout = \"1s\"";
    let mut stage = ground.stage(&Plan::usual().with("relays.0.fan_out.delivery", short).with("storages.outbox", QUICK))?;
    stage.subscribe("crm")?;
    stage.answer("crm", Answer::status(204).after(Duration::from_secs(30)));
    let mut host = stage.host()?;
    stage.event("orders", Some("k"), b"1")?;
    stage.event("orders", Some("k"), b"2")?;
    stage.wait_for_requests("crm", 1)?;
    host.process().kill()?;
    stage.answer_well("crm");
    let next = stage.host()?;
    let ended = stage.database.wait_for_ended(2)?;
    assert_eq!(ended[0].attempts, 2, "the attempt that died is counted");
    let requests = stage.requests("crm");
    let sent: Vec<_> = requests.iter().map(|request| (&request.body[..], request.earlier)).collect();
    assert_eq!(sent, [(&b"1"[..], 0), (b"1", 1), (b"2", 0)]);
    next.shut_down()
}

fn a_lease_that_ran_out_at_the_last_attempt_ends_quarantined(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual().with("relays.0.fan_out.delivery", "max_attempts = 3"))?;
    stage.subscribe("crm")?;
    stage.database.hold_deliveries()?;
    stage.event("orders", Some("k"), b"1")?;
    stage.rig.drain()?;
    stage.database.run("UPDATE outbox_deliveries SET leased_by = 'a worker that died', attempts = 3")?;
    stage.database.drop_trigger("held_for_the_test")?;
    let past = stage.database.in_ms(-1000);
    stage.database.run(&format!("UPDATE outbox_deliveries SET available_at = {past}"))?;
    stage.event("orders", Some("k"), b"2")?;
    stage.rig.drain()?;
    let ended = stage.database.wait_for_ended(2)?;
    assert_eq!((ended[0].outcome(), ended[0].attempts), (("quarantined", Some("lease_expired")), 3));
    assert_eq!(ended[1].outcome(), ("complete", None), "its follower goes on");
    assert_eq!(stage.requests("crm").len(), 1);
    Ok(())
}

fn the_envelope_is_erased_once_the_delivery_is_complete(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("crm")?;
    stage.subscribe("gone")?;
    stage.answer("gone", Answer::status(410));
    stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    stage.database.wait_for_ended(2)?;
    assert!(!stage.database.delivery("crm")?.is_sealed);
    assert!(stage.database.delivery("gone")?.is_sealed);
    Ok(())
}
