//! Which of the scanned rows a claim takes: strict order per key, keys at random.
//!
//! Rows come in insertion order. A row that is not due blocks its key, so what is left of a key is an unbroken run from its
//! first unsettled row. Keys are then taken whole, in random order, until the batch is full: two workers that scan the same
//! rows seldom want the same keys, and no key is favoured. A row without a key is a run of its own.
//!
//! Behind a row that was tried, none goes with it that was tried less often: such rows were handed back when it failed, and if it fails
//! again they would have been leased for nothing. Rows of one key that were tried as often (a worker died with all of them) go together.

use crate::random::Random;
use std::collections::HashMap;

/// What a claim may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Rows.
    pub rows: usize,
    /// Bytes; the first row taken may be larger.
    pub bytes: u64,
    /// Bytes of the first row, where it is larger than `bytes`.
    pub first_bytes: u64,
    /// A row that was claimed so often already ends dead; 0: never.
    pub max_attempts: u32,
    /// A larger row ends dead.
    pub max_message_bytes: u64,
    /// A row that is not due holds back the later ones of its key.
    pub strict: bool,
}

impl Limits {
    /// Whether a row of `size` bytes goes with `bytes` that were taken.
    fn fits(self, first: bool, bytes: u64, size: u64) -> bool {
        bytes.saturating_add(size) <= self.bytes || (first && size <= self.first_bytes)
    }
}

/// A scanned row.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// None: independent.
    pub key: Option<&'a [u8]>,
    /// Due now and not leased.
    pub due: bool,
    /// Has waited too long: it ends dead once it is due.
    pub too_old: bool,
    /// Claims so far.
    pub attempts: u64,
    /// Bytes, headers and key included.
    pub size: u64,
}

/// Why a row ends dead instead of being claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The lease of its last attempt ran out.
    AttemptsUsedUp,
    /// Over the limit of bytes.
    TooLarge,
    /// It has been tried for too long.
    TooOld,
}

/// What was chosen, as positions in the order in which rows were fed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// To lease, ascending.
    pub taken: Vec<usize>,
    /// To end dead, ascending.
    pub refused: Vec<(usize, Refused)>,
    /// The first row that could have been taken and was not.
    pub first_left: Option<usize>,
}

impl Choice {
    /// What is left of it once the rows to lease are weighed, where their sizes were estimates: too large ones end dead, and the batch ends
    /// before the first row that does not fit any more (`true`: there was one). `sizes` go with `taken`.
    #[must_use]
    pub fn weighed(mut self, limits: Limits, sizes: &[u64]) -> (Self, bool) {
        let (mut bytes, mut cut) = (0_u64, None);
        let mut kept = Vec::with_capacity(self.taken.len());
        for (position, size) in self.taken.iter().zip(sizes) {
            if *size > limits.max_message_bytes {
                self.refused.push((*position, Refused::TooLarge));
            } else if cut.is_none() && limits.fits(kept.is_empty(), bytes, *size) {
                bytes = bytes.saturating_add(*size);
                kept.push(*position);
            } else {
                cut = cut.or(Some(*position));
            }
        }
        self.refused.sort_unstable_by_key(|(position, _)| *position);
        self.first_left = self.first_left.into_iter().chain(cut).min();
        self.taken = kept;
        (self, cut.is_some())
    }
}

/// The rows of one key that can be taken: position and size.
#[derive(Debug, Default)]
struct Run {
    rows: Vec<(usize, u64)>,
    blocked: bool,
    /// Claims so far of its last row; 0: there is none.
    tried: u64,
}

/// Takes scanned rows in insertion order, then chooses.
#[derive(Debug)]
pub struct Chooser {
    limits: Limits,
    runs: Vec<Run>,
    by_key: HashMap<Box<[u8]>, usize>,
    refused: Vec<(usize, Refused)>,
    fed: usize,
    found: usize,
    enough_after: Option<usize>,
}

