//! `outhaul bench`, and the child process that is its destination.

use super::error::CommandError;
use super::{CommandResult, Quiet, load, output};
use crate::bench::destination;
use crate::bench::{Answers, BenchError, Options, Plan, Progress, Stage, plot, report};
use crate::config::{self, Config};
use crate::relay::Shutdown;
use anyhow::{Context, anyhow};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::task::AbortOnDropHandle;

/// Between two lines of progress where nobody sits at a terminal.
const LINES: Duration = Duration::from_secs(10);

/// Measure a relay: write rows to its table, deliver them with the adapters of the configuration, and say how fast that was.
///
/// Reports messages a second, processor time and memory, times of each kind of call, and with --rate the time from commit to delivery. It
/// runs the engine of `outhaul run`, in this process. The table is the one of the relay's storage: a bench refuses to begin where it has
/// pending rows, and stops where somebody else writes to it. Delivered rows stay in it, if the storage keeps such rows.
#[derive(Debug, Clone, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  outhaul bench --publisher null                              what the table and the engine allow
  outhaul bench --rows 20000 --destination-delay 50ms         http-publisher, to a destination that takes its time
  outhaul bench --publisher null --rate 500 --duration 1m     the time from commit to delivery under a steady load
  outhaul bench --publisher null --runs 3 --compare '--native'
  outhaul bench --publisher null --json --plot plots

--compare runs two settings in turn, A B A B: A is this command line, B the same with the flags added or replaced (--config too).

The first Ctrl-C ends the run: what is left of its rows is settled without being published. The second one ends at once.

Exit codes: 0 fine, 1 interrupted or failed, 2 if the configuration or the table is not fit for it."
)]
pub(super) struct Args {
    /// The relay; may be left out where there is only one.
    #[arg(long, value_name = "NAME")]
    relay: Option<String>,
    /// Rows to deliver.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    rows: u64,
    /// Bytes of each payload.
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    payload: usize,
    /// Keys that the rows take turns at; 0: rows without a key.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    keys: u64,
    /// A steady load of so many rows a second, in place of a backlog.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// How long the steady load lasts.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Where messages go: by what the relay's routes name, or nowhere.
    #[arg(long, value_enum, default_value_t = To::Config)]
    publisher: To,
    /// The topic of the rows; left out: outhaul.bench, or one that the first route takes.
    #[arg(long)]
    topic: Option<String>,
    /// The adapters as plain Rust in the same engine: sqlite-storage, postgres-storage, and the publisher to nowhere.
    #[arg(long)]
    native: bool,
    /// Start an HTTP destination that answers after this time, and send there in place of the publisher's url.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    destination_delay: Option<Duration>,
    /// Start an HTTP destination that fails so many percent of its requests (503).
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    destination_failing: Option<u8>,
    /// Rows a claim, in place of the relay's batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: Option<u32>,
    /// Publish calls at once, in place of the publisher's lanes.
    #[arg(long, value_name = "N", value_parser = lanes)]
    lanes: Option<usize>,
    /// Engines in this process, each with databases of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    hosts: u32,
    /// Runs, or with --compare pairs of runs; each delivers rows of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = runs)]
    runs: usize,
    /// Run B in turn with this command line, A: the flags that B adds or replaces, separated by spaces.
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true)]
    compare: Option<String>,
    /// Delete ALL delivered rows of the table after each run, whoever wrote them.
    #[arg(long)]
    purge: bool,
    /// Write plots (SVG) into this folder.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

/// `--publisher`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum To {
    /// What the relay's routes name.
    Config,
    /// Nowhere, at once.
    Null,
}

fn lanes(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|lanes| (1..=1024).contains(lanes)).ok_or_else(|| "write a number from 1 to 1024".to_owned())
}

fn runs(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|runs| (1..=1000).contains(runs)).ok_or_else(|| "write a number from 1 to 1000".to_owned())
}

impl Args {
    fn options(&self) -> Options {
        let answers = Answers { delay: self.destination_delay.unwrap_or_default(), failing: self.destination_failing.unwrap_or_default() };
        let has_destination = self.destination_delay.is_some() || self.destination_failing.is_some();
        Options {
            relay: self.relay.clone(),
            rows: self.rows,
            payload: self.payload,
            keys: self.keys,
            steady: self.rate.map(|rate| (rate, self.duration)),
            null: self.publisher == To::Null,
            topic: self.topic.clone(),
            native: self.native,
            destination: has_destination.then_some(answers),
            batch: self.batch,
            lanes: self.lanes,
            hosts: self.hosts,
            purge: self.purge,
        }
    }

