//! `outhaul plugin test` on storages: green for those that keep the contract, and for each that breaks it, the clauses that it breaks.

use anyhow::{Context, Result, bail};
use outhaul_tests::postgres::on_each_major;
use outhaul_tests::{examples, places};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// What came of `outhaul plugin test FILE --json`.
#[derive(Debug)]
struct Tested {
    code: i32,
    report: Value,
    stderr: String,
}

impl Tested {
    fn of(component: &Path, arguments: &[&str]) -> Result<Self> {
        let output = Command::new(places::outhaul()?)
            .args(["plugin", "test", "--json"])
            .arg(component)
            .args(arguments)
            .env("XDG_CACHE_HOME", places::compiled()?)
            .env_remove("OUTHAUL_TEST_DATABASE")
            .output()?;
        let stderr = String::from_utf8(output.stderr)?;
        let report = serde_json::from_slice(&output.stdout).with_context(|| format!("no JSON document; stderr:\n{stderr}"))?;
        Ok(Self { code: output.status.code().context("it was killed")?, report, stderr })
    }

    /// The clauses with a verdict, and the text that goes with it.
    fn with(&self, verdict: &str, text: &str) -> Vec<(String, String)> {
        let clauses = self.report["clauses"].as_array().into_iter().flatten().filter(|clause| clause["verdict"] == verdict);
        let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        clauses.map(|clause| (string(&clause["id"]), string(&clause[text]))).collect()
    }

    fn failed(&self) -> BTreeSet<String> {
        self.with("failed", "seen").into_iter().map(|(id, _)| id).collect()
    }

    fn skipped(&self) -> BTreeSet<String> {
        self.with("skipped", "why").into_iter().map(|(id, _)| id).collect()
    }

