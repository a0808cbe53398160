//! An adapter of the configuration: the slot that it is in once it is open, and what is known of candidates for it.

use super::around::Around;
use super::kind::Kind;
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
    pub(super) around: Around,
    /// For what may be fine later.
    pub(super) again: Option<Instant>,
    /// How long was waited for that.
    pub(super) wait: Duration,
    pub(super) reason: String,
    /// Somebody has asked for another try since.
    pub(super) asked: bool,
}

/// An adapter of the configuration, open or not.
pub(super) struct Place<P: Kind> {
    pub(super) slot: OnceCell<Arc<Slot<P>>>,
    record: Mutex<Record>,
    /// While it waits to be opened: the last component for it that could be used, and the `plugin` that it is.
    ready: Mutex<Option<(String, Arc<P::Prepared>)>>,
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
    /// Whether it was told that the file cannot be read, and the file was not read since.
    pub(super) unreadable: bool,
    /// Whether a candidate is being opened.
    pub(super) trying: bool,
    /// Whether somebody has asked for a try since that began.
    pub(super) asked: bool,
}

impl<P: Kind> Default for Place<P> {
    fn default() -> Self {
        Self { slot: OnceCell::new(), record: Mutex::default(), ready: Mutex::default() }
    }
}

impl<P: Kind> Place<P> {
    /// One that is open.
    pub(super) fn opened(slot: Arc<Slot<P>>) -> Self {
        Self { slot: OnceCell::new_with(Some(slot)), ..Self::default() }
    }

    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last component for `plugin` that could be used.
    pub(super) fn ready(&self, plugin: &str) -> Option<Arc<P::Prepared>> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.as_ref().filter(|(known, _)| known == plugin).map(|(_, prepared)| Arc::clone(prepared))
    }

    /// Remembers a component, or forgets it once it is in use.
    pub(super) fn set_ready(&self, ready: Option<(String, Arc<P::Prepared>)>) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = ready;
    }
}

impl Record {
    /// Whether what is in the slot has these settings. What waits is not in it, and what it has waited for is other settings.
    pub(super) fn is_in_place_with(&self, config: &serde_json::Value) -> bool {
        !self.waits && self.made_of.as_ref().is_some_and(|(made_of, _)| made_of.adapter.config == *config)
    }
}

impl Memo {
    pub(super) fn is_of(&self, recipe: &Recipe, sha256: &str, around: &Around) -> bool {
        !self.asked && self.recipe == *recipe && self.sha256 == sha256 && self.around == *around
    }
}
