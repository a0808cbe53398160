//! Which subscribers take long to answer: what goes to them is in calls of its own ([`crate::relay::Parties`]).

use crate::domain::Message;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Who takes longer is slow.
const SLOW: Duration = Duration::from_secs(1);

/// Slow subscribers that are remembered. There are hardly so many; those beyond are taken for quick ones.
const REMEMBERED: usize = 10_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Paces(Mutex<HashSet<String>>);

impl Paces {
    fn slow(&self) -> MutexGuard<'_, HashSet<String>> {
        // Every change is one step: a panic elsewhere cannot have left one half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer took so long, or has not come for so long. The last one counts.
    pub fn note(&self, tenant: &str, subscriber: &str, took: Duration) {
        let (mut slow, mark) = (self.slow(), mark(tenant, subscriber));
        if took <= SLOW {
            slow.remove(&mark);
        } else if slow.len() < REMEMBERED {
            slow.insert(mark);
        }
    }

    /// Whether a subscriber is slow, by his mark.
    #[must_use]
    pub fn is_slow(&self, mark: &str) -> bool {
        self.slow().contains(mark)
    }

    /// The mark of the subscriber whom a delivery goes to.
    #[must_use]
    pub fn mark(delivery: Message<'_>) -> String {
        let column = |wanted: &str| {
            let value = delivery.headers().find(|(name, _)| *name == wanted).map(|(_, value)| value);
            value.and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default()
        };
        mark(column("account_id"), column("subscriber_id"))
    }
}

/// One text for both: the length keeps them apart.
fn mark(tenant: &str, subscriber: &str) -> String {
    format!("{}:{tenant}{subscriber}", tenant.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_is_who_took_long_the_last_time() {
        let paces = Paces::default();
        let is_slow = |tenant, subscriber| paces.is_slow(&mark(tenant, subscriber));
        paces.note("t", "a", SLOW);
        paces.note("t", "b", SLOW + Duration::from_millis(1));
        assert_eq!((is_slow("t", "a"), is_slow("t", "b"), is_slow("", "tb"), is_slow("t", "unknown")), (false, true, false, false));
        paces.note("t", "b", Duration::from_millis(5));
        assert!(!is_slow("t", "b"));
        for number in 0..2 * REMEMBERED {
            paces.note("", &number.to_string(), 2 * SLOW);
        }
        assert_eq!(paces.slow().len(), REMEMBERED);
    }
}
