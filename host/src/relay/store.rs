//! The calls to the storage: claim and settle (fused where the storage prefers it); and what they bring back.
//! ([`super::renewal`] has the third one.)

use super::Mode;
use super::dispatcher::Admission;
use super::faults::{self, Faults, Kind};
use super::guard::guarded;
use super::leases::Lease;
use super::parties::{Delays, Part, Party};
use super::pipeline::{Claim, Event, Pipeline};
use super::settler::Group;
use crate::domain::{Failure, FailureCode, Settlement, Verdict};
use crate::metrics::FailureLabels;
use crate::ports::{ClaimRequest, Claimed, Turn, Workers};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

/// A drain gives up after so many failed calls of one kind in a row: somebody waits for it to end. About 6 seconds.
const DRAIN_TRIES: u32 = 6;

/// Own retries whose due times are remembered, so that they are claimed on time and not at the next poll.
const REMEMBERED_RETRIES: usize = 1024;

/// What is under way with the storage.
#[derive(Debug, Default)]
pub(super) struct StoreState {
    pub(super) epoch: u32,
    /// The epoch of the claim that is running.
    claiming: Option<u32>,
    settling: Option<Settling>,
    pub(super) extending: usize,
    /// Of these, calls for messages in the dispatcher.
    pub(super) extending_entries: usize,
    /// The last claim failed: verdicts are written by themselves, so that a claim that cannot succeed holds none of them up.
    claim_failed: bool,
    /// Claims are smaller by this power of two: one more for each that failed, none after one that did not.
    smaller: u32,
    pub(super) faults: Faults,
    /// Of rows handed back because their parties are slow.
    delays: Delays,
    /// When retries that this relay settled are due.
    due: std::collections::BTreeSet<Instant>,
}

/// Of the group that is being written.
#[derive(Debug, Clone, Copy)]
struct Settling {
    messages: usize,
    bytes: usize,
    lease: Lease,
    was_tried: bool,
}

impl StoreState {
    /// Messages of the group that is being written.
    pub(super) fn settling_messages(&self) -> usize {
        self.settling.map_or(0, |settling| settling.messages)
    }

    /// Bytes of that group.
    pub(super) fn settling_bytes(&self) -> usize {
        self.settling.map_or(0, |settling| settling.bytes)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.claiming.is_none() && self.settling.is_none()
    }
}

impl Pipeline {
    /// Starts a claim if one is due and goes by itself; whether it does.
    pub(super) fn pump_claim(&mut self, now: Instant) -> bool {
        if self.fused {
            return false;
        }
        self.note_due(now);
        let Some((claim, request)) = self.claim_request(now, None) else { return false };
        self.start_claim(claim, request);
        true
    }

    /// Retries that have become due are claimed at once.
    fn note_due(&mut self, now: Instant) {
        while self.store.due.first().is_some_and(|at| *at <= now) {
            self.store.due.pop_first();
            self.poller.now(now);
        }
    }

    /// Starts a settle call, a claim, or both in one.
    pub(super) fn pump_store(&mut self, now: Instant) {
        if self.store_is_taken() {
            return;
        }
        self.note_due(now);
        let group = self.group_to_settle(now);
        // What may fail goes by itself.
        let alone = self.fused && group.as_ref().is_some_and(|group| group.was_tried || self.store.claim_failed);
        let claim = if alone { None } else { self.claim_request(now, group.as_ref()) };
        match (group, claim) {
            (Some(group), Some((claim, request))) if self.fused && group.epoch == claim.epoch => self.start_turn(group, claim, request),
            (Some(group), _) if self.fused => self.start_settle(group),
            (None, Some((claim, request))) => self.start_claim(claim, request),
            (Some(group), claim) => {
                self.start_settle(group);
                if let Some((claim, request)) = claim {
                    self.start_claim(claim, request);
                }
            }
            (None, None) => {}
        }
    }

    /// A storage that prefers fused calls has one writer: two calls at once would only wait for each other.
    fn store_is_taken(&self) -> bool {
        self.fused && !self.store.is_idle()
    }

