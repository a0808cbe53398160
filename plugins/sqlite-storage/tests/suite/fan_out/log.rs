//! The status log: every change once, in order, without gaps; checkpoints.

use super::support::{FAN_OUT, again, coded, deliveries, expanded, log, own, settle};
use crate::support::{config, ids, open};
use outhaul_sdk::{DeliveryVerdict, Subject};
use std::collections::BTreeMap;
use std::sync::Mutex;

#[test]
fn every_change_of_state_is_logged_once() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a", "b", "c"]);
    let claimed = ids(&deliveries(&mut outbox, "w", 10).batch);
    settle(&mut outbox, "w", again("network", 0), &claimed[..2]);
    settle(&mut outbox, "w", DeliveryVerdict::Release(0), &claimed[2..]);
    let claimed = ids(&deliveries(&mut outbox, "w", 10).batch);
    // The same code again is no change, another one is.
    settle(&mut outbox, "w", again("network", 0), &claimed[..1]);
    settle(&mut outbox, "w", again("retryable_http", 0), &claimed[1..2]);
    let claimed = ids(&deliveries(&mut outbox, "w", 10).batch);
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &claimed[..1]);
    settle(&mut outbox, "w", DeliveryVerdict::Suppressed(coded("subscription_changed", "")), &claimed[1..2]);
    // What was lost, or settled already, is no change.
    settle(&mut outbox, "v", DeliveryVerdict::Complete, &claimed);
    // An operator's own SQL is logged as well.
    bench.run("UPDATE outbox_deliveries SET state = 'quarantined', error_code = 'permanent_http' WHERE subscriber_id = 'c'");
    bench.run("UPDATE outbox_deliveries SET state = 'pending', error_code = NULL WHERE subscriber_id = 'c'");
    bench.run("UPDATE outbox_deliveries SET last_error = 'x', attempts = 7, principal_id = 'p'");
    assert_eq!(
        log(&mut outbox, "acme"),
        [
            "1 1/1 expanded -",
            "2 dl_1_1_a pending network",
            "3 dl_1_1_b pending network",
            "4 dl_1_1_b pending retryable_http",
            "5 dl_1_1_a complete -",
            "6 dl_1_1_b suppressed subscription_changed",
            "7 dl_1_1_c quarantined permanent_http",
            "8 dl_1_1_c pending -",
        ]
    );
    let changes = outbox.read_status("acme", 3, 2).unwrap();
    assert_eq!(changes.iter().map(|change| change.position).collect::<Vec<_>>(), [4, 5]);
    let change = &changes[0];
    assert_eq!(
        (change.subject, change.event.as_str(), change.generation, change.subscriber.as_deref()),
        (Subject::Delivery, "1", 1, Some("b"))
    );
    assert_eq!(bench.value(&format!("SELECT abs({} - unixepoch('subsec') * 1000) < 60000", change.at)), "1");
    assert!(outbox.read_status("acme", 8, 10).unwrap().is_empty() && outbox.read_status("acme", u64::MAX, 10).unwrap().is_empty());
}

#[test]
fn each_tenant_has_a_sequence_of_its_own() {
    let (bench, mut outbox) = own();
    for tenant in ["a", "b", "a", ""] {
        expanded(&bench, &mut outbox, tenant, None, &["s"]);
    }
    assert_eq!(log(&mut outbox, "a"), ["1 1/1 expanded -", "2 3/1 expanded -"]);
    assert_eq!(log(&mut outbox, "b"), ["1 2/1 expanded -"]);
    assert_eq!(log(&mut outbox, ""), ["1 4/1 expanded -"]);
    assert_eq!(log(&mut outbox, "c"), Vec::<String>::new());
}

#[test]
fn what_was_rolled_back_leaves_no_gap() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a", "b"]);
    bench.sql.execute_batch("BEGIN; UPDATE outbox_deliveries SET state = 'complete'; ROLLBACK").unwrap();
    bench.run("UPDATE outbox_deliveries SET state = 'complete' WHERE subscriber_id = 'b'");
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 expanded -", "2 dl_1_1_b complete -"]);
}

#[test]
fn a_head_that_somebody_has_deleted_or_put_back_is_made_anew_of_the_log() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    expanded(&bench, &mut outbox, "other", None, &[]);
    let claimed = ids(&deliveries(&mut outbox, "w", 10).batch);
    bench.run("DELETE FROM outbox_status_heads");
    assert!(outbox.advance("acme", "r", 0, 1).unwrap() && !outbox.advance("acme", "r", 1, 2).unwrap(), "the end is where it was");
    expanded(&bench, &mut outbox, "acme", None, &[]);
    bench.run("UPDATE outbox_status_heads SET position = 1");
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &claimed);
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 expanded -", "2 3/1 expanded -", "3 dl_1_1_a complete -"]);
    assert!(outbox.advance("acme", "r", 1, 3).unwrap());
    expanded(&bench, &mut outbox, "other", None, &[]);
    assert_eq!(log(&mut outbox, "other"), ["1 2/1 expanded -", "2 4/1 expanded -"]);
    // Who deletes the log does not have its positions given out again.
    bench.run("DELETE FROM outbox_status");
    expanded(&bench, &mut outbox, "acme", None, &[]);
    assert_eq!(log(&mut outbox, "acme"), ["4 5/1 expanded -"]);
}

