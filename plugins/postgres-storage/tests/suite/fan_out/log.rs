//! The log of what changed: everything once, whoever changes it, without gaps; and the checkpoints of its readers.

use super::support::{FAN_OUT, again, deliveries, event, expanded, fill, lapse, log, own, settle, verdict};
use outhaul_sdk::{DeliveryVerdict, Subject};
use std::sync::Mutex;

#[test]
fn every_change_is_logged_once_and_leases_are_not() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a", "b", "c"]);
    expanded(&bench, &mut outbox, "other", None, &["a"]);
    let claimed = deliveries(&mut outbox, "w", 10);
    assert_eq!(claimed.len(), 4);
    settle(&mut outbox, "w", again("network", 0), &["dl_1_1_a"]);
    deliveries(&mut outbox, "w", 10);
    settle(&mut outbox, "w", again("network", 0), &["dl_1_1_a"]);
    deliveries(&mut outbox, "w", 10);
    outbox.extend_deliveries("w", &outhaul_sdk::Column::of_texts(&claimed), 60_000).unwrap();
    let verdicts = [
        verdict(again("retryable_http", 0), &["dl_1_1_a"]),
        verdict(DeliveryVerdict::Complete, &["dl_1_1_c", "dl_2_1_a"]),
        verdict(DeliveryVerdict::Release(0), &["dl_1_1_b"]),
    ];
    assert!(outbox.settle_deliveries("w", &verdicts).unwrap().is_empty());
    let expected = ["1 1/1 expanded -", "2 dl_1_1_a pending network", "3 dl_1_1_a pending retryable_http", "4 dl_1_1_c complete -"];
    assert_eq!(log(&mut outbox, "acme"), expected);
    assert_eq!(log(&mut outbox, "other"), ["1 2/1 expanded -", "2 dl_2_1_a complete -"]);
    // By hand.
    bench.run("UPDATE outbox_deliveries SET state = 'suppressed', error_code = 'subscription_changed' WHERE state = 'pending'");
    bench.run("UPDATE outbox_deliveries SET last_error = 'looked at'; DELETE FROM outbox_deliveries WHERE account_id = 'other'");
    let changes = outbox.read_status("acme", 4, 10).unwrap();
    let shown: Vec<_> =
        changes.iter().map(|change| (change.position, change.delivery.as_deref().unwrap(), change.state.as_str())).collect();
    assert_eq!(shown, [(5, "dl_1_1_a", "suppressed"), (6, "dl_1_1_b", "suppressed")]);
    let change = &changes[0];
    assert_eq!(
        (change.subject, change.event.as_str(), change.generation, change.subscriber.as_deref()),
        (Subject::Delivery, "1", 1, Some("a"))
    );
    assert_eq!(change.code.as_deref(), Some("subscription_changed"));
    let now: u64 = bench.value("SELECT floor(extract(epoch FROM now()) * 1000)").parse().unwrap();
    assert!(now.abs_diff(change.at) < 600_000, "{} and {now}", change.at);
    assert_eq!(outbox.read_status("acme", 1, 2).unwrap().iter().map(|change| change.position).collect::<Vec<_>>(), [2, 3]);
    assert!(outbox.read_status("acme", u64::MAX, 2).unwrap().is_empty());
}

#[test]
fn what_is_rolled_back_leaves_no_gap() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a", "b"]);
    drop(bench.holding("UPDATE outbox_deliveries SET state = 'suppressed'"));
    deliveries(&mut outbox, "w", 10);
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &["dl_1_1_b"]);
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 expanded -", "2 dl_1_1_b complete -"]);
}

/// Positions come in the order of commits: who appends later waits for who has appended earlier.
#[test]
fn positions_come_in_the_order_of_commits() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a", "b"]);
    deliveries(&mut outbox, "w", 10);
    let first = bench.holding("UPDATE outbox_deliveries SET state = 'suppressed' WHERE subscriber_id = 'a'");
    let config = bench.config(FAN_OUT);
    let second = std::thread::spawn(move || {
        let mut outbox = crate::suite::support::open(&config).unwrap();
        settle(&mut outbox, "w", DeliveryVerdict::Complete, &["dl_1_1_b"])
    });
    bench.wait_for_a_waiter();
    assert_eq!(log(&mut outbox, "acme").len(), 1, "neither is there yet");
    first.commit();
    assert!(second.join().unwrap().is_empty());
    assert_eq!(log(&mut outbox, "acme")[1..], ["2 dl_1_1_a suppressed -", "3 dl_1_1_b complete -"]);
}

#[test]
fn a_claim_that_ends_deliveries_shows_in_the_log() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    bench.run("UPDATE outbox_deliveries SET attempts = 1, created_at = now() - interval '1 d'");
    let claimed = outbox.claim_deliveries(&crate::suite::support::request("w", 10), None, 1000).unwrap();
    assert_eq!((claimed.batch.len(), claimed.refused.len()), (0, 1));
    assert_eq!(log(&mut outbox, "acme")[1..], ["2 dl_1_1_a quarantined lease_expired"]);
}

