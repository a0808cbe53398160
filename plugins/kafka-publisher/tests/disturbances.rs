//! Three real brokers, one of them killed, stopped and started again while messages are published.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests stop at the first surprise"
)]

mod common;

use anyhow::Result;
use common::{Publisher, batch_of, fresh, retried};
use outhaul_sdk::{NewMessage, Outcome};
use outhaul_services::{Cluster, ClusterOptions, Listener, or_skip};
use outhaul_tests::kafka::{Reader, Record};
use outhaul_tests::process::poll;
use serde_json::json;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

const KEYS: usize = 40;

/// Publishes `0..` for each key, as the host does: each again until it is delivered, nothing of a key behind a failure.
struct Relay {
    topic: String,
    publisher: Publisher,
    queues: Vec<VecDeque<usize>>,
    next: usize,
    retried: usize,
}

impl Relay {
    fn call(&mut self) {
        let mut rows = Vec::new();
        for (key, queue) in self.queues.iter_mut().enumerate() {
            while queue.len() < 5 {
                queue.push_back(self.next);
                self.next += 1;
            }
            rows.extend(queue.iter().map(|number| (key, format!("key-{key}"), number.to_string())));
        }
        let messages: Vec<_> = rows.iter().map(|(_, key, id)| message_of(&self.topic, key, id)).collect();
        let outcomes = self.publisher.publish(&batch_of(&messages));
        for ((key, _, id), outcome) in rows.iter().zip(outcomes) {
            match outcome {
                Outcome::Delivered => assert_eq!(self.queues[*key].pop_front().unwrap().to_string(), *id, "in order"),
                Outcome::Retry(_) | Outcome::Held => self.retried += 1,
                Outcome::Reject(failure) => panic!("{failure:?}"),
            }
        }
    }
}

fn message_of<'a>(topic: &'a str, key: &'a str, id: &'a str) -> NewMessage<'a> {
    NewMessage { id, topic, key: Some(key), payload: Some(b"x"), ..NewMessage::default() }
}

fn id(record: &Record) -> usize {
    std::str::from_utf8(record.header("outhaul-id").next().unwrap().unwrap()).unwrap().parse().unwrap()
}

/// Kills and stops brokers in turn; the relay goes on. Nothing is lost, and nothing overtakes within its key.
#[test]
fn brokers_come_and_go() -> Result<()> {
    let options = ClusterOptions { brokers: 3, ..ClusterOptions::default() };
    let Some(mut cluster) = or_skip(Cluster::start(options)) else { return Ok(()) };
    let topic = fresh("disturbed");
    cluster.create_topic_with(&topic, 6, &[("min.insync.replicas", "2")])?;
    let publisher = Publisher::new(&cluster.addresses(Listener::Plaintext), json!({ "request_timeout": "2s" }));
    let mut relay = Relay { topic: topic.clone(), publisher, queues: vec![VecDeque::new(); KEYS], next: 0, retried: 0 };

    let over = AtomicBool::new(false);
    let (send, calls) = mpsc::channel();
    let relay = std::thread::scope(|scope| -> Result<Relay> {
        let over = &over;
        let running = scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                relay.call();
                let _ = send.send(());
            }
            relay
        });
        let result = (|| {
            for round in 0..3 {
                poll("all replicas in sync", || cluster.is_in_sync(&topic))?;
                calls.recv()?;
                if round % 2 == 0 {
                    cluster.kill(round)?
                } else {
                    cluster.stop(round)?
                }
                // At least two calls with the broker down.
                while calls.try_recv().is_ok() {}
                calls.recv()?;
                calls.recv()?;
                cluster.start_again(round)?;
            }
            Ok(())
        })();
        over.store(true, Ordering::Relaxed);
        let relay = running.join().unwrap();
        result.map(|()| relay)
    })?;

    let unsure: HashSet<usize> = relay.queues.iter().flatten().copied().collect();
    let records = Reader::new(&cluster.bootstrap())?.read(&topic)?;
    let mut seen = HashSet::new();
    let mut last: HashMap<String, usize> = HashMap::new();
    let mut duplicates = 0;
    for record in &records {
        if !seen.insert(id(record)) {
            duplicates += 1;
            continue;
        }
        let before = last.insert(record.key_text().unwrap().to_owned(), id(record));
        assert!(before.is_none_or(|before| before < id(record)), "{before:?} before {}", id(record));
    }
    let lost = (0..relay.next).filter(|id| !seen.contains(id) && !unsure.contains(id)).count();
    // Within a call, what is repeated is not written twice: only what was handed back and sent again can be.
    assert!(duplicates <= relay.retried, "{duplicates} duplicates, {} handed back", relay.retried);
    assert_eq!(lost, 0);
    assert!(relay.next > KEYS * 20);
    Ok(())
}

/// A broker that creates topics does so for the first message; nothing is handed back.
#[test]
fn a_topic_is_created_where_the_broker_allows_it() -> Result<()> {
    let options = ClusterOptions { auto_create_topics: true, ..ClusterOptions::default() };
    let Some(mut cluster) = or_skip(Cluster::start(options)) else { return Ok(()) };
    let topic = fresh("by-itself");
    let mut publisher = Publisher::new(&cluster.addresses(Listener::Plaintext), json!({}));
    publisher.deliver(&batch_of(&[message_of(&topic, "k", "0")]));

    // And a broker that went away and came back between two calls is not noticed.
    cluster.stop(0)?;
    let failure = publisher.publish(&batch_of(&[message_of(&topic, "k", "1")]));
    assert!(retried(&failure[0]).detail.contains("127.0.0.1:"), "{failure:?}");
    cluster.start_again(0)?;
    publisher.deliver(&batch_of(&[message_of(&topic, "k", "1"), message_of(&topic, "k", "2")]));
    let ids: Vec<usize> = Reader::new(&cluster.bootstrap())?.read(&topic)?.iter().map(id).collect();
    assert_eq!(ids, [0, 1, 2]);
    Ok(())
}
