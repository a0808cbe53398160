//! The conformance kit on publishers: green for those that keep the contract, and red for one that breaks it, with the clause that it
//! breaks.

use anyhow::{Context, Result};
use outhaul_tests::process::bound;
use outhaul_tests::{examples, places};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Clauses that wait for seconds, or send much: looked at where they matter.
const SLOW: [&str; 5] = ["publisher.silence", "publisher.slow", "publisher.after-silence", "publisher.large-batch", "publisher.secrets"];

/// A secret, as the tests know it.
const SECRET: (&str, &str) = ("OUTHAUL_CONFORMANCE_SECRET", "correct-horse-battery");

/// A fault, where there are no settings to name one.
const FAULT: (&str, &str) = ("OUTHAUL_CONFORMANCE_FAULT", "names-no-missing-key");

/// Runs `outhaul plugin test`: its exit code, and its report.
fn test(component: &Path, options: &[&str]) -> Result<(Option<i32>, Value)> {
    let mut command = bound(&places::outhaul()?);
    command.args(["plugin", "test", "--json"]).arg(component).args(options);
    command.env("XDG_CACHE_HOME", places::compiled()?).env(SECRET.0, SECRET.1).env(FAULT.0, FAULT.1);
    let output = command.output()?;
    let report = serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok((output.status.code(), report))
}

/// Ids of the clauses with a verdict.
fn with_verdict<'a>(report: &'a Value, verdict: &str) -> BTreeSet<&'a str> {
    let clauses = report["clauses"].as_array().map(Vec::as_slice).unwrap_or_default();
    clauses.iter().filter(|clause| clause["verdict"] == verdict).filter_map(|clause| clause["id"].as_str()).collect()
}

fn assert_green(component: &Path, options: &[&str], skipped: &[&str]) -> Result<()> {
    let (code, report) = test(component, options)?;
    assert_eq!((code, with_verdict(&report, "failed")), (Some(0), BTreeSet::new()), "{report:#}");
    assert_eq!(with_verdict(&report, "skipped"), BTreeSet::from_iter(skipped.iter().copied()), "{report:#}");
    assert!(with_verdict(&report, "passed").len() + skipped.len() >= 30, "{report:#}");
    Ok(())
}

#[test]
fn http_publisher_keeps_the_contract() -> Result<()> {
    let settings = [
        "--set",
        "url = \"{destination}/{topic}\"",
        "--set",
        "headers.authorization = { secret = \"token\" }",
        "--secret",
        "token=OUTHAUL_CONFORMANCE_SECRET",
    ];
    // No key is required: the deliveries of a fan-out bring their own address.
    let skipped = ["publisher.binary-headers", "publisher.missing-key"];
    assert_green(&places::plugins()?.join("http-publisher.wasm"), &settings, &skipped)
}

#[test]
fn kafka_publisher_keeps_the_contract() -> Result<()> {
    let destination = concat!("exec '", env!("CARGO_BIN_EXE_kafka-destination"), "'");
    let options = ["--set", "brokers = [\"{destination}\"]", "--destination-command", destination];
    // What a broker cannot say, and a password that this destination does not ask for.
    let skipped = [
        "publisher.accepted-statuses",
        "publisher.gone",
        "publisher.redirects",
        "publisher.rejected-statuses",
        "publisher.retried-statuses",
        "publisher.retry-after",
        "publisher.secrets",
    ];
    assert_green(&places::plugins()?.join("kafka-publisher.wasm"), &options, &skipped)
}

#[test]
fn the_example_of_each_language_keeps_the_contract() -> Result<()> {
    for example in examples::ALL.iter().filter(|example| example.kind == examples::Kind::Publisher) {
        let Some(component) = examples::component(example.name)? else { continue };
        let skipped = ["publisher.binary-headers", "publisher.secrets"];
        assert_green(&component, &["--set", "url = \"{destination}/in\""], &skipped).with_context(|| example.name)?;
    }
    Ok(())
}

#[test]
fn a_missing_key_that_is_not_named_is_named() -> Result<()> {
    let component = places::fixtures()?.join("wrong-publisher.wasm");
    let settings = ["--set", "url = \"{destination}/\"", "--clause", "publisher.missing-key"];
    let (code, report) = test(&component, &settings)?;
    assert_eq!((code, with_verdict(&report, "passed")), (Some(0), BTreeSet::from(["publisher.missing-key"])), "{report:#}");
    let (code, report) = test(&component, &[&settings[..], &["--secret", &format!("fault={}", FAULT.0)]].concat())?;
    assert_eq!((code, with_verdict(&report, "failed")), (Some(1), BTreeSet::from(["publisher.missing-key"])), "{report:#}");
    Ok(())
}

#[test]
fn headers_that_are_not_kept_byte_by_byte_are_named() -> Result<()> {
    let component = places::fixtures()?.join("wrong-publisher.wasm");
    let destination = concat!("exec '", env!("CARGO_BIN_EXE_hex-destination"), "'");
    let settings = ["--set", "url = \"http://{destination}/\"", "--set", "hex_headers = true", "--destination-command", destination];
    let clause = ["--clause", "publisher.binary-headers"];
    let (code, report) = test(&component, &[&settings[..], &clause[..]].concat())?;
    assert_eq!((code, with_verdict(&report, "passed")), (Some(0), BTreeSet::from(["publisher.binary-headers"])), "{report:#}");
    let fault = ["--set", "fault = \"text-headers\""];
    let (code, report) = test(&component, &[&settings[..], &clause[..], &fault[..]].concat())?;
    assert_eq!((code, with_verdict(&report, "failed")), (Some(1), BTreeSet::from(["publisher.binary-headers"])), "{report:#}");
    Ok(())
}

