//! Events: claimed, expanded, quarantined, emitted again.

use super::support::{FAN_OUT, Sealed, claim_events, coded, deliveries, delivery_id, event, expand, expanded, log, of, own, planned, push};
use crate::support::{Bench, dead, ids, request, retry, settle};
use outhaul_sdk::{Batch, ClaimRequest, DeliveryVerdict, Expansion, FailureCode, Filter, Reemitted, Verdict};

fn count(bench: &Bench, what: &str) -> String {
    bench.value(&format!("SELECT count(*) FROM {what}"))
}

#[test]
fn without_the_key_every_call_names_it() {
    let (_bench, mut outbox) = Bench::own("");
    for failure in [
        outbox.claim_events(&request("w", 1), None).unwrap_err(),
        outbox.expand("w", &[], &Batch::new()).unwrap_err(),
        outbox.claim_deliveries(&request("w", 1), None, 0).unwrap_err(),
        outbox.settle_deliveries("w", &[]).unwrap_err(),
        outbox.delivery_stats().unwrap_err(),
        outbox.reemit("", "1").unwrap_err(),
        outbox.read_status("", 0, 1).unwrap_err(),
        outbox.advance("", "r", 0, 0).unwrap_err(),
        outbox.requeue_deliveries(&of("")).unwrap_err(),
        outbox.purge_deliveries(0, 1).unwrap_err(),
    ] {
        assert_eq!(failure.code, FailureCode::InvalidConfiguration);
        assert!(failure.detail.starts_with("`fan_out` is missing"), "{}", failure.detail);
    }
}

#[test]
fn events_come_with_their_tenants_and_generations() {
    let (bench, mut outbox) = own();
    event(&bench, "acme", Some("k"));
    event(&bench, "", None);
    let events = claim_events(&mut outbox, "w");
    let mut shown: Vec<(&str, &str, u32)> =
        (0..2).map(|at| (events.claimed.batch.message(at).id(), events.tenants.text(at).unwrap(), events.generations[at])).collect();
    shown.sort_unstable();
    assert_eq!(shown, [("1", "acme", 1), ("2", "", 1)]);
}

#[test]
fn expanding_inserts_all_deliveries_and_completes_the_event() {
    let (bench, mut outbox) = own();
    event(&bench, "acme", Some("k"));
    event(&bench, "acme", None);
    let events = claim_events(&mut outbox, "w");
    assert!(expand(&mut outbox, "w", &events, &["a", "b", "c"]).is_empty());
    assert_eq!(count(&bench, "outbox WHERE status = 'done' AND done_at IS NOT NULL"), "2");
    assert_eq!(count(&bench, "outbox_deliveries WHERE state = 'pending' AND attempts = 0 AND leased_by IS NULL"), "6");
    assert_eq!(bench.value("SELECT group_concat(state || deliveries) FROM outbox_emissions"), "expanded3,expanded3");
    assert_eq!(
        bench.value("SELECT group_concat(order_key) FROM outbox_deliveries WHERE notification_id = '1' ORDER BY seq"),
        r#"["acme","a","k"],["acme","b","k"],["acme","c","k"]"#
    );
    assert_eq!(count(&bench, "outbox_deliveries WHERE notification_id = '2' AND order_key IS NULL"), "3");
    assert_eq!(count(&bench, "outbox_deliveries WHERE abs(created_at - unixepoch('subsec') * 1000) < 60000"), "6");
}

#[test]
fn an_event_that_nobody_subscribes_to_completes() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &[]);
    assert_eq!(bench.value("SELECT status FROM outbox"), "done");
    assert_eq!(count(&bench, "outbox_deliveries"), "0");
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 expanded -"]);
}

#[test]
fn a_late_expansion_inserts_nothing() {
    let (bench, mut outbox) = own();
    event(&bench, "acme", None);
    let mine = claim_events(&mut outbox, "w1");
    bench.run("UPDATE outbox SET available_at = 1");
    let theirs = claim_events(&mut bench.open(FAN_OUT), "w2");
    assert_eq!(theirs.claimed.batch.len(), 1);
    assert_eq!(expand(&mut outbox, "w1", &mine, &["a"]), ["1"]);
    assert_eq!((count(&bench, "outbox_deliveries"), count(&bench, "outbox_emissions")), ("0".to_owned(), "0".to_owned()));
    assert_eq!(bench.value("SELECT status || leased_by FROM outbox"), "pendingw2");
    assert!(expand(&mut outbox, "w2", &theirs, &["a"]).is_empty());
    // And once more: it is settled by now.
    assert_eq!(expand(&mut outbox, "w2", &theirs, &["a", "b"]), ["1"]);
    assert_eq!(count(&bench, "outbox_deliveries"), "1");
}

