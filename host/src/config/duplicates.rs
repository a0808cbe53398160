//! Keys and tables that are written twice. The parser says only that there is one; this finds its path and where it was first.

use super::problem::{Report, breaks, line_of};
use std::ops::Range;

/// What the parser says of them.
pub(super) const MESSAGE: &str = "duplicate key";

/// Reports each; `spans` are those of the second key. A table that is there twice is one problem, and not one more for each of its
/// keys.
pub(super) fn report(text: &str, spans: impl Iterator<Item = Range<usize>>, report: &Report) {
    let breaks = breaks(text);
    let mut repeated_headers = Vec::new();
    for span in spans {
        let (Some(line), Some(word)) = (line_of(&breaks, span.start).checked_sub(1), text.get(span.clone())) else { continue };
        let before = || text.lines().take(line).enumerate();
        let header = header(text.lines().nth(line).unwrap_or_default());
        if let Some(header) = header {
            repeated_headers.push(line);
            let first = before().find(|(_, other)| self::header(other) == Some(header));
            let what = first.map_or_else(
                || "is there already, in another form".to_owned(),
                |(first, _)| format!("this table is there already, in line {}: put its keys there", first.saturating_add(1)),
            );
            report.add(span.start, header.trim_matches(['[', ']']), what);
            continue;
        }
        let table = before().filter_map(|(index, other)| Some((index, self::header(other)?))).last();
        if table.is_some_and(|(index, _)| repeated_headers.contains(&index)) {
            continue;
        }
        let start = table.map_or(0, |(index, _)| index);
        let first = before().skip(start).find(|(_, other)| assigns(other, word));
        let what = first.map_or_else(
            || "is written twice: leave one out".to_owned(),
            |(first, _)| format!("is written twice, first in line {}: leave one out", first.saturating_add(1)),
        );
        report.add(span.start, path(text, table, word), what);
    }
}

/// `[table]` or `[[table]]`, if a line is the head of one.
fn header(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or(line).trim();
    let name = line.strip_prefix('[')?.strip_suffix(']')?;
    // An item of a list over several lines looks similar, but has quotes at its start, or commas.
    (!name.is_empty() && !name.starts_with(['"', '\'']) && !name.contains(',')).then_some(line)
}

fn assigns(line: &str, key: &str) -> bool {
    line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
}

fn path(text: &str, table: Option<(usize, &str)>, key: &str) -> String {
    let Some((line, header)) = table else { return key.to_owned() };
    let name = header.trim_matches(['[', ']']);
    if header.starts_with("[[") {
        let index = text.lines().take(line).filter(|other| self::header(other) == Some(header)).count();
        return format!("{name}[{index}].{key}");
    }
    format!("{name}.{key}")
}
