//! What a clause for routers works on: the component, and what it is asked. Subscriptions are compared and never shown: a URL may be a
//! credential.

use crate::conformance::clause::Stop;
use crate::conformance::setup::SetupError;
use crate::conformance::subject::RouterSubject;
use crate::domain::{Batch, Failure, FailureCode, NewMessage};
use crate::plugin::{PluginError, RouterPlugin};
use crate::ports::fan_out::{Inquiry, Router, Subscription};
use std::sync::Arc;
use std::time::Duration;
use toml::Table;

/// A deadline that nothing comes near to on any machine.
const AMPLE: Duration = Duration::from_secs(30);

/// A tenant that no router knows.
pub(super) const NO_TENANT: &str = "kit-no-such-tenant";

/// A subscriber that no router knows.
pub(super) const NO_SUBSCRIBER: &str = "kit-no-such-subscriber";

/// What a router is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) tenant: String,
    pub(super) topic: String,
}

impl Event {
    /// Reads `TENANT/TOPIC`; the tenant may be empty.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (tenant, topic) = text.split_once('/')?;
        (!topic.is_empty()).then(|| Self { tenant: tenant.to_owned(), topic: topic.to_owned() })
    }

    /// The same event of a tenant that there is not.
    pub(super) fn of_nobody(&self) -> Self {
        Self { tenant: NO_TENANT.to_owned(), topic: self.topic.clone() }
    }

    pub(super) fn inquiry(&self, subscriber: &str) -> Inquiry {
        Inquiry { tenant: self.tenant.clone(), subscriber: subscriber.to_owned(), topic: self.topic.clone() }
    }
}

/// The stage of one clause.
pub(crate) struct Stage {
    pub(super) subject: Arc<RouterSubject>,
    pub(super) event: Option<Event>,
    pub(super) unwanted: Option<Event>,
}

impl Stage {
    /// An event that somebody wants.
    pub(super) fn event(&self) -> Result<&Event, Stop> {
        let why = || "it is not known which event somebody wants: --event TENANT/TOPIC, or `event` in a conformance.toml beside it";
        self.event.as_ref().ok_or_else(|| Stop::Skipped(why().to_owned()))
    }

    /// An event that nobody wants.
    pub(super) fn unwanted(&self) -> Result<&Event, Stop> {
        let why = || "it is not known which event nobody wants: --unwanted TENANT/TOPIC, or `unwanted` in a conformance.toml beside it";
        self.unwanted.as_ref().ok_or_else(|| Stop::Skipped(why().to_owned()))
    }

    /// The router in an instance of its own.
    pub(super) async fn open(&self) -> Result<Arc<RouterPlugin>, Stop> {
        let opened = self.open_as(self.subject.setup.settings().clone()).await;
        opened.map_err(|failure| Stop::call("it opens with its settings", &failure))
    }

    /// The same with other settings.
    pub(super) async fn open_as(&self, settings: Table) -> Result<Arc<RouterPlugin>, Failure> {
        self.subject.open_as(settings).await.map_err(|error| match error {
            SetupError::Plugin(PluginError::Open(failure)) => failure,
            other => Failure::new(FailureCode::InvalidConfiguration, other.to_string()),
        })
    }
}

/// Asks who wants events, in one call.
pub(super) async fn expand(router: &RouterPlugin, events: &[&Event]) -> Result<Vec<Vec<Subscription>>, Stop> {
    let mut batch = Batch::default();
    for (index, event) in events.iter().enumerate() {
        let id = index.to_string();
        batch.push(&NewMessage { id: Some(&id), topic: &event.topic, payload: Some(b"{}"), attempts: 1, ..NewMessage::default() });
    }
    let tenants: Vec<String> = events.iter().map(|event| event.tenant.clone()).collect();
    let called = router.expand(&batch, &tenants, AMPLE).await;
    let answers = called.map_err(|failure| Stop::call(format!("expand: an answer for each of {} events", events.len()), &failure))?;
    let answer = |answer: Result<Vec<Subscription>, Failure>| answer.map_err(|failure| Stop::call("expand: subscribers", &failure));
    answers.into_iter().map(answer).collect()
}

/// Asks for subscriptions as they are now, in one call.
pub(super) async fn current(router: &RouterPlugin, inquiries: &[Inquiry]) -> Result<Vec<Option<Subscription>>, Stop> {
    let called = Router::current(router, inquiries, AMPLE).await;
    let answers =
        called.map_err(|failure| Stop::call(format!("current: an answer for each of {} inquiries", inquiries.len()), &failure))?;
    let answer =
        |answer: Result<Option<Subscription>, Failure>| answer.map_err(|failure| Stop::call("current: a subscription or none", &failure));
    answers.into_iter().map(answer).collect()
}

/// Names of subscribers, for texts.
pub(super) fn names(subscriptions: &[Subscription]) -> String {
    let names: Vec<&str> = subscriptions.iter().map(|one| one.subscriber.as_str()).collect();
    format!("{names:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_tenant_and_a_topic() {
        let event = |tenant: &str, topic: &str| Some(Event { tenant: tenant.to_owned(), topic: topic.to_owned() });
        assert_eq!(Event::read("acme/orders/paid"), event("acme", "orders/paid"));
        assert_eq!(Event::read("/orders"), event("", "orders"));
        assert_eq!((Event::read("orders"), Event::read("acme/")), (None, None));
    }
}
