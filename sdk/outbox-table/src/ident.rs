//! Names of tables, columns and indexes that come from the operator's file: quoted part by part, impossible ones refused.

use std::fmt;

/// Longest name, in bytes: Postgres cuts at 63, SQLite has no limit; this only keeps nonsense out.
const MAX_BYTES: usize = 512;

/// Why a name cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameFault {
    /// It is empty, or one of its parts is.
    Empty,
    /// It holds a NUL, which no database can store in a name.
    Nul,
    /// It is over 512 bytes.
    TooLong,
    /// A double quote is not closed, or is followed by something other than a dot.
    Quotes,
    /// It has more parts than schema and name.
    Parts,
}

impl fmt::Display for NameFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Empty => "a name must not be empty",
            Self::Nul => "a name must not hold a NUL character",
            Self::TooLong => "a name must not be longer than 512 bytes",
            Self::Quotes => "the double quotes in the name do not match",
            Self::Parts => "a name has at most two parts, `schema.table`; put a part that holds a dot into double quotes",
        })
    }
}

impl std::error::Error for NameFault {}

/// One part of a name, as the database stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ident(String);

impl Ident {
    /// Takes the name as it is: no quoting is read, and any character but NUL is fine.
    ///
    /// # Errors
    /// If it is empty, too long, or holds a NUL.
    pub fn new(name: impl Into<String>) -> Result<Self, NameFault> {
        let name = name.into();
        if name.is_empty() {
            Err(NameFault::Empty)
        } else if name.contains('\0') {
            Err(NameFault::Nul)
        } else if name.len() > MAX_BYTES {
            Err(NameFault::TooLong)
        } else {
            Ok(Self(name))
        }
    }

    /// A name written in the program itself.
    #[must_use]
    pub fn of(name: &'static str) -> Self {
        Self(name.to_owned())
    }

    /// As the database stores it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// In double quotes, inner ones doubled: the form of SQL that SQLite and Postgres share.
impl fmt::Display for Ident {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{}\"", self.0.replace('"', "\"\""))
    }
}

/// A table's name: `table`, or `schema.table`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    /// The schema, if named.
    pub schema: Option<Ident>,
    /// The table.
    pub table: Ident,
}

impl TableName {
    /// Reads `table` or `schema.table`. A part in double quotes is taken as it is, dots included, with `""` for a quote.
    ///
    /// # Errors
    /// If a part is impossible, or there are more than two.
    pub fn parse(text: &str) -> Result<Self, NameFault> {
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let (part, after) = if let Some(quoted) = rest.strip_prefix('"') { quoted_part(quoted)? } else { plain_part(rest)? };
            parts.push(Ident::new(part)?);
            match after {
                Some(next) => rest = next,
                None => break,
            }
        }
        let mut parts = parts.into_iter();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(table), None, None) => Ok(Self { schema: None, table }),
            (Some(schema), Some(table), None) => Ok(Self { schema: Some(schema), table }),
            _ => Err(NameFault::Parts),
        }
    }

    /// Another name in the same schema.
    #[must_use]
    pub fn sibling(&self, name: Ident) -> Self {
        Self { schema: self.schema.clone(), table: name }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(formatter, "{schema}.{}", self.table),
            None => write!(formatter, "{}", self.table),
        }
    }
}

/// A part up to the next dot, and what follows the dot.
fn plain_part(text: &str) -> Result<(String, Option<&str>), NameFault> {
    let (part, after) = match text.split_once('.') {
        Some((part, after)) => (part, Some(after)),
        None => (text, None),
    };
    if part.contains('"') { Err(NameFault::Quotes) } else { Ok((part.to_owned(), after)) }
}

/// A part whose opening quote is already read.
fn quoted_part(text: &str) -> Result<(String, Option<&str>), NameFault> {
    let mut part = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"').ok_or(NameFault::Quotes)?;
        part.push_str(before);
        if let Some(escaped) = after.strip_prefix('"') {
            part.push('"');
            rest = escaped;
        } else if after.is_empty() {
            return Ok((part, None));
        } else {
            return after.strip_prefix('.').map(|next| (part, Some(next))).ok_or(NameFault::Quotes);
        }
    }
}

/// Text as an SQL literal.
#[must_use]
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> Result<String, NameFault> {
        TableName::parse(text).map(|name| name.to_string())
    }

    #[test]
    fn parts_are_quoted_one_by_one() {
        assert_eq!(shown("outbox").unwrap(), r#""outbox""#);
        assert_eq!(shown("app.order").unwrap(), r#""app"."order""#);
        assert_eq!(shown(r#""a.b".c"#).unwrap(), r#""a.b"."c""#);
        assert_eq!(shown(r#""say ""hi""""#).unwrap(), r#""say ""hi""""#);
        assert_eq!(shown("заказы; DROP TABLE x").unwrap(), r#""заказы; DROP TABLE x""#);
    }

    #[test]
    fn impossible_names_are_refused() {
        for (text, fault) in [
            ("", NameFault::Empty),
            ("a.", NameFault::Empty),
            (".a", NameFault::Empty),
            ("a\0b", NameFault::Nul),
            ("a.b.c", NameFault::Parts),
            ("\"a", NameFault::Quotes),
            ("\"a\"b", NameFault::Quotes),
            ("a\"b", NameFault::Quotes),
        ] {
            assert_eq!(TableName::parse(text), Err(fault), "{text:?}");
        }
        assert_eq!(Ident::new("x".repeat(513)), Err(NameFault::TooLong));
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(schema in "[^\0]{1,12}", table in "[^\0]{1,12}") {
            let name = TableName { schema: Some(Ident::new(schema).unwrap()), table: Ident::new(table).unwrap() };
            prop_assert_eq!(TableName::parse(&name.to_string()), Ok(name));
        }
    }
}
