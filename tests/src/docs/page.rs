//! A page in Markdown, taken apart into what is run or looked up.

use crate::places;
use anyhow::{Context, Result, bail};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A page.
#[derive(Debug)]
pub struct Page {
    /// From the root of the checkout.
    pub path: PathBuf,
    /// Fenced blocks, in their order.
    pub blocks: Vec<Block>,
    /// Links and images, in their order.
    pub links: Vec<Link>,
    /// What a link to a place on this page may name.
    pub anchors: BTreeSet<String>,
}

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Of its fence, counted from 1.
    pub line: usize,
    /// The first word behind the fence.
    pub language: String,
    /// `name=value` and `name` behind it.
    pub marks: BTreeMap<String, String>,
    /// What is between the fences.
    pub text: String,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Counted from 1.
    pub line: usize,
    /// As it is written.
    pub target: String,
}

impl Page {
    /// Reads a page of the checkout.
    ///
    /// # Errors
    /// If it cannot be read, or a block is marked in a way that nobody understands.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = fs::read_to_string(places::checkout().join(path)).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(path, &text).with_context(|| format!("in {}", path.display()))
    }

    /// Takes a page apart.
    ///
    /// # Errors
    /// If a block is marked in a way that nobody understands.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let mut page = Self { path: path.to_owned(), blocks: Vec::new(), links: Vec::new(), anchors: BTreeSet::new() };
        let line = |offset: usize| text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
        let (mut block, mut heading): (Option<Block>, Option<String>) = (None, None);
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    let line = line(range.start);
                    let (language, marks) = marks(&info).with_context(|| format!("line {line}"))?;
                    block = Some(Block { line, language, marks, text: String::new() });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    if let Some(heading) = heading.take() {
                        page.add_anchor(&heading);
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(Link { line: line(range.start), target: dest_url.into_string() });
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(block) = &mut block {
                        block.text.push_str(&text);
                    } else if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        Ok(page)
    }

    /// As GitHub makes it: small letters, without punctuation, hyphens for blanks, and numbers for those that come again.
    fn add_anchor(&mut self, heading: &str) {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = [anchor.clone()].into_iter().chain(numbered).find(|anchor| !self.anchors.contains(anchor));
        self.anchors.extend(free);
    }
}

impl Block {
    /// Whether it has a mark.
    #[must_use]
    pub fn is(&self, mark: &str) -> bool {
        self.marks.contains_key(mark)
    }
}

/// What marks there are; any other is a slip.
const MARKS: [&str; 5] = ["file", "not-run", "parse-only", "quoted", "terminal"];

fn marks(info: &str) -> Result<(String, BTreeMap<String, String>)> {
    let (language, mut rest) = info.split_once(' ').unwrap_or((info, ""));
    let mut marks = BTreeMap::new();
    while !rest.trim_start().is_empty() {
        rest = rest.trim_start();
        let end = rest.find(['=', ' ']).unwrap_or(rest.len());
        let (name, tail) = rest.split_at(end);
        let (value, tail) = match tail.strip_prefix('=') {
            None => ("", tail),
            Some(quoted) if quoted.starts_with('"') => {
                quoted[1..].split_once('"').with_context(|| format!("no end of the text: {quoted}"))?
            }
            Some(word) => word.split_at(word.find(' ').unwrap_or(word.len())),
        };
        if !MARKS.contains(&name) {
            bail!("`{name}` is not one of the marks {MARKS:?}");
        }
        marks.insert(name.to_owned(), value.to_owned());
        rest = tail;
    }
    Ok((language.to_owned(), marks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_taken_apart() {
        let text = "# One `two`: three\n\nA [link](x.md#y).\n\n```console not-run=\"for a reason\" terminal=2\n$ a\nb\n```\n\n## One two three\n\n| a |\n|---|\n| [t](z) |\n";
        let page = Page::parse(Path::new("page.md"), text).unwrap();
        assert_eq!(page.anchors, ["one-two-three", "one-two-three-1"].map(String::from).into());
        let links: Vec<_> = page.links.iter().map(|link| (link.line, link.target.as_str())).collect();
        assert_eq!(links, [(3, "x.md#y"), (14, "z")]);
        let [block] = &page.blocks[..] else { panic!("{:?}", page.blocks) };
        assert_eq!((block.line, block.language.as_str(), block.text.as_str()), (5, "console", "$ a\nb\n"));
        assert_eq!(block.marks["not-run"], "for a reason");
        assert_eq!(block.marks["terminal"], "2");
        assert!(!block.is("file"));
    }

    #[test]
    fn an_unknown_mark_is_an_error() {
        let error = Page::parse(Path::new("p"), "\n```toml prase-only\n```\n").unwrap_err();
        assert!(format!("{error:#}").starts_with("line 2: `prase-only` is not one of the marks"), "{error:#}");
        let error = Page::parse(Path::new("p"), "```console not-run=\"a\n```\n").unwrap_err();
        assert!(format!("{error:#}").contains("no end of the text"), "{error:#}");
    }
}
