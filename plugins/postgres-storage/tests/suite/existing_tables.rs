//! Tables that others made, drained as they are with the configurations in `examples/tables`.

use super::support::{Bench, Postgres, claim, dead, ids, open, request, retry, settle, settlement};
use outhaul_sdk::{Batch, ClaimRequest, Column, Filter, NewMessage, RowState, Verdict};
use postgres_storage::Outbox;

/// The DDL in the comments of an example: the table, and what is worth adding to it.
fn ddl(text: &str) -> String {
    let comments: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
    let mut tables: Vec<&str> = Vec::new();
    let mut later: Vec<&str> = Vec::new();
    for line in comments {
        let list = if line.starts_with("CREATE INDEX") || line.starts_with("ALTER TABLE") { &mut later } else { &mut tables };
        if !line.starts_with("outhaul ") {
            list.push(line);
        }
    }
    // Concurrently is for tables in use, and not for several statements at once.
    format!("{}\n{}", tables.join("\n"), later.join("\n")).replace(" CONCURRENTLY", "")
}

const TXOUTBOX: &str = include_str!("../../../../examples/tables/txoutbox-postgres.toml");
const OUTBOX_EVENT: &str = include_str!("../../../../examples/tables/outbox-event-postgres.toml");
const TRANSACTIONAL_OUTBOX: &str = include_str!("../../../../examples/tables/transactional-outbox-postgres.toml");
const EVENT_ROUTER: &str = include_str!("../../../../examples/tables/event-router-postgres.toml");

/// The `config` of the one storage in an example, as the host hands it to the adapter.
fn example(bench: &Bench, text: &str) -> String {
    let file: toml::Table = text.parse().expect("toml");
    let storages = file["storages"].as_table().expect("storages");
    let storage = storages.values().next().expect("one storage");
    assert_eq!((storages.len(), storage["plugin"].as_str()), (1, Some("postgres-storage")));
    let mut config = storage["config"].as_table().expect("config").clone();
    config.insert("database".into(), bench.url().into());
    serde_json::to_string(&config).expect("json")
}

/// The table of an example, and its storage.
fn ready(text: &str) -> Option<(Bench, Outbox<Postgres>)> {
    let bench = Bench::new(&ddl(text))?;
    let mut outbox = open(&example(&bench, text)).expect("open");
    outbox.create_schema().expect("schema");
    Some((bench, outbox))
}

/// Claims of batch by batch until there is nothing, every message delivered; the ids in their order.
fn drain(outbox: &mut Outbox<Postgres>, batch: u32) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let claimed = ids(&claim(outbox, "w", batch).batch);
        if claimed.is_empty() {
            return all;
        }
        assert!(settle(outbox, "w", Verdict::Delivered, &claimed).is_empty());
        all.extend(claimed);
    }
}

#[test]
fn txoutbox_is_drained() {
    let Some((bench, mut outbox)) = ready(TXOUTBOX) else { return };
    for n in 0..30 {
        bench.run(&format!(
            "INSERT INTO outbox (topic, key, payload, headers, created_at) VALUES ('orders', 'k{}', '{{}}', '{{\"n\":\"{n}\"}}', now())",
            n % 3
        ));
    }
    let first = claim(&mut outbox, "w", 3).batch;
    let head = first.message(0);
    assert_eq!(
        (head.payload(), head.headers().next(), head.attempts()),
        (Some(&b"{}"[..]), Some(("n", head_number(head.id()).as_slice())), 1)
    );
    assert!(head.created_at().unwrap() > 1_600_000_000_000);
    assert_eq!(bench.value("SELECT count(*) FROM outbox WHERE leased_by = 'w' AND lease_until > now() + interval '50 s'"), "3");
    let claimed = ids(&first);
    settle(&mut outbox, "w", dead("no"), &claimed[..1]);
    settle(&mut outbox, "w", retry("503", 30_000), &claimed[1..2]);
    settle(&mut outbox, "w", Verdict::Delivered, &claimed[2..]);
    assert_eq!(bench.value("SELECT count(*) FROM outbox WHERE status = 'pending' AND leased_by IS NULL AND lease_until IS NULL AND retry_at BETWEEN now() + interval '20 s' AND now() + interval '31 s' AND last_error = 'network: 503' AND attempts = 1"), "1");
    bench.run("UPDATE outbox SET retry_at = 'epoch' WHERE retry_at IS NOT NULL");
    drain(&mut outbox, 7);
    assert_eq!(
        bench.value(
            "SELECT string_agg(status || n, ',' ORDER BY status) FROM (SELECT status, count(*) AS n FROM outbox GROUP BY status) AS x"
        ),
        "dead1,done29"
    );
    assert_eq!(bench.value("SELECT last_error FROM outbox WHERE status = 'dead'"), "invalid-message: no");
    assert!(drain(&mut outbox, 7).is_empty(), "a second drain does nothing");
}

fn head_number(id: &str) -> Vec<u8> {
    (id.parse::<i64>().unwrap() - 1).to_string().into_bytes()
}

