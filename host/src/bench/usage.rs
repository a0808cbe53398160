//! What this process uses, as Linux counts it in /proc; elsewhere nothing is known, and all is 0.

use std::fs;

/// Ticks of /proc/self/stat a second: USER_HZ, which is 100 on every architecture that Linux shows to programs (proc(5), time(7)).
const TICKS: f64 = 100.0;

/// Processor time of all threads so far, in seconds: in the program, and in the kernel for it.
pub(super) fn cpu() -> (f64, f64) {
    fs::read_to_string("/proc/self/stat").ok().and_then(|stat| times(&stat)).unwrap_or_default()
}

/// Fields 14 and 15 of proc_pid_stat(5). The second field is a name in parentheses that may hold anything.
fn times(stat: &str) -> Option<(f64, f64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / TICKS);
    Some((seconds()?, seconds()?))
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
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 3 0 1 1 1";
        assert_eq!(times(stat), Some((2.5, 0.5)));
        assert_eq!(times("7 (a) S 1"), None);
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
