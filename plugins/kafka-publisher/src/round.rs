//! One call, in rounds: find the leaders, form record batches, send to all leaders, read all answers; then again for what is
//! left, until nothing is, or the time is up.

use crate::cluster::Cluster;
use crate::config::Settings;
use crate::connection::Client;
use crate::errors::{self, Fate, Reason, Remedy};
use crate::exchange::{Answer, Context, Exchange, Order};
use crate::ledger::Ledger;
use crate::pack::{Packer, RecordBatch, Targets};
use crate::producer::{Sequences, Surroundings, Times};
use crate::transport::Connector;
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use outhaul_sdk::{Batch, Failure, FailureCode, Outcome};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// `UNKNOWN_TOPIC_OR_PARTITION`.
const UNKNOWN_TOPIC: i16 = 3;
/// `LEADER_NOT_AVAILABLE`.
const NO_LEADER: i16 = 5;

/// Batches of one producer that a broker remembers in each partition, by which it knows a repetition
/// (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
const REMEMBERED: usize = 5;

/// Pause before something is tried again, from and to; doubled each time nothing came of it.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// See the module.
pub struct Call<'c, 'a, C: Connector> {
    settings: &'a Settings,
    cluster: &'c mut Cluster<C>,
    sequences: &'c mut Sequences,
    client: Client,
    batch: &'a Batch,
    times: Times,
    surroundings: &'c dyn Surroundings,
    targets: Targets<'a>,
    ledger: Ledger,
    /// Formed, and not known to be written.
    batches: Vec<RecordBatch>,
    /// Why nothing at all could be sent.
    trouble: Option<Failure>,
    /// And asking again at once would not help.
    hopeless: bool,
    /// Brokers that it is of no use to ask again, and why: each refused login counts against the account.
    refused: BTreeMap<i32, Failure>,
    /// A batch was taken apart in this round, so that the next one sends something else.
    taken_apart: bool,
}

impl<'c, 'a, C: Connector> Call<'c, 'a, C> {
    /// Nothing is sent yet. Messages without a valid topic are settled.
    #[allow(clippy::too_many_arguments, reason = "the parts of the producer, and of the call; nobody else calls it")]
    pub fn new(
        settings: &'a Settings,
        cluster: &'c mut Cluster<C>,
        sequences: &'c mut Sequences,
        client: Client,
        batch: &'a Batch,
        times: Times,
        surroundings: &'c dyn Surroundings,
        turn: usize,
    ) -> Self {
        let mut ledger = Ledger::new(batch);
        let targets = Targets::new(settings, batch, turn, &cluster.limits, |index, outcome| ledger.settle(index, outcome));
        Self {
            settings,
            cluster,
            sequences,
            client,
            batch,
            times,
            surroundings,
            targets,
            ledger,
            batches: Vec::new(),
            trouble: None,
            hopeless: false,
            refused: BTreeMap::new(),
            taken_apart: false,
        }
    }

    /// Works the call off.
    pub fn run(mut self) -> Vec<Outcome> {
        let mut pause = PAUSES.0;
        loop {
            let open = self.ledger.open();
            self.hand_back();
            let now = Instant::now();
            if self.ledger.open() == 0 || now >= self.times.end || (self.batches.is_empty() && now >= self.times.last_start) {
                break;
            }
            // The call goes on, so who has an outcome need not wait for its end. (Most calls are over after one round: then the
            // list that they return says it all, at no cost for each message.)
            self.ledger.tell(|index, outcome| self.surroundings.report(index, outcome));
            self.taken_apart = false;
            self.round();
            self.batches.retain(|batch| !batch.done);
            if self.ledger.open() < open || self.taken_apart {
                pause = PAUSES.0;
            } else {
                self.surroundings.pause(pause.min(self.times.end.saturating_duration_since(Instant::now())));
                pause = (pause * 2).min(PAUSES.1);
            }
        }
        self.end()
    }

    /// What surely was not written, and need not or cannot be tried again here, goes back to the host.
    fn hand_back(&mut self) {
        let now = Instant::now();
        let out_of_patience = now >= self.times.patience || self.hopeless;
        for number in 0..self.batches.len() {
            let unwritten = self.batches.get(number).filter(|batch| batch.fate == Fate::Unwritten && (out_of_patience || batch.hopeless));
            if let Some(failure) = unwritten.and_then(|batch| batch.failure.clone()) {
                self.give_up(number, &Outcome::Retry(failure));
            }
        }
        self.batches.retain(|batch| !batch.done);
        let unacknowledged = self.unacknowledged();
        for index in (0..self.batch.len()).filter(|index| !unacknowledged.contains(index)) {
            if !self.ledger.is_open(index) || self.ledger.is_behind_an_open_one(index) {
                continue;
            }
            let target = self.targets.of_message(index).and_then(|target| self.targets.get(target));
            let missing = target.is_some_and(|target| target.missing) && now >= self.times.creation;
            let outcome = match self.why_not_sent(index) {
                _ if self.ledger.is_behind_a_failure(index) => Outcome::Held,
                Some(failure) if out_of_patience || missing => Outcome::Retry(failure),
                _ => continue,
            };
            self.ledger.settle(index, outcome);
        }
    }

