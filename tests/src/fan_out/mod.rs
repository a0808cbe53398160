//! Fan-out on either database: a table of events, a table of subscriptions, and a receiver with a path for each subscriber.
//!
//! - [`database`]: SQL that both databases understand
//! - [`rows`]: what the tables say
//! - [`stage`]: all of it set up for a test
//! - [`plan`]: the configuration
//! - [`fairness`]: a tenant with very many due deliveries beside one with ten
//! - [`storm`]: the long run with two hosts that are killed
//! - [`throughput`]: how fast it is
//! - [`tour`]: shown to a person, step by step
//!
//! A test is a function of a [`Ground`]; [`crate::on_each_storage`] makes two tests of it, one on SQLite and one on PostgreSQL.

pub mod database;
pub mod fairness;
pub mod plan;
pub mod rows;
pub mod stage;
pub mod storm;
pub mod throughput;
pub mod tour;

pub use database::Database;
pub use plan::Plan;
pub use stage::{Stage, TENANT};

use anyhow::{Context, Result};
use outhaul_services::{Major, Postgres};

/// Where a test takes place.
#[derive(Debug, Clone, Copy)]
pub enum Ground<'a> {
    /// Files of SQLite.
    Sqlite,
    /// Databases of a server of PostgreSQL.
    Postgres(&'a Postgres),
}

impl Ground<'_> {
    /// For a person.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres(_) => "PostgreSQL",
        }
    }
}

/// Runs a test on each major version of PostgreSQL that can be had.
///
/// # Errors
/// If it fails: on which.
pub fn on_postgres(test: impl Fn(Ground<'_>) -> Result<()>) -> Result<()> {
    crate::postgres::on_each_major(|server| test(Ground::Postgres(server)))
}

/// Runs something that takes long on one version of PostgreSQL: the newest. Does nothing if it cannot be had.
///
/// # Errors
/// If it fails.
pub fn on_newest_postgres(test: impl FnOnce(Ground<'_>) -> Result<()>) -> Result<()> {
    let Some(server) = outhaul_services::postgres(Major::V17) else { return Ok(()) };
    test(Ground::Postgres(&server)).with_context(|| format!("on PostgreSQL {}", server.major))
}

/// The same on a server that is started for it and stopped afterwards.
///
/// # Errors
/// If it cannot be started, or what runs on it fails.
pub fn on_own_postgres(run: impl FnOnce(Ground<'_>) -> Result<()>) -> Result<()> {
    let server = Postgres::start(Major::V17)?;
    run(Ground::Postgres(&server))
}

/// Makes tests of functions of a [`Ground`]: one each on SQLite and on PostgreSQL.
#[macro_export]
macro_rules! on_each_storage {
    ($($test:ident),+ $(,)?) => {
        mod on_sqlite {
            $(
                #[test]
                fn $test() -> anyhow::Result<()> {
                    super::$test($crate::fan_out::Ground::Sqlite)
                }
            )+
        }

        mod on_postgres {
            $(
                #[test]
                fn $test() -> anyhow::Result<()> {
                    $crate::fan_out::on_postgres(super::$test)
                }
            )+
        }
    };
}
