//! `outhaul bench`, with real tables: what it counts is what is in them. Nothing here looks at how fast anything was.

use anyhow::{Context, Result};
use outhaul_tests::outbox::DELIVERED;
use outhaul_tests::postgres::{Outbox, on_each_major, stage};
use outhaul_tests::process::{Process, poll};
use outhaul_tests::receiver::{Answer, Receiver};
use outhaul_tests::rig::{Config, Finished, Rig};
use outhaul_tests::wire::{Loss, Wire};
use rustix::process::Signal;
use serde_json::Value;
use std::net::SocketAddr;

/// Where nobody listens: a bench calls its own destination, or none.
const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9);

fn rig() -> Result<Rig> {
    Rig::new(&Config::to(NOBODY)?)
}

fn bench(rig: &Rig, flags: &str) -> Result<Finished> {
    let arguments: Vec<&str> = ["bench", "--json"].into_iter().chain(flags.split(' ')).collect();
    rig.run(&arguments)
}

/// A command as it is told to somebody with that configuration.
fn told_command(rig: &Rig, command: &str, rest: &str) -> String {
    format!("outhaul {command} --config {} {rest}", rig.config().display())
}

/// A bench under way, of which a first line about deliveries is there.
fn under_way(rig: &Rig, flags: &str) -> Result<Process> {
    let process = rig.start(&["bench", "--json"].into_iter().chain(flags.split(' ')).collect::<Vec<_>>())?;
    process.errors().wait_for_line("rows done")?;
    Ok(process)
}

fn number(value: &Value, path: &str) -> Result<u64> {
    value.pointer(path).and_then(Value::as_u64).with_context(|| format!("no number at {path} in {value}"))
}

/// The only run of a report.
fn only_run(report: &Value) -> Result<&Value> {
    let runs = report["runs"].as_array().context("no runs")?;
    assert_eq!(runs.len(), 1);
    Ok(&runs[0])
}

fn sum(list: &Value, value: impl Fn(&Value) -> Option<u64>) -> u64 {
    list.as_array().into_iter().flatten().filter_map(value).sum()
}

