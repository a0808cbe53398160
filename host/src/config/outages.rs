//! Settings that are allowed, and under which an outage of a destination can end messages dead.

use super::model::{Config, Relay};
use super::places::Place;

/// Something that works, and that its operator may not want.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The relay's name.
    pub relay: String,
    /// The key that brings it about; none: not written in the file.
    pub place: Option<Place>,
    /// What can happen.
    pub text: String,
}

/// The relays whose messages may end dead although only their destination was away.
#[must_use]
pub fn warnings(config: &Config) -> Vec<Warning> {
    let warned = config.relays.iter().enumerate().filter_map(|(index, relay)| {
        let keys = ["max_attempts", "breaker.failures", "name"].map(|key| format!("relays[{index}].{key}"));
        Some(Warning { relay: relay.name.clone(), place: config.places.first(keys), text: deadly(relay)? })
    });
    warned.collect()
}

/// The breaker saves a message from an outage only if it opens before the message has had all its attempts.
fn deadly(relay: &Relay) -> Option<String> {
    let (attempts, failures) = (relay.max_attempts, relay.breaker.failures);
    if attempts == 0 {
        return None;
    }
    let because = match failures {
        0 => format!("breaker.failures is 0, so that nothing stops the attempts, and max_attempts is {attempts}"),
        failures if attempts <= failures => format!("max_attempts ({attempts}) is not above breaker.failures ({failures})"),
        _ => return None,
    };
    Some(format!("an outage of the destination can end messages dead: {because}"))
}