    /// When the storage is to be looked after next; none: at the end of the call that is running, which comes as an event.
    pub(super) fn next_store_timer(&self, now: Instant) -> Option<Instant> {
        let unblock = self.settler.next_unblocking().map(|at| self.store.faults.not_before(Kind::Extend, at));
        if self.store_is_taken() {
            return unblock;
        }
        let settle =
            if self.store.settling.is_some() { None } else { self.settler.groups().filter_map(|group| self.settle_at(group, now)).min() };
        let mut claim = None;
        if self.store.claiming.is_none() && self.may_claim() && self.room().is_some() {
            let due = self.store.due.first().copied();
            let at = due.map_or(self.poller.next(), |due| due.min(self.poller.next()));
            claim = Some(self.store.faults.not_before(Kind::Claim, at));
        }
        settle.into_iter().chain(claim).chain(unblock).min()
    }

    /// In a drain: the failure that ends it.
    pub(super) fn gave_up(&self) -> Option<Failure> {
        if self.parts.mode != Mode::Drain {
            return None;
        }
        let tired = |kind: &Kind| self.store.faults.in_a_row(*kind) >= DRAIN_TRIES;
        // Many verdicts may fail at the same moment: one of them must have been tried as often.
        let settle = |kind: &Kind| *kind != Kind::Settle || self.settler.groups().any(|group| group.failures >= DRAIN_TRIES);
        Kind::ALL.into_iter().filter(tired).find(settle).and_then(|kind| self.store.faults.failure(kind).cloned())
    }

    /// When a group is to be written; none: once the claim that is running has ended, or its leases are renewed.
    fn settle_at(&self, group: &Group, now: Instant) -> Option<Instant> {
        // That claim may bring its rows again, under the same worker name.
        if group.blocked || (group.is_doubtful(now) && self.store.claiming == Some(group.epoch)) {
            return None;
        }
        let batch = usize::try_from(self.parts.config.batch).unwrap_or(usize::MAX);
        let at = if group.was_tried {
            group.not_before
        } else if group.messages >= batch || self.calls.is_empty() {
            // Full, or nothing more is coming.
            group.since
        } else {
            group.since + self.parts.config.settle_delay
        };
        Some(self.store.faults.not_before(Kind::Settle, at))
    }

    fn group_to_settle(&mut self, now: Instant) -> Option<Group> {
        while self.store.settling.is_none() {
            let due = |group: &&Group| self.settle_at(group, now).is_some_and(|at| at <= now);
            let number = self.settler.groups().find(due)?.number;
            let group = self.settler.take(number)?;
            let group = if group.is_doubtful(now) { self.without_void(group, now) } else { group };
            if group.messages > 0 {
                return Some(group);
            }
            self.review_verdicts();
        }
        None
    }

    /// Takes out verdicts on rows that are held again under the same worker name: they have been written, if only their answer was lost,
    /// or their leases ended before they could be. Now they would hit the new lease: free a row that is being published. That it was
    /// delivered stays true, and is written.
    fn without_void(&mut self, group: Group, now: Instant) -> Group {
        let entries = self.dispatcher.entries().filter(|(_, entry)| entry.epoch == group.epoch);
        let later = self.settler.groups().filter(|other| other.epoch == group.epoch && other.since > group.since);
        let held: HashSet<&[u8]> = entries.map(|(_, entry)| entry.message().id().as_bytes()).chain(later.flat_map(Group::ids)).collect();
        let (void, group) = group.partition(|verdict, id| *verdict != Verdict::Delivered && held.contains(id));
        self.count_gone(&void, now);
        group
    }

    fn may_claim(&self) -> bool {
        !self.stopping && !self.drained && !self.all_open()
    }

