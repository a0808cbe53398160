//! Deliveries: as messages, their verdicts, order, ends, pages, keys.

use super::support::{again, coded, deliveries, expanded, fill, lapse, log, of, own, settle, verdict};
use crate::suite::support::{Bench, ids, patiently, request};
use outbox_table::fan_out::ROUTING;
use outhaul_sdk::{Batch, ClaimRequest, Column, DeliveryFilter, DeliveryState, DeliveryVerdict, FailureCode, NewMessage};

fn states(bench: &Bench) -> String {
    bench.value(
        "SELECT string_agg(concat_ws(' ', subscriber_id, state, attempts, coalesce(error_code, '-'), \
         CASE WHEN envelope IS NULL THEN 'erased' ELSE 'sealed' END), ', ' ORDER BY seq) FROM outbox_deliveries",
    )
}

#[test]
fn a_delivery_is_a_message_with_its_routing_columns_as_headers() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", Some("k"), &["a"]);
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    let batch = outbox.claim_deliveries(&request("w", 10), None, 0).unwrap().batch;
    let message = batch.message(0);
    assert_eq!((message.id(), message.topic(), message.key(), message.attempts()), ("dl_1_1_a", "t", Some(r#"["acme","a","k"]"#), 1));
    assert_eq!(message.payload(), Some(&b"sealed \0dl_1_1_a"[..]));
    let mut headers: Vec<(&str, &str)> = message.headers().map(|(name, value)| (name, std::str::from_utf8(value).unwrap())).collect();
    headers.sort_unstable();
    assert_eq!(headers.len(), ROUTING.len() - 1, "each once, but the one that is NULL: {headers:?}");
    for (name, value) in [("account_id", "acme"), ("emission_generation", "1"), ("order_key", r#"["acme","a","k"]"#), ("key_version", "v1")]
    {
        assert!(headers.contains(&(name, value)), "{name}: {headers:?}");
    }
    // Independent of all others.
    assert_eq!((batch.message(1).key(), batch.message(1).headers().count()), (None, ROUTING.len() - 2));
    // What was changed in the row comes out as it is by now.
    bench.run("UPDATE outbox_deliveries SET principal_id = 'mallory', emission_generation = 7, available_at = 'epoch' WHERE seq = 1");
    let batch = outbox.claim_deliveries(&request("w", 10), None, 0).unwrap().batch;
    let changed = |name: &str| batch.message(0).headers().find(|(header, _)| *header == name).unwrap().1.to_vec();
    assert_eq!((changed("principal_id"), changed("emission_generation")), (b"mallory".to_vec(), b"7".to_vec()));
}

#[test]
fn verdicts_are_written_and_envelopes_erased_where_nothing_is_sent_any_more() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a", "b", "c", "d", "e"]);
    let claimed = deliveries(&mut outbox, "w", 10);
    let lost = outbox.settle_deliveries(
        "w",
        &[
            verdict(DeliveryVerdict::Quarantined(coded("integrity_failure", "no")), &claimed[4..]),
            verdict(DeliveryVerdict::Complete, &claimed[..1]),
            verdict(again("network", 60_000), &claimed[1..2]),
            verdict(DeliveryVerdict::Release(0), &claimed[2..3]),
            verdict(DeliveryVerdict::Suppressed(coded("subscription_changed", "no")), &claimed[3..4]),
        ],
    );
    assert!(lost.unwrap().is_empty());
    assert_eq!(
        states(&bench),
        "a complete 1 - erased, b pending 1 network sealed, c pending 0 - sealed, d suppressed 1 subscription_changed erased, \
         e quarantined 1 integrity_failure sealed"
    );
    assert_eq!(bench.value("SELECT string_agg(last_error, ',' ORDER BY seq) FROM outbox_deliveries"), "why,no,no");
    let counts = outbox.delivery_stats().unwrap();
    assert_eq!((counts.pending, counts.due, counts.leased, counts.suppressed, counts.quarantined), (2, 1, 0, 1, 1));
    assert!(counts.oldest_pending_ms.is_some());
    lapse(&bench);
    assert_eq!(deliveries(&mut outbox, "w", 10), ["dl_1_1_b", "dl_1_1_c"]);
    assert_eq!(outbox.delivery_stats().unwrap().leased, 2);
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &["dl_1_1_b"]);
    assert!(states(&bench).contains("b complete 2 - erased"), "{}", states(&bench));
}

#[test]
fn a_worker_settles_and_renews_only_what_it_holds() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a", "b"]);
    let claimed = deliveries(&mut outbox, "w", 10);
    assert_eq!(settle(&mut outbox, "v", DeliveryVerdict::Complete, &claimed), claimed);
    assert_eq!(outbox.extend_deliveries("v", &Column::of_texts(&claimed), 1000).unwrap(), claimed);
    lapse(&bench);
    assert!(outbox.extend_deliveries("w", &Column::of_texts(&claimed), 600_000).unwrap().is_empty(), "nobody has taken them");
    assert!(deliveries(&mut outbox, "v", 10).is_empty());
    lapse(&bench);
    assert_eq!(deliveries(&mut outbox, "v", 10), claimed);
    assert_eq!(settle(&mut outbox, "w", again("network", 0), &claimed), claimed, "late");
    assert_eq!(states(&bench), "a pending 2 - sealed, b pending 2 - sealed");
    assert!(settle(&mut outbox, "v", DeliveryVerdict::Complete, &claimed).is_empty());
    assert_eq!(settle(&mut outbox, "v", DeliveryVerdict::Complete, &claimed), claimed, "settled");
}

#[test]
fn order_holds_per_key_and_subscriber_behind_waiting_and_leased_heads() {
    let Some((bench, mut outbox)) = own() else { return };
    for _ in 0..2 {
        expanded(&bench, &mut outbox, "acme", Some("k"), &["a", "b"]);
    }
    assert_eq!(deliveries(&mut outbox, "w", 10), ["dl_1_1_a", "dl_1_1_b", "dl_2_1_a", "dl_2_1_b"]);
    settle(&mut outbox, "w", again("network", 60_000), &["dl_1_1_a"]);
    settle(&mut outbox, "w", DeliveryVerdict::Release(0), &["dl_2_1_a", "dl_2_1_b"]);
    assert!(deliveries(&mut outbox, "v", 10).is_empty(), "one head waits, the other is leased");
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &["dl_1_1_b"]);
    assert_eq!(deliveries(&mut outbox, "v", 10), ["dl_2_1_b"], "a dead endpoint holds up only itself");
    bench.run("UPDATE outbox_deliveries SET available_at = 'epoch' WHERE delivery_id = 'dl_1_1_a'");
    assert_eq!(deliveries(&mut outbox, "v", 10), ["dl_1_1_a"], "what has failed before is tried alone");
    assert!(deliveries(&mut outbox, "v", 10).is_empty());
    settle(&mut outbox, "v", DeliveryVerdict::Quarantined(coded("permanent_http", "404")), &["dl_1_1_a"]);
    assert_eq!(deliveries(&mut outbox, "v", 10), ["dl_2_1_a"], "an ended head lets go on");
}

