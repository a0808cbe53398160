//! `target/services/state.json`: what the tests share, where it is, and why something is not there.

use crate::kafka::Kafka;
use crate::pgbouncer::Pgbouncer;
use crate::postgres::{Major, Postgres};
use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The variable that names the file.
pub const VARIABLE: &str = "OUTHAUL_SERVICES";

/// The file's name, in the folder `services` of the target directory.
pub const FILE: &str = "state.json";

/// One service, or why it is not there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// It runs.
    Up {
        /// How long it took to start, in seconds.
        seconds: f64,
        /// Where it is.
        service: T,
    },
    /// It cannot be had.
    Missing {
        /// Why, and what to do.
        reason: String,
    },
}

impl<T: Clone> Outcome<T> {
    /// The service.
    ///
    /// # Errors
    /// If it is not there: why.
    pub fn available(&self) -> Result<T> {
        match self {
            Self::Up { service, .. } => Ok(service.clone()),
            Self::Missing { reason } => Err(anyhow!("{reason}")),
        }
    }
}

impl<T> Default for Outcome<T> {
    fn default() -> Self {
        Self::Missing { reason: "it was never started".into() }
    }
}

/// What is in the file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct State {
    /// Started by `services up`, to stay until `services down`; else a test run stops it at its end.
    pub kept: bool,
    /// PostgreSQL 15.
    pub postgres_15: Outcome<Postgres>,
    /// PostgreSQL 17.
    pub postgres_17: Outcome<Postgres>,
    /// A pooler before PostgreSQL 15.
    pub pgbouncer: Outcome<Pgbouncer>,
    /// One broker.
    pub kafka: Outcome<Kafka>,
}

impl State {
    /// Reads the file that [`VARIABLE`] names, or the one beside the running program.
    ///
    /// # Errors
    /// If there is none: how to start the services.
    pub fn find() -> Result<Self> {
        let file = match std::env::var_os(VARIABLE) {
            Some(file) => PathBuf::from(file),
            None => beside_the_program()?,
        };
        Self::read(&file)?.context("the services are not up: run `cargo xtask services up`, or the whole suite with `cargo xtask test`")
    }

    /// Reads a file; none if it is not there.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(file: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
        };
        serde_json::from_str(&text).map(Some).with_context(|| {
            format!("{} is of another version of this checkout: run `cargo xtask services down`, then `up` again", file.display())
        })
    }

    /// Writes it, by rename: nobody reads half a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let half = file.with_extension("json.new");
        fs::write(&half, serde_json::to_string_pretty(self)?).with_context(|| format!("cannot write {}", half.display()))?;
        fs::rename(&half, file).with_context(|| format!("cannot put {} in place", file.display()))
    }

    /// The server of a major version.
    ///
    /// # Errors
    /// If it is not there: why.
    pub fn postgres(&self, major: Major) -> Result<Postgres> {
        match major {
            Major::V15 => self.postgres_15.available(),
            Major::V17 => self.postgres_17.available(),
        }
    }
}

/// Programs are somewhere below the target directory: the file is in the first folder above them that has it.
fn beside_the_program() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let mut files = program.ancestors().skip(1).map(|folder| folder.join("services").join(FILE));
    match files.find(|file| file.exists()) {
        Some(file) => Ok(file),
        None => bail!("the services are not up: run `cargo xtask services up`, or the whole suite with `cargo xtask test`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_is_missing_says_why_after_a_round_trip() {
        let missing = |reason: &str| Outcome::Missing { reason: reason.to_owned() };
        let state = State {
            kept: true,
            postgres_15: missing("no initdb"),
            postgres_17: missing("no network"),
            pgbouncer: Outcome::Missing { reason: "not installed".into() },
            kafka: Outcome::Missing { reason: "no java".into() },
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        assert!(State::read(&file).unwrap().is_none());
        state.write(&file).unwrap();
        let read = State::read(&file).unwrap().unwrap();
        assert_eq!(read.postgres(Major::V17).unwrap_err().to_string(), "no network");
        assert_eq!(read.kafka.available().unwrap_err().to_string(), "no java");
        assert!(read.kept);
    }
}
