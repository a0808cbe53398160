//! Fan-out through the real program, on SQLite: an event in, its subscribers' deliveries out.

use anyhow::{Context, Result};
use outhaul_tests::receiver::{Answer, Receiver, Request};
use outhaul_tests::rig::{Config, Rig};
use rusqlite::Connection;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

/// In every URL: must be found nowhere but at the receiver.
const TOKEN: &str = "planted-token-71d3";

/// Longer than any back-off of the configuration.
const DUE_AGAIN: Duration = Duration::from_millis(400);

/// The routing columns, each of which an envelope is bound to.
const COLUMNS: [&str; 20] = [
    "account_id",
    "delivery_id",
    "subscriber_id",
    "principal_id",
    "notification_id",
    "notification_type",
    "emission_generation",
    "idempotency_key",
    "destination_sha256",
    "subscription_fingerprint",
    "signing_scope_id",
    "cause_kind",
    "cause_id",
    "cause_generation",
    "consumer_namespace",
    "auth_mode",
    "body_sha256",
    "envelope_version",
    "key_version",
    "order_key",
];

fn config(receiver: &Receiver, subscribers: &[&str], keys: &str) -> Result<Config> {
    let address = receiver.address();
    let list: Vec<String> = subscribers
        .iter()
        .map(|name| {
            format!("{{ tenant = \"\", subscriber = \"{name}\", url = \"http://{address}/{name}?{TOKEN}\", topics = [\"orders.*\"] }}")
        })
        .collect();
    let text = format!(
        r#"
        [log]
        format = "json"
        [admin]
        listen = "127.0.0.1:0"
        [databases.main]
        url = "sqlite:outbox.db"
        [secrets.first]
        file = "first.key"
        [secrets.second]
        file = "second.key"
        [storages.outbox]
        plugin = "sqlite-storage"
        database = "main"
        config = {{ table = "outbox", fan_out = {{}} }}
        [publishers.webhooks]
        plugin = "http-publisher"
        allow_hosts = ["{address}"]
        [routers.list]
        subscribers = [ {list} ]
        [[relays]]
        name = "orders"
        storage = "outbox"
        [relays.fan_out]
        router = "list"
        publisher = "webhooks"
        keys = [ {keys} ]
        delivery = {{ backoff = {{ base = "50ms", factor = 2.0, max = "200ms", jitter = 0.25 }} }}
        "#,
        list = list.join(", ")
    );
    Config::parse(&text)
}

const FIRST: &str = r#"{ version = "v1", secret = "first" }"#;

fn rig(config: &Config) -> Result<Rig> {
    let rig = Rig::new(config)?;
    fs::write(rig.path().join("first.key"), "1".repeat(64))?;
    fs::write(rig.path().join("second.key"), "2".repeat(64))?;
    Ok(rig)
}

fn database(rig: &Rig) -> Result<Connection> {
    let connection = Connection::open(rig.database())?;
    connection.busy_timeout(Duration::from_secs(30))?;
    Ok(connection)
}

