//! The binary as a user meets it: exit codes, and errors that are told once and say what to do. Needs no component.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::string_slice, reason = "a test may stop at the first surprise")]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const CONFIG: &str = r#"
[databases.main]
url = "sqlite:outbox.db"
[storages.outbox]
plugin = "sqlite-storage"
database = "main"
[publishers.webhooks]
plugin = "http-publisher"
[[relays]]
name = "orders"
storage = "outbox"
routes = [{ topic = "*", publisher = "webhooks" }]
"#;

fn folder(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("outhaul.toml"), config).unwrap();
    std::fs::create_dir(folder.path().join("plugins")).unwrap();
    folder
}

fn command(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outhaul"));
    command.current_dir(folder).args(line.split_whitespace()).env_remove("RUST_LOG").env_remove("OUTHAUL_CONFIG");
    command
}

fn outhaul(folder: &Path, line: &str) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(folder, line).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[track_caller]
fn refused(config: &str, line: &str, expected: &[&str]) {
    let folder = folder(config);
    let (code, stdout, stderr) = outhaul(folder.path(), line);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.matches("error: ").count() == 1, "{stderr}");
    for expected in expected {
        assert!(stderr.contains(expected), "{expected:?} is not in {stderr}");
    }
}

#[test]
fn help_teaches_and_is_no_error() {
    let folder = folder("");
    let (code, stdout, _) = outhaul(folder.path(), "--help");
    assert_eq!(code, 0);
    for part in ["First steps:", "Exit codes:", "OUTHAUL_CONFIG", "dead list"] {
        assert!(stdout.contains(part), "{part}");
    }
    for command in ["run", "drain", "check", "enqueue", "schema", "stats", "dead", "purge", "plugin inspect"] {
        let (code, stdout, _) = outhaul(folder.path(), &format!("{command} --help"));
        assert!(code == 0 && stdout.contains("Examples:"), "{command}: {stdout}");
    }
    assert!(outhaul(folder.path(), "--version").1.starts_with("outhaul "));
}

#[test]
fn wrong_usage_ends_with_2() {
    let folder = folder(CONFIG);
    for line in ["", "fly", "enqueue --topic t", "dead requeue", "purge --older-than 7", "run --relays x"] {
        let (code, stdout, stderr) = outhaul(folder.path(), line);
        assert_eq!((code, stdout.as_str()), (2, ""), "{line}: {stderr}");
    }
}

#[test]
fn a_wrong_configuration_ends_with_2_and_names_line_and_key() {
    refused("", "--config other.toml run", &["there is no configuration file other.toml", "--config"]);
    let two = CONFIG.replace("storage = \"outbox\"", "storage = \"inbox\"\nlease = \"5s\"\npublish_timeout = \"9s\"");
    refused(
        &two,
        "run",
        &["outhaul.toml has 2 problems:", "outhaul.toml:11: relays[0].storage: ", "outhaul.toml:12: relays[0].lease: lease (5s)"],
    );
    refused(CONFIG, "run --relay invoices", &["no relay \"invoices\"", "relays: orders"]);
    refused(&CONFIG[..CONFIG.find("[[relays]]").unwrap()], "run", &["has no relay", "add [[relays]]"]);
    refused(CONFIG, "stats --storage inbox", &["no storage \"inbox\"", "storages: outbox"]);
    refused("", "stats", &["has no storage"]);
    let several = CONFIG.replace("[publishers", "[storages.other]\nplugin = \"x\"\ndatabase = \"main\"\n[publishers");
    refused(&several, "dead list", &["several storages", "--storage (other, outbox)"]);
    let twice = CONFIG.replace("[publishers", "[storages.outbox]\nplugin = \"x\"\n[publishers");
    refused(&twice, "check", &["has 1 problem:", "outhaul.toml:7: storages.outbox: this table is there already, in line 4"]);
    let secret = CONFIG.replace("plugin = \"http", "allow_hosts = [\"https://user:hunter2@h.example:443/\"]\nplugin = \"http");
    refused(&secret, "check", &["outhaul.toml:8: publishers.webhooks.allow_hosts: is a URL", "\"h.example:443\""]);
}

#[test]
fn no_password_is_repeated() {
    for entry in ["allow_hosts = [\"https://user:hunter2@h.example:443/\"]", "allow_hosts = [\"user:hunter2@h.example\"]"] {
        let folder = folder(&CONFIG.replace("plugin = \"http", &format!("{entry}\nplugin = \"http")));
        let (_, stdout, stderr) = outhaul(folder.path(), "check");
        assert!(!stdout.contains("hunter2") && !stderr.contains("hunter2"), "{entry}: {stdout}{stderr}");
    }
}

#[test]
fn with_json_stdout_has_one_document_in_any_case() {
    let folder = folder(CONFIG);
    for (line, expected) in [
        ("stats --json", "no database file outbox.db"),
        ("--config other.toml drain --json", "no configuration file other.toml"),
        ("dead list --storage inbox --json", "no storage \"inbox\""),
        ("purge --older-than 7 --json", "7"),
        ("plugin inspect none.wasm --json", "none.wasm cannot be read"),
    ] {
        let (code, stdout, stderr) = outhaul(folder.path(), line);
        let document: serde_json::Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{line}: {error}: {stdout}"));
        assert_eq!((code, &document["exit_code"]), (2, &serde_json::json!(2)), "{line}");
        assert!(document["error"].as_str().unwrap().contains(expected), "{line}: {stdout}");
        assert!(stderr.contains(expected), "{line}: {stderr}");
    }
}

