//! `outhaul bench`, and the child process that is its destination.

use super::error::CommandError;
use super::{CommandResult, Quiet, load, output};
use crate::bench::destination;
use crate::bench::{Answers, BenchError, Left, Options, Outcome, Plan, Progress, Stage, plot, report};
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
/// pending rows, and stops where somebody else writes to it. No other relay may work on it meanwhile: it would publish the rows of the
/// bench. Delivered rows stay in it, if the storage keeps such rows.
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
  outhaul bench --clear                                       removes what a bench that was killed has left

--compare runs two settings in turn, A B A B: A is this command line, B the same with the flags added or replaced (--config too). A flag
of A cannot be taken away in B: leave it out of A, and have what B adds the other way round.

The first Ctrl-C ends the run: what is left of its rows is deleted without being published, those that wait for their back-off when they
are due. The second one ends at once, and leaves them. Runs that had come to their end are reported all the same.

Exit codes: 0 fine, 1 interrupted or failed, 2 if the configuration or the table is not fit for it."
)]
pub(super) struct Args {
    /// The relay; may be left out where there is only one.
    #[arg(long, value_name = "NAME")]
    relay: Option<String>,
    /// Rows to deliver.
    #[arg(long, value_name = "N", default_value_t = 100_000, conflicts_with = "rate")]
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
    /// How long the steady load of --rate lasts.
    #[arg(long, value_name = "DURATION", default_value = "30s", requires = "rate", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Where messages go: by what the relay's routes name, or nowhere.
    #[arg(long, value_enum, default_value_t = To::Config)]
    publisher: To,
    /// The topic of the rows; left out: outhaul.bench, or one that the first route takes.
    #[arg(long)]
    topic: Option<String>,
    /// The adapters as plain Rust in the same engine: sqlite-storage, postgres-storage, and null-publisher. That of --publisher null is plain
    /// Rust in any case: with it, this changes the storage only.
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
    /// Publish calls of each host at once, in place of the publisher's lanes.
    #[arg(long, value_name = "N", value_parser = lanes)]
    lanes: Option<usize>,
    /// Engines in this process, each with connections of its own to the same database.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    hosts: u32,
    /// Runs, or with --compare pairs of runs; each delivers rows of its own [default: 1].
    #[arg(long, value_name = "N", value_parser = runs)]
    runs: Option<usize>,
    /// Run B in turn with this command line, A: the flags that B adds or replaces, separated by spaces.
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true)]
    compare: Option<String>,
    /// Delete ALL delivered rows of the table after each run, whoever wrote them.
    #[arg(long)]
    purge: bool,
    /// Write plots (SVG) into this folder.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Measure nothing: delete the pending and dead rows that a bench has left in the table, without publishing them, and no others.
    #[arg(long, conflicts_with_all = ["rows", "payload", "keys", "rate", "duration", "publisher", "topic", "native", "destination_delay",
        "destination_failing", "batch", "lanes", "hosts", "runs", "compare", "purge", "plot"])]
    clear: bool,
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

/// What is one for all runs, so that B cannot have it by itself.
const OF_BOTH: [&str; 5] = ["--compare", "--runs", "--json", "--plot", "--clear"];

/// What measures nothing.
const HELP: [&str; 2] = ["--help", "-h"];

/// What is wrong with the flags of B, whatever they are added to.
fn wrong_in_b(flags: &str) -> Option<String> {
    if flags.trim().is_empty() {
        return Some("there are no flags in it: name what B adds to this command line, or has in place of it".to_owned());
    }
    let names = flags.split_whitespace().map(|flag| flag.split_once('=').map_or(flag, |(name, _)| name));
    let names: Vec<&str> = names.collect();
    if names.iter().any(|name| HELP.contains(name)) {
        return Some("--help is not an option of --compare: `outhaul bench --help` tells of all flags".to_owned());
    }
    let of_both = names.into_iter().find(|name| OF_BOTH.contains(name))?;
    Some(format!("{of_both} is one for A and B: write it outside of --compare"))
}

