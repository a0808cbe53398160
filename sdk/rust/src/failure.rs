//! Short ways to make failures.

use crate::outbox::{Failure, FailureCode};

impl Failure {
    /// A failure with a text for a person: no payloads, no secrets.
    #[must_use]
    pub fn of(code: FailureCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), retry_after_ms: None }
    }

    /// The configuration is wrong: `detail` names the key and says what would be right.
    #[must_use]
    pub fn invalid_configuration(detail: impl Into<String>) -> Self {
        Self::of(FailureCode::InvalidConfiguration, detail)
    }

    /// This message can never be accepted as it is.
    #[must_use]
    pub fn invalid_message(detail: impl Into<String>) -> Self {
        Self::of(FailureCode::InvalidMessage, detail)
    }
}