#[test]
fn a_checkpoint_moves_only_from_where_it_is_expected_and_never_back_or_past_the_end() {
    let (bench, mut outbox) = own();
    for _ in 0..3 {
        expanded(&bench, &mut outbox, "acme", None, &[]);
    }
    assert_eq!(outbox.checkpoint("acme", "r").unwrap(), 0);
    for (expected, through, moves) in [
        (1, 2, false),
        (0, 4, false),
        (0, 2, true),
        (0, 2, false),
        (2, 1, false),
        (2, 2, true),
        (2, u64::MAX, false),
        (u64::MAX, u64::MAX, false),
        (2, 3, true),
    ] {
        assert_eq!(outbox.advance("acme", "r", expected, through).unwrap(), moves, "{expected} {through}");
    }
    assert_eq!(outbox.checkpoint("acme", "r").unwrap(), 3);
    // Other readers and other tenants have their own.
    assert_eq!((outbox.checkpoint("acme", "s").unwrap(), outbox.checkpoint("b", "r").unwrap()), (0, 0));
    assert!(!outbox.advance("b", "r", 0, 1).unwrap() && outbox.advance("b", "r", 0, 0).unwrap());
    assert!(outbox.advance("acme", "s", 0, 3).unwrap());
}

#[test]
fn four_racing_readers_take_each_position_once() {
    const EVENTS: usize = 60;
    let (bench, mut outbox) = own();
    for _ in 0..EVENTS {
        expanded(&bench, &mut outbox, "acme", None, &["a"]);
    }
    let taken = Mutex::new(BTreeMap::<u64, usize>::new());
    let refused = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (path, taken, refused) = (&bench.path, &taken, &refused);
            scope.spawn(move || {
                let mut outbox = open(&config(path, FAN_OUT)).unwrap();
                loop {
                    let from = outbox.checkpoint("acme", "r").unwrap();
                    let changes = outbox.read_status("acme", from, 3).unwrap();
                    let Some(last) = changes.last() else { return };
                    if outbox.advance("acme", "r", from, last.position).unwrap() {
                        for change in changes {
                            *taken.lock().unwrap().entry(change.position).or_default() += 1;
                        }
                    } else {
                        refused.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        assert!(outbox.checkpoint("acme", "r").unwrap() > from, "refused, and nobody has moved it");
                    }
                }
            });
        }
    });
    let taken = taken.into_inner().unwrap();
    assert_eq!(taken.keys().copied().collect::<Vec<_>>(), (1..=EVENTS as u64).collect::<Vec<_>>());
    assert!(taken.values().all(|times| *times == 1), "{taken:?}");
    assert!(!outbox.advance("acme", "r", 0, EVENTS as u64).unwrap(), "stale");
}

/// Several workers change states at once: the log of each tenant is gapless, and agrees with the table at its end.
#[test]
fn the_log_of_racing_workers_has_no_gap_and_ends_as_the_table_does() {
    let (bench, mut outbox) = own();
    let subscribers: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
    let subscribers: Vec<&str> = subscribers.iter().map(String::as_str).collect();
    for n in 0..10 {
        expanded(&bench, &mut outbox, if n % 2 == 0 { "a" } else { "b" }, Some("k"), &subscribers);
    }
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let path = &bench.path;
            scope.spawn(move || {
                let mut outbox = open(&config(path, FAN_OUT)).unwrap();
                let name = format!("w{worker}");
                loop {
                    let batch = deliveries(&mut outbox, &name, 7).batch;
                    if batch.is_empty() {
                        if outbox.delivery_stats().unwrap().pending == 0 {
                            return;
                        }
                        std::thread::yield_now();
                        continue;
                    }
                    for (at, message) in batch.messages().enumerate() {
                        let verdict = match (message.attempts(), at % 3) {
                            (1, 0) => again("network", 0),
                            (_, 1) => DeliveryVerdict::Quarantined(coded("permanent_http", "")),
                            _ => DeliveryVerdict::Complete,
                        };
                        assert!(settle(&mut outbox, &name, verdict, &[message.id()]).is_empty());
                    }
                }
            });
        }
    });
    for tenant in ["a", "b"] {
        let changes = outbox.read_status(tenant, 0, 10_000).unwrap();
        let positions: Vec<u64> = changes.iter().map(|change| change.position).collect();
        assert_eq!(positions, (1..=u64::try_from(changes.len()).unwrap()).collect::<Vec<_>>());
        let mut ends = BTreeMap::new();
        for change in changes {
            if let Some(delivery) = change.delivery {
                ends.insert(delivery, change.state);
            }
        }
        assert_eq!(ends.len(), 100);
        for (delivery, state) in ends {
            assert_eq!(bench.value(&format!("SELECT state FROM outbox_deliveries WHERE delivery_id = '{delivery}'")), state);
        }
    }
}
