//! Figures of several runs, and tables of them in Markdown.

use outhaul::bench::compare::{claims, median};
use outhaul::bench::model::{Report, Run, Second, mib};
use std::ops::RangeInclusive;

/// The middle of some figures, and how far they reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of those that are there; none of nothing.
    pub(crate) fn of(figures: impl IntoIterator<Item = Option<f64>>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().flatten().filter(|figure| figure.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        Some(Self { median: median(&sorted)?, min: *sorted.first()?, max: *sorted.last()? })
    }
}

/// How long what counts as a second may be: samples are not taken to the millisecond.
const A_SECOND: RangeInclusive<f64> = 0.9..=1.1;

pub(crate) fn claim_p50_ms(run: &Run) -> Option<f64> {
    claims(run).map(|(_, calls)| calls.p50_us as f64 / 1000.0)
}

pub(crate) fn claim_p99_ms(run: &Run) -> Option<f64> {
    claims(run).map(|(_, calls)| calls.p99_us as f64 / 1000.0)
}

/// Messages of the median second: the beginning and the end of a run, when not all requests are under way, do not tell. What is not a
/// whole second, as the last sample is, does not count.
pub(crate) fn median_second(run: &Run) -> Option<f64> {
    let begins = std::iter::once(0.0).chain(run.series.iter().map(|second| second.at_seconds));
    let seconds = run.series.iter().zip(begins).filter(|(second, begin)| A_SECOND.contains(&(second.at_seconds - begin)));
    Spread::of(seconds.map(|(second, _)| Some(second.delivered as f64))).map(|spread| spread.median)
}

/// How long claims take while nearly all rows of a backlog wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AtTheStart {
    /// Median of the seconds, of the median of each.
    pub(crate) p50_ms: f64,
    /// Rows that wait at the end of them, of all: 1 would be all.
    pub(crate) left: f64,
}

/// Of the seconds that end with nine tenths of the rows waiting, and of the first one however it ends.
pub(crate) fn claims_at_the_start(run: &Run) -> Option<AtTheStart> {
    let rows = run.settings.rows;
    let is_full = |second: &Second| second.backlog >= rows - rows / 10;
    let count = run.series.iter().take_while(|second| is_full(second)).count().max(1);
    let seconds = || run.series.iter().take(count);
    let p50_ms = Spread::of(seconds().map(|second| second.claim_p50_us.map(|us| us as f64 / 1000.0)))?.median;
    Some(AtTheStart { p50_ms, left: run.series.get(count - 1)?.backlog as f64 / rows as f64 })
}

/// A cell: the figure, or a dash.
pub(crate) fn cell(figure: Option<f64>, decimals: usize) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.decimals$}"))
}

/// A table; the first `texts` columns are texts, the others figures.
pub(crate) fn table<const N: usize>(head: [&str; N], texts: usize, rows: impl IntoIterator<Item = [String; N]>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut table = line(&head.map(str::to_owned));
    let rule: Vec<String> = (0..N).map(|column| if column < texts { "---" } else { "---:" }.to_owned()).collect();
    table.push_str(&line(&rule));
    table.extend(rows.into_iter().map(|row| line(&row)));
    table
}

/// The machine and the versions, as the lines of a list.
pub(crate) fn origin(report: &Report) -> String {
    let machine = &report.machine;
    let versions: Vec<String> = report.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    format!(
        "- machine: {}, {} cores, {:.1} GiB, {}\n- versions: {}\n- commit: {}\n- begun: {}\n",
        machine.cpu,
        machine.cores,
        mib(machine.memory_bytes) / 1024.0,
        machine.system,
        versions.join(", "),
        report.commit.as_deref().unwrap_or("not recorded"),
        report.started_at
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_of_what_there_is() {
        assert_eq!(Spread::of([Some(3.0), None, Some(1.0), Some(f64::NAN)]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of([Some(3.0), Some(1.0), Some(10.0)]), Some(Spread { median: 3.0, min: 1.0, max: 10.0 }));
        assert_eq!(Spread::of([None]), None);
    }

    #[test]
    fn claims_of_a_backlog_are_those_before_it_is_gone() {
        let mut run: Run = serde_json::from_str(include_str!("run.json")).unwrap();
        let mut of = |seconds: &[(u64, Option<u64>)]| {
            run.series = seconds.iter().map(|&(backlog, claim_p50_us)| Second { backlog, claim_p50_us, ..Second::default() }).collect();
            claims_at_the_start(&run)
        };
        let start = |p50_ms, left| Some(AtTheStart { p50_ms, left });
        // Of 1000 rows.
        assert_eq!(of(&[(960, Some(4000)), (930, None), (900, Some(6000)), (899, Some(100)), (0, Some(100))]), start(5.0, 0.9));
        assert_eq!(of(&[(400, Some(3000)), (0, Some(100))]), start(3.0, 0.4));
        assert_eq!(of(&[(990, None), (0, Some(100))]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_median_second_is_neither_the_first_nor_the_last() {
        let mut run: Run = serde_json::from_str(include_str!("run.json")).unwrap();
        let mut of = |samples: &[(f64, u64)]| {
            run.series = samples.iter().map(|&(at_seconds, delivered)| Second { at_seconds, delivered, ..Second::default() }).collect();
            median_second(&run)
        };
        assert_eq!(of(&[(1.0, 200), (2.01, 310), (3.0, 305), (4.0, 300), (5.0, 40)]), Some(300.0));
        // Nor is a part of one, at the end or where a sample was late.
        assert_eq!(of(&[(1.0, 200), (2.0, 310), (3.6, 480), (4.0, 120), (5.0, 300), (5.1, 30)]), Some(300.0));
        assert_eq!(of(&[(0.4, 120)]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn tables_are_markdown() {
        let rows = [["a".to_owned(), cell(Some(1.26), 1)], ["b".to_owned(), cell(None, 1)]];
        assert_eq!(table(["x", "y"], 1, rows), "| x | y |\n| --- | ---: |\n| a | 1.3 |\n| b | - |\n");
    }
}
