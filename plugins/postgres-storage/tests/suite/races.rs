//! What others do between the search of a claim and its lock: each moment made to happen, by a transaction held open or by a step put
//! between the two statements.

use super::support::{Bench, before, claim, ids, request, retry, settle, settlement};
use outhaul_sdk::{ClaimRequest, Column, FailureCode, Verdict};
use std::rc::Rc;

/// Runs `step` between search and lock of the next claim.
fn between(step: impl Fn() + 'static) {
    before("FOR NO KEY UPDATE OF t SKIP LOCKED", step);
}

#[test]
fn another_worker_leases_the_head_meanwhile() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    for key in ["a", "a", "b"] {
        bench.insert(Some(key), "x");
    }
    let other = std::cell::RefCell::new(bench.open(""));
    between(move || assert_eq!(ids(&claim(&mut other.borrow_mut(), "v", 1).batch).len(), 1));
    let claimed = ids(&claim(&mut outbox, "w", 10).batch);
    let other = bench.value("SELECT id FROM outbox WHERE leased_by = 'v'");
    // Of the key `a`, all or nothing.
    let expected: &[&str] = if other == "1" { &["3"] } else { &["1", "2"] };
    assert_eq!(claimed, expected, "the other has {other}");
}

#[test]
fn the_head_is_retried_meanwhile() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    let bench = Rc::new(bench);
    for key in ["a", "a", "b"] {
        bench.insert(Some(key), "x");
    }
    let inside = Rc::clone(&bench);
    between(move || inside.run("UPDATE outbox SET available_at = now() + interval '1 h', attempts = 1 WHERE id = 1"));
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["3"]);
}

#[test]
fn the_head_is_settled_meanwhile() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    let bench = Rc::new(bench);
    for key in ["a", "a"] {
        bench.insert(Some(key), "x");
    }
    let inside = Rc::clone(&bench);
    between(move || inside.run("UPDATE outbox SET status = 'dead' WHERE id = 1"));
    // The first round gets nothing; the next one sees the table as it is.
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["2"]);
}

#[test]
fn a_row_in_the_middle_is_locked_by_somebody() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    for _ in 0..4 {
        bench.insert(Some("a"), "x");
    }
    let open = bench.holding("SELECT 1 FROM outbox WHERE id = 3 FOR UPDATE");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["1", "2"], "nobody is waited for");
    open.commit();
    assert!(settle(&mut outbox, "w", Verdict::Delivered, &["1".into(), "2".into()]).is_empty());
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["3", "4"]);
}

#[test]
fn a_row_that_can_never_be_claimed_again_is_somebody_elses_by_now() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    for _ in 0..3 {
        bench.insert(Some("a"), "x");
    }
    bench.run("UPDATE outbox SET attempts = 3 WHERE id = 2");
    let open = bench.holding("SELECT 1 FROM outbox WHERE id = 2 FOR UPDATE");
    let claimed = outbox.claim(&ClaimRequest { max_attempts: 3, ..request("w", 10) }).unwrap();
    assert_eq!((ids(&claimed.batch), claimed.refused.len()), (vec!["1".to_owned()], 0), "what is behind it waits");
    open.commit();
    assert!(settle(&mut outbox, "w", Verdict::Delivered, &["1".into()]).is_empty());
    let claimed = outbox.claim(&ClaimRequest { max_attempts: 3, ..request("w", 10) }).unwrap();
    assert_eq!((ids(&claimed.batch), claimed.refused[0].id.as_str()), (vec!["3".to_owned()], "2"));
}

#[test]
fn an_attempt_is_used_up_meanwhile() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    let bench = Rc::new(bench);
    bench.insert(Some("a"), "x");
    bench.run("UPDATE outbox SET attempts = 2");
    let inside = Rc::clone(&bench);
    between(move || inside.run("UPDATE outbox SET attempts = 3"));
    let claimed = outbox.claim(&ClaimRequest { max_attempts: 3, ..request("w", 10) }).unwrap();
    assert_eq!((claimed.batch.len(), claimed.refused.len()), (0, 1), "found out in the next round");
    assert_eq!(bench.value("SELECT status || attempts FROM outbox"), "dead3");
}

/// Case 1: a transaction takes a lower id and commits later. Both rows are delivered; rows of one key in the order of their ids if the
/// producers of a key wait for each other, as these two do not.
#[test]
fn a_row_that_is_committed_late_is_delivered() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    let late = bench.late_insert("k");
    let second = bench.insert(Some("k"), "x");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), std::slice::from_ref(&second));
    assert!(settle(&mut outbox, "w", Verdict::Delivered, &[second]).is_empty());
    let first = late.commit();
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), [first]);
}

