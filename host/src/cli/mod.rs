//! The command line: one file a command. What a program would read goes to stdout, all else to stderr.

mod bench;
mod check;
mod dead;
mod drain;
mod enqueue;
mod error;
mod fanout;
mod lines;
mod message;
pub(crate) mod output;
mod pin;
mod plugin;
mod plugin_drive;
mod plugin_test;
mod pull;
mod purge;
mod run;
mod running;
mod schema;
mod stats;
mod storage;

use crate::app::App;
use crate::config::model::Log;
use crate::config::{self, Config};
use crate::logging;
use clap::{CommandFactory as _, Parser, Subcommand};
use error::CommandError;
use std::path::PathBuf;
use std::process::ExitCode;

/// What every command may end with.
pub(crate) type CommandResult = Result<(), CommandError>;

/// The configuration that commands take where none is named.
pub(crate) const CONFIG: &str = "outhaul.toml";

/// Moves the rows of an outbox table to where they belong, through adapters in a sandbox.
///
/// A service writes its business rows and an outbox row in one database transaction; outhaul claims outbox rows under a lease,
/// publishes them, and settles each one as delivered, waiting for a retry, or dead.
#[derive(Debug, Parser)]
#[command(name = "outhaul", version, arg_required_else_help = true, max_term_width = 110, after_help = AFTER_HELP)]
struct Cli {
    /// The configuration file.
    #[arg(long, short, global = true, value_name = "FILE", env = "OUTHAUL_CONFIG", default_value = CONFIG)]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
First steps:
  outhaul check                                what is fine with the configuration, and what is not
  outhaul schema --apply                       create the table (and an absent SQLite file)
  outhaul enqueue --topic orders.created --key 42 --payload '{\"total\": 3}'
  outhaul drain                                deliver what is due, then end
  outhaul run                                  deliver until a signal comes
  outhaul dead list                            what could not be delivered, and why
  outhaul fanout list RELAY                    deliveries to subscribers, where a relay has fan_out

With --json, stdout has one JSON document in any case; where a command fails: {\"error\": \"...\", \"exit_code\": 2}.

Exit codes:
  0  fine
  1  a failure at run time: a database or another thing outside did not answer
  2  wrong usage or configuration: trying again does not help

Environment:
  OUTHAUL_CONFIG  the configuration file, where --config is not given
  RUST_LOG        the log filter, in place of log.filter (for instance: info,outhaul=debug)
  NO_COLOR        no colours in the log";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Drain(drain::Args),
    Check(check::Args),
    Enqueue(enqueue::Args),
    Schema(schema::Args),
    Stats(stats::Args),
    #[command(subcommand)]
    Dead(dead::Command),
    Purge(purge::Args),
    Bench(bench::Args),
    #[command(hide = true, name = crate::bench::destination::COMMAND)]
    BenchDestination(bench::DestinationArgs),
    #[command(subcommand)]
    Fanout(fanout::Command),
    #[command(subcommand)]
    Plugin(plugin::Command),
}

impl Command {
    /// Whether stdout is to have one JSON document.
    fn is_json(&self) -> bool {
        match self {
            Self::Run(_) | Self::Schema(_) | Self::BenchDestination(_) => false,
            Self::Plugin(plugin::Command::New(_) | plugin::Command::Drive(_)) => false,
            Self::Bench(args) => args.json,
            Self::Drain(args) => args.json,
            Self::Check(args) => args.json,
            Self::Enqueue(args) => args.json,
            Self::Stats(args) => args.json,
            Self::Dead(command) => command.is_json(),
            Self::Purge(args) => args.json,
            Self::Fanout(command) => command.is_json(),
            Self::Plugin(plugin::Command::List(args)) => args.json,
            Self::Plugin(plugin::Command::Inspect(args)) => args.json,
            Self::Plugin(plugin::Command::Pin(args)) => args.json,
            Self::Plugin(plugin::Command::Pull(args)) => args.json,
            Self::Plugin(plugin::Command::Test(args)) => args.json,
        }
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    // Wrong usage ends here, with exit code 2; --help and --version with 0.
    let cli = Cli::try_parse().unwrap_or_else(|error| wrong_usage(&error));
    let json = cli.command.is_json();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return CommandError::failure(anyhow::Error::new(error).context("cannot start the runtime")).report(json),
    };
    let ended = runtime.block_on(execute(cli));
    // Calls that are still under way after a forced end are left behind: their leases run out.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(json),
    }
}

