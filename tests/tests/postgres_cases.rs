//! Situations that broke other relays, with PostgreSQL: cases 1, 11, 14 and 15 of the list in cases.rs. On each major version.

use anyhow::{Context, Result};
use outhaul_services::{Database, Major, Postgres, ServerOptions, or_skip};
use outhaul_tests::host::Host;
use outhaul_tests::ledger::{Event, Report};
use outhaul_tests::outbox::DELIVERED;
use outhaul_tests::postgres::{self, Outbox, Persistent, on_each_major, stage};
use outhaul_tests::process::poll;
use outhaul_tests::receiver::{Answer, Receiver};
use outhaul_tests::rig::{Config, Rig};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// An idle host that looks again only after ten minutes: what comes sooner was announced.
const ASLEEP: &str = r#"poll = { min = "10m", max = "10m" }"#;

/// Case 1 (ThreeDotsLabs/watermill#311): a row with a smaller id is committed after one with a greater id has been relayed.
///
/// Promised is that both are delivered. Their order is that of their ids as far as the relay can see both; between transactions that
/// overlap, nobody can promise more: whoever needs an order for a key must write its rows one transaction after the other.
#[test]
fn case_01_a_row_of_a_transaction_that_commits_late_is_not_passed_over() -> Result<()> {
    on_each_major(|server| {
        for keys in [["same", "same"], ["one", "other"]] {
            let receiver = Receiver::accepting()?;
            let (database, mut outbox, rig) = stage(server, Config::to(receiver.address())?)?;
            let host = rig.host()?;
            let mut late = database.connect()?;
            let mut transaction = late.transaction()?;
            let first = postgres::insert(&mut transaction, "late", Some(keys[0]), Some(b"x"))?;
            let second = outbox.add("early", Some(keys[1]), b"x")?;
            assert!(first.parse::<i64>()? < second.parse::<i64>()?);
            receiver.wait_for_accepted(1)?;
            outbox.wait_for_rows("the early row to be settled", |rows| rows.len() == 1 && rows[0].status == DELIVERED)?;
            transaction.commit()?;
            let requests = receiver.wait_for_accepted(2)?;
            let paths: Vec<&str> = requests.iter().map(|request| request.path.as_str()).collect();
            assert_eq!(paths, ["/early", "/late"]);
            host.shut_down()?;
        }
        Ok(())
    })
}

/// A time zone rule whose daylight-saving time begins tomorrow and lasts for four weeks.
fn clocks_change_tomorrow(database: &Database) -> Result<String> {
    let day = "SELECT extract(doy FROM now() + $1::int * interval '1 day')::int";
    let mut client = database.connect()?;
    let mut julian = |days: i32| -> Result<i32> { Ok(client.query_one(day, &[&days])?.get(0)) };
    // POSIX: standard time AAA is UTC; BBB is an hour ahead; days are counted from 0, leap days too.
    Ok(format!("AAA0BBB,{}/0,{}/0", julian(1)? - 1, julian(29)? - 1))
}

/// Case 11 (BrighterCommand/Brighter#2194): sessions of the database in another time zone.
#[test]
fn case_11_a_retry_comes_after_the_delay_asked_for_in_any_time_zone_of_the_database() -> Result<()> {
    on_each_major(|server| {
        for zone in ["Asia/Kolkata", "America/St_Johns"] {
            let receiver =
                Receiver::start(
                    |request| {
                        if request.earlier < 2 { Answer::status(503).header("retry-after", "2") } else { Answer::status(204) }
                    },
                )?;
            let (database, mut outbox, rig) = stage(server, Config::to(receiver.address())?.set("relays.0.backoff.max", "10s"))?;
            outbox.client().batch_execute(&format!("ALTER DATABASE {} SET timezone = '{zone}'", database.name()))?;
            let mut outbox = Outbox::of(&database)?;
            let shown: String = outbox.client().query_one("SHOW timezone", &[])?.get(0);
            assert_eq!(shown, zone);
            outbox.add("orders", Some("k"), b"x")?;
            let host = rig.host()?;
            let requests = receiver.wait_for_accepted(1)?;
            for pair in requests.windows(2) {
                let waited = pair[1].at - pair[0].answered_at.context("not answered")?;
                // At the earliest when asked for; the upper end leaves room for a busy machine, not for half an hour.
                assert!((Duration::from_millis(1_990)..Duration::from_secs(10)).contains(&waited), "{zone}: {waited:?}");
            }
            host.shut_down()?;
        }
        Ok(())
    })
}

