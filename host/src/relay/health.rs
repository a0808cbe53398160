//! What a relay says of itself to the outside: whether its storage answers, and which breakers are open.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct State {
    storage_error: Option<String>,
    open_breakers: BTreeSet<String>,
}

/// Written by the relay, read by the admin address.
#[derive(Debug, Default)]
pub struct Health(Mutex<State>);

impl Health {
    // A panic while the lock was held cannot leave these two values half-written.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the storage cannot be used at present; none: it answers.
    pub fn storage_error(&self) -> Option<String> {
        self.state().storage_error.clone()
    }

    /// Publishers whose circuit breaker is open.
    pub fn open_breakers(&self) -> Vec<String> {
        self.state().open_breakers.iter().cloned().collect()
    }

    /// A pipeline begins: what one before it said is no longer so.
    pub(super) fn begin(&self) {
        *self.state() = State::default();
    }

    /// Returns whether this is news.
    pub(super) fn set_storage_error(&self, error: Option<String>) -> bool {
        let mut state = self.state();
        let news = state.storage_error != error;
        state.storage_error = error;
        news
    }

    pub(super) fn set_breaker(&self, publisher: &str, open: bool) {
        let mut state = self.state();
        if open {
            state.open_breakers.insert(publisher.to_owned());
        } else {
            state.open_breakers.remove(publisher);
        }
    }
}
