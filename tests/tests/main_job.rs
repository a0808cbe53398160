//! The main job, by the command line: enqueue, drain, look, mend, purge.

use anyhow::{Context, Result};
use outhaul_tests::outbox::DELIVERED;
use outhaul_tests::receiver::{Answer, Receiver};
use outhaul_tests::rig::{Config, Rig};
use serde_json::{Value, json};
use std::fs;

/// Every summary has these three.
fn counts(summary: &Value) -> Value {
    json!({ "sent": summary["sent"], "failed": summary["failed"], "retried": summary["retried"] })
}

#[test]
fn an_enqueued_message_is_delivered_once_with_everything_that_it_had() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    let payload = r#"{"order":17, "name":"Zoë"}"#;
    let id = rig.enqueue(&["--topic", "orders.placed", "--key", "o17", "--header", "tenant=acme", "--payload", payload])?;

    assert_eq!(counts(&rig.drain()?), json!({"sent": 1, "failed": 0, "retried": 0}));
    let requests = receiver.requests();
    assert_eq!(requests.len(), 1);
    let request = &requests[0];
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/orders.placed"));
    assert_eq!(request.body, payload.as_bytes());
    assert_eq!(request.id, id);
    assert_eq!(request.header("tenant"), Some("acme"));

    assert_eq!(counts(&rig.drain()?), json!({"sent": 0, "failed": 0, "retried": 0}), "the second drain has nothing to do");
    assert_eq!(receiver.requests().len(), 1);
    assert_eq!(rig.outbox()?.row(&id)?.status, DELIVERED);
    Ok(())
}

#[test]
fn payloads_come_from_files_lines_and_nowhere() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    let bytes = [0u8, 255, 254, 10, 0];
    let file = rig.path().join("payload.bin");
    fs::write(&file, bytes)?;
    rig.enqueue(&["--topic", "file", "--payload-file", file.to_str().context("path")?])?;
    rig.enqueue(&["--topic", "tombstone", "--key", "k", "--tombstone"])?;
    rig.enqueue(&["--topic", "empty", "--payload", ""])?;
    let lines = rig.path().join("lines.jsonl");
    fs::write(&lines, "{\"topic\":\"line\",\"key\":\"a\",\"payload\":\"one\"}\n{\"topic\":\"line\",\"key\":\"a\",\"payload\":\"two\"}\n")?;
    rig.enqueue(&["--jsonl", lines.to_str().context("path")?])?;

    assert_eq!(rig.drain()?["sent"], 5);
    let bodies = |topic: &str| -> Vec<Vec<u8>> {
        receiver.requests().iter().filter(|request| request.path == format!("/{topic}")).map(|request| request.body.to_vec()).collect()
    };
    assert_eq!(bodies("file"), [bytes]);
    assert_eq!(bodies("tombstone"), [b""]);
    assert_eq!(bodies("empty"), [b""]);
    assert_eq!(bodies("line"), [b"one", b"two"], "in the order of the lines");
    Ok(())
}

#[test]
fn a_dead_letter_is_listed_shown_requeued_and_discarded() -> Result<()> {
    let receiver = Receiver::start(|request| Answer::status(if request.path == "/bad" { 400 } else { 204 }).body("no such customer"))?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    let first = rig.enqueue(&["--topic", "bad", "--key", "k", "--payload", "first"])?;
    let second = rig.enqueue(&["--topic", "bad", "--key", "k", "--payload", "second"])?;
    rig.enqueue(&["--topic", "good", "--key", "k", "--payload", "third"])?;
    assert_eq!(counts(&rig.drain()?), json!({"sent": 1, "failed": 2, "retried": 0}), "a dead head lets its followers go on");

    let list = rig.run(&["dead", "list", "--json"])?.json()?;
    let rows = list["rows"].as_array().context("a list")?;
    let ids: Vec<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
    assert_eq!(ids, [&first, &second]);
    let reason = rows[0]["last_error"].as_str().context("last_error")?;
    assert!(reason.contains("400"), "{reason}");
    let shown = rig.run(&["dead", "show", &first])?.success()?;
    assert!(shown.contains("first") && shown.contains("400"), "{shown}");

    receiver.set_script(|_| Answer::status(204));
    rig.run(&["dead", "requeue", "--id", &first])?.success()?;
    assert_eq!(rig.drain()?["sent"], 1);
    let last = receiver.requests().pop().context("a request")?;
    assert_eq!((last.id, &last.body[..]), (first.clone(), &b"first"[..]));
    assert_eq!(rig.outbox()?.row(&first)?.attempts, 1, "a requeued row starts anew");

    rig.run(&["dead", "discard", "--all"])?.success()?;
    assert_eq!(rig.run(&["dead", "list", "--json"])?.json()?["rows"], json!([]));
    assert!(rig.outbox()?.row(&second).is_err(), "it is gone");
    Ok(())
}

