//! Which partition a message goes to: the one that its header names, the one that its key hashes to (as the Java client does it,
//! so that both can write to one topic), or, without a key, one after the other.

use thiserror::Error;

/// `MurmurHash2`, 32 bits, with the seed of Kafka's `Utils.murmur2`.
#[must_use]
pub fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    // Kafka's lengths are 32 bits: a key never has more.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ length;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut tail = [0; 4];
        for (slot, byte) in tail.iter_mut().zip(rest) {
            *slot = *byte;
        }
        hash = (hash ^ u32::from_le_bytes(tail)).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// The partition of a key. `count` is how many the topic has; 0 gives 0.
#[must_use]
pub fn of_key(key: &[u8], count: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff).checked_rem(count).unwrap_or(0)
}

/// A partition header that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PartitionError {
    /// Not a number.
    #[error("the value of header `{0}` is not the number of a partition")]
    NotANumber(String),
    /// No such partition.
    #[error("header `{header}` names partition {partition}; topic {topic} has {count}, from 0 to {last}", last = count.saturating_sub(1))]
    OutOfRange {
        /// Name of the header.
        header: String,
        /// Its value.
        partition: u32,
        /// Of the message.
        topic: String,
        /// Partitions of the topic.
        count: u32,
    },
}

/// The number that a partition header holds.
///
/// # Errors
/// It is none.
pub fn of_header(header: &str, value: &[u8]) -> Result<u32, PartitionError> {
    let text = std::str::from_utf8(value).map(str::trim).unwrap_or_default();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(partition) if digits => Ok(partition),
        _ => Err(PartitionError::NotANumber(header.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Kafka's `UtilsTest.testMurmur2`.
    #[test]
    fn the_vectors_of_kafka() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
        }
    }

    #[test]
    fn keys_have_partitions() {
        assert_eq!(of_key(b"foobar", 1), 0);
        assert_eq!(of_key(b"foobar", 0), 0);
        assert!((0..1000).all(|key: u32| of_key(&key.to_le_bytes(), 7) < 7));
    }

    #[test]
    fn headers_hold_numbers() {
        assert_eq!(of_header("p", b" 12 "), Ok(12));
        for bad in [&b""[..], b"-1", b"+1", b"1.0", b"x", b"99999999999", b"\xff"] {
            assert_eq!(of_header("p", bad), Err(PartitionError::NotANumber("p".into())), "{bad:?}");
        }
    }
}
