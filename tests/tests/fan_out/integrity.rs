//! A row that was changed in the database is not sent, and nobody is asked about it.

use anyhow::{Context, Result};
use outhaul_tests::fan_out::stage::Subscription;
use outhaul_tests::fan_out::{Ground, Plan, Stage};
use outhaul_tests::on_each_storage;
use serde_json::Value;
use std::collections::BTreeSet;

on_each_storage!(
    every_routing_column_is_authenticated,
    a_changed_envelope_is_not_opened,
    an_envelope_of_another_delivery_is_not_opened,
    the_destination_and_the_subscription_stand_in_plaintext_only_as_hashes,
    what_is_quarantined_lets_its_followers_go_on,
);

/// The members of seed 001's binding, and the key that orders: column, and what it is changed to.
const COLUMNS: [(&str, &str); 20] = [
    ("account_id", "'other'"),
    ("delivery_id", "'dl_00000000000000000000000000000000'"),
    ("subscriber_id", "'somebody-else'"),
    ("principal_id", "'somebody else'"),
    ("notification_id", "'4711'"),
    ("notification_type", "'orders.cancelled'"),
    ("emission_generation", "2"),
    ("idempotency_key", "'ik_00000000000000000000000000000000'"),
    ("destination_sha256", "'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'"),
    ("subscription_fingerprint", "'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'"),
    ("signing_scope_id", "NULL"),
    ("cause_kind", "'reemit'"),
    ("cause_id", "'4711'"),
    ("cause_generation", "7"),
    ("consumer_namespace", "'another'"),
    ("auth_mode", "'none'"),
    ("body_sha256", "'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'"),
    ("envelope_version", "2"),
    ("key_version", "'k2'"),
    ("order_key", "'[\"acme\",\"somebody-else\",\"k\"]'"),
];

const TOKEN: &str = r#"{"type":"bearer","token":"t0ken"}"#;

/// A subscriber for each of these names, each with a delivery of one event that waits.
fn waiting(ground: Ground<'_>, subscribers: &[&str]) -> Result<Stage> {
    let mut stage = ground.stage(&Plan::usual().with("relays.0.fan_out", "namespace = \"shop\""))?;
    for subscriber in subscribers {
        stage.subscribe_as(subscriber, Subscription { scope: Some("acme"), authentication: Some(TOKEN), ..Default::default() })?;
    }
    stage.database.hold_deliveries()?;
    stage.event("orders.placed", Some("k"), b"x")?;
    stage.rig.drain()?;
    assert_eq!(stage.database.deliveries()?.len(), subscribers.len());
    Ok(stage)
}

fn every_routing_column_is_authenticated(ground: Ground<'_>) -> Result<()> {
    let names: Vec<String> = COLUMNS.iter().map(|(column, _)| format!("has-{}", column.replace('_', "-"))).collect();
    let mut subscribers: Vec<&str> = names.iter().map(String::as_str).collect();
    subscribers.push("untouched");
    let mut stage = waiting(ground, &subscribers)?;
    let found: BTreeSet<String> = columns(&mut stage)?.into_iter().filter(|column| !KEPT.contains(&column.as_str())).collect();
    assert_eq!(found, COLUMNS.iter().map(|(column, _)| (*column).to_owned()).collect(), "no column is forgotten here");
    let ids: Vec<String> = stage.database.deliveries()?.into_iter().map(|delivery| delivery.id).collect();
    for ((column, value), name) in COLUMNS.iter().zip(&names) {
        let before = stage.database.number(&format!("SELECT count(*) FROM outbox_deliveries WHERE {column} = {value}"))?;
        assert_eq!(before, 0, "{column} is changed indeed");
        stage.database.run(&format!("UPDATE outbox_deliveries SET {column} = {value} WHERE subscriber_id = '{name}'"))?;
    }
    // Whoever asks for a subscription now would be told that nobody knows, and have another code.
    stage.database.drop_trigger("held_for_the_test")?;
    stage.lose_subscriptions()?;
    let past = stage.database.in_ms(-1000);
    stage.database.run(&format!("UPDATE outbox_deliveries SET available_at = {past} WHERE subscriber_id <> 'untouched'"))?;
    let host = stage.host()?;
    stage.database.wait_for_deliveries("all that were changed to be quarantined", |all| {
        all.iter().filter(|one| one.subscriber != "untouched").all(|one| one.state != "pending")
    })?;
    for delivery in stage.database.deliveries()?.into_iter().filter(|one| one.subscriber != "untouched") {
        assert_eq!((delivery.outcome(), delivery.attempts), (("quarantined", Some("integrity_failure")), 1), "{delivery:?}");
    }
    assert_eq!(stage.receiver.requests().len(), 0, "no request");
    // The one that nobody has changed is sent, so that it was the change that has stopped the others.
    stage.find_subscriptions()?;
    stage.database.make_due()?;
    stage.database.wait_for_deliveries("the untouched one", |all| all.iter().any(|one| one.state == "complete"))?;
    let requests = stage.receiver.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!((requests[0].path.as_str(), requests[0].header("authorization")), ("/acme/untouched", Some("Bearer t0ken")));
    // Changed back, a quarantined row is as good as before: nothing was erased.
    assert_eq!(stage.database.number("SELECT count(*) FROM outbox_deliveries WHERE envelope IS NULL")?, 1);
    assert_eq!(ids.len(), COLUMNS.len() + 1);
    host.shut_down()
}

