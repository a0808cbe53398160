//! Events: claimed, expanded under their lease only, ended, and emitted again.

use super::support::{Sealed, claim_events, coded, deliveries, delivery_id, event, expand, expanded, log, of, own, planned, push};
use crate::suite::support::{Bench, dead, ids, request, retry, settle};
use outhaul_sdk::{Batch, ClaimRequest, Column, Expansion, FailureCode, Filter, Reemitted, Verdict};

fn count(bench: &Bench, table: &str) -> String {
    bench.value(&format!("SELECT count(*) FROM outbox_{table}"))
}

#[test]
fn without_the_key_every_call_names_it() {
    let Some((_bench, mut outbox)) = Bench::own("") else { return };
    let none = Batch::new();
    let failures = [
        outbox.claim_events(&request("w", 1), None).map(|_| ()).unwrap_err(),
        outbox.expand("w", &[Expansion { event: "1".into(), generation: 1, deliveries: 0 }], &none).map(|_| ()).unwrap_err(),
        outbox.claim_deliveries(&request("w", 1), None, 0).map(|_| ()).unwrap_err(),
        outbox.settle_deliveries("w", &[]).map(|_| ()).unwrap_err(),
        outbox.delivery_stats().map(|_| ()).unwrap_err(),
        outbox.reemit("", "1").map(|_| ()).unwrap_err(),
        outbox.read_status("", 0, 1).map(|_| ()).unwrap_err(),
        outbox.advance("", "r", 0, 0).map(|_| ()).unwrap_err(),
        outbox.requeue_deliveries(&of("")).map(|_| ()).unwrap_err(),
        outbox.purge_deliveries(0, 1).map(|_| ()).unwrap_err(),
    ];
    for failure in failures {
        assert!(failure.code == FailureCode::InvalidConfiguration && failure.detail.contains("`fan_out`"), "{failure:?}");
    }
}

#[test]
fn expanding_inserts_all_deliveries_and_completes_the_events() {
    let Some((bench, mut outbox)) = own() else { return };
    for (tenant, key) in [("acme", Some("k")), ("other", Some("k")), ("", None)] {
        event(&bench, tenant, key);
    }
    let events = claim_events(&mut outbox, "w");
    let tenant = |at| events.tenants.text(at).unwrap();
    assert_eq!(
        (ids(&events.claimed.batch), [tenant(0), tenant(1), tenant(2)]),
        (vec!["1".into(), "2".into(), "3".into()], ["acme", "other", ""])
    );
    assert_eq!(events.generations, [1, 1, 1]);
    assert!(expand(&mut outbox, "w", &events, &["a", "b"]).is_empty());
    assert_eq!(
        bench.value("SELECT string_agg(delivery_id || account_id, ',' ORDER BY seq) FROM outbox_deliveries"),
        "dl_1_1_aacme,dl_1_1_bacme,dl_2_1_aother,dl_2_1_bother,dl_3_1_a,dl_3_1_b"
    );
    assert_eq!(bench.value("SELECT encode(envelope, 'escape') FROM outbox_deliveries WHERE seq = 4"), r"sealed \000dl_2_1_b");
    assert_eq!(
        bench.value("SELECT string_agg(status || attempts || (done_at IS NOT NULL), ',') FROM outbox"),
        "done1true,done1true,done1true"
    );
    assert_eq!(bench.value("SELECT string_agg(state || deliveries, ',') FROM outbox_emissions"), "expanded2,expanded2,expanded2");
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 expanded -"]);
}

#[test]
fn an_event_that_nobody_subscribes_to_completes() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &[]);
    assert_eq!((bench.value("SELECT status FROM outbox"), count(&bench, "deliveries")), ("done".into(), "0".into()));
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 expanded -"]);
}