    /// Why a message that is in no batch could not be sent.
    fn why_not_sent(&self, index: usize) -> Option<Failure> {
        let target = self.targets.of_message(index).and_then(|target| self.targets.get(target));
        target.and_then(|target| target.failure.clone()).or_else(|| self.trouble.clone())
    }

    /// The time is up, or nothing is left.
    fn end(mut self) -> Vec<Outcome> {
        for number in 0..self.batches.len() {
            let Some(batch) = self.batches.get(number) else { continue };
            let failure = batch.failure.clone().unwrap_or_else(|| match batch.fate {
                Fate::Unwritten => unsent(),
                Fate::Unknown => Failure::of(
                    FailureCode::Timeout,
                    "the call's deadline passed before the broker answered; it may have written the message",
                ),
            });
            self.give_up(number, &Outcome::Retry(failure));
        }
        for index in 0..self.batch.len() {
            if self.ledger.is_open(index) {
                let failure = self.why_not_sent(index);
                self.ledger.settle(index, failure.map_or(Outcome::Held, Outcome::Retry));
            }
        }
        self.ledger.into_outcomes()
    }

    /// Gives a batch up, and with it the producer id whose sequence it bears: it may yet be written, and no other batch may then
    /// be taken for it.
    fn give_up(&mut self, number: usize, outcome: &Outcome) {
        let Some(batch) = self.batches.get_mut(number) else { return };
        batch.done = true;
        if let Some(identity) = batch.stamp {
            self.sequences.abandon(identity);
        }
        for index in std::mem::take(&mut batch.messages) {
            self.ledger.settle(index, outcome.clone());
        }
    }

    fn unacknowledged(&self) -> BTreeSet<usize> {
        self.batches.iter().flat_map(|batch| batch.messages.iter().copied()).collect()
    }

    fn round(&mut self) {
        let unacknowledged = self.unacknowledged();
        let mut pending = Vec::new();
        if Instant::now() < self.times.last_start {
            pending.extend((0..self.batch.len()).filter(|index| self.ledger.is_open(*index) && !unacknowledged.contains(index)));
        }
        (self.trouble, self.hopeless) = (None, false);
        let sent = self.find_leaders(&pending).and_then(|()| self.identify()).and_then(|()| self.pack(&pending, &unacknowledged));
        if let Err(failure) = sent {
            for batch in &mut self.batches {
                batch.failure.get_or_insert_with(|| failure.clone());
            }
            // Asking again at once would not help, and refused logins count against the account.
            self.hopeless = is_hopeless(&failure);
            self.trouble = Some(failure);
            return;
        }
        let mut exchange = Exchange::new(self.address());
        loop {
            // Nobody who has an answer waits for those who have none.
            if exchange.may_block() {
                self.ledger.tell(|index, outcome| self.surroundings.report(index, outcome));
            }
            let mut context = Context {
                cluster: &mut *self.cluster,
                client: &self.client,
                settings: self.settings,
                times: self.times,
                targets: &self.targets,
                batches: &self.batches,
            };
            let Some(answers) = exchange.advance(&mut context) else { break };
            for (number, answer) in answers {
                self.resolve(number, answer);
            }
        }
    }

