//! The one thing that the toolchain may lack: the standard library of the adapters' target.

use crate::workspace::{GUEST_TARGET, step};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Adds the target if it is not installed.
///
/// # Errors
/// If it cannot be added: says what to install by hand.
pub(crate) fn run() -> Result<()> {
    if installed()? {
        return Ok(());
    }
    step(&format!("add the target {GUEST_TARGET} (rustup target add {GUEST_TARGET})"), || {
        match Command::new("rustup").args(["target", "add", GUEST_TARGET]).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => bail!("`rustup target add {GUEST_TARGET}` failed ({status}); {ADVICE}"),
            Err(error) => bail!("cannot run rustup ({error}); {ADVICE}"),
        }
    })?;
    if !installed()? {
        bail!("rustup added the target to another toolchain than the `rustc` in use; {ADVICE}");
    }
    Ok(())
}

const ADVICE: &str = "the adapters need Rust's standard library for wasm32-wasip2: install rustup (https://rustup.rs) and run \
    `rustup target add wasm32-wasip2`, or, with a compiler from another source, install its package for that target, so that \
    `rustc --print target-libdir --target wasm32-wasip2` names a folder that exists";

/// Whether the compiler has the target's standard library. Asks the compiler, not rustup, which need not be there.
fn installed() -> Result<bool> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", GUEST_TARGET]).output().context("cannot run rustc")?;
    let folder = String::from_utf8(output.stdout).context("rustc printed a path that is not UTF-8")?;
    Ok(output.status.success() && Path::new(folder.trim()).is_dir())
}
