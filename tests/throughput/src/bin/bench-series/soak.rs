//! One long run at a steady rate: whether memory and latency at its end are as they were at its start.

use super::figures::{Spread, cell, origin, table};
use super::ground::{Bench, Kind, Ran, Setup};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use outhaul::bench::model::{Report, Run, Second, mib};
use outhaul::bench::plot;
use std::fs;
use std::path::Path;

/// How long, and with how much load.
#[derive(Args)]
pub(crate) struct Options {
    /// How long.
    #[arg(long, default_value_t = 1.0, value_parser = long_enough)]
    hours: f64,
    /// Messages a second.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// On this database.
    #[arg(long, value_enum, default_value = "sqlite")]
    pub(crate) database: Kind,
}

/// More memory at the end than so much more than at the start is a leak: allocators hold back a little.
const MEMORY_SHARE: f64 = 1.05;
/// The same in MiB, for a short run.
const MEMORY_MIB: f64 = 4.0;

/// More latency than so many times as much is a drift.
const LATENCY_SHARE: f64 = 1.5;
/// The same in milliseconds: below that it is the machine.
const LATENCY_MS: f64 = 5.0;

/// The share of a run in which it gets under way: compiles, fills pools, starts connections.
const WARM_UP: f64 = 0.05;

/// The share of a run that is looked at, at its start, its middle and its end.
const WINDOW: f64 = 0.1;

/// What a part of the run came to.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Part {
    memory_mib: Spread,
    /// Of the slowest hundredth of each second.
    latency_ms: Spread,
}

/// The run in three parts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Parts {
    start: Part,
    middle: Part,
    end: Part,
}

pub(crate) fn run(bench: &Bench, options: &Options, out: &Path) -> Result<()> {
    let arguments = format!("--rate {} --duration {}s --destination-delay 5ms", options.rate, seconds(options.hours));
    let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
    let folder = out.join("soak");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // A table that grows would take its share of the latency; operators purge it.
    let ran = bench.run(options.database, Setup { concurrency: 64, deletes: true }, &arguments)?;
    written(&ran, options, out)
}

/// The report before all else: whatever is wrong with an hour, it is not lost.
fn written(ran: &Ran, options: &Options, out: &Path) -> Result<()> {
    let (report, folder) = (&ran.report, out.join("soak"));
    fs::write(folder.join("report.json"), serde_json::to_string(report)?).context("cannot write report.json")?;
    let run = report.runs.first().context("no run in the report")?;
    let mut complaints = faults(run);
    complaints.extend(ran.fault.clone());
    let parts = parts(&run.series);
    match &parts {
        Some(parts) => complaints.extend(drifts(parts)),
        None => complaints.push("the run was too short to be looked at in parts".to_owned()),
    }
    let mut page = page(report, run, parts.as_ref(), options, &complaints);
    for file in plot::write(report, &folder)? {
        let name = file.file_name().context("a plot without a name")?.to_string_lossy().into_owned();
        page.push_str(&format!("\n![{name}](soak/{name})\n"));
    }
    fs::write(out.join("soak.md"), &page).context("cannot write soak.md")?;
    println!("{page}");
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    Ok(())
}

fn seconds(hours: f64) -> f64 {
    (hours * 3600.0).round()
}

/// Hours of the command line.
fn long_enough(text: &str) -> Result<f64, String> {
    let hours = super::above_zero(text)?;
    if seconds(hours) < 20.0 {
        return Err("a run of less than 20 seconds has no start, middle and end: 0.01 or more".to_owned());
    }
    Ok(hours)
}

/// What makes it another run than the one that was asked for.
fn faults(run: &Run) -> Vec<String> {
    let whole = run.delivered == run.settings.rows && run.dead == 0;
    let lost = (!whole).then(|| format!("delivered {} of {}, {} ended dead", run.delivered, run.settings.rows, run.dead));
    let missed = run.missed_rate();
    let missed = missed.map(|(asked, achieved)| format!("{achieved:.0} of {asked} messages/s were committed: that was another load"));
    [lost, missed].into_iter().flatten().collect()
}

/// The start, the middle and the end; none where a part has nothing in it.
fn parts(series: &[Second]) -> Option<Parts> {
    let end = series.last()?.at_seconds;
    let part = |from: f64| {
        let within: Vec<&Second> =
            series.iter().filter(|second| second.at_seconds > from * end && second.at_seconds <= (from + WINDOW) * end).collect();
        let memory_mib = Spread::of(within.iter().map(|second| Some(mib(second.resident_bytes))))?;
        let latency_ms = Spread::of(within.iter().map(|second| second.latency_p99_ms))?;
        Some(Part { memory_mib, latency_ms })
    };
    Some(Parts { start: part(WARM_UP)?, middle: part(0.5 - WINDOW / 2.0)?, end: part(1.0 - WINDOW)? })
}

/// What has not stayed as it was.
fn drifts(parts: &Parts) -> Vec<String> {
    let grown = |what: &str, unit: &str, pick: fn(&Part) -> Spread, share: f64, least: f64| {
        let (start, end) = (pick(&parts.start).median, pick(&parts.end).median);
        (end > start * share && end > start + least).then(|| format!("{what} has grown from {start:.1} to {end:.1} {unit}"))
    };
    let memory = grown("memory", "MiB", |part| part.memory_mib, MEMORY_SHARE, MEMORY_MIB);
    let latency = grown("latency", "ms", |part| part.latency_ms, LATENCY_SHARE, LATENCY_MS);
    [memory, latency].into_iter().flatten().collect()
}

