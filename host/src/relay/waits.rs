//! How often messages were put off without using up an attempt, so that their delays grow all the same.

use std::collections::HashMap;

/// Messages that are remembered; beyond that, all delays begin anew.
const REMEMBERED: usize = 10_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waits(HashMap<Box<str>, u32>);

impl Waits {
    /// Puts a message off once more: how often that makes.
    pub(super) fn again(&mut self, id: &str) -> u32 {
        if let Some(times) = self.0.get_mut(id) {
            *times = times.saturating_add(1);
            return *times;
        }
        if self.0.len() >= REMEMBERED {
            self.0.clear();
        }
        self.0.insert(id.into(), 1);
        1
    }

    /// It need not wait any more.
    pub(super) fn forget(&mut self, id: &str) {
        if !self.0.is_empty() {
            self.0.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_by_itself_and_memory_is_bounded() {
        let mut waits = Waits::default();
        assert_eq!([waits.again("a"), waits.again("a"), waits.again("b")], [1, 2, 1]);
        waits.forget("a");
        assert_eq!([waits.again("a"), waits.again("b")], [1, 2]);
        for number in 0..2 * REMEMBERED {
            waits.again(&number.to_string());
        }
        assert!(waits.0.len() <= REMEMBERED);
    }
}
