//! Deliveries: claimed in order, settled, listed, sealed anew, purged.

use super::support::{again, claim_events, coded, deliveries, delivery_id, event, expand, expanded, lapse, log, of, own, settle};
use crate::support::{Bench, ids, request};
use outbox_table::fan_out::ROUTING;
use outhaul_sdk::{Batch, ClaimRequest, Column, DeliveryFilter, DeliveryState, DeliveryVerdict, FailureCode, NewMessage};

fn states(bench: &Bench) -> String {
    bench.value(
        "SELECT group_concat(subscriber_id || ' ' || state || ' ' || attempts || ' ' || ifnull(error_code, '-') || ' ' || \
         ifnull(last_error, '-') || ' ' || iif(envelope IS NULL, 'erased', 'kept') || ' ' || iif(done_at IS NULL, '-', 'ended') || ' ' || \
         ifnull(leased_by, '-'), '; ' ORDER BY seq) FROM outbox_deliveries",
    )
}

#[test]
fn a_delivery_is_a_message_with_its_routing_columns_as_headers() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", Some("k"), &["a"]);
    let batch = deliveries(&mut outbox, "w", 10).batch;
    let message = batch.message(0);
    assert_eq!((message.id(), message.topic(), message.attempts()), (delivery_id("1", 1, "a").as_str(), "t", 1));
    assert_eq!((message.key(), message.payload()), (Some(r#"["acme","a","k"]"#), Some(&b"sealed dl_1_1_a"[..])));
    let mut names: Vec<&str> = message.headers().map(|(name, _)| name).collect();
    let mut expected: Vec<&str> = ROUTING.iter().map(|column| column.name).filter(|name| *name != "signing_scope_id").collect();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let value = |name| message.headers().find(|(header, _)| *header == name).unwrap().1;
    assert_eq!((value("emission_generation"), value("order_key")), (&b"1"[..], &br#"["acme","a","k"]"#[..]));
    assert_eq!(value("body_sha256"), b"body_sha256-of-dl_1_1_a");
    // A column that somebody has changed comes back as it is now.
    bench.run("UPDATE outbox_deliveries SET body_sha256 = 'changed', emission_generation = 'two', available_at = 0");
    let batch = deliveries(&mut outbox, "w", 10).batch;
    let value = |name| batch.message(0).headers().find(|(header, _)| *header == name).unwrap().1.to_vec();
    assert_eq!((value("body_sha256"), value("emission_generation")), (b"changed".to_vec(), b"two".to_vec()));
}

#[test]
fn verdicts_are_written_and_envelopes_erased_where_nothing_is_sent_any_more() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a", "b", "c", "d", "e"]);
    let claimed = ids(&deliveries(&mut outbox, "w", 10).batch);
    let verdicts = [
        DeliveryVerdict::Complete,
        again("retryable_http", 5_000),
        DeliveryVerdict::Release(0),
        DeliveryVerdict::Suppressed(coded("subscription_changed", "it is gone")),
        DeliveryVerdict::Quarantined(coded("integrity_failure", "it does not open")),
    ];
    let settlements: Vec<_> = verdicts
        .into_iter()
        .zip(&claimed)
        .map(|(verdict, id)| outhaul_sdk::DeliverySettlement { verdict, ids: Column::of_texts([id]) })
        .collect();
    assert!(outbox.settle_deliveries("w", &settlements).unwrap().is_empty());
    assert_eq!(
        states(&bench),
        "a complete 1 - - erased ended -; b pending 1 retryable_http why kept - -; c pending 0 - - kept - -; \
         d suppressed 1 subscription_changed it is gone erased ended -; e quarantined 1 integrity_failure it does not open kept ended -"
    );
    assert_eq!(
        bench.value(
            "SELECT available_at - unixepoch('subsec') * 1000 BETWEEN 3000 AND 5100 FROM outbox_deliveries WHERE subscriber_id = 'b'"
        ),
        "1"
    );
    let counts = outbox.delivery_stats().unwrap();
    assert_eq!((counts.pending, counts.due, counts.leased, counts.suppressed, counts.quarantined), (2, 1, 0, 1, 1));
    assert!(counts.oldest_pending_ms.is_some_and(|age| age < 60_000));
    // What is recorded of a failure goes once the delivery is complete.
    lapse(&bench);
    let claimed = ids(&deliveries(&mut outbox, "w", 10).batch);
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &claimed);
    assert_eq!(
        bench.value("SELECT count(*) FROM outbox_deliveries WHERE state = 'complete' AND error_code IS NULL AND last_error IS NULL"),
        "3"
    );
    assert_eq!(outbox.delivery_stats().unwrap().oldest_pending_ms, None);
}

#[test]
fn a_worker_settles_and_renews_only_what_it_holds() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a", "b"]);
    let claimed = ids(&deliveries(&mut outbox, "w1", 10).batch);
    bench.run("UPDATE outbox_deliveries SET available_at = 1 WHERE subscriber_id = 'a'");
    assert_eq!(ids(&deliveries(&mut outbox, "w2", 10).batch), claimed[..1]);
    assert_eq!(outbox.extend_deliveries("w1", &Column::of_texts(&claimed), 60_000).unwrap(), claimed[..1]);
    let failure = || coded("network", "x");
    for verdict in [
        DeliveryVerdict::Complete,
        again("network", 0),
        DeliveryVerdict::Release(0),
        DeliveryVerdict::Suppressed(failure()),
        DeliveryVerdict::Quarantined(failure()),
    ] {
        assert_eq!(settle(&mut outbox, "w1", verdict, &claimed[..1]), claimed[..1]);
    }
    assert_eq!(bench.value("SELECT state || leased_by FROM outbox_deliveries WHERE subscriber_id = 'a'"), "pendingw2");
    assert!(settle(&mut outbox, "w2", DeliveryVerdict::Complete, &claimed[..1]).is_empty());
    assert_eq!(settle(&mut outbox, "w2", DeliveryVerdict::Complete, &["nothing"]), ["nothing"]);
}

#[test]
fn order_holds_per_key_and_subscriber_behind_waiting_and_leased_heads() {
    let (bench, mut outbox) = own();
    for key in [Some("k"), Some("k"), None, Some("l")] {
        expanded(&bench, &mut outbox, "acme", key, &["a", "b"]);
    }
    // The dead endpoint of a: its head waits, and only the rows of its key and subscriber wait with it.
    assert_eq!(ids(&deliveries(&mut outbox, "w", 100).batch).len(), 8);
    settle(&mut outbox, "w", again("network", 600_000), &["dl_1_1_a"]);
    for id in ["dl_1_1_b", "dl_2_1_a", "dl_2_1_b", "dl_3_1_a", "dl_3_1_b", "dl_4_1_a", "dl_4_1_b"] {
        settle(&mut outbox, "w", DeliveryVerdict::Release(0), &[id]);
    }
    let claimed = ids(&deliveries(&mut outbox, "w", 100).batch);
    assert_eq!(claimed, ["dl_1_1_b", "dl_2_1_b", "dl_3_1_a", "dl_3_1_b", "dl_4_1_a", "dl_4_1_b"]);
    // A leased head holds its key back as well, also from another instance.
    settle(&mut outbox, "w", DeliveryVerdict::Release(0), &["dl_2_1_b"]);
    assert!(deliveries(&mut bench.open(super::support::FAN_OUT), "v", 100).batch.is_empty());
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &["dl_1_1_b"]);
    assert_eq!(ids(&deliveries(&mut bench.open(super::support::FAN_OUT), "v", 100).batch), ["dl_2_1_b"]);
    // One that has failed before is tried alone: if it fails again, its followers were not leased for nothing.
    bench.run("UPDATE outbox_deliveries SET available_at = 0 WHERE delivery_id = 'dl_1_1_a'");
    assert_eq!(ids(&deliveries(&mut outbox, "w", 100).batch), ["dl_1_1_a"]);
    assert_eq!(ids(&deliveries(&mut outbox, "w", 100).batch), Vec::<String>::new());
    // A head that ends lets its followers go on.
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &["dl_1_1_a"]);
    assert_eq!(ids(&deliveries(&mut outbox, "w", 100).batch), ["dl_2_1_a"]);
}