#[test]
fn one_lost_event_takes_no_other_along() {
    let (bench, mut outbox) = own();
    for _ in 0..3 {
        event(&bench, "acme", None);
    }
    let events = claim_events(&mut outbox, "w");
    bench.run("UPDATE outbox SET leased_by = 'other' WHERE id = 2");
    assert_eq!(expand(&mut outbox, "w", &events, &["a", "b"]), ["2"]);
    assert_eq!(bench.value("SELECT group_concat(DISTINCT notification_id) FROM outbox_deliveries"), "1,3");
    assert_eq!(bench.value("SELECT group_concat(status) FROM outbox"), "done,pending,done");
}

#[test]
fn an_event_of_another_generation_by_now_is_lost() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    let mut events = claim_events(&mut outbox, "w");
    assert_eq!(events.claimed.batch.len(), 0);
    assert_eq!(outbox.reemit("acme", "1").unwrap(), Reemitted::Generation(2));
    events = claim_events(&mut outbox, "w");
    assert_eq!(events.generations, [2]);
    events.generations[0] = 1;
    assert_eq!(expand(&mut outbox, "w", &events, &["a", "b"]), ["1"]);
    assert_eq!(count(&bench, "outbox_deliveries"), "1");
    assert_eq!(bench.value("SELECT status FROM outbox"), "pending");
}

#[test]
fn deliveries_of_another_tenant_than_the_events_are_not_inserted() {
    let (bench, mut outbox) = own();
    event(&bench, "acme", None);
    let mut events = claim_events(&mut outbox, "w");
    events.tenants = outhaul_sdk::Column::of_texts(["other"]);
    assert_eq!(expand(&mut outbox, "w", &events, &["a"]), ["1"]);
    assert_eq!(count(&bench, "outbox_deliveries"), "0");
}

#[test]
fn a_repeat_inserts_nothing_twice_and_changes_nothing() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a", "b"]);
    bench.run("UPDATE outbox_deliveries SET envelope = x'00' WHERE subscriber_id = 'a'");
    // As if the commit had been lost with the answer for the event alone.
    bench.run("UPDATE outbox SET status = 'pending', available_at = 0; ");
    let events = claim_events(&mut outbox, "w");
    assert_eq!(events.generations, [1]);
    assert!(expand(&mut outbox, "w", &events, &["a", "b", "c"]).is_empty());
    assert_eq!(
        bench.value("SELECT group_concat(subscriber_id || hex(substr(envelope, 1, 1)) ORDER BY seq) FROM outbox_deliveries"),
        "a00,b73,c73"
    );
}

/// The id of an event was given out again, or its payload was changed: it must not end as if everybody had it.
#[test]
fn a_delivery_that_is_there_with_another_body_fails_the_expansion() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    bench.run("UPDATE outbox_deliveries SET body_sha256 = 'another'");
    bench.run("UPDATE outbox SET status = 'pending', available_at = 0");
    event(&bench, "acme", None);
    let events = claim_events(&mut outbox, "w");
    let (expansions, deliveries) = planned(&events, &["a", "b"]);
    let failure = outbox.expand("w", &expansions, &deliveries).unwrap_err();
    assert_eq!(failure.code, FailureCode::Other("invalid_payload".into()), "{}", failure.detail);
    assert!(failure.detail.contains("its id was given out a second time"), "{}", failure.detail);
    assert_eq!(
        (count(&bench, "outbox_deliveries"), bench.value("SELECT group_concat(status) FROM outbox")),
        ("1".into(), "pending,pending".into())
    );
    // The other event is not held up, and this one can be ended.
    let other = Expansion { event: "2".into(), generation: 1, deliveries: 0 };
    assert!(outbox.expand("w", &[other], &Batch::new()).unwrap().is_empty());
    assert!(settle(&mut outbox, "w", dead("no"), &["1".into()]).is_empty());
}

