//! The binary as a user meets it: exit codes, and errors that are told once and say what to do. Needs no component.

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
}

#[test]
fn what_is_absent_is_named_with_what_to_do() {
    refused(CONFIG, "run", &["no database file outbox.db", "outhaul schema --storage outbox --apply"]);
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
}
