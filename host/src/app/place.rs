//! An adapter of the configuration: the slot that it is in once it is open, and what is known of candidates for it.

use super::recipe::Recipe;
use crate::plugin::Slot;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// A generation that is open and in no slot yet.
pub(super) struct Candidate<P> {
    pub(super) recipe: Recipe,
    pub(super) plugin: Arc<P>,
}

/// A candidate that was refused: not tried again as long as nothing has changed that it depended on.
pub(super) struct Memo {
    pub(super) recipe: Recipe,
    pub(super) sha256: String,
    /// What the pins said of it.
    pub(super) pinned: String,
    /// For what may be fine later.
    pub(super) again: Option<Instant>,
    /// How long was waited for that.
    pub(super) wait: Duration,
}

/// An adapter of the configuration, open or not.
pub(super) struct Place<P> {
    pub(super) slot: OnceCell<Arc<Slot<P>>>,
    record: Mutex<Record>,
}

#[derive(Default)]
pub(super) struct Record {
    /// What its newest generation was made of; it may still wait for its turn.
    pub(super) made_of: Option<(Recipe, String)>,
    pub(super) refused: Option<Memo>,
    /// Whether that generation waits for its relay ([`Adapters::hand_over`]).
    pub(super) waits: bool,
    /// A fault of the file itself that was told.
    pub(super) told: Option<String>,
}

impl<P> Default for Place<P> {
    fn default() -> Self {
        Self { slot: OnceCell::new(), record: Mutex::default() }
    }
}

impl<P> Place<P> {
    /// One that is open.
    pub(super) fn opened(slot: Arc<Slot<P>>) -> Self {
        Self { slot: OnceCell::new_with(Some(slot)), record: Mutex::default() }
    }

    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    /// Whether what is in the slot has these settings. What waits is not in it, and what it has waited for is other settings.
    pub(super) fn is_in_place_with(&self, config: &serde_json::Value) -> bool {
        !self.waits && self.made_of.as_ref().is_some_and(|(made_of, _)| made_of.adapter.config == *config)
    }
}

impl Memo {
    pub(super) fn is_of(&self, recipe: &Recipe, sha256: &str, pinned: &str) -> bool {
        self.recipe == *recipe && self.sha256 == sha256 && self.pinned == pinned
    }
}
