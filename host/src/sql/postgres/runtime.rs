//! Where the calls of plain threads run.
//!
//! Sockets belong to the runtime that opened them. A plain thread has none, so these calls have one of their own, with sessions of
//! their own: whoever waits for an answer drives it, without a hop to another thread.

use crate::sql::{SqlError, SqlErrorCode};
use std::future::Future;
use tokio::runtime::{Builder, Runtime};

/// A runtime that may be dropped anywhere, within another runtime too.
#[derive(Debug)]
pub(super) struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    pub(super) fn new() -> Result<Self, SqlError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| SqlError::new(SqlErrorCode::Other, format!("no runtime can be started for the database: {error}")))?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a future to its end on this thread.
    pub(super) fn block_on<T>(&self, future: impl Future<Output = Result<T, SqlError>>) -> Result<T, SqlError> {
        match &self.0 {
            Some(runtime) => runtime.block_on(future),
            None => Err(SqlError::new(SqlErrorCode::Other, "the runtime of the database has ended")),
        }
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
