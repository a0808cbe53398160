//! Record batches, version 2 (KIP-98 and the protocol guide), encoded straight from the columns of a batch.
//!
//! `kafka-protocol` has an encoder too, but it keeps headers in a map, which loses duplicates.

use crate::compression::Compression;
use bytes::{BufMut, Bytes, BytesMut};
use std::io;

/// Bytes of a batch before its records.
pub const HEADER_BYTES: usize = 61;
/// Bytes before the part that the length counts: offset and length.
const UNCOUNTED_BYTES: usize = 12;
/// Where the part begins that the checksum covers.
const CHECKED_FROM: usize = 21;

/// A header: its name is `prefix` and `name`, so that a prefix costs no copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Before the name; mostly empty.
    pub prefix: &'a str,
    /// Name.
    pub name: &'a str,
    /// Value.
    pub value: &'a [u8],
}

/// One record.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Unix milliseconds.
    pub timestamp: i64,
    /// None is not empty.
    pub key: Option<&'a [u8]>,
    /// None is a tombstone, which is not empty.
    pub value: Option<&'a [u8]>,
    /// In order, duplicates kept.
    pub headers: &'a [Header<'a>],
}

/// Whose batch it is, and its place among those of its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Of this producer.
    pub producer_id: i64,
    /// Of this producer.
    pub producer_epoch: i16,
    /// Number of the first record among those of this producer in this partition.
    pub sequence: i32,
}

/// A batch in the making.
#[derive(Debug)]
pub struct Builder {
    /// Room for the header, and the records.
    bytes: Vec<u8>,
    count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl Default for Builder {
    fn default() -> Self {
        Self { bytes: Vec::new(), count: 0, base_timestamp: 0, max_timestamp: i64::MIN }
    }
}

impl Builder {
    /// How large the batch is, uncompressed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How large the batch would be with this record too, uncompressed.
    #[must_use]
    pub fn size_with(&self, record: &Record<'_>) -> usize {
        let body = self.body_size(record);
        self.bytes.len().max(HEADER_BYTES) + varint_size(signed(body)) + body
    }

