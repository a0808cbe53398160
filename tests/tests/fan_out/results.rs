//! What an endpoint's answer, or its silence, makes of a delivery.

use anyhow::{Context, Result};
use outhaul_tests::fan_out::stage::Subscription;
use outhaul_tests::fan_out::{Ground, Plan};
use outhaul_tests::on_each_storage;
use outhaul_tests::receiver::{Answer, Gate, Receiver};
use std::net::TcpListener;

on_each_storage!(
    a_2xx_completes,
    what_may_go_better_later_is_retryable_http,
    everything_else_is_permanent_http_and_quarantined,
    a_redirect_is_not_followed,
    a_broken_connection_or_a_timeout_is_network,
    an_address_that_may_not_be_reached_is_invalid_configuration,
    a_name_that_does_not_resolve_for_now_is_network,
    an_unknown_signing_scope_is_quarantined_as_permanent_scope,
    signing_material_out_of_reach_is_signing_unavailable_and_tried_again,
    a_signing_key_lost_while_the_host_runs_holds_up_what_it_signs_until_it_is_back,
    a_signing_scope_taken_away_while_the_host_runs_quarantines_until_it_is_back,
    retry_after_is_kept,
);

/// Runs one event to a subscriber for each status, until all have been answered and it is written down.
fn statuses(ground: Ground<'_>, statuses: &[u16], state: &str, code: Option<&str>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    for status in statuses {
        stage.subscribe(&status.to_string())?;
        stage.answer(&status.to_string(), Answer::status(*status).body("says the endpoint"));
    }
    let host = stage.host()?;
    stage.event("orders", Some("k"), b"x")?;
    let settled = stage.database.wait_for_deliveries("all to be answered", |all| {
        all.len() == statuses.len() && all.iter().all(|one| one.outcome() == (state, code))
    })?;
    for delivery in settled {
        if let Some(error) = &delivery.error {
            assert!(error.contains(&delivery.subscriber), "{} is not in {error:?}", delivery.subscriber);
            assert!(!error.contains("/acme/"), "no path in {error:?}");
        }
        if state != "pending" {
            assert_eq!((delivery.attempts, stage.requests(&delivery.subscriber).len()), (1, 1));
        }
    }
    host.shut_down()
}

fn a_2xx_completes(ground: Ground<'_>) -> Result<()> {
    statuses(ground, &[200, 201, 202, 204, 226], "complete", None)
}

fn what_may_go_better_later_is_retryable_http(ground: Ground<'_>) -> Result<()> {
    statuses(ground, &[408, 425, 429, 500, 501, 502, 503, 504, 599], "pending", Some("retryable_http"))
}

fn everything_else_is_permanent_http_and_quarantined(ground: Ground<'_>) -> Result<()> {
    let permanent = [300, 301, 304, 307, 400, 401, 402, 403, 404, 405, 409, 410, 413, 418, 422, 451];
    statuses(ground, &permanent, "quarantined", Some("permanent_http"))
}

fn a_redirect_is_not_followed(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe("crm")?;
    stage.answer("crm", Answer::status(302).header("location", stage.url("elsewhere")));
    stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    assert_eq!(stage.database.delivery("crm")?.outcome(), ("quarantined", Some("permanent_http")));
    assert_eq!(stage.receiver.requests().len(), 1);
    Ok(())
}