#[test]
fn a_backlog_is_delivered_by_components_and_counted() -> Result<()> {
    let rig = rig()?;
    let finished = bench(&rig, "--publisher null --rows 2000 --keys 7 --payload 100")?;
    assert!(finished.errors.contains(&told_command(&rig, "purge", "--storage outbox --older-than 0s")), "{}", finished.errors);
    let report = finished.json()?;
    let run = only_run(&report)?;
    assert_eq!((number(run, "/delivered")?, number(run, "/retried")?, number(run, "/dead")?), (2000, 0, 0));
    assert_eq!(sum(&run["series"], |second| second["delivered"].as_u64()), 2000);
    assert_eq!(number(run, "/calls/publish/items")?, 2000);
    assert!(run["per_second"].as_f64().is_some_and(|rate| rate > 0.0) && run["latency"].is_null(), "{run}");
    let settings = &run["settings"];
    assert_eq!(
        (settings["storage"].as_str(), settings["publisher"].as_str(), settings["native"].as_bool(), number(settings, "/keys")?),
        (Some("outbox (sqlite-storage)"), Some("null"), Some(false), 7)
    );
    assert!(report["versions"]["outhaul"].is_string() && report["comparison"].is_null(), "{report}");
    let mut outbox = rig.outbox()?;
    assert_eq!((outbox.count(DELIVERED)?, outbox.count("pending")?), (2000, 0));
    let sql = "SELECT count(DISTINCT key), min(length(payload)), max(length(payload)), min(topic) FROM outbox";
    let row = outbox.connection().query_row(sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    assert_eq!(row, (7, 100, 100, "outhaul.bench".to_owned()));
    Ok(())
}

#[test]
fn plain_rust_does_the_same_and_purges_when_told_to() -> Result<()> {
    let rig = rig()?;
    let finished = bench(&rig, "--publisher null --native --rows 1000 --keys 0 --batch 50 --hosts 2 --purge")?;
    assert!(!finished.errors.contains("purge"), "{}", finished.errors);
    let report = finished.json()?;
    let run = only_run(&report)?;
    assert_eq!((number(run, "/delivered")?, number(run, "/settings/batch")?, number(run, "/settings/hosts")?), (1000, 50, 2));
    assert_eq!(run["settings"]["native"], true);
    assert!(rig.outbox()?.rows()?.is_empty());
    Ok(())
}

#[test]
fn under_a_steady_load_every_message_has_a_latency() -> Result<()> {
    let rig = rig()?;
    let report = bench(&rig, "--publisher null --rate 200 --duration 3s")?.json()?;
    let run = only_run(&report)?;
    assert_eq!((number(run, "/delivered")?, number(run, "/latency/count")?, number(run, "/settings/rate")?), (600, 600, 200));
    assert_eq!(sum(&run["latency"]["buckets"], |bucket| bucket[1].as_u64()), 600);
    assert_eq!(number(run, "/latency_from_due/count")?, 600);
    assert!(run["achieved_rate"].as_f64().is_some_and(|rate| rate > 0.0 && rate <= 200.0), "{run}");
    assert_eq!(rig.outbox()?.count("pending")?, 0);
    Ok(())
}

#[test]
fn a_message_takes_at_least_as_long_as_its_destination() -> Result<()> {
    let rig = rig()?;
    let plots = rig.path().join("plots");
    let flags = format!("--rate 100 --duration 1s --destination-delay 50ms --plot {}", plots.display());
    let report = bench(&rig, &flags)?.json()?;
    let run = only_run(&report)?;
    for latency in ["latency", "latency_from_due"] {
        assert_eq!(number(run, &format!("/{latency}/count"))?, 100);
        assert!(run[latency]["buckets"][0][0].as_f64().is_some_and(|least| least >= 50.0), "{run}");
    }
    for plot in ["throughput", "latency", "latency-over-time", "claim", "memory"] {
        let text = std::fs::read_to_string(plots.join(format!("{plot}.svg")))?;
        assert!(text.trim_start().starts_with("<svg") && text.contains("run 1"), "{plot}: {text}");
    }
    Ok(())
}

#[test]
fn a_slow_rate_that_is_kept_is_not_called_missed() -> Result<()> {
    let report = bench(&rig()?, "--publisher null --rate 1 --duration 3s")?.json()?;
    let rate = only_run(&report)?["achieved_rate"].as_f64().context("no rate")?;
    // Three rows in three seconds. It was 0.75 while the time went on until a fourth would have been due.
    assert!(rate > 0.8 && rate <= 1.0, "{rate}");
    Ok(())
}

#[test]
fn a_rate_that_cannot_be_kept_is_said() -> Result<()> {
    let rig = rig()?;
    let finished = bench(&rig, "--publisher null --rate 1000000 --duration 5ms")?;
    assert!(finished.errors.contains("run 1: the rate was missed: "), "{}", finished.errors);
    let report = finished.json()?;
    let run = only_run(&report)?;
    let of = |latency: &str| run[latency]["p50_ms"].as_f64().with_context(|| format!("no {latency}"));
    assert!(of("latency_from_due")? > of("latency")?, "{run}");
    assert_eq!(number(run, "/delivered")?, 5000);
    Ok(())
}

#[test]
fn dead_rows_are_told_and_cleared() -> Result<()> {
    let rig = Rig::new(&Config::to(NOBODY)?.set("relays.0.max_attempts", 1))?;
    let outbox = rig.outbox()?;
    let finished = bench(&rig, "--rows 5 --destination-failing 100")?;
    assert!(finished.errors.contains("5 rows of the bench ended dead in the table of storages.outbox"), "{}", finished.errors);
    assert_eq!(number(only_run(&finished.json()?)?, "/dead")?, 5);
    outbox.add("orders", None, b"{}")?;
    rig.drain()?;
    assert_eq!(outbox.count("dead")?, 6);
    assert_eq!(bench(&rig, "--clear")?.json()?["removed"], 5);
    assert_eq!(outbox.rows()?.iter().map(|row| row.status.as_str()).collect::<Vec<_>>(), ["dead"], "that of somebody else");
    Ok(())
}

#[test]
fn a_destination_that_fails_now_and_then_has_everything_in_the_end() -> Result<()> {
    let rig = rig()?;
    let report = bench(&rig, "--rows 300 --keys 50 --destination-delay 5ms --destination-failing 10")?.json()?;
    let run = only_run(&report)?;
    assert_eq!((number(run, "/delivered")?, number(run, "/dead")?), (300, 0));
    assert!(number(run, "/retried")? >= 30, "{run}");
    assert_eq!((number(run, "/settings/destination_delay_ms")?, number(run, "/settings/destination_failing_percent")?), (5, 10));
    assert_eq!(rig.outbox()?.count(DELIVERED)?, 300);
    Ok(())
}

#[test]
fn a_table_with_pending_rows_is_left_alone() -> Result<()> {
    let rig = rig()?;
    let outbox = rig.outbox()?;
    let id = outbox.add("orders", Some("k"), b"{}")?;
    let told = bench(&rig, "--publisher null --rows 10")?.failure(2)?;
    assert!(told.contains("storages.outbox has pending rows (1)"), "{told}");
    let rows = outbox.rows()?;
    assert_eq!(rows.iter().map(|row| (row.id.as_str(), row.status.as_str(), row.attempts)).collect::<Vec<_>>(), [(&*id, "pending", 0)]);
    Ok(())
}

#[test]
fn what_cannot_be_measured_is_said_and_nothing_is_written() -> Result<()> {
    let rig = rig()?;
    for (flags, text) in [
        ("--native", "publishers.webhooks: the plugin http-publisher has no native form"),
        ("--publisher null --destination-failing 1", "publishers.null"),
        ("--relay other", "relays: orders"),
        ("--publisher null --compare --rows=x", "--compare: invalid value 'x' for '--rows <N>'"),
        ("--publisher null --compare --rows=0", "nothing to measure"),
        ("--publisher null --compare --json", "--json is one for A and B"),
        ("--publisher null --payload 9000000", "`max_message_bytes` (8388608)"),
        ("--publisher null --payload 5000000000", "`max_message_bytes` (8388608)"),
        ("--publisher null --payload 15 --keys 0", "needs keys"),
        ("--publisher null --rate 5 --rows 5", "cannot be used with"),
        ("--publisher null --plot /dev/null/x", "cannot write /dev/null/x"),
    ] {
        let told = bench(&rig, flags)?.failure(2)?;
        assert!(told.contains(text), "{flags}: {told}");
    }
    assert!(rig.outbox()?.rows()?.is_empty());
    Ok(())
}

#[test]
fn a_storage_without_its_admin_part_is_refused() -> Result<()> {
    let rig = Rig::empty()?;
    rig.copy_components()?;
    let config = Config::to(NOBODY)?.set("plugins.dir", "plugins").set("storages.outbox.plugin", "minimal-storage");
    rig.configure(&config.set("storages.outbox.config", toml::Table::new()))?;
    outhaul_tests::outbox::Outbox::create_database(&rig.database())?;
    let told = bench(&rig, "--publisher null --rows 1")?.failure(2)?;
    assert!(told.contains("storages.outbox: the plugin minimal-storage does not export storage-admin"), "{told}");
    Ok(())
}

#[test]
fn rows_of_others_are_handed_back_and_end_the_bench() -> Result<()> {
    let large = vec![b'x'; 100_000];
    for (flags, payload) in [
        ("--publisher null --rate 50 --duration 1m", &b"{}"[..]),
        // As those of the bench, but for the key.
        ("--publisher null --rate 50 --duration 1m --topic orders --payload 0", b""),
        ("--publisher null --rate 50 --duration 1m", &large),
    ] {
        let rig = Rig::new(&Config::to(NOBODY)?.set("relays.0.max_message_bytes", "64KiB"))?;
        let mut process = under_way(&rig, flags)?;
        let mut outbox = rig.outbox()?;
        let id = outbox.add("orders", None, payload)?;
        assert_eq!(process.wait()?.code(), Some(1));
        let told = process.errors().text();
        assert!(told.contains("somebody else writes to the table"), "{told}");
        let row = outbox.row(&id)?;
        assert_eq!((row.status.as_str(), row.attempts, row.leased_by), ("pending", 0, None));
        let rows: i64 = outbox.connection().query_row("SELECT count(*) FROM outbox WHERE status <> 'done'", [], |row| row.get(0))?;
        assert_eq!(rows, 1, "those of the bench are gone: {told}");
    }
    Ok(())
}

#[test]
fn another_relay_on_the_table_is_told() -> Result<()> {
    let receiver = Receiver::start(|_| Answer::status(200))?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    let _host = rig.host()?;
    let told = bench(&rig, "--publisher null --rows 5000")?.failure(1)?;
    assert!(told.contains("of the 5000 rows are gone from storages.outbox without this bench: another relay works on the table"), "{told}");
    Ok(())
}

#[test]
fn a_signal_ends_it_and_its_rows_are_not_delivered_later() -> Result<()> {
    let rig = rig()?;
    let mut process = under_way(&rig, "--rows 1500 --keys 10 --lanes 1 --destination-delay 300ms")?;
    process.signal(Signal::INT)?;
    assert_eq!(process.wait()?.code(), Some(1));
    let told = process.errors().text();
    assert!(told.contains("error: interrupted\n") || told.ends_with("error: interrupted"), "{told}");
    assert!(told.contains(&told_command(&rig, "purge", "--storage outbox")), "{told}");
    let rows = rig.outbox()?.rows()?;
    assert!(!rows.is_empty() && rows.len() < 1500 && rows.iter().all(|row| row.status == DELIVERED), "{}", rows.len());
    Ok(())
}

#[test]
fn a_signal_ends_it_while_every_row_waits() -> Result<()> {
    let backoff = r#"backoff = { base = "4s", factor = 1.0, max = "4s", jitter = 0.0 }"#;
    let rig = Rig::new(&Config::to(NOBODY)?.set_all("relays.0", backoff))?;
    let mut process = under_way(&rig, "--rows 20 --destination-failing 100")?;
    process.signal(Signal::INT)?;
    process.errors().wait_for_line("20 wait to be due")?;
    assert_eq!(process.wait()?.code(), Some(1));
    let told = process.errors().text();
    assert!(told.ends_with("error: interrupted") && !told.contains("pending rows"), "{told}");
    assert!(rig.outbox()?.rows()?.is_empty());
    Ok(())
}

#[test]
fn two_signals_end_it_at_once_and_what_is_left_is_told() -> Result<()> {
    let backoff = r#"backoff = { base = "1m", factor = 1.0, max = "1m", jitter = 0.0 }"#;
    let rig = Rig::new(&Config::to(NOBODY)?.set_all("relays.0", backoff))?;
    let mut process = under_way(&rig, "--rows 20 --destination-failing 100")?;
    process.signal(Signal::TERM)?;
    process.errors().wait_for_line("20 wait to be due")?;
    process.signal(Signal::TERM)?;
    assert_eq!(process.wait()?.code(), Some(1));
    let told = process.errors().text();
    let clear = told_command(&rig, "bench", "--clear --relay orders");
    assert!(told.contains(&format!("`{clear}` removes them")), "{told}");
    assert_eq!(rig.outbox()?.count("pending")?, 20);
    Ok(())
}

#[test]
fn what_a_killed_bench_has_left_is_cleared_and_nothing_else() -> Result<()> {
    let config = Config::to(NOBODY)?.set("storages.outbox.limits.call_timeout", "3s");
    let rig = Rig::new(&config.set("relays.0.lease", "5s").set("relays.0.publish_timeout", "2s"))?;
    let mut process = under_way(&rig, "--rows 400 --payload 0 --lanes 1 --destination-delay 300ms")?;
    process.kill()?;
    let outbox = rig.outbox()?;
    let id = outbox.add("outhaul.bench", Some("k1"), b"")?;
    let left = outbox.count("pending")?;
    let told = bench(&rig, "--publisher null --rows 1")?.failure(2)?;
    let expected = format!("storages.outbox has pending rows ({left}), of which {} are left from a bench that was killed", left - 1);
    assert!(told.contains(&expected) && told.contains(&told_command(&rig, "bench", "--clear --relay orders")), "{told}");
    let cleared = bench(&rig, "--clear")?.json()?;
    assert_eq!(number(&cleared, "/removed")?, u64::try_from(left - 1)?);
    let row = outbox.row(&id)?;
    assert_eq!((outbox.count("pending")?, row.attempts, row.leased_by), (1, 0, None));
    assert_eq!(outbox.rows()?.len(), 1 + outbox.count(DELIVERED)?);
    Ok(())
}

#[test]
fn two_signals_end_it_wherever_it_is() -> Result<()> {
    let rig = rig()?;
    let mut outbox = rig.outbox()?;
    let mut process = rig.start(&["bench", "--publisher", "null", "--rows", "1000000"])?;
    process.errors().wait_for_line("rows written")?;
    poll("rows", || Ok(!outbox.rows()?.is_empty()))?;
    outbox.connection().execute_batch("BEGIN IMMEDIATE")?;
    // Not the same twice: the system may make one of them.
    process.signal(Signal::INT)?;
    process.signal(Signal::TERM)?;
    assert_eq!(process.wait()?.code(), Some(1));
    let told = process.errors().text();
    assert!(told.contains("pending rows of the bench may be left") && told.ends_with("error: interrupted"), "{told}");
    outbox.connection().execute_batch("ROLLBACK")?;
    assert!(number(&bench(&rig, "--clear")?.json()?, "/removed")? > 0);
    assert!(outbox.rows()?.is_empty());
    Ok(())
}

#[test]
fn rows_whose_commit_was_not_answered_are_removed_with_the_others() -> Result<()> {
    on_each_major(|server| {
        let database = server.create_database()?;
        let wire = Wire::to(server.port)?;
        let rig = Rig::new(&Config::to(NOBODY)?.on_postgres(&wire.url(&database.url(), server.port)))?;
        let mut outbox = Outbox::of(&database)?;
        wire.lose_the_commit_after(b"outhaul.bench", Loss::Cut);
        let told = bench(&rig, "--publisher null --rows 400")?.failure(1)?;
        assert!(told.contains("enqueue failed") && !told.contains("are left"), "{told}");
        assert_eq!(outbox.count("pending")?, 0, "{told}");
        Ok(())
    })
}

#[test]
fn rows_behind_those_of_others_are_told_and_not_looked_for_for_ever() -> Result<()> {
    let config = Config::to(NOBODY)?.set("relays.0.in_flight_bytes", "1MiB").set("relays.0.max_message_bytes", "64KiB");
    let rig = Rig::new(&config)?;
    let mut process = under_way(&rig, "--rows 40 --keys 1 --lanes 1 --destination-delay 2s")?;
    process.kill()?;
    let mut outbox = rig.outbox()?;
    // As if they had been written before: their numbers are smaller.
    outbox.connection().execute_batch("UPDATE outbox SET available_at = 0, leased_by = NULL; UPDATE outbox SET id = id + 100000")?;
    let key: String = outbox.connection().query_row("SELECT min(key) FROM outbox", [], |row| row.get(0))?;
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200) \
               INSERT INTO outbox (id, topic, key, payload) SELECT i, 'orders', ?1, randomblob(20000) FROM n";
    outbox.connection().execute(sql, [&key])?;
    let left = outbox.count("pending")? - 200;
    let told = bench(&rig, "--clear")?.failure(1)?;
    assert!(told.contains(&format!("{left} rows cannot be claimed, though due: rows of others with the same keys come before")), "{told}");
    let untouched = "SELECT count(*) FROM outbox WHERE id <= 200 AND status = 'pending' AND attempts = 0 AND leased_by IS NULL";
    assert_eq!(outbox.connection().query_row(untouched, [], |row| row.get::<_, i64>(0))?, 200);
    Ok(())
}