#[test]
fn a_late_expansion_inserts_nothing() {
    let Some((bench, mut outbox)) = own() else { return };
    event(&bench, "acme", None);
    let events = claim_events(&mut outbox, "w");
    assert_eq!(expand(&mut outbox, "v", &events, &["a"]), ["1"], "somebody else's");
    bench.run("UPDATE outbox SET available_at = 'epoch'");
    let again = claim_events(&mut outbox, "v");
    assert_eq!(expand(&mut outbox, "w", &events, &["a"]), ["1"], "the lease has gone over to another worker");
    assert_eq!((count(&bench, "deliveries"), count(&bench, "emissions")), ("0".into(), "0".into()));
    assert!(expand(&mut outbox, "v", &again, &["a"]).is_empty());
    assert_eq!(expand(&mut outbox, "v", &again, &["b"]), ["1"], "settled");
    assert_eq!(count(&bench, "deliveries"), "1");
}

#[test]
fn a_lost_event_takes_no_other_along() {
    let Some((bench, mut outbox)) = own() else { return };
    for _ in 0..3 {
        event(&bench, "acme", None);
    }
    let events = claim_events(&mut outbox, "w");
    bench.run("UPDATE outbox SET leased_by = 'v' WHERE id = 2");
    assert_eq!(expand(&mut outbox, "w", &events, &["a", "b"]), ["2"]);
    let inserted = "SELECT string_agg(delivery_id, ',' ORDER BY seq) FROM outbox_deliveries";
    assert_eq!(bench.value(inserted), "dl_1_1_a,dl_1_1_b,dl_3_1_a,dl_3_1_b");
}

#[test]
fn events_of_another_generation_or_tenant_by_now_are_lost() {
    let Some((bench, mut outbox)) = own() else { return };
    event(&bench, "acme", None);
    event(&bench, "acme", None);
    let events = claim_events(&mut outbox, "w");
    bench.run("INSERT INTO outbox_emissions (notification_id, account_id, generation, state) VALUES ('1', 'acme', 2, 'pending')");
    bench.run("UPDATE outbox SET tenant = 'other' WHERE id = 2");
    assert_eq!(expand(&mut outbox, "w", &events, &["a"]), ["1", "2"]);
    assert_eq!(
        (count(&bench, "deliveries"), bench.value("SELECT string_agg(status, ',') FROM outbox")),
        ("0".into(), "pending,pending".into())
    );
}

#[test]
fn a_repeat_inserts_nothing_twice_and_changes_nothing() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    bench.run("UPDATE outbox_deliveries SET envelope = 'first'; UPDATE outbox SET status = 'pending', available_at = 'epoch'");
    let events = claim_events(&mut outbox, "w");
    assert!(expand(&mut outbox, "w", &events, &["a", "b"]).is_empty());
    assert_eq!(
        bench.value("SELECT string_agg(delivery_id || (envelope = 'first'), ',' ORDER BY seq) FROM outbox_deliveries"),
        "dl_1_1_atrue,dl_1_1_bfalse"
    );
}

/// The id of an event was given out again, or its payload was changed: it must not end as if everybody had it.
#[test]
fn a_delivery_that_is_there_with_another_body_fails_the_expansion() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    bench.run("UPDATE outbox_deliveries SET body_sha256 = 'another'");
    bench.run("UPDATE outbox SET status = 'pending', available_at = 'epoch'");
    event(&bench, "acme", None);
    let events = claim_events(&mut outbox, "w");
    let (expansions, deliveries) = planned(&events, &["a", "b"]);
    let failure = outbox.expand("w", &expansions, &deliveries).unwrap_err();
    assert_eq!(failure.code, FailureCode::Other("invalid_payload".into()), "{}", failure.detail);
    assert!(failure.detail.contains("its id was given out a second time"), "{}", failure.detail);
    assert_eq!(
        (count(&bench, "deliveries"), bench.value("SELECT string_agg(status, ',') FROM outbox")),
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
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    let claimed = deliveries(&mut outbox, "w", 10);
    super::support::settle(&mut outbox, "w", outhaul_sdk::DeliveryVerdict::Complete, &claimed);
    bench.run("UPDATE outbox SET done_at = 'epoch'");
    assert_eq!(outbox.purge(1000, 10).unwrap(), 1);
    bench.run("INSERT INTO outbox (id, tenant, topic, payload) OVERRIDING SYSTEM VALUE VALUES (1, 'acme', 't', 'x')");
    let events = claim_events(&mut outbox, "w");
    let (expansions, batch) = planned(&events, &["a"]);
    let failure = outbox.expand("w", &expansions, &batch).unwrap_err();
    assert_eq!(failure.code, FailureCode::Other("invalid_payload".into()), "{}", failure.detail);
    assert!(failure.detail.contains("its id was given out a second time"), "{}", failure.detail);
    assert_eq!(bench.value("SELECT status FROM outbox"), "pending");
    // Once the deliveries of the first one are gone too, nothing is in the way.
    bench.run("DELETE FROM outbox_deliveries");
    assert!(outbox.expand("w", &expansions, &batch).unwrap().is_empty());
    assert_eq!(deliveries(&mut outbox, "w", 10).len(), 1);
}

