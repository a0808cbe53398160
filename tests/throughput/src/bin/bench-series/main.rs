//! Many runs of `outhaul bench`, written down as tables and plots: how it grows (`cargo xtask growth`), and whether it stays as it is for
//! an hour (`cargo xtask soak`).
//!
//! - [`ground`]: a fresh table and a configuration for each run, and the run
//! - [`sweeps`]: what is varied
//! - [`growth`]: all of that, and what came out
//! - [`soak`]: one long run
//! - [`figures`]: medians, tables in Markdown

#![allow(clippy::print_stdout, reason = "a program that prints what it does")]

mod figures;
mod ground;
mod growth;
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
    /// Where tables and plots are written.
    #[arg(long)]
    into: PathBuf,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Growth { places, options } => growth::run(&bench(&places, options.databases())?, &options, &places.into),
        Command::Soak { places, options } => soak::run(&bench(&places, &[options.database])?, &options, &places.into),
    }
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
