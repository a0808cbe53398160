//! SQLite's error codes in our words: a code to act on, a text that says what to do, and whether the connection is lost.

use super::connection::Settings;
use crate::sql::{SqlError, SqlErrorCode};
use rusqlite::Error;
use rusqlite::ffi::{self, ErrorCode};

/// When an error came up: SQLite's general code means something else while a statement is read than while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Opening the file and setting up the connection.
    Open,
    /// BEGIN.
    Begin,
    /// Preparing a statement.
    Prepare,
    /// Binding parameters, or running it.
    Run,
    /// COMMIT.
    Commit,
}

/// An error, and what it means for the connection.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) error: SqlError,
    /// The connection must not be used any more; the next call opens another.
    pub(super) lost: bool,
}

impl Fault {
    /// An error that leaves the connection as it is.
    pub(super) fn harmless(code: SqlErrorCode, detail: impl Into<String>) -> Self {
        Self { error: SqlError::new(code, detail), lost: false }
    }

    /// What SQLite said.
    pub(super) fn of(error: &Error, stage: Stage, settings: &Settings) -> Self {
        let (primary, extended) = match error {
            Error::SqliteFailure(code, _) | Error::SqlInputError { error: code, .. } => (code.code, code.extended_code),
            _ => (ErrorCode::Unknown, ffi::SQLITE_ERROR),
        };
        let (code, advice) = classify(error, primary, extended, stage);
        let lost = is_lost(primary, extended);
        let said = text(error);
        let place = match stage {
            Stage::Open => format!("opening {}: ", settings.path.display()),
            Stage::Begin => format!("beginning a transaction on {}: ", settings.path.display()),
            Stage::Commit => "committing: ".to_owned(),
            Stage::Prepare | Stage::Run => String::new(),
        };
        let detail = if advice.is_empty() { format!("{place}{said}") } else { format!("{place}{said}: {advice}") };
        Self { error: SqlError::new(code, detail), lost }
    }

    /// The same, with where it happened put in front.
    pub(super) fn at(mut self, place: &str) -> Self {
        self.error.detail.insert_str(0, place);
        self
    }
}

/// After these nothing that the connection remembers can be relied on.
fn is_lost(primary: ErrorCode, extended: i32) -> bool {
    extended == ffi::SQLITE_READONLY_DBMOVED
        || matches!(
            primary,
            ErrorCode::SystemIoFailure
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::CannotOpen
                | ErrorCode::NotADatabase
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::InternalMalfunction
                | ErrorCode::ApiMisuse
                | ErrorCode::OutOfMemory
        )
}

/// SQLite's text, without the SQL that rusqlite adds: the caller says which statement it was.
fn text(error: &Error) -> String {
    match error {
        Error::SqlInputError { msg, offset, .. } => format!("{msg} (at byte {offset})"),
        Error::SqliteFailure(code, None) => ffi::code_to_str(code.extended_code).to_owned(),
        Error::SqliteFailure(_, Some(message)) => message.clone(),
        Error::MultipleStatement => "more than one statement in one text: pass each as a statement of its own".to_owned(),
        Error::Empty => "there is no statement in the text".to_owned(),
        Error::InvalidParameterCount(given, taken) => format!("it takes {taken} parameters, and got {given}"),
        other => other.to_string(),
    }
}

fn classify(error: &Error, primary: ErrorCode, extended: i32, stage: Stage) -> (SqlErrorCode, &'static str) {
    match error {
        Error::MultipleStatement | Error::Empty | Error::InvalidParameterCount(..) => return (SqlErrorCode::Syntax, ""),
        Error::SqliteFailure(..) | Error::SqlInputError { .. } => {}
        _ => return (SqlErrorCode::Other, ""),
    }
    match primary {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => (
            SqlErrorCode::Busy,
            "another process or connection held its lock for as long as this call may take; keep transactions short, or raise limits.call_timeout",
        ),
        ErrorCode::OperationInterrupted => {
            (SqlErrorCode::Timeout, "it ran past the deadline of the call; add an index, take smaller steps, or raise limits.call_timeout")
        }
        ErrorCode::ReadOnly => (SqlErrorCode::ReadOnly, read_only_advice(extended)),
        ErrorCode::ConstraintViolation => (SqlErrorCode::Constraint, ""),
        ErrorCode::TypeMismatch => (SqlErrorCode::TypeMismatch, ""),
        ErrorCode::TooBig => (
            SqlErrorCode::TypeMismatch,
            "a value or a row is over 64 MiB (or limits.returned_bytes, if that is more), or a statement over 1 MiB",
        ),
        ErrorCode::ParameterOutOfRange => (SqlErrorCode::Syntax, ""),
        ErrorCode::AuthorizationForStatementDenied => (SqlErrorCode::Denied, ""),
        ErrorCode::DiskFull => (SqlErrorCode::Unavailable, "make room on the disk (or raise max_page_count); the call was rolled back"),
        ErrorCode::SystemIoFailure => {
            (SqlErrorCode::Unavailable, "the disk or file system failed (or is full); the file is opened again at the next call")
        }
        ErrorCode::NotADatabase => {
            (SqlErrorCode::Unavailable, "the file is not a SQLite database (or is encrypted): check the url of the database")
        }
        ErrorCode::DatabaseCorrupt => (SqlErrorCode::Unavailable, "the file is damaged: run PRAGMA integrity_check and restore a backup"),
        ErrorCode::CannotOpen => (
            SqlErrorCode::Unavailable,
            "the file or one beside it (-wal, -shm, -journal) cannot be opened: check the permissions of the file and of its folder",
        ),
        ErrorCode::PermissionDenied => (SqlErrorCode::Unavailable, "check the permissions of the file and of its folder"),
        ErrorCode::FileLockingProtocolFailed => {
            (SqlErrorCode::Busy, "too many processes raced for its lock, or the file system has no reliable locks (a network share)")
        }
        _ => (general(error, stage), ""),
    }
}

fn read_only_advice(extended: i32) -> &'static str {
    match extended {
        ffi::SQLITE_READONLY_DBMOVED => "the file was moved or deleted while it was open; it is opened again at the next call",
        ffi::SQLITE_READONLY_DIRECTORY => "let the host write to the folder of the file, where SQLite keeps its journal",
        ffi::SQLITE_READONLY_ROLLBACK | ffi::SQLITE_READONLY_RECOVERY | ffi::SQLITE_READONLY_CANTINIT | ffi::SQLITE_READONLY_CANTLOCK => {
            "what another process left behind must be repaired first: let the host write to the file and to its folder"
        }
        _ => "open the database read-write, and let the host write to the file and to its folder",
    }
}

/// SQLite's code 1 says everything in its text.
fn general(error: &Error, stage: Stage) -> SqlErrorCode {
    let said = text(error);
    if ["no such table", "no such column", "no such index", "no such view"].iter().any(|start| said.starts_with(start))
        || said.contains("has no column named")
    {
        SqlErrorCode::Missing
    } else if stage == Stage::Prepare {
        SqlErrorCode::Syntax
    } else {
        SqlErrorCode::Other
    }
}
