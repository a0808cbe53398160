//! A small report for the tests of what is made out of one.

use super::model::{Calls, Cpu, Latency, Machine, Memory, Report, Run, Second, Settings};

pub(super) fn settings() -> Settings {
    Settings {
        config_file: "outhaul.toml".to_owned(),
        relay: "orders".to_owned(),
        storage: "outbox (sqlite-storage)".to_owned(),
        storage_config: serde_json::json!({ "database": "main", "table": "outbox" }),
        database: "main (SQLite, synchronous full)".to_owned(),
        publisher: "null".to_owned(),
        publisher_config: serde_json::Value::Null,
        native: false,
        topic: "outhaul.bench".to_owned(),
        rows: 1000,
        payload_bytes: 256,
        keys: 10,
        rate: None,
        batch: 500,
        in_flight: 2000,
        in_flight_bytes: 1 << 20,
        settle_delay_ms: 5,
        poll_min_ms: 10,
        poll_max_ms: 1000,
        wake_check_ms: 50,
        backoff_base_ms: 1000,
        backoff_factor: 2.0,
        backoff_max_ms: 60_000,
        publish_batch: 100,
        publish_batch_bytes: 4 << 20,
        lanes: 4,
        hosts: 1,
        destination_delay_ms: None,
        destination_failing_percent: None,
        purge: false,
    }
}

/// A run of two seconds, with everything that a run may have.
pub(super) fn run(side: char) -> Run {
    let calls = Calls { count: 4, items: 1000, p50_us: 5500, p99_us: 7000, max_us: 7001 };
    let second = |at_seconds, delivered, backlog, claim_p50_us, latency_p99_ms| Second {
        at_seconds,
        delivered,
        backlog,
        claim_p50_us: Some(claim_p50_us),
        latency_p99_ms: Some(latency_p99_ms),
        resident_bytes: 64 << 20,
    };
    Run {
        side,
        settings: settings(),
        delivered: 1000,
        retried: 3,
        dead: 0,
        unaccounted: 0,
        seconds: 2.0,
        per_second: 500.0,
        latency: Some(Latency {
            count: 1000,
            p50_ms: 4.0,
            p95_ms: 8.0,
            p99_ms: 20.25,
            max_ms: 31.0,
            buckets: vec![(4.0, 500), (8.0, 450), (20.25, 49), (31.0, 1)],
        }),
        latency_from_due: Some(Latency { count: 1000, p50_ms: 9.0, p95_ms: 18.0, p99_ms: 30.0, max_ms: 41.0, buckets: vec![(41.0, 1000)] }),
        achieved_rate: None,
        cpu: Cpu { user_seconds: 1.25, system_seconds: 0.5, us_per_message: Some(1750.0) },
        memory: Memory { start_bytes: 60 << 20, middle_bytes: 64 << 20, end_bytes: 64 << 20, peak_bytes: 70 << 20 },
        calls: [("claim".to_owned(), Calls { count: 1, ..calls.clone() }), ("settle_and_claim".to_owned(), calls)].into(),
        series: vec![second(1.0, 600, 400, 5500, 20.0), second(2.0, 400, 0, 5000, 8.0)],
    }
}

pub(super) fn report(runs: Vec<Run>) -> Report {
    Report {
        machine: Machine { cpu: "Example 9000".to_owned(), cores: 2, memory_bytes: 24 << 30, system: "Linux 6.1".to_owned() },
        versions: [("SQLite".to_owned(), "3.50.2".to_owned()), ("outhaul".to_owned(), "0.1.0".to_owned())].into(),
        commit: None,
        started_at: "2026-11-30T09:00:00Z".to_owned(),
        runs,
        comparison: None,
    }
}
