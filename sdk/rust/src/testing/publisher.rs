//! A publisher, called natively and held against its contract.

use super::host;
use crate::{Batch, Failure, NewMessage, Outcome, Publisher};
use std::collections::HashMap;
use std::time::Duration;

/// An opened publisher.
#[derive(Debug)]
pub struct PublisherBench<P>(P);

/// What became of a batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Published {
    /// One a message.
    pub outcomes: Vec<Outcome>,
    /// What was reported early, in the order of the reports: the message's place in the batch, and its outcome.
    pub reports: Vec<(usize, Outcome)>,
}

/// How a publisher broke the contract of `interface publisher`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublisherFault {
    /// The host could not tell which outcome is whose.
    #[error("{messages} messages have {outcomes} outcomes: one for each is needed, in their order")]
    Count {
        /// Messages of the batch.
        messages: usize,
        /// Outcomes returned.
        outcomes: usize,
    },
    /// A key's order was broken.
    #[error("message {at} is `{}`, but message {earlier} of its key `{key}` was not delivered: it has to be held", word(.outcome))]
    NotHeld {
        /// The later message's place in the batch.
        at: usize,
        /// Its outcome.
        outcome: Box<Outcome>,
        /// The earlier message's place.
        earlier: usize,
        /// Their key.
        key: String,
    },
    /// In a component the call would trap.
    #[error("an outcome was reported for message {at}, and the batch has {messages}")]
    NoSuchMessage {
        /// What was reported.
        at: u32,
        /// Messages of the batch.
        messages: usize,
    },
    /// The host believes the first report.
    #[error("message {at} was reported as `{}` and returned as `{}`: {reported:?}, {returned:?}", word(.reported), word(.returned))]
    Contradiction {
        /// The message's place in the batch.
        at: usize,
        /// What was reported first.
        reported: Box<Outcome>,
        /// What `publish` returned.
        returned: Box<Outcome>,
    },
}

impl<P: Publisher> PublisherBench<P> {
    /// Opens the publisher with a configuration, as JSON.
    ///
    /// # Errors
    /// Those of the publisher.
    pub fn open(config: &str) -> Result<Self, Failure> {
        P::open(config).map(Self)
    }

    /// The publisher itself.
    pub fn adapter(&mut self) -> &mut P {
        &mut self.0
    }

    /// Publishes a batch of these messages.
    ///
    /// # Errors
    /// If what comes back is not what `interface publisher` demands.
    pub fn publish(&mut self, messages: &[NewMessage<'_>], deadline: Duration) -> Result<Published, PublisherFault> {
        let mut batch = Batch::new();
        for message in messages {
            batch.push(message);
        }
        drop(host::take_reports());
        let outcomes = self.0.publish(&batch, deadline);
        let reported = host::take_reports();
        if outcomes.len() != messages.len() {
            return Err(PublisherFault::Count { messages: messages.len(), outcomes: outcomes.len() });
        }
        check_order(messages, &outcomes)?;
        let reports = check_reports(reported, &outcomes)?;
        Ok(Published { outcomes, reports })
    }
}

/// As in `variant outcome`.
fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Delivered => "delivered",
        Outcome::Retry(_) => "retry",
        Outcome::Reject(_) => "reject",
        Outcome::Held => "held",
    }
}

