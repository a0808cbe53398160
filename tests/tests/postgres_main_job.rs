//! The main job with the table in PostgreSQL: by the command line, by a running host, by two of them. On each major version.

use anyhow::{Context, Result};
use outhaul_tests::ledger::{Event, Report};
use outhaul_tests::outbox::DELIVERED;
use outhaul_tests::postgres::{self, Outbox, on_each_major, stage};
use outhaul_tests::receiver::{Answer, Receiver};
use outhaul_tests::rig::{Config, Rig};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

/// An idle host that looks again only after ten minutes: what comes sooner was announced.
const ASLEEP: &str = r#"poll = { min = "10m", max = "10m" }"#;

#[test]
fn an_enqueued_message_is_delivered_once_with_everything_that_it_had() -> Result<()> {
    on_each_major(|server| {
        let receiver = Receiver::accepting()?;
        let (_database, mut outbox, rig) = stage(server, Config::to(receiver.address())?)?;
        let payload = r#"{"order":17, "name":"Zoë"}"#;
        let id = rig.enqueue(&["--topic", "orders.placed", "--key", "o17", "--header", "tenant=acme", "--payload", payload])?;
        assert_eq!(rig.drain()?["sent"], 1);
        let requests = receiver.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!((requests[0].path.as_str(), requests[0].id.as_str()), ("/orders.placed", id.as_str()));
        assert_eq!((requests[0].header("tenant"), &requests[0].body[..]), (Some("acme"), payload.as_bytes()));
        assert_eq!(rig.drain()?["sent"], 0, "the second drain has nothing to do");
        assert_eq!(outbox.row(&id)?.status, DELIVERED);
        Ok(())
    })
}