/// Even if it has the same body: else it would end as delivered, and nobody would get it.
#[test]
fn an_event_with_the_id_of_one_that_was_purged_is_not_taken_for_it() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    let claimed = ids(&deliveries(&mut outbox, "w", 10).batch);
    super::support::settle(&mut outbox, "w", DeliveryVerdict::Complete, &claimed);
    bench.run("UPDATE outbox SET done_at = 0");
    assert_eq!(outbox.purge(1000, 10).unwrap(), 1);
    bench.run("INSERT INTO outbox (id, tenant, topic, payload) VALUES (1, 'acme', 't', 'x')");
    let events = claim_events(&mut outbox, "w");
    let (expansions, batch) = planned(&events, &["a"]);
    let failure = outbox.expand("w", &expansions, &batch).unwrap_err();
    assert_eq!(failure.code, FailureCode::Other("invalid_payload".into()), "{}", failure.detail);
    assert!(failure.detail.contains("its id was given out a second time"), "{}", failure.detail);
    assert_eq!(bench.value("SELECT status FROM outbox"), "pending");
    // Once the deliveries of the first one are gone too, nothing is in the way.
    bench.run("DELETE FROM outbox_deliveries");
    assert!(outbox.expand("w", &expansions, &batch).unwrap().is_empty());
    assert_eq!(deliveries(&mut outbox, "w", 10).batch.len(), 1);
}

#[test]
fn what_does_not_fit_together_is_refused_as_a_whole() {
    let (bench, mut outbox) = own();
    event(&bench, "acme", None);
    claim_events(&mut outbox, "w");
    let mut batch = Batch::new();
    push(&mut batch, &Sealed { tenant: "acme", event: "1", generation: 1, subscriber: "a", key: None });
    let expansion = |event: &str, generation, deliveries| Expansion { event: event.to_owned(), generation, deliveries };
    for (expansions, expected) in [
        (vec![expansion("1", 1, 0)], "there are more deliveries than the events say"),
        (vec![expansion("1", 1, 2)], "there are fewer deliveries than the events say"),
        (vec![expansion("1", 2, 1)], "`emission_generation` is not what the message says"),
        (vec![expansion("2", 1, 1)], "`notification_id` is not what the message says"),
        (vec![expansion("1", 1, 1), expansion("1", 1, 0)], "the event 1 is there twice"),
    ] {
        let failure = outbox.expand("w", &expansions, &batch).unwrap_err();
        assert!(failure.code == FailureCode::InvalidMessage && failure.detail.contains(expected), "{}", failure.detail);
    }
    assert_eq!(count(&bench, "outbox_deliveries"), "0");
}

#[test]
fn events_are_retried_released_and_renewed_like_any_row() {
    let (bench, mut outbox) = own();
    for _ in 0..2 {
        event(&bench, "acme", None);
    }
    let claimed = ids(&claim_events(&mut outbox, "w").claimed.batch);
    settle(&mut outbox, "w", retry("router", 60_000), &claimed[..1]);
    settle(&mut outbox, "w", Verdict::Release(0), &claimed[1..]);
    assert_eq!(ids(&claim_events(&mut outbox, "w").claimed.batch), claimed[1..]);
    assert_eq!(outbox.extend("w", &outhaul_sdk::Column::of_texts(&claimed), 1000).unwrap(), claimed[..1]);
    assert_eq!(count(&bench, "outbox_emissions"), "0");
}

#[test]
fn a_dead_event_is_quarantined_with_its_code() {
    let (bench, mut outbox) = own();
    for _ in 0..4 {
        event(&bench, "acme", None);
    }
    bench.run("UPDATE outbox SET attempts = 3 WHERE id = 3");
    bench.run("UPDATE outbox SET headers = 'oops' WHERE id = 4");
    let events = outbox.claim_events(&ClaimRequest { max_attempts: 3, ..request("w", 100) }, None).unwrap();
    assert_eq!(ids(&events.claimed.batch), ["1", "2"]);
    assert_eq!(events.claimed.refused.len(), 2);
    settle(&mut outbox, "w", Verdict::Dead(coded("invalid_payload", "no")), &["1".to_owned()]);
    // What a worker has lost, it does not end.
    assert_eq!(settle(&mut outbox, "v", dead("no"), &["2".to_owned()]), ["2"]);
    assert_eq!(
        log(&mut outbox, "acme"),
        ["1 3/1 quarantined lease_expired", "2 4/1 quarantined invalid_payload", "3 1/1 quarantined invalid_payload"]
    );
    assert_eq!(
        bench.value("SELECT group_concat(notification_id || state) FROM outbox_emissions"),
        "1quarantined,3quarantined,4quarantined"
    );
}

