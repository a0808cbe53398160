//! Where each key of the file stands, for what only an adapter finds wrong: it names a key, and the operator needs the line.

use super::problem::{breaks, line_of};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The line of every key of a file, by its path as in `storages.outbox.config.table`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    file: PathBuf,
    lines: BTreeMap<String, usize>,
}

/// A key of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// From 1.
    pub line: usize,
    /// The key's path.
    pub key: String,
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.file.display(), self.line, self.key)
    }
}

impl Places {
    /// Notes every key of a file.
    pub(super) fn read(text: &str, file: &Path, table: &DeTable<'_>) -> Self {
        let mut places = Self { file: file.to_owned(), lines: BTreeMap::new() };
        places.table(&breaks(text), "", table);
        places
    }

    fn table(&mut self, breaks: &[usize], path: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let name_text = name.get_ref();
            let path = if path.is_empty() { name_text.to_string() } else { format!("{path}.{name_text}") };
            self.value(breaks, &path, value);
            self.lines.insert(path, line_of(breaks, name.span().start));
        }
    }

    fn value(&mut self, breaks: &[usize], path: &str, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => self.table(breaks, path, table),
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    self.value(breaks, &path, item);
                    self.lines.insert(path, line_of(breaks, item.span().start));
                }
            }
            _ => {}
        }
    }

    /// The place of the first of these keys that is in the file.
    #[must_use]
    pub fn first<S: AsRef<str>>(&self, keys: impl IntoIterator<Item = S>) -> Option<Place> {
        keys.into_iter().find_map(|key| {
            let key = key.as_ref();
            self.lines.get(key).map(|line| Place { file: self.file.clone(), line: *line, key: key.to_owned() })
        })
    }

    /// The place that an adapter means when it complains of its configuration: the key that it names in backquotes, as in
    /// ``unknown field `tabel` `` or `` `retry`: unknown field `tims` ``; else its `config`, else its section.
    #[must_use]
    pub fn meant(&self, section: &str, complaint: &str) -> Option<Place> {
        let mut named = complaint.split('`').skip(1).step_by(2);
        let mut found: Option<String> = None;
        for word in named.by_ref() {
            // The host puts `database`, which stands beside `config`, into what the adapter gets.
            found = [format!("{section}.config.{word}"), format!("{section}.{word}")]
                .into_iter()
                .enumerate()
                .find(|(index, key)| self.lines.contains_key(key) && (*index == 0 || word == "database"))
                .map(|(_, key)| key);
            if found.is_some() {
                break;
            }
        }
        // What comes after the path of a table may be a key in it.
        let deeper = found.as_ref().zip(named.next()).map(|(table, word)| format!("{table}.{word}"));
        self.first(deeper.into_iter().chain(found).chain([format!("{section}.config"), section.to_owned()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
[storages.outbox]
plugin = "p"
database = "main"
config = { tabel = "x",
  lists = [{ a = 1 },
           { b = 2 }], own.deep = 1 }
[publishers.bare]
plugin = "q"
[publishers.webhooks]
[publishers.webhooks.config]
url = ""
[publishers.webhooks.config.retry]
tims = 3
"#;

    fn meant(section: &str, complaint: &str) -> (usize, String) {
        let tree = DeTable::parse(TEXT).unwrap();
        let place = Places::read(TEXT, Path::new("o.toml"), tree.get_ref()).meant(section, complaint).unwrap();
        assert_eq!(place.to_string(), format!("o.toml:{}: {}", place.line, place.key));
        (place.line, place.key)
    }

    #[test]
    fn a_complaint_is_traced_to_the_line_of_the_key_that_it_names() {
        for (section, complaint, line, key) in [
            ("storages.outbox", "unknown field `tabel`, expected one of `table`, `lists`", 5, "storages.outbox.config.tabel"),
            ("storages.outbox", "`lists[1].b`: invalid type", 7, "storages.outbox.config.lists[1].b"),
            ("storages.outbox", "`lists[1]`: unknown field `b`", 7, "storages.outbox.config.lists[1].b"),
            ("storages.outbox", "`own.deep`: too deep", 7, "storages.outbox.config.own.deep"),
            ("storages.outbox", "`database`: not SQLite", 4, "storages.outbox.database"),
            ("storages.outbox", "missing field `plugin`", 5, "storages.outbox.config"),
            ("publishers.webhooks", "`url`: is empty, see `retry`", 12, "publishers.webhooks.config.url"),
            ("publishers.webhooks", "`retry`: unknown field `tims`, expected `times`", 14, "publishers.webhooks.config.retry.tims"),
            ("publishers.webhooks", "something is wrong", 11, "publishers.webhooks.config"),
            ("publishers.bare", "missing field `url`", 8, "publishers.bare"),
        ] {
            assert_eq!(meant(section, complaint), (line, key.to_owned()), "{complaint}");
        }
    }
}