#[test]
fn txoutbox_leases_of_the_old_relay_are_respected() {
    let Some((bench, mut outbox)) = ready(TXOUTBOX) else { return };
    for key in ["a", "a", "b"] {
        bench.run(&format!("INSERT INTO outbox (topic, key, payload, created_at) VALUES ('t', '{key}', 'x', 'epoch')"));
    }
    bench.run("UPDATE outbox SET leased_by = 'old', lease_until = now() + interval '30 s' WHERE id = 1");
    assert_eq!(outbox.stats().unwrap().leased, 1);
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["3"]);
    bench.run("UPDATE outbox SET lease_until = clock_timestamp() - interval '1 ms' WHERE id = 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["1", "2"]);
}

/// Ids that sort against the order of insertion.
const Z: &str = "ffffffff-0000-4000-8000-000000000000";
const Y: &str = "eeeeeeee-0000-4000-8000-000000000000";
const X: &str = "dddddddd-0000-4000-8000-000000000000";
/// An aggregate.
const C1: &str = "11111111-0000-4000-8000-000000000000";
const C2: &str = "22222222-0000-4000-8000-000000000000";

fn event(bench: &Bench, id: &str, aggregate: &str) {
    bench.run(&format!(
        "INSERT INTO outbox_event (outbox_event_id, aggregate_id, event_type, payload) \
         VALUES ('{id}', '{aggregate}', 'requested', '{{\"claim_id\":\"c1\"}}')"
    ));
}