fn states(rig: &Rig) -> Result<Vec<(String, Option<String>)>> {
    let connection = database(rig)?;
    let mut statement = connection.prepare("SELECT state, error_code FROM outbox_deliveries ORDER BY seq")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn bodies(requests: &[Request], subscriber: &str) -> Vec<String> {
    let path = format!("/{subscriber}?{TOKEN}");
    let of = requests.iter().filter(|request| request.path == path);
    of.map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect()
}

#[test]
fn an_event_reaches_three_subscribers_in_order_and_its_urls_are_in_no_file_and_no_output() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let rig = rig(&config(&receiver, &["crm", "erp", "audit"], FIRST)?)?;
    for number in 0..5 {
        rig.enqueue(&["--topic", "orders.placed", "--key", "k", "--payload", &number.to_string()])?;
    }
    rig.enqueue(&["--topic", "invoices", "--payload", "nobody's"])?;
    let drained = rig.run(&["drain", "--json"])?;
    let (output, log) = (drained.output.clone(), drained.errors.clone());
    let summary = drained.json()?;
    assert_eq!(summary["relays"]["orders"]["sent"], 6, "no subscriber completes too: {summary}");
    assert_eq!(summary["relays"]["orders.deliveries"]["sent"], 15, "{summary}");

    let requests = receiver.requests();
    assert_eq!(requests.len(), 15);
    for subscriber in ["crm", "erp", "audit"] {
        assert_eq!(bodies(&requests, subscriber), ["0", "1", "2", "3", "4"]);
    }
    let ids: BTreeSet<&str> = requests.iter().map(|request| request.id.as_str()).collect();
    assert_eq!(ids.len(), 15, "each delivery has an idempotency key of its own");
    assert!(ids.iter().all(|id| id.starts_with("ik_") && id.len() == 35), "{ids:?}");
    assert_eq!(states(&rig)?, vec![("complete".to_owned(), None); 15]);

    let stored =
        [rig.database(), rig.path().join("outbox.db-wal")].iter().filter_map(|file| fs::read(file).ok()).flatten().collect::<Vec<u8>>();
    let is_in = |text: &[u8]| text.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes());
    assert!(!is_in(&stored) && !is_in(output.as_bytes()) && !is_in(log.as_bytes()));
    assert_eq!(rig.run(&["drain", "--json"])?.json()?["sent"], 0, "a second drain has nothing to do");
    Ok(())
}

#[test]
fn every_column_that_is_changed_in_the_database_is_an_integrity_failure_and_no_request_is_made() -> Result<()> {
    let receiver = Receiver::start(|_| Answer::status(503))?;
    let rig = rig(&config(&receiver, &["crm"], FIRST)?)?;
    for _ in COLUMNS {
        rig.enqueue(&["--topic", "orders.placed", "--key", "k", "--payload", "x"])?;
    }
    rig.run(&["drain", "--json"])?.json()?;
    let first = receiver.requests().len();
    assert!(first > 0);
    let connection = database(&rig)?;
    for (index, column) in COLUMNS.into_iter().enumerate() {
        let changed = match column {
            "emission_generation" | "cause_generation" | "envelope_version" => format!("{column} + 1"),
            "signing_scope_id" => "'other'".to_owned(),
            _ => format!("{column} || 'x'"),
        };
        let rows = connection
            .execute(&format!("UPDATE outbox_deliveries SET {column} = {changed} WHERE seq = ?1"), [i64::try_from(index + 1)?])?;
        assert_eq!(rows, 1, "{column}");
    }
    drop(connection);
    receiver.set_script(|_| Answer::status(204));
    thread::sleep(DUE_AGAIN);
    let summary = rig.run(&["drain", "--json"])?.json()?;
    assert_eq!(summary["relays"]["orders.deliveries"]["failed"], 20, "{summary}");
    assert_eq!(states(&rig)?, vec![("quarantined".to_owned(), Some("integrity_failure".to_owned())); 20]);
    assert_eq!(receiver.requests().len(), first, "nothing was sent");
    Ok(())
}

#[test]
fn a_subscription_revoked_between_two_attempts_is_suppressed_and_gets_no_further_request() -> Result<()> {
    let receiver = Receiver::start(|_| Answer::status(503))?;
    let rig = rig(&config(&receiver, &["crm", "erp"], FIRST)?)?;
    rig.enqueue(&["--topic", "orders.placed", "--payload", "x"])?;
    rig.run(&["drain", "--json"])?.json()?;
    rig.configure(&config(&receiver, &["erp"], FIRST)?)?;
    receiver.set_script(|_| Answer::status(204));
    let before = bodies(&receiver.requests(), "crm").len();
    thread::sleep(DUE_AGAIN);
    rig.run(&["drain", "--json"])?.json()?;
    let mut states = states(&rig)?;
    states.sort();
    let expected = [("complete", Some("retryable_http")), ("suppressed", Some("subscription_changed"))];
    let known: Vec<(&str, Option<&str>)> = states.iter().map(|(state, code)| (state.as_str(), code.as_deref())).collect();
    assert_eq!((known[0].0, known[1]), (expected[0].0, expected[1]));
    assert_eq!(bodies(&receiver.requests(), "crm").len(), before);
    Ok(())
}

