//! Component files for a running host: other versions of the shipped adapters, and candidates that must be refused. All are made from
//! the built ones by replacing texts of the same length, so that they differ in what is meant to differ and in nothing else.

use crate::places;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// What http-publisher tells of itself in its requests, up to its version.
const AGENT: &str = "outhaul-http-publisher/";

/// The version of every adapter in this workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A built adapter.
///
/// # Errors
/// If it is not built.
pub fn built(plugin: &str) -> Result<Vec<u8>> {
    let file = places::plugins()?.join(format!("{plugin}.wasm"));
    fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
}

/// http-publisher in another version, which its requests tell in `user-agent` ([`agent`]).
///
/// # Errors
/// If the adapter is not built, or tells no version any more.
pub fn publisher(version: &str) -> Result<Vec<u8>> {
    let with_agent = replaced(&built("http-publisher")?, &format!("{AGENT}{VERSION}"), &agent(version))?;
    replaced(&with_agent, &manifest(VERSION), &manifest(version))
}

/// sqlite-storage in another version, which only its manifest tells.
///
/// # Errors
/// If the adapter is not built, or tells no version any more.
pub fn storage(version: &str) -> Result<Vec<u8>> {
    replaced(&built("sqlite-storage")?, &manifest(VERSION), &manifest(version))
}

fn manifest(version: &str) -> String {
    format!("version = \"{version}\"")
}

/// The header `user-agent` of requests by a version of http-publisher.
#[must_use]
pub fn agent(version: &str) -> String {
    format!("{AGENT}{version}")
}

/// The same text everywhere, for another one of its length: offsets and lengths in the file stay right.
fn replaced(bytes: &[u8], from: &str, to: &str) -> Result<Vec<u8>> {
    if from.len() != to.len() {
        bail!("{from:?} and {to:?} are not of the same length");
    }
    let mut out = bytes.to_vec();
    let mut found = 0;
    let mut at = 0;
    while let Some(window) = bytes.get(at..at + from.len()) {
        if window == from.as_bytes() {
            out[at..at + from.len()].copy_from_slice(to.as_bytes());
            found += 1;
        }
        at += 1;
    }
    if found == 0 {
        bail!("{from:?} is not in the component");
    }
    Ok(out)
}

/// What is said of a component whose import no host has: which one, in words of ours.
const MISSING_IMPORT: &str = "needs what this host does not offer: it imports wasi:http/outgoing-handles@0.2.";

/// A candidate for the place of http-publisher that must be refused, and what is said of it.
#[derive(Debug, Clone)]
pub struct Bad {
    /// What it is.
    pub what: &'static str,
    /// The file.
    pub bytes: Vec<u8>,
    /// In the reason.
    pub told: &'static str,
}

/// Every kind of file that must not take the place of a publisher.
///
/// # Errors
/// If the adapters are not built.
pub fn bad() -> Result<Vec<Bad>> {
    let good = publisher("0.1.8")?;
    let half = good[..good.len() / 2].to_vec();
    let unknown = replaced(&good, "wasi:http/outgoing-handler@", "wasi:http/outgoing-handles@")?;
    // The world's interface in a version that this host does not speak.
    let newer = replaced(&good, "outhaul:adapter/publisher@0.1.1", "outhaul:adapter/publisher@0.2.0")?;
    Ok(vec![
        Bad { what: "a truncated component", bytes: half, told: "is truncated or damaged" },
        Bad { what: "a component of another world", bytes: built("sqlite-storage")?, told: "is not a publisher: it exports" },
        Bad { what: "one that wants an import which does not exist", bytes: unknown, told: MISSING_IMPORT },
        Bad { what: "one for another version of the contract", bytes: newer, told: "this host speaks outhaul:adapter@0.1" },
        Bad { what: "a core module", bytes: b"\0asm\x01\0\0\0".to_vec(), told: "is a core module, not a component" },
        Bad {
            what: "one compiled for another engine",
            bytes: b"\x7fELF\x02\x01\x01\0".to_vec(),
            told: "is compiled code, not a component",
        },
        Bad { what: "an empty file", bytes: Vec::new(), told: "is not WebAssembly" },
    ])
}

/// Puts a component in place by rename, as `install` and most tools do.
///
/// # Errors
/// If it cannot be written.
pub fn put(folder: &Path, plugin: &str, bytes: &[u8]) -> Result<PathBuf> {
    let file = folder.join(format!("{plugin}.wasm"));
    let half = folder.join(format!("{plugin}.new"));
    fs::write(&half, bytes).with_context(|| format!("cannot write {}", half.display()))?;
    fs::rename(&half, &file).with_context(|| format!("cannot put {} in place", file.display()))?;
    Ok(file)
}

/// Writes a component over the one that is there, as `cp` does: for a moment there is half of it.
///
/// # Errors
/// If it cannot be written.
pub fn write_over(folder: &Path, plugin: &str, bytes: &[u8]) -> Result<()> {
    let file = folder.join(format!("{plugin}.wasm"));
    fs::write(&file, bytes).with_context(|| format!("cannot write {}", file.display()))
}