    /// Appends a record.
    pub fn push(&mut self, record: &Record<'_>) {
        let body = self.body_size(record);
        if self.count == 0 {
            self.bytes.resize(HEADER_BYTES, 0);
            self.base_timestamp = record.timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(record.timestamp);
        let out = &mut self.bytes;
        put_varint(out, signed(body));
        out.put_u8(0);
        put_varint(out, record.timestamp.wrapping_sub(self.base_timestamp));
        put_varint(out, i64::from(self.count));
        put_bytes(out, record.key);
        put_bytes(out, record.value);
        put_varint(out, signed(record.headers.len()));
        for header in record.headers {
            put_varint(out, signed(header.prefix.len() + header.name.len()));
            out.extend_from_slice(header.prefix.as_bytes());
            out.extend_from_slice(header.name.as_bytes());
            put_bytes(out, Some(header.value));
        }
        self.count = self.count.saturating_add(1);
    }

    fn body_size(&self, record: &Record<'_>) -> usize {
        let base = if self.count == 0 { record.timestamp } else { self.base_timestamp };
        let headers: usize = record
            .headers
            .iter()
            .map(|header| {
                let name = header.prefix.len() + header.name.len();
                varint_size(signed(name)) + name + bytes_size(Some(header.value))
            })
            .sum();
        1 + varint_size(record.timestamp.wrapping_sub(base))
            + varint_size(i64::from(self.count))
            + bytes_size(record.key)
            + bytes_size(record.value)
            + varint_size(signed(record.headers.len()))
            + headers
    }

    /// The whole batch, but for what [`stamp`] adds. Records that compression would not make smaller stay as they are.
    ///
    /// # Errors
    /// The compression failed.
    pub fn finish(self, compression: Compression) -> io::Result<Bytes> {
        let Self { mut bytes, count, base_timestamp, max_timestamp } = self;
        let mut attributes = 0;
        if compression != Compression::None {
            let records = bytes.get(HEADER_BYTES..).unwrap_or_default();
            let mut compressed = Vec::with_capacity(HEADER_BYTES + records.len() / 2);
            compressed.resize(HEADER_BYTES, 0);
            compression.compress(records, &mut compressed)?;
            if compressed.len() < bytes.len() {
                bytes = compressed;
                attributes = compression.attribute();
            }
        }
        let length = i32::try_from(bytes.len().saturating_sub(UNCOUNTED_BYTES)).map_err(io::Error::other)?;
        if let Some(header) = bytes.first_chunk_mut::<HEADER_BYTES>() {
            let mut out = header.as_mut_slice();
            out.put_i64(0); // offset: the broker's to say
            out.put_i32(length);
            out.put_i32(-1); // epoch of the leader: the broker's to say
            out.put_u8(2);
            out.put_u32(0); // checksum: see `stamp`
            out.put_i16(i16::from(attributes));
            out.put_i32(count.saturating_sub(1));
            out.put_i64(base_timestamp);
            out.put_i64(max_timestamp);
            out.put_i64(-1);
            out.put_i16(-1);
            out.put_i32(-1);
            out.put_i32(count);
        }
        Ok(bytes.into())
    }
}

/// Says whose batch it is, and computes the checksum.
#[must_use]
pub fn stamp(batch: Bytes, stamp: Stamp) -> Bytes {
    let mut bytes = batch.try_into_mut().unwrap_or_else(|shared| BytesMut::from(shared.as_ref()));
    if let Some(mut out) = bytes.get_mut(43..57) {
        out.put_i64(stamp.producer_id);
        out.put_i16(stamp.producer_epoch);
        out.put_i32(stamp.sequence);
    }
    let checksum = crc32c::crc32c(bytes.get(CHECKED_FROM..).unwrap_or_default());
    if let Some(mut out) = bytes.get_mut(17..CHECKED_FROM) {
        out.put_u32(checksum);
    }
    bytes.freeze()
}

/// Lengths are those of values in memory: they fit.
fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// Zigzag, as in Protocol Buffers.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn varint_size(value: i64) -> usize {
    match zigzag(value) {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        0x20_0000..0x1000_0000 => 4,
        0x1000_0000..0x8_0000_0000 => 5,
        0x8_0000_0000..0x400_0000_0000 => 6,
        0x400_0000_0000..0x2_0000_0000_0000 => 7,
        0x2_0000_0000_0000..0x100_0000_0000_0000 => 8,
        0x100_0000_0000_0000..0x8000_0000_0000_0000 => 9,
        _ => 10,
    }
}

fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = zigzag(value);
    loop {
        let [low, ..] = rest.to_le_bytes();
        rest >>= 7;
        if rest == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

fn bytes_size(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| varint_size(signed(bytes.len())) + bytes.len())
}

fn put_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varint(out, signed(bytes.len()));
            out.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::records::{RecordBatchDecoder, TimestampType};
    use proptest::prelude::*;

