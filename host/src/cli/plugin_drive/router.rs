//! The calls of a router: what their lines mean, and what comes back.

use super::messages;
use crate::domain::{Batch, Failure, NewMessage};
use crate::plugin::RouterPlugin;
use crate::ports::fan_out::{Inquiry, Router, Subscription};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a call may take, if the limit of all calls is no shorter.
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpandArguments {
    events: Vec<EventArgument>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventArgument {
    #[serde(default)]
    tenant: String,
    topic: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    payload: Option<String>,
}

/// Events, and the tenant of each.
#[derive(Debug, PartialEq)]
pub(super) struct Events {
    batch: Batch,
    tenants: Vec<String>,
}

impl From<ExpandArguments> for Events {
    fn from(arguments: ExpandArguments) -> Self {
        let (mut batch, mut tenants) = (Batch::default(), Vec::new());
        for (index, EventArgument { tenant, topic, id, key, payload }) in arguments.events.into_iter().enumerate() {
            let id = id.unwrap_or_else(|| index.to_string());
            let payload = payload.as_deref().map(str::as_bytes);
            batch.push(&NewMessage { id: Some(&id), topic: &topic, key: key.as_deref(), payload, attempts: 1, ..NewMessage::default() });
            tenants.push(tenant);
        }
        Self { batch, tenants }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CurrentArguments {
    inquiries: Vec<InquiryArgument>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InquiryArgument {
    #[serde(default)]
    tenant: String,
    subscriber: String,
    topic: String,
}

impl From<CurrentArguments> for Vec<Inquiry> {
    fn from(arguments: CurrentArguments) -> Self {
        let inquiry = |InquiryArgument { tenant, subscriber, topic }| Inquiry { tenant, subscriber, topic };
        arguments.inquiries.into_iter().map(inquiry).collect()
    }
}

pub(super) async fn expand(router: &RouterPlugin, events: &Events) -> Result<Value, Failure> {
    let answers = router.expand(&events.batch, &events.tenants, DEADLINE).await?;
    let subscriptions = |found: &Vec<Subscription>| json!({ "subscriptions": found.iter().map(subscription).collect::<Vec<_>>() });
    Ok(json!({ "answers": told(&answers, subscriptions) }))
}

pub(super) async fn current(router: &RouterPlugin, inquiries: &[Inquiry]) -> Result<Value, Failure> {
    let answers = Router::current(router, inquiries, DEADLINE).await?;
    let found = |found: &Option<Subscription>| json!({ "subscription": found.as_ref().map(subscription) });
    Ok(json!({ "answers": told(&answers, found) }))
}

fn told<T>(answers: &[Result<T, Failure>], fine: impl Fn(&T) -> Value) -> Vec<Value> {
    let answer = |answer: &Result<T, Failure>| match answer {
        Ok(found) => fine(found),
        Err(failure) => json!({ "failure": messages::failure(failure) }),
    };
    answers.iter().map(answer).collect()
}

/// All of it, to whoever drives the adapter: a test wants to see what the host would seal.
fn subscription(subscription: &Subscription) -> Value {
    let Subscription { tenant, subscriber, principal, url, signing_scope, authentication, revision } = subscription;
    json!({
        "tenant": tenant,
        "subscriber": subscriber,
        "principal": principal,
        "url": url,
        "signing_scope": signing_scope,
        "authentication": authentication,
        "revision": revision,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_needs_a_topic_only() {
        let read: ExpandArguments =
            serde_json::from_str(r#"{"events":[{"topic":"t"},{"tenant":"a","topic":"u","id":"7","key":"k"}]}"#).unwrap();
        let Events { batch, tenants } = read.into();
        assert_eq!((tenants, batch.check(2)), (vec![String::new(), "a".to_owned()], Ok(())));
        assert_eq!((batch.message(0).id(), batch.message(1).id(), batch.message(1).key()), ("0", "7", Some("k")));
        let inquiries: CurrentArguments = serde_json::from_str(r#"{"inquiries":[{"subscriber":"s","topic":"t"}]}"#).unwrap();
        assert_eq!(Vec::from(inquiries), [Inquiry { tenant: String::new(), subscriber: "s".into(), topic: "t".into() }]);
    }

    #[test]
    fn answers_are_told_one_by_one() {
        let subscription = Subscription {
            tenant: "a".into(),
            subscriber: "s".into(),
            principal: String::new(),
            url: "https://h/".into(),
            signing_scope: None,
            authentication: None,
            revision: "1".into(),
        };
        let failure = Failure::new(crate::domain::FailureCode::Unavailable, "away");
        let answers = [Ok(Some(subscription)), Ok(None), Err(failure)];
        let told = told(&answers, |found| json!(found.as_ref().map(super::subscription)));
        let url = json!({
            "tenant": "a", "subscriber": "s", "principal": "", "url": "https://h/", "signing_scope": null, "authentication": null, "revision": "1",
        });
        assert_eq!(told, [url, Value::Null, json!({ "failure": { "code": "unavailable", "detail": "away" } })]);
    }
}
