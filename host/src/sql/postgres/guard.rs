//! What a guest's statement may be: work on data and on the adapter's own tables, inside the transaction that the host has opened.
//!
//! Sessions are shared by the adapters that were granted the same database, and lent from one transaction to the next. Whatever would
//! outlive the transaction on its session (settings, locks of the session, temporary tables, prepared statements) is refused, because
//! putting it right afterwards would cost a round trip each time. The rights of an adapter are those of its role in the
//! database: this guard keeps sessions clean, and does not stand in for GRANT.

use super::fault::Fault;
use crate::sql::SqlErrorCode;

/// First words of a statement.
const STATEMENTS: [&str; 14] =
    ["SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE", "EXPLAIN", "CREATE", "ALTER", "DROP", "COMMENT", "NOTIFY"];

/// What CREATE, ALTER and DROP may be about.
const OBJECTS: [&str; 9] = ["TABLE", "INDEX", "SEQUENCE", "TYPE", "DOMAIN", "FUNCTION", "TRIGGER", "VIEW", "SCHEMA"];

/// Words that may stand before them.
const ADJECTIVES: [&str; 6] = ["OR", "REPLACE", "UNIQUE", "UNLOGGED", "CONSTRAINT", "IF"];

/// Functions whose effect stays with the session, or that run statements out of a text; and the schema of temporary tables.
const NAMES: [&str; 12] = [
    "set_config",
    "pg_temp",
    "pg_advisory_lock",
    "pg_advisory_lock_shared",
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
    "query_to_xml",
    "query_to_xmlschema",
    "query_to_xml_and_xmlschema",
    "lo_open",
    "lo_import",
    "lo_export",
];

/// So many words tell what CREATE, ALTER or DROP is about.
const MOST_LOOKED_AT: usize = 8;