#[test]
fn check_has_a_document_for_a_wrong_file() {
    let folder = folder(&CONFIG.replace("storage = \"outbox\"", "storage = \"inbox\"\nbatch = 0"));
    let (code, stdout, stderr) = outhaul(folder.path(), "check --json");
    assert_eq!((code, stderr.as_str()), (2, ""));
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["ok"], false);
    let of = |index: usize, key: &str| document["checks"][index][key].clone();
    assert_eq!((of(0, "what"), of(0, "state"), of(0, "file")), ("configuration".into(), "failed".into(), "outhaul.toml".into()));
    assert_eq!((of(0, "line"), of(0, "key")), (11.into(), "relays[0].storage".into()));
    assert_eq!((of(1, "line"), of(1, "key")), (12.into(), "relays[0].batch".into()));
    assert!(of(1, "text").as_str().unwrap().starts_with("is 0: "), "{stdout}");

    std::fs::write(folder.path().join("outhaul.toml"), b"\n\xff").unwrap();
    let (code, stdout, _) = outhaul(folder.path(), "check --json");
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &document["checks"][0]["line"], &document["checks"][0]["key"]), (2, &2.into(), &serde_json::Value::Null));
    assert!(document["checks"][0]["text"].as_str().unwrap().contains("is not UTF-8"), "{stdout}");
}

#[test]
fn check_warns_of_what_runs_and_is_not_meant() {
    let folder = folder(&CONFIG.replace("storage = \"outbox\"", "storage = \"outbox\"\nmax_attempts = 3\nbreaker = { failures = 5 }"));
    let (_, stdout, _) = outhaul(folder.path(), "check");
    let warning = "warning relays.orders: outhaul.toml:12: relays[0].max_attempts: an outage of the destination can end messages dead: \
                   max_attempts (3) is not above breaker.failures (5)";
    assert!(stdout.contains(warning), "{stdout}");
    assert!(stdout.contains("outhaul.toml is well-formed") && !stdout.contains("contradict"), "{stdout}");
    assert!(
        stdout.contains("FAILED  storages.outbox: outhaul.toml:3: databases.main.url: there is no database file outbox.db"),
        "{stdout}"
    );
    assert!(stdout.contains("FAILED  publishers.webhooks: outhaul.toml:8: publishers.webhooks.plugin: there is no "), "{stdout}");
    let (_, _, stderr) = outhaul(folder.path(), "drain");
    assert!(stderr.contains("max_attempts (3) is not above breaker.failures (5)"), "{stderr}");
    std::fs::write(folder.path().join("outhaul.toml"), "").unwrap();
    let (_, stdout, _) = outhaul(folder.path(), "check");
    assert!(stdout.contains("warning relays: there is none"), "{stdout}");
}

#[test]
fn what_is_absent_is_named_with_what_to_do() {
    refused(CONFIG, "run", &["no database file outbox.db", "correct databases.main.url", "outhaul schema --storage outbox --apply"]);
    let folder = folder(CONFIG);
    std::fs::write(folder.path().join("outbox.db"), "").unwrap();
    std::fs::write(folder.path().join("plugins/other.wasm"), "").unwrap();
    let (code, _, stderr) = outhaul(folder.path(), "drain");
    assert_eq!(code, 2);
    assert!(stderr.contains("sqlite-storage.wasm") || stderr.contains("http-publisher.wasm"), "{stderr}");
    assert!(stderr.contains("it has: other"), "{stderr}");
}

#[test]
fn check_tells_everything_that_is_wrong() {
    let folder = folder(CONFIG);
    let (code, stdout, stderr) = outhaul(folder.path(), "check --json");
    assert_eq!((code, stderr.as_str()), (2, ""));
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["ok"], false);
    let failed: Vec<&str> = document["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["state"] == "failed")
        .map(|check| check["what"].as_str().unwrap())
        .collect();
    assert_eq!(failed, ["storages.outbox", "publishers.webhooks"]);
    assert!(!folder.path().join("outbox.db").exists(), "check changes nothing");
}

#[test]
fn a_taken_admin_address_names_its_key() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!("{CONFIG}\n[admin]\nlisten = \"{}\"\n", taken.local_addr().unwrap());
    refused(&config, "run", &["admin.listen", "another process listens there"]);
}

#[test]
fn the_log_can_be_json_and_tells_the_address() {
    let folder = folder(&format!("{CONFIG}\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n"));
    let (_, _, stderr) = outhaul(folder.path(), "run");
    let line: serde_json::Value = serde_json::from_str(stderr.lines().next().unwrap()).unwrap();
    assert_eq!(line["message"], "admin address");
    assert!(line["listen"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
}

#[test]
fn a_wrong_log_filter_is_refused() {
    let folder = folder(CONFIG);
    let output = command(folder.path(), "run").env("RUST_LOG", "outhaul=loud").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("RUST_LOG"));
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let folder = folder(CONFIG);
    let mut child = command(folder.path(), "plugin list").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn the_plugin_list_shows_what_is_missing() {
    let folder = folder(CONFIG);
    std::fs::write(folder.path().join("plugins/broken.wasm"), "hello").unwrap();
    let (code, stdout, _) = outhaul(folder.path(), "plugin list --json");
    assert_eq!(code, 0);
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let plugins = document["plugins"].as_array().unwrap();
    let names: Vec<&str> = plugins.iter().map(|plugin| plugin["plugin"].as_str().unwrap()).collect();
    assert_eq!(names, ["broken", "http-publisher", "sqlite-storage"]);
    assert!(plugins[0]["error"].as_str().unwrap().contains("is not WebAssembly"), "{stdout}");
    assert_eq!(plugins[2]["used_by"], serde_json::json!(["storages.outbox"]));
    for plugin in plugins {
        for key in ["file", "world", "name", "version", "description", "imports", "exports", "requests", "bytes", "sha256", "error"] {
            assert!(plugin.get(key).is_some(), "{key} of {plugin}");
        }
    }
}
