//! PostgreSQL, over sqlx.
//!
//! sqlx opens connections, with TLS and SCRAM, keeps prepared statements and listens. What is here is what a host of sandboxed adapters
//! needs beyond that: transactions that end with their call, deadlines, results that are bounded while they come in, guests' statements
//! that leave nothing behind on a session, and errors in the words of the contract.
//!
//! * `settings`: what is configured, and the secrets.
//! * `connect`: opening a session.
//! * `session`: statements in, rows out.
//! * `values`, `text`: parameters and results.
//! * `guard`: what a guest's statement may be.
//! * `fault`: SQLSTATEs in our words.
//! * `pool`: who uses which session.
//! * `listen`: notifications.
//! * `no_delay`: what sqlx forgets about sockets.
//! * `runtime`: for plain threads.
//!
//! What sqlx does not allow for: a row is read whole before it can be refused, however long it is; results come in binary form, so that
//! only known types can be handed out (`values`); and `tls_ca_file` is trusted besides the system's authorities, not instead of them.

mod connect;
mod fault;
mod guard;
mod listen;
mod no_delay;
mod pool;
mod runtime;
mod session;
mod settings;
#[cfg(test)]
mod tests;
mod text;
mod values;

use super::place::place;
use super::{Access, Bounds, Heard, Rows, SqlError, SqlErrorCode, Statement};
use crate::config::model;
use crate::secrets::Secrets;
use fault::Fault;
use guard::Guard;
use pool::{Lease, Pool};
use runtime::OwnRuntime;
use session::{Finish, Start, Work};
use settings::Settings;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long opening a database may wait, if `connect_timeout` is not longer.
const OPEN_WITHIN: Duration = Duration::from_secs(5);

/// How long an answer may be late. The server ends statements at the deadline itself; who says nothing then is gone, or frozen.
const LATE: Duration = Duration::from_millis(100);

/// How long a rollback may take. It waits for nothing but the server.
const ROLL_BACK_WITHIN: Duration = Duration::from_secs(5);

/// A configured database.
#[derive(Debug, Clone)]
pub(super) struct Database(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Arc<Settings>,
    /// For asynchronous calls.
    pool: Arc<Pool>,
    /// For plain threads; none: not used yet.
    blocking: Mutex<Option<Arc<Blocking>>>,
    guard: Guard,
}

/// What plain threads use.
#[derive(Debug)]
struct Blocking {
    pool: Arc<Pool>,
    runtime: OwnRuntime,
}

impl Blocking {
    /// Rolls back, and waits for it: nobody else would drive it.
    fn roll_back(&self, lease: Lease) {
        let run = || {
            self.runtime.block_on(async {
                roll_back(lease).await;
                Ok(())
            })
        };
        if tokio::runtime::Handle::try_current().is_err() {
            drop(run());
        } else {
            // This may be a thread that drives another runtime, where a second one must not be driven. Without a thread the session is
            // closed, which rolls back as well.
            std::thread::scope(|scope| {
                if let Ok(thread) = std::thread::Builder::new().name("sql rollback".to_owned()).spawn_scoped(scope, run) {
                    drop(thread.join());
                }
            });
        }
    }
}

impl Database {
    /// Opens nothing.
    pub(super) fn new(name: &str, configured: &model::Postgres, secrets: &Secrets) -> Self {
        let settings = Arc::new(Settings::new(name, configured, secrets));
        Self(Arc::new(Inner {
            pool: Arc::new(Pool::new(Arc::clone(&settings))),
            settings,
            blocking: Mutex::default(),
            guard: Guard::default(),
        }))
    }

    fn blocking(&self) -> Result<Arc<Blocking>, SqlError> {
        let mut blocking = self.0.blocking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(blocking) = &*blocking {
            return Ok(Arc::clone(blocking));
        }
        let made = Arc::new(Blocking { pool: Arc::new(Pool::new(Arc::clone(&self.0.settings))), runtime: OwnRuntime::new()? });
        *blocking = Some(Arc::clone(&made));
        Ok(made)
    }

    fn error(&self, fault: Fault) -> SqlError {
        SqlError::new(fault.error.code, format!("database {:?}: {}", self.0.settings.name, fault.error.detail))
    }

