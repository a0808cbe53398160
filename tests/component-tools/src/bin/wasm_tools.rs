//! `wasm-tools component embed` and `wasm-tools component new`: a core module becomes a component.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::fs;
use std::path::{Path, PathBuf};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};

/// Turns core modules into components.
#[derive(Parser)]
#[command(name = "wasm-tools")]
enum Command {
    /// Components.
    #[command(subcommand)]
    Component(Component),
}

#[derive(Subcommand)]
enum Component {
    /// Puts the type of a world into a core module.
    Embed {
        /// The folder of WIT.
        wit: PathBuf,
        /// The core module.
        module: PathBuf,
        /// Which of its worlds.
        #[arg(long, short)]
        world: String,
        /// Where to write the result.
        #[arg(long, short)]
        output: PathBuf,
    },
    /// Wraps a core module that has the type of its world in it.
    New {
        /// The core module.
        module: PathBuf,
        /// `NAME=FILE`: a module that stands in for the imports of this name.
        #[arg(long)]
        adapt: Vec<String>,
        /// Where to write the component.
        #[arg(long, short)]
        output: PathBuf,
    },
}

fn main() -> Result<()> {
    let Command::Component(command) = Command::parse();
    let (output, bytes) = match command {
        Component::Embed { wit, module, world, output } => {
            let (resolve, id) = outhaul_component_tools::world(&wit, &world)?;
            let mut bytes = read(&module)?;
            embed_component_metadata(&mut bytes, &resolve, id, StringEncoding::UTF8)?;
            (output, bytes)
        }
        Component::New { module, adapt, output } => {
            let mut encoder = ComponentEncoder::default();
            encoder.validate(true).module(&read(&module)?)?;
            for adapter in adapt {
                let (name, file) = adapter.split_once('=').with_context(|| format!("`--adapt {adapter}` is not NAME=FILE"))?;
                encoder.adapter(name, &read(Path::new(file))?)?;
            }
            (output, encoder.encode()?)
        }
    };
    fs::write(&output, bytes).with_context(|| format!("cannot write {}", output.display()))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}
