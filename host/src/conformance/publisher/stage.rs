//! What a clause for publishers works on: the component, a destination of its own, and messages that both know.

use crate::conformance::clause::{Checked, Stop, expect};
use crate::conformance::destination::{Ability, Answer, Destination, DestinationError, Place, Received, Script, id, payload_of};
use crate::conformance::setup::SetupError;
use crate::conformance::subject::PublisherSubject;
use crate::domain::{Batch, Failure, FailureCode, NewMessage, Outcome};
use crate::plugin::{PluginError, PublisherPlugin};
use crate::ports::{LeaseEnd, PublishCall, Publisher, Workers};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toml::Table;

/// The topic of all messages.
pub(super) const TOPIC: &str = "conformance";

/// A deadline that nothing comes near to on any machine, for calls that have no reason to wait.
pub(super) const AMPLE: Duration = Duration::from_secs(30);

/// A deadline for calls that wait for what does not come.
pub(super) const SHORT: Duration = Duration::from_secs(4);

/// How long after its deadline a call has surely ended: the host ends it then.
const GRACE: Duration = Duration::from_secs(3);

/// The stage of one clause.
pub(crate) struct Stage {
    pub(super) subject: Arc<PublisherSubject>,
    destination: Box<dyn Destination>,
    run: u32,
    next: AtomicU16,
}

/// A message to be.
#[derive(Debug, Clone, Default)]
pub(super) struct Draft {
    pub(super) id: String,
    pub(super) key: Option<&'static str>,
    pub(super) headers: Vec<(&'static str, Vec<u8>)>,
    pub(super) payload: Option<Vec<u8>>,
    pub(super) attempts: u32,
}

impl Draft {
    pub(super) fn key(mut self, key: &'static str) -> Self {
        self.key = Some(key);
        self
    }

    pub(super) fn payload(mut self, payload: Option<Vec<u8>>) -> Self {
        self.payload = payload;
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: &[u8]) -> Self {
        self.headers.push((name, value.to_vec()));
        self
    }

    pub(super) fn attempt(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }
}

/// What came of a publish call.
#[derive(Debug)]
pub(super) struct Called {
    /// What the host makes of each message.
    pub(super) outcomes: Vec<Outcome>,
    /// Why the call as a whole went wrong, if it did.
    pub(super) broken: Option<Failure>,
    /// Reported before the end, in order.
    pub(super) reports: Vec<(usize, Outcome)>,
}

impl Stage {
    pub(super) fn new(subject: Arc<PublisherSubject>, destination: Box<dyn Destination>, run: u32) -> Self {
        Self { subject, destination, run, next: AtomicU16::new(0) }
    }

    /// A message without a key that no other one is like.
    pub(super) fn draft(&self) -> Draft {
        let id = id(self.run, self.next.fetch_add(1, Ordering::Relaxed));
        let payload = Some(payload_of(&id).into_bytes());
        Draft { id, key: None, headers: Vec::new(), payload, attempts: 1 }
    }

