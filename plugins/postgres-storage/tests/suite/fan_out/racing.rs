//! Many connections at once: no deadlock, no gap in the log, no key in two hands.

use super::support::{FAN_OUT, again, coded, expand, own, verdict};
use crate::suite::support::{ids, open, request};
use outbox_table::random::Random;
use outhaul_sdk::DeliveryVerdict;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const TENANTS: [&str; 4] = ["a", "b", "c", "d"];
const EVENTS: usize = 400;
const SUBSCRIBERS: [&str; 3] = ["x", "y", "z"];

/// Expands and settles until nothing is left. Every failure of a call is a failure of the test: a deadlock would be one.
fn work(bench_config: &str, worker: u64, left: impl Fn() -> bool) {
    let mut outbox = open(bench_config).unwrap();
    let mut random = Random::seeded(worker);
    let name = format!("w{worker}");
    while left() {
        let events = outbox.claim_events(&request(&name, 1 + u32::try_from(random.below(20)).unwrap()), None).unwrap();
        if !events.claimed.batch.is_empty() {
            assert!(expand(&mut outbox, &name, &events, &SUBSCRIBERS).is_empty());
        }
        let claimed = ids(&outbox.claim_deliveries(&request(&name, 1 + u32::try_from(random.below(60)).unwrap()), None, 0).unwrap().batch);
        // Later ids first, and several verdicts in one call: locks must not be taken in the order of the settlements.
        let (half, quarter) = (claimed.len() / 2, claimed.len() / 4);
        let verdicts = [
            verdict(DeliveryVerdict::Complete, &claimed[half..]),
            verdict(again("network", 0), &claimed[quarter..half]),
            verdict(DeliveryVerdict::Suppressed(coded("subscription_changed", "no")), &claimed[..quarter]),
        ];
        assert_eq!(outbox.settle_deliveries(&name, &verdicts).unwrap(), Vec::<String>::new());
        if claimed.is_empty() && events.claimed.batch.is_empty() {
            std::thread::yield_now();
        }
    }
}

/// Reads each tenant's log as it grows: what becomes visible goes on without a gap from what was.
fn follow(bench_config: &str, ended: &AtomicBool) -> BTreeMap<&'static str, u64> {
    let mut outbox = open(bench_config).unwrap();
    let mut at: BTreeMap<&str, u64> = TENANTS.into_iter().map(|tenant| (tenant, 0)).collect();
    loop {
        let last_look = ended.load(Ordering::SeqCst);
        let mut more = false;
        for (tenant, at) in &mut at {
            for change in outbox.read_status(tenant, *at, 50).unwrap() {
                assert_eq!(change.position, *at + 1, "of {tenant}");
                *at = change.position;
                more = true;
            }
        }
        if last_look && !more {
            return at;
        }
    }
}

#[test]
fn eight_connections_expand_and_settle_without_deadlock_and_without_a_gap() {
    let Some((bench, _)) = own() else { return };
    let values: Vec<String> = (0..EVENTS).map(|n| format!("('{}', 't', 'k{}')", TENANTS[n % 4], n % 13)).collect();
    bench.run(&format!("INSERT INTO outbox (tenant, topic, key) VALUES {}", values.join(", ")));
    let config = bench.config(FAN_OUT);
    let ended = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let follower = scope.spawn(|| follow(&config, &ended));
        let workers: Vec<_> = (0..8)
            .map(|worker| {
                let config = &config;
                scope.spawn(move || {
                    let looking = open(config).map(Mutex::new).unwrap();
                    work(config, worker, || {
                        let mut outbox = looking.lock().unwrap();
                        outbox.stats().unwrap().pending > 0 || outbox.delivery_stats().unwrap().pending > 0
                    });
                })
            })
            .collect();
        let died = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        ended.store(true, Ordering::SeqCst);
        let seen = follower.join().unwrap();
        assert_eq!(died, 0);
        seen
    });
    assert_eq!(bench.value("SELECT count(*) FROM outbox_deliveries"), (EVENTS * SUBSCRIBERS.len()).to_string());
    assert_eq!(bench.value("SELECT count(*) FROM outbox WHERE status = 'done'"), EVENTS.to_string());
    // As many as there are, and each delivery's end is logged once.
    let logged: u64 = seen.values().sum();
    assert_eq!(bench.value("SELECT count(*) FROM outbox_status"), logged.to_string());
    assert_eq!(
        bench.value("SELECT count(*) || ' ' || count(DISTINCT delivery_id) FROM outbox_status WHERE state IN ('complete', 'suppressed')"),
        format!("{0} {0}", EVENTS * SUBSCRIBERS.len())
    );
    assert_eq!(bench.value("SELECT count(*) FROM outbox_status WHERE state = 'expanded'"), EVENTS.to_string());
    let heads = "SELECT string_agg(account_id || position, ',' ORDER BY account_id) FROM outbox_status_heads";
    let expected: Vec<String> = seen.iter().map(|(tenant, at)| format!("{tenant}{at}")).collect();
    assert_eq!(bench.value(heads), expected.join(","));
}

