//! Calls that end with a result even if they panic: the pipeline waits for the end of whatever it has started.

use crate::domain::{Failure, FailureCode};
use futures_util::FutureExt as _;
use std::panic::AssertUnwindSafe;

/// The call's result; a failure if it panicked, which is a fault of the host or of an adapter that is plain Rust.
pub(super) async fn guarded<T>(call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    AssertUnwindSafe(call)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err(Failure::new(FailureCode::Other("panic".to_owned()), "the call panicked in the host: please report this")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_failure() {
        assert_eq!(guarded(async { Ok(1) }).await, Ok(1));
        let panicking = guarded(async { if true { panic!("on purpose") } else { Ok(1) } });
        assert_eq!(panicking.await.map_err(|failure| failure.code), Err(FailureCode::Other("panic".to_owned())));
    }
}
