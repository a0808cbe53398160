//! Tenants: in turn, alone, and each with its own rows only.

use super::support::{claim_events, deliveries, event, expanded, own};
use crate::support::{Bench, ids, request};
use outhaul_sdk::ClaimRequest;

/// Inserts deliveries of a tenant by SQL, so many of so many keys.
fn fill(bench: &Bench, tenant: &str, rows: usize, keys: usize) {
    bench
        .sql
        .execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2) \
             INSERT INTO outbox_deliveries (account_id, delivery_id, subscriber_id, principal_id, notification_id, notification_type, \
             emission_generation, idempotency_key, destination_sha256, subscription_fingerprint, cause_kind, cause_id, cause_generation, \
             consumer_namespace, auth_mode, body_sha256, envelope_version, key_version, order_key, envelope) \
             SELECT ?1, ?1 || i, 's', '', CAST(i AS TEXT), 't', 1, 'ik', '', '', 'event', '', 0, '', 'none', '', 1, 'v1', 'k' || (i % ?3), x'00' FROM n",
            (tenant, i64::try_from(rows).unwrap(), i64::try_from(keys).unwrap()),
        )
        .unwrap();
}

#[test]
fn a_tenant_with_ten_is_not_held_up_by_one_with_a_hundred_thousand() {
    let (bench, mut outbox) = own();
    fill(&bench, "large", 100_000, 500);
    fill(&bench, "small", 10, 10);
    let of = |batch: &outhaul_sdk::Batch, tenant: &str| ids(batch).iter().filter(|id| id.starts_with(tenant)).count();
    let (mut small, mut claims) = (0, 0);
    while small < 10 {
        small += of(&deliveries(&mut outbox, "w", 50).batch, "small");
        claims += 1;
        // One claim, or two where the first one was cut short for the time that it took.
        assert!(claims <= 2, "{small} of 10 after {claims} claims");
    }
    // What the small one leaves is not wasted: it goes to the large one, unless a claim has no time left.
    let full = (0..20).any(|_| {
        bench.run("UPDATE outbox_deliveries SET available_at = 0 WHERE account_id = 'small'");
        let batch = deliveries(&mut outbox, "w", 50).batch;
        batch.len() == 50 && of(&batch, "small") == 10
    });
    assert!(full);
}

#[test]
fn many_tenants_come_up_within_one_round() {
    let (bench, mut outbox) = own();
    for tenant in 0..200 {
        fill(&bench, &format!("t{tenant:03}"), 3, 3);
    }
    let mut seen = std::collections::BTreeSet::new();
    let (mut claims, mut claimed) = (0, 0);
    while seen.len() < 200 {
        let got = deliveries(&mut outbox, "w", 64);
        claimed += got.batch.len();
        claims += 1;
        seen.extend(ids(&got.batch).into_iter().map(|id| id[..4].to_owned()));
        assert_eq!(seen.len(), claimed.min(200), "nobody comes up twice before all have come up once");
        // Four, where none is cut short for the time that it takes.
        assert!(claims < 50);
    }
    // Until all are out, no claim says that there is nothing, and the last ones say so.
    loop {
        let got = deliveries(&mut outbox, "w", 500);
        claimed += got.batch.len();
        if got.batch.is_empty() && !got.unfinished {
            break;
        }
        claims += 1;
        assert!(claims < 200);
    }
    assert_eq!(claimed, 600);
}

#[test]
fn a_claim_of_one_row_goes_from_tenant_to_tenant() {
    let (bench, mut outbox) = own();
    for tenant in ["a", "b", "c"] {
        fill(&bench, tenant, 5, 5);
    }
    let claimed: Vec<String> = (0..6).map(|_| ids(&deliveries(&mut outbox, "w", 1).batch)[0][..1].to_owned()).collect();
    assert_eq!(claimed, ["a", "b", "c", "a", "b", "c"]);
}

