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
    /// An earlier try to write it failed, and may have written it all the same.
    pub(super) answer_lost: bool,
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
            answer_lost: false,
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

impl Group {
    /// Takes a group apart, verdict by verdict and then message by message, delivered ones first.
    ///
    /// # Errors
    /// The group itself, if it is a single message.
    pub(super) fn split(mut self) -> Result<Vec<Self>, Box<Self>> {
        if self.messages <= 1 {
            return Err(Box::new(self));
        }
        let settlements = std::mem::take(&mut self.settlements);
        // Sizes are not known by message: the first part answers for all bytes until it is written.
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut part = |settlement: Settlement| Self {
            messages: settlement.ids.len(),
            bytes: std::mem::take(&mut bytes),
            settlements: vec![settlement],
            places: HashMap::new(),
            ..self
        };
        let mut parts: Vec<Self> = match <[Settlement; 1]>::try_from(settlements) {
            Ok([Settlement { verdict, ids }]) => {
                let one = |id: Option<&[u8]>| {
                    let mut column = Column::default();
                    column.push(id);
                    Settlement { verdict: verdict.clone(), ids: column }
                };
                ids.iter().map(|id| part(one(id))).collect()
            }
            Err(several) => several.into_iter().map(part).collect(),
        };
        parts.sort_by_key(|part| part.settlements.first().is_none_or(|settlement| settlement.verdict != Verdict::Delivered));
        Ok(parts)
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
        match self.groups.iter_mut().find(|group| group.epoch == lease.epoch && !group.answer_lost) {
            Some(group) => group.add(lease, verdict, id, bytes),
            None => {
                let mut group = Group::new(lease, now);
                group.add(lease, verdict, id, bytes);
                self.groups.push_back(group);
            }
        }
    }

    /// Parts of a group that could not be written as a whole: next in turn, each by itself.
    pub(super) fn put_back(&mut self, parts: Vec<Group>) {
        for part in parts.into_iter().rev() {
            self.groups.push_front(part);
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

    #[test]
    fn a_refused_group_is_taken_apart_down_to_single_messages_delivered_first() {
        let mut settler = Settler::default();
        let now = Instant::now();
        let lease = Lease { epoch: 0, until: now };
        settler.add(lease, Verdict::Release { delay: Duration::ZERO }, "a", 1, now);
        settler.add(lease, Verdict::Delivered, "b", 1, now);
        settler.add(lease, Verdict::Delivered, "c", 1, now);
        let mut group = settler.take().unwrap();
        group.answer_lost = true;
        settler.put_back(group.split().unwrap());
        // New verdicts do not mix with what is being taken apart.
        settler.add(lease, Verdict::Delivered, "d", 1, now);
        let (first, second) = (settler.take().unwrap(), settler.take().unwrap());
        assert_eq!((first.messages, second.messages, settler.messages()), (2, 1, 1));
        let singles = first.split().unwrap();
        let ids: Vec<_> = singles.iter().map(|group| group.settlements[0].ids.text(0).unwrap().to_owned()).collect();
        assert_eq!(ids, ["b", "c"]);
        assert_eq!(singles.into_iter().filter_map(|single| single.split().err()).count(), 2);
        assert_eq!(second.settlements[0].verdict, Verdict::Release { delay: Duration::ZERO });
    }
}
