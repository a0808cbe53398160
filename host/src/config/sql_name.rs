//! Names of tables and columns out of the configuration, quoted for SQL: what SQLite and Postgres share.

/// Longest name, in bytes: far over what databases store; this only keeps nonsense out.
const MAX_BYTES: usize = 512;

/// A name of a table or a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlName {
    written: String,
    quoted: String,
}

impl SqlName {
    /// A column: taken as it is, any character but NUL is fine.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn column(name: &str) -> Result<Self, String> {
        Ok(Self { written: name.to_owned(), quoted: part(name)? })
    }

    /// `table` or `schema.table`. A part in double quotes is taken as it is, dots included, with `""` for a quote.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn table(name: &str) -> Result<Self, String> {
        Ok(Self { written: name.to_owned(), quoted: parts(name)? })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }
}

/// As it stands in SQL.
impl std::fmt::Display for SqlName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.quoted)
    }
}

fn part(name: &str) -> Result<String, String> {
    if name.is_empty() || name.contains('\0') || name.len() > MAX_BYTES {
        return Err("is not a name: it must not be empty, not longer than 512 bytes, and without NUL".to_owned());
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

fn parts(name: &str) -> Result<String, String> {
    let mut parts = Vec::new();
    let mut rest = Some(name);
    while let Some(text) = rest {
        let (part, after) = match text.strip_prefix('"') {
            Some(quoted) => quoted_part(quoted)?,
            None => match text.split_once('.') {
                Some((part, after)) => (part.to_owned(), Some(after)),
                None => (text.to_owned(), None),
            },
        };
        parts.push(self::part(&part)?);
        rest = after;
    }
    if parts.len() > 2 {
        return Err("has more than two parts: write `schema.table`, with a part that holds a dot in double quotes".to_owned());
    }
    Ok(parts.join("."))
}

/// The rest of a part whose opening quote is gone, and what comes after its dot.
fn quoted_part(text: &str) -> Result<(String, Option<&str>), String> {
    let mut part = String::new();
    let mut rest = text;
    loop {
        let Some((before, after)) = rest.split_once('"') else { return Err("has double quotes that do not match".to_owned()) };
        part.push_str(before);
        match after.strip_prefix('"') {
            Some(more) => {
                part.push('"');
                rest = more;
            }
            None if after.is_empty() => return Ok((part, None)),
            None => match after.strip_prefix('.') {
                Some(next) => return Ok((part, Some(next))),
                None => return Err("has double quotes that do not match".to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_part_by_part() {
        for (name, expected) in [
            ("subscriptions", "\"subscriptions\""),
            ("hooks.subscriptions", "\"hooks\".\"subscriptions\""),
            ("\"a.b\".c", "\"a.b\".\"c\""),
            ("a\"b", "\"a\"\"b\""),
            ("\"a\"\"b\"", "\"a\"\"b\""),
            ("select", "\"select\""),
        ] {
            assert_eq!(SqlName::table(name).unwrap().to_string(), expected, "{name}");
        }
        for wrong in ["", "a.", ".a", "a.b.c", "\"a", "\"a\"b", "a\0b"] {
            assert!(SqlName::table(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(SqlName::column("a.b").unwrap().to_string(), "\"a.b\"");
    }
}
