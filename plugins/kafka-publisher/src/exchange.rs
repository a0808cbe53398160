//! The wire part of a round: requests to all leaders, several on the way to each, and their answers as they come.

use crate::address::Address;
use crate::cluster::Cluster;
use crate::config::Settings;
use crate::connection::{Client, ConnectionError};
use crate::errors::Fate;
use crate::pack::{RecordBatch, Targets};
use crate::producer::Times;
use crate::transport::Connector;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{ProduceRequest, ProduceResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use outhaul_sdk::Failure;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// While several brokers owe an answer, each is listened to for so long in turn: the sandbox's sockets cannot be waited for together.
const SLICE: Duration = Duration::from_millis(2);

/// What came before a deadline was noticed to be over is heard, however late that is: somebody else may have kept us busy.
const LAST_LOOK: Duration = Duration::from_millis(1);

/// `acks=all`: every replica in sync has it.
const ACKS_ALL: i16 = -1;

/// What a broker is to be sent: the numbers of the record batches of each request, at most one of each partition in a request.
#[derive(Debug)]
pub struct Order {
    /// Its number.
    pub broker: i32,
    /// Where it listens.
    pub address: Address,
    /// In their order.
    pub requests: VecDeque<Vec<usize>>,
}

/// What became of a record batch.
#[derive(Debug)]
pub enum Answer {
    /// The broker's word.
    Answered(Box<PartitionProduceResponse>),
    /// It was not sent: the time that was left would not have sufficed for an answer.
    Unsent,
    /// There was none.
    Lost {
        /// Who should have answered.
        broker: i32,
        /// Whether it may have been written.
        fate: Fate,
        /// Why.
        failure: Failure,
    },
}

/// What an exchange works with.
pub struct Context<'x, 'a, C: Connector> {
    /// The brokers.
    pub cluster: &'x mut Cluster<C>,
    /// Who we are.
    pub client: &'x Client,
    /// The configuration.
    pub settings: &'x Settings,
    /// The times of the call.
    pub times: Times,
    /// The topics.
    pub targets: &'x Targets<'a>,
    /// The record batches.
    pub batches: &'x [RecordBatch],
}

/// A broker's part.
struct Line {
    order: Order,
    /// Batches of the requests without an answer, and until when one is waited for.
    sent: VecDeque<(Vec<usize>, Instant)>,
}

impl Line {
    fn is_over(&self) -> bool {
        self.sent.is_empty() && self.order.requests.is_empty()
    }

    /// All that is not answered is lost.
    fn fail(&mut self, error: &ConnectionError, answers: &mut Vec<(usize, Answer)>) {
        let failure = error.failure(&self.order.address.to_string());
        let sent = self.sent.drain(..).flat_map(|(batches, _)| batches).map(|batch| (batch, Fate::Unknown));
        let unsent = self.order.requests.drain(..).flatten().map(|batch| (batch, Fate::Unwritten));
        let broker = self.order.broker;
        answers.extend(sent.chain(unsent).map(|(batch, fate)| (batch, Answer::Lost { broker, fate, failure: failure.clone() })));
    }
}

/// See the module.
pub struct Exchange {
    lines: Vec<Line>,
    /// Nothing came last time.
    quiet: bool,
}

impl Exchange {
    /// Nothing is sent yet.
    #[must_use]
    pub fn new(orders: Vec<Order>) -> Self {
        Self { lines: orders.into_iter().map(|order| Line { order, sent: VecDeque::new() }).collect(), quiet: false }
    }

    /// Whether the next step may take long: nothing has come for a while, or there is somebody to connect or to send to.
    #[must_use]
    pub fn may_block(&self) -> bool {
        self.quiet || self.lines.iter().any(|line| !line.order.requests.is_empty())
    }

    /// Goes on: the answers that have come (there may be none for a while); none: all is over.
    ///
    /// Connecting may take seconds, for nothing. So it comes when there is nobody left to listen to, and one at a time.
    pub fn advance<C: Connector>(&mut self, context: &mut Context<'_, '_, C>) -> Option<Vec<(usize, Answer)>> {
        let mut answers = Vec::new();
        let (mut open, unopened): (Vec<_>, Vec<_>) =
            self.lines.iter_mut().partition(|line| context.cluster.is_connected(&line.order.address));
        if open.is_empty() {
            open.extend(unopened.into_iter().take(1));
        }
        for line in &mut open {
            if let Err(error) = send(line, context, &mut answers) {
                context.cluster.close(&line.order.address);
                line.fail(&error, &mut answers);
            }
        }
        // Whoever has been quiet may be so for longer: what was answered before is told first.
        let alone = self.quiet && open.len() == 1;
        for line in &mut open {
            if let Err(error) = receive(line, alone, context, &mut answers) {
                context.cluster.close(&line.order.address);
                line.fail(&error, &mut answers);
            }
        }
        self.lines.retain(|line| !line.is_over());
        self.quiet = answers.is_empty();
        (!self.lines.is_empty() || !answers.is_empty()).then_some(answers)
    }
}

fn send<C: Connector>(
    line: &mut Line,
    context: &mut Context<'_, '_, C>,
    answers: &mut Vec<(usize, Answer)>,
) -> Result<(), ConnectionError> {
    hold_back_late(line, context, answers);
    while line.sent.len() < context.settings.in_flight && !line.order.requests.is_empty() {
        let connection = context.cluster.connection(&line.order.address, context.client, context.times.end)?;
        connection.version_of::<ProduceRequest>()?;
        let Some(batches) = line.order.requests.pop_front() else { break };
        let until = Instant::now().checked_add(context.times.request).map_or(context.times.end, |until| until.min(context.times.end));
        let request = request(&batches, context.targets, context.batches, context.times.request);
        // From here on it may arrive, whatever we are told.
        line.sent.push_back((batches, until));
        connection.start(&request, until)?;
    }
    Ok(())
}

/// Takes out what would be sent for the first time when it is too late for that.
fn hold_back_late<C: Connector>(line: &mut Line, context: &Context<'_, '_, C>, answers: &mut Vec<(usize, Answer)>) {
    if Instant::now() < context.times.last_start {
        return;
    }
    for request in &mut line.order.requests {
        request.retain(|number| {
            let known = context.batches.get(*number).is_some_and(|batch| batch.fate == Fate::Unknown);
            if !known {
                answers.push((*number, Answer::Unsent));
            }
            known
        });
    }
    line.order.requests.retain(|request| !request.is_empty());
}

fn receive<C: Connector>(
    line: &mut Line,
    alone: bool,
    context: &mut Context<'_, '_, C>,
    answers: &mut Vec<(usize, Answer)>,
) -> Result<(), ConnectionError> {
    let Some(until) = line.sent.front().map(|(_, until)| *until) else { return Ok(()) };
    let connection = context.cluster.open_connection(&line.order.address).ok_or(ConnectionError::Closed)?;
    let now = Instant::now();
    let listen = if alone { until } else { now.checked_add(SLICE).map_or(until, |slice| slice.min(until)) };
    let listen = now.checked_add(LAST_LOOK).map_or(listen, |look| look.max(listen));
    match connection.poll::<ProduceRequest>(listen)? {
        Some(response) => {
            if let Some((batches, _)) = line.sent.pop_front() {
                distribute(line, &batches, response, context, answers);
            }
            Ok(())
        }
        None if Instant::now() >= until => Err(ConnectionError::Timeout("Produce")),
        None => Ok(()),
    }
}

/// Gives each batch of a request its part of the answer.
fn distribute<C: Connector>(
    line: &Line,
    numbers: &[usize],
    response: ProduceResponse,
    context: &Context<'_, '_, C>,
    answers: &mut Vec<(usize, Answer)>,
) {
    let mut parts: BTreeMap<(String, i32), PartitionProduceResponse> = BTreeMap::new();
    for topic in response.responses {
        let name = topic.name.0;
        parts.extend(topic.partition_responses.into_iter().map(|part| ((name.to_string(), part.index), part)));
    }
    for number in numbers {
        let Some(batch) = context.batches.get(*number) else { continue };
        let name = context.targets.get(batch.target).map(|target| target.name.to_string()).unwrap_or_default();
        let answer = match parts.remove(&(name, index(batch.partition))) {
            Some(part) => Answer::Answered(Box::new(part)),
            None => {
                let failure = Failure::of(
                    outhaul_sdk::FailureCode::Other("bad-response".into()),
                    format!("{}: its answer leaves out partition {}", line.order.address, batch.partition),
                );
                Answer::Lost { broker: line.order.broker, fate: Fate::Unknown, failure }
            }
        };
        answers.push((*number, answer));
    }
}

fn request(numbers: &[usize], targets: &Targets<'_>, batches: &[RecordBatch], timeout: Duration) -> ProduceRequest {
    let mut topics: BTreeMap<usize, Vec<PartitionProduceData>> = BTreeMap::new();
    for batch in numbers.iter().filter_map(|number| batches.get(*number)) {
        let data = PartitionProduceData::default().with_index(index(batch.partition)).with_records(Some(batch.bytes.clone()));
        topics.entry(batch.target).or_default().push(data);
    }
    let topics = topics.into_iter().filter_map(|(target, data)| {
        let name = TopicName(StrBytes::from_string(targets.get(target)?.name.to_string()));
        Some(TopicProduceData::default().with_name(name).with_partition_data(data))
    });
    ProduceRequest::default()
        .with_acks(ACKS_ALL)
        .with_timeout_ms(i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX))
        .with_topic_data(topics.collect())
}

/// Partitions are counted in 31 bits: that many fit into metadata.
fn index(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}
