//! What whoever asks may name (tenants, events, readers): names become parameters of SQL and rows of indexes, and what cannot be there is
//! refused before the storage is asked, in words that say what is wrong.

use super::lengths::MOST_OF_EVENT;

/// Longest name of a reader of the log, in bytes: it is in an index, behind its tenant.
pub const READER_BYTES: usize = 512;
/// Longest name of anything else, in bytes: no event has a longer tenant or id.
pub const NAME_BYTES: usize = MOST_OF_EVENT;

/// Why a text names nothing, where it may have so many bytes. Fits behind the name of its parameter and a colon.
///
/// # Errors
/// That.
pub fn check_name(text: &str, most: usize) -> Result<(), String> {
    if text.contains('\0') {
        return Err("has a NUL in it, which no name has".to_owned());
    }
    match text.len() {
        bytes if bytes > most => Err(format!("has {bytes} bytes, and may have {most}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_as_long_as_an_index_takes_and_has_no_nul() {
        assert_eq!(check_name("", 3), Ok(()));
        assert_eq!(check_name("abc", 3), Ok(()));
        assert_eq!(check_name("ab\u{e9}", 3), Err("has 4 bytes, and may have 3".to_owned()));
        assert_eq!(check_name("a\0", 3), Err("has a NUL in it, which no name has".to_owned()));
    }
}
