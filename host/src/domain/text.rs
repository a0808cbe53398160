//! Failure texts made safe to store anywhere: recording a failure must never fail because of its text.

/// Longest failure text that is recorded, in bytes: a few screens, and far under every database's limits.
pub const MAX_DETAIL_BYTES: usize = 4096;

/// Marks where a text was cut.
const CUT: &str = "… (cut)";

/// One line of text: without NUL and other control characters, line breaks and tabs as spaces (in a log nobody may write a line that
/// looks like another's), cut on a character border with a mark.
#[must_use]
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_DETAIL_BYTES));
    for character in text.chars() {
        let character = match character {
            '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
            _ if character.is_control() => '\u{FFFD}',
            _ => character,
        };
        if out.len() + character.len_utf8() > MAX_DETAIL_BYTES - CUT.len() {
            out.push_str(CUT);
            return out;
        }
        out.push(character);
    }
    out
}

/// [`clean`] for bytes: what is not UTF-8 becomes U+FFFD.
#[must_use]
pub fn clean_bytes(bytes: &[u8]) -> String {
    // Cleaning cuts at MAX_DETAIL_BYTES: no need to decode a gigabyte first.
    clean(&String::from_utf8_lossy(bytes.get(..MAX_DETAIL_BYTES * 2).unwrap_or(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_are_replaced_and_it_stays_one_line() {
        assert_eq!(clean("a\0b\nc\u{2028}d\u{1b}[31m"), "a\u{FFFD}b c d\u{FFFD}[31m");
    }

    #[test]
    fn long_text_is_cut_on_a_character_border_with_a_mark() {
        let cut = clean(&"😊".repeat(70_000));
        assert!(cut.len() <= MAX_DETAIL_BYTES && cut.ends_with(CUT), "{} bytes", cut.len());
        assert!(clean(&"x".repeat(1 << 20)).len() <= MAX_DETAIL_BYTES);
    }

    proptest! {
        #[test]
        fn any_bytes_become_clean_text(bytes in prop::collection::vec(any::<u8>(), 0..10_000)) {
            let text = clean_bytes(&bytes);
            prop_assert!(text.len() <= MAX_DETAIL_BYTES);
            prop_assert!(!text.contains(char::is_control));
        }
    }
}
