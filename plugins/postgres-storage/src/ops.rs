//! Operators and types by their full names. Postgres looks plain ones up along the search path, where another schema may have some of the
//! same name; what is written here is always the server's own. (Beside these: no `IN`, `BETWEEN`, `LIKE`, `CASE x WHEN` or
//! `IS DISTINCT FROM`, which look an operator up as well. Arithmetic goes into parentheses: all of these bind alike.)

pub(crate) const EQ: &str = "OPERATOR(pg_catalog.=)";
pub(crate) const NE: &str = "OPERATOR(pg_catalog.<>)";
pub(crate) const LE: &str = "OPERATOR(pg_catalog.<=)";
pub(crate) const GE: &str = "OPERATOR(pg_catalog.>=)";
pub(crate) const LT: &str = "OPERATOR(pg_catalog.<)";
pub(crate) const GT: &str = "OPERATOR(pg_catalog.>)";
pub(crate) const PLUS: &str = "OPERATOR(pg_catalog.+)";
pub(crate) const MINUS: &str = "OPERATOR(pg_catalog.-)";
pub(crate) const TIMES: &str = "OPERATOR(pg_catalog.*)";
pub(crate) const CONCAT: &str = "OPERATOR(pg_catalog.||)";

/// As text.
pub(crate) fn text(expression: &str) -> String {
    format!("CAST({expression} AS pg_catalog.text)")
}

/// Text as a literal, whatever `standard_conforming_strings` says.
pub(crate) fn literal(text: &str) -> String {
    let escaped = text.contains('\\');
    let text = text.replace('\'', "''").replace('\\', "\\\\");
    format!("{}'{text}'", if escaped { "E" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_means_the_same_with_and_without_standard_strings() {
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal(r"a\'b"), r"E'a\\''b'");
    }
}
