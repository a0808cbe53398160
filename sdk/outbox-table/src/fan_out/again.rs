//! What must not happen a second time, and what may: ids of events that are given out again, and deliveries that are to be tried again.

use crate::database::{SqlError, SqlErrorCode};
use outhaul_sdk::{DeliveryFilter, DeliveryState, Failure, FailureCode};

/// The failure of an expansion that has met a delivery with another body, or of an event that is gone: the event is another one than that
/// which had its id before. None: the error is about something else.
#[must_use]
pub fn given_out_again(error: &SqlError) -> Option<Failure> {
    let is_meant = error.code == SqlErrorCode::Constraint && error.detail.contains("body_sha256");
    is_meant.then(|| {
        Failure::of(
            FailureCode::Other("invalid_payload".to_owned()),
            "a delivery is there already under the id of the event, and is not its own: either the payload of the event was changed after it \
             was expanded, or its id was given out a second time. Ids of events must never be given out again: insert the event anew under an id that \
             was not used before",
        )
    })
}

/// Refuses a filter by which others than quarantined deliveries would be tried again.
///
/// # Errors
/// `invalid-message`.
pub fn only_quarantined(filter: &DeliveryFilter) -> Result<(), Failure> {
    match filter.state {
        None | Some(DeliveryState::Quarantined) => Ok(()),
        Some(_) => Err(Failure::invalid_message("only quarantined deliveries can be requeued: leave the filter's state out")),
    }
}
