//! A router over the subscriptions of its configuration: who gets an event is a matter of its tenant and its topic.

mod config;

pub use config::{Settings, Topic};

use config::Subscriber;
use outhaul_sdk::{Batch, Column, Failure, FailureCode, Inquiry, Router, Subscription, secrets};

outhaul_sdk::export_router!(RouterRust);
outhaul_sdk::manifest!("../manifest.toml");

/// The opened router.
#[derive(Debug)]
pub struct RouterRust(Settings);

impl Router for RouterRust {
    fn open(config: &str) -> Result<Self, Failure> {
        Settings::parse(config).map(Self)
    }

    fn expand(&mut self, events: &Batch, tenants: &Column) -> Vec<Result<Vec<Subscription>, Failure>> {
        let answer = |(index, event): (usize, outhaul_sdk::Message<'_>)| {
            let tenant = tenants.text(index).unwrap_or_default();
            self.0.wanting(tenant, event.topic()).map(subscription).collect()
        };
        events.messages().enumerate().map(answer).collect()
    }

    fn current(&mut self, inquiries: &[Inquiry]) -> Vec<Result<Option<Subscription>, Failure>> {
        let answer = |inquiry: &Inquiry| {
            let mut wanting = self.0.wanting(&inquiry.tenant, &inquiry.topic);
            wanting.find(|found| found.subscriber == inquiry.subscriber).map(subscription).transpose()
        };
        inquiries.iter().map(answer).collect()
    }
}

/// A subscriber as it is now. Its secret is read each time: a new one is a change like any other.
fn subscription(subscriber: &Subscriber) -> Result<Subscription, Failure> {
    let authentication = match &subscriber.authentication_secret {
        None => None,
        Some(name) => Some(secrets::get(name).ok_or_else(|| {
            let text = format!("`authentication_secret` of {:?}: the secret {name:?} is not granted, or not set", subscriber.subscriber);
            Failure::of(FailureCode::Unavailable, text)
        })?),
    };
    Ok(Subscription {
        tenant: subscriber.tenant.clone(),
        subscriber: subscriber.subscriber.clone(),
        principal: String::new(),
        url: subscriber.url.clone(),
        signing_scope: subscriber.signing_scope.clone(),
        authentication,
        // The other fields are all that there is: none can change without being seen.
        revision: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use outhaul_sdk::testing::{RouterBench, set_secret};

    const CONFIG: &str = r#"{"subscriptions":[
        {"tenant":"acme","subscriber":"crm","url":"https://crm.example.com/","topics":["orders.*"],"signing_scope":"acme"},
        {"tenant":"acme","subscriber":"audit","url":"https://audit.example.com/","authentication_secret":"audit"},
        {"subscriber":"crm","url":"https://other.example.com/"}
    ]}"#;

    fn names(answer: &Result<Vec<Subscription>, Failure>) -> Vec<&str> {
        answer.iter().flatten().map(|subscription| subscription.subscriber.as_str()).collect()
    }

    #[test]
    fn an_event_goes_to_those_of_its_tenant_that_want_it() {
        set_secret("audit", r#"{"type":"bearer","token":"t"}"#);
        let mut bench = RouterBench::<RouterRust>::open(CONFIG).unwrap();
        let answers = bench.expand(&[("acme", "orders.placed"), ("acme", "users.new"), ("", "orders.placed"), ("hooli", "x")]).unwrap();
        let named: Vec<Vec<&str>> = answers.iter().map(names).collect();
        assert_eq!(named, [vec!["crm", "audit"], vec!["audit"], vec!["crm"], vec![]]);
        let Ok([crm, audit]) = answers[0].as_deref() else { panic!() };
        assert_eq!((crm.signing_scope.as_deref(), crm.authentication.as_deref()), (Some("acme"), None));
        assert_eq!(audit.authentication.as_deref(), Some(r#"{"type":"bearer","token":"t"}"#));
    }

    #[test]
    fn who_is_gone_or_does_not_want_it_is_none() {
        let mut bench = RouterBench::<RouterRust>::open(CONFIG).unwrap();
        let inquiry = |subscriber: &str, topic: &str| Inquiry { tenant: "acme".into(), subscriber: subscriber.into(), topic: topic.into() };
        let answers = bench.current(&[inquiry("crm", "orders.paid"), inquiry("crm", "users.new"), inquiry("gone", "orders.paid")]).unwrap();
        assert!(matches!(&answers[0], Ok(Some(found)) if found.url == "https://crm.example.com/"));
        assert_eq!(answers[1..], [Ok(None), Ok(None)]);
    }

    #[test]
    fn without_its_secret_a_subscriber_is_a_failure_that_names_it() {
        let mut bench = RouterBench::<RouterRust>::open(CONFIG).unwrap();
        let answers = bench.current(&[Inquiry { tenant: "acme".into(), subscriber: "audit".into(), topic: "x".into() }]).unwrap();
        assert!(matches!(&answers[0], Err(failure) if failure.detail.contains("\"audit\"")));
    }
}
