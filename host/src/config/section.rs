//! Typed reading of one table of the file. Every key that is asked for is known; what is left at the end is an unknown key.

use super::problem::{Report, listed, suggestion};
use super::units;
use std::cell::RefCell;
use std::fmt;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// A value, and where it came from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Located<T> {
    /// The value.
    pub(super) value: T,
    /// Byte of the key in the file; of the section, where the value is a default.
    pub(super) at: usize,
    /// Whether it was written, rather than a default.
    pub(super) written: bool,
}

impl<T> Located<T> {
    /// The same place with another value.
    pub(super) fn with<U>(&self, value: U) -> Located<U> {
        Located { value, at: self.at, written: self.written }
    }

    /// `text`, marked where it is a default.
    fn marked(&self, text: String) -> String {
        if self.written { text } else { format!("{text}, the default") }
    }
}

impl Located<Duration> {
    /// As it would be written.
    pub(super) fn shown(&self) -> String {
        self.marked(units::show_duration(self.value))
    }
}

impl Located<usize> {
    /// As a size.
    pub(super) fn shown_size(&self) -> String {
        self.marked(units::show_size(u64::try_from(self.value).unwrap_or(u64::MAX)))
    }
}

/// A text, or the name of a secret that holds it.
#[derive(Debug, Clone, Copy)]
pub(super) enum TextOrSecret<'a> {
    Text(&'a str),
    Secret(&'a str),
}

/// A number that a key may have, in words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl fmt::Display for Range {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "from {} to {}", self.min, self.max)
    }
}

