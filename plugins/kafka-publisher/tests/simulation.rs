//! The producer against a cluster in memory that does everything wrong that a real one may do: leaders move, answers get lost
//! before or after the write, late requests arrive after their repetition, producers are forgotten. Its broker treats sequences as
//! Kafka's `ProducerAppendInfo` does, first sequences of unknown producers included.
//!
//! Whatever happens: nothing that was called delivered is missing, and the messages of a key appear for the first time in their order.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests stop at the first surprise"
)]

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::metadata_response::{MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic};
use kafka_protocol::messages::produce_response::{BatchIndexAndErrorMessage, PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, BrokerId, InitProducerIdRequest, InitProducerIdResponse, MetadataRequest,
    MetadataResponse, ProduceRequest, ProduceResponse, RequestHeader, ResponseHeader, api_versions_response::ApiVersion,
};
use kafka_protocol::protocol::{Decodable, Encodable, Request, StrBytes, decode_request_header_from_buffer};
use kafka_protocol::records::RecordBatchDecoder;
use kafka_publisher::config::Settings;
use kafka_publisher::producer::{Producer, Surroundings};
use kafka_publisher::transport::{Connector, Transport};
use outhaul_sdk::{Batch, FailureCode, NewMessage, Outcome};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::{Duration, Instant};

const BROKERS: i32 = 3;
const PARTITIONS: i32 = 4;
const TOPICS: [&str; 2] = ["even", "odd"];
/// Larger batches are refused, as with `max.message.bytes`.
const MAX_BATCH: usize = 1500;

type Place = (String, i32);

/// What a broker remembers of a producer in a partition.
#[derive(Default)]
struct Known {
    next: i32,
    /// First sequence and count of the last five batches.
    last: VecDeque<(i32, i32)>,
}

struct World {
    random: u64,
    /// Of a hundred events, so many go wrong.
    faults: u64,
    leaders: HashMap<Place, i32>,
    producers: HashMap<(i64, Place), Known>,
    next_producer: i64,
    /// Ids in the order in which they were written, over all partitions.
    written: Vec<String>,
    /// Requests that are still under way on connections that are gone.
    late: Vec<ProduceRequest>,
    /// Whether brokers take produce requests and say nothing.
    silent: bool,
    /// Nothing goes wrong but that a broker cannot say whether it has written, or that its answer gets lost.
    only_unsure: bool,
    /// So often the first batch of a producer in a partition is written and answered with a time-out.
    unsure_of_first: u32,
    /// Brokers that cannot be reached: the attempt takes all the time that it has.
    unreachable: HashSet<i32>,
    /// Brokers that the host does not allow.
    denied: HashSet<i32>,
    /// Brokers that take produce requests and say nothing.
    mute: HashSet<i32>,
    /// Attempts to connect, by broker.
    connects: HashMap<i32, usize>,
    /// Batches that were too large.
    too_large: usize,
    /// Messages whose outcome was told, and how many those were at the first long wait.
    told: HashSet<usize>,
    told_before_waiting: Option<usize>,
}

impl World {
    fn new(seed: u64, faults: u64) -> Self {
        Self {
            random: seed,
            faults,
            leaders: HashMap::new(),
            producers: HashMap::new(),
            next_producer: 0,
            written: Vec::new(),
            late: Vec::new(),
            silent: false,
            only_unsure: false,
            unsure_of_first: 0,
            unreachable: HashSet::new(),
            denied: HashSet::new(),
            mute: HashSet::new(),
            connects: HashMap::new(),
            too_large: 0,
            told: HashSet::new(),
            told_before_waiting: None,
        }
    }

    fn waits(&mut self) {
        self.told_before_waiting.get_or_insert(self.told.len());
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % sides
    }

    /// Something that only `produce` and lost answers may do in a world where nothing else goes wrong.
    fn fault(&mut self) -> bool {
        !self.only_unsure && self.unsure()
    }

    fn unsure(&mut self) -> bool {
        self.roll(100) < self.faults
    }

    fn leader(&mut self, place: &Place) -> i32 {
        *self.leaders.entry(place.clone()).or_insert(1 + place.1 % BROKERS)
    }

    /// Late requests arrive when nobody expects them any more.
    fn deliver_late(&mut self) {
        if !self.late.is_empty() && self.roll(3) == 0 {
            let at = usize::try_from(self.roll(self.late.len() as u64)).unwrap();
            let request = self.late.swap_remove(at);
            for topic in &request.topic_data {
                for part in &topic.partition_data {
                    let place = (topic.name.0.to_string(), part.index);
                    self.append(&place, part.records.clone().unwrap());
                }
            }
        }
    }

