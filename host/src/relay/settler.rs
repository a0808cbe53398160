//! Gathers verdicts until they are written: one settle call for many messages, equal verdicts together.

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
    places: HashMap<Verdict, usize>,
}

impl Group {
    fn new(epoch: u32, now: Instant) -> Self {
        Self { epoch, settlements: Vec::new(), messages: 0, bytes: 0, since: now, places: HashMap::new() }
    }

    fn add(&mut self, verdict: Verdict, id: &str, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes;
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
    /// Adds a verdict on a message that was claimed in `epoch`.
    pub(super) fn add(&mut self, epoch: u32, verdict: Verdict, id: &str, bytes: usize, now: Instant) {
        match self.groups.iter_mut().find(|group| group.epoch == epoch) {
            Some(group) => group.add(verdict, id, bytes),
            None => {
                let mut group = Group::new(epoch, now);
                group.add(verdict, id, bytes);
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
        settler.add(0, Verdict::Delivered, "a", 10, now);
        settler.add(0, release.clone(), "b", 10, now);
        settler.add(0, Verdict::Delivered, "c", 5, now);
        settler.add(1, Verdict::Delivered, "d", 1, now);
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
