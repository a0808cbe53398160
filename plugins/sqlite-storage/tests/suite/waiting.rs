//! A due row is found within a bounded number of claims, however much waits in front of it, and never out of its turn.

use crate::support::{Bench, Sqlite, claim, ids};
use outbox_table::random::Random;
use sqlite_storage::Outbox;
use std::collections::BTreeMap;

/// `count` rows: the SQL expressions of key and due time see `i`.
fn fill(bench: &Bench, table: &str, count: u32, key: &str, available_at: &str) {
    bench.run(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
         INSERT INTO {table} (topic, key, available_at, payload) SELECT 't', {key}, {available_at}, 'x' FROM n"
    ));
}

const LATER: &str = "unixepoch() * 1000 + 3600000";

/// The first claim that finds something, and how many claims that took.
fn first(outbox: &mut Outbox<Sqlite>, at_most: u32) -> (u32, Vec<String>) {
    for claims in 1..=at_most {
        let found = ids(&claim(outbox, "w", 50).batch);
        if !found.is_empty() {
            return (claims, found);
        }
    }
    panic!("nothing found in {at_most} claims");
}

#[test]
fn behind_one_waiting_head_with_many_followers() {
    let (bench, mut outbox) = Bench::own("");
    fill(&bench, "outbox", 1, "'hot'", LATER);
    fill(&bench, "outbox", 30_000, "'hot'", "0");
    let due = bench.insert(Some("b"), "x");
    assert_eq!(first(&mut outbox, 2), (1, vec![due]));
}

#[test]
fn behind_many_waiting_heads() {
    let (bench, mut outbox) = Bench::own("");
    fill(&bench, "outbox", 30_000, "printf('k%06d', i)", LATER);
    let due = bench.insert(Some("z"), "x");
    // At least 1024 keys a claim; how many more is a matter of time.
    assert_eq!(first(&mut outbox, 60).1, [due]);
    assert_eq!(claim(&mut outbox, "w", 50).batch.len(), 0);
    let early = bench.insert(Some("a"), "x");
    assert_eq!(first(&mut outbox, 60).1, [early]);
}

#[test]
fn behind_rows_in_flight_and_waiting_rows_without_a_key() {
    let (bench, mut outbox) = Bench::own("");
    fill(&bench, "outbox", 10_000, "iif(i % 2, NULL, '')", LATER);
    for key in [None, Some("")] {
        let due = bench.insert(key, "x");
        assert_eq!(first(&mut outbox, 2).1, [due], "{key:?}");
    }
    let due = bench.insert(Some("k"), "x");
    assert_eq!(first(&mut outbox, 2).1, [due]);
    assert_eq!(claim(&mut outbox, "w", 50).batch.len(), 0);
}

#[test]
fn without_an_index_the_scan_goes_on() {
    let (bench, _) = Bench::own("");
    bench.run("DROP INDEX outbox_key_pending");
    let mut outbox = bench.open("");
    fill(&bench, "outbox", 30_000, "'k' || i", LATER);
    let due = bench.insert(Some("z"), "x");
    // Some 8192 rows a claim.
    let (claims, found) = first(&mut outbox, 5);
    assert!(claims > 1, "each claim is bounded");
    assert_eq!(found, [due]);
    assert_eq!(until_finished(&mut outbox, 5), Vec::<String>::new());
    // Where the search had been already.
    bench.run("UPDATE outbox SET available_at = 0 WHERE id = 3");
    assert_eq!(until_finished(&mut outbox, 6), ["3"]);
}

/// A key that waits at the front holds back its rows behind the place where a claim has stopped.
#[test]
fn without_an_index_nothing_is_overtaken_from_claim_to_claim() {
    let (bench, _) = Bench::own("");
    bench.run("DROP INDEX outbox_key_pending");
    let mut outbox = bench.open("");
    fill(&bench, "outbox", 20_000, "'k' || i", LATER);
    bench.insert(Some("k1"), "x");
    let due = bench.insert(Some("z"), "x");
    assert_eq!(until_finished(&mut outbox, 6), [due]);
}

