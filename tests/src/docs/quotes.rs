//! Texts that a page quotes without a command that brings them about: each must be one that the program has.

use crate::places;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// Where the texts are.
const SOURCES: [&str; 4] = ["host/src", "plugins", "sdk", "xtask/src"];

/// A quote whose longest part is shorter than this says nothing.
const SHORTEST: usize = 10;

/// What is quoted, and the sources in which it must be.
pub struct Sources(String);

impl Sources {
    /// Reads them all.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn read() -> Result<Self> {
        let mut texts = String::new();
        for folder in SOURCES {
            gather(&places::checkout().join(folder), &mut texts)?;
        }
        Ok(Self(unwritten(&texts)))
    }

    /// Looks for each line: for every part of it between `...`.
    ///
    /// # Errors
    /// If one is not there.
    pub fn check(&self, quotes: &str) -> Result<()> {
        for quote in quotes.lines().filter(|line| !line.trim().is_empty()) {
            let parts = quote.split("...").map(str::trim);
            if parts.clone().all(|part| part.len() < SHORTEST) {
                bail!("{quote:?} is too little to look for");
            }
            if let Some(part) = parts.clone().find(|part| !self.0.contains(part)) {
                bail!("no source has {part:?}, of the quote {quote:?}");
            }
        }
        Ok(())
    }
}

fn gather(folder: &Path, texts: &mut String) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            gather(&path, texts)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            // What tests expect is not what the program says.
            texts.push_str(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
        }
    }
    Ok(())
}

/// Texts of Rust as they are printed: without the line breaks and the escapes of the source.
fn unwritten(source: &str) -> String {
    let mut out = String::new();
    let mut lines = source.split("\\\n");
    out.extend(lines.next());
    for line in lines {
        out.push_str(line.trim_start());
    }
    out.replace("\\\"", "\"").replace("{{", "{").replace("}}", "}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_looked_for_part_by_part() {
        let sources = Sources(unwritten("error(\"{x} is not granted: add \\\n     \\\"{y}\\\" to {{z}}\")"));
        sources.check("a is not granted: add ...\n").unwrap_err();
        sources.check("... is not granted: add \"...\" to {z}\n\n... is not granted").unwrap();
        assert!(sources.check("... is granted: add ...").unwrap_err().to_string().contains("is granted: add"));
        assert!(sources.check("... to ...").unwrap_err().to_string().contains("too little"));
    }
}
