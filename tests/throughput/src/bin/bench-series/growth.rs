//! All sweeps on all databases, round by round, so that a drift of the machine falls on every case; after each round `growth.md` and its
//! plots, of the rounds so far.

use super::ground::{Bench, Kind, Ran};
use super::page;
use super::sweeps::{self, Case, Sweep};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use outhaul::bench::model::{Report, Run};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// What is measured.
#[derive(Args)]
pub(crate) struct Options {
    /// Only these: backlog, hosts, keys, payload, destination.
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// On these databases.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["sqlite", "postgres"])]
    pub(crate) databases: Vec<Kind>,
    /// Runs of each case.
    #[arg(long, default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) runs: usize,
    /// So many times the rows of each case: for a quick look.
    #[arg(long, default_value_t = 1.0, value_parser = super::above_zero)]
    pub(crate) scale: f64,
}

impl Options {
    fn sweeps(&self) -> Result<Vec<Sweep>> {
        let all = sweeps::all();
        for wanted in &self.only {
            let known: Vec<&str> = all.iter().map(|sweep| sweep.name).collect();
            ensure!(known.contains(&wanted.as_str()), "--only {wanted}: there are {}", known.join(", "));
        }
        Ok(all.into_iter().filter(|sweep| self.only.is_empty() || self.only.iter().any(|wanted| wanted == sweep.name)).collect())
    }
}

/// Of what a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) sweep: usize,
    pub(crate) case: usize,
    pub(crate) kind: Kind,
}

/// A run that came to nothing.
pub(crate) struct Failed {
    pub(crate) at: Point,
    pub(crate) round: usize,
    pub(crate) reason: String,
}

/// What came out so far.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) rounds: usize,
    pub(crate) measured: Vec<(Point, Report)>,
    pub(crate) failed: Vec<Failed>,
}

impl Results {
    /// The runs that count, of one point.
    pub(crate) fn of(&self, at: Point) -> Vec<&Run> {
        self.measured.iter().filter(|(other, _)| *other == at).filter_map(|(_, report)| report.runs.first()).collect()
    }
}

/// The raw data, a line a run. That of an earlier time stays until there is a round to put in its place.
struct Raw {
    file: File,
    whole: PathBuf,
    /// Where it is until then.
    part: Option<PathBuf>,
}

impl Raw {
    fn begin(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let part = folder.join("runs.jsonl.part");
        let file = File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;
        Ok(Self { file, whole: folder.join("runs.jsonl"), part: Some(part) })
    }

    fn add(&mut self, line: &Value) -> Result<()> {
        self.file.write_all(format!("{line}\n").as_bytes()).context("cannot write the raw data")
    }

    /// What is written later goes to the same file.
    fn keep(&mut self) -> Result<()> {
        self.part
            .take()
            .map_or(Ok(()), |part| fs::rename(part, &self.whole))
            .with_context(|| format!("cannot write {}", self.whole.display()))
    }
}

/// Runs everything, and writes it down after each round.
pub(crate) fn run(bench: &Bench, options: &Options, out: &Path) -> Result<()> {
    let sweeps = options.sweeps()?;
    let mut raw = Raw::begin(&out.join("growth"))?;
    let mut results = Results::default();
    for round in 1..=options.runs {
        for at in points(&sweeps, &options.databases) {
            let (sweep, case) = case_of(&sweeps, at)?;
            let ran = bench.run(at.kind, case.setup, &case.arguments(options.scale));
            raw.add(&line(sweep, case, at.kind, round, &ran))?;
            println!("round {round}: {} {}, {}: {}", sweep.name, case.value, at.kind, told(&ran));
            take(&mut results, at, round, ran);
        }
        results.rounds = round;
        if let (true, Some(failed)) = (results.measured.is_empty(), results.failed.first()) {
            bail!("nothing was measured: {}", failed.reason);
        }
        raw.keep()?;
        page::write(&results, &sweeps, options, out)?;
    }
    let page = out.join("growth.md");
    println!("written: {}", page.display());
    ensure!(results.failed.is_empty(), "{} runs failed; {} says why", results.failed.len(), page.display());
    Ok(())
}

fn points(sweeps: &[Sweep], kinds: &[Kind]) -> Vec<Point> {
    let cases = sweeps.iter().enumerate().flat_map(|(sweep, of)| (0..of.cases.len()).map(move |case| (sweep, case)));
    cases.flat_map(|(sweep, case)| kinds.iter().map(move |&kind| Point { sweep, case, kind })).collect()
}

pub(crate) fn case_of(sweeps: &[Sweep], at: Point) -> Result<(&Sweep, &Case)> {
    let sweep = sweeps.get(at.sweep).context("no such sweep")?;
    Ok((sweep, sweep.cases.get(at.case).context("no such case")?))
}