    /// Messages with these keys, one each.
    pub(super) fn drafts(&self, keys: &[Option<&'static str>]) -> Vec<Draft> {
        keys.iter().map(|key| Draft { key: *key, ..self.draft() }).collect()
    }

    /// The publisher, sending to the destination.
    pub(super) async fn open(&self) -> Result<Arc<PublisherPlugin>, Stop> {
        self.open_at(self.destination.address()).await
    }

    /// The publisher, sending to where nobody is.
    pub(super) async fn open_nowhere(&self) -> Result<Arc<PublisherPlugin>, Stop> {
        self.open_at(self.destination.nowhere()).await
    }

    async fn open_at(&self, address: &str) -> Result<Arc<PublisherPlugin>, Stop> {
        let opened = self.try_open(self.subject.setup.settings().clone(), address).await;
        opened.map_err(|failure| Stop::failed("it opens with its settings", told_failure(&failure)))
    }

    /// Opens it with other settings.
    pub(super) async fn open_as(&self, settings: Table) -> Result<Arc<PublisherPlugin>, Failure> {
        self.try_open(settings, self.destination.address()).await
    }

    async fn try_open(&self, settings: Table, address: &str) -> Result<Arc<PublisherPlugin>, Failure> {
        self.set_up_at(settings, address).await.map_err(|error| match error {
            SetupError::Plugin(PluginError::Open(failure)) => failure,
            other => Failure::new(FailureCode::adapter_fault(), other.to_string()),
        })
    }

    /// Opens it with its settings, and throws it away.
    ///
    /// # Errors
    /// If it does not open.
    pub(super) async fn set_up(&self) -> Result<(), SetupError> {
        self.set_up_at(self.subject.setup.settings().clone(), self.destination.address()).await.map(|_| ())
    }

    async fn set_up_at(&self, settings: Table, address: &str) -> Result<Arc<PublisherPlugin>, SetupError> {
        let reach = Place::of(address).authority.to_owned();
        self.subject.open_as(settings, &[("destination", address)], &[reach]).await
    }

    /// Has the destination answer by a script, if it can.
    pub(super) async fn script(&self, script: Script) -> Checked {
        if let Some(word) = script.words().into_iter().find(|word| !self.destination.answers(word)) {
            return Err(Stop::Skipped(format!("the destination cannot answer \"{word}\" in its protocol")));
        }
        self.destination.script(&script).await.map_err(destination_fault)
    }

    /// What has arrived since the script was set.
    pub(super) async fn received(&self) -> Result<Vec<Received>, Stop> {
        self.destination.received().await.map_err(destination_fault)
    }

    /// Whether the destination's protocol can show this; else the clause is skipped.
    pub(super) fn needs(&self, ability: Ability, what: &str) -> Checked {
        if self.destination.shows(ability) { Ok(()) } else { Err(Stop::Skipped(format!("the destination's protocol has no {what}"))) }
    }

    /// Whether the destination can answer so.
    pub(super) fn can_answer(&self, answer: &Answer) -> bool {
        self.destination.answers(answer.word())
    }
}

fn destination_fault(error: DestinationError) -> Stop {
    Stop::failed("a destination that does what it is asked", error.to_string())
}

/// Publishes, as a relay does; what no outcome is known of is tried again.
pub(super) async fn publish(publisher: &PublisherPlugin, drafts: &[Draft], deadline: Duration) -> Result<Called, Stop> {
    let mut batch = Batch::default();
    for draft in drafts {
        batch.push(&NewMessage {
            id: Some(&draft.id),
            topic: TOPIC,
            key: draft.key,
            headers: draft.headers.iter().map(|(name, value)| (*name, value.as_slice())).collect(),
            payload: draft.payload.as_deref(),
            attempts: draft.attempts,
            created_at: 1_767_225_600_000,
        });
    }
    let (reports, mut reported) = mpsc::unbounded_channel();
    let began = Instant::now();
    let lease = Arc::new(LeaseEnd::new(began + deadline));
    let call =
        publisher.publish(batch, PublishCall { deadline, reports, lease, cancel: CancellationToken::new(), workers: Workers::default() });
    let Ok(result) = tokio::time::timeout(deadline + GRACE, call).await else {
        return Err(Stop::failed(format!("the call ends within its deadline of {} ms", deadline.as_millis()), "it went on"));
    };
    let mut early: Vec<(usize, Outcome)> = Vec::new();
    while let Ok(report) = reported.try_recv() {
        early.push(report);
    }
    let (outcomes, broken) = match result {
        Ok(outcomes) => (outcomes, None),
        Err(failure) => {
            let known = |index| early.iter().find(|(reported, _)| *reported == index).map(|(_, outcome)| outcome.clone());
            let outcomes = (0..drafts.len()).map(|index| known(index).unwrap_or_else(|| Outcome::Retry(failure.clone())));
            (outcomes.collect(), Some(failure))
        }
    };
    Ok(Called { outcomes, broken, reports: early })
}

/// [`publish`] where the call as a whole must go well.
pub(super) async fn publish_well(publisher: &PublisherPlugin, drafts: &[Draft], deadline: Duration) -> Result<Called, Stop> {
    let called = publish(publisher, drafts, deadline).await?;
    match &called.broken {
        None => Ok(called),
        Some(failure) => Err(Stop::call(format!("an answer to a call with {} messages", drafts.len()), failure)),
    }
}

/// [`publish_well`] where all must be delivered.
pub(super) async fn deliver(publisher: &PublisherPlugin, drafts: &[Draft]) -> Result<Called, Stop> {
    let called = publish_well(publisher, drafts, AMPLE).await?;
    let failed = called.outcomes.iter().enumerate().find(|(_, outcome)| **outcome != Outcome::Delivered);
    match failed {
        None => Ok(called),
        Some((index, outcome)) => {
            let expected = "delivered, for every message that the destination took";
            Err(Stop::failed(expected, format!("message {index} of {}: {}", drafts.len(), told(outcome))))
        }
    }
}

/// An outcome in words.
pub(super) fn told(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Delivered => "delivered".to_owned(),
        Outcome::Retry(failure) => format!("retry ({})", told_failure(failure)),
        Outcome::Reject(failure) => format!("reject ({})", told_failure(failure)),
        Outcome::Held => "held".to_owned(),
        Outcome::Settled => "settled".to_owned(),
        Outcome::Lost => "lost".to_owned(),
    }
}

/// A failure in words.
pub(super) fn told_failure(failure: &Failure) -> String {
    failure.to_string()
}

/// The failure of an outcome that has one.
pub(super) fn failure_of(outcome: &Outcome) -> Option<&Failure> {
    match outcome {
        Outcome::Retry(failure) | Outcome::Reject(failure) => Some(failure),
        Outcome::Delivered | Outcome::Held | Outcome::Settled | Outcome::Lost => None,
    }
}

/// That message `index` was to be retried.
pub(super) fn is_retry(what: &str, outcome: Option<&Outcome>) -> Checked {
    let is_so = matches!(outcome, Some(Outcome::Retry(_)));
    expect(is_so, format!("{what}: retry"), || outcome.map_or_else(|| "no outcome".to_owned(), told))
}

/// That message `index` was rejected.
pub(super) fn is_reject(what: &str, outcome: Option<&Outcome>) -> Checked {
    let is_so = matches!(outcome, Some(Outcome::Reject(_)));
    expect(is_so, format!("{what}: reject"), || outcome.map_or_else(|| "no outcome".to_owned(), told))
}
