//! The results as a page of Markdown, and as the raw data beside it.

use super::Load;
use super::plan::{Contender, Match, Setting, Way};
use super::results::{Results, Run, Spread};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// What was planned.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Each run's table.
    pub load: Load,
    /// Who was to run.
    pub matches: Vec<Match>,
    /// How many rounds were wished for.
    pub rounds: usize,
    /// How long all of it took, in minutes.
    pub minutes: u64,
}

/// Of somebody, for people who would compare.
struct About {
    /// Of the several limits, the first one.
    who: Contender,
    promises: &'static str,
    run_as: &'static str,
    /// From what to what.
    timed: &'static str,
}

/// Everybody.
const ABOUT: [About; 5] = [
    About {
        who: Contender::Outhaul,
        promises: "at least once, in order per key; attempts, back-off, dead letters",
        run_as: "the optimised binary, storage and publisher as components, null publisher or kafka-publisher; several workers are several \
                 engines; delivered rows are marked; its table is filled by three transactions at a time, so that rows of three batches lie \
                 mixed, the others' by one",
        timed: "first claim to last settle",
    },
    About {
        who: Contender::Txoutbox,
        promises: "at least once, in order per key (strict, its default); attempts, back-off, dead letters",
        run_as: "each worker a process, no-op publisher; delivered rows are marked; defaults but for the batch, the lease where its own warning \
                 asks for a longer one (250 s for 500, 500 s for 1000), and idle polling of 5 to 50 ms (default: 50 ms to 5 s)",
        timed: "all workers ready to the end of the last round",
    },
    About {
        who: Contender::Watermill,
        promises: "at least once, in the order of the table, one consumer at a time; a message that fails holds up all behind it; no dead letters",
        run_as: "default schema and offsets, the batch as `SubscribeBatchSize`, `PollInterval` 5 ms (default: 1 s), publisher that takes \
                 everything; one offset moves, rows stay as they are",
        timed: "start of the forwarder to when the offset of the last message is seen in the database; once all are sent, a look each 2 ms",
    },
    About {
        who: Contender::Debezium,
        promises: "at least once, in the order of the log; no attempts, no dead letters: an error stops it",
        run_as: "outbox event router, JSON, default batches, `poll.interval.ms` 50 (default: 500), offsets in memory; a server with \
                 wal_level=logical; as many rows go before those that count, so that its code is compiled; nothing is written to the table. To \
                 Kafka: one idempotent producer, acks=all, each batch waited for",
        timed: "end of the last batch before those that count to the end of the last batch",
    },
    About {
        who: Contender::LimitStrict,
        promises: "nothing: it is what the server needs for claim and settle alone",
        run_as: "procedures of peers/limit.sql on one connection, nothing leaves the server; rows are marked. Strict: in order per key. Fused: a \
                 settle and the next claim in one transaction. Unordered: keys are ignored",
        timed: "the call of the procedure",
    },
];

/// The page.
#[must_use]
pub fn markdown(results: &Results, plan: &Plan) -> String {
    let Load { rows, keys, payload } = plan.load;
    let mut page = String::from("# outhaul beside its peers\n\n");
    let _ = writeln!(page, "Written by `cargo xtask peers`; what is run is in [peers/](peers/), the raw data in [results/](results/).\n");
    let _ = writeln!(
        page,
        "Each run drains a fresh table of {rows} rows: {payload} bytes, {keys} keys in turn. In each round everybody runs once under each \
         setting, every\nother round in reverse. A ratio is outhaul's messages a second against the other's of the same round: above 1, \
         outhaul is faster. Median,\nand in brackets smallest and largest, of the rounds. A run counts only if it delivered and settled all \
         of its rows, to Kafka also only\nif the topic has exactly them.\n"
    );
    page.push_str(
        "Everybody's table has its own columns and indexes; its rows are written in transactions of 500 and drained at once. Payloads hardly \
         compress: each\nrow has another one, of 64 characters at random. Nobody has a VACUUM, ANALYZE or CHECKPOINT by hand behind them: the \
         server's autovacuum looks\nevery second, in every run, and before each table is made the server has a checkpoint.\n\n",
    );
    if results.rounds < plan.rounds {
        let _ = writeln!(
            page,
            "Only {} of {} rounds are in this: the time was up, or the others were not made yet.\n",
            results.rounds, plan.rounds
        );
    }
    machine(&mut page, results, plan);
    for way in Way::ALL {
        let matches: Vec<&Match> = plan.matches.iter().filter(|one| one.setting.way == way).collect();
        if !matches.is_empty() {
            let _ = writeln!(page, "## {}\n", way.title());
            table(&mut page, results, &matches);
        }
    }
    failures(&mut page, results);
    promises(&mut page, plan);
    page
}

