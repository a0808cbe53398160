//! txoutbox: a Python relay from PyPI, in a virtual environment.

use super::plan::{Setting, Way};
use super::program::{self, Measured};
use super::stage::{Stage, built, sources, text};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// For what comes from the network.
const INSTALLING: Duration = Duration::from_secs(300);

/// Its Python, made once for each state of the requirements.
pub(super) fn build() -> Result<PathBuf> {
    let folder = built("txoutbox")?;
    let (python, made_from) = (folder.join("bin/python"), folder.join("requirements.txt"));
    let requirements = sources("txoutbox").join("requirements.txt");
    let wanted = fs::read(&requirements).context("cannot read the requirements")?;
    // Written last: whatever was interrupted is made anew.
    if fs::read(&made_from).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    program::run(Command::new("python3").args(["-m", "venv", "--clear", text(&folder)?]), INSTALLING).context("venv")?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", text(&requirements)?];
    program::run(Command::new(&python).args(pip), INSTALLING).context("pip")?;
    fs::write(&made_from, wanted)?;
    Ok(python)
}

pub(super) fn measure(stage: &mut Stage, setting: Setting) -> Result<Measured> {
    let mut command = Command::new(stage.txoutbox()?);
    let load = stage.load;
    command.arg("-B").arg(sources("txoutbox").join("relay.py"));
    command.args([format!("--rows={}", load.rows), format!("--keys={}", load.keys), format!("--payload={}", load.payload)]);
    command.args([format!("--batch={}", setting.batch), format!("--workers={}", setting.workers)]);
    if setting.way == Way::Sqlite {
        let folder = tempfile::tempdir()?;
        return program::measure(command.env("PEER_DATABASE", folder.path().join("outbox.db")), stage.limit);
    }
    let database = stage.database()?;
    program::measure(command.env("PEER_DATABASE", database.url()), stage.limit)
}
