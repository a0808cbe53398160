//! Why there is no figure.

use super::native;
use crate::app::AppError;
use crate::domain::Failure;
use std::io;
use std::time::Duration;

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Several relays, and none was named.
    #[error("the configuration has several relays: say which with --relay ({known})")]
    WhichRelay {
        /// Their names.
        known: String,
    },
    /// Events into deliveries.
    #[error("the relay {relay} has fan_out: a bench measures relays with routes")]
    FanOut {
        /// The relay.
        relay: String,
    },
    /// No route takes the topic of the rows.
    #[error("the relay {relay} has no route for the topic {topic:?}: name a topic that it has one for with --topic")]
    NoRoute {
        /// The relay.
        relay: String,
        /// The topic.
        topic: String,
    },
    /// Nothing is to be written.
    #[error("there is nothing to measure: --rows (or --rate times --duration) comes to 0")]
    NoRows,
    /// `--native`.
    #[error("{section}: the plugin {plugin} has no native form; what has one: {}, and --publisher null", native::STORAGES.join(", "))]
    NoNative {
        /// The adapter's section.
        section: String,
        /// Its plugin.
        plugin: String,
    },
    /// `--destination-...`.
    #[error(
        "publishers.{publisher}: --destination-delay and --destination-failing need a publisher with a `url` in its config, as http-publisher has it"
    )]
    NoUrl {
        /// The publisher.
        publisher: String,
    },
    /// It cannot be filled.
    #[error("storages.{storage}: the plugin {plugin} does not export storage-admin, which a bench needs to write rows")]
    NoAdmin {
        /// The storage.
        storage: String,
        /// Its plugin.
        plugin: String,
    },
    /// There are rows that are not the bench's.
    #[error(
        "storages.{storage} has pending rows ({pending}): a bench delivers only rows that it has written. Let `outhaul drain` deliver them \
         first, or name a storage with a table of its own"
    )]
    Pending {
        /// The storage.
        storage: String,
        /// How many.
        pending: u64,
    },
    /// They came while it was running.
    #[error("storages.{storage}: somebody else writes to the table: their rows were handed back, and the bench has ended")]
    Foreign {
        /// The storage.
        storage: String,
    },
    /// Nothing happens any more.
    #[error("nothing was delivered for {}: {done} of {rows} rows are done", humantime::format_duration(*.since))]
    Stalled {
        /// For so long.
        since: Duration,
        /// Rows that are done.
        done: u64,
        /// Rows that were written.
        rows: u64,
    },
    /// A signal.
    #[error("interrupted")]
    Interrupted,
    /// What was left when it ended early.
    #[error(
        "{source}; pending rows are left in the table of storages.{storage} ({left}): any relay on it would publish those of the bench, \
         which have the topic {topic:?}, so delete them with SQL first"
    )]
    Left {
        /// Why it ended.
        source: Box<BenchError>,
        /// How many.
        left: u64,
        /// Where.
        storage: String,
        /// Their topic.
        topic: String,
    },
    /// Opening, and calls.
    #[error(transparent)]
    App(#[from] AppError),
    /// A relay ended by itself.
    #[error("the relay {relay} ended: {reason}")]
    Ended {
        /// Its name.
        relay: String,
        /// Why.
        reason: String,
    },
    /// A native storage was not opened.
    #[error("storages.{storage}: {failure}")]
    Native {
        /// The storage.
        storage: String,
        /// Why.
        failure: Failure,
    },
    /// The child process that is the destination.
    #[error("the destination did not start: {0}")]
    Destination(io::Error),
    /// Histograms.
    #[error("there is no histogram: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
}

impl BenchError {
    /// Whether a person must change something, rather than try again: exit code 2.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            Self::WhichRelay { .. }
            | Self::FanOut { .. }
            | Self::NoRoute { .. }
            | Self::NoRows
            | Self::NoNative { .. }
            | Self::NoUrl { .. }
            | Self::NoAdmin { .. }
            | Self::Pending { .. } => true,
            Self::App(error) => error.is_configuration(),
            _ => false,
        }
    }
}
