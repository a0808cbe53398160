//! The few commands of `wit-bindgen` and `wasm-tools` that the examples are built with, with the same names and options.

use anyhow::{Context, Result};
use std::path::Path;
use wit_parser::{Resolve, WorldId};

/// Reads a folder of WIT and finds a world of its main package.
///
/// # Errors
/// If it is not WIT, or has no such world.
pub fn world(folder: &Path, name: &str) -> Result<(Resolve, WorldId)> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(folder).with_context(|| format!("cannot read the WIT in {}", folder.display()))?;
    let world = resolve.select_world(&[package], Some(name))?;
    Ok((resolve, world))
}
