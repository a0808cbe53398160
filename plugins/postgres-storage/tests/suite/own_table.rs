//! Outhaul's own table: claims, verdicts, fences, limits.

use super::support::{Bench, Postgres, claim, dead, describe, generic_plan, ids, last_run, request, retry, settle, settlement};
use outhaul_sdk::{Batch, ClaimRequest, Column, Filter, NewMessage, RowState, Verdict, WakeSource};
use postgres_storage::Outbox;

fn lapse(bench: &Bench) {
    bench.run("UPDATE outbox SET available_at = 'epoch' WHERE status = 'pending'");
}

#[test]
fn creating_the_schema_twice_changes_nothing() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    bench.insert(None, "x");
    outbox.create_schema().unwrap();
    assert_eq!(bench.value("SELECT count(*) FROM outbox"), "1");
    let schema = outbox.schema().unwrap();
    assert!(schema.contains("CREATE TABLE IF NOT EXISTS \"outbox\""), "{schema}");
    // The text is a migration that PostgreSQL takes as it is, and gives what the relay looks for.
    let Some(other) = Bench::new(&schema) else { return };
    other.insert(Some("k"), "x");
    assert_eq!(claim(&mut other.open(""), "w", 1).batch.len(), 1);
}

#[test]
fn long_and_odd_names_get_indexes_of_their_own() {
    let table = format!("\"Заказы; DROP TABLE x; --{}\"", "x".repeat(24));
    let more = format!(r#","table":"public.{}""#, table.replace('"', "\\\""));
    let Some((bench, mut outbox)) = Bench::own(&more) else { return };
    outbox.create_schema().unwrap();
    assert_eq!(bench.value("SELECT count(*) FROM pg_indexes WHERE tablename LIKE 'Заказы%'"), "4");
    bench.run(&format!("INSERT INTO {table} (topic, key, payload) VALUES ('t', 'k', 'x')"));
    assert_eq!(claim(&mut outbox, "w", 1).batch.len(), 1);
    let failure = super::support::open(&bench.config(&format!(r#","table":"{}""#, "x".repeat(64)))).unwrap_err();
    assert!(failure.detail.contains("`table`: PostgreSQL keeps 63 bytes of a name"), "{}", failure.detail);
}

#[test]
fn an_insert_notifies_the_channel_that_is_described() {
    let Some((bench, _)) = Bench::own("") else { return };
    let WakeSource::Notification(source) = describe(&bench.config("")).wake else { panic!("no channel") };
    assert_eq!(source.channel, "outhaul_public_outbox");
    assert_eq!(
        bench.notified(&source.channel, "INSERT INTO outbox (topic) SELECT 't' FROM generate_series(1, 100)"),
        1,
        "once a statement"
    );
    // Whatever the producer has first in its search path.
    bench.run("CREATE SCHEMA evil; CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT 1/0'");
    let insert = "SET search_path = evil, pg_catalog, public; INSERT INTO public.outbox (topic) VALUES ('t'); RESET search_path";
    assert_eq!(bench.notified(&source.channel, insert), 1);
    let given = describe(&bench.config(r#","notify_channel":"mine""#)).wake;
    assert!(matches!(given, WakeSource::Notification(source) if source.channel == "mine"));
}

/// Producers with two-phase commit: PREPARE TRANSACTION refuses a transaction that has notified.
#[test]
fn without_notifications_there_is_no_trigger_and_the_relay_polls() {
    let Some((bench, _)) = Bench::own("") else { return };
    let triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'outbox'::regclass";
    assert_eq!(bench.value(triggers), "1");
    let more = r#","notify":false"#;
    let mut outbox = bench.open(more);
    assert!(!outbox.schema().unwrap().contains("pg_notify"));
    for _ in 0..2 {
        outbox.create_schema().unwrap();
        assert_eq!(
            (bench.value(triggers), bench.value("SELECT count(*) FROM pg_proc WHERE proname = 'outbox_notify'")),
            ("0".into(), "0".into())
        );
    }
    assert!(matches!(describe(&bench.config(more)).wake, WakeSource::None));
    assert_eq!(bench.notified("outhaul_public_outbox", "INSERT INTO outbox (topic) VALUES ('t')"), 0);
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 1);
}

/// A producer's open INSERT into a table that refers to the outbox holds the row's key.
#[test]
fn rows_that_others_refer_to_are_worked_off_meanwhile() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    let id = bench.insert(Some("k"), "x");
    bench.run("CREATE TABLE audit (message bigint NOT NULL REFERENCES outbox)");
    let open = bench.holding(&format!("INSERT INTO audit VALUES ({id})"));
    for verdict in [retry("x", 0), dead("x")] {
        let claimed = ids(&claim(&mut outbox, "w", 10).batch);
        assert_eq!(claimed, std::slice::from_ref(&id));
        assert!(settle(&mut outbox, "w", verdict, &claimed).is_empty());
    }
    assert_eq!(outbox.requeue(&Filter { state: None, topic: None, ids: vec![] }).unwrap(), 1);
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), [id]);
    open.commit();
}

#[test]
fn before_the_table_is_there_only_the_schema_can_be_had() {
    let Some(bench) = Bench::new("CREATE TABLE orders (id bigint PRIMARY KEY)") else { return };
    let mut outbox = bench.open("");
    let failure = outbox.claim(&request("w", 1)).unwrap_err();
    assert_eq!(failure.code, outhaul_sdk::FailureCode::InvalidConfiguration);
    assert!(
        failure.detail.contains("`table`: there is no table \"outbox\"") && failure.detail.contains("`public.orders`"),
        "{}",
        failure.detail
    );
    assert!(outbox.schema().unwrap().contains("CREATE TABLE"));
    // Somebody else's migration creates it: the next claim finds it.
    bench.run(&outbox.schema().unwrap());
    bench.insert(None, "x");
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 1);
}

#[test]
fn a_message_is_claimed_as_it_was_stored() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    bench.run(r#"INSERT INTO outbox (topic, key, headers, payload) VALUES ('заказы', 'k', '{"b":"1","a":"2","b":"3"}', '\x00ff')"#);
    bench.run("INSERT INTO outbox (topic, key, payload) VALUES ('t', '', NULL), ('t', NULL, ''), ('t', NULL, '42')");
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
    let Some((bench, mut outbox)) = Bench::own("") else { return };
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
            "SELECT status || ' ' || attempts || ' ' || coalesce(leased_by, '-') || ' ' || coalesce(last_error, '-') || ' ' || (done_at IS NOT NULL)::int FROM outbox WHERE id = {id}"
        ))
    };
    assert_eq!(row("1"), "done 1 - - 1");
    assert_eq!(row("2"), "pending 1 - network: no route 0");
    assert_eq!(row("3"), "pending 0 - - 0");
    assert_eq!(row("4"), "dead 1 - invalid-message: never 1");
    assert_eq!(bench.value("SELECT available_at - now() BETWEEN interval '3 s' AND interval '5.1 s' FROM outbox WHERE id = 2"), "true");
    // The released one is due at once, the retried one is not.
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["3"]);
}

