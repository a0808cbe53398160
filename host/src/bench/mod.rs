//! `outhaul bench`: the engine with measuring ports around its adapters, and what it found, as tables, JSON and plots.
//!
//! The engine is the one that `outhaul run` has, in this process; what is measured is seen at its ports (`measured`), so it runs as it
//! always does. A run goes: `plan` (what, checked against the configuration), `load` (the producer's rows), `engine` (relays started,
//! watched, ended), `tally` (what the ports have seen), [`model`] (what came of it), `left` and `clear` (what stays in the table, and how it
//! goes). Which rows are the bench's is known by `own`, in its process, and by `rows`, after it. `native` has the adapters as plain Rust,
//! `destination` an HTTP server with a delay. What came of it is told by [`report`] (tables), [`plot`] (pictures) and [`compare`] (two
//! settings beside each other), which know the model and nothing else; [`machine`] says where it was.

mod clear;
pub mod compare;
pub(crate) mod destination;
mod engine;
mod error;
mod left;
mod load;
pub mod machine;
mod measured;
pub mod model;
pub mod native;
mod own;
mod plan;
pub mod plot;
pub mod report;
mod rows;
#[cfg(test)]
mod sample;
pub mod settings;
mod shown;
mod tally;
mod usage;

pub use error::BenchError;
pub use left::Left;
pub use plan::{Answers, Options, Plan};

use crate::app::App;
use crate::config::Config;
use crate::relay::Shutdown;
use clear::{Cleared, Clearing, Whose};
use model::Report;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

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
    /// Rows that are written, done, or removed.
    pub done: u64,
    /// Of so many; of those that are removed: still to be.
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
    /// What is left of them is being removed; the last one is due after so long.
    Clearing(Duration),
    /// Delivered rows are being deleted.
    Purging,
}

/// What came of a bench.
#[derive(Debug)]
pub struct Outcome {
    /// The runs that came to their end.
    pub report: Report,
    /// What is left in each table.
    pub left: Vec<Left>,
    /// Why there are no more runs.
    pub error: Option<BenchError>,
}

/// Runs a plan so many times; or two of them, in turn. The first run that does not come to its end is the last one.
pub async fn run(plans: &[Plan], runs: usize, stop: &Shutdown, tell: engine::Tell<'_>) -> Outcome {
    let started_at = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let (mut versions, mut kept) = (machine::versions(), BTreeMap::<(PathBuf, String), Left>::new());
    let mut done = Vec::new();
    let total = runs.saturating_mul(plans.len());
    let turns = (0..runs).flat_map(|_| ('A'..).zip(plans));
    let mut error = None;
    for (side, plan) in turns {
        let run = done.len() + 1;
        let outcome = engine::run(plan, side, stop, &|progress: Progress| tell(Progress { run, runs: total, ..progress })).await;
        if let Some(left) = outcome.left {
            let table = (left.config.clone(), left.storage.clone());
            let left = kept.get(&table).map_or_else(|| left.clone(), |earlier| left.clone().after(earlier));
            kept.insert(table, left);
        }
        if let Some(ended) = outcome.ended {
            done.push(ended.run);
            versions.extend(ended.server);
        }
        error = outcome.error;
        if error.is_some() {
            break;
        }
    }
    let comparison = (plans.len() > 1).then(|| compare::compare(&done));
    let report = Report { machine: machine::here(), versions, commit: machine::commit(), started_at, runs: done, comparison };
    Outcome { report, left: kept.into_values().collect(), error }
}

/// Removes the rows that a bench has left in the table of a relay, and returns how many those were. Ends when none is left, or when it is
/// stopped.
///
/// # Errors
/// As of a bench; [`BenchError::Interrupted`] with rows left, which are told to `left`.
pub async fn clear(
    config: Config,
    relay: Option<&str>,
    stop: &Shutdown,
    tell: engine::Tell<'_>,
) -> Result<u64, (BenchError, Option<Left>)> {
    let alone = |error| (error, None);
    let (relay, adapter) = plan::target(&config, relay).map_err(alone)?;
    let file = config.file.clone();
    let app = App::new(config).map_err(|error| alone(error.into()))?;
    let storage = app.storage(&adapter).await.map_err(|error| alone(error.into()))?;
    if !storage.has_admin() {
        return Err(alone(BenchError::NoAdmin { storage: adapter.name, plugin: adapter.plugin }));
    }
    let clearing = Clearing { storage: &storage, relay: &relay, whose: Whose::Marked };
    let mut cleared = Cleared::default();
    let all = async {
        clearing.discard_dead(&mut cleared).await?;
        clearing.run(&mut cleared, &stop.graceful, |cleared| tell(Progress { run: 1, runs: 1, ..cleared.into() })).await
    };
    let ended = tokio::select! {
        ended = all => ended.map_err(|failure| BenchError::Clear { storage: adapter.name.clone(), failure }),
        () = stop.forced.cancelled() => Err(BenchError::Interrupted),
    };
    let interrupted = || if cleared.left > 0 { Err(BenchError::Interrupted) } else { Ok(()) };
    ended.and_then(|()| interrupted()).map_err(|error| {
        let pending = matches!(error, BenchError::Interrupted).then_some(cleared.left).filter(|left| *left > 0);
        let refused = cleared.refused.clone();
        let left = Left { config: file, storage: adapter.name, relay: relay.name, delivered: false, dead: 0, pending, refused };
        (error, Some(left))
    })?;
    Ok(cleared.removed)
}

impl From<&Cleared> for Progress {
    fn from(cleared: &Cleared) -> Self {
        let Cleared { removed, left, wait, .. } = *cleared;
        Self { stage: Stage::Clearing(wait), done: removed, rows: left, ..Self::default() }
    }
}
