//! The contract clause by clause, natively: the storage on a SQLite file. What the finished component does is for
//! `outhaul plugin test` to say.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test ends at the first surprise")]

use outhaul_sdk::testing::{Sqlite, StorageBench, claim_request, dead, ids, retry, settlement};
use outhaul_sdk::{Batch, ClaimRequest, Column, FailureCode, Filter, NewMessage, RowState, Storage, Verdict};
use rows_rust::Rows;
use rusqlite::Connection;
use std::time::Duration;
use tempfile::TempDir;

/// A storage on a file of its own, and a connection that looks at it from outside.
struct Bench {
    storage: StorageBench<Rows<Sqlite>>,
    sql: Connection,
    folder: TempDir,
}

fn config(folder: &TempDir) -> String {
    format!("{{\"database\":{:?}}}", folder.path().join("outbox.db"))
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sql = Connection::open(folder.path().join("outbox.db")).unwrap();
        sql.busy_timeout(Duration::from_secs(60)).unwrap();
        sql.pragma_update(None, "journal_mode", "WAL").unwrap();
        let mut storage = StorageBench::<Rows<Sqlite>>::open(&config(&folder)).unwrap();
        storage.adapter().create_schema().unwrap();
        Self { storage, sql, folder }
    }

    /// Rows `1`, `2`, ... with these keys.
    fn with(keys: &[Option<&str>]) -> Self {
        let mut bench = Self::new();
        let mut batch = Batch::new();
        for (number, key) in (1..).zip(keys) {
            batch.push(&NewMessage {
                id: &i32::to_string(&number),
                topic: "t",
                key: *key,
                payload: Some(b"body"),
                ..NewMessage::default()
            });
        }
        bench.storage.adapter().enqueue(&batch).unwrap();
        bench
    }

    fn claim(&mut self, worker: &str, limit: u32) -> Vec<String> {
        ids(&self.storage.claim(&claim_request(worker, limit)).unwrap().batch)
    }

    fn settle(&mut self, worker: &str, verdict: Verdict, ids: &[&str]) -> Vec<String> {
        self.storage.adapter().settle(worker, &[settlement(verdict, ids)]).unwrap()
    }

    /// As if the time of every lease had passed.
    fn end_leases(&self) {
        self.sql.execute("UPDATE outbox_rows SET lease_end = 1 WHERE lease_end > 0", []).unwrap();
    }

    /// As if the time of every delay had passed.
    fn end_delays(&self) {
        self.sql.execute("UPDATE outbox_rows SET due_at = 1", []).unwrap();
    }

    fn attempts(&self, id: &str) -> u32 {
        self.sql.query_row("SELECT attempts FROM outbox_rows WHERE id = ?1", [id], |row| row.get(0)).unwrap()
    }
}

#[test]
fn rows_come_in_order_up_to_the_limit_and_once() {
    let mut bench = Bench::with(&[None, Some("a"), None, Some("a")]);
    assert_eq!(bench.claim("w", 3), ["1", "2", "3"]);
    assert_eq!(bench.claim("v", 9), Vec::<String>::new(), "row 4 is behind a leased one of its key");
    assert_eq!(bench.settle("w", Verdict::Delivered, &["2"]), Vec::<String>::new());
    assert_eq!(bench.claim("v", 9), ["4"]);
}

#[test]
fn a_message_is_as_it_was_given() {
    let mut bench = Bench::new();
    let bytes: Vec<u8> = (0..=255).collect();
    let headers: [(&str, &[u8]); 2] = [("x", b"1"), ("x", &bytes)];
    let mut batch = Batch::new();
    batch.push(&NewMessage { id: "é", topic: "t", key: Some("Zoë"), headers: &headers, payload: Some(&bytes), ..NewMessage::default() });
    batch.push(&NewMessage { topic: "t", payload: Some(b""), ..NewMessage::default() });
    batch.push(&NewMessage { topic: "t", ..NewMessage::default() });
    let given = bench.storage.adapter().enqueue(&batch).unwrap();
    let claimed = bench.storage.claim(&claim_request("w", 9)).unwrap().batch;
    assert_eq!(ids(&claimed), given);
    let [full, empty, none] = [0, 1, 2].map(|index| claimed.message(index));
    assert_eq!((full.id(), full.key(), full.payload(), full.attempts()), ("é", Some("Zoë"), Some(&bytes[..]), 1));
    assert_eq!(full.headers().collect::<Vec<_>>(), headers);
    assert!(full.created_at().is_some());
    assert_eq!((empty.payload(), empty.key()), (Some(&b""[..]), None));
    assert_eq!(none.payload(), None);
}

