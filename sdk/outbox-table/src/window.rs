//! How many rows a claim scans: a small multiple of the batch, grown while claims come back short, and shrunk again.

/// Rows scanned in one statement at most, and the point from which a key walk is cheaper than more scanning.
pub const MAX_ROWS: usize = 8192;
/// With twice the batch, a run of one key that is held back still leaves a full batch (measured: 10x costs 30 %).
const FACTOR: usize = 2;
/// A batch of one must see past a few waiting rows.
const MIN_ROWS: usize = 32;

/// The controller.
#[derive(Debug, Clone)]
pub struct Window {
    doublings: u32,
}

impl Window {
    /// At its smallest.
    #[must_use]
    pub const fn new() -> Self {
        Self { doublings: 0 }
    }

    /// Rows to scan for a claim of `limit` rows.
    #[must_use]
    pub fn rows(&self, limit: usize) -> usize {
        let smallest = limit.saturating_mul(FACTOR).max(MIN_ROWS);
        smallest.saturating_mul(1 << self.doublings).min(MAX_ROWS.max(smallest))
    }

    /// Learns from a claim: `taken` of the `limit` rows asked for, found in the first `scanned` rows, where the table had
    /// `more` rows behind them.
    pub fn observe(&mut self, limit: usize, taken: usize, scanned: usize, more: bool) {
        if taken < limit {
            if more && self.rows(limit) < MAX_ROWS {
                self.doublings += 1;
            }
        } else if scanned.saturating_mul(2) <= self.rows(limit) {
            self.doublings = self.doublings.saturating_sub(1);
        }
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_claims_come_back_short_and_shrinks_when_they_are_full_early() {
        let mut window = Window::new();
        assert_eq!((window.rows(50), window.rows(1)), (100, 32));
        for _ in 0..40 {
            window.observe(50, 10, 100, true);
        }
        assert_eq!(window.rows(50), MAX_ROWS);
        for _ in 0..40 {
            window.observe(50, 50, 60, true);
        }
        // 60 rows sufficed: it stops where 60 is more than half.
        assert_eq!(window.rows(50), 100);
    }

    #[test]
    fn a_short_claim_of_a_short_table_changes_nothing() {
        let mut window = Window::new();
        window.observe(50, 10, 10, false);
        assert_eq!(window.rows(50), 100);
    }

    #[test]
    fn a_batch_beyond_the_bound_is_still_scanned_for() {
        assert_eq!(Window::new().rows(10_000), 20_000);
    }
}
