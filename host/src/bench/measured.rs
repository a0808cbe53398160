//! The ports, with a clock on every call. What goes through them is not changed, but for one thing: a row that the bench has not written
//! is handed back, and ends the run. So a claim ends when the ids of all rows in it are known: where it was faster than the answer to the
//! commit, with that answer.

use super::own::Own;
use super::tally::{Call, Tally};
use crate::domain::{Batch, Column, Failure, Outcome, Settlement, Verdict};
use crate::ports::{ClaimRequest, Claimed, Description, PublishCall, Publisher, Stats, Storage, Turn};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// A storage that is measured.
pub(super) struct MeasuredStorage {
    pub(super) inner: Arc<dyn Storage>,
    pub(super) tally: Arc<Tally>,
    pub(super) own: Arc<Own>,
}

impl MeasuredStorage {
    /// What is left of a claim without the rows of others, which are handed back with their attempt.
    async fn own(&self, mut claimed: Claimed, worker: &str) -> Claimed {
        let refused: Vec<&str> = claimed.refused.iter().map(|(id, _)| id.as_str()).collect();
        let foreign = self.own.claimed(&Column::of_texts(&refused)).await;
        let (foreign, own): (Vec<_>, Vec<_>) = refused.iter().enumerate().partition(|(index, _)| foreign.contains(index));
        self.own.done(own.iter().map(|(_, id)| **id), false);
        self.tally.refused(own.len());
        if !foreign.is_empty() {
            self.own.refused(foreign.into_iter().map(|(_, id)| (*id).to_owned()));
            self.tally.meet_foreign();
        }
        let foreign = self.own.claimed(&claimed.batch.ids).await;
        if foreign.is_empty() {
            return claimed;
        }
        let mut ids = Column::default();
        foreign.iter().for_each(|index| ids.push(claimed.batch.ids.get(*index)));
        // Where this fails, their lease runs out by itself.
        let _ = self.inner.settle(worker, &[Settlement { verdict: Verdict::Release { delay: Duration::ZERO }, ids }]).await;
        let mut own = Batch::default();
        (0..claimed.batch.len()).filter(|index| !foreign.contains(index)).for_each(|index| own.push_from(&claimed.batch, index));
        claimed.batch = own;
        self.tally.meet_foreign();
        claimed
    }

    /// Verdicts were written, but for the ids that were lost.
    fn settled(&self, settlements: &[Settlement], lost: &[String]) {
        for Settlement { verdict, ids } in settlements {
            let delivered = matches!(verdict, Verdict::Delivered);
            if delivered || matches!(verdict, Verdict::Dead(_)) {
                let ids = (0..ids.len()).filter_map(|index| ids.text(index));
                self.own.done(ids.filter(|id| !lost.iter().any(|lost| lost == id)), delivered);
            }
        }
        self.tally.settled(settlements, lost);
    }
}

fn rows(settlements: &[Settlement]) -> usize {
    settlements.iter().map(|settlement| settlement.ids.len()).sum()
}

#[async_trait]
impl Storage for MeasuredStorage {
    fn description(&self) -> Description {
        self.inner.description()
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        let begun = self.tally.begin(Call::Claim);
        let result = self.inner.claim(request).await;
        let claimed = result.as_ref().map_or(0, |claimed| claimed.batch.len());
        self.tally.end(Call::Claim.having_claimed(claimed), begun, claimed);
        Ok(self.own(result?, &request.worker).await)
    }

    async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        let begun = self.tally.begin(Call::Settle);
        let result = self.inner.settle(worker, settlements).await;
        self.tally.end(Call::Settle, begun, rows(settlements));
        let lost = result?;
        self.settled(settlements, &lost);
        Ok(lost)
    }

    async fn settle_and_claim(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        let begun = self.tally.begin(Call::SettleAndClaim);
        let result = self.inner.settle_and_claim(settlements, request).await;
        let claimed = result.as_ref().map_or(0, |turn| turn.claimed.batch.len());
        self.tally.end(Call::SettleAndClaim.having_claimed(claimed), begun, rows(settlements) + claimed);
        let turn = result?;
        self.settled(settlements, &turn.lost);
        Ok(Turn { lost: turn.lost, claimed: self.own(turn.claimed, &request.worker).await })
    }

    async fn extend(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        let begun = self.tally.begin(Call::Extend);
        let result = self.inner.extend(worker, ids, lease).await;
        self.tally.end(Call::Extend, begun, ids.len());
        result
    }

    async fn stats(&self) -> Result<Stats, Failure> {
        self.inner.stats().await
    }
}

/// A publisher that is measured.
pub(super) struct MeasuredPublisher {
    pub(super) inner: Arc<dyn Publisher>,
    pub(super) tally: Arc<Tally>,
}

/// The outcomes of one call. Of each message the first one counts.
struct Outcomes<'a> {
    tally: &'a Tally,
    /// None: nobody wants to know which messages were delivered.
    ids: Option<Column>,
    is_known: Vec<bool>,
    /// Delivered, and not told yet: by their place.
    delivered: Vec<usize>,
    retried: u64,
}

impl Outcomes<'_> {
    fn note(&mut self, index: usize, outcome: &Outcome) {
        let Some(is_known) = self.is_known.get_mut(index).filter(|is_known| !**is_known) else { return };
        *is_known = !matches!(outcome, Outcome::Held);
        match outcome {
            Outcome::Retry(_) => self.retried += 1,
            Outcome::Delivered => self.delivered.push(index),
            Outcome::Reject(_) | Outcome::Held | Outcome::Settled | Outcome::Lost => {}
        }
    }

    /// Tells of those that were delivered, all at once.
    fn tell(&mut self) {
        let delivered = std::mem::take(&mut self.delivered);
        if let Some(ids) = self.ids.as_ref().filter(|_| !delivered.is_empty()) {
            self.tally.delivered(delivered.into_iter().filter_map(|index| ids.text(index)));
        }
    }
}

#[async_trait]
impl Publisher for MeasuredPublisher {
    async fn publish(&self, batch: Batch, mut call: PublishCall) -> Result<Vec<Outcome>, Failure> {
        let messages = batch.len();
        let ids = self.tally.has_latency.then(|| batch.ids.clone());
        let mut outcomes = Outcomes { tally: &self.tally, ids, is_known: vec![false; messages], delivered: Vec::new(), retried: 0 };
        let (reports, mut reported) = mpsc::unbounded_channel();
        let onwards = std::mem::replace(&mut call.reports, reports);
        let begun = self.tally.begin(Call::Publish);
        let publishing = self.inner.publish(batch, call);
        tokio::pin!(publishing);
        let forward = |outcomes: &mut Outcomes<'_>, (index, outcome): (usize, Outcome)| {
            outcomes.note(index, &outcome);
            // Nobody listens any more after a forced end.
            let _ = onwards.send((index, outcome));
        };
        let result = loop {
            tokio::select! {
                biased;
                Some(report) = reported.recv() => {
                    forward(&mut outcomes, report);
                    outcomes.tell();
                }
                result = &mut publishing => break result,
            }
        };
        while let Ok(report) = reported.try_recv() {
            forward(&mut outcomes, report);
        }
        self.tally.end(Call::Publish, begun, messages);
        for (index, outcome) in result.iter().flatten().enumerate() {
            outcomes.note(index, outcome);
        }
        outcomes.tell();
        if result.is_err() {
            // The call itself went wrong: what it has not told of is tried again.
            outcomes.retried += outcomes.is_known.iter().map(|is_known| u64::from(!is_known)).sum::<u64>();
        }
        self.tally.retried(outcomes.retried);
        result
    }
}
