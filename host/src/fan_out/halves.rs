//! What the engine has to know of each half ([`crate::relay::Half`]).

use super::{Code, Paces};
use crate::domain::Failure;
use crate::relay::{Half, Parties};
use std::sync::Arc;

/// The half that expands events.
#[must_use]
pub fn of_events() -> Half {
    Half { word, on_purpose: None, ended: "outhaul dead list".to_owned(), parties: None }
}

/// The half that works the deliveries of a relay off.
#[must_use]
pub fn of_deliveries(relay: &str, paces: Arc<Paces>) -> Half {
    Half {
        word,
        on_purpose: Some(Code::SubscriptionChanged.as_str()),
        ended: format!("outhaul fanout list {relay} --state quarantined"),
        parties: Some(Parties { mark: Paces::mark, is_slow: Arc::new(move |mark| paces.is_slow(mark)) }),
    }
}

fn word(failure: &Failure) -> Option<&'static str> {
    Code::of(failure).map(Code::as_str)
}