#[test]
fn delivered_rows_are_deleted_where_that_is_asked_for() {
    let Some((bench, mut outbox)) = Bench::own(r#","on_delivered":"delete""#) else { return };
    bench.insert(None, "x");
    let claimed = ids(&claim(&mut outbox, "w", 10).batch);
    assert!(settle(&mut outbox, "v", Verdict::Delivered, &claimed) == claimed, "only the holder deletes");
    assert!(settle(&mut outbox, "w", Verdict::Delivered, &claimed).is_empty());
    assert_eq!(bench.value("SELECT count(*) FROM outbox"), "0");
    assert_eq!(outbox.purge(0, 10).unwrap(), 0);
}

#[test]
fn a_worker_writes_only_to_rows_that_it_still_holds() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    let mut other = bench.open("");
    bench.insert(Some("a"), "x");
    bench.insert(Some("b"), "x");
    let first = ids(&claim(&mut outbox, "w1", 10).batch);
    assert_eq!(claim(&mut other, "w2", 10).batch.len(), 0, "leased");
    lapse(&bench);
    bench.run("UPDATE outbox SET available_at = now() + interval '60 s' WHERE id = 2");
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
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    bench.insert(None, "x");
    let claimed = ids(&claim(&mut outbox, "w", 1).batch);
    lapse(&bench);
    assert!(settle(&mut outbox, "w", Verdict::Delivered, &claimed).is_empty());
    assert_eq!(bench.value("SELECT status FROM outbox"), "done");
}