/// Refuses a statement that is not allowed.
///
/// # Errors
/// `denied`, with the reason; `syntax` for a text without a statement.
pub(super) fn check(sql: &str) -> Result<(), Fault> {
    let denied = |reason: String| Err(Fault::harmless(SqlErrorCode::Denied, reason));
    let mut list: Vec<String> = Vec::new();
    let (mut last_but_one, mut last) = ("", "");
    for word in Words::of(sql) {
        if let Some(name) = NAMES.iter().find(|name| word.eq_ignore_ascii_case(name)) {
            return denied(format!(
                "{name} is not allowed: its effect would stay on a session that others share, or is hidden from the host"
            ));
        }
        if is_one_of(word, &["TEMP", "TEMPORARY"]) && makes_a_table(last_but_one, last) {
            return denied("temporary tables are not allowed: they would stay on a session that others share".to_owned());
        }
        if list.len() < MOST_LOOKED_AT {
            list.push(word.to_ascii_uppercase());
        }
        (last_but_one, last) = (last, word);
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
pub(super) fn changes_rows(sql: &str) -> bool {
    let mut words = Words::of(sql);
    let Some(first) = words.next() else { return false };
    if !is_one_of(first, &["WITH"]) {
        return is_one_of(first, &["INSERT", "UPDATE", "DELETE", "MERGE"]);
    }
    // Only SELECT, VALUES and TABLE can be no names.
    let mut last = "";
    while let Some(word) = words.next() {
        if words.depth > 0 {
            last = "";
            continue;
        }
        if is_one_of(word, &["SELECT", "VALUES", "TABLE"]) {
            return false;
        }
        let verb = (is_one_of(last, &["INSERT", "MERGE"]) && is_one_of(word, &["INTO"]))
            || (is_one_of(last, &["DELETE"]) && is_one_of(word, &["FROM"]))
            || (is_one_of(last, &["UPDATE"]) && !is_one_of(word, &["AS"]));
        if verb {
            return true;
        }
        last = word;
    }
    false
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Whether a word that comes next says what kind of table is made: `CREATE TEMP`, `SELECT ... INTO TEMP`, but not `INSERT INTO temp`.
fn makes_a_table(last_but_one: &str, last: &str) -> bool {
    is_one_of(last, &["CREATE", "LOCAL", "GLOBAL", "REPLACE"])
        || (is_one_of(last, &["INTO"]) && !is_one_of(last_but_one, &["INSERT", "MERGE"]))
}

/// The words of a statement: names (quoted or not) and keywords. Not what stands in texts and comments.
struct Words<'a> {
    rest: &'a str,
    /// Parentheses that are open.
    depth: usize,
}

impl<'a> Words<'a> {
    fn of(sql: &'a str) -> Self {
        Self { rest: sql, depth: 0 }
    }

    /// Skips to behind the next `end`, and returns what was skipped, without it.
    fn until(&mut self, end: &str) -> &'a str {
        match self.rest.split_once(end) {
            Some((skipped, rest)) => {
                self.rest = rest;
                skipped
            }
            None => std::mem::take(&mut self.rest),
        }
    }

    /// Skips the rest of a comment that has begun. They nest.
    fn comment(&mut self) {
        let mut depth = 1;
        while depth > 0 && !self.rest.is_empty() {
            if let Some(rest) = self.rest.strip_prefix("/*") {
                (self.rest, depth) = (rest, depth + 1);
            } else if let Some(rest) = self.rest.strip_prefix("*/") {
                (self.rest, depth) = (rest, depth - 1);
            } else {
                let mut characters = self.rest.chars();
                characters.next();
                self.rest = characters.as_str();
            }
        }
    }

    /// Skips the rest of a text that has begun with a quote; with `escapes`, a backslash takes the next character.
    fn text(&mut self, escapes: bool) {
        let mut characters = self.rest.chars();
        while let Some(character) = characters.next() {
            match character {
                '\\' if escapes => drop(characters.next()),
                // Two quotes in a row are one inside of the text; read as two texts they are skipped as well.
                '\'' => break,
                _ => {}
            }
        }
        self.rest = characters.as_str();
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            self.rest = self.rest.trim_start();
            let first = self.rest.chars().next()?;
            let after = self.rest.get(first.len_utf8()..).unwrap_or_default();
            if let Some(rest) = self.rest.strip_prefix("--") {
                self.rest = rest;
                self.until("\n");
            } else if let Some(rest) = self.rest.strip_prefix("/*") {
                self.rest = rest;
                self.comment();
            } else if first == '\'' {
                self.rest = after;
                self.text(false);
            } else if first == '"' {
                self.rest = after;
                return Some(self.until("\""));
            } else if first == '$' {
                // `$tag$ ... $tag$`, or a parameter.
                let end = after.find(|character: char| !(character.is_alphanumeric() || character == '_')).unwrap_or(after.len());
                let (tag, rest) = after.split_at(end);
                self.rest = rest;
                if let Some(rest) = rest.strip_prefix('$')
                    && !tag.starts_with(|character: char| character.is_ascii_digit())
                {
                    self.rest = rest;
                    self.until(&format!("${tag}$"));
                }
            } else if first.is_alphabetic() || first == '_' {
                let end = self.rest.find(|character: char| !(character.is_alphanumeric() || matches!(character, '_' | '$')));
                let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                self.rest = rest;
                if word.eq_ignore_ascii_case("e")
                    && let Some(rest) = rest.strip_prefix('\'')
                {
                    self.rest = rest;
                    self.text(true);
                    continue;
                }
                return Some(word);
            } else {
                match first {
                    '(' => self.depth += 1,
                    ')' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
                self.rest = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(sql: &str) -> Vec<&str> {
        Words::of(sql).collect()
    }

    #[test]
    fn texts_and_comments_are_no_words() {
        assert_eq!(
            words("SELECT 'a ''set_config'' b', $1, $$x y$$, $t$ $$ z $t$, \"Na me\" -- c\n/* d /* e */ f */ g"),
            ["SELECT", "Na me", "g"]
        );
        assert_eq!(words(r"SELECT E'a\'b', e'c\\' d"), ["SELECT", "d"]);
        assert_eq!(words("a$b $1c $"), ["a$b"]);
        assert_eq!(words("'open"), Vec::<&str>::new());
    }

    #[test]
    fn work_on_data_and_own_tables_is_allowed() {
        for sql in [
            "SELECT 1",
            "  -- first\n (SELECT 1)",
            "/* a /* b */ */ WITH c AS (SELECT 1) UPDATE t SET a = 'BEGIN'",
            "insert into t values ('set_config')",
            "UPDATE t SET temp = 1, set_config_x = 2",
            "INSERT INTO temp (a) VALUES (1)",
            "INSERT INTO temperatures VALUES (1)",
            "WITH a AS (DELETE FROM t RETURNING id) INSERT INTO temp SELECT id FROM a",
            "CREATE TABLE IF NOT EXISTS t (id bigint)",
            "CREATE UNIQUE INDEX CONCURRENTLY i ON t (id)",
            "CREATE OR REPLACE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('c', ''); RETURN NULL; END $$",
            "CREATE TRIGGER r AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION f()",
            "DROP TABLE IF EXISTS t",
            "SELECT pg_advisory_xact_lock(1)",
            "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN DELETE",
        ] {
            assert_eq!(check(sql), Ok(()), "{sql}");
        }
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
            ("CREATE TABLE pg_temp.t (id int)", "pg_temp"),
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
        fn any_text_is_read_to_its_end(sql in "[ -~é\\n$'\"]{0,80}") {
            let _ = (check(&sql), changes_rows(&sql));
        }

        #[test]
        fn a_word_is_found_behind_any_texts(before in prop::collection::vec(prop::sample::select(vec!["'x'", "--y\n", "/*z*/", "$$q$$", "1", "E'\\''", "(", ","]), 0..8)) {
            let sql = format!("SELECT {} set_config(1)", before.join(" "));
            prop_assert!(check(&sql).is_err());
        }
    }
}
