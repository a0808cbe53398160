//! Outhaul's own table: claims, verdicts, fences, limits.

use crate::support::{Bench, claim, dead, ids, last_run, request, retry, settle, settlement};
use outhaul_sdk::{Batch, ClaimRequest, Column, Filter, NewMessage, RowState, Verdict};

fn lapse(bench: &Bench) {
    bench.run("UPDATE outbox SET available_at = 1 WHERE status = 'pending'");
}

#[test]
fn creating_the_schema_twice_changes_nothing() {
    let (bench, mut outbox) = Bench::own("");
    bench.insert(None, "x");
    outbox.create_schema().unwrap();
    assert_eq!(bench.value("SELECT count(*) FROM outbox"), "1");
    let schema = outbox.schema().unwrap();
    assert!(schema.contains("CREATE TABLE IF NOT EXISTS \"outbox\"") && schema.contains("journal_mode = WAL"), "{schema}");
    // A default runs in the producer's SQLite, and 'subsec' is news of 3.42 (NULL before).
    assert!(!schema.contains("subsec"), "{schema}");
    let age = bench.value("SELECT abs(created_at - unixepoch('subsec') * 1000) < 60000 FROM outbox");
    assert_eq!(age, "1", "created_at is in milliseconds");
    // The text is a migration that SQLite takes as it is.
    Bench::new(&schema);
}

#[test]
fn before_the_table_is_there_only_the_schema_can_be_had() {
    let bench = Bench::new("CREATE TABLE orders (id INTEGER PRIMARY KEY)");
    let mut outbox = bench.open("");
    let failure = outbox.claim(&request("w", 1)).unwrap_err();
    assert_eq!(failure.code, outhaul_sdk::FailureCode::InvalidConfiguration);
    assert!(failure.detail.contains("`table`: there is no table \"outbox\"") && failure.detail.contains("`orders`"), "{}", failure.detail);
    assert!(outbox.schema().unwrap().contains("CREATE TABLE"));
    // Somebody else's migration creates it: the next claim finds it.
    bench.sql.execute_batch(&outbox.schema().unwrap()).unwrap();
    bench.insert(None, "x");
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 1);
}

#[test]
fn a_message_is_claimed_as_it_was_stored() {
    let (bench, mut outbox) = Bench::own("");
    bench.run(r#"INSERT INTO outbox (topic, key, headers, payload) VALUES ('заказы', 'k', '{"b":"1","a":"2","b":"3"}', x'00ff')"#);
    bench.run("INSERT INTO outbox (topic, key, payload) VALUES ('t', '', NULL), ('t', NULL, ''), ('t', NULL, 42)");
    let batch = claim(&mut outbox, "w", 10).batch;
    let shown: Vec<_> =
        batch.messages().map(|message| (message.id(), message.topic(), message.key(), message.payload(), message.attempts())).collect();
    assert_eq!(
        shown,
        [
            ("1", "заказы", Some("k"), Some(&b"\x00\xff"[..]), 1),
            ("2", "t", None, None, 1),
            ("3", "t", None, Some(&b""[..]), 1),
            ("4", "t", None, Some(&b"42"[..]), 1)
        ]
    );
    let headers: Vec<_> = batch.message(0).headers().collect();
    assert_eq!(headers, [("b", &b"1"[..]), ("a", &b"2"[..]), ("b", &b"3"[..])]);
    assert!(batch.message(0).created_at().unwrap() > 1_600_000_000_000);
}

#[test]
fn verdicts_are_written() {
    let (bench, mut outbox) = Bench::own("");
    for key in ["a", "b", "c", "d"] {
        bench.insert(Some(key), "x");
    }
    let all = ids(&claim(&mut outbox, "w", 10).batch);
    assert_eq!(all, ["1", "2", "3", "4"]);
    let lost = outbox
        .settle(
            "w",
            &[
                settlement(Verdict::Delivered, &all[..1]),
                settlement(retry("no route", 5_000), &all[1..2]),
                settlement(Verdict::Release(0), &all[2..3]),
                settlement(dead("never"), &all[3..]),
            ],
        )
        .unwrap();
    assert!(lost.is_empty());
    let row = |id: &str| {
        bench.value(&format!(
            "SELECT status || ' ' || attempts || ' ' || ifnull(leased_by, '-') || ' ' || ifnull(last_error, '-') || ' ' || (done_at IS NOT NULL) FROM outbox WHERE id = {id}"
        ))
    };
    assert_eq!(row("1"), "done 1 - - 1");
    assert_eq!(row("2"), "pending 1 - network: no route 0");
    assert_eq!(row("3"), "pending 0 - - 0");
    assert_eq!(row("4"), "dead 1 - invalid-message: never 1");
    assert_eq!(bench.value("SELECT available_at - unixepoch('subsec') * 1000 BETWEEN 3000 AND 5100 FROM outbox WHERE id = 2"), "1");
    // The released one is due at once, the retried one is not.
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["3"]);
}

