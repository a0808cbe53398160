//! A storage in memory that costs nothing, so that what is measured is the engine behind it.

use super::messages::{self, Keys};
use async_trait::async_trait;
use outhaul::domain::{Batch, Column, Failure, Settlement};
use outhaul::ports::{ClaimRequest, Claimed, Description, Stats, Storage, Turn};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Hands over batches that were made before, and counts what is settled. Nothing of it may fail: a row is handed
/// over once.
pub struct Source {
    batches: Mutex<VecDeque<Batch>>,
    fused: bool,
    /// Rows that were settled.
    pub settled: AtomicUsize,
}

impl Source {
    /// With so many rows, for claims of `batch` rows.
    pub fn new(rows: usize, batch: usize, payload: usize, keys: Keys, fused: bool) -> Self {
        let piece = |start: usize| messages::batch(start..rows.min(start + batch), payload, keys);
        let batches = (0..rows).step_by(batch).map(piece).collect::<VecDeque<_>>();
        Self { batches: Mutex::new(batches), fused, settled: AtomicUsize::new(0) }
    }

    /// Rows that were not handed over yet.
    pub fn left(&self) -> usize {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Batch::len).sum()
    }

    fn take(&self, limit: usize) -> Claimed {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(batch) = batches.pop_front() else { return Claimed::default() };
        if batch.len() <= limit {
            return Claimed { batch, ..Claimed::default() };
        }
        let (mut taken, mut left) = (Batch::default(), Batch::default());
        for index in 0..batch.len() {
            if index < limit { &mut taken } else { &mut left }.push_from(&batch, index);
        }
        batches.push_front(left);
        Claimed { batch: taken, ..Claimed::default() }
    }

    fn count(&self, settlements: &[Settlement]) {
        let rows = settlements.iter().map(|settlement| settlement.ids.len()).sum();
        self.settled.fetch_add(rows, Ordering::Relaxed);
    }
}

#[async_trait]
impl Storage for Source {
    fn description(&self) -> Description {
        Description { strict_order: true, fused: self.fused, ..Description::default() }
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        Ok(self.take(usize::try_from(request.limit).unwrap_or(usize::MAX)))
    }

    async fn settle(&self, _worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        self.count(settlements);
        Ok(Vec::new())
    }

    async fn settle_and_claim(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        self.count(settlements);
        Ok(Turn { lost: Vec::new(), claimed: self.claim(request).await? })
    }

    async fn extend(&self, _worker: &str, _ids: &Column, _lease: Duration) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }

    async fn stats(&self) -> Result<Stats, Failure> {
        Ok(Stats::default())
    }
}
