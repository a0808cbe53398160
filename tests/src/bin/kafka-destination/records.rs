//! Record batches as they are on the wire, version 2 without compression. The decoder of the crate `kafka-protocol` keeps one header of
//! a name only, and that all arrive is a part of what is tested.

use anyhow::{Context, Result, bail};

/// Bytes of a batch before its length counts.
const BEFORE_LENGTH: usize = 12;

/// Where the attributes of a batch are, and where its records begin.
const ATTRIBUTES: usize = 21;
const HEADER: usize = 61;

/// The low bits of the attributes: the codec.
const CODEC: u16 = 0x07;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
}

/// All records of some batches.
pub(crate) fn decode(mut batches: &[u8]) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    while !batches.is_empty() {
        let length = usize::try_from(i32::from_be_bytes(batches.get(8..BEFORE_LENGTH).context("no length")?.try_into()?))?;
        let (batch, rest) = batches.split_at_checked(BEFORE_LENGTH + length).context("a batch is cut off")?;
        let attributes = u16::from_be_bytes(batch.get(ATTRIBUTES..ATTRIBUTES + 2).context("no attributes")?.try_into()?);
        if attributes & CODEC != 0 {
            bail!("a batch is compressed: set no `compression` for this destination");
        }
        let count = u32::from_be_bytes(batch.get(HEADER - 4..HEADER).context("no count")?.try_into()?);
        let mut reader = Reader(batch.get(HEADER..).context("no records")?);
        for _ in 0..count {
            records.push(reader.record()?);
        }
        batches = rest;
    }
    Ok(records)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, length: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length).context("a record is cut off")?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Zigzag, as in Protocol Buffers.
    fn varint(&mut self) -> Result<i64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        bail!("a number has no end")
    }

    /// Bytes after their length; none: -1.
    fn optional(&mut self) -> Result<Option<Vec<u8>>> {
        match self.varint()? {
            -1 => Ok(None),
            length => Ok(Some(self.bytes(usize::try_from(length)?)?.to_vec())),
        }
    }

    fn record(&mut self) -> Result<Record> {
        let length = usize::try_from(self.varint()?)?;
        let mut record = Reader(self.bytes(length)?);
        // Attributes, then the time and the offset since the batch's.
        record.bytes(1)?;
        record.varint()?;
        record.varint()?;
        let _key = record.optional()?;
        let value = record.optional()?;
        let mut headers = Vec::new();
        for _ in 0..record.varint()? {
            let name = String::from_utf8(record.optional()?.context("a header without a name")?)?;
            headers.push((name, record.optional()?.unwrap_or_default()));
        }
        Ok(Record { value, headers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_as_the_java_client_writes_it_is_read() {
        // One record: no key, no value, the header a=1 twice.
        let record = [0, 0, 0, 1, 1, 4, 2, b'a', 2, b'1', 2, b'a', 2, b'1'];
        let mut batch = vec![0; HEADER];
        batch[HEADER - 1] = 1;
        batch.push(28);
        batch.extend(record);
        let length = i32::try_from(batch.len() - BEFORE_LENGTH).unwrap();
        batch[8..BEFORE_LENGTH].copy_from_slice(&length.to_be_bytes());
        let header = ("a".to_owned(), b"1".to_vec());
        assert_eq!(decode(&batch).unwrap(), [Record { value: None, headers: vec![header.clone(), header] }]);
        assert!(decode(&batch[..batch.len() - 1]).is_err());
        batch[ATTRIBUTES + 1] = 1;
        assert!(decode(&batch).unwrap_err().to_string().contains("compressed"));
    }
}
