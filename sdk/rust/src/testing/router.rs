//! A router, called natively and held against its contract.

use crate::{Batch, Column, Failure, Inquiry, NewMessage, Router, Subscription};
use std::collections::HashSet;

/// An opened router.
#[derive(Debug)]
pub struct RouterBench<R>(R);

/// How a router broke the contract of `interface router`. Subscribers are named; what a subscription holds is not shown.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouterFault {
    /// The host could not tell which answer is whose.
    #[error("{questions} questions have {answers} answers: one for each is needed, in their order")]
    Count {
        /// Events or inquiries.
        questions: usize,
        /// Answers returned.
        answers: usize,
    },
    /// The host ends such an event.
    #[error("event {at} is of the tenant `{wanted}`, and the subscriber `{subscriber}` of the tenant `{found}` is in its answer")]
    Tenant {
        /// The event's place.
        at: usize,
        /// The event's tenant.
        wanted: String,
        /// The subscriber.
        subscriber: String,
        /// The subscriber's tenant.
        found: String,
    },
    /// The host ends such an event.
    #[error("the subscriber `{subscriber}` is twice in the answer to event {at}")]
    Twice {
        /// The event's place.
        at: usize,
        /// The subscriber.
        subscriber: String,
    },
    /// The host would never send such a delivery.
    #[error("the subscriber `{0}` is not the same when it is asked for alone, though nothing has changed")]
    Differs(String),
    /// Another subscription than the one that was asked for.
    #[error("inquiry {at} is about `{wanted}`, and the answer about `{found}`")]
    Other {
        /// The inquiry's place.
        at: usize,
        /// Tenant and subscriber that were asked for.
        wanted: String,
        /// Those that were answered.
        found: String,
    },
}

impl<R: Router> RouterBench<R> {
    /// Opens the router with a configuration, as JSON.
    ///
    /// # Errors
    /// Those of the router.
    pub fn open(config: &str) -> Result<Self, Failure> {
        R::open(config).map(Self)
    }

    /// The router itself.
    pub fn adapter(&mut self) -> &mut R {
        &mut self.0
    }

    /// Asks for the subscribers of events, each a tenant and a topic; and then for each of them alone, as the host does before it sends.
    ///
    /// # Errors
    /// If what comes back is not what `interface router` demands.
    pub fn expand(&mut self, events: &[(&str, &str)]) -> Result<Vec<Result<Vec<Subscription>, Failure>>, RouterFault> {
        let mut batch = Batch::new();
        for (index, (_, topic)) in events.iter().enumerate() {
            batch.push(&NewMessage { id: &index.to_string(), topic, attempts: 1, ..NewMessage::default() });
        }
        let tenants = Column::of_texts(events.iter().map(|(tenant, _)| tenant));
        let answers = self.0.expand(&batch, &tenants);
        if answers.len() != events.len() {
            return Err(RouterFault::Count { questions: events.len(), answers: answers.len() });
        }
        let (mut inquiries, mut expected) = (Vec::new(), Vec::new());
        for (at, ((tenant, topic), answer)) in events.iter().zip(&answers).enumerate() {
            let mut seen = HashSet::new();
            for subscription in answer.iter().flatten() {
                let Subscription { tenant: found, subscriber, .. } = subscription;
                if found != tenant {
                    let (wanted, found) = ((*tenant).to_owned(), found.clone());
                    return Err(RouterFault::Tenant { at, wanted, subscriber: subscriber.clone(), found });
                }
                if !seen.insert(subscriber.as_str()) {
                    return Err(RouterFault::Twice { at, subscriber: subscriber.clone() });
                }
                inquiries.push(Inquiry { tenant: found.clone(), subscriber: subscriber.clone(), topic: (*topic).to_owned() });
                expected.push(subscription);
            }
        }
        for (expected, current) in expected.into_iter().zip(self.current(&inquiries)?) {
            if current.as_ref().ok().and_then(Option::as_ref) != Some(expected) {
                return Err(RouterFault::Differs(expected.subscriber.clone()));
            }
        }
        Ok(answers)
    }