#[test]
fn a_run_is_reported_though_its_purge_fails() -> Result<()> {
    let rig = rig()?;
    let mut outbox = rig.outbox()?;
    outbox
        .connection()
        .execute_batch("CREATE TRIGGER kept BEFORE DELETE ON outbox BEGIN SELECT RAISE(ABORT, 'kept for the auditors'); END")?;
    let finished = bench(&rig, "--publisher null --rows 50 --purge")?;
    assert!(finished.code.is_some_and(|code| code != 0), "{}", finished.errors);
    assert!(finished.errors.contains("purge failed") && finished.errors.contains("kept for the auditors"), "{}", finished.errors);
    let report: Value = serde_json::from_str(&finished.output)?;
    assert_eq!(number(only_run(&report)?, "/delivered")?, 50);
    Ok(())
}

#[test]
fn runs_that_had_ended_are_reported() -> Result<()> {
    let rig = rig()?;
    let mut process = rig.start(&["bench", "--json", "--publisher", "null", "--rate", "100", "--duration", "2s", "--runs", "9"])?;
    process.errors().wait_for_line("run 2 of 9")?;
    process.signal(Signal::INT)?;
    assert_eq!(process.wait()?.code(), Some(1));
    let report: Value = serde_json::from_str(&process.output().text())?;
    assert_eq!(number(only_run(&report)?, "/delivered")?, 200);
    assert!(process.errors().text().ends_with("error: interrupted"), "{}", process.errors().text());
    Ok(())
}

