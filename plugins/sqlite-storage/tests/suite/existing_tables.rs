//! Tables that others made, drained as they are with the configurations in `examples/tables`.

use crate::support::{Bench, Sqlite, claim, dead, ids, last_run, open, request, retry, settle};
use outhaul_sdk::{Batch, ClaimRequest, Filter, NewMessage, RowState, Verdict};
use sqlite_storage::Outbox;

const TXOUTBOX: &str = "CREATE TABLE IF NOT EXISTS outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    topic       TEXT    NOT NULL,
    key         TEXT,
    payload     BLOB    NOT NULL,
    headers     TEXT    NOT NULL DEFAULT '{}',
    status      TEXT    NOT NULL DEFAULT 'pending',
    attempts    INTEGER NOT NULL DEFAULT 0,
    retry_at    REAL,
    leased_by   TEXT,
    lease_until REAL,
    last_error  TEXT,
    created_at  REAL    NOT NULL
);
CREATE INDEX IF NOT EXISTS outbox_pending_idx ON outbox (status, id);";

const OUTBOX_EVENT: &str = "CREATE TABLE outbox_event (
    outbox_event_id TEXT PRIMARY KEY,
    aggregate_type  TEXT NOT NULL,
    aggregate_id    TEXT NOT NULL,
    event_type      TEXT NOT NULL,
    payload         TEXT NOT NULL,
    delivery_state  TEXT NOT NULL DEFAULT 'pending',
    attempts        INTEGER NOT NULL DEFAULT 0,
    last_error      TEXT
);";

const TRANSACTIONAL_OUTBOX: &str = "CREATE TABLE IF NOT EXISTS transactional_outbox (
    seq_id INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    topic TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    payload_json TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'PENDING' CHECK(status IN ('PENDING', 'PROCESSING', 'DEAD_LETTER')),
    attempt_count INTEGER NOT NULL DEFAULT 0,
    available_at_epoch REAL NOT NULL DEFAULT 0.0,
    locked_until_epoch REAL NOT NULL DEFAULT 0.0,
    last_error TEXT,
    created_at_epoch REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS idx_outbox_poll ON transactional_outbox (status, available_at_epoch, seq_id);";

/// The `config` of the one storage in an example, as the host hands it to the adapter.
fn example(bench: &Bench, text: &str) -> String {
    let file: toml::Table = text.parse().expect("toml");
    let storages = file["storages"].as_table().expect("storages");
    let storage = storages.values().next().expect("one storage");
    assert_eq!((storages.len(), storage["plugin"].as_str()), (1, Some("sqlite-storage")));
    let mut config = storage["config"].as_table().expect("config").clone();
    config.insert("database".into(), bench.path.to_str().expect("utf-8").into());
    serde_json::to_string(&config).expect("json")
}

fn ready(bench: &Bench, text: &str) -> Outbox<Sqlite> {
    let mut outbox = open(&example(bench, text)).expect("open");
    outbox.create_schema().expect("schema");
    outbox
}

fn txoutbox() -> (Bench, Outbox<Sqlite>) {
    let bench = Bench::new(TXOUTBOX);
    let outbox = ready(&bench, include_str!("../../../../examples/tables/txoutbox.toml"));
    (bench, outbox)
}

fn outbox_event() -> (Bench, Outbox<Sqlite>) {
    let bench = Bench::new(OUTBOX_EVENT);
    let outbox = ready(&bench, include_str!("../../../../examples/tables/outbox-event.toml"));
    (bench, outbox)
}

fn transactional_outbox() -> (Bench, Outbox<Sqlite>) {
    let bench = Bench::new(TRANSACTIONAL_OUTBOX);
    let outbox = ready(&bench, include_str!("../../../../examples/tables/transactional-outbox.toml"));
    (bench, outbox)
}