    pub(super) async fn open(&self, access: Access) -> Result<Connection, SqlError> {
        self.open_in(&self.0.pool, access).await
    }

    pub(super) fn open_blocking(&self, access: Access) -> Result<Connection, SqlError> {
        let blocking = self.blocking()?;
        blocking.runtime.block_on(self.open_in(&blocking.pool, access))
    }

    /// Makes sure that sessions can be had.
    async fn open_in(&self, pool: &Arc<Pool>, access: Access) -> Result<Connection, SqlError> {
        if !pool.is_reached() {
            let lease = pool.lease(access, Instant::now() + OPEN_WITHIN.max(self.0.settings.connect_timeout())).await;
            lease.map_err(|fault| self.error(fault))?.hand_back();
        }
        Ok(Connection { database: self.clone(), access })
    }

    pub(super) fn listen(&self, channel: &str) -> Result<Listener, SqlError> {
        let listener = listen::Listener::new(Arc::clone(&self.0.settings), Arc::clone(&self.0.pool), channel);
        Ok(Listener { listener: listener.map_err(|fault| self.error(fault))?, database: self.clone() })
    }

    /// Says who creates databases.
    pub(super) fn create(&self) -> SqlError {
        let text = "the host does not create PostgreSQL databases: their owner does, with CREATE DATABASE";
        self.error(Fault::harmless(SqlErrorCode::Unavailable, text))
    }

    /// Runs a call in a transaction of its own, or the beginning of one. The lease comes back if the transaction is still open.
    async fn run(&self, pool: &Arc<Pool>, mut work: Work) -> Result<(Option<Lease>, Vec<Rows>), SqlError> {
        let Start::New(access) = work.start else { return Err(over()) };
        let lease = match self.admit(&mut work) {
            Ok(()) => pool.lease(access, work.bounds.deadline).await,
            Err(fault) => Err(fault),
        };
        self.run_in(lease.map_err(|fault| self.error(fault))?, work).await
    }

    /// Refuses statements that are not allowed, and notes what is known of the others.
    fn admit(&self, work: &mut Work) -> Result<(), Fault> {
        let count = work.statements.len();
        for (index, statement) in work.statements.iter().enumerate().skip(work.changes.len()) {
            let changes = self.0.guard.admit(&statement.sql);
            work.changes.push(changes.map_err(|fault| fault.at(&place(index, count, &statement.sql)))?);
        }
        Ok(())
    }

    /// Runs a call in a session. After an error the transaction is rolled back, or its session closed.
    async fn run_in(&self, mut lease: Lease, mut work: Work) -> Result<(Option<Lease>, Vec<Rows>), SqlError> {
        let began = Instant::now();
        let result = match self.admit(&mut work) {
            Ok(()) => {
                let late = work.bounds.deadline.checked_add(LATE).unwrap_or(work.bounds.deadline);
                let answer = tokio::time::timeout_at(late.into(), Fault::contained(lease.session.run(&work))).await;
                answer.unwrap_or_else(|_| Err(Fault::silent(began.elapsed())))
            }
            Err(fault) => Err(fault),
        };
        match result {
            Ok(rows) if work.finish == Finish::KeepOpen => Ok((Some(lease), rows)),
            Ok(rows) => {
                lease.hand_back();
                Ok((None, rows))
            }
            Err(fault) => {
                lease.pool.learn(&fault);
                if !fault.lost {
                    roll_back(lease).await;
                }
                Err(self.error(fault))
            }
        }
    }
}

/// Rolls back and hands the session back; one that does not answer is closed.
async fn roll_back(mut lease: Lease) {
    let until = Instant::now() + ROLL_BACK_WITHIN;
    if let Ok(Ok(())) = tokio::time::timeout_at(until.into(), lease.session.roll_back()).await {
        lease.hand_back();
    }
}

fn over() -> SqlError {
    SqlError::new(SqlErrorCode::Other, "the transaction is over: an earlier call failed and rolled it back; begin a new one")
}

/// See [`super::Connection`].
#[derive(Debug, Clone)]
pub(super) struct Connection {
    database: Database,
    access: Access,
}