    type Owned = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Vec<u8>)>);

    fn build(records: &[Owned], compression: Compression) -> (Bytes, usize) {
        let mut builder = Builder::default();
        let mut predicted = 0;
        for (timestamp, key, value, headers) in records {
            let headers: Vec<_> = headers.iter().map(|(name, value)| Header { prefix: "p-", name, value }).collect();
            let record = Record { timestamp: *timestamp, key: key.as_deref(), value: value.as_deref(), headers: &headers };
            predicted = builder.size_with(&record);
            builder.push(&record);
        }
        (builder.finish(compression).unwrap(), predicted)
    }

    fn any_record() -> impl Strategy<Value = Owned> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        let header = ("[a-z]{0,6}", bytes());
        (0..2_000_000_000_000i64, prop::option::of(bytes()), prop::option::of(bytes()), prop::collection::vec(header, 0..4))
    }

    proptest! {
        /// Read back by another implementation.
        #[test]
        fn the_decoder_of_kafka_protocol_reads_it(records in prop::collection::vec(any_record(), 1..30), sequence in 0..1_000_000i32) {
            let (bytes, predicted) = build(&records, Compression::None);
            prop_assert_eq!(bytes.len(), predicted);
            let mut stamped = stamp(bytes, Stamp { producer_id: 7_000_000_000, producer_epoch: 3, sequence });
            let set = RecordBatchDecoder::decode(&mut stamped).unwrap();
            prop_assert_eq!(set.records.len(), records.len());
            for (index, (found, (timestamp, key, value, headers))) in set.records.iter().zip(&records).enumerate() {
                prop_assert_eq!((found.producer_id, found.producer_epoch), (7_000_000_000, 3));
                prop_assert_eq!((found.sequence, found.offset), (sequence + i32::try_from(index).unwrap(), i64::try_from(index).unwrap()));
                prop_assert_eq!((found.timestamp, found.timestamp_type), (*timestamp, TimestampType::Creation));
                prop_assert_eq!(found.key.as_deref(), key.as_deref());
                prop_assert_eq!(found.value.as_deref(), value.as_deref());
                // Its map keeps the last of several headers of one name.
                for (name, value) in &found.headers {
                    let name = name.strip_prefix("p-").unwrap();
                    let last = headers.iter().rev().find(|(other, _)| other == name).unwrap();
                    prop_assert_eq!(value.as_deref(), Some(last.1.as_slice()));
                }
            }
        }

        #[test]
        fn sizes_of_numbers_are_exact(value: i64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(out.len(), varint_size(value));
        }
    }

    #[test]
    fn a_batch_byte_by_byte() {
        let headers = [Header { prefix: "", name: "h", value: b"1" }, Header { prefix: "", name: "h", value: b"" }];
        let mut builder = Builder::default();
        builder.push(&Record { timestamp: 1000, key: Some(b"k"), value: None, headers: &headers });
        builder.push(&Record { timestamp: 998, key: None, value: Some(b""), headers: &[] });
        let bytes = stamp(builder.finish(Compression::None).unwrap(), Stamp { producer_id: 5, producer_epoch: 1, sequence: 9 });
        let records = [
            &[0x1a, 0, 0, 0, 2, b'k', 1, 4, 2, b'h', 2, b'1', 2, b'h', 0][..], // negative length: no value
            &[0x0c, 0, 3, 2, 1, 0, 0],
        ]
        .concat();
        assert_eq!(bytes[61..], [&[0x1c][..], &records[1..15], &records[15..]].concat());
        assert_eq!(bytes[8..12], (49 + 22u32).to_be_bytes());
        assert_eq!(bytes[16], 2);
        assert_eq!(bytes[17..21], crc32c::crc32c(&bytes[21..]).to_be_bytes());
        assert_eq!(bytes[21..27], [0, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[27..43], [1000u64.to_be_bytes(), 1000u64.to_be_bytes()].concat());
        assert_eq!(bytes[43..61], [0, 0, 0, 0, 0, 0, 0, 5, 0, 1, 0, 0, 0, 9, 0, 0, 0, 2]);
    }

    #[test]
    fn stamped_again_it_is_the_same_but_for_the_stamp() {
        let (bytes, _) = build(&[(1, None, Some(b"x".to_vec()), Vec::new())], Compression::None);
        let first = stamp(bytes.clone(), Stamp { producer_id: 1, producer_epoch: 0, sequence: 0 });
        let second = stamp(first.clone(), Stamp { producer_id: 2, producer_epoch: 0, sequence: 5 });
        assert_ne!(first[17..21], second[17..21]);
        assert_eq!((&first[..17], &first[57..]), (&second[..17], &second[57..]));
        assert_eq!(stamp(second, Stamp { producer_id: 1, producer_epoch: 0, sequence: 0 }), first);
    }

    #[test]
    fn compression_is_declared_only_where_it_helps() {
        let long = vec![(1, None, Some(vec![b'x'; 10_000]), Vec::new())];
        let short = vec![(1, None, Some(b"x".to_vec()), Vec::new())];
        assert_eq!(build(&long, Compression::Gzip(6)).0[22], 1);
        assert_eq!(build(&short, Compression::Gzip(6)).0[22], 0);
    }
}