    fn plan(&self, config: Config) -> Result<Plan, CommandError> {
        Ok(Plan::new(config, &self.options())?)
    }
}

/// Runs it. `again` reads the command line of this process with flags added.
pub(super) async fn run(args: Args, file: &Path, again: impl FnOnce(&str) -> Result<(PathBuf, Args), clap::Error>) -> CommandResult {
    let mut plans = vec![args.plan(load(file, Quiet::Yes)?)?];
    if let Some(flags) = &args.compare {
        let (file, other) = again(flags).map_err(|error| {
            let text = error.to_string();
            CommandError::usage(anyhow!("--compare: {}", text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ")))
        })?;
        plans.push(other.plan(config::load(&file)?)?);
    }
    let stop = Shutdown::default();
    let _signals = AbortOnDropHandle::new(tokio::spawn(signals(stop.clone()).map_err(CommandError::failure)?));
    let lines = Lines::default();
    let ended = crate::bench::run(&plans, args.runs, &stop, &|progress| lines.tell(progress)).await;
    lines.end();
    let (report, kept) = ended?;
    if args.json {
        output::json(&report)?;
    } else {
        report::print(&report)?;
    }
    if let Some(folder) = &args.plot {
        for file in plot::write(&report, folder).map_err(|error| CommandError::failure(error).after_document())? {
            output::note(&format!("written: {}", file.display()));
        }
    }
    for storage in kept {
        output::note(&format!(
            "the delivered rows are left in the table of storages.{storage}; with all other delivered rows of the table they go by: \
             outhaul purge --storage {storage} --older-than 0s"
        ));
    }
    Ok(())
}

/// The first signal ends the run, the second one the process.
fn signals(stop: Shutdown) -> anyhow::Result<impl Future<Output = ()>> {
    let context = "cannot install signal handlers";
    let mut interrupt = signal(SignalKind::interrupt()).context(context)?;
    let mut terminate = signal(SignalKind::terminate()).context(context)?;
    Ok(async move {
        for token in [&stop.graceful, &stop.forced] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            token.cancel();
        }
    })
}

/// Tells on stderr how far it is: one line that is written again and again on a terminal, else a line now and then.
#[derive(Default)]
struct Lines(Mutex<Option<(Instant, Progress)>>);

impl Lines {
    fn tell(&self, progress: Progress) {
        let terminal = std::io::stderr().is_terminal();
        let mut last = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_same = |last: Progress| (last.run, last.stage) == (progress.run, progress.stage);
        if !terminal && last.is_some_and(|(at, last)| is_same(last) && at.elapsed() < LINES) {
            return;
        }
        *last = Some((Instant::now(), progress));
        let text = line(progress);
        if terminal {
            // To the start of the line, and nothing of the old one after the new one.
            let _ = write!(std::io::stderr().lock(), "\r{text}\u{1b}[K");
        } else {
            output::note(&text);
        }
    }

    /// What comes next begins on a line of its own.
    fn end(&self) {
        let told = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some();
        if told && std::io::stderr().is_terminal() {
            output::note("");
        }
    }
}

fn line(progress: Progress) -> String {
    let Progress { stage, run, runs, side, done, rows, per_second } = progress;
    match stage {
        Stage::Filling => format!("run {run} of {runs} ({side}): {done} of {rows} rows written"),
        Stage::Running => format!("run {run} of {runs} ({side}): {done} of {rows} rows done, {per_second} in the last second"),
    }
}

/// The destination of a bench, in a process of its own.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct DestinationArgs {
    /// Answer after this time.
    #[arg(long, value_parser = humantime::parse_duration)]
    delay: Duration,
    /// Fail so many percent.
    #[arg(long)]
    failing: u8,
}

/// Serves until standard input ends.
pub(super) async fn serve(args: DestinationArgs) -> CommandResult {
    let answers = Answers { delay: args.delay, failing: args.failing };
    let say = |address: std::net::SocketAddr| {
        // A bench that is not there to read it has closed our input too.
        let _ = output::line(&address.to_string());
    };
    destination::serve(answers, say).await.map_err(CommandError::failure)
}

impl From<BenchError> for CommandError {
    fn from(error: BenchError) -> Self {
        if error.is_usage() { Self::usage(error) } else { Self::failure(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_what_is_going_on() {
        let progress = Progress { run: 2, runs: 6, side: 'B', done: 10, rows: 20, per_second: 7, stage: Stage::Filling };
        assert_eq!(line(progress), "run 2 of 6 (B): 10 of 20 rows written");
        assert_eq!(line(Progress { stage: Stage::Running, ..progress }), "run 2 of 6 (B): 10 of 20 rows done, 7 in the last second");
    }
}