/// Claims of batch by batch until there is nothing, every message delivered; the ids in their order.
fn drain(outbox: &mut Outbox<Sqlite>, batch: u32) -> Vec<String> {
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
    let (bench, mut outbox) = txoutbox();
    for n in 0..30 {
        bench.run(&format!(
            "INSERT INTO outbox (topic, key, payload, headers, created_at) VALUES ('orders', 'k{}', x'7b7d', '{{\"n\":\"{n}\"}}', unixepoch('subsec'))",
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
    assert_eq!(bench.value("SELECT count(*) FROM outbox WHERE leased_by = 'w' AND lease_until > unixepoch() + 50"), "3");
    let claimed = ids(&first);
    settle(&mut outbox, "w", dead("no"), &claimed[..1]);
    settle(&mut outbox, "w", retry("503", 30_000), &claimed[1..2]);
    settle(&mut outbox, "w", Verdict::Delivered, &claimed[2..]);
    assert_eq!(bench.value("SELECT count(*) FROM outbox WHERE status = 'pending' AND leased_by IS NULL AND lease_until IS NULL AND retry_at BETWEEN unixepoch() + 20 AND unixepoch() + 31 AND last_error = 'network: 503' AND attempts = 1"), "1");
    bench.run("UPDATE outbox SET retry_at = 1.5 WHERE retry_at IS NOT NULL");
    drain(&mut outbox, 7);
    assert_eq!(
        bench.value("SELECT group_concat(status || n) FROM (SELECT status, count(*) AS n FROM outbox GROUP BY status ORDER BY status)"),
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
    let (bench, mut outbox) = txoutbox();
    for key in ["a", "a", "b"] {
        bench.run(&format!("INSERT INTO outbox (topic, key, payload, created_at) VALUES ('t', '{key}', 'x', 1.0)"));
    }
    bench.run("UPDATE outbox SET leased_by = 'old', lease_until = unixepoch('subsec') + 30 WHERE id = 1");
    assert_eq!(outbox.stats().unwrap().leased, 1);
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["3"]);
    bench.run("UPDATE outbox SET lease_until = unixepoch('subsec') - 0.001 WHERE id = 1");
    assert_eq!(ids(&claim(&mut outbox, "w", 10).batch), ["1", "2"]);
}

#[test]
fn outbox_event_is_drained_with_leases_beside_it() {
    let (bench, mut outbox) = outbox_event();
    let event = |id: &str, aggregate: &str, payload: &str| {
        bench.run(&format!(
            "INSERT INTO outbox_event (outbox_event_id, aggregate_type, aggregate_id, event_type, payload) VALUES ('{id}', 'claim', '{aggregate}', 'requested', '{payload}')"
        ));
    };
    // Ids that sort against the order of insertion.
    event("z", "c1", r#"{"claim_id": "c1"}"#);
    event("y", "c1", "{}");
    event("x", "c2", "{}");
    event("w", "c3", "not json");

    // A transient failure: it stays pending, with its attempt and error; then success.
    let claimed = claim(&mut outbox, "w", 10);
    assert_eq!(ids(&claimed.batch), ["z", "y", "x"]);
    assert_eq!((claimed.batch.message(0).topic(), claimed.batch.message(0).key()), ("requested", Some("c1")));
    assert_eq!(claimed.batch.message(0).payload(), Some(&br#"{"claim_id": "c1"}"#[..]), "the exact stored bytes");
    assert_eq!(claimed.refused.iter().map(|refusal| refusal.id.as_str()).collect::<Vec<_>>(), ["w"]);
    settle(&mut outbox, "w", retry("state API timeout", 60_000), &["z".into()]);
    settle(&mut outbox, "w", Verdict::Release(0), &["y".into()]);
    settle(&mut outbox, "w", Verdict::Delivered, &["x".into()]);
    assert_eq!(claim(&mut outbox, "w", 10).batch.len(), 0, "its followers wait");
    let row = |id: &str| {
        bench.value(&format!(
            "SELECT delivery_state || ' ' || attempts || ' ' || ifnull(last_error, '-') FROM outbox_event WHERE outbox_event_id = '{id}'"
        ))
    };
    assert_eq!((row("z"), row("y"), row("x")), ("pending 1 network: state API timeout".into(), "pending 0 -".into(), "sent 1 -".into()));
    assert!(row("w").starts_with("failed 1 invalid-message: the payload is not JSON"), "{}", row("w"));
    bench.run("UPDATE outbox_event_leases SET available_at = 0");
    assert_eq!(drain(&mut outbox, 1), ["z", "y"]);
    assert_eq!(row("z"), "sent 2 network: state API timeout");
    assert!(drain(&mut outbox, 10).is_empty());

    // Exhaustion: the last attempt's lease ran out.
    event("v", "c4", "{}");
    for attempt in 1..=2 {
        let claimed = outbox.claim(&ClaimRequest { max_attempts: 2, ..request("w", 10) }).unwrap();
        assert_eq!(claimed.batch.message(0).attempts(), attempt);
        bench.run("UPDATE outbox_event_leases SET lease_until = 1");
    }
    let claimed = outbox.claim(&ClaimRequest { max_attempts: 2, ..request("w", 10) }).unwrap();
    assert_eq!((claimed.batch.len(), claimed.refused.len()), (0, 1));
    assert!(row("v").starts_with("failed 2 attempts-used-up: "), "{}", row("v"));
    assert_eq!(bench.value("SELECT count(*) FROM outbox_event_leases"), "0", "settled rows leave nothing behind");
}

#[test]
fn leases_beside_the_table_are_fenced_too() {
    let (bench, mut outbox) = outbox_event();
    bench.run("INSERT INTO outbox_event VALUES ('a', 't', 'k', 'e', '{}', 'pending', 0, NULL)");
    let claimed = ids(&claim(&mut outbox, "w1", 10).batch);
    assert_eq!((outbox.stats().unwrap().leased, outbox.stats().unwrap().due), (1, 0));
    bench.run("UPDATE outbox_event_leases SET lease_until = 1");
    assert_eq!(claim(&mut outbox, "w2", 10).batch.message(0).attempts(), 2);
    for verdict in [Verdict::Delivered, retry("x", 0), Verdict::Release(0), dead("x")] {
        assert_eq!(settle(&mut outbox, "w1", verdict, &claimed), ["a"]);
    }
    assert_eq!(outbox.extend("w1", &outhaul_sdk::Column::of_texts(&claimed), 1).unwrap(), ["a"]);
    assert_eq!(bench.value("SELECT leased_by || attempts || (lease_until > 1) FROM outbox_event_leases"), "w221");
    assert!(outbox.extend("w2", &outhaul_sdk::Column::of_texts(&claimed), 90_000).unwrap().is_empty());
    assert!(settle(&mut outbox, "w2", dead("x"), &claimed).is_empty());
    assert_eq!(outbox.requeue(&Filter { state: None, topic: Some("e".into()), ids: vec![] }).unwrap(), 1);
    assert_eq!(claim(&mut outbox, "w3", 10).batch.message(0).attempts(), 1);
}

#[test]
fn before_the_lease_table_is_there_claims_say_so() {
    let bench = Bench::new(OUTBOX_EVENT);
    let mut outbox = open(&example(&bench, include_str!("../../../../examples/tables/outbox-event.toml"))).unwrap();
    let failure = outbox.claim(&request("w", 1)).unwrap_err();
    assert!(failure.detail.contains("`lease_table`: there is no table \"outbox_event_leases\""), "{}", failure.detail);
    assert!(outbox.schema().unwrap().contains("CREATE TABLE IF NOT EXISTS \"outbox_event_leases\""));
}

#[test]
fn transactional_outbox_is_drained() {
    let (bench, mut outbox) = transactional_outbox();
    for n in 1..=6 {
        bench.run(&format!(
            "INSERT INTO transactional_outbox (event_id, topic, aggregate_id, payload_json, available_at_epoch, created_at_epoch) VALUES ('e{n}', 't', 'a{n}', '{{}}', unixepoch('subsec'), unixepoch('subsec'))"
        ));
    }
    // The old relay died with e1, and still holds e2.
    bench.run("UPDATE transactional_outbox SET status = 'PROCESSING', attempt_count = 1, locked_until_epoch = unixepoch('subsec') - 1 WHERE event_id = 'e1'");
    bench.run("UPDATE transactional_outbox SET status = 'PROCESSING', attempt_count = 1, locked_until_epoch = unixepoch('subsec') + 60 WHERE event_id = 'e2'");
    let counts = outbox.stats().unwrap();
    assert_eq!((counts.pending, counts.leased, counts.due), (6, 1, 5));
    let claimed = claim(&mut outbox, "w", 10).batch;
    assert_eq!(ids(&claimed), ["e1", "e3", "e4", "e5", "e6"]);
    assert_eq!((claimed.message(0).attempts(), claimed.message(1).attempts()), (2, 1));
    // The old relay would leave them alone.
    assert_eq!(
        bench.value("SELECT count(*) FROM transactional_outbox WHERE status = 'PROCESSING' AND locked_until_epoch > unixepoch() + 30"),
        "6"
    );
    settle(&mut outbox, "w", Verdict::Delivered, &["e1".into(), "e6".into()]);
    settle(&mut outbox, "w", retry("503", 60_000), &["e3".into()]);
    settle(&mut outbox, "w", Verdict::Release(0), &["e4".into()]);
    settle(&mut outbox, "w", dead("400"), &["e5".into()]);
    let row = |id: &str| {
        bench.value(&format!(
            "SELECT status || ' ' || attempt_count || ' ' || locked_until_epoch || ' ' || ifnull(last_error, '-') FROM transactional_outbox WHERE event_id = '{id}'"
        ))
    };
    assert_eq!(row("e3"), "PENDING 1 0.0 network: 503");
    assert_eq!(row("e4"), "PENDING 0 0.0 -");
    assert_eq!(row("e5"), "DEAD_LETTER 1 0.0 invalid-message: 400");
    assert_eq!(bench.value("SELECT count(*) FROM transactional_outbox WHERE event_id IN ('e1', 'e6')"), "0");
    assert_eq!(drain(&mut outbox, 10), ["e4"]);
    bench.run("UPDATE transactional_outbox SET available_at_epoch = 0, locked_until_epoch = 0 WHERE status <> 'DEAD_LETTER'");
    let mut rest = drain(&mut outbox, 1);
    rest.sort_unstable();
    assert_eq!(rest, ["e2", "e3"]);
    assert_eq!(bench.value("SELECT group_concat(event_id) FROM transactional_outbox"), "e5");
    assert_eq!(outbox.browse(&Filter { state: Some(RowState::Dead), topic: None, ids: vec![] }, None, 9, true).unwrap().rows[0].id, "e5");
    assert_eq!(outbox.discard(&Filter { state: None, topic: None, ids: vec!["e5".into()] }).unwrap(), 1);
}

#[test]
fn each_is_read_with_the_best_that_it_has() {
    let scan = |outbox: &mut Outbox<Sqlite>| {
        claim(outbox, "w", 1);
        last_run("octet_length").0
    };
    assert!(scan(&mut txoutbox().1).contains(r#"INDEXED BY "outbox_pending_idx""#));
    assert!(scan(&mut transactional_outbox().1).contains("NOT INDEXED"), "its index would have to be sorted");
    let (bench, mut outbox) = outbox_event();
    assert!(scan(&mut outbox).contains("NOT INDEXED"));
    bench.run("CREATE INDEX outbox_event_state ON outbox_event (delivery_state)");
    outbox.create_schema().unwrap();
    assert!(scan(&mut outbox).contains(r#"INDEXED BY "outbox_event_state""#));
}

#[test]
fn messages_can_be_enqueued_into_each() {
    for (bench, mut outbox) in [txoutbox(), transactional_outbox()] {
        let mut batch = Batch::new();
        batch.push(&NewMessage { topic: "t", key: Some("k"), payload: Some(b"{}"), ..NewMessage::default() });
        let enqueued = outbox.enqueue(&batch).unwrap();
        assert_eq!(drain(&mut outbox, 10), enqueued, "{:?}", bench.path);
    }
    let (_bench, mut outbox) = outbox_event();
    let mut batch = Batch::new();
    batch.push(&NewMessage { id: "e", topic: "t", key: Some("k"), payload: Some(b"{}"), ..NewMessage::default() });
    // A column that the configuration does not know must be filled: the table's own constraint says so.
    assert!(outbox.enqueue(&batch).unwrap_err().detail.contains("aggregate_type"));
}

#[test]
fn odd_names_are_quoted() {
    let bench = Bench::new(
        r#"CREATE TABLE "order ""by"" заказы" ("select" INTEGER PRIMARY KEY, "from" TEXT, "where;--" TEXT, "o'k" INTEGER DEFAULT 0, "группа" INTEGER DEFAULT 0, "by.who" TEXT, "n" INTEGER, "key" TEXT, extra TEXT)"#,
    );
    let mut outbox = bench.open(
        r#","table":"\"order \"\"by\"\" заказы\"","columns":{"id":"select","topic":"from","payload":"where;--","state":"o'k","available_at":"группа","leased_by":"by.who","attempts":"n","key":"KEY"},"states":{"pending":0,"delivered":1,"dead":2},"extra_headers":{"extra":"x-extra"}"#,
    );
    bench.run(r#"INSERT INTO "order ""by"" заказы" ("from", "where;--", "key", extra) VALUES ('t', 'p', 'k', 'e'), ('t', 'p', 'k', NULL)"#);
    let batch = claim(&mut outbox, "w", 10).batch;
    assert_eq!(batch.message(0).headers().collect::<Vec<_>>(), [("x-extra", &b"e"[..])]);
    assert_eq!(batch.message(1).headers().count(), 0);
    settle(&mut outbox, "w", Verdict::Delivered, &ids(&batch));
    assert_eq!(bench.value(r#"SELECT sum("o'k") FROM "order ""by"" заказы""#), "2");
    assert!(outbox.stats().is_ok() && outbox.schema().unwrap().contains("Nothing to create"));
}

#[test]
fn times_may_be_text() {
    let bench = Bench::new(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, topic TEXT, body TEXT, state TEXT DEFAULT 'pending', due TEXT, until TEXT, by TEXT, n INT, created TEXT DEFAULT CURRENT_TIMESTAMP)",
    );
    let mut outbox = bench.open(
        r#","table":"t","time_unit":"text","columns":{"id":"id","topic":"topic","payload":"body","state":"state","available_at":"due","lease_until":"until","leased_by":"by","attempts":"n","created_at":"created"}"#,
    );
    bench.run("INSERT INTO t (topic, body, due) VALUES ('t', 'x', NULL), ('t', 'x', '2001-01-01 00:00:00'), ('t', 'x', '2001-01-01T05:30:00+05:30'), ('t', 'x', 'nonsense'), ('t', 'x', '2999-01-01T00:00:00Z')");
    let batch = claim(&mut outbox, "w", 10).batch;
    assert_eq!(ids(&batch), ["1", "2", "3", "4"]);
    assert!(batch.message(0).created_at().unwrap() > 1_600_000_000_000);
    assert_eq!(bench.value("SELECT unixepoch(until) - unixepoch() BETWEEN 58 AND 60 FROM t WHERE id = 1"), "1");
    settle(&mut outbox, "w", retry("x", 90_000), &ids(&batch));
    assert_eq!(bench.value("SELECT count(*) FROM t WHERE unixepoch(due) - unixepoch() BETWEEN 88 AND 90 AND until IS NULL"), "4");
    assert_eq!(outbox.stats().unwrap().due, 0);
}

#[test]
fn what_cannot_work_is_refused_with_what_would() {
    let bench = Bench::new(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, topic TEXT, body BLOB, state TEXT, due INTEGER, by TEXT, n INTEGER, name TEXT, u UUID UNIQUE, ref TEXT UNIQUE);
         CREATE TABLE leases (id INTEGER);
         CREATE TABLE w (ref TEXT PRIMARY KEY, body BLOB, state TEXT) WITHOUT ROWID;",
    );
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
    for (more, expected) in [
        (with(&[("key", "kee")]), "`columns.key`: the table \"t\" has no column `kee` (columns: `id`, `topic`,"),
        (with(&[("attempts", "tries")]), "set `lease_table` to the name of a table of leases"),
        (with(&[("id", "name")]), "`columns.id`: the column `name` is not unique"),
        (with(&[("id", "u")]), "`columns.id`: the column `u` is declared `UUID`"),
        (with(&[("order", "name")]), "`columns.order`: the column `name` is not a unique INTEGER NOT NULL; `order = \"rowid\"`"),
        (with(&[]) + r#","extra_headers":{"tenant":"x"}"#, "`extra_headers.tenant`: the table \"t\" has no column `tenant`"),
        (
            with(&[]).replace(r#""table":"t""#, r#""table":"x""#),
            "there is no table \"x\" in the database (tables: `leases`, `t`, `w`); `columns` describes",
        ),
        (r#","table":"t""#.to_owned(), "this is not outhaul's own table, so describe it with `columns`"),
        (
            r#","table":"w","lease_table":"l","topic":"x","columns":{"id":"ref","payload":"body","state":"state"}"#.to_owned(),
            "WITHOUT ROWID",
        ),
        (
            r#","table":"t","lease_table":"leases","topic":"x","columns":{"id":"ref","payload":"body","state":"state"}"#.to_owned(),
            "`lease_table`: the table \"leases\" has no column `leased_by`",
        ),
    ] {
        let detail =
            open(&bench.config(&more)).map(|mut outbox| outbox.stats().expect_err("refused")).unwrap_or_else(|failure| failure).detail;
        assert!(detail.contains(expected), "{more}\n  says: {detail}\n  not:  {expected}");
    }
    assert!(open(&bench.config(&with(&[("id", "ref"), ("order", "rowid")]))).is_ok());
}

#[test]
fn a_row_whose_id_cannot_be_used_is_left_alone() {
    let (bench, mut outbox) = outbox_event();
    bench.run("INSERT INTO outbox_event VALUES (NULL, 't', 'k', 'e', '{}', 'pending', 0, NULL), (x'00', 't', 'k', 'e', '{}', 'pending', 0, NULL), ('a', 't', 'k', 'e', '{}', 'pending', 0, NULL)");
    assert_eq!(drain(&mut outbox, 10), ["a"]);
}

/// SQLite gives row numbers out again once the last row is gone: nothing may be remembered of a table that starts again.
#[test]
fn a_table_that_starts_again_at_one_stays_in_order() {
    let bench = Bench::new(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, topic TEXT, key TEXT, body TEXT, state TEXT DEFAULT 'pending', due INTEGER, by TEXT, n INTEGER)",
    );
    let mut outbox = bench.open(
        r#","table":"t","on_delivered":"delete","columns":{"id":"id","topic":"topic","key":"key","payload":"body","state":"state","available_at":"due","leased_by":"by","attempts":"n"}"#,
    );
    let fill = |rows: u32| {
        for row in 1..=rows {
            bench.run(&format!("INSERT INTO t (topic, key, body) VALUES ('t', 'k{}', 'x')", row % 2));
        }
    };
    for _ in 0..3 {
        fill(10);
        let first = ids(&claim(&mut outbox, "w", 10).batch);
        assert_eq!(first.len(), 10, "a full batch");
        settle(&mut outbox, "w", Verdict::Delivered, &first);
        fill(30);
        assert_eq!(ids(&claim(&mut outbox, "w", 2).batch).iter().map(String::as_str).filter(|id| ["1", "2"].contains(id)).count(), 1);
        bench.run("DELETE FROM t");
    }
}
