//! `cargo xtask COMMAND`: set-up, builds, the demonstration, the suite and the checks in one place.
//!
//! - [`workspace`]: where things are, and how cargo is run
//! - [`setup`]: the WebAssembly target
//! - [`guests`]: builds the adapters and the fixtures
//! - [`wit`]: a released WIT package never changes
//! - [`wit_docs`]: the WIT package as a page of the documentation
//! - [`checks`]: what CI runs besides the suite
//! - [`services`]: PostgreSQL, pgbouncer and Kafka for the suite
//!
//! The demonstration, the long runs and the services are programs of the crates `outhaul-tests` and `outhaul-services`; this one only
//! prepares and starts them.

mod checks;
mod guests;
mod services;
mod setup;
mod wit;
mod wit_docs;
mod workspace;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use services::{Held, Services};
use std::ffi::OsString;
use workspace::{Workspace, step};

/// Set-up, builds and checks of outhaul. Every command prepares what it needs; nothing is rebuilt that has not changed.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = "New here? Run `cargo xtask demo`, then `cargo xtask test`.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// See it work: orders and their events in SQLite, relayed to a local HTTP receiver that fails now and then.
    ///
    /// Writes everything that it makes to target/demo/ and ends with a summary that is counted, not assumed. Under a minute after
    /// the first build.
    #[command(args_conflicts_with_subcommands = true)]
    Demo {
        /// After the checks, leave the host and the receiver running until Ctrl-C, to look at the metrics.
        #[arg(long)]
        keep: bool,
        #[command(subcommand)]
        of: Option<Demo>,
    },
    /// Run every test: unit tests, then the suite with real processes, databases and components.
    Test(TestArgs),
    /// What CI runs: format, clippy (host and guests), the frozen WIT package and its reference, then every test.
    Ci,
    /// Add the WebAssembly target, if it is not there yet.
    Setup,
    /// Build the adapters into target/plugins/ and the test fixtures into target/fixtures/.
    Guests,
    /// Build the examples into target/examples/, each as its README says, with the tools of its language.
    ///
    /// A language whose tools are missing is left out by name. `test` does this too.
    Examples {
        /// Only this language: rust, js, python, c or go.
        language: Option<String>,
    },
    /// The tour of the examples: from `outhaul plugin new` to a delivered message, by the clock, as their READMEs say.
    ///
    /// Ends with how long each took. `wit-bindgen` and `wasm-tools` count as installed.
    ExamplesTour {
        /// Only this language: rust, js, python, c or go.
        language: Option<String>,
    },
    /// Measure what each language costs: size, the host's start without and with compiled code, a message.
    ///
    /// Prints the table of examples/publishers/README.md. Wants a machine with nothing else to do.
    ExamplesCost {
        /// With an optimised host: building it takes minutes the first time.
        #[arg(long)]
        release: bool,
        /// Arguments for the program, e.g. `-- --messages 5000 --runs 7`; `-- --help` lists them.
        #[arg(last = true)]
        rest: Vec<OsString>,
    },
    /// PostgreSQL 15 and 17, pgbouncer and Apache Kafka, for the tests. `test` starts and stops them by itself.
    ///
    /// While they are up, `cargo test` finds them, and `test` starts at once. Data and addresses are in target/services/.
    #[command(subcommand)]
    Services(Services),
    /// Long runs with crashes.
    #[command(subcommand)]
    Chaos(Chaos),
    /// Measure messages per second from SQLite to nowhere: components beside the same adapters as plain Rust.
    ///
    /// Builds with optimisation, which takes minutes the first time. Wants a machine with nothing else to do.
    Throughput {
        /// Arguments for the program, e.g. `-- --rows 20000 --batch 50`; `-- --help` lists them.
        #[arg(last = true)]
        rest: Vec<OsString>,
    },
    /// Measure messages per second of kafka-publisher, as a component and as plain Rust, beside librdkafka on the same broker.
    ///
    /// Builds with optimisation, which takes minutes the first time. Wants a machine with nothing else to do.
    KafkaThroughput {
        /// Arguments for the program, e.g. `-- --messages 50000 --runs 3`; `-- --help` lists them.
        #[arg(last = true)]
        rest: Vec<OsString>,
    },
    /// Order per key of postgres-storage under failures, crashes and lost leases, with its chain check and without.
    ///
    /// Starts a PostgreSQL of its own. Builds with optimisation, which takes minutes the first time.
    OrderStress {
        /// Arguments for the program, e.g. `-- --workers 8 --keys 3`; `-- --help` lists them.
        #[arg(last = true)]
        rest: Vec<OsString>,
    },
    /// Measure how long a claim of postgres-storage takes, up to a million rows and in its adverse cases.
    ///
    /// Starts a PostgreSQL of its own. Builds with optimisation, which takes minutes the first time.
    ClaimTimes {
        /// Arguments for the program, e.g. `-- --batch 500`; `-- --help` lists them.
        #[arg(last = true)]
        rest: Vec<OsString>,
    },
    /// Measure how long ten deliveries of a tenant take, alone and beside a million due ones of another, on SQLite and PostgreSQL.
    ///
    /// Starts a PostgreSQL of its own. Builds with optimisation, which takes minutes the first time.
    FanOutFairness {
        /// Arguments for the program, e.g. `-- --due 100000 --sqlite --json`; `-- --help` lists them.
        #[arg(last = true)]
        rest: Vec<OsString>,
    },
    /// Measure fan-out: events expanded a second at 1, 10 and 100 subscribers, deliveries made a second, on SQLite and PostgreSQL.
    ///
    /// Starts a PostgreSQL of its own. Builds with optimisation, which takes minutes the first time. Wants a machine with nothing else
    /// to do.
    FanOutThroughput {
        /// Arguments for the program, e.g. `-- --deliveries 20000 --json`; `-- --help` lists them.
        #[arg(last = true)]
        rest: Vec<OsString>,
    },
    /// Measure how throughput and claim time grow: backlog, hosts, keys, payload, and a destination that takes 50 ms, on both databases.
    ///
    /// Many runs of `outhaul bench`; writes bench/growth.md, its plots and the raw data, anew after each round; a trial goes to a folder of
    /// its own, by `--out`. Fails at its end where a run has failed. Starts a PostgreSQL of its own. Builds with optimisation, which
    /// takes minutes the first time; the runs take half an hour. Wants a machine with nothing else to do.
    Growth {
        /// Arguments for the program, e.g. `--only backlog,hosts --runs 1 --scale 0.1 --out /tmp/try`; `-- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// A steady load for a long time: fails where memory grows or latency drifts. Writes bench/soak.md and its plots.
    ///
    /// A trial goes to a folder of its own, by `--out`. What was measured is written whatever it fails of. Builds with optimisation, which
    /// takes minutes the first time. Wants a machine with nothing else to do.
    Soak {
        /// Arguments for the program, e.g. `--hours 0.01 --database postgres --out /tmp/try`; `-- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Measure outhaul beside what a user would pick instead: txoutbox, Watermill's forwarder, Debezium, and the server by itself.
    ///
    /// Gets and builds the peers (with Python, Go and Maven), starts PostgreSQL and Kafka of its own, and writes bench/RESULTS.md and the
    /// raw data, anew after each round; a trial goes to a folder of its own, by `--out`. Builds with optimisation, which takes minutes the
    /// first time. Wants a machine with nothing else to do.
    Peers {
        /// Arguments for the program, e.g. `--only txoutbox,limit --rows 20000 --runs 1 --out /tmp/try`; `-- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Compare wit/ with its frozen copy: a released version of the package never changes.
    WitCheck,
    /// Write docs/wit.md, the reference of the WIT package. `ci` fails where it is not current.
    WitDocs,
}

#[derive(Args)]
struct TestArgs {
    /// Run only tests whose name contains this.
    filter: Option<String>,
    /// Further arguments for the test programs, e.g. `-- --nocapture`.
    #[arg(last = true)]
    rest: Vec<String>,
}

#[derive(Subcommand)]
enum Demo {
    /// One event for three subscribers: one is slow, one answers 410, one moves half way; a re-emit, a row that somebody edits, the
    /// status log.
    FanOut,
}

#[derive(Subcommand)]
enum Chaos {
    /// Kill the host at random moments while a producer writes and the receiver fails a fifth of the requests.
    Kill {
        /// How often the host is killed.
        #[arg(long, default_value_t = 200)]
        kills: u32,
        /// Repeat a run: same moments, same failures as far as the machine allows.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Two hosts on one database file, killed, and stopped for longer than their leases.
    TwoHosts {
        /// How long the disturbances go on.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Repeat a run: same moments, same failures as far as the machine allows.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Two versions of a publisher take turns while messages flow; every tenth candidate is a bad one. Ends with the latencies beside
    /// those without swaps.
    Swaps {
        /// How often a candidate takes over.
        #[arg(long, default_value_t = 200)]
        swaps: u32,
        /// Repeat a run.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// PostgreSQL to three brokers of Kafka, several hosts on one table; hosts and brokers are killed in turn.
    Cluster {
        /// How many events.
        #[arg(long, default_value_t = 1_000_000)]
        events: u64,
        /// Over how many keys.
        #[arg(long, default_value_t = 10_000)]
        keys: u64,
        /// How many hosts share the table.
        #[arg(long, default_value_t = 4)]
        hosts: usize,
        /// Make the same choices as another run.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Fan-out by two hosts that are killed at random, to endpoints of which one is down, one is slow, and the others fail a tenth of the
    /// requests. Ends with the latencies of the healthy ones beside those without the bad two.
    FanOut {
        /// On a PostgreSQL of its own instead of SQLite.
        #[arg(long)]
        postgres: bool,
        /// How many events.
        #[arg(long, default_value_t = 20_000)]
        events: u64,
        /// How many subscribers of each.
        #[arg(long, default_value_t = 5)]
        subscribers: usize,
        /// How often a host is killed.
        #[arg(long, default_value_t = 20)]
        kills: u32,
        /// Events a second.
        #[arg(long, default_value_t = 100)]
        pace: u32,
        /// Make the same choices as another run.
        #[arg(long)]
        seed: Option<u64>,
    },
}

impl Chaos {
    /// Whether it ends with latencies, which say nothing of a host without optimisation.
    fn measures(&self) -> bool {
        matches!(self, Self::Swaps { .. } | Self::FanOut { .. })
    }

    /// The arguments of the `chaos` program.
    fn arguments(&self) -> Vec<OsString> {
        let (name, amounts, seed) = match self {
            Self::Kill { kills, seed } => ("kill", vec![format!("--kills={kills}")], seed),
            Self::TwoHosts { seconds, seed } => ("two-hosts", vec![format!("--seconds={seconds}")], seed),
            Self::Swaps { swaps, seed } => ("swaps", vec![format!("--swaps={swaps}")], seed),
            Self::Cluster { events, keys, hosts, seed } => {
                ("cluster", vec![format!("--events={events}"), format!("--keys={keys}"), format!("--hosts={hosts}")], seed)
            }
            Self::FanOut { postgres, events, subscribers, kills, pace, seed } => {
                let mut amounts = vec![
                    format!("--events={events}"),
                    format!("--subscribers={subscribers}"),
                    format!("--kills={kills}"),
                    format!("--pace={pace}"),
                ];
                amounts.extend(postgres.then(|| "--postgres".to_owned()));
                ("fan-out", amounts, seed)
            }
        };
        let seed = seed.map(|seed| format!("--seed={seed}"));
        [name.to_owned()].into_iter().chain(amounts).chain(seed).map(OsString::from).collect()
    }
}

fn main() -> Result<()> {
    let command = Cli::parse().command;
    let workspace = Workspace::find()?;
    match command {
        Command::Demo { of: Some(Demo::FanOut), .. } => {
            prepare(&workspace)?;
            workspace.start("fan-out", &["demo".into()])
        }
        Command::Demo { keep, of: None } => {
            prepare(&workspace)?;
            let keep = keep.then(|| "--keep".into());
            workspace.start("demo", keep.as_slice())
        }
        Command::Services(command) => services::run(&workspace, &command),
        Command::Chaos(chaos) => {
            prepare(&workspace)?;
            if !chaos.measures() {
                return workspace.start("chaos", &chaos.arguments());
            }
            build_optimised(&workspace)?;
            workspace.start_with_optimised_host("chaos", &chaos.arguments())
        }
        Command::Test(arguments) => test(&workspace, &arguments),
        Command::Ci => {
            checks::run(&workspace)?;
            test(&workspace, &TestArgs { filter: None, rest: Vec::new() })
        }
        Command::Setup => setup::run(),
        Command::Guests => {
            setup::run()?;
            guests::build(&workspace)
        }
        Command::Examples { language } => {
            setup::run()?;
            build_bins(&workspace)?;
            examples(&workspace, "build", language.map(OsString::from))
        }
        Command::ExamplesTour { language } => {
            prepare(&workspace)?;
            examples(&workspace, "tour", language.map(OsString::from))
        }
        Command::ExamplesCost { release, rest } => {
            prepare(&workspace)?;
            examples(&workspace, "build", None)?;
            if !release {
                return examples(&workspace, "cost", rest);
            }
            build_optimised(&workspace)?;
            let arguments: Vec<OsString> = ["cost".into()].into_iter().chain(rest).collect();
            step("examples: cost", || workspace.start_with_optimised_host("languages", &arguments))
        }
        Command::Throughput { rest } => {
            setup::run()?;
            guests::build(&workspace)?;
            build_optimised(&workspace)?;
            let mut line: Vec<OsString> = vec!["--plugins".into(), workspace.plugins().into()];
            line.extend(["--fixtures".into(), workspace.fixtures().into()]);
            line.extend(rest);
            step("measure", || workspace.start_optimised("outhaul-throughput", &line))
        }
        Command::KafkaThroughput { rest } => {
            setup::run()?;
            guests::build(&workspace)?;
            workspace.cargo(["build", "--quiet", "--package", "outhaul-services"])?;
            let held = Held::start(&workspace)?;
            let measure = ["--release", "--package", "outhaul-throughput", "--bin", "kafka-throughput"];
            step("build", || workspace.cargo(["build"].into_iter().chain(measure)))?;
            let held = held.ready()?;
            let mut line: Vec<OsString> = ["run"].into_iter().chain(measure).map(OsString::from).collect();
            line.extend(["--".into(), "--plugins".into(), workspace.plugins().into()]);
            line.extend(rest);
            step("measure", || workspace.cargo(line))?;
            held.end()
        }
        Command::OrderStress { rest } => measured(&workspace, "order-stress", rest),
        Command::ClaimTimes { rest } => measured(&workspace, "claim-times", rest),
        Command::FanOutFairness { rest } => fan_out(&workspace, "fairness", rest),
        Command::FanOutThroughput { rest } => fan_out(&workspace, "throughput", rest),
        Command::Growth { rest } => bench_series(&workspace, "growth", rest),
        Command::Soak { rest } => bench_series(&workspace, "soak", rest),
        Command::Peers { rest } => {
            prepare(&workspace)?;
            build_optimised(&workspace)?;
            step("peers", || workspace.start_with_optimised_host("peers", &rest))
        }
        Command::WitCheck => wit::check(&workspace.root.join("wit")),
        Command::WitDocs => wit_docs::write(&workspace.root),
    }
}

/// A program of the crate `outhaul-throughput` that starts its own services and needs no components.
fn measured(workspace: &Workspace, program: &str, rest: Vec<OsString>) -> Result<()> {
    build_optimised(workspace)?;
    step(program, || workspace.start_optimised(program, &rest))
}

/// Many runs of `outhaul bench`, by the program of that name of the crate `outhaul-throughput`.
fn bench_series(workspace: &Workspace, command: &str, rest: Vec<OsString>) -> Result<()> {
    setup::run()?;
    guests::build(workspace)?;
    build_optimised(workspace)?;
    // One `--out` of the rest is taken in place of this one.
    let places = [("--host", workspace.optimised("outhaul")), ("--plugins", workspace.plugins()), ("--out", workspace.root.join("bench"))];
    let places = places.into_iter().flat_map(|(name, path)| [name.into(), path.into()]);
    let arguments: Vec<OsString> = [command.into()].into_iter().chain(places).chain(rest).collect();
    step(command, || workspace.start_optimised("bench-series", &arguments))
}

/// The host of target/release, which tells the commit in the reports of `outhaul bench`, and the programs that measure.
fn build_optimised(workspace: &Workspace) -> Result<()> {
    step("build the optimised host", || {
        // Both at once: each alone would have other features, and much would be compiled twice.
        workspace.cargo_with_commit(["build", "--release", "--package", "outhaul", "--package", "outhaul-throughput", "--bins"])
    })
}

/// A measurement of fan-out, through an optimised host.
fn fan_out(workspace: &Workspace, command: &str, rest: Vec<OsString>) -> Result<()> {
    prepare(workspace)?;
    build_optimised(workspace)?;
    let arguments: Vec<OsString> = [command.into()].into_iter().chain(rest).collect();
    step(&format!("fan-out: {command}"), || workspace.start_with_optimised_host("fan-out", &arguments))
}

/// Everything that the programs of the kit need.
fn prepare(workspace: &Workspace) -> Result<()> {
    setup::run()?;
    guests::build(workspace)?;
    build_bins(workspace)
}

fn build_bins(workspace: &Workspace) -> Result<()> {
    // The whole workspace, as the tests do: with fewer packages cargo would choose other features and compile wasmtime twice.
    step("build the host and the test kit", || workspace.cargo(["build", "--workspace", "--bins"]))
}

/// Runs the program `languages` of the kit.
fn examples(workspace: &Workspace, command: &str, rest: impl IntoIterator<Item = OsString>) -> Result<()> {
    let arguments: Vec<OsString> = [command.into()].into_iter().chain(rest).collect();
    step(&format!("examples: {command}"), || workspace.start("languages", &arguments))
}

fn test(workspace: &Workspace, arguments: &TestArgs) -> Result<()> {
    prepare(workspace)?;
    examples(workspace, "build", None)?;
    // They start while the tests are compiled.
    let held = Held::start(workspace)?;
    step("build the tests", || workspace.cargo(["build", "--workspace", "--tests"]))?;
    let held = held.ready()?;
    step("test", || {
        let mut line = vec!["test", "--workspace", "--no-fail-fast"];
        line.extend(arguments.filter.as_deref());
        if !arguments.rest.is_empty() {
            line.push("--");
            line.extend(arguments.rest.iter().map(String::as_str));
        }
        workspace.cargo(line)
    })?;
    held.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_takes_its_arguments_with_and_without_dashes_before_them() {
        for command in ["growth", "soak", "peers"] {
            for line in [&["xtask", command, "--out", "/tmp/try"][..], &["xtask", command, "--", "--out", "/tmp/try"]] {
                let (Command::Growth { rest } | Command::Soak { rest } | Command::Peers { rest }) =
                    Cli::try_parse_from(line).unwrap().command
                else {
                    panic!("{line:?} is another command")
                };
                assert_eq!(rest, ["--out", "/tmp/try"], "{line:?}");
            }
        }
    }
}