#[test]
fn a_claim_limited_to_a_tenant_has_its_rows_only() {
    let (bench, mut outbox) = own();
    for tenant in ["", "a", "b"] {
        fill(&bench, tenant, 5, 5);
    }
    for (tenant, expected) in [("a", 5), ("", 5), ("A", 0), ("none", 0)] {
        let batch = outbox.claim_deliveries(&request("w", 100), Some(tenant), 0).unwrap().batch;
        assert_eq!(batch.len(), expected, "{tenant}");
        assert!(ids(&batch).iter().all(|id| id.strip_prefix(tenant).is_some_and(|rest| rest.len() == 1)));
    }
    assert_eq!(deliveries(&mut outbox, "w", 100).batch.len(), 5);
}

#[test]
fn bytes_are_shared_out_too() {
    let (bench, mut outbox) = own();
    for tenant in ["a", "b"] {
        fill(&bench, tenant, 10, 10);
    }
    bench.run("UPDATE outbox_deliveries SET envelope = CAST(printf('%.*c', 10000, 'x') AS BLOB) WHERE account_id = 'a'");
    // Two of the large ones fit, or one of them and all of the small ones.
    let request = ClaimRequest { max_bytes: 22_000, ..request("w", 100) };
    let mut small = 0;
    for _ in 0..2 {
        let claimed = outbox.claim_deliveries(&request, None, 0).unwrap();
        let large = ids(&claimed.batch).iter().filter(|id| id.starts_with('a')).count();
        assert!(large <= 2, "{large}");
        small += claimed.batch.len() - large;
    }
    assert_eq!(small, 10, "the large ones do not crowd them out");
}

#[test]
fn events_are_claimed_by_tenants_in_turn() {
    let (bench, mut outbox) = own();
    for n in 0..30 {
        event(&bench, "large", Some(&format!("k{n}")));
    }
    for _ in 0..3 {
        event(&bench, "small", Some("k0"));
    }
    let events = outbox.claim_events(&request("w", 10), None).unwrap();
    let tenants: Vec<&str> = (0..events.tenants.len()).map(|at| events.tenants.text(at).unwrap()).collect();
    assert_eq!((tenants.iter().filter(|tenant| **tenant == "small").count(), tenants.len()), (3, 10));
    let only = outbox.claim_events(&request("w", 100), Some("small")).unwrap();
    assert!(only.claimed.batch.is_empty());
    let only = outbox.claim_events(&request("w", 100), Some("large")).unwrap();
    assert_eq!((only.claimed.batch.len(), only.tenants.iter().all(|tenant| tenant == Some(b"large"))), (23, true));
}

#[test]
fn nothing_due_ends_after_a_round_of_all_tenants() {
    let (bench, mut outbox) = own();
    for tenant in 0..150 {
        fill(&bench, &format!("t{tenant:03}"), 1, 1);
    }
    bench.run("UPDATE outbox_deliveries SET available_at = unixepoch() * 1000 + 600000");
    // Some more than three, where a claim is cut short for the time that it takes.
    let claims = (1..100).find(|_| !deliveries(&mut outbox, "w", 100).unfinished).unwrap();
    assert!(claims >= 3, "{claims}");
}

#[test]
fn the_front_of_a_tenant_that_waits_is_passed_by() {
    let (bench, mut outbox) = own();
    fill(&bench, "a", 20_000, 4);
    bench.run("UPDATE outbox_deliveries SET available_at = unixepoch() * 1000 + 600000");
    expanded(&bench, &mut outbox, "a", Some("other"), &["x"]);
    // Behind 20,000 rows of four keys whose heads wait; the walk goes from key to key.
    let mut claims = 0;
    let found = loop {
        let claimed = deliveries(&mut outbox, "w", 10);
        claims += 1;
        if !claimed.batch.is_empty() {
            break ids(&claimed.batch);
        }
        assert!(claimed.unfinished && claims < 10, "{claims}");
    };
    assert_eq!(found, ["dl_1_1_x"]);
    assert!(claim_events(&mut outbox, "w").claimed.batch.is_empty());
}
