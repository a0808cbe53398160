//! SHA-256 digests as the OCI specifications write them: `sha256:` and 64 lower-case hexadecimal digits.

use sha2::Sha256;
use std::fmt;

/// What content is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of this content.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        Self(<Sha256 as sha2::Digest>::digest(content).into())
    }

    /// Reads one. Other algorithms are refused: SHA-256 is what every registry has.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a digest: write sha256: and 64 lower-case hexadecimal digits");
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64).ok_or_else(wrong)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let lower = pair.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            let pair = std::str::from_utf8(pair).ok().filter(|_| lower).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }

    /// The digits alone.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "sha256:{}", self.hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn other_texts_are_no_digests() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::parse(empty).unwrap(), Digest::of(b""));
        let upper = empty.to_uppercase().replace("SHA256", "sha256");
        for text in ["", "sha256:", &empty[7..], &empty[..70], &upper, &empty.replace("256", "512"), &empty.replace('e', "é")] {
            assert!(Digest::parse(text).unwrap_err().contains("is not a digest"), "{text}");
        }
        assert!(Digest::parse(&empty.replace("e3", "+3")).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(content: Vec<u8>) {
            let digest = Digest::of(&content);
            prop_assert_eq!(Digest::parse(&digest.to_string()).unwrap(), digest);
        }
    }
}
