//! Which SQL functions a guest may call, and whether the text of its statement calls one.
//!
//! SQLite looks at the deadline between instructions of its virtual machine, never inside one, and a function is one instruction.
//! So what takes a time of n x m (`instr`, `replace`, the `trim` family, LIKE and GLOB) or makes large values from small ones
//! (`zeroblob`, `randomblob`, `printf`) would hold the write lock past every limit.

/// What guests may call: all of it takes time in proportion to its arguments, and returns at most a small multiple of them.
const ALLOWED: [&str; 67] = [
    "->",
    "->>",
    "abs",
    "avg",
    "changes",
    "coalesce",
    "count",
    "cume_dist",
    "current_date",
    "current_time",
    "current_timestamp",
    "date",
    "datetime",
    "dense_rank",
    "first_value",
    "group_concat",
    "hex",
    "if",
    "ifnull",
    "iif",
    "json",
    "json_array",
    "json_array_length",
    "json_extract",
    "json_group_array",
    "json_group_object",
    "json_insert",
    "json_object",
    "json_quote",
    "json_remove",
    "json_set",
    "json_type",
    "json_valid",
    "julianday",
    "lag",
    "last_insert_rowid",
    "last_value",
    "lead",
    "length",
    "likelihood",
    "likely",
    "lower",
    "max",
    "min",
    "nth_value",
    "ntile",
    "nullif",
    "octet_length",
    "percent_rank",
    "quote",
    "random",
    "rank",
    "round",
    "row_number",
    "sign",
    "strftime",
    "string_agg",
    "substr",
    "substring",
    "sum",
    "time",
    "total",
    "typeof",
    "unicode",
    "unixepoch",
    "unlikely",
    "upper",
];

/// Functions that an operator calls.
const OPERATORS: [&str; 4] = ["glob", "like", "match", "regexp"];

/// Whether a guest may call it.
pub(super) fn is_allowed(function: &str) -> bool {
    ALLOWED.iter().any(|allowed| function.eq_ignore_ascii_case(allowed))
}

/// Whether the text calls the function, as `name (...)` or by its operator. SQLite tells a guest's call and one in a trigger, a
/// view or a CHECK constraint of the table's owner apart by nothing that a guest could not make up (the name that it gives as the
/// place is a trigger's, or that of any WITH clause). A call of the guest's is in its text, where names have no escapes.
///
/// Text in quotes and comments is not left out: a call too many is found there, never one too few.
pub(super) fn calls(sql: &str, function: &str) -> bool {
    let (sql, function) = (sql.to_ascii_lowercase(), function.to_ascii_lowercase());
    let is_operator = OPERATORS.contains(&function.as_str());
    sql.match_indices(&function).any(|(start, found)| {
        let before = sql.get(..start).unwrap_or_default();
        let after = sql.get(start + found.len()..).unwrap_or_default();
        // A digit may belong to a parameter: `?1LIKE?2`.
        let is_whole = !before.ends_with(|last: char| is_of_name(last) && !last.is_ascii_digit()) && !after.starts_with(is_of_name);
        is_whole && (is_operator || opens_parenthesis(after))
    })
}

/// What SQLite takes for a part of a name.
fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == '$' || (!character.is_ascii() && !is_blank(character))
}

/// SQLite takes a byte order mark for a blank.
fn is_blank(character: char) -> bool {
    character.is_whitespace() || character == '\u{FEFF}'
}

/// Whether the first thing after a name, past its closing quote, blanks and comments, is a parenthesis.
fn opens_parenthesis(after: &str) -> bool {
    let mut rest = after.strip_prefix(['"', ']', '`', '\'']).unwrap_or(after);
    loop {
        rest = rest.trim_start_matches(is_blank);
        let comment = if rest.starts_with("--") {
            rest.split_once('\n')
        } else if rest.starts_with("/*") {
            rest.get(2..).and_then(|inside| inside.split_once("*/"))
        } else {
            return rest.starts_with('(');
        };
        match comment {
            Some((_, behind)) => rest = behind,
            // It goes on to the end of the text.
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_found_however_it_is_written() {
        for sql in [
            "SELECT replace(a, b, c)",
            "SELECT RePlAcE (a, b, c)",
            "SELECT \"replace\"(a, b, c)",
            "SELECT [replace] (a, b, c)",
            "SELECT `replace`\n\t(a, b, c)",
            "SELECT replace/* why (not */ -- here\n (a, b, c)",
            "SELECT replace/**/--\n/* */(a, b, c)",
            "SELECT replace\u{FEFF}(a, b, c)",
            "SELECT 1+replace(a, b, c)",
            "REPLACE INTO t VALUES (replace(a, b, c))",
            "WITH r AS (SELECT 1) SELECT é.x,replace(a, b, c) FROM r",
        ] {
            assert!(calls(sql, "replace"), "{sql}");
        }
        for sql in ["SELECT a LIKE b", "SELECT a NOT like/**/b", "SELECT like(a, b)", "SELECT(a)LIKE(b)", "SELECT ?1LIKE?2"] {
            assert!(calls(sql, "like"), "{sql}");
        }
    }

    #[test]
    fn other_uses_of_the_word_are_no_calls() {
        for sql in [
            "REPLACE INTO t (v) VALUES (?1)",
            "INSERT OR REPLACE INTO t (v) VALUES (?1)",
            "SELECT replaced(a), my_replace(b), repla.ce(c)",
            "SELECT éreplace(a), replaceé(a), replace$(a)",
            "SELECT replace /* (",
            "",
        ] {
            assert!(!calls(sql, "replace"), "{sql}");
        }
        assert!(!calls("SELECT likes FROM t", "like"));
        assert!(!calls("ALTER TABLE a RENAME TO b", "sqlite_rename_table"));
    }

    #[test]
    fn names_are_compared_whole_and_in_any_case() {
        assert!(is_allowed("IfNull") && is_allowed("json_extract"));
        for refused in [
            "instr",
            "replace",
            "trim",
            "ltrim",
            "rtrim",
            "like",
            "glob",
            "zeroblob",
            "randomblob",
            "printf",
            "format",
            "unhex",
            "json_patch",
            "load_extension",
            "",
        ] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }
}
