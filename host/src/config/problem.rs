//! What is wrong with a configuration: every problem with its line and key, in the order of the file.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, from 1.
    pub line: usize,
    /// Path of the key, as in `relays[0].lease`; empty: the file as a whole.
    pub key: String,
    /// What is wrong, and what to do.
    pub text: String,
    /// The keys that there are, where an unknown one was met.
    pub known: Vec<&'static str>,
}

/// Everything that is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    /// The file.
    pub file: PathBuf,
    /// At least one, in the order of the file.
    pub list: Vec<Problem>,
}

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, file) = (self.list.len(), self.file.display());
        write!(formatter, "{file} has {count} {}:", if count == 1 { "problem" } else { "problems" })?;
        for Problem { line, key, text, .. } in &self.list {
            write!(formatter, "\n  {file}:{line}: ")?;
            if !key.is_empty() {
                write!(formatter, "{key}: ")?;
            }
            formatter.write_str(text)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Collects problems while a file is read.
pub(super) struct Report {
    breaks: Vec<usize>,
    found: RefCell<Vec<(usize, Problem)>>,
}

impl Report {
    pub(super) fn new(text: &str) -> Self {
        Self { breaks: breaks(text), found: RefCell::default() }
    }

    /// Notes a problem at a byte of the text.
    pub(super) fn add(&self, at: usize, key: impl Into<String>, text: impl Into<String>) {
        self.add_known(at, key, text, Vec::new());
    }

    /// The same for an unknown key.
    pub(super) fn add_known(&self, at: usize, key: impl Into<String>, text: impl Into<String>, known: Vec<&'static str>) {
        let line = line_of(&self.breaks, at);
        self.found.borrow_mut().push((at, Problem { line, key: key.into(), text: text.into(), known }));
    }

    /// All of them; none is fine.
    pub(super) fn finish(&self, file: &Path) -> Result<(), Problems> {
        let mut found = self.found.take();
        found.sort_by_key(|(at, _)| *at);
        if found.is_empty() {
            return Ok(());
        }
        Err(Problems { file: file.to_owned(), list: found.into_iter().map(|(_, problem)| problem).collect() })
    }
}

/// Bytes at which the lines of a text end.
pub(super) fn breaks(text: &str) -> Vec<usize> {
    text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect()
}

/// The line, from 1, of a byte in a text whose lines end there.
pub(super) fn line_of(breaks: &[usize], at: usize) -> usize {
    1 + breaks.partition_point(|end| *end < at)
}

/// "a, b, c", or "none" where there is nothing.
pub(super) fn listed<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// " (did you mean `x`?)", where one of the names is close to what was written; empty otherwise.
pub(super) fn suggestion<S: AsRef<str>>(written: &str, names: impl IntoIterator<Item = S>) -> String {
    let near =
        names.into_iter().map(|name| (strsim::damerau_levenshtein(written, name.as_ref()), name)).min_by_key(|(distance, _)| *distance);
    match near {
        // A third of the letters wrong is a slip; more is another word.
        Some((distance, name)) if distance <= written.chars().count().max(3) / 3 => format!(" (did you mean `{}`?)", name.as_ref()),
        _ => String::new(),
    }
}
