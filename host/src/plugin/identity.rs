//! Which adapter it is: what every log line and failure about it says.

use std::fmt;

/// The kinds of adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Publisher,
    Storage,
    Router,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Publisher => "publisher",
            Self::Storage => "storage",
            Self::Router => "router",
        })
    }
}

/// An adapter of the configuration, and which of the components that were loaded for it since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// From 1; grows when a component is replaced in a running process.
    pub(super) generation: u64,
}

impl Identity {
    /// Its table in the configuration file.
    pub(super) fn section(&self) -> String {
        format!("{}s.{}", self.kind, self.name)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} \"{}\" (generation {})", self.kind, self.name, self.generation)
    }
}
