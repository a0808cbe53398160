//! The process's log, on stderr: text for people, or one JSON object a line.
//!
//! Levels say who must act: error = a person; warn = it recovered by itself; info = what an operator wants to see once.

use crate::config::model::Log;
use std::io::IsTerminal;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The filter is wrong.
    #[error("{text:?} in {origin} is not a log filter (write it as in \"info,outhaul=debug\"): {source}")]
    Filter {
        /// The filter.
        text: String,
        /// Where it was written.
        origin: &'static str,
        /// What is wrong.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging is set up already.
    #[error("the log was set up twice")]
    Twice,
}

/// Whether a line may be written at all, whatever the filter says. At their finest level the libraries that requests, statements and calls
/// of components go through write all that they are given: URLs, credentials and payloads among it.
fn is_discreet(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("outhaul") || *metadata.level() <= Level::DEBUG
}

/// Sets up the log. `RUST_LOG` has precedence over the configuration's filter.
///
/// # Errors
/// A filter that is none.
pub fn init(log: &Log) -> Result<(), LogError> {
    let from_environment = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|text| !text.trim().is_empty());
    let (text, origin) = match from_environment {
        Some(text) => (text, EnvFilter::DEFAULT_ENV),
        None => (log.filter.clone(), "log.filter"),
    };
    let filter = EnvFilter::builder().parse(&text).map_err(|source| LogError::Filter { text, origin, source })?;
    // A log that cannot be written (its reader is gone) must not end anything: the report of such an error would go to stderr as
    // well, and panic in the middle of the relay.
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    let done = if log.json {
        subscriber.json().flatten_event(true).finish().with(filter_fn(is_discreet)).try_init()
    } else {
        let with_colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        subscriber.with_ansi(with_colours).finish().with(filter_fn(is_discreet)).try_init()
    };
    done.map_err(|_| LogError::Twice)
}
