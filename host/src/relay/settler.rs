//! Gathers verdicts until they are written: one settle call for many messages, equal verdicts together.
//!
//! What cannot be written is taken apart here, half by half, until the message that is in the way is alone.

use super::faults;
use super::leases::Lease;
use crate::domain::{Column, Settlement, Verdict};
use std::collections::{HashMap, VecDeque};
use tokio::time::Instant;

/// Verdicts of one lease epoch, waiting to be written.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// Tells it from others while it waits here.
    pub(super) number: u64,
    /// The epoch under whose worker name these rows were claimed.
    pub(super) epoch: u32,
    pub(super) settlements: Vec<Settlement>,
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// When the first verdict came.
    pub(super) since: Instant,
    /// When the first of the leases ends under which these verdicts may be written.
    pub(super) lease_until: Instant,
    /// Tries in a row that failed since it is as small as it is; at least one if a larger group that it was part of could not be written.
    pub(super) failures: u32,
    /// A try to write it failed, and may have written it all the same, if only its answer was lost.
    pub(super) was_tried: bool,
    /// Another transaction may have locked a row of it. It is written once its leases can be renewed: renewals do not wait for locks, and
    /// verdicts that do would hold up all others.
    pub(super) blocked: bool,
    /// When to try again, be it to write it or to renew it.
    pub(super) not_before: Instant,
    /// Its leases are being renewed: verdicts under other leases stay out of it.
    renewing: bool,
    places: HashMap<Verdict, usize>,
}

impl Group {
    fn new(number: u64, lease: Lease, now: Instant) -> Self {
        Self {
            number,
            epoch: lease.epoch,
            settlements: Vec::new(),
            messages: 0,
            bytes: 0,
            since: now,
            lease_until: lease.until,
            failures: 0,
            was_tried: false,
            blocked: false,
            not_before: now,
            renewing: false,
            places: HashMap::new(),
        }
    }

    fn add(&mut self, lease: Lease, verdict: Verdict, id: &str, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes;
        self.lease_until = self.lease_until.min(lease.until);
        let place = *self.places.entry(verdict).or_insert_with_key(|verdict| {
            self.settlements.push(Settlement { verdict: verdict.clone(), ids: Column::default() });
            self.settlements.len() - 1
        });
        if let Some(settlement) = self.settlements.get_mut(place) {
            settlement.ids.push(Some(id.as_bytes()));
        }
    }

    /// Whether rows of it may be under a new lease by now, taken under the same worker name: they have been written already, or their
    /// leases have ended.
    pub(super) fn is_doubtful(&self, now: Instant) -> bool {
        self.was_tried || self.lease_until <= now
    }

