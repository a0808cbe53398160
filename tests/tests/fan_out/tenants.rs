//! Tenants: kept apart, limited to one, and taking turns.

use anyhow::{Context, Result};
use outhaul_tests::fan_out::stage::Subscription;
use outhaul_tests::fan_out::{Ground, Plan, Stage, fairness};
use outhaul_tests::on_each_storage;
use outhaul_tests::rig::Config;
use std::collections::BTreeSet;

on_each_storage!(
    claims_can_be_limited_to_one_tenant,
    no_command_or_api_call_shows_another_tenants_rows,
    two_relays_of_one_table_work_for_a_tenant_each,
    a_relay_of_one_tenant_purges_no_others_deliveries_unasked,
    a_tenant_with_many_due_deliveries_does_not_hold_up_one_with_ten,
);

/// Two tenants with a subscriber of the same name each, and an event each.
fn two_tenants(ground: Ground<'_>, plan: &Plan) -> Result<(Stage, [String; 2])> {
    let mut stage = ground.stage(plan)?;
    for tenant in ["acme", "other"] {
        stage.subscribe_as("crm", Subscription { tenant: Some(tenant), ..Default::default() })?;
    }
    let ids = [stage.event_of("acme", "orders", Some("k"), b"ours")?, stage.event_of("other", "orders", Some("k"), b"theirs")?];
    Ok((stage, ids))
}

fn claims_can_be_limited_to_one_tenant(ground: Ground<'_>) -> Result<()> {
    let (mut stage, [ours, theirs]) = two_tenants(ground, &Plan::usual().with("relays.0.fan_out", "tenant = \"acme\""))?;
    stage.rig.drain()?;
    assert_eq!((stage.requests_of("acme", "crm").len(), stage.requests_of("other", "crm").len()), (1, 0));
    assert_eq!((stage.database.event(&ours)?.status.as_str(), stage.database.event(&theirs)?.status.as_str()), ("done", "pending"));
    assert_eq!(stage.database.event(&theirs)?.attempts, 0, "it was not even claimed");
    // Expanded for both, and only one may be delivered.
    stage.reconfigure(|config| config.set("relays.0.fan_out.tenant", "other"))?;
    stage.database.hold_deliveries()?;
    stage.rig.drain()?;
    stage.reconfigure(|config| config.set("relays.0.fan_out.tenant", "acme"))?;
    stage.database.release_deliveries()?;
    stage.rig.drain()?;
    assert_eq!(stage.requests_of("other", "crm").len(), 0);
    stage.reconfigure(|config| config.set("relays.0.fan_out.tenant", "other"))?;
    stage.rig.drain()?;
    assert_eq!(stage.requests_of("other", "crm").len(), 1);
    Ok(())
}

/// Each with a storage of its own over the one table.
fn two_relays_of_one_table_work_for_a_tenant_each(ground: Ground<'_>) -> Result<()> {
    let (mut stage, [ours, theirs]) = two_tenants(ground, &Plan::usual().with("relays.0.fan_out", "tenant = \"acme\""))?;
    let plugin = if stage.database.is_sqlite() { "sqlite-storage" } else { "postgres-storage" };
    let second = format!(
        r#"
        [[relays]]
        name = "others"
        storage = "second"
        [relays.fan_out]
        tenant = "other"
        router = "subscriptions"
        publisher = "webhooks"
        keys = [ {{ version = "k1", secret = "sealing" }} ]
        [storages.second]
        plugin = "{plugin}"
        database = "main"
        config = {{ table = "outbox", fan_out = {{}} }}
        "#
    );
    let both = Config::parse(&format!("{}{second}", stage.config.text()))?;
    stage.reconfigure(|_| both)?;
    stage.rig.run(&["check"])?.success()?;
    let host = stage.host()?;
    stage.database.wait_for_ended(2)?;
    for (tenant, relay) in [("acme", "orders"), ("other", "others")] {
        assert_eq!(stage.requests_of(tenant, "crm").len(), 1, "{tenant}");
        let (status, log) = host.get(&format!("/api/fan-out/{relay}/status?tenant={tenant}"))?;
        let log: serde_json::Value = serde_json::from_str(&log)?;
        let positions = log["changes"].as_array().context("changes")?.iter().map(|change| change["position"].as_u64());
        assert_eq!((status, positions.collect::<Vec<_>>()), (200, vec![Some(1), Some(2)]), "{tenant}");
        host.wait_for_metric(&format!("outhaul_delivered_total{{relay=\"{relay}.deliveries\"}}"), 1.0)?;
    }
    for id in [ours, theirs] {
        assert_eq!(stage.database.event(&id)?.attempts, 1, "neither takes the other's");
    }
    host.shut_down()
}