impl Connection {
    fn whole(&self, statements: Vec<Statement>, bounds: Bounds) -> Work {
        Work::new(Start::New(self.access), statements, bounds, Finish::Commit)
    }

    fn first(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<Work, SqlError> {
        match self.access {
            Access::ReadWrite => Ok(Work::new(Start::New(self.access), statements, bounds, Finish::KeepOpen)),
            Access::ReadOnly => Err(SqlError::new(
                SqlErrorCode::ReadOnly,
                "a transaction that may write cannot begin on a connection opened read-only: open it read-write",
            )),
        }
    }

    pub(super) async fn execute(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        let (_, rows) = self.database.run(&self.database.0.pool, self.whole(statements, bounds)).await?;
        Ok(rows)
    }

    pub(super) fn execute_blocking(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        let blocking = self.database.blocking()?;
        let (_, rows) = blocking.runtime.block_on(self.database.run(&blocking.pool, self.whole(statements, bounds)))?;
        Ok(rows)
    }

    pub(super) async fn begin(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<(Transaction, Vec<Rows>), SqlError> {
        let (lease, rows) = self.database.run(&self.database.0.pool, self.first(statements, bounds)?).await?;
        Ok((Transaction { database: self.database.clone(), lease, blocking: None }, rows))
    }

    pub(super) fn begin_blocking(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<(Transaction, Vec<Rows>), SqlError> {
        let work = self.first(statements, bounds)?;
        let blocking = self.database.blocking()?;
        let (lease, rows) = blocking.runtime.block_on(self.database.run(&blocking.pool, work))?;
        Ok((Transaction { database: self.database.clone(), lease, blocking: Some(blocking) }, rows))
    }
}

/// See [`super::Listener`].
#[derive(Debug)]
pub(super) struct Listener {
    listener: listen::Listener,
    database: Database,
}

impl Listener {
    pub(super) async fn heard(&mut self) -> Result<Heard, SqlError> {
        self.listener.heard().await.map_err(|fault| self.database.error(fault))
    }

    pub(super) fn behind_pooler(&self) -> bool {
        self.database.0.settings.pooled.load(Ordering::Relaxed)
    }
}

/// See [`super::Transaction`]. Without a lease it is over.
#[derive(Debug)]
pub(super) struct Transaction {
    database: Database,
    lease: Option<Lease>,
    /// Whose runtime the session belongs to, where a plain thread began it.
    blocking: Option<Arc<Blocking>>,
}

impl Transaction {
    async fn run(&mut self, statements: Vec<Statement>, bounds: Bounds, finish: Finish) -> Result<Vec<Rows>, SqlError> {
        // If this future is dropped, the lease is as well, and the session with it.
        let lease = self.lease.take().ok_or_else(over)?;
        let database = self.database.clone();
        let (lease, rows) = database.run_in(lease, Work::new(Start::Within, statements, bounds, finish)).await?;
        self.lease = lease;
        Ok(rows)
    }

    fn mixed() -> SqlError {
        SqlError::new(
            SqlErrorCode::Other,
            "a transaction is used as it was begun: asynchronously, or by plain threads with the blocking calls",
        )
    }

    pub(super) async fn execute(&mut self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        if self.blocking.is_some() {
            return Err(Self::mixed());
        }
        self.run(statements, bounds, Finish::KeepOpen).await
    }

    pub(super) async fn commit(mut self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        if self.blocking.is_some() {
            return Err(Self::mixed());
        }
        self.run(statements, bounds, Finish::Commit).await
    }

    pub(super) fn execute_blocking(&mut self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        let blocking = self.blocking.clone().ok_or_else(Self::mixed)?;
        blocking.runtime.block_on(self.run(statements, bounds, Finish::KeepOpen))
    }

    pub(super) fn commit_blocking(mut self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        let blocking = self.blocking.clone().ok_or_else(Self::mixed)?;
        blocking.runtime.block_on(self.run(statements, bounds, Finish::Commit))
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        match &self.blocking {
            Some(blocking) => blocking.roll_back(lease),
            // The locks should not wait for whoever uses the session next.
            None => {
                if let Ok(handle) = tokio::runtime::Handle::try_current() {
                    drop(handle.spawn(roll_back(lease)));
                }
            }
        }
    }
}
