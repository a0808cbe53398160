//! The thread of a connection: jobs go in, answers come out, one at a time and in the order in which their callers asked.
//!
//! Order comes from a *turn*: a permit of a fair semaphore. Whoever holds it may send one job, and the job carries it to the
//! thread. When the job leaves no transaction open, the thread gives the turn to the next in line; when it does, the turn goes back
//! with the answer and stays with the [`super::Transaction`]. Nobody else can reach the connection meanwhile, and no state has
//! to be cleaned up in the asynchronous part: a caller that goes away leaves its turn with the thread.
//!
//! The thread starts with the first job and ends when the last handle is dropped: its channel is then closed.

use super::connection::{Role, Session, Settings, Version};
use super::fault::Fault;
use super::{block_until, run};
use crate::sql::{Bounds, Rows, SqlError, SqlErrorCode, Statement};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The right to use the connection.
pub(super) type Turn = OwnedSemaphorePermit;

/// Where an answer comes out.
pub(super) type Answer<T> = oneshot::Receiver<Result<T, SqlError>>;

type Reply<T> = oneshot::Sender<Result<T, SqlError>>;

/// In which transaction statements run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// A new one that reads.
    Deferred,
    /// A new one that writes.
    Immediate,
    /// The one that is open.
    Within,
}

/// What happens after the statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// The transaction stays open.
    KeepOpen,
    /// It is committed.
    Commit,
}

/// Statements to run.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) start: Start,
    pub(super) statements: Vec<Statement>,
    pub(super) bounds: Bounds,
    pub(super) finish: Finish,
}

/// What came of them.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) rows: Vec<Rows>,
    /// There if the transaction is still open.
    pub(super) turn: Option<Turn>,
}

enum Job {
    Open { turn: Turn, deadline: Instant, reply: Reply<()> },
    Run { turn: Turn, work: Work, reply: Reply<Done> },
    RollBack { turn: Turn },
    Version { turn: Turn, deadline: Instant, reply: Reply<Version> },
}

/// The near end of a thread.
#[derive(Debug)]
pub(super) struct Worker {
    role: Role,
    settings: Arc<Settings>,
    turns: Arc<Semaphore>,
    /// None: no thread yet. Room for one job is enough: only the holder of the turn sends.
    jobs: Mutex<Option<SyncSender<Job>>>,
    open: Arc<AtomicBool>,
}

impl Worker {
    /// Starts nothing.
    pub(super) fn new(role: Role, settings: Arc<Settings>) -> Self {
        Self { role, settings, turns: Arc::new(Semaphore::new(1)), jobs: Mutex::new(None), open: Arc::new(AtomicBool::new(false)) }
    }

    /// Whether the file was open when the thread was last asked.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Waits in line.
    ///
    /// # Errors
    /// `busy` if the turn does not come before the deadline.
    pub(super) async fn turn(&self, deadline: Instant) -> Result<Turn, SqlError> {
        match tokio::time::timeout_at(deadline.into(), Arc::clone(&self.turns).acquire_owned()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(self.no_turn()),
        }
    }

    /// [`Worker::turn`] for plain threads.
    pub(super) fn turn_blocking(&self, deadline: Instant) -> Result<Turn, SqlError> {
        match block_until(deadline, Arc::clone(&self.turns).acquire_owned()) {
            Some(Ok(turn)) => Ok(turn),
            Some(Err(_)) | None => Err(self.no_turn()),
        }
    }

    fn no_turn(&self) -> SqlError {
        SqlError::new(
            SqlErrorCode::Busy,
            format!(
                "database {:?}: another transaction of this host was open for as long as this call may take; end transactions sooner (an \
                 adapter that has one open must use it instead of its connection), or raise limits.call_timeout",
                self.settings.name
            ),
        )
    }

