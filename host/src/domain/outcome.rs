//! What became of a message (outcome), and what is written back to its row (verdict).

use super::{Column, Failure};
use std::time::Duration;

/// What a publisher says of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The destination has taken it.
    Delivered,
    /// It may succeed later.
    Retry(Failure),
    /// It can never succeed.
    Reject(Failure),
    /// Not tried, because an earlier message of its key was not delivered.
    Held,
    /// Done, and the publisher has written that back itself. Of the host's own publishers only.
    Settled,
    /// No longer held, as the publisher found out in writing back. Of the host's own publishers only.
    Lost,
}

/// What is written back to rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Done.
    Delivered,
    /// Due again after the delay; the attempt stays counted.
    Retry {
        /// Why.
        failure: Failure,
        /// From the moment of settling, by the database's clock.
        delay: Duration,
    },
    /// Not tried: the attempt is given back.
    Release {
        /// From the moment of settling, by the database's clock.
        delay: Duration,
    },
    /// Ends dead.
    Dead(Failure),
}

/// One verdict for many rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// What is written back.
    pub verdict: Verdict,
    /// Ids, as the storage gave them.
    pub ids: Column,
}