/// Columns that are the storage's own.
const KEPT: [&str; 11] = [
    "seq",
    "envelope",
    "state",
    "attempts",
    "available_at",
    "leased_by",
    "created_at",
    "done_at",
    "error_code",
    "last_error",
    "lease_until",
];

fn columns(stage: &mut Stage) -> Result<Vec<String>> {
    let sql = if stage.database.is_sqlite() {
        "SELECT name FROM pragma_table_info('outbox_deliveries')"
    } else {
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'outbox_deliveries'"
    };
    Ok(stage.database.rows(sql)?.into_iter().flatten().flatten().collect())
}

fn refused(mut stage: Stage, subscriber: &str) -> Result<()> {
    stage.lose_subscriptions()?;
    stage.database.release_deliveries()?;
    stage.rig.drain()?;
    let delivery = stage.database.delivery(subscriber)?;
    assert_eq!(delivery.outcome(), ("quarantined", Some("integrity_failure")), "{delivery:?}");
    assert_eq!(stage.receiver.requests().len(), 0);
    Ok(())
}

fn a_changed_envelope_is_not_opened(ground: Ground<'_>) -> Result<()> {
    for place in ["first", "nonce", "text", "last", "short", "empty"] {
        let mut stage = waiting(ground, &["crm"])?;
        let hex = if stage.database.is_sqlite() { "hex(envelope)" } else { "encode(envelope, 'hex')" };
        let rows = stage.database.rows(&format!("SELECT {hex} FROM outbox_deliveries"))?;
        let mut envelope = bytes(rows[0][0].as_deref().context("an envelope")?)?;
        let last = envelope.len() - 1;
        match place {
            "first" => envelope[0] ^= 1,
            "nonce" => envelope[5] ^= 1,
            "text" => envelope[30] ^= 1,
            "last" => envelope[last] ^= 0x80,
            "short" => envelope.truncate(last),
            _ => envelope.clear(),
        }
        let literal = stage.database.bytes(&envelope);
        stage.database.run(&format!("UPDATE outbox_deliveries SET envelope = {literal}"))?;
        refused(stage, "crm").with_context(|| place.to_owned())?;
    }
    Ok(())
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    (0..hex.len() / 2).map(|at| Ok(u8::from_str_radix(&hex[2 * at..2 * at + 2], 16)?)).collect()
}

fn an_envelope_of_another_delivery_is_not_opened(ground: Ground<'_>) -> Result<()> {
    let mut stage = waiting(ground, &["a", "b"])?;
    stage.database.run(
        "UPDATE outbox_deliveries SET envelope = (SELECT d.envelope FROM outbox_deliveries AS d WHERE d.subscriber_id = 'b') \
         WHERE subscriber_id = 'a'",
    )?;
    stage.database.drop_trigger("held_for_the_test")?;
    stage.database.make_due()?;
    stage.rig.drain()?;
    assert_eq!(stage.database.delivery("a")?.outcome(), ("quarantined", Some("integrity_failure")));
    assert_eq!(stage.database.delivery("b")?.outcome(), ("complete", None));
    assert_eq!(stage.receiver.requests().iter().map(|request| request.path.as_str()).collect::<Vec<_>>(), ["/acme/b"]);
    Ok(())
}

fn the_destination_and_the_subscription_stand_in_plaintext_only_as_hashes(ground: Ground<'_>) -> Result<()> {
    use sha2::{Digest, Sha256};
    let mut stage = waiting(ground, &["crm"])?;
    let everything = stage.database.everything()?;
    let url = stage.url("crm");
    for hidden in [url.as_str(), "/acme/crm", "t0ken", "bearer\"", &stage.receiver.address().to_string()] {
        assert!(!everything.contains(hidden), "{hidden} is in {everything}");
        let hex = outhaul_tests::fan_out::database::hex(hidden.as_bytes());
        assert!(!everything.contains(&hex), "{hidden} is in an envelope");
    }
    let hash = outhaul_tests::fan_out::database::hex(&Sha256::digest(url.as_bytes()));
    let rows = stage.database.rows("SELECT destination_sha256, subscription_fingerprint, auth_mode, body_sha256 FROM outbox_deliveries")?;
    let row: Vec<&str> = rows[0].iter().map(|value| value.as_deref().unwrap_or_default()).collect();
    assert_eq!((row[0], row[1].len(), row[2]), (hash.as_str(), 64, "bearer"));
    assert_eq!(row[3], outhaul_tests::fan_out::database::hex(&Sha256::digest(b"x")));
    Ok(())
}

fn what_is_quarantined_lets_its_followers_go_on(ground: Ground<'_>) -> Result<()> {
    let mut stage = waiting(ground, &["crm"])?;
    stage.event("orders.placed", Some("k"), b"second")?;
    stage.rig.drain()?;
    stage.database.run(
        "UPDATE outbox_deliveries SET cause_generation = 3 WHERE notification_id = (SELECT min(notification_id) FROM outbox_deliveries)",
    )?;
    stage.database.release_deliveries()?;
    stage.rig.drain()?;
    stage.database.wait_for_ended(2)?;
    let bodies: Vec<_> = stage.requests("crm").into_iter().map(|request| request.body).collect();
    assert_eq!(bodies, ["second"]);
    let list = stage.fanout_json("list", &["--state", "quarantined"])?;
    let listed: Vec<&Value> = list["deliveries"].as_array().context("deliveries")?.iter().collect();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["code"], &listed[0]["attempts"]), (&"integrity_failure".into(), &1.into()));
    Ok(())
}
