//! The producer's side: writes the rows, over databases of its own as an application would, and looks at what is left of them.

use super::clear::{Cleared, Clearing, Whose, each_row};
use super::error::BenchError;
use super::own::Own;
use super::plan::Plan;
use super::tally::Tally;
use crate::app::{App, AppError};
use crate::config::model::Database;
use crate::domain::{Batch, Failure, FailureCode};
use crate::plugin::StoragePlugin;
use crate::ports::{Filter, RowState, Storage as _, StorageAdmin as _};
use crate::sql::{Access, Bounds, ColumnType, Statement, Values};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Rows of a steady load that fall due within this time are written in one transaction.
const TICK: Duration = Duration::from_millis(10);

/// Transactions at once that write a backlog: a server has a round trip for every row.
const WRITERS: usize = 3;

/// Rows that one step of a purge deletes.
const PURGED_AT_ONCE: u32 = 1000;

/// A database that takes no rows for so long ends the run.
pub(super) const AWAY: Duration = Duration::from_secs(30);

/// Between two attempts to write them.
const PAUSE: Duration = Duration::from_millis(250);

/// For the question which version a server has.
const PATIENCE: Duration = Duration::from_secs(10);

/// The producer.
pub(super) struct Producer {
    app: App,
    storage: Arc<StoragePlugin>,
    plan: Plan,
    own: Arc<Own>,
    /// A row may have been written.
    has_begun: AtomicBool,
}

impl Producer {
    /// Opens the storage, and makes sure that there is nothing in it that a relay would deliver.
    pub(super) async fn open(plan: &Plan) -> Result<Self, BenchError> {
        let app = App::new(plan.config.clone())?;
        let storage = app.storage(&plan.storage).await?;
        if !storage.has_admin() {
            return Err(BenchError::NoAdmin { storage: plan.storage.name.clone(), plugin: plan.storage.plugin.clone() });
        }
        let producer = Self { app, storage, plan: plan.clone(), own: Arc::default(), has_begun: AtomicBool::new(false) };
        let pending = producer.pending().await?;
        if pending == 0 {
            return Ok(producer);
        }
        let storage = plan.storage.name.clone();
        let mut found = Cleared::default();
        producer.clearing(Whose::Marked).look(&mut found).await.map_err(producer.failed("browse"))?;
        Err(match found.left {
            0 => BenchError::Pending { storage, pending },
            own => BenchError::Leftover { config: plan.config.file.clone(), storage, relay: plan.relay.name.clone(), pending, own },
        })
    }

    /// What takes rows out of the table.
    pub(super) fn clearing<'a>(&'a self, whose: Whose<'a>) -> Clearing<'a> {
        Clearing { storage: &self.storage, relay: &self.plan.relay, whose }
    }

    /// The rows that it has written.
    pub(super) fn own(&self) -> &Arc<Own> {
        &self.own
    }

    /// Whether a row may have been written, be it that the answer was lost.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Commits rows in one transaction; returns their ids.
    async fn enqueue(&self, batch: &Batch) -> Result<Vec<String>, Failure> {
        self.has_begun.store(true, Ordering::Relaxed);
        self.storage.enqueue(batch).await
    }

    fn failed(&self, call: &'static str) -> impl Fn(Failure) -> BenchError {
        let storage = self.plan.storage.name.clone();
        move |failure| AppError::Call { storage: storage.clone(), call, failure }.into()
    }

    /// Rows that are neither delivered nor dead. Counting may read the whole table.
    pub(super) async fn pending(&self) -> Result<u64, BenchError> {
        Ok(self.storage.stats().await.map_err(self.failed("stats"))?.pending)
    }

    pub(super) fn written(&self) -> u64 {
        self.own.written()
    }

    /// Writes so many rows in one transaction, before any engine runs.
    async fn write(&self, from: u64, count: u64) -> Result<(), BenchError> {
        let ids = self.enqueue(&self.plan.rows.batch(from, count)).await.map_err(self.failed("enqueue"))?;
        self.own.add(&ids);
        Ok(())
    }

