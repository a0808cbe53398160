//! A run holds the services for as long as it lives; the last one takes them down.

use anyhow::{Context, Result};
use outhaul_services::state::State;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn hold(target: &Path) -> Result<Child> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_services"));
    command.arg("--target").arg(target).arg("hold").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut holder = command.spawn().context("cannot start the holder")?;
    let mut line = String::new();
    BufReader::new(holder.stdout.take().context("no pipe")?).read_line(&mut line)?;
    assert_eq!(line, "ready\n");
    Ok(holder)
}

fn end(mut holder: Child) -> Result<()> {
    drop(holder.stdin.take());
    assert!(holder.wait()?.success());
    Ok(())
}

#[test]
fn the_last_of_two_runs_takes_them_down_however_it_ends() -> Result<()> {
    let target = tempfile::tempdir()?;
    // As a target directory is: the servers' user can get there.
    std::fs::set_permissions(target.path(), std::fs::Permissions::from_mode(0o755))?;
    let file = target.path().join("services/state.json");
    let state = || State::read(&file);
    let first = hold(target.path())?;
    let up = state()?.context("no state file")?;
    assert!(!up.kept);
    let server = up.postgres_17.available().or_else(|_| up.postgres_15.available());
    let Some(server) = outhaul_services::or_skip(server) else { return end(first) };

    let second = hold(target.path())?;
    end(first)?;
    server.connect("postgres").context("the second run still needs it")?;
    end(second)?;
    assert!(state()?.is_none() && server.connect("postgres").is_err());

    // A holder that is killed cleans up nothing: the next command does.
    let mut killed = hold(target.path())?;
    let server = state()?.context("no state file")?.postgres_15.available()?;
    killed.kill()?;
    killed.wait()?;
    server.connect("postgres").context("nobody has stopped it yet")?;
    let down = Command::new(env!("CARGO_BIN_EXE_services")).arg("--target").arg(target.path()).arg("down").status()?;
    assert!(down.success() && state()?.is_none() && server.connect("postgres").is_err());
    Ok(())
}
