//! `outhaul bench`, with real tables: what it counts is what is in them. Nothing here looks at how fast anything was.

use anyhow::{Context, Result};
use outhaul_tests::outbox::DELIVERED;
use outhaul_tests::postgres::{on_each_major, stage};
use outhaul_tests::rig::{Config, Finished, Rig};
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
    assert!(finished.errors.contains("outhaul purge --storage outbox --older-than 0s"), "{}", finished.errors);
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
    assert_eq!(rig.outbox()?.count("pending")?, 0);
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
    ] {
        let told = bench(&rig, flags)?.failure(2)?;
        assert!(told.contains(text), "{flags}: {told}");
    }
    assert!(rig.outbox()?.rows()?.is_empty());
    Ok(())
}

#[test]
fn rows_of_others_are_handed_back_and_end_the_bench() -> Result<()> {
    let rig = rig()?;
    let mut process = rig.start(&["bench", "--json", "--publisher", "null", "--rate", "50", "--duration", "1m"])?;
    process.errors().wait_for_line("rows done")?;
    let outbox = rig.outbox()?;
    let id = outbox.add("orders", None, b"{}")?;
    assert_eq!(process.wait()?.code(), Some(1));
    let told = process.errors().text();
    assert!(told.contains("somebody else writes to the table"), "{told}");
    assert!(told.contains("pending rows are left in the table of storages.outbox"), "{told}");
    let row = outbox.row(&id)?;
    assert_eq!((row.status.as_str(), row.attempts, row.leased_by), ("pending", 0, None));
    Ok(())
}

#[test]
fn a_signal_ends_it_and_its_rows_are_not_delivered_later() -> Result<()> {
    let rig = rig()?;
    let mut process = rig.start(&["bench", "--rows", "1500", "--keys", "10", "--lanes", "1", "--destination-delay", "300ms"])?;
    process.errors().wait_for_line("rows done")?;
    process.signal(Signal::INT)?;
    assert_eq!(process.wait()?.code(), Some(1));
    let told = process.errors().text();
    assert!(told.contains("error: interrupted\n") || told.ends_with("error: interrupted"), "{told}");
    let outbox = rig.outbox()?;
    assert_eq!((outbox.count("pending")?, outbox.count(DELIVERED)?), (0, 1500));
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
        Ok(())
    })
}
