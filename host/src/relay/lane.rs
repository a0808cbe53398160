//! One publish call as a task: reports outcomes as they come, and its end, whatever that is.

use super::pipeline::Event;
use crate::domain::{Batch, Failure, FailureCode, Outcome};
use crate::ports::{LeaseEnd, PublishCall, Publisher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Number of a call, never used twice.
pub(super) type CallId = u64;

/// Makes sure that the end of a call is reported even if its task panics.
struct End {
    id: CallId,
    started: Instant,
    events: mpsc::UnboundedSender<Event>,
    result: Result<Vec<Outcome>, Failure>,
}

impl Drop for End {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Ok(Vec::new()));
        // Nobody listens any more after a forced shutdown: then there is nothing to report to.
        let _ = self.events.send(Event::Published { call: self.id, result, elapsed: self.started.elapsed() });
    }
}

/// Publishes one batch.
pub(super) async fn publish(
    id: CallId,
    publisher: Arc<dyn Publisher>,
    batch: Batch,
    deadline: Duration,
    lease: Arc<LeaseEnd>,
    cancel: CancellationToken,
    events: mpsc::UnboundedSender<Event>,
) {
    let unknown = Failure::new(FailureCode::Other("panic".into()), "the publish call panicked in the host: please report this");
    let mut end = End { id, started: Instant::now(), events: events.clone(), result: Err(unknown) };
    let (reports, mut reported) = mpsc::unbounded_channel();
    let call = PublishCall { deadline, reports, lease, cancel };
    let forward = |(index, outcome): (usize, Outcome)| {
        let _ = events.send(Event::Reported { call: id, index, outcome });
    };
    let publishing = publisher.publish(batch, call);
    tokio::pin!(publishing);
    end.result = loop {
        tokio::select! {
            biased;
            Some(report) = reported.recv() => forward(report),
            result = &mut publishing => break result,
        }
    };
    while let Ok(report) = reported.try_recv() {
        forward(report);
    }
}
