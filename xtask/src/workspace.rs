//! Where things are in this checkout, and how cargo and the built programs are run.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The target of every adapter.
pub(crate) const GUEST_TARGET: &str = "wasm32-wasip2";

/// What `cargo metadata` tells.
#[derive(Deserialize)]
pub(crate) struct Workspace {
    /// The checkout.
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    /// Where cargo builds, wherever its configuration puts that.
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self> {
        let output = Command::new(cargo())
            .args(["metadata", "--format-version=1", "--no-deps", "--quiet"])
            .stderr(std::process::Stdio::inherit())
            .output()
            .context("cannot run `cargo metadata`")?;
        if !output.status.success() {
            bail!("`cargo metadata` failed ({})", output.status);
        }
        serde_json::from_slice(&output.stdout).context("cannot read the output of `cargo metadata`")
    }

    /// Names of the packages in a folder of the checkout.
    pub(crate) fn packages_under(&self, folder: &str) -> Vec<&str> {
        let folder = self.root.join(folder);
        self.packages.iter().filter(|package| package.manifest_path.starts_with(&folder)).map(|package| package.name.as_str()).collect()
    }

    /// Where the components of the adapters are put.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.target.join("plugins")
    }

    /// Where the components of the test fixtures are put.
    pub(crate) fn fixtures(&self) -> PathBuf {
        self.target.join("fixtures")
    }

    /// Runs cargo in the checkout and fails if it does.
    pub(crate) fn cargo<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<()> {
        self.run(&cargo(), arguments)
    }

    /// The same, for programs that tell the commit that they were built from.
    pub(crate) fn cargo_with_commit<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<()> {
        let mut command = Command::new(cargo());
        command.args(arguments);
        if let Some(commit) = self.commit() {
            command.env("OUTHAUL_COMMIT", commit);
        }
        self.finish(&mut command)
    }

    /// The commit of the checkout, marked where files have changed since; none where git does not tell.
    fn commit(&self) -> Option<String> {
        let describe = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"];
        let output = Command::new("git").args(describe).current_dir(&self.root).output().ok()?;
        let commit = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !commit.trim().is_empty()).then(|| commit.trim().to_owned())
    }

    /// Runs a program, built before with optimisation.
    pub(crate) fn start_optimised(&self, program: &str, arguments: &[OsString]) -> Result<()> {
        self.run(self.optimised(program).as_os_str(), arguments)
    }

    /// A program, built before with optimisation.
    pub(crate) fn optimised(&self, name: &str) -> PathBuf {
        self.target.join("release").join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
    }

    /// Runs a program of the crates `outhaul-tests` and `outhaul-services`, built before.
    pub(crate) fn start(&self, program: &str, arguments: &[OsString]) -> Result<()> {
        self.run(self.program(program).get_program(), arguments)
    }

    /// The same, with the host of target/release.
    pub(crate) fn start_with_optimised_host(&self, program: &str, arguments: &[OsString]) -> Result<()> {
        self.finish(self.program(program).args(arguments).env("OUTHAUL_HOST", self.optimised("outhaul")))
    }

    /// The command for such a program.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.target.join("debug").join(format!("{name}{}", std::env::consts::EXE_SUFFIX)))
    }

    fn run<A: AsRef<OsStr>>(&self, program: &OsStr, arguments: impl IntoIterator<Item = A>) -> Result<()> {
        self.finish(Command::new(program).args(arguments))
    }

    /// Runs a command in the checkout, with the built things named to it, and fails if it does.
    fn finish(&self, command: &mut Command) -> Result<()> {
        command.current_dir(&self.root).env("OUTHAUL_PLUGINS", self.plugins()).env("OUTHAUL_FIXTURES", self.fixtures());
        command.env("OUTHAUL_SERVICES", self.target.join("services/state.json"));
        let status = command.status().with_context(|| format!("cannot run {}", Path::new(command.get_program()).display()))?;
        if !status.success() {
            bail!("{command:?} failed ({status})");
        }
        Ok(())
    }
}

/// The cargo that runs this program.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Says what is done, does it, and says how long it took.
pub(crate) fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("==> {what}");
    let start = Instant::now();
    let result = work().with_context(|| format!("step failed: {what}"))?;
    eprintln!("    {what}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(result)
}