#[test]
fn a_waiting_head_holds_back_its_key_and_no_other() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    for key in [Some("a"), Some("a"), Some("b"), None, Some("a")] {
        bench.insert(key, "x");
    }
    let claimed = ids(&claim(&mut outbox, "w", 10).batch);
    settle(&mut outbox, "w", retry("x", 60_000), &claimed[..1]);
    settle(&mut outbox, "w", Verdict::Release(0), &claimed[1..]);
    bench.run("UPDATE outbox SET available_at = now()");
    bench.run("UPDATE outbox SET available_at = now() + interval '60 s' WHERE id = 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["3", "4"]);
    bench.run("UPDATE outbox SET available_at = now() WHERE id = 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["1"], "it has failed before: those behind it would be leased for nothing");
    // A dead head lets the others go on.
    settle(&mut outbox, "w", dead("x"), &["1".to_owned()]);
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["2", "5"]);
}

#[test]
fn loose_order_lets_later_rows_pass() {
    let Some((bench, mut outbox)) = Bench::own(r#","strict_order":false"#) else { return };
    for _ in 0..3 {
        bench.insert(Some("a"), "x");
    }
    bench.run("UPDATE outbox SET available_at = now() + interval '60 s' WHERE id = 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["2", "3"]);
}

/// Case 18: a row waits for visibility while a later row of its key is already visible.
#[test]
fn a_row_that_is_not_visible_yet_holds_back_its_key() {
    let Some((bench, mut outbox)) = Bench::own(r#","visibility_delay":"1h""#) else { return };
    for key in ["a", "a", "b"] {
        bench.insert(Some(key), "x");
    }
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 0);
    bench.run("UPDATE outbox SET created_at = created_at - interval '1 h' WHERE id > 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["3"]);
    bench.run("UPDATE outbox SET created_at = created_at - interval '1 h' WHERE id = 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["1", "2"]);
    assert_eq!(outbox.stats().unwrap().leased, 3);
}

#[test]
fn a_row_whose_last_attempt_ran_out_goes_dead_and_its_followers_go_on() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
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
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    // Beside its payload, each row here counts for 150 bytes.
    for size in [99, 100, 101] {
        bench.insert(Some("a"), &"x".repeat(size));
    }
    let claimed = outbox.claim(&ClaimRequest { max_message_bytes: 250, ..request("w", 10) }).unwrap();
    assert_eq!((ids(&claimed.batch), claimed.refused.len()), (vec!["1".to_owned(), "2".to_owned()], 1));
    assert_eq!(claimed.refused[0].failure.code, outhaul_sdk::FailureCode::TooLarge);
    assert_eq!(bench.value("SELECT status FROM outbox WHERE id = 3"), "dead");
}

#[test]
fn a_row_that_cannot_be_decoded_goes_dead_and_the_others_flow() {
    let Some((bench, mut outbox)) = Bench::own(r#","payload_encoding":"json""#) else { return };
    bench.run(r#"INSERT INTO outbox (topic, key, headers, payload) VALUES ('t', 'a', 'oops', '{}'), ('t', 'a', '{}', '{"a":1}'), ('t', 'a', '{}', 'no json')"#);
    let claimed = claim(&mut outbox, "w", 10);
    assert_eq!(ids(&claimed.batch), ["2"]);
    let refused: Vec<_> = claimed.refused.iter().map(|refusal| refusal.id.as_str()).collect();
    assert_eq!(refused, ["1", "3"]);
    assert_eq!(bench.value("SELECT count(*) FROM outbox WHERE status = 'dead' AND last_error LIKE 'invalid-message: the %'"), "2");
}

#[test]
fn a_claim_keeps_to_its_bytes() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    for _ in 0..5 {
        bench.insert(Some("a"), &"x".repeat(100));
    }
    for (max_bytes, expected) in [(1, 1), (499, 1), (500, 2), (1000, 1)] {
        let claimed = outbox.claim(&ClaimRequest { max_bytes, ..request("w", 10) }).unwrap();
        assert_eq!(claimed.batch.len(), expected, "{max_bytes} bytes");
        settle(&mut outbox, "w", Verdict::Delivered, &ids(&claimed.batch));
    }
}

/// Cases 2 and 3: texts that no database likes.
#[test]
fn a_failure_is_recorded_whatever_its_text() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    bench.insert(None, "x");
    for text in ["a\0b", "\u{fffd}\u{1}", &"x".repeat(1 << 20), &"😊".repeat(70_000), "'; DROP TABLE outbox; --", ""] {
        let claimed = ids(&claim(&mut outbox, "w", 1).batch);
        assert!(settle(&mut outbox, "w", retry(text, 0), &claimed).is_empty());
    }
    let claimed = ids(&claim(&mut outbox, "w", 1).batch);
    settle(&mut outbox, "w", dead(&"😊".repeat(70_000)), &claimed);
    assert_eq!(
        bench.value("SELECT status || attempts || (octet_length(last_error) <= 4096)::int || (last_error LIKE '%(cut)')::int FROM outbox"),
        "dead711"
    );
}

/// Case 10: no clock but the database's; and a delay that no clock can reach.
#[test]
fn delays_count_from_the_databases_now() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    bench.insert(None, "x");
    let claimed = ids(&claim(&mut outbox, "w", 1).batch);
    settle(&mut outbox, "w", retry("x", u64::MAX), &claimed);
    assert_eq!(bench.value("SELECT available_at > now() + interval '1 day' FROM outbox"), "true");
    lapse(&bench);
    outbox.claim(&ClaimRequest { lease_ms: 10_000, ..request("w", 1) }).unwrap();
    assert_eq!(bench.value("SELECT available_at - now() BETWEEN interval '5 s' AND interval '10 s' FROM outbox"), "true");
    outbox.extend("w", &Column::of_texts(["1"]), 20_000).unwrap();
    assert_eq!(bench.value("SELECT available_at - now() BETWEEN interval '15 s' AND interval '20 s' FROM outbox"), "true");
}

#[test]
fn settling_and_claiming_are_one_transaction() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    bench.insert(Some("a"), "1");
    bench.insert(Some("a"), "2");
    let first = ids(&outbox.claim(&request("w", 1)).unwrap().batch);
    let turn = outbox.settle_and_claim(&[settlement(Verdict::Delivered, &first)], &request("w", 1)).unwrap();
    assert_eq!((turn.lost.len(), ids(&turn.claimed.batch)), (0, vec!["2".to_owned()]));
    let turn = outbox.settle_and_claim(&[settlement(Verdict::Release(0), &["1".into(), "2".into()])], &request("w", 9)).unwrap();
    assert_eq!((turn.lost, ids(&turn.claimed.batch)), (vec!["1".to_owned()], vec!["2".to_owned()]));
    let turn = outbox.settle_and_claim(&[settlement(Verdict::Delivered, &["2".into()])], &request("w", 9)).unwrap();
    assert_eq!((turn.claimed.batch.len(), bench.value("SELECT count(*) FROM outbox WHERE status = 'done'")), (0, "2".to_owned()));
}

#[test]
fn counts_add_up() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    assert_eq!(outbox.stats().unwrap().oldest_pending_ms, None);
    for key in ["a", "b", "c", "d", "e"] {
        bench.insert(Some(key), "x");
    }
    bench.run("UPDATE outbox SET created_at = created_at - interval '5 s' WHERE id = 3");
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
    let Some((_bench, mut outbox)) = Bench::own("") else { return };
    let mut batch = Batch::new();
    let headers: [(&str, &[u8]); 3] = [("b", b"1"), ("a", b"\xd0\xb6"), ("b", b"2")];
    batch.push(&NewMessage { topic: "t", key: Some("k"), headers: &headers, payload: Some(b"\xff\x00"), ..NewMessage::default() });
    // An identity takes no ids from outside: the sequence would come to them one day.
    batch.push(&NewMessage { id: "77", topic: "u", ..NewMessage::default() });
    assert_eq!(outbox.enqueue(&batch).unwrap(), ["1", "2"]);
    let claimed = claim(&mut outbox, "w", 10).batch;
    assert_eq!(claimed.message(0).headers().collect::<Vec<_>>(), headers);
    assert_eq!((claimed.message(0).payload(), claimed.message(1).payload()), (Some(&b"\xff\x00"[..]), None));
}

