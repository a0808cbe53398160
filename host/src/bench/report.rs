//! A report as tables for people. Programs take `--json`, which is the [model](super::model) itself.

use super::compare::MEASURES;
use super::model::{self, Latency, Report, Run};
use super::settings;
use crate::cli::output;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// What is told where the build was told no commit.
const NO_COMMIT: &str = "not recorded: built without OUTHAUL_COMMIT";

/// All tables, without a line break at the end. A table that has nothing to say is left out.
#[must_use]
pub fn text(report: &Report) -> String {
    let parts =
        [machine(report), set(report), runs(report), memory(report), load(report), latency(report), calls(report), comparison(report)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
}

/// What the tables do not say by themselves: that a run was another one than was asked for.
#[must_use]
pub fn notes(report: &Report) -> Vec<String> {
    let missed = named(report).filter_map(|(name, run)| {
        let (asked, achieved) = run.missed_rate()?;
        let achieved = figure(achieved, 0);
        Some(format!(
            "run {name}: the rate was missed: {achieved} of {asked} rows/s were committed, so latency says what the relay does at {achieved}"
        ))
    });
    let unaccounted = named(report).filter(|(_, run)| run.unaccounted > 0).map(|(name, run)| {
        let rows = output::count(run.unaccounted, "row");
        format!("run {name}: of {rows} the answer of the database was lost: done, and not counted")
    });
    missed.chain(unaccounted).collect()
}

fn machine(report: &Report) -> Option<String> {
    let machine = &report.machine;
    let memory = if machine.memory_bytes == 0 { "memory not known".to_owned() } else { format!("{} GiB", gib(machine.memory_bytes)) };
    let versions: Vec<String> = report.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let cores = output::count(u64::try_from(machine.cores).unwrap_or(u64::MAX), "core");
    let rows = [
        ["machine".to_owned(), format!("{}, {cores}, {memory}, {}", machine.cpu, machine.system)],
        ["versions".to_owned(), versions.join(", ")],
        ["commit".to_owned(), report.commit.clone().unwrap_or_else(|| NO_COMMIT.to_owned())],
        ["started".to_owned(), report.started_at.clone()],
    ];
    table(None, 2, rows)
}

/// The settings of A, and beside them what is different in B.
fn set(report: &Report) -> Option<String> {
    let a = &settings::of_side(report, 'A')?.settings;
    let Some(b) = settings::of_side(report, 'B') else {
        return table(Some(["SETTING", ""]), 2, settings::lines(a).into_iter().map(|(name, value)| [name, value]));
    };
    let rows = settings::pairs(a, &b.settings)
        .into_iter()
        .map(|(name, a, b)| if a == b { [name, brief(&a), "same".to_owned()] } else { [name, a, b] });
    table(Some(["SETTING", "A", "B"]), 3, rows)
}

/// What both sides have takes no more room than needed.
fn brief(value: &str) -> String {
    output::cell(value, BRIEF)
}

fn runs(report: &Report) -> Option<String> {
    let rows = named(report).map(|(name, run)| {
        [
            name,
            run.delivered.to_string(),
            run.retried.to_string(),
            run.dead.to_string(),
            figure(run.seconds, 2),
            figure(run.per_second, 0),
            figure(run.cpu.user_seconds, 2),
            figure(run.cpu.system_seconds, 2),
            run.cpu.us_per_message.map_or_else(|| NONE.to_owned(), |us| figure(us, 1)),
        ]
    });
    let head = ["RUN", "DELIVERED", "RETRIED", "DEAD", "SECONDS", "MESSAGES/S", "USER CPU (s)", "SYSTEM CPU (s)", "CPU/MESSAGE (us)"];
    table(Some(head), 1, rows)
}

fn memory(report: &Report) -> Option<String> {
    let rows = named(report).map(|(name, run)| {
        let memory = &run.memory;
        [name, mib(memory.start_bytes), mib(memory.middle_bytes), mib(memory.end_bytes), mib(memory.peak_bytes)]
    });
    titled("Resident memory of the process", table(Some(["RUN", "START (MiB)", "MIDDLE (MiB)", "END (MiB)", "PEAK (MiB)"]), 1, rows))
}

fn load(report: &Report) -> Option<String> {
    let rows = named(report).filter_map(|(name, run)| Some([name, run.settings.rate?.to_string(), figure(run.achieved_rate?, 1)]));
    titled("Steady load", table(Some(["RUN", "ASKED (rows/s)", "COMMITTED (rows/s)"]), 1, rows))
}

fn latency(report: &Report) -> Option<String> {
    let rows = named(report).flat_map(|(name, run)| {
        let of = |from: &str, latency: Option<&Latency>| {
            let Latency { count, p50_ms, p95_ms, p99_ms, max_ms, .. } = latency?;
            let [p50, p95, p99, max] = [p50_ms, p95_ms, p99_ms, max_ms].map(|ms| figure(*ms, 2));
            Some([name.clone(), from.to_owned(), count.to_string(), p50, p95, p99, max])
        };
        [of("commit", run.latency.as_ref()), of("due", run.latency_from_due.as_ref())].into_iter().flatten()
    });
    let head = ["RUN", "FROM", "MESSAGES", "P50 (ms)", "P95 (ms)", "P99 (ms)", "MAX (ms)"];
    titled("Latency to delivery, from the commit and from when it was due", table(Some(head), 2, rows))
}

fn calls(report: &Report) -> Option<String> {
    let rows = named(report).flat_map(|(run_name, run)| {
        run.calls.iter().map(move |(call, calls)| {
            let ms = |us: u64| figure(us as f64 / 1000.0, 3);
            [
                run_name.clone(),
                call.clone(),
                calls.count.to_string(),
                calls.items.to_string(),
                ms(calls.p50_us),
                ms(calls.p99_us),
                ms(calls.max_us),
            ]
        })
    });
    titled("Calls of the adapters", table(Some(["RUN", "CALL", "CALLS", "MESSAGES", "P50 (ms)", "P99 (ms)", "MAX (ms)"]), 2, rows))
}

fn comparison(report: &Report) -> Option<String> {
    let ratios = &report.comparison.as_ref()?.ratios;
    let rows = MEASURES.iter().filter_map(|(key, name, _)| {
        let ratio = ratios.get(*key)?;
        let pairs: Vec<String> = ratio.pairs.iter().map(|pair| figure(*pair, 3)).collect();
        Some([(*name).to_owned(), figure(ratio.median, 3), figure(ratio.min, 3), figure(ratio.max, 3), pairs.join(" ")])
    });
    titled("B against A: B / A of each pair of runs", table(Some(["WHAT", "MEDIAN", "MIN", "MAX", "PAIRS"]), 1, rows))
}

/// The runs with their names: a number, and the side where there are two.
fn named(report: &Report) -> impl Iterator<Item = (String, &Run)> {
    let has_sides = settings::of_side(report, 'B').is_some();
    report.runs.iter().zip(1..).map(move |(run, number)| {
        let name = if has_sides { format!("{number} {}", run.side) } else { format!("{number}") };
        (name, run)
    })
}

fn titled(title: &str, table: Option<String>) -> Option<String> {
    table.map(|table| format!("{title}\n{table}"))
}

/// A table whose columns from `texts` on are figures; none without rows.
fn table<const N: usize>(head: Option<[&str; N]>, texts: usize, rows: impl IntoIterator<Item = [String; N]>) -> Option<String> {
    let mut table = Table::new();
    // Never wrapped: a broken figure is none.
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if let Some(head) = head {
        table.set_header(head);
    }
    // Names of the configuration may have anything in them.
    table.add_rows(rows.into_iter().map(|row| row.map(|text| output::cell(&text, MOST_CHARACTERS))));
    for column in table.column_iter_mut().skip(texts) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    (!table.is_empty()).then(|| lines.join("\n"))
}

/// Characters of a setting that both sides have.
const BRIEF: usize = 40;

/// More than any text here has.
const MOST_CHARACTERS: usize = 1000;

/// In place of a figure that there is not: of nothing delivered there is no time for each.
const NONE: &str = "-";

fn figure(value: f64, decimals: usize) -> String {
    if value.is_finite() { format!("{value:.decimals$}") } else { NONE.to_owned() }
}

fn mib(bytes: u64) -> String {
    figure(model::mib(bytes), 1)
}

fn gib(bytes: u64) -> String {
    figure(bytes as f64 / f64::from(1 << 30), 1)
}

#[cfg(test)]
mod tests {
    use super::super::compare::compare;
    use super::super::sample;
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn one_run_is_told() {
        let report = sample::report(vec![sample::run('A')]);
        let expected = "\
\x20machine   Example 9000, 2 cores, 24.0 GiB, Linux 6.1
 versions  SQLite 3.50.2, outhaul 0.1.0
 commit    not recorded: built without OUTHAUL_COMMIT
 started   2026-11-30T09:00:00Z

 SETTING
 config            outhaul.toml
 relay             orders
 storage           outbox (sqlite-storage)
 storage.database  main
 storage.table     outbox
 database          main (SQLite, synchronous full)
 publisher         null
 adapters          storage as component, null publisher
 topic             outhaul.bench
 rows              1000
 payload           256 bytes
 keys              10
 load              backlog
 batch             500
 in flight         2000 rows, 1048576 bytes of each host
 settle delay      5 ms
 poll              10 to 1000 ms, woken within 50 ms
 back-off          1000 ms, times 2, up to 60000 ms
 publish batch     100 messages, 4194304 bytes
 lanes             4 of each host
 hosts             1
 destination       as configured
 purge             no

 RUN  DELIVERED  RETRIED  DEAD  SECONDS  MESSAGES/S  USER CPU (s)  SYSTEM CPU (s)  CPU/MESSAGE (us)
 1         1000        3     0     2.00         500          1.25            0.50            1750.0

Resident memory of the process
 RUN  START (MiB)  MIDDLE (MiB)  END (MiB)  PEAK (MiB)
 1           60.0          64.0       64.0        70.0

Latency to delivery, from the commit and from when it was due
 RUN  FROM    MESSAGES  P50 (ms)  P95 (ms)  P99 (ms)  MAX (ms)
 1    commit      1000      4.00      8.00     20.25     31.00
 1    due         1000      9.00     18.00     30.00     41.00

Calls of the adapters
 RUN  CALL              CALLS  MESSAGES  P50 (ms)  P99 (ms)  MAX (ms)
 1    claim                 1      1000     5.500     7.000     7.001
 1    settle_and_claim      4      1000     5.500     7.000     7.001";
        assert_eq!(text(&report), expected);
    }

    #[test]
    fn a_comparison_is_told() {
        let bare =
            |side, per_second| Run { per_second, latency: None, latency_from_due: None, calls: BTreeMap::new(), ..sample::run(side) };
        let mut runs = vec![bare('A', 500.0), bare('B', 1000.0), bare('A', 500.0), bare('B', 250.0)];
        runs[1].settings.batch = 50;
        let mut report = sample::report(runs);
        report.comparison = Some(compare(&report.runs));
        report.commit = Some("0123abc".to_owned());
        report.machine.memory_bytes = 0;
        let told = text(&report);
        for part in [
            " machine   Example 9000, 2 cores, memory not known, Linux 6.1\n",
            " commit    0123abc\n",
            " SETTING           A                                      B\n config            outhaul.toml                           same\n",
            "\n batch             500                                    50\n",
            "\n 3 A       1000        3     0     2.00         500 ",
            "\n\nB against A: B / A of each pair of runs\n WHAT             MEDIAN    MIN    MAX        PAIRS\n messages/s        1.250  0.500  2.000  2.000 0.500\n",
        ] {
            assert!(told.contains(part), "{part:?} is not in\n{told}");
        }
        // What no run has is left out, title and all.
        assert!(!told.contains("Latency") && !told.contains("Calls"), "{told}");
    }

    #[test]
    fn a_load_that_was_not_the_one_asked_for_is_said() {
        let with = |achieved, unaccounted| {
            let mut run = Run { achieved_rate: Some(achieved), unaccounted, ..sample::run('A') };
            run.settings.rate = Some(30_000);
            sample::report(vec![run])
        };
        assert_eq!(notes(&with(28_500.0, 0)), Vec::<String>::new());
        let late = with(383.4, 2);
        assert_eq!(
            notes(&late),
            [
                "run 1: the rate was missed: 383 of 30000 rows/s were committed, so latency says what the relay does at 383",
                "run 1: of 2 rows the answer of the database was lost: done, and not counted",
            ]
        );
        let told = text(&late);
        assert!(
            told.contains("\n\nSteady load\n RUN  ASKED (rows/s)  COMMITTED (rows/s)\n 1             30000               383.4\n"),
            "{told}"
        );
    }

    #[test]
    fn nothing_delivered_is_no_figure() {
        let mut run = sample::run('A');
        run.cpu.us_per_message = None;
        run.per_second = f64::INFINITY;
        let told = text(&sample::report(vec![run]));
        assert!(told.contains("2.00           -          1.25            0.50                 -\n"), "{told}");
    }

    /// The keys of a document; what is below `named` has names of the user's, or those of calls.
    fn keys(value: &serde_json::Value, named: &[&str], found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(entries) => entries.iter().for_each(|(key, value)| {
                found.push(key.clone());
                if !named.contains(&key.as_str()) {
                    keys(value, named, found);
                }
            }),
            serde_json::Value::Array(values) => values.iter().for_each(|value| keys(value, named, found)),
            _ => {}
        }
    }

    #[test]
    fn every_key_is_documented() {
        let mut report = sample::report(vec![sample::run('A'), sample::run('B')]);
        report.comparison = Some(compare(&report.runs));
        let mut found = Vec::new();
        keys(&serde_json::to_value(&report).unwrap(), &["versions", "storage_config", "publisher_config"], &mut found);
        assert!(found.len() > 60, "{found:?}");
        let page = include_str!("../../../docs/bench.md");
        let missing: Vec<_> = found.iter().filter(|key| !page.contains(&format!("`{key}`"))).collect();
        assert!(missing.is_empty(), "not in docs/bench.md: {missing:?}");
        let back: Report = serde_json::from_value(serde_json::to_value(&report).unwrap()).unwrap();
        assert_eq!(text(&back), text(&report));
    }

    #[test]
    fn every_ratio_has_its_row() {
        let report = sample::report(vec![sample::run('A'), sample::run('B')]);
        let names: BTreeMap<&str, &str> = MEASURES.map(|(key, name, _)| (key, name)).into();
        let comparison = compare(&report.runs);
        assert!(comparison.ratios.keys().eq(names.keys().copied()));
        let text = text(&Report { comparison: Some(comparison), ..report });
        assert!(names.values().all(|name| text.contains(&format!("\n {name} "))), "{text}");
    }
}
