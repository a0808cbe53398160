//! What is counted, for Prometheus. One registry a process; every part of the host gets a clone (clones share the counters).
//!
//! Names follow the Prometheus conventions: base units (seconds, bytes), `_total` for counters (added by the encoder).

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;

/// By relay.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RelayLabels {
    /// Name of the relay.
    pub relay: String,
}

/// By relay and publisher.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PublisherLabels {
    /// Name of the relay.
    pub relay: String,
    /// Name of the publisher.
    pub publisher: String,
}

/// By relay and failure code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailureLabels {
    /// Name of the relay.
    pub relay: String,
    /// Code; free words of adapters count as `other`.
    pub code: String,
}

/// By relay and state of its deliveries.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DeliveryLabels {
    /// Name of the relay.
    pub relay: String,
    /// `pending`, `due`, `leased`, `suppressed` or `quarantined`.
    pub state: &'static str,
}

/// By adapter and call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    /// Name of the storage or publisher in the configuration.
    pub adapter: String,
    /// Exported function.
    pub call: String,
}

/// By adapter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AdapterLabels {
    /// Name of the storage or publisher in the configuration.
    pub adapter: String,
}

/// By what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabels {
    /// `applied`, `refused` or `unchanged`.
    pub result: &'static str,
}

/// From 1 ms to 64 s, doubling.
fn seconds() -> Histogram {
    Histogram::new((0..17).map(|power| 0.001 * f64::from(1u32 << power)))
}

type ByRelay<M> = Family<RelayLabels, M>;