#[test]
fn pages_filters_requeue_discard_and_purge() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
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
    bench.run("UPDATE outbox SET done_at = done_at - interval '2 min'");
    assert_eq!((outbox.purge(60_000, 1).unwrap(), outbox.purge(60_000, 9).unwrap(), outbox.purge(60_000, 9).unwrap()), (1, 1, 0));
    assert_eq!(bench.value("SELECT count(*) FROM outbox"), "5");
}

/// Inserts four batches of rows, each with a key of its own, and claims them; the ids of the first one. So many are passed over.
fn four_batches_in_flight(bench: &Bench, outbox: &mut Outbox<Postgres>) -> Vec<String> {
    let mut first = Vec::new();
    for batch in 0..4 {
        let inserted: Vec<String> = (0..40).map(|key| bench.insert(Some(&format!("k{}", batch * 40 + key)), "x")).collect();
        assert_eq!(ids(&claim(outbox, "w", 40).batch), inserted);
        if batch == 0 {
            first = inserted;
        }
    }
    first
}

/// The place of a row is taken before it is committed: one that comes late must not be overtaken by what is behind the rows in flight.
#[test]
fn a_row_that_is_committed_late_is_not_overtaken_behind_the_front() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    let late = bench.late_insert("late");
    let insert = |keys: std::ops::Range<u32>| keys.map(|key| bench.insert(Some(&format!("k{key}")), "x")).collect::<Vec<_>>();
    four_batches_in_flight(&bench, &mut outbox);
    let late = late.commit();
    // Producers of one key wait for each other: this one comes after the late one was committed.
    let follower = bench.insert(Some("late"), "x");
    let second = insert(200..239);
    let third = claim(&mut outbox, "w", 40);
    assert!(last_run("octet_length").0.contains(r#"t."id" OPERATOR(pg_catalog.>)"#), "it started behind the front");
    assert_eq!(ids(&third.batch), second, "without the follower");
    assert_eq!(ids(&claim(&mut outbox, "w", 40).batch), [late, follower]);
}

#[test]
fn full_batches_go_on_behind_the_rows_in_flight() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    let insert = |keys: std::ops::Range<u32>| keys.map(|key| bench.insert(Some(&format!("k{key}")), "x")).collect::<Vec<_>>();
    let first = four_batches_in_flight(&bench, &mut outbox);
    // One row behind a row in flight, and a batch of others.
    let behind = insert(0..1);
    let second = insert(200..240);
    assert_eq!(ids(&claim(&mut outbox, "w", 40).batch), second);
    assert!(last_run("octet_length").0.contains(r#"t."id" OPERATOR(pg_catalog.>)"#), "the scan started at the front");
    assert!(last_run("RETURNING").0.contains("NOT EXISTS"), "the heads of the keys were not looked up");
    settle(&mut outbox, "w", Verdict::Delivered, &first);
    assert_eq!(ids(&claim(&mut outbox, "w", 40).batch), behind);
}

/// For a table without statistics the planner takes the index by key and id for a tiny one.
#[test]
fn rows_are_found_by_their_ids_though_nothing_is_known_of_the_table() {
    let Some((bench, mut outbox)) = Bench::own("") else { return };
    bench.run("ALTER TABLE outbox SET (autovacuum_enabled = off)");
    bench.run("INSERT INTO outbox (topic, key, payload) SELECT 't', 'k' || n % 1000, 'x' FROM generate_series(1, 30000) n");
    let claimed = ids(&claim(&mut outbox, "w", 100).batch);
    settle(&mut outbox, "w", Verdict::Delivered, &claimed);
    for part in ["FROM ROWS FROM (pg_catalog.unnest", r#"SET "leased_by" = NULL, "status""#] {
        let plan = generic_plan(&bench, &last_run(part));
        assert!(plan.contains("outbox_pkey") && !plan.contains("outbox_key_pending"), "{part}\n{plan}");
    }
}