    /// That no clause failed, and which were skipped.
    fn assert_green(&self, skipped: &[&str]) {
        assert!(self.code == 0 && self.failed().is_empty(), "{:#}\n{}", self.report, self.stderr);
        assert_eq!(self.skipped(), set(skipped), "{:?}", self.with("skipped", "why"));
        assert!(self.report["passed"].as_u64().unwrap_or_default() >= 47, "{}", self.report["passed"]);
    }
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn plugin(name: &str) -> Result<PathBuf> {
    Ok(places::plugins()?.join(format!("{name}.wasm")))
}

fn wrong_storage() -> Result<PathBuf> {
    Ok(places::fixtures()?.join("wrong-storage.wasm"))
}

#[test]
fn sqlite_storage_keeps_the_contract() -> Result<()> {
    Tested::of(&plugin("sqlite-storage")?, &[])?.assert_green(&[]);
    Ok(())
}

#[test]
fn postgres_storage_keeps_the_contract() -> Result<()> {
    on_each_major(|server| {
        let database = server.create_database()?;
        Tested::of(&plugin("postgres-storage")?, &["--database", &database.url()])?.assert_green(&["storage.ids-given"]);
        Ok(())
    })
}

#[test]
fn the_storages_of_the_examples_keep_the_contract() -> Result<()> {
    for name in ["rows-rust", "kv-js", "kv-python", "rows-c", "kv-go"] {
        // Twenty megabytes of Python are compiled first, on a machine that is busy with other tests.
        let Some(component) = examples::component(name)? else { continue };
        Tested::of(&component, &["--call-timeout", "20s"])?.assert_green(&[]);
    }
    Ok(())
}

#[test]
fn what_a_storage_does_not_offer_is_skipped_by_name() -> Result<()> {
    let settings = ["--set", "strict_order = false", "--set", "on_delivered = \"delete\""];
    let strict = [
        "storage.order-across-claims",
        "storage.retried-head",
        "storage.released-head",
        "storage.leased-head",
        "storage.expired-run",
        "storage.race",
    ];
    Tested::of(&plugin("sqlite-storage")?, &settings)?.assert_green(&strict);
    Ok(())
}

/// A way to break the contract, and the clauses that are broken by it: each is one that a reader of the contract would name.
const FAULTS: [(&str, &[&str]); 31] = [
    ("ignores-max-bytes", &["max-bytes"]),
    ("ignores-max-message-bytes", &["max-message-bytes"]),
    ("counts-payloads-only", &["max-bytes", "max-message-bytes"]),
    ("trims-texts", &["texts"]),
    ("panics-on-bytes", &["payloads"]),
    ("changes-given-ids", &["ids-given"]),
    ("enqueues-one-by-one", &["enqueue"]),
    ("fails-on-nothing", &["settle-nothing", "fused"]),
    ("one-instance", &["any-instance"]),
    ("hides-failures", &["browse-rows", "dead"]),
    ("ignores-topic", &["browse-filters"]),
    ("names-a-channel", &["wake"]),
    ("own-clock", &["clock"]),
    ("settles-one-by-one", &["settle-atomic"]),
    ("cuts-durations", &["long-durations"]),
    ("merges-headers", &["headers"]),
    ("empty-is-none", &["payloads"]),
    ("fails-on-nul", &["failure-texts"]),
    ("claims-before-settling", &["fused"]),
    ("counts-leased-as-due", &["stats"]),
    ("creates-at-open", &["schema"]),
    ("requeues-all", &["requeue"]),
    ("purges-all", &["purge"]),
    ("pages-overlap", &["browse-pages"]),
    ("release-keeps-attempt", &["release", "settle-repeated"]),
    ("renews-for-all", &["late-extend", "not-held"]),
    ("ignores-limit", &["limit", "no-overlap", "order-across-claims", "race"]),
    ("loses-order", &["order-in-batch", "order-across-claims", "expired-run", "race"]),
    ("forgets-chain", &["retried-head", "released-head", "leased-head", "race"]),
    ("ignores-worker", &["late-delivered", "late-retry", "late-release", "late-dead", "not-held", "fused"]),
    ("hides-lost", &["late-delivered", "late-retry", "late-release", "late-dead", "late-extend", "not-held", "settle-repeated", "fused"]),
];

/// The same where so much is broken that other clauses cannot be kept either; and clauses that have nothing to do with it.
const GRAVE_FAULTS: [(&str, &[&str], &[&str]); 6] = [
    ("keyless-is-a-key", &["no-key"], &["headers", "schema", "race", "retried-head", "empty-claim"]),
    ("tells-wrong-ids", &["ids", "enqueue", "order-in-batch", "browse-pages"], &["limit", "max-bytes", "no-key", "empty-claim"]),
    ("claims-leased", &["invisible-while-leased", "no-overlap", "leased-head", "race"], &["retry-waits", "headers", "schema"]),
    ("counts-no-attempt", &["expiry", "attempts-used-up", "retry", "extend"], &["retry-waits", "no-overlap", "race", "stats"]),
    ("dead-comes-back", &["dead", "settled-head", "requeue", "discard"], &["delivered", "retry", "late-dead", "race"]),
    ("retries-at-once", &["retry-waits", "retry", "retried-head"], &["release-waits", "release", "released-head", "race"]),
];

#[test]
fn for_each_wrong_storage_the_clauses_that_it_breaks_are_named() -> Result<()> {
    let component = wrong_storage()?;
    let ids = |clauses: &[&str]| clauses.iter().map(|clause| format!("storage.{clause}")).collect::<BTreeSet<_>>();
    let exact = FAULTS.iter().map(|(fault, broken)| (*fault, ids(broken), None));
    let grave = GRAVE_FAULTS.iter().map(|(fault, broken, kept)| (*fault, ids(broken), Some(ids(kept))));
    let faults = Mutex::new(exact.chain(grave));
    let wrong = Mutex::new(Vec::new());
    // Clauses wait more than they work.
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let next = faults.lock().ok().and_then(|mut faults| faults.next());
                let Some((fault, broken, kept)) = next else { return Ok(()) };
                let tested = Tested::of(&component, &["--set", &format!("fault = {fault:?}")])?;
                let failed = tested.failed();
                let is_right = match kept {
                    None => failed == broken,
                    Some(kept) => failed.is_superset(&broken) && failed.is_disjoint(&kept),
                };
                if tested.code != 1 || !is_right {
                    wrong.lock().ok().context("a thread panicked")?.push((fault, broken, tested.with("failed", "seen")));
                }
            }
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })?;
    let wrong = wrong.into_inner()?;
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

#[test]
fn an_adapter_that_hangs_panics_or_floods_fails_its_clause_in_the_words_of_the_host() -> Result<()> {
    for (fault, timeout, told) in [
        ("hangs", "500ms", "claim was ended: its time was over"),
        ("panics", "20s", "claim panicked (unreachable code)"),
        ("floods", "20s", "claim handed over more than 64 MiB at once (limits.returned_bytes)"),
    ] {
        let set = format!("fault = {fault:?}");
        let tested = Tested::of(&wrong_storage()?, &["--set", &set, "--clause", "storage.empty-claim", "--call-timeout", timeout])?;
        let failed = tested.with("failed", "seen");
        assert_eq!((tested.code, failed.len()), (1, 1), "{fault}: {failed:?}");
        assert!(failed[0].1.contains(told), "{fault}: {failed:?}");
    }
    Ok(())
}

