//! The calls to the storage: claim, settle (fused where the storage prefers it), renew; and what they bring back.

use super::Mode;
use super::dispatcher::{Admission, EntryId};
use super::guard::guarded;
use super::leases::{self, Lease};
use super::pipeline::{Claim, Event, Pipeline};
use super::settler::Group;
use crate::domain::{Column, Failure, FailureCode, Settlement, Verdict};
use crate::metrics::FailureLabels;
use crate::ports::{ClaimRequest, Claimed, Turn};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

/// Waits after a failed storage call: doubling from the first to the second.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// A drain gives up after so many failed storage calls in a row: somebody waits for it to end. About 6 seconds.
const DRAIN_TRIES: u32 = 6;

/// Own retries whose due times are remembered, so that they are claimed on time and not at the next poll.
const REMEMBERED_RETRIES: usize = 1024;

/// What is under way with the storage.
#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) epoch: u32,
    claiming: bool,
    settling: bool,
    extending: usize,
    /// Of the group that is being written, or whose settle call failed.
    pub(super) settling_messages: usize,
    pub(super) settling_bytes: usize,
    settling_lease: Option<Instant>,
    /// A group whose settle call failed: written again before any other.
    unsettled: Option<Group>,
    /// The last claim failed: verdicts are written by themselves, so that a claim that cannot succeed holds none of them up.
    claim_failed: bool,
    /// Claims are smaller by this power of two: one more for each that failed, none after one that did not.
    smaller: u32,
    failures: u32,
    last_failure: Option<Failure>,
    not_before: Instant,
    /// When retries that this relay settled are due.
    due: std::collections::BTreeSet<Instant>,
}

impl StoreState {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            epoch: 0,
            claiming: false,
            settling: false,
            extending: 0,
            settling_messages: 0,
            settling_bytes: 0,
            settling_lease: None,
            unsettled: None,
            claim_failed: false,
            smaller: 0,
            failures: 0,
            last_failure: None,
            not_before: now,
            due: std::collections::BTreeSet::new(),
        }
    }

    fn clear_settling(&mut self) {
        self.settling_messages = 0;
        self.settling_bytes = 0;
        self.settling_lease = None;
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.claiming && !self.settling && self.unsettled.is_none()
    }
}

impl Pipeline {
    /// Starts a settle call, a claim, or both in one.
    pub(super) fn pump_store(&mut self, now: Instant) {
        if now < self.store.not_before || self.store_is_taken() {
            return;
        }
        while self.store.due.first().is_some_and(|at| *at <= now) {
            self.store.due.pop_first();
            self.poller.now(now);
        }
        let again = self.store.unsettled.is_some();
        let group = if self.store.settling { None } else { self.group_to_settle(now) };
        let alone = again || (group.is_some() && self.store.claim_failed);
        let claim = if self.store.claiming || alone { None } else { self.claim_request(now, group.as_ref()) };
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
        self.fused && (self.store.claiming || self.store.settling)
    }

    /// When the storage is to be looked after next; none: at the end of the call that is running, which comes as an event.
    pub(super) fn next_store_timer(&self) -> Option<Instant> {
        if self.store_is_taken() {
            return None;
        }
        let mut at: Option<Instant> = None;
        let mut sooner = |candidate: Instant| at = Some(at.map_or(candidate, |at| at.min(candidate)));
        if !self.store.settling {
            if self.store.unsettled.is_some() {
                sooner(self.store.not_before);
            }
            if let Some(group) = self.settler.first() {
                sooner(group.since + self.parts.config.settle_delay);
            }
        }
        if !self.store.claiming && self.may_claim() && self.room().is_some() {
            sooner(self.poller.next());
            if let Some(due) = self.store.due.first() {
                sooner(*due);
            }
        }
        at.map(|at| at.max(self.store.not_before))
    }

    /// In a drain: the failure that ends it.
    pub(super) fn gave_up(&self) -> Option<Failure> {
        let tired = self.parts.mode == Mode::Drain && self.store.failures >= DRAIN_TRIES;
        if tired { self.store.last_failure.clone() } else { None }
    }

