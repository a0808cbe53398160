//! What a bench measured, as programs read it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Everything of one `outhaul bench`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Where it ran.
    pub machine: Machine,
    /// Versions by name: outhaul, wasmtime, and the database.
    pub versions: BTreeMap<String, String>,
    /// The commit that outhaul was built from, if the build recorded it.
    pub commit: Option<String>,
    /// When it began (RFC 3339, UTC).
    pub started_at: String,
    /// The runs, in the order in which they were made.
    pub runs: Vec<Run>,
    /// With `--compare`: B against A.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// The machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Operating system and kernel.
    pub system: String,
}

/// What was run: what was asked for, and what the configuration says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The file of the configuration, as its path was given.
    #[serde(default)]
    pub config_file: String,
    /// The relay.
    pub relay: String,
    /// Its storage: name and plugin.
    pub storage: String,
    /// What it is handed, without what can be a credential; `null` where it was not recorded.
    #[serde(default)]
    pub storage_config: Value,
    /// Its database: name, kind, and how it is used.
    #[serde(default)]
    pub database: String,
    /// Its publisher: name and plugin, or `null`.
    pub publisher: String,
    /// What it is handed, as of the storage; `null` where there is none.
    #[serde(default)]
    pub publisher_config: Value,
    /// Adapters as plain Rust instead of components.
    pub native: bool,
    /// The topic of the rows.
    #[serde(default)]
    pub topic: String,
    /// How many rows.
    pub rows: u64,
    /// Bytes of each payload.
    pub payload_bytes: usize,
    /// How many keys; 0: rows without a key.
    pub keys: u64,
    /// Rows a second where the load is steady, in place of a backlog.
    pub rate: Option<u32>,
    /// Rows a claim.
    pub batch: u32,
    /// Rows of each host that are claimed and not settled.
    #[serde(default)]
    pub in_flight: usize,
    /// Their bytes.
    #[serde(default)]
    pub in_flight_bytes: usize,
    /// How long outcomes are gathered before they are written, in milliseconds.
    #[serde(default)]
    pub settle_delay_ms: u64,
    /// First wait of an idle relay between claims, in milliseconds.
    #[serde(default)]
    pub poll_min_ms: u64,
    /// Longest one.
    #[serde(default)]
    pub poll_max_ms: u64,
    /// How often a wake source is looked at, where looking is polling.
    #[serde(default)]
    pub wake_check_ms: u64,
    /// First delay of a message that failed, in milliseconds.
    #[serde(default)]
    pub backoff_base_ms: u64,
    /// Its growth with each attempt.
    #[serde(default)]
    pub backoff_factor: f64,
    /// Longest one.
    #[serde(default)]
    pub backoff_max_ms: u64,
    /// Most messages of a publish call.
    #[serde(default)]
    pub publish_batch: usize,
    /// Their bytes.
    #[serde(default)]
    pub publish_batch_bytes: usize,
    /// Publish calls at once, of each host.
    pub lanes: u32,
    /// Engines in this process.
    pub hosts: u32,
    /// Delay of the destination in milliseconds.
    pub destination_delay_ms: Option<u64>,
    /// Percentage of requests that the destination fails.
    pub destination_failing_percent: Option<u8>,
    /// Whether delivered rows are deleted after each run.
    #[serde(default)]
    pub purge: bool,
}

impl Settings {
    /// The publisher of `--publisher null`.
    pub const NOWHERE: &str = "null";

