//! Commands and their output, as a block shows them, and whether what came is what is shown.

use anyhow::{Result, bail};

/// Anything: a part of a line, or, as a line of its own, any number of lines.
const ANYTHING: &str = "...";

/// What is typed to end what runs in a terminal.
pub const INTERRUPT: &str = "^C";

/// A command and what it prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where the command is in its block, counted from 0.
    pub line: usize,
    /// Without the prompt; several lines where it goes on.
    pub command: String,
    /// What is shown below it.
    pub shown: Vec<String>,
}

/// Reads a block: what is shown above the first command, then the commands.
///
/// # Errors
/// If a line goes on with a command that is not there.
pub fn steps(text: &str) -> Result<(Vec<String>, Vec<Step>)> {
    let mut above = Vec::new();
    let mut steps: Vec<Step> = Vec::new();
    for (line, text) in text.lines().enumerate() {
        if let Some(command) = text.strip_prefix("$ ") {
            steps.push(Step { line, command: command.to_owned(), shown: Vec::new() });
            continue;
        }
        match steps.last_mut() {
            None => above.push(text.to_owned()),
            Some(step) if step.shown.is_empty() && step.command.ends_with('\\') => step.go_on(text),
            Some(step) => match text.strip_prefix("> ") {
                Some(more) if step.shown.is_empty() => step.go_on(more),
                Some(more) => bail!("`> {more}` goes on with a command, but is below what one prints"),
                None => step.shown.push(text.to_owned()),
            },
        }
    }
    Ok((above, steps))
}

impl Step {
    fn go_on(&mut self, line: &str) {
        self.command.push('\n');
        self.command.push_str(line);
    }
}

/// Whether all that came is what is shown.
#[must_use]
pub fn is_as_shown(shown: &[String], came: &[String]) -> bool {
    let Some((first, rest)) = shown.split_first() else { return came.is_empty() };
    if first.trim() == ANYTHING {
        return (0..=came.len()).any(|skipped| is_as_shown(rest, &came[skipped..]));
    }
    came.split_first().is_some_and(|(line, others)| is_line_as_shown(first, line) && is_as_shown(rest, others))
}

/// Whether what came so far begins with what is shown: how many lines of it that is, or none.
#[must_use]
pub fn begins_as_shown(shown: &[String], came: &[String]) -> Option<usize> {
    (0..=came.len()).find(|count| is_as_shown(shown, &came[..*count]))
}

/// Blanks at the end of a line count on neither side.
fn is_line_as_shown(shown: &str, came: &str) -> bool {
    let (shown, mut came) = (shown.trim_end(), came.trim_end());
    let mut parts = shown.split(ANYTHING);
    let Some(rest) = parts.next().and_then(|first| came.strip_prefix(first)) else { return false };
    came = rest;
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return came.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return came.ends_with(part);
        }
        let Some(at) = came.find(part) else { return false };
        came = &came[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_block_is_read() {
        let (above, read) = steps("before\n$ a \\\n  b\none\n\ntwo\n$ cat <<E\n> x\n> E\n$ c\n").unwrap();
        assert_eq!(above, ["before"]);
        let read: Vec<_> = read.iter().map(|step| (step.line, step.command.as_str(), step.shown.join("|"))).collect();
        assert_eq!(read, [(1, "a \\\n  b", "one||two".to_owned()), (6, "cat <<E\nx\nE", String::new()), (9, "c", String::new())]);
        assert!(steps("$ a\nb\n> c\n").is_err());
    }

    #[test]
    fn what_came_is_compared_line_by_line() {
        for (shown, came, same) in [
            ("a\nb", "a\nb", true),
            ("a\nb", "a", false),
            ("a", "a\nb", false),
            ("", "", true),
            ("", "a", false),
            ("a  ", "a", true),
            (" a", "a", false),
            ("...", "", true),
            ("...\nb", "a\na\nb", true),
            ("a\n...\nb\n...", "a\nb", true),
            ("a\n...\nb", "a\nb\nc", false),
            ("a ... c", "a b c", true),
            ("a ... c", "a b d", false),
            ("...c", "c", true),
            ("a...b...c", "axxbxc", true),
            ("a...b...c", "axxcxb", false),
            ("1...", "12", true),
            ("2...", "12", false),
        ] {
            assert_eq!(is_as_shown(&lines(shown), &lines(came)), same, "{shown:?} {came:?}");
        }
    }

    #[test]
    fn a_beginning_is_enough_for_what_goes_on() {
        assert_eq!(begins_as_shown(&lines("a\n...\nc"), &lines("a\nb\nc\nd")), Some(3));
        assert_eq!(begins_as_shown(&lines("a\n...\nc"), &lines("a\nb")), None);
        assert_eq!(begins_as_shown(&[], &lines("a")), Some(0));
    }
}
