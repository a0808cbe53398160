//! The time of day as guests see it: the host's, or, for whoever wants to know whether an adapter relies on it, another one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wasmtime_wasi::HostWallClock;

/// How far the guests' clock is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Skew {
    /// Not at all.
    #[default]
    None,
    /// It is ahead by so much.
    Ahead(Duration),
    /// It is behind by so much.
    Behind(Duration),
}

impl HostWallClock for Skew {
    fn resolution(&self) -> Duration {
        Duration::from_micros(1)
    }

    fn now(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        match self {
            Self::None => now,
            Self::Ahead(by) => now.saturating_add(*by),
            Self::Behind(by) => now.saturating_sub(*by),
        }
    }
}
