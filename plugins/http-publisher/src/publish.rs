//! One call: sends a batch within its deadline, many requests at once, those of one key one after the other.
//!
//! Knows neither WebAssembly nor sockets: the wire and the surroundings come in as traits.

use crate::config::Settings;
use crate::request::{Credentials, Request, build};
use crate::response::{Answer, Fault, Receiver, fault_outcome, outcome};
use crate::schedule::Schedule;
use outhaul_sdk::{Batch, Message, Outcome};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Kept of the deadline for the way back to the host: a tenth, but no more than this.
const MAX_MARGIN: Duration = Duration::from_millis(250);

/// Requests on the wire, known by the index of their message.
pub trait Transport<'a> {
    /// Time since the call began.
    fn elapsed(&self) -> Duration;
    /// Starts a request that may take as long as `timeout`.
    ///
    /// # Errors
    /// It could not even be started.
    fn start(&mut self, index: usize, request: Request<'a>, timeout: Duration) -> Result<(), Fault>;
    /// Waits until something has ended, at the longest until `until` (since the call began), and says what.
    fn wait(&mut self, until: Duration) -> Vec<(usize, Result<Answer, Fault>)>;
    /// Gives a request up: its answer, if it is known but for the rest of its body.
    fn cancel(&mut self, index: usize) -> Option<Answer>;
}

/// What a call needs from its surroundings.
pub trait Surroundings {
    /// Wall clock: for signatures and for `Retry-After` dates.
    fn now(&self) -> SystemTime;
    /// A secret by name.
    fn secret(&self, name: &str) -> Option<String>;
    /// The outcome of a message, as soon as it is known.
    fn report(&self, index: usize, outcome: &Outcome);
    /// A header of a message was left out, because HTTP cannot carry it.
    fn skipped_header(&self, name: &str, reason: &str);
}

/// The times of a call, since its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    /// All is over: requests that still run are given up.
    end: Duration,
    /// Longest request.
    timeout: Duration,
    /// No request starts later.
    last_start: Duration,
}

impl Times {
    /// A request starts only while its whole time is left, or half of the call's if its time is longer than that. (Else a
    /// `timeout` as long as the call would leave time for one wave of requests only.)
    fn new(deadline: Duration, timeout: Option<Duration>) -> Self {
        let end = deadline - MAX_MARGIN.min(deadline / 10);
        let timeout = timeout.unwrap_or(end / 2).min(end);
        Self { end, timeout, last_start: end - timeout.min(end / 2) }
    }
}

