//! Asks a relay to begin anew: to finish what is in flight as at a shutdown, and to start again with the configuration, and the
//! storage, that there are then.

use super::place::Candidate;
use crate::plugin::StoragePlugin;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// The request to one relay.
#[derive(Default)]
pub(super) struct Turn {
    asked: Notify,
    storage: Mutex<Option<Candidate<StoragePlugin>>>,
}

impl Turn {
    /// Asks. A storage that waits for it takes the place of one that has waited before.
    pub(super) fn begin_anew(&self, storage: Option<Candidate<StoragePlugin>>) {
        if storage.is_some() {
            *self.storage.lock().unwrap_or_else(PoisonError::into_inner) = storage;
        }
        self.asked.notify_one();
    }

    /// Until it is asked for. What was asked for before counts.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// The storage to begin with; none: the one that there is.
    pub(super) fn take_storage(&self) -> Option<Candidate<StoragePlugin>> {
        self.storage.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
