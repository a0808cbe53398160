//! The sessions of a database: at most `max_connections`, opened when they are needed, lent to one call or transaction at a time.
//!
//! A lease that is not handed back closes its session. So a call whose future is dropped, that ran out of time, or that failed in a
//! way that leaves the state of the session unknown needs no cleaning up: the server rolls back when the connection ends. sqlx's own
//! pool hands connections back by itself, after a question to each of them, and reads its options once: here a lost call must cost its
//! session, and a secret is read for each new one.

use super::connect;
use super::fault::{Fault, Reach};
use super::session::Session;
use super::settings::Settings;
use crate::sql::{Access, SqlErrorCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The sessions.
#[derive(Debug)]
pub(super) struct Pool {
    settings: Arc<Settings>,
    /// One permit for each session that may be open. Fair: whoever asked first is served first.
    permits: Arc<Semaphore>,
    /// Sessions that nobody uses: the last one used comes first, so that the others can be seen to be superfluous.
    idle: Mutex<Vec<Session>>,
    /// Whether the server took us in when it was last asked.
    reached: AtomicBool,
}

impl Pool {
    /// Opens nothing.
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let permits = Arc::new(Semaphore::new(settings.max_connections()));
        Self { settings, permits, idle: Mutex::default(), reached: AtomicBool::new(false) }
    }

    /// Whether sessions could be had, as far as is known.
    pub(super) fn is_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// Borrows a session, opening one if none is idle.
    ///
    /// # Errors
    /// `busy` if all are lent until the deadline; else why none can be opened.
    pub(super) async fn lease(self: &Arc<Self>, access: Access, deadline: Instant) -> Result<Lease, Fault> {
        let waiting = Arc::clone(&self.permits).acquire_owned();
        let permit = match tokio::time::timeout_at(deadline.into(), waiting).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) | Err(_) => {
                return Err(Fault::harmless(
                    SqlErrorCode::Busy,
                    format!(
                        "all {} connections of this host were in use for as long as this call may take: raise max_connections of the \
                         database, or end transactions sooner",
                        self.settings.max_connections()
                    ),
                ));
            }
        };
        let session = match self.idle_session(access, deadline).await? {
            Some(session) => session,
            None => {
                let opened = connect::open(&self.settings, deadline).await;
                self.reached.store(opened.is_ok(), Ordering::Relaxed);
                opened?
            }
        };
        if access == Access::ReadWrite && session.read_only {
            // Closed, not kept: the next one may reach the new primary.
            return Err(Fault::lost(
                SqlErrorCode::ReadOnly,
                "the server takes no writes: it is a standby, or its role has default_transaction_read_only; the host connects again, \
                 to whatever the address means then",
            ));
        }
        Ok(Lease { session, pool: Arc::clone(self), _permit: permit })
    }

    /// An idle session that is still alive, rather one that has served the same access.
    async fn idle_session(&self, access: Access, deadline: Instant) -> Result<Option<Session>, Fault> {
        let began = Instant::now();
        loop {
            let taken = {
                let mut idle = self.idle();
                let fitting = idle.iter().rposition(|session| session.is_settled_for(access));
                match fitting {
                    Some(index) => Some(idle.remove(index)),
                    None => idle.pop(),
                }
            };
            let Some(mut session) = taken else { return Ok(None) };
            let stale =
                session.pooled != self.settings.pooled.load(Ordering::Relaxed) || (access == Access::ReadWrite && session.read_only);
            if stale {
                continue;
            }
            // A server that ended says so, or at least hangs up: no call need fail to find out.
            match tokio::time::timeout_at(deadline.into(), session.is_alive()).await {
                Ok(true) => return Ok(Some(session)),
                Ok(false) => {}
                Err(_) => {
                    let fault = Fault::silent(began.elapsed());
                    self.learn(&fault);
                    return Err(fault);
                }
            }
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws the conclusions from a fault that go beyond its own call.
    pub(super) fn learn(&self, fault: &Fault) {
        match fault.reach {
            Reach::Call | Reach::Statements => {}
            Reach::Pooler => self.settings.found_pooler(),
            Reach::Server => {
                self.reached.store(false, Ordering::Relaxed);
                self.idle().clear();
            }
        }
    }
}

/// A session, for as long as somebody uses it.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) session: Session,
    pub(super) pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    /// Hands the session back, for the next one in line.
    pub(super) fn hand_back(mut self) {
        self.session.rest();
        if !self.session.in_transaction() {
            self.pool.idle().push(self.session);
        }
    }
}