#[test]
fn two_settings_are_run_in_turn_and_compared() -> Result<()> {
    let rig = rig()?;
    let report = bench(&rig, "--publisher null --rows 500 --runs 2 --compare --native")?.json()?;
    let runs = report["runs"].as_array().context("no runs")?;
    let sides: Vec<(&str, bool)> =
        runs.iter().filter_map(|run| Some((run["side"].as_str()?, run["settings"]["native"].as_bool()?))).collect();
    assert_eq!(sides, [("A", false), ("B", true), ("A", false), ("B", true)]);
    assert!(runs.iter().all(|run| run["delivered"] == 500), "{report}");
    let ratio = &report["comparison"]["ratios"]["per_second"];
    assert_eq!(ratio["pairs"].as_array().map(Vec::len), Some(2), "{report}");
    assert_eq!(rig.outbox()?.count(DELIVERED)?, 2000);
    Ok(())
}

#[test]
fn postgres_is_measured_with_components_and_without() -> Result<()> {
    on_each_major(|server| {
        let (_database, mut outbox, rig) = stage(server, Config::to(NOBODY)?)?;
        for (flags, rows) in [("--publisher null --rows 700", 700), ("--publisher null --rows 700 --native --hosts 2", 1400)] {
            let report = bench(&rig, flags)?.json()?;
            let run = only_run(&report)?;
            assert_eq!(number(run, "/delivered")?, 700);
            assert!(number(run, "/calls/claim/items")? >= 700 && number(run, "/calls/settle/items")? >= 700, "{run}");
            assert!(report["versions"]["PostgreSQL"].is_string(), "{report}");
            assert_eq!((outbox.count(DELIVERED)?, outbox.count("pending")?), (rows, 0));
        }
        let claims: i64 = outbox.client().query_one("SELECT sum(attempts) FROM outbox", &[])?.get(0);
        assert_eq!(claims, 1400, "two hosts never take the same row");
        Ok(())
    })
}

#[test]
fn a_server_that_is_away_for_a_moment_does_not_end_a_steady_load() -> Result<()> {
    on_each_major(|server| {
        let (_database, mut outbox, rig) = stage(server, Config::to(NOBODY)?)?;
        let mut process = under_way(&rig, "--publisher null --rate 200 --duration 4s")?;
        for _ in 0..3 {
            let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                          WHERE datname = current_database() AND pid <> pg_backend_pid()";
            let ended: i64 = outbox.client().query_one(others, &[])?.get(0);
            assert!(ended > 0);
            let count = outbox.count(DELIVERED)?;
            poll("deliveries to go on", || Ok(outbox.count(DELIVERED)? > count))?;
        }
        let code = process.wait()?.code();
        assert_eq!(code, Some(0), "{}", process.errors().text());
        let report: Value = serde_json::from_str(&process.output().text())?;
        let run = only_run(&report)?;
        assert_eq!(number(run, "/delivered")? + number(run, "/unaccounted")?, 800, "{run}");
        assert_eq!((outbox.count(DELIVERED)?, outbox.count("pending")?), (800, 0));
        Ok(())
    })
}
