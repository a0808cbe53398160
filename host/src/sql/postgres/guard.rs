//! What a guest's statement may be: work on data and on the adapter's own tables, inside the transaction that the host has opened.
//!
//! Sessions are shared by the adapters that were granted the same database, and lent from one transaction to the next. Whatever would
//! outlive the transaction on its session (settings, locks of the session, temporary tables, prepared statements) is refused, because
//! putting it right afterwards would cost a round trip each time.
//!
//! It reads words. It keeps sessions clean of what a statement says, and is no boundary between adapters: those that share a database
//! share its role, and what that role may do, each of them may. Nor does it see what a statement runs inside of the server: a role that may create
//! functions (or finds one that runs a text) can hide anything in one. What an adapter can reach is for GRANT to say: a role of its own
//! (a database of its own in the configuration), with the rights it needs and no others.

mod words;

use super::fault::Fault;
use crate::sql::SqlErrorCode;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use words::{Word, Words};

/// First words of a statement.
const STATEMENTS: [&str; 14] =
    ["SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE", "EXPLAIN", "CREATE", "ALTER", "DROP", "COMMENT", "NOTIFY"];

/// What CREATE, ALTER and DROP may be about.
const OBJECTS: [&str; 9] = ["TABLE", "INDEX", "SEQUENCE", "TYPE", "DOMAIN", "FUNCTION", "TRIGGER", "VIEW", "SCHEMA"];

/// Words that may stand before them.
const ADJECTIVES: [&str; 6] = ["OR", "REPLACE", "UNIQUE", "UNLOGGED", "CONSTRAINT", "IF"];

/// Functions whose effect stays with the session, or that run statements out of a text; and the view that is written to by setting.
const NAMES: [&str; 15] = [
    "set_config",
    "pg_settings",
    "setseed",
    "pg_advisory_lock",
    "pg_advisory_lock_shared",
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
    "ts_stat",
    "ts_rewrite",
    "lo_open",
    "lo_import",
    "lo_export",
    // Of extensions that come with PostgreSQL.
    "connectby",
    "xpath_table",
    "set_limit",
];

/// How such names begin: schemas of temporary tables; functions of the extension `tablefunc`.
const BEGINNINGS: [&str; 3] = ["pg_temp", "pg_toast_temp", "crosstab"];

/// How such names end: functions that run a query, or read a table or a cursor, and return XML.
const ENDS: [&str; 2] = ["_to_xml", "_xmlschema"];

/// Before the first word.
const NONE: Word<'_> = Word { text: "", quoted: true };

const EXECUTE: &str = "EXECUTE is not allowed but for the function of a trigger: prepared statements belong to the host (a column of that name goes into \
                       double quotes)";

/// So many words tell what CREATE, ALTER or DROP is about.
const MOST_LOOKED_AT: usize = 8;

/// Statements that are remembered. An adapter has a few dozen.
const MOST_REMEMBERED: usize = 512;

/// Longer ones are read each time: what is remembered stays within eight megabytes.
const LONGEST_REMEMBERED: usize = 16 << 10;

/// Statements that were let through, with whether each [changes rows](changes_rows). A claim has hundreds of words, and they are the same
/// each time.
#[derive(Debug, Default)]
pub(super) struct Guard(Mutex<HashMap<Box<str>, bool>>);

impl Guard {
    /// Refuses a statement that is not allowed; whether it changes rows.
    ///
    /// # Errors
    /// As [`check`].
    pub(super) fn admit(&self, sql: &str) -> Result<bool, Fault> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(changes) = known().get(sql) {
            return Ok(*changes);
        }
        check(sql)?;
        let changes = changes_rows(sql);
        if sql.len() <= LONGEST_REMEMBERED {
            let mut known = known();
            if known.len() >= MOST_REMEMBERED {
                known.clear();
            }
            known.insert(sql.into(), changes);
        }
        Ok(changes)
    }
}

