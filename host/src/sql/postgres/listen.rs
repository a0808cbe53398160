//! Notifications, on a session of their own that lives as long as somebody listens.
//!
//! LISTEN belongs to a server process. A pooler in transaction mode takes the statement and hands the process to somebody else: nothing
//! fails, and nothing ever comes. So each new session proves first that it can hear: a notification is sent to a channel of its own
//! through a session of the pool, and has to come back.

use super::connect;
use super::fault::Fault;
use super::pool::Pool;
use super::settings::Settings;
use crate::sql::{Access, Heard, SqlErrorCode};
use sqlx::postgres::PgListener;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest name of a channel, in bytes: a longer one is cut by LISTEN, and refused by NOTIFY.
const LONGEST_CHANNEL: usize = 63;

/// How long the proof may take. A notification takes a millisecond.
const PROOF_WITHIN: Duration = Duration::from_secs(5);

/// After so long without a word the server is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(30);

/// How long its answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// See [`crate::sql::Listener`].
pub(super) struct Listener {
    settings: Arc<Settings>,
    pool: Arc<Pool>,
    channel: String,
    listener: Option<PgListener>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Listener").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl Listener {
    /// Opens nothing.
    ///
    /// # Errors
    /// `syntax` for a name that no channel can have.
    pub(super) fn new(settings: Arc<Settings>, pool: Arc<Pool>, channel: &str) -> Result<Self, Fault> {
        if channel.is_empty() || channel.len() > LONGEST_CHANNEL || channel.contains('\0') {
            let text = format!("{channel:?} is no name of a channel: it must have from 1 to {LONGEST_CHANNEL} bytes, and no NUL character");
            return Err(Fault::harmless(SqlErrorCode::Syntax, text));
        }
        Ok(Self { settings, pool, channel: channel.to_owned(), listener: None })
    }

    /// Waits for a notification. The first call, and the first one after an error, connects and says so.
    pub(super) async fn heard(&mut self) -> Result<Heard, Fault> {
        let Some(listener) = &mut self.listener else { return self.connect().await };
        match hear(listener, &self.channel).await {
            Ok(()) => Ok(Heard::Notification),
            Err(fault) => {
                self.listener = None;
                Err(fault)
            }
        }
    }

    async fn connect(&mut self) -> Result<Heard, Fault> {
        let mut listener = connect::listener(&self.settings).await?;
        let proof = format!("outhaul_proof_{:016x}", rand::random::<u64>());
        // Only once it is proven: a pooler's server process would go on listening, and hand others what is not theirs.
        answered(listener.listen(&proof)).await?;
        let mut lease = self.pool.lease(Access::ReadWrite, Instant::now() + ANSWER_WITHIN).await?;
        let told = tokio::time::timeout(ANSWER_WITHIN, lease.session.tell(format!("NOTIFY {proof}"))).await;
        match told.unwrap_or_else(|_| Err(Fault::silent(ANSWER_WITHIN))) {
            Ok(()) => lease.hand_back(),
            // It was heard by whoever has the server process now, which is the wrong one.
            Err(fault) if lease.session.pooled && fault.error.code == SqlErrorCode::Other => return Ok(Heard::Never),
            Err(fault) => return Err(fault),
        }
        let Ok(proven) = tokio::time::timeout(PROOF_WITHIN, hear(&mut listener, &proof)).await else { return Ok(Heard::Never) };
        proven?;
        answered(listener.listen(&self.channel)).await?;
        answered(listener.unlisten(&proof)).await?;
        self.listener = Some(listener);
        Ok(Heard::Connected)
    }
}

/// The answer, unless it does not come: a server that says nothing proves nothing.
async fn answered<T>(answer: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER_WITHIN, answer).await {
        Ok(answer) => answer.map_err(|error| Fault::of(&error)),
        Err(_) => Err(Fault::silent(ANSWER_WITHIN)),
    }
}

/// Waits for a notification of a channel, asking the server now and then whether it is there.
async fn hear(listener: &mut PgListener, channel: &str) -> Result<(), Fault> {
    loop {
        match tokio::time::timeout(QUIET, listener.try_recv()).await {
            Ok(Ok(Some(notification))) if notification.channel() == channel => return Ok(()),
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None)) => return Err(Fault::broken(&std::io::ErrorKind::UnexpectedEof.into())),
            Ok(Err(error)) => return Err(Fault::of(&error)),
            Err(_) => {
                answered(sqlx::raw_sql("").execute(&mut *listener)).await?;
            }
        }
    }
}