#[test]
fn a_key_whose_head_fails_again_and_again_is_claimed_with_its_followers_once() {
    let (bench, mut outbox) = own();
    for _ in 0..20 {
        expanded(&bench, &mut outbox, "acme", Some("k"), &["down", "well"]);
    }
    let of = |batch: &Batch, subscriber: &str| ids(batch).into_iter().filter(|id| id.ends_with(subscriber)).collect::<Vec<_>>();
    let first = deliveries(&mut outbox, "w", 100).batch;
    assert_eq!((of(&first, "down").len(), of(&first, "well").len()), (20, 20));
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &of(&first, "well"));
    settle(&mut outbox, "w", again("network", 0), &["dl_1_1_down"]);
    settle(&mut outbox, "w", DeliveryVerdict::Release(0), &of(&first, "down")[1..]);
    for attempts in 2..10 {
        let batch = deliveries(&mut outbox, "w", 100).batch;
        assert_eq!((ids(&batch), batch.message(0).attempts()), (vec!["dl_1_1_down".to_owned()], attempts));
        settle(&mut outbox, "w", again("network", 0), &["dl_1_1_down"]);
    }
    // Leases that ran out together are taken together: a worker that died is no reason to go one by one.
    assert_eq!(ids(&deliveries(&mut outbox, "w", 100).batch), ["dl_1_1_down"]);
    settle(&mut outbox, "w", DeliveryVerdict::Quarantined(coded("permanent_http", "404")), &["dl_1_1_down"]);
    assert_eq!(deliveries(&mut outbox, "dies", 100).batch.len(), 19);
    lapse(&bench);
    assert_eq!(deliveries(&mut outbox, "w", 100).batch.attempts, vec![2; 19]);
}

