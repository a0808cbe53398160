//! What one task of the engine does for each message: into a queue, into a call, and its verdict into a group that is written together.
//!
//! The dispatcher and the settler are private to the engine, and pure: their files are compiled into this program as they are.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a bench stops at the first surprise")]
#![allow(dead_code, unused_imports, reason = "a part of those files is measured, and their tests are left out")]

mod support;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use dispatcher::{Admission, CallLimits, Dispatcher, Whom};
use leases::Lease;
use outhaul::domain::{self, Batch, Failure, FailureCode, Verdict};
use settler::Settler;
use std::sync::Arc;
use std::time::Duration;
use support::criterion;
use support::messages;
use tokio::time::Instant;

#[path = "../src/relay/dispatcher.rs"]
mod dispatcher;
#[path = "../src/relay/faults.rs"]
mod faults;
#[path = "../src/relay/leases.rs"]
mod leases;
#[path = "../src/relay/parties.rs"]
mod parties;
#[path = "../src/relay/settler.rs"]
mod settler;

/// Messages of one claim.
const MESSAGES: usize = 500;

/// Most messages of a call.
const CALL: usize = 100;

fn main() {
    let mut criterion = criterion();
    dispatch(&mut criterion);
    group(&mut criterion);
    criterion.final_summary();
}

/// Claimed messages through the queues of their keys into calls, and out.
fn dispatch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dispatch");
    group.throughput(Throughput::Elements(elements()));
    for (name, keys) in [("no keys", None), ("100 keys", Some(100)), ("1 key", Some(1))] {
        let batch = Arc::new(messages::batch(0..MESSAGES, 256, keys));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| bencher.iter(|| dispatched(&batch)));
    }
    group.finish();
}

/// How many calls it took.
fn dispatched(batch: &Arc<Batch>) -> usize {
    let now = Instant::now();
    let lease_until = now + Duration::from_secs(60);
    let mut dispatcher = Dispatcher::new(true, 1);
    for index in 0..batch.len() {
        dispatcher.admit(Admission { batch: Arc::clone(batch), index, publisher: 0, party: None, epoch: 0, lease_until });
    }
    let limits = CallLimits { messages: CALL, bytes: 4 << 20, lease_past: now, now };
    let mut calls = 0;
    loop {
        let ids = dispatcher.assemble(0, limits, &Whom::All);
        if ids.is_empty() {
            break;
        }
        calls += 1;
        for id in ids {
            dispatcher.finish(id);
        }
    }
    assert_eq!((calls, dispatcher.len()), (MESSAGES / CALL, 0));
    calls
}

/// The verdict on a message, by its number.
type Judge<'a> = &'a dyn Fn(usize) -> Verdict;

/// Verdicts into groups, and the groups out to be written.
fn group(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("group verdicts");
    group.throughput(Throughput::Elements(elements()));
    let failure = |detail: &str| Failure::new(FailureCode::Unavailable, detail);
    // Delays have a jitter of eight values.
    let delays = [0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0].map(Duration::from_secs_f64);
    let retry = |jitter: usize| Verdict::Retry { failure: failure("the destination answered 503"), delay: delays[jitter] };
    let some_fail = |number: usize| if number.is_multiple_of(10) { retry(number / 10 % 8) } else { Verdict::Delivered };
    let all_differ = |number: usize| Verdict::Dead(failure(&format!("message {number} is not wanted")));
    let delivered = |_| Verdict::Delivered;
    let cases: [(&str, usize, Judge); 3] =
        [("all delivered", 1, &delivered), ("one of ten fails", 9, &some_fail), ("all differ", MESSAGES, &all_differ)];
    for (name, settlements, verdict) in cases {
        let verdicts: Vec<(String, Verdict)> = (0..MESSAGES).map(|number| (format!("{number:036}"), verdict(number))).collect();
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter_batched(|| verdicts.clone(), |verdicts| assert_eq!(grouped(verdicts), settlements), BatchSize::SmallInput);
        });
    }
    group.finish();
}

/// How many settlements are written for these verdicts.
fn grouped(verdicts: Vec<(String, Verdict)>) -> usize {
    let now = Instant::now();
    let lease = Lease { epoch: 0, until: now + Duration::from_secs(60) };
    let mut settler = Settler::default();
    for (id, verdict) in verdicts {
        settler.add(lease, verdict, &id, 300, now);
    }
    let number = settler.groups().next().map(|group| group.number);
    let group = number.and_then(|number| settler.take(number)).expect("a group");
    assert!(settler.is_empty());
    group.settlements.len()
}

fn elements() -> u64 {
    u64::try_from(MESSAGES).expect("a number of messages")
}
