//! What was measured, and what follows from it: medians, spreads, ratios.

use super::plan::{Contender, Setting};
use super::program::Measured;
use std::collections::BTreeMap;

/// One run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Under which setting.
    pub setting: Setting,
    /// Whose.
    pub contender: Contender,
    /// In which round, from 0.
    pub round: usize,
    /// What it found.
    pub measured: Measured,
}

impl Run {
    /// Messages a second: it counts only because all of them were sent.
    #[must_use]
    pub fn rate(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let sent = self.measured.sent as f64;
        sent / self.measured.seconds
    }
}

/// A run that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Under which setting.
    pub setting: Setting,
    /// Whose.
    pub contender: Contender,
    /// In which round, from 0.
    pub round: usize,
    /// Why.
    pub reason: String,
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct Results {
    /// Rounds that were begun.
    pub rounds: usize,
    /// In the order in which they were made.
    pub runs: Vec<Run>,
    /// The same.
    pub failures: Vec<Failure>,
}

/// Of several values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The middle; between the two in the middle where they are even.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// How many.
    pub count: usize,
}

impl Spread {
    /// None of no values.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let count = values.len();
        let median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
        Some(Self { median, min, max, count })
    }
}

impl Results {
    /// Messages a second of a contender, by round.
    fn rates(&self, setting: Setting, contender: Contender) -> BTreeMap<usize, f64> {
        let own = self.runs.iter().filter(|run| run.setting == setting && run.contender == contender);
        own.map(|run| (run.round, run.rate())).collect()
    }

    /// Messages a second of a contender.
    #[must_use]
    pub fn speed(&self, setting: Setting, contender: Contender) -> Option<Spread> {
        Spread::of(self.rates(setting, contender).into_values().collect())
    }

    /// How many times as fast outhaul is: in each round, its run against the contender's.
    #[must_use]
    pub fn lead(&self, setting: Setting, contender: Contender) -> Option<Spread> {
        let ours = self.rates(setting, Contender::Outhaul);
        let theirs = self.rates(setting, contender);
        Spread::of(theirs.into_iter().filter_map(|(round, rate)| Some(ours.get(&round)? / rate)).collect())
    }

    /// Whether a contender has failed there before.
    #[must_use]
    pub fn has_failed(&self, setting: Setting, contender: Contender) -> bool {
        self.failures.iter().any(|failure| failure.setting == setting && failure.contender == contender)
    }

    /// What was run, by name: of everybody.
    #[must_use]
    pub fn versions(&self) -> BTreeMap<&str, &str> {
        let all = self.runs.iter().flat_map(|run| &run.measured.versions);
        all.map(|(name, version)| (name.as_str(), version.as_str())).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::peers::plan::Way;

    pub(in crate::peers) const SETTING: Setting = Setting { way: Way::Postgres, batch: 50, workers: 1 };

    /// Three rounds; txoutbox fails in the last one.
    pub(in crate::peers) fn sample() -> Results {
        let run = |contender, round, seconds, version: &str| Run {
            setting: SETTING,
            contender,
            round,
            measured: Measured {
                sent: 1000,
                settled: 1000,
                seconds,
                versions: BTreeMap::from([(version.to_owned(), "1.0".to_owned())]),
                report: None,
            },
        };
        let reason = "it did not end in 180 s: gone | away".to_owned();
        Results {
            rounds: 3,
            runs: vec![
                run(Contender::Outhaul, 0, 0.1, "outhaul"),
                run(Contender::Txoutbox, 0, 0.5, "txoutbox"),
                run(Contender::Txoutbox, 1, 0.2, "txoutbox"),
                run(Contender::Outhaul, 1, 0.2, "outhaul"),
                run(Contender::Outhaul, 2, 0.125, "outhaul"),
            ],
            failures: vec![Failure { setting: SETTING, contender: Contender::Txoutbox, round: 2, reason }],
        }
    }

    #[test]
    fn the_median_of_even_many_is_between_two() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 4.0, count: 3 }));
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0, count: 4 }));
    }

    #[test]
    fn rounds_are_compared_one_by_one() {
        let results = sample();
        let speed = Spread { median: 8000.0, min: 5000.0, max: 10_000.0, count: 3 };
        assert_eq!(results.speed(SETTING, Contender::Outhaul), Some(speed));
        assert_eq!(results.speed(SETTING, Contender::Debezium), None);
        // 10,000 to 2,000 and 5,000 to 5,000; nothing of the round in which it failed.
        assert_eq!(results.lead(SETTING, Contender::Txoutbox), Some(Spread { median: 3.0, min: 1.0, max: 5.0, count: 2 }));
        assert!(results.has_failed(SETTING, Contender::Txoutbox) && !results.has_failed(SETTING, Contender::Outhaul));
        assert_eq!(results.versions(), BTreeMap::from([("outhaul", "1.0"), ("txoutbox", "1.0")]));
    }
}
