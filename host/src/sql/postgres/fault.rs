//! What the server and the connection say, in our words.

use crate::sql::{SqlError, SqlErrorCode};
use futures_util::FutureExt;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

/// So much of what a server says is kept, in bytes: it may quote a whole statement.
const LONGEST_TEXT: usize = 2000;

/// An error, and whether the connection can be used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) error: SqlError,
    /// The state of the connection is unknown, or it is gone: it must be closed.
    pub(super) lost: bool,
    /// What the server's other connections are worth after this.
    pub(super) reach: Reach,
}

/// What a fault says beyond its own call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Nothing.
    Call,
    /// Prepared statements of this connection are not what they were: the schema has changed.
    Statements,
    /// Prepared statements come and go by themselves: there is a pooler in between.
    Pooler,
    /// The other connections are most likely gone as well, or no longer what they should be (a failover).
    Server,
}

impl Fault {
    /// An error after which the connection is as good as before.
    pub(super) fn harmless(code: SqlErrorCode, detail: impl Into<String>) -> Self {
        Self { error: SqlError::new(code, detail), lost: false, reach: Reach::Call }
    }

    /// An error after which the connection is closed.
    pub(super) fn lost(code: SqlErrorCode, detail: impl Into<String>) -> Self {
        Self { error: SqlError::new(code, detail), lost: true, reach: Reach::Call }
    }

    /// The connection broke.
    pub(super) fn broken(error: &io::Error) -> Self {
        let detail = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
            _ => format!("the connection broke: {error}"),
        };
        Self { reach: Reach::Server, ..Self::lost(SqlErrorCode::Unavailable, detail) }
    }

    /// The server said something that makes no sense here.
    pub(super) fn protocol(what: &str) -> Self {
        Self::lost(SqlErrorCode::Other, format!("the server does not keep to the protocol: {what}; is it a PostgreSQL server?"))
    }

    /// What the client is given over to: a server may say anything.
    pub(super) async fn contained<T>(work: impl Future<Output = Result<T, Self>>) -> Result<T, Self> {
        // Whatever it left half done is closed.
        let ended = AssertUnwindSafe(work).catch_unwind().await;
        ended.unwrap_or_else(|_| Err(Self::protocol("the client cannot make sense of its answer")))
    }

    /// No answer in time, not even to the server's own time-out.
    pub(super) fn silent(waited: Duration) -> Self {
        let waited = humantime::format_duration(Duration::from_millis(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX)));
        Self {
            reach: Reach::Server,
            ..Self::lost(
                SqlErrorCode::Timeout,
                format!(
                    "no answer within {waited}: the server or the network hangs, or limits.call_timeout is too short; the connection was closed"
                ),
            )
        }
    }

    /// The same, with the place where it happened in front.
    pub(super) fn at(mut self, place: &str) -> Self {
        self.error.detail.insert_str(0, place);
        self
    }

    /// What sqlx reports: an answer of the server, or what went wrong with the connection.
    pub(super) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => match error.try_downcast_ref::<PgDatabaseError>() {
                Some(error) => Said {
                    fatal: matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic),
                    state: error.code(),
                    message: error.message(),
                    hint: error.hint().unwrap_or_default(),
                }
                .fault(),
                None => Self::protocol("an error of another kind of server"),
            },
            sqlx::Error::Io(error) => Self::broken(error),
            sqlx::Error::Protocol(text) => Self::protocol(text),
            error => Self::lost(SqlErrorCode::Other, error.to_string()),
        }
    }
}

/// The fields of an error that are used. Not its detail, which quotes values of the row.
#[derive(Debug)]
struct Said<'a> {
    fatal: bool,
    state: &'a str,
    message: &'a str,
    hint: &'a str,
}

impl Said<'_> {
    fn fault(&self) -> Fault {
        let (code, reach, advice) = classify(self.state, self.message);
        // Data exceptions quote the value.
        let mut detail = if self.state.starts_with("22") { without_quoted(self.message) } else { self.message.to_owned() };
        if advice.is_empty() && !self.hint.is_empty() {
            detail = format!("{detail} ({})", self.hint);
        }
        if detail.len() > LONGEST_TEXT {
            let end = (0..=LONGEST_TEXT).rev().find(|end| detail.is_char_boundary(*end)).unwrap_or(0);
            detail.truncate(end);
            detail.push('…');
        }
        detail = format!("{detail} [{}]", self.state);
        if !advice.is_empty() {
            detail = format!("{detail}; {advice}");
        }
        Fault { error: SqlError::new(code, detail), lost: self.fatal || matches!(reach, Reach::Server | Reach::Pooler), reach }
    }
}

/// The text without what stands between its first and its last quotation mark.
fn without_quoted(text: &str) -> String {
    match (text.split_once('"'), text.rsplit_once('"')) {
        (Some((before, _)), Some((_, after))) => format!("{before}\"…\"{after}"),
        _ => text.to_owned(),
    }
}