    /// Whether it is that one: plain Rust, whatever the storage is.
    #[must_use]
    pub fn is_to_nowhere(&self) -> bool {
        self.publisher == Self::NOWHERE
    }
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// `A`, or `B` of a comparison.
    pub side: char,
    /// Settings.
    pub settings: Settings,
    /// Messages delivered.
    pub delivered: u64,
    /// Publish attempts that ended in a retry.
    pub retried: u64,
    /// Messages that ended dead.
    pub dead: u64,
    /// Messages that are done and in neither of these figures, because the database's answer to their settle was lost.
    #[serde(default)]
    pub unaccounted: u64,
    /// From the first claim to the last settle.
    pub seconds: f64,
    /// Delivered messages a second.
    pub per_second: f64,
    /// From commit to delivery; only where the load is steady.
    pub latency: Option<Latency>,
    /// From when a row was to be committed to its delivery; only where the load is steady.
    #[serde(default)]
    pub latency_from_due: Option<Latency>,
    /// Rows that were committed a second; only where the load is steady.
    #[serde(default)]
    pub achieved_rate: Option<f64>,
    /// Processor time of this process.
    pub cpu: Cpu,
    /// Memory of this process.
    pub memory: Memory,
    /// The calls of the storage and the publisher by name: `claim`, `claim_empty`, `settle`, `settle_and_claim`,
    /// `settle_and_claim_empty`, `extend`, `publish`; the empty ones have brought no row. Absent: not called.
    pub calls: BTreeMap<String, Calls>,
    /// Once a second.
    pub series: Vec<Second>,
}

/// Less than this share of the rate that was asked for is another load.
const RATE_SHARE: f64 = 0.95;

impl Run {
    /// The rate that was asked for and the one that there was, where the load was not what was asked for.
    #[must_use]
    pub fn missed_rate(&self) -> Option<(u32, f64)> {
        let (asked, achieved) = self.settings.rate.zip(self.achieved_rate)?;
        (achieved < f64::from(asked) * RATE_SHARE).then_some((asked, achieved))
    }
}

/// Distribution of times in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Latency {
    /// Measured messages.
    pub count: u64,
    /// Median.
    pub p50_ms: f64,
    /// 95 %.
    pub p95_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// Longest.
    pub max_ms: f64,
    /// The histogram: up to this time (ms), so many messages; only non-empty buckets, in order.
    pub buckets: Vec<(f64, u64)>,
}

/// Processor time in seconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Cpu {
    /// In the program.
    pub user_seconds: f64,
    /// In the kernel.
    pub system_seconds: f64,
    /// Both, for each delivered message, in microseconds; none where nothing was delivered.
    pub us_per_message: Option<f64>,
}

/// Resident memory in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Memory {
    /// When the run began.
    pub start_bytes: u64,
    /// Half way.
    pub middle_bytes: u64,
    /// At the end.
    pub end_bytes: u64,
    /// The most of the process so far, not of the run.
    pub peak_bytes: u64,
}

/// Calls of one kind; times in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Calls {
    /// How many.
    pub count: u64,
    /// Rows or messages in all of them.
    pub items: u64,
    /// Median.
    pub p50_us: u64,
    /// 99 %.
    pub p99_us: u64,
    /// Longest.
    pub max_us: u64,
}

/// One second of a run.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Second {
    /// End of the second, from the start of the run.
    pub at_seconds: f64,
    /// Delivered in it.
    pub delivered: u64,
    /// Written and not delivered, at its end.
    pub backlog: u64,
    /// Median time of the claims that ended in it (fused ones too) and brought rows, in microseconds; none where there was no such claim.
    pub claim_p50_us: Option<u64>,
    /// 99 % of the latencies of the messages delivered in it, in milliseconds; only where the load is steady.
    pub latency_p99_ms: Option<f64>,
    /// Resident memory at its end.
    pub resident_bytes: u64,
}

/// B against A: ratios of pairs of runs, in turn.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Comparison {
    /// Ratios B / A by what is compared: `per_second`, `latency_p50`, `latency_p99`, `latency_from_due_p99`, `cpu_per_message`,
    /// `claim_p50`. Absent: not in both, or not to be compared.
    pub ratios: BTreeMap<String, Ratio>,
}

/// A ratio over pairs of runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ratio {
    /// Of each pair, in order.
    pub pairs: Vec<f64>,
    /// Median of them.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// Bytes as mebibytes.
#[must_use]
pub fn mib(bytes: u64) -> f64 {
    // Exact up to 2^52.
    bytes as f64 / f64::from(1 << 20)
}
