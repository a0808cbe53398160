//! Notices that the machine, or this process, stood still: what was waited for then says little of the adapter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

/// How often it looks.
const TICK: Duration = Duration::from_millis(20);

/// A shorter delay does not matter to any clause: the shortest time that one counts on is several times as long.
const LONG: Duration = Duration::from_millis(200);

/// A watch, from its making to its end.
pub(super) struct Stall {
    /// The longest delay so far, in milliseconds.
    longest: Arc<AtomicU64>,
    _ticking: AbortOnDropHandle<()>,
}

impl Stall {
    /// Begins to watch.
    pub(super) fn watch() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&longest);
        let ticking = tokio::spawn(async move {
            loop {
                // The clock of the machine, not the runtime's, which tests may stop.
                let before = Instant::now();
                tokio::time::sleep(TICK).await;
                let late = before.elapsed().saturating_sub(TICK).as_millis();
                seen.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { longest, _ticking: AbortOnDropHandle::new(ticking) }
    }

    /// Whether it stood still for long.
    pub(super) fn was_long(&self) -> bool {
        u128::from(self.longest.load(Ordering::Relaxed)) >= LONG.as_millis()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_that_stands_still_is_noticed() {
        let stall = Stall::watch();
        tokio::time::sleep(TICK).await;
        std::thread::sleep(LONG * 2);
        while !stall.was_long() {
            tokio::time::sleep(TICK).await;
        }
    }
}
