//! The one task that owns a relay's state: takes events, decides, starts calls. See the module above for the picture.
//!
//! This file has the loop and what is started when; [`super::outcomes`] what becomes of published messages,
//! [`super::store`] and [`super::renewal`] the calls to the storage.

use super::breaker::{Breaker, Change};
use super::dispatcher::{CallLimits, Dispatcher, EntryId, Whom};
use super::lane::{self, CallId};
use super::leases::Leases;
use super::poller::Poller;
use super::renewal::Renewal;
use super::routes::Routes;
use super::settler::{Group, Settler};
use super::store::StoreState;
use super::waits::Waits;
use super::{Lanes, Mode, Parts, Shutdown, Summary};
use crate::domain::{Batch, Failure, Outcome, Verdict};
use crate::metrics::{Metrics, PublisherLabels, RelayLabels};
use crate::ports::{Claimed, LeaseEnd, Storage, Turn, Workers};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// Events handled between two decisions: bounds the time until a shutdown or a timer is seen.
const EVENTS_AT_ONCE: usize = 256;

/// A call is not made smaller than this to spread messages over idle lanes: below it, the fixed cost of a call shows.
const SMALLEST_SPREAD: usize = 64;

/// What a task beside the pipeline reports.
#[derive(Debug)]
pub(super) enum Event {
    /// One message of a running call.
    Reported { call: CallId, index: usize, outcome: Outcome },
    /// A call has ended.
    Published { call: CallId, result: Result<Vec<Outcome>, Failure>, elapsed: Duration },
    /// A claim has ended.
    Claimed { claim: Claim, result: Result<Claimed, Failure>, elapsed: Duration },
    /// A settle call has ended.
    Settled { group: Group, result: Result<Vec<String>, Failure>, elapsed: Duration },
    /// A fused settle and claim has ended.
    Turned { group: Group, claim: Claim, result: Result<Turn, Failure>, elapsed: Duration },
    /// A renewal has ended.
    Extended { renewal: Renewal, result: Result<Vec<String>, Failure> },
}

/// What the pipeline remembers of a claim under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) epoch: u32,
    /// Counted from before it was sent.
    pub(super) lease_until: Instant,
    /// Nothing else was in flight: if it comes back empty, nothing is due.
    pub(super) quiet: bool,
}

/// A publish call under way.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) publisher: usize,
    /// It goes to slow parties.
    pub(super) is_slow: bool,
    /// By index in the batch; none: its outcome is known.
    pub(super) entries: Vec<Option<EntryId>>,
    /// Whether anything but `held` was said.
    pub(super) progressed: bool,
    pub(super) lease: Arc<LeaseEnd>,
    pub(super) cancel: CancellationToken,
}

/// A publisher, its lanes and its breaker.
pub(super) struct Destination {
    pub(super) name: String,
    pub(super) lanes: Lanes,
    pub(super) calls: usize,
    /// Of these, calls to slow parties.
    pub(super) slow_calls: usize,
    /// The last one went to slow parties: the others have their turn.
    was_slow: bool,
    /// Messages in calls.
    pub(super) under_way: usize,
    pub(super) breaker: Breaker,
    pub(super) breaker_gauge: Gauge,
    pub(super) duration: Histogram,
}

/// Counters of this relay, looked up once.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) claimed: Counter,
    pub(super) delivered: Counter,
    pub(super) held: Counter,
    pub(super) released: Counter,
    pub(super) late: Counter,
    pub(super) renewals: Counter,
    pub(super) lost: Counter,
    pub(super) storage_failures: Counter,
    pub(super) in_flight: Gauge,
    pub(super) in_flight_bytes: Gauge,
    pub(super) claim_duration: Histogram,
    pub(super) settle_duration: Histogram,
}

impl Counters {
    fn new(metrics: &Metrics, relay: &str) -> Self {
        let labels = RelayLabels { relay: relay.to_owned() };
        Self {
            claimed: metrics.claimed.get_or_create_owned(&labels),
            delivered: metrics.delivered.get_or_create_owned(&labels),
            held: metrics.held.get_or_create_owned(&labels),
            released: metrics.released.get_or_create_owned(&labels),
            late: metrics.late_settles.get_or_create_owned(&labels),
            renewals: metrics.lease_renewals.get_or_create_owned(&labels),
            lost: metrics.leases_lost.get_or_create_owned(&labels),
            storage_failures: metrics.storage_failures.get_or_create_owned(&labels),
            in_flight: metrics.in_flight.get_or_create_owned(&labels),
            in_flight_bytes: metrics.in_flight_size.get_or_create_owned(&labels),
            claim_duration: metrics.claim_duration.get_or_create_owned(&labels),
            settle_duration: metrics.settle_duration.get_or_create_owned(&labels),
        }
    }
}

