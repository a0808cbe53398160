//! Real services for the tests: PostgreSQL, pgbouncer, Apache Kafka, an OCI registry. No container engine: plain processes of this machine.
//!
//! - [`suite`]: starts what the tests share, stops it, and tells them where it is (`cargo xtask services up|down|status`)
//! - [`state`]: the file that tells them
//! - [`postgres`]: a PostgreSQL server, shared or a test's own
//! - [`pgbouncer`]: a pooler in transaction mode
//! - [`kafka`]: a broker or a cluster of them, and Kafka's own Java programs
//! - [`registry`]: an OCI registry of one test
//! - [`certificates`]: a certification authority for one run, with good and bad certificates
//! - [`download`]: what the machine does not have comes from Maven's repository, once
//! - [`daemon`]: a process that is stopped by its id and start time, even by a later run
//! - [`ground`]: where data lies, and as whom the servers run
//!
//! A test asks for what it needs and returns where it cannot be had:
//!
//! ```no_run
//! # fn test() -> anyhow::Result<()> {
//! let Some(server) = outhaul_services::postgres(outhaul_services::Major::V17) else { return Ok(()) };
//! let database = server.create_database()?;
//! println!("{}", database.url());
//! # Ok(())
//! # }
//! ```

pub mod certificates;
pub mod daemon;
pub mod download;
pub mod ground;
pub mod kafka;
pub mod pgbouncer;
pub mod postgres;
pub mod registry;
pub mod state;
pub mod suite;

pub use certificates::Certificates;
pub use kafka::{Cluster, ClusterOptions, JavaTools, Kafka, Listener};
pub use pgbouncer::Pgbouncer;
pub use postgres::{Database, Major, Postgres, Server, ServerOptions};
pub use registry::{Access, Registry};

use std::io::Write;

/// The shared PostgreSQL of this major version. None: it cannot be had here, and that was printed.
///
/// # Panics
/// If it cannot be had and the environment has `CI=true`.
#[must_use]
pub fn postgres(major: Major) -> Option<Postgres> {
    or_skip(state::State::find().and_then(|state| state.postgres(major)))
}

/// The shared pgbouncer, in transaction mode before the shared PostgreSQL 15. None: as [`postgres()`].
///
/// # Panics
/// As [`postgres()`].
#[must_use]
pub fn pgbouncer() -> Option<Pgbouncer> {
    or_skip(state::State::find().and_then(|state| state.pgbouncer.available()))
}

/// The shared broker. None: as [`postgres()`].
///
/// # Panics
/// As [`postgres()`].
#[must_use]
pub fn kafka() -> Option<Kafka> {
    or_skip(state::State::find().and_then(|state| state.kafka.available()))
}

/// A registry of the test's own. None: as [`postgres()`].
///
/// # Panics
/// As [`postgres()`].
#[must_use]
pub fn registry() -> Option<Registry> {
    or_skip(Registry::start())
}

/// The value; without one, says which test does not run and why, or fails where nothing may be left out.
///
/// # Panics
/// If there is no value and the environment has `CI=true`.
pub fn or_skip<T>(found: anyhow::Result<T>) -> Option<T> {
    let error = match found {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(!in_ci(), "{test} may not be skipped with CI=true: {error:#}");
    // Not eprintln!, which the test program keeps to itself as long as a test passes. Nobody is there to tell if this fails.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {error:#}");
    None
}

fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}
