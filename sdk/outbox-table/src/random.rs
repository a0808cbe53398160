//! Randomness for the order in which keys are taken: seeded once from the system, then arithmetic. Not for secrets.

use std::hash::{BuildHasher, Hasher};

/// `SplitMix64` (Steele, Lea and Flood, 2014): eight bytes of state, and good enough to shuffle with.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From the system's randomness (in a component: `wasi:random`, which seeds the standard library's hash maps).
    #[must_use]
    pub fn from_system() -> Self {
        Self(std::hash::RandomState::new().build_hasher().finish())
    }

    /// From a seed: the same numbers each time.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number under `bound`; 0 if that is 0. The bias of the remainder is far below what a shuffle of keys could show.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX);
        self.next_u64().checked_rem(bound).and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
    }

    /// Fisher-Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last + 1);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_every_item_and_reaches_every_order() {
        let mut random = Random::seeded(7);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut items = [1, 2, 3];
            random.shuffle(&mut items);
            seen.insert(items);
        }
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn two_seeds_from_the_system_differ() {
        assert_ne!(Random::from_system().next_u64(), Random::from_system().next_u64());
    }
}
