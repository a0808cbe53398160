//! From an event to its deliveries: each test is a sentence of what is promised.

use anyhow::{Context, Result};
use outhaul_tests::fan_out::stage::Subscription;
use outhaul_tests::fan_out::{Ground, Plan, TENANT};
use outhaul_tests::on_each_storage;
use outhaul_tests::process::poll;
use std::collections::{BTreeMap, BTreeSet};

on_each_storage!(
    events_are_claimed_under_a_lease_with_a_random_token,
    every_active_subscriber_of_the_topic_and_the_tenant_gets_a_delivery_and_nobody_else,
    all_events_of_a_batch_see_one_snapshot_of_the_subscribers,
    deliveries_are_inserted_and_the_event_completed_in_one_transaction,
    a_late_completion_inserts_nothing,
    no_subscriber_completes_too,
    there_is_one_delivery_per_event_generation_and_subscriber,
    a_router_that_fails_is_asked_again,
    an_outage_of_the_router_ends_no_event,
    a_url_that_makes_no_sense_is_quarantined,
    a_subscriber_twice_is_quarantined,
    more_subscribers_than_allowed_are_quarantined,
    an_event_that_cannot_be_read_is_quarantined,
    a_drain_expands_and_delivers_until_nothing_is_left,
    a_reemitted_event_is_expanded_for_the_subscribers_of_today,
);

fn events_are_claimed_under_a_lease_with_a_random_token(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.database.run("CREATE TABLE seen (worker TEXT NOT NULL, is_due INTEGER NOT NULL)")?;
    let now = stage.database.in_ms(0);
    let note = format!("INSERT INTO seen VALUES (NEW.leased_by, CASE WHEN NEW.available_at <= {now} THEN 1 ELSE 0 END)");
    stage.database.trigger("noted", "outbox UPDATE", "NEW.leased_by IS NOT NULL AND NEW.status = 'pending'", &note)?;
    stage.subscribe("crm")?;
    for number in 1..=2 {
        stage.event("orders.placed", None, b"x")?;
        stage.rig.drain()?;
        stage.database.wait_for_ended(number)?;
    }
    let seen = stage.database.rows("SELECT DISTINCT worker, is_due FROM seen")?;
    assert_eq!(seen.len(), 2, "two processes, two tokens: {seen:?}");
    for row in seen {
        assert_eq!(row[1].as_deref(), Some("0"), "leased until a moment that is to come");
        assert!(row[0].as_ref().is_some_and(|worker| worker.len() >= 16), "room for randomness in {row:?}");
    }
    Ok(())
}

