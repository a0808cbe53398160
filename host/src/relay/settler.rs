//! Gathers verdicts until they are written: one settle call for many messages, equal verdicts together.

use super::leases::Lease;
use crate::domain::{Column, Settlement, Verdict};
use std::collections::HashMap;
use tokio::time::Instant;

/// Verdicts of one lease epoch, waiting to be written.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// The epoch under whose worker name these rows were claimed.
    pub(super) epoch: u32,
    pub(super) settlements: Vec<Settlement>,
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// When the first verdict came.
    pub(super) since: Instant,
    /// When the first of the leases ends under which these verdicts may be written.
    pub(super) lease_until: Instant,
    places: HashMap<Verdict, usize>,
}

impl Group {
    fn new(lease: Lease, now: Instant) -> Self {
        Self {
            epoch: lease.epoch,
            settlements: Vec::new(),
            messages: 0,
            bytes: 0,
            since: now,
            lease_until: lease.until,
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
}

/// All verdicts not yet written, oldest group first.
#[derive(Debug, Default)]
pub(super) struct Settler {
    groups: std::collections::VecDeque<Group>,
}

impl Settler {
    /// Adds a verdict on a message that was claimed under `lease`.
    pub(super) fn add(&mut self, lease: Lease, verdict: Verdict, id: &str, bytes: usize, now: Instant) {
        match self.groups.iter_mut().find(|group| group.epoch == lease.epoch) {
            Some(group) => group.add(lease, verdict, id, bytes),
            None => {
                let mut group = Group::new(lease, now);
                group.add(lease, verdict, id, bytes);
                self.groups.push_back(group);
            }
        }
    }

    /// The oldest group, to be written now.
    pub(super) fn take(&mut self) -> Option<Group> {
        self.groups.pop_front()
    }

    pub(super) fn first(&self) -> Option<&Group> {
        self.groups.front()
    }

    /// When the first lease ends under which a verdict here may be written.
    pub(super) fn lease_until(&self) -> Option<Instant> {
        self.groups.iter().map(|group| group.lease_until).min()
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
    use std::time::Duration;

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
        assert_eq!(settler.lease_until(), Some(now + Duration::from_secs(10)));
        assert_eq!((settler.messages(), settler.bytes()), (4, 26));
        let group = settler.take().unwrap();
        assert_eq!((group.epoch, group.messages, group.bytes), (0, 3, 25));
        let ids: Vec<(Verdict, Vec<Option<&[u8]>>)> =
            group.settlements.iter().map(|settlement| (settlement.verdict.clone(), settlement.ids.iter().collect())).collect();
        assert_eq!(ids, [(Verdict::Delivered, vec![Some(&b"a"[..]), Some(&b"c"[..])]), (release, vec![Some(&b"b"[..])])]);
        assert_eq!(settler.take().map(|group| group.epoch), Some(1));
        assert!(settler.is_empty());
    }
}
