//! Counts the backlog from time to time, for the metrics. Counting may read the whole table, so it is done seldom.

use crate::metrics::{Metrics, RelayLabels};
use crate::ports::{Stats, Storage};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Counts every `interval`, for ever; the caller drops it.
pub(super) async fn run(relay: String, storage: Arc<dyn Storage>, metrics: Metrics, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        match storage.stats().await {
            Ok(stats) => {
                failing = false;
                show(&relay, &metrics, stats);
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(relay, %error, "cannot count the backlog: its metrics stay as they were until the storage answers");
                }
                failing = true;
            }
        }
    }
}

fn show(relay: &str, metrics: &Metrics, stats: Stats) {
    let labels = RelayLabels { relay: relay.to_owned() };
    let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    metrics.backlog.get_or_create(&labels).set(gauge(stats.pending));
    metrics.backlog_due.get_or_create(&labels).set(gauge(stats.due));
    metrics.dead_rows.get_or_create(&labels).set(gauge(stats.dead));
    let oldest = stats.oldest_pending_ms.map_or(0.0, |millis| Duration::from_millis(millis).as_secs_f64());
    metrics.oldest_pending.get_or_create(&labels).set(oldest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shown_in_base_units() {
        let metrics = Metrics::new();
        show("orders", &metrics, Stats { pending: 7, due: 5, leased: 1, dead: 2, oldest_pending_ms: Some(1500) });
        let text = metrics.encode();
        for line in [
            "outhaul_backlog{relay=\"orders\"} 7",
            "backlog_due{relay=\"orders\"} 5",
            "dead_rows{relay=\"orders\"} 2",
            "oldest_pending_seconds{relay=\"orders\"} 1.5",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
