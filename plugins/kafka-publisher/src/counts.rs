//! Looks through a response before it is decoded: whether there is as much in its lists as they say. `kafka-protocol` makes room for
//! what a count says before it has seen any of it, so one that lies would ask for more memory than there is and end the process.
//!
//! Field by field as in the protocol guide, and in the order in which `kafka-protocol` reads, which believes tags that it knows, not
//! the sizes with them.

use kafka_protocol::messages::ApiKey;

/// Whether a response without its header can be decoded within the memory that its own size suggests. Whether it makes sense is said by
/// the decoder.
#[must_use]
pub fn hold(key: i16, version: i16, body: &[u8]) -> bool {
    let fields = match ApiKey::try_from(key) {
        Ok(ApiKey::ApiVersions) => api_versions,
        Ok(ApiKey::Metadata) => metadata,
        Ok(ApiKey::Produce) => produce,
        Ok(ApiKey::SaslHandshake) => sasl_handshake,
        // The others that are spoken have no lists.
        _ => return true,
    };
    let compact = match ApiKey::try_from(key) {
        Ok(ApiKey::ApiVersions) => version >= 3,
        Ok(ApiKey::Metadata | ApiKey::Produce) => version >= 9,
        _ => false,
    };
    fields(&mut Walk { rest: body, compact }, version).is_some()
}

fn api_versions(walk: &mut Walk<'_>, version: i16) -> Option<()> {
    walk.skip(2)?;
    walk.list(|walk| {
        walk.skip(6)?;
        walk.tags(|_, _| None)
    })?;
    if version >= 1 {
        walk.skip(4)?;
    }
    let features = |walk: &mut Walk<'_>| {
        walk.list(|walk| {
            walk.text()?;
            walk.skip(4)?;
            walk.tags(|_, _| None)
        })
    };
    walk.tags(|walk, tag| match tag {
        0 | 2 => Some(features(walk)),
        1 => Some(walk.skip(8)),
        3 => Some(walk.skip(1)),
        _ => None,
    })
}

/// From version 4.
fn metadata(walk: &mut Walk<'_>, version: i16) -> Option<()> {
    let numbers = |walk: &mut Walk<'_>| walk.list(|walk| walk.skip(4));
    walk.skip(4)?;
    walk.list(|walk| {
        walk.skip(4)?;
        walk.text()?;
        walk.skip(4)?;
        walk.text()?;
        walk.tags(|_, _| None)
    })?;
    walk.text()?;
    walk.skip(4)?;
    walk.list(|walk| {
        walk.skip(2)?;
        walk.text()?;
        walk.skip(if version >= 10 { 17 } else { 1 })?;
        walk.list(|walk| {
            walk.skip(if version >= 7 { 14 } else { 10 })?;
            numbers(walk)?;
            numbers(walk)?;
            if version >= 5 {
                numbers(walk)?;
            }
            walk.tags(|_, _| None)
        })?;
        if version >= 8 {
            walk.skip(4)?;
        }
        walk.tags(|_, _| None)
    })?;
    if (8..=10).contains(&version) {
        walk.skip(4)?;
    }
    walk.tags(|_, _| None)
}

/// From version 3 to 12.
fn produce(walk: &mut Walk<'_>, version: i16) -> Option<()> {
    walk.list(|walk| {
        walk.text()?;
        walk.list(|walk| {
            walk.skip(if version >= 5 { 30 } else { 22 })?;
            if version >= 8 {
                walk.list(|walk| {
                    walk.skip(4)?;
                    walk.text()?;
                    walk.tags(|_, _| None)
                })?;
                walk.text()?;
            }
            walk.tags(|walk, tag| (tag == 0 && version >= 10).then(|| walk.skip(8).and_then(|()| walk.tags(|_, _| None))))
        })?;
        walk.tags(|_, _| None)
    })?;
    walk.skip(4)?;
    walk.tags(|walk, tag| {
        (tag == 0 && version >= 10).then(|| {
            walk.list(|walk| {
                walk.skip(4)?;
                walk.text()?;
                walk.skip(4)?;
                walk.text()?;
                walk.tags(|_, _| None)
            })
        })
    })
}

fn sasl_handshake(walk: &mut Walk<'_>, _version: i16) -> Option<()> {
    walk.skip(2)?;
    walk.list(Walk::text)
}

/// What has not been looked through yet. Each step is none where there is less than it needs.
struct Walk<'a> {
    rest: &'a [u8],
    /// Lengths are varints, and there are tags (KIP-482).
    compact: bool,
}