#[test]
fn a_delivery_whose_last_lease_ran_out_is_quarantined_and_so_is_one_that_is_too_large() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a", "b", "c"]);
    bench.run("UPDATE outbox_deliveries SET attempts = 3 WHERE subscriber_id = 'a'");
    bench.run("UPDATE outbox_deliveries SET envelope = CAST(printf('%.*c', 200000, 'x') AS BLOB) WHERE subscriber_id = 'b'");
    let request = ClaimRequest { max_attempts: 3, max_message_bytes: 100_000, ..request("w", 10) };
    let claimed = outbox.claim_deliveries(&request, None, 0).unwrap();
    assert_eq!(ids(&claimed.batch), ["dl_1_1_c"]);
    let refused: Vec<(String, FailureCode)> = claimed.refused.into_iter().map(|refusal| (refusal.id, refusal.failure.code)).collect();
    let code = |word: &str| FailureCode::Other(word.to_owned());
    assert_eq!(refused, [("dl_1_1_a".to_owned(), code("lease_expired")), ("dl_1_1_b".to_owned(), code("integrity_failure"))]);
    assert_eq!(
        log(&mut outbox, "acme"),
        ["1 1/1 expanded -", "2 dl_1_1_a quarantined lease_expired", "3 dl_1_1_b quarantined integrity_failure"]
    );
    assert_eq!(
        bench.value("SELECT last_error FROM outbox_deliveries WHERE subscriber_id = 'a'"),
        "gave up after 3 attempts: the lease of the last one ran out"
    );
    assert_eq!(bench.value("SELECT envelope IS NULL FROM outbox_deliveries WHERE subscriber_id = 'a'"), "0");
}

