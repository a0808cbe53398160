//! What is varied: one thing at a time, the rest as in the usual run.

use super::ground::Setup;
use outhaul::bench::plot::scale::Scale;
use std::time::Duration;

/// Rows of the usual run.
const ROWS: u64 = 100_000;

/// Payload bytes of all rows of a run at most: so that the larger ones do not take all day.
const MOST_BYTES: u64 = 512 << 20;

/// Instances of the publisher before a slow destination.
const LANES: u32 = 4;

/// How long the slow destination takes.
const DELAY: Duration = Duration::from_millis(50);

/// One thing, varied.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// Its name on the command line, and of its plot.
    pub(crate) name: &'static str,
    /// A heading.
    pub(crate) title: &'static str,
    /// What is varied.
    pub(crate) varied: &'static str,
    /// What stays the same.
    pub(crate) fixed: String,
    /// Whether it is varied how much waits: the claims of a whole drain are of every backlog from that down to none.
    pub(crate) is_of_backlogs: bool,
    /// How messages a second are drawn: where they differ by orders of magnitude, the small ones are to be seen too.
    pub(crate) rates: Scale,
    /// In order.
    pub(crate) cases: Vec<Case>,
}

/// A value of it.
#[derive(Debug)]
pub(crate) struct Case {
    /// The value, for a person.
    pub(crate) value: String,
    /// Rows.
    pub(crate) rows: u64,
    /// The further flags of `outhaul bench`.
    flags: String,
    pub(crate) setup: Setup,
    /// Messages a second that cannot be exceeded.
    pub(crate) ceiling: Option<f64>,
}

impl Case {
    fn to_nowhere(value: impl Into<String>, rows: u64, flags: String) -> Self {
        let setup = Setup { concurrency: 64, deletes: false };
        Self { value: value.into(), rows, flags: format!("--publisher null {flags}"), setup, ceiling: None }
    }

    /// The arguments of `outhaul bench`, with so many times its rows.
    pub(crate) fn arguments(&self, scale: f64) -> Vec<String> {
        let rows = scaled(self.rows, scale);
        let line = format!("--rows {rows} {}", self.flags);
        line.split_whitespace().map(str::to_owned).collect()
    }
}

/// At least as many as make a run.
fn scaled(rows: u64, scale: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and far below 2^52")]
    let scaled = (rows as f64 * scale) as u64;
    scaled.max(100)
}

/// All of them.
pub(crate) fn all() -> Vec<Sweep> {
    vec![backlog(), hosts(), keys(), payload(), destination()]
}

fn backlog() -> Sweep {
    let cases = [(10_000, "10 k"), (100_000, "100 k"), (1_000_000, "1 M")];
    Sweep {
        name: "backlog",
        title: "Backlog",
        varied: "rows that wait",
        fixed: "null publisher, 256 bytes, 1000 keys, batch 500, one host".to_owned(),
        is_of_backlogs: true,
        rates: Scale::Linear,
        cases: cases.map(|(rows, name)| Case::to_nowhere(name, rows, String::new())).into(),
    }
}

fn hosts() -> Sweep {
    Sweep {
        name: "hosts",
        title: "Hosts",
        varied: "hosts on one table",
        fixed: "null publisher, 100 k rows of 256 bytes, 1000 keys, batch 500; all hosts are in one process".to_owned(),
        is_of_backlogs: false,
        rates: Scale::Linear,
        cases: [1, 2, 4, 8].map(|hosts: u32| Case::to_nowhere(hosts.to_string(), ROWS, format!("--hosts {hosts}"))).into(),
    }
}

fn keys() -> Sweep {
    let cases = [(0, "none"), (1, "1"), (10, "10"), (100, "100"), (1000, "1 k"), (10_000, "10 k"), (100_000, "100 k")];
    Sweep {
        name: "keys",
        title: "Keys",
        varied: "keys",
        fixed: "null publisher, 100 k rows of 256 bytes, batch 500, one host".to_owned(),
        is_of_backlogs: false,
        rates: Scale::Linear,
        cases: cases.map(|(keys, name): (u32, _)| Case::to_nowhere(name, ROWS, format!("--keys {keys}"))).into(),
    }
}

fn payload() -> Sweep {
    let cases = [(0, "0 B"), (256, "256 B"), (4096, "4 KiB"), (65_536, "64 KiB"), (1 << 20, "1 MiB")];
    Sweep {
        name: "payload",
        title: "Payload",
        varied: "payload of a row",
        fixed: "null publisher, 100 k rows or 512 MiB of payload, whichever is less; 1000 keys, batch 500, one host".to_owned(),
        is_of_backlogs: false,
        rates: Scale::Logarithmic,
        cases: cases
            .map(|(bytes, name): (u64, _)| {
                let rows = MOST_BYTES.checked_div(bytes).unwrap_or(ROWS).min(ROWS);
                Case::to_nowhere(name, rows, format!("--payload {bytes}"))
            })
            .into(),
    }
}

fn destination() -> Sweep {
    let cases = [16, 64, 256].map(|at_once: u32| {
        let ceiling = f64::from(at_once) / DELAY.as_secs_f64();
        Case {
            value: at_once.to_string(),
            // Twenty seconds of it at least.
            rows: u64::from(at_once) * 400,
            flags: format!("--keys 0 --lanes {LANES} --destination-delay {}ms", DELAY.as_millis()),
            setup: Setup { concurrency: at_once / LANES, deletes: false },
            ceiling: Some(ceiling),
        }
    });
    Sweep {
        name: "destination",
        title: "A destination that takes 50 ms",
        varied: "requests at once",
        fixed: format!("http-publisher, {LANES} lanes, 256 bytes, no keys, batch 500, one host; the ceiling is concurrency / latency"),
        is_of_backlogs: false,
        rates: Scale::Logarithmic,
        cases: cases.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_those_of_the_command() {
        let sweeps = all();
        let find = |name: &str| sweeps.iter().find(|sweep| sweep.name == name).unwrap();
        let line = |name: &str, case: usize, scale| find(name).cases[case].arguments(scale).join(" ");
        assert_eq!(line("backlog", 2, 1.0), "--rows 1000000 --publisher null");
        assert_eq!(line("hosts", 3, 0.1), "--rows 10000 --publisher null --hosts 8");
        assert_eq!(line("payload", 4, 1.0), "--rows 512 --publisher null --payload 1048576");
        assert_eq!(line("payload", 0, 0.000_001), "--rows 100 --publisher null --payload 0");
        assert_eq!(line("destination", 1, 1.0), "--rows 25600 --keys 0 --lanes 4 --destination-delay 50ms");
        let destination = &find("destination").cases[1];
        assert_eq!((destination.ceiling, destination.setup.concurrency), (Some(1280.0), 16));
    }
}
