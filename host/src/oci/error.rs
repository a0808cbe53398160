//! Why a component was not pulled.

use crate::secrets::SecretFault;
use http::StatusCode;
use std::path::PathBuf;

/// A component was not pulled.
#[derive(Debug, thiserror::Error)]
#[error("{reference} cannot be pulled: {fault}")]
pub struct PullError {
    /// What was to be pulled.
    pub reference: String,
    /// Why not; boxed, since few pulls fail and all their callers make room for it.
    pub(crate) fault: Box<Fault>,
}

impl PullError {
    pub(super) fn new(reference: &impl ToString, fault: Fault) -> Self {
        Self { reference: reference.to_string(), fault: Box::new(fault) }
    }

    /// Whether trying again later may help: a registry that is away, not one that says no.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match &*self.fault {
            Fault::Unreachable { .. } | Fault::Interrupted { .. } | Fault::TimedOut { .. } => true,
            Fault::Answer { status, .. } => {
                status.is_server_error() || matches!(*status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
            }
            _ => false,
        }
    }
}

/// Why. `section` is the table of the configuration in which a registry's settings are.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the registry {registry} cannot be reached: {reason}")]
    Unreachable { registry: String, reason: String },
    #[error("TLS with {server} failed: {text}")]
    Tls { server: String, text: String },
    #[error("the connection to {server} broke off: {reason}")]
    Interrupted { server: String, reason: String },
    #[error("{server} did not answer in {}", humantime::format_duration(*.limit))]
    TimedOut { server: String, limit: std::time::Duration },
    #[error("{server} has no such {what}")]
    Absent { server: String, what: &'static str },
    #[error("{server} refuses access ({status}): {advice}")]
    Refused { server: String, status: StatusCode, advice: String },
    #[error("{server} answers {status}{said}")]
    Answer { server: String, status: StatusCode, said: String },
    #[error("{what} is larger than {limit} bytes")]
    TooLarge { what: &'static str, limit: u64 },
    #[error("what {server} sends as {what} has the digest {found}, not {expected}: it is damaged, or not what was asked for")]
    OtherContent { server: String, what: &'static str, expected: super::Digest, found: super::Digest },
    #[error("{0}")]
    NotAComponent(String),
    #[error("{server} {what}")]
    Protocol { server: String, what: String },
    #[error("{section}.password: {fault}")]
    Secret { section: String, fault: SecretFault },
    #[error("{section}.{key} = {file:?} cannot be used: {reason}")]
    File { section: String, key: &'static str, file: PathBuf, reason: String },
    #[error("it cannot be kept in plugins.store: {path}: {error}")]
    Store { path: PathBuf, error: std::io::Error },
    #[error("the TLS of this build does not start: {0}")]
    Engine(rustls::Error),
}