    /// Writes so many rows in one transaction while engines run, and although the database is away for a moment: after a failure, which
    /// may be one of the answer only, the table is asked whether they are in it. `due`: when each was to be committed, by its place.
    async fn insist(
        &self,
        (from, count): (u64, u64),
        tally: &Tally,
        stop: &CancellationToken,
        due: impl Fn(usize) -> Instant,
    ) -> Result<(), BenchError> {
        // No engine can have settled one of them before this is given back.
        let _writing = self.own.writing().await;
        let batch = self.plan.rows.batch(from, count);
        let begun = Instant::now();
        let mut written = self.enqueue(&batch).await;
        let ids = loop {
            let failure = match written {
                Ok(ids) => break ids,
                Err(failure) if failure.code.is_outage() && begun.elapsed() < AWAY && !stop.is_cancelled() => failure,
                Err(failure) => return Err(self.failed("enqueue")(failure)),
            };
            tokio::time::sleep(PAUSE).await;
            written = match self.unknown().await {
                Err(_) => Err(failure),
                Ok(ids) if ids.is_empty() => self.enqueue(&batch).await,
                Ok(ids) if ids.len() == batch.len() => Ok(ids),
                Ok(_) => return Err(BenchError::Foreign { storage: self.plan.storage.name.clone() }),
            };
        };
        tally.committed(&ids, |index| due(index).into_std());
        self.own.add(&ids);
        Ok(())
    }

    /// Rows that look like those of the bench, and whose ids it has not been told.
    async fn unknown(&self) -> Result<Vec<String>, Failure> {
        let mut ids = Vec::new();
        for state in [RowState::Pending, RowState::Leased] {
            each_row(&self.storage, state, |row, message| {
                if message.is_some_and(|message| self.plan.rows.is_like(message)) && !self.own.knows(&row.id) {
                    ids.push(row.id);
                }
            })
            .await?;
        }
        Ok(ids)
    }

    /// Writes a backlog.
    pub(super) async fn fill(&self, tally: &Tally, stop: &CancellationToken) -> Result<(), BenchError> {
        let (count, at_once) = (self.plan.count, self.plan.rows.at_once());
        let (next, begun) = (AtomicU64::new(0), Instant::now());
        let stop = stop.child_token();
        let writer = async || {
            loop {
                let from = next.fetch_add(at_once, Ordering::Relaxed);
                if from >= count {
                    return Ok(());
                }
                if stop.is_cancelled() {
                    return Err(BenchError::Interrupted);
                }
                self.write(from, at_once.min(count - from)).await.inspect_err(|_| stop.cancel())?;
            }
        };
        // Each to its end: of a write that is dropped, nobody knows what it has written.
        let ended = futures_util::future::join_all((0..WRITERS).map(|_| writer())).await;
        let mut errors: Vec<BenchError> = ended.into_iter().filter_map(Result::err).collect();
        errors.sort_by_key(|error| matches!(error, BenchError::Interrupted));
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        tally.all_written(count, begun.elapsed());
        Ok(())
    }