macro_rules! metrics {
    ($( $(#[doc = $help:literal])+ $field:ident : $kind:ty = $make:expr, $unit:expr ; )+) => {
        /// Every metric of the process.
        #[derive(Debug, Clone)]
        pub struct Metrics {
            registry: Arc<Registry>,
            $( $(#[doc = $help])+ pub $field: $kind, )+
        }

        impl Metrics {
            /// A fresh registry with every metric at zero.
            #[must_use]
            pub fn new() -> Self {
                let mut registry = Registry::with_prefix("outhaul");
                $(
                    let $field: $kind = $make;
                    let help = concat!($($help),+).trim();
                    match $unit {
                        Some(unit) => registry.register_with_unit(stringify!($field), help, unit, $field.clone()),
                        None => registry.register(stringify!($field), help, $field.clone()),
                    }
                )+
                Self { registry: Arc::new(registry), $($field,)+ }
            }
        }

        /// Name, type as it is declared, unit and help of each.
        #[cfg(test)]
        const DECLARED: &[(&str, &str, Option<Unit>, &str)] =
            &[$((stringify!($field), stringify!($kind), $unit, concat!($($help),+))),+];
    };
}

metrics! {
    /// Rows claimed
    claimed: ByRelay<Counter> = Family::default(), None;
    /// Messages delivered and settled
    delivered: ByRelay<Counter> = Family::default(), None;
    /// Failed attempts that will be retried, by failure code
    retried: Family<FailureLabels, Counter> = Family::default(), None;
    /// Messages ended dead, by failure code
    dead: Family<FailureLabels, Counter> = Family::default(), None;
    /// Messages handed back untried behind an earlier one of their key
    held: ByRelay<Counter> = Family::default(), None;
    /// Messages handed back untried with their attempt
    released: ByRelay<Counter> = Family::default(), None;
    /// Verdicts refused because the lease had passed to another worker
    late_settles: ByRelay<Counter> = Family::default(), None;
    /// Leases renewed
    lease_renewals: ByRelay<Counter> = Family::default(), None;
    /// Leases lost before the message was published
    leases_lost: ByRelay<Counter> = Family::default(), None;
    /// Storage calls that failed and are tried again
    storage_failures: ByRelay<Counter> = Family::default(), None;
    /// Messages claimed and not settled
    in_flight: ByRelay<Gauge> = Family::default(), None;
    /// Bytes of the messages claimed and not settled
    in_flight_size: ByRelay<Gauge> = Family::default(), Some(Unit::Bytes);
    /// Whether the circuit breaker of a publisher is open (1), half-open (2) or closed (0)
    breaker_state: Family<PublisherLabels, Gauge> = Family::default(), None;
    /// Duration of claim calls
    claim_duration: Family<RelayLabels, Histogram> = Family::new_with_constructor(seconds as fn() -> Histogram), Some(Unit::Seconds);
    /// Duration of settle calls, and of fused settle and claim calls
    settle_duration: Family<RelayLabels, Histogram> = Family::new_with_constructor(seconds as fn() -> Histogram), Some(Unit::Seconds);
    /// Duration of publish calls
    publish_duration: Family<PublisherLabels, Histogram> = Family::new_with_constructor(seconds as fn() -> Histogram), Some(Unit::Seconds);
    /// Rows neither delivered nor dead
    backlog: ByRelay<Gauge> = Family::default(), None;
    /// Rows that are due and not leased
    backlog_due: ByRelay<Gauge> = Family::default(), None;
    /// Rows that ended dead and are still in the table
    dead_rows: ByRelay<Gauge> = Family::default(), None;
    /// Age of the oldest row neither delivered nor dead
    oldest_pending: ByRelay<Gauge<f64, std::sync::atomic::AtomicU64>> = Family::default(), Some(Unit::Seconds);
    /// Deliveries to subscribers by state (due and leased ones are pending ones as well)
    deliveries: Family<DeliveryLabels, Gauge> = Family::default(), None;
    /// Whether notifications of the database come through (1), or the table is only polled for now (0)
    listening: ByRelay<Gauge> = Family::default(), None;
    /// Calls into adapters
    adapter_calls: Family<CallLabels, Counter> = Family::default(), None;
    /// Calls into adapters that trapped, timed out or returned nonsense
    adapter_faults: Family<CallLabels, Counter> = Family::default(), None;
    /// Instances of adapters that were thrown away after a fault and replaced
    adapter_restarts: Family<AdapterLabels, Counter> = Family::default(), None;
    /// Log lines of adapters dropped because they came too fast
    adapter_log_lines_dropped: Family<AdapterLabels, Counter> = Family::default(), None;
    /// Generation of each adapter: 1 at the start, one more with each swap
    adapter_generation: Family<AdapterLabels, Gauge> = Family::default(), None;
    /// Generations of adapters that took the place of another one
    adapter_swaps: Family<AdapterLabels, Counter> = Family::default(), None;
    /// Candidates for the next generation that were refused, the running one staying
    adapter_candidates_refused: Family<AdapterLabels, Counter> = Family::default(), None;
    /// Looks at the configuration of a running process (SIGHUP, or its file has changed), by result
    config_reloads: Family<ResultLabels, Counter> = Family::default(), None;
}

impl Metrics {
    /// The text that Prometheus scrapes.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_units_are_as_documented() {
        let metrics = Metrics::new();
        metrics.claimed.get_or_create(&RelayLabels { relay: "orders".into() }).inc();
        metrics.claim_duration.get_or_create(&RelayLabels { relay: "orders".into() }).observe(0.002);
        let text = metrics.encode();
        assert!(text.contains("outhaul_claimed_total{relay=\"orders\"} 1"), "{text}");
        assert!(text.contains("outhaul_claim_duration_seconds_bucket"), "{text}");
    }

    /// How a metric stands in a table of docs/metrics.md.
    fn row(name: &str, declared: &str, unit: Option<&Unit>, help: &str) -> String {
        let kind = ["Histogram", "Gauge", "Counter"].into_iter().find(|kind| declared.contains(kind)).unwrap();
        let labels = [
            ("ByRelay", "`relay`"),
            ("RelayLabels", "`relay`"),
            ("PublisherLabels", "`relay`, `publisher`"),
            ("FailureLabels", "`relay`, `code`"),
            ("DeliveryLabels", "`relay`, `state`"),
            ("CallLabels", "`adapter`, `call`"),
            ("AdapterLabels", "`adapter`"),
            ("ResultLabels", "`result`"),
        ];
        let (_, labels) = labels.into_iter().find(|(of, _)| declared.contains(of)).unwrap();
        let unit = unit.map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
        let total = if kind == "Counter" { "_total" } else { "" };
        format!("| `outhaul_{name}{unit}{total}` | {} | {labels} | {} |", kind.to_lowercase(), help.trim())
    }

    #[test]
    fn every_metric_is_documented_and_none_that_is_not_there() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
        let declared: std::collections::BTreeSet<String> =
            DECLARED.iter().map(|(name, declared, unit, help)| row(name, declared, unit.as_ref(), help)).collect();
        // Not the expressions of alerts.
        let is_metric = |line: &&str| line.starts_with("| `outhaul_") && line.split('`').nth(1).is_some_and(|name| !name.contains(' '));
        let documented: std::collections::BTreeSet<String> = page.lines().filter(is_metric).map(str::to_owned).collect();
        assert_eq!(declared, documented, "left: the code; right: docs/metrics.md");
    }
}
