//! The examples in five languages, for the command line: builds, the tour, and what each costs. Started by `cargo xtask`, which builds
//! what they need.

use anyhow::Result;
use clap::Parser;
use outhaul_tests::examples::{self, Language};

/// Builds and measures the examples.
#[derive(Parser)]
enum Command {
    /// Build them, each as its README says.
    Build {
        /// Only this language.
        language: Option<Language>,
    },
    /// From `outhaul plugin new` to a delivered message, by the clock.
    Tour {
        /// Only this language.
        language: Option<Language>,
    },
    /// Sizes, starts, and the time of a message.
    Cost(examples::cost::Amount),
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Build { language } => examples::build::build(language),
        Command::Tour { language } => examples::tour::tour(language),
        Command::Cost(amount) => examples::cost::measure(&amount),
    }
}