#[test]
fn a_key_whose_head_fails_again_and_again_is_claimed_with_its_followers_once() {
    let Some((bench, mut outbox)) = own() else { return };
    for _ in 0..20 {
        expanded(&bench, &mut outbox, "acme", Some("k"), &["down", "well"]);
    }
    let of = |ids: &[String], subscriber: &str| ids.iter().filter(|id| id.ends_with(subscriber)).cloned().collect::<Vec<_>>();
    let first = deliveries(&mut outbox, "w", 100);
    assert_eq!((of(&first, "down").len(), of(&first, "well").len()), (20, 20));
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &of(&first, "well"));
    settle(&mut outbox, "w", again("network", 0), &["dl_1_1_down"]);
    settle(&mut outbox, "w", DeliveryVerdict::Release(0), &of(&first, "down")[1..]);
    for attempts in 2..10 {
        let batch = outbox.claim_deliveries(&request("w", 100), None, 0).unwrap().batch;
        assert_eq!((ids(&batch), batch.message(0).attempts()), (vec!["dl_1_1_down".to_owned()], attempts));
        settle(&mut outbox, "w", again("network", 0), &["dl_1_1_down"]);
    }
    // Leases that ran out together are taken together: a worker that died is no reason to go one by one.
    assert_eq!(deliveries(&mut outbox, "w", 100), ["dl_1_1_down"]);
    settle(&mut outbox, "w", DeliveryVerdict::Quarantined(coded("permanent_http", "404")), &["dl_1_1_down"]);
    assert_eq!(deliveries(&mut outbox, "dies", 100).len(), 19);
    lapse(&bench);
    assert_eq!(outbox.claim_deliveries(&request("w", 100), None, 0).unwrap().batch.attempts, vec![2; 19]);
}

