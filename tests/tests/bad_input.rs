//! Bad input: each a clear text that says what to do, the right exit code, and nothing lost.

use anyhow::{Context, Result};
use outhaul_tests::outbox::{DELIVERED, Outbox};
use outhaul_tests::places;
use outhaul_tests::receiver::{Answer, Receiver};
use outhaul_tests::rig::{Config, Rig};
use rusqlite::TransactionBehavior;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::time::Duration;

/// Exit code of usage and configuration errors.
const CONFIGURATION: i32 = 2;
/// Exit code of failures at run time.
const FAILURE: i32 = 1;

fn assert_tells(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

/// A rig with one message in it.
fn rig() -> Result<(Rig, Config, Receiver)> {
    let receiver = Receiver::accepting()?;
    let config = Config::to(receiver.address())?;
    let rig = Rig::new(&config)?;
    rig.outbox()?.add("orders", None, b"x")?;
    Ok((rig, config, receiver))
}

/// The message that was there before is there still, and goes out when all is well again.
fn nothing_is_lost(rig: &Rig, config: &Config) -> Result<()> {
    rig.configure(config)?;
    assert_eq!(rig.drain()?["sent"], 1);
    Ok(())
}

#[test]
fn a_missing_file_and_text_that_is_not_toml() -> Result<()> {
    let rig = Rig::empty()?;
    assert_tells(&rig.run(&["run"])?.failure(CONFIGURATION)?, &["outhaul.toml"]);
    fs::write(rig.config(), "[log]\nformat = \"json\"\n[relays\nname = 1")?;
    assert_tells(&rig.run(&["run"])?.failure(CONFIGURATION)?, &["outhaul.toml:3: "]);
    Ok(())
}

#[test]
fn unknown_and_misspelt_keys_are_named_with_their_line() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    for (path, told) in [
        ("relays.0.batchs", "relays[0].batchs"),
        ("publishers.webhooks.lane", "publishers.webhooks.lane"),
        ("pluginz", "pluginz"),
        ("databases.main.urll", "databases.main.urll"),
    ] {
        let changed = config.clone().set(path, 1);
        rig.configure(&changed)?;
        let key = path.rsplit('.').next().unwrap_or(path);
        let index = changed.text().lines().position(|line| line == format!("{key} = 1")).context("the key is on no line of its own")?;
        assert_tells(&rig.run(&["run"])?.failure(CONFIGURATION)?, &[&format!("outhaul.toml:{}: {told}: ", index + 1)]);
    }
    nothing_is_lost(&rig, &config)
}

#[test]
fn the_adapters_own_keys_are_checked_as_well() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    for (path, key) in [("storages.outbox.config.tabel", "tabel"), ("publishers.webhooks.config.urll", "urll")] {
        let changed = config.clone().set(path, "x");
        rig.configure(&changed)?;
        let line = changed.text().lines().position(|line| line.starts_with(key)).map_or(0, |index| index + 1);
        for command in ["check", "drain"] {
            let told = format!("outhaul.toml:{line}: {path}: unknown field `{key}`");
            assert_tells(&rig.run(&[command])?.failure(CONFIGURATION)?, &[&told]);
        }
    }
    nothing_is_lost(&rig, &config)
}

#[test]
fn names_that_lead_nowhere() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    for (path, value) in [("relays.0.storage", "outbux"), ("storages.outbox.database", "mian")] {
        rig.configure(&config.clone().set(path, value))?;
        assert_tells(&rig.run(&["run"])?.failure(CONFIGURATION)?, &[value]);
    }
    nothing_is_lost(&rig, &config)
}