#[test]
fn bytes_of_any_kind_tombstones_and_texts_come_back_as_they_were_written() -> Result<()> {
    on_each_major(|server| {
        let receiver = Receiver::accepting()?;
        let (_database, mut outbox, rig) = stage(server, Config::to(receiver.address())?)?;
        let bodies: [&[u8]; 4] = [b"\x00\xff\xfe\x00\n", b"", "😊 Zoë".as_bytes(), br#"{"a":"\u001B",  "b": 1.0}"#];
        for body in bodies {
            outbox.add("any", Some("k'\"\\ 😊"), body)?;
        }
        postgres::insert(outbox.client(), "none", Some("k"), None)?;
        assert_eq!(rig.drain()?["sent"], 5);
        let requests = receiver.requests();
        let received = |path: &str| -> Vec<&[u8]> {
            requests.iter().filter(|request| request.path == path).map(|request| &request.body[..]).collect()
        };
        assert_eq!(received("/any"), bodies, "in the order of their key");
        assert_eq!(received("/none"), [b""]);
        Ok(())
    })
}

#[test]
fn failures_are_retried_and_end_dead_and_the_rest_of_the_key_waits() -> Result<()> {
    on_each_major(|server| {
        let receiver = Receiver::start(|request| {
            Answer::status(match (request.path.as_str(), request.earlier) {
                ("/busy", 0 | 1) | ("/lost", _) => 503,
                _ => 204,
            })
        })?;
        let (database, mut outbox, rig) = stage(server, Config::to(receiver.address())?.set("relays.0.max_attempts", 3))?;
        let host = rig.host()?;
        let mut client = outhaul_services::postgres::connect(&database.url())?;
        let mut transaction = client.transaction()?;
        let ids = ["busy", "lost", "after"]
            .map(|topic| postgres::insert(&mut transaction, topic, Some("k"), Some(b"x")))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        transaction.commit()?;
        outbox.wait_until_settled()?;
        let paths: Vec<String> = receiver.requests().into_iter().map(|request| request.path).collect();
        assert_eq!(paths, ["/busy", "/busy", "/busy", "/lost", "/lost", "/lost", "/after"]);
        let states: Vec<_> = ids.iter().map(|id| outbox.row(id).map(|row| (row.status, row.attempts))).collect::<Result<_>>()?;
        assert_eq!(states, [(DELIVERED.into(), 3), ("dead".into(), 3), (DELIVERED.into(), 1)]);
        let reason = outbox.row(&ids[1])?.last_error.context("no reason was recorded")?;
        assert!(reason.contains("503"), "{reason}");
        host.shut_down()
    })
}

#[test]
fn a_dead_letter_is_listed_shown_requeued_and_discarded_and_old_rows_are_purged() -> Result<()> {
    on_each_major(|server| {
        let receiver = Receiver::start(|request| Answer::status(if request.path == "/bad" { 400 } else { 204 }).body("no such customer"))?;
        let (_database, mut outbox, rig) = stage(server, Config::to(receiver.address())?)?;
        let first = outbox.add("bad", Some("k"), b"first")?;
        let second = outbox.add("bad", Some("k"), b"second")?;
        outbox.add("good", Some("k"), b"third")?;
        let summary = rig.drain()?;
        assert_eq!((&summary["sent"], &summary["failed"]), (&json!(1), &json!(2)));

        let list = rig.run(&["dead", "list", "--json"])?.json()?;
        let ids: Vec<&str> = list["rows"].as_array().context("a list")?.iter().filter_map(|row| row["id"].as_str()).collect();
        assert_eq!(ids, [&first, &second]);
        let shown = rig.run(&["dead", "show", &first])?.success()?;
        assert!(shown.contains("first") && shown.contains("400"), "{shown}");
        let stats = rig.run(&["stats", "--storage", "outbox", "--json"])?.json()?.to_string();
        assert!(stats.contains(r#""pending":0"#) && stats.contains(r#""dead":2"#), "{stats}");

        receiver.set_script(|_| Answer::status(204));
        rig.run(&["dead", "requeue", "--id", &first])?.success()?;
        assert_eq!(rig.drain()?["sent"], 1);
        assert_eq!(outbox.row(&first)?.attempts, 1, "a requeued row starts anew");
        rig.run(&["dead", "discard", "--all"])?.success()?;
        assert!(outbox.row(&second).is_err(), "it is gone");
        rig.run(&["purge", "--older-than", "1h"])?.success()?;
        assert_eq!(outbox.count(DELIVERED)?, 2, "none is that old");
        rig.run(&["purge", "--older-than", "0s"])?.success()?;
        assert!(outbox.rows()?.is_empty());
        Ok(())
    })
}

#[test]
fn schema_prints_what_a_migration_can_run_and_applies_it_twice_without_harm() -> Result<()> {
    on_each_major(|server| {
        let receiver = Receiver::accepting()?;
        let database = server.create_database()?;
        let rig = Rig::empty()?;
        rig.configure(&Config::to(receiver.address())?.on_postgres(&database.url()))?;
        let mut client = database.connect()?;
        let mut tables = || -> Result<i64> {
            let sql = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public'";
            Ok(client.query_one(sql, &[])?.get(0))
        };
        let printed = rig.run(&["schema", "--storage", "outbox"])?.success()?;
        assert_eq!(tables()?, 0, "nothing is created unless asked for");
        database.connect()?.batch_execute(&printed).context("what is printed is what a migration can run")?;
        let by_hand = tables()?;
        assert!(by_hand > 0);
        for _ in 0..2 {
            rig.run(&["schema", "--storage", "outbox", "--apply"])?.success()?;
            assert_eq!(tables()?, by_hand, "it is all there already");
        }
        rig.run(&["check"])?.success()?;
        Ok(())
    })
}

#[test]
fn a_commit_wakes_an_idle_host_at_once_and_a_rolled_back_row_never_arrives() -> Result<()> {
    const COMMITS: usize = 20;
    on_each_major(|server| {
        let receiver = Receiver::accepting()?;
        let (database, mut outbox, rig) = stage(server, Config::to(receiver.address())?.set_all("relays.0", ASLEEP))?;
        let mut host = rig.host()?;
        host.process().errors().wait_for_line("relay started")?;
        // The first may still be found by the look at start; from then on nothing but notifications wakes the host.
        outbox.add("first", None, b"x")?;
        receiver.wait_for_accepted(1)?;
        let mut waits = Vec::new();
        for count in 0..COMMITS {
            let mut client = database.connect()?;
            let mut transaction = client.transaction()?;
            postgres::insert(&mut transaction, "rolled.back", None, Some(b"x"))?;
            transaction.rollback()?;
            let committed = Instant::now();
            outbox.add("orders", None, b"x")?;
            let requests = receiver.wait_for_requests(count + 2)?;
            waits.push(requests[count + 1].at.saturating_duration_since(committed));
        }
        assert!(receiver.requests().iter().all(|request| request.path != "/rolled.back"));
        waits.sort_unstable();
        let (median, longest) = (waits[COMMITS / 2], waits[COMMITS - 1]);
        println!("PostgreSQL {}: from before the commit to the request {median:?} in the median, {longest:?} at most", server.major);
        // Ten minutes without the notification. The bound leaves room for a busy machine.
        assert!(longest < Duration::from_secs(5), "{waits:?}");
        host.shut_down()
    })
}

#[test]
fn two_hosts_on_one_table_deliver_everything_once_and_in_order() -> Result<()> {
    on_each_major(|server| {
        let receiver = Receiver::start(|request| Answer::status(if request.number % 9 == 4 { 503 } else { 204 }))?;
        let small = "batch = 20\nin_flight = 40\nbreaker = { failures = 0 }";
        let (_database, mut outbox, rig) = stage(server, Config::to(receiver.address())?.set_all("relays.0", small))?;
        let hosts = [rig.host()?, rig.host()?];
        let mut committed = BTreeSet::new();
        for round in 0..10 {
            let events: Vec<Event> =
                (0..60).map(|place| Event { key: format!("k{}", place % 20), number: round * 3 + place / 20 + 1 }).collect();
            outbox.add_events("orders", &events)?;
            committed.extend(events);
        }
        receiver.wait_for_accepted(committed.len())?;
        outbox.wait_until_settled()?;
        for host in hosts {
            host.shut_down()?;
        }
        Report::new(&committed, &receiver.accepted_events()?).check(&BTreeMap::new())?;
        assert_eq!(outbox.count(DELIVERED)?, committed.len());
        Ok(())
    })
}

#[test]
fn the_password_comes_from_a_file_and_a_wrong_one_is_told() -> Result<()> {
    on_each_major(|server| {
        let receiver = Receiver::accepting()?;
        let database = server.create_database()?;
        let user = outhaul_services::postgres::USER;
        let url = format!("postgres://{user}@127.0.0.1:{}/{}", server.port, database.name());
        let config = Config::to(receiver.address())?
            .on_postgres(&url)
            .set("secrets.database.file", "password")
            .set_all("databases.main", r#"password = { secret = "database" }"#);
        let rig = Rig::empty()?;
        fs::write(rig.path().join("password"), format!("{}\n", outhaul_services::postgres::PASSWORD))?;
        rig.prepare(&config)?;
        Outbox::of(&database)?.add("orders", None, b"x")?;
        assert_eq!(rig.drain()?["sent"], 1);
        fs::write(rig.path().join("password"), "hunter2")?;
        let refused = rig.run(&["check"])?;
        assert_ne!(refused.code, Some(0));
        let told = format!("{}{}", refused.output, refused.errors);
        assert!(told.contains("password authentication failed"), "{told}");
        assert!(!told.contains("hunter2"), "{told}");
        Ok(())
    })
}

#[test]
fn tls_is_verified_against_the_authority_that_the_configuration_names() -> Result<()> {
    on_each_major(|server| {
        let receiver = Receiver::accepting()?;
        let (database, mut outbox, rig) = stage(server, Config::to(receiver.address())?)?;
        outbox.add("orders", None, b"x")?;
        let with = |ca: &std::path::Path| -> Result<Config> {
            Ok(Config::to(receiver.address())?
                .on_postgres(&database.url())
                .set("databases.main.tls", "verify-full")
                .set("databases.main.tls_ca_file", ca.to_str().context("path")?))
        };
        rig.configure(&with(&server.certificates.other_ca())?)?;
        let refused = rig.run(&["check"])?;
        assert_ne!(refused.code, Some(0), "{}", refused.output);
        let told = format!("{}{}", refused.output, refused.errors);
        assert!(told.contains("certificate"), "{told}");
        rig.configure(&with(&server.certificates.ca())?)?;
        rig.run(&["check"])?.success()?;
        assert_eq!(rig.drain()?["sent"], 1);
        Ok(())
    })
}