#[test]
fn a_drain_does_not_end_before_everything_was_looked_at() {
    let (bench, mut outbox) = Bench::own("");
    fill(&bench, "outbox", 20_000, "printf('k%06d', i)", LATER);
    fill(&bench, "outbox", 20_000, "iif(i % 2, NULL, '')", LATER);
    let due = bench.insert(Some("z"), "x");
    assert_eq!(until_finished(&mut outbox, 40), [due]);
    // Nothing is due: the search ends, and the next one too, wherever it starts.
    for _ in 0..3 {
        assert_eq!(until_finished(&mut outbox, 40), Vec::<String>::new());
    }
    let due = bench.insert(Some("k000001a"), "x");
    assert_eq!(until_finished(&mut outbox, 40), [due]);
}

#[test]
fn keys_that_are_not_utf_8_do_not_end_the_walk() {
    let (bench, mut outbox) = Bench::own("");
    // The last key that the first step of the walk reaches is one of these.
    fill(&bench, "outbox", 20_000, "CAST(x'6bff' || printf('%06d', i) AS TEXT)", LATER);
    let due = bench.insert(Some("z"), "x");
    // 'z' sorts behind them.
    assert_eq!(until_finished(&mut outbox, 40), [due]);
}

/// What claims find until one of them has nothing and says that this is all.
fn until_finished(outbox: &mut Outbox<Sqlite>, at_most: u32) -> Vec<String> {
    let mut found = Vec::new();
    for _ in 0..at_most {
        let claimed = claim(outbox, "w", 50);
        if claimed.batch.is_empty() && !claimed.unfinished {
            return found;
        }
        found.extend(ids(&claimed.batch));
    }
    panic!("unfinished after {at_most} claims; found {found:?}");
}

#[test]
fn keys_may_be_numbers_of_any_kind() {
    for declared in ["INTEGER", "REAL", "BLOB", "NUMERIC", "TEXT"] {
        let bench = Bench::new(&format!(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, topic TEXT, key {declared}, state TEXT DEFAULT 'pending', available_at INTEGER, by TEXT, n INTEGER, payload BLOB);
             CREATE INDEX t_key ON t (key) WHERE state = 'pending'"
        ));
        let mut outbox = bench.open(
            r#","table":"t","columns":{"id":"id","topic":"topic","key":"key","payload":"payload","state":"state","available_at":"available_at","leased_by":"by","attempts":"n"}"#,
        );
        fill(&bench, "t", 20_000, "i - 10000", LATER);
        for (key, times) in [("-20000", 60), ("5000.5", 60), ("'text'", 60)] {
            fill(&bench, "t", 2, key, "0");
            let (_, found) = first(&mut outbox, times);
            assert_eq!(found.len(), 2, "{declared} {key}");
        }
    }
}

#[test]
fn what_is_found_behind_much_that_waits_is_in_order() {
    let mut random = Random::seeded(11);
    let (bench, mut outbox) = Bench::own("");
    fill(&bench, "outbox", 9_000, "'front' || (i % 90)", LATER);
    let mut rows: BTreeMap<i64, (usize, bool)> = BTreeMap::new();
    for _ in 0..1500 {
        let (key, due) = (random.below(40), random.below(12) > 0);
        let id = bench.insert(Some(&format!("k{key}")), "x").parse().unwrap();
        bench.run(&format!("UPDATE outbox SET available_at = {} WHERE id = {id}", if due { "0" } else { LATER }));
        rows.insert(id, (key, due));
    }
    let mut claimed: Vec<i64> = Vec::new();
    let mut empty = 0;
    while empty < 3 {
        let batch: Vec<i64> = ids(&claim(&mut outbox, "w", 64).batch).iter().map(|id| id.parse().unwrap()).collect();
        empty = if batch.is_empty() { empty + 1 } else { 0 };
        for (at, id) in batch.iter().enumerate() {
            let (key, due) = rows[id];
            assert!(due, "{id} is not due");
            let overtaken = rows.iter().find(|(other, row)| **other < *id && row.0 == key && !batch[..at].contains(other));
            assert_eq!(overtaken, None, "{id} overtook");
        }
        claimed.extend(&batch);
        let done: Vec<String> = batch.iter().map(ToString::to_string).collect();
        bench.run(&format!(
            "UPDATE outbox SET status = 'done' WHERE id IN ({})",
            if done.is_empty() { "0".to_owned() } else { done.join(",") }
        ));
        rows.retain(|id, _| !batch.contains(id));
    }
    // What is left waits, or is behind a row that waits.
    for (id, (key, due)) in &rows {
        assert!(!due || rows.iter().any(|(other, row)| other < id && row.0 == *key && !row.1), "{id} was never found");
    }
    assert!(claimed.len() > 200, "{} claimed", claimed.len());
}