fn a_broken_connection_or_a_timeout_is_network(ground: Ground<'_>) -> Result<()> {
    // One that takes connections and drops them, and one where nobody listens.
    let rude = TcpListener::bind("127.0.0.1:0")?;
    let rude_address = rude.local_addr()?;
    std::thread::spawn(move || rude.incoming().for_each(drop));
    let nobody = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let timeout = "publish_timeout = \"1s\"";
    let plan = Plan::usual()
        .reaching(rude_address.to_string())
        .reaching(nobody.to_string())
        .with("relays.0.fan_out.delivery", timeout)
        .with("publishers.webhooks.config", "timeout = \"500ms\"");
    let mut stage = ground.stage(&plan)?;
    let urls = [("rude", format!("http://{rude_address}/in")), ("nobody", format!("http://{nobody}/in"))];
    for (subscriber, url) in &urls {
        stage.subscribe_as(subscriber, Subscription { url: Some(url), ..Default::default() })?;
    }
    stage.subscribe("silent")?;
    let gate = Gate::closed();
    stage.answer("silent", Answer::status(204).behind(&gate));
    let host = stage.host()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.database.wait_for_deliveries("all to fail", |all| {
        all.len() == 3 && all.iter().all(|one| one.outcome() == ("pending", Some("network")) && one.attempts >= 2)
    })?;
    host.shut_down()
}

fn an_address_that_may_not_be_reached_is_invalid_configuration(ground: Ground<'_>) -> Result<()> {
    // Not granted; and a name that is granted, but leads to an address that needs a grant of its own.
    let private = Receiver::accepting()?;
    let name = format!("localhost:{}", private.address().port());
    let mut stage = ground.stage(&Plan::usual().reaching(&name))?;
    for (subscriber, url) in [("metadata", "http://169.254.169.254/latest".to_owned()), ("private", format!("http://{name}/in"))] {
        stage.subscribe_as(subscriber, Subscription { url: Some(&url), ..Default::default() })?;
    }
    stage.subscribe("granted")?;
    stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    for subscriber in ["metadata", "private"] {
        let delivery = stage.database.delivery(subscriber)?;
        assert_eq!(delivery.outcome(), ("quarantined", Some("invalid_configuration")), "{delivery:?}");
        let reason = delivery.error.context("no reason")?;
        // Neither its own address, nor that of another one, which may be another tenant's.
        assert!(["/latest", "169.254", "localhost"].iter().all(|part| !reason.contains(part)), "{reason}");
    }
    assert_eq!(stage.database.delivery("granted")?.outcome(), ("complete", None));
    assert_eq!((stage.receiver.requests().len(), private.requests().len()), (1, 0));
    Ok(())
}

fn a_name_that_does_not_resolve_for_now_is_network(ground: Ground<'_>) -> Result<()> {
    // Reserved for names that never exist (RFC 6761): whether there is a resolver at all or not, no address comes of it.
    let mut stage = ground.stage(&Plan::usual().reaching("endpoint.invalid:80"))?;
    stage.subscribe_as("crm", Subscription { url: Some("http://endpoint.invalid/in"), ..Default::default() })?;
    let host = stage.host()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.database.wait_for_deliveries("a failure", |all| all.len() == 1 && all[0].outcome() == ("pending", Some("network")))?;
    host.shut_down()
}

fn an_unknown_signing_scope_is_quarantined_as_permanent_scope(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe_as("unknown", Subscription { scope: Some("nobody-knows"), ..Default::default() })?;
    stage.subscribe_as("known", Subscription { scope: Some("acme"), ..Default::default() })?;
    stage.subscribe("unsigned")?;
    stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    assert_eq!(stage.database.delivery("unknown")?.outcome(), ("quarantined", Some("permanent_scope")));
    assert_eq!(["unknown", "known", "unsigned"].map(|subscriber| stage.requests(subscriber).len()), [0, 1, 1]);
    assert!(stage.requests("known")[0].header("webhook-signature").is_some());
    assert!(stage.requests("unsigned")[0].header("webhook-signature").is_none());
    Ok(())
}