#[test]
fn a_row_that_waits_holds_back_its_key_and_nothing_else() {
    let mut bench = Bench::with(&[Some("a"), Some("a"), Some("b"), None]);
    bench.claim("w", 1);
    bench.settle("w", retry("later\0", 60_000), &["1"]);
    assert_eq!(bench.claim("w", 9), ["3", "4"]);
    bench.end_delays();
    assert_eq!(bench.claim("w", 9), ["1", "2"]);
    assert_eq!(bench.attempts("1"), 2);
    bench.settle("w", retry("much later", u64::MAX), &["1"]);
    assert_eq!(bench.claim("w", 9), Vec::<String>::new());
}

#[test]
fn a_dead_head_lets_its_followers_go_and_a_release_gives_the_attempt_back() {
    let mut bench = Bench::with(&[Some("a"), Some("a")]);
    bench.claim("w", 2);
    bench.settle("w", dead("no"), &["1"]);
    bench.settle("w", Verdict::Release(0), &["2"]);
    assert_eq!(bench.attempts("2"), 0);
    assert_eq!(bench.claim("w", 9), ["2"]);
}

#[test]
fn late_writes_change_nothing_and_are_told() {
    for verdict in [Verdict::Delivered, retry("x", 0), Verdict::Release(0), dead("x")] {
        let mut bench = Bench::with(&[None]);
        bench.claim("slow", 1);
        bench.end_leases();
        assert_eq!(bench.claim("quick", 1), ["1"]);
        assert_eq!(bench.settle("slow", verdict, &["1", "unknown"]), ["1", "unknown"]);
        assert_eq!(bench.storage.adapter().extend("slow", &Column::of_texts(["1"]), 1).unwrap(), ["1"]);
        assert_eq!(bench.settle("quick", Verdict::Delivered, &["1"]), Vec::<String>::new());
        assert_eq!(bench.settle("quick", Verdict::Delivered, &["1"]), ["1"], "settled once");
    }
}

#[test]
fn a_renewed_lease_lasts() {
    let mut bench = Bench::with(&[None]);
    bench.claim("w", 1);
    bench.end_leases();
    assert_eq!(bench.storage.adapter().extend("w", &Column::of_texts(["1"]), 60_000).unwrap(), Vec::<String>::new());
    assert_eq!(bench.claim("v", 1), Vec::<String>::new());
}

#[test]
fn what_can_never_be_claimed_again_ends_dead() {
    let mut bench = Bench::with(&[Some("a"), Some("a"), None]);
    bench.claim("w", 1);
    bench.end_leases();
    let request = ClaimRequest { max_attempts: 1, ..claim_request("w", 9) };
    let claimed = bench.storage.claim(&request).unwrap();
    assert_eq!(ids(&claimed.batch), ["2", "3"]);
    let refused: Vec<&str> = claimed.refused.iter().map(|refusal| refusal.id.as_str()).collect();
    assert_eq!((refused, claimed.unfinished), (vec!["1"], false));
    bench.end_leases();
    let request = ClaimRequest { max_message_bytes: 4, ..claim_request("w", 9) };
    let claimed = bench.storage.claim(&request).unwrap();
    assert!(claimed.batch.is_empty());
    assert!(claimed.refused.iter().all(|refusal| refusal.failure.code == FailureCode::TooLarge) && claimed.refused.len() == 2);
}

#[test]
fn settling_and_claiming_is_one_call() {
    let mut bench = Bench::with(&[Some("a"), Some("a")]);
    bench.claim("w", 1);
    let turn = bench.storage.adapter().settle_and_claim(&[settlement(Verdict::Delivered, &["1", "7"])], &claim_request("w", 9)).unwrap();
    assert_eq!((turn.lost, ids(&turn.claimed.batch)), (vec!["7".to_owned()], vec!["2".to_owned()]));
}