    /// Sees to it that the leaders of all topics in question are known, or says why not.
    fn find_leaders(&mut self, pending: &[usize]) -> Result<(), Failure> {
        let mut wanted: BTreeSet<usize> = pending.iter().filter_map(|index| self.targets.of_message(*index)).collect();
        wanted.extend(self.batches.iter().map(|batch| batch.target));
        let now = Instant::now();
        let mut unknown = Vec::new();
        for (number, target) in self.targets.iter_mut() {
            if !wanted.contains(&number) {
                continue;
            }
            target.missing = false;
            if target.failure.take().is_some() {
                self.cluster.metadata.forget(&target.name);
            }
            if self.cluster.metadata.topic(&target.name, now).is_none() {
                unknown.push(number);
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = unknown.iter().filter_map(|number| self.targets.get(*number)).map(|target| target.name.as_ref()).collect();
        let errors = self.cluster.find(names.into_iter(), &self.client, self.times.end)?;
        for number in unknown {
            self.note_topic(number, &errors, pending);
        }
        Ok(())
    }

    /// What the cluster says about a topic that it was asked for.
    fn note_topic(&mut self, number: usize, errors: &[(String, i16)], pending: &[usize]) {
        let Some(target) = self.targets.get_mut(number) else { return };
        let error = match self.cluster.metadata.topic(&target.name, Instant::now()) {
            Some(known) if known.leaders.is_empty() => NO_LEADER,
            Some(_) => return,
            None => errors.iter().find(|(name, _)| *name == target.name).map_or(UNKNOWN_TOPIC, |(_, error)| *error),
        };
        let reason = errors::reason(error);
        let failure = reason.failure(&target.name, None);
        target.missing = error == UNKNOWN_TOPIC;
        target.failure = Some(failure.clone());
        let outcome = match reason.remedy {
            Remedy::Later => Outcome::Retry(failure),
            Remedy::Never => Outcome::Reject(failure),
            _ => return,
        };
        for index in pending.iter().copied().filter(|index| self.targets.of_message(*index) == Some(number)) {
            // One whose turn has not come is looked at again in a later round.
            if !self.ledger.is_behind_an_open_one(index) {
                let outcome = if self.ledger.is_behind_a_failure(index) { Outcome::Held } else { outcome.clone() };
                self.ledger.settle(index, outcome);
            }
        }
    }

    fn identify(&mut self) -> Result<(), Failure> {
        if self.sequences.needs_identity() {
            self.sequences.begin(self.cluster.identify(&self.client, self.times.end)?);
        }
        Ok(())
    }

    /// Forms batches of the pending messages, and gives a sequence to every batch that has none.
    fn pack(&mut self, pending: &[usize], unacknowledged: &BTreeSet<usize>) -> Result<(), Failure> {
        let packer = Packer {
            settings: self.settings,
            batch: self.batch,
            targets: &mut self.targets,
            metadata: &self.cluster.metadata,
            wall_ms: self.surroundings.wall_ms(),
            now: Instant::now(),
            start: self.times.start,
        };
        // A message of its topic may have been settled since.
        let pending: Vec<usize> = pending.iter().copied().filter(|index| self.ledger.is_open(*index)).collect();
        let formed = packer
            .pack(&pending, unacknowledged.iter().copied(), &mut self.ledger)
            .map_err(|error| Failure::of(FailureCode::Other("compression".into()), format!("`compression`: {error}")))?;
        self.batches.extend(formed);
        for batch in self.batches.iter_mut().filter(|batch| batch.stamp.is_none()) {
            let Some(target) = self.targets.get(batch.target) else { continue };
            batch.stamp = self.sequences.stamp(&target.name, batch.partition, batch.messages.len(), &mut batch.bytes);
        }
        Ok(())
    }

    /// Groups the batches by the leader of their partition, older ones before newer ones.
    ///
    /// Of each partition no more batches go out than the broker remembers, and none for the first time while it is not known whether
    /// an earlier one was written: its repetition must still be known as one when it comes. (As `RecordAccumulator` of the Java
    /// client does it.)
    fn address(&mut self) -> Vec<Order> {
        let uncertain: BTreeSet<(usize, u32)> =
            self.batches.iter().filter(|batch| batch.fate == Fate::Unknown).map(|batch| (batch.target, batch.partition)).collect();
        let mut counts: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        let now = Instant::now();
        let mut orders: BTreeMap<i32, Order> = BTreeMap::new();
        let mut sizes: BTreeMap<(i32, usize), usize> = BTreeMap::new();
        let mut last: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        for (number, batch) in self.batches.iter_mut().enumerate() {
            let Some(target) = self.targets.get_mut(batch.target) else { continue };
            let place = (batch.target, batch.partition);
            let count = counts.entry(place).or_insert(0);
            if *count >= REMEMBERED || (uncertain.contains(&place) && !batch.addressed) {
                continue;
            }
            *count += 1;
            let metadata = &self.cluster.metadata;
            let leaders = metadata.topic(&target.name, now).map(|known| known.leaders.as_slice()).unwrap_or_default();
            let leader = usize::try_from(batch.partition).ok().and_then(|partition| leaders.get(partition).copied().flatten());
            let Some((broker, address)) = leader.and_then(|leader| Some((leader, metadata.broker(leader)?.clone()))) else {
                let no_leader = || errors::reason(NO_LEADER).failure(&target.name, Some(&format!("partition {}", batch.partition)));
                batch.failure = Some(target.failure.get_or_insert_with(no_leader).clone());
                continue;
            };
            if let Some(failure) = self.refused.get(&broker) {
                batch.failure = Some(failure.clone());
                batch.hopeless = true;
                continue;
            }
            batch.addressed = true;
            let order = orders.entry(broker).or_insert_with(|| Order { broker, address, requests: VecDeque::new() });
            // Behind the earlier batch of its partition, in the first request with room.
            let earliest = last.get(&place).map_or(0, |request| request + 1);
            let fits = |request: usize| {
                sizes.get(&(broker, request)).is_none_or(|size| size + batch.bytes.len() <= self.settings.max_request_bytes)
            };
            let request = (earliest..order.requests.len()).find(|request| fits(*request)).unwrap_or(order.requests.len().max(earliest));
            while order.requests.len() <= request {
                order.requests.push_back(Vec::new());
            }
            if let Some(numbers) = order.requests.get_mut(request) {
                numbers.push(number);
            }
            *sizes.entry((broker, request)).or_insert(0) += batch.bytes.len();
            last.insert(place, request);
        }
        orders.into_values().collect()
    }

    /// What an answer, or the lack of one, means for a batch.
    fn resolve(&mut self, number: usize, answer: Answer) {
        let Some(batch) = self.batches.get_mut(number) else { return };
        let Some(target) = self.targets.get_mut(batch.target) else { return };
        let part = match answer {
            Answer::Answered(part) => part,
            Answer::Unsent => return batch.note(Fate::Unwritten, unsent()),
            Answer::Lost { broker, fate, failure } => {
                if is_hopeless(&failure) {
                    batch.hopeless = true;
                    self.refused.insert(broker, failure.clone());
                } else {
                    self.cluster.metadata.forget_leaders(broker);
                }
                return batch.note(fate, failure);
            }
        };
        if part.error_code == 0 {
            return self.delivered(number);
        }
        let reason = errors::reason(part.error_code);
        let said = part.error_message.as_ref().map(|text| text.as_str());
        let failure = reason.failure(&target.name, said);
        match reason.remedy {
            Remedy::None => self.delivered(number),
            Remedy::Again => batch.note(reason.fate, failure),
            Remedy::FindLeader => {
                batch.note(reason.fate, failure);
                self.cluster.metadata.forget(&target.name);
            }
            Remedy::FreshProducer => {
                batch.note(reason.fate, failure);
                if let Some(identity) = batch.stamp.take() {
                    self.sequences.abandon(identity);
                }
            }
            Remedy::Split if batch.messages.len() > 1 => {
                target.max_batch_bytes = target.max_batch_bytes.min(batch.plain_bytes / 2);
                self.cluster.limits.learn(&target.name, target.max_batch_bytes, Instant::now());
                self.take_apart(number);
            }
            Remedy::BlameRecords if !part.record_errors.is_empty() => self.blame(number, &reason, &part),
            Remedy::BlameRecords if batch.messages.len() > 1 => {
                target.max_batch_bytes = 0;
                self.take_apart(number);
            }
            Remedy::Later => self.give_up(number, &Outcome::Retry(failure)),
            Remedy::Split | Remedy::BlameRecords | Remedy::Never => self.give_up(number, &Outcome::Reject(failure)),
        }
    }

    fn delivered(&mut self, number: usize) {
        let Some(batch) = self.batches.get_mut(number) else { return };
        batch.done = true;
        for index in std::mem::take(&mut batch.messages) {
            self.ledger.settle(index, Outcome::Delivered);
        }
    }

    /// Nothing of the batch was written; its messages go into other batches.
    fn take_apart(&mut self, number: usize) {
        let Some(batch) = self.batches.get_mut(number) else { return };
        batch.done = true;
        self.taken_apart = true;
        batch.messages.clear();
        if let Some(identity) = batch.stamp {
            self.sequences.abandon(identity);
        }
    }

    /// Nothing of the batch was written, because of some records: these are rejected, the others go into other batches.
    fn blame(&mut self, number: usize, reason: &Reason, part: &PartitionProduceResponse) {
        let Some(batch) = self.batches.get(number) else { return };
        let name = self.targets.get(batch.target).map(|target| target.name.to_string()).unwrap_or_default();
        let blamed: Vec<(usize, Failure)> = part
            .record_errors
            .iter()
            .filter_map(|error| {
                let index = *batch.messages.get(usize::try_from(error.batch_index).ok()?)?;
                let said = error.batch_index_error_message.as_ref().or(part.error_message.as_ref());
                Some((index, reason.failure(&name, said.map(|text| text.as_str()))))
            })
            .collect();
        if blamed.is_empty() {
            // It named none that is there: nothing would come of trying the same again.
            let failure = reason.failure(&name, part.error_message.as_ref().map(|text| text.as_str()));
            return self.give_up(number, &Outcome::Retry(failure));
        }
        for (index, failure) in blamed {
            self.ledger.settle(index, Outcome::Reject(failure));
        }
        self.take_apart(number);
    }
}

/// Whether asking again at once would not help.
fn is_hopeless(failure: &Failure) -> bool {
    matches!(failure.code, FailureCode::Unauthorized | FailureCode::InvalidConfiguration)
}

/// Of a batch that was not sent because it came to be too late.
fn unsent() -> Failure {
    Failure::of(FailureCode::Timeout, "too little of the call's time was left when its turn came; it was not sent")
}
