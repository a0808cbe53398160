//! The page of `cargo xtask growth`: what came out so far as a table and plots for each sweep, and what has failed.

use super::figures::{self, Spread, cell, claim_p50_ms, claim_p99_ms, claims_at_the_start, median_second, table};
use super::ground::Kind;
use super::growth::{Failed, Options, Point, Results, case_of};
use super::sweeps::{Case, Sweep};
use anyhow::{Context as _, Result};
use outhaul::bench::model::{Run, mib};
use outhaul::bench::plot::chart::{Axis, Chart, Series};
use outhaul::bench::plot::save;
use outhaul::bench::plot::scale::Scale;
use std::fs;
use std::path::Path;

/// Writes the page and its plots.
pub(crate) fn write(results: &Results, sweeps: &[Sweep], options: &Options, out: &Path) -> Result<()> {
    let mut page = head(results, options);
    for (number, sweep) in sweeps.iter().enumerate() {
        let of = |case: usize, kind: Kind| results.of(Point { sweep: number, case, kind });
        page.push_str(&section(sweep, &options.databases, &of));
        for (name, chart) in charts(sweep, &options.databases, &of) {
            save(&chart, out.join(format!("growth/{name}.svg")))?;
            page.push_str(&format!("\n![{}](growth/{name}.svg)\n", chart.title));
        }
    }
    page.push_str(&failures(results, sweeps)?);
    fs::write(out.join("growth.md"), page).context("cannot write growth.md")
}

fn head(results: &Results, options: &Options) -> String {
    let (made, wanted) = (results.rounds, options.runs);
    let runs = if made < wanted { format!("{made} of {wanted} runs so far") } else { format!("{wanted} runs") };
    let origin = results.measured.first().map(|(_, report)| figures::origin(report)).unwrap_or_default();
    let is_scaled = (options.scale - 1.0).abs() > f64::EPSILON;
    let scale = if is_scaled { format!("- rows: {} times as many\n", options.scale) } else { String::new() };
    format!(
        "# How throughput and claim time grow\n\nWritten by `cargo xtask growth`, out of growth/runs.jsonl. Each run of `outhaul bench` is on a fresh table; \
         figures are medians of {runs}, taken in turn. A claim on SQLite settles the batch before and waits for the disk, \
         in the same call.\n\n{origin}{scale}"
    )
}

/// Which runs have failed, and why; nothing if none has.
fn failures(results: &Results, sweeps: &[Sweep]) -> Result<String> {
    if results.failed.is_empty() {
        return Ok(String::new());
    }
    let row = |failed: &Failed| {
        let (sweep, case) = case_of(sweeps, failed.at)?;
        let reason = failed.reason.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        Ok([sweep.name.to_owned(), case.value.clone(), failed.at.kind.to_string(), failed.round.to_string(), reason])
    };
    let rows = results.failed.iter().map(row).collect::<Result<Vec<_>>>()?;
    Ok(format!("\n## Did not run\n\n{}", table(["sweep", "case", "database", "round", "reason"], 5, rows)))
}

fn spread(runs: &[&Run], figure: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
    Spread::of(runs.iter().map(|run| figure(run)))
}

/// What of the claims of a backlog is shown.
const AT_THE_START: &str = "Claim p50 is that of the seconds that end with nine tenths of the rows waiting, and of the first second however it \
                            ends; in brackets how much waits at the end of them. Claim p99 is that of the whole drain.\n\n";

/// What is compared with a ceiling.
const IN_THE_MIDDLE: &str = "Of the ceiling: by the median second of a run, for at the beginning and at the end not all requests are under way. \
                             Messages/s are those of the whole run.\n\n";

/// The table of a sweep.
fn section<'a>(sweep: &Sweep, kinds: &[Kind], of: &dyn Fn(usize, Kind) -> Vec<&'a Run>) -> String {
    let rows = sweep.cases.iter().enumerate().flat_map(|(number, case)| kinds.iter().map(move |kind| (number, case, *kind)));
    let rows = rows.map(|(number, case, kind)| row(case, kind, sweep.is_of_backlogs, &of(number, kind)));
    let head = [
        sweep.varied,
        "database",
        "messages/s",
        "least to most",
        "of the ceiling",
        "claim p50 (ms)",
        "claim p99 (ms)",
        "CPU (µs/message)",
        "peak memory (MiB)",
    ];
    let has_ceiling = sweep.cases.iter().any(|case| case.ceiling.is_some());
    let note = match (sweep.is_of_backlogs, has_ceiling) {
        (true, _) => AT_THE_START,
        (_, true) => IN_THE_MIDDLE,
        _ => "",
    };
    format!("\n## {}\n\n{}.\n\n{note}{}", sweep.title, capital(&sweep.fixed), table(head, 2, rows))
}

