//! Two settings, run in turn (A B A B): how B compares with A, pair by pair, so that a drift of the machine falls on both.

use super::model::{Calls, Comparison, Ratio, Run};

/// What is compared: its name in [`Comparison::ratios`], and in tables. Of a pair, A's figure and B's; none where they cannot be compared.
type Measure = (&'static str, &'static str, fn(&Run, &Run) -> Option<(f64, f64)>);

/// In the order of the tables.
pub(super) const MEASURES: [Measure; 6] = [
    ("per_second", "messages/s", |a, b| Some((a.per_second, b.per_second))),
    ("latency_p50", "latency p50", |a, b| Some((a.latency.as_ref()?.p50_ms, b.latency.as_ref()?.p50_ms))),
    ("latency_p99", "latency p99", |a, b| Some((a.latency.as_ref()?.p99_ms, b.latency.as_ref()?.p99_ms))),
    ("latency_from_due_p99", "latency from due p99", |a, b| {
        Some((a.latency_from_due.as_ref()?.p99_ms, b.latency_from_due.as_ref()?.p99_ms))
    }),
    ("cpu_per_message", "CPU per message", |a, b| a.cpu.us_per_message.zip(b.cpu.us_per_message)),
    ("claim_p50", "claim p50", claim_p50),
];

/// B against A: the first B by the first A, and so on. A run without its partner counts for nothing.
#[must_use]
pub fn compare(runs: &[Run]) -> Comparison {
    let side = |side| runs.iter().filter(move |run| run.side == side);
    let pairs: Vec<(&Run, &Run)> = side('A').zip(side('B')).collect();
    let ratios = MEASURES.iter().filter_map(|(name, _, figures)| {
        let each = pairs.iter().filter_map(|(a, b)| quotient(figures(a, b)?)).collect();
        Some(((*name).to_owned(), ratio(each)?))
    });
    Comparison { ratios: ratios.collect() }
}

/// The median of the claims that a run is made of. A claim alone and one that settles first are different work, and so are those of
/// different batches: not compared.
fn claim_p50(a: &Run, b: &Run) -> Option<(f64, f64)> {
    if a.settings.batch != b.settings.batch {
        return None;
    }
    let ((kind_a, a), (kind_b, b)) = (claims(a)?, claims(b)?);
    // Far below 2^52 microseconds.
    (kind_a == kind_b).then_some((a.p50_us as f64, b.p50_us as f64))
}

/// The claims that a run is made of, by kind: a storage with one writer settles and claims in one call, but for the first claim. Of claims
/// that brought rows.
#[must_use]
pub fn claims(run: &Run) -> Option<(&'static str, &Calls)> {
    let of = |kind: &'static str| run.calls.get(kind).map(|calls| (kind, calls));
    [of("claim"), of("settle_and_claim")].into_iter().flatten().max_by_key(|(_, calls)| calls.count)
}

/// B / A; none where that says nothing.
fn quotient((a, b): (f64, f64)) -> Option<f64> {
    let says_something = |figure: f64| figure.is_finite() && figure > 0.0;
    (says_something(a) && says_something(b)).then(|| b / a)
}

fn ratio(pairs: Vec<f64>) -> Option<Ratio> {
    let mut sorted = pairs.clone();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    Some(Ratio { median: median(&sorted)?, min, max, pairs })
}

/// The middle of sorted figures; of an even number, half way between the two.
#[must_use]
pub fn median(sorted: &[f64]) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let (below, above) = (sorted.get(last / 2)?, sorted.get(last.div_ceil(2))?);
    Some(f64::midpoint(*below, *above))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use std::collections::BTreeMap;

    fn run(side: char, per_second: f64) -> Run {
        Run { per_second, calls: BTreeMap::new(), latency: None, latency_from_due: None, ..sample::run(side) }
    }

    fn rates(runs: &[Run]) -> (Vec<f64>, f64, f64, f64) {
        let ratio = compare(runs).ratios.remove("per_second").unwrap();
        (ratio.pairs, ratio.median, ratio.min, ratio.max)
    }

    #[test]
    fn pairs_are_taken_in_turn() {
        let odd = [run('A', 100.0), run('B', 200.0), run('A', 100.0), run('B', 50.0), run('A', 10.0), run('B', 10.0)];
        assert_eq!(rates(&odd), (vec![2.0, 0.5, 1.0], 1.0, 0.5, 2.0));
        let even = [run('A', 1.0), run('B', 4.0), run('B', 2.0), run('A', 1.0)];
        assert_eq!(rates(&even), (vec![4.0, 2.0], 3.0, 2.0, 4.0));
        let one_more = [run('A', 2.0), run('B', 1.0), run('A', 100.0)];
        assert_eq!(rates(&one_more), (vec![0.5], 0.5, 0.5, 0.5));
    }

    #[test]
    fn what_is_not_in_both_is_left_out() {
        assert!(compare(&[]).ratios.is_empty());
        assert!(compare(&[run('A', 1.0)]).ratios.is_empty());
        // Nothing was delivered: no ratio, and above all no NaN and no infinity.
        let mut nothing = [run('A', 0.0), run('B', 0.0), run('A', 0.0), run('B', 1.0)];
        for run in &mut nothing {
            run.cpu.us_per_message = None;
        }
        assert!(compare(&nothing).ratios.is_empty());
        let mut with_latency = [sample::run('A'), sample::run('B')];
        assert_eq!(
            compare(&with_latency).ratios.keys().collect::<Vec<_>>(),
            ["claim_p50", "cpu_per_message", "latency_from_due_p99", "latency_p50", "latency_p99", "per_second"]
        );
        (with_latency[1].latency, with_latency[1].latency_from_due) = (None, None);
        assert_eq!(compare(&with_latency).ratios.keys().collect::<Vec<_>>(), ["claim_p50", "cpu_per_message", "per_second"]);
    }

    #[test]
    fn a_pair_without_a_figure_is_left_out_and_the_others_count() {
        let runs = [run('A', 0.0), run('B', 1.0), run('A', 2.0), run('B', 1.0)];
        assert_eq!(rates(&runs), (vec![0.5], 0.5, 0.5, 0.5));
    }

    #[test]
    fn claims_of_one_kind_are_compared() {
        let calls = |count, p50_us| Calls { count, p50_us, ..Calls::default() };
        let with = |side, calls: &[(&str, Calls)]| Run {
            calls: calls.iter().map(|(name, calls)| ((*name).to_owned(), calls.clone())).collect(),
            ..run(side, 1.0)
        };
        // The first claim is alone; the run is made of the others.
        let fused = |side, p50| with(side, &[("claim", calls(1, 9000)), ("settle_and_claim", calls(200, p50))]);
        let compared = |a: Run, b: Run| compare(&[a, b]).ratios.get("claim_p50").map(|ratio| ratio.median);
        assert_eq!(compared(fused('A', 1000), fused('B', 1500)), Some(1.5));
        assert_eq!(compared(fused('A', 1000), with('B', &[("claim", calls(200, 500))])), None);
        assert_eq!(compared(fused('A', 1000), with('B', &[])), None);
        assert_eq!(compared(fused('A', 0), fused('B', 5)), None);
        let mut smaller = fused('B', 1500);
        smaller.settings.batch = 50;
        assert_eq!(compared(fused('A', 1000), smaller), None);
        // However many claims have found nothing.
        let waits = |side, p50| with(side, &[("claim", calls(5, p50)), ("claim_empty", calls(900, 10))]);
        assert_eq!(compared(waits('A', 1000), waits('B', 500)), Some(0.5));
    }
}