    /// What the leader's log does. The error code, and the record at fault.
    fn append(&mut self, place: &Place, records: Bytes) -> (i16, Option<i32>) {
        let size = records.len();
        let set = RecordBatchDecoder::decode(&mut records.clone()).unwrap();
        let first = &set.records[0];
        let count = i32::try_from(set.records.len()).unwrap();
        let ids = set.records.iter().map(|record| {
            let id = record.headers.get(&StrBytes::from_static_str("outhaul-id")).unwrap().clone().unwrap();
            String::from_utf8(id.to_vec()).unwrap()
        });
        let ids: Vec<String> = ids.collect();
        if size > MAX_BATCH {
            self.too_large += 1;
            return (10, None);
        }
        if let Some(poison) = ids.iter().position(|id| id.ends_with("poison")) {
            return (87, Some(i32::try_from(poison).unwrap()));
        }
        let producer = (first.producer_id, place.clone());
        if let Some(known) = self.producers.get(&producer) {
            if known.last.contains(&(first.sequence, count)) {
                return (0, None);
            }
            if first.sequence != known.next {
                return (45, None);
            }
        }
        let known = self.producers.entry(producer).or_default();
        known.next = first.sequence + count;
        known.last.push_back((first.sequence, count));
        if known.last.len() > 5 {
            known.last.pop_front();
        }
        self.written.extend(ids);
        (0, None)
    }

    fn produce(&mut self, broker: i32, request: &ProduceRequest) -> ProduceResponse {
        let mut topics = Vec::new();
        for topic in &request.topic_data {
            let mut parts = Vec::new();
            for part in &topic.partition_data {
                let place = (topic.name.0.to_string(), part.index);
                let mut answer = PartitionProduceResponse::default().with_index(part.index);
                let mut fault = match self.unsure() {
                    true if self.only_unsure => 2 + self.roll(2),
                    true => self.roll(6),
                    false => u64::MAX,
                };
                if self.unsure_of_first > 0 && part.records.as_ref().unwrap()[53..57] == [0; 4] {
                    self.unsure_of_first -= 1;
                    fault = 2;
                }
                if self.leader(&place) != broker {
                    fault = 0;
                }
                if fault == 5 {
                    self.producers.clear();
                }
                match fault {
                    0 => {
                        let leader = 1 + i32::try_from(self.roll(3)).unwrap();
                        self.leaders.insert(place, leader);
                        answer.error_code = 6;
                    }
                    1 => answer.error_code = 19,
                    2 | 3 => {
                        let (code, at_fault) = self.append(&place, part.records.clone().unwrap());
                        answer.error_code = if code == 0 && at_fault.is_none() { [7, 20][usize::try_from(fault).unwrap() - 2] } else { 19 };
                    }
                    4 => answer.error_code = -1,
                    _ => {
                        let (code, at_fault) = self.append(&place, part.records.clone().unwrap());
                        answer.error_code = code;
                        answer.record_errors.extend(at_fault.map(|index| BatchIndexAndErrorMessage::default().with_batch_index(index)));
                    }
                }
                parts.push(answer);
            }
            topics.push(TopicProduceResponse::default().with_name(topic.name.clone()).with_partition_responses(parts));
        }
        ProduceResponse::default().with_responses(topics)
    }

    fn metadata(&mut self, request: &MetadataRequest) -> MetadataResponse {
        let broker = |id| {
            let host = StrBytes::from_static_str("sim");
            MetadataResponseBroker::default().with_node_id(BrokerId(id)).with_host(host).with_port(id)
        };
        let mut topics = Vec::new();
        for topic in request.topics.iter().flatten() {
            let name = topic.name.clone().unwrap();
            let mut partitions = Vec::new();
            for index in 0..PARTITIONS {
                let place = (name.0.to_string(), index);
                let leader = if self.fault() { -1 } else { self.leader(&place) };
                partitions.push(MetadataResponsePartition::default().with_partition_index(index).with_leader_id(BrokerId(leader)));
            }
            topics.push(MetadataResponseTopic::default().with_name(Some(name)).with_partitions(partitions));
        }
        MetadataResponse::default().with_brokers((1..=BROKERS).map(broker).collect()).with_topics(topics)
    }
}

#[derive(Clone)]
struct Sim(Rc<RefCell<World>>);

