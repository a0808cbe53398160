//! Starts what the tests share, all at once, and stops it.
//!
//! Two ways to use it. By hand: [`up`] leaves everything running until [`down`]. For one test run: [`hold`] keeps it up as long as its
//! standard input is open, which ends with the program at the other end however that ends. A run that holds what is up already
//! leaves it up; of two runs at once the last one takes it down. If even the holder is killed, the next `up`, `hold` or `down` finds
//! what it left by the files in the servers' folders.

use crate::certificates::Certificates;
use crate::daemon;
use crate::ground::{Account, Ground};
use crate::kafka::{Cluster, Kafka};
use crate::pgbouncer::Pgbouncer;
use crate::postgres::{Major, Postgres, Server};
use crate::state::{Outcome, State};
use anyhow::{Context, Result, anyhow};
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Instant;

/// Where a holder says that everything is up.
pub const READY: &str = "ready";

/// Starts what is not up, to stay.
///
/// # Errors
/// If the folders or the state file cannot be used. A service that cannot be had is none: the state says so.
pub fn up(ground: &Ground) -> Result<State> {
    let _change = lock(ground, "change")?;
    let state = State { kept: true, ..ensure(ground)? };
    state.write(&ground.state_file())?;
    Ok(state)
}

/// Stops everything, whoever needs it.
///
/// # Errors
/// If something cannot be stopped.
pub fn down(ground: &Ground) -> Result<()> {
    let _change = lock(ground, "change")?;
    ground.clear()
}

/// What is up.
///
/// # Errors
/// If the state file cannot be read.
pub fn status(ground: &Ground) -> Result<Option<State>> {
    State::read(&ground.state_file())
}

/// Starts what is not up, prints [`READY`], and takes it down when the input ends.
///
/// # Errors
/// As [`up`] and [`down`].
pub fn hold(ground: &Ground, mut input: impl Read, mut output: impl Write) -> Result<()> {
    let users = File::create(ground.lock_file("users")).context("cannot create a lock file")?;
    {
        let _change = lock(ground, "change")?;
        ensure(ground)?.write(&ground.state_file())?;
        users.lock_shared().context("cannot lock")?;
    }
    writeln!(output, "{READY}")?;
    output.flush()?;
    // Nothing is ever written to it. An error is an end as well.
    let _ = input.read_to_end(&mut Vec::new());
    let _change = lock(ground, "change")?;
    users.unlock()?;
    let last = users.try_lock().is_ok();
    match State::read(&ground.state_file())? {
        Some(state) if last && !state.kept => ground.clear(),
        _ => Ok(()),
    }
}

fn lock(ground: &Ground, name: &str) -> Result<File> {
    let file = File::create(ground.lock_file(name)).context("cannot create a lock file")?;
    file.lock().context("cannot lock")?;
    Ok(file)
}

/// The state with everything up that can be had: what runs stays, what is missing is tried once more. After the death of any of it,
/// all is started anew.
fn ensure(ground: &Ground) -> Result<State> {
    // A state of another version is none.
    let before = State::read(&ground.state_file()).ok().flatten();
    let before = if ground.is_alive()? { before } else { None };
    if before.is_none() {
        ground.clear()?
    } else {
        ground.sweep()?
    }
    let before = before.unwrap_or_default();
    let account = Account::for_servers();
    let certificates = |name: &str| -> Result<(PathBuf, Certificates)> {
        let folder = ground.shared(name)?;
        let certificates = Certificates::create(folder.join("certificates"), account.as_ref().ok().copied().flatten())?;
        Ok((folder, certificates))
    };
    let account = || account.as_ref().copied().map_err(|error| anyhow!("{error:#}"));
    let postgres = |before: Outcome<Postgres>, major: Major| {
        start(before, &format!("postgres {major}"), || {
            let (folder, certificates) = certificates(&format!("postgres-{major}"))?;
            or_clear(folder.clone(), Server::shared(major, folder, certificates, account()?))
        })
    };
    let pgbouncer = |before: Outcome<Pgbouncer>, server: &Outcome<Postgres>| {
        start(before, "pgbouncer", || {
            let server = server.available().context("it needs PostgreSQL 15")?;
            let folder = ground.shared("pgbouncer")?;
            or_clear(folder.clone(), Pgbouncer::shared(server, &folder, account()?))
        })
    };
    let kafka = |before: Outcome<Kafka>| {
        start(before, "kafka", || {
            let (folder, certificates) = certificates("kafka")?;
            or_clear(folder.clone(), Cluster::shared(folder, certificates))
        })
    };
    std::thread::scope(|scope| {
        let kafka = scope.spawn(|| kafka(before.kafka));
        let newer = scope.spawn(|| postgres(before.postgres_17, Major::V17));
        let postgres_15 = postgres(before.postgres_15, Major::V15);
        let pgbouncer = pgbouncer(before.pgbouncer, &postgres_15);
        let crashed = |_| anyhow!("a start panicked");
        let (postgres_17, kafka) = (newer.join().map_err(crashed)?, kafka.join().map_err(crashed)?);
        Ok(State { kept: before.kept, postgres_15, postgres_17, pgbouncer, kafka })
    })
}

/// Stops what a failed start has left, so that it can be tried again.
fn or_clear<T>(folder: PathBuf, started: Result<T>) -> Result<T> {
    if started.is_err() {
        daemon::clear(&folder)?;
    }
    started
}

/// Starts one that does not run, says how long it took or why it is missing.
fn start<T>(before: Outcome<T>, name: &str, work: impl FnOnce() -> Result<T>) -> Outcome<T> {
    if matches!(before, Outcome::Up { .. }) {
        return before;
    }
    let begin = Instant::now();
    let outcome = match work() {
        Ok(service) => Outcome::Up { seconds: begin.elapsed().as_secs_f64(), service },
        Err(error) => Outcome::Missing { reason: format!("{name} is missing: {error:#}") },
    };
    eprintln!("    {}", describe(name, &outcome));
    outcome
}

/// One line about a service.
fn describe<T>(name: &str, outcome: &Outcome<T>) -> String {
    match outcome {
        Outcome::Up { seconds, .. } => format!("{name}: {seconds:.1} s"),
        Outcome::Missing { reason } => format!("MISSING: {reason}"),
    }
}

/// What is up, line by line, with the addresses.
#[must_use]
pub fn report(state: &State) -> String {
    let line = |name: &str, found: Result<String>| match found {
        Ok(address) => format!("{name:<12} {address}\n"),
        Err(reason) => format!("{name:<12} {reason:#}\n"),
    };
    [
        line("postgres 15", state.postgres_15.available().map(|server| server.url("postgres"))),
        line("postgres 17", state.postgres_17.available().map(|server| server.url("postgres"))),
        line("pgbouncer", state.pgbouncer.available().map(|pooler| pooler.url("postgres"))),
        line("kafka", state.kafka.available().map(|kafka| kafka.bootstrap())),
    ]
    .concat()
}