/// Refuses a statement that is not allowed.
///
/// # Errors
/// `denied`, with the reason; `syntax` for a text without a statement.
fn check(sql: &str) -> Result<(), Fault> {
    let denied = |reason: String| Err(Fault::harmless(SqlErrorCode::Denied, reason));
    let mut list: Vec<String> = Vec::new();
    let mut last = NONE;
    for word in Words::of(sql) {
        let word = match word {
            Ok(word) => word,
            Err(unclear) => return denied(unclear.to_owned()),
        };
        if is_hidden(word.text) {
            return denied(format!(
                "{} is not allowed: its effect would stay on a session that others share, or is hidden from the host",
                word.text
            ));
        }
        if word.is(&["TEMP", "TEMPORARY"]) && last.is(&["CREATE", "LOCAL", "GLOBAL", "REPLACE", "INTO"]) {
            return denied(
                "temporary tables are not allowed: they would stay on a session that others share (a table of that name goes into \
                 double quotes)"
                    .to_owned(),
            );
        }
        if last.is(&["EXECUTE"]) && !word.is(&["FUNCTION", "PROCEDURE"]) {
            return denied(EXECUTE.to_owned());
        }
        if list.len() < MOST_LOOKED_AT {
            list.push(if word.quoted { format!("\"{}\"", word.text) } else { word.text.to_ascii_uppercase() });
        }
        last = word;
    }
    if last.is(&["EXECUTE"]) {
        return denied(EXECUTE.to_owned());
    }
    let Some(first) = list.first() else { return Err(Fault::harmless(SqlErrorCode::Syntax, "there is no statement in it")) };
    if matches!(first.as_str(), "BEGIN" | "START" | "COMMIT" | "END" | "ROLLBACK" | "ABORT" | "SAVEPOINT" | "RELEASE" | "PREPARE") {
        return denied(format!("{first} is not allowed: the host opens and ends transactions, use execute or begin and commit"));
    }
    if !STATEMENTS.contains(&first.as_str()) {
        return denied(format!("{first} is not allowed; allowed are {}", STATEMENTS.join(", ")));
    }
    if matches!(first.as_str(), "CREATE" | "ALTER" | "DROP") {
        let object = list.iter().skip(1).find(|word| !ADJECTIVES.contains(&word.as_str()));
        if !object.is_some_and(|object| OBJECTS.contains(&object.as_str())) {
            let object = object.map_or("", String::as_str);
            return denied(format!("{first} {object} is not allowed; allowed are {}", OBJECTS.join(", ")));
        }
    }
    Ok(())
}

/// Whether a statement counts the rows that it changes, rather than those that it returns: by its own verb, which may stand behind
/// common tables.
fn changes_rows(sql: &str) -> bool {
    let mut words = Words::of(sql);
    let Some(Ok(first)) = words.next() else { return false };
    if !first.is(&["WITH"]) {
        return first.is(&["INSERT", "UPDATE", "DELETE", "MERGE"]);
    }
    // Only SELECT, VALUES and TABLE can be no names.
    let mut last = NONE;
    while let Some(Ok(word)) = words.next() {
        if words.depth > 0 {
            last = NONE;
            continue;
        }
        if word.is(&["SELECT", "VALUES", "TABLE"]) {
            return false;
        }
        let verb = (last.is(&["INSERT", "MERGE"]) && word.is(&["INTO"]))
            || (last.is(&["DELETE"]) && word.is(&["FROM"]))
            || (last.is(&["UPDATE"]) && !word.is(&["AS"]));
        if verb {
            return true;
        }
        last = word;
    }
    false
}

