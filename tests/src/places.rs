//! Where the built things are: beside the running test program, whatever the target directory is called.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The `outhaul` binary: that of `OUTHAUL_HOST`, or the one that was built with this program.
///
/// # Errors
/// If it is not there.
pub fn outhaul() -> Result<PathBuf> {
    if let Some(host) = std::env::var_os("OUTHAUL_HOST") {
        let host = std::path::absolute(&host).context("OUTHAUL_HOST is no path")?;
        return existing(host, "OUTHAUL_HOST has to name the host's binary");
    }
    let binary = profile_folder()?.join(format!("outhaul{}", std::env::consts::EXE_SUFFIX));
    existing(binary, "the host is not built: run `cargo build --package outhaul`, or the whole suite with `cargo xtask test`")
}

/// Folder of the adapters' components.
///
/// # Errors
/// If it is not there.
pub fn plugins() -> Result<PathBuf> {
    components("OUTHAUL_PLUGINS", "plugins")
}

/// Folder of the fixtures' components.
///
/// # Errors
/// If it is not there.
pub fn fixtures() -> Result<PathBuf> {
    components("OUTHAUL_FIXTURES", "fixtures")
}

/// A folder for compiled components, shared by all tests: each component is compiled once, not once a test.
///
/// # Errors
/// If the target directory cannot be found.
pub fn compiled() -> Result<PathBuf> {
    Ok(target()?.join("compiled"))
}

/// The target directory.
///
/// # Errors
/// If this program does not run from one.
pub fn target() -> Result<PathBuf> {
    Ok(profile_folder()?.parent().context("the build folder has no parent")?.to_owned())
}

/// The root of the checkout.
#[must_use]
pub fn checkout() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn components(variable: &str, name: &str) -> Result<PathBuf> {
    let folder = match std::env::var_os(variable) {
        Some(folder) => PathBuf::from(folder),
        None => target()?.join(name),
    };
    existing(folder, "the components are not built: run `cargo xtask guests`, or the whole suite with `cargo xtask test`")
}

fn existing(path: PathBuf, advice: &str) -> Result<PathBuf> {
    if !path.exists() {
        bail!("{} does not exist; {advice}", path.display());
    }
    Ok(path)
}

/// `target/debug`: programs are in it, test programs in its folder `deps`.
fn profile_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let folder = program.parent().context("this program is in no folder")?;
    if folder.ends_with("deps") { folder.parent().map(Path::to_owned).context("deps has no parent") } else { Ok(folder.to_owned()) }
}
