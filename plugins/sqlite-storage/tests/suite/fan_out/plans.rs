//! The statements of a claim use the indexes: neither settled rows nor those of other tenants are read.

use super::support::{claim_events, deliveries, event, expanded, own, settle};
use crate::support::{Bench, ids, last_run};
use outhaul_sdk::DeliveryVerdict;

/// What the planner says of the last statement that contains `part`.
fn plan(bench: &Bench, part: &str) -> String {
    let (sql, _) = last_run(part);
    let mut statement = bench.sql.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    for parameter in 1..=statement.parameter_count() {
        statement.raw_bind_parameter(parameter, "[]").unwrap();
    }
    let mut rows = statement.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        lines.push(row.get::<_, String>(3).unwrap());
    }
    lines.join("; ")
}

#[test]
fn claims_of_deliveries_use_the_partial_indexes() {
    let (bench, mut outbox) = own();
    expanded(&bench, &mut outbox, "acme", Some("k"), &["a"]);
    expanded(&bench, &mut outbox, "acme", None, &["a"]);
    let claimed = ids(&deliveries(&mut outbox, "w", 10).batch);
    let scan = plan(&bench, "AS d, CAST(ifnull(t.\"attempts\", 0) AS INTEGER) AS a");
    assert_eq!(scan, "SEARCH t USING INDEX outbox_deliveries_pending (account_id=? AND seq>?)");
    let tenants = plan(&bench, "SELECT CAST(a AS TEXT) FROM h");
    assert!(tenants.contains("SEARCH t USING COVERING INDEX outbox_deliveries_pending (account_id>?)"), "{tenants}");
    assert!(!tenants.contains("SCAN t;"), "{tenants}");
    let lease = plan(&bench, "UPDATE \"outbox_deliveries\" SET \"attempts\"");
    assert!(lease.contains("INDEX sqlite_autoindex_outbox_deliveries_1 (delivery_id=?)"), "{lease}");
    settle(&mut outbox, "w", DeliveryVerdict::Complete, &claimed);
    let verdict = plan(&bench, "SET \"leased_by\" = NULL, \"state\" = 'complete'");
    assert!(verdict.contains("INDEX sqlite_autoindex_outbox_deliveries_1 (delivery_id=?)"), "{verdict}");
}

#[test]
fn the_walk_goes_from_key_to_key_of_one_tenant() {
    let (bench, mut outbox) = own();
    for n in 0..9000 {
        bench.sql.execute("INSERT INTO outbox (tenant, topic, key, available_at) VALUES ('a', 't', ?1, 9e15)", [n % 5]).unwrap();
    }
    while claim_events(&mut outbox, "w").claimed.unfinished {}
    let walk = plan(&bench, "WITH RECURSIVE h(k, n)");
    assert!(walk.contains("SEARCH t USING COVERING INDEX outbox_tenant_key_pending (tenant=? AND key>?)"), "{walk}");
    assert!(walk.contains("SEARCH t USING INDEX outbox_tenant_key_pending (tenant=? AND key=?)"), "{walk}");
    let pass = plan(&bench, "\"key\" IS NULL");
    assert!(pass.contains("outbox_tenant_key_pending (tenant=? AND key=? AND id>?)") && !pass.contains("TEMP B-TREE"), "{pass}");
}

#[test]
fn claims_of_events_and_lists_use_indexes_too() {
    let (bench, mut outbox) = own();
    event(&bench, "acme", Some("k"));
    claim_events(&mut outbox, "w");
    let scan = plan(&bench, "AS d, CAST(ifnull(t.\"attempts\", 0) AS INTEGER) AS a");
    assert_eq!(scan, "SEARCH t USING INDEX outbox_tenant_pending (tenant=? AND id>?)");
    let asked = plan(&bench, "SELECT t.\"id\", CAST(t.\"tenant\" AS TEXT)");
    assert!(
        asked.contains("SEARCH t USING INTEGER PRIMARY KEY (rowid=?)") && asked.contains("SEARCH e USING PRIMARY KEY (notification_id=?)"),
        "{asked}"
    );
    outbox.delivery_stats().unwrap();
    let counts = plan(&bench, "sum(state = 'suppressed')");
    assert!(counts.contains("outbox_deliveries_ended"), "{counts}");
    outbox.read_status("acme", 0, 10).unwrap();
    assert_eq!(plan(&bench, "FROM \"outbox_status\""), "SEARCH outbox_status USING PRIMARY KEY (account_id=? AND position>?)");
}