/// Nothing of a key is tried after a message of it that was not delivered.
fn check_order(messages: &[NewMessage<'_>], outcomes: &[Outcome]) -> Result<(), PublisherFault> {
    let mut stopped: HashMap<&str, usize> = HashMap::new();
    for (at, (message, outcome)) in messages.iter().zip(outcomes).enumerate() {
        let Some(key) = message.key else { continue };
        match stopped.get(key) {
            Some(earlier) if *outcome != Outcome::Held => {
                return Err(PublisherFault::NotHeld { at, outcome: Box::new(outcome.clone()), earlier: *earlier, key: key.to_owned() });
            }
            None if *outcome != Outcome::Delivered => drop(stopped.insert(key, at)),
            _ => {}
        }
    }
    Ok(())
}

/// The first report of each message is what is returned for it.
fn check_reports(reported: Vec<(u32, Outcome)>, outcomes: &[Outcome]) -> Result<Vec<(usize, Outcome)>, PublisherFault> {
    let mut reports: Vec<(usize, Outcome)> = Vec::new();
    for (index, outcome) in reported {
        let place = usize::try_from(index).ok().and_then(|at| outcomes.get(at).map(|returned| (at, returned)));
        let Some((at, returned)) = place else {
            return Err(PublisherFault::NoSuchMessage { at: index, messages: outcomes.len() });
        };
        let is_first = reports.iter().all(|(earlier, _)| *earlier != at);
        if is_first && outcome != *returned {
            return Err(PublisherFault::Contradiction { at, reported: Box::new(outcome), returned: Box::new(returned.clone()) });
        }
        reports.push((at, outcome));
    }
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Line, set_secret, take_log};
    use crate::{log, progress, secrets};

    /// Returns and reports what its configuration says: an outcome by its first letter.
    struct Scripted {
        returned: Vec<Outcome>,
        reported: Vec<(u32, Outcome)>,
    }

    fn outcome(letter: char) -> Outcome {
        match letter {
            'd' => Outcome::Delivered,
            'h' => Outcome::Held,
            'r' => Outcome::Retry(Failure::invalid_message("later")),
            _ => Outcome::Reject(Failure::invalid_message("never")),
        }
    }

    impl Publisher for Scripted {
        fn open(config: &str) -> Result<Self, Failure> {
            let (returned, reported) =
                config.split_once('/').ok_or_else(|| Failure::invalid_configuration("`config`: OUTCOMES/REPORTS is wanted"))?;
            let digit = |text: &str| (text[..1].parse().unwrap(), outcome(text.chars().nth(1).unwrap()));
            Ok(Self { returned: returned.chars().map(outcome).collect(), reported: reported.split_terminator(',').map(digit).collect() })
        }
        fn publish(&mut self, _: &Batch, _: Duration) -> Vec<Outcome> {
            self.reported.iter().for_each(|(index, outcome)| progress::report(*index, outcome));
            log::write(log::Level::Info, "sent", &[("secret".to_owned(), secrets::get("token").unwrap_or_default())]);
            self.returned.clone()
        }
    }

    fn publish(script: &str) -> Result<Published, PublisherFault> {
        let message = |id, key| NewMessage { id, topic: "t", key, ..NewMessage::default() };
        let messages = [message("1", Some("a")), message("2", None), message("3", Some("a"))];
        PublisherBench::<Scripted>::open(script).unwrap().publish(&messages, Duration::from_secs(1))
    }

    #[test]
    fn what_keeps_the_contract_is_returned() {
        let published = publish("rdh/0r,1d,0d").unwrap();
        assert_eq!(published.outcomes, ['r', 'd', 'h'].map(outcome));
        // A second report of a message counts for nothing, and is kept to be looked at.
        assert_eq!(published.reports, [(0, outcome('r')), (1, outcome('d')), (0, outcome('d'))]);
    }

    #[test]
    fn what_breaks_it_is_told() {
        for (script, told) in [
            ("dd/", "3 messages have 2 outcomes"),
            ("dddd/", "3 messages have 4 outcomes"),
            ("rdd/", "message 2 is `delivered`, but message 0 of its key `a` was not delivered"),
            ("hdx/", "message 2 is `reject`"),
            ("ddd/3d", "reported for message 3, and the batch has 3"),
            ("ddd/1r", "message 1 was reported as `retry` and returned as `delivered`"),
        ] {
            let fault = publish(script).unwrap_err().to_string();
            assert!(fault.contains(told), "{script}: {fault}");
        }
    }

    #[test]
    fn the_log_and_the_secrets_are_the_threads_own() {
        set_secret("token", "t0k3n");
        publish("ddd/").unwrap();
        let [line] = <[Line; 1]>::try_from(take_log()).unwrap();
        assert_eq!((line.text.as_str(), line.level), ("sent", log::Level::Info));
        assert_eq!(line.fields, [("secret".to_owned(), "t0k3n".to_owned())]);
        assert_eq!(std::thread::spawn(|| (take_log(), secrets::get("token"))).join().unwrap(), (Vec::new(), None));
    }
}