    /// Asks for subscriptions as they are now.
    ///
    /// # Errors
    /// If what comes back is not what `interface router` demands.
    pub fn current(&mut self, inquiries: &[Inquiry]) -> Result<Vec<Result<Option<Subscription>, Failure>>, RouterFault> {
        let answers = self.0.current(inquiries);
        if answers.len() != inquiries.len() {
            return Err(RouterFault::Count { questions: inquiries.len(), answers: answers.len() });
        }
        for (at, (inquiry, answer)) in inquiries.iter().zip(&answers).enumerate() {
            let Ok(Some(found)) = answer else { continue };
            if (&found.tenant, &found.subscriber) != (&inquiry.tenant, &inquiry.subscriber) {
                let named = |tenant: &str, subscriber: &str| format!("{subscriber} of {tenant}");
                let (wanted, found) = (named(&inquiry.tenant, &inquiry.subscriber), named(&found.tenant, &found.subscriber));
                return Err(RouterFault::Other { at, wanted, found });
            }
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every event with the subscribers of its configuration, each `tenant/name`, wrongly by its first word.
    struct Scripted {
        fault: String,
        subscribers: Vec<Subscription>,
    }

    fn subscription(text: &str) -> Subscription {
        let (tenant, subscriber) = text.split_once('/').unwrap();
        Subscription {
            tenant: tenant.to_owned(),
            subscriber: subscriber.to_owned(),
            principal: String::new(),
            url: "https://h.example/".to_owned(),
            signing_scope: None,
            authentication: None,
            revision: "1".to_owned(),
        }
    }

    impl Router for Scripted {
        fn open(config: &str) -> Result<Self, Failure> {
            let mut words = config.split(' ');
            let fault = words.next().filter(|word| !word.is_empty());
            let fault = fault.ok_or_else(|| Failure::invalid_configuration("`config`: FAULT SUBSCRIBER... is wanted"))?.to_owned();
            Ok(Self { fault, subscribers: words.map(subscription).collect() })
        }
        fn expand(&mut self, events: &Batch, _: &Column) -> Vec<Result<Vec<Subscription>, Failure>> {
            let answers = if self.fault == "short" { 0 } else { events.len() };
            vec![Ok(self.subscribers.clone()); answers]
        }
        fn current(&mut self, inquiries: &[Inquiry]) -> Vec<Result<Option<Subscription>, Failure>> {
            let found = inquiries.iter().map(|inquiry| {
                let found = self.subscribers.iter().find(|one| one.subscriber == inquiry.subscriber).cloned();
                found.map(|one| match self.fault.as_str() {
                    "restless" => Subscription { revision: "2".to_owned(), ..one },
                    "other" => Subscription { subscriber: "x".to_owned(), ..one },
                    _ => one,
                })
            });
            let answers = if self.fault == "few" { 0 } else { inquiries.len() };
            found.map(Ok).take(answers).collect()
        }
    }

    fn expand(script: &str) -> Result<Vec<Result<Vec<Subscription>, Failure>>, RouterFault> {
        RouterBench::<Scripted>::open(script).unwrap().expand(&[("a", "t")])
    }

    #[test]
    fn what_keeps_the_contract_is_returned() {
        assert_eq!(expand("none a/x a/y").unwrap(), [Ok(vec![subscription("a/x"), subscription("a/y")])]);
        assert_eq!(expand("none").unwrap(), [Ok(vec![])]);
    }

    #[test]
    fn what_breaks_it_is_told() {
        for (script, told) in [
            ("short a/x", "1 questions have 0 answers"),
            ("few a/x", "1 questions have 0 answers"),
            ("none b/x", "event 0 is of the tenant `a`, and the subscriber `x` of the tenant `b` is in its answer"),
            ("none a/x a/x", "the subscriber `x` is twice in the answer to event 0"),
            ("restless a/y", "the subscriber `y` is not the same"),
            ("other a/y", "inquiry 0 is about `y of a`, and the answer about `x of a`"),
        ] {
            assert!(expand(script).unwrap_err().to_string().contains(told), "{script}");
        }
    }

    #[test]
    fn a_router_that_is_not_open_answers_everything_with_a_failure() {
        let slot = crate::router::RouterSlot::<Scripted>::new();
        let mut batch = Batch::new();
        batch.push(&NewMessage { id: "1", topic: "t", ..NewMessage::default() });
        assert!(matches!(slot.expand(&batch, &Column::of_texts(["a"])).as_slice(), [Err(_)]));
        slot.open("none a/x").unwrap();
        assert!(matches!(slot.expand(&batch, &Column::of_texts(["a"])).as_slice(), [Ok(_)]));
        assert!(slot.open("").is_err());
    }
}