    /// How many rows and bytes may be claimed; none: there is no room worth a claim.
    fn room(&self) -> Option<(u32, u64)> {
        let config = &self.parts.config;
        let in_flight = self.in_flight();
        let any_closed = self.destinations.iter().any(|destination| destination.breaker.is_closed());
        if !any_closed {
            // Only probes are let through: as many rows as there can be probes, one round at a time.
            let probes = u32::try_from(config.breaker.probes).unwrap_or(u32::MAX);
            return (in_flight == 0).then(|| (probes.min(config.batch).max(1), u64::try_from(config.in_flight_bytes).unwrap_or(u64::MAX)));
        }
        let rows = config.in_flight.saturating_sub(in_flight);
        let bytes = config.in_flight_bytes.saturating_sub(self.in_flight_bytes());
        let batch = usize::try_from(config.batch).unwrap_or(usize::MAX).min(config.in_flight);
        // Half a batch, so that a full pipeline does not claim row by row.
        let enough = rows * 2 >= batch && bytes * 8 >= config.in_flight_bytes;
        let rows = u32::try_from(rows).unwrap_or(u32::MAX).min(config.batch);
        enough.then(|| (rows, u64::try_from(bytes).unwrap_or(u64::MAX)))
    }

    fn claim_request(&mut self, now: Instant, group: Option<&Group>) -> Option<(Claim, ClaimRequest)> {
        if self.store.claiming.is_some() || !self.may_claim() || now < self.store.faults.not_before(Kind::Claim, now) {
            return None;
        }
        // A settle call that goes anyway takes a claim along, if there is room.
        if now < self.poller.next() && !(self.fused && group.is_some()) {
            return None;
        }
        let (limit, max_bytes) = self.room()?;
        let (limit, max_bytes) = ((limit >> self.store.smaller).max(1), (max_bytes >> self.store.smaller).max(1));
        // What can no longer be ours must be out of memory before it can come back with a claim.
        self.expire(now);
        // Verdicts that could not be written while their leases held: their rows may come back with this claim, and must come under
        // another name, or the old verdict would be written over the new lease.
        let settling = self.store.settling.map(|settling| settling.lease);
        let mut leases = self.settler.groups().chain(group).map(Group::lease).chain(settling);
        if leases.any(|lease| lease.epoch == self.store.epoch && lease.until <= now) {
            self.store.epoch += 1;
        }
        let config = &self.parts.config;
        let epoch = self.store.epoch;
        let request = ClaimRequest {
            worker: Workers::name(&self.parts.worker, epoch),
            limit,
            max_bytes,
            lease: self.leases.length(),
            max_attempts: config.max_attempts,
            max_message_bytes: u64::try_from(config.max_message_bytes).unwrap_or(u64::MAX),
        };
        let fed = self.parts.feeder.as_ref().is_some_and(|feeder| !feeder.is_cancelled());
        let idle = self.dispatcher.len() == 0 && self.settler.is_empty() && self.store.settling.is_none();
        if idle && group.is_none() {
            self.store.delays.are_written(now);
        }
        let quiet = idle && !fed && (group.is_none() || self.fused) && !self.store.delays.are_running(now);
        Some((Claim { epoch, lease_until: now + self.leases.length(), quiet }, request))
    }

    fn start_claim(&mut self, claim: Claim, request: ClaimRequest) {
        self.store.claiming = Some(claim.epoch);
        let (storage, events) = (Arc::clone(&self.storage), self.events.clone());
        self.tasks.spawn(async move {
            let started = Instant::now();
            let result = guarded(storage.claim(&request)).await;
            // Nobody listens any more after a forced shutdown.
            let _ = events.send(Event::Claimed { claim, result, elapsed: started.elapsed() });
        });
    }

    fn start_settle(&mut self, group: Group) {
        self.note_settling(&group);
        let (storage, events) = (Arc::clone(&self.storage), self.events.clone());
        let worker = Workers::name(&self.parts.worker, group.epoch);
        self.tasks.spawn(async move {
            let started = Instant::now();
            let result = guarded(storage.settle(&worker, &group.settlements)).await;
            let _ = events.send(Event::Settled { group, result, elapsed: started.elapsed() });
        });
    }