#[test]
fn workers_that_race_never_share_a_row_or_a_key() {
    const ROWS: usize = 300;
    let keys: Vec<String> = (0..ROWS).map(|row| (row % 7).to_string()).collect();
    let keys: Vec<Option<&str>> = keys.iter().map(|key| Some(key.as_str())).collect();
    let bench = Bench::with(&keys);
    let config = config(&bench.folder);
    let race = |worker: &'static str| {
        let config = config.clone();
        std::thread::spawn(move || {
            let mut storage = StorageBench::<Rows<Sqlite>>::open(&config).unwrap();
            let mut taken = Vec::new();
            loop {
                let batch = storage.claim(&claim_request(worker, 5)).unwrap().batch;
                if batch.is_empty() && storage.adapter().stats().unwrap().pending == 0 {
                    return taken;
                }
                taken.extend(ids(&batch));
                let lost = storage.adapter().settle(worker, &[settlement(Verdict::Delivered, &ids(&batch))]).unwrap();
                assert_eq!(lost, Vec::<String>::new());
            }
        })
    };
    let [one, two] = ["one", "two"].map(race).map(|thread| thread.join().unwrap());
    let mut all: Vec<usize> = one.iter().chain(&two).map(|id| id.parse().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=ROWS).collect::<Vec<_>>());
    // Settled in the order of each key.
    let split: i64 = bench
        .sql
        .query_row(
            "SELECT count(*) FROM outbox_rows AS a JOIN outbox_rows AS b ON a.key = b.key AND a.seq < b.seq AND a.settled_at > b.settled_at",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(split, 0);
}

#[test]
fn rows_are_counted_shown_and_cleared() {
    let any = || Filter { state: None, topic: None, ids: Vec::new() };
    let mut bench = Bench::with(&[None, None, None, None]);
    bench.claim("w", 3);
    bench.settle("w", dead("a reason"), &["1"]);
    bench.settle("w", Verdict::Delivered, &["2"]);
    let storage = bench.storage.adapter();
    let counts = storage.stats().unwrap();
    assert_eq!((counts.pending, counts.due, counts.leased, counts.dead), (2, 1, 1, 1));
    assert!(counts.oldest_pending_ms.is_some_and(|age| age < 60_000), "{counts:?}");

    let first = storage.browse(&any(), None, 3, true).unwrap();
    let states: Vec<RowState> = first.rows.iter().map(|row| row.state).collect();
    assert_eq!(states, [RowState::Dead, RowState::Delivered, RowState::Leased]);
    assert_eq!(first.rows[0].last_error.as_deref(), Some("invalid-message: a reason"));
    assert_eq!(ids(&first.messages.unwrap()), ["1", "2", "3"]);
    let last = storage.browse(&any(), first.next.as_deref(), 3, false).unwrap();
    assert_eq!((last.rows.len(), last.next, last.messages.is_none()), (1, None, true));
    let leased = storage.browse(&Filter { state: Some(RowState::Leased), topic: Some("t".into()), ids: vec!["3".into()] }, None, 9, false);
    assert_eq!(leased.unwrap().rows.len(), 1);

    assert_eq!(storage.requeue(&Filter { state: Some(RowState::Pending), ..any() }).unwrap(), 0);
    assert_eq!(storage.requeue(&Filter { ids: vec!["1".into(), "3".into()], ..any() }).unwrap(), 1);
    assert_eq!(storage.discard(&any()).unwrap(), 0, "nothing is dead any more");
    assert_eq!((storage.purge(60_000, 9).unwrap(), storage.purge(0, 9).unwrap(), storage.purge(0, 9).unwrap()), (0, 1, 0));
}

#[test]
fn what_cannot_be_inserted_is_told() {
    let mut bench = Bench::with(&[None]);
    let mut enqueue = |id: &str| {
        let mut batch = Batch::new();
        batch.push(&NewMessage { topic: "t", ..NewMessage::default() });
        batch.push(&NewMessage { id, topic: "t", ..NewMessage::default() });
        bench.storage.adapter().enqueue(&batch).unwrap_err().detail
    };
    assert_eq!(enqueue("1"), "the id `1` is taken");
    assert_eq!(enqueue("a\0b"), "an id must not contain NUL");
    assert_eq!(bench.storage.adapter().stats().unwrap().pending, 1, "all or none");
}

#[test]
fn errors_of_the_configuration_name_the_key() {
    for (config, key) in [
        (r#"{}"#, "`database`"),
        (r#"{"database":"x","table":"a b"}"#, "`table`"),
        (r#"{"database":"x","tabel":"a"}"#, "`tabel`"),
        (r#"{"database":"/no/such/file"}"#, "`database`"),
    ] {
        let failure = StorageBench::<Rows<Sqlite>>::open(config).unwrap_err();
        assert!(failure.detail.contains(key), "{config}: {}", failure.detail);
    }
}
