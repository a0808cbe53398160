//! The long runs of [`outhaul_tests::chaos`], for the command line. Started by `cargo xtask chaos`, which builds what they need.

use anyhow::Result;
use clap::Parser;
use outhaul_tests::chaos;
use std::time::Duration;

/// Runs with crashes; ends with 0 if every promise was kept.
#[derive(Parser)]
enum Chaos {
    /// Kill the host at random moments while producers write and the receiver fails a fifth of the requests.
    Kill {
        /// How often.
        #[arg(long, default_value_t = 200)]
        kills: u32,
        /// Repeats a run.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Two hosts on one file, killed, and frozen for longer than their leases.
    TwoHosts {
        /// How long.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Repeats a run.
        #[arg(long)]
        seed: Option<u64>,
    },
}

fn main() -> Result<()> {
    let chosen = |seed: Option<u64>| {
        let seed = seed.unwrap_or_else(rand::random);
        eprintln!("seed {seed}");
        seed
    };
    let progress = |line: String| eprintln!("{line}");
    let summary = match Chaos::parse() {
        Chaos::Kill { kills, seed } => chaos::kill(kills, chosen(seed), progress)?,
        Chaos::TwoHosts { seconds, seed } => chaos::two_hosts(Duration::from_secs(seconds), chosen(seed), progress)?,
    };
    println!("{summary}");
    Ok(())
}