/// Sends a batch: one outcome a message, in order; each is reported as soon as it is known.
pub fn publish<'a>(
    settings: &'a Settings,
    batch: &'a Batch,
    deadline: Duration,
    surroundings: &dyn Surroundings,
    transport: &mut dyn Transport<'a>,
) -> Vec<Outcome> {
    let times = Times::new(deadline, settings.timeout);
    let credentials = Credentials::load(settings, batch, &|name| surroundings.secret(name));
    let receiver = |index: usize| match batch.message(index).destination() {
        Some(destination) => Receiver::Subscriber(destination.subscriber),
        None => Receiver::Endpoint(settings.endpoint.as_ref().map(|endpoint| endpoint.authority.as_str()).unwrap_or_default()),
    };
    let place = |message: Message<'a>| message.destination().map(|destination| (destination.tenant, destination.subscriber));
    let mut schedule = Schedule::new(batch.messages().map(|message| (message.key(), place(message))));
    let mut running: BTreeMap<usize, Duration> = BTreeMap::new();
    let settle = |schedule: &mut Schedule, index: usize, outcome: Outcome| {
        surroundings.report(index, &outcome);
        for held in schedule.settle(index, outcome) {
            surroundings.report(held, &Outcome::Held);
        }
    };
    loop {
        while running.len() < settings.concurrency && transport.elapsed() <= times.last_start {
            let Some(index) = schedule.start() else { break };
            let started = credentials.as_ref().map_err(|failure| Outcome::Retry(failure.clone())).and_then(|credentials| {
                let mut skipped = |name: &str, reason: &str| surroundings.skipped_header(name, reason);
                let request = build(settings, credentials, batch.message(index), surroundings.now(), &mut skipped)?;
                transport.start(index, request, times.timeout).map_err(|fault| fault_outcome(receiver(index), fault))
            });
            match started {
                Ok(()) => {
                    running.insert(index, (transport.elapsed() + times.timeout).min(times.end));
                }
                Err(outcome) => settle(&mut schedule, index, outcome),
            }
        }
        let Some(until) = running.values().min().copied() else { break };
        for (index, result) in transport.wait(until) {
            if running.remove(&index).is_some() {
                let outcome = match result {
                    Ok(answer) => outcome(settings, receiver(index), &answer, surroundings.now()),
                    Err(fault) => fault_outcome(receiver(index), fault),
                };
                settle(&mut schedule, index, outcome);
            }
        }
        let now = transport.elapsed();
        let expired: Vec<usize> = running.iter().filter(|(_, until)| **until <= now).map(|(index, _)| *index).collect();
        for index in expired {
            running.remove(&index);
            let outcome = match transport.cancel(index) {
                Some(answer) => outcome(settings, receiver(index), &answer, surroundings.now()),
                None if now >= times.end => fault_outcome(receiver(index), Fault::Timeout("no answer before the call's deadline".into())),
                None => fault_outcome(receiver(index), Fault::Timeout("no answer within `timeout`".into())),
            };
            settle(&mut schedule, index, outcome);
        }
    }
    schedule.into_outcomes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch_of, to_subscribers};
    use outhaul_sdk::{FailureCode, NewMessage};
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};

    const SECOND: Duration = Duration::from_secs(1);

    /// A wire on which message `index` is answered with `answers[index]` after its delay, on a clock that only `wait` moves.
    struct Wire {
        clock: Cell<Duration>,
        answers: Vec<(Duration, Result<u16, Fault>)>,
        running: BTreeMap<usize, Duration>,
        /// Answers whose body never ends.
        heads: BTreeMap<usize, u16>,
        started: Vec<(usize, Duration)>,
        targets: BTreeMap<usize, String>,
        most: usize,
    }

    impl Wire {
        fn new(answers: Vec<(Duration, Result<u16, Fault>)>) -> Self {
            Self {
                clock: Cell::default(),
                answers,
                running: BTreeMap::new(),
                heads: BTreeMap::new(),
                started: Vec::new(),
                targets: BTreeMap::new(),
                most: 0,
            }
        }
    }

    impl<'a> Transport<'a> for Wire {
        fn elapsed(&self) -> Duration {
            self.clock.get()
        }
        fn start(&mut self, index: usize, request: Request<'a>, _timeout: Duration) -> Result<(), Fault> {
            self.targets.insert(index, format!("{}://{}{}", request.scheme(), request.authority, request.target));
            self.started.push((index, self.clock.get()));
            self.running.insert(index, self.clock.get() + self.answers[index].0);
            self.most = self.most.max(self.running.len());
            Ok(())
        }
        fn wait(&mut self, until: Duration) -> Vec<(usize, Result<Answer, Fault>)> {
            let next = self.running.values().min().copied().unwrap_or(until).min(until);
            self.clock.set(self.clock.get().max(next));
            let ended: Vec<usize> = self.running.iter().filter(|(_, at)| **at <= next).map(|(index, _)| *index).collect();
            self.running.retain(|index, _| !ended.contains(index));
            let answer = |index: usize| self.answers[index].1.clone().map(|status| Answer { status, ..Answer::default() });
            ended.into_iter().map(|index| (index, answer(index))).collect()
        }
        fn cancel(&mut self, index: usize) -> Option<Answer> {
            assert!(self.running.remove(&index).is_some());
            self.heads.get(&index).map(|status| Answer { status: *status, ..Answer::default() })
        }
    }

    #[derive(Default)]
    struct Around {
        reports: RefCell<BTreeMap<usize, Outcome>>,
    }

    impl Surroundings for Around {
        fn now(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH
        }
        fn secret(&self, _name: &str) -> Option<String> {
            None
        }
        fn report(&self, index: usize, outcome: &Outcome) {
            assert!(self.reports.borrow_mut().insert(index, outcome.clone()).is_none(), "{index} reported twice");
        }
        fn skipped_header(&self, _name: &str, _reason: &str) {}
    }

    fn settings(extra: &str) -> Settings {
        Settings::parse(&format!(r#"{{"url":"https://h/"{extra}}}"#)).unwrap()
    }

    fn keyed(keys: &[Option<&str>]) -> Batch {
        let messages: Vec<NewMessage<'_>> =
            keys.iter().map(|key| NewMessage { id: "1", topic: "t", key: *key, payload: Some(b"x"), ..NewMessage::default() }).collect();
        batch_of(&messages)
    }

    fn word(outcome: &Outcome) -> &'static str {
        match outcome {
            Outcome::Delivered => "delivered",
            Outcome::Retry(failure) if failure.code == FailureCode::Timeout => "timeout",
            Outcome::Retry(_) => "retry",
            Outcome::Reject(_) => "reject",
            Outcome::Held => "held",
        }
    }

    fn run(extra: &str, keys: &[Option<&str>], wire: &mut Wire, deadline: Duration) -> Vec<&'static str> {
        let around = Around::default();
        let outcomes = publish(&settings(extra), &keyed(keys), deadline, &around, wire);
        for (index, reported) in around.reports.take() {
            assert_eq!(outcomes[index], reported);
        }
        outcomes.iter().map(word).collect()
    }

    #[test]
    fn times() {
        let times = |deadline: u64, timeout: Option<u64>| {
            let times = Times::new(Duration::from_millis(deadline), timeout.map(Duration::from_millis));
            [times.end, times.timeout, times.last_start].map(|time| time.as_millis())
        };
        assert_eq!(times(10_000, None), [9750, 4875, 4875]);
        assert_eq!(times(10_000, Some(1000)), [9750, 1000, 8750]);
        assert_eq!(times(10_000, Some(60_000)), [9750, 9750, 4875]);
        assert_eq!(times(100, None), [90, 45, 45]);
        assert_eq!(times(0, None), [0, 0, 0]);
    }

    #[test]
    fn keys_are_sequences_and_the_rest_runs_at_once() {
        let mut wire = Wire::new(vec![(SECOND, Ok(200)); 5]);
        let outcomes = run("", &[Some("a"), None, Some("a"), None, Some("b")], &mut wire, 10 * SECOND);
        assert_eq!(outcomes, ["delivered"; 5]);
        assert_eq!(wire.started, [(0, Duration::ZERO), (1, Duration::ZERO), (3, Duration::ZERO), (4, Duration::ZERO), (2, SECOND)]);
    }

    #[test]
    fn failures_hold_their_key_only() {
        let mut wire = Wire::new([503, 200, 200, 400, 200].map(|status| (SECOND, Ok(status))).to_vec());
        let outcomes = run("", &[Some("a"), Some("a"), None, Some("b"), Some("b")], &mut wire, 10 * SECOND);
        assert_eq!(outcomes, ["retry", "held", "delivered", "reject", "held"]);
    }

    #[test]
    fn concurrency_is_a_limit() {
        let mut wire = Wire::new(vec![(SECOND, Ok(200)); 6]);
        assert_eq!(run(r#","concurrency":2"#, &[None; 6], &mut wire, 60 * SECOND), ["delivered"; 6]);
        assert_eq!(wire.most, 2);
    }

    #[test]
    fn nothing_starts_that_could_not_finish() {
        let mut wire = Wire::new(vec![(3 * SECOND, Ok(200)); 4]);
        // Starts at 0, 3 and 6 seconds; at 9 there is less than `timeout` left of the call.
        let outcomes = run(r#","concurrency":1,"timeout":"3500ms""#, &[None; 4], &mut wire, Duration::from_millis(10_250));
        assert_eq!(outcomes, ["delivered", "delivered", "delivered", "held"]);
        assert_eq!(wire.elapsed(), 9 * SECOND);
    }

    #[test]
    fn slow_requests_are_given_up() {
        let mut wire = Wire::new(vec![(60 * SECOND, Ok(200)), (SECOND, Ok(200)), (SECOND, Ok(200))]);
        let outcomes = run(r#","timeout":"2s""#, &[Some("a"), None, Some("a")], &mut wire, 20 * SECOND);
        assert_eq!(outcomes, ["timeout", "delivered", "held"]);
        assert_eq!(wire.elapsed(), 2 * SECOND);
        let mut wire = Wire::new(vec![(60 * SECOND, Ok(200))]);
        assert_eq!(run(r#","timeout":"60s""#, &[None], &mut wire, 20 * SECOND), ["timeout"]);
        assert_eq!(wire.elapsed(), Duration::from_millis(19_750));
    }

    #[test]
    fn an_answer_counts_although_its_body_never_ends() {
        let mut wire = Wire::new(vec![(60 * SECOND, Ok(400))]);
        wire.heads = BTreeMap::from([(0, 400)]);
        assert_eq!(run(r#","timeout":"2s""#, &[None], &mut wire, 20 * SECOND), ["reject"]);
    }

    #[test]
    fn without_its_secret_nothing_is_sent_and_nothing_is_lost() {
        let mut wire = Wire::new(vec![(SECOND, Ok(200)); 2]);
        let extra = r#","signature":{"scheme":"standard-webhooks","secret":"s"}"#;
        assert_eq!(run(extra, &[Some("a"), Some("a")], &mut wire, SECOND), ["retry", "held"]);
        assert!(wire.started.is_empty());
    }

    /// Where each request went, by message.
    fn run_to(json: &str, batch: &Batch, wire: &mut Wire) -> (Vec<&'static str>, Vec<String>) {
        let settings = Settings::parse(json).unwrap();
        let outcomes = publish(&settings, batch, 10 * SECOND, &Around::default(), wire);
        (outcomes.iter().map(word).collect(), wire.targets.values().cloned().collect())
    }

    #[test]
    fn each_delivery_goes_to_its_own_address_and_one_that_cannot_holds_up_only_its_key() {
        let keys =
            [r#"["acme","crm","1"]"#, r#"["acme","shop","1"]"#, r#"["acme","crm","1"]"#, r#"["acme","bad","1"]"#, r#"["acme","bad","1"]"#];
        let messages = keys.map(|key| NewMessage { id: "ik", topic: "t", key: Some(key), payload: Some(b"x"), ..NewMessage::default() });
        let (crm, shop, bad) = (("crm", "https://crm/a", None, None), ("shop", "http://shop:81/b", None, None), ("bad", "/c", None, None));
        let batch = to_subscribers(&messages, &[crm, shop, crm, bad, bad]);
        let mut wire = Wire::new(vec![(SECOND, Ok(200)); 5]);
        let (outcomes, targets) = run_to(r#"{"url":"https://own/"}"#, &batch, &mut wire);
        assert_eq!(outcomes, ["delivered", "delivered", "delivered", "reject", "held"]);
        assert_eq!(targets, ["https://crm/a", "http://shop:81/b", "https://crm/a"]);
        assert_eq!(wire.started, [(0, Duration::ZERO), (1, Duration::ZERO), (2, SECOND)]);
    }

    #[test]
    fn a_dead_endpoint_leaves_places_for_the_others() {
        let messages = vec![NewMessage { id: "ik", topic: "t", payload: Some(b"x"), ..NewMessage::default() }; 12];
        let to = |index| if index < 8 { ("dead", "https://dead/", None, None) } else { ("well", "https://well/", None, None) };
        let to: Vec<_> = (0..12).map(to).collect();
        let answers = (0..12).map(|index| (if index < 8 { 60 * SECOND } else { SECOND }, Ok(200))).collect();
        let mut wire = Wire::new(answers);
        let (outcomes, _) = run_to(r#"{"concurrency":4}"#, &to_subscribers(&messages, &to), &mut wire);
        assert_eq!(outcomes[8..], ["delivered"; 4]);
        let last = wire.started.iter().filter(|(index, _)| *index >= 8).map(|(_, at)| *at).max();
        assert_eq!(last, Some(SECOND));
    }

    proptest! {
        /// Whatever the wire does: an outcome each, in time, never more at once than allowed, and order per key.
        #[test]
        fn promises_hold(
            keys in prop::collection::vec(prop::option::of(0..3usize), 0..30),
            answers in prop::collection::vec((0..4000u64, prop_oneof![4 => Just(Ok(200u16)), 1 => Just(Ok(503)), 1 => Just(Ok(400)), 1 => Just(Err(Fault::Denied))]), 30),
            concurrency in 1..8usize,
            deadline in 0..10_000u64,
        ) {
            let names: Vec<Option<&str>> = keys.iter().map(|key| key.map(|key| ["a", "b", "c"][key])).collect();
            let mut wire = Wire::new(answers.into_iter().map(|(millis, answer)| (Duration::from_millis(millis), answer)).collect());
            let deadline = Duration::from_millis(deadline);
            let outcomes = run(&format!(r#","concurrency":{concurrency},"timeout":"1500ms""#), &names, &mut wire, deadline);
            prop_assert_eq!(outcomes.len(), keys.len());
            prop_assert!(wire.elapsed() <= deadline && wire.most <= concurrency && wire.running.is_empty());
            for key in 0..3 {
                let of_key: Vec<&str> = keys.iter().zip(&outcomes).filter(|(found, _)| **found == Some(key)).map(|(_, word)| *word).collect();
                let delivered = of_key.iter().take_while(|word| **word == "delivered").count();
                prop_assert!(of_key.iter().skip(delivered + 1).all(|word| *word == "held"), "{:?}", of_key);
            }
        }
    }
}
