//! Requests and responses as frames: four bytes of length, a header with a correlation id, and the message (KIP-482 and the
//! protocol guide). The messages themselves are those of `kafka-protocol`.

use crate::counts;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use thiserror::Error;

/// Largest response that is read. Metadata of all topics that a batch can name stays far below; a peer that is no Kafka broker
/// (an HTTP server answers `HTTP`, which reads as 1.2 GB) is told from one by it.
pub const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// A frame that is not what the protocol says, or that cannot be made.
#[derive(Debug, Error)]
pub enum WireError {
    /// The length of a response is negative or too large.
    #[error("its answer has a length of {0} bytes: this is no Kafka broker, or it expects TLS")]
    Length(i32),
    /// Answers must come in the order of the requests.
    #[error("its answer belongs to request {found}, not to {expected}")]
    Correlation {
        /// Of the oldest request without an answer.
        expected: i32,
        /// Of the answer.
        found: i32,
    },
    /// The content cannot be read.
    #[error("its answer cannot be read: {0}")]
    Response(String),
    /// The request does not fit the format.
    #[error("the request cannot be encoded: {0}")]
    Request(String),
}

/// A request as bytes, ready to be sent.
///
/// # Errors
/// A field does not fit the format.
pub fn encode<R: Request>(request: &R, version: i16, correlation_id: i32, client_id: &StrBytes) -> Result<Bytes, WireError> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(client_id.clone()));
    let header_version = R::header_version(version);
    let size = header.compute_size(header_version).map_err(|error| WireError::Request(error.to_string()))?
        + request.compute_size(version).map_err(|error| WireError::Request(error.to_string()))?;
    let mut frame = BytesMut::with_capacity(size + 4);
    frame.put_i32(i32::try_from(size).map_err(|_| WireError::Request("it is over 2 GiB".into()))?);
    header.encode(&mut frame, header_version).map_err(|error| WireError::Request(error.to_string()))?;
    request.encode(&mut frame, version).map_err(|error| WireError::Request(error.to_string()))?;
    Ok(frame.freeze())
}

/// Takes the first whole response out of what has been received, without its length.
///
/// # Errors
/// The length is out of bounds.
pub fn take_frame(received: &mut BytesMut) -> Result<Option<Bytes>, WireError> {
    let Some(length) = received.first_chunk::<4>().map(|bytes| i32::from_be_bytes(*bytes)) else { return Ok(None) };
    let size = usize::try_from(length).ok().filter(|size| *size <= MAX_RESPONSE_BYTES).ok_or(WireError::Length(length))?;
    if received.len() < size + 4 {
        return Ok(None);
    }
    received.advance(4);
    Ok(Some(received.split_to(size).freeze()))
}

/// Reads a response.
///
/// # Errors
/// Not the answer to this request, or not readable.
pub fn decode<R: Request>(mut frame: Bytes, version: i16, correlation_id: i32) -> Result<R::Response, WireError> {
    let header =
        ResponseHeader::decode(&mut frame, R::Response::header_version(version)).map_err(|error| WireError::Response(error.to_string()))?;
    if header.correlation_id != correlation_id {
        return Err(WireError::Correlation { expected: correlation_id, found: header.correlation_id });
    }
    if !counts::hold(R::KEY, version, &frame) {
        return Err(WireError::Response("it has less in it than it says".into()));
    }
    R::Response::decode(&mut frame, version).map_err(|error| WireError::Response(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::{MetadataRequest, MetadataResponse};

    fn response(correlation_id: i32) -> BytesMut {
        let mut body = BytesMut::new();
        ResponseHeader::default().with_correlation_id(correlation_id).encode(&mut body, 1).unwrap();
        MetadataResponse::default().with_throttle_time_ms(7).encode(&mut body, 9).unwrap();
        let mut frame = BytesMut::new();
        frame.put_i32(i32::try_from(body.len()).unwrap());
        frame.extend_from_slice(&body);
        frame
    }

    #[test]
    fn frames_are_cut_out_whole() {
        let mut received = BytesMut::new();
        let whole = response(1);
        for byte in &whole[..whole.len() - 1] {
            received.put_u8(*byte);
            assert!(take_frame(&mut received).unwrap().is_none());
        }
        received.put_u8(whole[whole.len() - 1]);
        received.extend_from_slice(&response(2)[..]);
        let first = take_frame(&mut received).unwrap().unwrap();
        assert_eq!(decode::<MetadataRequest>(first, 9, 1).unwrap().throttle_time_ms, 7);
        let second = take_frame(&mut received).unwrap().unwrap();
        assert!(matches!(decode::<MetadataRequest>(second, 9, 1), Err(WireError::Correlation { expected: 1, found: 2 })));
        assert!(received.is_empty());
    }

    #[test]
    fn what_is_no_kafka_is_told() {
        for start in [&b"HTTP/1.1"[..], &[0xff, 0xff, 0xff, 0xff], &[0x15, 0x03, 0x03, 0x00]] {
            assert!(matches!(take_frame(&mut BytesMut::from(start)), Err(WireError::Length(_))), "{start:?}");
        }
        assert!(matches!(decode::<MetadataRequest>(Bytes::from_static(&[0, 0, 0, 1, 0, 0]), 9, 1), Err(WireError::Response(_))));
    }

    #[test]
    fn a_request_says_its_own_length() {
        let frame = encode(&MetadataRequest::default(), 9, 5, &StrBytes::from_static_str("outhaul")).unwrap();
        let (length, rest) = frame.split_first_chunk::<4>().unwrap();
        assert_eq!(usize::try_from(i32::from_be_bytes(*length)).unwrap(), rest.len());
        assert_eq!(&rest[..8], [0, 3, 0, 9, 0, 0, 0, 5]);
    }
}
