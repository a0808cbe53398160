//! Takes rows of a bench out of a table without publishing them: claimed, ended dead, and deleted. Rows of others come with a claim, for
//! there is no other way to a row; they are handed back with their attempts, after each pass through what is due. Those that are too large
//! for the relay end dead in a claim, and are made pending again. What a process that is killed holds comes back when its lease ends.

use super::own::Own;
use super::rows;
use crate::app::worker_name;
use crate::cli::output::count;
use crate::config::model::Relay;
use crate::domain::{Column, Failure, FailureCode, Message, Settlement, Verdict};
use crate::plugin::StoragePlugin;
use crate::ports::{ClaimRequest, Claimed, Filter, Row, RowState, Storage as _, StorageAdmin as _};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Rows of a claim, and of a page.
const ROWS: u32 = 500;

/// Between two looks at rows that are not due, at least.
const SHORTEST: Duration = Duration::from_millis(100);

/// And at most: under a lease, when a row is due is not known.
const LONGEST: Duration = Duration::from_secs(1);

/// So many passes in a row that bring none of the rows, though all are due, show that they cannot be had.
const BARREN: u32 = 3;

/// Which rows.
pub(super) enum Whose<'a> {
    /// Those of any bench, by what is in them.
    Marked,
    /// The same, and those of this process: a table may have no room for the mark.
    Known(&'a Own),
}

/// How far it is.
#[derive(Debug, Clone, Default)]
pub(super) struct Cleared {
    /// Rows that are out.
    pub(super) removed: u64,
    /// Rows of the bench that are still pending.
    pub(super) left: u64,
    /// The last of them is due after so long.
    pub(super) wait: Duration,
    /// Rows of others that a claim has ended dead, and that could not be made pending again.
    pub(super) refused: Vec<String>,
}

/// A table, and the rows in it that are meant.
pub(super) struct Clearing<'a> {
    pub(super) storage: &'a StoragePlugin,
    pub(super) relay: &'a Relay,
    pub(super) whose: Whose<'a>,
}

/// What is not the bench's, and goes back.
#[derive(Default)]
struct Held {
    leased: Column,
    refused: Vec<String>,
}

