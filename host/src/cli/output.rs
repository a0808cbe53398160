//! Writing to stdout: texts, tables for people, one JSON document for programs.

use super::CommandResult;
use super::error::CommandError;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Width of a table where the output is no terminal and nobody has said: wide enough not to break ids.
const PIPED_WIDTH: u16 = 200;

/// Writes a text and a line break.
pub(crate) fn line(text: &str) -> CommandResult {
    writeln!(io::stdout().lock(), "{text}").map_err(CommandError::output)
}

/// Writes one JSON document and a line break.
pub(crate) fn json(document: &impl Serialize) -> CommandResult {
    let text = serde_json::to_string(document).map_err(CommandError::failure)?;
    line(&text)
}

/// Says something to the person at the terminal, on stderr.
pub(crate) fn note(text: &str) {
    // Where stderr is gone, nobody is there to read it.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes a table; cells have been [`cell`]s.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> CommandResult {
    line(&table_text(header, rows))
}

/// The text of a table, without a line break at its end.
pub(crate) fn table_text<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(width());
    table.set_header(header.map(str::to_uppercase));
    table.add_rows(rows);
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn width() -> u16 {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || io::stdout().is_terminal().then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
    columns.or_else(|| terminal().map(|size| size.ws_col)).filter(|width| *width >= 40).unwrap_or(PIPED_WIDTH)
}

/// A text from a row as one cell: one line, no control characters (a terminal would act on them), cut at `limit` characters.
pub(crate) fn cell(text: &str, limit: usize) -> String {
    let mut out: String = text.chars().take(limit).map(|character| if character.is_control() { ' ' } else { character }).collect();
    if text.chars().nth(limit).is_some() {
        out.push('…');
    }
    out
}

/// "1 message", "2 messages".
pub(crate) fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// How long ago a Unix time in milliseconds was, to a person; "-" where it is not known.
pub(crate) fn age(created_at: u64, now: std::time::SystemTime) -> String {
    let created = std::time::UNIX_EPOCH.checked_add(std::time::Duration::from_millis(created_at)).filter(|_| created_at > 0);
    created.map_or_else(|| "-".to_owned(), |created| span(now.duration_since(created).unwrap_or_default()))
}

/// A duration to a person: its two largest units.
pub(crate) fn span(duration: std::time::Duration) -> String {
    let whole = std::time::Duration::from_secs(duration.as_secs());
    humantime::format_duration(whole).to_string().split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_cell_is_one_harmless_line() {
        assert_eq!(cell("a\n\u{1b}[31mb", 100), "a  [31mb");
        assert_eq!(cell("ééé", 2), "éé…");
        assert_eq!(cell("éé", 2), "éé");
    }

    #[test]
    fn ages_are_short() {
        let now = UNIX_EPOCH + Duration::from_secs(100_000);
        assert_eq!(age(0, now), "-");
        assert_eq!(age(10_000_000, now), "1day 1h");
        assert_eq!(age(u64::MAX, now), "0s");
        assert_eq!(age(99_999_000, now), "1s");
    }
}
