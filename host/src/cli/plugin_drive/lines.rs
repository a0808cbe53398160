//! The lines of a session's input: bounded, and any of them may be wrong without ending the session.

use std::io::{BufRead, Read};

/// Longest line: a batch that fills the memory of an adapter fits, encoded.
pub(super) const MAX_LINE: usize = 256 << 20;

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Its text, without the line break.
    Text(String),
    /// What is wrong with it.
    Wrong(String),
}

/// Reads the next line that is not blank, with its number from 1; none: the input has ended.
pub(super) fn next(reader: &mut impl BufRead, number: &mut u64, longest: usize) -> std::io::Result<Option<Line>> {
    loop {
        let mut line = Vec::new();
        // One more than it may have, and its line break.
        let bound = u64::try_from(longest).unwrap_or(u64::MAX).saturating_add(2);
        if reader.by_ref().take(bound).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        *number = number.saturating_add(1);
        let whole = line.last() == Some(&b'\n');
        if whole {
            line.pop();
        }
        if line.len() > longest {
            if !whole {
                reader.skip_until(b'\n')?;
            }
            return Ok(Some(Line::Wrong(format!("is longer than {longest} bytes"))));
        }
        match String::from_utf8(line) {
            Ok(text) if text.trim().is_empty() => {}
            Ok(text) => return Ok(Some(Line::Text(text))),
            Err(error) => return Ok(Some(Line::Wrong(format!("is not UTF-8: {}", error.utf8_error())))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    fn all(bytes: &[u8], longest: usize) -> Vec<(u64, Line)> {
        let (mut reader, mut number, mut out) = (Cursor::new(bytes), 0, Vec::new());
        while let Some(line) = next(&mut reader, &mut number, longest).unwrap() {
            out.push((number, line));
        }
        out
    }

    #[test]
    fn wrong_lines_are_told_and_the_rest_is_read() {
        let lines = all(b"one\n\n  \r\nfour\xff\n12345\n123456\n1234567890\nlast", 5);
        let wrong = |number, text: &str| (number, Line::Wrong(text.into()));
        let expected = [
            (1, Line::Text("one".into())),
            wrong(4, "is not UTF-8: invalid utf-8 sequence of 1 bytes from index 4"),
            (5, Line::Text("12345".into())),
            wrong(6, "is longer than 5 bytes"),
            wrong(7, "is longer than 5 bytes"),
            (8, Line::Text("last".into())),
        ];
        assert_eq!(lines, expected);
    }

    proptest! {
        #[test]
        fn every_line_that_fits_comes_back(texts in prop::collection::vec("[a-z]{1,8}", 0..10)) {
            let expected: Vec<Line> = texts.iter().map(|text| match text.len() {
                0..=5 => Line::Text(text.clone()),
                _ => Line::Wrong("is longer than 5 bytes".into()),
            }).collect();
            let lines = all(texts.join("\n").as_bytes(), 5);
            prop_assert_eq!(lines.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (1..=texts.len() as u64).collect::<Vec<_>>());
            prop_assert_eq!(lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>(), expected);
        }
    }
}