impl Chooser {
    /// An empty one.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, runs: Vec::new(), by_key: HashMap::new(), refused: Vec::new(), fed: 0, found: 0, enough_after: None }
    }

    /// The next row in insertion order. Of a key, rows must be fed from its first unsettled row on, none left out.
    pub fn feed(&mut self, candidate: Candidate<'_>) {
        let position = self.fed;
        self.fed += 1;
        let run = match candidate.key {
            None => None,
            Some(key) => Some(match self.by_key.get(key) {
                Some(run) => *run,
                None => {
                    self.runs.push(Run::default());
                    self.by_key.insert(key.into(), self.runs.len() - 1);
                    self.runs.len() - 1
                }
            }),
        };
        let run = run.and_then(|index| self.runs.get_mut(index));
        if !candidate.due {
            if let Some(run) = run {
                run.blocked = self.limits.strict;
            }
            return;
        }
        if run.as_ref().is_some_and(|run| run.blocked) {
            return;
        }
        if self.limits.max_attempts != 0 && candidate.attempts >= u64::from(self.limits.max_attempts) {
            self.refused.push((position, Refused::AttemptsUsedUp));
            return;
        }
        if candidate.size > self.limits.max_message_bytes {
            self.refused.push((position, Refused::TooLarge));
            return;
        }
        if candidate.too_old {
            self.refused.push((position, Refused::TooOld));
            return;
        }
        match run {
            Some(run) if self.limits.strict && candidate.attempts < run.tried => {
                run.blocked = true;
                return;
            }
            Some(run) => {
                run.rows.push((position, candidate.size));
                run.tried = candidate.attempts;
            }
            None => self.runs.push(Run { rows: vec![(position, candidate.size)], ..Run::default() }),
        }
        self.found += 1;
        if self.found == self.limits.rows {
            self.enough_after = Some(self.fed);
        }
    }

    /// The next row can never be taken, and holds back no other.
    pub fn skip(&mut self) {
        self.fed += 1;
    }

    /// Rows that could be taken so far, and rows that end dead.
    #[must_use]
    pub fn found(&self) -> usize {
        self.found + self.refused.len()
    }

    /// After how many rows there was a full batch; as many as were fed if there is none yet.
    #[must_use]
    pub fn enough_after(&self) -> usize {
        self.enough_after.unwrap_or(self.fed)
    }

    /// Fills the batch.
    #[must_use]
    pub fn choose(mut self, random: &mut Random) -> Choice {
        let mut taken = Vec::with_capacity(self.found.min(self.limits.rows));
        if self.found > self.limits.rows {
            random.shuffle(&mut self.runs);
        }
        let mut bytes = 0_u64;
        let mut full = false;
        let mut first_left: Option<usize> = None;
        for run in &self.runs {
            for (position, size) in &run.rows {
                full |= taken.len() >= self.limits.rows || !self.limits.fits(taken.is_empty(), bytes, *size);
                if full {
                    first_left = Some(first_left.map_or(*position, |first| first.min(*position)));
                    break;
                }
                bytes = bytes.saturating_add(*size);
                taken.push(*position);
            }
        }
        taken.sort_unstable();
        Choice { taken, refused: self.refused, first_left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits =
        Limits { rows: 10, bytes: u64::MAX, first_bytes: u64::MAX, max_attempts: 0, max_message_bytes: u64::MAX, strict: true };

    fn row(key: &str, due: bool) -> Candidate<'_> {
        Candidate { key: (!key.is_empty()).then_some(key.as_bytes()), due, too_old: false, attempts: 0, size: 1 }
    }

    fn choose(limits: Limits, rows: &[Candidate<'_>], seed: u64) -> Choice {
        let mut chooser = Chooser::new(limits);
        for row in rows {
            chooser.feed(*row);
        }
        chooser.choose(&mut Random::seeded(seed))
    }

    #[test]
    fn a_waiting_row_holds_back_the_later_ones_of_its_key_only() {
        let rows = [row("a", true), row("b", false), row("a", false), row("b", true), row("a", true), row("", false), row("", true)];
        assert_eq!(choose(LIMITS, &rows, 1).taken, [0, 6]);
        assert_eq!(choose(Limits { strict: false, ..LIMITS }, &rows, 1).taken, [0, 3, 4, 6]);
    }

    #[test]
    fn what_was_tried_goes_without_those_behind_it_that_were_tried_less_often() {
        let tried = |key, attempts| Candidate { attempts, ..row(key, true) };
        let rows = [tried("a", 1), tried("a", 0), tried("b", 0), tried("b", 0), tried("a", 1), tried("", 2), tried("", 0)];
        let choice = choose(LIMITS, &rows, 1);
        assert_eq!(choice.taken, [0, 2, 3, 5, 6], "the head of a failed key goes alone, other keys and rows without one as ever");
        assert_eq!(choice.first_left, None, "what waits behind it could not have been taken");
        let rows = [tried("a", 2), tried("a", 2), tried("a", 3), tried("a", 2), tried("a", 3)];
        assert_eq!(choose(LIMITS, &rows, 1).taken, [0, 1, 2], "what a worker held when it died goes together again");
        let rows = [tried("a", 0), tried("a", 4), tried("a", 0)];
        assert_eq!(choose(LIMITS, &rows, 1).taken, [0, 1]);
        let refused = [tried("a", 5), tried("a", 0), tried("a", 0)];
        let choice = choose(Limits { max_attempts: 5, ..LIMITS }, &refused, 1);
        assert_eq!((choice.taken, choice.refused), (vec![1, 2], vec![(0, Refused::AttemptsUsedUp)]), "a dead head lets them go on");
        let rows = [tried("a", 1), tried("a", 0)];
        assert_eq!(choose(Limits { strict: false, ..LIMITS }, &rows, 1).taken, [0, 1]);
    }

    #[test]
    fn rows_are_weighed_once_they_are_chosen() {
        let choice = Choice { taken: vec![0, 2, 3, 5, 6], refused: vec![(4, Refused::AttemptsUsedUp)], first_left: Some(7) };
        let limits = Limits { bytes: 10, max_message_bytes: 12, ..LIMITS };
        let (weighed, cut) = choice.clone().weighed(limits, &[4, 13, 6, 1, 99]);
        assert!(cut, "one byte too many");
        assert_eq!((weighed.taken, weighed.first_left), (vec![0, 3], Some(5)));
        assert_eq!(weighed.refused, [(2, Refused::TooLarge), (4, Refused::AttemptsUsedUp), (6, Refused::TooLarge)]);
        let (weighed, cut) = choice.weighed(limits, &[12, 1, 1, 1, 1]);
        assert_eq!((weighed.taken, weighed.first_left, cut), (vec![0], Some(2), true), "the first row is taken whatever it weighs");
        let (weighed, cut) = Choice { taken: vec![0, 1], refused: vec![], first_left: None }.weighed(limits, &[5, 5]);
        assert_eq!((weighed.taken, weighed.first_left, cut), (vec![0, 1], None, false));
    }

    #[test]
    fn a_refused_row_lets_its_followers_go_on() {
        let rows = [Candidate { attempts: 3, ..row("a", true) }, row("a", true), Candidate { size: 11, ..row("a", true) }, row("a", true)];
        let choice = choose(Limits { max_attempts: 3, max_message_bytes: 10, ..LIMITS }, &rows, 1);
        assert_eq!(choice.taken, [1, 3]);
        assert_eq!(choice.refused, [(0, Refused::AttemptsUsedUp), (2, Refused::TooLarge)]);
    }

    #[test]
    fn the_first_row_may_be_larger_than_the_batch() {
        let rows = [Candidate { size: 100, ..row("a", true) }, row("a", true)];
        assert_eq!(choose(Limits { bytes: 50, ..LIMITS }, &rows, 1).taken, [0]);
        assert_eq!(choose(Limits { bytes: 101, ..LIMITS }, &rows, 1).taken, [0, 1]);
        assert_eq!(choose(Limits { bytes: 100, ..LIMITS }, &rows, 1).taken, [0]);
    }

    #[test]
    fn the_first_row_may_be_bounded_as_well() {
        let rows = [Candidate { size: 100, ..row("a", true) }, row("b", true)];
        let choice = choose(Limits { bytes: 50, first_bytes: 99, ..LIMITS }, &rows, 1);
        assert_eq!((choice.taken, choice.first_left), (vec![], Some(0)));
        assert_eq!(choose(Limits { bytes: 50, first_bytes: 100, ..LIMITS }, &rows, 1).taken, [0]);
    }

    #[test]
    fn a_row_that_is_too_old_ends_once_it_is_due() {
        let old = |due| Candidate { too_old: true, ..row("a", due) };
        let choice = choose(LIMITS, &[old(true), row("a", true)], 1);
        assert_eq!((choice.taken, choice.refused), (vec![1], vec![(0, Refused::TooOld)]));
        let choice = choose(LIMITS, &[old(false), row("a", true)], 1);
        assert_eq!((choice.taken, choice.refused), (vec![], vec![]), "it is leased, or waits");
    }

    #[test]
    fn keys_are_taken_at_random_when_there_are_more_than_fit() {
        let keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
        let rows: Vec<Candidate<'_>> = keys.iter().map(|key| row(key, true)).collect();
        let limits = Limits { rows: 5, ..LIMITS };
        assert_ne!(choose(limits, &rows, 1).taken, choose(limits, &rows, 2).taken);
    }

    proptest! {
        #[test]
        fn of_each_key_an_unbroken_run_from_its_first_row_is_taken(
            rows in prop::collection::vec((0..6_u8, any::<bool>(), 0..5_u64, 0..20_u64), 0..60),
            limit in 1..30_usize, bytes in 1..200_u64, seed in any::<u64>(),
        ) {
            let keys: Vec<[u8; 1]> = rows.iter().map(|row| [row.0]).collect();
            let candidates: Vec<Candidate<'_>> = rows.iter().zip(&keys)
                .map(|((key, due, attempts, size), bytes)| Candidate { key: (*key != 0).then_some(&bytes[..]), due: *due, too_old: false, attempts: *attempts, size: *size })
                .collect();
            let limits = Limits { rows: limit, bytes, first_bytes: u64::MAX, max_attempts: 4, max_message_bytes: 15, strict: true };
            let choice = choose(limits, &candidates, seed);
            prop_assert!(choice.taken.len() <= limit && choice.taken.is_sorted());
            let total: u64 = choice.taken.iter().map(|at| candidates[*at].size).sum();
            prop_assert!(total <= bytes || choice.taken.len() == 1);
            let refused: Vec<usize> = choice.refused.iter().map(|(at, _)| *at).collect();
            for at in &choice.taken {
                prop_assert!(candidates[*at].due && candidates[*at].attempts < 4 && candidates[*at].size <= 15);
                let key = candidates[*at].key;
                let skipped = (0..*at).find(|before| key.is_some() && candidates[*before].key == key
                    && !choice.taken.contains(before) && !refused.contains(before));
                prop_assert_eq!(skipped, None, "row {} overtook", at);
            }
            // Row by row, what goes with what is before it of its key.
            let fits = |at: usize| candidates[at].attempts < 4 && candidates[at].size <= 15;
            let can_be_taken = |at: usize| {
                let key = candidates[at].key;
                let mut tried = 0;
                candidates[at].due && fits(at) && (key.is_none() || (0..at).filter(|before| candidates[*before].key == key).chain([at]).all(|row| {
                    let goes = candidates[row].due && (!fits(row) || candidates[row].attempts >= tried);
                    tried = if fits(row) { candidates[row].attempts } else { tried };
                    goes
                }))
            };
            prop_assert!(choice.taken.iter().all(|at| can_be_taken(*at)));
            prop_assert_eq!(choice.first_left, (0..candidates.len()).find(|at| can_be_taken(*at) && !choice.taken.contains(at)));
            let any = (0..candidates.len()).any(can_be_taken);
            prop_assert_eq!(any, !choice.taken.is_empty());
        }
    }
}