#[test]
fn delivered_rows_are_deleted_where_that_is_asked_for() {
    let (bench, mut outbox) = Bench::own(r#","on_delivered":"delete""#);
    bench.insert(None, "x");
    let claimed = ids(&claim(&mut outbox, "w", 10).batch);
    assert!(settle(&mut outbox, "v", Verdict::Delivered, &claimed) == claimed, "only the holder deletes");
    assert!(settle(&mut outbox, "w", Verdict::Delivered, &claimed).is_empty());
    assert_eq!(bench.value("SELECT count(*) FROM outbox"), "0");
    assert_eq!(outbox.purge(0, 10).unwrap(), 0);
}

#[test]
fn a_worker_writes_only_to_rows_that_it_still_holds() {
    let (bench, mut outbox) = Bench::own("");
    let mut other = bench.open("");
    bench.insert(Some("a"), "x");
    bench.insert(Some("b"), "x");
    let first = ids(&claim(&mut outbox, "w1", 10).batch);
    assert_eq!(claim(&mut other, "w2", 10).batch.len(), 0, "leased");
    lapse(&bench);
    bench.run("UPDATE outbox SET available_at = unixepoch() * 1000 + 60000 WHERE id = 2");
    let second = claim(&mut other, "w2", 10).batch;
    assert_eq!((ids(&second), second.message(0).attempts()), (vec!["1".to_owned()], 2));
    // Row 1 is the other's by now; row 2, whose lease is renewed, is not.
    assert_eq!(outbox.extend("w1", &Column::of_texts(&first), 60_000).unwrap(), ["1"]);
    for verdict in [Verdict::Delivered, retry("x", 0), Verdict::Release(0), dead("x")] {
        assert_eq!(settle(&mut outbox, "w1", verdict, &first[..1]), ["1"]);
    }
    assert_eq!(bench.value("SELECT status || attempts || leased_by FROM outbox WHERE id = 1"), "pending2w2");
    assert!(settle(&mut other, "w2", Verdict::Delivered, &ids(&second)).is_empty());
    assert_eq!(settle(&mut outbox, "w1", Verdict::Delivered, &first), ["1"]);
    assert_eq!(settle(&mut outbox, "w1", Verdict::Delivered, &first), ["1", "2"], "settled already");
    let foreign = ["1".to_owned(), "77".to_owned(), "no number".to_owned(), "77".to_owned()];
    assert_eq!(settle(&mut outbox, "w1", Verdict::Delivered, &foreign), ["1", "77", "no number"]);
}

#[test]
fn a_late_settle_counts_if_nobody_has_taken_the_row() {
    let (bench, mut outbox) = Bench::own("");
    bench.insert(None, "x");
    let claimed = ids(&claim(&mut outbox, "w", 1).batch);
    lapse(&bench);
    assert!(settle(&mut outbox, "w", Verdict::Delivered, &claimed).is_empty());
    assert_eq!(bench.value("SELECT status FROM outbox"), "done");
}

#[test]
fn a_waiting_head_holds_back_its_key_and_no_other() {
    let (bench, mut outbox) = Bench::own("");
    for key in [Some("a"), Some("a"), Some("b"), None, Some("a")] {
        bench.insert(key, "x");
    }
    let claimed = ids(&claim(&mut outbox, "w", 10).batch);
    settle(&mut outbox, "w", retry("x", 60_000), &claimed[..1]);
    settle(&mut outbox, "w", Verdict::Release(0), &claimed[1..]);
    bench.run("UPDATE outbox SET available_at = 0");
    bench.run("UPDATE outbox SET available_at = unixepoch() * 1000 + 60000 WHERE id = 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["3", "4"]);
    bench.run("UPDATE outbox SET available_at = 0 WHERE id = 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["1"], "it has failed before: those behind it would be leased for nothing");
    // A dead head lets the others go on.
    settle(&mut outbox, "w", dead("x"), &["1".to_owned()]);
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["2", "5"]);
}

#[test]
fn loose_order_lets_later_rows_pass() {
    let (bench, mut outbox) = Bench::own(r#","strict_order":false"#);
    for _ in 0..3 {
        bench.insert(Some("a"), "x");
    }
    bench.run("UPDATE outbox SET available_at = unixepoch() * 1000 + 60000 WHERE id = 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["2", "3"]);
}

/// Case 18: a row waits for visibility while a later row of its key is already visible.
#[test]
fn a_row_that_is_not_visible_yet_holds_back_its_key() {
    let (bench, mut outbox) = Bench::own(r#","visibility_delay":"1h""#);
    for key in ["a", "a", "b"] {
        bench.insert(Some(key), "x");
    }
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 0);
    bench.run("UPDATE outbox SET created_at = created_at - 3600000 WHERE id > 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["3"]);
    bench.run("UPDATE outbox SET created_at = created_at - 3600000 WHERE id = 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["1", "2"]);
    assert_eq!(outbox.stats().unwrap().leased, 3);
}

#[test]
fn a_row_whose_last_attempt_ran_out_goes_dead_and_its_followers_go_on() {
    let (bench, mut outbox) = Bench::own("");
    bench.insert(Some("a"), "x");
    bench.insert(Some("a"), "y");
    bench.run("UPDATE outbox SET attempts = 3 WHERE id = 1");
    let claimed = outbox.claim(&ClaimRequest { max_attempts: 3, ..request("w", 10) }).unwrap();
    assert_eq!(ids(&claimed.batch), ["2"]);
    assert_eq!(claimed.refused.len(), 1);
    assert_eq!((claimed.refused[0].id.as_str(), claimed.refused[0].failure.detail.contains("3 attempts")), ("1", true));
    assert_eq!(bench.value("SELECT status || ' ' || attempts FROM outbox WHERE id = 1"), "dead 3");
    assert!(bench.value("SELECT last_error FROM outbox WHERE id = 1").starts_with("attempts-used-up: gave up after 3 attempts"));
}

#[test]
fn a_row_over_the_limit_goes_dead() {
    let (bench, mut outbox) = Bench::own("");
    // Beside its payload, each row here counts for 131 bytes.
    for size in [99, 100, 101] {
        bench.insert(Some("a"), &"x".repeat(size));
    }
    let claimed = outbox.claim(&ClaimRequest { max_message_bytes: 231, ..request("w", 10) }).unwrap();
    assert_eq!((ids(&claimed.batch), claimed.refused.len()), (vec!["1".to_owned(), "2".to_owned()], 1));
    assert_eq!(claimed.refused[0].failure.code, outhaul_sdk::FailureCode::TooLarge);
    assert_eq!(bench.value("SELECT status FROM outbox WHERE id = 3"), "dead");
}

#[test]
fn a_row_that_cannot_be_decoded_goes_dead_and_the_others_flow() {
    let (bench, mut outbox) = Bench::own(r#","payload_encoding":"json""#);
    bench.run(r#"INSERT INTO outbox (topic, key, headers, payload) VALUES ('t', 'a', 'oops', '{}'), ('t', 'a', '{}', '{"a":1}'), ('t', 'a', '{}', 'no json')"#);
    let claimed = claim(&mut outbox, "w", 10);
    assert_eq!(ids(&claimed.batch), ["2"]);
    let refused: Vec<_> = claimed.refused.iter().map(|refusal| refusal.id.as_str()).collect();
    assert_eq!(refused, ["1", "3"]);
    assert_eq!(bench.value("SELECT count(*) FROM outbox WHERE status = 'dead' AND last_error LIKE 'invalid-message: the %'"), "2");
}

#[test]
fn a_claim_keeps_to_its_bytes() {
    let (bench, mut outbox) = Bench::own("");
    for _ in 0..5 {
        bench.insert(Some("a"), &"x".repeat(100));
    }
    for (max_bytes, expected) in [(1, 1), (461, 1), (462, 2), (1000, 1)] {
        let claimed = outbox.claim(&ClaimRequest { max_bytes, ..request("w", 10) }).unwrap();
        assert_eq!(claimed.batch.len(), expected, "{max_bytes} bytes");
        settle(&mut outbox, "w", Verdict::Delivered, &ids(&claimed.batch));
    }
}

/// Cases 2 and 3: texts that no database likes.
#[test]
fn a_failure_is_recorded_whatever_its_text() {
    let (bench, mut outbox) = Bench::own("");
    bench.insert(None, "x");
    for text in ["a\0b", "\u{fffd}\u{1}", &"x".repeat(1 << 20), &"😊".repeat(70_000), "'; DROP TABLE outbox; --", ""] {
        let claimed = ids(&claim(&mut outbox, "w", 1).batch);
        assert!(settle(&mut outbox, "w", retry(text, 0), &claimed).is_empty());
    }
    let claimed = ids(&claim(&mut outbox, "w", 1).batch);
    settle(&mut outbox, "w", dead(&"😊".repeat(70_000)), &claimed);
    assert_eq!(
        bench.value("SELECT status || attempts || (octet_length(last_error) <= 4096) || (last_error LIKE '%(cut)') FROM outbox"),
        "dead711"
    );
}

/// Case 10: no clock but the database's; and a delay that no clock can reach.
#[test]
fn delays_count_from_the_databases_now() {
    let (bench, mut outbox) = Bench::own("");
    bench.insert(None, "x");
    let claimed = ids(&claim(&mut outbox, "w", 1).batch);
    settle(&mut outbox, "w", retry("x", u64::MAX), &claimed);
    assert_eq!(bench.value("SELECT available_at > unixepoch() * 1000 + 86400000 FROM outbox"), "1");
    lapse(&bench);
    outbox.claim(&ClaimRequest { lease_ms: 10_000, ..request("w", 1) }).unwrap();
    assert_eq!(bench.value("SELECT available_at - unixepoch('subsec') * 1000 BETWEEN 5000 AND 10000 FROM outbox"), "1");
    outbox.extend("w", &Column::of_texts(["1"]), 20_000).unwrap();
    assert_eq!(bench.value("SELECT available_at - unixepoch('subsec') * 1000 BETWEEN 15000 AND 20000 FROM outbox"), "1");
}

#[test]
fn settling_and_claiming_are_one_transaction() {
    let (bench, mut outbox) = Bench::own("");
    bench.insert(Some("a"), "1");
    bench.insert(Some("a"), "2");
    let first = ids(&outbox.claim(&request("w", 1)).unwrap().batch);
    let turn = outbox.settle_and_claim(&[settlement(Verdict::Delivered, &first)], &request("w", 1)).unwrap();
    assert_eq!((turn.lost.len(), ids(&turn.claimed.batch)), (0, vec!["2".to_owned()]));
    let turn = outbox.settle_and_claim(&[settlement(Verdict::Release(0), &["1", "2"])], &request("w", 9)).unwrap();
    assert_eq!((turn.lost, ids(&turn.claimed.batch)), (vec!["1".to_owned()], vec!["2".to_owned()]));
    let turn = outbox.settle_and_claim(&[settlement(Verdict::Delivered, &["2"])], &request("w", 9)).unwrap();
    assert_eq!((turn.claimed.batch.len(), bench.value("SELECT count(*) FROM outbox WHERE status = 'done'")), (0, "2".to_owned()));
}

#[test]
fn counts_add_up() {
    let (bench, mut outbox) = Bench::own("");
    assert_eq!(outbox.stats().unwrap().oldest_pending_ms, None);
    for key in ["a", "b", "c", "d", "e"] {
        bench.insert(Some(key), "x");
    }
    bench.run("UPDATE outbox SET created_at = created_at - 5000 WHERE id = 3");
    let claimed = ids(&claim(&mut outbox, "w", 10).batch);
    settle(&mut outbox, "w", Verdict::Delivered, &claimed[..1]);
    settle(&mut outbox, "w", dead("x"), &claimed[1..2]);
    settle(&mut outbox, "w", retry("x", 60_000), &claimed[2..3]);
    settle(&mut outbox, "w", Verdict::Release(0), &claimed[3..4]);
    let counts = outbox.stats().unwrap();
    assert_eq!((counts.pending, counts.due, counts.leased, counts.dead), (3, 1, 1, 1));
    assert!((5000..60_000).contains(&counts.oldest_pending_ms.unwrap()), "{counts:?}");
}

#[test]
fn messages_are_enqueued_and_come_out_alike() {
    let (_bench, mut outbox) = Bench::own("");
    let mut batch = Batch::new();
    let headers: [(&str, &[u8]); 3] = [("b", b"1"), ("a", b"\xd0\xb6"), ("b", b"2")];
    batch.push(&NewMessage { topic: "t", key: Some("k"), headers: &headers, payload: Some(b"\xff\x00"), ..NewMessage::default() });
    batch.push(&NewMessage { id: "77", topic: "u", ..NewMessage::default() });
    assert_eq!(outbox.enqueue(&batch).unwrap(), ["1", "77"]);
    let claimed = claim(&mut outbox, "w", 10).batch;
    assert_eq!(claimed.message(0).headers().collect::<Vec<_>>(), headers);
    assert_eq!((claimed.message(0).payload(), claimed.message(1).payload()), (Some(&b"\xff\x00"[..]), None));
    let mut bad = Batch::new();
    bad.push(&NewMessage { id: "x", topic: "t", ..NewMessage::default() });
    assert!(outbox.enqueue(&bad).unwrap_err().detail.contains("the id `x` is not a number"));
}

#[test]
fn pages_filters_requeue_discard_and_purge() {
    let (bench, mut outbox) = Bench::own("");
    for n in 0..10 {
        bench.insert(Some(&format!("k{n}")), &format!("p{n}"));
    }
    bench.run("UPDATE outbox SET topic = 'other' WHERE id > 8");
    let claimed = ids(&claim(&mut outbox, "w", 10).batch);
    settle(&mut outbox, "w", dead("bad"), &claimed[..4]);
    settle(&mut outbox, "w", Verdict::Delivered, &claimed[4..6]);
    settle(&mut outbox, "w", retry("later", 60_000), &claimed[6..7]);

    let first = outbox.browse(&Filter { state: Some(RowState::Dead), topic: None, ids: vec![] }, None, 3, true).unwrap();
    assert_eq!(first.rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!(first.rows[0].last_error.as_deref(), Some("invalid-message: bad"));
    assert_eq!(first.messages.unwrap().message(2).payload(), Some(&b"p2"[..]));
    let rest = outbox.browse(&Filter { state: Some(RowState::Dead), topic: None, ids: vec![] }, first.next.as_deref(), 3, false).unwrap();
    assert_eq!((rest.rows.len(), rest.next, rest.messages.is_none()), (1, None, true));

    let all = outbox.browse(&Filter { state: None, topic: None, ids: vec![] }, None, 100, false).unwrap().rows;
    let states: Vec<_> = all.iter().map(|row| row.state).collect();
    assert_eq!(states.iter().filter(|state| **state == RowState::Leased).count(), 3);
    assert_eq!((all[6].state, all[6].due_in_ms > 50_000, all[4].due_in_ms), (RowState::Pending, true, 0));
    let filter = |topic: Option<&str>, ids: &[&str]| Filter {
        state: None,
        topic: topic.map(str::to_owned),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    assert_eq!(outbox.browse(&filter(Some("other"), &[]), None, 9, false).unwrap().rows.len(), 2);
    assert_eq!(outbox.browse(&filter(Some("t"), &["9", "2", "x"]), None, 9, false).unwrap().rows.len(), 1);

    assert_eq!(outbox.requeue(&filter(None, &["1", "5", "8"])).unwrap(), 1, "only the dead one");
    assert_eq!(bench.value("SELECT status || attempts FROM outbox WHERE id = 1"), "pending0");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["1"]);
    assert_eq!(outbox.discard(&filter(None, &["2"])).unwrap(), 1);
    assert_eq!(outbox.discard(&Filter { state: Some(RowState::Pending), topic: None, ids: vec![] }).unwrap(), 0);
    assert_eq!(outbox.discard(&filter(None, &[])).unwrap(), 2);

    assert_eq!(outbox.purge(60_000, 10).unwrap(), 0, "too young");
    bench.run("UPDATE outbox SET done_at = done_at - 120000");
    assert_eq!((outbox.purge(60_000, 1).unwrap(), outbox.purge(60_000, 9).unwrap(), outbox.purge(60_000, 9).unwrap()), (1, 1, 0));
    assert_eq!(bench.value("SELECT count(*) FROM outbox"), "5");
}

#[test]
fn the_claim_names_its_index() {
    let (bench, mut outbox) = Bench::own("");
    bench.insert(Some("k1"), "x");
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 1);
    assert!(last_run("octet_length").0.contains(r#"INDEXED BY "outbox_pending""#));
    // An index that does not serve is not named: the rows would have to be sorted.
    bench.run("DROP INDEX outbox_pending");
    bench.run("DROP INDEX outbox_key_pending");
    bench.run("CREATE INDEX by_state ON outbox (status, topic)");
    let mut outbox = bench.open("");
    bench.insert(Some("k2"), "x");
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 1);
    assert!(last_run("octet_length").0.contains("NOT INDEXED"));
}

#[test]
fn without_an_index_rows_behind_the_first_unsettled_one_are_found_in_time() {
    let (bench, _) = Bench::own("");
    bench.run("DROP INDEX outbox_pending");
    bench.run("DROP INDEX outbox_key_pending");
    let mut outbox = bench.open("");
    for _ in 0..3 {
        bench.insert(None, "x");
    }
    settle(&mut outbox, "w", Verdict::Delivered, &ids(&outbox_claim(&bench)));
    for _ in 0..2 {
        bench.insert(None, "x");
        assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 1);
    }
    // Two claims on, the scan starts behind the settled rows; somebody requeues one of these.
    bench.run("UPDATE outbox SET status = 'pending', available_at = 0 WHERE id = 3");
    assert!((0..8).any(|_| ids(&claim(&mut outbox, "w", 10).batch) == ["3"]));
}

/// Claims with another instance, for the worker `w`.
fn outbox_claim(bench: &Bench) -> outhaul_sdk::Batch {
    claim(&mut bench.open(""), "w", 10).batch
}

#[test]
fn full_batches_go_on_behind_the_rows_in_flight() {
    let (bench, mut outbox) = Bench::own("");
    let insert = |keys: std::ops::Range<u32>| keys.map(|key| bench.insert(Some(&format!("k{key}")), "x")).collect::<Vec<_>>();
    let first = insert(0..40);
    assert_eq!(ids(&claim(&mut outbox, "w", 40).batch), first);
    // One row behind a row in flight, and a batch of others.
    let behind = insert(0..1);
    let second = insert(40..80);
    assert_eq!(ids(&claim(&mut outbox, "w", 40).batch), second);
    let (_, parameters) = last_run("octet_length");
    assert!(!parameters.contains(&i64::MIN.to_string()), "the scan started at the front: {parameters}");
    settle(&mut outbox, "w", Verdict::Delivered, &first);
    assert_eq!(ids(&claim(&mut outbox, "w", 40).batch), behind);
}
