//! What is secret is looked for everywhere where somebody may see it, and is not found.

use anyhow::Result;
use outhaul_tests::fan_out::plan::{SIGNING_KEY, write_key};
use outhaul_tests::fan_out::stage::Subscription;
use outhaul_tests::fan_out::{Ground, Plan, Stage, TENANT};
use outhaul_tests::host::Host;
use outhaul_tests::on_each_storage;
use outhaul_tests::receiver::Answer;

on_each_storage!(nothing_secret_is_in_logs_json_metrics_or_the_admin_api,);

/// A URL's path, a URL's query, the credentials of three kinds, and the name of a host that a pattern of the grants lets
/// through: one that is granted by its name stands in the configuration, and denials show what to write there.
const SECRETS: [&str; 7] =
    ["s3cret-path", "s3cret-query", "s3cret-token", "s3cret-password", "s3cret-value", "s3cret-moved", "s3cret-granted"];

/// The name of a host that may not be reached: in the log, so that an operator can grant it, and nowhere else.
const REFUSED_HOST: &str = "s3cret-refused.invalid";

fn trace(command: &mut std::process::Command) {
    command.env("RUST_LOG", "trace");
}

/// What was said.
#[derive(Default)]
struct Seen {
    /// To whoever asks.
    told: Vec<String>,
    /// To whoever runs it.
    logged: Vec<String>,
}

impl Seen {
    /// Everything that a command says.
    fn ran(&mut self, stage: &Stage, arguments: &[&str]) -> Result<()> {
        let finished = stage.rig.run_as(arguments, trace)?;
        self.told.push(finished.output);
        self.logged.push(finished.errors);
        Ok(())
    }
}

/// The line of a text in which a word is.
fn line_with<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.lines().find(|line| line.contains(word))
}