#[test]
fn a_tried_delivery_beyond_the_horizon_is_quarantined_once_it_is_free() {
    const HOUR: u64 = 3_600_000;
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["tried", "leased", "new", "silent", "waiting"]);
    let claim = |outbox: &mut _, horizon| -> outhaul_sdk::Claimed {
        let outbox: &mut sqlite_storage::Outbox<crate::support::Sqlite> = outbox;
        outbox.claim_deliveries(&request("w", 10), None, horizon).unwrap()
    };
    bench.run("UPDATE outbox_deliveries SET created_at = created_at - 7200000");
    bench.run("UPDATE outbox_deliveries SET attempts = 5, error_code = 'network', last_error = 'refused' WHERE subscriber_id = 'tried'");
    bench.run("UPDATE outbox_deliveries SET attempts = 1 WHERE subscriber_id = 'silent'");
    bench.run("UPDATE outbox_deliveries SET attempts = 1, leased_by = 'x', available_at = unixepoch() * 1000 + 60000 WHERE subscriber_id = 'leased'");
    bench.run("UPDATE outbox_deliveries SET attempts = 1, available_at = unixepoch() * 1000 + 60000 WHERE subscriber_id = 'waiting'");
    let claimed = claim(&mut outbox, HOUR);
    assert_eq!(ids(&claimed.batch), ["dl_1_1_new"], "one that was never tried is");
    let refused: Vec<_> = claimed.refused.iter().map(|refusal| (refusal.id.as_str(), refusal.failure.code.clone())).collect();
    let code = |word: &str| FailureCode::Other(word.to_owned());
    assert_eq!(refused, [("dl_1_1_tried", code("network")), ("dl_1_1_silent", code("lease_expired"))]);
    assert_eq!(
        bench.value(
            "SELECT group_concat(state || ': ' || last_error, '; ' ORDER BY seq) FROM outbox_deliveries WHERE last_error IS NOT NULL"
        ),
        "quarantined: gave up after 3600 seconds, the horizon of the relay; the last failure: refused; \
         quarantined: gave up after 3600 seconds, the horizon of the relay"
    );
    assert_eq!(log(&mut outbox, "acme")[2..], ["3 dl_1_1_tried quarantined network", "4 dl_1_1_silent quarantined lease_expired"]);
    // Within a longer horizon, or without one, they go on.
    lapse(&bench);
    assert_eq!(claim(&mut outbox, 3 * HOUR).batch.len(), 3);
    lapse(&bench);
    assert_eq!(claim(&mut outbox, 0).batch.len(), 3);
    lapse(&bench);
    assert_eq!(claim(&mut outbox, HOUR).refused.len(), 3);
}

#[test]
fn deliveries_are_listed_of_one_tenant_only() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a", "b"]);
    expanded(&bench, &mut outbox, "other", None, &["a", "b"]);
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    outbox.claim_deliveries(&request("w", 1), Some("acme"), 0).unwrap();
    let held = bench.value("SELECT delivery_id FROM outbox_deliveries WHERE leased_by = 'w'");
    let listed = |outbox: &mut sqlite_storage::Outbox<_>, filter: &DeliveryFilter| -> Vec<String> {
        outbox.list_deliveries(filter, None, 100).unwrap().deliveries.into_iter().map(|delivery| delivery.id).collect()
    };
    assert_eq!(listed(&mut outbox, &of("acme")), ["dl_1_1_a", "dl_1_1_b", "dl_3_1_a"]);
    assert_eq!(listed(&mut outbox, &of("")), Vec::<String>::new());
    let filtered = |change: &dyn Fn(&mut DeliveryFilter)| {
        let mut filter = of("acme");
        change(&mut filter);
        filter
    };
    assert_eq!(listed(&mut outbox, &filtered(&|filter| filter.state = Some(DeliveryState::Leased))), [held.as_str()]);
    assert_eq!(listed(&mut outbox, &filtered(&|filter| filter.state = Some(DeliveryState::Pending))).len(), 2);
    assert_eq!(listed(&mut outbox, &filtered(&|filter| filter.subscriber = Some("b".to_owned()))), ["dl_1_1_b"]);
    assert_eq!(listed(&mut outbox, &filtered(&|filter| filter.event = Some("3".to_owned()))), ["dl_3_1_a"]);
    assert_eq!(listed(&mut outbox, &filtered(&|filter| filter.ids = vec!["dl_2_1_a".to_owned(), "dl_1_1_a".to_owned()])), ["dl_1_1_a"]);
    settle(&mut outbox, "w", again("network", 60_000), &[&held]);
    let page = outbox.list_deliveries(&filtered(&|filter| filter.ids = vec![held.clone()]), None, 10).unwrap();
    let delivery = &page.deliveries[0];
    assert_eq!(
        (delivery.state, delivery.attempts, delivery.code.as_deref(), delivery.detail.as_deref()),
        (DeliveryState::Pending, 1, Some("network"), Some("why"))
    );
    assert!((50_000..=60_000).contains(&delivery.due_in_ms), "{}", delivery.due_in_ms);
    assert_eq!((delivery.topic.as_str(), delivery.key_version.as_str(), delivery.generation), ("t", "v1", 1));
    assert_eq!((delivery.idempotency_key.clone(), page.next.clone()), (format!("idempotency_key-of-{held}"), None));
    // Pages.
    let page = outbox.list_deliveries(&of("acme"), None, 2).unwrap();
    assert_eq!(page.deliveries.len(), 2);
    let rest = outbox.list_deliveries(&of("acme"), page.next.as_deref(), 2).unwrap();
    assert_eq!((rest.deliveries[0].id.as_str(), rest.deliveries.len(), rest.next), ("dl_3_1_a", 1, None));
    assert_eq!(outbox.list_deliveries(&of("acme"), Some("x"), 2).unwrap_err().code, FailureCode::InvalidMessage);
}