#[test]
fn a_component_that_is_missing_broken_or_of_another_world() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    let plugins = rig.path().join("plugins");
    fs::create_dir(&plugins)?;
    let here = config.clone().set("plugins.dir", "plugins");
    rig.configure(&here)?;
    assert_tells(&rig.run(&["check"])?.failure(CONFIGURATION)?, &["http-publisher.wasm"]);

    let built = places::plugins()?;
    let (storage, publisher) = (plugins.join("sqlite-storage.wasm"), plugins.join("http-publisher.wasm"));
    fs::copy(built.join("sqlite-storage.wasm"), &storage)?;
    fs::write(&publisher, "this is no component")?;
    assert_tells(&rig.run(&["check"])?.failure(CONFIGURATION)?, &["http-publisher", "not WebAssembly"]);

    let whole = fs::read(built.join("http-publisher.wasm"))?;
    fs::write(&publisher, &whole[..whole.len() / 2])?;
    assert_tells(&rig.run(&["check"])?.failure(CONFIGURATION)?, &["http-publisher"]);

    fs::copy(built.join("sqlite-storage.wasm"), &publisher)?;
    assert_tells(&rig.run(&["check"])?.failure(CONFIGURATION)?, &["http-publisher", "publisher"]);
    nothing_is_lost(&rig, &config)
}

#[test]
fn a_database_that_is_absent_is_not_created() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    let absent = rig.path().join("absent.db");
    rig.configure(&config.clone().set("databases.main.url", "sqlite:absent.db"))?;
    for command in ["check", "drain"] {
        assert_tells(&rig.run(&[command])?.failure(CONFIGURATION)?, &["absent.db", "outhaul schema"]);
    }
    assert!(!absent.exists());
    nothing_is_lost(&rig, &config)
}

#[test]
fn a_file_that_is_no_database() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    fs::write(
        rig.path().join("other.db"),
        "this is a text, and quite a long one, so that it has the length of a header and more ".repeat(10),
    )?;
    rig.configure(&config.clone().set("databases.main.url", "sqlite:other.db"))?;
    assert_tells(&rig.run(&["check"])?.failure(FAILURE)?, &["not a database"]);
    nothing_is_lost(&rig, &config)
}

#[test]
fn a_database_with_another_schema() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    rig.configure(&config.clone().set("storages.outbox.config.table", "nothing_here"))?;
    assert_tells(&rig.run(&["check"])?.failure(CONFIGURATION)?, &["nothing_here", "outhaul schema"]);

    rig.outbox()?.connection().execute_batch("CREATE TABLE half (id INTEGER PRIMARY KEY, topic TEXT, payload BLOB)")?;
    rig.configure(&config.clone().set("storages.outbox.config.table", "half"))?;
    assert_tells(&rig.run(&["check"])?.failure(CONFIGURATION)?, &["half"]);
    nothing_is_lost(&rig, &config)
}

/// A user to whom permissions apply, where the tests run as root: `nobody` of most systems.
const NOBODY: u32 = 65534;

#[test]
fn a_database_that_is_read_only() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    let root = rustix::process::geteuid().is_root();
    // Compiled code is taken from a folder of one's own only.
    let compiled = rig.path().join("compiled");
    fs::create_dir(&compiled)?;
    if root {
        chown(&compiled, Some(NOBODY), Some(NOBODY))?;
    }
    rig.configure(&config.clone().set("plugins.cache", "compiled"))?;
    let set = |file: u32, folder: u32| -> Result<()> {
        fs::set_permissions(rig.database(), fs::Permissions::from_mode(file))?;
        Ok(fs::set_permissions(rig.path(), fs::Permissions::from_mode(folder))?)
    };
    set(0o444, 0o555)?;
    let drained = rig.run_as(&["drain"], |command| {
        if root {
            command.uid(NOBODY).gid(NOBODY);
        }
    });
    set(0o644, 0o755)?;
    assert_tells(&drained?.failure(FAILURE)?, &["read-only", "outbox.db"]);
    nothing_is_lost(&rig, &config)
}

#[test]
fn a_database_that_somebody_else_has_locked_is_waited_for() -> Result<()> {
    let (rig, config, receiver) = rig()?;
    rig.configure(&config.set("storages.outbox.limits.call_timeout", "300ms"))?;
    let mut other = Outbox::open(&rig.database())?;
    let lock = other.connection().transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut host = rig.host()?;
    // Longer than a call may take: it is told, and tried again.
    let told = host.process().errors().wait_for_line("the storage fails")?;
    assert_tells(&told, &["outbox", "locked"]);
    assert_eq!(receiver.requests().len(), 0);
    // The database is busy; the adapter is not at fault, and is not thrown away.
    assert!(host.metric("outhaul_adapter_faults_total")?.abs() < 0.5, "{}", host.metrics()?);
    lock.rollback()?;
    receiver.wait_for_accepted(1)?;
    rig.outbox()?.wait_for_rows("the row to be settled", |rows| rows[0].status == DELIVERED)?;
    host.shut_down()
}

