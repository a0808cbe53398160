//! Rows and tables that are not as they should be: what one of them does wrong must not stop the others.

use super::support::{Bench, claim, ids, request, settle};
use outhaul_sdk::{ClaimRequest, FailureCode, Verdict};

/// Numbers as ids, everything in the table.
fn columns(more: &str) -> String {
    format!(
        r#","table":"t","topic":"x","columns":{{"id":"id","key":"key","payload":"body","state":"state","available_at":"due","lease_until":"until","leased_by":"by","attempts":"n"}}{more}"#
    )
}

fn numbered(state: &str) -> String {
    format!(
        "CREATE TABLE t (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, key text, body text, state text DEFAULT 'pending' {state}, due timestamptz, until timestamptz, by text, n integer)"
    )
}

#[test]
fn headers_count_towards_sizes_and_twice() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    for bytes in [600, 10, 10] {
        bench.run(&format!(
            "INSERT INTO outbox (topic, key, headers, payload) VALUES ('t', 'k{bytes}', '{{\"h\":\"{}\"}}', 'x')",
            "x".repeat(bytes)
        ));
    }
    let claimed = outbox.claim(&ClaimRequest { max_message_bytes: 1000, ..request("w", 10) }).unwrap();
    assert_eq!(ids(&claimed.batch), ["2", "3"]);
    assert_eq!((claimed.refused[0].id.as_str(), &claimed.refused[0].failure.code), ("1", &FailureCode::TooLarge));
    settle(&mut outbox, "w", Verdict::Release(0), &ids(&claimed.batch));
    // Two rows of some 170 bytes.
    assert_eq!(outbox.claim(&ClaimRequest { max_bytes: 300, ..request("w", 10) }).unwrap().batch.len(), 1);
}

/// A value that compresses well takes little room in the table, and all of it in a batch.
#[test]
fn values_count_as_they_will_be_sent() {
    for (declared, value) in
        [("bytea", "convert_to(repeat('x', 100000), 'UTF8')"), ("jsonb", "to_jsonb(repeat('x', 100000))"), ("text", "repeat('x', 100000)")]
    {
        let Some(bench) = Bench::new(&numbered("").replace("body text", &format!("body {declared}"))) else { return };
        let mut outbox = bench.open(&columns(""));
        bench.run(&format!("INSERT INTO t (body) VALUES ({value}), (NULL)"));
        let claimed = outbox.claim(&ClaimRequest { max_message_bytes: 50_000, ..request("w", 10) }).unwrap();
        assert_eq!((ids(&claimed.batch), claimed.refused.len()), (vec!["2".to_owned()], 1), "{declared}");
    }
}

#[test]
fn keys_and_extra_columns_count_towards_sizes() {
    let Some(bench) = Bench::new(&numbered("").replace("key text", "key text, extra text")) else { return };
    let mut outbox = bench.open(&columns(r#","extra_headers":{"extra":"x-extra"}"#));
    bench.run("INSERT INTO t (key, extra, body) VALUES (repeat('k', 900), NULL, 'x'), ('k', repeat('e', 500), 'x'), ('k', 'e', 'x')");
    let claimed = outbox.claim(&ClaimRequest { max_message_bytes: 1000, ..request("w", 10) }).unwrap();
    assert_eq!((ids(&claimed.batch), claimed.refused.len()), (vec!["3".to_owned()], 2));
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
        let Some(bench) = Bench::new(&numbered(check)) else { return };
        let mut outbox = bench.open(&columns(more));
        assert!(outbox.stats().is_ok() && claim(&mut outbox, "w", 1).batch.is_empty(), "no row to try it with");
        bench.run("INSERT INTO t (body) VALUES ('x')");
        for failure in [outbox.stats().unwrap_err(), outbox.claim(&request("w", 1)).unwrap_err()] {
            assert_eq!(failure.code, FailureCode::InvalidConfiguration, "{failure:?}");
            assert!(failure.detail.contains(key) && failure.detail.contains("check"), "{failure:?}");
        }
        assert_eq!(bench.value("SELECT state || coalesce(n, 0) || coalesce(by, '-') FROM t"), "pending0-", "nothing was changed");
    }
}

#[test]
fn a_state_that_the_table_comes_to_refuse_is_named_by_the_claim() {
    let Some(bench) = Bench::new(&numbered("")) else { return };
    let mut outbox = bench.open(&columns(""));
    bench.run("INSERT INTO t (body, n) VALUES ('x', 9)");
    outbox.stats().unwrap();
    bench.run("ALTER TABLE t ADD CONSTRAINT no_dead_rows CHECK (state <> 'dead')");
    let failure = outbox.claim(&ClaimRequest { max_attempts: 3, ..request("w", 1) }).unwrap_err();
    assert!(failure.detail.contains("`states.dead`") && failure.detail.contains("no_dead_rows"), "{failure:?}");
}

#[test]
fn a_table_that_has_changed_is_looked_at_again() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    bench.insert(None, "x");
    claim(&mut outbox, "w", 1);
    bench.run("ALTER TABLE outbox RENAME TO other");
    let failure = outbox.claim(&request("w", 1)).unwrap_err();
    assert!(failure.detail.contains("`table`: there is no table \"outbox\""), "{failure:?}");
    bench.run("ALTER TABLE other RENAME TO outbox");
    bench.insert(None, "x");
    assert_eq!(claim(&mut outbox, "w", 1).batch.len(), 1);
    // Without the index by key, claims go on without what it was for.
    bench.run("DROP INDEX outbox_key_pending; DROP INDEX outbox_pending");
    bench.insert(Some("k"), "x");
    assert_eq!(claim(&mut outbox, "w", 1).batch.len(), 1);
    bench.run("ALTER TABLE outbox RENAME COLUMN key TO clave");
    let failure = outbox.claim(&request("w", 1)).unwrap_err();
    assert!(failure.detail.contains("`columns.key`") && failure.detail.contains("`clave`"), "{failure:?}");
}

/// Triggers of the table's owner run in the role's own search path, and what they refuse is told.
#[test]
fn triggers_of_the_table_go_on_working() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    bench.run(
        "CREATE SCHEMA audit; CREATE TABLE audit.seen (id bigint);
         CREATE FUNCTION audit.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NEW; END';
         CREATE TRIGGER note BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION audit.note();
         DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, audit', current_database()); END $$",
    );
    let mut fresh = bench.open("");
    bench.insert(None, "x");
    assert_eq!(claim(&mut fresh, "w", 1).batch.len(), 1);
    assert_eq!(bench.value("SELECT count(*) FROM audit.seen"), "1");
    assert!(settle(&mut outbox, "v", Verdict::Delivered, &["1".into()]) == ["1"]);
}