    fn start_turn(&mut self, group: Group, claim: Claim, request: ClaimRequest) {
        self.note_settling(&group);
        self.store.claiming = Some(claim.epoch);
        let (storage, events) = (Arc::clone(&self.storage), self.events.clone());
        self.tasks.spawn(async move {
            let started = Instant::now();
            let result = guarded(storage.settle_and_claim(&group.settlements, &request)).await;
            let _ = events.send(Event::Turned { group, claim, result, elapsed: started.elapsed() });
        });
    }

    fn note_settling(&mut self, group: &Group) {
        let Group { messages, bytes, .. } = *group;
        self.store.settling = Some(Settling { messages, bytes, lease: group.lease(), was_tried: group.was_tried });
    }

    pub(super) fn on_claimed(&mut self, claim: Claim, result: Result<Claimed, Failure>, elapsed: Duration, now: Instant) {
        self.store.claiming = None;
        self.counters.claim_duration.observe(elapsed.as_secs_f64());
        match result {
            Ok(claimed) => self.take_in(claim, claimed, now),
            Err(failure) => self.on_claim_failure("claim", failure, now),
        }
    }

    pub(super) fn on_settled(&mut self, group: Group, result: Result<Vec<String>, Failure>, elapsed: Duration, now: Instant) {
        self.counters.settle_duration.observe(elapsed.as_secs_f64());
        self.store.settling = None;
        match result {
            Ok(lost) => {
                self.note_settled(&group, &lost, now);
                self.poller.now(now);
            }
            Err(failure) => self.on_settle_failure(group, failure, now),
        }
    }

    pub(super) fn on_turned(&mut self, mut group: Group, claim: Claim, result: Result<Turn, Failure>, elapsed: Duration, now: Instant) {
        self.counters.settle_duration.observe(elapsed.as_secs_f64());
        self.store.settling = None;
        self.store.claiming = None;
        match result {
            Ok(turn) => {
                self.note_settled(&group, &turn.lost, now);
                self.take_in(claim, turn.claimed, now);
            }
            Err(failure) => {
                // Which half it was shows when the verdicts go alone, at once.
                group.was_tried = true;
                group.not_before = now;
                self.settler.put_front(group);
                self.on_claim_failure("settle-and-claim", failure, now);
            }
        }
    }

    /// A claim that failed may have leased rows all the same, if only its answer was lost. They must not be taken for rows of later
    /// claims, and the next claim is smaller, in case it was its size.
    fn on_claim_failure(&mut self, call: &str, failure: Failure, now: Instant) {
        self.store.claim_failed = true;
        self.store.smaller = (self.store.smaller + 1).min(u32::BITS - 1);
        self.store.epoch += 1;
        self.on_storage_failure(Kind::Claim, call, failure);
        self.store.faults.back_off(Kind::Claim, now);
    }

    /// Verdicts are kept, and their leases renewed, until they are written. Where the storage is out of reach they stay together, and
    /// all others behind them. Where it refuses them, or has waited in vain (for a row that another transaction has locked), they are
    /// taken apart and others go first: what cannot be written holds up only itself.
    fn on_settle_failure(&mut self, mut group: Group, failure: Failure, now: Instant) {
        // They may have been written all the same, and rows of them be claimed again: under another name, so that writing them again
        // does not hit the new lease.
        if self.store.epoch == group.epoch {
            self.store.epoch += 1;
        }
        group.failures = group.failures.saturating_add(1);
        group.was_tried = true;
        if is_out_of_reach(&failure.code) {
            group.not_before = now;
            self.settler.put_front(group);
            self.on_storage_failure(Kind::Settle, "settle", failure);
            self.store.faults.back_off(Kind::Settle, now);
            return;
        }
        let blocked = failure.code == FailureCode::Timeout;
        match group.halves() {
            Ok(halves) => {
                self.counters.storage_failures.inc();
                debug!(relay = self.parts.config.name, messages = halves[0].messages + halves[1].messages, %failure, "verdicts are taken apart");
                for mut half in halves {
                    (half.failures, half.blocked) = (1, blocked);
                    half.not_before = if blocked { now } else { now + faults::wait(1) };
                    self.settler.put_back(half);
                }
            }
            // Its row may come up again, and must not be kept twice.
            Err(single) if single.lease_until <= now && !blocked => {
                self.counters.storage_failures.inc();
                let (first, verdict) = single.settlements.first().map(|one| (one.ids.text(0), &one.verdict)).unzip();
                let relay = &self.parts.config.name;
                error!(relay, first = first.flatten(), ?verdict, %failure, "the storage refuses a verdict: given up, for its lease is over");
                self.review_verdicts();
            }
            Err(mut single) => {
                single.blocked = blocked;
                single.not_before = now + faults::wait(single.failures);
                self.settler.put_back(*single);
                self.on_storage_failure(Kind::Settle, "settle", failure);
            }
        }
        // A try may have taken much of the leases.
        self.renew(now);
    }

