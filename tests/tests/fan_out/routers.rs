//! Routers of all kinds: a table as its own DDL makes it, a list in the configuration, a component, and one whose answers make no sense.

use anyhow::{Context, Result};
use outhaul_tests::fan_out::{Ground, Plan, Stage, TENANT};
use outhaul_tests::on_each_storage;

on_each_storage!(
    the_table_is_created_by_command,
    a_list_in_the_configuration_with_what_is_secret_in_secrets,
    a_router_of_webassembly_whose_answers_make_no_sense_is_quarantined,
    a_router_of_webassembly_that_fails_is_asked_again,
);

fn the_table_is_created_by_command(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.subscriptions.run("DROP TABLE subscriptions")?;
    let printed = stage.rig.run(&["fanout", "schema", "subscriptions"])?.success()?;
    assert!(printed.contains("CREATE TABLE"), "{printed}");
    for _ in 0..2 {
        stage.rig.run(&["fanout", "schema", "subscriptions", "--apply"])?.success()?;
    }
    let url = stage.url("crm");
    let insert = format!("INSERT INTO subscriptions (tenant, subscriber, url) VALUES ('{TENANT}', 'crm', '{url}')");
    stage.subscriptions.run(&insert)?;
    assert!(stage.subscriptions.run(&insert).is_err(), "a subscriber cannot be there twice");
    stage.event("orders", Some("k"), b"x")?;
    stage.rig.drain()?;
    assert_eq!((stage.database.delivery("crm")?.outcome(), stage.requests("crm").len()), (("complete", None), 1));
    Ok(())
}

fn a_list_in_the_configuration_with_what_is_secret_in_secrets(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    let folder = stage.rig.path().to_owned();
    std::fs::write(folder.join("url"), format!("{}?key=hidden\n", stage.url("hidden")))?;
    std::fs::write(folder.join("auth"), r#"{"type":"basic","user":"u","password":"p"}"#)?;
    let list = format!(
        r#"subscribers = [
            {{ tenant = "{TENANT}", subscriber = "plain", url = "{plain}", topics = ["orders.*"] }},
            {{ tenant = "{TENANT}", subscriber = "hidden", url_secret = "url", authentication_secret = "auth" }},
            {{ tenant = "{TENANT}", subscriber = "off", url = "{plain}", active = false }},
            {{ tenant = "other", subscriber = "plain", url = "{plain}" }},
        ]"#,
        plain = stage.url("plain"),
    );
    stage.reconfigure(|config| {
        config
            .set("secrets.url.file", "url")
            .set("secrets.auth.file", "auth")
            .set_all("routers.list", &list)
            .set("relays.0.fan_out.router", "list")
    })?;
    stage.event("orders.placed", Some("k"), b"1")?;
    stage.event("invoices.paid", Some("k"), b"2")?;
    stage.rig.drain()?;
    let paths: Vec<String> = stage.receiver.requests().into_iter().map(|request| request.path).collect();
    let count = |path: &str| paths.iter().filter(|seen| seen.as_str() == path).count();
    assert_eq!((count("/acme/plain"), count("/acme/hidden?key=hidden"), paths.len()), (1, 2, 3), "{paths:?}");
    let hidden = stage.receiver.requests().into_iter().find(|request| request.path.contains("hidden")).context("a request")?;
    assert_eq!(hidden.header("authorization"), Some("Basic dTpw"));
    Ok(())
}

fn wrong(ground: Ground<'_>, plan: &Plan) -> Result<Stage> {
    let mut stage = ground.stage(&plan.clone().with("relays.0", "max_attempts = 3\nbreaker = { failures = 0 }"))?;
    stage.rig.copy_components()?;
    let address = stage.receiver.address();
    stage.reconfigure(|config| {
        config
            .set("plugins.dir", "plugins")
            .set_all("routers.wrong", &format!("plugin = \"evil-router\"\nconfig = {{ url = \"http://{address}\" }}"))
            .set("relays.0.fan_out.router", "wrong")
    })?;
    Ok(stage)
}

/// An event of this topic, and one after it that is well.
fn with_a_good_one(stage: &mut Stage, topic: &str) -> Result<(String, String)> {
    let ids = (stage.event(topic, Some("k"), b"x")?, stage.event("good", Some("k"), b"x")?);
    stage
        .database
        .wait_for_events("both to be settled", |all| all.iter().all(|event| event.status != "pending"))
        .with_context(|| topic.to_owned())?;
    assert_eq!(stage.database.event(&ids.1)?.status, "done", "{topic}");
    Ok(ids)
}

fn a_router_of_webassembly_whose_answers_make_no_sense_is_quarantined(ground: Ground<'_>) -> Result<()> {
    let mut stage = wrong(ground, &Plan::usual())?;
    let host = stage.host()?;
    let topics = [
        ("other-tenant", "bad"),
        ("twice", "good"),
        ("nameless", ""),
        ("relative", "bad"),
        ("userinfo", "bad"),
        ("no-object", "bad"),
        ("no-json", "bad"),
    ];
    for (topic, subscriber) in topics {
        let (id, _) = with_a_good_one(&mut stage, topic)?;
        let event = stage.database.event(&id)?;
        assert_eq!((event.status.as_str(), event.attempts), ("dead", 1), "{topic}: {event:?}");
        let reason = event.error.context("no reason")?;
        assert!(reason.starts_with("invalid_configuration") && reason.contains(subscriber), "{topic}: {reason}");
        assert!(!reason.contains("hidden"), "{topic}: {reason}");
        let emission = stage.database.emissions()?.into_iter().find(|emission| emission.event == id).context("no emission")?;
        assert_eq!((emission.state.as_str(), emission.code.as_deref()), ("quarantined", Some("invalid_configuration")), "{topic}");
    }
    let ended = stage.database.wait_for_ended(topics.len())?;
    assert!(ended.iter().all(|one| one.subscriber == "good" && one.state == "complete"), "nothing of the others: {ended:?}");
    assert_eq!(stage.requests("good").len(), topics.len());
    host.shut_down()
}

fn a_router_of_webassembly_that_fails_is_asked_again(ground: Ground<'_>) -> Result<()> {
    let mut stage = wrong(ground, &Plan::usual().with("relays.0", "publish_timeout = \"1s\""))?;
    let host = stage.host()?;
    for topic in ["failing", "few", "many", "trapping", "hanging"] {
        let (id, _) = with_a_good_one(&mut stage, topic)?;
        let event = stage.database.event(&id)?;
        assert_eq!((event.status.as_str(), event.attempts), ("dead", 3), "its attempts were used up: {topic}: {event:?}");
        let reason = event.error.context("no reason")?;
        assert!(reason.starts_with("subscription_unavailable"), "{topic}: {reason}");
    }
    stage.database.wait_for_ended(5)?;
    assert_eq!(stage.requests("good").len(), 5);
    assert_eq!(host.get("/healthz")?.0, 200);
    host.shut_down()
}