fn machine(page: &mut String, results: &Results, plan: &Plan) {
    page.push_str("## Where and what\n\n| | |\n|---|---|\n");
    let report = results.runs.iter().find_map(|run| run.measured.report.as_ref());
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(page, "| {name} | {} |", cell(value));
    };
    match report {
        None => line("machine", "not known: outhaul did not run"),
        Some(report) => {
            let text = |path: &str| report.pointer(path).map(|value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned));
            let gib = report
                .pointer("/machine/memory_bytes")
                .and_then(Value::as_u64)
                .map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
            for (name, value) in [
                ("processor", text("/machine/cpu")),
                ("cores", text("/machine/cores")),
                ("memory", gib),
                ("system", text("/machine/system")),
                ("begun", text("/started_at")),
                ("commit of outhaul", text("/commit").filter(|commit| commit != "null")),
            ] {
                line(name, &value.unwrap_or_else(|| "not recorded".to_owned()));
            }
        }
    }
    line("took", &format!("{} minutes", plan.minutes));
    line(
        "databases",
        "PostgreSQL: fsync on, autovacuum_naptime 1 s, else as delivered. SQLite: WAL, each at its own default of `synchronous` (FULL)",
    );
    for (name, version) in results.versions() {
        line(name, version);
    }
    page.push('\n');
}

fn table(page: &mut String, results: &Results, matches: &[&Match]) {
    page.push_str("| batch | workers | | messages/s | outhaul / it | runs |\n|--:|--:|---|--:|--:|--:|\n");
    for one in matches {
        let Setting { batch, workers, .. } = one.setting;
        for &contender in &one.contenders {
            let speed = results.speed(one.setting, contender);
            let lead = (contender != Contender::Outhaul).then(|| results.lead(one.setting, contender)).flatten();
            let rate = speed.map_or_else(|| "did not run".to_owned(), |speed| spread(speed, thousands));
            let lead = lead.map_or_else(String::new, |lead| spread(lead, |ratio| format!("{ratio:.2}")));
            let runs = speed.map_or(0, |speed| speed.count);
            let _ = writeln!(page, "| {batch} | {workers} | {} | {rate} | {lead} | {runs} |", contender.name());
        }
    }
    page.push('\n');
}

fn failures(page: &mut String, results: &Results) {
    if results.failures.is_empty() {
        return;
    }
    page.push_str("## Did not run\n\n| setting | | round | reason |\n|---|---|--:|---|\n");
    for failure in &results.failures {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} |",
            failure.setting.name(),
            failure.contender.name(),
            failure.round + 1,
            cell(&failure.reason)
        );
    }
    page.push('\n');
}

fn promises(page: &mut String, plan: &Plan) {
    page.push_str("## What each promises, and how it was run\n\n| | promises | run as | timed |\n|---|---|---|---|\n");
    let peers: BTreeSet<_> = plan.matches.iter().flat_map(|one| &one.contenders).map(|contender| contender.peer()).collect();
    for About { who, promises, run_as, timed } in ABOUT {
        if peers.contains(&who.peer()) {
            let name = if who == Contender::LimitStrict { "server limit" } else { who.name() };
            let _ = writeln!(page, "| {name} | {promises} | {run_as} | {timed} |");
        }
    }
    page.push_str("\nNot among them: Open Outbox Relay, a Go daemon without order.\n");
}