#[test]
fn keys_rotate_while_the_host_runs_and_a_row_of_an_unknown_one_is_quarantined() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let rig = rig(&config(&receiver, &["crm"], FIRST)?)?;
    let mut host = rig.host()?;
    rig.enqueue(&["--topic", "orders.placed", "--payload", "one"])?;
    receiver.wait_for_accepted(1)?;
    let both = format!(r#"{{ version = "v2", secret = "second" }}, {FIRST}"#);
    rig.configure(&config(&receiver, &["crm"], &both)?)?;
    host.reload("applied")?;
    rig.enqueue(&["--topic", "orders.placed", "--payload", "two"])?;
    receiver.wait_for_accepted(2)?;
    receiver.set_script(|_| Answer::status(503));
    rig.enqueue(&["--topic", "orders.placed", "--payload", "three"])?;
    receiver.wait_for_requests(3)?;
    // A key that is none is refused as a whole, and the host goes on with what it has.
    fs::write(rig.path().join("second.key"), "not a key")?;
    rig.configure(&config(&receiver, &["crm"], r#"{ version = "v3", secret = "second" }"#)?)?;
    host.reload("refused")?;
    fs::write(rig.path().join("second.key"), "2".repeat(64))?;
    host.shut_down()?;

    let connection = database(&rig)?;
    let versions: Vec<String> = connection
        .prepare("SELECT key_version FROM outbox_deliveries ORDER BY seq")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    assert_eq!(versions, ["v1", "v2", "v2"]);
    thread::sleep(DUE_AGAIN);
    rig.run(&["drain", "--json"])?.json()?;
    let states = states(&rig)?;
    assert_eq!(states[2], ("quarantined".to_owned(), Some("integrity_failure".to_owned())), "v2 is unknown by now");
    assert_eq!(bodies(&receiver.requests(), "crm").iter().filter(|body| *body == "two").count(), 1);
    Ok(())
}

#[test]
fn one_dead_endpoint_holds_up_only_itself_and_both_pipelines_show() -> Result<()> {
    let receiver = Receiver::start(|request| Answer::status(if request.path.starts_with("/crm") { 503 } else { 204 }))?;
    let rig = rig(&config(&receiver, &["crm", "erp"], FIRST)?)?;
    let host = rig.host()?;
    for number in 0..20 {
        rig.enqueue(&["--topic", "orders.placed", "--key", "k", "--payload", &number.to_string()])?;
    }
    let expected: Vec<String> = (0..20).map(|number: u32| number.to_string()).collect();
    receiver.wait_for("all of erp", |requests| bodies(requests, "erp").len() == 20)?;
    assert_eq!(bodies(&receiver.requests(), "erp"), expected);
    assert!(bodies(&receiver.requests(), "crm").iter().all(|body| body == "0"), "its head holds it back");
    let ready: Value = serde_json::from_str(&host.get("/readyz")?.1)?;
    let names: Vec<&str> = ready["relays"].as_array().context("relays")?.iter().filter_map(|relay| relay["relay"].as_str()).collect();
    assert_eq!(names, ["orders", "orders.deliveries"]);
    host.wait_for_metric("outhaul_delivered_total{relay=\"orders.deliveries\"}", 20.0)?;
    assert!(host.metric("outhaul_delivered_total{relay=\"orders\"}")? >= 20.0);
    receiver.set_script(|_| Answer::status(204));
    receiver.wait_for("all of crm", |requests| bodies(requests, "crm").last().is_some_and(|body| body == "19"))?;
    let mut seen = bodies(&receiver.requests(), "crm");
    seen.dedup();
    assert_eq!(seen, expected);
    host.shut_down()?;
    Ok(())
}
