//! Calling the databases from plain threads, without an asynchronous runtime: adapters that are plain Rust, tests, benchmarks.
//!
//! The blocking twins do exactly what their asynchronous originals do: for SQLite on the same threads and under the same fair turns,
//! for Postgres over connections of their own, up to `max_connections` again. They block the calling thread until the answer is
//! there, so they must not be called on a thread that drives asynchronous tasks (Tokio panics there): use `tokio::task::spawn_blocking`, or a thread of your own.
//!
//! ```no_run
//! use outhaul::sql::{Access, Bounds, ColumnType, Databases, Statement, Value};
//! use std::time::Duration;
//!
//! # fn claim(databases: &Databases) -> Result<(), outhaul::sql::SqlError> {
//! let bounds = Bounds::within(Duration::from_secs(5), 64 << 20);
//! let connection = databases.open_blocking("main", Access::ReadWrite)?;
//! let scan = Statement::new("SELECT id FROM outbox WHERE status = 'pending' ORDER BY id LIMIT ?1")
//!     .bind([Value::Integer(50)])
//!     .returning([ColumnType::Integer]);
//! let (transaction, rows) = connection.begin_blocking(vec![scan], bounds)?;
//! // ... choose from `rows` ...
//! let lease = Statement::new("UPDATE outbox SET leased_by = ?1 WHERE id IN (SELECT value FROM json_each(?2))")
//!     .bind([Value::Text("worker".to_owned()), Value::Integers(vec![1, 2, 3])])
//!     .must_change(3);
//! transaction.commit_blocking(vec![lease], bounds)?;
//! # drop(rows);
//! # Ok(())
//! # }
//! ```

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives a future that needs no runtime on this thread, until the deadline at most. None: it was not done by then.
pub(super) fn block_until<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::Semaphore;

    #[test]
    fn a_future_that_is_woken_by_another_thread_is_done() {
        let semaphore = Arc::new(Semaphore::new(0));
        let giver = Arc::clone(&semaphore);
        let thread = thread::spawn(move || giver.add_permits(1));
        let permit = block_until(Instant::now() + Duration::from_secs(30), Arc::clone(&semaphore).acquire_owned());
        assert!(permit.unwrap().is_ok());
        thread.join().unwrap();
    }

    #[test]
    fn a_future_that_is_never_done_is_given_up_at_the_deadline() {
        let start = Instant::now();
        assert_eq!(block_until(start + Duration::from_millis(20), std::future::pending::<()>()), None);
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}
