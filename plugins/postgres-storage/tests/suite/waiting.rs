//! A due row is found within a bounded number of claims, however much waits in front of it, and never out of its turn.

use super::support::{Bench, Postgres, claim, ids};
use outbox_table::random::Random;
use postgres_storage::Outbox;
use std::collections::BTreeMap;

/// `count` rows: the SQL expressions of key and due time see `i`.
fn fill(bench: &Bench, table: &str, count: u32, key: &str, available_at: &str) {
    bench.run(&format!(
        "INSERT INTO {table} (topic, key, available_at, payload) SELECT 't', {key}, {available_at}, 'x' FROM generate_series(1, {count}) AS i"
    ));
}

const LATER: &str = "now() + interval '1 h'";

/// The first claim that finds something, and how many claims that took.
fn first(outbox: &mut Outbox<Postgres>, at_most: u32) -> (u32, Vec<String>) {
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
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    fill(&bench, "outbox", 1, "'hot'", LATER);
    fill(&bench, "outbox", 30_000, "'hot'", "now()");
    let due = bench.insert(Some("b"), "x");
    assert_eq!(first(&mut outbox, 2), (1, vec![due]));
}

#[test]
fn behind_many_waiting_heads() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    fill(&bench, "outbox", 30_000, "'k' || to_char(i, 'FM000000')", LATER);
    let due = bench.insert(Some("z"), "x");
    // At least 1024 keys a claim; how many more is a matter of time.
    assert_eq!(first(&mut outbox, 60).1, [due]);
    assert_eq!(claim(&mut outbox, "w", 50).batch.len(), 0);
    let early = bench.insert(Some("a"), "x");
    assert_eq!(first(&mut outbox, 60).1, [early]);
}

#[test]
fn behind_rows_in_flight_and_waiting_rows_without_a_key() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    fill(&bench, "outbox", 10_000, "CASE WHEN i % 2 = 1 THEN NULL ELSE '' END", LATER);
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
    let Some((bench, _)) = Bench::own("") else { return };
    bench.run("DROP INDEX outbox_key_pending");
    let mut outbox = bench.open("");
    fill(&bench, "outbox", 30_000, "'k' || i", LATER);
    let due = bench.insert(Some("z"), "x");
    // To the end: nothing can be remembered where the heads of keys cannot be looked up.
    assert_eq!(first(&mut outbox, 1), (1, vec![due]));
    assert_eq!(until_finished(&mut outbox, 1), Vec::<String>::new());
    bench.run("UPDATE outbox SET available_at = now() WHERE id = 3");
    assert_eq!(until_finished(&mut outbox, 2), ["3"]);
}

/// A key that waits at the front holds back its rows behind the place where a claim has stopped.
#[test]
fn without_an_index_nothing_is_overtaken_from_claim_to_claim() {
    let Some((bench, _)) = Bench::own("") else { return };
    bench.run("DROP INDEX outbox_key_pending");
    let mut outbox = bench.open("");
    fill(&bench, "outbox", 20_000, "'k' || i", LATER);
    bench.insert(Some("k1"), "x");
    let due = bench.insert(Some("z"), "x");
    assert_eq!(until_finished(&mut outbox, 2), [due]);
}

#[test]
fn a_drain_does_not_end_before_everything_was_looked_at() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    fill(&bench, "outbox", 20_000, "'k' || to_char(i, 'FM000000')", LATER);
    fill(&bench, "outbox", 20_000, "CASE WHEN i % 2 = 1 THEN NULL ELSE '' END", LATER);
    let due = bench.insert(Some("z"), "x");
    assert_eq!(until_finished(&mut outbox, 120), [due]);
    // Nothing is due: the search ends, and the next one too, wherever it starts.
    for _ in 0..3 {
        assert_eq!(until_finished(&mut outbox, 120), Vec::<String>::new());
    }
    let due = bench.insert(Some("k000001a"), "x");
    assert_eq!(until_finished(&mut outbox, 120), [due]);
}

/// What claims find until one of them has nothing and says that this is all.
fn until_finished(outbox: &mut Outbox<Postgres>, at_most: u32) -> Vec<String> {
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
fn keys_may_be_of_any_type() {
    for (declared, key, late) in [
        ("integer", "i - 10000", ["-20000", "50000"]),
        ("bigint", "i - 10000", ["-20000", "50000"]),
        ("numeric", "i / 10.0", ["-1.5", "5000.25"]),
        ("uuid", "lpad(i::text, 32, '0')::uuid", ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-0000-0000-0000-000000000000'"]),
        ("varchar(20)", "'k' || i", ["'a'", "'z'"]),
        ("char(20)", "'k' || i", ["'a'", "'z'"]),
        ("timestamptz", "now() + i * interval '1 s'", ["'epoch'", "'infinity'"]),
        ("date", "date '2000-01-01' + i", ["'-infinity'", "'infinity'"]),
        ("boolean", "i % 2 = 0", ["NULL", "NULL"]),
        // Not to be compared as they are: there is no walk, and the scan goes on.
        ("json", "to_json(i)", ["'{}'", "'[]'"]),
    ] {
        let index = if declared == "json" { "key::text" } else { "key" };
        let Some(bench) = Bench::new(&format!(
            "CREATE TABLE t (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, topic text, key {declared}, state text DEFAULT 'pending', available_at timestamptz, by text, n integer, payload text);
             CREATE INDEX ON t (id) WHERE state = 'pending'; CREATE INDEX ON t (({index}), id) WHERE state = 'pending'"
        )) else {
            return;
        };
        let mut outbox = bench.open(
            r#","table":"t","columns":{"id":"id","topic":"topic","key":"key","payload":"payload","state":"state","available_at":"available_at","leased_by":"by","attempts":"n"}"#,
        );
        fill(&bench, "t", 20_000, key, LATER);
        for key in late {
            fill(&bench, "t", 2, key, "now()");
            assert_eq!(first(&mut outbox, 60).1.len(), 2, "{declared} {key}");
        }
    }
}

#[test]
fn what_is_found_behind_much_that_waits_is_in_order() {
    let mut random = Random::seeded(11);
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    fill(&bench, "outbox", 9_000, "'front' || (i % 90)", LATER);
    let mut rows: BTreeMap<i64, (usize, bool)> = BTreeMap::new();
    for _ in 0..1500 {
        let (key, due) = (random.below(40), random.below(12) > 0);
        let id = bench.insert(Some(&format!("k{key}")), "x").parse().unwrap();
        bench.run(&format!("UPDATE outbox SET available_at = {} WHERE id = {id}", if due { "now()" } else { LATER }));
        rows.insert(id, (key, due));
    }
    let mut claimed: Vec<i64> = Vec::new();
    let mut empty = 0;
    while empty < 3 {
        let found = claim(&mut outbox, "w", 64);
        let batch: Vec<i64> = ids(&found.batch).iter().map(|id| id.parse().unwrap()).collect();
        empty = if batch.is_empty() { empty + u32::from(!found.unfinished) } else { 0 };
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
