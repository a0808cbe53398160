//! What this process uses. Its memory is read from /proc, where there is one; elsewhere it is not known, and 0.

use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// Processor time of all threads so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Used {
    /// In seconds, to the nanosecond (clock_getres(2)).
    total: f64,
    /// In the program and in the kernel for it, in ticks of a hundredth of a second: how it is shared between them.
    ticks: (f64, f64),
}

impl Used {
    pub(super) fn now() -> Self {
        let clock = clock_gettime(ClockId::ProcessCPUTime);
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // Exact up to 2^52, which is 140 million years.
        Self { total: clock.tv_sec as f64 + clock.tv_nsec as f64 / 1e9, ticks: ticks(&stat).unwrap_or_default() }
    }

    /// Seconds since then, in the program and in the kernel for it.
    pub(super) fn since(&self, before: &Self) -> (f64, f64) {
        let total = self.total - before.total;
        let (user, system) = (self.ticks.0 - before.ticks.0, self.ticks.1 - before.ticks.1);
        let share = if system > 0.0 { system / (user + system) } else { 0.0 };
        (total * (1.0 - share), total * share)
    }
}

/// Fields 14 and 15 of proc_pid_stat(5). The second field is a name in parentheses that may hold anything.
fn ticks(stat: &str) -> Option<(f64, f64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()?, ticks()?))
}

/// Resident memory in bytes: now, and the most that there was.
pub(super) fn memory() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    (bytes(&status, "VmRSS:"), bytes(&status, "VmHWM:"))
}

fn bytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes: Option<u64> = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok());
    kilobytes.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 3 0 1 1 1";
        assert_eq!(ticks(stat), Some((250.0, 50.0)));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn time_is_shared_as_the_ticks_are() {
        let before = Used { total: 1.0, ticks: (80.0, 20.0) };
        let since = |total, ticks| Used { total, ticks }.since(&before);
        assert_eq!(since(1.5, (83.0, 21.0)), (0.375, 0.125));
        assert_eq!(since(1.001_953_125, (80.0, 20.0)), (0.001_953_125, 0.0), "less than a tick");
        let (first, then) = (Used::now(), Used::now());
        assert!(first.total > 0.0 && then.total >= first.total, "{first:?} {then:?}");
    }

    #[test]
    fn memory_is_in_bytes() {
        let status = "Name:\ta\nVmHWM:\t    2048 kB\nVmRSS:\t  1024 kB\n";
        assert_eq!((bytes(status, "VmRSS:"), bytes(status, "VmHWM:"), bytes(status, "VmX:")), (1 << 20, 2 << 20, 0));
        if cfg!(target_os = "linux") {
            let (now, most) = memory();
            assert!(now > 1 << 20 && most >= now, "{now} {most}");
        }
    }
}