/// A line of the raw data.
fn line(sweep: &Sweep, case: &Case, kind: Kind, round: usize, ran: &Result<Ran>) -> Value {
    let (report, failed) = match ran {
        Ok(Ran { report, fault }) => (Some(report), fault.clone()),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    json!({ "sweep": sweep.name, "case": case.value, "database": kind.to_string(), "round": round, "failed": failed, "report": report })
}

/// A run, for people who wait.
fn told(ran: &Result<Ran>) -> String {
    match ran {
        Ok(Ran { fault: Some(reason), .. }) => format!("FAILED: {reason}"),
        Ok(Ran { report, .. }) => format!("{:.0} messages/s", report.runs.first().map_or(0.0, |run| run.per_second)),
        Err(error) => format!("FAILED: {error:#}"),
    }
}

/// One that has failed does not count, and the others go on.
fn take(results: &mut Results, at: Point, round: usize, ran: Result<Ran>) {
    match ran {
        Ok(Ran { report, fault: None }) => results.measured.push((at, report)),
        Ok(Ran { fault: Some(reason), .. }) => results.failed.push(Failed { at, round, reason }),
        Err(error) => results.failed.push(Failed { at, round, reason: format!("{error:#}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn only_what_there_is_can_be_asked_for() {
        assert_eq!(options("keys", 1).sweeps().unwrap().len(), 1);
        let error = options("weather", 1).sweeps().unwrap_err().to_string();
        assert_eq!(error, "--only weather: there are backlog, hosts, keys, payload, destination");
    }

    /// A host that fails with four hosts, and has a report of everything else.
    fn host(folder: &Path) -> PathBuf {
        let run = include_str!("run.json");
        let machine = r#"{ "cpu": "c", "cores": 2, "memory_bytes": 1, "system": "s" }"#;
        let report = format!(r#"{{ "machine": {machine}, "versions": {{}}, "started_at": "now", "runs": [{run}] }}"#);
        fs::write(folder.join("report.json"), report).unwrap();
        let host = folder.join("outhaul");
        let failing = r#"*"--hosts 4"*) echo '{ "error": "no | table" }'; exit 1"#;
        let script = format!("#!/bin/sh\ncase \"$*\" in\nschema*) exit 0 ;;\n{failing} ;;\nesac\ncat {}/report.json\n", folder.display());
        fs::write(&host, script).unwrap();
        fs::set_permissions(&host, fs::Permissions::from_mode(0o755)).unwrap();
        host
    }

    fn options(only: &str, runs: usize) -> Options {
        Options { only: vec![only.to_owned()], databases: vec![Kind::Sqlite], runs, scale: 0.5 }
    }

    #[test]
    fn a_case_that_fails_is_told_and_the_others_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let bench = Bench::new(host(folder.path()), "/plugins".into(), None).unwrap();
        let error = run(&bench, &options("hosts", 2), folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("2 runs failed; ") && error.ends_with("/growth.md says why"), "{error}");
        let page = fs::read_to_string(folder.path().join("growth.md")).unwrap();
        for line in [
            "| 8 | SQLite | 1000 | 1000 to 1000 | - | 1.5 | 2.5 | 20.0 | 100 |",
            "| hosts | 4 | SQLite | 2 | outhaul bench --json --rows 50000 --publisher null --hosts 4 failed (exit status: 1): no \\| table |",
            "- rows: 0.5 times as many",
        ] {
            assert!(page.lines().any(|other| other == line), "{line}\nis not in\n{page}");
        }
        assert!(page.contains("figures are medians of 2 runs, taken in turn"), "{page}");
        let raw = fs::read_to_string(folder.path().join("growth/runs.jsonl")).unwrap();
        let lines: Vec<Value> = raw.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let labels = |line: &Value| ["sweep", "case", "database", "round"].map(|name| line[name].clone());
        assert_eq!((lines.len(), labels(&lines[6])), (8, [json!("hosts"), json!("4"), json!("SQLite"), json!(2)]));
        assert!(lines[6]["report"].is_null() && lines[6]["failed"].is_string(), "{}", lines[6]);
        assert_eq!((&lines[7]["report"]["runs"][0]["delivered"], &lines[7]["failed"]), (&json!(1000), &Value::Null));
    }

    #[test]
    fn what_was_measured_before_stays_where_nothing_is() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("growth")).unwrap();
        for file in ["growth.md", "growth/runs.jsonl"] {
            fs::write(folder.path().join(file), "before").unwrap();
        }
        let bench = Bench::new("/bin/false".into(), "/plugins".into(), None).unwrap();
        let error = run(&bench, &options("hosts", 2), folder.path()).unwrap_err().to_string();
        assert_eq!(error, "nothing was measured: outhaul schema --apply failed (exit status: 1)");
        for file in ["growth.md", "growth/runs.jsonl"] {
            assert_eq!(fs::read_to_string(folder.path().join(file)).unwrap(), "before");
        }
    }
}