#[test]
fn a_requeued_event_is_logged_and_expanded_as_the_same_generation() {
    let (bench, mut outbox) = own();
    event(&bench, "acme", None);
    claim_events(&mut outbox, "w");
    settle(&mut outbox, "w", Verdict::Dead(coded("invalid_configuration", "no")), &["1".to_owned()]);
    assert_eq!(outbox.requeue(&Filter { state: None, topic: None, ids: vec!["1".to_owned()] }).unwrap(), 1);
    let events = claim_events(&mut outbox, "w");
    assert_eq!(events.generations, [1]);
    assert!(expand(&mut outbox, "w", &events, &["a"]).is_empty());
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 quarantined invalid_configuration", "2 1/1 pending -", "3 1/1 expanded -"]);
}

#[test]
fn a_settled_event_is_emitted_again_as_its_next_generation() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", Some("k"), &["a"]);
    assert_eq!(outbox.reemit("acme", "1").unwrap(), Reemitted::Generation(2));
    assert_eq!(bench.value("SELECT status || attempts || ifnull(done_at, '-') FROM outbox"), "pending0-");
    // Not twice at a time, and not for anybody else.
    assert_eq!(outbox.reemit("acme", "1").unwrap(), Reemitted::Pending(2));
    let events = claim_events(&mut outbox, "w");
    assert_eq!((events.generations.as_slice(), outbox.reemit("acme", "1").unwrap()), (&[2][..], Reemitted::Pending(2)));
    assert!(expand(&mut outbox, "w", &events, &["a", "b"]).is_empty());
    assert_eq!(
        bench.value("SELECT group_concat(delivery_id ORDER BY seq) FROM outbox_deliveries"),
        [delivery_id("1", 1, "a"), delivery_id("1", 2, "a"), delivery_id("1", 2, "b")].join(",")
    );
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 expanded -", "2 1/2 pending -", "3 1/2 expanded -"]);
    assert_eq!(outbox.reemit("acme", "1").unwrap(), Reemitted::Generation(3));
}

#[test]
fn a_quarantined_event_is_emitted_again_too() {
    let (bench, mut outbox) = own();
    event(&bench, "acme", None);
    claim_events(&mut outbox, "w");
    settle(&mut outbox, "w", dead("no"), &["1".to_owned()]);
    assert_eq!(outbox.reemit("acme", "1").unwrap(), Reemitted::Generation(2));
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 quarantined invalid_payload", "2 1/2 pending -"]);
}

#[test]
fn what_the_tenant_does_not_have_is_not_emitted_again() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    for (tenant, event) in [("other", "1"), ("", "1"), ("acme", "2"), ("acme", "x"), ("acme", "01"), ("acme", "")] {
        assert_eq!(outbox.reemit(tenant, event).unwrap(), Reemitted::Unknown, "{tenant} {event}");
    }
    assert_eq!(bench.value("SELECT status FROM outbox"), "done");
}

#[test]
fn what_was_noted_of_an_event_goes_with_it() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    event(&bench, "acme", None);
    event(&bench, "acme", None);
    claim_events(&mut outbox, "w");
    settle(&mut outbox, "w", dead("no"), &["2".to_owned(), "3".to_owned()]);
    assert_eq!(outbox.purge(3_600_000, 10).unwrap(), 0);
    assert_eq!(count(&bench, "outbox_emissions"), "3");
    bench.run("UPDATE outbox SET done_at = done_at - 7200000");
    assert_eq!(outbox.purge(3_600_000, 10).unwrap(), 1);
    assert_eq!(outbox.discard(&Filter { state: None, topic: None, ids: vec!["2".to_owned()] }).unwrap(), 1);
    assert_eq!(bench.value("SELECT group_concat(notification_id) FROM outbox_emissions"), "3");
    // Its deliveries and the log stay.
    assert_eq!((count(&bench, "outbox_deliveries"), log(&mut outbox, "acme").len()), ("1".to_owned(), 3));
}

/// A fresh event, not settled and never emitted: it is pending as its first generation.
#[test]
fn an_event_that_was_never_expanded_is_pending() {
    let (bench, mut outbox) = own();
    event(&bench, "acme", None);
    assert_eq!(outbox.reemit("acme", "1").unwrap(), Reemitted::Pending(1));
}
