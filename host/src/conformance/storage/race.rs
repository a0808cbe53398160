//! Two workers on two hosts, as fast as they can, on few keys: a ledger notes who holds what, and whether everything came in order.

use super::stage::{Host, Stage, by, message, patient, settlement};
use crate::conformance::clause::{Checked, Clause, Stop, expect};
use crate::domain::{Batch, Settlement, Verdict};
use crate::ports::ClaimRequest;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a race may take.
const LONGEST: Duration = Duration::from_secs(60);

/// Keys and rows of each, race after race: one key is what two workers meet at most often.
const RACES: [(usize, usize); 3] = [(1, 40), (2, 30), (6, 12)];

pub(super) static CLAUSES: &[Clause<Stage>] = &[Clause {
    id: "storage.race",
    title: "two racing workers never split a key, and each key is delivered in order",
    demands: "claim: \"a key's rows are claimed in insertion order as an unbroken run from its first unsettled row\", also by two at once",
    timed: false,
    check: |stage| Box::pin(race(stage)),
}];

/// What is known of the keys.
struct Ledger {
    keys: BTreeMap<String, Key>,
    left: usize,
}

#[derive(Default)]
struct Key {
    delivered: usize,
    holder: Option<&'static str>,
}

struct Ledgers(Mutex<Ledger>);

impl Ledgers {
    fn open(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// Notes what a worker has claimed: the row after the last delivered one of each key, and those right behind it.
    fn claimed(&mut self, worker: &'static str, batch: &Batch) -> Checked {
        let mut run: BTreeMap<&str, usize> = BTreeMap::new();
        for message in batch.messages() {
            let name = message.key().unwrap_or_default();
            let number = std::str::from_utf8(message.payload().unwrap_or_default()).ok().and_then(|text| text.parse::<usize>().ok());
            let key = self.keys.entry(name.to_owned()).or_default();
            if let Some(holder) = key.holder.filter(|holder| *holder != worker || !run.contains_key(name)) {
                let expected = format!("the key {name} with one worker at a time");
                return Err(Stop::failed(expected, format!("{worker} has claimed number {number:?} of it while {holder} holds others")));
            }
            key.holder = Some(worker);
            let place = run.entry(name).or_insert(key.delivered);
            let expected = format!("number {place} of the key {name}: {} were delivered", key.delivered);
            expect(number == Some(*place), expected, || format!("number {number:?}"))?;
            *place += 1;
        }
        Ok(())
    }

    /// What the worker says of its rows: of each key it delivers some, and hands the rest back.
    fn verdicts(&mut self, batch: &Batch) -> Vec<Settlement> {
        let (mut delivered, mut back) = (Vec::new(), Vec::new());
        let mut stopped: Vec<&str> = Vec::new();
        for message in batch.messages() {
            let name = message.key().unwrap_or_default();
            if stopped.contains(&name) || rand::random::<u8>() < 60 {
                stopped.push(name);
                back.push(message.id());
            } else {
                delivered.push(message.id());
                self.left = self.left.saturating_sub(1);
            }
            if let Some(key) = self.keys.get_mut(name) {
                key.holder = None;
                key.delivered += usize::from(!stopped.contains(&name));
            }
        }
        let handed_back = Verdict::Release { delay: Duration::ZERO };
        vec![settlement(Verdict::Delivered, delivered), settlement(handed_back, back)]
    }
}

async fn race(stage: &Stage) -> Checked {
    let hosts = [stage.host().await?, stage.host().await?];
    let [first, second] = &hosts;
    first.needs_strict_order()?;
    for (round, (keys, rows)) in RACES.into_iter().enumerate() {
        let names: Vec<String> = (0..keys).map(|key| format!("key-{round}-{key}")).collect();
        let numbers: Vec<String> = (0..rows).map(|number| number.to_string()).collect();
        let messages: Vec<_> = numbers.iter().flat_map(|number| names.iter().map(move |name| message(Some(name), number))).collect();
        stage.insert(first, &messages).await?;
        let ledgers = Ledgers(Mutex::new(Ledger { keys: BTreeMap::new(), left: messages.len() }));
        tokio::try_join!(work(first, "worker-1", &ledgers), work(second, "worker-2", &ledgers))?;
    }
    Ok(())
}

async fn work(host: &Host, worker: &'static str, ledgers: &Ledgers) -> Checked {
    let began = Instant::now();
    while ledgers.open().left > 0 {
        let limit = u32::from(rand::random::<u8>() % 3) + 1;
        let request = ClaimRequest { limit, ..by(worker) };
        let claimed = patient(|| host.storage().claim(&request)).await?;
        if claimed.batch.is_empty() {
            let left = ledgers.open().left;
            expect(began.elapsed() < LONGEST, format!("everything delivered within {} s", LONGEST.as_secs()), || {
                format!("{left} rows left")
            })?;
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        ledgers.open().claimed(worker, &claimed.batch)?;
        // The other one gets a chance to take what it must not have.
        tokio::task::yield_now().await;
        // Noted first: once it is written, the other worker may have the rows at once.
        let verdicts = ledgers.open().verdicts(&claimed.batch);
        let lost = patient(|| host.storage().settle(worker, &verdicts)).await?;
        expect(lost.is_empty(), format!("{worker} to hold what it has claimed"), || format!("lost: {lost:?}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::NewMessage;

    fn batch(rows: &[(&str, &str)]) -> Batch {
        let mut batch = Batch::default();
        for (key, number) in rows {
            batch.push(&NewMessage { id: Some(number), key: Some(key), payload: Some(number.as_bytes()), ..NewMessage::default() });
        }
        batch
    }

    #[test]
    fn the_ledger_sees_a_split_key_and_a_wrong_number() {
        let mut ledger = Ledger { keys: BTreeMap::new(), left: 10 };
        assert_eq!(ledger.claimed("worker-1", &batch(&[("k", "0"), ("k", "1"), ("j", "0")])), Ok(()));
        assert!(ledger.claimed("worker-2", &batch(&[("k", "2")])).is_err(), "the other worker holds the key");
        assert!(ledger.claimed("worker-1", &batch(&[("k", "2")])).is_err(), "behind its own leased rows");
        assert!(ledger.claimed("worker-2", &batch(&[("i", "1")])).is_err(), "not from the first on");
        assert!(ledger.claimed("worker-2", &batch(&[("h", "0"), ("h", "2")])).is_err(), "a gap");
    }
}