#[test]
fn what_can_never_be_claimed_again_is_quarantined_by_the_claim_and_logged() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", Some("k"), &["a", "b"]);
    expanded(&bench, &mut outbox, "acme", Some("k"), &["a"]);
    bench.run("UPDATE outbox_deliveries SET attempts = 3 WHERE seq = 1; UPDATE outbox_deliveries SET envelope = repeat('x', 2000000)::bytea WHERE seq = 2");
    let claimed = outbox.claim_deliveries(&ClaimRequest { max_attempts: 3, ..request("w", 10) }, None, 0).unwrap();
    assert_eq!(ids(&claimed.batch), ["dl_2_1_a"], "what is behind goes on");
    let refused: Vec<(&str, &FailureCode)> = claimed.refused.iter().map(|refusal| (refusal.id.as_str(), &refusal.failure.code)).collect();
    let word = |word: &str| FailureCode::Other(word.to_owned());
    assert_eq!(refused, [("dl_1_1_a", &word("lease_expired")), ("dl_1_1_b", &word("integrity_failure"))]);
    assert_eq!(log(&mut outbox, "acme")[2..], ["3 dl_1_1_a quarantined lease_expired", "4 dl_1_1_b quarantined integrity_failure"]);
}

#[test]
fn a_tried_delivery_beyond_the_horizon_is_quarantined_once_it_is_free() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["coded", "never", "leased", "plain", "waiting"]);
    bench.run(
        "UPDATE outbox_deliveries SET created_at = now() - interval '2 h'; \
         UPDATE outbox_deliveries SET attempts = 4 WHERE subscriber_id <> 'never'; \
         UPDATE outbox_deliveries SET error_code = 'network', last_error = 'refused' WHERE subscriber_id = 'coded'; \
         UPDATE outbox_deliveries SET leased_by = 'v', available_at = now() + interval '1 h' WHERE subscriber_id = 'leased'; \
         UPDATE outbox_deliveries SET available_at = now() + interval '1 h' WHERE subscriber_id = 'waiting'",
    );
    let claim = |outbox: &mut postgres_storage::Outbox<_>, horizon| outbox.claim_deliveries(&request("w", 10), None, horizon).unwrap();
    let claimed = claim(&mut outbox, 3_600_000);
    assert_eq!(ids(&claimed.batch), ["dl_1_1_never"], "it was never tried");
    let mut codes: Vec<FailureCode> = claimed.refused.into_iter().map(|refusal| refusal.failure.code).collect();
    codes.sort_unstable_by_key(|code| format!("{code:?}"));
    assert_eq!(codes, [FailureCode::Other("lease_expired".into()), FailureCode::Other("network".into())]);
    assert_eq!(
        bench.value("SELECT string_agg(concat_ws(' ', subscriber_id, error_code, last_error), ',' ORDER BY seq) FROM outbox_deliveries WHERE state = 'quarantined'"),
        "coded network gave up after 3600 seconds, the horizon of the relay; the last failure: refused,\
         plain lease_expired gave up after 3600 seconds, the horizon of the relay"
    );
    bench.run("UPDATE outbox_deliveries SET state = 'pending', available_at = 'epoch', attempts = 9");
    assert_eq!((claim(&mut outbox, 0).batch.len(), claim(&mut outbox, 3_600_000).batch.len()), (5, 0), "0: no horizon");
}

