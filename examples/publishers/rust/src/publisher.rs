//! The publisher, and what it exports. It is generic over how a request is sent, so that tests can answer in its stead.

use crate::{Answer, Settings, headers, outcome};
use outhaul_sdk::{Batch, Failure, Message, Outcome, Publisher, log, progress, run_in_key_order};
use std::time::Duration;

/// Sends one request and waits for its answer.
pub trait Post: Default {
    /// Sends a body.
    ///
    /// # Errors
    /// What having no answer means for the message.
    fn post(&mut self, settings: &Settings, headers: &[(String, Vec<u8>)], body: &[u8], timeout: Duration) -> Result<Answer, Outcome>;
}

/// The publisher, opened.
#[derive(Debug)]
pub struct HttpRust<P> {
    settings: Settings,
    /// How requests are sent.
    pub post: P,
}

impl<P: Post> Publisher for HttpRust<P> {
    fn open(config: &str) -> Result<Self, Failure> {
        let settings = Settings::parse(config)?;
        let fields = [("destination".to_owned(), settings.authority.clone())];
        log::write(log::Level::Info, "http-rust is open", &fields);
        Ok(Self { settings, post: P::default() })
    }

    fn publish(&mut self, batch: &Batch, deadline: Duration) -> Vec<Outcome> {
        let report = |index, outcome: &Outcome| {
            // An index comes from a batch whose columns are counted in 32 bits.
            if let Ok(index) = u32::try_from(index) {
                progress::report(index, outcome);
            }
        };
        let outcomes = run_in_key_order(batch, deadline, report, |message, left| self.send(message, left));
        let open = outcomes.iter().filter(|outcome| **outcome != Outcome::Delivered).count();
        if open > 0 {
            let fields = [("messages".to_owned(), outcomes.len().to_string()), ("open".to_owned(), open.to_string())];
            log::write(log::Level::Warn, "not all messages were delivered", &fields);
        }
        outcomes
    }
}

impl<P: Post> HttpRust<P> {
    fn send(&mut self, message: Message<'_>, left: Duration) -> Outcome {
        if message.destination().is_some() {
            // A delivery of a fan-out has an address of its own: the configured one would be the wrong place.
            let detail = "this publisher sends to its own `url` only, not to the destinations of a fan-out";
            return Outcome::Retry(Failure::invalid_configuration(detail));
        }
        let timeout = self.settings.timeout.min(left);
        let headers = match headers(message) {
            Ok(headers) => headers,
            Err(failure) => return Outcome::Reject(failure),
        };
        match self.post.post(&self.settings, &headers, message.payload().unwrap_or_default(), timeout) {
            Ok(answer) => outcome(&self.settings, answer.status, answer.retry_after.as_deref()),
            Err(failed) => failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outhaul_sdk::testing::{PublisherBench, take_log};
    use outhaul_sdk::{FailureCode, NewMessage};

    /// Answers by the topic, and keeps what it was sent.
    #[derive(Default)]
    struct Scripted(Vec<(String, Vec<u8>)>);

    impl Post for Scripted {
        fn post(&mut self, _: &Settings, headers: &[(String, Vec<u8>)], body: &[u8], _: Duration) -> Result<Answer, Outcome> {
            let of = |name| headers.iter().find(|(found, _)| found == name).map(|(_, value)| String::from_utf8(value.clone()).unwrap());
            self.0.push((of("idempotency-key").unwrap(), body.to_vec()));
            match of("outhaul-topic").unwrap().as_str() {
                "busy" => Ok(Answer { status: 429, retry_after: Some(b"3".to_vec()) }),
                "bad" => Ok(Answer { status: 400, retry_after: None }),
                "away" => Err(Outcome::Retry(Failure::of(FailureCode::Network, "refused"))),
                _ => Ok(Answer { status: 204, retry_after: None }),
            }
        }
    }

    fn message<'a>(id: &'a str, topic: &'a str, key: Option<&'a str>) -> NewMessage<'a> {
        NewMessage { id, topic, key, payload: Some(b"body"), ..NewMessage::default() }
    }

    #[test]
    fn a_failure_holds_back_its_key_and_only_that() {
        let mut bench = PublisherBench::<HttpRust<Scripted>>::open(r#"{"url":"http://h.example/in"}"#).unwrap();
        let messages = [
            message("1", "busy", Some("a")),
            message("2", "ok", Some("b")),
            message("3", "ok", Some("a")),
            message("4", "bad", None),
            message("5", "away", None),
        ];
        // The bench itself refuses an order of a key that is broken, and a report that is not what was returned.
        let published = bench.publish(&messages, Duration::from_secs(10)).unwrap();
        let words: Vec<&str> = published
            .outcomes
            .iter()
            .map(|outcome| match outcome {
                Outcome::Delivered => "delivered",
                Outcome::Retry(_) => "retry",
                Outcome::Reject(_) => "reject",
                Outcome::Held => "held",
            })
            .collect();
        assert_eq!(words, ["retry", "delivered", "held", "reject", "retry"]);
        assert_eq!(published.reports.len(), messages.len(), "each is reported as soon as it is known");
        let sent: Vec<&str> = bench.adapter().post.0.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(sent, ["1", "2", "4", "5"]);
        assert!(bench.adapter().post.0.iter().all(|(_, body)| body == b"body"));
        let said: Vec<String> = take_log().into_iter().map(|line| line.text).collect();
        assert_eq!(said, ["http-rust is open", "not all messages were delivered"]);
    }

    #[test]
    fn what_cannot_start_in_time_is_held() {
        let mut bench = PublisherBench::<HttpRust<Scripted>>::open(r#"{"url":"http://h.example/in"}"#).unwrap();
        let published = bench.publish(&[message("1", "ok", None)], Duration::ZERO).unwrap();
        assert_eq!(published.outcomes, [Outcome::Held]);
        assert!(bench.adapter().post.0.is_empty());
    }
}