impl Walk<'_> {
    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.rest = self.rest.get(bytes..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u32> {
        let mut value = 0;
        for shift in [0, 7, 14, 21, 28] {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A text, or none.
    fn text(&mut self) -> Option<()> {
        let length = if self.compact {
            self.varint()?.saturating_sub(1)
        } else {
            let (length, rest) = self.rest.split_first_chunk::<2>()?;
            self.rest = rest;
            u32::try_from(i16::from_be_bytes(*length).max(0)).ok()?
        };
        self.skip(usize::try_from(length).ok()?)
    }

    /// A list, or none. Nothing in a list is empty, so one that says too much ends early.
    fn list(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        let count = if self.compact {
            self.varint()?.saturating_sub(1)
        } else {
            let (count, rest) = self.rest.split_first_chunk::<4>()?;
            self.rest = rest;
            u32::try_from(i32::from_be_bytes(*count).max(0)).ok()?
        };
        (0..count).try_for_each(|_| item(self))
    }

    /// Tagged fields. `known` walks those that are read as what they are.
    fn tags(&mut self, known: impl Fn(&mut Self, u32) -> Option<Option<()>>) -> Option<()> {
        if !self.compact {
            return Some(());
        }
        for _ in 0..self.varint()? {
            let (tag, size) = (self.varint()?, self.varint()?);
            match known(self, tag) {
                Some(walked) => walked?,
                None => self.skip(usize::try_from(size).ok()?)?,
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Spoken;
    use crate::wire;
    use bytes::{Bytes, BytesMut};
    use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
    use kafka_protocol::messages::metadata_response::{MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic};
    use kafka_protocol::messages::produce_response::{
        BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
    };
    use kafka_protocol::messages::{
        ApiVersionsRequest, ApiVersionsResponse, BrokerId, MetadataRequest, MetadataResponse, ProduceRequest, ProduceResponse,
        ResponseHeader, SaslHandshakeRequest, SaslHandshakeResponse, TopicName,
    };
    use kafka_protocol::protocol::{Encodable, HeaderVersion, Request, StrBytes};

    fn text(text: &'static str) -> StrBytes {
        StrBytes::from_static_str(text)
    }

    fn api_versions_response(version: i16) -> ApiVersionsResponse {
        let apis = vec![ApiVersion::default().with_max_version(12); 3];
        let response = ApiVersionsResponse::default().with_api_keys(apis);
        if version < 3 {
            return response;
        }
        response
            .with_supported_features(vec![SupportedFeatureKey::default().with_name(text("metadata.version")).with_max_version(20); 2])
            .with_finalized_features_epoch(7)
            .with_finalized_features(vec![FinalizedFeatureKey::default().with_name(text("kraft.version"))])
            .with_zk_migration_ready(true)
    }

    fn metadata_response() -> MetadataResponse {
        let broker = MetadataResponseBroker::default().with_host(text("kafka-1.example.com")).with_rack(Some(text("a")));
        let nodes = vec![BrokerId(1), BrokerId(2)];
        let partition = MetadataResponsePartition::default().with_replica_nodes(nodes.clone()).with_isr_nodes(nodes);
        let topic = MetadataResponseTopic::default().with_name(Some(TopicName(text("orders")))).with_partitions(vec![partition; 3]);
        MetadataResponse::default().with_brokers(vec![broker; 2]).with_cluster_id(Some(text("c"))).with_topics(vec![topic; 2])
    }

    fn produce_response(version: i16) -> ProduceResponse {
        let mut part = PartitionProduceResponse::default().with_error_code(6);
        if version >= 8 {
            let blamed = BatchIndexAndErrorMessage::default().with_batch_index_error_message(Some(text("no key")));
            part = part.with_record_errors(vec![blamed; 2]).with_error_message(Some(text("invalid")));
        }
        if version >= 10 {
            part = part.with_current_leader(LeaderIdAndEpoch::default().with_leader_id(BrokerId(3)).with_leader_epoch(9));
        }
        let topic = TopicProduceResponse::default().with_name(TopicName(text("orders"))).with_partition_responses(vec![part; 2]);
        let response = ProduceResponse::default().with_responses(vec![topic; 2]);
        if version < 10 {
            return response;
        }
        response.with_node_endpoints(vec![NodeEndpoint::default().with_host(text("kafka-3.example.com")); 2])
    }

    /// What is as it should be passes. With any byte replaced by the beginning of a huge number, decoding says whether it can be read, in
    /// the memory that there is.
    fn check<R: Request>(version: i16, response: &R::Response) {
        let mut body = BytesMut::new();
        response.encode(&mut body, version).unwrap();
        let header = |body: &[u8]| {
            let mut frame = BytesMut::new();
            ResponseHeader::default().encode(&mut frame, R::Response::header_version(version)).unwrap();
            frame.extend_from_slice(body);
            frame.freeze()
        };
        assert!(hold(R::KEY, version, &body), "{} {version}", R::KEY);
        wire::decode::<R>(header(&body), version, 0).unwrap();
        for length in 0..body.len() {
            assert!(!hold(R::KEY, version, &body[..length]), "{} {version}: {length} bytes of {}", R::KEY, body.len());
        }
        let huge: [&[u8]; 2] = [&[0x7f, 0xff, 0xff, 0xff], &[0xff, 0xff, 0xff, 0xff, 0x0f]];
        for (place, huge) in (0..body.len()).flat_map(|place| huge.map(|huge| (place, huge))) {
            let tail = if huge.len() == 4 { place + 4 } else { place + 1 };
            let lying = [&body[..place], huge, body.get(tail..).unwrap_or_default()].concat();
            // Not a panic, and not an abort.
            let _ = wire::decode::<R>(header(&lying), version, 0);
        }
    }

    #[test]
    fn no_count_is_believed() {
        for version in [0, 3] {
            check::<ApiVersionsRequest>(version, &api_versions_response(version));
        }
        for version in MetadataRequest::SPOKEN.min..=MetadataRequest::SPOKEN.max {
            check::<MetadataRequest>(version, &metadata_response());
        }
        for version in ProduceRequest::SPOKEN.min..=ProduceRequest::SPOKEN.max {
            check::<ProduceRequest>(version, &produce_response(version));
        }
        let offered = vec![text("PLAIN"), text("SCRAM-SHA-512")];
        check::<SaslHandshakeRequest>(1, &SaslHandshakeResponse::default().with_mechanisms(offered));
        // Their bytes, in the first list of each.
        for (key, version, body) in [(18, 0, "0000 7fffffff"), (3, 4, "00000000 7fffffff"), (0, 3, "7fffffff"), (17, 1, "0000 7fffffff")] {
            let body: String = body.split(' ').collect();
            let bytes: Bytes = (0..body.len() / 2).map(|at| u8::from_str_radix(&body[at * 2..at * 2 + 2], 16).unwrap()).collect();
            assert!(!hold(key, version, &bytes), "{key}");
        }
    }
}
