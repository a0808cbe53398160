//! Failures: what is written into `last_error`, and which failure a database error is to the host.

use crate::database::{SqlError, SqlErrorCode};
use crate::{Failure, FailureCode};

/// Longest recorded text, in bytes: a few screens, and far under every database's limits.
pub const MAX_RECORDED_BYTES: usize = 4096;
/// Marks where a text was cut.
const CUT: &str = "… (cut)";

/// The stable word of a code.
#[must_use]
pub fn code_word(code: &FailureCode) -> &str {
    match code {
        FailureCode::Network => "network",
        FailureCode::Timeout => "timeout",
        FailureCode::Throttled => "throttled",
        FailureCode::Unavailable => "unavailable",
        FailureCode::Unauthorized => "unauthorized",
        FailureCode::InvalidMessage => "invalid-message",
        FailureCode::TooLarge => "too-large",
        FailureCode::DestinationGone => "destination-gone",
        FailureCode::InvalidConfiguration => "invalid-configuration",
        FailureCode::SigningUnavailable => "signing-unavailable",
        FailureCode::Integrity => "integrity",
        FailureCode::Other(word) => word,
    }
}

/// What is recorded: `code: detail` without control characters, cut on a character border. The host cleans texts too; this
/// holds for every caller, so that recording a failure never fails because of its text.
#[must_use]
pub fn recorded(failure: &Failure) -> String {
    let word = code_word(&failure.code);
    let mut out = String::with_capacity((word.len() + 2 + failure.detail.len()).min(MAX_RECORDED_BYTES));
    let between = if failure.detail.is_empty() { "" } else { ": " };
    for character in word.chars().chain(between.chars()).chain(failure.detail.chars()) {
        let character = match character {
            '\n' | '\t' => character,
            _ if character.is_control() => '\u{FFFD}',
            _ => character,
        };
        if out.len() + character.len_utf8() > MAX_RECORDED_BYTES - CUT.len() {
            out.push_str(CUT);
            return out;
        }
        out.push(character);
    }
    out
}

/// A database error as a failure: the one place that says which of them pass by themselves.
#[must_use]
pub fn of_sql(error: &SqlError, doing: &str) -> Failure {
    let (code, reason) = match error.code {
        SqlErrorCode::Unavailable => (FailureCode::Unavailable, "the database cannot be reached"),
        // Not out of reach: what the call is about is in the way, and a call about less may succeed.
        SqlErrorCode::Busy => (FailureCode::Timeout, "locked by another transaction"),
        SqlErrorCode::Timeout => (FailureCode::Timeout, "the database took longer than the call may take"),
        SqlErrorCode::ReadOnly => (FailureCode::Unavailable, "the database is read-only"),
        SqlErrorCode::Denied => (FailureCode::InvalidConfiguration, "access to the database is denied"),
        SqlErrorCode::Missing => (FailureCode::InvalidConfiguration, "a table or column is missing"),
        SqlErrorCode::Syntax => (FailureCode::InvalidConfiguration, "the database does not accept the statement"),
        SqlErrorCode::Constraint => (FailureCode::InvalidConfiguration, "a constraint of the table does not allow it"),
        SqlErrorCode::TypeMismatch => (FailureCode::InvalidConfiguration, "a value is of another type, or over a limit"),
        SqlErrorCode::Changed => (FailureCode::Other("changed".to_owned()), "rows were changed by others"),
        SqlErrorCode::Other => (FailureCode::Other("database".to_owned()), "the database failed"),
    };
    Failure::of(code, format!("{doing}: {reason}: {}", error.detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn code_and_detail_are_recorded_without_control_characters() {
        assert_eq!(recorded(&Failure::of(FailureCode::Network, "a\0b\nc\u{1b}")), "network: a\u{FFFD}b\nc\u{FFFD}");
        assert_eq!(recorded(&Failure::of(FailureCode::Other("odd".into()), "")), "odd");
    }

    #[test]
    fn a_long_text_is_cut_with_a_mark() {
        let text = recorded(&Failure::of(FailureCode::Timeout, "😊".repeat(70_000)));
        assert!(text.len() <= MAX_RECORDED_BYTES && text.ends_with(CUT), "{} bytes", text.len());
    }

    #[test]
    fn what_is_out_of_reach_is_told_from_what_is_in_the_way() {
        for (code, expected) in [
            (SqlErrorCode::Unavailable, FailureCode::Unavailable),
            (SqlErrorCode::Busy, FailureCode::Timeout),
            (SqlErrorCode::Timeout, FailureCode::Timeout),
            (SqlErrorCode::ReadOnly, FailureCode::Unavailable),
            (SqlErrorCode::Missing, FailureCode::InvalidConfiguration),
            (SqlErrorCode::Denied, FailureCode::InvalidConfiguration),
        ] {
            let failure = of_sql(&SqlError { code, detail: "why".into() }, "claiming");
            assert_eq!(failure.code, expected, "{code:?}");
            assert!(failure.detail.starts_with("claiming: ") && failure.detail.ends_with(": why"), "{}", failure.detail);
        }
    }

    proptest! {
        #[test]
        fn any_text_can_be_recorded(text in any::<String>()) {
            let text = recorded(&Failure::of(FailureCode::Network, text));
            prop_assert!(text.len() <= MAX_RECORDED_BYTES && !text.contains('\0'));
        }
    }
}
