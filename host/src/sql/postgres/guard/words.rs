//! The words of a statement as PostgreSQL's scanner tells them apart (`src/backend/parser/scan.l`), whatever its version and settings:
//! a text that some of them read otherwise than others is refused.

/// A name, or a keyword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    /// In double quotes: a name, whatever it says.
    pub(super) quoted: bool,
}

impl Word<'_> {
    /// Whether it is one of these keywords.
    pub(super) fn is(self, keywords: &[&str]) -> bool {
        !self.quoted && keywords.iter().any(|keyword| self.text.eq_ignore_ascii_case(keyword))
    }
}

/// Why a statement cannot be read, and what to write instead.
pub(super) type Unclear = &'static str;

const ESCAPED_NAME: Unclear = "names in U&\"...\" are not allowed: write the characters themselves";
const OTHER_END: Unclear =
    "a backslash before a quote ends a text or does not, as `standard_conforming_strings` has it: write E'\\\\' or E'\\'' instead";
const RUN_TOGETHER: Unclear = "a number runs into a word: put a space between them";

/// Characters that PostgreSQL skips between words.
const SPACE: [char; 6] = [' ', '\t', '\n', '\r', '\x0b', '\x0c'];

/// What a name may go on with. All characters beyond ASCII are letters to the scanner.
fn is_part(character: char) -> bool {
    is_tag(character) || character == '$'
}

/// What the tag of a `$tag$` may have, beside a digit in front.
fn is_tag(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || !character.is_ascii()
}

/// Reads the words one by one. Not those in texts and comments.
pub(super) struct Words<'a> {
    rest: &'a str,
    /// Parentheses that are open.
    pub(super) depth: usize,
}

impl<'a> Words<'a> {
    pub(super) fn of(sql: &'a str) -> Self {
        Self { rest: sql, depth: 0 }
    }

    /// Takes the characters that `belongs` is true for.
    fn take(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|character| !belongs(character)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// Skips to behind the next `end`, and returns what was skipped, without it.
    fn until(&mut self, end: &str) -> &'a str {
        match self.rest.split_once(end) {
            Some((skipped, rest)) => {
                self.rest = rest;
                skipped
            }
            None => std::mem::take(&mut self.rest),
        }
    }

    /// Skips the rest of a comment that has begun. They nest.
    fn comment(&mut self) {
        let mut depth = 1;
        while depth > 0 && !self.rest.is_empty() {
            if let Some(rest) = self.rest.strip_prefix("/*") {
                (self.rest, depth) = (rest, depth + 1);
            } else if let Some(rest) = self.rest.strip_prefix("*/") {
                (self.rest, depth) = (rest, depth - 1);
            } else {
                let mut characters = self.rest.chars();
                characters.next();
                self.rest = characters.as_str();
            }
        }
    }

    /// Skips the rest of a plain text that has begun with a quote. Two quotes in a row are one inside of the text; read as two texts they
    /// are skipped as well.
    fn text(&mut self) -> Result<(), Unclear> {
        let escaped = behind_escaped(self.rest);
        self.until("'");
        // It may be a text with escapes, too, by a setting or because it goes on from one in the line before.
        if escaped.len() == self.rest.len() { Ok(()) } else { Err(OTHER_END) }
    }

    /// Skips a number. Older servers end it where no number can go on and take the rest for a word.
    fn number(&mut self) -> Result<(), Unclear> {
        let number = self.take(|character| is_part(character) || character == '.').to_ascii_lowercase();
        let is = |text: &str, digit: fn(char) -> bool| text.chars().all(|character| digit(character) || character == '_');
        let decimal = |text: &str| is(text, |character| character.is_ascii_digit() || character == '.');
        let good = match number.split_at_checked(2) {
            Some(("0x", digits)) => is(digits, |character| character.is_ascii_hexdigit()),
            Some(("0o" | "0b", digits)) => is(digits, |character| character.is_ascii_digit()),
            _ => number.split_once('e').map_or_else(|| decimal(&number), |(number, exponent)| decimal(number) && decimal(exponent)),
        };
        if good { Ok(()) } else { Err(RUN_TOGETHER) }
    }

    /// Skips what a dollar sign has begun: `$1`, `$tag$ ... $tag$`.
    fn dollar(&mut self) -> Result<(), Unclear> {
        if self.rest.starts_with(|character: char| character.is_ascii_digit()) {
            self.take(|character| character.is_ascii_digit());
            return if self.rest.starts_with(is_part) { Err(RUN_TOGETHER) } else { Ok(()) };
        }
        let tag = self.take(is_tag);
        if let Some(rest) = self.rest.strip_prefix('$') {
            self.rest = rest;
            self.until(&format!("${tag}$"));
        }
        Ok(())
    }
}