/// The state of a relay.
pub(super) struct Pipeline {
    pub(super) parts: Parts,
    pub(super) storage: Arc<dyn Storage>,
    worker: Arc<str>,
    pub(super) fused: bool,
    pub(super) routes: Routes,
    pub(super) destinations: Vec<Destination>,
    pub(super) dispatcher: Dispatcher,
    pub(super) settler: Settler,
    pub(super) store: StoreState,
    pub(super) calls: HashMap<CallId, Call>,
    next_call: CallId,
    pub(super) poller: Poller,
    pub(super) leases: Leases,
    pub(super) waits: Waits,
    next_tick: Instant,
    pub(super) stopping: bool,
    pub(super) drained: bool,
    pub(super) summary: Summary,
    pub(super) counters: Counters,
    pub(super) tasks: JoinSet<()>,
    pub(super) events: mpsc::UnboundedSender<Event>,
    received: mpsc::UnboundedReceiver<Event>,
}

impl Pipeline {
    pub(super) fn new(parts: Parts) -> Self {
        let now = Instant::now();
        let description = parts.storage.description();
        let names: Vec<String> = parts.publishers.keys().cloned().collect();
        let destination = |(name, lanes): (&String, &Lanes)| {
            let labels = PublisherLabels { relay: parts.config.name.clone(), publisher: name.clone() };
            Destination {
                name: name.clone(),
                lanes: lanes.clone(),
                calls: 0,
                slow_calls: 0,
                was_slow: false,
                under_way: 0,
                breaker: Breaker::new(parts.config.breaker, now),
                breaker_gauge: parts.metrics.breaker_state.get_or_create_owned(&labels),
                duration: parts.metrics.publish_duration.get_or_create_owned(&labels),
            }
        };
        let leases = Leases::new(parts.config.lease);
        parts.health.begin();
        // Unbounded, but what can be in it is not: an event for each running call and each message in flight.
        let (events, received) = mpsc::unbounded_channel();
        Self {
            storage: Arc::clone(&parts.storage),
            worker: Arc::from(parts.worker.as_str()),
            fused: description.fused,
            routes: Routes::new(&parts.config.routes, &names),
            destinations: parts.publishers.iter().map(destination).collect(),
            dispatcher: Dispatcher::new(description.strict_order, names.len()),
            settler: Settler::default(),
            store: StoreState::default(),
            calls: HashMap::new(),
            next_call: 0,
            poller: Poller::new(parts.config.poll, now),
            leases,
            waits: Waits::default(),
            next_tick: now + leases.tick(),
            stopping: false,
            drained: false,
            summary: Summary::default(),
            counters: Counters::new(&parts.metrics, &parts.config.name),
            tasks: JoinSet::new(),
            events,
            received,
            parts,
        }
    }

    pub(super) async fn run(mut self, shutdown: Shutdown) -> Result<Summary, Failure> {
        let mut batch = Vec::with_capacity(EVENTS_AT_ONCE);
        let wake = Arc::clone(&self.parts.wake);
        loop {
            if self.pump_claim(Instant::now()) {
                // The claim is on its way to the database before this task is busy with what the last one has brought.
                tokio::task::yield_now().await;
            }
            let now = Instant::now();
            self.pump(now);
            if self.is_finished() {
                self.summary.breaker_open = !self.stopping && !self.drained;
                break;
            }
            if let Some(failure) = self.gave_up() {
                return Err(failure);
            }
            let timer = self.next_timer(now);
            tokio::select! {
                biased;
                () = shutdown.forced.cancelled() => {
                    warn!(relay = self.parts.config.name, in_flight = self.in_flight(), "ended at once: leases in flight run out by themselves");
                    return Ok(self.summary);
                }
                () = shutdown.graceful.cancelled(), if !self.stopping => {
                    info!(relay = self.parts.config.name, in_flight = self.in_flight(), "stopping: no more claims, finishing what is in flight");
                    self.stopping = true;
                }
                received = self.received.recv_many(&mut batch, EVENTS_AT_ONCE) => {
                    debug_assert!(received > 0, "the pipeline holds a sender itself");
                    let now = Instant::now();
                    for event in batch.drain(..) {
                        self.handle(event, now);
                    }
                }
                () = wake.notified() => self.poller.now(Instant::now()),
                () = tokio::time::sleep_until(timer) => {}
            }
            // Ended tasks are only reaped here: what they did came as an event.
            while self.tasks.try_join_next().is_some() {}
        }
        Ok(self.summary)
    }

