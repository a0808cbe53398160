//! SQLite files over rusqlite, on threads of their own.
//!
//! SQLite blocks, has one writer a file, and hands out rows by pointer. So each database has a thread for its one writing
//! connection and a thread for its one reading connection (a reader in WAL mode never waits for a writer); a call is a job sent
//! to a thread and one answer, however many statements it holds, and columns are packed on that thread straight from the
//! statement. Measured: 1.2 to 1.5 times as many messages a second as rows that cross threads through a channel. The hop itself
//! costs about 0.1 ms there and back (`tests/cost.rs`, two busy cores), a look for changes 0.05 ms.
//!
//! * `busy`: waiting for the locks of others, up to the call's deadline.
//! * `fault`: SQLite's error codes in our words.
//! * `guard`: what a guest's SQL may do.
//! * `functions`: which functions it may call.
//! * `connection`: opening a file, and opening it again when it was lost.
//! * `create`: a new file, for an operator who asks for it.
//! * `run`: one statement, its parameters and its result.
//! * `thread`: the jobs, the turns, the worker loop.

mod busy;
mod connection;
mod create;
mod fault;
mod functions;
mod guard;
mod run;
#[cfg(test)]
mod tests;
mod thread;

use super::blocking::block_until;
use super::{Access, Bounds, Rows, SqlError, SqlErrorCode, Statement};
use crate::config::model;
use connection::{Role, Settings};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thread::{Answer, Done, Finish, Start, Turn, Work, Worker};

/// How long opening a file may wait for locks of others. Opening reads the header only, so that this is rarely needed.
const OPEN_WITHIN: Duration = Duration::from_secs(5);

/// How long a look at the change counter may wait for locks of others: short, since the watcher looks again soon.
const WATCH_WITHIN: Duration = Duration::from_secs(1);

/// A configured file.
#[derive(Debug)]
pub(super) struct Database {
    settings: Arc<Settings>,
    writer: Arc<Worker>,
    reader: Arc<Worker>,
}

impl Database {
    pub(super) fn new(name: &str, settings: &model::Sqlite) -> Self {
        let settings = Arc::new(Settings::new(name, settings));
        Self {
            writer: Arc::new(Worker::new(Role::Writer, Arc::clone(&settings))),
            reader: Arc::new(Worker::new(Role::Reader, Arc::clone(&settings))),
            settings,
        }
    }

    /// Creates the file; false where there is one.
    pub(super) async fn create(&self) -> Result<bool, SqlError> {
        let settings = Arc::clone(&self.settings);
        let created = tokio::task::spawn_blocking(move || create::create(&settings)).await;
        created.unwrap_or_else(|error| Err(SqlError::new(SqlErrorCode::Other, error.to_string())))
    }

    fn connection(&self, access: Access) -> Connection {
        let worker = match access {
            Access::ReadOnly => &self.reader,
            Access::ReadWrite => &self.writer,
        };
        Connection { worker: Arc::clone(worker), access }
    }

    pub(super) async fn open(&self, access: Access) -> Result<Connection, SqlError> {
        let connection = self.connection(access);
        if !connection.worker.is_open() {
            let deadline = Instant::now() + OPEN_WITHIN;
            let turn = connection.worker.turn(deadline).await?;
            thread::answer(connection.worker.open(turn, deadline)?.await)?;
        }
        Ok(connection)
    }

    pub(super) fn open_blocking(&self, access: Access) -> Result<Connection, SqlError> {
        let connection = self.connection(access);
        if !connection.worker.is_open() {
            let deadline = Instant::now() + OPEN_WITHIN;
            let turn = connection.worker.turn_blocking(deadline)?;
            thread::answer(connection.worker.open(turn, deadline)?.blocking_recv())?;
        }
        Ok(connection)
    }

    pub(super) fn watch(&self) -> ChangeWatch {
        ChangeWatch { worker: Worker::new(Role::Watch, Arc::clone(&self.settings)), seen: None }
    }
}

/// See [`super::Connection`].
#[derive(Debug, Clone)]
pub(super) struct Connection {
    worker: Arc<Worker>,
    access: Access,
}

impl Connection {
    fn whole(&self, statements: Vec<Statement>, bounds: Bounds) -> Work {
        let start = match self.access {
            Access::ReadOnly => Start::Deferred,
            Access::ReadWrite => Start::Immediate,
        };
        Work { start, statements, bounds, finish: Finish::Commit }
    }

