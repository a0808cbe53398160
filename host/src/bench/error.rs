//! Why there is no figure.

use super::{left, native};
use crate::app::AppError;
use crate::domain::Failure;
use std::io;
use std::path::PathBuf;
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
    /// `--payload`.
    #[error(
        "--payload {payload}: with topic and key such a row has {bytes} bytes, more than the `max_message_bytes` ({most}) of the relay {relay}, \
         which would end it dead"
    )]
    TooLarge {
        /// The relay.
        relay: String,
        /// What was asked for.
        payload: usize,
        /// Of a row.
        bytes: usize,
        /// That the relay takes.
        most: usize,
    },
    /// `--payload` and `--keys`.
    #[error("a payload of less than 16 bytes needs keys (--keys 1 or more): without either, nothing in a row says that a bench wrote it")]
    NoMark,
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
    /// A bench was killed.
    #[error(
        "storages.{storage} has pending rows ({pending}), of which {own} are left from a bench that was killed: `outhaul bench{} --clear --relay \
         {relay}` removes those, and nothing else. Do not let a relay run on the table before: it would publish them",
        left::option(config)
    )]
    Leftover {
        /// The configuration.
        config: PathBuf,
        /// The storage.
        storage: String,
        /// The relay.
        relay: String,
        /// How many.
        pending: u64,
        /// How many of them.
        own: u64,
    },
    /// `--clear`.
    #[error("storages.{storage}: rows of the bench were not removed: {failure}")]
    Clear {
        /// The storage.
        storage: String,
        /// Why.
        failure: Failure,
    },
    /// Another relay.
    #[error(
        "{rows} of the {written} rows are gone from storages.{storage} without this bench: another relay works on the table, and has published \
         them. Stop it, or give the bench a table of its own"
    )]
    Elsewhere {
        /// The storage.
        storage: String,
        /// How many.
        rows: u64,
        /// Of so many.
        written: u64,
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
            | Self::TooLarge { .. }
            | Self::NoMark
            | Self::NoNative { .. }
            | Self::NoUrl { .. }
            | Self::NoAdmin { .. }
            | Self::Pending { .. }
            | Self::Leftover { .. } => true,
            Self::App(error) => error.is_configuration(),
            _ => false,
        }
    }
}
