//! Settings of the database, and schemas in the search path, that must not matter.

use super::support::{Bench, Postgres, claim, config, dead, ids, open, retry, settle, settlement};
use outhaul_sdk::{Batch, Column, Filter, NewMessage, Verdict};
use postgres_storage::Outbox;

/// Everything that a storage is asked to do, once.
fn all_calls(bench: &Bench, more: &str, insert: &str, times: &str) {
    calls_of(bench, bench.open(more), more, insert, times);
}

fn calls_of(bench: &Bench, mut outbox: Outbox<Postgres>, more: &str, insert: &str, times: &str) {
    bench.run(insert);
    let claimed = ids(&claim(&mut outbox, "w", 10).batch);
    assert_eq!(claimed.len(), 4, "{more}");
    assert!(outbox.extend("w", &Column::of_texts(&claimed), 60_000).unwrap().is_empty());
    let lost = outbox.settle(
        "w",
        &[
            settlement(Verdict::Delivered, &claimed[..1]),
            settlement(retry("x", 90_000), &claimed[1..2]),
            settlement(Verdict::Release(0), &claimed[2..3]),
            settlement(dead("x"), &claimed[3..]),
        ],
    );
    assert!(lost.unwrap().is_empty());
    // Case 11: a retry comes after the delay asked for.
    assert_eq!(bench.value(times), "true", "{more}");
    let counts = outbox.stats().unwrap();
    assert_eq!((counts.pending, counts.due, counts.leased, counts.dead), (2, 1, 0, 1), "{more}");
    let any = || Filter { state: None, topic: Some("t".into()), ids: vec![] };
    let page = outbox.browse(&any(), None, 2, true).unwrap();
    let rest = outbox.browse(&any(), page.next.as_deref(), 10, true).unwrap();
    assert_eq!((page.rows.len(), rest.rows.len()), (2, 2), "{more}");
    let due_in: Vec<u64> = page.rows.iter().chain(&rest.rows).map(|row| row.due_in_ms).filter(|due| *due > 0).collect();
    assert!(matches!(due_in.as_slice(), [one] if (60_000..=90_000).contains(one)), "{more}: {due_in:?}");
    assert_eq!(outbox.requeue(&Filter { ids: vec![claimed[3].clone()], ..any() }).unwrap(), 1);
    let mut batch = Batch::new();
    batch.push(&NewMessage { topic: "t", key: Some(r"a\'b"), payload: Some(br#"{"a":"\\"}"#), ..NewMessage::default() });
    outbox.enqueue(&batch).unwrap();
    let claimed = claim(&mut outbox, "w", 10).batch;
    assert_eq!(claimed.len(), 3, "{more}");
    settle(&mut outbox, "w", dead("x"), &ids(&claimed));
    assert_eq!((outbox.discard(&any()).unwrap(), outbox.purge(0, 10).unwrap()), (3, 1), "{more}");
}

const OWN: &str =
    "INSERT INTO outbox (topic, key, payload) VALUES ('t', 'a', '\\x00ff'), ('t', 'b', ''), ('t', 'c', NULL), ('t', 'd', 'x')";
const OWN_TIMES: &str =
    "SELECT available_at - clock_timestamp() BETWEEN interval '60 s' AND interval '90 s' FROM outbox WHERE last_error = 'network: x'";

/// The rights in the README, as it prints them, are enough.
#[test]
fn the_rights_that_are_documented_are_enough() {
    let Some((bench, _)) = Bench::own("") else { return };
    let role = format!("{}_relay", bench.value("SELECT current_database()"));
    let readme = include_str!("../../README.md");
    let grants: Vec<String> =
        readme.lines().filter(|line| line.starts_with("GRANT ")).map(|line| line.replace(" TO relay;", &format!(" TO {role};"))).collect();
    assert_eq!(grants.len(), 5, "{grants:?}");
    bench.run(&format!("CREATE ROLE {role} LOGIN PASSWORD 'relay'; REVOKE ALL ON SCHEMA public FROM PUBLIC"));
    let url = bench.url().replace(bench.url().split(['/', '@']).nth(2).unwrap(), &format!("{role}:relay"));
    let as_role = || open(&config(&url, ""));
    let unseen = as_role().unwrap().stats().unwrap_err();
    assert!(unseen.detail.contains("the role lacks USAGE"), "{unseen:?}");
    bench.run(&grants[0]);
    // Without CREATE, it can print the schema and not apply it.
    let mut outbox = as_role().unwrap();
    assert!(outbox.schema().unwrap().contains("CREATE TABLE"));
    let refused = outbox.create_schema().unwrap_err();
    assert!(refused.detail.contains("have CREATE on the schema"), "{refused:?}");
    let denied = as_role().unwrap().stats().unwrap_err();
    assert!(denied.detail.contains("permission denied for table outbox"), "{denied:?}");
    bench.run(&grants[1]);
    calls_of(&bench, as_role().unwrap(), "", OWN, OWN_TIMES);
    bench.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

/// A table with leases beside it, ordered by a timestamp, and times as text.
const EVENTS: &str = "CREATE TABLE events (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate text, type text, body jsonb, \
    state text NOT NULL DEFAULT 'pending', created timestamp NOT NULL DEFAULT (clock_timestamp() AT TIME ZONE 'UTC'), settled text)";
const EVENTS_CONFIG: &str = r#","table":"events","lease_table":"event_leases","columns":{"id":"id","topic":"type","key":"aggregate","payload":"body","state":"state","created_at":"created","done_at":"settled"}"#;
const EVENTS_INSERT: &str =
    "INSERT INTO events (aggregate, type, body) VALUES ('a', 't', '{}'), ('b', 't', '1'), ('c', 't', NULL), ('d', 't', '{\"a\": \"x\"}')";
const EVENTS_TIMES: &str =
    "SELECT available_at - clock_timestamp() BETWEEN interval '60 s' AND interval '90 s' FROM event_leases WHERE last_error = 'network: x'";

/// Case 11, and whatever else can be set for a database.
#[test]
fn settings_of_the_database_do_not_matter() {
    let Some((bench, _)) = Bench::own("") else { return };
    bench.run(EVENTS);
    bench.open(EVENTS_CONFIG).create_schema().unwrap();
    bench.run(
        "DO $$ DECLARE setting text; BEGIN FOREACH setting IN ARRAY ARRAY['timezone = ''Asia/Kolkata''', 'datestyle = ''SQL, DMY''', \
         'intervalstyle = ''sql_standard''', 'bytea_output = ''escape''', 'standard_conforming_strings = off', 'backslash_quote = off', \
         'extra_float_digits = -15', 'lc_numeric = ''C''', 'array_nulls = off', 'transform_null_equals = on', \
         'escape_string_warning = off', 'default_transaction_isolation = ''repeatable read''', 'xmloption = document'] \
         LOOP EXECUTE format('ALTER DATABASE %I SET %s', current_database(), setting); END LOOP; END $$",
    );
    all_calls(&bench, "", OWN, OWN_TIMES);
    all_calls(&bench, EVENTS_CONFIG, EVENTS_INSERT, EVENTS_TIMES);
}

/// A schema in front of everything else that has operators, functions and types of the same names, each of which fails.
#[test]
fn what_another_schema_has_of_the_same_name_is_not_used() {
    let Some((bench, _)) = Bench::own("") else { return };
    bench.run(EVENTS);
    bench.open(EVENTS_CONFIG).create_schema().unwrap();
    bench.run(HOSTILE);
    bench.run("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = evil, public, pg_catalog', current_database()); END $$");
    all_calls(&bench, "", OWN, &format!("SET search_path = public; {OWN_TIMES}"));
    all_calls(&bench, EVENTS_CONFIG, EVENTS_INSERT, &format!("SET search_path = public; {EVENTS_TIMES}"));
    let mut outbox = bench.open("");
    assert!(outbox.schema().is_ok());
}

const HOSTILE: &str = r#"
CREATE SCHEMA evil;
CREATE DOMAIN evil.text AS integer; CREATE DOMAIN evil.bytea AS integer; CREATE DOMAIN evil.uuid AS integer; CREATE DOMAIN evil.jsonb AS integer;
DO $outer$
DECLARE
    name pg_catalog.text; kind pg_catalog.text; result pg_catalog.text;
BEGIN
    FOREACH kind IN ARRAY ARRAY['pg_catalog.int2', 'pg_catalog.int4', 'pg_catalog.int8', 'pg_catalog.text', 'pg_catalog.varchar', 'pg_catalog.uuid', 'pg_catalog.bool',
                                'pg_catalog.timestamptz', 'pg_catalog.timestamp', 'pg_catalog.numeric', 'pg_catalog.name', 'pg_catalog."char"', 'pg_catalog.oid'] LOOP
        EXECUTE format('CREATE FUNCTION evil.compare(%1$s, %1$s) RETURNS pg_catalog.bool LANGUAGE plpgsql AS $f$ BEGIN RAISE ''evil''; END $f$', kind);
        FOREACH name IN ARRAY ARRAY['=', '<>', '<', '<=', '>', '>='] LOOP
            EXECUTE format('CREATE OPERATOR evil.%1$s (LEFTARG = %2$s, RIGHTARG = %2$s, FUNCTION = evil.compare)', name, kind);
        END LOOP;
    END LOOP;
    FOREACH name IN ARRAY ARRAY['octet_length', 'to_json', 'btrim', 'to_regclass', 'count', 'floor', 'isfinite'] LOOP
        FOREACH kind IN ARRAY ARRAY['pg_catalog.text', 'pg_catalog.bytea', 'pg_catalog.timestamptz', 'pg_catalog.timestamp', 'pg_catalog.numeric'] LOOP
            EXECUTE format('CREATE FUNCTION evil.%1$I(%2$s) RETURNS pg_catalog.int4 LANGUAGE plpgsql AS $f$ BEGIN RAISE ''evil''; END $f$', name, kind);
        END LOOP;
    END LOOP;
    FOREACH name IN ARRAY ARRAY['now', 'clock_timestamp', 'statement_timestamp', 'gen_random_uuid', 'current_schema'] LOOP
        EXECUTE format('CREATE FUNCTION evil.%1$I() RETURNS pg_catalog.int4 LANGUAGE plpgsql AS $f$ BEGIN RAISE ''evil''; END $f$', name);
    END LOOP;
END $outer$;
CREATE FUNCTION evil.multiply(pg_catalog.int8, pg_catalog.interval) RETURNS pg_catalog.interval LANGUAGE plpgsql AS $f$ BEGIN RAISE 'evil'; END $f$;
CREATE OPERATOR evil.* (LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.interval, FUNCTION = evil.multiply);
"#;
