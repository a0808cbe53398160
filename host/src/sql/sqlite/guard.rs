//! What a guest's SQL may do: work on its own database, inside the transaction that the host has opened for it.
//!
//! SQLite asks here for every action of a statement while it prepares it (and again when it prepares it anew after a change of
//! the schema). Connections are shared by the adapters that were granted the same database, so whatever would outlive the
//! transaction on the connection (attached files, settings, temporary tables) is refused as well.

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Pragmas that describe and change nothing. Also reached through their table-valued functions.
const PRAGMAS: [&str; 7] = ["data_version", "foreign_key_list", "index_info", "index_list", "index_xinfo", "table_info", "table_xinfo"];

/// Functions that reach out of the database. SQLite has them switched off; they are refused by name in case a build has not.
const FUNCTIONS: [&str; 5] = ["edit", "fts3_tokenizer", "load_extension", "readfile", "writefile"];

const NO_TEMPORARY: &str =
    "temporary tables, views, indexes and triggers are not allowed: they would stay on a connection that others share";

/// The judge of one connection.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// Set while the host runs statements of its own (BEGIN, COMMIT, ROLLBACK).
    host: AtomicBool,
    /// Why the last statement was refused.
    refusal: Mutex<Option<String>>,
}

impl Guard {
    /// Lets the host do what guests may not.
    pub(super) fn as_host<T>(&self, run: impl FnOnce() -> T) -> T {
        self.host.store(true, Ordering::Relaxed);
        let result = run();
        self.host.store(false, Ordering::Relaxed);
        result
    }

    /// SQLite's question.
    pub(super) fn judge(&self, context: AuthContext<'_>) -> Authorization {
        if self.host.load(Ordering::Relaxed) {
            return Authorization::Allow;
        }
        match refuse(context) {
            None => Authorization::Allow,
            Some(reason) => {
                *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
                Authorization::Deny
            }
        }
    }

    /// Why a statement was refused just now.
    pub(super) fn take_refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The reason why a guest may not do this; none: it may.
fn refuse(context: AuthContext<'_>) -> Option<String> {
    match context.action {
        AuthAction::Attach { .. } | AuthAction::Detach { .. } => Some(
            "ATTACH, DETACH and VACUUM INTO are not allowed: an adapter works on the database that it opened, and on no other".to_owned(),
        ),
        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => Some(
            "BEGIN, COMMIT, ROLLBACK and SAVEPOINT are not allowed: the host opens and ends transactions, use execute or begin and commit"
                .to_owned(),
        ),
        AuthAction::Pragma { pragma_name, .. } if !PRAGMAS.iter().any(|allowed| pragma_name.eq_ignore_ascii_case(allowed)) => {
            Some(format!("PRAGMA {pragma_name} is not allowed; allowed are {}", PRAGMAS.join(", ")))
        }
        AuthAction::Function { function_name } if FUNCTIONS.iter().any(|refused| function_name.eq_ignore_ascii_case(refused)) => {
            Some(format!("the function {function_name} is not allowed: it reaches out of the database"))
        }
        AuthAction::CreateTempIndex { .. }
        | AuthAction::CreateTempTable { .. }
        | AuthAction::CreateTempTrigger { .. }
        | AuthAction::CreateTempView { .. } => Some(NO_TEMPORARY.to_owned()),
        // `CREATE TABLE temp.t` is temporary as well, though SQLite does not call it so here.
        AuthAction::CreateIndex { .. }
        | AuthAction::CreateTable { .. }
        | AuthAction::CreateTrigger { .. }
        | AuthAction::CreateView { .. }
        | AuthAction::CreateVtable { .. }
        | AuthAction::Insert { .. }
            if context.database_name.is_some_and(|name| name.eq_ignore_ascii_case("temp")) =>
        {
            Some(NO_TEMPORARY.to_owned())
        }
        // An action that this build of the host does not know cannot be judged.
        AuthAction::Unknown { code, .. } => Some(format!("the action {code} is not known to the host")),
        _ => None,
    }
}
