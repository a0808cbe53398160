//! How a pipeline that is half of a fan-out differs from one that publishes rows: what it asks before it tries may be out of reach, its
//! failures have words of their own, and its messages go to parties that must not wait for each other.

use crate::domain::{Failure, FailureCode, Message};
use std::sync::Arc;

/// See the module.
#[derive(Clone)]
pub struct Half {
    /// The word of a failure, if it has one. Words are few: each is counted by itself. Who says one has been answered by what it asks first.
    pub word: fn(&Failure) -> Option<&'static str>,
    /// Messages that end with this word are meant to.
    pub on_purpose: Option<&'static str>,
    /// The command that shows what has ended.
    pub ended: String,
    /// To whom its messages go; none: to one and the same.
    pub parties: Option<Parties>,
}

/// To whom messages go. A party is in one call at a time, and those that are slow are in calls of their own, so that one that takes long
/// holds up only itself.
#[derive(Clone)]
pub struct Parties {
    /// Whom a message goes to.
    pub mark: fn(Message<'_>) -> String,
    /// Whether a party takes long at present.
    pub is_slow: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

/// Whether a failure of a half is no fault of its message: what is asked before it is tried cannot be had for now. No attempt is used up.
pub(super) fn is_waited_for(code: &FailureCode) -> bool {
    matches!(code, FailureCode::Unavailable) || is_of_one(code)
}

/// Whether it cannot be had for this message alone: that says nothing about others.
pub(super) fn is_of_one(code: &FailureCode) -> bool {
    matches!(code, FailureCode::SigningUnavailable)
}
