//! `outhaul bench`: the engine with measuring ports around its adapters, and what it found, as tables, JSON and plots.
//!
//! The engine is the one that `outhaul run` has, in this process; what is measured is seen at its ports (`measured`), so it runs as it
//! always does. A run goes: `plan` (what, checked against the configuration), `load` (the producer's rows), `engine` (relays started,
//! watched, ended), `tally` (what the ports have seen), [`model`] (what came of it). `native` has the adapters as plain Rust,
//! `destination` an HTTP server with a delay. What came of it is told by [`report`] (tables), [`plot`] (pictures) and [`compare`] (two
//! settings beside each other), which know the model and nothing else; [`machine`] says where it was.

pub mod compare;
pub(crate) mod destination;
mod engine;
mod error;
mod load;
pub mod machine;
mod measured;
pub mod model;
pub mod native;
mod plan;
pub mod plot;
pub mod report;
mod rows;
#[cfg(test)]
mod sample;
pub mod settings;
mod tally;
mod usage;

pub use error::BenchError;
pub use plan::{Answers, Options, Plan};

use crate::relay::Shutdown;
use model::Report;
use std::time::SystemTime;

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// What is going on.
    pub stage: Stage,
    /// The run, from 1.
    pub run: usize,
    /// Of so many.
    pub runs: usize,
    /// `A`, or `B` of a comparison.
    pub side: char,
    /// Rows that are written, or done.
    pub done: u64,
    /// Of so many.
    pub rows: u64,
    /// Messages delivered in the last second.
    pub per_second: u64,
}

/// What is going on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stage {
    /// Rows are being written.
    #[default]
    Filling,
    /// They are being delivered.
    Running,
}

/// Runs a plan so many times; or two of them, in turn. Returns the report, and the storages in whose tables delivered rows are left.
///
/// # Errors
/// The first run that did not come to its end.
pub async fn run(plans: &[Plan], runs: usize, stop: &Shutdown, tell: engine::Tell<'_>) -> Result<(Report, Vec<String>), BenchError> {
    let started_at = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let (mut versions, mut kept) = (machine::versions(), Vec::new());
    let mut done = Vec::new();
    let total = runs.saturating_mul(plans.len());
    for _ in 0..runs {
        for (side, plan) in ('A'..).zip(plans) {
            let run = done.len() + 1;
            let ended = engine::run(plan, side, stop, &|progress: Progress| tell(Progress { run, runs: total, ..progress })).await?;
            done.push(ended.run);
            versions.extend(ended.server);
            if ended.keeps_delivered && !kept.contains(&plan.storage.name) {
                kept.push(plan.storage.name.clone());
            }
        }
    }
    let comparison = (plans.len() > 1).then(|| compare::compare(&done));
    let report = Report { machine: machine::here(), versions, commit: machine::commit(), started_at, runs: done, comparison };
    Ok((report, kept))
}
