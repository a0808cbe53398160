//! Holds what was committed against what was received.
//!
//! The promises, exactly:
//!
//! - **Nothing lost**: every committed event was accepted at least once.
//! - **Nothing invented**: nothing was accepted that was not committed (a rolled back event must never arrive).
//! - **Order per key**: the *first* acceptance of an event comes after the first acceptance of every earlier event of its key.
//! - **Duplicates** are allowed where a relay crashed or lost a lease, and only there: each is counted by event, so that it can be
//!   held against what was in flight. A duplicate may well arrive after later events of its key (5, 6, *crash*, 5, 6): receivers
//!   deduplicate by id. Such a step back is counted as a replay; it is no violation, because the first acceptances are in order.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// An event: its key and its number within the key, from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event {
    /// The ordering key.
    pub key: String,
    /// The place in the order of its key.
    pub number: u64,
}

impl Event {
    /// The payload that carries it.
    #[must_use]
    pub fn payload(&self) -> String {
        serde_json::json!({ "key": self.key, "number": self.number }).to_string()
    }

    /// Reads it back.
    ///
    /// # Errors
    /// If the payload was not made by [`Self::payload`].
    pub fn from_payload(payload: &[u8]) -> Result<Self> {
        let value: serde_json::Value = serde_json::from_slice(payload).context("an event's payload is not JSON")?;
        let key = value["key"].as_str().context("an event without a key")?.to_owned();
        Ok(Self { key, number: value["number"].as_u64().context("an event without a number")? })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}#{}", self.key, self.number)
    }
}

/// What the comparison found.
#[derive(Debug, Default)]
pub struct Report {
    /// Committed events.
    pub committed: usize,
    /// Acceptances, repeats included.
    pub accepted: usize,
    /// Committed and never accepted.
    pub lost: Vec<Event>,
    /// Accepted and never committed.
    pub invented: Vec<Event>,
    /// Events whose first acceptance came before that of an earlier one of their key.
    pub overtook: Vec<Event>,
    /// Acceptances beyond the first, by event.
    pub duplicates: BTreeMap<Event, usize>,
    /// Duplicates that arrived after a later event of their key.
    pub replays: usize,
}

impl Report {
    /// Compares. `accepted` is in the order of arrival.
    #[must_use]
    pub fn new(committed: &BTreeSet<Event>, accepted: &[Event]) -> Self {
        let mut report = Self { committed: committed.len(), accepted: accepted.len(), ..Self::default() };
        let mut seen: BTreeSet<&Event> = BTreeSet::new();
        // The highest number whose first acceptance was seen, by key.
        let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
        for event in accepted {
            let newest = newest.entry(&event.key).or_default();
            if !seen.insert(event) {
                *report.duplicates.entry(event.clone()).or_default() += 1;
                report.replays += usize::from(event.number < *newest);
                continue;
            }
            if !committed.contains(event) {
                report.invented.push(event.clone());
            } else if event.number < *newest {
                report.overtook.push(event.clone());
            }
            *newest = (*newest).max(event.number);
        }
        report.lost = committed.iter().filter(|event| !seen.contains(event)).cloned().collect();
        report
    }

    /// How many acceptances were repeats.
    #[must_use]
    pub fn duplicate_count(&self) -> usize {
        self.duplicates.values().sum()
    }

    /// Checks the promises. `allowed` says how many duplicates each event may have; an event that is not in it may have none.
    ///
    /// # Errors
    /// Names what was broken, with the first examples.
    pub fn check(&self, allowed: &BTreeMap<Event, usize>) -> Result<()> {
        let too_many: Vec<String> = self
            .duplicates
            .iter()
            .filter(|(event, count)| **count > allowed.get(*event).copied().unwrap_or_default())
            .map(|(event, count)| format!("{event} {count} times more, allowed {}", allowed.get(event).copied().unwrap_or_default()))
            .collect();
        let problems: Vec<String> = [
            problem("lost", &self.lost),
            problem("never committed, but received", &self.invented),
            problem("out of order", &self.overtook),
            problem("duplicates that no crash explains", &too_many),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !problems.is_empty() {
            bail!("{}", problems.join("; "));
        }
        Ok(())
    }
}

fn problem<T: fmt::Display>(what: &str, cases: &[T]) -> Option<String> {
    let first: Vec<String> = cases.iter().take(5).map(ToString::to_string).collect();
    (!cases.is_empty()).then(|| format!("{what}: {} ({}{})", cases.len(), first.join(", "), if cases.len() > 5 { ", ..." } else { "" }))
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} committed, {} accepted, {} lost, {} out of order, {} duplicates ({} of them after a later event of their key)",
            self.committed,
            self.accepted,
            self.lost.len(),
            self.overtook.len(),
            self.duplicate_count(),
            self.replays
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(numbers: &[u64]) -> Vec<Event> {
        numbers.iter().map(|&number| Event { key: "k".into(), number }).collect()
    }

    fn report(committed: &[u64], accepted: &[u64]) -> Report {
        Report::new(&events(committed).into_iter().collect(), &events(accepted))
    }

    #[test]
    fn a_clean_run_passes() {
        report(&[1, 2, 3], &[1, 2, 3]).check(&BTreeMap::new()).unwrap();
    }

    #[test]
    fn each_broken_promise_is_named() {
        for (accepted, problem) in [
            (&[1, 2][..], "lost: 1 (k#3)"),
            (&[1, 2, 3, 4], "never committed, but received: 1 (k#4)"),
            (&[1, 3, 2], "out of order: 1 (k#2)"),
            (&[1, 2, 2, 3], "duplicates that no crash explains: 1 (k#2 1 times more, allowed 0)"),
        ] {
            assert_eq!(report(&[1, 2, 3], accepted).check(&BTreeMap::new()).unwrap_err().to_string(), problem);
        }
    }

    #[test]
    fn a_repeated_run_after_a_crash_is_no_violation_within_the_allowance() {
        let report = report(&[1, 2, 3], &[1, 2, 1, 2, 3]);
        assert_eq!((report.duplicate_count(), report.replays, report.overtook.len()), (2, 1, 0));
        let allowed = events(&[1, 2]).into_iter().map(|event| (event, 1)).collect();
        report.check(&allowed).unwrap();
    }

    #[test]
    fn keys_are_independent() {
        let other = Event { key: "other".into(), number: 1 };
        let mut accepted = events(&[1, 2]);
        accepted.push(other.clone());
        let committed = accepted.iter().cloned().collect();
        Report::new(&committed, &accepted).check(&BTreeMap::new()).unwrap();
        assert_eq!(Event::from_payload(other.payload().as_bytes()).unwrap(), other);
    }
}
