//! Which message may be published next: a queue for each key, and messages grouped into publish calls.
//!
//! A key is *ready* while it has queued messages, none of them is in a call, and none of its earlier messages failed in a call
//! that is still running (`halted`). A call takes one message of every ready key in turn, then further ones of the same keys:
//! many keys side by side first, runs of a key only to fill the batch. Where messages go to different parties, a call takes none to a party
//! that has messages in another one. Pure: time comes in as a parameter.

use super::leases::Lease;
use super::parties::{Party, PartyId};
use crate::domain::{Batch, Message};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::time::Instant;

pub(super) type EntryId = usize;
type KeyId = usize;

/// A claimed message, until its outcome is known.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    batch: Arc<Batch>,
    index: usize,
    key: Option<KeyId>,
    party: Option<PartyId>,
    pub(super) bytes: usize,
    /// Index of the publisher that it goes to.
    pub(super) publisher: usize,
    /// Under which worker name it was claimed.
    pub(super) epoch: u32,
    /// Up to when it is surely ours.
    pub(super) lease_until: Instant,
    /// A call with this message in it went wrong: it is sent alone, so that it cannot take others down with it.
    pub(super) alone: bool,
    in_call: bool,
}

impl Entry {
    pub(super) fn message(&self) -> Message<'_> {
        self.batch.message(self.index)
    }

    pub(super) fn lease(&self) -> Lease {
        Lease { epoch: self.epoch, until: self.lease_until }
    }

    pub(super) fn append_to(&self, batch: &mut Batch) {
        batch.push_from(&self.batch, self.index);
    }
}

#[derive(Debug)]
struct KeyQueue {
    name: Arc<str>,
    queue: VecDeque<EntryId>,
    in_call: usize,
    halted: bool,
    listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Key(KeyId),
    /// A message without a key.
    Solo(EntryId),
}

/// A claimed message to take in.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) batch: Arc<Batch>,
    pub(super) index: usize,
    pub(super) publisher: usize,
    /// Whom it goes to, where messages go to different parties.
    pub(super) party: Option<Arc<str>>,
    pub(super) epoch: u32,
    pub(super) lease_until: Instant,
}

/// What a call may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallLimits {
    pub(super) messages: usize,
    /// Reached only by a single message that is larger on its own.
    pub(super) bytes: usize,
    /// Messages whose lease ends before this wait for its renewal.
    pub(super) lease_past: Instant,
    pub(super) now: Instant,
}

/// To which parties a call goes.
pub(super) enum Whom<'a> {
    All,
    /// To those of which this says the same.
    Where(&'a dyn Fn(&str) -> bool, bool),
}