/// Ends as clap does, and tells a program too where it asked for that.
fn wrong_usage(error: &clap::Error) -> ! {
    if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
        let text = error.to_string();
        // What comes after the first paragraph is usage, for people.
        let text = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").replace('\n', " ");
        // The exit code says it too, should stdout be gone.
        let _ = output::json(&serde_json::json!({ "error": text, "exit_code": error.exit_code() }));
    }
    error.exit()
}

async fn execute(cli: Cli) -> CommandResult {
    let file = cli.config;
    match cli.command {
        // Looks at a file, wherever it is: needs no configuration.
        Command::Plugin(plugin::Command::Inspect(args)) => plugin::inspect(args).await,
        Command::Plugin(plugin::Command::New(args)) => plugin::new(&args),
        Command::Plugin(plugin::Command::Test(args)) => plugin_test::run(args).await,
        Command::Plugin(plugin::Command::Drive(args)) => {
            start_quiet_log()?;
            plugin_drive::run(args).await
        }
        Command::Plugin(plugin::Command::List(args)) => plugin::list(args, &load(&file, Quiet::Yes)?).await,
        Command::Plugin(plugin::Command::Pin(args)) => pin::run(args, &load(&file, Quiet::Yes)?).await,
        Command::Plugin(plugin::Command::Pull(args)) => pull::run(args, &load(&file, Quiet::Yes)?).await,
        Command::Bench(args) => bench::run(args, &file, bench_with).await,
        Command::BenchDestination(args) => bench::serve(args).await,
        Command::Check(args) => match config::load(&file) {
            Ok(config) => {
                start_log(&config, Quiet::Yes)?;
                check::run(args, config).await
            }
            Err(error) => check::unreadable(args, &file, error),
        },
        Command::Schema(args) => schema::run(args, load(&file, Quiet::Yes)?).await,
        Command::Run(args) => run::run(args, App::new(load(&file, Quiet::No)?)?).await,
        Command::Drain(args) => drain::run(args, App::new(load(&file, Quiet::No)?)?).await,
        Command::Enqueue(args) => enqueue::run(args, App::new(load(&file, Quiet::Yes)?)?).await,
        Command::Stats(args) => stats::run(args, App::new(load(&file, Quiet::Yes)?)?).await,
        Command::Dead(command) => dead::run(command, App::new(load(&file, Quiet::Yes)?)?).await,
        Command::Fanout(command) => fanout::run(command, &file).await,
        Command::Purge(args) => purge::run(args, App::new(load(&file, Quiet::Yes)?)?).await,
    }
}

/// The command line of this process, which is a bench, with flags added behind: where one comes twice, the last one counts.
fn bench_with(flags: &str) -> Result<(PathBuf, bench::Args), clap::Error> {
    let more = flags.split_whitespace().map(std::ffi::OsString::from);
    let cli = Cli::try_parse_from(std::env::args_os().chain(more))?;
    match cli.command {
        Command::Bench(args) => Ok((cli.config, args)),
        _ => Err(Cli::command().error(clap::error::ErrorKind::InvalidSubcommand, "the flags must be those of a bench")),
    }
}

/// Whether a command logs warnings only, since what it has to say is its output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quiet {
    Yes,
    No,
}

/// Reads the configuration and sets up the log by it.
fn load(file: &std::path::Path, quiet: Quiet) -> Result<Config, CommandError> {
    let config = config::load(file)?;
    start_log(&config, quiet)?;
    Ok(config)
}

/// The log of a command that has no configuration.
fn start_quiet_log() -> CommandResult {
    logging::init(&Log { filter: "warn".to_owned(), json: false }).map_err(CommandError::usage)
}

