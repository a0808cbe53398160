//! Counts the backlog from time to time, for the metrics. Counting may read the whole table, so it is done seldom.

use crate::domain::Failure;
use crate::metrics::{DeliveryLabels, Metrics, RelayLabels};
use crate::ports::fan_out::{DeliveryStats, FanOutStorage};
use crate::ports::{Stats, Storage};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Counts every `interval`, for ever; the caller drops it.
pub(super) async fn run(relay: String, storage: Arc<dyn Storage>, metrics: Metrics, interval: Duration) {
    count(&relay, interval, || storage.stats(), |stats| show(&relay, &metrics, stats)).await;
}

/// The same for the deliveries of a fan-out, under the name of the relay that works them off.
pub(super) async fn run_deliveries(relay: String, storage: Arc<dyn FanOutStorage>, metrics: Metrics, interval: Duration) {
    count(&relay, interval, || storage.delivery_stats(), |stats| show_deliveries(&relay, &metrics, stats)).await;
}

async fn count<S, F>(relay: &str, interval: Duration, ask: impl Fn() -> F, show: impl Fn(S))
where
    F: Future<Output = Result<S, Failure>>,
{
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        match ask().await {
            Ok(stats) => {
                failing = false;
                show(stats);
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

/// Quarantined ones are what dead rows are to events.
fn show_deliveries(relay: &str, metrics: &Metrics, stats: DeliveryStats) {
    let DeliveryStats { pending, due, leased, suppressed, quarantined, oldest_pending_ms } = stats;
    show(relay, metrics, Stats { pending, due, leased, dead: quarantined, oldest_pending_ms });
    let states = [("pending", pending), ("due", due), ("leased", leased), ("suppressed", suppressed), ("quarantined", quarantined)];
    for (state, count) in states {
        let labels = DeliveryLabels { relay: relay.to_owned(), state };
        metrics.deliveries.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
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

    #[test]
    fn deliveries_are_shown_by_state() {
        let metrics = Metrics::new();
        let stats = DeliveryStats { pending: 7, due: 5, leased: 1, suppressed: 2, quarantined: 3, oldest_pending_ms: Some(2500) };
        show_deliveries("orders.deliveries", &metrics, stats);
        let text = metrics.encode();
        for line in [
            "outhaul_deliveries{relay=\"orders.deliveries\",state=\"pending\"} 7",
            "outhaul_deliveries{relay=\"orders.deliveries\",state=\"due\"} 5",
            "outhaul_deliveries{relay=\"orders.deliveries\",state=\"leased\"} 1",
            "outhaul_deliveries{relay=\"orders.deliveries\",state=\"suppressed\"} 2",
            "outhaul_deliveries{relay=\"orders.deliveries\",state=\"quarantined\"} 3",
            "outhaul_backlog{relay=\"orders.deliveries\"} 7",
            "outhaul_dead_rows{relay=\"orders.deliveries\"} 3",
            "outhaul_oldest_pending_seconds{relay=\"orders.deliveries\"} 2.5",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