/// Deliveries of one key are never in two hands, and end in their order.
#[test]
fn workers_never_split_a_key() {
    const ROWS: usize = 600;
    let Some((bench, _)) = own() else { return };
    for tenant in ["a", "b"] {
        super::support::fill(&bench, tenant, ROWS / 2, 5);
    }
    let held: Mutex<HashMap<String, u64>> = Mutex::default();
    let ended: Mutex<HashMap<String, usize>> = Mutex::default();
    let number = |id: &str| id[1..].parse::<usize>().unwrap();
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (config, held, ended) = (bench.config(FAN_OUT), &held, &ended);
            scope.spawn(move || {
                let mut outbox = open(&config).unwrap();
                let name = format!("w{worker}");
                let mut random = Random::seeded(worker);
                while ended.lock().unwrap().len() < 10 || outbox.delivery_stats().unwrap().pending > 0 {
                    let batch =
                        outbox.claim_deliveries(&request(&name, 1 + u32::try_from(random.below(40)).unwrap()), None, 0).unwrap().batch;
                    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
                    for message in batch.messages() {
                        by_key.entry(message.key().unwrap().to_owned()).or_default().push(message.id().to_owned());
                    }
                    for key in by_key.keys() {
                        assert_eq!(held.lock().unwrap().insert(key.clone(), worker), None, "{key}");
                    }
                    let mut verdicts = Vec::new();
                    for (key, ids) in &by_key {
                        let upto = if random.below(4) == 0 { random.below(ids.len()) } else { ids.len() };
                        let mut ended = ended.lock().unwrap();
                        for id in &ids[..upto] {
                            let last = ended.entry(key.clone()).or_default();
                            assert!(*last < number(id), "{id} of {key} behind {last}");
                            *last = number(id);
                        }
                        verdicts.push(verdict(DeliveryVerdict::Complete, &ids[..upto]));
                        verdicts.push(verdict(DeliveryVerdict::Release(0), &ids[upto..]));
                        held.lock().unwrap().remove(key);
                    }
                    assert!(outbox.settle_deliveries(&name, &verdicts).unwrap().is_empty());
                }
            });
        }
    });
    assert_eq!(bench.value("SELECT count(*) FROM outbox_deliveries WHERE state = 'complete'"), ROWS.to_string());
}

/// An expansion that waits for the row of an event sees it as it is by then.
#[test]
fn an_expansion_waits_for_whoever_has_the_event_and_then_looks_again() {
    let Some((bench, mut outbox)) = own() else { return };
    let id = super::support::event(&bench, "a", None);
    let events = super::support::claim_events(&mut outbox, "w");
    let holding = bench.holding("UPDATE outbox SET leased_by = 'v' WHERE id = 1");
    let late = std::thread::spawn(move || expand(&mut outbox, "w", &events, &["x"]));
    bench.wait_for_a_waiter();
    holding.commit();
    assert_eq!(late.join().unwrap(), [id]);
    assert_eq!(bench.value("SELECT count(*) FROM outbox_deliveries"), "0");
}