    /// Messages claimed and not settled.
    pub(super) fn in_flight(&self) -> usize {
        self.dispatcher.len() + self.settler.messages() + self.store.settling_messages()
    }

    pub(super) fn in_flight_bytes(&self) -> usize {
        self.dispatcher.bytes() + self.settler.bytes() + self.store.settling_bytes()
    }

    fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::Reported { call, index, outcome } => self.on_reported(call, index, outcome, now),
            Event::Published { call, result, elapsed } => self.on_published(call, result, elapsed, now),
            Event::Claimed { claim, result, elapsed } => self.on_claimed(claim, result, elapsed, now),
            Event::Settled { group, result, elapsed } => self.on_settled(group, result, elapsed, now),
            Event::Turned { group, claim, result, elapsed } => self.on_turned(group, claim, result, elapsed, now),
            Event::Extended { renewal, result } => self.on_extended(renewal, result, now),
        }
    }

    /// Starts whatever can be started.
    fn pump(&mut self, now: Instant) {
        if now >= self.next_tick {
            self.next_tick = now + self.leases.tick();
            self.expire(now);
            self.renew(now);
            self.make_room(now);
        } else if self.unblocking_is_due(now) {
            self.renew(now);
        }
        for index in 0..self.destinations.len() {
            self.advance_breaker(index, now);
            if !self.stopping {
                self.dispatch(index, now);
            }
        }
        if self.stopping && self.dispatcher.queued() > 0 {
            for entry in self.dispatcher.take_queued() {
                self.release(&entry, Duration::ZERO, now);
            }
        }
        self.pump_store(now);
        self.counters.in_flight.set(i64::try_from(self.in_flight()).unwrap_or(i64::MAX));
        self.counters.in_flight_bytes.set(i64::try_from(self.in_flight_bytes()).unwrap_or(i64::MAX));
    }

    fn is_finished(&self) -> bool {
        let idle = self.dispatcher.len() == 0 && self.settler.is_empty() && self.store.is_idle();
        idle && (self.stopping || (self.parts.mode == Mode::Drain && (self.drained || self.all_open())))
    }

    fn next_timer(&self, now: Instant) -> Instant {
        let mut timer = self.next_tick;
        if let Some(at) = self.next_store_timer(now) {
            timer = timer.min(at);
        }
        for destination in &self.destinations {
            if let Some(at) = destination.breaker.open_until() {
                timer = timer.min(at);
            }
        }
        timer.max(now)
    }

    /// Whether every publisher's breaker is open: then claiming would only hand rows back.
    pub(super) fn all_open(&self) -> bool {
        !self.destinations.is_empty() && self.destinations.iter().all(|destination| destination.breaker.open_until().is_some())
    }

    fn advance_breaker(&mut self, index: usize, now: Instant) {
        let Some(destination) = self.destinations.get_mut(index) else { return };
        destination.breaker.advance(now);
        destination.breaker_gauge.set(destination.breaker.code());
        if let Some(until) = destination.breaker.open_until() {
            let delay = until - now;
            for entry in self.dispatcher.take_ready(index) {
                self.release(&entry, delay, now);
            }
        }
    }

    /// Starts calls to one publisher while it has idle lanes and something is ready.
    fn dispatch(&mut self, index: usize, now: Instant) {
        loop {
            let Some(destination) = self.destinations.get_mut(index) else { return };
            let idle = destination.lanes.lanes.saturating_sub(destination.calls);
            if idle == 0 || self.dispatcher.queued() == 0 {
                return;
            }
            let spread = self.dispatcher.queued().div_ceil(idle).max(SMALLEST_SPREAD);
            let allowed = destination.breaker.allowance().map_or(usize::MAX, |most| most.saturating_sub(destination.under_way));
            let messages = spread.min(destination.lanes.batch).min(allowed);
            let limits = CallLimits { messages, bytes: destination.lanes.batch_bytes, lease_past: self.leases.dispatch_after(now), now };
            let (entries, is_slow) = self.assemble(index, limits);
            if entries.is_empty() {
                return;
            }
            let Some(destination) = self.destinations.get_mut(index) else { return };
            let (mut batch, mut epochs) = (Batch::default(), Vec::with_capacity(entries.len()));
            for id in &entries {
                if let Some(entry) = self.dispatcher.entry(*id) {
                    entry.append_to(&mut batch);
                    epochs.push(entry.epoch);
                }
            }
            let workers = Workers::new(Arc::clone(&self.worker), epochs);
            destination.calls += 1;
            destination.slow_calls += usize::from(is_slow);
            destination.was_slow = is_slow;
            destination.under_way += entries.len();
            let id = self.next_call;
            self.next_call += 1;
            let cancel = CancellationToken::new();
            let publisher = Arc::clone(&destination.lanes.publisher);
            let (deadline, events) = (self.parts.config.publish_timeout, self.events.clone());
            let entries: Vec<Option<EntryId>> = entries.into_iter().map(Some).collect();
            let lease = Arc::new(LeaseEnd::new(earliest_lease(&self.dispatcher, &entries).unwrap_or(now)));
            self.tasks.spawn(lane::publish(id, publisher, batch, deadline, Arc::clone(&lease), cancel.clone(), workers, events));
            self.calls.insert(id, Call { publisher: index, is_slow, entries, progressed: false, lease, cancel });
        }
    }

    /// Messages for one call, and whether they are to slow parties. Those and the others take turns, and at most half of the lanes are for them.
    fn assemble(&mut self, index: usize, limits: CallLimits) -> (Vec<EntryId>, bool) {
        let parties = self.parts.half.as_ref().and_then(|half| half.parties.as_ref());
        let (Some(parties), Some(destination)) = (parties, self.destinations.get(index)) else {
            return (self.dispatcher.assemble(index, limits, &Whom::All), false);
        };
        for slow in [!destination.was_slow, destination.was_slow] {
            if slow && destination.slow_calls >= (destination.lanes.lanes / 2).max(1) {
                continue;
            }
            let entries = self.dispatcher.assemble(index, limits, &Whom::Where(&*parties.is_slow, slow));
            if !entries.is_empty() {
                return (entries, slow);
            }
        }
        (Vec::new(), false)
    }

    /// What can no longer be ours is dropped: queued messages untold, calls by cancelling them.
    pub(super) fn expire(&mut self, now: Instant) {
        if !self.dispatcher.may_have_expired(now) {
            return;
        }
        let mut ended = 0u64;
        for entry in self.dispatcher.take_expired(now) {
            if entry.lease_until <= now {
                ended += 1;
            } else {
                self.release(&entry, Duration::ZERO, now);
            }
        }
        let dispatcher = &self.dispatcher;
        for call in self.calls.values() {
            let over = earliest_lease(dispatcher, &call.entries).is_some_and(|until| until <= now);
            if over && !call.cancel.is_cancelled() {
                ended += 1;
                call.cancel.cancel();
            }
        }
        self.dispatcher.note_leases();
        if ended > 0 {
            self.counters.lost.inc_by(ended);
            self.store.epoch += 1;
            warn!(
                relay = self.parts.config.name,
                messages = ended,
                "leases ended before they could be renewed: what was in flight is left to the next claim"
            );
        }
    }

    /// Tells running calls up to when they may send, after leases were renewed.
    pub(super) fn announce_leases(&self) {
        for call in self.calls.values() {
            if let Some(until) = earliest_lease(&self.dispatcher, &call.entries) {
                call.lease.set(until);
            }
        }
    }

    /// Hands a message back untried.
    pub(super) fn release(&mut self, entry: &super::dispatcher::Entry, delay: Duration, now: Instant) {
        self.settler.add(entry.lease(), Verdict::Release { delay }, entry.message().id(), entry.bytes, now);
    }

    pub(super) fn on_breaker_change(&mut self, index: usize, change: Change) {
        let Some(destination) = self.destinations.get(index) else { return };
        let (relay, publisher) = (&self.parts.config.name, &destination.name);
        match change {
            Change::None => {}
            Change::Opened { open_for } => {
                self.parts.health.set_breaker(publisher, true);
                warn!(relay, publisher, for_ms = open_for.as_millis(), "circuit breaker open: the destination fails, its messages wait");
            }
            Change::Closed => {
                self.parts.health.set_breaker(publisher, false);
                self.poller.now(Instant::now());
                info!(relay, publisher, "circuit breaker closed: the destination answers again");
            }
        }
        debug!(relay, publisher, state = destination.breaker.code(), "breaker");
    }
}

fn earliest_lease(dispatcher: &Dispatcher, entries: &[Option<EntryId>]) -> Option<Instant> {
    entries.iter().flatten().filter_map(|id| dispatcher.entry(*id)).map(|entry| entry.lease_until).min()
}