fn a_relay_of_one_tenant_purges_no_others_deliveries_unasked(ground: Ground<'_>) -> Result<()> {
    let (mut stage, _) = two_tenants(ground, &Plan::usual())?;
    stage.rig.drain()?;
    stage.database.wait_for_ended(2)?;
    stage.reconfigure(|config| config.set("relays.0.fan_out.tenant", "acme"))?;
    let past = stage.database.in_ms(-60_000);
    stage.database.run(&format!("UPDATE outbox_deliveries SET done_at = {past}"))?;
    let refused = stage.fanout("purge", &["--older-than", "1s"])?;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.errors.contains("--all-tenants"), "{}", refused.errors);
    assert_eq!(stage.database.deliveries()?.len(), 2);
    let purged = stage.fanout("purge", &["--older-than", "1s", "--all-tenants", "--json"])?.json()?;
    assert_eq!(purged["purged"], 2);
    assert_eq!(stage.database.deliveries()?.len(), 0);
    Ok(())
}

fn no_command_or_api_call_shows_another_tenants_rows(ground: Ground<'_>) -> Result<()> {
    let (mut stage, [ours, theirs]) = two_tenants(ground, &Plan::usual())?;
    let host = stage.ready_host()?;
    let deliveries = stage.database.wait_for_ended(2)?;
    let id_of = |tenant: &str| {
        let mine = deliveries.iter().find(|one| one.tenant == tenant);
        mine.map(|one| one.id.clone()).with_context(|| format!("no delivery of {tenant}"))
    };
    let hidden = id_of("other")?;
    let shown = stage.fanout_json("list", &[])?;
    let listed: BTreeSet<&str> = shown["deliveries"].as_array().context("a list")?.iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(listed, BTreeSet::from([id_of("acme")?.as_str()]));
    let show = stage.fanout("show", &["--tenant", "acme", &hidden])?;
    assert_ne!(show.code, Some(0), "{show:?}");
    let status = stage.fanout_json("status", &["--after", "0", "--limit", "1000"])?.to_string();
    let answers = [
        shown.to_string(),
        show.output,
        status,
        host.get("/api/fan-out/orders/deliveries?tenant=acme")?.1,
        host.get(&format!("/api/fan-out/orders/deliveries?tenant=acme&event={theirs}"))?.1,
        host.get("/api/fan-out/orders/status?tenant=acme&after=0&limit=1000")?.1,
    ];
    for answer in &answers {
        assert!(!answer.contains(&hidden), "{hidden} is in {answer}");
        assert!(!answer.contains(&format!("\"event\":\"{theirs}\"")), "{answer}");
    }
    assert!(answers[2].contains(&format!("\"event\":\"{ours}\"")));
    // Without a tenant: refused, not everything.
    let without = host.get("/api/fan-out/orders/deliveries")?;
    assert!(without.0 == 400 && !without.1.contains(&hidden), "{without:?}");
    let reemitted = stage.fanout("reemit", &["--tenant", "acme", &theirs])?;
    assert_ne!(reemitted.code, Some(0), "{reemitted:?}");
    assert_eq!(stage.database.event(&theirs)?.status, "done", "not re-emitted by a stranger");
    host.shut_down()
}

/// The long form is `cargo xtask fan-out-fairness`.
fn a_tenant_with_many_due_deliveries_does_not_hold_up_one_with_ten(ground: Ground<'_>) -> Result<()> {
    let (batch, in_flight) = (100, 400);
    let overtaken = fairness::overtaken(ground, 10_000, batch, in_flight)?;
    // At most: all that the host holds when the ten become due, the claim that is under way then, and the rows that are claimed with them.
    // Without turns it would be all of the 10,000, which were inserted before.
    let most = in_flight + 2 * batch;
    println!("{overtaken} went first, and {most} may");
    assert!(overtaken <= most, "{overtaken} of 10,000 deliveries went first, and {most} may");
    Ok(())
}
