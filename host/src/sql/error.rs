//! What can go wrong with a database: a code that programs act on and a text that people act on.

use std::fmt;

/// See `error-code` of the WIT package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SqlErrorCode {
    /// Not granted, or no such database in the configuration.
    Denied,
    /// The database cannot be reached, opened or found.
    Unavailable,
    /// Locked by others for longer than the call may take.
    Busy,
    /// The database, its file or the connection is read-only.
    ReadOnly,
    /// No such table or column.
    Missing,
    /// A constraint was violated.
    Constraint,
    /// The statement is not valid, or not allowed here.
    Syntax,
    /// A value did not have the type asked for, or was over a limit.
    TypeMismatch,
    /// A statement changed another number of rows than it had to.
    Changed,
    /// The call's deadline has passed.
    Timeout,
    /// Anything else.
    Other,
}

impl SqlErrorCode {
    /// A stable word for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::Busy => "busy",
            Self::ReadOnly => "read-only",
            Self::Missing => "missing",
            Self::Constraint => "constraint",
            Self::Syntax => "syntax",
            Self::TypeMismatch => "type-mismatch",
            Self::Changed => "changed",
            Self::Timeout => "timeout",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for SqlErrorCode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// An error of a database call. After any error the call's transaction is rolled back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail} ({code})")]
pub struct SqlError {
    /// What kind.
    pub code: SqlErrorCode,
    /// What happened and what to do. Names the database; never holds a parameter's value.
    pub detail: String,
}

impl SqlError {
    /// An error.
    pub fn new(code: SqlErrorCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}