    fn first(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<Work, SqlError> {
        match self.access {
            Access::ReadWrite => Ok(Work { start: Start::Immediate, statements, bounds, finish: Finish::KeepOpen }),
            Access::ReadOnly => Err(SqlError::new(
                SqlErrorCode::ReadOnly,
                "a transaction that may write cannot begin on a connection opened read-only: open it read-write",
            )),
        }
    }

    fn transaction(&self, turn: Option<Turn>) -> Transaction {
        Transaction { worker: Arc::clone(&self.worker), turn }
    }

    pub(super) async fn execute(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        let work = self.whole(statements, bounds);
        let turn = self.worker.turn(bounds.deadline).await?;
        Ok(thread::answer(self.worker.run(turn, work)?.await)?.rows)
    }

    pub(super) fn execute_blocking(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        let work = self.whole(statements, bounds);
        let turn = self.worker.turn_blocking(bounds.deadline)?;
        Ok(thread::answer(self.worker.run(turn, work)?.blocking_recv())?.rows)
    }

    pub(super) async fn begin(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<(Transaction, Vec<Rows>), SqlError> {
        let work = self.first(statements, bounds)?;
        let turn = self.worker.turn(bounds.deadline).await?;
        let done = Awaited::of(&self.worker, turn, work)?.done().await?;
        Ok((self.transaction(done.turn), done.rows))
    }

    pub(super) fn begin_blocking(&self, statements: Vec<Statement>, bounds: Bounds) -> Result<(Transaction, Vec<Rows>), SqlError> {
        let work = self.first(statements, bounds)?;
        let turn = self.worker.turn_blocking(bounds.deadline)?;
        let done = thread::answer(self.worker.run(turn, work)?.blocking_recv())?;
        Ok((self.transaction(done.turn), done.rows))
    }
}

/// The answer to work that leaves a transaction open. Whoever waits for it may go away after it was sent and before it was taken: it is
/// rolled back then, as if it had not been sent.
struct Awaited<'a> {
    worker: &'a Worker,
    answer: Answer<Done>,
}

impl<'a> Awaited<'a> {
    fn of(worker: &'a Worker, turn: Turn, work: Work) -> Result<Self, SqlError> {
        Ok(Self { worker, answer: worker.run(turn, work)? })
    }

    async fn done(mut self) -> Result<Done, SqlError> {
        thread::answer((&mut self.answer).await)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        // From now on the thread finds nobody who wants it, and rolls back by itself.
        self.answer.close();
        if let Ok(Ok(Done { turn: Some(turn), .. })) = self.answer.try_recv() {
            self.worker.roll_back(turn);
        }
    }
}

/// See [`super::Transaction`]. Without a turn it is over.
#[derive(Debug)]
pub(super) struct Transaction {
    worker: Arc<Worker>,
    turn: Option<Turn>,
}

impl Transaction {
    fn take_turn(&mut self) -> Result<Turn, SqlError> {
        self.turn.take().ok_or_else(|| {
            SqlError::new(SqlErrorCode::Other, "the transaction is over: an earlier call failed and rolled it back; begin a new one")
        })
    }

    pub(super) async fn execute(&mut self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        let turn = self.take_turn()?;
        let work = Work { start: Start::Within, statements, bounds, finish: Finish::KeepOpen };
        let done = Awaited::of(&self.worker, turn, work)?.done().await?;
        self.turn = done.turn;
        Ok(done.rows)
    }

    pub(super) fn execute_blocking(&mut self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        let turn = self.take_turn()?;
        let work = Work { start: Start::Within, statements, bounds, finish: Finish::KeepOpen };
        let done = thread::answer(self.worker.run(turn, work)?.blocking_recv())?;
        self.turn = done.turn;
        Ok(done.rows)
    }

    pub(super) async fn commit(mut self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        let turn = self.take_turn()?;
        let work = Work { start: Start::Within, statements, bounds, finish: Finish::Commit };
        Ok(thread::answer(self.worker.run(turn, work)?.await)?.rows)
    }

    pub(super) fn commit_blocking(mut self, statements: Vec<Statement>, bounds: Bounds) -> Result<Vec<Rows>, SqlError> {
        let turn = self.take_turn()?;
        let work = Work { start: Start::Within, statements, bounds, finish: Finish::Commit };
        Ok(thread::answer(self.worker.run(turn, work)?.blocking_recv())?.rows)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // The turn travels with the job: the next one in line gets it after the rollback, not before.
        if let Some(turn) = self.turn.take() {
            self.worker.roll_back(turn);
        }
    }
}

/// See [`super::ChangeWatch`].
#[derive(Debug)]
pub(super) struct ChangeWatch {
    worker: Worker,
    seen: Option<connection::Version>,
}

impl ChangeWatch {
    pub(super) async fn changed(&mut self) -> Result<bool, SqlError> {
        let deadline = Instant::now() + WATCH_WITHIN;
        let turn = self.worker.turn(deadline).await?;
        let version = thread::answer(self.worker.version(turn, deadline)?.await)?;
        Ok(self.seen.replace(version) != Some(version))
    }
}