/// A command that fills the table of sqlite-storage, in the folder.
fn insert_command(folder: &Path) -> Result<String> {
    let script = folder.join("insert.sh");
    let (outhaul, plugins) = (places::outhaul()?, places::plugins()?);
    let text = format!(
        "config=$(mktemp)\n\
         trap 'rm -f \"$config\" \"$config.err\"' EXIT\n\
         printf '[plugins]\\ndir = \"%s\"\\n[databases.main]\\nurl = \"%s\"\\n[storages.s]\\nplugin = \"sqlite-storage\"\\ndatabase = \"main\"\\n' \
         '{}' \"$OUTHAUL_DATABASE\" > \"$config\"\n\
         '{outhaul}' -c \"$config\" schema --apply >&2\n\
         '{outhaul}' -c \"$config\" enqueue --jsonl - 2>\"$config.err\" && exit\n\
         cat \"$config.err\" >&2\n\
         grep -q invalid-message \"$config.err\" && exit 65\n\
         exit 1\n",
        plugins.display(),
        outhaul = outhaul.display()
    );
    std::fs::write(&script, text)?;
    Ok(format!("sh '{}'", script.display()))
}

#[test]
fn a_storage_without_administration_is_filled_by_a_command() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let command = insert_command(folder.path())?;
    let clauses = ["storage.order-across-claims", "storage.headers", "storage.schema"];
    let mut arguments = vec!["--insert-command", command.as_str()];
    arguments.extend(clauses.iter().flat_map(|clause| ["--clause", *clause]));
    let tested = Tested::of(&plugin("sqlite-storage")?, &arguments)?;
    assert!(tested.code == 0 && tested.report["passed"] == 2, "{:#}\n{}", tested.report, tested.stderr);
    assert_eq!(tested.skipped(), set(&["storage.schema"]));
    Ok(())
}

#[test]
fn a_storage_with_what_every_storage_must_have_keeps_the_contract() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let component = places::fixtures()?.join("minimal-storage.wasm");
    let tested = Tested::of(&component, &["--insert-command", &insert_command(folder.path())?])?;
    assert!(tested.code == 0 && tested.failed().is_empty(), "{:#}\n{}", tested.report, tested.stderr);
    // What it does not export, and what a command cannot show.
    let skipped = set(&[
        "storage.browse-filters",
        "storage.browse-pages",
        "storage.browse-rows",
        "storage.discard",
        "storage.enqueue",
        "storage.fused",
        "storage.purge",
        "storage.requeue",
        "storage.schema",
    ]);
    assert_eq!(tested.skipped(), skipped, "{:?}", tested.with("skipped", "why"));
    Ok(())
}

#[test]
fn what_cannot_be_tested_is_told_with_exit_code_2() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str, bytes: &[u8]| {
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).map(|()| file)
    };
    let sqlite = plugin("sqlite-storage")?;
    for (component, arguments, told) in [
        (folder.path().join("none.wasm"), &[][..], "cannot be read"),
        (file("a.txt", b"")?, &[], "it must end in .wasm"),
        (file("b.wasm", b"hello")?, &[], "is not WebAssembly"),
        (file("c.wasm", b"\0asm\x0d\0\x01\0")?, &[], "is no adapter: it exports nothing"),
        (sqlite.clone(), &["--clause", "storage.none"], "there is no such clause for a storage"),
        (sqlite.clone(), &["--clause", "publisher.none"], "there is no such clause for a storage"),
        (
            sqlite.clone(),
            &["--clause", "publisher.unavailable"],
            "the component is a storage, and this clause is one of a publisher: name clauses that begin with `storage.`",
        ),
        (sqlite.clone(), &["--set", "tabel = \"t\""], "unknown field `tabel`"),
        (sqlite.clone(), &["--set", "table"], "is not a key and its value as in TOML"),
        (sqlite.clone(), &["--database", "oracle:x"], "--database the scheme \"oracle\" is not supported"),
        (sqlite, &["--database", "sqlite:x.db"], "each clause gets a new file"),
    ] {
        let tested = Tested::of(&component, arguments)?;
        let error = tested.report["error"].as_str().unwrap_or_default();
        assert!(tested.code == 2 && error.contains(told), "{arguments:?}: {:#}", tested.report);
    }
    Ok(())
}

