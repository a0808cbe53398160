//! SASL (RFC 4422), as Kafka carries it (KIP-43, KIP-84): what a client says, and what it has to check. Pure; the connection
//! sends it.

mod scram;

use serde::Deserialize;
use std::fmt;
use thiserror::Error;

pub use scram::{Hash, Scram};

/// A mechanism, as named in the protocol and in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Mechanism {
    /// RFC 4616: the password itself, so only over TLS or within a trusted network.
    #[serde(rename = "PLAIN")]
    Plain,
    /// RFC 7677.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// As RFC 7677, with SHA-512.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl Mechanism {
    /// Its registered name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// Who logs in. `Debug` does not show the password.
#[derive(Clone)]
pub struct Credentials {
    /// How.
    pub mechanism: Mechanism,
    /// Name.
    pub username: String,
    /// Password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("mechanism", &self.mechanism).field("username", &self.username).finish_non_exhaustive()
    }
}

impl Credentials {
    /// The one message of PLAIN: no identity to act as, name, password.
    #[must_use]
    pub fn plain(&self) -> Vec<u8> {
        [b"\0", self.username.as_bytes(), b"\0", self.password.as_bytes()].concat()
    }
}

/// What the broker says cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SaslError {
    /// Not as RFC 5802 says.
    #[error("its SCRAM answer cannot be read")]
    Malformed,
    /// Somebody else answered, or replayed.
    #[error("its SCRAM answer is not for our request")]
    Nonce,
    /// Fewer than RFC 7677 allows, or so many that computing them would take minutes.
    #[error("it asks for {0} SCRAM iterations; from {min} to {max} are accepted", min = scram::MIN_ITERATIONS, max = scram::MAX_ITERATIONS)]
    Iterations(u32),
    /// It does not know the password either: not the broker it claims to be.
    #[error("it could not prove that it knows the password: this may be a false broker")]
    Signature,
    /// It refused in its last message.
    #[error("it refused the login: {0}")]
    Refused(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_is_three_fields_and_never_shown() {
        let credentials = Credentials { mechanism: Mechanism::Plain, username: "alice".into(), password: "geheim".into() };
        assert_eq!(credentials.plain(), b"\0alice\0geheim");
        assert!(!format!("{credentials:?}").contains("geheim"));
    }
}
