//! The worker name under which rows are leased: new with every process start, whatever is configured, so that a restarted
//! process never takes the leases of the one before it for its own.

use std::process;

/// Longest part of the host name that is kept: names go into rows.
const MAX_HOST: usize = 64;

/// `<host name>-<process id>-<8 random hexadecimal digits>`.
#[must_use]
pub fn worker_name() -> String {
    let uname = rustix::system::uname();
    name(&uname.nodename().to_string_lossy(), process::id(), rand::random())
}

fn name(host: &str, process: u32, random: u32) -> String {
    let host: String =
        host.chars().filter(|character| character.is_ascii_alphanumeric() || matches!(character, '-' | '.')).take(MAX_HOST).collect();
    let host = if host.is_empty() { "host" } else { &host };
    format!("{host}-{process}-{random:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_three_parts_whatever_the_host_is_called() {
        assert_eq!(name("web-1.example", 42, 0xab), "web-1.example-42-000000ab");
        assert_eq!(name("\0é'", 1, u32::MAX), "host-1-ffffffff");
        assert!(name(&"x".repeat(1000), 1, 1).len() < 100);
    }

    #[test]
    fn two_starts_have_two_names() {
        assert_ne!(worker_name(), worker_name());
    }
}