#[test]
fn envelopes_are_sealed_anew_where_they_are_still_under_the_key_before() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a", "b", "c", "d"]);
    bench.run("UPDATE outbox_deliveries SET key_version = 'v2' WHERE subscriber_id = 'c'");
    bench.run("UPDATE outbox_deliveries SET state = 'complete', envelope = NULL WHERE subscriber_id = 'd'");
    let page = outbox.list_sealed("v2", None, 10, 1 << 20).unwrap();
    assert_eq!((ids(&page.deliveries), page.next.as_deref()), (vec!["dl_1_1_a".to_owned(), "dl_1_1_b".to_owned()], None));
    assert_eq!(page.deliveries.message(0).payload(), Some(&b"sealed dl_1_1_a"[..]));
    // Bounded in rows and in bytes; the first may be larger.
    let one = outbox.list_sealed("v2", None, 1, 1 << 20).unwrap();
    assert_eq!((ids(&one.deliveries), one.next.as_deref()), (vec!["dl_1_1_a".to_owned()], Some("1")));
    let small = outbox.list_sealed("v2", None, 10, 1).unwrap();
    assert_eq!((ids(&small.deliveries), small.next.as_deref()), (vec!["dl_1_1_a".to_owned()], Some("1")));
    let rest = outbox.list_sealed("v2", Some("1"), 10, 1).unwrap();
    assert_eq!((ids(&rest.deliveries), rest.next), (vec!["dl_1_1_b".to_owned()], None));

    bench.run("UPDATE outbox_deliveries SET key_version = 'v3' WHERE subscriber_id = 'b'");
    let mut batch = Batch::new();
    for id in ["dl_1_1_a", "dl_1_1_b", "dl_1_1_d", "nothing"] {
        let headers: [(&str, &[u8]); 1] = [("key_version", b"v2")];
        batch.push(&NewMessage { id, topic: "t", headers: &headers, payload: Some(b"anew"), ..NewMessage::default() });
    }
    assert_eq!(outbox.reseal(&batch, &Column::of_texts(["v1"; 4])).unwrap(), 1);
    let shown = "SELECT group_concat(key_version || ' ' || ifnull(CAST(envelope AS TEXT), '-'), '; ' ORDER BY seq) FROM outbox_deliveries";
    assert_eq!(bench.value(shown), "v2 anew; v3 sealed dl_1_1_b; v2 sealed dl_1_1_c; v1 -");
    assert_eq!(outbox.reseal(&batch, &Column::of_texts(["v1"; 3])).unwrap_err().code, FailureCode::InvalidMessage);
    assert_eq!(outbox.reseal(&Batch::new(), &Column::new()).unwrap(), 0);
    assert_eq!(log(&mut outbox, "acme").len(), 2, "sealing anew is no change of state");
}