/// Every situation that has something to tell: endpoints that answer, fail, refuse, are away; URLs and credentials that make no sense;
/// rows that were changed; keys that are missing.
fn nothing_secret_is_in_logs_json_metrics_or_the_admin_api(ground: Ground<'_>) -> Result<()> {
    let plan = Plan::usual()
        .reaching("*.endpoints.invalid:80")
        .with("log", "filter = \"trace\"")
        .with("admin", "stats_interval = \"50ms\"")
        .with("relays.0.fan_out.delivery", "max_attempts = 3");
    let mut stage = ground.stage(&plan)?;
    let address = stage.receiver.address();
    let url = |subscriber: &str| format!("http://{address}/s3cret-path/{subscriber}?key=s3cret-query");
    let authentications = [
        ("bearer", r#"{"type":"bearer","token":"s3cret-token"}"#),
        ("basic", r#"{"type":"basic","user":"u","password":"s3cret-password"}"#),
        ("header", r#"{"type":"header","name":"x-key","value":"s3cret-value"}"#),
        ("odd", r#"{"type":"odd","token":"s3cret-token"}"#),
        ("odder", "s3cret-token"),
    ];
    for (subscriber, authentication) in authentications {
        let topics = Some(if subscriber == "odder" { "broken" } else { "orders" });
        stage.subscribe_as(
            subscriber,
            Subscription { topics, url: Some(&url(subscriber)), authentication: Some(authentication), ..Default::default() },
        )?;
    }
    let elsewhere = [
        ("nobody", "http://127.0.0.1:9/s3cret-path?s3cret-query", "orders"),
        ("metadata", "http://169.254.169.254/s3cret-path?s3cret-query", "orders"),
        ("userinfo", "http://user:s3cret-password@127.0.0.1/s3cret-path", "userinfo"),
        ("nonsense", "s3cret-path", "nonsense"),
        ("unsigned", &url("unsigned"), "orders"),
        ("unknown", "http://s3cret-granted.endpoints.invalid/in", "orders"),
        ("refused", "http://s3cret-refused.invalid/in", "orders"),
    ];
    for (subscriber, url, topics) in elsewhere {
        let scope = (subscriber == "unsigned").then_some("unknown");
        stage.subscribe_as(subscriber, Subscription { topics: Some(topics), url: Some(url), scope, ..Default::default() })?;
    }
    for subscriber in ["failing", "refusing", "moving"] {
        let (topics, url) = (Some("orders"), url(subscriber));
        stage.subscribe_as(subscriber, Subscription { topics, url: Some(&url), scope: Some("acme"), ..Default::default() })?;
    }
    // An endpoint that echoes what it is sent, as some do.
    stage.receiver.set_script(move |request| {
        let status = match request.path.as_str() {
            path if path.contains("failing") => 503,
            path if path.contains("refusing") => 410,
            path if path.contains("moving") => 302,
            _ => 204,
        };
        let echo = format!("{} {:?}", request.path, request.headers);
        let answer = Answer::status(status).header("location", format!("http://{address}/s3cret-moved"));
        if status == 204 { answer } else { answer.body(echo) }
    });
    let key = write_key(stage.rig.path(), "sealing", 1)?;
    let newer = write_key(stage.rig.path(), "newer", 2)?;

    let mut host = Host::start_as(&stage.rig.config(), trace)?;
    let mut ids = Vec::new();
    for topic in ["orders", "broken", "userinfo", "nonsense", "orders"] {
        ids.push(stage.event(topic, Some("k"), b"x")?);
    }
    stage.database.wait_for_events("all events to be settled", |all| all.iter().all(|event| event.status != "pending"))?;
    stage.database.wait_for_deliveries("all deliveries to end", |all| all.iter().all(|one| one.state != "pending"))?;
    assert!(stage.receiver.requests().len() > 10);

    // Tampered with, re-emitted, rekeyed with one that does not open, with a key that is missing.
    stage.database.run("UPDATE outbox_deliveries SET principal_id = 'edited' WHERE subscriber_id = 'refusing'")?;
    let mut seen = Seen::default();
    let tenant = ["--tenant", TENANT];
    for json in [&["--json"][..], &[]] {
        for (command, more) in [
            ("reemit", &[ids[0].as_str()][..]),
            ("list", &[]),
            ("list", &["--state", "quarantined"]),
            ("status", &[]),
            ("status", &["--reader", "r", "--advance"]),
        ] {
            seen.ran(&stage, &[&["fanout", command, "orders"], &tenant[..], more, json].concat())?;
        }
        for delivery in stage.database.again()?.deliveries()? {
            seen.ran(&stage, &[&["fanout", "show", "orders"], &tenant[..], &[&delivery.id], json].concat())?;
        }
        seen.ran(&stage, &[&["stats"], json].concat())?;
        seen.ran(&stage, &[&["check"], json].concat())?;
        seen.ran(&stage, &[&["dead", "list", "--storage", "outbox"], json].concat())?;
        seen.ran(&stage, &[&["plugin", "list"], json].concat())?;
    }
    seen.told.push(host.metrics()?);
    for path in [
        format!("/api/fan-out/orders/deliveries?tenant={TENANT}"),
        format!("/api/fan-out/orders/status?tenant={TENANT}&after=0&limit=1000"),
        format!("/api/fan-out/orders/checkpoints/r?tenant={TENANT}"),
        "/readyz".to_owned(),
        "/healthz".to_owned(),
    ] {
        let (status, text) = host.get(&path)?;
        assert_eq!(status, 200, "{path}: {text}");
        seen.told.push(text);
    }
    stage.reconfigure(|config| {
        config
            .set("secrets.newer.file", "newer.key")
            .set_all("relays.0.fan_out", r#"keys = [ { version = "k2", secret = "newer" }, { version = "k1", secret = "sealing" } ]"#)
    })?;
    host.reload("applied")?;
    seen.ran(&stage, &["fanout", "rekey", "orders", "--json"])?;
    std::fs::remove_file(stage.rig.path().join("newer.key"))?;
    stage.event("orders", Some("k"), b"x")?;
    seen.ran(&stage, &["drain", "--json"])?;
    seen.logged.push(host.log());
    seen.told.push(stage.database.everything()?);

    let (told, logged) = (seen.told.join("\n"), seen.logged.join("\n"));
    let seen = format!("{told}\n{logged}");
    // Of the libraries below nothing finer is let through.
    assert!(seen.contains("\"level\":\"DEBUG\""), "the log said all that it may");
    for code in ["retryable_http", "permanent_http", "invalid_configuration", "permanent_scope", "network"] {
        assert!(seen.contains(code), "{code} was seen");
    }
    use base64::Engine;
    let signing = base64::prelude::BASE64_STANDARD.encode(SIGNING_KEY);
    for secret in SECRETS.into_iter().chain([key.as_str(), newer.as_str(), signing.as_str()]) {
        assert_eq!(line_with(&seen, secret), None, "{secret} is seen");
    }
    assert_eq!(line_with(&told, REFUSED_HOST), None, "{REFUSED_HOST} is told");
    assert!(line_with(&logged, REFUSED_HOST).is_some_and(|line| line.contains("is not granted")), "an operator sees what to grant");
    Ok(())
}
