//! Watermill's forwarder: a Go program with its modules.

use super::plan::Setting;
use super::program::{self, Measured};
use super::stage::{Stage, built, sources};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const BUILDING: Duration = Duration::from_secs(300);

pub(super) fn build() -> Result<PathBuf> {
    let relay = built("watermill")?.join("relay");
    let mut command = Command::new("go");
    command.args(["build", "-mod=readonly", "-o"]).arg(&relay).arg(".").env("CGO_ENABLED", "0").current_dir(sources("watermill"));
    program::run(&mut command, BUILDING).context("go build")?;
    Ok(relay)
}

pub(super) fn measure(stage: &mut Stage, setting: Setting) -> Result<Measured> {
    let mut command = Command::new(stage.watermill()?);
    let load = stage.load;
    command.args([format!("-rows={}", load.rows), format!("-keys={}", load.keys), format!("-payload={}", load.payload)]);
    command.arg(format!("-batch={}", setting.batch));
    let database = stage.database()?;
    program::measure(command.env("PEER_DATABASE", database.url()), stage.limit)
}
