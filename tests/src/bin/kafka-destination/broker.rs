//! The broker: one node, every topic with many partitions, and what is scripted in the place of a log.

use crate::records::{self, Record};
use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::metadata_response::{MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic};
use kafka_protocol::messages::produce_response::{BatchIndexAndErrorMessage, PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, BrokerId, InitProducerIdRequest, InitProducerIdResponse, MetadataRequest,
    MetadataResponse, ProduceRequest, ProduceResponse, RequestHeader, ResponseHeader, api_versions_response::ApiVersion,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes, decode_request_header_from_buffer};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many that a few keys do not meet in one, nor messages without a key one of these: a batch of a partition fails as a whole, and the kit
/// wants a message of another key delivered. Messages without a key begin anywhere, so that is left to chance, once in some thousand runs.
const PARTITIONS: i32 = 4096;

/// Largest request, as `socket.request.max.bytes` of a broker.
const MOST_BYTES: usize = 100 << 20;

const OK: i16 = 0;
const MESSAGE_TOO_LARGE: i16 = 10;
const NOT_ENOUGH_REPLICAS: i16 = 19;
const TOPIC_AUTHORIZATION_FAILED: i16 = 29;
const UNSUPPORTED_VERSION: i16 = 35;
const INVALID_RECORD: i16 = 87;

/// What is done with an attempt at a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    Accept,
    Unavailable,
    Invalid,
    TooLarge,
    Unauthorized,
    Slow { ms: u64 },
    Silent,
    Broken,
}

/// The script, and what has arrived.
#[derive(Default)]
pub(crate) struct State {
    script: HashMap<String, Vec<Answer>>,
    earlier: HashMap<String, usize>,
    pub(crate) received: Vec<Value>,
}

impl State {
    /// Nothing has arrived yet.
    pub(crate) fn of(script: HashMap<String, Vec<Answer>>) -> Self {
        Self { script, ..Self::default() }
    }

    fn answer(&mut self, id: &str) -> Answer {
        let earlier = self.earlier.entry(id.to_owned()).or_default();
        let number = *earlier;
        *earlier += 1;
        let answers = self.script.get(id).map(Vec::as_slice).unwrap_or_default();
        answers.get(number).or(answers.last()).copied().unwrap_or(Answer::Accept)
    }
}

/// The broker, as long as the process lives.
pub(crate) struct Broker {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Broker {
    pub(crate) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no port for the broker")?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || {
                    if let Err(error) = serve(stream, address, &state) {
                        eprintln!("a connection ended: {error:#}");
                    }
                });
            }
        });
        Ok(Self { address, state })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What becomes of a request as a whole.
enum Fate {
    Answered(BytesMut),
    Unanswered,
    Broken(BytesMut),
}

fn serve(mut stream: TcpStream, address: SocketAddr, state: &Mutex<State>) -> Result<()> {
    loop {
        let mut length = [0; 4];
        if stream.read_exact(&mut length).is_err() {
            return Ok(());
        }
        let length = usize::try_from(i32::from_be_bytes(length))?;
        if length > MOST_BYTES {
            bail!("a request of {length} bytes");
        }
        let mut frame = vec![0; length];
        stream.read_exact(&mut frame)?;
        match handle(frame.into(), address, state)? {
            Fate::Answered(answer) => stream.write_all(&framed(&answer)?)?,
            Fate::Unanswered => {}
            Fate::Broken(answer) => {
                let answer = framed(&answer)?;
                stream.write_all(&answer[..answer.len() / 2])?;
                return Ok(());
            }
        }
    }
}

fn framed(answer: &[u8]) -> Result<Vec<u8>> {
    Ok([&i32::try_from(answer.len())?.to_be_bytes(), answer].concat())
}

fn encoded<R: Request>(header: &RequestHeader, version: i16, response: &R::Response) -> Result<BytesMut> {
    let mut body = BytesMut::new();
    ResponseHeader::default().with_correlation_id(header.correlation_id).encode(&mut body, R::Response::header_version(version))?;
    response.encode(&mut body, version)?;
    Ok(body)
}