#[test]
fn deliveries_are_listed_of_one_tenant_only() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a", "b"]);
    expanded(&bench, &mut outbox, "other", None, &["a", "b"]);
    expanded(&bench, &mut outbox, "acme", None, &["a", "b"]);
    let all = deliveries(&mut outbox, "w", 10);
    assert_eq!(all.len(), 6);
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &["dl_1_1_a"]);
    settle(&mut outbox, "w", again("network", 90_000), &["dl_1_1_b"]);
    settle(&mut outbox, "w", DeliveryVerdict::Quarantined(coded("permanent_http", "404")), &["dl_3_1_a"]);
    let listed = |outbox: &mut postgres_storage::Outbox<_>, filter| {
        let page = outbox.list_deliveries(&filter, None, 100).unwrap();
        assert_eq!(page.next, None);
        page.deliveries.into_iter().map(|delivery| delivery.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(&mut outbox, of("acme")), ["dl_1_1_a", "dl_1_1_b", "dl_3_1_a", "dl_3_1_b"]);
    assert_eq!(listed(&mut outbox, of("nobody")), Vec::<String>::new());
    for (state, expected) in [
        (DeliveryState::Complete, "dl_1_1_a"),
        (DeliveryState::Pending, "dl_1_1_b"),
        (DeliveryState::Quarantined, "dl_3_1_a"),
        (DeliveryState::Leased, "dl_3_1_b"),
    ] {
        let mut filter = of("acme");
        filter.state = Some(state);
        assert_eq!(listed(&mut outbox, filter), [expected]);
    }
    let mut filter = of("acme");
    (filter.event, filter.subscriber) = (Some("3".into()), Some("b".into()));
    assert_eq!(listed(&mut outbox, filter), ["dl_3_1_b"]);
    let mut filter = of("acme");
    filter.ids = all;
    assert_eq!(listed(&mut outbox, filter).len(), 4, "ids of another tenant are in no list");
    let first = outbox.list_deliveries(&of("acme"), None, 3).unwrap();
    let rest = outbox.list_deliveries(&of("acme"), first.next.as_deref(), 3).unwrap();
    assert_eq!((first.deliveries.len(), rest.deliveries.len(), rest.next), (3, 1, None));
    let waiting = &first.deliveries[1];
    assert_eq!((waiting.code.as_deref(), waiting.detail.as_deref(), waiting.attempts), (Some("network"), Some("why"), 1));
    assert!((60_000..=90_000).contains(&waiting.due_in_ms) && waiting.created_at > 0, "{waiting:?}");
    assert_eq!(outbox.list_deliveries(&of("acme"), Some("x"), 3).unwrap_err().code, FailureCode::InvalidMessage);
}

#[test]
fn envelopes_are_sealed_anew_where_they_are_still_under_the_key_before() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a", "b", "c", "d"]);
    let claimed = deliveries(&mut outbox, "w", 10);
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &claimed[..1]);
    bench.run("UPDATE outbox_deliveries SET key_version = 'v2' WHERE subscriber_id = 'b'");
    let page = outbox.list_sealed("v2", None, 1, 1 << 20).unwrap();
    assert_eq!((ids(&page.deliveries), page.next.is_some()), (vec!["dl_1_1_c".into()], true));
    let page = outbox.list_sealed("v2", page.next.as_deref(), 10, 1 << 20).unwrap();
    assert_eq!((ids(&page.deliveries), page.next), (vec!["dl_1_1_d".into()], None));
    let small = outbox.list_sealed("v2", None, 10, 1).unwrap();
    assert_eq!((small.deliveries.len(), small.next.is_some()), (1, true), "the first may be larger");
    // Another one has changed `c` meanwhile, and `b` has the newest key already.
    let mut sealed = Batch::new();
    for (id, envelope) in [("dl_1_1_b", "B"), ("dl_1_1_c", "C"), ("dl_1_1_d", "D")] {
        sealed.push(&NewMessage {
            id,
            topic: "t",
            headers: &[("key_version", b"v2"), ("account_id", b"mallory")],
            payload: Some(envelope.as_bytes()),
            ..NewMessage::default()
        });
    }
    assert_eq!(outbox.reseal(&sealed, &Column::of_texts(["v1", "v0", "v1"])).unwrap(), 1);
    assert_eq!(
        bench.value("SELECT string_agg(concat_ws(' ', subscriber_id, key_version, account_id, encode(substr(envelope, 1, 6), 'escape')), ',' ORDER BY seq) FROM outbox_deliveries"),
        "a v1 acme,b v2 acme sealed,c v1 acme sealed,d v2 acme D"
    );
    assert_eq!(outbox.reseal(&sealed, &Column::of_texts(["v1"])).unwrap_err().code, FailureCode::InvalidMessage);
    assert_eq!(log(&mut outbox, "acme").len(), 2, "nothing of it is logged");
}