fn page(report: &Report, run: &Run, parts: Option<&Parts>, options: &Options, complaints: &[String]) -> String {
    let parts = parts.map(|parts| [("start", &parts.start), ("middle", &parts.middle), ("end", &parts.end)]);
    let rows = parts.into_iter().flatten().map(|(name, part)| {
        let spread = |spread: Spread, decimals: usize| {
            let Spread { median, min, max } = spread;
            [cell(Some(median), decimals), format!("{min:.decimals$} to {max:.decimals$}")]
        };
        let ([memory, memories], [latency, latencies]) = (spread(part.memory_mib, 1), spread(part.latency_ms, 1));
        [name.to_owned(), memory, memories, latency, latencies]
    });
    let head = ["part", "memory (MiB)", "least to most", "latency p99 of a second (ms)", "least to most"];
    let all = run.latency.as_ref().map_or_else(String::new, |latency| {
        format!(
            "Latency of all {} messages: p50 {:.1} ms, p95 {:.1} ms, p99 {:.1} ms, max {:.1} ms. ",
            latency.count, latency.p50_ms, latency.p95_ms, latency.p99_ms, latency.max_ms
        )
    });
    let verdict = if complaints.is_empty() {
        "Memory is flat and latency does not drift.".to_owned()
    } else {
        format!("Not as it is to be: {}.", complaints.join("; "))
    };
    format!(
        "# A steady load for a long time\n\nWritten by `cargo xtask soak --hours {}`: {} messages/s of {} bytes from {} to an HTTP destination that \
         answers after 5 ms. Start, middle and end are a tenth of the run each, the start after the first twentieth; medians.\n\n{}\n{}\n\
         {all}Peak memory: {:.1} MiB. CPU: {} µs a message.\n\n{verdict}\n",
        options.hours,
        options.rate,
        run.settings.payload_bytes,
        options.database,
        origin(report),
        table(head, 1, rows),
        mib(run.memory.peak_bytes),
        cell(run.cpu.us_per_message, 1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(memory_mib: impl Fn(f64) -> f64, latency_ms: impl Fn(f64) -> Option<f64>) -> Vec<Second> {
        let second = |at: u32| {
            let at_seconds = f64::from(at);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
            let resident_bytes = (memory_mib(at_seconds) * f64::from(1 << 20)) as u64;
            Second { at_seconds, resident_bytes, latency_p99_ms: latency_ms(at_seconds), ..Second::default() }
        };
        (1..=1000).map(second).collect()
    }

    #[test]
    fn what_stays_is_fine_and_what_grows_is_told() {
        // Much at the beginning, and one bad second, are no drift.
        let flat = parts(&series(|at| if at < 40.0 { 20.0 } else { 80.0 }, |at| Some(if at == 990.0 { 500.0 } else { 8.0 }))).unwrap();
        assert_eq!(drifts(&flat), Vec::<String>::new());
        assert_eq!(flat.end.latency_ms, Spread { median: 8.0, min: 8.0, max: 500.0 });
        let grown = parts(&series(|at| 80.0 + at / 100.0, |at| Some(4.0 + at / 50.0))).unwrap();
        assert_eq!(drifts(&grown), ["memory has grown from 81.0 to 89.5 MiB", "latency has grown from 6.0 to 23.0 ms"]);
    }

    #[test]
    fn parts_want_figures() {
        assert_eq!(parts(&[]), None);
        assert_eq!(parts(&series(|_| 1.0, |_| None)), None);
    }

    fn report(series: Vec<Second>) -> Report {
        let run: Run = serde_json::from_str(include_str!("run.json")).unwrap();
        let machine = serde_json::json!({ "cpu": "c", "cores": 2, "memory_bytes": 1, "system": "s" });
        let mut report: Report = serde_json::from_value(
            serde_json::json!({ "machine": machine, "versions": {}, "commit": null, "started_at": "2026-11-30T09:00:00Z", "runs": [run] }),
        )
        .unwrap();
        report.runs[0].series = series;
        report
    }

    #[test]
    fn an_hour_is_written_down_whatever_is_wrong_with_it() {
        let options = Options { hours: 1.0, rate: 500, database: Kind::Sqlite };
        let steady = || series(|_| 80.0, |_| Some(8.0));
        let written = |delivered: u64, series: Vec<Second>, fault: Option<&str>| {
            let out = tempfile::tempdir().unwrap();
            fs::create_dir_all(out.path().join("soak")).unwrap();
            let mut report = report(series);
            report.runs[0].delivered = delivered;
            let ended = super::written(&Ran { report, fault: fault.map(str::to_owned) }, &options, out.path());
            let raw = fs::read_to_string(out.path().join("soak/report.json")).unwrap();
            assert_eq!(serde_json::from_str::<Report>(&raw).unwrap().runs[0].delivered, delivered);
            (ended.map_err(|error| error.to_string()), fs::read_to_string(out.path().join("soak.md")).unwrap())
        };
        let (ended, page) = written(1000, steady(), None);
        assert_eq!(ended, Ok(()));
        assert!(page.contains("\nMemory is flat and latency does not drift.\n"), "{page}");
        let (ended, page) = written(990, steady(), Some("it failed"));
        assert_eq!(ended, Err("delivered 990 of 1000, 0 ended dead; it failed".to_owned()));
        assert!(page.contains("\nNot as it is to be: delivered 990 of 1000, 0 ended dead; it failed.\n"), "{page}");
        let (ended, _) = written(1000, Vec::new(), None);
        assert_eq!(ended, Err("the run was too short to be looked at in parts".to_owned()));
    }
}