/// The raw data of a setting.
#[must_use]
pub fn raw(results: &Results, plan: &Plan, setting: Setting) -> Value {
    let run = |run: &Run| {
        let measured = &run.measured;
        let mut value = json!({
            "contender": run.contender.name(),
            "round": run.round + 1,
            "sent": measured.sent,
            "settled": measured.settled,
            "seconds": measured.seconds,
            "per_second": run.rate(),
            "versions": measured.versions,
        });
        if let Some(report) = &measured.report {
            value["report"] = report.clone();
        }
        value
    };
    let failures = results
        .failures
        .iter()
        .filter(|failure| failure.setting == setting)
        .map(|failure| json!({ "contender": failure.contender.name(), "round": failure.round + 1, "reason": failure.reason }));
    json!({
        "setting": setting,
        "rows": plan.load.rows,
        "keys": plan.load.keys,
        "payload_bytes": plan.load.payload,
        "runs": results.runs.iter().filter(|run| run.setting == setting).map(run).collect::<Vec<_>>(),
        "failures": failures.collect::<Vec<_>>(),
    })
}

fn spread(values: Spread, show: impl Fn(f64) -> String) -> String {
    if values.count == 1 {
        return show(values.median);
    }
    format!("{} ({} to {})", show(values.median), show(values.min), show(values.max))
}

/// 12345.6: 12,346.
fn thousands(rate: f64) -> String {
    let digits = format!("{rate:.0}");
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Text that stays in its cell.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{SETTING, sample};
    use super::*;

    fn plan() -> Plan {
        let contenders = vec![Contender::Outhaul, Contender::Txoutbox];
        let matches = vec![Match { setting: SETTING, contenders }];
        Plan { load: Load { rows: 1000, keys: 10, payload: 256 }, matches, rounds: 3, minutes: 7 }
    }

    #[test]
    fn thousands_are_grouped() {
        let shown: Vec<String> = [0.4, 999.6, 12_345.6, 1_234_567.0].into_iter().map(thousands).collect();
        assert_eq!(shown, ["0", "1,000", "12,346", "1,234,567"]);
    }

    #[test]
    fn the_page_has_ratios_and_what_did_not_run() {
        let mut results = sample();
        results.runs[0].measured.report = Some(json!({
            "machine": { "cpu": "a | b", "cores": 2, "memory_bytes": 25_769_803_776_u64, "system": "Linux 6.1" },
            "commit": null,
            "started_at": "2026-01-02T03:04:05Z",
        }));
        let page = markdown(&results, &plan());
        for line in [
            "| 50 | 1 | outhaul | 8,000 (5,000 to 10,000) |  | 3 |",
            "| 50 | 1 | txoutbox | 3,500 (2,000 to 5,000) | 3.00 (1.00 to 5.00) | 2 |",
            "| postgres-b50-w1 | txoutbox | 3 | it did not end in 180 s: gone \\| away |",
            "| processor | a \\| b |",
            "| memory | 24.0 GiB |",
            "| commit of outhaul | not recorded |",
            "| begun | 2026-01-02T03:04:05Z |",
        ] {
            assert!(page.lines().any(|other| other == line), "{line}\nis not in\n{page}");
        }
        assert!(
            page.lines().any(|line| line.starts_with("| txoutbox | at least once")
                && line.ends_with("| all workers ready to the end of the last round |"))
        );
        assert!(!page.contains("Only ") && !page.contains("SQLite to nowhere") && !page.contains("| Debezium"), "{page}");
        results.rounds = 2;
        assert!(markdown(&results, &plan()).contains("Only 2 of 3 rounds are in this: the time was up, or"));
    }

    #[test]
    fn who_never_ran_is_told() {
        let mut results = sample();
        results.runs.retain(|run| run.contender == Contender::Outhaul);
        let page = markdown(&results, &plan());
        assert!(page.contains("| 50 | 1 | txoutbox | did not run |  | 0 |"), "{page}");
        assert!(page.contains("| machine | not known: outhaul did not run |"), "{page}");
    }

    #[test]
    fn the_raw_data_has_every_run() {
        let raw = raw(&sample(), &plan(), SETTING);
        assert_eq!(raw["setting"], json!({ "way": "postgres", "batch": 50, "workers": 1 }));
        assert_eq!(raw["runs"].as_array().unwrap().len(), 5);
        assert_eq!((&raw["runs"][1]["per_second"], &raw["runs"][1]["round"]), (&json!(2000.0), &json!(1)));
        assert_eq!(raw["failures"][0]["contender"], "txoutbox");
        let other = Setting { batch: 500, ..SETTING };
        assert_eq!(super::raw(&sample(), &plan(), other)["runs"], json!([]));
    }
}