impl Whom<'_> {
    fn is(&self, mark: &str) -> bool {
        match self {
            Self::All => true,
            Self::Where(holds, wanted) => holds(mark) == *wanted,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Dispatcher {
    /// A failed head holds its followers back.
    strict: bool,
    entries: Slab<Entry>,
    keys: Slab<KeyQueue>,
    by_name: HashMap<Arc<str>, KeyId>,
    parties: Slab<Party>,
    by_mark: HashMap<Arc<str>, PartyId>,
    /// By publisher.
    ready: Vec<VecDeque<Ready>>,
    queued: usize,
    bytes: usize,
    /// No lease ends before this: spares looking at every message again and again.
    earliest_lease: Option<Instant>,
}

impl Dispatcher {
    pub(super) fn new(strict: bool, publishers: usize) -> Self {
        Self {
            strict,
            entries: Slab::new(),
            keys: Slab::new(),
            by_name: HashMap::new(),
            parties: Slab::new(),
            by_mark: HashMap::new(),
            ready: vec![VecDeque::new(); publishers],
            queued: 0,
            bytes: 0,
            earliest_lease: None,
        }
    }

    /// Whether a lease may have ended. Cheap, and true more often than need be; [`Dispatcher::note_leases`] makes it exact.
    pub(super) fn may_have_expired(&self, now: Instant) -> bool {
        self.earliest_lease.is_some_and(|earliest| earliest <= now)
    }

    /// Looks at every lease again.
    pub(super) fn note_leases(&mut self) {
        self.earliest_lease = self.entries.iter().map(|(_, entry)| entry.lease_until).min();
    }

    fn note_lease(&mut self, until: Instant) {
        self.earliest_lease = Some(self.earliest_lease.map_or(until, |earliest| earliest.min(until)));
    }

    /// Messages whose outcome is not known.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Of these, messages not in a call.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn entry(&self, id: EntryId) -> Option<&Entry> {
        self.entries.get(id)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        self.entries.iter()
    }

    pub(super) fn renew(&mut self, id: EntryId, lease_until: Instant) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.lease_until = lease_until;
            self.note_lease(lease_until);
        }
    }

    /// Takes in a claimed message, behind the earlier ones of its key.
    pub(super) fn admit(&mut self, admission: Admission) {
        let Admission { batch, index, publisher, party, epoch, lease_until } = admission;
        let message = batch.message(index);
        let bytes = message.bytes();
        let key = message.key().map(|name| self.key(name));
        let party = party.map(|mark| self.party(mark));
        if let Some(party) = party.and_then(|party| self.parties.get_mut(party)) {
            party.messages += 1;
            party.bytes += bytes;
        }
        let entry = Entry { batch, index, key, party, bytes, publisher, epoch, lease_until, alone: false, in_call: false };
        let id = self.entries.insert(entry);
        self.queued += 1;
        self.bytes += bytes;
        self.note_lease(lease_until);
        match key {
            None => self.list(publisher, Ready::Solo(id)),
            Some(key) => {
                if let Some(queue) = self.keys.get_mut(key) {
                    queue.queue.push_back(id);
                }
                self.list_key(key);
            }
        }
    }

    fn party(&mut self, mark: Arc<str>) -> PartyId {
        if let Some(party) = self.by_mark.get(&mark) {
            return *party;
        }
        let party = self.parties.insert(Party::new(Arc::clone(&mark)));
        self.by_mark.insert(mark, party);
        party
    }

    /// A party with messages here.
    pub(super) fn party_of(&self, mark: &str) -> Option<&Party> {
        self.by_mark.get(mark).and_then(|party| self.parties.get(*party))
    }

    pub(super) fn parties(&self) -> impl Iterator<Item = &Party> {
        self.parties.iter().map(|(_, party)| party)
    }

    /// Takes out what is queued for a party.
    pub(super) fn take_queued_of(&mut self, mark: &str) -> Vec<Entry> {
        let Some(party) = self.by_mark.get(mark).copied() else { return Vec::new() };
        self.take_queued_if(|entry| entry.party == Some(party))
    }

    fn key(&mut self, name: &str) -> KeyId {
        if let Some(key) = self.by_name.get(name) {
            return *key;
        }
        let name: Arc<str> = Arc::from(name);
        let key = self.keys.insert(KeyQueue { name: Arc::clone(&name), queue: VecDeque::new(), in_call: 0, halted: false, listed: false });
        self.by_name.insert(name, key);
        key
    }

    fn list(&mut self, publisher: usize, item: Ready) {
        if let Some(ready) = self.ready.get_mut(publisher) {
            ready.push_back(item);
        }
    }

    /// Lists a key if it has become ready, and forgets it if nothing of it is left.
    fn list_key(&mut self, key: KeyId) {
        let Some(queue) = self.keys.get_mut(key) else { return };
        if queue.in_call > 0 || queue.listed {
            return;
        }
        queue.halted = false;
        let Some(head) = queue.queue.front().and_then(|id| self.entries.get(*id)) else {
            let queue = self.keys.remove(key);
            self.by_name.remove(&queue.name);
            return;
        };
        queue.listed = true;
        let publisher = head.publisher;
        self.list(publisher, Ready::Key(key));
    }

    /// Takes messages for one call to `publisher`; empty: nothing is ready.
    pub(super) fn assemble(&mut self, publisher: usize, limits: CallLimits, whom: &Whom<'_>) -> Vec<EntryId> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        let mut waiting = VecDeque::new();
        let mut started: VecDeque<KeyId> = VecDeque::new();
        // Whether each party looked at may be in this call.
        let mut fit: HashMap<PartyId, bool> = HashMap::new();
        while taken.len() < limits.messages {
            let next = self.ready.get_mut(publisher).and_then(VecDeque::pop_front);
            let item = match next {
                Some(item) => item,
                None => match started.pop_front() {
                    Some(key) => Ready::Key(key),
                    None => break,
                },
            };
            let id = match item {
                Ready::Solo(id) => id,
                Ready::Key(key) => match self.keys.get(key).and_then(|queue| queue.queue.front()) {
                    Some(id) => *id,
                    None => {
                        self.unlist(key);
                        continue;
                    }
                },
            };
            let Some(entry) = self.entries.get_mut(id) else { continue };
            let first_of_key = next.is_some();
            let fits = entry.party.is_none_or(|id| {
                let look = || self.parties.get(id).is_some_and(|party| party.in_call == 0 && whom.is(&party.mark));
                *fit.entry(id).or_insert_with(look)
            });
            if !fits || entry.lease_until <= limits.lease_past {
                if first_of_key {
                    waiting.push_back(item);
                }
                continue;
            }
            let full = !taken.is_empty() && (entry.alone || bytes + entry.bytes > limits.bytes);
            if full {
                if first_of_key {
                    waiting.push_back(item);
                }
                break;
            }
            bytes += entry.bytes;
            entry.in_call = true;
            if let Some(party) = entry.party.and_then(|party| self.parties.get_mut(party)) {
                party.in_call += 1;
                party.since.get_or_insert(limits.now);
            }
            let alone = entry.alone;
            taken.push(id);
            self.queued -= 1;
            if let Ready::Key(key) = item
                && let Some(queue) = self.keys.get_mut(key)
            {
                queue.queue.pop_front();
                queue.in_call += 1;
                queue.listed = false;
                let follows = queue.queue.front().and_then(|next| self.entries.get(*next));
                if follows.is_some_and(|next| next.publisher == publisher && !next.alone) {
                    started.push_back(key);
                }
            }
            if alone {
                break;
            }
        }
        if let Some(ready) = self.ready.get_mut(publisher) {
            while let Some(item) = waiting.pop_back() {
                ready.push_front(item);
            }
        }
        taken
    }

    /// A ready entry that stands for nothing any more.
    fn unlist(&mut self, key: KeyId) {
        if let Some(queue) = self.keys.get_mut(key) {
            queue.listed = false;
        }
        self.list_key(key);
    }

    /// Takes a message out: its outcome is known and does not hold back its key.
    pub(super) fn finish(&mut self, id: EntryId) -> Option<Entry> {
        let entry = self.remove(id)?;
        if let Some(key) = entry.key {
            self.list_key(key);
        }
        Some(entry)
    }

    /// Takes a message out that will be retried. Where order is strict, its key's queued followers come out as well (to be
    /// handed back), and the key waits until the call that the message was in has ended.
    pub(super) fn fail(&mut self, id: EntryId) -> Option<(Entry, Vec<Entry>)> {
        let entry = self.remove(id)?;
        let mut followers = Vec::new();
        if let Some(key) = entry.key {
            if self.strict {
                followers = self.take_queue(key);
                if let Some(queue) = self.keys.get_mut(key) {
                    queue.halted = true;
                }
            }
            self.list_key(key);
        }
        Some((entry, followers))
    }

    /// Whether an earlier message of the same key failed in a call that is still running.
    pub(super) fn is_halted(&self, id: EntryId) -> bool {
        self.entries.get(id).and_then(|entry| entry.key).and_then(|key| self.keys.get(key)).is_some_and(|queue| queue.halted)
    }

    /// Puts messages of one call back in front of their keys' queues, in the order given, to be published again.
    pub(super) fn requeue(&mut self, ids: &[EntryId], alone: bool) {
        for id in ids.iter().rev() {
            let Some(entry) = self.entries.get_mut(*id).filter(|entry| entry.in_call) else { continue };
            entry.in_call = false;
            if let Some(party) = entry.party.and_then(|party| self.parties.get_mut(party)) {
                party.leaves_call();
            }
            entry.alone |= alone;
            self.queued += 1;
            match entry.key {
                None => {
                    let publisher = entry.publisher;
                    self.list(publisher, Ready::Solo(*id));
                }
                Some(key) => {
                    if let Some(queue) = self.keys.get_mut(key) {
                        queue.queue.push_front(*id);
                        queue.in_call -= 1;
                    }
                }
            }
        }
        for id in ids {
            if let Some(key) = self.entries.get(*id).and_then(|entry| entry.key) {
                self.list_key(key);
            }
        }
    }

    /// Takes out what is ready for a publisher that cannot be used: the messages, and those queued behind them.
    pub(super) fn take_ready(&mut self, publisher: usize) -> Vec<Entry> {
        let items = self.ready.get_mut(publisher).map(std::mem::take).unwrap_or_default();
        let mut out = Vec::new();
        for item in items {
            match item {
                Ready::Solo(id) => out.extend(self.remove(id)),
                Ready::Key(key) => {
                    if let Some(queue) = self.keys.get_mut(key) {
                        queue.listed = false;
                    }
                    out.extend(self.take_queue(key));
                    self.list_key(key);
                }
            }
        }
        out
    }

    /// Takes out everything that is not in a call.
    pub(super) fn take_queued(&mut self) -> Vec<Entry> {
        self.take_queued_if(|_| true)
    }

    /// Takes out queued messages whose lease is over, with everything queued behind them.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Entry> {
        self.take_queued_if(|entry| entry.lease_until <= now)
    }

    fn take_queued_if(&mut self, wanted: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let ids: Vec<EntryId> = self.entries.iter().filter(|(_, entry)| !entry.in_call && wanted(entry)).map(|(id, _)| id).collect();
        let mut out = Vec::new();
        for id in ids {
            let Some(entry) = self.entries.get(id) else { continue };
            match entry.key {
                None => out.extend(self.remove(id)),
                Some(key) => out.extend(self.take_queue(key)),
            }
        }
        let emptied: Vec<KeyId> =
            self.keys.iter().filter(|(_, queue)| queue.listed && queue.queue.is_empty()).map(|(key, _)| key).collect();
        for key in &emptied {
            if let Some(queue) = self.keys.get_mut(*key) {
                queue.listed = false;
            }
        }
        // Ready lists may name what was taken, and an entry's number can be used again: one pass over each.
        for ready in &mut self.ready {
            ready.retain(|item| match item {
                Ready::Solo(id) => self.entries.contains(*id),
                Ready::Key(key) => self.keys.get(*key).is_some_and(|queue| queue.listed),
            });
        }
        for key in emptied {
            self.list_key(key);
        }
        out
    }

    fn take_queue(&mut self, key: KeyId) -> Vec<Entry> {
        let ids = self.keys.get_mut(key).map(|queue| std::mem::take(&mut queue.queue)).unwrap_or_default();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let entry = self.entries.try_remove(id)?;
        self.bytes -= entry.bytes;
        if let Some((id, party)) = entry.party.and_then(|id| Some((id, self.parties.get_mut(id)?))) {
            party.messages -= 1;
            party.bytes -= entry.bytes;
            if entry.in_call {
                party.leaves_call();
            }
            if party.messages == 0 {
                let party = self.parties.remove(id);
                self.by_mark.remove(&party.mark);
            }
        }
        if entry.in_call {
            if let Some(queue) = entry.key.and_then(|key| self.keys.get_mut(key)) {
                queue.in_call -= 1;
            }
        } else {
            self.queued -= 1;
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::NewMessage;
    use proptest::prelude::*;
    use std::time::Duration;

    struct Bench {
        dispatcher: Dispatcher,
        now: Instant,
    }

    impl Bench {
        fn new(strict: bool) -> Self {
            Self { dispatcher: Dispatcher::new(strict, 2), now: Instant::now() }
        }

        fn admit(&mut self, messages: &[(&str, Option<&str>)]) {
            self.admit_for(0, messages);
        }

        fn admit_for(&mut self, publisher: usize, messages: &[(&str, Option<&str>)]) {
            let mut batch = Batch::default();
            for (id, key) in messages {
                batch.push(&NewMessage { id: Some(id), topic: "t", key: *key, attempts: 1, ..NewMessage::default() });
            }
            let batch = Arc::new(batch);
            let lease_until = self.now + Duration::from_secs(60);
            for index in 0..batch.len() {
                self.dispatcher.admit(Admission { batch: Arc::clone(&batch), index, publisher, party: None, epoch: 0, lease_until });
            }
        }

        fn call(&mut self, messages: usize) -> Vec<(EntryId, String)> {
            self.call_to(0, messages)
        }

        fn call_to(&mut self, publisher: usize, messages: usize) -> Vec<(EntryId, String)> {
            let limits = CallLimits { messages, bytes: 1000, lease_past: self.now, now: self.now };
            let ids = self.dispatcher.assemble(publisher, limits, &Whom::All);
            ids.into_iter().map(|id| (id, self.dispatcher.entry(id).unwrap().message().id().to_owned())).collect()
        }
    }

    fn ids(call: &[(EntryId, String)]) -> Vec<&str> {
        call.iter().map(|(_, id)| id.as_str()).collect()
    }

    #[test]
    fn every_key_first_then_runs() {
        let mut bench = Bench::new(true);
        bench.admit(&[("1", Some("a")), ("2", Some("a")), ("3", Some("b")), ("4", None), ("5", Some("a"))]);
        let call = bench.call(4);
        assert_eq!(ids(&call), ["1", "3", "4", "2"]);
        assert!(bench.call(10).is_empty(), "key a is in a call");
        bench.dispatcher.finish(call[0].0);
        assert!(bench.call(10).is_empty(), "its second message still is");
        bench.dispatcher.finish(call[3].0);
        assert_eq!(ids(&bench.call(10)), ["5"]);
    }

    #[test]
    fn a_failed_head_gives_its_followers_back_and_waits_for_its_call() {
        let mut bench = Bench::new(true);
        bench.admit(&[("1", Some("a")), ("2", Some("a")), ("3", Some("a"))]);
        let call = bench.call(2);
        assert_eq!(ids(&call), ["1", "2"]);
        let (_, followers) = bench.dispatcher.fail(call[0].0).unwrap();
        assert_eq!(followers.iter().map(|entry| entry.message().id()).collect::<Vec<_>>(), ["3"]);
        assert!(bench.dispatcher.is_halted(call[1].0));
        bench.admit(&[("1", Some("a"))]);
        assert!(bench.call(10).is_empty());
        bench.dispatcher.finish(call[1].0);
        assert_eq!(ids(&bench.call(10)), ["1"]);
    }

    #[test]
    fn loose_order_lets_followers_pass() {
        let mut bench = Bench::new(false);
        bench.admit(&[("1", Some("a")), ("2", Some("a"))]);
        let call = bench.call(1);
        let (_, followers) = bench.dispatcher.fail(call[0].0).unwrap();
        assert!(followers.is_empty());
        assert_eq!(ids(&bench.call(10)), ["2"]);
    }

    #[test]
    fn a_key_keeps_its_order_across_publishers() {
        let mut bench = Bench::new(true);
        bench.admit_for(0, &[("1", Some("a"))]);
        bench.admit_for(1, &[("2", Some("a"))]);
        bench.admit_for(0, &[("3", Some("a"))]);
        assert!(bench.call_to(1, 10).is_empty());
        let call = bench.call_to(0, 10);
        assert_eq!(ids(&call), ["1"]);
        bench.dispatcher.finish(call[0].0);
        assert!(bench.call_to(0, 10).is_empty());
        // Publisher 1 cannot be used: what is ready for it comes out with all that waits behind it.
        let out = bench.dispatcher.take_ready(1);
        assert_eq!(out.iter().map(|entry| entry.message().id()).collect::<Vec<_>>(), ["2", "3"]);
        assert_eq!((bench.dispatcher.len(), bench.dispatcher.queued(), bench.dispatcher.bytes()), (0, 0, 0));
    }

    #[test]
    fn suspects_go_alone_and_in_order() {
        let mut bench = Bench::new(true);
        bench.admit(&[("1", Some("a")), ("2", Some("a")), ("3", None)]);
        let call = bench.call(10);
        let all: Vec<EntryId> = call.iter().map(|(id, _)| *id).collect();
        bench.dispatcher.requeue(&all, true);
        let mut seen = Vec::new();
        loop {
            let call = bench.call(10);
            let Some((id, name)) = call.first() else { break };
            assert_eq!(call.len(), 1);
            seen.push(name.clone());
            bench.dispatcher.finish(*id);
        }
        assert_eq!(seen.len(), 3);
        let place = |id: &str| seen.iter().position(|name| name == id);
        assert!(place("1") < place("2"));
    }

    #[test]
    fn a_lease_near_its_end_is_not_dispatched_and_an_ended_one_is_dropped() {
        let mut bench = Bench::new(true);
        bench.admit(&[("1", Some("a")), ("2", None)]);
        let end = bench.now + Duration::from_secs(60);
        let limits = CallLimits { messages: 10, bytes: 1000, lease_past: end, now: bench.now };
        assert!(bench.dispatcher.assemble(0, limits, &Whom::All).is_empty());
        assert_eq!(bench.dispatcher.take_expired(end).len(), 2);
        bench.admit(&[("3", None)]);
        assert_eq!(ids(&bench.call(10)), ["3"]);
    }

    #[test]
    fn bytes_bound_a_call_but_a_large_message_goes() {
        let mut bench = Bench::new(true);
        let payload = vec![0; 900];
        let mut batch = Batch::default();
        for id in ["1", "2"] {
            batch.push(&NewMessage { id: Some(id), topic: "t", payload: Some(&payload), attempts: 1, ..NewMessage::default() });
        }
        let batch = Arc::new(batch);
        for index in 0..2 {
            let lease_until = bench.now + Duration::from_secs(60);
            bench.dispatcher.admit(Admission { batch: Arc::clone(&batch), index, publisher: 0, party: None, epoch: 0, lease_until });
        }
        assert_eq!(ids(&bench.call(10)), ["1"]);
        assert_eq!(ids(&bench.call(10)), ["2"]);
    }

    #[test]
    fn a_party_is_in_one_call_at_a_time_and_calls_can_be_for_some_of_them() {
        let mut bench = Bench::new(true);
        let mut batch = Batch::default();
        for (id, key) in [("1", Some("x")), ("2", None), ("3", None), ("4", Some("x"))] {
            batch.push(&NewMessage { id: Some(id), topic: "t", key, attempts: 1, ..NewMessage::default() });
        }
        let (batch, lease_until) = (Arc::new(batch), bench.now + Duration::from_secs(60));
        for (index, party) in ["a", "a", "b", "a"].into_iter().enumerate() {
            let party = Some(Arc::from(party));
            bench.dispatcher.admit(Admission { batch: Arc::clone(&batch), index, publisher: 0, party, epoch: 0, lease_until });
        }
        let now = bench.now;
        let limits = |messages| CallLimits { messages, bytes: 1000, lease_past: now, now };
        let slow = |mark: &str| mark == "b";
        let first = bench.dispatcher.assemble(0, limits(1), &Whom::Where(&slow, false));
        let id = |bench: &Bench, entry: EntryId| bench.dispatcher.entry(entry).unwrap().message().id().to_owned();
        assert_eq!(id(&bench, first[0]), "1");
        assert!(bench.dispatcher.assemble(0, limits(9), &Whom::Where(&slow, false)).is_empty(), "a is in a call");
        let second = bench.dispatcher.assemble(0, limits(9), &Whom::Where(&slow, true));
        assert_eq!(second.iter().map(|entry| id(&bench, *entry)).collect::<Vec<_>>(), ["3"]);
        let party = bench.dispatcher.party_of("a").unwrap();
        assert_eq!((party.messages, party.in_call, party.since), (3, 1, Some(now)));
        bench.dispatcher.requeue(&first, false);
        assert_eq!(bench.dispatcher.party_of("a").unwrap().since, None);
        let again = bench.dispatcher.assemble(0, limits(9), &Whom::All);
        assert_eq!(again.iter().map(|entry| id(&bench, *entry)).collect::<Vec<_>>(), ["2", "1", "4"]);
        for entry in again.into_iter().chain(second) {
            bench.dispatcher.finish(entry).unwrap();
        }
        assert_eq!((bench.dispatcher.parties().count(), bench.dispatcher.by_mark.len(), bench.dispatcher.queued()), (0, 0, 0));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Admit(u8),
        Call(usize),
        /// Ends the oldest call: an outcome for each message (0 delivered, 1 failed, 2 held, 3 requeued).
        End(Vec<u8>),
        Expire,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..5).prop_map(Step::Admit),
            (1usize..6).prop_map(Step::Call),
            prop::collection::vec(0u8..4, 6).prop_map(Step::End),
            Just(Step::Expire),
        ]
    }

    proptest! {
        /// Whatever happens: a message is delivered only when every earlier one of its key has left, delivered or handed back.
        #[test]
        fn order_holds_and_nothing_is_lost(steps in prop::collection::vec(step(), 1..200)) {
            let mut bench = Bench::new(true);
            let mut calls: VecDeque<Vec<(EntryId, String)>> = VecDeque::new();
            let mut next = 0u32;
            let mut admitted = 0usize;
            let mut left = 0usize;
            let mut last: HashMap<String, u32> = HashMap::new();
            for step in steps {
                match step {
                    Step::Admit(key) => {
                        next += 1;
                        admitted += 1;
                        let (id, key) = (format!("{key}-{next}"), format!("k{key}"));
                        bench.admit(&[(&id, (key != "k4").then_some(key.as_str()))]);
                    }
                    Step::Call(limit) => {
                        let call = bench.call(limit);
                        if !call.is_empty() { calls.push_back(call); }
                    }
                    Step::End(outcomes) => {
                        let Some(call) = calls.pop_front() else { continue };
                        let mut again = Vec::new();
                        let mut stopped: Vec<char> = Vec::new();
                        for ((id, name), outcome) in call.iter().zip(outcomes) {
                            let key = name.chars().next().unwrap();
                            // A publisher that keeps its contract: after a message that was not delivered, its key is held.
                            let outcome = if stopped.contains(&key) && key != '4' { 2 } else { outcome };
                            if outcome != 0 { stopped.push(key); }
                            match outcome {
                                0 => {
                                    bench.dispatcher.finish(*id).unwrap();
                                    left += 1;
                                    let number: u32 = name.split('-').nth(1).unwrap().parse().unwrap();
                                    if key != '4' {
                                        let before = last.insert(key.to_string(), number).unwrap_or(0);
                                        prop_assert!(before < number, "key {key}: {number} after {before}");
                                    }
                                }
                                1 => left += 1 + bench.dispatcher.fail(*id).unwrap().1.len(),
                                _ if bench.dispatcher.is_halted(*id) => { bench.dispatcher.finish(*id).unwrap(); left += 1; }
                                _ => again.push(*id),
                            }
                        }
                        bench.dispatcher.requeue(&again, false);
                    }
                    Step::Expire => {
                        let end = bench.now + Duration::from_secs(60);
                        left += bench.dispatcher.take_expired(end).len();
                    }
                }
                prop_assert_eq!(bench.dispatcher.len() + left, admitted);
            }
            for call in calls {
                let all: Vec<EntryId> = call.iter().map(|(id, _)| *id).collect();
                bench.dispatcher.requeue(&all, false);
            }
            // Everything still comes out, and no key is forgotten or kept for nothing.
            loop {
                let call = bench.call(7);
                if call.is_empty() { break; }
                for (id, _) in call { bench.dispatcher.finish(id).unwrap(); left += 1; }
            }
            prop_assert_eq!(left, admitted);
            prop_assert_eq!((bench.dispatcher.queued(), bench.dispatcher.bytes(), bench.dispatcher.keys.len(), bench.dispatcher.by_name.len()), (0, 0, 0, 0));
        }
    }
}
