//! The tables of fan-out: created beside outhaul's own table and beside others, and what does not matter for them.

use super::support::{FAN_OUT, claim_events, coded, deliveries, event, expand, log, of, own, planned, settle, verdict};
use crate::suite::support::{Bench, Postgres, config, ids, open, request};
use outhaul_sdk::{Column, DeliveryVerdict, FailureCode, Reemitted, Verdict};
use postgres_storage::Outbox;

/// Everything that a storage with fan-out is asked to do, once; `insert` inserts three events of the tenant `7`.
fn all_calls(bench: &Bench, outbox: &mut Outbox<Postgres>, insert: &str, tenant: &str) {
    bench.run(insert);
    let events = claim_events(outbox, "w");
    let claimed = ids(&events.claimed.batch);
    assert_eq!(claimed.len(), 3);
    let (expansions, batch) = planned(&events, &["a", "b"]);
    assert!(outbox.expand("w", &expansions[..2], &planned(&first_two(&events), &["a", "b"]).1).unwrap().is_empty());
    assert_eq!(batch.len(), 6);
    let dead = outhaul_sdk::Settlement { verdict: Verdict::Dead(coded("invalid_payload", "no")), ids: Column::of_texts(&claimed[2..]) };
    assert!(outbox.settle("w", &[dead]).unwrap().is_empty());
    let sent = deliveries(outbox, "w", 10);
    assert_eq!(sent.len(), 4);
    assert!(outbox.extend_deliveries("w", &Column::of_texts(&sent), 60_000).unwrap().is_empty());
    let verdicts = [verdict(DeliveryVerdict::Complete, &sent[..2]), verdict(super::support::again("network", 0), &sent[2..])];
    assert!(outbox.settle_deliveries("w", &verdicts).unwrap().is_empty());
    assert_eq!(outbox.claim_deliveries(&request("w", 10), Some(tenant), 3_600_000).unwrap().batch.len(), 2);
    assert!(settle(outbox, "w", DeliveryVerdict::Suppressed(coded("subscription_changed", "no")), &sent[2..]).is_empty());
    assert_eq!(outbox.delivery_stats().unwrap().suppressed, 2);
    assert_eq!(outbox.list_deliveries(&of(tenant), None, 10).unwrap().deliveries.len(), 4);
    assert_eq!(outbox.list_sealed("v2", None, 10, 1000).unwrap().deliveries.len(), 0);
    assert!(matches!(outbox.reemit(tenant, &claimed[0]).unwrap(), Reemitted::Generation(2)));
    let again = claim_events(outbox, "w");
    assert_eq!(again.generations, [2]);
    assert!(expand(outbox, "w", &again, &["a"]).is_empty());
    assert_eq!(outbox.read_status(tenant, 0, 100).unwrap().len(), 11);
    assert!(outbox.advance(tenant, "r", 0, 11).unwrap());
    assert_eq!(outbox.checkpoint(tenant, "r").unwrap(), 11);
    assert!(outbox.purge_deliveries(0, 10).unwrap() >= 4);
}

fn first_two(events: &outhaul_sdk::Events) -> outhaul_sdk::Events {
    let mut two = events.clone();
    let batch = &events.claimed.batch;
    two.claimed.batch = outhaul_sdk::Batch::new();
    for message in batch.messages().take(2) {
        two.claimed.batch.push(&outhaul_sdk::NewMessage {
            id: message.id(),
            topic: message.topic(),
            key: message.key(),
            ..Default::default()
        });
    }
    two
}

const OWN: &str = "INSERT INTO outbox (tenant, topic, key) VALUES ('7', 't', 'k'), ('7', 't', NULL), ('7', 't', 'k2')";

/// A table of others, with leases beside it, UUIDs, and tenants that are numbers.
const EVENTS: &str = "CREATE TABLE events (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), account bigint NOT NULL, aggregate text, type text, body jsonb, \
    state text NOT NULL DEFAULT 'pending', created timestamptz NOT NULL DEFAULT clock_timestamp())";
