//! Denials, told to the operator: once each in the log, and with the failures of the call that they happened in.

use super::call::Notes;
use super::identity::Identity;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Different denials that the log tells of one adapter: a guest that tries out host names cannot flood it.
const MAX_TOLD: usize = 64;

/// The denials of one adapter that the log has told.
#[derive(Debug)]
pub(super) struct Denials {
    identity: Identity,
    told: Mutex<BTreeSet<String>>,
}

impl Denials {
    pub(super) fn new(identity: Identity) -> Self {
        Self { identity, told: Mutex::default() }
    }

    pub(super) fn tell(&self, notes: &Notes, text: &str) {
        notes.add(text);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < MAX_TOLD && told.insert(text.to_owned()) {
            tracing::warn!(adapter = self.identity.name, generation = self.identity.generation, "{text}");
        }
    }
}