#[test]
fn a_head_that_somebody_has_deleted_or_put_back_is_made_anew_of_the_log() {
    let Some((bench, mut outbox)) = own() else { return };
    expanded(&bench, &mut outbox, "acme", None, &["a", "b"]);
    expanded(&bench, &mut outbox, "other", None, &[]);
    let claimed = deliveries(&mut outbox, "w", 10);
    bench.run("DELETE FROM outbox_status_heads");
    assert!(outbox.advance("acme", "r", 0, 1).unwrap() && !outbox.advance("acme", "r", 1, 2).unwrap(), "the end is where it was");
    expanded(&bench, &mut outbox, "acme", None, &[]);
    bench.run("UPDATE outbox_status_heads SET position = 1");
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &claimed);
    assert_eq!(log(&mut outbox, "acme"), ["1 1/1 expanded -", "2 3/1 expanded -", "3 dl_1_1_a complete -", "4 dl_1_1_b complete -"]);
    assert!(outbox.advance("acme", "r", 1, 4).unwrap());
    expanded(&bench, &mut outbox, "other", None, &[]);
    assert_eq!(log(&mut outbox, "other"), ["1 2/1 expanded -", "2 4/1 expanded -"]);
    // Who deletes the log does not have its positions given out again.
    bench.run("DELETE FROM outbox_status");
    expanded(&bench, &mut outbox, "acme", None, &[]);
    assert_eq!(log(&mut outbox, "acme"), ["5 5/1 expanded -"]);
}

/// The last position is looked for at each change, by a plan that a session may have kept since the log was empty.
#[test]
fn a_change_does_not_read_the_whole_log() {
    let Some((bench, _)) = own() else { return };
    let emit = |n: &str| {
        format!("INSERT INTO outbox_emissions (notification_id, account_id, generation, state) VALUES ({n}, 'acme', 1, 'expanded')")
    };
    for n in 1..9 {
        bench.run(&emit(&format!("'{n}'")));
    }
    bench.run(
        "INSERT INTO outbox_status (account_id, position, at, subject, notification_id, generation, state) \
         SELECT 'acme', n, now(), 'event', 'x', 1, 'expanded' FROM generate_series(9, 50000) AS n",
    );
    let read = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'outbox_status'";
    bench.run(&format!(
        "DO $$ BEGIN {}; IF ({read}) > 0 THEN RAISE EXCEPTION '% rows were read one after the other', ({read}); END IF; END $$",
        emit("'9'")
    ));
    assert_eq!(bench.value("SELECT max(position) FROM outbox_status"), "50001");
}

#[test]
fn a_checkpoint_moves_only_from_where_it_is_and_never_back_or_past_the_end() {
    let Some((bench, mut outbox)) = own() else { return };
    for _ in 0..3 {
        expanded(&bench, &mut outbox, "acme", None, &[]);
    }
    assert_eq!(outbox.checkpoint("acme", "r").unwrap(), 0);
    let mut advance = |tenant: &str, reader: &str, expected, through| outbox.advance(tenant, reader, expected, through).unwrap();
    assert!(!advance("acme", "r", 1, 2), "it has not begun");
    assert!(!advance("acme", "r", 0, 4), "past the end");
    assert!(!advance("nobody", "r", 0, 1) && !advance("acme", "r", 0, u64::MAX) && !advance("acme", "r", u64::MAX, u64::MAX));
    assert!(advance("acme", "r", 0, 2));
    assert!(!advance("acme", "r", 0, 3), "stale");
    assert!(!advance("acme", "r", 2, 1), "back");
    assert!(advance("acme", "r", 2, 2) && advance("acme", "r", 2, 3) && advance("acme", "other", 0, 1));
    assert_eq!((outbox.checkpoint("acme", "r").unwrap(), outbox.checkpoint("acme", "other").unwrap()), (3, 1));
    assert_eq!(outbox.checkpoint("other", "r").unwrap(), 0);
}

#[test]
fn four_readers_on_one_checkpoint_take_each_position_once() {
    let Some((bench, mut outbox)) = own() else { return };
    fill(&bench, "acme", 400, 400);
    bench.run("UPDATE outbox_deliveries SET state = 'complete'");
    assert_eq!(outbox.read_status("acme", 399, 10).unwrap().len(), 1);
    let taken = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (config, taken) = (bench.config(FAN_OUT), &taken);
            scope.spawn(move || {
                let mut outbox = crate::suite::support::open(&config).unwrap();
                loop {
                    let from = outbox.checkpoint("acme", "r").unwrap();
                    let changes = outbox.read_status("acme", from, 7).unwrap();
                    let Some(last) = changes.last() else { return };
                    if outbox.advance("acme", "r", from, last.position).unwrap() {
                        taken.lock().unwrap().extend(changes.iter().map(|change| change.position));
                    }
                }
            });
        }
    });
    let mut taken = taken.into_inner().unwrap();
    taken.sort_unstable();
    assert_eq!(taken, (1..=400).collect::<Vec<u64>>());
}

#[test]
fn the_log_of_many_tenants_in_one_statement_is_right_for_each() {
    let Some((bench, mut outbox)) = own() else { return };
    for tenant in ["a", "b", "c"] {
        event(&bench, tenant, None);
        fill(&bench, tenant, 50, 50);
    }
    lapse(&bench);
    bench.run("UPDATE outbox_deliveries SET state = 'quarantined', error_code = 'network' WHERE seq % 2 = 0");
    for tenant in ["a", "b", "c"] {
        let positions: Vec<u64> = outbox.read_status(tenant, 0, 100).unwrap().iter().map(|change| change.position).collect();
        assert_eq!(positions, (1..=25).collect::<Vec<u64>>());
    }
    let ordered = "SELECT bool_and(position = place) FROM (SELECT s.position, row_number() OVER (PARTITION BY s.account_id ORDER BY d.seq) AS place \
                   FROM outbox_status AS s JOIN outbox_deliveries AS d USING (delivery_id)) AS x";
    assert_eq!(bench.value(ordered), "true");
}