    fn take_in(&mut self, claim: Claim, claimed: Claimed, now: Instant) {
        self.on_storage_success(Kind::Claim);
        self.store.claim_failed = false;
        self.store.smaller = 0;
        let Claimed { batch, refused, unfinished } = claimed;
        if !refused.is_empty() {
            self.note_dead(refused.iter().map(|(id, failure)| (id.as_str(), failure)));
        }
        if batch.is_empty() && refused.is_empty() && !unfinished {
            self.drained = claim.quiet && self.parts.mode == Mode::Drain;
            self.poller.empty(now);
            return;
        }
        self.counters.claimed.inc_by(u64::try_from(batch.len()).unwrap_or(u64::MAX));
        self.poller.now(now);
        // The claim may have taken long: what ended meanwhile may be in it again.
        self.expire(now);
        let batch = Arc::new(batch);
        let mark = self.parts.half.as_ref().and_then(|half| half.parties.as_ref()).map(|parties| parties.mark);
        let lease = Lease { epoch: claim.epoch, until: claim.lease_until };
        let part = self.part_of_slow(now);
        // What comes behind a row that was handed back must not overtake it, whatever is known of its party by then.
        let mut handed_back: HashMap<Arc<str>, Duration> = HashMap::new();
        for index in 0..batch.len() {
            let message = batch.message(index);
            let (id, bytes) = (message.id(), message.bytes());
            let most = self.parts.config.max_message_bytes;
            match self.routes.publisher(message.topic()) {
                Some(_) if bytes > most && message.payload().is_some_and(|payload| payload.len() > most) => {
                    let text = format!("{bytes} bytes are more than the relay's `max_message_bytes` ({most})");
                    let failure = Failure::new(FailureCode::TooLarge, text);
                    self.settler.add(lease, Verdict::Dead(failure), id, bytes, now);
                }
                Some(publisher) => {
                    let party: Option<Arc<str>> = mark.map(|mark| Arc::from(mark(message)));
                    let before = party.as_ref().and_then(|mark| handed_back.get(mark).copied());
                    if let Some(delay) = before.or_else(|| party.as_ref().and_then(|mark| self.no_room(mark, part, now))) {
                        handed_back.extend(party.map(|mark| (mark, delay)));
                        self.settler.add(lease, Verdict::Release { delay }, id, bytes, now);
                        continue;
                    }
                    let (epoch, lease_until) = (claim.epoch, claim.lease_until);
                    self.dispatcher.admit(Admission { batch: Arc::clone(&batch), index, publisher, party, epoch, lease_until });
                }
                None => {
                    let text = format!("no route of relay `{}` matches the topic `{}`", self.parts.config.name, message.topic());
                    let failure = Failure::new(FailureCode::InvalidConfiguration, text);
                    self.settler.add(lease, Verdict::Dead(failure), id, bytes, now);
                }
            }
        }
    }

    /// For how long a message is handed back, because its party is slow and has much in memory; none: it is taken in.
    fn no_room(&mut self, mark: &Arc<str>, part: Part, now: Instant) -> Option<Duration> {
        let most = self.parts.config.backoff.max;
        if self.has_too_much(mark, part, now) {
            return Some(self.store.delays.no_room(mark, most, now));
        }
        if self.dispatcher.party_of(mark).is_none_or(|party| party.messages * 2 < part.messages) {
            self.store.delays.much_room(mark, now);
        }
        None
    }

