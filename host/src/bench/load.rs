//! The producer's side: writes the rows, over databases of its own as an application would, and looks at what is left of them.

use super::error::BenchError;
use super::plan::Plan;
use super::tally::Tally;
use crate::app::{App, AppError};
use crate::config::model::Database;
use crate::domain::{Failure, FailureCode};
use crate::plugin::StoragePlugin;
use crate::ports::{Filter, RowState, Storage as _, StorageAdmin as _};
use crate::sql::{Access, Bounds, ColumnType, Statement, Values};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Rows of a steady load that fall due within this time are written in one transaction.
const TICK: Duration = Duration::from_millis(10);

/// Transactions at once that write a backlog: a server has a round trip for every row.
const WRITERS: usize = 3;

/// Rows that one step of a purge deletes.
const PURGED_AT_ONCE: u32 = 1000;

/// For the question which version a server has.
const PATIENCE: Duration = Duration::from_secs(10);

/// The producer.
pub(super) struct Producer {
    app: App,
    storage: Arc<StoragePlugin>,
    plan: Plan,
    /// Rows written so far.
    written: AtomicU64,
    /// The id of the last of them.
    last: Mutex<Option<String>>,
}

impl Producer {
    /// Opens the storage, and makes sure that there is nothing in it that a relay would deliver.
    pub(super) async fn open(plan: &Plan) -> Result<Self, BenchError> {
        let app = App::new(plan.config.clone())?;
        let storage = app.storage(&plan.storage).await?;
        if !storage.has_admin() {
            return Err(BenchError::NoAdmin { storage: plan.storage.name.clone(), plugin: plan.storage.plugin.clone() });
        }
        let producer = Self { app, storage, plan: plan.clone(), written: AtomicU64::new(0), last: Mutex::default() };
        match producer.pending().await? {
            0 => Ok(producer),
            pending => Err(BenchError::Pending { storage: plan.storage.name.clone(), pending }),
        }
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
        self.written.load(Ordering::Relaxed)
    }

    /// Writes so many rows, in one transaction.
    async fn write(&self, from: u64, count: u64, tally: &Tally) -> Result<(), BenchError> {
        let batch = self.plan.rows.batch(from, count);
        let ids = self.storage.enqueue(&batch).await.map_err(self.failed("enqueue"))?;
        tally.committed(&ids);
        self.written.fetch_add(count, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = ids.into_iter().next_back();
        Ok(())
    }

    /// Writes a backlog.
    pub(super) async fn fill(&self, tally: &Tally, stop: &CancellationToken) -> Result<(), BenchError> {
        let (count, at_once) = (self.plan.count, self.plan.rows.at_once());
        let next = AtomicU64::new(0);
        let writer = async || {
            loop {
                let from = next.fetch_add(at_once, Ordering::Relaxed);
                if from >= count {
                    return Ok(());
                }
                if stop.is_cancelled() {
                    return Err(BenchError::Interrupted);
                }
                self.write(from, at_once.min(count - from), tally).await?;
            }
        };
        futures_util::future::try_join_all((0..WRITERS).map(|_| writer())).await?;
        tally.all_written(count);
        Ok(())
    }

    /// Writes rows at a steady rate. Where the table does not take them so fast, all of them all the same, in larger transactions.
    pub(super) async fn flow(&self, rate: u32, tally: &Tally) -> Result<(), BenchError> {
        let begun = Instant::now();
        while self.written() < self.plan.count {
            let written = self.written();
            let due = due(begun.elapsed(), rate).min(self.plan.count).saturating_sub(written);
            if due > 0 {
                self.write(written, due.min(self.plan.rows.at_once()), tally).await?;
            }
            if due <= self.plan.rows.at_once() {
                let next = begun + until(self.written(), rate);
                tokio::time::sleep_until(if due > 0 { next.max(Instant::now() + TICK) } else { next }).await;
            }
        }
        tally.all_written(self.plan.count);
        Ok(())
    }

    /// Whether the table keeps delivered rows, as far as the last one that was written tells.
    pub(super) async fn keeps_delivered(&self) -> Result<bool, BenchError> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(id) = last else { return Ok(false) };
        let filter = Filter { state: Some(RowState::Delivered), topic: None, ids: vec![id] };
        let page = self.storage.browse(&filter, None, 1, false).await.map_err(self.failed("browse"))?;
        Ok(!page.rows.is_empty())
    }

    /// Deletes every delivered row.
    pub(super) async fn purge(&self) -> Result<(), BenchError> {
        while self.storage.purge(Duration::ZERO, PURGED_AT_ONCE).await.map_err(self.failed("purge"))? > 0 {}
        Ok(())
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