fn handle(mut frame: Bytes, address: SocketAddr, state: &Mutex<State>) -> Result<Fate> {
    let header = decode_request_header_from_buffer(&mut frame)?;
    let version = header.request_api_version;
    let answer = match ApiKey::try_from(header.request_api_key) {
        Ok(ApiKey::ApiVersions) => {
            // As a broker that knows version 0 only (KIP-511).
            let code = if version > 0 { UNSUPPORTED_VERSION } else { OK };
            let api = |key: ApiKey, max| ApiVersion::default().with_api_key(key as i16).with_min_version(0).with_max_version(max);
            let apis = vec![api(ApiKey::Produce, 9), api(ApiKey::Metadata, 7), api(ApiKey::InitProducerId, 1)];
            encoded::<ApiVersionsRequest>(&header, 0, &ApiVersionsResponse::default().with_error_code(code).with_api_keys(apis))?
        }
        Ok(ApiKey::Metadata) => {
            let request = MetadataRequest::decode(&mut frame, version)?;
            encoded::<MetadataRequest>(&header, version, &metadata(&request, address))?
        }
        Ok(ApiKey::InitProducerId) => {
            encoded::<InitProducerIdRequest>(&header, version, &InitProducerIdResponse::default().with_producer_id(1.into()))?
        }
        Ok(ApiKey::Produce) => {
            let request = ProduceRequest::decode(&mut frame, version)?;
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let (response, fate) = produce(&request, &mut state)?;
            drop(state);
            let answer = encoded::<ProduceRequest>(&header, version, &response)?;
            return Ok(match fate {
                Answer::Silent => Fate::Unanswered,
                Answer::Broken => Fate::Broken(answer),
                Answer::Slow { ms } => {
                    std::thread::sleep(Duration::from_millis(ms));
                    Fate::Answered(answer)
                }
                _ => Fate::Answered(answer),
            });
        }
        other => bail!("an unexpected request: {other:?}"),
    };
    Ok(Fate::Answered(answer))
}

fn metadata(request: &MetadataRequest, address: SocketAddr) -> MetadataResponse {
    let host = StrBytes::from_string(address.ip().to_string());
    let broker = MetadataResponseBroker::default().with_node_id(BrokerId(1)).with_host(host).with_port(address.port().into());
    let partition = |index| MetadataResponsePartition::default().with_partition_index(index).with_leader_id(BrokerId(1));
    let named = request.topics.iter().flatten().map(|topic| {
        MetadataResponseTopic::default().with_name(topic.name.clone()).with_partitions((0..PARTITIONS).map(partition).collect())
    });
    MetadataResponse::default().with_brokers(vec![broker]).with_topics(named.collect())
}

/// The answer, and what is done with it.
fn produce(request: &ProduceRequest, state: &mut State) -> Result<(ProduceResponse, Answer)> {
    let (mut topics, mut fate, mut arrived) = (Vec::new(), Answer::Accept, Vec::new());
    for topic in &request.topic_data {
        let mut partitions = Vec::new();
        for part in &topic.partition_data {
            let records = records::decode(part.records.as_deref().unwrap_or_default())?;
            let ids: Vec<_> = records.iter().map(id_of).collect();
            let answers: Vec<Answer> = ids.iter().map(|(id, _)| state.answer(id)).collect();
            let has = |answer: Answer| answers.contains(&answer);
            if let Some(slow) = answers.iter().find(|answer| matches!(answer, Answer::Slow { .. })) {
                fate = *slow;
            }
            for whole in [Answer::Silent, Answer::Broken] {
                if has(whole) {
                    fate = whole;
                }
            }
            let mut response = PartitionProduceResponse::default().with_index(part.index);
            let codes = [
                (Answer::Invalid, INVALID_RECORD),
                (Answer::TooLarge, MESSAGE_TOO_LARGE),
                (Answer::Unauthorized, TOPIC_AUTHORIZATION_FAILED),
                (Answer::Unavailable, NOT_ENOUGH_REPLICAS),
            ];
            response.error_code = codes.into_iter().find(|(answer, _)| has(*answer)).map_or(OK, |(_, code)| code);
            for (index, _) in answers.iter().enumerate().filter(|(_, answer)| **answer == Answer::Invalid) {
                response.record_errors.push(BatchIndexAndErrorMessage::default().with_batch_index(i32::try_from(index)?));
            }
            let written = response.error_code == OK;
            arrived.extend(records.into_iter().zip(ids).map(|(record, id)| (record, id, written)));
            partitions.push(response);
        }
        topics.push(TopicProduceResponse::default().with_name(topic.name.clone()).with_partition_responses(partitions));
    }
    let heard = !matches!(fate, Answer::Silent | Answer::Broken);
    state.received.extend(arrived.iter().map(|(record, (id, carries_id), written)| described(record, id, *carries_id, *written && heard)));
    Ok((ProduceResponse::default().with_responses(topics), fate))
}

/// The id of a message, and whether it came with it, and not only in what its payload tells.
fn id_of(record: &Record) -> (String, bool) {
    let header = record.headers.iter().map(|(_, value)| value).find(|value| value.starts_with(b"kit-"));
    if let Some(id) = header {
        return (String::from_utf8_lossy(id).into_owned(), true);
    }
    let payload = record.value.as_deref().unwrap_or_default();
    let digits = payload.strip_prefix(b"tok-").and_then(|rest| rest.get(..12)).unwrap_or_default();
    (format!("kit-{}", String::from_utf8_lossy(digits)), false)
}

fn described(record: &Record, id: &str, carries_id: bool, accepted: bool) -> Value {
    let headers: Vec<Value> = record.headers.iter().map(|(name, value)| json!([name, bytes(value)])).collect();
    let payload = record.value.as_deref().map(bytes);
    json!({ "id": id, "carries_id": carries_id, "payload": payload, "headers": headers, "accepted": accepted })
}

fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}
