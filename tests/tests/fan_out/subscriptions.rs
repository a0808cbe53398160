//! The subscription is asked for again before every attempt: a change after the expansion stops what was on its way.

use anyhow::Result;
use outhaul_tests::fan_out::stage::Subscription;
use outhaul_tests::fan_out::{Ground, Plan, Stage};
use outhaul_tests::on_each_storage;
use outhaul_tests::receiver::Answer;

on_each_storage!(
    whatever_changes_between_expansion_and_delivery_suppresses_it,
    a_subscription_revoked_between_two_attempts_is_not_tried_again,
    a_subscription_that_changes_between_two_attempts_is_not_tried_again,
    an_unreachable_router_is_asked_again_and_nothing_is_sent_meanwhile,
    the_subscription_is_asked_for_before_the_signing_material,
    what_is_suppressed_lets_its_followers_go_on,
    a_change_that_is_taken_back_before_the_attempt_is_none,
);

/// What can happen to a subscription: its name, and what is done.
const CHANGES: [(&str, &str); 8] = [
    ("inactive", "UPDATE subscriptions SET active = FALSE WHERE subscriber = 'inactive'"),
    ("deleted", "DELETE FROM subscriptions WHERE subscriber = 'deleted'"),
    ("moved", "UPDATE subscriptions SET url = url || '/moved' WHERE subscriber = 'moved'"),
    ("topics", "UPDATE subscriptions SET event_types = 'invoices.*' WHERE subscriber = 'topics'"),
    ("scope", "UPDATE subscriptions SET signing_scope = 'acme' WHERE subscriber = 'scope'"),
    ("credentials", r#"UPDATE subscriptions SET authentication = '{"type":"bearer","token":"new"}' WHERE subscriber = 'credentials'"#),
    ("principal", "UPDATE subscriptions SET principal = 'somebody else' WHERE subscriber = 'principal'"),
    ("revision", "UPDATE subscriptions SET revision = '2' WHERE subscriber = 'revision'"),
];

fn whatever_changes_between_expansion_and_delivery_suppresses_it(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    for (subscriber, _) in CHANGES {
        stage.subscribe(subscriber)?;
    }
    stage.subscribe("same")?;
    stage.database.hold_deliveries()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    assert_eq!(stage.database.deliveries()?.len(), CHANGES.len() + 1);
    for (_, change) in CHANGES {
        stage.subscriptions.run(change)?;
    }
    // This one is another one in the database, and the same to whoever gets it.
    stage.resubscribe("same", "event_types = 'orders'")?;
    stage.database.release_deliveries()?;
    stage.rig.drain()?;
    stage.database.wait_for_ended(CHANGES.len() + 1)?;
    for (subscriber, _) in CHANGES {
        let delivery = stage.database.delivery(subscriber)?;
        assert_eq!(delivery.outcome(), ("suppressed", Some("subscription_changed")), "{delivery:?}");
        assert!(!delivery.is_sealed, "its envelope is erased");
    }
    assert_eq!(stage.database.delivery("same")?.outcome(), ("complete", None));
    assert_eq!(stage.receiver.requests().len(), 1, "one request: to the one that is the same");
    Ok(())
}

/// A delivery that has failed once and waits for its second attempt, which is an hour away.
fn failed_once(ground: Ground<'_>) -> Result<Stage> {
    let hour = r#"backoff = { base = "1h", factor = 1.0, max = "1h", jitter = 0.0 }"#;
    let mut stage = ground.stage(&Plan::usual().with("relays.0.fan_out.delivery", hour))?;
    stage.subscribe("crm")?;
    stage.answer("crm", Answer::status(503));
    stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    assert_eq!(stage.database.delivery("crm")?.outcome(), ("pending", Some("retryable_http")));
    assert_eq!(stage.requests("crm").len(), 1);
    stage.answer_well("crm");
    Ok(stage)
}

fn second_attempt_is_suppressed(mut stage: Stage) -> Result<()> {
    stage.database.make_due()?;
    stage.rig.drain()?;
    let delivery = stage.database.delivery("crm")?;
    assert_eq!(delivery.outcome(), ("suppressed", Some("subscription_changed")));
    assert_eq!(stage.receiver.requests().len(), 1, "no further request");
    // Not even if it comes back as it was.
    stage.resubscribe("crm", "active = TRUE, revision = '1'")?;
    stage.database.make_due()?;
    stage.rig.drain()?;
    assert_eq!((stage.database.delivery("crm")?.state, stage.receiver.requests().len()), ("suppressed".to_owned(), 1));
    Ok(())
}

fn a_subscription_revoked_between_two_attempts_is_not_tried_again(ground: Ground<'_>) -> Result<()> {
    let mut stage = failed_once(ground)?;
    stage.resubscribe("crm", "active = FALSE")?;
    second_attempt_is_suppressed(stage)
}

fn a_subscription_that_changes_between_two_attempts_is_not_tried_again(ground: Ground<'_>) -> Result<()> {
    let mut stage = failed_once(ground)?;
    stage.resubscribe("crm", "revision = '2'")?;
    second_attempt_is_suppressed(stage)
}

fn an_unreachable_router_is_asked_again_and_nothing_is_sent_meanwhile(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual().with("relays.0", "breaker = { failures = 0 }"))?;
    stage.subscribe("crm")?;
    stage.database.hold_deliveries()?;
    let host = stage.host()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.database.wait_for_deliveries("a delivery", |all| all.len() == 1)?;
    stage.lose_subscriptions()?;
    stage.database.release_deliveries()?;
    stage.database.wait_for_deliveries("two attempts", |all| {
        all[0].outcome() == ("pending", Some("subscription_unavailable")) && all[0].attempts >= 2
    })?;
    assert_eq!(stage.requests("crm").len(), 0);
    stage.find_subscriptions()?;
    let ended = stage.database.wait_for_ended(1)?;
    assert_eq!((ended[0].state.as_str(), stage.requests("crm").len()), ("complete", 1));
    host.shut_down()
}

