//! The examples in five languages: what there is, and where their components are. They need the tools of each language, and may not
//! all be there.
//!
//! - [`build`]: builds them as their readers do
//! - [`readme`]: runs the commands of a README
//! - [`tour`]: from `outhaul plugin new` to a delivered message, by the clock
//! - [`cost`]: what each language costs

pub mod build;
pub mod cost;
pub mod readme;
pub mod tour;

use crate::places;
use crate::rig::Rig;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The languages of the examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// With the SDK.
    Rust,
    /// JavaScript.
    Js,
    /// CPython.
    Python,
    /// Without a library.
    C,
    /// Experimental.
    Go,
}

/// The kinds of adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Sends messages.
    Publisher,
    /// Keeps them.
    Storage,
    /// Says who subscribes to what.
    Router,
}

/// An example: the arguments of `outhaul plugin new`, and the name in its files.
#[derive(Debug, Clone, Copy)]
pub struct Example {
    /// `--lang`
    pub language: Language,
    /// `--kind`
    pub kind: Kind,
    /// Its name.
    pub name: &'static str,
}

/// All there are.
pub const ALL: [Example; 11] = [
    Example { language: Language::Rust, kind: Kind::Publisher, name: "http-rust" },
    Example { language: Language::Rust, kind: Kind::Storage, name: "rows-rust" },
    Example { language: Language::Rust, kind: Kind::Router, name: "router-rust" },
    Example { language: Language::Js, kind: Kind::Publisher, name: "http-js" },
    Example { language: Language::Js, kind: Kind::Storage, name: "kv-js" },
    Example { language: Language::Python, kind: Kind::Publisher, name: "http-python" },
    Example { language: Language::Python, kind: Kind::Storage, name: "kv-python" },
    Example { language: Language::C, kind: Kind::Publisher, name: "http-c" },
    Example { language: Language::C, kind: Kind::Storage, name: "rows-c" },
    Example { language: Language::Go, kind: Kind::Publisher, name: "http-go" },
    Example { language: Language::Go, kind: Kind::Storage, name: "kv-go" },
];

impl Example {
    /// `plugin new --lang ... --kind ... NAME`
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let words = ["plugin", "new", "--lang", &word(self.language), "--kind", &word(self.kind), self.name].map(str::to_owned);
        words.to_vec()
    }

    /// The shipped adapter that its README wants beside it, to deliver a message; none: it delivers none.
    #[must_use]
    pub fn companion(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Publisher => Some("sqlite-storage.wasm"),
            Kind::Storage => Some("http-publisher.wasm"),
            Kind::Router => None,
        }
    }
}

/// A value as on the command line.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Where they are built: components, and the folders of their sources in `src/`.
///
/// # Errors
/// If the target directory cannot be found.
pub fn home() -> Result<PathBuf> {
    std::env::var_os("OUTHAUL_EXAMPLES").map_or_else(|| places::target().map(|target| target.join("examples")), |set| Ok(set.into()))
}

/// Whether a missing tool is a failure: in CI everything has to be there.
fn must_be_whole() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// The component of an example; none, with a word about it, if it is not built.
///
/// # Errors
/// If it is not built and `CI` is set.
pub fn component(name: &str) -> Result<Option<PathBuf>> {
    let component = home()?.join(format!("{name}.wasm"));
    if component.exists() {
        return Ok(Some(component));
    }
    let text = format!("{name} is not built: `cargo xtask examples` builds it, or says what is missing");
    if must_be_whole() {
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