/// Of the wrong publisher, the quick clauses and those named besides: which fail.
fn wrong(fault: &str, besides: &[&str]) -> Result<BTreeSet<String>> {
    let component = places::fixtures()?.join("wrong-publisher.wasm");
    let mut options =
        vec!["--set", "url = \"{destination}/\"", "--set", "secret = \"token\"", "--secret", "token=OUTHAUL_CONFORMANCE_SECRET"];
    let fault = format!("fault = \"{fault}\"");
    if !fault.contains("\"\"") {
        options.extend(["--set", &fault]);
    }
    let (_, list) = test(Path::new("--list"), &[])?;
    let known = list["clauses"].as_array().context("no list")?;
    let ids = known.iter().filter_map(|clause| clause["id"].as_str()).filter(|id| id.starts_with("publisher."));
    for id in ids.filter(|id| besides.contains(id) || !SLOW.contains(id)) {
        options.extend(["--clause", id]);
    }
    let (code, report) = test(&component, &options)?;
    let failed: BTreeSet<String> = with_verdict(&report, "failed").into_iter().map(str::to_owned).collect();
    assert_eq!(code, Some(if failed.is_empty() { 0 } else { 1 }), "{report:#}");
    Ok(failed)
}

#[test]
fn without_its_fault_the_wrong_publisher_is_right() -> Result<()> {
    assert_eq!(wrong("", &SLOW)?, BTreeSet::new());
    Ok(())
}

/// The clauses that a fault breaks: these, and no others.
fn assert_breaks(fault: &str, clauses: &[&str]) -> Result<()> {
    let expected: BTreeSet<String> = clauses.iter().map(|clause| format!("publisher.{clause}")).collect();
    // Of the slow ones, those that it breaks.
    let besides: Vec<&str> = SLOW.into_iter().filter(|clause| expected.contains(*clause)).collect();
    assert_eq!(wrong(fault, &besides)?, expected, "{fault}");
    Ok(())
}

#[test]
fn wrong_order_is_named() -> Result<()> {
    let order = ["broken-connection", "early-reports", "held-after-reject", "held-after-retry", "other-keys-go-on", "outcomes"];
    assert_breaks("outcomes-reversed", &order)?;
    assert_breaks("out-of-order", &["held-after-reject", "held-after-retry", "order-by-key", "refused-connection", "two-instances"])?;
    assert_breaks("not-held", &["held-after-reject", "held-after-retry"])?;
    // Where messages without a key fail in a batch, the others of it are held as well.
    let all = ["other-keys-go-on", "outcomes", "redirects", "refused-connection", "rejected-statuses", "retried-statuses"];
    assert_breaks("holds-all", &all)?;
    assert_breaks("wrong-report", &["early-reports"])
}

#[test]
fn wrong_verdicts_are_named() -> Result<()> {
    assert_breaks("never-rejects", &["gone", "held-after-reject", "invalid", "outcomes", "rejected-statuses", "too-large"])?;
    let retried = ["broken-connection", "refused-connection", "retried-statuses", "retry-after", "same-id", "unavailable"];
    assert_breaks("never-retries", &retried)?;
    assert_breaks("no-retry-after", &["retry-after"])?;
    assert_breaks("knows-two-successes", &["accepted-statuses"])?;
    assert_breaks("follows-redirects", &["redirects"])
}

#[test]
fn failures_that_are_called_delivered_are_named() -> Result<()> {
    let failing = [
        "broken-connection",
        "gone",
        "held-after-reject",
        "held-after-retry",
        "invalid",
        "outcomes",
        "redirects",
        "refused-connection",
        "rejected-statuses",
        "retried-statuses",
        "retry-after",
        "same-id",
        "too-large",
        "unauthorized",
        "unavailable",
    ];
    assert_breaks("all-delivered", &failing)
}

#[test]
fn wrong_waiting_is_named() -> Result<()> {
    assert_breaks("ignores-deadline", &["silence"])?;
    assert_breaks("impatient", &["slow"])?;
    assert_breaks("stays-stuck", &["after-silence", "broken-connection"])
}

#[test]
fn wrong_content_is_named() -> Result<()> {
    assert_breaks("none-is-empty", &["empty-and-none"])?;
    assert_breaks("text-only", &["payload"])?;
    assert_breaks("cuts-payloads", &["oversized"])?;
    assert_breaks("retries-large-headers", &["oversized-headers"])?;
    assert_breaks("sends-a-hundred", &["large-batch"])?;
    assert_breaks("one-of-a-name", &["headers"])?;
    assert_breaks("no-id", &["id", "same-id"])?;
    assert_breaks("new-id", &["same-id"])
}

#[test]
fn wrong_opening_is_named() -> Result<()> {
    assert_breaks("any-key", &["unknown-key"])?;
    assert_breaks("no-key-named", &["unknown-key", "wrong-type"])?;
    // What it asks arrives, where nothing may.
    assert_breaks("asks-at-open", &["empty-batch", "open-without-destination", "refused-connection"])?;
    assert_breaks("tells-secret", &["secrets"])
}

#[test]
fn settings_with_which_it_does_not_open_are_wrong_usage() -> Result<()> {
    let component = places::fixtures()?.join("wrong-publisher.wasm");
    for (settings, told) in [("tyop = \"{destination}/\"", "tyop"), ("url = \"http://127.0.0.1/\"", "{destination}")] {
        let (code, report) = test(&component, &["--set", settings])?;
        assert!(code == Some(2) && report["error"].as_str().is_some_and(|error| error.contains(told)), "{report}");
    }
    Ok(())
}