fn start_log(config: &Config, quiet: Quiet) -> CommandResult {
    let mut log = config.log.clone();
    if quiet == Quiet::Yes {
        "warn".clone_into(&mut log.filter);
    }
    logging::init(&log).map_err(CommandError::usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    fn parses(line: &str) -> bool {
        Cli::try_parse_from(line.split_whitespace()).is_ok()
    }

    #[test]
    fn right_usage_is_taken() {
        for line in [
            "outhaul run",
            "outhaul --config x.toml run --relay a --relay b",
            "outhaul drain --json --config x.toml",
            "outhaul check --json",
            "outhaul enqueue --storage s --topic t --key k --header a=1 --header a=2 --id i --payload p",
            "outhaul enqueue --topic t --payload-file -",
            "outhaul enqueue --topic t --tombstone",
            "outhaul enqueue --jsonl -",
            "outhaul schema --storage s --apply",
            "outhaul stats --json",
            "outhaul dead list --topic t --limit 5 --after x --json",
            "outhaul dead show 7",
            "outhaul dead requeue --id 1 --id 2",
            "outhaul dead requeue --topic t",
            "outhaul dead discard --all",
            "outhaul purge --older-than 7d --json",
            "outhaul bench",
            "outhaul bench --relay a --rows 5 --rows 6 --payload 0 --keys 0 --publisher null --native --hosts 2 --runs 3 --compare --native",
            "outhaul bench --clear --relay a --json",
            "outhaul bench --rate 100 --duration 1m --topic t --batch 50 --lanes 16 --purge --json --plot plots",
            "outhaul bench --destination-delay 50ms --destination-failing 10",
            "outhaul fanout reemit orders 17 --tenant acme --json",
            "outhaul fanout list orders --tenant= --state quarantined --event 17 --subscriber crm --id a --id b --limit 5 --after x",
            "outhaul fanout show orders dl_1",
            "outhaul fanout status orders --after 5 --limit 10 --json",
            "outhaul fanout status orders --reader billing --advance",
            "outhaul fanout status orders --reader billing --expected 5 --through 9",
            "outhaul fanout rekey orders --json",
            "outhaul fanout purge orders --older-than 30d",
            "outhaul fanout purge orders --older-than 30d --all-tenants",
            "outhaul fanout schema subscriptions --apply",
            "outhaul plugin list --json",
            "outhaul plugin inspect x.wasm --json",
            "outhaul plugin new --lang js --kind publisher x",
            "outhaul plugin new --lang c x",
            "outhaul plugin pin",
            "outhaul plugin pin --check --json",
            "outhaul plugin drive x.wasm --set table='t' --secret a=A --database sqlite:x.db",
            "outhaul plugin pull ghcr.io/a/b:1 --resolve --name b --json",
            "outhaul plugin test x.wasm --set a=1 --secret k=KEY --allow-host h:1 --call-timeout 1s --clause storage.limit --json",
            "outhaul plugin test --list --json",
        ] {
            assert!(parses(line), "{line}");
        }
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "outhaul",
            "outhaul fly",
            "outhaul enqueue --topic t",
            "outhaul enqueue --payload p",
            "outhaul enqueue --topic t --payload p --tombstone",
            "outhaul enqueue --jsonl - --topic t",
            "outhaul enqueue --topic t --payload p --header nothing",
            "outhaul dead requeue",
            "outhaul dead discard",
            "outhaul dead requeue --all --id 1",
            "outhaul dead list --limit 0",
            "outhaul purge",
            "outhaul purge --older-than 7",
            "outhaul bench --rate 0",
            "outhaul bench --hosts 0",
            "outhaul bench --runs 0",
            "outhaul bench --lanes 0",
            "outhaul bench --destination-failing 101",
            "outhaul bench --publisher other",
            "outhaul bench --rows 5 --rate 5",
            "outhaul bench --duration 5s",
            "outhaul bench --clear --rows 5",
            "outhaul bench --clear --purge",
            "outhaul fanout",
            "outhaul fanout list",
            "outhaul fanout list orders --state dead",
            "outhaul fanout reemit orders",
            "outhaul fanout status orders --advance",
            "outhaul fanout status orders --reader a --after 5",
            "outhaul fanout status orders --reader a --expected 5",
            "outhaul fanout status orders --reader a --through 5",
            "outhaul fanout status orders --expected 5 --through 6",
            "outhaul fanout status orders --reader a --expected 5 --through 6 --advance",
            "outhaul fanout status orders --reader=",
            "outhaul fanout purge orders",
            "outhaul plugin inspect",
            "outhaul plugin new x",
            "outhaul plugin new --lang cobol x",
            "outhaul plugin pull",
            "outhaul plugin test",
            "outhaul plugin test x.wasm --list",
            "outhaul plugin test x.wasm --secret KEY",
        ] {
            assert!(!parses(line), "{line}");
        }
    }
}