/// Whether a name stands for something that the host would not see, or that would stay.
fn is_hidden(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.contains(&name.as_str())
        || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
        || ENDS.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn work_on_data_and_own_tables_is_allowed() {
        for sql in [
            "SELECT 1",
            "  -- first\n (SELECT 1)",
            "/* a /* b */ */ WITH c AS (SELECT 1) UPDATE t SET a = 'BEGIN'",
            "insert into t values ('set_config')",
            "UPDATE t SET temp = 1, set_config_x = 2",
            "INSERT INTO \"temp\" (a) VALUES (1)",
            "INSERT INTO temperatures VALUES (1)",
            "WITH a AS (DELETE FROM t RETURNING id) INSERT INTO \"temp\" SELECT id FROM a",
            "CREATE TABLE IF NOT EXISTS t (id bigint)",
            "CREATE UNIQUE INDEX CONCURRENTLY i ON t (id)",
            "CREATE OR REPLACE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('c', ''); RETURN NULL; END $$",
            "CREATE TRIGGER r AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION f()",
            "CREATE TRIGGER r AFTER INSERT ON t execute procedure f()",
            "SELECT \"execute\", \"EXECUTE\" FROM t WHERE a LIKE E'\\\\'",
            "DROP TABLE IF EXISTS t",
            "SELECT pg_advisory_xact_lock(1)",
            "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN DELETE",
        ] {
            assert_eq!(check(sql), Ok(()), "{sql}");
        }
    }

    #[test]
    fn what_was_let_through_is_remembered_and_what_was_not_is_refused_again() {
        let guard = Guard::default();
        let remembered = || guard.0.lock().unwrap().len();
        for _ in 0..2 {
            assert_eq!((guard.admit("UPDATE t SET a = 1"), guard.admit("SELECT 1")), (Ok(true), Ok(false)));
            assert!(guard.admit("SET a = 1").is_err());
            assert_eq!(guard.admit(&format!("SELECT '{}'", "a".repeat(LONGEST_REMEMBERED))), Ok(false));
            assert_eq!(remembered(), 2);
        }
        for number in 0..MOST_REMEMBERED {
            assert_eq!(guard.admit(&format!("SELECT {number}, 1")), Ok(false));
        }
        assert!((1..=MOST_REMEMBERED).contains(&remembered()));
    }

    #[test]
    fn what_would_outlive_the_transaction_is_denied() {
        for (sql, part) in [
            ("BEGIN", "execute or begin and commit"),
            ("start transaction", "execute or begin and commit"),
            ("/* */ COMMIT", "execute or begin and commit"),
            ("SAVEPOINT s", "execute or begin and commit"),
            ("PREPARE TRANSACTION 'x'", "execute or begin and commit"),
            ("SET search_path = x", "SET is not allowed"),
            ("RESET ALL", "RESET is not allowed"),
            ("DISCARD ALL", "DISCARD"),
            ("LISTEN c", "LISTEN"),
            ("UNLISTEN *", "UNLISTEN"),
            ("COPY t TO STDOUT", "COPY"),
            ("DO $$ BEGIN END $$", "DO is"),
            ("CALL p()", "CALL"),
            ("LOAD 'x'", "LOAD"),
            ("LOCK TABLE t", "LOCK"),
            ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", "DECLARE"),
            ("EXECUTE s", "EXECUTE"),
            ("SELECT set_config('a.b', '1', false)", "set_config"),
            ("SELECT pg_catalog.\"set_config\"('a.b', '1', false)", "set_config"),
            ("WITH a AS (SELECT pg_advisory_lock(1)) SELECT 1", "pg_advisory_lock"),
            ("CREATE TEMP TABLE t (id int)", "temporary"),
            ("create local temporary table t (id int)", "temporary"),
            ("SELECT 1 AS a INTO TEMP t", "temporary"),
            ("SELECT a, b, c, d, e, f, g, h, i INTO TEMPORARY t FROM u", "temporary"),
            ("SELECT 1 AS insert INTO TEMP t", "temporary"),
            ("CREATE TABLE pg_temp.t (id int)", "pg_temp"),
            ("CREATE TABLE pg_temp_3.t (id int)", "pg_temp"),
            ("--\rCOMMIT /*\n SELECT 1 -- */", "execute or begin and commit"),
            ("UPDATE pg_catalog.pg_settings SET setting = 'x' WHERE name = 'a.b'", "pg_settings"),
            ("SELECT U&\"set\\005fconfig\"('a.b', '1', false)", "U&"),
            ("SELECT * FROM ts_stat('select ' || 'set_' || 'config(1)')", "ts_stat"),
            ("SELECT ts_rewrite('a'::tsquery, 'select ' || 'b')", "ts_rewrite"),
            ("SELECT query_to_xml_and_xmlschema('x', true, true, '')", "query_to_xml_and_xmlschema"),
            ("SELECT \"cursor_to_xml\"('c', 1, true, true, '')", "cursor_to_xml"),
            ("SELECT database_to_xmlschema(true, true, '')", "database_to_xmlschema"),
            ("SELECT * FROM crosstab3('x')", "crosstab3"),
            ("CREATE TABLE z AS EXECUTE x", "EXECUTE"),
            ("EXPLAIN ANALYZE EXECUTE x(1)", "EXECUTE"),
            ("EXPLAIN EXECUTE", "EXECUTE"),
            ("EXPLAIN EXECUTE \"function\"", "EXECUTE"),
            ("CREATE OR REPLACE TEMP VIEW v AS SELECT 1", "temporary"),
            ("ALTER SYSTEM SET x = 1", "ALTER SYSTEM"),
            ("CREATE ROLE r", "CREATE ROLE"),
            ("CREATE EXTENSION dblink", "CREATE EXTENSION"),
            ("DROP DATABASE d", "DROP DATABASE"),
        ] {
            let fault = check(sql).expect_err(sql);
            assert_eq!(fault.error.code, SqlErrorCode::Denied, "{sql}");
            assert!(fault.error.detail.contains(part), "{sql}: {}", fault.error.detail);
        }
        for sql in ["", " -- nothing", "/* /* */", ";"] {
            assert_eq!(check(sql).unwrap_err().error.code, SqlErrorCode::Syntax, "{sql:?}");
        }
    }

    #[test]
    fn the_verb_of_a_statement_is_found_behind_common_tables() {
        for sql in [
            "insert INTO t VALUES (1)",
            "UPDATE t SET a = (SELECT 1)",
            "WITH a AS (SELECT 1) UPDATE t SET a = 1",
            "WITH RECURSIVE a (b) AS MATERIALIZED (SELECT ')'), update AS (SELECT 2) INSERT INTO t SELECT 1",
            "WITH a AS (SELECT 1) DELETE FROM t",
            "WITH a AS (SELECT 1) MERGE INTO t USING a ON true WHEN MATCHED THEN DELETE",
        ] {
            assert!(changes_rows(sql), "{sql}");
        }
        for sql in [
            "SELECT 1",
            "(SELECT 1)",
            "WITH a AS (UPDATE t SET b = 1 RETURNING b) SELECT b FROM a",
            "WITH update AS (DELETE FROM t RETURNING b), insert (c) AS (VALUES (1)) TABLE update",
            "CREATE TABLE t AS SELECT 1",
            "",
        ] {
            assert!(!changes_rows(sql), "{sql}");
        }
    }

    proptest! {
        #[test]
        fn a_word_is_found_behind_any_texts(before in prop::collection::vec(prop::sample::select(vec!["'x'", "--y\n", "/*z*/", "$$q$$", "1", "E'\\''", "(", ","]), 0..8)) {
            let sql = format!("SELECT {} set_config(1)", before.join(" "));
            prop_assert!(check(&sql).is_err());
        }
    }
}