#[test]
fn stats_count_and_purge_removes_only_what_is_delivered() -> Result<()> {
    let receiver = Receiver::start(|request| Answer::status(if request.path == "/bad" { 400 } else { 204 }))?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    for topic in ["good", "good", "bad"] {
        rig.enqueue(&["--topic", topic, "--payload", "x"])?;
    }
    rig.drain()?;
    rig.enqueue(&["--topic", "good", "--payload", "waiting"])?;

    let stats = rig.run(&["stats", "--storage", "outbox", "--json"])?.json()?;
    let text = stats.to_string();
    for part in [r#""pending":1"#, r#""due":1"#, r#""leased":0"#, r#""dead":1"#] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    rig.run(&["purge", "--older-than", "1h"])?.success()?;
    let outbox = rig.outbox()?;
    assert_eq!(outbox.count(DELIVERED)?, 2, "none is that old");
    rig.run(&["purge", "--older-than", "0s"])?.success()?;
    assert_eq!((outbox.count(DELIVERED)?, outbox.count("dead")?, outbox.count("pending")?), (0, 1, 1));
    Ok(())
}

#[test]
fn check_opens_everything_and_changes_nothing() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    let id = rig.enqueue(&["--topic", "orders.placed", "--payload", "x"])?;
    let before = rig.outbox()?.row(&id)?;
    rig.run(&["check"])?.success()?;
    rig.run(&["check", "--json"])?.json()?;
    let after = rig.outbox()?.row(&id)?;
    assert_eq!((before.status, before.attempts, before.leased_by), (after.status, after.attempts, after.leased_by));
    assert_eq!(receiver.requests().len(), 0);
    Ok(())
}

#[test]
fn schema_prints_and_creates_only_when_asked() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let rig = Rig::empty()?;
    rig.configure(&Config::to(receiver.address())?)?;
    outhaul_tests::outbox::Outbox::create_database(&rig.database())?;
    let tables =
        || -> Result<i64> { Ok(rig.outbox()?.connection().query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?) };

    let printed = rig.run(&["schema", "--storage", "outbox"])?.success()?;
    assert_eq!(tables()?, 0, "nothing is created unless asked for");
    rig.outbox()?.connection().execute_batch(&printed).context("what is printed is what a migration can run")?;
    let by_hand = tables()?;
    rig.run(&["schema", "--storage", "outbox", "--apply"])?.success()?;
    assert_eq!(tables()?, by_hand, "it is all there already");
    Ok(())
}

#[test]
fn a_running_host_delivers_what_is_committed_in_order() -> Result<()> {
    let receiver = Receiver::start(|request| Answer::status(if request.number % 7 == 3 { 503 } else { 204 }))?;
    let config = Config::to(receiver.address())?.set("relays.0.breaker.failures", 0);
    let rig = Rig::new(&config)?;
    let host = rig.host()?;
    let committed = rig.outbox()?.fill("orders", 5, 40)?;
    let requests = receiver.wait_for_accepted(committed.len())?;
    host.shut_down()?;
    let accepted: Vec<_> = requests
        .iter()
        .filter(|request| request.accepted())
        .map(|request| outhaul_tests::ledger::Event::from_payload(&request.body))
        .collect::<Result<_>>()?;
    outhaul_tests::ledger::Report::new(&committed, &accepted).check(&std::collections::BTreeMap::new())?;
    assert_eq!(rig.outbox()?.count(DELIVERED)?, committed.len());
    Ok(())
}