#[test]
fn outbox_event_is_drained_with_leases_beside_it() {
    let Some((bench, mut outbox)) = ready(OUTBOX_EVENT) else { return };
    for (id, aggregate) in [(Z, C1), (Y, C1), (X, C2)] {
        event(&bench, id, aggregate);
    }
    // A transient failure: it stays pending, with its attempt and error; then success.
    let claimed = claim(&mut outbox, "w", 10);
    assert_eq!(ids(&claimed.batch), [Z, Y, X]);
    let first = claimed.batch.message(0);
    assert_eq!((first.topic(), first.key(), first.payload()), ("requested", Some(C1), Some(&br#"{"claim_id": "c1"}"#[..])));
    settle(&mut outbox, "w", retry("state API timeout", 60_000), &[Z.into()]);
    settle(&mut outbox, "w", Verdict::Release(0), &[Y.into()]);
    settle(&mut outbox, "w", Verdict::Delivered, &[X.into()]);
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 0, "its followers wait");
    let row = |id: &str| {
        bench.value(&format!(
            "SELECT delivery_state || ' ' || attempts || ' ' || coalesce(last_error, '-') FROM outbox_event WHERE outbox_event_id = '{id}'"
        ))
    };
    assert_eq!((row(Z), row(Y), row(X)), ("pending 1 network: state API timeout".into(), "pending 0 -".into(), "sent 1 -".into()));
    bench.run("UPDATE outbox_event_leases SET available_at = 'epoch'");
    assert_eq!(drain(&mut outbox, 1), [Z, Y]);
    assert_eq!(row(Z), "sent 2 network: state API timeout");
    assert!(drain(&mut outbox, 10).is_empty());

    // Exhaustion: the last attempt's lease ran out.
    let last = "cccccccc-0000-4000-8000-000000000000";
    event(&bench, last, C2);
    for attempt in 1..=2 {
        let claimed = outbox.claim(&ClaimRequest { max_attempts: 2, ..request("w", 10) }).unwrap();
        assert_eq!(claimed.batch.message(0).attempts(), attempt);
        bench.run("UPDATE outbox_event_leases SET lease_until = 'epoch'");
    }
    let claimed = outbox.claim(&ClaimRequest { max_attempts: 2, ..request("w", 10) }).unwrap();
    assert_eq!((claimed.batch.len(), claimed.refused.len()), (0, 1));
    assert!(row(last).starts_with("failed 2 attempts-used-up: "), "{}", row(last));
    assert_eq!(bench.value("SELECT count(*) FROM outbox_event_leases"), "0", "settled rows leave nothing behind");
}

#[test]
fn leases_beside_the_table_are_fenced_too() {
    let Some((bench, mut outbox)) = ready(OUTBOX_EVENT) else { return };
    event(&bench, X, C1);
    let claimed = ids(&claim(&mut outbox, "w1", 10).batch);
    assert_eq!((outbox.stats().unwrap().leased, outbox.stats().unwrap().due), (1, 0));
    bench.run("UPDATE outbox_event_leases SET lease_until = 'epoch'");
    assert_eq!(claim(&mut outbox, "w2", 10).batch.message(0).attempts(), 2);
    for verdict in [Verdict::Delivered, retry("x", 0), Verdict::Release(0), dead("x")] {
        assert_eq!(settle(&mut outbox, "w1", verdict, &claimed), [X]);
    }
    assert_eq!(outbox.extend("w1", &Column::of_texts(&claimed), 1).unwrap(), [X]);
    assert_eq!(bench.value("SELECT leased_by || attempts || (lease_until > now())::int FROM outbox_event_leases"), "w221");
    assert!(outbox.extend("w2", &Column::of_texts(&claimed), 90_000).unwrap().is_empty());
    assert!(settle(&mut outbox, "w2", dead("x"), &claimed).is_empty());
    assert_eq!(outbox.requeue(&Filter { state: None, topic: Some("requested".into()), ids: vec![] }).unwrap(), 1);
    assert_eq!(claim(&mut outbox, "w3", 10).batch.message(0).attempts(), 1);
    let others = [X.to_uppercase(), "x".to_owned(), X.to_owned()];
    assert_eq!(settle(&mut outbox, "w3", Verdict::Delivered, &others), others[..2], "what is no id of the table is nobody's");
}

#[test]
fn before_the_lease_table_is_there_claims_say_so() {
    let Some(bench) = Bench::new(&ddl(OUTBOX_EVENT)) else { return };
    let mut outbox = open(&example(&bench, OUTBOX_EVENT)).unwrap();
    let failure = outbox.claim(&request("w", 1)).unwrap_err();
    assert!(failure.detail.contains("`lease_table`: there is no table \"public\".\"outbox_event_leases\""), "{}", failure.detail);
    assert!(outbox.schema().unwrap().contains("CREATE TABLE IF NOT EXISTS \"public\".\"outbox_event_leases\""));
}

#[test]
fn transactional_outbox_is_drained() {
    let Some((bench, mut outbox)) = ready(TRANSACTIONAL_OUTBOX) else { return };
    for n in 1..=6 {
        bench.run(&format!(
            "INSERT INTO transactional_outbox (event_id, topic, aggregate_id, payload_json, available_at_epoch, created_at_epoch) VALUES ('e{n}', 't', 'a{n}', '{{}}', extract(epoch from now()), extract(epoch from now()))"
        ));
    }
    // The old relay died with e1, and still holds e2.
    bench.run("UPDATE transactional_outbox SET status = 'PROCESSING', attempt_count = 1, locked_until_epoch = extract(epoch from now()) - 1 WHERE event_id = 'e1'");
    bench.run("UPDATE transactional_outbox SET status = 'PROCESSING', attempt_count = 1, locked_until_epoch = extract(epoch from now()) + 60 WHERE event_id = 'e2'");
    let counts = outbox.stats().unwrap();
    assert_eq!((counts.pending, counts.leased, counts.due), (6, 1, 5));
    let claimed = claim(&mut outbox, "w", 10).batch;
    assert_eq!(ids(&claimed), ["e1", "e3", "e4", "e5", "e6"]);
    assert_eq!((claimed.message(0).attempts(), claimed.message(1).attempts()), (2, 1));
    // The old relay would leave them alone.
    assert_eq!(
        bench.value(
            "SELECT count(*) FROM transactional_outbox WHERE status = 'PROCESSING' AND locked_until_epoch > extract(epoch from now()) + 30"
        ),
        "6"
    );
    settle(&mut outbox, "w", Verdict::Delivered, &["e1".into(), "e6".into()]);
    settle(&mut outbox, "w", retry("503", 60_000), &["e3".into()]);
    settle(&mut outbox, "w", Verdict::Release(0), &["e4".into()]);
    settle(&mut outbox, "w", dead("400"), &["e5".into()]);
    let row = |id: &str| {
        bench.value(&format!(
            "SELECT status || ' ' || attempt_count || ' ' || locked_until_epoch || ' ' || coalesce(last_error, '-') FROM transactional_outbox WHERE event_id = '{id}'"
        ))
    };
    assert_eq!(row("e3"), "PENDING 1 0 network: 503");
    assert_eq!(row("e4"), "PENDING 0 0 -");
    assert_eq!(row("e5"), "DEAD_LETTER 1 0 invalid-message: 400");
    assert_eq!(bench.value("SELECT count(*) FROM transactional_outbox WHERE event_id IN ('e1', 'e6')"), "0");
    assert_eq!(drain(&mut outbox, 10), ["e4"]);
    bench.run("UPDATE transactional_outbox SET available_at_epoch = 0, locked_until_epoch = 0 WHERE status <> 'DEAD_LETTER'");
    let mut rest = drain(&mut outbox, 1);
    rest.sort_unstable();
    assert_eq!(rest, ["e2", "e3"]);
    assert_eq!(bench.value("SELECT string_agg(event_id, ',') FROM transactional_outbox"), "e5");
    assert_eq!(outbox.browse(&Filter { state: Some(RowState::Dead), topic: None, ids: vec![] }, None, 9, true).unwrap().rows[0].id, "e5");
    assert_eq!(outbox.discard(&Filter { state: None, topic: None, ids: vec!["e5".into()] }).unwrap(), 1);
}

#[test]
fn a_table_of_the_event_router_is_drained_by_its_timestamps() {
    let Some((bench, mut outbox)) = ready(EVENT_ROUTER) else { return };
    let insert = |id: &str, key: &str, created: &str| {
        bench.run(&format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at) VALUES ('{id}', 'order', '{key}', 'Created', '{{}}', {created})"
        ));
    };
    insert(Z, "7", "now() - interval '2 s'");
    // Of the same moment: by id.
    insert(Y, "7", "now() - interval '1 s'");
    bench.run(&format!(
        "INSERT INTO outbox SELECT '{X}', aggregatetype, aggregateid, type, payload, state, created_at FROM outbox WHERE id = '{Y}'"
    ));
    insert(C1, "8", "'-infinity'");
    insert(C2, "8", "'infinity'");
    let claimed = outbox.claim(&ClaimRequest { max_attempts: 1, ..request("w", 10) }).unwrap().batch;
    assert_eq!(ids(&claimed), [C1, Z, X, Y, C2]);
    let headers: Vec<_> = claimed.message(1).headers().collect();
    assert_eq!((claimed.message(1).topic(), headers), ("order", vec![("id", Z.as_bytes()), ("eventType", &b"Created"[..])]));
    assert!(settle(&mut outbox, "w", retry("503", 0), &[Z.into()]).is_empty());
    // Its attempt is used up: it ends dead, and its followers go on.
    bench.run(
        "UPDATE outbox_leases SET lease_until = 'epoch', available_at = 'epoch', attempts = CASE WHEN last_error IS NULL THEN 0 ELSE 1 END",
    );
    let claimed = outbox.claim(&ClaimRequest { max_attempts: 1, ..request("w", 10) }).unwrap();
    assert_eq!(
        (claimed.refused.len(), claimed.refused[0].id.as_str(), ids(&claimed.batch)),
        (1, Z, [C1, X, Y, C2].map(str::to_owned).to_vec())
    );
    let any = || Filter { state: None, topic: None, ids: vec![] };
    let mut seen = Vec::new();
    let mut page = None;
    loop {
        let next = outbox.browse(&any(), page.as_deref(), 2, false).unwrap();
        seen.extend(next.rows.into_iter().map(|row| row.id));
        page = next.next;
        if page.is_none() {
            break;
        }
    }
    assert_eq!(seen, [C1, Z, X, Y, C2], "pages in the same order");
    settle(&mut outbox, "w", Verdict::Delivered, &ids(&claimed.batch));
    assert_eq!(bench.value("SELECT string_agg(state, ',') FROM outbox"), "dead");
}

