//! Rows and tables that are not as they should be: what one of them does wrong must not stop the others.

use crate::support::{Bench, claim, ids, request, retry, settle};
use outhaul_sdk::{ClaimRequest, FailureCode, Filter, Verdict};

/// Text ids and a table of leases.
const EVENTS: &str = "CREATE TABLE t (id TEXT PRIMARY KEY, key TEXT, body TEXT, state TEXT DEFAULT 'pending', created INTEGER)";
const EVENTS_CONFIG: &str =
    r#","table":"t","lease_table":"leases","topic":"x","columns":{"id":"id","key":"key","payload":"body","state":"state"}"#;

fn events(ddl: &str, config: &str) -> (Bench, sqlite_storage::Outbox<crate::support::Sqlite>) {
    let bench = Bench::new(ddl);
    let mut outbox = bench.open(config);
    outbox.create_schema().unwrap();
    (bench, outbox)
}

/// Numbers as ids, everything in the table.
fn columns(more: &str) -> String {
    format!(
        r#","table":"t","topic":"x","columns":{{"id":"id","key":"key","payload":"body","state":"state","available_at":"due","lease_until":"until","leased_by":"by","attempts":"n"}}{more}"#
    )
}

fn numbered(state: &str, time: &str) -> String {
    format!(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, key TEXT, body TEXT, state TEXT DEFAULT 'pending' {state}, due {time}, until {time}, by TEXT, n INTEGER)"
    )
}

#[test]
fn headers_count_towards_sizes_and_twice() {
    let (bench, mut outbox) = Bench::own("");
    for bytes in [600, 10, 10] {
        bench.run(&format!(
            "INSERT INTO outbox (topic, key, headers, payload) VALUES ('t', 'k' || {bytes}, '{{\"h\":\"' || printf('%.*c', {bytes}, 'x') || '\"}}', 'x')"
        ));
    }
    let claimed = outbox.claim(&ClaimRequest { max_message_bytes: 1000, ..request("w", 10) }).unwrap();
    assert_eq!(ids(&claimed.batch), ["2", "3"]);
    assert_eq!((claimed.refused[0].id.as_str(), &claimed.refused[0].failure.code), ("1", &FailureCode::TooLarge));
    settle(&mut outbox, "w", Verdict::Release(0), &ids(&claimed.batch));
    // Two rows of some 170 bytes.
    assert_eq!(outbox.claim(&ClaimRequest { max_bytes: 300, ..request("w", 10) }).unwrap().batch.len(), 1);
}

#[test]
fn keys_and_extra_columns_count_towards_sizes() {
    let bench = Bench::new(&numbered("", "INTEGER").replace("key TEXT", "key TEXT, extra TEXT"));
    let mut outbox = bench.open(&columns(r#","extra_headers":{"extra":"x-extra"}"#));
    bench.run("INSERT INTO t (key, extra, body) VALUES (printf('%.*c', 900, 'k'), NULL, 'x'), ('k', printf('%.*c', 500, 'e'), 'x'), ('k', 'e', 'x')");
    let claimed = outbox.claim(&ClaimRequest { max_message_bytes: 1000, ..request("w", 10) }).unwrap();
    assert_eq!((ids(&claimed.batch), claimed.refused.len()), (vec!["3".to_owned()], 2));
}

#[test]
fn a_row_whose_id_is_not_utf_8_is_left_alone_and_holds_back_no_other() {
    let (bench, mut outbox) = events(EVENTS, EVENTS_CONFIG);
    bench.run("INSERT INTO t (id, key, body) VALUES (CAST(x'61ff' AS TEXT), 'k', 'x'), ('b', 'k', 'x'), ('c', NULL, 'x')");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["b", "c"]);
    assert!(outbox.notice().unwrap().contains("not UTF-8"));
    claim(&mut outbox, "w", 10);
    assert_eq!(outbox.notice(), None, "said once");
    // The claims beyond it go on, too.
    assert!(settle(&mut outbox, "w", Verdict::Delivered, &["b".into(), "c".into()]).is_empty());
    bench.run("INSERT INTO t (id, key, body) VALUES ('d', 'k', 'x')");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["d"]);
}