/// What is behind a text that has begun with a quote, and in which a backslash takes the next character.
fn behind_escaped(text: &str) -> &str {
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            '\'' => break,
            _ => {}
        }
    }
    characters.as_str()
}

impl<'a> Iterator for Words<'a> {
    type Item = Result<Word<'a>, Unclear>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.rest = self.rest.trim_start_matches(SPACE);
            let first = self.rest.chars().next()?;
            if first.is_ascii_digit() {
                match self.number() {
                    Ok(()) => continue,
                    Err(unclear) => return Some(Err(unclear)),
                }
            }
            if is_part(first) && first != '$' {
                let text = self.take(is_part);
                if text.eq_ignore_ascii_case("u") && self.rest.starts_with("&\"") {
                    return Some(Err(ESCAPED_NAME));
                }
                match self.rest.strip_prefix('\'') {
                    Some(rest) if text.eq_ignore_ascii_case("e") => self.rest = behind_escaped(rest),
                    _ => return Some(Ok(Word { text, quoted: false })),
                }
                continue;
            }
            let skipped = if let Some(rest) = self.rest.strip_prefix("--") {
                self.rest = rest;
                self.take(|character| !matches!(character, '\n' | '\r'));
                Ok(())
            } else if let Some(rest) = self.rest.strip_prefix("/*") {
                self.rest = rest;
                self.comment();
                Ok(())
            } else {
                self.rest = self.rest.get(first.len_utf8()..).unwrap_or_default();
                match first {
                    '"' => return Some(Ok(Word { text: self.until("\""), quoted: true })),
                    '\'' => self.text(),
                    '$' => self.dollar(),
                    '(' => {
                        self.depth += 1;
                        Ok(())
                    }
                    ')' => {
                        self.depth = self.depth.saturating_sub(1);
                        Ok(())
                    }
                    _ => Ok(()),
                }
            };
            if let Err(unclear) = skipped {
                return Some(Err(unclear));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(sql: &str) -> Result<Vec<&str>, Unclear> {
        Words::of(sql).map(|word| word.map(|word| word.text)).collect()
    }

    #[test]
    fn texts_and_comments_are_no_words() {
        for (sql, expected) in [
            ("SELECT 'a ''set_config'' b', $1, $$x y$$, $t$ $$ z $t$, \"Na me\" -- c\n/* d /* e */ f */ g", &["SELECT", "Na me", "g"][..]),
            (r"SELECT E'a\'b', e'c\\' d", &["SELECT", "d"]),
            ("a$b $1 $", &["a$b"]),
            ("'open", &[]),
            ("-- a\rb -- c\r\nd", &["b", "d"]),
            // Letters, all of them, to the scanner: a tag, a name that ends in E, a name that a wide space is part of.
            ("$\u{1f600}$ ' $\u{1f600}$ a $b$ ' $b$", &["a"]),
            ("\u{1f600}E'a' b", &["\u{1f600}E", "b"]),
            ("\u{a0}a", &["\u{a0}a"]),
            ("1 1.5 .5e5 1e+5 0xFF 1_000 t.a1 (2)b", &["t", "a1", "b"]),
            (r"'a\\' b 'c\n' d", &["b", "d"]),
            ("U&'a' u & \"b\"", &["U", "u", "b"]),
        ] {
            assert_eq!(words(sql).as_deref(), Ok(expected), "{sql}");
        }
    }

    #[test]
    fn what_is_read_otherwise_elsewhere_is_refused() {
        for (sql, why) in [
            ("SELECT U&\"set\\005fconfig\"(1)", ESCAPED_NAME),
            ("select u&\"a\"", ESCAPED_NAME),
            (r"SELECT '\', set_config(1) --'", OTHER_END),
            ("SELECT E'a'\n'\\' , ' , set_config(1) , $$'$$", OTHER_END),
            ("SELECT \u{1f600}E'\\' , x --'", OTHER_END),
            ("SELECT N'\\', x --'", OTHER_END),
            ("SELECT 1INTO TEMP t", RUN_TOGETHER),
            ("SELECT 1e5INTO TEMP t", RUN_TOGETHER),
            ("SELECT .5INTO TEMP t", RUN_TOGETHER),
            ("SELECT $1INTO TEMP t", RUN_TOGETHER),
            ("SELECT $1$$ ' $$", RUN_TOGETHER),
            ("SELECT 0xINTO", RUN_TOGETHER),
        ] {
            assert_eq!(words(sql), Err(why), "{sql}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_to_its_end(sql in "[ -~é\\n\\r$'\"]{0,80}") {
            let _ = words(&sql);
        }
    }
}
