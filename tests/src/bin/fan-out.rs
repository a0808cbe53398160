//! The demonstration and the measurements of [`outhaul_tests::fan_out`], for the command line. Started by `cargo xtask demo fan-out`,
//! `fan-out-fairness` and `fan-out-throughput`, which build what they need.

use anyhow::Result;
use clap::{Args, Parser};
use outhaul_tests::fan_out::throughput::{Load, Rates};
use outhaul_tests::fan_out::{Ground, fairness, on_own_postgres, throughput, tour};

/// One event, many destinations.
#[derive(Parser)]
enum FanOut {
    /// Three subscribers, a re-emit, a row tampered with, and the status log, told step by step.
    Demo,
    /// How long ten deliveries of a tenant take, alone and beside very many of another.
    Fairness {
        /// Due deliveries of the other tenant.
        #[arg(long, default_value_t = 1_000_000)]
        due: usize,
        #[command(flatten)]
        ground: Where,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Events expanded and deliveries made a second.
    Throughput {
        /// Subscribers of each event.
        #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100])]
        subscribers: Vec<usize>,
        /// Deliveries of each run.
        #[arg(long, default_value_t = 50_000)]
        deliveries: usize,
        #[command(flatten)]
        ground: Where,
        /// Print JSON, one line a run.
        #[arg(long)]
        json: bool,
    },
}

/// On which databases; without any, on both.
#[derive(Args)]
struct Where {
    /// On SQLite.
    #[arg(long)]
    sqlite: bool,
    /// On a PostgreSQL of its own.
    #[arg(long)]
    postgres: bool,
}

impl Where {
    fn each(&self, mut run: impl FnMut(Ground<'_>) -> Result<()>) -> Result<()> {
        let both = !self.sqlite && !self.postgres;
        if self.sqlite || both {
            run(Ground::Sqlite)?;
        }
        if self.postgres || both {
            on_own_postgres(&mut run)?;
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    match FanOut::parse() {
        FanOut::Demo => {
            println!();
            tour::run(Ground::Sqlite, |text| println!("{text}\n"))
        }
        FanOut::Fairness { due, ground, json } => ground.each(|ground| {
            let summary = fairness::run(ground, due, |line| eprintln!("{line}"))?;
            println!("{}", if json { serde_json::to_string(&summary)? } else { format!("{}: {summary}", ground.name()) });
            Ok(())
        }),
        FanOut::Throughput { subscribers, deliveries, ground, json } => {
            if !json {
                println!("{}", Rates::HEAD);
            }
            ground.each(|ground| {
                for subscribers in &subscribers {
                    let rates = throughput::run(ground, Load { subscribers: *subscribers, deliveries })?;
                    println!("{}", if json { serde_json::to_string(&rates)? } else { rates.to_string() });
                }
                Ok(())
            })
        }
    }
}
