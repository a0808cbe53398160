//! The word that is kept with a failure, one of a fixed few: readers of the log and of lists match on them.

use crate::choose::Refused;
use crate::failure::code_word;
use outhaul_sdk::{ClaimRequest, Column, DeliverySettlement, DeliveryVerdict, Failure, FailureCode};

/// A lease ran out, and nobody said what had become of the attempt.
pub const LEASE_EXPIRED: &str = "lease_expired";
/// What was sealed cannot be what is in the row.
const INTEGRITY_FAILURE: &str = "integrity_failure";

/// The words of `wit/fan-out.wit`.
const WORDS: [&str; 11] = [
    "network",
    "retryable_http",
    "permanent_http",
    "signing_unavailable",
    "permanent_scope",
    "subscription_unavailable",
    "subscription_changed",
    "invalid_configuration",
    "invalid_payload",
    INTEGRITY_FAILURE,
    LEASE_EXPIRED,
];

/// The word for a failure. A code that is none of the words comes from whoever ends an event by another way than fan-out, and gets the
/// nearest one.
#[must_use]
pub fn code_of(failure: &Failure) -> &str {
    match &failure.code {
        FailureCode::Other(word) if WORDS.contains(&word.as_str()) => word,
        FailureCode::Network | FailureCode::Timeout => "network",
        FailureCode::Throttled => "retryable_http",
        FailureCode::Unavailable => "subscription_unavailable",
        FailureCode::Unauthorized | FailureCode::DestinationGone => "permanent_http",
        FailureCode::InvalidMessage | FailureCode::TooLarge => "invalid_payload",
        FailureCode::SigningUnavailable => "signing_unavailable",
        FailureCode::Integrity => INTEGRITY_FAILURE,
        FailureCode::Other(word) if word == crate::search::ATTEMPTS_USED_UP => LEASE_EXPIRED,
        FailureCode::InvalidConfiguration | FailureCode::Other(_) => "invalid_configuration",
    }
}

fn of(word: &str, detail: String) -> Failure {
    Failure::of(FailureCode::Other(word.to_owned()), detail)
}

/// Why a claim ends deliveries, as it is recorded and reported. The code of one that is too old is only for those that have none.
#[must_use]
pub fn deliveries_reasons(request: &ClaimRequest, horizon_ms: u64) -> [(Refused, Failure); 3] {
    let used_up = format!("gave up after {} attempts: the lease of the last one ran out", request.max_attempts);
    let too_large = format!("the delivery is larger than {} bytes, the most that a message may have", request.max_message_bytes);
    let too_old = format!("gave up after {} seconds, the horizon of the relay", horizon_ms / 1000);
    [
        (Refused::AttemptsUsedUp, of(LEASE_EXPIRED, used_up)),
        (Refused::TooLarge, of(INTEGRITY_FAILURE, too_large)),
        (Refused::TooOld, of(LEASE_EXPIRED, too_old)),
    ]
}

/// The failure of a delivery that cannot be what was inserted.
#[must_use]
pub fn integrity(reason: String) -> Failure {
    of(INTEGRITY_FAILURE, reason)
}

/// Verdicts on deliveries that were claimed and cannot be decoded: id and reason of each.
#[must_use]
pub fn undecodable(faults: &[(String, String)]) -> Vec<DeliverySettlement> {
    let quarantined = |(id, reason): &(String, String)| DeliverySettlement {
        verdict: DeliveryVerdict::Quarantined(integrity(reason.clone())),
        ids: Column::of_texts([id]),
    };
    faults.iter().map(quarantined).collect()
}

/// What is recorded beside the code.
#[must_use]
pub fn detail(failure: &Failure) -> String {
    let recorded = crate::failure::recorded(failure);
    match recorded.strip_prefix(code_word(&failure.code)) {
        Some(rest) => rest.strip_prefix(": ").unwrap_or(rest).to_owned(),
        None => recorded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_and_every_other_code_gets_one_of_them() {
        for word in WORDS {
            assert_eq!(code_of(&of(word, String::new())), word);
        }
        for code in [
            FailureCode::Network,
            FailureCode::Timeout,
            FailureCode::Throttled,
            FailureCode::Unavailable,
            FailureCode::Unauthorized,
            FailureCode::InvalidMessage,
            FailureCode::TooLarge,
            FailureCode::DestinationGone,
            FailureCode::InvalidConfiguration,
            FailureCode::SigningUnavailable,
            FailureCode::Integrity,
            FailureCode::Other("odd".to_owned()),
        ] {
            assert!(WORDS.contains(&code_of(&Failure::of(code.clone(), ""))), "{code:?}");
        }
        assert_eq!(code_of(&of("attempts-used-up", String::new())), "lease_expired");
    }

    #[test]
    fn the_detail_is_recorded_without_its_code() {
        assert_eq!(detail(&of("network", "refused\0".to_owned())), "refused\u{FFFD}");
        assert_eq!(detail(&of("network", String::new())), "");
    }
}