    /// Writes rows at a steady rate. Where the table does not take them so fast, all of them all the same, in larger transactions.
    /// Ends between two of them when it is stopped.
    pub(super) async fn flow(&self, rate: u32, tally: &Tally, stop: &CancellationToken) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            let written = self.written();
            let due = due(begun.elapsed(), rate).min(self.plan.count).saturating_sub(written);
            if due > 0 {
                let count = due.min(self.plan.rows.at_once());
                let due = |index| begun + until(written.saturating_add(u64::try_from(index).unwrap_or(u64::MAX)), rate);
                self.insist((written, count), tally, stop, due).await?;
            }
            if self.written() >= self.plan.count {
                tally.all_written(self.plan.count, begun.elapsed());
                return Ok(());
            }
            if due <= self.plan.rows.at_once() {
                let next = begun + until(self.written(), rate);
                let next = if due > 0 { next.max(Instant::now() + TICK) } else { next };
                tokio::select! {
                    () = tokio::time::sleep_until(next) => {}
                    () = stop.cancelled() => {}
                }
            }
            if stop.is_cancelled() {
                return Ok(());
            }
        }
    }

    /// Whether the table has delivered rows, as far as the last one tells.
    pub(super) async fn keeps_delivered(&self) -> Result<bool, Failure> {
        let Some(id) = self.own.delivered() else { return Ok(false) };
        let filter = Filter { state: Some(RowState::Delivered), topic: None, ids: vec![id] };
        Ok(!self.storage.browse(&filter, None, 1, false).await?.rows.is_empty())
    }

    /// Makes rows of others pending again that a claim has ended dead; whether they are.
    pub(super) async fn make_pending(&self, ids: &[String]) -> bool {
        ids.is_empty() || self.storage.requeue(&Filter { ids: ids.to_vec(), ..Filter::default() }).await.is_ok()
    }

    /// Deletes every delivered row, telling how many are gone. Ends between two steps when it is stopped.
    pub(super) async fn purge(&self, stop: &CancellationToken, tell: &(dyn Fn(u64) + Sync)) -> Result<(), BenchError> {
        let mut gone: u64 = 0;
        loop {
            let purged = self.storage.purge(Duration::ZERO, PURGED_AT_ONCE).await.map_err(self.failed("purge"))?;
            if purged == 0 {
                return Ok(());
            }
            gone = gone.saturating_add(purged);
            tell(gone);
            if stop.is_cancelled() {
                return Err(BenchError::Interrupted);
            }
        }
    }

    /// The version of the database server, by the kind of server; none: there is no server.
    pub(super) async fn server(&self) -> Result<Option<(String, String)>, BenchError> {
        let databases = &self.plan.storage.grants.databases;
        let is_server = |name: &&String| matches!(self.plan.config.databases.get(*name), Some(Database::Postgres(_)));
        let Some(name) = databases.iter().find(is_server) else { return Ok(None) };
        let question = Statement::new("SELECT current_setting('server_version')").returning([ColumnType::Text]);
        let answered = async {
            let connection = self.app.databases().open(name, Access::ReadOnly).await?;
            connection.execute(vec![question], Bounds::within(PATIENCE, 1 << 20)).await
        };
        let failed = |error: crate::sql::SqlError| {
            self.failed("asking for the server's version")(Failure::new(FailureCode::Unavailable, error.to_string()))
        };
        let rows = answered.await.map_err(failed)?;
        let version = rows.first().and_then(|rows| rows.columns.first()).and_then(|values| match values {
            Values::Texts(column) => column.text(0).map(str::to_owned),
            _ => None,
        });
        Ok(version.map(|version| ("PostgreSQL".to_owned(), version)))
    }
}

/// Rows that a steady load has had due after some time.
fn due(elapsed: Duration, rate: u32) -> u64 {
    u64::try_from(elapsed.as_micros().saturating_mul(u128::from(rate)) / 1_000_000).unwrap_or(u64::MAX)
}

/// When row `number`, counted from 0, is due.
fn until(number: u64, rate: u32) -> Duration {
    let micros = (u128::from(number) + 1).saturating_mul(1_000_000).div_ceil(u128::from(rate.max(1)));
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_due_when_it_is() {
        for rate in [1, 3, 7, 200, 30_000] {
            for number in [0, 1, 2, 100, 99_999] {
                let at = until(number, rate);
                assert_eq!(due(at, rate), number + 1, "{rate} {number}");
                assert_eq!(due(at.saturating_sub(Duration::from_micros(1)), rate), number, "{rate} {number}");
            }
        }
    }
}
