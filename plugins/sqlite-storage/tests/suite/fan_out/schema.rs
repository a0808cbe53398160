//! The DDL: of a new table, of one that is there already, of somebody else's.

use super::support::{FAN_OUT, claim_events, deliveries, expand, own};
use crate::support::{Bench, ids, open, request};
use outhaul_sdk::{FailureCode, Reemitted, Verdict};

#[test]
fn creating_the_schema_twice_changes_nothing_and_its_text_is_a_migration() {
    let (bench, mut outbox) = own();
    super::support::expanded(&bench, &mut outbox, "acme", None, &["a"]);
    outbox.create_schema().unwrap();
    assert_eq!(bench.value("SELECT count(*) FROM outbox_deliveries"), "1");
    let schema = outbox.schema().unwrap();
    // What runs it, and the triggers later, may be an older SQLite.
    assert!(!schema.contains("subsec") && !schema.contains("ALTER TABLE"), "{schema}");
    let other = Bench::new(&schema);
    let mut outbox = other.open(FAN_OUT);
    super::support::expanded(&other, &mut outbox, "acme", None, &["a"]);
    assert_eq!(super::support::log(&mut outbox, "acme"), ["1 1/1 expanded -"]);
}

#[test]
fn an_own_table_that_is_there_already_is_altered() {
    let (bench, mut outbox) = Bench::own("");
    bench.insert(Some("k"), "x");
    outbox.settle("w", &[]).unwrap();
    // It opens, so that the schema can be had; everything else says what is missing.
    let mut outbox = bench.open(FAN_OUT);
    let failure = outbox.claim_events(&request("w", 1), None).unwrap_err();
    assert_eq!(failure.code, FailureCode::InvalidConfiguration);
    assert!(
        failure.detail.contains("has no column \"tenant\"") && failure.detail.contains("`outhaul schema --apply`"),
        "{}",
        failure.detail
    );
    let schema = outbox.schema().unwrap();
    assert!(
        schema.contains("ALTER TABLE \"outbox\" ADD COLUMN tenant TEXT NOT NULL DEFAULT '' CHECK (typeof(tenant) = 'text')"),
        "{schema}"
    );
    bench.sql.execute_batch(&schema).unwrap();
    outbox.create_schema().unwrap();
    let events = claim_events(&mut outbox, "w");
    assert_eq!((ids(&events.claimed.batch), events.tenants.text(0)), (vec!["1".to_owned()], Some("")));
    assert!(expand(&mut outbox, "w", &events, &["a"]).is_empty());
    assert_eq!(deliveries(&mut outbox, "w", 10).batch.len(), 1);
}

#[test]
fn a_missing_trigger_is_named() {
    let (bench, _) = own();
    bench.run("DROP TRIGGER outbox_deliveries_log");
    let mut outbox = bench.open(FAN_OUT);
    let failure = outbox.claim(&request("w", 1)).unwrap_err();
    assert!(failure.detail.starts_with("`fan_out`: there is no trigger `outbox_deliveries_log`"), "{}", failure.detail);
    outbox.create_schema().unwrap();
    outbox.claim(&request("w", 1)).unwrap();
}

const EXISTING: &str = "CREATE TABLE events (guid TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, account INTEGER NOT NULL, body BLOB, \
    stage TEXT NOT NULL DEFAULT 'new', made INTEGER NOT NULL DEFAULT 0)";

fn existing(more: &str) -> String {
    format!(
        r#","table":"events","columns":{{"id":"guid","topic":"kind","payload":"body","state":"stage"}},"states":{{"pending":"new"}},"lease_table":"events_leases"{more}"#
    )
}