    /// Makes sure that the file is open.
    pub(super) fn open(&self, turn: Turn, deadline: Instant) -> Result<Answer<()>, SqlError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Open { turn, deadline, reply })?;
        Ok(answer)
    }

    /// Runs statements.
    pub(super) fn run(&self, turn: Turn, work: Work) -> Result<Answer<Done>, SqlError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Run { turn, work, reply })?;
        Ok(answer)
    }

    /// Looks at the change counter.
    pub(super) fn version(&self, turn: Turn, deadline: Instant) -> Result<Answer<Version>, SqlError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Version { turn, deadline, reply })?;
        Ok(answer)
    }

    /// Rolls back; the turn is handed on afterwards.
    pub(super) fn roll_back(&self, turn: Turn) {
        // Without a thread there is no connection either, and nothing to roll back.
        if let Some(jobs) = &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            drop(jobs.send(Job::RollBack { turn }));
        }
    }

    /// Sends a job, starting the thread if there is none (any more). Does not block: whoever holds the turn finds the channel empty.
    fn send(&self, job: Job) -> Result<(), SqlError> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let job = match &*jobs {
            Some(sender) => match sender.send(job) {
                Ok(()) => return Ok(()),
                Err(returned) => returned.0,
            },
            None => job,
        };
        let sender = self.start()?;
        sender.send(job).map_err(|_| gone())?;
        *jobs = Some(sender);
        Ok(())
    }

    fn start(&self) -> Result<SyncSender<Job>, SqlError> {
        let (sender, jobs) = sync_channel(1);
        let (settings, role, open) = (Arc::clone(&self.settings), self.role, Arc::clone(&self.open));
        std::thread::Builder::new()
            // Linux shows 15 bytes of it.
            .name(format!("sql {} {}", role.name(), settings.name))
            .spawn(move || serve(&jobs, Session::new(settings, role), &open))
            .map_err(|error| SqlError::new(SqlErrorCode::Other, format!("no thread can be started for the database: {error}")))?;
        Ok(sender)
    }
}

/// What the thread answered.
///
/// # Errors
/// What went wrong there, or `other` if the thread has ended without an answer.
pub(super) fn answer<T>(received: Result<Result<T, SqlError>, oneshot::error::RecvError>) -> Result<T, SqlError> {
    received.unwrap_or_else(|_| Err(gone()))
}

fn gone() -> SqlError {
    SqlError::new(SqlErrorCode::Other, "the thread of the database has ended unexpectedly; whether the call took effect is unknown")
}

/// The thread.
fn serve(jobs: &Receiver<Job>, mut session: Session, open: &AtomicBool) {
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Open { turn, deadline, reply } => {
                session.clock.set(deadline);
                let result = session.ready().map(|_| ());
                let result = settle(&mut session, result);
                open.store(session.is_open(), Ordering::Relaxed);
                drop(turn);
                // A caller that has gone away wants no answer; so below.
                drop(reply.send(result));
            }
            Job::Run { turn, work, reply } => {
                let keeps_open = work.finish == Finish::KeepOpen;
                let result = execute(&mut session, &work);
                let result = settle(&mut session, result);
                open.store(session.is_open(), Ordering::Relaxed);
                let turn = if keeps_open && result.is_ok() { Some(turn) } else { None };
                if let Err(Ok(unwanted)) = reply.send(result.map(|rows| Done { rows, turn })) {
                    session.roll_back();
                    drop(unwanted);
                }
            }
            Job::RollBack { turn } => {
                session.roll_back();
                drop(turn);
            }
            Job::Version { turn, deadline, reply } => {
                let result = session.version(deadline);
                let result = settle(&mut session, result);
                drop(turn);
                drop(reply.send(result));
            }
        }
    }
    open.store(false, Ordering::Relaxed);
}

/// After an error nothing stays open: the transaction is rolled back, and a lost connection closed.
fn settle<T>(session: &mut Session, result: Result<T, Fault>) -> Result<T, SqlError> {
    result.map_err(|fault| {
        if fault.lost {
            session.close();
        } else {
            session.roll_back();
        }
        let name = &session.settings.name;
        SqlError::new(fault.error.code, format!("database {name:?}: {}", fault.error.detail))
    })
}

fn execute(session: &mut Session, work: &Work) -> Result<Vec<Rows>, Fault> {
    session.clock.set(work.bounds.deadline);
    match work.start {
        Start::Deferred => session.begin(false)?,
        Start::Immediate => session.begin(true)?,
        Start::Within if session.in_transaction() => {}
        Start::Within => {
            return Err(Fault::harmless(SqlErrorCode::Other, "the transaction is over: the connection was lost; begin a new one"));
        }
    }
    let rows = run::all(session.current()?, &session.settings, &session.clock, work)?;
    if work.finish == Finish::Commit {
        session.commit()?;
    }
    Ok(rows)
}
