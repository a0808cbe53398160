//! The examples in five languages, each as the publisher of the real host: what is delivered, in which order, what failures become,
//! and what a wrong configuration is told; the storages, from the first row to the last purge; and the READMEs, followed word for word.

use anyhow::{Context, Result};
use outhaul_tests::examples::readme::{Readme, Shell};
use outhaul_tests::outbox::{DELIVERED, Outbox};
use outhaul_tests::receiver::{Answer, Receiver, Request};
use outhaul_tests::rig::{Config, Rig};
use outhaul_tests::{examples, places};
use std::time::Duration;

/// A rig whose publisher is an example; none if the example is not built.
fn rig(language: &str, receiver: &Receiver) -> Result<Option<(Rig, Config)>> {
    let plugin = format!("http-{language}");
    let Some(component) = examples::component(&plugin)? else { return Ok(None) };
    let rig = Rig::empty()?;
    let folder = rig.path().join("plugins");
    std::fs::create_dir(&folder)?;
    for file in [component, places::plugins()?.join("sqlite-storage.wasm")] {
        std::fs::copy(&file, folder.join(file.file_name().context("a file")?))?;
    }
    let address = receiver.address();
    let config = Config::to(address)?
        .set("plugins.dir", "plugins")
        .set("publishers.webhooks.plugin", plugin)
        .set("publishers.webhooks.config.url", format!("http://{address}/in?from=outbox"));
    rig.configure(&config)?;
    Outbox::create_database(&rig.database())?;
    rig.run(&["schema", "--apply"])?.success()?;
    examples::compile(&rig, &["check"])?;
    Ok(Some((rig, config)))
}

fn everything_that_a_message_has_arrives(language: &str) -> Result<()> {
    let receiver = Receiver::accepting()?;
    let Some((rig, _)) = rig(language, &receiver)? else { return Ok(()) };
    let bytes: Vec<u8> = (0..=255).collect();
    let file = rig.path().join("payload.bin");
    std::fs::write(&file, &bytes)?;
    let file = file.to_str().context("a path of UTF-8")?;
    let headers =
        ["--header", "x-tag=one", "--header", "content-type=text/x-zoe", "--header", "x-tag=two", "--header", "Host=evil.example"];
    let full = rig.enqueue(&[&["--topic", "orders.placed", "--key", "Zoë 7", "--payload-file", file], &headers[..]].concat())?;
    let tombstone = rig.enqueue(&["--topic", "gone", "--key", "Zoë 7", "--tombstone"])?;
    let empty = rig.enqueue(&["--topic", "empty", "--payload", ""])?;
    assert_eq!(rig.drain()?["sent"], 3);

    let requests = receiver.requests();
    let of = |id: &str| -> Result<&Request> { requests.iter().find(|request| request.id == id).context("a request with the id") };
    let request = of(&full)?;
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/in?from=outbox"));
    assert_eq!(request.body, bytes, "the exact bytes");
    assert_eq!(request.header("content-type"), Some("text/x-zoe"));
    // One line each or one line with commas: the same by RFC 9110 section 5.3.
    let tags: Vec<&str> = request.headers.get_all("x-tag").iter().map(|value| value.to_str()).collect::<Result<_, _>>()?;
    assert_eq!(tags.join(", "), "one, two", "duplicates are kept in their order");
    assert_eq!(request.header("host"), Some(receiver.address().to_string().as_str()), "the host is not the message's to say");
    assert_eq!((request.header("outhaul-topic"), request.header("outhaul-key")), (Some("orders.placed"), Some("Zo%C3%AB%207")));
    assert_eq!((request.header("outhaul-attempt"), request.header("outhaul-tombstone")), (Some("1"), None));

    let request = of(&tombstone)?;
    assert_eq!((request.body.len(), request.header("outhaul-tombstone")), (0, Some("true")));
    assert!(request.number > of(&full)?.number, "one key, one order");
    let request = of(&empty)?;
    assert_eq!((request.body.len(), request.header("outhaul-tombstone"), request.header("outhaul-key")), (0, None, None));
    assert_eq!(request.header("content-type"), Some("application/octet-stream"));
    Ok(())
}