    fn has_too_much(&self, mark: &str, part: Part, now: Instant) -> bool {
        self.dispatcher.party_of(mark).is_some_and(|party| part.is_filled_by(party.messages, party.bytes) && self.is_slow(party, now))
    }

    fn is_slow(&self, party: &Party, now: Instant) -> bool {
        let parties = self.parts.half.as_ref().and_then(|half| half.parties.as_ref());
        parties.is_some_and(|parties| party.keeps_waiting(now) || (parties.is_slow)(&party.mark))
    }

    /// What each slow party may have in memory now.
    fn part_of_slow(&self, now: Instant) -> Part {
        let slow = self.dispatcher.parties().filter(|party| self.is_slow(party, now));
        Part::of(self.parts.config.in_flight, self.parts.config.in_flight_bytes, slow)
    }

    /// Hands back what was taken in for parties before they were known to be slow.
    pub(super) fn make_room(&mut self, now: Instant) {
        if self.parts.half.as_ref().is_none_or(|half| half.parties.is_none()) {
            return;
        }
        let part = self.part_of_slow(now);
        let full: Vec<Arc<str>> =
            self.dispatcher.parties().map(|party| &party.mark).filter(|mark| self.has_too_much(mark, part, now)).cloned().collect();
        for mark in full {
            // What it may have is left to it, and what the last message had more.
            if self.dispatcher.party_of(&mark).is_none_or(|party| party.messages <= part.messages && party.bytes <= part.bytes * 2) {
                continue;
            }
            let delay = self.store.delays.no_room(&mark, self.parts.config.backoff.max, now);
            for entry in self.dispatcher.take_queued_of(&mark) {
                self.release(&entry, delay, now);
            }
        }
    }

    fn note_settled(&mut self, group: &Group, lost: &[String], now: Instant) {
        self.store.faults.answered(Kind::Settle);
        self.count(group, lost, now);
        self.review_verdicts();
    }

    /// Verdicts that are not to be written any more, because their rows are no longer held under the lease that they were given under.
    pub(super) fn note_gone(&mut self, group: &Group, now: Instant) {
        self.count_gone(group, now);
        self.review_verdicts();
    }

    fn count_gone(&mut self, group: &Group, now: Instant) {
        let lost: Vec<String> = group.ids().map(|id| String::from_utf8_lossy(id).into_owned()).collect();
        self.count(group, &lost, now);
    }

    /// Verdicts fail as long as there is one that could not be written, whatever becomes of others.
    fn review_verdicts(&mut self) {
        let settling = self.store.settling.is_some_and(|settling| settling.was_tried);
        if !settling && !self.settler.groups().any(|group| group.failures > 0) {
            self.on_storage_success(Kind::Settle);
        }
    }

    fn count(&mut self, group: &Group, lost: &[String], now: Instant) {
        // The answer to an earlier try was lost: what is "no longer held" now may be what that try has written.
        let lost = if group.was_tried && !lost.is_empty() {
            info!(relay = self.parts.config.name, messages = lost.len(), "an earlier try had written verdicts, and its answer was lost");
            &[]
        } else {
            lost
        };
        if !lost.is_empty() {
            let count = u64::try_from(lost.len()).unwrap_or(u64::MAX);
            self.counters.late.inc_by(count);
            self.summary.late += count;
            warn!(relay = self.parts.config.name, messages = count, "late verdicts refused: their leases had passed to another worker");
        }
        let lost: HashSet<&[u8]> = lost.iter().map(String::as_bytes).collect();
        for Settlement { verdict, ids } in &group.settlements {
            let count = if lost.is_empty() { ids.len() } else { ids.iter().flatten().filter(|id| !lost.contains(id)).count() };
            let count = u64::try_from(count).unwrap_or(u64::MAX);
            match verdict {
                Verdict::Delivered => {
                    self.counters.delivered.inc_by(count);
                    self.summary.sent += count;
                }
                Verdict::Retry { failure, delay } => {
                    let labels = FailureLabels { relay: self.parts.config.name.clone(), code: self.metric_code(failure) };
                    self.parts.metrics.retried.get_or_create(&labels).inc_by(count);
                    self.summary.retried += count;
                    self.remember_due(now + *delay);
                    debug!(relay = self.parts.config.name, messages = count, delay_ms = delay.as_millis(), %failure, "to be retried");
                }
                Verdict::Release { delay } => {
                    self.counters.released.inc_by(count);
                    self.summary.released += count;
                    if !delay.is_zero() {
                        self.remember_due(now + *delay);
                    }
                }
                Verdict::Dead(failure) => {
                    let ids = ids.iter().flatten().filter(|id| !lost.contains(id)).filter_map(|id| std::str::from_utf8(id).ok());
                    self.note_dead(ids.map(|id| (id, failure)));
                }
            }
        }
    }

