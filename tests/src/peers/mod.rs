//! outhaul beside what a user would pick instead, on the same machine and equal tables, in turn: `cargo xtask peers`.
//!
//! - [`plan`]: who runs against whom, and how
//! - [`results`]: medians, spreads and ratios
//! - [`report`]: bench/RESULTS.md and the raw data
//! - [`program`]: a program with a time limit, and what it measured
//! - `stage`: what the contenders share; one file a contender for the rest
//!
//! The peers' own programs are in bench/peers/. Each fills its table by itself, so that a run is one command that can be made by hand.

mod debezium;
mod limit;
mod ours;
pub mod plan;
pub mod program;
pub mod report;
pub mod results;
mod stage;
mod txoutbox;
mod watermill;

use crate::kafka::Reader;
use anyhow::{Context, Result, bail};
use plan::{Contender, Peer, Setting};
use report::Plan;
use results::{Failure, Results, Run};
use stage::Stage;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The table of each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Messages.
    pub rows: u64,
    /// Keys, in turn.
    pub keys: u64,
    /// Bytes of each payload.
    pub payload: u64,
}

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Beside outhaul.
    pub peers: Vec<Peer>,
    /// The table of each run.
    pub load: Load,
    /// How often everybody runs.
    pub rounds: usize,
    /// For one run.
    pub limit: Duration,
    /// For all: no round begins that would not end by then.
    pub all: Duration,
    /// Where RESULTS.md and results/ go.
    pub out: PathBuf,
}

/// Runs everything and writes the results, after each round.
///
/// # Errors
/// If something cannot be prepared or written; and, after all is written, if a run has failed.
pub fn run(options: &Options) -> Result<()> {
    let begun = Instant::now();
    let matches = plan::matches(&options.peers);
    let mut stage = Stage::new(options.load, options.limit)?;
    let mut results = Results::default();
    for one in &matches {
        for &contender in &one.contenders {
            if let Err(error) = stage.prepare(contender, one.setting.way) {
                note(&mut results, one.setting, contender, 0, &error);
            }
        }
    }
    for round in 0..options.rounds {
        let start = Instant::now();
        for one in &matches {
            for contender in one.turns(round) {
                if !results.has_failed(one.setting, contender) {
                    turn(&mut stage, &mut results, one.setting, contender, round);
                }
            }
        }
        results.rounds = round + 1;
        let minutes = begun.elapsed().as_secs().div_ceil(60);
        write(&results, &Plan { load: options.load, matches: matches.clone(), rounds: options.rounds, minutes }, &options.out)?;
        if begun.elapsed() + start.elapsed() > options.all {
            break;
        }
    }
    match results.failures.len() {
        0 => Ok(()),
        failed => bail!("{failed} did not run; {} says why", options.out.join("RESULTS.md").display()),
    }
}

fn turn(stage: &mut Stage, results: &mut Results, setting: Setting, contender: Contender, round: usize) {
    match stage.measure(contender, setting) {
        Ok(measured) => {
            let run = Run { setting, contender, round, measured };
            eprintln!("{} {}, {}: {:.0} messages/s", round + 1, setting.name(), contender.name(), run.rate());
            results.runs.push(run);
        }
        Err(error) => note(results, setting, contender, round, &error),
    }
}

fn note(results: &mut Results, setting: Setting, contender: Contender, round: usize, error: &anyhow::Error) {
    let reason = format!("{error:#}");
    eprintln!("{} {}, {}: DID NOT RUN: {reason}", round + 1, setting.name(), contender.name());
    results.failures.push(Failure { setting, contender, round, reason });
}

fn write(results: &Results, plan: &Plan, out: &Path) -> Result<()> {
    let folder = out.join("results");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for one in &plan.matches {
        let file = folder.join(format!("{}.json", one.setting.name()));
        let raw = serde_json::to_string_pretty(&report::raw(results, plan, one.setting))?;
        fs::write(&file, raw + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    let page = out.join("RESULTS.md");
    fs::write(&page, report::markdown(results, plan)).with_context(|| format!("cannot write {}", page.display()))?;
    eprintln!("wrote {}", page.display());
    Ok(())
}

/// How many records are in a topic.
fn records(brokers: &str, topic: &str) -> Result<u64> {
    Ok(u64::try_from(Reader::new(brokers)?.count(topic)?)?)
}