#[test]
fn what_is_no_time_has_passed() {
    for (unit, time) in [("ms", "INTEGER"), ("seconds", "REAL")] {
        let bench = Bench::new(&numbered("", time));
        let mut outbox = bench.open(&columns(&format!(r#","time_unit":"{unit}""#)));
        bench.run(
            "INSERT INTO t (body, due, until) VALUES ('x', 'soon', NULL), ('x', x'00', 'x'), ('x', NULL, x'ff'), ('x', 1e14, NULL), ('x', 1, 1)",
        );
        let counts = outbox.stats().unwrap();
        assert_eq!((counts.pending, counts.due, counts.leased), (5, 4, 0), "{unit}");
        let page = outbox.browse(&Filter { state: None, topic: None, ids: vec![] }, None, 9, false).unwrap();
        assert_eq!(page.rows.iter().map(|row| row.due_in_ms > 0).collect::<Vec<_>>(), [false, false, false, true, false], "{unit}");
        assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["1", "2", "3", "5"], "{unit}");
    }
}

#[test]
fn leases_of_deleted_rows_are_purged_where_delivered_rows_are_deleted() {
    let (bench, mut outbox) = events(EVENTS, &format!(r#"{EVENTS_CONFIG},"on_delivered":"delete""#));
    bench.run("INSERT INTO t (id, body) VALUES ('a', 'x'), ('b', 'x'), ('c', 'x')");
    claim(&mut outbox, "w", 10);
    bench.run("DELETE FROM t WHERE id <> 'c'");
    assert_eq!(outbox.purge(0, 1).unwrap(), 0);
    assert_eq!(bench.value("SELECT count(*) FROM leases"), "2", "bounded");
    outbox.purge(0, 10).unwrap();
    assert_eq!(bench.value("SELECT group_concat(id) FROM leases"), "c");
}

#[test]
fn a_row_inherits_nothing_from_an_earlier_one_with_its_id() {
    let config = EVENTS_CONFIG.replace(r#""state":"state""#, r#""state":"state","created_at":"created""#);
    for (config, again) in [(EVENTS_CONFIG, "NULL"), (config.as_str(), "2")] {
        let (bench, mut outbox) = events(EVENTS, config);
        bench.run("INSERT INTO t (id, body, created) VALUES ('a', 'x', 1)");
        claim(&mut outbox, "w", 1);
        settle(&mut outbox, "w", retry("503", 3_600_000), &["a".into()]);
        assert_eq!(claim(&mut outbox, "w", 1).batch.len(), 0);
        // Without `created_at`, only another place in the order tells them apart.
        bench.run("DELETE FROM t");
        bench.run(&format!("INSERT INTO t (rowid, id, body, created) VALUES (7, 'a', 'x', {again})"));
        let claimed = claim(&mut outbox, "v", 1).batch;
        assert_eq!((claimed.len(), claimed.message(0).attempts()), (1, 1), "{config}");
        assert_eq!(bench.value("SELECT available_at || ifnull(last_error, '-') FROM leases"), "0-", "{config}");
        // A verdict on the earlier one is none on this one.
        bench.run("DELETE FROM t");
        bench.run("INSERT INTO t (rowid, id, body, created) VALUES (9, 'a', 'x', 3)");
        assert_eq!(settle(&mut outbox, "v", Verdict::Delivered, &["a".into()]), ["a"], "{config}");
    }
}

#[test]
fn a_state_that_the_table_refuses_is_found_before_anything_is_claimed() {
    for (check, key, more) in [
        ("CHECK (state IN ('pending', 'done'))", "states.dead", ""),
        ("CHECK (state IN ('pending', 'dead'))", "states.delivered", ""),
        (
            "CHECK (state IN ('pending', 'done', 'dead'))",
            "states.leased",
            r#","states":{"pending":"pending","leased":"busy","delivered":"done","dead":"dead"}"#,
        ),
    ] {
        let bench = Bench::new(&numbered(check, "INTEGER"));
        let mut outbox = bench.open(&columns(more));
        assert!(outbox.stats().is_ok() && claim(&mut outbox, "w", 1).batch.is_empty(), "no row to try it with");
        bench.run("INSERT INTO t (body) VALUES ('x')");
        for failure in [outbox.stats().unwrap_err(), outbox.claim(&request("w", 1)).unwrap_err()] {
            assert_eq!(failure.code, FailureCode::InvalidConfiguration, "{failure:?}");
            assert!(failure.detail.contains(key) && failure.detail.contains("CHECK"), "{failure:?}");
        }
        assert_eq!(bench.value("SELECT state || ifnull(n, 0) || ifnull(by, '-') FROM t"), "pending0-", "nothing was changed");
    }
}

#[test]
fn a_state_that_the_table_comes_to_refuse_is_named_by_the_claim() {
    let bench = Bench::new(&numbered("", "INTEGER"));
    let mut outbox = bench.open(&columns(""));
    bench.run("INSERT INTO t (body, n) VALUES ('x', 9)");
    outbox.stats().unwrap();
    bench.run("CREATE TRIGGER never BEFORE UPDATE ON t WHEN new.state = 'dead' BEGIN SELECT raise(ABORT, 'no dead rows'); END");
    let failure = outbox.claim(&ClaimRequest { max_attempts: 3, ..request("w", 1) }).unwrap_err();
    assert!(failure.detail.contains("`states.dead`") && failure.detail.contains("no dead rows"), "{failure:?}");
}

#[test]
fn a_table_that_has_changed_is_looked_at_again() {
    let (bench, mut outbox) = Bench::own("");
    bench.insert(None, "x");
    claim(&mut outbox, "w", 1);
    bench.run("DROP INDEX outbox_pending");
    let failure = outbox.claim(&request("w", 1)).unwrap_err();
    assert_eq!(failure.code, FailureCode::Unavailable, "{failure:?}");
    bench.insert(None, "x");
    assert_eq!(claim(&mut outbox, "w", 1).batch.len(), 1, "it goes on without the index");
    bench.run("ALTER TABLE outbox RENAME TO other");
    let failure = outbox.claim(&request("w", 1)).unwrap_err();
    assert!(failure.detail.contains("`table`: there is no table \"outbox\""), "{failure:?}");
}
