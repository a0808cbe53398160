//! Notifications, on a session of their own that lives as long as somebody listens.
//!
//! LISTEN belongs to a server process. A pooler in transaction mode takes the statement and hands the process to somebody else: nothing
//! fails, and nothing ever comes. So each new session proves first that it can hear: a notification is sent to a channel of its own
//! through a session of the pool, and has to come back.

use super::connect;
use super::fault::Fault;
use super::pool::Pool;
use super::session::Session;
use super::settings::Settings;
use crate::sql::{Access, Heard, SqlErrorCode};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
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
#[derive(Debug)]
pub(super) struct Listener {
    settings: Arc<Settings>,
    pool: Arc<Pool>,
    channel: String,
    session: Option<Session>,
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
        Ok(Self { settings, pool, channel: channel.to_owned(), session: None })
    }

    /// Waits for a notification. The first call, and the first one after an error, connects and says so.
    pub(super) async fn heard(&mut self) -> Result<Heard, Fault> {
        let Some(session) = &mut self.session else { return self.connect().await };
        match hear(session, &self.channel).await {
            Ok(()) => Ok(Heard::Notification),
            Err(fault) => {
                self.session = None;
                Err(fault)
            }
        }
    }

    async fn connect(&mut self) -> Result<Heard, Fault> {
        let mut session = connect::open(&self.settings, Instant::now() + self.settings.connect_timeout()).await?;
        let proof = format!("outhaul_proof_{:016x}", rand::random::<u64>());
        answered(session.ask(&format!("LISTEN {}; LISTEN {}", quoted(&self.channel), quoted(&proof)))).await?;
        let mut lease = self.pool.lease(Access::ReadWrite, Instant::now() + ANSWER_WITHIN).await?;
        answered(lease.session.ask(&format!("NOTIFY {}", quoted(&proof)))).await?;
        lease.hand_back();
        let Ok(proven) = tokio::time::timeout(PROOF_WITHIN, hear(&mut session, &proof)).await else { return Ok(Heard::Never) };
        proven?;
        answered(session.ask(&format!("UNLISTEN {}", quoted(&proof)))).await?;
        self.session = Some(session);
        Ok(Heard::Connected)
    }
}

/// The answer, unless it does not come: a server that says nothing proves nothing.
async fn answered(answer: impl Future<Output = Result<Vec<Option<String>>, Fault>>) -> Result<(), Fault> {
    tokio::time::timeout(ANSWER_WITHIN, answer).await.unwrap_or_else(|_| Err(Fault::silent(ANSWER_WITHIN))).map(drop)
}

/// As an identifier, whatever is in it.
fn quoted(channel: &str) -> String {
    format!("\"{}\"", channel.replace('"', "\"\""))
}

/// Waits for a notification of a channel, asking the server now and then whether it is there.
async fn hear(session: &mut Session, channel: &str) -> Result<(), Fault> {
    let mut asked = false;
    loop {
        let patience = if asked { ANSWER_WITHIN } else { QUIET };
        let message = match tokio::time::timeout(patience, session.wire.receive()).await {
            Ok(message) => message?,
            Err(_) if asked => return Err(Fault::silent(ANSWER_WITHIN)),
            Err(_) => {
                frontend::sync(session.wire.out());
                asked = true;
                continue;
            }
        };
        match message {
            Message::NotificationResponse(body) if body.channel().is_ok_and(|name| name == channel) => return Ok(()),
            Message::ErrorResponse(body) => return Err(Fault::of(&body)),
            Message::ReadyForQuery(_) => asked = false,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_quoted() {
        assert_eq!(quoted("outhaul_a\"; DROP TABLE t; --"), "\"outhaul_a\"\"; DROP TABLE t; --\"");
    }
}