impl Clearing<'_> {
    /// Goes on until no row is left, or until it is stopped. What it came to is in `cleared` whatever it ends with.
    pub(super) async fn run(&self, cleared: &mut Cleared, stop: &CancellationToken, tell: impl Fn(&Cleared)) -> Result<(), Failure> {
        let (worker, mut barren) = (worker_name(), 0);
        loop {
            let soonest = self.look(cleared).await?;
            tell(cleared);
            if cleared.left == 0 || stop.is_cancelled() {
                return Ok(());
            }
            let before = cleared.removed;
            if soonest.is_zero() {
                self.pass(&worker, larger(barren), cleared, stop).await?;
            }
            if cleared.removed > before {
                barren = 0;
                continue;
            }
            // One that waits may be the head of the others' key.
            barren = if cleared.wait.is_zero() { barren + 1 } else { 0 };
            if barren == BARREN {
                return Err(out_of_reach(cleared.left));
            }
            let pause = if barren > 0 { LONGEST } else { soonest.clamp(SHORTEST, LONGEST) };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Takes what is due, and hands back what is not the bench's.
    async fn pass(&self, worker: &str, limit: u32, cleared: &mut Cleared, stop: &CancellationToken) -> Result<(), Failure> {
        let mut held = Held::default();
        let claimed = self.claim_all(worker, limit, cleared, &mut held, stop).await;
        let handed_back = self.hand_back(worker, held, cleared).await;
        claimed.and(handed_back)
    }

    /// Takes everything that is due, as far as it can be taken before the first of it is due again.
    async fn claim_all(
        &self,
        worker: &str,
        limit: u32,
        cleared: &mut Cleared,
        held: &mut Held,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let request = ClaimRequest {
            worker: worker.to_owned(),
            limit,
            max_bytes: u64::try_from(self.relay.in_flight_bytes).unwrap_or(u64::MAX),
            lease: self.relay.lease,
            // Whoever's row it is, this is no attempt.
            max_attempts: 0,
            max_message_bytes: u64::try_from(self.relay.max_message_bytes).unwrap_or(u64::MAX),
        };
        while !stop.is_cancelled() && begun.elapsed() < self.relay.lease / 2 {
            let Claimed { batch, refused, unfinished } = self.storage.claim(&request).await?;
            if batch.is_empty() && refused.is_empty() && !unfinished {
                break;
            }
            let mut own = Column::default();
            for message in batch.messages() {
                let ids = if self.is_meant(message.id(), Some(message)) { &mut own } else { &mut held.leased };
                ids.push(Some(message.id().as_bytes()));
            }
            held.refused.extend(refused.into_iter().map(|(id, _)| id));
            let ids: Vec<String> = (0..own.len()).filter_map(|index| own.text(index)).map(str::to_owned).collect();
            if !ids.is_empty() {
                let failure = Failure::new(FailureCode::Other("outhaul-bench".to_owned()), "left by a bench");
                self.storage.settle(worker, &[Settlement { verdict: Verdict::Dead(failure), ids: own }]).await?;
                self.discard(ids, cleared).await?;
            }
        }
        Ok(())
    }

    async fn discard(&self, ids: Vec<String>, cleared: &mut Cleared) -> Result<(), Failure> {
        let discarded = self.storage.discard(&Filter { ids, ..Filter::default() }).await?;
        cleared.removed = cleared.removed.saturating_add(discarded);
        Ok(())
    }

    /// Gives rows of others back with their attempts. What of it fails, a lease that runs out makes good, but for those that are dead.
    async fn hand_back(&self, worker: &str, held: Held, cleared: &mut Cleared) -> Result<(), Failure> {
        let Held { leased, refused } = held;
        if !leased.is_empty() {
            let released = [Settlement { verdict: Verdict::Release { delay: Duration::ZERO }, ids: leased }];
            let _ = self.storage.settle(worker, &released).await;
        }
        if refused.is_empty() {
            return Ok(());
        }
        // Those of a bench among them must not come back.
        let discarded = self.discard_dead(cleared).await;
        let requeued = self.storage.requeue(&Filter { ids: refused.clone(), ..Filter::default() }).await;
        if requeued.is_err() {
            cleared.refused.extend(refused);
        }
        discarded?;
        requeued.map(drop)
    }

    /// Counts what is still pending. Returns when the first of it is due.
    pub(super) async fn look(&self, cleared: &mut Cleared) -> Result<Duration, Failure> {
        let (mut soonest, mut rows, mut wait) = (Duration::MAX, 0, Duration::ZERO);
        for state in [RowState::Pending, RowState::Leased] {
            self.each(state, |row| {
                let due = if state == RowState::Leased { LONGEST } else { Duration::from_millis(row.due_in_ms) };
                (soonest, rows, wait) = (soonest.min(due), rows + 1, wait.max(due));
            })
            .await?;
        }
        (cleared.left, cleared.wait) = (rows, wait);
        Ok(soonest)
    }

    /// Deletes those that have ended dead.
    pub(super) async fn discard_dead(&self, cleared: &mut Cleared) -> Result<(), Failure> {
        let mut ids = Vec::new();
        self.each(RowState::Dead, |row| ids.push(row.id)).await?;
        for ids in ids.chunks(usize::try_from(ROWS).unwrap_or(1)) {
            self.discard(ids.to_vec(), cleared).await?;
        }
        Ok(())
    }

    async fn each(&self, state: RowState, mut take: impl FnMut(Row)) -> Result<(), Failure> {
        each_row(self.storage, state, |row, message| {
            if self.is_meant(&row.id, message) {
                take(row);
            }
        })
        .await
    }

    fn is_meant(&self, id: &str, message: Option<Message<'_>>) -> bool {
        message.is_some_and(rows::is_marked) || matches!(self.whose, Whose::Known(own) if own.knows(id))
    }
}

/// Rows of a claim after so many passes that brought nothing: a key's rows come as one run, and those of others may be many.
fn larger(barren: u32) -> u32 {
    ROWS << (4 * barren)
}

fn out_of_reach(rows: u64) -> Failure {
    let text = format!(
        "{} cannot be claimed, though due: rows of others with the same keys come before them, or somebody else holds them. Let \
         `outhaul drain` deliver those first, and these behind them, or delete these by hand",
        count(rows, "row")
    );
    Failure::new(FailureCode::Other("out-of-reach".to_owned()), text)
}

/// Goes through the rows in a state, page by page.
pub(super) async fn each_row(
    storage: &StoragePlugin,
    state: RowState,
    mut take: impl FnMut(Row, Option<Message<'_>>),
) -> Result<(), Failure> {
    let filter = Filter { state: Some(state), ..Filter::default() };
    let mut after: Option<String> = None;
    loop {
        let page = storage.browse(&filter, after.as_deref(), ROWS, true).await?;
        for (index, row) in page.rows.into_iter().enumerate() {
            take(row, page.messages.as_ref().map(|messages| messages.message(index)));
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}
