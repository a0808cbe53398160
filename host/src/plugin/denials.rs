//! Denials, told to the operator: once each in the log, and with the failures of the call that they happened in.

use super::call::Notes;
use super::identity::Identity;
use crate::domain::text;
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

    /// Tells one. The text may hold what the guest or a peer has written: it is cleaned and cut first.
    pub(super) fn tell(&self, notes: &Notes, text: &str) {
        let text = text::clean(text);
        notes.add(&text);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < MAX_TOLD && told.insert(text.clone()) {
            tracing::warn!(adapter = self.identity.name, generation = self.identity.generation, "{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_clean_and_bounded_and_so_is_what_is_remembered() {
        let identity = Identity { kind: super::super::identity::Kind::Publisher, name: "webhooks".into(), generation: 1 };
        let (denials, notes) = (Denials::new(identity), Notes::default());
        (0..100).for_each(|index| denials.tell(&notes, &format!("{index}\0{}", "x".repeat(1 << 20))));
        let told = denials.told.lock().unwrap();
        assert_eq!(told.len(), MAX_TOLD);
        assert!(told.iter().all(|text| text.len() <= text::MAX_DETAIL_BYTES && !text.contains('\0')));
        let noted = notes.text().unwrap();
        assert!(noted.len() <= 5 * text::MAX_DETAIL_BYTES && !noted.contains('\0'), "{} bytes", noted.len());
    }
}
