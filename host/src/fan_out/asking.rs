//! What a router that fails means for the messages that it was asked about, whichever half asks: as a whole, or in one answer.

use super::Code;
use super::tally::Tally;
use crate::domain::{Failure, FailureCode, Outcome};

/// Notes what becomes of the messages (index and key of each) of a call of which the router said nothing. `hung`: as what it counts that one
/// message alone has taken all of the call's time.
///
/// # Errors
/// The call is to fail as a whole: nothing was tried, or one message of several may have brought the router down, and each is to be tried
/// alone.
pub(super) fn router_failed<'a>(
    failure: Failure,
    messages: impl ExactSizeIterator<Item = (usize, Option<&'a str>)>,
    hung: FailureCode,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let may_be_one = failure.code.is_adapter_fault() || failure.code == FailureCode::Timeout;
    if failure.code == FailureCode::not_started() || (may_be_one && messages.len() > 1) {
        return Err(failure);
    }
    // The breaker sees all. An outage uses up no attempt; what brings the router down does, unless the breaker is open.
    let code = match failure.code {
        FailureCode::Timeout => hung,
        ref code if code.is_adapter_fault() => FailureCode::Network,
        _ => FailureCode::Unavailable,
    };
    let failure = Failure::new(code, format!("the router does not answer: {failure}"));
    for (index, key) in messages {
        let outcome = if tally.has_stopped(key) { Outcome::Held } else { Outcome::Retry(failure.clone()) };
        tally.note(index, key, outcome);
    }
    Ok(())
}

/// What a failure in one answer means. Routers have no other way to say that what they read from is out of reach, so that is an outage; one
/// subscriber's secret that cannot be read lets only what needs it wait; anything else is about the message, and uses up its attempts.
pub(super) fn answer_failed(failure: &Failure) -> Failure {
    let code = match failure.code {
        FailureCode::Network | FailureCode::Timeout | FailureCode::Unavailable => FailureCode::Unavailable,
        FailureCode::SigningUnavailable => FailureCode::SigningUnavailable,
        _ => Code::SubscriptionUnavailable.failure_code(),
    };
    Failure { retry_after: failure.retry_after, ..Failure::new(code, failure.to_string()) }
}