#[test]
fn a_database_with_something_in_it_is_not_emptied() -> Result<()> {
    on_each_major(|server| {
        let database = server.create_database()?;
        let mut client = outhaul_services::postgres::connect(&database.url())?;
        for (make, look, drop) in [
            ("CREATE TABLE precious (id bigint)", "SELECT id FROM precious", "DROP TABLE precious"),
            ("CREATE FUNCTION precious() RETURNS int LANGUAGE sql AS 'SELECT 1'", "SELECT precious()", "DROP FUNCTION precious"),
            ("CREATE TYPE precious AS ENUM ('a')", "SELECT 'a'::precious", "DROP TYPE precious"),
            ("CREATE DOMAIN precious AS int", "SELECT 1::precious", "DROP DOMAIN precious"),
            ("CREATE SCHEMA precious", "CREATE TABLE precious.t ()", "DROP SCHEMA precious CASCADE"),
            ("CREATE EXTENSION pgcrypto", "SELECT digest('a', 'md5')", "DROP EXTENSION pgcrypto"),
            ("CREATE COLLATION precious FROM \"C\"", "SELECT 'a' COLLATE precious", "DROP COLLATION precious"),
        ] {
            client.batch_execute(make).with_context(|| make.to_owned())?;
            let tested = Tested::of(&plugin("postgres-storage")?, &["--database", &database.url()])?;
            assert!(tested.code == 2 && tested.report["error"].to_string().contains("is not empty"), "{make}: {:#}", tested.report);
            client.batch_execute(look).with_context(|| format!("{make} is gone"))?;
            client.batch_execute(drop)?;
        }
        Ok(())
    })
}

#[test]
fn what_is_said_beside_a_component_need_not_be_said_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let component = folder.path().join("an adapter.wasm");
    std::fs::copy(wrong_storage()?, &component)?;
    std::fs::write(folder.path().join("conformance.toml"), "[test]\nconfig = { fault = \"merges-headers\" }\n")?;
    let tested = Tested::of(&component, &["--clause", "storage.headers"])?;
    assert_eq!(tested.failed(), set(&["storage.headers"]), "{:#}", tested.report);
    let failed = tested.with("failed", "expected");
    assert!(failed[0].1.contains("z=1, a=2, z=3"), "{failed:?}");
    let tested = Tested::of(&component, &["--clause", "storage.headers", "--set", "fault = \"empty-is-none\""])?;
    assert!(tested.failed().is_empty(), "{:#}", tested.report);
    std::fs::write(folder.path().join("conformance.toml"), "[test]\ndatabase = 1\n")?;
    let tested = Tested::of(&component, &[])?;
    assert!(tested.code == 2 && tested.report["error"].to_string().contains("unknown field `database`"), "{:#}", tested.report);
    Ok(())
}

#[test]
fn what_is_beside_a_component_runs_and_grants_nothing_unless_it_is_trusted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let component = folder.path().join("adapter.wasm");
    std::fs::copy(plugin("sqlite-storage")?, &component)?;
    let beside = |text: &str| std::fs::write(folder.path().join("conformance.toml"), format!("[test]\n{text}\n"));
    let clause = ["--clause", "storage.empty-claim"];
    beside("insert_command = \"touch ran\"")?;
    Tested::of(&component, &clause)?;
    assert!(!folder.path().join("ran").exists());
    let trusting = ["--clause", "storage.empty-claim", "--trust-beside"];
    for (text, told) in [("insert_command = \"touch ran\"", "touch ran"), ("allow_hosts = [\"10.0.0.1:80\"]", "10.0.0.1:80")] {
        beside(text)?;
        let tested = Tested::of(&component, &clause)?;
        let error = tested.report["error"].as_str().unwrap_or_default();
        assert!(tested.code == 2 && error.contains(told) && error.contains("--trust-beside"), "{text}: {:#}", tested.report);
        let tested = Tested::of(&component, &trusting)?;
        assert!(tested.stderr.contains("which is trusted") && tested.stderr.contains(told), "{text}: {}", tested.stderr);
    }
    // In its own folder, wherever the kit was started.
    beside("insert_command = \"touch ran\"")?;
    Tested::of(&component, &trusting)?;
    assert!(folder.path().join("ran").exists());
    Ok(())
}

#[test]
fn every_clause_is_listed_and_a_person_is_told_what_was_seen() -> Result<()> {
    let run = |arguments: &[&str]| -> Result<(Option<i32>, String)> {
        let output = Command::new(places::outhaul()?)
            .args(["plugin", "test"])
            .args(arguments)
            .env("XDG_CACHE_HOME", places::compiled()?)
            .env("COLUMNS", "200")
            .output()?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?))
    };
    let (code, list) = run(&["--list"])?;
    assert_eq!(code, Some(0));
    for part in ["storage.limit\n", "    claim-request: \"At most so many rows\"\n"] {
        assert!(list.contains(part), "{part}: {list}");
    }
    let component = wrong_storage()?;
    let Some(component) = component.to_str() else { bail!("{} is no text", component.display()) };
    let (code, told) = run(&[component, "--set", "fault = \"ignores-limit\"", "--clause", "storage.limit", "--clause", "storage.wake"])?;
    assert_eq!(code, Some(1));
    for part in [
        "storage.limit  FAILED",
        "FAILED storage.limit: a claim returns at most `limit` rows",
        "expected  the call `claim` to succeed",
        "claim returned a broken batch: has 5 messages where at most 2 were asked for",
        "1 passed, 1 failed, 0 skipped",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    Ok(())
}