fn row(case: &Case, kind: Kind, is_of_backlogs: bool, runs: &[&Run]) -> [String; 9] {
    let rate = spread(runs, |run| Some(run.per_second));
    let median = |figure: fn(&Run) -> Option<f64>| spread(runs, figure).map(|spread| spread.median);
    let share = case.ceiling.zip(median(median_second)).map(|(ceiling, rate)| format!("{:.0} % of {ceiling:.0}", 100.0 * rate / ceiling));
    let claim = if is_of_backlogs {
        let left = median(|run| Some(claims_at_the_start(run)?.left * 100.0));
        let left = left.map(|left| format!(" ({left:.0} %)"));
        cell(median(|run| Some(claims_at_the_start(run)?.p50_ms)), 1) + &left.unwrap_or_default()
    } else {
        cell(median(claim_p50_ms), 1)
    };
    [
        case.value.clone(),
        kind.to_string(),
        cell(rate.map(|rate| rate.median), 0),
        rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.0} to {:.0}", rate.min, rate.max)),
        share.unwrap_or_else(|| "-".to_owned()),
        claim,
        cell(median(claim_p99_ms), 1),
        cell(median(|run| run.cpu.us_per_message), 1),
        cell(median(|run| Some(mib(run.memory.peak_bytes))), 0),
    ]
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Messages a second over what is varied; for the backlog the claims too.
fn charts<'a>(sweep: &Sweep, kinds: &[Kind], of: &dyn Fn(usize, Kind) -> Vec<&'a Run>) -> Vec<(String, Chart)> {
    let names = Scale::Names(sweep.cases.iter().map(|case| case.value.clone()).collect());
    let positions = || sweep.cases.iter().zip(0_u32..).enumerate().map(|(case, (_, position))| (case, f64::from(position)));
    let medians = |figure: fn(&Run) -> Option<f64>| {
        let points = |kind| positions().filter_map(|(case, x)| Some((x, spread(&of(case, kind), figure)?.median))).collect();
        kinds.iter().enumerate().map(|(color, kind)| curve(kind.to_string(), color, points(*kind))).collect::<Vec<_>>()
    };
    let chart = |what: &str, y: &str, series: Vec<Series>| Chart {
        title: format!("{}: {what}", sweep.title),
        note: sweep.fixed.clone(),
        x: Axis { label: sweep.varied.to_owned(), scale: names.clone() },
        y: Axis { label: y.to_owned(), scale: sweep.rates.clone() },
        series,
    };
    let mut rates = medians(|run| Some(run.per_second));
    let ceiling: Vec<(f64, f64)> =
        positions().zip(&sweep.cases).filter_map(|((_, position), case)| Some((position, case.ceiling?))).collect();
    if !ceiling.is_empty() {
        rates.push(curve("concurrency / latency".to_owned(), 6, ceiling));
    }
    let mut charts = vec![(sweep.name.to_owned(), chart("throughput", "messages/s", rates))];
    if sweep.is_of_backlogs {
        let claims = medians(|run| Some(claims_at_the_start(run)?.p50_ms));
        charts.push((format!("{}-claim", sweep.name), chart("claim time at the start", "median claim (ms)", claims)));
    }
    charts
}

fn curve(name: String, color: usize, points: Vec<(f64, f64)>) -> Series {
    Series { name: Some(name), color, joined: true, points }
}

#[cfg(test)]
mod tests {
    use super::super::sweeps;
    use super::*;

    fn run(per_second: f64) -> Run {
        Run { per_second, ..serde_json::from_str(include_str!("run.json")).unwrap() }
    }

    #[test]
    fn a_sweep_is_a_table_and_a_plot() {
        let sweeps = sweeps::all();
        let sweep = sweeps.iter().find(|sweep| sweep.name == "destination").unwrap();
        let runs = [run(300.0), run(310.0), run(290.0)];
        // Only the first case was measured.
        let of = |case: usize, _: Kind| if case == 0 { runs.iter().collect() } else { Vec::new() };
        let section = section(sweep, &[Kind::Sqlite], &of);
        assert!(section.contains("\n| 16 | SQLite | 300 | 290 to 310 | 94 % of 320 | 1.5 | 2.5 | 20.0 | 100 |\n"), "{section}");
        assert!(section.contains("\n| 64 | SQLite | - | - | - | - | - | - | - |\n"), "{section}");
        assert!(section.starts_with("\n## A destination that takes 50 ms\n\nHttp-publisher, 4 lanes,"), "{section}");
        let charts = charts(sweep, &[Kind::Sqlite], &of);
        let [(name, chart)] = &charts[..] else { panic!("{charts:?}") };
        assert_eq!((name.as_str(), chart.title.as_str()), ("destination", "A destination that takes 50 ms: throughput"));
        assert_eq!(chart.series[0].points, [(0.0, 300.0)]);
        assert_eq!(chart.series[1].points, [(0.0, 320.0), (1.0, 1280.0), (2.0, 5120.0)]);
    }

    #[test]
    fn claims_of_a_backlog_are_those_of_its_start() {
        let sweeps = sweeps::all();
        let sweep = sweeps.iter().find(|sweep| sweep.name == "backlog").unwrap();
        let runs = [run(300.0)];
        let of = |case: usize, _: Kind| if case == 1 { runs.iter().collect() } else { Vec::new() };
        let section = section(sweep, &[Kind::Sqlite], &of);
        assert!(section.contains("\n| 100 k | SQLite | 300 | 300 to 300 | - | 3.2 (70 %) | 2.5 | 20.0 | 100 |\n"), "{section}");
        assert!(section.contains("\n| 1 M | SQLite | - | - | - | - | - | - | - |\n"), "{section}");
        assert!(section.contains("\n\nClaim p50 is that of the seconds"), "{section}");
        let charts = charts(sweep, &[Kind::Sqlite], &of);
        let [_, (name, chart)] = &charts[..] else { panic!("{charts:?}") };
        assert_eq!((name.as_str(), &chart.series[0].points), ("backlog-claim", &vec![(1.0, 3.25)]));
    }

    #[test]
    fn a_page_says_how_many_rounds_are_in_it() {
        let results = Results { rounds: 1, ..Results::default() };
        let options = Options { only: Vec::new(), databases: vec![Kind::Sqlite], runs: 3, scale: 1.0 };
        assert!(head(&results, &options).contains("figures are medians of 1 of 3 runs so far, taken in turn"));
    }
}