fn every_active_subscriber_of_the_topic_and_the_tenant_gets_a_delivery_and_nobody_else(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("all")?;
    stage.subscribe_as("orders", Subscription { topics: Some("orders.*"), ..Default::default() })?;
    stage.subscribe_as("listed", Subscription { topics: Some(r#"["invoices.*", "orders.placed"]"#), ..Default::default() })?;
    stage.subscribe_as("invoices", Subscription { topics: Some("invoices.*"), ..Default::default() })?;
    stage.subscribe_as("asleep", Subscription { is_inactive: true, ..Default::default() })?;
    stage.subscribe_as("stranger", Subscription { tenant: Some("other"), ..Default::default() })?;
    let id = stage.event("orders.placed", Some("k"), br#"{"order":17}"#)?;
    stage.rig.drain()?;
    let deliveries = stage.database.wait_for_ended(3)?;
    let who: BTreeSet<&str> = deliveries.iter().map(|delivery| delivery.subscriber.as_str()).collect();
    assert_eq!(who, BTreeSet::from(["all", "listed", "orders"]));
    for delivery in &deliveries {
        assert_eq!((delivery.event.as_str(), delivery.tenant.as_str(), delivery.generation), (id.as_str(), TENANT, 1));
        assert_eq!(delivery.outcome(), ("complete", None), "{delivery:?}");
        let requests = stage.requests(&delivery.subscriber);
        assert_eq!(requests.len(), 1);
        assert_eq!((&requests[0].body[..], requests[0].id.as_str()), (&br#"{"order":17}"#[..], delivery.idempotency_key.as_str()));
    }
    assert_eq!(stage.receiver.requests().len(), 3);
    assert_eq!(stage.database.event(&id)?.status, "done");
    Ok(())
}

fn all_events_of_a_batch_see_one_snapshot_of_the_subscribers(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual().with("relays.0", "batch = 7"))?;
    stage.database.hold_deliveries()?;
    for subscriber in ["a1", "a2", "b1", "b2"] {
        stage.subscribe_as(subscriber, Subscription { is_inactive: subscriber.starts_with('b'), ..Default::default() })?;
    }
    let host = stage.ready_host()?;
    for round in 0..60 {
        for _ in 0..5 {
            stage.event("orders", None, b"x")?;
        }
        // The pairs change places in one transaction: nobody can ever see one of each.
        let pair = if round % 2 == 0 { 'b' } else { 'a' };
        stage.subscriptions.run(&format!("UPDATE subscriptions SET active = (subscriber LIKE '{pair}%')"))?;
        if round % 15 == 0 {
            stage.database.wait_for_events("those to be expanded", |events| events.iter().all(|event| event.status == "done"))?;
        }
    }
    stage.database.wait_for_events("all to be expanded", |events| events.iter().all(|event| event.status == "done"))?;
    let mut pairs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for delivery in stage.database.deliveries()? {
        pairs.entry(delivery.event).or_default().insert(delivery.subscriber);
    }
    assert_eq!(pairs.len(), 300);
    let kinds: BTreeSet<BTreeSet<String>> = pairs.into_values().collect();
    let pair = |names: [&str; 2]| names.map(str::to_owned).into();
    assert_eq!(kinds, BTreeSet::from([pair(["a1", "a2"]), pair(["b1", "b2"])]), "never one of each, and both were seen");
    host.shut_down()
}

fn deliveries_are_inserted_and_the_event_completed_in_one_transaction(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual().with("relays.0", "max_attempts = 0"))?;
    for subscriber in ["a", "b", "c"] {
        stage.subscribe(subscriber)?;
    }
    let refusal = stage.database.refusal();
    // One delivery that cannot be inserted: there is none, and the event waits.
    stage.database.trigger("refused", "outbox_deliveries INSERT", "NEW.subscriber_id = 'b'", refusal)?;
    let host = stage.host()?;
    let id = stage.event("orders", Some("k"), b"x")?;
    let tried = |events: &[outhaul_tests::fan_out::rows::Event]| events[0].attempts >= 2 && events[0].error.is_some();
    stage.database.wait_for_events("a second attempt", tried)?;
    assert_eq!((stage.database.deliveries()?.len(), stage.database.event(&id)?.status.as_str()), (0, "pending"));
    // An event that cannot be completed: there is no delivery.
    stage.database.trigger("refused_too", "outbox UPDATE", "NEW.status = 'done'", refusal)?;
    stage.database.drop_trigger("refused")?;
    let before = stage.database.event(&id)?.attempts;
    stage.database.wait_for_events("two more attempts", |events| events[0].attempts >= before + 2)?;
    assert_eq!((stage.database.deliveries()?.len(), stage.database.event(&id)?.status.as_str()), (0, "pending"));
    assert_eq!(stage.receiver.requests().len(), 0);
    stage.database.drop_trigger("refused_too")?;
    stage.database.wait_for_ended(3)?;
    assert_eq!((stage.receiver.requests().len(), stage.database.event(&id)?.status.as_str()), (3, "done"));
    host.shut_down()
}

/// The lease is lost between claim and completion: as the claim commits, the row already is somebody else's.
fn a_late_completion_inserts_nothing(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("crm")?;
    let later = stage.database.in_ms(3_600_000);
    let steal = format!("UPDATE outbox SET leased_by = 'thief', available_at = {later} WHERE id = NEW.id");
    stage.database.trigger("stolen", "outbox UPDATE", "NEW.status = 'pending' AND NEW.leased_by <> 'thief'", &steal)?;
    let host = stage.host()?;
    let id = stage.event("orders", Some("k"), b"x")?;
    host.wait_for_metric("outhaul_leases_lost_total", 1.0)?;
    let event = stage.database.event(&id)?;
    assert_eq!((event.status.as_str(), event.leased_by.as_deref()), ("pending", Some("thief")));
    assert_eq!((stage.database.deliveries()?.len(), stage.database.emissions()?.len()), (0, 0));
    // The thief dies: its lease ends, and the event is had by whoever comes next.
    stage.database.drop_trigger("stolen")?;
    let past = stage.database.in_ms(-1000);
    stage.database.run(&format!("UPDATE outbox SET available_at = {past}"))?;
    stage.database.wait_for_ended(1)?;
    assert_eq!(stage.receiver.requests().len(), 1);
    host.shut_down()
}

fn no_subscriber_completes_too(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe_as("stranger", Subscription { tenant: Some("other"), ..Default::default() })?;
    let id = stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    assert_eq!(stage.database.event(&id)?.status, "done");
    let emissions = stage.database.emissions()?;
    let [emission] = &emissions[..] else { panic!("{emissions:?}") };
    assert_eq!(
        (emission.event.as_str(), emission.generation, emission.state.as_str(), emission.deliveries),
        (id.as_str(), 1, "expanded", 0)
    );
    assert_eq!((stage.database.deliveries()?.len(), stage.receiver.requests().len()), (0, 0));
    Ok(())
}

fn there_is_one_delivery_per_event_generation_and_subscriber(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("a")?;
    stage.subscribe("b")?;
    let id = stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    let before = stage.database.wait_for_ended(2)?;
    // The event comes up once more as the same generation, as after an answer that was lost; a subscriber has come meanwhile.
    stage.subscribe("late")?;
    stage.database.run("UPDATE outbox SET status = 'pending', leased_by = NULL")?;
    stage.database.make_due()?;
    stage.rig.drain()?;
    assert_eq!(stage.database.event(&id)?.status, "done");
    let after = stage.database.wait_for_ended(3)?;
    assert_eq!(after[..2], before[..], "what was there is not changed");
    assert_eq!(["a", "b", "late"].map(|subscriber| stage.requests(subscriber).len()), [1, 1, 1]);
    Ok(())
}

fn a_router_that_fails_is_asked_again(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("crm")?;
    stage.lose_subscriptions()?;
    let host = stage.host()?;
    let id = stage.event("orders", Some("k"), b"x")?;
    let events = stage.database.wait_for_events("a reason", |events| events[0].error.is_some())?;
    let reason = events[0].error.clone().context("no reason")?;
    assert!(reason.starts_with("subscription_unavailable"), "{reason}");
    assert_eq!((events[0].status.as_str(), stage.database.deliveries()?.len()), ("pending", 0));
    stage.find_subscriptions()?;
    stage.database.wait_for_ended(1)?;
    assert_eq!((stage.requests("crm").len(), stage.database.event(&id)?.status.as_str()), (1, "done"));
    host.shut_down()
}

fn an_outage_of_the_router_ends_no_event(ground: Ground<'_>) -> Result<()> {
    let quick = "max_attempts = 6\nbackoff = { base = \"5ms\", factor = 1.0, max = \"5ms\", jitter = 0.0 }\n\
                 publish_timeout = \"400ms\"\nbreaker = { failures = 3, open = \"50ms\", max = \"50ms\", probes = 3 }";
    let mut stage = ground.stage(&Plan::usual().with("relays.0", quick))?;
    stage.subscribe("crm")?;
    let locked = stage.lock_subscriptions()?;
    let host = stage.host()?;
    for number in 0..20 {
        stage.event("orders", Some(&format!("k{number}")), b"x")?;
    }
    host.wait_for_metric("outhaul_breaker_state", 1.0)?;
    // Far longer than six attempts of 5 ms would last: probes that fail use up none.
    let before = host.metric("outhaul_released_total")?;
    host.wait_for_metric("outhaul_released_total", before + 30.0)?;
    let events = stage.database.events()?;
    assert!(events.iter().all(|event| event.status == "pending"), "{events:#?}");
    locked.unlock()?;
    stage.database.wait_for_ended(20)?;
    assert_eq!(stage.requests("crm").len(), 20);
    host.shut_down()
}

/// Runs events that must be quarantined as this code, and one after each of them that is well; returns what was recorded.
fn quarantined(stage: &mut outhaul_tests::fan_out::Stage, topic: &str, code: &str) -> Result<String> {
    let id = stage.event(topic, Some("k"), b"x")?;
    let good = stage.event("good", Some("k"), b"x")?;
    let sent = stage.requests("good").len();
    stage.rig.drain()?;
    assert_eq!(stage.requests("good").len(), sent + 1, "a dead head lets its followers go on");
    let event = stage.database.event(&id)?;
    assert_eq!((event.status.as_str(), stage.database.event(&good)?.status.as_str()), ("dead", "done"), "{topic}: {event:?}");
    let reason = event.error.context("no reason")?;
    assert!(reason.starts_with(code), "{topic}: {reason}");
    let emission = stage.database.emissions()?.into_iter().find(|emission| emission.event == id).context("no emission")?;
    assert_eq!((emission.state.as_str(), emission.code.as_deref(), emission.deliveries), ("quarantined", Some(code), 0));
    assert!(stage.database.deliveries()?.iter().all(|delivery| delivery.event != id), "nothing of it is delivered");
    Ok(reason)
}

fn a_url_that_makes_no_sense_is_quarantined(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe_as("good", Subscription { topics: Some("good"), ..Default::default() })?;
    let address = stage.receiver.address();
    let long = format!("http://{address}/{}", "x".repeat(9000));
    let none =
        ["", "/relative/hidden", "ftp://example.com/hidden", "http://user:hidden@example.com/", "hidden", "http://:80/hidden", &long];
    // What a browser would put right, and no request can be made of.
    let [space, dots, fragment] = ["a hidden", "../hidden", "#hidden"].map(|path| format!("http://{address}/{path}"));
    let unfit = ["http://example.com/{hidden}", "http:example.com/hidden", "http://example.com:0/hidden", &space, &dots, &fragment];
    let urls = none.into_iter().chain(unfit);
    for (number, url) in urls.enumerate() {
        let (subscriber, topic) = (format!("bad{number}"), format!("bad.{number}"));
        // A good one beside it gets nothing either: all or none.
        stage.subscribe_as(&subscriber, Subscription { topics: Some(&topic), url: Some(url), ..Default::default() })?;
        stage.subscribe_as("beside", Subscription { topics: Some(&topic), ..Default::default() })?;
        let reason = quarantined(&mut stage, &topic, "invalid_configuration")?;
        assert!(reason.contains(&subscriber), "{url:?}: {reason}");
        assert!(!reason.contains("hidden"), "{reason}");
    }
    assert_eq!(stage.requests("beside").len(), 0);
    Ok(())
}

fn a_subscriber_twice_is_quarantined(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe_as("good", Subscription { topics: Some("good"), ..Default::default() })?;
    stage.subscribe_as("double", Subscription { topics: Some("bad"), ..Default::default() })?;
    stage.subscribe_as("double", Subscription { topics: Some("bad"), ..Default::default() })?;
    let reason = quarantined(&mut stage, "bad", "invalid_configuration")?;
    assert!(reason.contains("double"), "{reason}");
    Ok(())
}

fn more_subscribers_than_allowed_are_quarantined(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual().with("relays.0.fan_out", "max_subscribers = 3"))?;
    stage.subscribe_as("good", Subscription { topics: Some("good"), ..Default::default() })?;
    for number in 0..4 {
        stage.subscribe_as(&format!("many{number}"), Subscription { topics: Some("bad"), ..Default::default() })?;
    }
    let reason = quarantined(&mut stage, "bad", "invalid_configuration")?;
    assert!(reason.contains("max_subscribers"), "{reason}");
    Ok(())
}

fn an_event_that_cannot_be_read_is_quarantined(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("good")?;
    // An envelope takes at most 1 MiB, all in all.
    let large = stage.event("large", Some("k"), &vec![b'x'; 1 << 20])?;
    let broken = stage.event("broken", Some("k"), b"x")?;
    stage.database.run("UPDATE outbox SET headers = 'no headers' WHERE topic = 'broken'")?;
    let good = stage.event("good", Some("k"), b"x")?;
    stage.rig.drain()?;
    for id in [&large, &broken] {
        let event = stage.database.event(id)?;
        assert_eq!(event.status, "dead", "{event:?}");
        let emission = stage.database.emissions()?.into_iter().find(|emission| &emission.event == id).context("no emission")?;
        assert_eq!((emission.state.as_str(), emission.code.as_deref()), ("quarantined", Some("invalid_payload")));
    }
    assert_eq!(stage.database.event(&good)?.status, "done");
    assert_eq!(stage.requests("good").len(), 1);
    Ok(())
}

fn a_drain_expands_and_delivers_until_nothing_is_left(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    for subscriber in ["a", "b", "c"] {
        stage.subscribe(subscriber)?;
    }
    for number in 0..200 {
        stage.event("orders", Some(&format!("k{}", number % 7)), number.to_string().as_bytes())?;
    }
    stage.rig.drain()?;
    let deliveries = stage.database.deliveries()?;
    assert_eq!(deliveries.len(), 600);
    assert!(deliveries.iter().all(|delivery| delivery.outcome() == ("complete", None) && !delivery.is_sealed), "{deliveries:?}");
    assert!(stage.database.events()?.iter().all(|event| event.status == "done" && event.attempts == 1));
    assert_eq!(["a", "b", "c"].map(|subscriber| stage.requests(subscriber).len()), [200, 200, 200]);
    Ok(())
}

fn a_reemitted_event_is_expanded_for_the_subscribers_of_today(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("stays")?;
    stage.subscribe("goes")?;
    let id = stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    let before = stage.database.wait_for_ended(2)?;
    stage.resubscribe("goes", "active = FALSE")?;
    stage.subscribe("comes")?;
    let answer = stage.fanout_json("reemit", &[&id])?;
    assert_eq!(answer["generation"], 2, "{answer}");
    // It waits already: nothing is changed, and the command says so.
    let again = stage.fanout("reemit", &["--tenant", TENANT, &id])?;
    assert_ne!(again.code, Some(0), "{again:?}");
    stage.rig.drain()?;
    let after = stage.database.wait_for_ended(4)?;
    assert_eq!(after[..2], before[..], "earlier deliveries stay as they are");
    let who: BTreeSet<(&str, u64)> = after[2..].iter().map(|delivery| (delivery.subscriber.as_str(), delivery.generation)).collect();
    assert_eq!(who, BTreeSet::from([("comes", 2), ("stays", 2)]));
    let keys: BTreeSet<&str> = after.iter().map(|delivery| delivery.idempotency_key.as_str()).collect();
    assert_eq!(keys.len(), 4, "new ones for a new generation");
    let requests = stage.requests("stays");
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[0].body.clone(), requests[0].id != requests[1].id), (requests[1].body.clone(), true));
    let missing = stage.fanout("reemit", &["--tenant", "other", &id])?;
    assert_ne!(missing.code, Some(0), "another tenant has no such event");
    poll("the event to be done", || Ok(stage.database.event(&id)?.status == "done"))
}