const EVENTS_CONFIG: &str = r#","table":"events","lease_table":"event_leases","fan_out":{"tenant":"account"},"columns":{"id":"id","topic":"type","key":"aggregate","payload":"body","state":"state","created_at":"created"}"#;
const EVENTS_INSERT: &str =
    "INSERT INTO events (account, aggregate, type, body) VALUES (7, 'k', 't', '{}'), (7, NULL, 't', '1'), (7, 'k2', 't', '2')";

#[test]
fn an_existing_own_table_is_extended_and_applying_twice_changes_nothing() {
    let Some((bench, mut plain)) = Bench::own("") else { return };
    bench.run("INSERT INTO outbox (topic, key) VALUES ('t', 'k')");
    let mut outbox = bench.open(FAN_OUT);
    let early = outbox.claim_events(&request("w", 1), None).unwrap_err();
    assert!(early.code == FailureCode::InvalidConfiguration && early.detail.contains("outhaul schema --apply"), "{early:?}");
    let printed = outbox.schema().unwrap();
    for part in [
        "ADD COLUMN IF NOT EXISTS \"tenant\"",
        "_deliveries\"",
        "_emissions\"",
        "_status\"",
        "_status_heads\"",
        "_readers\"",
        "CREATE OR REPLACE TRIGGER",
    ] {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
    // What is printed is what is run, and it can be run twice.
    bench.run(&printed);
    bench.run(&printed);
    outbox.create_schema().unwrap();
    outbox.create_schema().unwrap();
    let events = claim_events(&mut outbox, "w");
    assert_eq!((ids(&events.claimed.batch), events.tenants.text(0)), (vec!["1".into()], Some("")));
    assert!(expand(&mut outbox, "w", &events, &["a"]).is_empty());
    assert_eq!(log(&mut outbox, ""), ["1 1/1 expanded -"]);
    let sent = deliveries(&mut outbox, "w", 10);
    assert_eq!(sent, ["dl_1_1_a"]);
    assert!(settle(&mut outbox, "w", DeliveryVerdict::Complete, &sent).is_empty());
    // One without the key goes on working.
    bench.run("INSERT INTO outbox (topic) VALUES ('t')");
    assert_eq!(plain.claim(&request("w", 10)).unwrap().batch.len(), 1);
    all_calls(&bench, &mut bench.open(FAN_OUT), OWN, "7");
}

#[test]
fn a_table_of_others_with_leases_beside_it_and_numbers_for_tenants() {
    let Some(bench) = Bench::new(EVENTS) else { return };
    let mut outbox = bench.open(EVENTS_CONFIG);
    outbox.create_schema().unwrap();
    all_calls(&bench, &mut outbox, EVENTS_INSERT, "7");
    assert!(outbox.claim_events(&request("w", 1), Some("no number")).unwrap().claimed.batch.is_empty());
    assert!(matches!(outbox.reemit("no number", "1").unwrap(), Reemitted::Unknown));
    assert_eq!(bench.value("SELECT count(*) FROM event_leases"), "1", "of the dead event, what the table has no columns for");
}

#[test]
fn a_table_of_others_without_tenants() {
    let Some(bench) = Bench::new(EVENTS) else { return };
    let mut outbox = bench.open(&EVENTS_CONFIG.replace(r#""fan_out":{"tenant":"account"}"#, r#""fan_out":{}"#));
    outbox.create_schema().unwrap();
    bench.run(EVENTS_INSERT);
    assert!(outbox.claim_events(&request("w", 10), Some("7")).unwrap().claimed.batch.is_empty());
    let events = outbox.claim_events(&request("w", 10), Some("")).unwrap();
    assert_eq!((events.claimed.batch.len(), events.tenants.len()), (3, 0));
    assert!(expand(&mut outbox, "w", &events, &["a"]).is_empty());
    assert_eq!((log(&mut outbox, "").len(), deliveries(&mut outbox, "w", 10).len()), (3, 3));
}

#[test]
fn tenants_that_cannot_be_searched_by_are_refused_by_key() {
    let Some(bench) = Bench::new(&EVENTS.replace("account bigint NOT NULL", "account bigint, other jsonb NOT NULL")) else { return };
    for (column, expected) in [("account", "may be NULL"), ("other", "is declared `jsonb`"), ("missing", "has no column `missing`")] {
        let config = EVENTS_CONFIG.replace(r#""tenant":"account""#, &format!(r#""tenant":"{column}""#));
        let failure = bench.open(&config).create_schema().unwrap_err();
        assert!(failure.detail.starts_with("`fan_out.tenant`") && failure.detail.contains(expected), "{failure:?}");
    }
}

#[test]
fn long_and_odd_names_get_tables_and_triggers_of_their_own() {
    let Some(bench) = Bench::new("CREATE SCHEMA \"o$log$dd\"") else { return };
    for (name, schema) in
        [("a".repeat(63), ""), (format!("{}b", "a".repeat(62)), ""), ("it's \\a $log$ table".to_owned(), "\\\"o$log$dd\\\".")]
    {
        let json = name.replace('\\', "\\\\");
        let mut outbox = bench.open(&format!(r#","table":"{schema}\"{json}\"","fan_out":{{}}"#));
        outbox.create_schema().unwrap();
        let schema = if schema.is_empty() { "public" } else { "o$log$dd" };
        let insert = OWN.replace("INTO outbox", &format!("INTO \"{schema}\".\"{name}\""));
        all_calls(&bench, &mut outbox, &insert, "7");
    }
    assert_eq!(bench.value("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal AND tgname ~ '_log(_change)?$'"), "9");
}

#[test]
fn the_rights_that_are_documented_are_enough() {
    let Some((bench, _)) = own() else { return };
    let role = format!("{}_relay", bench.value("SELECT current_database()"));
    let readme = include_str!("../../../README.md");
    let grants: Vec<String> =
        readme.lines().filter(|line| line.starts_with("GRANT ")).map(|line| line.replace(" TO relay;", &format!(" TO {role};"))).collect();
    assert_eq!(grants.len(), 5, "{grants:?}");
    bench.run(&format!("CREATE ROLE {role} LOGIN PASSWORD 'relay'; REVOKE ALL ON SCHEMA public FROM PUBLIC; {}", grants.concat()));
    let url = bench.url().replace(bench.url().split(['/', '@']).nth(2).unwrap(), &format!("{role}:relay"));
    let mut outbox = open(&config(&url, FAN_OUT)).unwrap();
    all_calls(&bench, &mut outbox, OWN, "7");
    // The log is only added to, by whoever has no more than these.
    for (table, right) in [("outbox_status", "UPDATE"), ("outbox_status", "DELETE"), ("outbox_status_heads", "DELETE")] {
        assert_eq!(bench.value(&format!("SELECT has_table_privilege('{role}', '{table}', '{right}')")), "false", "{right} on {table}");
    }
    bench.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn settings_of_the_database_do_not_matter() {
    let Some((bench, _)) = own() else { return };
    bench.run(
        "DO $$ DECLARE setting text; BEGIN FOREACH setting IN ARRAY ARRAY['timezone = ''Asia/Kolkata''', 'datestyle = ''SQL, DMY''', \
         'bytea_output = ''escape''', 'standard_conforming_strings = off', 'backslash_quote = off', 'array_nulls = off', \
         'transform_null_equals = on', 'default_transaction_isolation = ''repeatable read'''] \
         LOOP EXECUTE format('ALTER DATABASE %I SET %s', current_database(), setting); END LOOP; END $$",
    );
    let mut outbox = bench.open(FAN_OUT);
    outbox.create_schema().unwrap();
    all_calls(&bench, &mut outbox, OWN, "7");
}

/// Triggers write to the tables beside them, whatever the search path of whoever changes a delivery.
#[test]
fn another_search_path_does_not_matter() {
    let Some((bench, mut outbox)) = own() else { return };
    bench.run(
        "CREATE SCHEMA evil; CREATE TABLE evil.outbox_status AS SELECT * FROM outbox_status; CREATE TABLE evil.outbox_status_heads (a int)",
    );
    bench.run("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = evil', current_database()); END $$");
    let more = r#","table":"public.outbox","fan_out":{}"#;
    all_calls(&bench, &mut bench.open(more), &OWN.replace("INTO outbox", "INTO public.outbox"), "7");
    event(&bench, "8", None);
    assert_eq!(outbox.read_status("8", 0, 1).unwrap().len(), 0);
}