#[test]
fn many_rows_in_flight_of_a_table_ordered_by_timestamps() {
    let Some((bench, mut outbox)) = ready(EVENT_ROUTER) else { return };
    bench.run("INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), 't', i, 'x', '{}' FROM generate_series(1, 3000) AS i");
    let mut seen = Vec::new();
    let mut other = open(&example(&bench, EVENT_ROUTER)).unwrap();
    for at in 0.. {
        let (from, name) = if at % 3 == 0 { (&mut other, "v") } else { (&mut outbox, "w") };
        let claimed = ids(&claim(from, name, 200).batch);
        if claimed.is_empty() && seen.len() == 3000 {
            break;
        }
        seen.extend(claimed);
        assert!(at < 100, "{} of 3000", seen.len());
    }
    let expected = bench.value("SELECT count(*) FROM (SELECT 1 FROM outbox_leases GROUP BY id) AS x");
    assert_eq!(expected, "3000");
}

#[test]
fn the_front_and_the_keys_are_read_from_indexes() {
    for (text, front, keys) in [
        (TXOUTBOX, "outbox_pending_idx", "outbox_key_pending_idx"),
        (OUTBOX_EVENT, "outbox_event_pending", "outbox_event_key_pending"),
        (EVENT_ROUTER, "outbox_pending", "outbox_key_pending"),
    ] {
        let Some((bench, mut outbox)) = ready(text) else { return };
        claim(&mut outbox, "w", 1);
        let plan = super::support::plan(&bench, &super::support::last_run("AS s FROM"));
        assert!(plan.contains(&format!("using {front} ")) && !plan.contains("Sort"), "{plan}");
        let (sql, _) = outbox_walk(&bench, text);
        assert!(sql.contains(keys), "{sql}");
    }
}

/// The plan of the walk: nothing due among many rows brings it about.
fn outbox_walk(bench: &Bench, text: &str) -> (String, String) {
    let table = if text == OUTBOX_EVENT { "outbox_event" } else { "outbox" };
    let columns = match text {
        TXOUTBOX => "(topic, key, payload, retry_at) SELECT 't', 'k' || i, '', 'infinity'",
        OUTBOX_EVENT => "(outbox_event_id, aggregate_id, event_type, payload) SELECT gen_random_uuid(), gen_random_uuid(), 't', '{}'",
        _ => "(id, aggregatetype, aggregateid, type) SELECT gen_random_uuid(), 't', i, 't'",
    };
    bench.run(&format!("INSERT INTO {table} {columns} FROM generate_series(1, 12000) AS i"));
    let mut outbox = open(&example(bench, text)).unwrap();
    if text != TXOUTBOX {
        // In flight, all of them.
        for _ in 0..3 {
            claim(&mut outbox, "v", 5000);
        }
    }
    let mut outbox = open(&example(bench, text)).unwrap();
    assert_eq!(claim(&mut outbox, "w", 50).batch.len(), 0);
    let run = super::support::last_run("RECURSIVE");
    (super::support::plan(bench, &run), run.0)
}

#[test]
fn messages_can_be_enqueued_into_each() {
    for text in [TXOUTBOX, OUTBOX_EVENT, TRANSACTIONAL_OUTBOX] {
        let Some((_bench, mut outbox)) = ready(text) else { return };
        let mut batch = Batch::new();
        batch.push(&NewMessage { topic: "t", key: Some(C1), payload: Some(b"{}"), ..NewMessage::default() });
        let enqueued = outbox.enqueue(&batch).unwrap();
        assert_eq!(drain(&mut outbox, 10), enqueued);
    }
    let Some((_bench, mut outbox)) = ready(EVENT_ROUTER) else { return };
    let mut batch = Batch::new();
    batch.push(&NewMessage { topic: "t", key: Some("k"), payload: Some(b"{}"), ..NewMessage::default() });
    // A column that the configuration knows as a header must be filled: the table's own constraint says so.
    assert!(outbox.enqueue(&batch).unwrap_err().detail.contains("\"type\""));
    let headers: [(&str, &[u8]); 1] = [("eventtype", b"Created")];
    let mut batch = Batch::new();
    batch.push(&NewMessage { id: X, topic: "t", key: Some("k"), payload: Some(b"{}"), headers: &headers, ..NewMessage::default() });
    assert_eq!(outbox.enqueue(&batch).unwrap(), [X]);
    assert_eq!(drain(&mut outbox, 10), [X]);
    let mut batch = Batch::new();
    batch.push(&NewMessage { topic: "t", payload: Some(b"no json"), headers: &headers, ..NewMessage::default() });
    assert!(outbox.enqueue(&batch).unwrap_err().detail.contains("the payload is not JSON"));
}

