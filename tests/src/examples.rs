//! The components of the examples, which need the tools of five languages and may not all be there.

use crate::places;
use crate::rig::Rig;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The component of an example; none, with a word about it, if it is not built.
///
/// # Errors
/// If it is not built and `CI` is set: there everything has to be.
pub fn component(name: &str) -> Result<Option<PathBuf>> {
    let folder = std::env::var_os("OUTHAUL_EXAMPLES")
        .map_or_else(|| places::target().map(|target| target.join("examples")), |set| Ok(set.into()))?;
    let component = folder.join(format!("{name}.wasm"));
    if component.exists() {
        return Ok(Some(component));
    }
    let text = format!("{name} is not built: `cargo xtask examples` builds it, or says what is missing");
    if std::env::var_os("CI").is_some_and(|value| value == "true") {
        bail!(text);
    }
    eprintln!("SKIPPED: {text}");
    Ok(None)
}

/// Runs a command of outhaul that has the host compile what a configuration names, for all tests after this: one at a time, and for as
/// long as it takes. (20 MB of Python are 10 s on an idle machine, and more than a test waits for on a busy one.)
///
/// # Errors
/// If the command fails.
pub fn compile(rig: &Rig, arguments: &[&str]) -> Result<()> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(places::outhaul()?);
    let output = command.arg("--config").arg(rig.config()).args(arguments).output().context("cannot run outhaul")?;
    if !output.status.success() {
        bail!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
