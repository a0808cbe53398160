//! Why the process, or a command, cannot go on.

use crate::admin::ListenError;
use crate::domain::{Failure, FailureCode};
use crate::plugin::PluginError;
use crate::sql::SqlError;
use std::io;
use std::path::PathBuf;

/// Why the process, or a command, cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// The WebAssembly engine.
    #[error(transparent)]
    Engine(PluginError),
    /// An adapter.
    #[error("{}", opening(kind, name, .source))]
    Open {
        /// `storages` or `publishers`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Why.
        source: Box<PluginError>,
    },
    /// A SQLite file.
    #[error(
        "storages.{storage}: there is no database file {}: correct databases.NAME.url, or create the file and its table with \
         `outhaul schema --storage {storage} --apply`",
        .file.display()
    )]
    AbsentDatabase {
        /// The storage.
        storage: String,
        /// The file.
        file: PathBuf,
    },
    /// A database cannot be created.
    #[error("databases.{name} cannot be created: {source}")]
    CreateDatabase {
        /// Its name.
        name: String,
        /// Why.
        source: SqlError,
    },
    /// A storage call.
    #[error("storages.{storage}: {call} failed: {failure}")]
    Call {
        /// The storage.
        storage: String,
        /// What was called.
        call: &'static str,
        /// Why.
        failure: Failure,
    },
    /// The admin address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Signal handlers.
    #[error("cannot install signal handlers: {0}")]
    Signals(io::Error),
    /// Nothing to do.
    #[error("{file} has no relay: add [[relays]] with a name, a storage and routes", file = .0.display())]
    NoRelays(PathBuf),
    /// `--relay`.
    #[error("there is no relay {name:?} in the configuration; relays: {known}")]
    NoSuchRelay {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A relay ended although nobody asked it to.
    #[error("the relay {relay} ended: {reason}")]
    RelayEnded {
        /// Its name.
        relay: String,
        /// Why.
        reason: String,
    },
}

/// What an adapter itself says names it already.
fn opening(kind: &str, name: &str, source: &PluginError) -> String {
    match source {
        PluginError::Open(failure) => failure.to_string(),
        other => format!("{kind}.{name}: {other}"),
    }
}

impl AppError {
    /// Whether a person must change the configuration or its surroundings, rather than wait: exit code 2.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Open { source, .. } => !source.is_transient(),
            Self::AbsentDatabase { .. } | Self::Listen(_) | Self::NoRelays(_) | Self::NoSuchRelay { .. } => true,
            // A table that is not there, or not as the configuration says: found only when it is looked at.
            Self::Call { failure, .. } => failure.code == FailureCode::InvalidConfiguration,
            Self::Engine(_) | Self::CreateDatabase { .. } | Self::Signals(_) | Self::RelayEnded { .. } => false,
        }
    }
}