/// The one table of SQLSTATEs (PostgreSQL, appendix A), with what an operator can do.
fn classify(state: &str, message: &str) -> (SqlErrorCode, Reach, &'static str) {
    use SqlErrorCode as Code;
    let here = |code| (code, Reach::Call, "");
    let server = |code, advice| (code, Reach::Server, advice);
    match state {
        "3D000" => (Code::Unavailable, Reach::Call, "the host does not create databases: correct the url, or let its owner create it"),
        "28000" | "28P01" => (Code::Unavailable, Reach::Call, "check user and password of the database, and pg_hba.conf of the server"),
        "42501" => (Code::Denied, Reach::Call, "grant it to the user of the database"),
        "25006" => server(
            Code::ReadOnly,
            "the server (or the role) is read-only: a standby, or a primary that was demoted; the host connects again, to whatever the address means then",
        ),
        "53300" => (
            Code::Unavailable,
            Reach::Call,
            "the server has no connection left: lower max_connections of the database, or raise the server's",
        ),
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => server(Code::Unavailable, "the host connects again"),
        "25P03" => server(Code::Timeout, "a transaction was held open for longer than its call may take"),
        "55P03" => (Code::Busy, Reach::Call, "another transaction held a lock for as long as this call may wait"),
        "40001" | "40P01" | "55006" => here(Code::Busy),
        // Cancelled: by the time-out that the host has set, or by an administrator.
        "57014" => (Code::Timeout, Reach::Call, "the call may not take longer: raise limits.call_timeout, or make the statement faster"),
        "26000" | "42P05" => {
            (Code::Unavailable, Reach::Pooler, "a pooler in transaction mode: the next call works without prepared statements")
        }
        "0A000" if message.contains("cached plan") => {
            (Code::Unavailable, Reach::Statements, "the table was altered; the next call prepares it anew")
        }
        "0A000" if message.contains("recovery") => server(Code::ReadOnly, "the server is a standby"),
        "42P01" | "42703" | "42704" | "3F000" => here(Code::Missing),
        "42804" | "42846" | "42P18" => here(Code::TypeMismatch),
        _ => match state.get(..2).unwrap_or_default() {
            "08" => server(Code::Unavailable, ""),
            "53" | "58" => here(Code::Unavailable),
            "57" => server(Code::Unavailable, ""),
            "22" => here(Code::TypeMismatch),
            "23" | "44" => here(Code::Constraint),
            "42" => here(Code::Syntax),
            _ => here(Code::Other),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(severity: &str, state: &str, message: &str) -> Fault {
        Said { fatal: severity == "FATAL", state, message, hint: "" }.fault()
    }

    #[test]
    fn states_have_the_codes_of_the_contract() {
        use SqlErrorCode::{Busy, Constraint, Denied, Missing, Other, ReadOnly, Syntax, Timeout, TypeMismatch, Unavailable};
        for (state, code) in [
            ("08006", Unavailable),
            ("57P01", Unavailable),
            ("57P03", Unavailable),
            ("53300", Unavailable),
            ("53100", Unavailable),
            ("28P01", Unavailable),
            ("3D000", Unavailable),
            ("25006", ReadOnly),
            ("55P03", Busy),
            ("40001", Busy),
            ("40P01", Busy),
            ("57014", Timeout),
            ("42P01", Missing),
            ("42703", Missing),
            ("42501", Denied),
            ("42601", Syntax),
            ("23505", Constraint),
            ("23502", Constraint),
            ("22P02", TypeMismatch),
            ("22021", TypeMismatch),
            ("XX000", Other),
            ("é", Other),
            ("", Other),
        ] {
            assert_eq!(said("ERROR", state, "text").error.code, code, "{state}");
        }
    }

    #[test]
    fn a_failover_and_an_end_close_the_connection() {
        assert!(said("FATAL", "XX000", "").lost && !said("ERROR", "XX000", "").lost);
        for (state, reach) in [("25006", Reach::Server), ("57P01", Reach::Server), ("26000", Reach::Pooler)] {
            let fault = said("ERROR", state, "text");
            assert!(fault.lost && fault.reach == reach, "{state}");
        }
        assert!(!said("ERROR", "23505", "text").lost);
    }

    #[test]
    fn values_are_not_told() {
        let fault = said("ERROR", "22P02", "invalid input syntax for type integer: \"hu\"sh\" here");
        assert_eq!(fault.error.detail, "invalid input syntax for type integer: \"…\" here [22P02]");
        assert!(said("ERROR", "23505", "violates \"t_pkey\"").error.detail.contains("t_pkey"));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let fault = said("ERROR", "XX000", &"é".repeat(5000));
        assert!(fault.error.detail.len() < LONGEST_TEXT + 20 && fault.error.detail.contains('…'), "{}", fault.error.detail);
    }
}
