//! Tenants: in turn, alone, and each with its own rows only.

use super::support::{claim_events, deliveries, event, fill, own};
use crate::suite::support::{ids, request};
use outhaul_sdk::ClaimRequest;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn a_tenant_with_ten_is_not_held_up_by_one_with_a_hundred_thousand() {
    let Some((bench, mut outbox)) = own() else { return };
    fill(&bench, "large", 100_000, 500);
    fill(&bench, "small", 10, 10);
    bench.run("ANALYZE outbox_deliveries");
    let (mut small, mut large, mut claims) = (0, 0, 0);
    while small < 10 {
        let claimed = deliveries(&mut outbox, "w", 50);
        small += claimed.iter().filter(|id| id.starts_with("small")).count();
        large += claimed.iter().filter(|id| id.starts_with("large")).count();
        claims += 1;
        assert!(claims <= 2, "{small} of 10 after {claims} claims");
    }
    assert!(large >= 20, "{large} in {claims} claims");
    // A claim is content with half a batch; what the small one leaves is not lost on it.
    let alone = deliveries(&mut outbox, "w", 50).len();
    assert!(alone > 25, "{alone}");
}

#[test]
fn many_tenants_come_up_within_one_round_and_the_last_claim_says_that_there_is_no_more() {
    let Some((bench, mut outbox)) = own() else { return };
    for tenant in 0..200 {
        fill(&bench, &format!("t{tenant:03}"), 3, 3);
    }
    let mut seen = BTreeSet::new();
    for _ in 0..5 {
        seen.extend(deliveries(&mut outbox, "w", 64).into_iter().map(|id| id[..4].to_owned()));
    }
    assert_eq!(seen.len(), 200);
    let mut claimed = 5 * 64;
    for claims in 0.. {
        let got = outbox.claim_deliveries(&request("w", 500), None, 0).unwrap();
        claimed += got.batch.len();
        if got.batch.is_empty() && !got.unfinished {
            break;
        }
        assert!(claims < 20, "{claimed} after {claims} claims");
    }
    assert_eq!(claimed, 600);
}

#[test]
fn a_claim_of_one_row_goes_from_tenant_to_tenant() {
    let Some((bench, mut outbox)) = own() else { return };
    for tenant in ["a", "b", "c"] {
        fill(&bench, tenant, 5, 5);
    }
    let seen: Vec<String> = (0..4).map(|_| deliveries(&mut outbox, "w", 1)[0][..1].to_owned()).collect();
    assert_eq!(seen, ["a", "b", "c", "a"]);
}

#[test]
fn a_claim_limited_to_a_tenant_has_its_rows_only() {
    let Some((bench, mut outbox)) = own() else { return };
    fill(&bench, "acme", 10, 10);
    fill(&bench, "other", 10, 10);
    let of = |outbox: &mut postgres_storage::Outbox<_>, tenant| {
        ids(&outbox.claim_deliveries(&request("w", 100), Some(tenant), 0).unwrap().batch)
    };
    let claimed = of(&mut outbox, "acme");
    assert!(claimed.len() == 10 && claimed.iter().all(|id| id.starts_with("acme")), "{claimed:?}");
    assert!(of(&mut outbox, "acme").is_empty() && of(&mut outbox, "").is_empty() && of(&mut outbox, "nobody").is_empty());
    for tenant in ["acme", "other"] {
        event(&bench, tenant, None);
    }
    let events = outbox.claim_events(&request("w", 100), Some("other")).unwrap();
    assert_eq!((ids(&events.claimed.batch), events.tenants.text(0)), (vec!["2".into()], Some("other")));
}

#[test]
fn bytes_are_shared_out_too() {
    let Some((bench, mut outbox)) = own() else { return };
    fill(&bench, "a", 100, 100);
    fill(&bench, "b", 100, 100);
    let claimed = outbox.claim_deliveries(&ClaimRequest { max_bytes: 10_000, ..request("w", 100) }, None, 0).unwrap().batch;
    let of = |tenant: &str| ids(&claimed).iter().filter(|id| id.starts_with(tenant)).count();
    assert!(of("a") > 1 && of("b") > 1 && claimed.len() < 20, "{} and {}", of("a"), of("b"));
    // Where a batch has no room for two, it is one row.
    let one = outbox.claim_deliveries(&ClaimRequest { max_bytes: 1, ..request("w", 100) }, None, 0).unwrap().batch;
    assert_eq!(one.len(), 1);
}

#[test]
fn events_are_claimed_by_tenants_in_turn_and_in_order() {
    let Some((bench, mut outbox)) = own() else { return };
    bench.run("INSERT INTO outbox (tenant, topic, key) SELECT 'large', 't', 'k' || n % 7 FROM generate_series(1, 1000) AS n");
    let last = event(&bench, "small", Some("k1"));
    let events = claim_events(&mut outbox, "w");
    let claimed = ids(&events.claimed.batch);
    assert!(claimed.contains(&last) && claimed.len() > 50, "{claimed:?}");
    let mut last: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for (at, message) in events.claimed.batch.messages().enumerate() {
        let number = message.id().parse().unwrap();
        let before = last.insert((events.tenants.text(at).unwrap(), message.key().unwrap()), number);
        assert!(before < Some(number), "{before:?} {number}");
    }
}

#[test]
fn the_front_of_a_tenant_that_waits_is_passed_by() {
    let Some((bench, mut outbox)) = own() else { return };
    fill(&bench, "acme", 20_000, 1);
    bench.run("UPDATE outbox_deliveries SET available_at = now() + interval '1 h' WHERE seq = 1");
    fill(&bench, "free", 3, 3);
    bench.run("UPDATE outbox_deliveries SET account_id = 'acme', notification_id = 'n' || seq WHERE account_id = 'free'");
    let mut claims = 0;
    let claimed = loop {
        let claimed = outbox.claim_deliveries(&request("w", 10), None, 0).unwrap();
        claims += 1;
        assert!(claims < 20 && (claimed.unfinished || !claimed.batch.is_empty()));
        if !claimed.batch.is_empty() {
            break ids(&claimed.batch);
        }
    };
    assert_eq!(claimed, ["free1", "free2", "free3"]);
}

/// More tenants than one claim looks at, and the rows of those that it looks at are another's: there may be others behind.
#[test]
fn a_claim_that_lost_every_race_does_not_say_that_there_is_nothing() {
    let Some((bench, mut outbox)) = own() else { return };
    for tenant in 0..250 {
        fill(&bench, &format!("t{tenant:03}"), 1, 1);
    }
    let holding = bench.holding("SELECT 1 FROM outbox_deliveries WHERE account_id < 't240' FOR UPDATE");
    let mut claimed = Vec::new();
    for claims in 0.. {
        let got = outbox.claim_deliveries(&request("w", 64), None, 0).unwrap();
        claimed.extend(ids(&got.batch));
        if claimed.len() == 10 {
            break;
        }
        assert!(got.unfinished || !got.batch.is_empty(), "{claimed:?} after {claims} claims");
        assert!(claims < 20, "{claimed:?}");
    }
    holding.commit();
    assert_eq!(outbox.claim_deliveries(&request("w", 64), None, 0).unwrap().batch.len(), 64);
}
