//! Many runs of `outhaul bench`, written down as tables and plots: how it grows (`cargo xtask growth`), and whether it stays as it is for
//! an hour (`cargo xtask soak`).
//!
//! - [`ground`]: a fresh table and a configuration for each run, and the run
//! - [`sweeps`]: what is varied
//! - [`growth`]: all of that, round by round
//! - [`page`]: what came out
//! - [`soak`]: one long run
//! - [`figures`]: medians, tables in Markdown

#![allow(clippy::print_stdout, reason = "a program that prints what it does")]

mod figures;
mod ground;
mod growth;
mod page;
mod soak;
mod sweeps;

use anyhow::{Context as _, Result};
use clap::{Args, Parser};
use ground::{Bench, Kind};
use outhaul_services::{Major, Postgres, Server};
use std::path::PathBuf;

/// Many runs of `outhaul bench`.
#[derive(Parser)]
enum Command {
    /// Throughput and claim time against backlog, hosts, keys and payload, and a slow destination, on both databases.
    Growth {
        #[command(flatten)]
        places: Places,
        #[command(flatten)]
        options: growth::Options,
    },
    /// A steady load for a long time: whether memory and latency stay as they are.
    Soak {
        #[command(flatten)]
        places: Places,
        #[command(flatten)]
        options: soak::Options,
    },
}

#[derive(Args)]
struct Places {
    /// The host.
    #[arg(long)]
    host: PathBuf,
    /// Directory with the adapters.
    #[arg(long)]
    plugins: PathBuf,
    /// Where tables and plots are written; of several, the last one. `cargo xtask` puts bench/ of the checkout before all other arguments.
    #[arg(long, overrides_with = "out")]
    out: PathBuf,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Growth { places, options } => growth::run(&bench(&places, &options.databases)?, &options, &places.out),
        Command::Soak { places, options } => soak::run(&bench(&places, &[options.database])?, &options, &places.out),
    }
}

/// A number above zero, for the command line.
fn above_zero(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0).ok_or_else(|| "write a number above zero".to_owned())
}

/// A PostgreSQL of its own, if one of the databases is one.
fn server(databases: &[Kind]) -> Result<Option<Server>> {
    let wanted = databases.contains(&Kind::Postgres);
    wanted.then(|| Postgres::start(Major::V17).context("PostgreSQL cannot be had")).transpose()
}

fn bench(places: &Places, databases: &[Kind]) -> Result<Bench> {
    let absolute = |path| std::path::absolute(path).context("no current folder");
    Bench::new(absolute(&places.host)?, absolute(&places.plugins)?, server(databases)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        Command::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_last_folder_counts() {
        let places = "--host h --plugins p --out bench";
        let Command::Growth { places, options } = parsed(&format!("b growth {places} --out /tmp/try --runs 1 --scale 0.1")).unwrap() else {
            panic!("another command")
        };
        assert_eq!((places.out, options.databases.len()), (PathBuf::from("/tmp/try"), 2));
    }

    #[test]
    fn nothing_is_measured_of_nothing() {
        for (flags, reason) in [
            ("growth --runs 0", "0 is not in 1.."),
            ("growth --scale 0", "write a number above zero"),
            ("growth --scale=-1", "write a number above zero"),
            ("growth --scale NaN", "write a number above zero"),
            ("soak --rate 0", "0 is not in 1.."),
            ("soak --hours 0", "write a number above zero"),
            ("soak --hours 0.005", "a run of less than 20 seconds"),
        ] {
            let error = parsed(&format!("b {flags} --host h --plugins p --out o")).err().unwrap();
            assert!(error.contains(reason), "{flags}: {error}");
        }
    }
}
