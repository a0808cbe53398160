//! Compression of the records of a batch, in the forms that Kafka's own client writes and reads.

use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::{self, Write};

/// How records are compressed. Each is pure Rust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// With this level, 0 to 9.
    Gzip(u32),
    /// Snappy in the framing of `xerial/snappy-java`.
    Snappy,
    /// LZ4 frames.
    Lz4,
    /// Zstandard, about as tight as level 1 of the C library.
    Zstd,
}

/// Header of snappy-java's stream: magic, version, oldest version that can read it.
const XERIAL_HEADER: [u8; 16] = *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
/// Block of snappy-java's stream, uncompressed: its default.
const XERIAL_BLOCK: usize = 32 << 10;

impl Compression {
    /// The bits of a batch's attributes that say so.
    #[must_use]
    pub fn attribute(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip(_) => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// Appends `records`, compressed, to `output`.
    ///
    /// # Errors
    /// None that is known of: the output is memory.
    pub fn compress(self, records: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::None => output.extend_from_slice(records),
            Self::Gzip(level) => {
                let mut encoder = GzEncoder::new(output, flate2::Compression::new(level));
                encoder.write_all(records)?;
                encoder.finish()?;
            }
            Self::Snappy => {
                output.extend_from_slice(&XERIAL_HEADER);
                let mut encoder = snap::raw::Encoder::new();
                for block in records.chunks(XERIAL_BLOCK) {
                    let compressed = encoder.compress_vec(block)?;
                    let length = u32::try_from(compressed.len()).map_err(io::Error::other)?;
                    output.extend_from_slice(&length.to_be_bytes());
                    output.extend_from_slice(&compressed);
                }
            }
            Self::Lz4 => {
                // Kafka reads independent blocks only.
                let frame = FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Max64KB);
                let mut encoder = FrameEncoder::with_frame_info(frame, output);
                encoder.write_all(records)?;
                encoder.finish()?;
            }
            Self::Zstd => output.extend_from_slice(&compress_to_vec(records, CompressionLevel::Fastest)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    /// Read back by the other half of each crate; other implementations read it back in `tests/`.
    fn decompress(compression: Compression, bytes: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        match compression {
            Compression::None => output.extend_from_slice(bytes),
            Compression::Gzip(_) => drop(flate2::read::GzDecoder::new(bytes).read_to_end(&mut output).unwrap()),
            Compression::Snappy => {
                let mut rest = bytes.strip_prefix(&XERIAL_HEADER).unwrap();
                while let Some((length, tail)) = rest.split_first_chunk::<4>() {
                    let (block, tail) = tail.split_at(usize::try_from(u32::from_be_bytes(*length)).unwrap());
                    output.extend(snap::raw::Decoder::new().decompress_vec(block).unwrap());
                    rest = tail;
                }
            }
            Compression::Lz4 => drop(lz4_flex::frame::FrameDecoder::new(bytes).read_to_end(&mut output).unwrap()),
            Compression::Zstd => drop(ruzstd::decoding::StreamingDecoder::new(bytes).unwrap().read_to_end(&mut output).unwrap()),
        }
        output
    }

    fn any_compression() -> impl Strategy<Value = Compression> {
        prop_oneof![
            Just(Compression::None),
            (0..=9u32).prop_map(Compression::Gzip),
            Just(Compression::Snappy),
            Just(Compression::Lz4),
            Just(Compression::Zstd),
        ]
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(compression in any_compression(), piece in prop::collection::vec(any::<u8>(), 0..300), times in 0..500usize) {
            let records = piece.repeat(times);
            let mut output = b"before".to_vec();
            compression.compress(&records, &mut output).unwrap();
            prop_assert_eq!(decompress(compression, output.strip_prefix(b"before").unwrap()), records);
        }
    }

    #[test]
    fn repetition_shrinks() {
        let records = b"the same words over and over again; ".repeat(1000);
        for compression in [Compression::Gzip(6), Compression::Snappy, Compression::Lz4, Compression::Zstd] {
            let mut output = Vec::new();
            compression.compress(&records, &mut output).unwrap();
            assert!(output.len() < records.len() / 5, "{compression:?}: {}", output.len());
        }
    }
}
