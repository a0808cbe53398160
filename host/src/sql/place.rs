//! Where in a list of statements something went wrong.

/// So much of a statement is shown in an error, in characters.
const SHOWN: usize = 120;

/// `statement 2 of 3 (UPDATE outbox SET …): `
pub(super) fn place(index: usize, of: usize, sql: &str) -> String {
    let mut shown: String = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((cut, _)) = shown.char_indices().nth(SHOWN) {
        shown.truncate(cut);
        shown.push('…');
    }
    format!("statement {} of {of} ({shown}): ", index + 1)
}
