//! A report as pictures: `throughput.svg`, `latency.svg`, `claim.svg` and the like.
//!
//! - [`chart`]: a chart, drawn
//! - [`scale`]: values on an axis
//! - `ruler`: an axis for the drawing library
//! - `wrap`: lines of a long text

pub mod chart;
mod ruler;
pub mod scale;
mod wrap;
#[cfg(test)]
mod xml;

use super::compare::median;
use super::model::{Latency, Report, Run, Second, Settings, mib};
use super::settings;
use crate::atomic;
use chart::{Axis, Chart, ChartError, MOST_COLORS, Series};
use scale::Scale;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Plots that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The drawing failed.
    #[error(transparent)]
    Chart(#[from] ChartError),
    /// The folder or a file in it cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The names of all plots.
const NAMES: [&str; 5] = ["throughput", "latency", "latency-over-time", "claim", "memory"];

/// Creates the folder if it is not there, and makes sure that files can be written in it.
///
/// # Errors
/// If that is not so.
pub fn prepare(folder: &Path) -> Result<(), PlotError> {
    let written = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
    written.map(drop).map_err(|source| PlotError::Write { path: folder.to_owned(), source })
}

/// Writes the plots of a report into a folder, which is created if it is not there. Returns the files. A plot that would be empty is
/// left out, but for the throughput; one that an earlier report has left in the folder is removed then.
///
/// # Errors
/// If the folder or a file cannot be written.
pub fn write(report: &Report, folder: &Path) -> Result<Vec<PathBuf>, PlotError> {
    prepare(folder)?;
    let charts = charts(report);
    let path = |name: &str| folder.join(format!("{name}.svg"));
    for name in NAMES.iter().filter(|name| charts.iter().all(|(drawn, _)| drawn != *name)) {
        match fs::remove_file(path(name)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(PlotError::Write { path: path(name), source }),
            _ => {}
        }
    }
    charts.into_iter().map(|(name, chart)| save(&chart, path(name))).collect()
}

/// Writes one chart. Returns its file.
///
/// # Errors
/// If the file cannot be written.
pub fn save(chart: &Chart, path: PathBuf) -> Result<PathBuf, PlotError> {
    match atomic::replace(&path, &[chart.svg()?.as_bytes()]) {
        Ok(()) => Ok(path),
        Err(source) => Err(PlotError::Write { path, source }),
    }
}

/// The plots of a report by name.
#[must_use]
pub fn charts(report: &Report) -> Vec<(&'static str, Chart)> {
    let all = [throughput(report), latency(report), latency_over_time(report), claim(report), memory(report)];
    NAMES.into_iter().zip(all).filter(|(name, chart)| *name == "throughput" || chart.has_points()).collect()
}

/// Seconds that make a rate.
const SHORTEST: f64 = 0.2;

const TIME: &str = "time since the start (s)";

fn throughput(report: &Report) -> Chart {
    let points = |run: &Run| {
        let ends = std::iter::once(0.0).chain(run.series.iter().map(|second| second.at_seconds));
        // The last part of a run is shorter than a second; where it is much shorter, chance decides how much falls into it.
        let parts = run.series.iter().zip(ends).map(|(second, from)| (second, second.at_seconds - from));
        let parts = parts.filter(|(_, length)| *length >= SHORTEST || run.series.len() == 1);
        parts.map(|(second, length)| (second.at_seconds, second.delivered as f64 / length)).collect()
    };
    let y = Axis { label: "delivered (messages/s)".to_owned(), scale: Scale::Linear };
    over_time(report, "Throughput over time", y, points)
}

fn latency_over_time(report: &Report) -> Chart {
    let y = Axis { label: "99 % within (ms)".to_owned(), scale: Scale::Linear };
    let points = |run: &Run| of_seconds(run, |second| second.latency_p99_ms);
    over_time(report, "Latency from commit to delivery over time", y, points)
}

fn memory(report: &Report) -> Chart {
    let y = Axis { label: "resident memory (MiB)".to_owned(), scale: Scale::Linear };
    let resident = |second: &Second| (second.resident_bytes > 0).then(|| mib(second.resident_bytes));
    over_time(report, "Memory over time", y, |run| of_seconds(run, resident))
}

fn of_seconds(run: &Run, value: impl Fn(&Second) -> Option<f64>) -> Vec<(f64, f64)> {
    run.series.iter().filter_map(|second| Some((second.at_seconds, value(second)?))).collect()
}

fn over_time(report: &Report, title: &str, y: Axis, points: impl Fn(&Run) -> Vec<(f64, f64)>) -> Chart {
    let x = Axis { label: TIME.to_owned(), scale: Scale::Linear };
    Chart { title: title.to_owned(), note: note(report), x, y, series: series(report, |run| (points(run), true)) }
}

/// How many messages took at most how long.
fn latency(report: &Report) -> Chart {
    let points = |run: &Run| (run.latency.as_ref().map(distribution).unwrap_or_default(), true);
    Chart {
        title: "Latency from commit to delivery".to_owned(),
        note: note(report),
        x: Axis { label: "share of the messages".to_owned(), scale: Scale::Nines },
        y: Axis { label: "delivered within (ms)".to_owned(), scale: Scale::Logarithmic },
        series: series(report, points),
    }
}

/// A bucket of nothing has no place on a logarithmic axis; histograms begin at a microsecond.
const LEAST_MS: f64 = 0.001;

fn distribution(latency: &Latency) -> Vec<(f64, f64)> {
    let total: u64 = latency.buckets.iter().map(|(_, count)| count).sum();
    let mut below = 0;
    let mut points = Vec::with_capacity(latency.buckets.len() + 1);
    for (up_to, count) in &latency.buckets {
        points.push((below as f64 / total as f64, up_to.max(LEAST_MS)));
        below += count;
    }
    // Where the slowest message begins; all of them, 100 %, is at no place of this axis.
    points.extend(latency.buckets.last().map(|(up_to, _)| (1.0 - 0.5 / total as f64, up_to.max(LEAST_MS))));
    points
}

/// Points of the claims in all: more than that overlap.
const MOST_CLAIMS: usize = 500;

/// How long a claim takes, the more rows wait.
fn claim(report: &Report) -> Chart {
    let most = (MOST_CLAIMS / report.runs.len().max(1)).max(1);
    // With a steady load the backlog goes up and down: no line has a meaning there.
    let points = |run: &Run| (thinned(claims(run), most), run.settings.rate.is_none());
    Chart {
        title: "Claim time over backlog".to_owned(),
        note: note(report),
        x: Axis { label: "rows that wait (mean of the begin and the end of a second)".to_owned(), scale: Scale::Linear },
        y: Axis { label: "median of a second's claims (ms)".to_owned(), scale: Scale::Linear },
        series: series(report, points),
    }
}

/// The median of each second's claims over what waited meanwhile, in the order of the latter.
fn claims(run: &Run) -> Vec<(f64, f64)> {
    // A backlog is there when the run begins; a steady load is not.
    let before = if run.settings.rate.is_none() { run.settings.rows } else { 0 };
    let begins = std::iter::once(before).chain(run.series.iter().map(|second| second.backlog));
    let of = |(second, before): (&Second, u64)| {
        Some((f64::midpoint(before as f64, second.backlog as f64), second.claim_p50_us? as f64 / 1000.0))
    };
    let mut points: Vec<(f64, f64)> = run.series.iter().zip(begins).filter_map(of).collect();
    points.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    points
}

/// At most so many points, in place of many: each the median of as many neighbours.
fn thinned(points: Vec<(f64, f64)>, most: usize) -> Vec<(f64, f64)> {
    if points.len() <= most {
        return points;
    }
    let middle = |of: &mut dyn Iterator<Item = f64>| {
        let mut values: Vec<f64> = of.collect();
        values.sort_by(f64::total_cmp);
        median(&values)
    };
    let neighbours = points.chunks(points.len().div_ceil(most));
    neighbours
        .filter_map(|some| Some((middle(&mut some.iter().map(|point| point.0))?, middle(&mut some.iter().map(|point| point.1))?)))
        .collect()
}

/// One for each run. Runs of one side have its colour and share its name; without sides each has its own, as far as there are colours.
fn series(report: &Report, points: impl Fn(&Run) -> (Vec<(f64, f64)>, bool)) -> Vec<Series> {
    let b = settings::of_side(report, 'B').map(|run| &run.settings);
    let a = settings::of_side(report, 'A').map(|run| &run.settings);
    let mut named = Vec::new();
    report
        .runs
        .iter()
        .enumerate()
        .map(|(index, run)| {
            let (points, joined) = points(run);
            let (Some(a), Some(b)) = (a, b) else {
                let (name, color) = alone(index, report.runs.len());
                return Series { name, color, joined, points };
            };
            let (color, other) = if run.side == 'A' { (0, b) } else { (1, a) };
            let is_first = !named.contains(&run.side);
            named.push(run.side);
            let distinct = settings::distinct(&run.settings, other);
            let name = if distinct.is_empty() { run.side.to_string() } else { format!("{}: {distinct}", run.side) };
            Series { name: is_first.then_some(name), color, joined, points }
        })
        .collect()
}

/// Name and colour of a run, where there are so many of one side. Too many to be told apart are one.
fn alone(index: usize, runs: usize) -> (Option<String>, usize) {
    if runs <= MOST_COLORS { (Some(format!("run {}", index + 1)), index) } else { ((index == 0).then(|| format!("{runs} runs")), 0) }
}

/// Characters that are enough to find a commit by.
const COMMIT: usize = 12;

/// What was run, by which outhaul, and where. Of a comparison what both sides have; in what they differ is in the legend.
fn note(report: &Report) -> String {
    let commit = report.commit.as_ref().map_or_else(|| "not recorded".to_owned(), |commit| commit.chars().take(COMMIT).collect());
    let version = report.versions.get("outhaul").map_or("unknown", String::as_str);
    let machine = format!("{}, {} cores; outhaul {version}, commit {commit}", report.machine.cpu, report.machine.cores);
    let Some(a) = settings::of_side(report, 'A').map(|run| told(&run.settings)) else { return machine };
    let b = settings::of_side(report, 'B').map_or_else(|| a.clone(), |run| told(&run.settings));
    let both = a.into_iter().zip(b).filter(|(a, b)| a == b).map(|(a, _)| a);
    format!("{}; {machine}", both.collect::<Vec<_>>().join(", "))
}

fn told(of: &Settings) -> [String; 5] {
    let load = of.rate.map_or_else(|| format!("{} rows", of.rows), |rate| format!("{rate} rows/s"));
    [
        format!("{} to {}", of.storage, of.publisher),
        settings::adapters(of).to_owned(),
        load,
        format!("{} bytes each", of.payload_bytes),
        format!("batch {}", of.batch),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn names(report: &Report) -> Vec<&'static str> {
        charts(report).into_iter().map(|(name, _)| name).collect()
    }

    fn chart(report: &Report, name: &str) -> Chart {
        charts(report).into_iter().find(|(found, _)| *found == name).unwrap().1
    }

    #[test]
    fn files_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let report = sample::report(vec![sample::run('A')]);
        let files = write(&report, &folder.path().join("new")).unwrap();
        let found: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(found, ["throughput.svg", "latency.svg", "latency-over-time.svg", "claim.svg", "memory.svg"]);
        let texts = xml::texts(&fs::read_to_string(&files[0]).unwrap());
        for text in ["Throughput over time", "time since the start (s)", "delivered (messages/s)", "run 1", "600"].map(str::to_owned) {
            assert!(texts.contains(&text), "{text} is not in {texts:?}");
        }
        // Broken where the line ends.
        let note = "outbox (sqlite-storage) to null, storage as component, null publisher, 1000 rows, 256 bytes each, batch 500; Example \
                    9000, 2 cores; outhaul 0.1.0, commit not recorded";
        assert!(texts.join(" ").contains(note), "{texts:?}");
        fs::write(folder.path().join("file"), "").unwrap();
        for error in [write(&report, &folder.path().join("file")).unwrap_err(), prepare(&folder.path().join("file")).unwrap_err()] {
            assert!(error.to_string().starts_with("cannot write /"), "{error}");
        }
    }

    #[test]
    fn plots_of_an_earlier_report_do_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("notes.svg"), "").unwrap();
        write(&sample::report(vec![sample::run('A')]), folder.path()).unwrap();
        write(&sample::report(vec![Run { latency: None, ..sample::run('A') }]), folder.path()).unwrap();
        let files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        assert_eq!(
            files.collect::<std::collections::BTreeSet<_>>(),
            ["claim.svg", "latency-over-time.svg", "memory.svg", "notes.svg", "throughput.svg"].map(str::to_owned).into()
        );
    }

    #[test]
    fn what_was_not_measured_is_not_drawn() {
        let mut run = sample::run('A');
        run.latency = None;
        for second in &mut run.series {
            (second.claim_p50_us, second.latency_p99_ms) = (None, None);
        }
        assert_eq!(names(&sample::report(vec![run.clone()])), ["throughput", "memory"]);
        run.series.clear();
        assert_eq!(names(&sample::report(vec![run])), ["throughput"]);
        assert_eq!(names(&sample::report(Vec::new())), ["throughput"]);
    }

    #[test]
    fn a_part_of_a_second_counts_as_one() {
        let mut run = sample::run('A');
        run.series[1] = Second { at_seconds: 1.25, delivered: 100, ..run.series[1] };
        let points = |run: &Run| chart(&sample::report(vec![run.clone()]), "throughput").series[0].points.clone();
        assert_eq!(points(&run), [(1.0, 600.0), (1.25, 400.0)]);
        run.series[1].at_seconds = 1.1;
        assert_eq!(points(&run), [(1.0, 600.0)]);
        run.series.remove(0);
        run.series[0].at_seconds = 0.125;
        assert_eq!(points(&run), [(0.125, 800.0)]);
    }

    #[test]
    fn a_distribution_ends_with_the_slowest_message() {
        let latency = chart(&sample::report(vec![sample::run('A')]), "latency");
        assert_eq!(latency.series[0].points, [(0.0, 4.0), (0.5, 8.0), (0.95, 20.25), (0.999, 31.0), (0.9995, 31.0)]);
    }

    #[test]
    fn claims_are_in_the_order_of_the_backlog() {
        let steady = Settings { rate: Some(200), ..sample::settings() };
        let report = sample::report(vec![sample::run('A'), Run { settings: steady, ..sample::run('A') }]);
        let claim = chart(&report, "claim");
        // 1000 rows are there at first, and no row of a steady load.
        assert_eq!(claim.series[0].points, [(200.0, 5.0), (700.0, 5.5)]);
        assert_eq!(claim.series[1].points, [(200.0, 5.5), (200.0, 5.0)]);
        assert_eq!((claim.series[0].joined, claim.series[1].joined), (true, false));
    }

    #[test]
    fn a_run_of_less_than_a_second_has_claims_of_its_backlog() {
        let mut run = sample::run('A');
        run.series = vec![Second { backlog: 0, ..run.series[0] }];
        assert_eq!(chart(&sample::report(vec![run]), "claim").series[0].points, [(500.0, 5.5)]);
    }

    #[test]
    fn claims_of_an_hour_are_thinned() {
        let mut run = sample::run('A');
        run.settings.rate = Some(200);
        run.series = (0..3600).map(|at| Second { backlog: at, claim_p50_us: Some(1000 * at), ..run.series[0] }).collect();
        let points = |runs: Vec<Run>| chart(&sample::report(runs), "claim").series[0].points.clone();
        let thin = points(vec![run.clone()]);
        assert_eq!((thin.len(), thin[1]), (450, (11.0, 11.5)));
        assert_eq!(points(vec![run.clone(), run]).len(), 240);
        assert_eq!(thinned(vec![(1.0, 5.0), (2.0, 9.0), (3.0, 1.0)], 1), [(2.0, 5.0)]);
    }

    #[test]
    fn more_runs_than_colours_are_one() {
        let of = |runs: usize| chart(&sample::report(vec![sample::run('A'); runs]), "throughput").series;
        assert!(of(7).iter().zip(0..).all(|(series, index)| series.color == index && series.name.is_some()));
        let names: Vec<_> = of(8).into_iter().map(|series| (series.name, series.color)).collect();
        assert_eq!((&names[0], &names[1..]), (&(Some("8 runs".to_owned()), 0), &vec![(None, 0); 7][..]));
    }

    #[test]
    fn sides_have_a_colour_each() {
        let mut b = sample::run('B');
        b.settings.batch = 50;
        let mut report = sample::report(vec![sample::run('A'), b.clone(), sample::run('A'), b]);
        report.commit = Some("0123456789abcdef".to_owned());
        let series = chart(&report, "throughput").series;
        let seen: Vec<_> = series.iter().map(|series| (series.name.as_deref(), series.color)).collect();
        assert_eq!(seen, [(Some("A: batch 500"), 0), (Some("B: batch 50"), 1), (None, 0), (None, 1)]);
        let note = "outbox (sqlite-storage) to null, storage as component, null publisher, 1000 rows, 256 bytes each; Example 9000, 2 cores; \
                    outhaul 0.1.0, commit 0123456789ab";
        assert_eq!(chart(&report, "throughput").note, note, "not the batch of one of them");
        let alone = chart(&sample::report(vec![sample::run('A'), sample::run('A')]), "throughput").series;
        assert_eq!(
            alone.iter().map(|series| (series.name.as_deref().unwrap(), series.color)).collect::<Vec<_>>(),
            [("run 1", 0), ("run 2", 1)]
        );
    }
}
