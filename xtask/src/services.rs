//! Starts and stops the services of the tests, by the program `services` of the crate `outhaul-services`.

use crate::workspace::{Workspace, step};
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// What to do with them.
#[derive(Subcommand)]
pub(crate) enum Services {
    /// Start what is not up, say how long each took, and leave it running.
    Up,
    /// Stop everything that was started in this checkout, also by a run that died, and remove its data.
    Down,
    /// Say what is up and where, and what is missing and why.
    Status,
}

pub(crate) fn run(workspace: &Workspace, command: &Services) -> Result<()> {
    workspace.cargo(["build", "--quiet", "--package", "outhaul-services"])?;
    let command = match command {
        Services::Up => "up",
        Services::Down => "down",
        Services::Status => "status",
    };
    workspace.start("services", &["--target".into(), workspace.target.clone().into(), command.into()])
}

/// Services that are up for as long as this value, or this program, lives: the holder takes them down when its input ends, even if
/// that is because of Ctrl-C or `kill -9`.
pub(crate) struct Held {
    holder: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Held {
    /// Begins to start them.
    ///
    /// # Errors
    /// If the program `services`, built before, cannot be started.
    pub(crate) fn start(workspace: &Workspace) -> Result<Self> {
        eprintln!("==> start the services of the tests");
        let mut command = workspace.program("services");
        command.arg("--target").arg(&workspace.target).arg("hold").stdin(Stdio::piped()).stdout(Stdio::piped());
        // A group of its own: Ctrl-C ends this program, and the holder has still to clean up.
        let mut holder = command.process_group(0).spawn().context("cannot start the program `services`")?;
        let input = holder.stdin.take().context("no pipe to the services")?;
        let output = BufReader::new(holder.stdout.take().context("no pipe from the services")?);
        Ok(Self { holder, input, output })
    }

    /// Waits until everything is up that can be had.
    ///
    /// # Errors
    /// If the holder fails; it has said why.
    pub(crate) fn ready(mut self) -> Result<Self> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("cannot read from the services")?;
        if line.trim() != "ready" {
            bail!("the services were not started");
        }
        Ok(self)
    }

    /// Takes them down, unless somebody else uses them or has started them to stay.
    ///
    /// # Errors
    /// If that fails.
    pub(crate) fn end(mut self) -> Result<()> {
        step("stop the services", || {
            drop(self.input);
            let status = self.holder.wait().context("cannot wait for the services")?;
            if !status.success() {
                bail!("they were not stopped ({status}): run `cargo xtask services down`");
            }
            Ok(())
        })
    }
}