    fn remember_due(&mut self, at: Instant) {
        self.store.due.insert(at);
        if self.store.due.len() > REMEMBERED_RETRIES {
            // The latest is the one that polling finds in time anyway.
            self.store.due.pop_last();
        }
    }

    fn note_dead<'a>(&mut self, dead: impl Iterator<Item = (&'a str, &'a Failure)>) {
        let mut by_code: BTreeMap<String, (u64, &'a str, &'a Failure)> = BTreeMap::new();
        for (id, failure) in dead {
            by_code.entry(self.metric_code(failure)).and_modify(|(count, ..)| *count += 1).or_insert((1, id, failure));
        }
        for (code, (count, first, failure)) in by_code {
            let labels = FailureLabels { relay: self.parts.config.name.clone(), code };
            self.parts.metrics.dead.get_or_create(&labels).inc_by(count);
            self.summary.failed += count;
            let (relay, half) = (&self.parts.config.name, self.parts.half.as_ref());
            if half.is_some_and(|half| half.on_purpose.is_some() && half.on_purpose == (half.word)(failure)) {
                info!(relay, messages = count, first, %failure, "ended as they are meant to");
                continue;
            }
            let see = half.map_or("outhaul dead list", |half| half.ended.as_str());
            error!(relay, messages = count, first, %failure, "ended dead: see `{see}`");
        }
    }

    /// Free words of adapters must not make a metric for each.
    fn metric_code(&self, failure: &Failure) -> String {
        let word = self.parts.half.as_ref().and_then(|half| (half.word)(failure));
        match &failure.code {
            FailureCode::Other(_) => word.unwrap_or("other").to_owned(),
            code => code.as_str().to_owned(),
        }
    }

    pub(super) fn on_storage_success(&mut self, kind: Kind) {
        self.store.faults.answered(kind);
        if !self.store.faults.clear(kind) {
            return;
        }
        let left = self.store.faults.first().map(Failure::to_string);
        let healthy = left.is_none();
        if self.parts.health.set_storage_error(left) && healthy {
            info!(relay = self.parts.config.name, storage = self.parts.config.storage, "the storage answers again");
        }
    }

    pub(super) fn on_storage_failure(&mut self, kind: Kind, call: &str, failure: Failure) {
        self.counters.storage_failures.inc();
        let (relay, storage) = (&self.parts.config.name, &self.parts.config.storage);
        let text = failure.to_string();
        // Each text once, then quietly: readiness and the metrics go on telling.
        if self.store.faults.failed(kind, failure) {
            warn!(relay, storage, call, failure = text, "the storage fails: trying again until it answers");
        } else {
            debug!(relay, storage, call, failure = text, "the storage still fails");
        }
        self.parts.health.set_storage_error(self.store.faults.first().map(Failure::to_string));
    }
}

/// Whether a failure says that the storage cannot be reached at present, rather than that something about the call is wrong or in its way.
fn is_out_of_reach(code: &FailureCode) -> bool {
    matches!(code, FailureCode::Network | FailureCode::Throttled | FailureCode::Unavailable) || *code == FailureCode::not_started()
}