/// Case 11 over the night when the clocks change: two days are 48 hours.
#[test]
fn case_11_a_delay_is_so_many_seconds_also_over_the_change_of_the_clocks() -> Result<()> {
    const DAYS: i64 = 2 * 24 * 3600 * 1000;
    on_each_major(|server| {
        let receiver = Receiver::start(|_| Answer::status(503))?;
        let backoff = r#"backoff = { base = "48h", factor = 1.0, max = "48h", jitter = 0.0 }"#;
        let (database, mut outbox, rig) = stage(server, Config::to(receiver.address())?.set_all("relays.0", backoff))?;
        let zone = clocks_change_tomorrow(&database)?;
        outbox.client().batch_execute(&format!("ALTER DATABASE {} SET timezone = '{zone}'", database.name()))?;
        let mut outbox = Outbox::of(&database)?;
        // The zone does what it should: two days of its calendar are 47 hours.
        let calendar = "SELECT (extract(epoch FROM (now() + interval '2 days') - now()) * 1000)::bigint";
        assert_eq!(outbox.client().query_one(calendar, &[])?.get::<_, i64>(0), DAYS - 3600 * 1000, "{zone}");
        let id = outbox.add("orders", Some("k"), b"x")?;
        let host = rig.host()?;
        outbox.wait_for_rows("a retry", |rows| rows[0].attempts == 1 && rows[0].leased_by.is_none())?;
        let due = outbox.row(&id)?.due_in_ms;
        assert!((DAYS - 60_000..=DAYS).contains(&due), "{zone}: due in {due} ms, asked for {DAYS}");
        host.shut_down()
    })
}

/// A service that goes on writing whatever happens to the database.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<BTreeSet<Event>>>,
}

impl Writer {
    fn start(url: String) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut database = Persistent::new(url);
            let mut committed = BTreeSet::new();
            for number in 1.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let events: Vec<Event> = (0..5).map(|key| Event { key: format!("k{key}"), number }).collect();
                database.add_events("orders", &events)?;
                committed.extend(events);
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(committed)
        });
        Self { stop, thread }
    }

    fn finish(self) -> Result<BTreeSet<Event>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
    }
}

fn wait_for_readiness(host: &Host, status: u16) -> Result<()> {
    poll(&format!("/readyz to be {status}"), || Ok(host.get("/readyz")?.0 == status))
}

/// Compares, with duplicates allowed for what was under way at the disturbance.
fn nothing_lost(committed: &BTreeSet<Event>, receiver: &Receiver, outbox: &mut Outbox) -> Result<()> {
    outbox.wait_until_settled()?;
    let report = Report::new(committed, &receiver.accepted_events()?);
    println!("{report}");
    report.check(&report.duplicates).with_context(|| format!("{report}"))
}

/// Case 14 (svix/svix-webhooks#1844): the database is killed, and shut down, in mid-run.
#[test]
fn case_14_a_database_that_goes_away_and_comes_back_loses_nothing() -> Result<()> {
    for major in Major::ALL {
        let options = ServerOptions { fsync: false, ..ServerOptions::default() };
        let Some(mut server) = or_skip(Postgres::start_with(major, &options)) else { continue };
        let receiver = Receiver::accepting()?;
        let (database, outbox, rig) = stage(&server, Config::to(receiver.address())?)?;
        drop(outbox);
        let host = rig.host()?;
        let writer = Writer::start(database.url());
        let mut seen = 0;
        for killed in [true, false] {
            receiver.wait_for_accepted(seen + 50)?;
            if killed {
                server.kill()?
            } else {
                server.stop()?
            }
            wait_for_readiness(&host, 503)?;
            assert_eq!(host.get("/healthz")?.0, 200, "the process itself is well");
            server.start_again()?;
            wait_for_readiness(&host, 200)?;
            seen = receiver.look(|log| log.iter().filter(|request| request.accepted()).count());
        }
        receiver.wait_for_accepted(seen + 50)?;
        let committed = writer.finish()?;
        nothing_lost(&committed, &receiver, &mut Outbox::of(&database)?).with_context(|| format!("on PostgreSQL {major}"))?;
        host.shut_down()?;
    }
    Ok(())
}

