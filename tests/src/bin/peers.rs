//! outhaul beside its peers ([`outhaul_tests::peers`]), for the command line. Started by `cargo xtask peers`, which builds what it needs.

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use clap::{Parser, ValueEnum};
use outhaul_tests::peers::plan::Peer;
use outhaul_tests::peers::{self, Load, Options};
use outhaul_tests::places;
use std::path::PathBuf;
use std::time::Duration;

/// outhaul beside what a user would pick instead: equal tables, in turn.
///
/// Wants a machine with nothing else to do. The results are written after each round. Ends with 1 if anybody did not run.
#[derive(Parser)]
struct Cli {
    /// Only these, beside outhaul; default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Peer>,
    /// Rows of each run.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Keys of the rows, in turn.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Bytes of a payload: a JSON string.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(2..))]
    payload: u64,
    /// How often everybody runs.
    #[arg(long, default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    runs: usize,
    /// Seconds that one run may take.
    #[arg(long, default_value_t = 180)]
    limit: u64,
    /// Minutes for all: no round begins that would not end by then.
    #[arg(long, default_value_t = 25)]
    minutes: u64,
    /// Where RESULTS.md and results/ go; default: bench/ of the checkout.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let out = match cli.out {
        Some(out) => std::path::absolute(out)?,
        None => places::checkout().canonicalize()?.join("bench"),
    };
    let peers = if cli.only.is_empty() { Peer::value_variants().to_vec() } else { cli.only };
    peers::run(&Options {
        peers,
        load: Load { rows: cli.rows, keys: cli.keys, payload: cli.payload },
        rounds: cli.runs,
        limit: Duration::from_secs(cli.limit),
        all: Duration::from_secs(cli.minutes * 60),
        out,
    })
}