#[test]
fn what_does_not_fit_together_is_refused_as_a_whole() {
    let Some((bench, mut outbox)) = own() else { return };
    event(&bench, "acme", None);
    event(&bench, "acme", None);
    let events = claim_events(&mut outbox, "w");
    let (expansions, deliveries) = planned(&events, &["a"]);
    let mut more = expansions.clone();
    more[1].deliveries = 2;
    let mut fewer = expansions.clone();
    fewer[1].deliveries = 0;
    let twice = vec![expansions[0].clone(), Expansion { event: "1".into(), ..expansions[1].clone() }];
    let mut foreign = Batch::new();
    for event in ["1", "9"] {
        push(&mut foreign, Sealed { tenant: "acme", event, generation: 1, subscriber: "a", key: None });
    }
    for (expansions, deliveries) in [(&more, &deliveries), (&fewer, &deliveries), (&twice, &deliveries), (&expansions, &foreign)] {
        let failure = outbox.expand("w", expansions, deliveries).unwrap_err();
        assert_eq!(failure.code, FailureCode::InvalidMessage, "{failure:?}");
    }
    assert_eq!((count(&bench, "deliveries"), count(&bench, "emissions")), ("0".into(), "0".into()));
    assert!(outbox.expand("w", &expansions, &deliveries).unwrap().is_empty());
}

#[test]
fn events_are_retried_released_and_renewed_like_any_row() {
    let Some((bench, mut outbox)) = own() else { return };
    for _ in 0..2 {
        event(&bench, "acme", None);
    }
    let claimed = ids(&claim_events(&mut outbox, "w").claimed.batch);
    settle(&mut outbox, "w", retry("router", 60_000), &claimed[..1]);
    settle(&mut outbox, "w", Verdict::Release(0), &claimed[1..]);
    assert_eq!(ids(&claim_events(&mut outbox, "w").claimed.batch), claimed[1..]);
    assert_eq!(outbox.extend("w", &Column::of_texts(&claimed), 1000).unwrap(), claimed[..1]);
    assert_eq!(count(&bench, "emissions"), "0");
}

#[test]
fn a_waiting_or_leased_event_holds_back_its_key_and_no_other_tenants() {
    let Some((bench, mut outbox)) = own() else { return };
    for tenant in ["acme", "acme", "other", "other"] {
        event(&bench, tenant, Some("k"));
    }
    let first = outbox.claim_events(&request("w", 1), Some("acme")).unwrap();
    assert_eq!(ids(&first.claimed.batch), ["1"]);
    assert_eq!(ids(&claim_events(&mut outbox, "v").claimed.batch), ["3", "4"], "leased");
    settle(&mut outbox, "w", retry("router", 60_000), &["1".into()]);
    assert!(ids(&claim_events(&mut outbox, "v").claimed.batch).is_empty(), "waiting");
}

#[test]
fn a_dead_event_is_quarantined_with_its_code() {
    let Some((bench, mut outbox)) = own() else { return };
    for _ in 0..4 {
        event(&bench, "acme", None);
    }
    bench.run("UPDATE outbox SET attempts = 3 WHERE id = 3; UPDATE outbox SET headers = 'oops' WHERE id = 4");
    let events = outbox.claim_events(&ClaimRequest { max_attempts: 3, ..request("w", 100) }, None).unwrap();
    assert_eq!((ids(&events.claimed.batch), events.claimed.refused.len()), (vec!["1".into(), "2".into()], 2));
    settle(&mut outbox, "w", Verdict::Dead(coded("invalid_configuration", "no")), &["1".into()]);
    // What a worker has lost, it does not end.
    assert_eq!(settle(&mut outbox, "v", dead("no"), &["2".into()]), ["2"]);
    let expected = ["1 3/1 quarantined lease_expired", "2 4/1 quarantined invalid_payload", "3 1/1 quarantined invalid_configuration"];
    assert_eq!(log(&mut outbox, "acme"), expected);
}