#[test]
fn only_quarantined_deliveries_of_the_tenant_are_requeued() {
    let (bench, mut outbox) = own();
    let events = [("acme", &["a", "b", "c", "d", "e"][..]), ("other", &["a"][..]), ("acme", &["a"][..])];
    for (tenant, subscribers) in events {
        expanded(&bench, &mut outbox, tenant, Some("k"), subscribers);
    }
    let claimed = ids(&deliveries(&mut outbox, "w", 100).batch);
    assert_eq!(claimed.len(), 7);
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &["dl_1_1_c"]);
    settle(&mut outbox, "w", DeliveryVerdict::Suppressed(coded("subscription_changed", "")), &["dl_1_1_d"]);
    let ended = ["dl_1_1_a", "dl_1_1_b", "dl_2_1_a", "dl_3_1_a"];
    settle(&mut outbox, "w", DeliveryVerdict::Quarantined(coded("integrity_failure", "no key")), &ended);
    assert!(ids(&deliveries(&mut outbox, "v", 10).batch).is_empty());

    let count = |outbox: &mut _, change: &dyn Fn(&mut DeliveryFilter)| {
        let mut filter = of("acme");
        change(&mut filter);
        let outbox: &mut sqlite_storage::Outbox<crate::support::Sqlite> = outbox;
        outbox.requeue_deliveries(&filter)
    };
    for state in [DeliveryState::Complete, DeliveryState::Pending, DeliveryState::Leased, DeliveryState::Suppressed] {
        assert_eq!(count(&mut outbox, &|filter| filter.state = Some(state)).unwrap_err().code, FailureCode::InvalidMessage);
    }
    let named = ["dl_1_1_c", "dl_1_1_d", "dl_1_1_e", "dl_2_1_a", "nothing"].map(str::to_owned);
    assert_eq!(count(&mut outbox, &|filter| filter.ids = named.to_vec()).unwrap(), 0);
    assert_eq!(count(&mut outbox, &|filter| filter.subscriber = Some("c".into())).unwrap(), 0);
    let (event, subscriber) = (Some("3".to_owned()), Some("a".to_owned()));
    assert_eq!(count(&mut outbox, &|filter| (filter.event, filter.subscriber) = (event.clone(), subscriber.clone())).unwrap(), 1);
    assert_eq!(ids(&deliveries(&mut outbox, "v", 10).batch), ["dl_3_1_a"]);
    settle(&mut outbox, "v", DeliveryVerdict::Release(0), &["dl_3_1_a"]);
    // What has no envelope could only be quarantined again.
    bench.run("UPDATE outbox_deliveries SET envelope = NULL WHERE delivery_id = 'dl_1_1_b'");
    assert_eq!(count(&mut outbox, &|filter| filter.state = Some(DeliveryState::Quarantined)).unwrap(), 1);
    assert_eq!(count(&mut outbox, &|_| {}).unwrap(), 0);
    assert_eq!(
        bench.value("SELECT group_concat(subscriber_id || ' ' || state || ' ' || attempts || ' ' || (done_at IS NULL) || (last_error IS NULL), ', ' ORDER BY seq) FROM outbox_deliveries WHERE account_id = 'acme' AND subscriber_id IN ('a', 'b')"),
        "a pending 0 11, b quarantined 1 00, a pending 0 11"
    );
    let logged = log(&mut outbox, "acme");
    assert_eq!(logged[logged.len() - 2..], ["8 dl_3_1_a pending -", "9 dl_1_1_a pending -"]);
    assert_eq!(ids(&deliveries(&mut outbox, "v", 10).batch), ["dl_1_1_a", "dl_3_1_a"], "in the order of their key");
}

#[test]
fn old_complete_and_suppressed_deliveries_are_purged_in_steps_and_the_log_stays() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a", "b", "c", "d", "e"]);
    let claimed = ids(&deliveries(&mut outbox, "w", 10).batch);
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &claimed[..2]);
    settle(&mut outbox, "w", DeliveryVerdict::Suppressed(coded("subscription_changed", "")), &claimed[2..3]);
    settle(&mut outbox, "w", DeliveryVerdict::Quarantined(coded("permanent_http", "")), &claimed[3..4]);
    assert_eq!(outbox.purge_deliveries(3_600_000, 100).unwrap(), 0);
    bench.run("UPDATE outbox_deliveries SET done_at = done_at - 7200000");
    assert_eq!([2, 2, 2].map(|limit| outbox.purge_deliveries(3_600_000, limit).unwrap()), [2, 1, 0]);
    assert_eq!(bench.value("SELECT group_concat(state ORDER BY seq) FROM outbox_deliveries"), "quarantined,pending");
    assert_eq!(log(&mut outbox, "acme").len(), 5);
}

#[test]
fn deliveries_of_one_key_are_inserted_in_the_order_of_their_events() {
    let (bench, mut outbox) = own();
    for _ in 0..3 {
        event(&bench, "acme", Some("k"));
    }
    let events = claim_events(&mut outbox, "w");
    assert_eq!(ids(&events.claimed.batch), ["1", "2", "3"]);
    assert!(expand(&mut outbox, "w", &events, &["b", "a"]).is_empty());
    let claimed = ids(&deliveries(&mut outbox, "w", 10).batch);
    let of_a: Vec<&String> = claimed.iter().filter(|id| id.ends_with("_a")).collect();
    assert_eq!(of_a, ["dl_1_1_a", "dl_2_1_a", "dl_3_1_a"]);
}
