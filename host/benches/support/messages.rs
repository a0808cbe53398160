//! Batches as storages hand them over, and how adapters are called with them.

use outhaul::domain::{Batch, Column, NewMessage, Outcome, Settlement, Verdict};
use outhaul::ports::{ClaimRequest, LeaseEnd, PublishCall, Workers};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The worker of all calls.
pub const WORKER: &str = "bench.0";

/// So many keys; none: messages without a key.
pub type Keys = Option<usize>;

/// The messages of these numbers: ids of 36 characters, and two headers. Number by number, keys take turns.
pub fn batch(numbers: Range<usize>, payload: usize, keys: Keys) -> Batch {
    let payload = vec![b'a'; payload];
    let mut batch = Batch::default();
    for number in numbers {
        let id = format!("{number:036}");
        let key = keys.map(|keys| format!("order-{}", number % keys));
        batch.push(&NewMessage {
            id: Some(&id),
            topic: "orders.created",
            key: key.as_deref(),
            headers: vec![("content-type", b"application/json"), ("trace", b"00-4bf92f3577b34da6a3ce929d0e0e4736")],
            payload: Some(&payload),
            attempts: 1,
            created_at: 1_700_000_000_000,
        });
    }
    batch
}

/// A publish call under a lease that outlives it. Early outcomes go to the receiver.
pub fn call() -> (PublishCall, mpsc::UnboundedReceiver<(usize, Outcome)>) {
    let (reports, received) = mpsc::unbounded_channel();
    let deadline = Duration::from_secs(20);
    let lease = Arc::new(LeaseEnd::new(tokio::time::Instant::now() + 2 * deadline));
    (PublishCall { deadline, reports, lease, cancel: CancellationToken::new(), workers: Workers::default() }, received)
}

/// A claim of so many rows.
pub fn request(limit: usize) -> ClaimRequest {
    ClaimRequest {
        worker: WORKER.to_owned(),
        limit: u32::try_from(limit).expect("a number of rows"),
        max_bytes: 16 << 20,
        lease: Duration::from_secs(600),
        max_attempts: 0,
        max_message_bytes: 1 << 20,
    }
}

/// One verdict for these rows.
pub fn settlement(verdict: Verdict, ids: Column) -> [Settlement; 1] {
    [Settlement { verdict, ids }]
}

/// Handed back, and due at once.
pub const RELEASE: Verdict = Verdict::Release { delay: Duration::ZERO };