/// One table of the file; where it is absent, every key of it is.
pub(super) struct Section<'a> {
    report: &'a Report,
    path: String,
    at: usize,
    table: Option<&'a DeTable<'a>>,
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    /// The file as a whole.
    pub(super) fn root(report: &'a Report, table: &'a DeTable<'a>) -> Self {
        Self { report, path: String::new(), at: 0, table: Some(table), known: RefCell::default() }
    }

    fn sub(&self, path: String, at: usize, table: Option<&'a DeTable<'a>>) -> Self {
        Self { report: self.report, path, at, table, known: RefCell::default() }
    }

    /// Whether the file has it.
    pub(super) fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Whether a key is written. It is not known by this alone.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// A text in a table of this section, if both are what they should be. Nothing is said of them, and they are not known by this alone.
    pub(super) fn glance(&self, table: &str, key: &str) -> Option<&'a str> {
        match self.table?.get(table)?.get_ref() {
            DeValue::Table(table) => table.get(key)?.get_ref().as_str(),
            _ => None,
        }
    }

    /// The path of a key in this section.
    pub(super) fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Notes a problem with a key of this section.
    pub(super) fn problem(&self, at: usize, key: &str, text: impl Into<String>) {
        self.report.add(at, self.key(key), text);
    }

    /// Notes a problem with a key of another section, given by its whole path.
    pub(super) fn problem_elsewhere(&self, at: usize, path: String, text: String) {
        self.report.add(at, path, text);
    }

    /// Notes a problem with the section itself.
    pub(super) fn problem_here(&self, text: impl Into<String>) {
        self.report.add(self.at, self.path.clone(), text);
    }

    fn raw(&self, key: &'static str) -> Option<(usize, &'a DeValue<'a>)> {
        self.known.borrow_mut().push(key);
        let (name, value) = self.table?.get_key_value(key)?;
        Some((name.span().start, value.get_ref()))
    }

    fn wrong_type(&self, at: usize, key: &str, value: &DeValue<'_>, expected: &str) {
        let found = value.type_str();
        self.problem(at, key, format!("is {} {found} where {expected} is expected", article(found)));
    }

    /// A value that is no key of the file.
    pub(super) fn fixed<T>(&self, value: T) -> Located<T> {
        self.default(value)
    }

    fn default<T>(&self, value: T) -> Located<T> {
        Located { value, at: self.at, written: false }
    }

    /// A text.
    pub(super) fn text(&self, key: &'static str) -> Option<Located<&'a str>> {
        let (at, value) = self.raw(key)?;
        match value {
            DeValue::String(text) => Some(Located { value: text.as_ref(), at, written: true }),
            other => {
                self.wrong_type(at, key, other, "a text");
                None
            }
        }
    }

    /// A text that must be there. `example` shows what to write.
    pub(super) fn required(&self, key: &'static str, example: &str) -> Option<Located<&'a str>> {
        let text = self.text(key);
        if text.is_none() && !self.has(key) {
            self.problem(self.at, key, format!("is missing: add {key} = {example}"));
        }
        text.filter(|text| {
            if text.value.is_empty() {
                self.problem(text.at, key, format!("is empty: write something like {example}"));
            }
            !text.value.is_empty()
        })
    }

    /// A text that must be there, or `{ secret = "NAME" }`. `example` shows what to write.
    pub(super) fn text_or_secret(&self, key: &'static str, example: &str) -> Option<Located<TextOrSecret<'a>>> {
        match self.table.and_then(|table| table.get(key)).map(Spanned::get_ref) {
            Some(DeValue::Table(_)) => self.secret(key).map(|name| name.with(TextOrSecret::Secret(name.value))),
            _ => self.required(key, example).map(|text| text.with(TextOrSecret::Text(text.value))),
        }
    }

    /// `{ secret = "NAME" }`: the name.
    pub(super) fn secret(&self, key: &'static str) -> Option<Located<&'a str>> {
        let (at, value) = self.raw(key)?;
        let DeValue::Table(table) = value else {
            self.problem(at, key, "must not stand in the file: write { secret = \"NAME\" }, and where it is in [secrets.NAME]");
            return None;
        };
        let section = self.sub(self.key(key), at, Some(table));
        let name = section.required("secret", "\"NAME\"");
        section.finish();
        name.map(|name| Located { at, ..name })
    }

    /// A text, or `false` for none at all.
    pub(super) fn text_or_false(&self, key: &'static str) -> Option<Located<Option<&'a str>>> {
        let (at, value) = self.raw(key)?;
        match value {
            DeValue::String(text) if !text.is_empty() => Some(Located { value: Some(text.as_ref()), at, written: true }),
            DeValue::Boolean(false) => Some(Located { value: None, at, written: true }),
            other => {
                self.wrong_type(at, key, other, "a text that is not empty, or false,");
                None
            }
        }
    }

    /// One of a few words.
    pub(super) fn word(&self, key: &'static str, words: &[&'static str], default: &'static str) -> Located<&'static str> {
        let Some(text) = self.text(key) else { return self.default(default) };
        match words.iter().find(|word| **word == text.value) {
            Some(word) => text.with(word),
            None => {
                self.problem(
                    text.at,
                    key,
                    format!("is {:?}: write one of {}", text.value, listed(words.iter().map(|word| format!("{word:?}")))),
                );
                self.default(default)
            }
        }
    }

    /// Yes or no.
    pub(super) fn flag(&self, key: &'static str, default: bool) -> Located<bool> {
        match self.raw(key) {
            None => self.default(default),
            Some((at, DeValue::Boolean(value))) => Located { value: *value, at, written: true },
            Some((at, other)) => {
                self.wrong_type(at, key, other, "true or false");
                self.default(default)
            }
        }
    }

    /// A duration. Zero is refused, unless it is in `zero`: then zero has a meaning.
    pub(super) fn duration(&self, key: &'static str, default: Duration, zero: bool) -> Located<Duration> {
        let Some((at, value)) = self.raw(key) else { return self.default(default) };
        let DeValue::String(text) = value else {
            self.wrong_type(at, key, value, "a duration such as \"60s\" (in quotes, with a unit)");
            return self.default(default);
        };
        match units::duration(text) {
            Ok(value) if value.is_zero() && !zero => self.problem(at, key, "is zero: it must be longer"),
            Ok(value) => return Located { value, at, written: true },
            Err(error) => self.problem(at, key, error),
        }
        self.default(default)
    }

    /// A number within a range.
    pub(super) fn number<T: TryFrom<u64>>(&self, key: &'static str, default: T, range: Range) -> Located<T> {
        let Some((at, value)) = self.raw(key) else { return self.default(default) };
        let DeValue::Integer(integer) = value else {
            self.wrong_type(at, key, value, "a whole number");
            return self.default(default);
        };
        let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(|number| u64::try_from(number).ok());
        match number.filter(|number| (range.min..=range.max).contains(number)).and_then(|number| T::try_from(number).ok()) {
            Some(value) => Located { value, at, written: true },
            None => {
                self.problem(at, key, format!("is {integer}: write a number {range}"));
                self.default(default)
            }
        }
    }

    /// A number with a fraction, within a range.
    pub(super) fn float(&self, key: &'static str, default: f64, range: std::ops::RangeInclusive<f64>) -> Located<f64> {
        let Some((at, value)) = self.raw(key) else { return self.default(default) };
        let number = match value {
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse::<f64>().ok(),
            other => {
                self.wrong_type(at, key, other, "a number");
                return self.default(default);
            }
        };
        match number.filter(|number| range.contains(number)) {
            Some(value) => Located { value, at, written: true },
            None => {
                self.problem(at, key, format!("must be from {} to {}", range.start(), range.end()));
                self.default(default)
            }
        }
    }

    /// A size in bytes, within a range.
    pub(super) fn size(&self, key: &'static str, default: usize, range: Range) -> Located<usize> {
        let Some((at, value)) = self.raw(key) else { return self.default(default) };
        let bytes = match value {
            DeValue::String(text) => units::size(text),
            DeValue::Integer(integer) => u64::from_str_radix(integer.as_str(), integer.radix())
                .map_err(|_| format!("is {integer}: write a number of bytes, or a size such as \"64MiB\"")),
            other => {
                self.wrong_type(at, key, other, "a size such as \"64MiB\", or a number of bytes,");
                return self.default(default);
            }
        };
        match bytes.map(|bytes| (bytes, usize::try_from(bytes))) {
            Ok((bytes, Ok(value))) if (range.min..=range.max).contains(&bytes) => return Located { value, at, written: true },
            Ok((bytes, _)) => {
                let (min, max) = (units::show_size(range.min), units::show_size(range.max));
                self.problem(at, key, format!("is {}: write a size from {min} to {max}", units::show_size(bytes)));
            }
            Err(error) => self.problem(at, key, error),
        }
        self.default(default)
    }

    fn array(&self, key: &'static str, expected: &str) -> Option<(usize, &'a DeArray<'a>)> {
        let (at, value) = self.raw(key)?;
        match value {
            DeValue::Array(items) => Some((at, items)),
            other => {
                self.wrong_type(at, key, other, expected);
                None
            }
        }
    }

    /// A list of texts, each with its place.
    pub(super) fn texts(&self, key: &'static str) -> Vec<Located<&'a str>> {
        let Some((_, items)) = self.array(key, "a list of texts") else { return Vec::new() };
        let text = |(index, item): (usize, &'a Spanned<DeValue<'a>>)| match item.get_ref() {
            DeValue::String(text) => Some(Located { value: text.as_ref(), at: item.span().start, written: true }),
            other => {
                self.wrong_type(item.span().start, &format!("{key}[{index}]"), other, "a text");
                None
            }
        };
        items.iter().enumerate().filter_map(text).collect()
    }

    /// A table below this one; absent: all its keys are.
    pub(super) fn section(&self, key: &'static str) -> Self {
        let path = self.key(key);
        match self.raw(key) {
            None => self.sub(path, self.at, None),
            Some((at, DeValue::Table(table))) => self.sub(path, at, Some(table)),
            Some((at, other)) => {
                self.wrong_type(at, key, other, "a table");
                self.sub(path, at, None)
            }
        }
    }

    /// A table of tables: `[key.NAME]`.
    pub(super) fn named(&self, key: &'static str) -> Vec<(&'a str, Self)> {
        self.named_by(key, check_name)
    }

    /// The same, with names of another kind.
    pub(super) fn named_by(&self, key: &'static str, check_name: fn(&str) -> Result<(), String>) -> Vec<(&'a str, Self)> {
        let outer = self.section(key);
        let Some(table) = outer.table else { return Vec::new() };
        let one = |(name, value): (&'a Spanned<std::borrow::Cow<'a, str>>, &'a Spanned<DeValue<'a>>)| {
            let (at, name) = (name.span().start, name.get_ref().as_ref());
            if let Err(error) = check_name(name) {
                outer.problem(at, name, error);
            }
            match value.get_ref() {
                DeValue::Table(table) => Some((name, self.sub(outer.key(name), at, Some(table)))),
                other => {
                    outer.wrong_type(at, name, other, &format!("a table [{}]", outer.key("NAME")));
                    None
                }
            }
        };
        table.iter().filter_map(one).collect()
    }

    /// A list of tables: `[[key]]`, or inline.
    pub(super) fn list(&self, key: &'static str) -> Vec<Self> {
        let Some((_, items)) = self.array(key, "a list of tables") else { return Vec::new() };
        let one = |(index, item): (usize, &'a Spanned<DeValue<'a>>)| {
            let (at, path) = (item.span().start, format!("{key}[{index}]"));
            match item.get_ref() {
                DeValue::Table(table) => Some(self.sub(self.key(&path), at, Some(table))),
                other => {
                    self.wrong_type(at, &path, other, "a table");
                    None
                }
            }
        };
        items.iter().enumerate().filter_map(one).collect()
    }

    /// A table that is handed on as it is, as JSON.
    pub(super) fn free(&self, key: &'static str) -> serde_json::Map<String, serde_json::Value> {
        let section = self.section(key);
        section.table.map(|table| super::json::object(self.report, &section.path, table)).unwrap_or_default()
    }

    /// The place of a key of a sub-table, if it is there.
    pub(super) fn place_in(&self, table: &str, key: &str) -> Option<usize> {
        match self.table?.get(table)?.get_ref() {
            DeValue::Table(table) => table.get_key_value(key).map(|(name, _)| name.span().start),
            _ => None,
        }
    }

    /// Reports every key that nobody has asked for.
    pub(super) fn finish(self) {
        let known = self.known.take();
        for (name, _) in self.table.into_iter().flat_map(DeTable::iter) {
            let name_text = name.get_ref().as_ref();
            if !known.contains(&name_text) {
                let text = format!("unknown key{}; known here: {}", suggestion(name_text, &known), listed(&known));
                self.report.add_known(name.span().start, self.key(name_text), text, known.clone());
            }
        }
    }
}

/// Names end up in file names, metrics labels and log lines: letters, digits, `_`, `-` and `.`, at most 64.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let fits = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.');
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(fits) {
        return Err(format!("{name:?} is not a name: use letters, digits, '_', '-' and '.' (not first), at most 64 characters"));
    }
    Ok(())
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}