struct Wire {
    world: Rc<RefCell<World>>,
    broker: i32,
    sent: BytesMut,
    answers: BytesMut,
    closed: bool,
}

impl Connector for Sim {
    type Transport = Wire;

    fn connect(&self, _host: &str, port: u16, deadline: Instant) -> io::Result<Wire> {
        let broker = i32::from(port);
        *self.0.borrow_mut().connects.entry(broker).or_default() += 1;
        if self.0.borrow().denied.contains(&broker) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        if self.0.borrow().unreachable.contains(&broker) {
            self.0.borrow_mut().waits();
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            return Err(ErrorKind::TimedOut.into());
        }
        if self.0.borrow_mut().fault() {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let (sent, answers) = (BytesMut::new(), BytesMut::new());
        Ok(Wire { world: Rc::clone(&self.0), broker, sent, answers, closed: false })
    }
}

impl Wire {
    fn answer<R: Request>(&mut self, header: &RequestHeader, response: &R::Response) {
        use kafka_protocol::protocol::HeaderVersion;
        let version = header.request_api_version;
        let mut body = BytesMut::new();
        let response_header = ResponseHeader::default().with_correlation_id(header.correlation_id);
        response_header.encode(&mut body, R::Response::header_version(version)).unwrap();
        response.encode(&mut body, version).unwrap();
        self.answers.put_i32(i32::try_from(body.len()).unwrap());
        self.answers.extend_from_slice(&body);
    }