fn the_subscription_is_asked_for_before_the_signing_material(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe_as("crm", Subscription { scope: Some("nobody-knows"), ..Default::default() })?;
    stage.database.hold_deliveries()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    stage.resubscribe("crm", "active = FALSE")?;
    stage.database.release_deliveries()?;
    stage.rig.drain()?;
    assert_eq!(stage.database.delivery("crm")?.outcome(), ("suppressed", Some("subscription_changed")));
    Ok(())
}

fn what_is_suppressed_lets_its_followers_go_on(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("crm")?;
    stage.database.hold_deliveries()?;
    stage.event("orders", Some("k"), b"1")?;
    stage.rig.drain()?;
    stage.resubscribe("crm", "revision = '2'")?;
    stage.event("orders", Some("k"), b"2")?;
    stage.rig.drain()?;
    stage.database.release_deliveries()?;
    stage.rig.drain()?;
    let ended = stage.database.wait_for_ended(2)?;
    assert_eq!([ended[0].outcome(), ended[1].outcome()], [("suppressed", Some("subscription_changed")), ("complete", None)]);
    assert_eq!(stage.requests("crm").iter().map(|request| &request.body[..]).collect::<Vec<_>>(), [b"2"]);
    Ok(())
}

fn a_change_that_is_taken_back_before_the_attempt_is_none(ground: Ground<'_>) -> Result<()> {
    let mut stage = failed_once(ground)?;
    stage.resubscribe("crm", "active = FALSE")?;
    stage.resubscribe("crm", "active = TRUE")?;
    stage.database.make_due()?;
    stage.rig.drain()?;
    assert_eq!((stage.database.delivery("crm")?.outcome(), stage.requests("crm").len()), (("complete", None), 2));
    Ok(())
}
