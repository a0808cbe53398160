//! Failures: why something went wrong, told to a program (code) and to a person (detail).

use std::fmt;
use std::time::Duration;

/// Why something failed. Mirrors `failure-code` of the WIT package, where each is described.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "described in wit/outbox.wit")]
#[non_exhaustive]
pub enum FailureCode {
    Network,
    Timeout,
    Throttled,
    Unavailable,
    Unauthorized,
    InvalidMessage,
    TooLarge,
    DestinationGone,
    InvalidConfiguration,
    SigningUnavailable,
    Integrity,
    Other(String),
}

impl FailureCode {
    /// The adapter trapped, ran out of memory or stack, or ended itself.
    #[must_use]
    pub fn trapped() -> Self {
        Self::Other("trapped".to_owned())
    }

    /// The adapter answered nonsense.
    #[must_use]
    pub fn adapter_fault() -> Self {
        Self::Other("adapter-fault".to_owned())
    }

    /// The call never began, because every instance of the adapter was busy.
    #[must_use]
    pub fn not_started() -> Self {
        Self::Other("not-started".to_owned())
    }

    /// Whether the adapter itself is at fault, and not its destination.
    #[must_use]
    pub fn is_adapter_fault(&self) -> bool {
        *self == Self::trapped() || *self == Self::adapter_fault()
    }

    /// The stable word for logs, metrics and the table.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Unauthorized => "unauthorized",
            Self::InvalidMessage => "invalid-message",
            Self::TooLarge => "too-large",
            Self::DestinationGone => "destination-gone",
            Self::InvalidConfiguration => "invalid-configuration",
            Self::SigningUnavailable => "signing-unavailable",
            Self::Integrity => "integrity",
            Self::Other(word) => word,
        }
    }

    /// The code of a stable word; any other word is a code of its own.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        const WORDS: [FailureCode; 11] = [
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
        ];
        WORDS.into_iter().find(|code| code.as_str() == word).unwrap_or_else(|| Self::Other(word.to_owned()))
    }

    /// Whether an attempt that failed so, and may be tried again, says that no message gets through at present, rather than that
    /// one message is bad: the destination is down, or what is needed to reach it (a grant, a secret, credentials) is missing.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        let down = matches!(self, Self::Network | Self::Timeout | Self::Unavailable);
        down || matches!(self, Self::Unauthorized | Self::InvalidConfiguration | Self::SigningUnavailable)
    }
}

/// A failure. `detail` is clean text of bounded length.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Failure {
    /// For programs.
    pub code: FailureCode,
    /// For people. No payload, no secret.
    pub detail: String,
    /// What the destination asked for.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure; the text is cleaned and cut.
    #[must_use]
    pub fn new(code: FailureCode, detail: impl AsRef<str>) -> Self {
        Self { code, detail: super::text::clean(detail.as_ref()), retry_after: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detail.is_empty() {
            formatter.write_str(self.code.as_str())
        } else {
            write!(formatter, "{}: {}", self.code.as_str(), self.detail)
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_read_back_from_their_words() {
        for word in ["network", "timeout", "throttled", "unavailable", "unauthorized", "invalid-message", "too-large", "destination-gone"] {
            let code = FailureCode::from_word(word);
            assert!(code.as_str() == word && !matches!(code, FailureCode::Other(_)), "{word}");
        }
        for word in ["invalid-configuration", "signing-unavailable", "integrity"] {
            assert!(!matches!(FailureCode::from_word(word), FailureCode::Other(_)), "{word}");
        }
        assert_eq!(FailureCode::from_word("http-404"), FailureCode::Other("http-404".into()));
    }
}
