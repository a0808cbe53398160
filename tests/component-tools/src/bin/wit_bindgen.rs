//! `wit-bindgen c` and `wit-bindgen go`: bindings of a world, as source files.

use anyhow::{Context, Result};
use clap::Parser;
use std::path::PathBuf;
use wit_bindgen_core::{Files, WorldGenerator};

/// Writes the bindings of a world.
#[derive(Parser)]
#[command(name = "wit-bindgen")]
enum Command {
    /// For C.
    C(World),
    /// For Go.
    Go(World),
}

#[derive(clap::Args)]
struct World {
    /// The folder of WIT.
    wit: PathBuf,
    /// Which of its worlds.
    #[arg(long, short)]
    world: String,
    /// Where to write the files.
    #[arg(long, default_value = ".")]
    out_dir: PathBuf,
}

fn main() -> Result<()> {
    let (mut generator, world): (Box<dyn WorldGenerator>, World) = match Command::parse() {
        Command::C(world) => (wit_bindgen_c::Opts::default().build(), world),
        Command::Go(world) => (wit_bindgen_go::Opts::default().build(), world),
    };
    let (mut resolve, id) = outhaul_component_tools::world(&world.wit, &world.world)?;
    let mut files = Files::default();
    generator.generate(&mut resolve, id, &mut files)?;
    for (name, content) in files.iter() {
        let path = world.out_dir.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