    fn group_to_settle(&mut self, now: Instant) -> Option<Group> {
        if let Some(group) = self.store.unsettled.take() {
            return Some(group);
        }
        let group = self.settler.first()?;
        let batch = usize::try_from(self.parts.config.batch).unwrap_or(usize::MAX);
        // Full, old enough, or nothing more is coming.
        let due = group.messages >= batch || now >= group.since + self.parts.config.settle_delay || self.calls.is_empty();
        if due { self.settler.take() } else { None }
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
        if !self.may_claim() {
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
        let overdue = self.settler.lease_until().into_iter().chain(self.store.settling_lease).any(|until| until <= now);
        if overdue {
            self.store.epoch += 1;
        }
        let config = &self.parts.config;
        let epoch = self.store.epoch;
        let request = ClaimRequest {
            worker: leases::worker(&self.parts.worker, epoch),
            limit,
            max_bytes,
            lease: self.leases.length(),
            max_attempts: config.max_attempts,
            max_message_bytes: u64::try_from(config.max_message_bytes).unwrap_or(u64::MAX),
        };
        let quiet = self.dispatcher.len() == 0 && self.settler.is_empty() && !self.store.settling && (group.is_none() || self.fused);
        Some((Claim { epoch, lease_until: now + self.leases.length(), quiet }, request))
    }

    fn start_claim(&mut self, claim: Claim, request: ClaimRequest) {
        self.store.claiming = true;
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
        let worker = leases::worker(&self.parts.worker, group.epoch);
        self.tasks.spawn(async move {
            let started = Instant::now();
            let result = guarded(storage.settle(&worker, &group.settlements)).await;
            let _ = events.send(Event::Settled { group, result, elapsed: started.elapsed() });
        });
    }

    fn start_turn(&mut self, group: Group, claim: Claim, request: ClaimRequest) {
        self.note_settling(&group);
        self.store.claiming = true;
        let (storage, events) = (Arc::clone(&self.storage), self.events.clone());
        self.tasks.spawn(async move {
            let started = Instant::now();
            let result = guarded(storage.settle_and_claim(&group.settlements, &request)).await;
            let _ = events.send(Event::Turned { group, claim, result, elapsed: started.elapsed() });
        });
    }

    fn note_settling(&mut self, group: &Group) {
        self.store.settling = true;
        self.store.settling_messages = group.messages;
        self.store.settling_bytes = group.bytes;
        self.store.settling_lease = Some(group.lease_until);
    }

    pub(super) fn on_claimed(&mut self, claim: Claim, result: Result<Claimed, Failure>, elapsed: Duration, now: Instant) {
        self.store.claiming = false;
        self.counters.claim_duration.observe(elapsed.as_secs_f64());
        match result {
            Ok(claimed) => self.take_in(claim, claimed, now),
            Err(failure) => {
                self.on_claim_failure();
                self.on_storage_failure("claim", failure, now);
            }
        }
    }

    pub(super) fn on_settled(&mut self, group: Group, result: Result<Vec<String>, Failure>, elapsed: Duration, now: Instant) {
        self.counters.settle_duration.observe(elapsed.as_secs_f64());
        self.store.settling = false;
        match result {
            Ok(lost) => {
                self.note_settled(&group, &lost, now);
                self.poller.now(now);
            }
            Err(failure) => self.on_settle_failure(group, "settle", failure, now),
        }
    }

    /// A claim that failed may have leased rows all the same, if only its answer was lost. They must not be taken for rows of later
    /// claims, and the next claim is smaller, in case it was its size.
    fn on_claim_failure(&mut self) {
        self.store.claim_failed = true;
        self.store.smaller = (self.store.smaller + 1).min(u32::BITS - 1);
        self.store.epoch += 1;
    }

    /// Verdicts are kept and written again. Where the storage refuses them rather than being out of reach, they are taken apart, so
    /// that one which can never be written does not hold up the others; alone, it is given up: its row comes up again when
    /// its lease ends.
    fn on_settle_failure(&mut self, mut group: Group, call: &str, failure: Failure, now: Instant) {
        use FailureCode::{Network, Throttled, Timeout, Unavailable};
        group.answer_lost = true;
        let passing = matches!(failure.code, Network | Throttled | Timeout | Unavailable);
        if passing || call != "settle" {
            self.store.unsettled = Some(group);
        } else {
            self.store.clear_settling();
            match group.split() {
                Ok(parts) => self.settler.put_back(parts),
                Err(refused) => {
                    let first = refused.settlements.first().and_then(|settlement| settlement.ids.text(0)).unwrap_or_default();
                    let verdict = refused.settlements.first().map(|settlement| &settlement.verdict);
                    let (relay, messages) = (&self.parts.config.name, refused.messages);
                    error!(relay, messages, first, ?verdict, %failure, "the storage refuses a verdict: given up until the lease ends");
                }
            }
        }
        self.on_storage_failure(call, failure, now);
    }

    pub(super) fn on_turned(&mut self, group: Group, claim: Claim, result: Result<Turn, Failure>, elapsed: Duration, now: Instant) {
        self.counters.settle_duration.observe(elapsed.as_secs_f64());
        self.store.settling = false;
        self.store.claiming = false;
        match result {
            Ok(turn) => {
                self.note_settled(&group, &turn.lost, now);
                self.take_in(claim, turn.claimed, now);
            }
            Err(failure) => {
                self.on_claim_failure();
                self.on_settle_failure(group, "settle-and-claim", failure, now);
            }
        }
    }

    fn take_in(&mut self, claim: Claim, claimed: Claimed, now: Instant) {
        self.on_storage_success();
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
        let lease = Lease { epoch: claim.epoch, until: claim.lease_until };
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
                    let (epoch, lease_until) = (claim.epoch, claim.lease_until);
                    self.dispatcher.admit(Admission { batch: Arc::clone(&batch), index, publisher, epoch, lease_until });
                }
                None => {
                    let text = format!("no route of relay `{}` matches the topic `{}`", self.parts.config.name, message.topic());
                    let failure = Failure::new(FailureCode::InvalidConfiguration, text);
                    self.settler.add(lease, Verdict::Dead(failure), id, bytes, now);
                }
            }
        }
    }

    fn note_settled(&mut self, group: &Group, lost: &[String], now: Instant) {
        self.on_storage_success();
        self.store.clear_settling();
        // The answer to an earlier try was lost: what is "no longer held" now may be what that try has written.
        let lost = if group.answer_lost && !lost.is_empty() {
            info!(relay = self.parts.config.name, messages = lost.len(), "verdicts written again: some had been written before");
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
                    let labels = FailureLabels { relay: self.parts.config.name.clone(), code: metric_code(&failure.code) };
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
            by_code.entry(metric_code(&failure.code)).and_modify(|(count, ..)| *count += 1).or_insert((1, id, failure));
        }
        for (code, (count, first, failure)) in by_code {
            let labels = FailureLabels { relay: self.parts.config.name.clone(), code };
            self.parts.metrics.dead.get_or_create(&labels).inc_by(count);
            self.summary.failed += count;
            error!(relay = self.parts.config.name, messages = count, first, %failure, "ended dead: see `outhaul dead list`");
        }
    }

    fn on_storage_success(&mut self) {
        self.store.failures = 0;
        if self.parts.health.set_storage_error(None) {
            info!(relay = self.parts.config.name, storage = self.parts.config.storage, "the storage answers again");
        }
    }

    fn on_storage_failure(&mut self, call: &str, failure: Failure, now: Instant) {
        self.counters.storage_failures.inc();
        let wait = FIRST_RETRY.saturating_mul(1 << self.store.failures.min(10)).min(LAST_RETRY);
        self.store.failures = self.store.failures.saturating_add(1);
        self.store.not_before = now + wait;
        let (relay, storage) = (&self.parts.config.name, &self.parts.config.storage);
        // Each text once, then quietly: readiness and the metrics go on telling. At most one every few seconds, as calls are.
        if self.parts.health.set_storage_error(Some(failure.to_string())) {
            warn!(relay, storage, call, %failure, "the storage fails: trying again until it answers");
        } else {
            debug!(relay, storage, call, %failure, "the storage still fails");
        }
        self.store.last_failure = Some(failure);
    }

    /// Renews the leases that have less than two thirds left.
    pub(super) fn renew(&mut self, now: Instant) {
        if self.store.extending > 0 || now < self.store.not_before {
            return;
        }
        let before = self.leases.renew_before(now);
        let mut by_epoch: BTreeMap<u32, (Vec<EntryId>, Column)> = BTreeMap::new();
        for (id, entry) in self.dispatcher.entries().filter(|(_, entry)| entry.lease_until < before) {
            let (entries, ids) = by_epoch.entry(entry.epoch).or_default();
            entries.push(id);
            ids.push(Some(entry.message().id().as_bytes()));
        }
        for (epoch, (entries, ids)) in by_epoch {
            self.store.extending += 1;
            let (storage, events) = (Arc::clone(&self.storage), self.events.clone());
            let (worker, lease) = (leases::worker(&self.parts.worker, epoch), self.leases.length());
            self.tasks.spawn(async move {
                let result = guarded(storage.extend(&worker, &ids, lease)).await;
                let _ = events.send(Event::Extended { entries, ids, lease_until: now + lease, result });
            });
        }
    }

    pub(super) fn on_extended(
        &mut self,
        entries: &[EntryId],
        ids: &Column,
        lease_until: Instant,
        result: Result<Vec<String>, Failure>,
        now: Instant,
    ) {
        self.store.extending -= 1;
        let lost = match result {
            Ok(lost) => lost,
            Err(failure) => return self.on_storage_failure("extend", failure, now),
        };
        let lost: HashSet<&[u8]> = lost.iter().map(String::as_bytes).collect();
        for (index, entry) in entries.iter().enumerate() {
            let id = ids.get(index).unwrap_or_default();
            // The number of an entry may be used by another message by now.
            if self.dispatcher.entry(*entry).is_none_or(|entry| entry.message().id().as_bytes() != id) {
                continue;
            }
            if lost.contains(id) {
                self.dispatcher.renew(*entry, now);
            } else {
                self.counters.renewals.inc();
                self.dispatcher.renew(*entry, lease_until);
            }
        }
        if !lost.is_empty() {
            self.expire(now);
        }
        self.announce_leases();
    }
}

/// Free words of adapters must not make a metric for each.
fn metric_code(code: &FailureCode) -> String {
    match code {
        FailureCode::Other(_) => "other".to_owned(),
        code => code.as_str().to_owned(),
    }
}