/// The same two with `visibility_delay`: longer than the transactions of the producers, it keeps their order.
#[test]
fn with_a_visibility_delay_late_commits_stay_in_order() {
    let Some((bench, mut outbox)) = Bench::own(r#","visibility_delay":"10m""#) else { return };
    let late = bench.late_insert("k");
    let second = bench.insert(Some("k"), "x");
    assert!(ids(&claim(&mut outbox, "w", 10).batch).is_empty());
    let first = late.commit();
    bench.run("UPDATE outbox SET created_at = created_at - interval '10 min'");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), [first, second]);
}

/// Leases beside the table: the lock on a row says nothing of its lease, and a statement that has waited for it sees leases as they
/// were before it waited.
#[test]
fn leases_beside_the_table_are_judged_after_the_lock() {
    let Some(bench) = Bench::new(
        "CREATE TABLE t (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, key text, body text, state text NOT NULL DEFAULT 'pending')",
    ) else {
        return;
    };
    let more = r#","table":"t","lease_table":"leases","topic":"x","columns":{"id":"id","key":"key","payload":"body","state":"state"}"#;
    let mut outbox = bench.open(more);
    outbox.create_schema().unwrap();
    bench.run("INSERT INTO t (key, body) VALUES ('a', 'x'), ('a', 'x'), ('b', 'x')");
    let other = std::cell::RefCell::new(bench.open(more));
    between(move || assert_eq!(claim(&mut other.borrow_mut(), "v", 10).batch.len(), 3));
    assert!(claim(&mut outbox, "w", 10).batch.is_empty(), "leased twice");
    // A verdict that comes too late: its statement waits for the claim that has taken the row over.
    bench.run("UPDATE leases SET lease_until = 'epoch'");
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 3);
    let all: Vec<String> = ["1", "2", "3"].map(str::to_owned).to_vec();
    let holding = bench.holding("SELECT 1 FROM t FOR UPDATE; UPDATE leases SET leased_by = 'v'");
    let url = bench.config(more);
    let late = std::thread::spawn(move || {
        let mut late = super::support::open(&url).unwrap();
        (
            late.settle("w", &[settlement(Verdict::Delivered, &all), settlement(retry("x", 0), &all)]).unwrap(),
            late.extend("w", &Column::of_texts(&all), 1).unwrap(),
        )
    });
    bench.wait_for_a_waiter();
    holding.commit();
    let (settled, extended) = late.join().unwrap();
    assert_eq!((settled.len(), extended.len()), (6, 3), "nothing is held any more");
    assert_eq!(bench.value("SELECT string_agg(state || l.leased_by, ',') FROM t JOIN leases l USING (id)"), "pendingv,pendingv,pendingv");
}

#[test]
fn a_late_verdict_waits_for_the_claim_that_has_taken_the_row_over() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    bench.insert(Some("a"), "x");
    let claimed = ids(&claim(&mut outbox, "w", 1).batch);
    let holding = bench.holding("UPDATE outbox SET leased_by = 'v', attempts = 2 WHERE id = 1");
    let url = bench.config("");
    let given = claimed.clone();
    let late =
        std::thread::spawn(move || super::support::open(&url).unwrap().settle("w", &[settlement(Verdict::Delivered, &given)]).unwrap());
    bench.wait_for_a_waiter();
    holding.commit();
    assert_eq!(late.join().unwrap(), claimed);
    assert_eq!(bench.value("SELECT status || leased_by FROM outbox"), "pendingv");
}

/// A renewal must not wait: while it does, the leases of all others run out.
#[test]
fn a_renewal_tells_at_once_that_a_row_is_locked() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    for _ in 0..3 {
        bench.insert(None, "x");
    }
    let all = ids(&claim(&mut outbox, "w", 3).batch);
    let holding = bench.holding("SELECT 1 FROM outbox WHERE id = 2 FOR UPDATE");
    let failure = outbox.extend("w", &Column::of_texts(&all), 600_000).unwrap_err();
    assert_eq!(failure.code, FailureCode::Timeout, "{failure:?}");
    assert!(failure.detail.contains("locked by another transaction"), "{failure:?}");
    assert!(outbox.extend("w", &Column::of_texts([&all[0], &all[2]]), 600_000).unwrap().is_empty());
    let renewed = "SELECT string_agg(id::text, ',' ORDER BY id) FROM outbox WHERE available_at > clock_timestamp() + interval '5 min'";
    assert_eq!(bench.value(renewed), "1,3");
    holding.commit();
    assert!(outbox.extend("w", &Column::of_texts(&all), 600_000).unwrap().is_empty());
    assert_eq!(bench.value(renewed), "1,2,3");
}
