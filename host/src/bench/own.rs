//! The rows that a bench has written, known by their ids. No other row of a table is published, settled or removed by it.

use crate::domain::Column;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module. Ids are kept as hashes, 64 bits each with a seed of this process: of a million rows, one of somebody else's has one
/// chance in 10^13 to pass for one of them.
#[derive(Default)]
pub(super) struct Own {
    hasher: RandomState,
    rows: Mutex<Rows>,
    writing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Rows {
    written: u64,
    /// Not claimed yet.
    waiting: HashSet<u64>,
    /// Claimed by an engine of the bench, and not known to be done.
    claimed: HashSet<u64>,
    /// The last one that was delivered.
    delivered: Option<String>,
    dead: u64,
    /// Rows of others that a claim has ended dead.
    refused: Vec<String>,
}

impl Own {
    // Every change is whole before the lock is given back.
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be held while rows are written that an engine may claim before their ids are known: so long, nobody can say whose they are.
    pub(super) async fn writing(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.writing.lock().await
    }

    /// They were written.
    pub(super) fn add(&self, ids: &[String]) {
        let mut rows = self.rows();
        rows.written = rows.written.saturating_add(u64::try_from(ids.len()).unwrap_or(u64::MAX));
        rows.waiting.extend(ids.iter().map(|id| self.hasher.hash_one(id.as_bytes())));
    }

    /// How many were written.
    pub(super) fn written(&self) -> u64 {
        self.rows().written
    }

    /// Whether it is one that is not known to be done.
    pub(super) fn knows(&self, id: &str) -> bool {
        let id = self.hasher.hash_one(id.as_bytes());
        let rows = self.rows();
        rows.waiting.contains(&id) || rows.claimed.contains(&id)
    }

    /// Rows came with a claim. Returns which of them are not the bench's, by their place.
    pub(super) async fn claimed(&self, ids: &Column) -> Vec<usize> {
        if self.claim(ids).is_empty() {
            return Vec::new();
        }
        let _written = self.writing.lock().await;
        self.claim(ids)
    }

    fn claim(&self, ids: &Column) -> Vec<usize> {
        let mut rows = self.rows();
        let mut foreign = Vec::new();
        for (index, id) in ids.iter().enumerate() {
            let id = self.hasher.hash_one(id.unwrap_or_default());
            if rows.waiting.remove(&id) {
                rows.claimed.insert(id);
            } else if !rows.claimed.contains(&id) {
                foreign.push(index);
            }
        }
        foreign
    }

    /// A claim has ended rows of others dead.
    pub(super) fn refused(&self, ids: impl IntoIterator<Item = String>) {
        self.rows().refused.extend(ids);
    }

    /// Takes what [`Self::refused`] was told.
    pub(super) fn take_refused(&self) -> Vec<String> {
        std::mem::take(&mut self.rows().refused)
    }

    /// These are done: delivered, or dead.
    pub(super) fn done<'a>(&self, ids: impl IntoIterator<Item = &'a str>, delivered: bool) {
        let mut rows = self.rows();
        let mut last = None;
        for id in ids {
            rows.claimed.remove(&self.hasher.hash_one(id.as_bytes()));
            last = Some(id);
            if !delivered {
                rows.dead = rows.dead.saturating_add(1);
            }
        }
        if let Some(last) = last.filter(|_| delivered) {
            rows.delivered = Some(last.to_owned());
        }
    }

    /// The last one that was delivered.
    pub(super) fn delivered(&self) -> Option<String> {
        self.rows().delivered.clone()
    }

    /// How many have ended dead.
    pub(super) fn dead(&self) -> u64 {
        self.rows().dead
    }

    /// Rows that are not known to be done: those that no engine of the bench has claimed, and those that one has.
    pub(super) fn open(&self) -> (u64, u64) {
        let rows = self.rows();
        let count = |rows: &HashSet<u64>| u64::try_from(rows.len()).unwrap_or(u64::MAX);
        (count(&rows.waiting), count(&rows.claimed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn texts(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[tokio::test]
    async fn rows_are_known_until_they_are_done() {
        let own = Own::default();
        own.add(&texts(&["1", "2", "3"]));
        assert_eq!(own.claimed(&Column::of_texts(["2", "7", "1"])).await, [1]);
        assert_eq!((own.open(), own.written()), ((1, 2), 3));
        assert_eq!(own.claimed(&Column::of_texts(["2"])).await, [] as [usize; 0], "claimed again after its lease");
        own.done(["1"], true);
        own.done(["2"], false);
        assert_eq!((own.open(), own.delivered().as_deref(), own.dead()), ((1, 0), Some("1"), 1));
        assert!(own.knows("3") && !own.knows("1") && !own.knows("7"));
        own.refused(texts(&["9"]));
        assert_eq!((own.take_refused(), own.take_refused()), (texts(&["9"]), Vec::new()));
    }

    #[tokio::test]
    async fn whose_a_row_is_waits_for_those_that_are_being_written() {
        let own = Arc::new(Own::default());
        let writing = own.writing().await;
        let claimed = tokio::spawn({
            let own = Arc::clone(&own);
            async move { own.claimed(&Column::of_texts(["1", "2"])).await }
        });
        tokio::task::yield_now().await;
        assert!(!claimed.is_finished());
        own.add(&texts(&["1"]));
        drop(writing);
        assert_eq!(claimed.await.unwrap(), [1]);
    }
}
