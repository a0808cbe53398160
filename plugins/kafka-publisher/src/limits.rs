//! How large a record batch may be, by topic, as far as brokers have refused some. Only they know (`max.message.bytes`), and each
//! refusal costs a round and the producer id, so it is remembered from call to call. A cache; the brokers are always right.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// After so long larger ones are tried again: the topic may have been given a larger limit.
const MAX_AGE: Duration = Duration::from_secs(5 * 60);

/// Topics that are remembered. The rows say which topics there are: without a bound they could fill the memory.
const MAX_TOPICS: usize = 1000;

/// See the module.
#[derive(Debug, Default)]
pub struct Limits {
    topics: HashMap<String, (usize, Instant)>,
}

impl Limits {
    /// The largest batch that may be tried, in bytes before compression; none: nothing was refused.
    #[must_use]
    pub fn of(&self, topic: &str, now: Instant) -> Option<usize> {
        self.topics.get(topic).filter(|(_, learned)| now.duration_since(*learned) < MAX_AGE).map(|(bytes, _)| *bytes)
    }

    /// Notes that batches of the topic should have so many bytes at most.
    pub fn learn(&mut self, topic: &str, bytes: usize, now: Instant) {
        if self.topics.len() >= MAX_TOPICS && !self.topics.contains_key(topic) {
            self.topics.clear();
        }
        self.topics.insert(topic.to_owned(), (bytes, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_learned_and_forgotten() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        assert_eq!(limits.of("a", now), None);
        limits.learn("a", 5000, now);
        limits.learn("a", 2500, now);
        assert_eq!((limits.of("a", now), limits.of("b", now)), (Some(2500), None));
        assert_eq!(limits.of("a", now + MAX_AGE), None);
        (0..MAX_TOPICS * 2).for_each(|number| limits.learn(&number.to_string(), 1, now));
        assert!(limits.topics.len() <= MAX_TOPICS);
    }
}
