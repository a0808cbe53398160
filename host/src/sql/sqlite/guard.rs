//! What a guest's SQL may do: work on its own database, inside the transaction that the host has opened for it.
//!
//! SQLite asks here for every action of a statement while it prepares it (and again when it prepares it anew after a change of
//! the schema). Connections are shared by the adapters that were granted the same database, so whatever would outlive the
//! transaction on the connection (attached files, settings, temporary tables) is refused as well.

use super::functions;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Pragmas that describe and change nothing. Also reached through their table-valued functions.
const PRAGMAS: [&str; 8] =
    ["data_version", "foreign_key_list", "index_info", "index_list", "index_xinfo", "table_info", "table_list", "table_xinfo"];

/// Table-valued modules that are there without being created, and read the whole file in one instruction.
const MODULES: [&str; 1] = ["dbstat"];

const NO_TEMPORARY: &str =
    "temporary tables, views, indexes and triggers are not allowed: they would stay on a connection that others share";

/// Their expressions are not judged when they are created, and what they do runs in the transactions of everybody who uses the
/// table, the service that owns it among them. So it takes somebody who asks for it: a trigger that is part of a storage's schema is
/// created when an operator, who can read it before, has that schema applied.
const NO_PROGRAMS: &str = "views, triggers and virtual tables are not allowed: an adapter creates tables and indexes; let the application's \
    migrations create it, or `outhaul schema --apply`, which may create triggers";

/// The expressions of a column that is added are not judged: not by SQLite when it adds it, and not when it computes it.
const NO_EXPRESSIONS: &str = "ALTER TABLE with parentheses is not allowed: it could add an expression; let the application's migrations do it, or \
     `outhaul schema --apply`";

/// The judge of one connection.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// An operator has a schema applied.
    applies_schema: bool,
    /// Set while the host runs statements of its own (BEGIN, COMMIT, ROLLBACK).
    host: AtomicBool,
    /// The guest's statement that is being prepared or run.
    text: Mutex<String>,
    /// Why the last statement was refused.
    refusal: Mutex<Option<String>>,
}

impl Guard {
    /// Of a connection.
    pub(super) fn new(applies_schema: bool) -> Self {
        Self { applies_schema, ..Self::default() }
    }

    /// Lets the host do what guests may not.
    pub(super) fn as_host<T>(&self, run: impl FnOnce() -> T) -> T {
        self.host.store(true, Ordering::Relaxed);
        let result = run();
        self.host.store(false, Ordering::Relaxed);
        result
    }

    /// A guest's statement comes next. It may be judged while it runs as well.
    pub(super) fn expect(&self, sql: &str) {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        text.clear();
        text.push_str(sql);
    }

    /// SQLite's question.
    pub(super) fn judge(&self, context: AuthContext<'_>) -> Authorization {
        if self.host.load(Ordering::Relaxed) {
            return Authorization::Allow;
        }
        let reason = refuse(context, self.applies_schema, &self.text.lock().unwrap_or_else(PoisonError::into_inner));
        match reason {
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
fn refuse(context: AuthContext<'_>, applies_schema: bool, sql: &str) -> Option<String> {
    match context.action {
        AuthAction::Attach { .. } | AuthAction::Detach { .. } => Some(
            "ATTACH, DETACH and VACUUM INTO are not allowed: an adapter works on the database that it opened, and on no other".to_owned(),
        ),
        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => Some(
            "BEGIN, COMMIT, ROLLBACK and SAVEPOINT are not allowed: the host opens and ends transactions, use execute or begin and commit"
                .to_owned(),
        ),
        // SQLite's own look at the rows that are there, for a column that is added with a constraint. It changes nothing.
        AuthAction::Pragma { pragma_name, .. } if applies_schema && pragma_name.eq_ignore_ascii_case("quick_check") => None,
        AuthAction::Pragma { pragma_name, .. } if !PRAGMAS.iter().any(|allowed| pragma_name.eq_ignore_ascii_case(allowed)) => {
            Some(format!("PRAGMA {pragma_name} is not allowed; allowed are {}", PRAGMAS.join(", ")))
        }
        // One that the statement does not call itself is part of the table's own schema (triggers, views, constraints), which is as
        // good as the application that made it, or of SQLite's own work for ALTER TABLE.
        AuthAction::Function { function_name } if !functions::is_allowed(function_name) && functions::calls(sql, function_name) => {
            Some(format!(
                "the function {function_name} is not allowed: it can run for longer, take more memory or reach further than the host can \
                 bound; do its work in the adapter"
            ))
        }
        AuthAction::Read { table_name, .. } if MODULES.iter().any(|module| table_name.eq_ignore_ascii_case(module)) => {
            Some(format!("the table {table_name} is not allowed: it reads the whole file at once"))
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
        AuthAction::CreateTrigger { .. } if applies_schema => None,
        AuthAction::CreateTrigger { .. } | AuthAction::CreateView { .. } | AuthAction::CreateVtable { .. } => Some(NO_PROGRAMS.to_owned()),
        AuthAction::AlterTable { .. } if !applies_schema && sql.contains('(') => Some(NO_EXPRESSIONS.to_owned()),
        // An action that this build of the host does not know cannot be judged.
        AuthAction::Unknown { code, .. } => Some(format!("the action {code} is not known to the host")),
        _ => None,
    }
}
