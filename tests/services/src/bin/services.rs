//! The services of the tests, for the command line. Started by `cargo xtask services` and `cargo xtask test`, which build it.

use anyhow::Result;
use clap::{Parser, Subcommand};
use outhaul_services::ground::Ground;
use outhaul_services::suite;
use std::path::PathBuf;

/// Starts and stops what the tests share.
#[derive(Parser)]
struct Cli {
    /// The target directory: data goes into its folder `services`.
    #[arg(long)]
    target: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start what is not up; it stays.
    Up,
    /// Start what is not up, print `ready`, and stop it when standard input ends.
    Hold,
    /// Stop everything, whoever uses it, and remove its data.
    Down,
    /// Say what is up and where.
    Status,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let ground = Ground::of(&cli.target)?;
    match cli.command {
        Command::Up => print!("{}", suite::report(&suite::up(&ground)?)),
        Command::Hold => suite::hold(&ground, std::io::stdin(), std::io::stdout())?,
        Command::Down => suite::down(&ground)?,
        Command::Status => match suite::status(&ground)? {
            Some(state) if ground.is_alive()? => print!("{}", suite::report(&state)),
            Some(_) => println!("some of it has died: `up` starts everything anew, `down` removes what is left"),
            None => println!("nothing is up"),
        },
    }
    Ok(())
}