    pub(super) fn lease(&self) -> Lease {
        Lease { epoch: self.epoch, until: self.lease_until }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &[u8]> {
        self.settlements.iter().flat_map(|settlement| settlement.ids.iter().flatten())
    }

    /// The verdicts that are wanted, and the others.
    pub(super) fn partition(self, mut wanted: impl FnMut(&Verdict, &[u8]) -> bool) -> (Self, Self) {
        let hollow = Self { settlements: Vec::new(), places: HashMap::new(), messages: 0, bytes: 0, renewing: false, ..self };
        let (mut taken, mut left) = (hollow.clone(), hollow);
        for Settlement { verdict, ids } in self.settlements {
            let (mut taken_ids, mut left_ids) = (Column::default(), Column::default());
            for id in ids.iter().flatten() {
                if wanted(&verdict, id) { &mut taken_ids } else { &mut left_ids }.push(Some(id));
            }
            for (group, ids) in [(&mut taken, taken_ids), (&mut left, left_ids)] {
                if !ids.is_empty() {
                    group.messages += ids.len();
                    group.places.insert(verdict.clone(), group.settlements.len());
                    group.settlements.push(Settlement { verdict: verdict.clone(), ids });
                }
            }
        }
        // Sizes are not known by message.
        taken.bytes = self.bytes * taken.messages / self.messages.max(1);
        left.bytes = self.bytes - taken.bytes;
        (taken, left)
    }

    /// Two halves.
    ///
    /// # Errors
    /// The group itself, if it is a single message.
    pub(super) fn halves(self) -> Result<[Self; 2], Box<Self>> {
        if self.messages <= 1 {
            return Err(Box::new(self));
        }
        let mut left = self.messages.div_ceil(2);
        let (first, second) = self.partition(|_, _| {
            let first = left > 0;
            left = left.saturating_sub(1);
            first
        });
        Ok([first, second])
    }
}

/// All verdicts not yet written, in the order in which they are to be.
#[derive(Debug, Default)]
pub(super) struct Settler {
    groups: VecDeque<Group>,
    next_number: u64,
}

impl Settler {
    /// Adds a verdict on a message that was claimed under `lease`.
    pub(super) fn add(&mut self, lease: Lease, verdict: Verdict, id: &str, bytes: usize, now: Instant) {
        let open = |group: &&mut Group| group.epoch == lease.epoch && !group.was_tried && !group.blocked && !group.renewing;
        match self.groups.iter_mut().find(open) {
            Some(group) => group.add(lease, verdict, id, bytes),
            None => {
                let mut group = Group::new(self.number(), lease, now);
                group.add(lease, verdict, id, bytes);
                self.groups.push_back(group);
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// A group that could not be written: next in turn.
    pub(super) fn put_front(&mut self, group: Group) {
        let group = Group { number: self.number(), renewing: false, ..group };
        self.groups.push_front(group);
    }

    /// A group that could not be written, while others perhaps can: last in turn.
    pub(super) fn put_back(&mut self, group: Group) {
        let group = Group { number: self.number(), renewing: false, ..group };
        self.groups.push_back(group);
    }

    /// In turn.
    pub(super) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.groups.iter().position(|group| group.number == number)
    }

    /// Takes a group out, to be written.
    pub(super) fn take(&mut self, number: u64) -> Option<Group> {
        self.position(number).and_then(|position| self.groups.remove(position))
    }

    /// When the first blocked group is to be renewed next.
    pub(super) fn next_unblocking(&self) -> Option<Instant> {
        self.groups.iter().filter(|group| group.blocked && !group.renewing).map(|group| group.not_before).min()
    }

    /// Groups with a lease that ends before this, and blocked ones: number, epoch and ids of each. They count as being renewed from now on.
    pub(super) fn take_renewals(&mut self, before: Instant, now: Instant) -> Vec<(u64, u32, Column)> {
        let mut renewals = Vec::new();
        let due = |group: &Group| if group.blocked { group.not_before <= now } else { group.lease_until < before };
        for group in self.groups.iter_mut().filter(|group| !group.renewing && due(group)) {
            group.renewing = true;
            let mut ids = Column::default();
            group.ids().for_each(|id| ids.push(Some(id)));
            renewals.push((group.number, group.epoch, ids));
        }
        renewals
    }

    /// Leases were renewed up to `until`, but for those of `lost`, which are taken out. None: the group is not here any more.
    pub(super) fn renewed(&mut self, number: u64, until: Instant, lost: impl Fn(&[u8]) -> bool) -> Option<Group> {
        let position = self.position(number)?;
        let (gone, left) = self.groups.remove(position)?.partition(|_, id| lost(id));
        if left.messages > 0 {
            // What was in the way is there no more.
            let not_before = if left.blocked { left.since } else { left.not_before };
            self.groups.insert(position, Group { lease_until: until, blocked: false, not_before, ..left });
        }
        Some(gone)
    }

    /// Leases were not renewed: the storage was out of reach.
    pub(super) fn not_renewed(&mut self, number: u64) {
        if let Some(group) = self.groups.iter_mut().find(|group| group.number == number) {
            group.renewing = false;
        }
    }

    /// Leases could not be renewed because a row of them is locked. The group becomes two, to be renewed at once; a single message waits,
    /// the longer the more often it was tried. None: the group is not here any more; else whether it was a single message.
    pub(super) fn renewal_blocked(&mut self, number: u64, now: Instant) -> Option<bool> {
        let position = self.position(number)?;
        match self.groups.remove(position)?.halves() {
            Ok([first, second]) => {
                let second_number = self.number();
                for half in [Group { number: second_number, ..second }, first] {
                    self.groups.insert(position, Group { blocked: true, not_before: now, ..half });
                }
                Some(false)
            }
            Err(single) => {
                let failures = single.failures.saturating_add(1);
                let not_before = now + faults::wait(failures);
                self.groups.insert(position, Group { blocked: true, failures, not_before, renewing: false, ..*single });
                Some(true)
            }
        }
    }

    pub(super) fn messages(&self) -> usize {
        self.groups.iter().map(|group| group.messages).sum()
    }

    pub(super) fn bytes(&self) -> usize {
        self.groups.iter().map(|group| group.bytes).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn texts(group: &Group) -> Vec<(&Verdict, Vec<&str>)> {
        group
            .settlements
            .iter()
            .map(|Settlement { verdict, ids }| (verdict, (0..ids.len()).map(|at| ids.text(at).unwrap()).collect()))
            .collect()
    }

    #[test]
    fn equal_verdicts_of_one_epoch_go_together_in_order() {
        let mut settler = Settler::default();
        let now = Instant::now();
        let release = Verdict::Release { delay: Duration::ZERO };
        let lease = |epoch, seconds| Lease { epoch, until: now + Duration::from_secs(seconds) };
        settler.add(lease(0, 30), Verdict::Delivered, "a", 10, now);
        settler.add(lease(0, 10), release.clone(), "b", 10, now);
        settler.add(lease(0, 20), Verdict::Delivered, "c", 5, now);
        settler.add(lease(1, 40), Verdict::Delivered, "d", 1, now);
        assert_eq!((settler.messages(), settler.bytes()), (4, 26));
        let [first, second] = settler.groups().map(|group| group.number).collect::<Vec<_>>()[..] else { panic!("two groups") };
        let group = settler.take(first).unwrap();
        assert_eq!((group.epoch, group.messages, group.bytes), (0, 3, 25));
        assert_eq!(group.lease_until, now + Duration::from_secs(10));
        assert_eq!(texts(&group), [(&Verdict::Delivered, vec!["a", "c"]), (&release, vec!["b"])]);
        assert_eq!(settler.take(second).map(|group| group.epoch), Some(1));
        assert!(settler.is_empty());
    }

    #[test]
    fn new_verdicts_keep_out_of_what_was_tried_and_of_what_is_being_renewed() {
        let mut settler = Settler::default();
        let now = Instant::now();
        let lease = Lease { epoch: 0, until: now };
        let add = |settler: &mut Settler, id| settler.add(lease, Verdict::Delivered, id, 1, now);
        add(&mut settler, "a");
        let first = settler.groups().next().unwrap().number;
        let mut group = settler.take(first).unwrap();
        group.was_tried = true;
        settler.put_back(group);
        add(&mut settler, "b");
        assert_eq!(settler.take_renewals(now, now), [], "none ends before now");
        let later = now + Duration::from_secs(1);
        let renewals = settler.take_renewals(later, now);
        assert_eq!(renewals.iter().map(|(_, epoch, ids)| (*epoch, ids.len())).collect::<Vec<_>>(), [(0, 1), (0, 1)]);
        assert_eq!(settler.take_renewals(later, now), [], "they are being renewed");
        add(&mut settler, "c");
        let gone = settler.renewed(renewals[0].0, later, |_| false).unwrap();
        assert_eq!(gone.messages, 0);
        let gone = settler.renewed(renewals[1].0, later, |id| id == b"b").unwrap();
        assert_eq!(texts(&gone), [(&Verdict::Delivered, vec!["b"])]);
        assert_eq!(settler.groups().map(|group| (texts(group)[0].1[0], group.lease_until)).collect::<Vec<_>>(), [("a", later), ("c", now)]);
        assert!(settler.renewed(renewals[1].0, later, |_| false).is_none());
    }

    #[test]
    fn a_group_with_a_locked_row_becomes_two_where_it_stands_until_that_row_is_alone() {
        let mut settler = Settler::default();
        let now = Instant::now();
        for (epoch, id) in [(0, "a"), (1, "d"), (0, "b"), (0, "c")] {
            settler.add(Lease { epoch, until: now }, Verdict::Delivered, id, 1, now);
        }
        let number = settler.groups().next().unwrap().number;
        assert_eq!(settler.renewal_blocked(number, now), Some(false));
        let ids: Vec<Vec<&str>> = settler.groups().map(|group| texts(group)[0].1.clone()).collect();
        assert_eq!(ids, [vec!["a", "b"], vec!["c"], vec!["d"]]);
        let single = settler.groups().nth(1).unwrap().number;
        assert_eq!(settler.take_renewals(now, now).len(), 2, "both halves at once");
        assert_eq!((settler.renewal_blocked(single, now), settler.renewal_blocked(99, now)), (Some(true), None));
        assert_eq!((settler.messages(), settler.next_unblocking()), (4, Some(now + faults::wait(1))));
        settler.renewed(single, now, |_| false);
        assert_eq!(settler.next_unblocking(), None);
    }

    proptest! {
        #[test]
        fn halves_have_everything_in_order_and_neither_is_empty(verdicts in prop::collection::vec(0..3u64, 1..40)) {
            let now = Instant::now();
            let mut settler = Settler::default();
            for (id, delay) in verdicts.iter().enumerate() {
                let verdict = Verdict::Release { delay: Duration::from_secs(*delay) };
                settler.add(Lease { epoch: 0, until: now }, verdict, &id.to_string(), id, now);
            }
            let number = settler.groups().next().unwrap().number;
            let group = settler.take(number).unwrap();
            let whole = group.clone();
            match group.halves() {
                Err(single) => prop_assert_eq!((single.messages, verdicts.len()), (1, 1)),
                Ok([first, second]) => {
                    prop_assert!(first.messages.abs_diff(second.messages) <= 1 && second.messages > 0);
                    prop_assert_eq!(first.bytes + second.bytes, whole.bytes);
                    prop_assert_eq!(first.messages, first.ids().count());
                    prop_assert!(whole.ids().eq(first.ids().chain(second.ids())));
                }
            }
        }
    }
}
