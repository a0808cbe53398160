//! Why a delivery, or an event, is not where it should be: the words that are kept in the database and shown to operators.

use crate::domain::{Failure, FailureCode};
use std::fmt;

/// What can be wrong with a delivery or an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The endpoint was not reached, or did not answer in time.
    Network,
    /// The endpoint answered that it may go better later.
    RetryableHttp,
    /// The endpoint will not take it.
    PermanentHttp,
    /// The signing material is out of reach for now.
    SigningUnavailable,
    /// There is no such signing scope.
    PermanentScope,
    /// The router does not say for now who subscribes.
    SubscriptionUnavailable,
    /// The subscription is gone, or another one since the event was expanded.
    SubscriptionChanged,
    /// The router's answer makes no sense, or the endpoint may not be reached.
    InvalidConfiguration,
    /// The event cannot be delivered as it is.
    InvalidPayload,
    /// What is stored is not what was sealed.
    IntegrityFailure,
    /// The lease was over before anything was sent.
    LeaseExpired,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Network,
        Self::RetryableHttp,
        Self::PermanentHttp,
        Self::SigningUnavailable,
        Self::PermanentScope,
        Self::SubscriptionUnavailable,
        Self::SubscriptionChanged,
        Self::InvalidConfiguration,
        Self::InvalidPayload,
        Self::IntegrityFailure,
        Self::LeaseExpired,
    ];

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::RetryableHttp => "retryable_http",
            Self::PermanentHttp => "permanent_http",
            Self::SigningUnavailable => "signing_unavailable",
            Self::PermanentScope => "permanent_scope",
            Self::SubscriptionUnavailable => "subscription_unavailable",
            Self::SubscriptionChanged => "subscription_changed",
            Self::InvalidConfiguration => "invalid_configuration",
            Self::InvalidPayload => "invalid_payload",
            Self::IntegrityFailure => "integrity_failure",
            Self::LeaseExpired => "lease_expired",
        }
    }

    /// The code of a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == word)
    }

    /// The code that a failure carries; none: it is not one of these.
    #[must_use]
    pub fn of(failure: &Failure) -> Option<Self> {
        match &failure.code {
            FailureCode::Other(word) => Self::from_word(word),
            _ => None,
        }
    }

    /// As a code of a failure.
    #[must_use]
    pub fn failure_code(self) -> FailureCode {
        FailureCode::Other(self.as_str().to_owned())
    }

    /// A failure with this code; the text is cleaned and cut.
    #[must_use]
    pub fn failure(self, detail: impl AsRef<str>) -> Failure {
        Failure::new(self.failure_code(), detail)
    }

    /// A failure of the publisher that may be tried again.
    #[must_use]
    pub fn of_retry(code: &FailureCode) -> Self {
        match code {
            FailureCode::Network | FailureCode::Timeout => Self::Network,
            FailureCode::InvalidConfiguration => Self::InvalidConfiguration,
            FailureCode::SigningUnavailable => Self::SigningUnavailable,
            FailureCode::Other(word) => Self::from_word(word).unwrap_or(Self::RetryableHttp),
            _ => Self::RetryableHttp,
        }
    }

    /// A failure of the publisher for good.
    #[must_use]
    pub fn of_reject(code: &FailureCode) -> Self {
        match code {
            FailureCode::InvalidConfiguration => Self::InvalidConfiguration,
            FailureCode::Other(word) if word == "permanent-scope" => Self::PermanentScope,
            FailureCode::Other(word) => Self::from_word(word).unwrap_or(Self::PermanentHttp),
            _ => Self::PermanentHttp,
        }
    }

    /// What is recorded with a delivery for a failure of any kind, and whether it ends with it: those of the deliverer carry their word;
    /// a router out of reach is unavailable; what is left comes from an adapter that broke down.
    #[must_use]
    pub fn of_delivery(code: &FailureCode, ends: bool) -> Self {
        match code {
            FailureCode::Unavailable => Self::SubscriptionUnavailable,
            FailureCode::Throttled => Self::RetryableHttp,
            FailureCode::TooLarge | FailureCode::InvalidMessage | FailureCode::Integrity => Self::IntegrityFailure,
            FailureCode::InvalidConfiguration => Self::InvalidConfiguration,
            FailureCode::SigningUnavailable => Self::SigningUnavailable,
            FailureCode::Other(word) => Self::from_word(word).unwrap_or(if ends { Self::InvalidConfiguration } else { Self::Network }),
            _ => Self::Network,
        }
    }

    /// What is recorded with an event that ended without being expanded.
    #[must_use]
    pub fn of_event(code: &FailureCode) -> Self {
        match code {
            FailureCode::TooLarge | FailureCode::InvalidMessage => Self::InvalidPayload,
            FailureCode::InvalidConfiguration => Self::InvalidConfiguration,
            FailureCode::Other(word) => Self::from_word(word).unwrap_or(Self::SubscriptionUnavailable),
            _ => Self::SubscriptionUnavailable,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_and_no_other_is_one() {
        for code in Code::ALL {
            assert_eq!(Code::from_word(code.as_str()), Some(code));
            assert_eq!(Code::of(&code.failure("x")), Some(code));
            assert_eq!((Code::of_delivery(&code.failure_code(), true), Code::of_event(&code.failure_code())), (code, code));
        }
        assert_eq!((Code::from_word("permanent-scope"), Code::from_word("")), (None, None));
        assert_eq!(Code::of(&Failure::new(FailureCode::Network, "")), None, "the publisher's own code is not kept as it is");
    }

    #[test]
    fn what_a_publisher_says_has_one_meaning_for_retries_and_one_for_the_end() {
        use FailureCode as F;
        let other = |word: &str| F::Other(word.to_owned());
        for (code, retry, reject) in [
            (F::Network, Code::Network, Code::PermanentHttp),
            (F::Timeout, Code::Network, Code::PermanentHttp),
            (F::Throttled, Code::RetryableHttp, Code::PermanentHttp),
            (F::Unavailable, Code::RetryableHttp, Code::PermanentHttp),
            (F::Unauthorized, Code::RetryableHttp, Code::PermanentHttp),
            (F::InvalidMessage, Code::RetryableHttp, Code::PermanentHttp),
            (F::TooLarge, Code::RetryableHttp, Code::PermanentHttp),
            (F::DestinationGone, Code::RetryableHttp, Code::PermanentHttp),
            (F::InvalidConfiguration, Code::InvalidConfiguration, Code::InvalidConfiguration),
            (F::SigningUnavailable, Code::SigningUnavailable, Code::PermanentHttp),
            (other("http-404"), Code::RetryableHttp, Code::PermanentHttp),
            (other("permanent-scope"), Code::RetryableHttp, Code::PermanentScope),
            (other("lease_expired"), Code::LeaseExpired, Code::LeaseExpired),
        ] {
            assert_eq!((Code::of_retry(&code), Code::of_reject(&code)), (retry, reject), "{code:?}");
        }
    }

    #[test]
    fn what_the_pipeline_says_becomes_a_word_at_the_storage() {
        use FailureCode as F;
        assert_eq!(Code::of_delivery(&F::Unavailable, false), Code::SubscriptionUnavailable);
        assert_eq!(Code::of_delivery(&F::Timeout, false), Code::Network);
        assert_eq!(Code::of_delivery(&F::trapped(), false), Code::Network);
        assert_eq!(Code::of_delivery(&F::trapped(), true), Code::InvalidConfiguration);
        assert_eq!(Code::of_delivery(&F::TooLarge, true), Code::IntegrityFailure);
        assert_eq!(Code::of_event(&F::Unavailable), Code::SubscriptionUnavailable);
        assert_eq!(Code::of_event(&F::TooLarge), Code::InvalidPayload);
    }
}