fn keys_keep_their_order_through_failures(language: &str) -> Result<()> {
    // Every fifth request fails for now.
    let receiver = Receiver::start(|request| Answer::status(if request.number % 5 == 2 { 503 } else { 204 }))?;
    let Some((rig, config)) = rig(language, &receiver)? else { return Ok(()) };
    rig.configure(&config.set("relays.0.breaker.failures", 0))?;
    let committed = rig.outbox()?.fill("orders", 6, 20)?;
    let host = rig.host()?;
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

fn failures_are_told_apart(language: &str) -> Result<()> {
    let receiver = Receiver::start(|request| match (request.header("outhaul-topic"), request.earlier) {
        (Some("busy"), 0) => Answer::status(429).header("retry-after", "1"),
        (Some("broken"), 0) => Answer::status(500),
        (Some("bad"), _) => Answer::status(400),
        (Some("gone"), _) => Answer::status(410),
        _ => Answer::status(204),
    })?;
    let Some((rig, _)) = rig(language, &receiver)? else { return Ok(()) };
    let outbox = rig.outbox()?;
    let [busy, broken, bad, gone, after] =
        ["busy", "broken", "bad", "gone", "after"].map(|topic| outbox.add(topic, (topic == "bad").then_some("k"), topic.as_bytes()));
    let behind = outbox.add("behind", Some("k"), b"behind")?;
    let host = rig.host()?;
    let requests = receiver.wait_for_accepted(4)?;
    outbox.wait_for_rows("a verdict for each", |rows| rows.iter().all(|row| row.status != "pending"))?;
    host.shut_down()?;
    for id in [busy?, broken?, after?, behind] {
        assert_eq!(outbox.row(&id)?.status, DELIVERED);
    }
    let busy: Vec<&Request> = requests.iter().filter(|request| request.header("outhaul-topic") == Some("busy")).collect();
    assert!(busy.len() == 2 && busy[1].at - busy[0].at >= Duration::from_millis(900), "Retry-After is what the host was told");
    for (id, status) in [(bad?, 400), (gone?, 410)] {
        let row = outbox.row(&id)?;
        assert_eq!(row.status, "dead");
        let error = row.last_error.context("a dead row says why")?;
        assert!(error.contains(&format!("{} answered {status}", receiver.address())) && row.attempts == 1, "{error}");
    }
    Ok(())
}

fn a_destination_that_is_not_there_or_not_granted_ends_nothing(language: &str) -> Result<()> {
    let receiver = Receiver::accepting()?;
    let Some((rig, config)) = rig(language, &receiver)? else { return Ok(()) };
    // A port that nothing listens to: it was free a moment ago.
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let there = config.clone().set("publishers.webhooks.config.url", format!("http://{nowhere}/"));
    let outbox = rig.outbox()?;
    let id = outbox.add("orders", None, b"x")?;
    // `fetch` does not say why there is no answer.
    let denied = if language == "js" { "network" } else { "invalid-configuration" };
    for (granted, code) in [(&nowhere, "network"), (&receiver.address().to_string(), denied)] {
        rig.configure(&there.clone().set("publishers.webhooks.allow_hosts", vec![granted.clone()]))?;
        let attempts = outbox.row(&id)?.attempts;
        let host = rig.host()?;
        outbox.wait_for_rows("another attempt that failed", |rows| {
            rows.iter().all(|row| row.attempts > attempts && row.leased_by.is_none() && row.last_error.is_some())
        })?;
        let log = host.log();
        host.shut_down()?;
        let error = outbox.row(&id)?.last_error.context("a failed row says why")?;
        assert!(error.contains(code) && error.contains(&nowhere), "{error}");
        assert_eq!(log.contains(&format!("{nowhere} is not granted")), *granted != nowhere, "{log}");
    }
    assert_eq!(outbox.row(&id)?.status, "pending");
    Ok(())
}

fn large_headers_arrive_or_end_dead_and_never_stop_a_destination(language: &str) -> Result<()> {
    let receiver = Receiver::accepting()?;
    let Some((rig, _)) = rig(language, &receiver)? else { return Ok(()) };
    let large = rig.enqueue_with_headers(200_000)?;
    let too_large = rig.enqueue_with_headers(300_000)?;
    let small = rig.outbox()?.add("orders", None, b"x")?;
    rig.drain()?;
    let outbox = rig.outbox()?;
    assert_eq!((outbox.row(&large)?.status, outbox.row(&small)?.status), (DELIVERED.to_owned(), DELIVERED.to_owned()));
    let row = outbox.row(&too_large)?;
    let error = row.last_error.context("a dead row says why")?;
    assert!(row.attempts == 1 && error.contains("too-large") && error.contains("256 KiB"), "{error}");
    Ok(())
}

fn configuration_errors_name_the_key(language: &str) -> Result<()> {
    let receiver = Receiver::accepting()?;
    let Some((rig, config)) = rig(language, &receiver)? else { return Ok(()) };
    rig.run(&["check"])?.success()?;
    let key = "publishers.webhooks.config";
    for (changed, named) in [
        (config.clone().set(&format!("{key}.url"), "ftp://h.example/"), "config.url"),
        (config.clone().set(&format!("{key}.url"), "http://user@h.example/"), "config.url"),
        (config.clone().set(&format!("{key}.url"), 7), "config.url"),
        (config.clone().set(&format!("{key}.timeout_ms"), 0), "config.timeout_ms"),
        (config.clone().set(&format!("{key}.timeout_ms"), "soon"), "config.timeout_ms"),
        (config.clone().set(&format!("{key}.urll"), "x"), "config.urll"),
    ] {
        rig.configure(&changed)?;
        let text = rig.run(&["check"])?.failure(2)?;
        assert!(text.contains(named) && text.contains("webhooks"), "{named} is not in {text}");
    }
    Ok(())
}

/// What the README of an example says under `Run` (that of a router, without a message): with a receiver of its own, and compiled code shared with the other tests.
fn the_readme_leads_to_a_delivered_message(name: &str) -> Result<()> {
    let Some(component) = examples::component(name)? else { return Ok(()) };
    let example = examples::ALL.iter().find(|example| example.name == name).context("an example")?;
    let folder = tempfile::tempdir()?;
    std::fs::copy(&component, folder.path().join(format!("{name}.wasm")))?;
    let readme = Readme::of(&examples::home()?.join("src").join(name))?;
    examples::tour::deliver(example, &readme, &Shell::new(folder.path())?, folder.path(), Some(&places::compiled()?))
}

#[test]
fn the_readme_of_the_router_is_followed() -> Result<()> {
    the_readme_leads_to_a_delivered_message("router-rust")
}

/// The storages among the examples, in a table `messages`.
mod storages {
    use super::*;
    use serde_json::{Value, json};

    /// One of them, and how its table is looked at from outside.
    struct Storage {
        name: &'static str,
        /// Ends every lease.
        end_leases: &'static str,
        /// Counts the messages.
        count: &'static str,
        /// Id and attempts of the delivered one.
        delivered: &'static str,
    }

    /// A table of names and values.
    const fn of_names_and_values(name: &'static str) -> Storage {
        Storage {
            name,
            end_leases: "UPDATE messages SET value = json_set(value, '$.lease_end', 1) WHERE name LIKE 'live/%'",
            count: "SELECT count(*) FROM messages WHERE name != 'next'",
            delivered: "SELECT value ->> 'id', value ->> 'attempts' FROM messages WHERE name LIKE 'done/%'",
        }
    }

    /// A table with a row for each message.
    const fn of_rows(name: &'static str) -> Storage {
        Storage {
            name,
            end_leases: "UPDATE messages SET lease_end = 1 WHERE lease_end > 0",
            count: "SELECT count(*) FROM messages",
            delivered: "SELECT id, attempts FROM messages WHERE state = 'delivered'",
        }
    }

    const RUST: Storage = of_rows("rows-rust");
    const JS: Storage = of_names_and_values("kv-js");
    const PYTHON: Storage = of_names_and_values("kv-python");
    const C: Storage = of_rows("rows-c");
    const GO: Storage = of_names_and_values("kv-go");

    fn rig(storage: &Storage, receiver: &Receiver) -> Result<Option<Rig>> {
        let Some(component) = examples::component(storage.name)? else { return Ok(None) };
        let rig = Rig::empty()?;
        let folder = rig.path().join("plugins");
        std::fs::create_dir(&folder)?;
        for file in [component, places::plugins()?.join("http-publisher.wasm")] {
            std::fs::copy(&file, folder.join(file.file_name().context("a file")?))?;
        }
        let config = Config::to(receiver.address())?
            .set("plugins.dir", "plugins")
            .set("storages.outbox.plugin", storage.name)
            .set("storages.outbox.config.table", "messages")
            .set("relays.0.breaker.failures", 0);
        rig.configure(&config)?;
        Outbox::create_database(&rig.database())?;
        examples::compile(&rig, &["schema", "--apply"])?;
        Ok(Some(rig))
    }

    /// Counts by the states that the command line knows.
    fn stats(rig: &Rig) -> Result<Value> {
        let stats = rig.run(&["stats", "--json"])?.json()?;
        let storage = stats["storages"].as_array().and_then(|storages| storages.first()).cloned().unwrap_or(stats);
        Ok(json!([storage["pending"], storage["leased"], storage["dead"]]))
    }

    fn messages_go_their_way(storage: &Storage) -> Result<()> {
        let receiver = Receiver::start(|request| match (request.path.as_str(), request.earlier) {
            ("/bad", _) => Answer::status(400),
            ("/shy", 0) => Answer::status(503),
            _ => Answer::status(204),
        })?;
        let Some(rig) = rig(storage, &receiver)? else { return Ok(()) };
        let ids = ["bad", "shy", "good"].map(|topic| rig.enqueue(&["--topic", topic, "--key", "k", "--header", "a=1", "--payload", topic]));
        let [bad, shy, good] = ids;
        let (bad, shy, good) = (bad?, shy?, good?);
        let host = rig.host()?;
        let requests = receiver.wait_for_accepted(2)?;
        let sent: Vec<(&str, bool)> = requests.iter().map(|request| (request.id.as_str(), request.accepted())).collect();
        assert_eq!(sent, [(&*bad, false), (&*shy, false), (&*shy, true), (&*good, true)], "one key, one order");
        assert_eq!(requests[3].header("a"), Some("1"));
        host.shut_down()?;
        assert_eq!(stats(&rig)?, json!([0, 0, 1]));

        let shown = rig.run(&["dead", "show", &bad])?.success()?;
        assert!(shown.contains("400") && shown.contains("bad"), "{shown}");
        receiver.set_script(|_| Answer::status(204));
        rig.run(&["dead", "requeue", "--id", &bad])?.success()?;
        assert_eq!(rig.drain()?["sent"], 1);
        rig.run(&["purge", "--older-than", "0s"])?.success()?;
        let left: i64 = rig.outbox()?.connection().query_row(storage.count, [], |row| row.get(0))?;
        assert_eq!(left, 0);
        Ok(())
    }

    fn a_killed_host_loses_nothing_and_its_attempt_counts(storage: &Storage) -> Result<()> {
        let gate = outhaul_tests::receiver::Gate::closed();
        let behind = gate.clone();
        let receiver =
            Receiver::start(move |request| if request.earlier == 0 { Answer::status(204).behind(&behind) } else { Answer::status(204) })?;
        let Some(rig) = rig(storage, &receiver)? else { return Ok(()) };
        let id = rig.enqueue(&["--topic", "t", "--payload", "x"])?;
        let mut host = rig.host()?;
        receiver.wait_for_requests(1)?;
        host.process().kill()?;
        assert_eq!(stats(&rig)?, json!([1, 1, 0]), "leased until its lease ends");
        gate.open();
        // Instead of waiting for the end of the lease.
        rig.outbox()?.connection().execute(storage.end_leases, [])?;
        assert_eq!(rig.drain()?["sent"], 1);
        let delivered: (String, u32) = rig.outbox()?.connection().query_row(storage.delivered, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        assert_eq!(delivered, (id, 2));
        Ok(())
    }

    macro_rules! storages {
        ($($language:ident $storage:ident)*) => {
            $(mod $language {
                use anyhow::Result;

                #[test]
                fn messages_go_their_way() -> Result<()> {
                    super::messages_go_their_way(&super::$storage)
                }
                #[test]
                fn a_killed_host_loses_nothing_and_its_attempt_counts() -> Result<()> {
                    super::a_killed_host_loses_nothing_and_its_attempt_counts(&super::$storage)
                }
                #[test]
                fn the_readme_leads_to_a_delivered_message() -> Result<()> {
                    super::super::the_readme_leads_to_a_delivered_message(super::$storage.name)
                }
            })*
        };
    }

    storages! { rust RUST js JS python PYTHON c C go GO }
}

macro_rules! languages {
    ($($language:ident)*) => {
        $(mod $language {
            use anyhow::Result;
            const LANGUAGE: &str = stringify!($language);

            #[test]
            fn everything_that_a_message_has_arrives() -> Result<()> {
                super::everything_that_a_message_has_arrives(LANGUAGE)
            }
            #[test]
            fn keys_keep_their_order_through_failures() -> Result<()> {
                super::keys_keep_their_order_through_failures(LANGUAGE)
            }
            #[test]
            fn failures_are_told_apart() -> Result<()> {
                super::failures_are_told_apart(LANGUAGE)
            }
            #[test]
            fn a_destination_that_is_not_there_or_not_granted_ends_nothing() -> Result<()> {
                super::a_destination_that_is_not_there_or_not_granted_ends_nothing(LANGUAGE)
            }
            #[test]
            fn large_headers_arrive_or_end_dead_and_never_stop_a_destination() -> Result<()> {
                super::large_headers_arrive_or_end_dead_and_never_stop_a_destination(LANGUAGE)
            }
            #[test]
            fn configuration_errors_name_the_key() -> Result<()> {
                super::configuration_errors_name_the_key(LANGUAGE)
            }
            #[test]
            fn the_readme_leads_to_a_delivered_message() -> Result<()> {
                super::the_readme_leads_to_a_delivered_message(&format!("http-{LANGUAGE}"))
            }
        })*
    };
}

languages! { rust js python c go }