/// Runs it. `again` reads the command line of this process with flags added.
pub(super) async fn run(args: Args, file: &Path, again: impl FnOnce(&str) -> Result<(PathBuf, Args), clap::Error>) -> CommandResult {
    let config = load(file, Quiet::Yes)?;
    let stop = Shutdown::default();
    let _signals = AbortOnDropHandle::new(tokio::spawn(signals(stop.clone()).map_err(CommandError::failure)?));
    let lines = Lines::default();
    if args.clear {
        let ended = crate::bench::clear(config, args.relay.as_deref(), &stop, &|progress| lines.tell(progress)).await;
        lines.end();
        return cleared(ended, args.json);
    }
    let mut plans = vec![args.plan(config)?];
    if let Some(flags) = &args.compare {
        let wrong = |text: &str| CommandError::usage(anyhow!("--compare: {text}"));
        if let Some(text) = wrong_in_b(flags) {
            return Err(wrong(&text));
        }
        let (file, other) = again(flags).map_err(|error| {
            let text = error.to_string();
            wrong(text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: "))
        })?;
        plans.push(other.plan(config::load(&file)?)?);
    }
    if let Some(folder) = &args.plot {
        plot::prepare(folder).map_err(CommandError::usage)?;
    }
    let outcome = crate::bench::run(&plans, args.runs.unwrap_or(1), &stop, &|progress| lines.tell(progress)).await;
    lines.end();
    told(outcome, &args)
}

/// Tells what came of it: the runs that came to their end, what is left, and why there are no more.
fn told(outcome: Outcome, args: &Args) -> CommandResult {
    let Outcome { report, left, error } = outcome;
    let has_report = !report.runs.is_empty();
    if has_report {
        if args.json {
            output::json(&report)?;
        } else {
            output::line(&report::text(&report))?;
        }
        report::notes(&report).iter().for_each(|note| output::note(note));
    }
    left.iter().flat_map(Left::notes).for_each(|note| output::note(&note));
    if let Some(folder) = args.plot.as_ref().filter(|_| has_report) {
        for file in plot::write(&report, folder).map_err(|error| CommandError::failure(error).after_document())? {
            output::note(&format!("written: {}", file.display()));
        }
    }
    match error.map(CommandError::from) {
        None => Ok(()),
        Some(error) if has_report => Err(error.after_document()),
        Some(error) => Err(error),
    }
}

/// Tells what came of `--clear`.
fn cleared(ended: Result<u64, (BenchError, Option<Left>)>, json: bool) -> CommandResult {
    let removed = ended.map_err(|(error, left)| {
        left.iter().flat_map(Left::notes).for_each(|note| output::note(&note));
        CommandError::from(error)
    })?;
    if json {
        return output::json(&serde_json::json!({ "removed": removed }));
    }
    output::line(&format!("{} of a bench removed", output::count(removed, "row")))
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
        let is_same = |last: Progress| last.run == progress.run && kind(last.stage) == kind(progress.stage);
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

/// What is told again only after a while.
fn kind(stage: Stage) -> (std::mem::Discriminant<Stage>, bool) {
    (std::mem::discriminant(&stage), matches!(stage, Stage::Clearing(wait) if !wait.is_zero()))
}

fn line(progress: Progress) -> String {
    let Progress { stage, run, runs, side, done, rows, per_second } = progress;
    match stage {
        Stage::Filling => format!("run {run} of {runs} ({side}): {done} of {rows} rows written"),
        Stage::Running => format!("run {run} of {runs} ({side}): {done} of {rows} rows done, {per_second} in the last second"),
        Stage::Purging => format!("run {run} of {runs} ({side}): {done} delivered rows deleted"),
        Stage::Clearing(wait) if wait.is_zero() => format!("removing what is left: {done} rows removed, {rows} left"),
        Stage::Clearing(wait) => {
            let wait = output::span(wait);
            format!(
                "removing what is left: {done} rows removed, {rows} wait to be due, the last for {wait}; Ctrl-C ends at once and leaves them"
            )
        }
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
        let clearing = |wait| line(Progress { stage: Stage::Clearing(wait), ..progress });
        assert_eq!(clearing(Duration::ZERO), "removing what is left: 10 rows removed, 20 left");
        assert_eq!(
            clearing(Duration::from_secs(60)),
            "removing what is left: 10 rows removed, 20 wait to be due, the last for 1m; Ctrl-C ends at once and leaves them"
        );
    }

    #[test]
    fn b_has_flags_of_its_own_and_none_of_both() {
        for (flags, told) in [
            ("", "no flags in it"),
            ("  ", "no flags in it"),
            ("--batch 5 --json", "--json is one for A and B"),
            ("--plot=x", "--plot is one for A and B"),
            ("--runs 2", "--runs is one for A and B"),
            ("--compare --native", "--compare is one for A and B"),
            ("--help", "--help is not an option of --compare"),
            ("--batch 5 -h", "--help is not an option of --compare"),
        ] {
            assert!(wrong_in_b(flags).is_some_and(|text| text.contains(told)), "{flags}");
        }
        assert_eq!(wrong_in_b("--batch 5 --native --purge"), None);
    }
}
