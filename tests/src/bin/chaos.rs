//! The long runs of [`outhaul_tests::chaos`], for the command line. Started by `cargo xtask chaos`, which builds what they need.

use anyhow::{Context, Result};
use clap::Parser;
use outhaul_tests::fan_out::storm::Storm;
use outhaul_tests::fan_out::{Ground, on_own_postgres, storm};
use outhaul_tests::{chaos, cluster, swaps};
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
    /// Two versions of a publisher take turns while messages flow; every tenth candidate is a bad one.
    Swaps {
        /// How often a candidate takes over.
        #[arg(long, default_value_t = 200)]
        swaps: u32,
        /// Repeats a run.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// PostgreSQL to three brokers of Kafka; hosts and brokers are killed in turn.
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
        /// Makes the same choices as another run.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Fan-out by two hosts that are killed, to endpoints of which one is down, one is slow, and the others fail a tenth.
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
        /// Makes the same choices as another run.
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
    match Chaos::parse() {
        Chaos::Kill { kills, seed } => println!("{}", chaos::kill(kills, chosen(seed), progress)?),
        Chaos::TwoHosts { seconds, seed } => println!("{}", chaos::two_hosts(Duration::from_secs(seconds), chosen(seed), progress)?),
        Chaos::Swaps { swaps, seed } => println!("{}", swaps::run(swaps, chosen(seed), progress)?),
        Chaos::Cluster { events, keys, hosts, seed } => {
            let plan = cluster::Plan { hosts, events, keys, seed: chosen(seed), pause: Duration::from_secs(3), pace: Duration::ZERO };
            // Without what it needs, this is no test that was left out, but a command that cannot be carried out.
            let summary = cluster::run(plan, progress)?.context("PostgreSQL or Kafka is missing")?;
            println!("{summary}");
        }
        Chaos::FanOut { postgres, events, subscribers, kills, pace, seed } => {
            let storm = Storm { events, subscribers, kills, pace, seed: chosen(seed) };
            let run = |ground: Ground<'_>| {
                println!("{}", storm::run(ground, storm, progress)?);
                Ok(())
            };
            if postgres { on_own_postgres(run)? } else { run(Ground::Sqlite)? }
        }
    }
    Ok(())
}