#[test]
fn an_existing_table_with_leases_beside_it_fans_out() {
    let bench = Bench::new(EXISTING);
    bench.run("INSERT INTO events (guid, kind, account, body) VALUES ('e1', 't', 7, 'x'), ('e2', 't', 8, 'x'), ('e3', 't', 7, 'x')");
    let more = existing(r#","fan_out":{"tenant":"account"}"#);
    let mut outbox = bench.open(&more);
    outbox.create_schema().unwrap();
    let schema = outbox.schema().unwrap();
    assert!(schema.contains("CREATE INDEX ... ON \"events\" (\"stage\", \"account\", order)"), "{schema}");
    let events = outbox.claim_events(&request("w", 10), Some("7")).unwrap();
    assert_eq!((ids(&events.claimed.batch), events.tenants.text(0)), (vec!["e1".to_owned(), "e3".to_owned()], Some("7")));
    assert!(expand(&mut outbox, "w", &events, &["a"]).is_empty());
    let events = outbox.claim_events(&request("w", 10), None).unwrap();
    assert_eq!((ids(&events.claimed.batch), events.tenants.text(0)), (vec!["e2".to_owned()], Some("8")));
    outbox.settle("w", &[outhaul_sdk::testing::settlement(Verdict::Dead(super::support::coded("invalid_payload", "")), &["e2"])]).unwrap();
    assert_eq!(super::support::log(&mut outbox, "8"), ["1 e2/1 quarantined invalid_payload"]);
    assert_eq!(outbox.reemit("7", "e1").unwrap(), Reemitted::Generation(2));
    assert_eq!(outbox.reemit("8", "e2").unwrap(), Reemitted::Generation(2));
    assert_eq!(outbox.reemit("7", "e2").unwrap(), Reemitted::Unknown);
    let mut again = ids(&outbox.claim_events(&request("w", 10), None).unwrap().claimed.batch);
    again.sort_unstable();
    assert_eq!(again, ["e1", "e2"]);
    assert_eq!(bench.value("SELECT group_concat(account_id || delivery_id) FROM events_deliveries"), "7dl_e1_1_a,7dl_e3_1_a");
    assert_eq!(deliveries(&mut outbox, "w", 10).batch.len(), 2);
}

#[test]
fn an_existing_table_without_tenants_has_the_empty_one() {
    let bench = Bench::new(EXISTING);
    bench.run("INSERT INTO events (guid, kind, account, body) VALUES ('e1', 't', 7, 'x')");
    let mut outbox = bench.open(&existing(r#","fan_out":{}"#));
    outbox.create_schema().unwrap();
    let none = outbox.claim_events(&request("w", 10), Some("7")).unwrap();
    assert!(none.claimed.batch.is_empty() && !none.claimed.unfinished);
    let events = outbox.claim_events(&request("w", 10), Some("")).unwrap();
    assert_eq!((ids(&events.claimed.batch), events.tenants.text(0)), (vec!["e1".to_owned()], Some("")));
}

#[test]
fn a_column_that_cannot_tell_tenants_is_refused() {
    for (column, expected) in [
        ("missing", "`fan_out.tenant`: the table \"events\" has no column \"missing\""),
        ("body", "`fan_out.tenant`: the column \"body\" is declared `BLOB`; it must be declared as an INTEGER or TEXT type"),
        ("maybe", "`fan_out.tenant`: the column \"maybe\" may be NULL"),
    ] {
        let bench = Bench::new(&format!("{EXISTING}; ALTER TABLE events ADD COLUMN maybe TEXT"));
        let more = existing(&format!(r#","fan_out":{{"tenant":"{column}"}}"#));
        let mut outbox = open(&bench.config(&more)).unwrap();
        let failure = outbox.schema().unwrap_err();
        assert!(failure.detail.starts_with(expected), "{}", failure.detail);
    }
}

/// Names that differ in nothing but case are two tenants, whatever the column's collation says.
#[test]
fn tenants_are_compared_byte_by_byte() {
    let bench = Bench::new(
        "CREATE TABLE events (guid TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, account TEXT NOT NULL COLLATE NOCASE, body BLOB, stage TEXT NOT NULL DEFAULT 'new')",
    );
    bench.run("INSERT INTO events (guid, kind, account) VALUES ('e1', 't', 'a'), ('e2', 't', 'A'), ('e3', 't', 'b')");
    let mut outbox = bench.open(&existing(r#","fan_out":{"tenant":"account"}"#));
    outbox.create_schema().unwrap();
    assert_eq!(ids(&outbox.claim_events(&request("w", 10), Some("A")).unwrap().claimed.batch), ["e2"]);
    let mut all = ids(&outbox.claim_events(&request("w", 10), None).unwrap().claimed.batch);
    all.sort_unstable();
    assert_eq!(all, ["e1", "e3"]);
    assert_eq!(outbox.reemit("a", "e2").unwrap(), Reemitted::Unknown);
}

/// With such an id, an event could be taken for an earlier one, whose row is gone.
#[test]
fn row_numbers_that_are_given_out_again_are_refused() {
    for (kind, is_refused) in [("INTEGER PRIMARY KEY", true), ("INTEGER PRIMARY KEY AUTOINCREMENT", false)] {
        let bench = Bench::new(&format!(
            "CREATE TABLE events (guid {kind}, kind TEXT NOT NULL, account TEXT NOT NULL, body BLOB, stage TEXT NOT NULL DEFAULT 'new')"
        ));
        let mut outbox = bench.open(&existing(""));
        outbox.create_schema().unwrap();
        let refused = open(&bench.config(&existing(r#","fan_out":{"tenant":"account"}"#))).and_then(|mut outbox| outbox.create_schema());
        match refused {
            Err(failure) if is_refused => {
                assert_eq!(failure.code, FailureCode::InvalidConfiguration);
                assert!(failure.detail.starts_with("`fan_out`: `guid`, the id of the table \"events\""), "{}", failure.detail);
                assert!(failure.detail.contains("Rebuild the table with AUTOINCREMENT"), "{}", failure.detail);
            }
            other => assert!(other.is_ok() && !is_refused, "{kind}: {other:?}"),
        }
    }
}

#[test]
fn tenants_that_are_no_text_are_refused_by_the_own_table_new_or_altered() {
    let (new, _) = own();
    let (altered, _) = Bench::own("");
    altered.open(FAN_OUT).create_schema().unwrap();
    for bench in [new, altered] {
        let error = bench.sql.execute("INSERT INTO outbox (tenant, topic) VALUES (x'61', 't')", ()).unwrap_err().to_string();
        assert!(error.contains("CHECK constraint failed"), "{error}");
        assert_eq!(bench.run("INSERT INTO outbox (tenant, topic) VALUES (7, 't')"), 1);
        assert_eq!(bench.value("SELECT typeof(tenant) FROM outbox"), "text");
    }
}

/// In somebody else's table nothing refuses them.
#[test]
fn of_events_that_are_in_no_tenants_turn_somebody_is_told_once() {
    let bench = Bench::new(EXISTING);
    let more = existing(r#","fan_out":{"tenant":"account"}"#);
    let mut outbox = bench.open(&more);
    outbox.create_schema().unwrap();
    bench.run("INSERT INTO events (guid, kind, account) VALUES ('e1', 't', 7)");
    assert_eq!(outbox.claim_events(&request("w", 10), None).unwrap().claimed.batch.len(), 1);
    assert_eq!(outbox.notice(), None);
    bench.run("INSERT INTO events (guid, kind, account) VALUES ('e2', 't', x'61')");
    assert!(outbox.claim_events(&request("w", 10), None).unwrap().claimed.batch.is_empty());
    let told = "events whose tenant is neither text nor a whole number are never expanded, such as `e2`, whose tenant is a blob: set \
                \"account\" to the tenant's name as text";
    outbox.delivery_stats().unwrap();
    assert_eq!(outbox.notice().as_deref(), Some(told));
    outbox.delivery_stats().unwrap();
    assert_eq!(outbox.notice(), None);
    // And whoever begins with such a table is told at once.
    let mut outbox = bench.open(&more);
    outbox.claim_events(&request("w", 10), None).unwrap();
    assert_eq!(outbox.notice().as_deref(), Some(told));
}