#[test]
fn a_receiver_that_cannot_be_reached() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    let nobody = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let away = config
        .clone()
        .set("publishers.webhooks.allow_hosts", vec![nobody.to_string()])
        .set("publishers.webhooks.config.url", format!("http://{nobody}/{{topic}}"));
    rig.configure(&away.clone().set("relays.0.backoff.base", "1s"))?;
    assert_eq!(rig.run(&["check"])?.code, Some(0), "a destination that is down is no mistake of the configuration");
    assert_eq!(rig.drain()?["retried"], 1);
    let row = &rig.outbox()?.rows()?[0];
    assert_eq!(row.status, "pending");
    assert_tells(row.last_error.as_deref().unwrap_or_default(), &["network"]);
    // It waits for its retry: let that be now.
    rig.outbox()?.connection().execute("UPDATE outbox SET available_at = 0", [])?;
    nothing_is_lost(&rig, &config)
}

/// `--json` promises one document in any case.
#[test]
fn a_drain_that_ends_behind_an_open_breaker_prints_one_document() -> Result<()> {
    let (rig, config, receiver) = rig()?;
    // Longer than the second in which a success would keep the breaker closed.
    receiver.set_script(|_| Answer::status(503).after(Duration::from_millis(1500)));
    let one_by_one = config
        .set_all("publishers.webhooks", "lanes = 1\nbatch = 1")
        .set_all("relays.0", "breaker = { failures = 1, open = \"10m\", max = \"10m\" }");
    rig.configure(&one_by_one)?;
    rig.enqueue(&["--topic", "orders", "--payload", "x"])?;
    let finished = rig.run(&["drain", "--json"])?;
    assert_eq!(finished.code, Some(FAILURE), "{}\n{}", finished.output, finished.errors);
    let document: serde_json::Value = serde_json::from_str(&finished.output)?;
    assert_eq!(document["breaker_open"], true);
    assert_tells(&finished.errors, &["its circuit breaker is open"]);
    Ok(())
}

#[test]
fn a_receiver_that_is_not_granted_is_refused_with_the_line_to_add() -> Result<()> {
    let (rig, config, receiver) = rig()?;
    rig.configure(&config.clone().set("publishers.webhooks.allow_hosts", Vec::<String>::new()).set("relays.0.max_attempts", 1))?;
    let finished = rig.run(&["drain"])?;
    assert_eq!(receiver.requests().len(), 0);
    let row = rig.outbox()?.rows()?[0].clone();
    let told = format!("{}\n{}\n{}", finished.errors, finished.output, row.last_error.unwrap_or_default());
    assert_tells(&told, &["allow_hosts", &receiver.address().to_string()]);
    Ok(())
}

#[test]
fn one_wrong_line_keeps_all_lines_out() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    let lines = rig.path().join("in.jsonl");
    fs::write(&lines, "{\"topic\":\"t\",\"payload\":\"x\"}\n{\n{\"topic\":\"t\"}\n")?;
    let told = rig.run(&["enqueue", "--jsonl", lines.to_str().context("path")?])?.failure(CONFIGURATION)?;
    assert_tells(&told, &["nothing was inserted: ", "in.jsonl has 2 wrong lines", "in.jsonl:2: ", "in.jsonl:3: has no payload"]);
    nothing_is_lost(&rig, &config)
}

#[test]
fn impossible_arguments_are_usage_errors() -> Result<()> {
    let (rig, config, _receiver) = rig()?;
    for arguments in [
        &["enqueue", "--topic", "t"][..],
        &["enqueue", "--topic", "t", "--payload", "x", "--tombstone"],
        &["dead", "discard"],
        &["purge", "--older-than", "soon"],
        &["run", "--relay", "nobody"],
        &["stats", "--storage", "nobody"],
        &["fly"],
    ] {
        rig.run(arguments)?.failure(CONFIGURATION)?;
    }
    nothing_is_lost(&rig, &config)
}