#[test]
fn a_requeued_event_is_logged_and_expanded_as_the_same_generation() {
    let Some((bench, mut outbox)) = own() else { return };
    event(&bench, "acme", None);
    claim_events(&mut outbox, "w");
    settle(&mut outbox, "w", Verdict::Dead(coded("invalid_configuration", "no")), &["1".into()]);
    assert_eq!(outbox.requeue(&Filter { state: None, topic: None, ids: vec!["1".to_owned()] }).unwrap(), 1);
    let events = claim_events(&mut outbox, "w");
    assert_eq!(events.generations, [1]);
    assert!(expand(&mut outbox, "w", &events, &["a"]).is_empty());
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 quarantined invalid_configuration", "2 1/1 pending -", "3 1/1 expanded -"]);
}

#[test]
fn a_settled_event_is_emitted_again_as_its_next_generation() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", Some("k"), &["a"]);
    assert_eq!(outbox.reemit("acme", "1").unwrap(), Reemitted::Generation(2));
    assert_eq!(bench.value("SELECT status || attempts || coalesce(done_at::text, '-') FROM outbox"), "pending0-");
    assert_eq!(outbox.reemit("acme", "1").unwrap(), Reemitted::Pending(2), "not twice at a time");
    let events = claim_events(&mut outbox, "w");
    assert_eq!((events.generations.as_slice(), outbox.reemit("acme", "1").unwrap()), (&[2][..], Reemitted::Pending(2)));
    assert!(expand(&mut outbox, "w", &events, &["a", "b"]).is_empty());
    assert_eq!(
        bench.value("SELECT string_agg(delivery_id, ',' ORDER BY seq) FROM outbox_deliveries"),
        [delivery_id("1", 1, "a"), delivery_id("1", 2, "a"), delivery_id("1", 2, "b")].join(",")
    );
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 expanded -", "2 1/2 pending -", "3 1/2 expanded -"]);
    settle(&mut outbox, "w", dead("no"), &["1".into()]);
    assert_eq!(outbox.reemit("acme", "1").unwrap(), Reemitted::Generation(3));
}

#[test]
fn the_emissions_of_an_event_go_with_it() {
    let Some((bench, mut outbox)) = own() else { return };
    for tenant in ["acme", "other", "acme"] {
        expanded(&bench, &mut outbox, tenant, None, &["a"]);
    }
    event(&bench, "acme", None);
    claim_events(&mut outbox, "w");
    settle(&mut outbox, "w", dead("no"), &["4".into()]);
    bench.run("UPDATE outbox SET done_at = now() - interval '2 h' WHERE id <= 2");
    let left = "SELECT string_agg(notification_id, ',' ORDER BY notification_id) FROM outbox_emissions";
    assert_eq!((outbox.purge(3_600_000, 10).unwrap(), bench.value(left)), (2, "3,4".into()));
    let any = Filter { state: None, topic: None, ids: Vec::new() };
    assert_eq!((outbox.discard(&any).unwrap(), bench.value(left)), (1, "3".into()));
    assert_eq!((count(&bench, "deliveries"), log(&mut outbox, "acme").len()), ("3".into(), 3), "deliveries and the log stay");
}

#[test]
fn what_the_tenant_does_not_have_or_what_is_not_settled_is_not_emitted_again() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    for (tenant, event) in [("other", "1"), ("", "1"), ("acme", "2"), ("acme", "x"), ("acme", "01"), ("acme", "")] {
        assert_eq!(outbox.reemit(tenant, event).unwrap(), Reemitted::Unknown, "{tenant} {event}");
    }
    assert_eq!(bench.value("SELECT status FROM outbox"), "done");
    event(&bench, "acme", None);
    assert_eq!(outbox.reemit("acme", "2").unwrap(), Reemitted::Pending(1));
}