/// Case 14: the connection that listens is cut, and nothing else.
#[test]
fn case_14_a_dropped_listener_listens_again() -> Result<()> {
    on_each_major(|server| {
        let receiver = Receiver::accepting()?;
        let (database, mut outbox, rig) = stage(server, Config::to(receiver.address())?.set_all("relays.0", ASLEEP))?;
        let host = rig.host()?;
        let listeners = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE '%LISTEN %' \
                         AND pid <> pg_backend_pid()";
        let mut listener = |other_than: Option<i32>| -> Result<i32> {
            let mut found = None;
            poll("a connection that listens", || {
                let rows = outbox.client().query(listeners, &[])?;
                found = rows.iter().map(|row| row.get(0)).find(|pid| Some(*pid) != other_than);
                Ok(found.is_some())
            })?;
            found.context("no listener")
        };
        let first = listener(None)?;
        let mut client = database.connect()?;
        client.execute("SELECT pg_terminate_backend($1)", &[&first])?;
        // What is committed while nobody listens is found when somebody does again.
        postgres::insert(&mut client, "meanwhile", None, Some(b"x"))?;
        receiver.wait_for_accepted(1)?;
        listener(Some(first))?;
        postgres::insert(&mut client, "afterwards", None, Some(b"x"))?;
        receiver.wait_for_accepted(2)?;
        host.shut_down()
    })
}

/// Case 14: the database is read-only for a while, as a standby is that was taken for the primary.
#[test]
fn case_14_a_database_that_is_read_only_for_a_while_is_waited_for() -> Result<()> {
    on_each_major(|server| {
        let receiver = Receiver::accepting()?;
        let (database, mut outbox, rig) = stage(server, Config::to(receiver.address())?)?;
        let mut host = rig.host()?;
        outbox.add("orders", None, b"x")?;
        receiver.wait_for_accepted(1)?;
        // New sessions are read-only, and the host's have to be new; this test's own goes on as it is.
        let others =
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        let name = database.name();
        outbox.client().batch_execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on; {others}"))?;
        let meanwhile = outbox.add("meanwhile", None, b"x")?;
        wait_for_readiness(&host, 503)?;
        host.process().errors().wait_for_line("read-only")?;
        assert_eq!(outbox.row(&meanwhile)?.attempts, 0);
        outbox.client().batch_execute(&format!("ALTER DATABASE {name} RESET default_transaction_read_only"))?;
        wait_for_readiness(&host, 200)?;
        receiver.wait_for_accepted(2)?;
        outbox.wait_until_settled()?;
        assert_eq!(receiver.requests().len(), 2);
        host.shut_down()
    })
}

/// Case 15 (hardbyte/awa#374): behind a pooler in transaction mode, LISTEN is accepted and nothing is ever heard.
#[test]
fn case_15_behind_a_pooler_in_transaction_mode_one_warning_and_polling() -> Result<()> {
    let Some(pooler) = outhaul_services::pgbouncer() else { return Ok(()) };
    let receiver = Receiver::accepting()?;
    let database = pooler.server.create_database()?;
    let poll_often = r#"poll = { min = "10ms", max = "200ms" }"#;
    let rig = Rig::new(&Config::to(receiver.address())?.on_postgres(&pooler.url(database.name())).set_all("relays.0", poll_often))?;
    let mut host = rig.host()?;
    let warning = "notifications do not come through";
    host.process().errors().wait_for_line(warning)?;
    let mut outbox = Outbox::of(&database)?;
    let mut committed = BTreeSet::new();
    for round in 1..=5 {
        let events: Vec<Event> = (0..10).map(|key| Event { key: format!("k{key}"), number: round }).collect();
        outbox.add_events("orders", &events)?;
        committed.extend(events);
        receiver.wait_for_accepted(committed.len())?;
    }
    assert_eq!(host.get("/readyz")?.0, 200, "polling is as good a way");
    outbox.wait_until_settled()?;
    Report::new(&committed, &receiver.accepted_events()?).check(&BTreeMap::new())?;
    let log = host.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN") && line.contains(warning)).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    host.shut_down()
}
