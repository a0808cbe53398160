//! Renews leases: of messages in the dispatcher, and of those whose verdicts wait to be written.

use super::dispatcher::EntryId;
use super::faults::Kind;
use super::guard::guarded;
use super::pipeline::{Event, Pipeline};
use crate::domain::{Column, Failure, FailureCode};
use crate::ports::Workers;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tokio::time::Instant;
use tracing::debug;

/// One call that renews leases.
#[derive(Debug)]
pub(super) struct Renewal {
    epoch: u32,
    of: Renewed,
    ids: Column,
    lease_until: Instant,
}

/// Whose leases.
#[derive(Debug)]
enum Renewed {
    /// Messages in the dispatcher, in the order of the ids.
    Entries(Vec<EntryId>),
    /// A group that waits to be written.
    Group(u64),
}

impl Pipeline {
    /// Renews the leases that have less than two thirds left, and those of verdicts that a lock has blocked: once it is gone, they are
    /// written.
    pub(super) fn renew(&mut self, now: Instant) {
        if now < self.store.faults.not_before(Kind::Extend, now) {
            return;
        }
        let before = self.leases.renew_before(now);
        if self.store.extending_entries == 0 {
            let mut by_epoch: BTreeMap<u32, (Vec<EntryId>, Column)> = BTreeMap::new();
            for (id, entry) in self.dispatcher.entries().filter(|(_, entry)| entry.lease_until < before) {
                let (entries, ids) = by_epoch.entry(entry.epoch).or_default();
                entries.push(id);
                ids.push(Some(entry.message().id().as_bytes()));
            }
            for (epoch, (entries, ids)) in by_epoch {
                self.extend(epoch, Renewed::Entries(entries), ids, now);
            }
        }
        for (number, epoch, ids) in self.settler.take_renewals(before, now) {
            self.extend(epoch, Renewed::Group(number), ids, now);
        }
        if self.store.extending == 0 {
            // What could not be renewed is not there any more.
            self.on_storage_success(Kind::Extend);
        }
    }

    /// Whether verdicts that a lock has blocked are to be tried again.
    pub(super) fn unblocking_is_due(&self, now: Instant) -> bool {
        self.settler.next_unblocking().is_some_and(|at| self.store.faults.not_before(Kind::Extend, at) <= now)
    }

    fn extend(&mut self, epoch: u32, of: Renewed, ids: Column, now: Instant) {
        self.store.extending += 1;
        self.store.extending_entries += usize::from(matches!(of, Renewed::Entries(_)));
        let (storage, events) = (Arc::clone(&self.storage), self.events.clone());
        let (worker, lease) = (Workers::name(&self.parts.worker, epoch), self.leases.length());
        let renewal = Renewal { epoch, of, ids, lease_until: now + lease };
        self.tasks.spawn(async move {
            let result = guarded(storage.extend(&worker, &renewal.ids, lease)).await;
            let _ = events.send(Event::Extended { renewal, result });
        });
    }

    pub(super) fn on_extended(&mut self, renewal: Renewal, result: Result<Vec<String>, Failure>, now: Instant) {
        self.store.extending -= 1;
        self.store.extending_entries -= usize::from(matches!(renewal.of, Renewed::Entries(_)));
        match result {
            Ok(lost) => {
                self.on_storage_success(Kind::Extend);
                self.note_renewed(&renewal, &lost, now);
            }
            // A row is locked by another transaction: all others can be renewed.
            Err(failure) if failure.code == FailureCode::Timeout => self.renew_apart(renewal, failure, now),
            Err(failure) => {
                if let Renewed::Group(number) = renewal.of {
                    self.settler.not_renewed(number);
                }
                self.on_storage_failure(Kind::Extend, "extend", failure);
                self.store.faults.back_off(Kind::Extend, now);
            }
        }
    }

    fn note_renewed(&mut self, renewal: &Renewal, lost: &[String], now: Instant) {
        let lost: HashSet<&[u8]> = lost.iter().map(String::as_bytes).collect();
        self.counters.renewals.inc_by(u64::try_from(renewal.ids.len() - lost.len()).unwrap_or(u64::MAX));
        let entries = match &renewal.of {
            Renewed::Entries(entries) => entries,
            Renewed::Group(number) => {
                if let Some(gone) = self.settler.renewed(*number, renewal.lease_until, |id| lost.contains(id)) {
                    self.note_gone(&gone, now);
                }
                return;
            }
        };
        for (entry, id) in entries.iter().zip(renewal.ids.iter().flatten()) {
            // The number of an entry may be used by another message by now.
            if self.dispatcher.entry(*entry).is_some_and(|entry| entry.message().id().as_bytes() == id) {
                self.dispatcher.renew(*entry, if lost.contains(id) { now } else { renewal.lease_until });
            }
        }
        if !lost.is_empty() {
            self.expire(now);
        }
        self.announce_leases();
    }

    /// Renews the halves of what could not be renewed as a whole. A single message that is still to be published is tried again with
    /// those that are due then; if its lease ends before, that is told.
    fn renew_apart(&mut self, renewal: Renewal, failure: Failure, now: Instant) {
        debug!(relay = self.parts.config.name, messages = renewal.ids.len(), %failure, "leases cannot be renewed together");
        match renewal.of {
            Renewed::Group(number) => match self.settler.renewal_blocked(number, now) {
                Some(true) => self.on_storage_failure(Kind::Settle, "extend", failure),
                Some(false) => self.renew(now),
                None => {}
            },
            Renewed::Entries(mut entries) if entries.len() > 1 => {
                let half = entries.len() / 2;
                let second = entries.split_off(half);
                let (mut first_ids, mut second_ids) = (Column::default(), Column::default());
                for (at, id) in renewal.ids.iter().enumerate() {
                    if at < half { &mut first_ids } else { &mut second_ids }.push(id);
                }
                self.extend(renewal.epoch, Renewed::Entries(entries), first_ids, now);
                self.extend(renewal.epoch, Renewed::Entries(second), second_ids, now);
            }
            Renewed::Entries(_) => {}
        }
    }
}
