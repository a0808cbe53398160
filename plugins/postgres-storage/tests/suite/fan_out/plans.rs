//! The plans of what is run often, with 100,000 rows: by the indexes, and no sort of what is not in the batch.

use super::support::{claim_events, expand, fill, own, settle};
use crate::suite::support::{generic_plan, ids, last_run, request};
use outhaul_sdk::DeliveryVerdict;

#[test]
fn hot_statements_go_by_the_indexes() {
    let Some((bench, mut outbox)) = own() else { return };
    for tenant in ["a", "b"] {
        fill(&bench, tenant, 50_000, 1000);
    }
    bench.run(
        "INSERT INTO outbox (tenant, topic, key, status) SELECT 'a', 't', 'k' || n % 1000, CASE WHEN n % 10 = 0 THEN 'pending' ELSE 'done' END \
         FROM generate_series(1, 100000) AS n; \
         INSERT INTO outbox_emissions (notification_id, account_id, generation, state) SELECT id::text, 'a', 1, 'expanded' FROM outbox; \
         UPDATE outbox_deliveries SET state = 'complete' WHERE seq % 3 = 0; ANALYZE",
    );
    let events = claim_events(&mut outbox, "w");
    assert_eq!(events.claimed.batch.len(), 100);
    assert!(expand(&mut outbox, "w", &events, &["x", "y"]).is_empty());
    let claimed = ids(&outbox.claim_deliveries(&request("w", 100), None, 3_600_000).unwrap().batch);
    assert!(settle(&mut outbox, "w", DeliveryVerdict::Complete, &claimed).is_empty());
    outbox.claim_deliveries(&request("w", 100), Some("a"), 0).unwrap();
    // Where all of a tenant waits, a claim goes from key to key.
    bench.run("UPDATE outbox_deliveries SET available_at = now() + interval '1 h' WHERE account_id = 'b'");
    assert!(outbox.claim_deliveries(&request("w", 100), Some("b"), 0).unwrap().batch.is_empty());
    // A claim reads so many rows of an index as it has asked for: it sorts nothing.
    for (part, index, sorts) in [
        (r#"ORDER BY t."account_id", t."seq" LIMIT"#, "outbox_deliveries_pending", false),
        (r#"ORDER BY t."tenant", t."id" LIMIT"#, "outbox_tenant_pending", false),
        (r#"SELECT t."account_id", 1 FROM"#, "outbox_deliveries_pending", true),
        (r#"SELECT t."tenant", 1 FROM"#, "outbox_tenant_pending", true),
        (r#"SELECT t."order_key", 1 FROM"#, "outbox_deliveries_key_pending", false),
        (r#"row_number() OVER (ORDER BY t."order_key""#, "outbox_deliveries_key_pending", false),
        ("FROM ROWS FROM (pg_catalog.unnest", "outbox_deliveries_delivery_id_key", true),
        (r#"INSERT INTO "public"."outbox_deliveries""#, "outbox_pkey", true),
        (r#"INSERT INTO "public"."outbox_deliveries""#, "outbox_emissions_pkey", true),
        (r#"SET "leased_by" = NULL, "state""#, "outbox_deliveries_delivery_id_key", false),
    ] {
        let run = last_run(part);
        let plan = generic_plan(&bench, &run);
        assert!(plan.contains(index), "{part}\n{}\n{plan}", run.0);
        assert!(!plan.contains("Seq Scan") && (sorts || !plan.contains("Sort")), "{part}\n{plan}");
    }
}