#[test]
fn only_quarantined_deliveries_of_the_tenant_are_requeued() {
    let Some((bench, mut outbox)) = own() else { return };
    let events = [("acme", &["a", "b", "c", "d", "e"][..]), ("other", &["a"][..]), ("acme", &["a"][..])];
    for (tenant, subscribers) in events {
        expanded(&bench, &mut outbox, tenant, Some("k"), subscribers);
    }
    let claimed = deliveries(&mut outbox, "w", 100);
    assert_eq!(claimed.len(), 7);
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &["dl_1_1_c"]);
    settle(&mut outbox, "w", DeliveryVerdict::Suppressed(coded("subscription_changed", "")), &["dl_1_1_d"]);
    let ended = ["dl_1_1_a", "dl_1_1_b", "dl_2_1_a", "dl_3_1_a"];
    settle(&mut outbox, "w", DeliveryVerdict::Quarantined(coded("integrity_failure", "no key")), &ended);
    assert!(deliveries(&mut outbox, "v", 10).is_empty());

    let count = |outbox: &mut _, change: &dyn Fn(&mut DeliveryFilter)| {
        let mut filter = of("acme");
        change(&mut filter);
        let outbox: &mut postgres_storage::Outbox<crate::suite::support::Postgres> = outbox;
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
    assert_eq!(deliveries(&mut outbox, "v", 10), ["dl_3_1_a"]);
    settle(&mut outbox, "v", DeliveryVerdict::Release(0), &["dl_3_1_a"]);
    // What has no envelope could only be quarantined again.
    bench.run("UPDATE outbox_deliveries SET envelope = NULL WHERE delivery_id = 'dl_1_1_b'");
    assert_eq!(count(&mut outbox, &|filter| filter.state = Some(DeliveryState::Quarantined)).unwrap(), 1);
    assert_eq!(count(&mut outbox, &|_| {}).unwrap(), 0);
    assert_eq!(
        bench.value("SELECT string_agg(concat_ws(' ', subscriber_id, state, attempts, CAST(done_at IS NULL AS int) || CAST(last_error IS NULL AS int)::text), ', ' ORDER BY seq) FROM outbox_deliveries WHERE account_id = 'acme' AND subscriber_id IN ('a', 'b')"),
        "a pending 0 11, b quarantined 1 00, a pending 0 11"
    );
    let logged = log(&mut outbox, "acme");
    assert_eq!(logged[logged.len() - 2..], ["8 dl_3_1_a pending -", "9 dl_1_1_a pending -"]);
    assert_eq!(deliveries(&mut outbox, "v", 10), ["dl_1_1_a", "dl_3_1_a"], "in the order of their key");
}

#[test]
fn old_complete_and_suppressed_deliveries_are_purged_in_steps_and_the_log_stays() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a", "b", "c", "d", "e"]);
    let claimed = deliveries(&mut outbox, "w", 10);
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &claimed[..2]);
    settle(&mut outbox, "w", DeliveryVerdict::Suppressed(coded("subscription_changed", "no")), &claimed[2..3]);
    settle(&mut outbox, "w", DeliveryVerdict::Quarantined(coded("permanent_http", "no")), &claimed[3..4]);
    assert_eq!(outbox.purge_deliveries(3_600_000, 10).unwrap(), 0);
    bench.run("UPDATE outbox_deliveries SET done_at = done_at - interval '2 h'");
    let purged: Vec<u64> = (0..3).map(|_| outbox.purge_deliveries(3_600_000, 2).unwrap()).collect();
    assert_eq!(purged, [2, 1, 0]);
    assert_eq!(bench.value("SELECT string_agg(state, ',' ORDER BY seq) FROM outbox_deliveries"), "quarantined,pending");
    assert_eq!(log(&mut outbox, "acme").len(), 5);
}

/// A renewal must not wait: while it does, the leases of all others run out.
#[test]
fn a_renewal_tells_at_once_that_a_delivery_is_locked() {
    let Some((bench, mut outbox)) = own() else { return };
    fill(&bench, "acme", 3, 3);
    let all = deliveries(&mut outbox, "w", 3);
    let holding = bench.holding("SELECT 1 FROM outbox_deliveries WHERE seq = 2 FOR UPDATE");
    assert_eq!(outbox.extend_deliveries("w", &Column::of_texts(&all), 600_000).unwrap_err().code, FailureCode::Timeout);
    assert_eq!(deliveries(&mut outbox, "v", 3), Vec::<String>::new(), "a claim waits for nobody");
    holding.commit();
    assert!(patiently(|| outbox.extend_deliveries("w", &Column::of_texts(&all), 600_000)).is_empty());
}