    fn handle(&mut self, mut frame: Bytes) {
        let header = decode_request_header_from_buffer(&mut frame).unwrap();
        let version = header.request_api_version;
        let world = Rc::clone(&self.world);
        let mut world = world.borrow_mut();
        match ApiKey::try_from(header.request_api_key).unwrap() {
            ApiKey::ApiVersions => {
                // As a broker that knows version 0 only.
                let code = if version > 0 { 35 } else { 0 };
                let api = |key: ApiKey, max| ApiVersion::default().with_api_key(key as i16).with_min_version(0).with_max_version(max);
                let apis = vec![api(ApiKey::Produce, 9), api(ApiKey::Metadata, 7), api(ApiKey::InitProducerId, 1)];
                let response = ApiVersionsResponse::default().with_error_code(code).with_api_keys(apis);
                let header = header.with_request_api_version(0);
                self.answer::<ApiVersionsRequest>(&header, &response);
            }
            ApiKey::Metadata => {
                let response = world.metadata(&MetadataRequest::decode(&mut frame, version).unwrap());
                self.answer::<MetadataRequest>(&header, &response);
            }
            ApiKey::InitProducerId => {
                world.next_producer += 1;
                let response = InitProducerIdResponse::default().with_producer_id(world.next_producer.into());
                self.answer::<InitProducerIdRequest>(&header, &response);
            }
            ApiKey::Produce => {
                let request = ProduceRequest::decode(&mut frame, version).unwrap();
                assert_eq!(request.acks, -1, "by all replicas in sync");
                if world.silent || world.mute.contains(&self.broker) {
                    return world.late.push(request);
                }
                if world.unsure() {
                    self.closed = true;
                    match if world.only_unsure { 2 } else { world.roll(3) } {
                        // Never arrives, arrives late, arrives but the answer does not.
                        0 => {}
                        1 => world.late.push(request),
                        _ => drop(world.produce(self.broker, &request)),
                    }
                    return;
                }
                world.deliver_late();
                let response = world.produce(self.broker, &request);
                self.answer::<ProduceRequest>(&header, &response);
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Transport for Wire {
    fn send(&mut self, bytes: &[u8], _deadline: Instant) -> io::Result<()> {
        self.sent.extend_from_slice(bytes);
        while !self.closed && self.sent.len() >= 4 {
            let length = usize::try_from(i32::from_be_bytes(self.sent[..4].try_into().unwrap())).unwrap();
            assert_eq!(self.sent.len(), length + 4, "requests are sent whole");
            self.sent.advance(4);
            let frame = self.sent.split().freeze();
            self.handle(frame);
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
        // As a socket does: it has no time to look.
        if Instant::now() >= deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        // In pieces, as from a network.
        let count = self.answers.len().min(buffer.len()).min(61);
        if count == 0 && !self.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            let mute = self.world.borrow().mute.contains(&self.broker);
            if mute && left > Duration::from_millis(50) {
                self.world.borrow_mut().waits();
            }
            if mute || self.world.borrow().silent {
                std::thread::sleep(left);
            }
            return Err(ErrorKind::TimedOut.into());
        }
        buffer[..count].copy_from_slice(&self.answers.split_to(count));
        Ok(count)
    }
}

struct NoTime;

impl Surroundings for NoTime {
    fn wall_ms(&self) -> i64 {
        1_700_000_000_000
    }
    fn secret(&self, _name: &str) -> Option<String> {
        None
    }
    fn report(&self, _index: usize, _outcome: &Outcome) {}
    fn pause(&self, _pause: Duration) {}
}

/// What the host does: messages of a key in their order, each again until it is delivered or dead, from two lanes.
fn run(seed: u64, faults: u64, in_flight: usize) {
    let sim = Sim(Rc::new(RefCell::new(World::new(seed, faults))));
    let config = format!(r#"{{"brokers":["sim:1","sim:2"],"max_request_bytes":1024,"in_flight":{in_flight}}}"#);
    let mut lanes = [0, 1].map(|turn| Producer::new(Settings::parse(&config).unwrap(), sim.clone(), turn));

    let mut queues: Vec<VecDeque<String>> = (0..8)
        .map(|key| (0..25).map(|number| format!("{key}-{number}{}", if key == 3 && number % 9 == 4 { "-poison" } else { "" })).collect())
        .collect();
    let all = queues.clone();
    let (mut delivered, mut dead) = (HashSet::new(), HashSet::new());
    let mut calls = 0;
    while queues.iter().any(|queue| !queue.is_empty()) {
        calls += 1;
        assert!(calls < 5000, "no end");
        if calls > 200 {
            sim.0.borrow_mut().faults = 0;
        }
        let mut batch = Batch::new();
        let mut sent = Vec::new();
        for (key, queue) in queues.iter().enumerate() {
            let take = usize::try_from(sim.0.borrow_mut().roll(8)).unwrap();
            for (number, id) in queue.iter().take(take).enumerate() {
                let key_text = format!("key-{key}");
                // One key's messages go to different topics and partitions: their order holds all the same.
                let topic = TOPICS[(key + id.len()) % 2];
                let payload = vec![b'x'; 20 + number * 31];
                batch.push(&NewMessage { id, topic, key: Some(&key_text), payload: Some(&payload), ..NewMessage::default() });
                sent.push((key, id.clone()));
            }
        }
        let lane = usize::try_from(sim.0.borrow_mut().roll(2)).unwrap();
        // Some calls end before they have come to anything.
        let hurry = faults > 0 && sim.0.borrow_mut().roll(4) == 0;
        let deadline = if hurry { sim.0.borrow_mut().roll(4) } else { 400 };
        let outcomes = lanes[lane].publish(&batch, Duration::from_millis(deadline), &NoTime);
        assert_eq!(outcomes.len(), sent.len());
        let mut failed = HashSet::new();
        for ((key, id), outcome) in sent.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Delivered => {
                    assert!(!failed.contains(&key), "{id} was delivered behind a failure");
                    assert_eq!(queues[key].pop_front(), Some(id.clone()));
                    delivered.insert(id);
                }
                Outcome::Reject(failure) => {
                    assert!(
                        failed.insert(key) && id.ends_with("poison") && failure.code == FailureCode::InvalidMessage,
                        "{id}: {failure:?}"
                    );
                    assert_eq!(queues[key].pop_front(), Some(id.clone()));
                    dead.insert(id);
                }
                Outcome::Retry(_) => assert!(failed.insert(key), "{id}"),
                Outcome::Held => assert!(failed.contains(&key) || faults > 0, "{id}"),
            }
        }
    }

    let written = &sim.0.borrow().written;
    let present: HashSet<&String> = written.iter().collect();
    assert!(delivered.iter().all(|id| present.contains(id)), "lost");
    assert!(dead.iter().all(|id| !present.contains(id)));
    assert_eq!(delivered.len() + dead.len(), all.iter().map(VecDeque::len).sum::<usize>());
    for queue in &all {
        let mut seen = HashSet::new();
        let first: Vec<&String> = written.iter().filter(|id| queue.contains(id) && seen.insert(*id)).collect();
        let expected: Vec<&String> = queue.iter().filter(|id| delivered.contains(*id)).collect();
        assert_eq!(first, expected, "first appearances");
    }
    if faults == 0 {
        assert_eq!(written.len(), delivered.len(), "duplicates without a reason");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_lost_and_order_holds(seed: u64, faults in 0..50u64, in_flight in 1..=5usize) {
        run(seed, faults, in_flight);
    }
}

#[test]
fn without_faults_each_message_is_written_once() {
    for seed in 0..10 {
        run(seed, 0, 5);
    }
}

/// The call's deadline passes with a batch under way, and the batch is written after all, later: under the old producer id, so that
/// it cannot be mixed up with what the next call sends.
#[test]
fn a_call_that_ends_in_silence_leaves_nothing_that_could_be_mixed_up() {
    let sim = Sim(Rc::new(RefCell::new(World::new(1, 0))));
    let settings = Settings::parse(r#"{"brokers":["sim:1"]}"#).unwrap();
    let mut producer = Producer::new(settings, sim.clone(), 0);
    let message = |id| NewMessage { id, topic: "even", key: Some("k"), ..NewMessage::default() };
    let batch_of = |ids: &[&'static str]| {
        let mut batch = Batch::new();
        ids.iter().for_each(|id| batch.push(&message(id)));
        batch
    };
    let deadline = Duration::from_millis(300);
    assert_eq!(producer.publish(&batch_of(&["1"]), deadline, &NoTime), [Outcome::Delivered]);

    sim.0.borrow_mut().silent = true;
    let start = Instant::now();
    let outcomes = producer.publish(&batch_of(&["2", "3"]), deadline, &NoTime);
    assert!(start.elapsed() < deadline, "{:?}", start.elapsed());
    assert!(matches!(&outcomes[0], Outcome::Retry(failure) if failure.code == FailureCode::Timeout), "{outcomes:?}");

    // Two records again, so that under the old producer id they would be taken for a repetition of what comes late.
    let late = std::mem::take(&mut sim.0.borrow_mut().late);
    assert!(late.len() > 1, "the batch was repeated within the call");
    for request in late {
        let part = &request.topic_data[0].partition_data[0];
        sim.0.borrow_mut().append(&("even".into(), part.index), part.records.clone().unwrap());
    }
    sim.0.borrow_mut().silent = false;
    assert_eq!(producer.publish(&batch_of(&["4", "5"]), deadline, &NoTime), [Outcome::Delivered, Outcome::Delivered]);
    assert_eq!(sim.0.borrow().written, ["1", "2", "3", "4", "5"]);
}

/// Tells the world what it is told.
struct Telling(Sim);

impl Surroundings for Telling {
    fn wall_ms(&self) -> i64 {
        NoTime.wall_ms()
    }
    fn secret(&self, _name: &str) -> Option<String> {
        None
    }
    fn report(&self, index: usize, _outcome: &Outcome) {
        self.0.0.borrow_mut().told.insert(index);
    }
    fn pause(&self, pause: Duration) {
        std::thread::sleep(pause);
    }
}

fn calm() -> Sim {
    Sim(Rc::new(RefCell::new(World::new(1, 0))))
}

fn producer(sim: &Sim, extra: &str) -> Producer<Sim> {
    let config = format!(r#"{{"brokers":["sim:1"],"partition_header":"partition"{extra}}}"#);
    Producer::new(Settings::parse(&config).unwrap(), sim.clone(), 0)
}

/// Messages without a key, one for each partition that is named, with ids from 0.
fn to_partitions(partitions: &[&'static str], payload: usize) -> Batch {
    let mut batch = Batch::new();
    let payload = vec![b'x'; payload];
    for (id, partition) in partitions.iter().enumerate() {
        let headers = [("partition", partition.as_bytes())];
        let id = id.to_string();
        batch.push(&NewMessage { id: &id, topic: "even", headers: &headers, payload: Some(&payload), ..NewMessage::default() });
    }
    batch
}

fn assert_each_once(sim: &Sim, expected: usize) {
    let written = &sim.0.borrow().written;
    let distinct: HashSet<&String> = written.iter().collect();
    assert_eq!((written.len(), distinct.len()), (expected, expected), "{written:?}");
}

/// The broker remembers five batches: whoever goes on before it is known whether the first of more was written, writes it twice.
#[test]
fn what_may_have_been_written_is_repeated_before_the_broker_forgets_it() {
    for times in 1..4 {
        let sim = calm();
        sim.0.borrow_mut().unsure_of_first = times;
        let batch = to_partitions(&["0"; 20], 700);
        let outcomes = producer(&sim, r#","max_request_bytes":1024"#).publish(&batch, Duration::from_secs(5), &NoTime);
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Delivered), "{outcomes:?}");
        assert_each_once(&sim, 20);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    /// Where nothing worse happens than that brokers cannot say, or are not heard: within a call, each is written once.
    #[test]
    fn within_a_call_nothing_is_written_twice(seed: u64, faults in 1..40u64, in_flight in 1..=5usize) {
        let sim = Sim(Rc::new(RefCell::new(World::new(seed, faults))));
        sim.0.borrow_mut().only_unsure = true;
        let partitions: Vec<&str> = (0..90).map(|index| ["0", "1", "3"][index % 3]).collect();
        let batch = to_partitions(&partitions, 300);
        let extra = format!(r#","max_request_bytes":1024,"in_flight":{in_flight}"#);
        let outcomes = producer(&sim, &extra).publish(&batch, Duration::from_secs(20), &NoTime);
        prop_assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Delivered));
        assert_each_once(&sim, 90);
    }
}

/// One broker is not there, and nobody is connected to it: the others' answers are heard and told first, and it is not tried in the next call.
#[test]
fn an_unreachable_broker_costs_the_others_nothing() {
    let sim = calm();
    sim.0.borrow_mut().unreachable.insert(2);
    let mut producer = producer(&sim, r#","request_timeout":"100ms""#);
    for call in 0..2 {
        let outcomes = producer.publish(&to_partitions(&["1", "0", "0"], 10), Duration::from_secs(1), &Telling(sim.clone()));
        assert!(matches!(&outcomes[0], Outcome::Retry(failure) if failure.code == FailureCode::Timeout), "{outcomes:?}");
        assert_eq!(outcomes[1..], [Outcome::Delivered, Outcome::Delivered]);
        assert_eq!(sim.0.borrow().connects[&2], 1, "call {call}");
    }
    assert_eq!(sim.0.borrow().told_before_waiting, Some(2));
    assert_eq!(sim.0.borrow().connects[&1], 1, "its connection was closed");
}

/// Should the host end the call while it waits, it knows what was written.
#[test]
fn what_is_known_is_told_before_a_silent_broker_is_waited_for() {
    let sim = calm();
    let mut producer = producer(&sim, "");
    assert!(
        producer
            .publish(&to_partitions(&["0", "1"], 10), Duration::from_secs(1), &NoTime)
            .iter()
            .all(|outcome| *outcome == Outcome::Delivered)
    );
    sim.0.borrow_mut().mute.insert(2);
    let outcomes = producer.publish(&to_partitions(&["1", "0", "0"], 10), Duration::from_secs(1), &Telling(sim.clone()));
    assert!(matches!(&outcomes[0], Outcome::Retry(failure) if failure.code == FailureCode::Timeout), "{outcomes:?}");
    assert_eq!(sim.0.borrow().told_before_waiting, Some(2));
}

/// A login that is refused is not tried again within the call, nor a connection that is not granted.
#[test]
fn a_broker_that_refuses_us_is_asked_once() {
    let sim = calm();
    let mut producer = producer(&sim, "");
    assert_eq!(producer.publish(&to_partitions(&["0"], 10), Duration::from_secs(1), &NoTime), [Outcome::Delivered]);
    sim.0.borrow_mut().denied.insert(2);
    let start = Instant::now();
    let outcomes = producer.publish(&to_partitions(&["1", "0", "1"], 10), Duration::from_secs(4), &NoTime);
    assert_eq!(sim.0.borrow().connects[&2], 1);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    for index in [0, 2] {
        assert!(matches!(&outcomes[index], Outcome::Retry(failure) if failure.code == FailureCode::InvalidConfiguration), "{outcomes:?}");
    }
    assert_eq!(outcomes[1], Outcome::Delivered);
}

#[test]
fn what_a_topic_takes_is_remembered() {
    let sim = calm();
    let mut producer = producer(&sim, "");
    for _ in 0..3 {
        let outcomes = producer.publish(&to_partitions(&["0"; 50], 100), Duration::from_secs(5), &NoTime);
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Delivered), "{outcomes:?}");
    }
    let world = sim.0.borrow();
    assert!((1..10).contains(&world.too_large), "{} refusals", world.too_large);
    let learned = world.next_producer;
    drop(world);
    let refused = sim.0.borrow().too_large;
    producer.publish(&to_partitions(&["0"; 50], 100), Duration::from_secs(5), &NoTime);
    assert_eq!((sim.0.borrow().too_large, sim.0.borrow().next_producer), (refused, learned));
}