#[test]
fn odd_names_are_quoted() {
    let Some(bench) = Bench::new(
        r#"CREATE SCHEMA "an ""odd"" one"; CREATE TABLE "an ""odd"" one"."order ""by"" заказы" ("select" INTEGER PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY, "from" TEXT, "where;--" TEXT, "o'k" SMALLINT DEFAULT 0, "группа" BIGINT DEFAULT 0, "by.who" TEXT, "n" SMALLINT, "Key" TEXT, extra TEXT)"#,
    ) else {
        return;
    };
    let mut outbox = bench.open(
        r#","table":"\"an \"\"odd\"\" one\".\"order \"\"by\"\" заказы\"","columns":{"id":"select","topic":"from","payload":"where;--","state":"o'k","available_at":"группа","leased_by":"by.who","attempts":"n","key":"Key"},"states":{"pending":0,"delivered":1,"dead":2},"extra_headers":{"extra":"x-extra"}"#,
    );
    bench.run(
        r#"INSERT INTO "an ""odd"" one"."order ""by"" заказы" ("from", "where;--", "Key", extra) VALUES ('t', 'p', 'k', 'e'), ('t', 'p', 'k', NULL)"#,
    );
    let batch = claim(&mut outbox, "w", 10).batch;
    assert_eq!(batch.message(0).headers().collect::<Vec<_>>(), [("x-extra", &b"e"[..])]);
    assert_eq!(batch.message(1).headers().count(), 0);
    settle(&mut outbox, "w", Verdict::Delivered, &ids(&batch));
    assert_eq!(bench.value(r#"SELECT sum("o'k") FROM "an ""odd"" one"."order ""by"" заказы""#), "2");
    assert!(outbox.stats().is_ok() && outbox.schema().unwrap().contains("Nothing to create"));
}

/// A table whose times and state are of a type, with three rows: due, waiting, and one with `odd` as its due time.
fn typed(state: &str, time: &str, more: &str) -> Option<(Bench, Outbox<Postgres>)> {
    let bench = Bench::new(&format!(
        "CREATE TYPE mood AS ENUM ('pending', 'done', 'dead');
         CREATE DOMAIN moment AS timestamptz;
         CREATE TABLE t (id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY, topic text, body json, state {state}, due {time}, until {time}, by varchar(60), n smallint, err varchar(20), created {time})"
    ))?;
    let outbox = bench.open(&format!(
        r#","table":"t","columns":{{"id":"id","topic":"topic","payload":"body","state":"state","available_at":"due","lease_until":"until","leased_by":"by","attempts":"n","last_error":"err","created_at":"created"}}{more}"#
    ));
    Some((bench, outbox))
}

#[test]
fn times_may_be_of_many_types() {
    for (time, more, past, future, odd) in [
        ("timestamptz", "", "'epoch'", "now() + interval '1 h'", &["NULL", "'-infinity'", "'4713-01-01 BC'"][..]),
        ("moment", "", "'epoch'", "now() + interval '1 h'", &["NULL"]),
        ("timestamp", "", "'epoch'", "now() AT TIME ZONE 'UTC' + interval '1 h'", &["NULL", "'-infinity'"]),
        ("timestamp(0)", "", "'epoch'", "now() AT TIME ZONE 'UTC' + interval '1 h'", &["NULL"]),
        ("bigint", "", "0", "extract(epoch from now()) * 1000 + 3600000", &["NULL", "-9223372036854775808"]),
        ("bigint", r#","time_unit":"seconds""#, "0", "extract(epoch from now()) + 3600", &["NULL", "-9223372036854775808"]),
        ("numeric", "", "0", "extract(epoch from now()) + 3600", &["NULL", "'NaN'", "-1e40"]),
        ("double precision", "", "0", "extract(epoch from now()) + 3600", &["NULL", "'NaN'", "'-Infinity'"]),
        ("double precision", r#","time_unit":"ms""#, "0", "extract(epoch from now()) * 1000 + 3600000", &["NULL", "'NaN'"]),
        (
            "text",
            "",
            "'2001-01-01 00:00:00'",
            "to_char(now() AT TIME ZONE 'UTC' + interval '1 h', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"+00:00\"')",
            &[
                "NULL",
                "'nonsense'",
                "'2026-02-31T25:00'",
                "'2001-13-01'",
                "''",
                "'2001-02-31'",
                "'2001-01-01T05:30:00+05:30'",
                "'0000-01-01'",
                "'2001-01-01'",
            ],
        ),
    ] {
        let Some((bench, mut outbox)) = typed("text NOT NULL DEFAULT 'pending'", time, more) else { return };
        let now = if time == "text" || past == "0" { "NULL" } else { "now()" };
        bench.run(&format!("INSERT INTO t (topic, body, due, created) VALUES ('t', '1', {past}, {now}), ('t', '2', {future}, NULL)"));
        for odd in odd {
            bench.run(&format!("INSERT INTO t (topic, body, due) VALUES ('t', '3', {odd})"));
        }
        let counts = outbox.stats().unwrap_or_else(|failure| panic!("{time}: {failure:?}"));
        assert_eq!((counts.pending, counts.due), (2 + odd.len() as u64, 1 + odd.len() as u64), "{time}{more}");
        let batch = claim(&mut outbox, "w", 20).batch;
        assert_eq!(batch.len(), 1 + odd.len(), "{time}{more}");
        assert_eq!(outbox.stats().unwrap().leased, batch.len() as u64, "{time}{more}");
        assert!(outbox.extend("w", &Column::of_texts(ids(&batch)), 120_000).unwrap().is_empty());
        assert!(settle(&mut outbox, "w", retry(&"long".repeat(20), 90_000), &ids(&batch)).is_empty());
        assert_eq!(outbox.stats().unwrap().due, 0, "{time}{more}");
        let page = outbox.browse(&Filter { state: None, topic: None, ids: vec!["1".into()] }, None, 9, true).unwrap();
        assert!((80_000..=91_000).contains(&page.rows[0].due_in_ms), "{time}{more}: {:?}", page.rows[0]);
        assert_eq!(page.rows[0].last_error.as_deref(), Some("network: longlonglon"), "within what the column takes");
        let created = page.rows[0].created_at;
        assert!(now == "NULL" || created > 1_600_000_000_000, "{time}{more}: {created}");
    }
}

#[test]
fn states_may_be_of_many_types() {
    let numbers = r#","states":{"pending":0,"delivered":1,"dead":2}"#;
    for (state, more) in [
        ("mood NOT NULL DEFAULT 'pending'", ""),
        ("varchar(10) DEFAULT 'pending'", ""),
        ("char(10) DEFAULT 'pending'", ""),
        ("smallint DEFAULT 0", numbers),
        ("bigint DEFAULT 0", numbers),
        ("boolean DEFAULT false", r#","on_delivered":"delete","states":{"pending":"false","dead":"true"}"#),
    ] {
        let Some((bench, mut outbox)) = typed(state, "timestamptz", more) else { return };
        bench.run("INSERT INTO t (topic, body) VALUES ('t', '1'), ('t', '2'), ('t', '3')");
        let claimed = ids(&claim(&mut outbox, "w", 10).batch);
        assert_eq!(claimed.len(), 3, "{state}");
        settle(&mut outbox, "w", Verdict::Delivered, &claimed[..1]);
        settle(&mut outbox, "w", dead("x"), &claimed[1..2]);
        let counts = outbox.stats().unwrap();
        assert_eq!((counts.pending, counts.dead), (1, 1), "{state}");
        assert_eq!(outbox.requeue(&Filter { state: None, topic: None, ids: vec![] }).unwrap(), 1, "{state}");
    }
    for (state, more, key) in [
        ("mood DEFAULT 'pending'", r#","states":{"dead":"buried"}"#, "states.dead"),
        ("integer DEFAULT 0", "", "states.pending"),
        ("boolean DEFAULT false", r#","states":{"pending":"false","delivered":"true","dead":"gone"}"#, "states.dead"),
    ] {
        let Some((bench, _)) = typed("text", "timestamptz", "") else { return };
        bench.run(&format!("ALTER TABLE t DROP COLUMN state; ALTER TABLE t ADD COLUMN state {state}"));
        let failure = open(&bench.config(&format!(
            r#","table":"t","topic":"x","columns":{{"id":"id","payload":"body","state":"state","available_at":"due","leased_by":"by","attempts":"n"}}{more}"#
        )))
        .unwrap_err();
        assert!(failure.detail.contains(&format!("`{key}`: the column")), "{failure:?}");
    }
}

#[test]
fn partitioned_tables_are_worked_off() {
    let Some(bench) = Bench::new(
        "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, topic text, key text, body bytea, state text NOT NULL DEFAULT 'pending', due timestamptz, by text, n integer, day date NOT NULL DEFAULT '2026-01-01', PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
         CREATE TABLE t1 PARTITION OF t FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
         CREATE TABLE t2 PARTITION OF t FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
         CREATE INDEX ON t (id) WHERE state = 'pending'; CREATE INDEX ON t (key, id) WHERE state = 'pending'",
    ) else {
        return;
    };
    let more = r#","table":"t","columns":{"id":"id","topic":"topic","key":"key","payload":"body","state":"state","available_at":"due","leased_by":"by","attempts":"n"}"#;
    let mut outbox = bench.open(more);
    bench.run("INSERT INTO t (topic, key, body, day) SELECT 't', 'k' || i % 3, 'x', date '2026-01-01' + (i % 2) * 31 FROM generate_series(1, 60) AS i");
    let mut all: Vec<i64> = drain(&mut outbox, 7).iter().map(|id| id.parse().unwrap()).collect();
    for key in 0..3 {
        assert!(all.iter().filter(|id| *id % 3 == key).is_sorted());
    }
    all.sort_unstable();
    assert_eq!(all, (1..=60).collect::<Vec<_>>());
    // A partition that is locked, or gone, is somebody else's; the others go on.
    bench.run("INSERT INTO t (topic, key, body) VALUES ('t', 'a', 'x')");
    bench.run("ALTER TABLE t DETACH PARTITION t2");
    assert_eq!(drain(&mut outbox, 7).len(), 1);
}

/// A row that moves to another partition while it is waited for cannot be locked any more: the server says so, and it is looked for again.
#[test]
fn rows_that_move_between_partitions_are_worked_off() {
    let Some(bench) = Bench::new(
        "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, topic text, key text, body bytea, state text NOT NULL DEFAULT 'pending', due timestamptz, by text, n integer, PRIMARY KEY (id, state)) PARTITION BY LIST (state);
         CREATE TABLE hot PARTITION OF t FOR VALUES IN ('pending');
         CREATE TABLE cold PARTITION OF t FOR VALUES IN ('done', 'dead');",
    ) else {
        return;
    };
    let more = r#","table":"t","columns":{"id":"id","topic":"topic","key":"key","payload":"body","state":"state","available_at":"due","leased_by":"by","attempts":"n"}"#;
    let mut outbox = bench.open(more);
    bench.run("INSERT INTO t (topic, key, body) SELECT 't', i, 'x' FROM generate_series(1, 3) AS i");
    let claimed = ids(&claim(&mut outbox, "w", 10).batch);
    assert!(settle(&mut outbox, "w", Verdict::Delivered, &claimed[..1]).is_empty());
    assert_eq!(bench.value("SELECT string_agg(id::text, ',') FROM cold"), claimed[0]);
    // Somebody else moves a row for which a verdict waits.
    let holding = bench.holding(&format!("UPDATE t SET state = 'done' WHERE id = {}", claimed[1]));
    let (url, given) = (bench.config(more), claimed.clone());
    let late = std::thread::spawn(move || open(&url).unwrap().settle("w", &[settlement(Verdict::Delivered, &given[1..])]));
    bench.wait_for_a_waiter();
    holding.commit();
    let failure = late.join().unwrap().unwrap_err();
    assert_eq!(failure.code, outhaul_sdk::FailureCode::Timeout, "to be tried again: {failure:?}");
    assert_eq!(settle(&mut outbox, "w", Verdict::Delivered, &claimed[1..]), claimed[1..2]);
    // A claim that meets one looks again at once.
    bench.run(
        "CREATE SEQUENCE calls; CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         IF nextval('calls') = 1 THEN RAISE 'moved to another partition' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$;
         INSERT INTO t (topic, key, body) VALUES ('t', 'k', 'x');
         CREATE TRIGGER moved BEFORE UPDATE ON hot FOR EACH ROW EXECUTE FUNCTION moved()",
    );
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 1);
}

/// Payloads that are kept compressed, or in another form: estimated where rows are looked through, weighed where they are taken.
#[test]
fn sizes_of_json_are_exact_where_they_count() {
    let Some(bench) = Bench::new(
        "CREATE TABLE t (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, key text, body jsonb, state text NOT NULL DEFAULT 'pending', due timestamptz, by text, n integer);
         CREATE INDEX ON t (key, id) WHERE state = 'pending'",
    ) else {
        return;
    };
    let more = r#","table":"t","topic":"x","columns":{"id":"id","key":"key","payload":"body","state":"state","available_at":"due","leased_by":"by","attempts":"n"}"#;
    let mut outbox = bench.open(more);
    bench.run(
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL;
         INSERT INTO t (key, body) SELECT 'a', jsonb_agg(i % 10) FROM generate_series(1, 3000) AS i;
         ALTER TABLE t ALTER body SET STORAGE EXTENDED;
         INSERT INTO t (key, body) SELECT 'a', to_jsonb(repeat('x', 30000));
         INSERT INTO t (key, body) SELECT 'a', to_jsonb(repeat('x', 6000)) FROM generate_series(1, 8)",
    );
    // Longer in the table than as text; and the other way round.
    assert_eq!(bench.value("SELECT string_agg((pg_column_size(body) > 10000)::text, ',' ORDER BY id) FROM t WHERE id < 3"), "true,false");
    let claimed = outbox.claim(&ClaimRequest { max_message_bytes: 10_000, max_bytes: 40_000, ..request("w", 10) }).unwrap();
    let scan = super::support::last_run("pg_column_size").0;
    assert!(!scan.contains(r#"octet_length(CAST(t."body""#), "{scan}");
    assert_eq!(ids(&claimed.batch), ["1", "3", "4", "5", "6", "7"], "so many bytes, and no more");
    let refused: Vec<_> = claimed.refused.iter().map(|refusal| (refusal.id.as_str(), &refusal.failure.code)).collect();
    assert_eq!(refused, [("2", &outhaul_sdk::FailureCode::TooLarge)]);
    // What was left is not passed over.
    assert!(settle(&mut outbox, "w", Verdict::Delivered, &ids(&claimed.batch)).is_empty());
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["8", "9", "10"]);
}

#[test]
fn what_cannot_work_is_refused_with_what_would() {
    let Some(bench) = Bench::new(
        "CREATE TABLE t (id bigint PRIMARY KEY, topic text, body bytea, state text, due timestamptz, by text, n integer, name text, nr numeric UNIQUE, ref text UNIQUE, u uuid NOT NULL UNIQUE, twice integer GENERATED ALWAYS AS (2) STORED, at timestamptz, iv interval);
         CREATE TABLE leases (id bigint);
         CREATE VIEW v AS SELECT * FROM t; CREATE MATERIALIZED VIEW m AS SELECT * FROM t; CREATE SEQUENCE s; CREATE SCHEMA other; CREATE TABLE other.far (id bigint)",
    ) else {
        return;
    };
    let with = |changes: &[(&str, &str)]| {
        let mut columns = std::collections::BTreeMap::from([
            ("id", "id"),
            ("topic", "topic"),
            ("payload", "body"),
            ("state", "state"),
            ("available_at", "due"),
            ("leased_by", "by"),
            ("attempts", "n"),
        ]);
        columns.extend(changes.iter().copied());
        format!(r#","table":"t","columns":{}"#, serde_json::to_string(&columns).unwrap())
    };
    let table = |name: &str| with(&[]).replace(r#""table":"t""#, &format!(r#""table":"{name}""#));
    for (more, expected) in [
        (with(&[("key", "kee")]), "`columns.key`: the table \"public\".\"t\" has no column `kee` (columns: `id`, `topic`,"),
        (with(&[("key", "NAME")]), "has no column `NAME`"),
        (with(&[("attempts", "tries")]), "set `lease_table` to the name of a table of leases"),
        (with(&[("attempts", "name")]), "`columns.attempts`: the column `name` is declared `text`; it must be smallint, integer or bigint"),
        (with(&[("attempts", "twice")]), "`columns.attempts`: the column `twice` is generated"),
        (with(&[("available_at", "iv")]), "`columns.available_at`: the column `iv` is declared `interval`"),
        (with(&[("id", "name")]), "`columns.id`: the column `name` is not unique"),
        (with(&[("id", "nr")]), "`columns.id`: the column `nr` is declared `numeric`; an id must be"),
        (with(&[("id", "ref"), ("order", "id")]), "`columns.id`: the column `ref` may be NULL"),
        (with(&[("id", "u")]), "`columns.order`: ids of this table are no integers"),
        (with(&[("id", "u"), ("order", "at")]), "`columns.order`: the column `at` is declared `timestamp with time zone`; it must be"),
        (with(&[("order", "n")]), "`columns.order`: the column `n` is declared `integer`; it must be a unique integer"),
        (with(&[]) + r#","extra_headers":{"tenant":"x"}"#, "`extra_headers.tenant`: the table \"public\".\"t\" has no column `tenant`"),
        (table("x"), "there is no table \"x\" in the database (tables: `other.far`, `public.leases`, `public.t`)"),
        (table("far"), "one outside of the role's search path needs its schema"),
        (table("v"), "`table`: \"v\" is a view: its rows cannot be locked"),
        (table("m"), "`table`: \"m\" is a view"),
        (table("s"), "`table`: \"s\" is no table"),
        (r#","table":"t""#.to_owned(), "this is not outhaul's own table, so describe it with `columns`"),
        (
            r#","table":"t","lease_table":"leases","topic":"x","columns":{"id":"id","payload":"body","state":"state"}"#.to_owned(),
            "`lease_table`: the table \"public\".\"leases\" has no column `leased_by`",
        ),
        (r#","notify_channel":"it's""#.to_owned(), "`notify_channel`: the name of a channel"),
    ] {
        let detail =
            open(&bench.config(&more)).map(|mut outbox| outbox.stats().expect_err("refused")).unwrap_or_else(|failure| failure).detail;
        assert!(detail.contains(expected), "{more}\n  says: {detail}\n  not:  {expected}");
    }
    assert!(open(&bench.config(&with(&[("id", "u"), ("order", "u")]))).is_ok());
    assert!(open(&bench.config(&with(&[("id", "u"), ("order", "id")]))).is_ok());
}

/// Ids as their own order, such as UUIDs of version 7.
#[test]
fn ids_may_be_their_own_order() {
    let Some(bench) = Bench::new(
        "CREATE TABLE t (id uuid PRIMARY KEY, topic text, key integer, body text, state text NOT NULL DEFAULT 'pending', due timestamptz, by text, n integer);
         CREATE INDEX ON t (key, id) WHERE state = 'pending'",
    ) else {
        return;
    };
    let mut outbox = bench.open(
        r#","table":"t","columns":{"id":"id","order":"id","topic":"topic","key":"key","payload":"body","state":"state","available_at":"due","leased_by":"by","attempts":"n"}"#,
    );
    bench
        .run("INSERT INTO t (id, topic, key, body) SELECT lpad(to_hex(i), 32, '0')::uuid, 't', i % 5, i FROM generate_series(1, 300) AS i");
    let mut bodies = Vec::new();
    loop {
        let batch = claim(&mut outbox, "w", 40).batch;
        if batch.is_empty() {
            break;
        }
        bodies.extend(batch.messages().map(|message| std::str::from_utf8(message.payload().unwrap()).unwrap().parse::<u32>().unwrap()));
        settle(&mut outbox, "w", Verdict::Delivered, &ids(&batch));
    }
    for key in 0..5 {
        assert!(bodies.iter().filter(|body| *body % 5 == key).is_sorted());
    }
    assert_eq!(bodies.len(), 300);
    let page = outbox.browse(&Filter { state: None, topic: None, ids: vec![] }, None, 299, false).unwrap();
    assert_eq!(outbox.browse(&Filter { state: None, topic: None, ids: vec![] }, page.next.as_deref(), 9, false).unwrap().rows.len(), 1);
}