fn signing_material_out_of_reach_is_signing_unavailable_and_tried_again(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe_as("signed", Subscription { scope: Some("acme"), ..Default::default() })?;
    stage.subscribe("unsigned")?;
    // A relay does not begin without the secrets of its publisher; what is in them is looked at when it is needed.
    let key = stage.rig.path().join("signing.key");
    let good = std::fs::read(&key)?;
    std::fs::write(&key, "not a key yet\n")?;
    let host = stage.host()?;
    stage.event("orders", Some("k"), b"x")?;
    stage.database.wait_for_deliveries("the unsigned one", |all| {
        all.iter().any(|one| one.subscriber == "unsigned" && one.state == "complete")
            && all.iter().any(|one| one.outcome() == ("pending", Some("signing_unavailable")))
    })?;
    assert_eq!(stage.requests("signed").len(), 0);
    std::fs::write(&key, good)?;
    stage.database.wait_for_ended(2)?;
    let requests = stage.requests("signed");
    assert!(requests.len() == 1 && requests[0].header("webhook-signature").is_some(), "{requests:?}");
    host.shut_down()
}

fn a_signing_key_lost_while_the_host_runs_holds_up_what_it_signs_until_it_is_back(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe_as("signed", Subscription { scope: Some("acme"), ..Default::default() })?;
    stage.subscribe("unsigned")?;
    let host = stage.host()?;
    stage.event("orders", Some("k"), b"1")?;
    stage.wait_for_accepted("signed", 1)?;
    let (key, away) = (stage.rig.path().join("signing.key"), stage.rig.path().join("away.key"));
    std::fs::rename(&key, &away)?;
    stage.event("orders", Some("k"), b"2")?;
    stage.wait_for_accepted("unsigned", 2)?;
    stage.database.wait_for_deliveries("the signed one to wait", |all| {
        all.iter().any(|one| one.subscriber == "signed" && one.outcome() == ("pending", Some("signing_unavailable")))
    })?;
    assert_eq!(stage.requests("signed").len(), 1, "nothing goes out unsigned");
    std::fs::rename(&away, &key)?;
    stage.database.wait_for_ended(4)?;
    let requests = stage.requests("signed");
    assert!(requests.len() == 2 && requests.iter().all(|request| request.header("webhook-signature").is_some()), "{requests:?}");
    host.shut_down()
}

fn a_signing_scope_taken_away_while_the_host_runs_quarantines_until_it_is_back(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscribe_as("signed", Subscription { scope: Some("acme"), ..Default::default() })?;
    let mut host = stage.host()?;
    stage.event("orders", Some("k"), b"1")?;
    stage.wait_for_accepted("signed", 1)?;
    let with_scope = stage.config.clone();
    stage.reconfigure(|config| config.set_all("publishers.webhooks", "config = {}"))?;
    host.reload("applied")?;
    stage.event("orders", Some("k"), b"2")?;
    stage.database.wait_for_deliveries("the second one to end", |all| {
        all.iter().any(|one| one.outcome() == ("quarantined", Some("permanent_scope")))
    })?;
    assert_eq!(stage.requests("signed").len(), 1, "nothing goes out unsigned");
    stage.reconfigure(|_| with_scope)?;
    host.reload("applied")?;
    assert_eq!(stage.fanout_json("requeue", &[])?["requeued"], 1);
    stage.wait_for_accepted("signed", 2)?;
    assert!(stage.requests("signed")[1].header("webhook-signature").is_some());
    host.shut_down()
}

fn retry_after_is_kept(ground: Ground<'_>) -> Result<()> {
    let patient = r#"backoff = { base = "20ms", factor = 2.0, max = "5m", jitter = 0.25 }"#;
    let mut stage = ground.stage(&Plan::usual().with("relays.0.fan_out.delivery", patient))?;
    stage.subscribe("busy")?;
    stage.answer("busy", Answer::status(429).header("retry-after", "100"));
    stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    let soon = stage.database.in_ms(50_000);
    let waiting = format!(
        "SELECT count(*) FROM outbox_deliveries WHERE state = 'pending' AND error_code = 'retryable_http' AND available_at > {soon}"
    );
    assert_eq!(stage.database.number(&waiting)?, 1);
    assert_eq!(stage.requests("busy").len(), 1);
    Ok(())
}
