//! One publish call as a task: reports outcomes as they come, and its end, whatever that is.

use super::guard::guarded;
use super::pipeline::Event;
use crate::domain::{Batch, Outcome};
use crate::ports::{LeaseEnd, PublishCall, Publisher, Workers};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Number of a call, never used twice.
pub(super) type CallId = u64;

/// Publishes one batch.
#[allow(clippy::too_many_arguments, reason = "one call, and where its parts come from")]
pub(super) async fn publish(
    id: CallId,
    publisher: Arc<dyn Publisher>,
    batch: Batch,
    deadline: Duration,
    lease: Arc<LeaseEnd>,
    cancel: CancellationToken,
    workers: Workers,
    events: mpsc::UnboundedSender<Event>,
) {
    let started = Instant::now();
    let (reports, mut reported) = mpsc::unbounded_channel();
    let call = PublishCall { deadline, reports, lease, cancel, workers };
    let forward = |(index, outcome): (usize, Outcome)| {
        let _ = events.send(Event::Reported { call: id, index, outcome });
    };
    let publishing = guarded(publisher.publish(batch, call));
    tokio::pin!(publishing);
    let result = loop {
        tokio::select! {
            biased;
            Some(report) = reported.recv() => forward(report),
            result = &mut publishing => break result,
        }
    };
    while let Ok(report) = reported.try_recv() {
        forward(report);
    }
    // Nobody listens any more after a forced shutdown.
    let _ = events.send(Event::Published { call: id, result, elapsed: started.elapsed() });
}
