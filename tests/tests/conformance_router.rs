//! The conformance kit on routers: green for one that keeps the contract, and red for one that breaks it, with the clause that it breaks.
//! What is in a subscription is told by none of it.

use anyhow::{Context, Result};
use outhaul_tests::process::bound;
use outhaul_tests::{examples, places};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Every clause that is not about settings.
const ANSWERS: [&str; 9] = [
    "answers-in-order",
    "current-agrees",
    "destinations",
    "one-snapshot",
    "subscribers",
    "two-instances",
    "unknown-subscriber",
    "unknown-tenant",
    "unwanted-topic",
];

fn test(component: &Path, options: &[&str]) -> Result<(Option<i32>, Value)> {
    let mut command = bound(&places::outhaul()?);
    command.args(["plugin", "test", "--json"]).arg(component).args(options).env("XDG_CACHE_HOME", places::compiled()?);
    let output = command.output()?;
    let report = String::from_utf8(output.stdout)?;
    assert!(!report.contains("hunter2"), "{report}");
    let report = serde_json::from_str(&report).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok((output.status.code(), report))
}

/// Ids of the clauses with a verdict, without `router.`.
fn with_verdict(report: &Value, verdict: &str) -> BTreeSet<String> {
    let clauses = report["clauses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ids = clauses.iter().filter(|clause| clause["verdict"] == verdict).filter_map(|clause| clause["id"].as_str());
    ids.map(|id| id.trim_start_matches("router.").to_owned()).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The clauses that a fault breaks: these, and no others.
fn assert_breaks(fault: &str, clauses: &[&str]) -> Result<()> {
    let component = places::fixtures()?.join("wrong-router.wasm");
    let fault = format!("fault = \"{fault}\"");
    let mut options = vec!["--set", "tenant = \"a\"", "--event", "a/t", "--unwanted", "a/none"];
    if !fault.contains("\"\"") {
        options.extend(["--set", &fault]);
    }
    let (code, report) = test(&component, &options)?;
    assert_eq!(with_verdict(&report, "failed"), names(clauses), "{fault}\n{report:#}");
    assert_eq!(code, Some(i32::from(!clauses.is_empty())), "{report:#}");
    Ok(())
}

#[test]
fn without_its_fault_the_wrong_router_is_right() -> Result<()> {
    assert_breaks("", &[])
}

#[test]
fn answers_of_the_wrong_shape_are_named() -> Result<()> {
    assert_breaks("short", &ANSWERS)?;
    assert_breaks("talkative", &["nothing-asked"])?;
    assert_breaks("reversed", &["answers-in-order", "current-agrees", "unknown-subscriber"])?;
    assert_breaks("a-hundred", &["answers-in-order"])
}

#[test]
fn answers_that_the_host_would_end_events_for_are_named() -> Result<()> {
    assert_breaks("twice", &["subscribers"])?;
    assert_breaks("other-tenant", &["subscribers"])?;
    assert_breaks("password", &["destinations"])?;
    assert_breaks("text", &["destinations"])
}

#[test]
fn answers_that_do_not_agree_are_named() -> Result<()> {
    assert_breaks("restless", &["current-agrees"])?;
    assert_breaks("slides", &["answers-in-order", "current-agrees", "one-snapshot", "unknown-subscriber"])?;
    assert_breaks("of-the-instance", &["answers-in-order", "current-agrees", "two-instances", "unknown-subscriber"])
}

#[test]
fn answers_about_what_there_is_not_are_named() -> Result<()> {
    assert_breaks("fails-unknown", &["answers-in-order", "unknown-tenant"])?;
    assert_breaks("any-tenant", &["answers-in-order", "unknown-tenant"])?;
    assert_breaks("any-subscriber", &["unknown-subscriber", "unknown-tenant", "unwanted-topic"])?;
    assert_breaks("any-topic", &["unwanted-topic"])?;
    assert_breaks("any-topic-now", &["unwanted-topic"])
}

#[test]
fn wrong_opening_is_named() -> Result<()> {
    assert_breaks("any-key", &["unknown-key"])?;
    assert_breaks("no-key-named", &["unknown-key", "wrong-type"])
}

#[test]
fn what_is_not_known_is_skipped_and_what_is_no_event_is_wrong_usage() -> Result<()> {
    let component = places::fixtures()?.join("wrong-router.wasm");
    let (code, report) = test(&component, &["--set", "tenant = \"a\""])?;
    assert_eq!((code, with_verdict(&report, "skipped")), (Some(0), names(&ANSWERS)), "{report:#}");
    let (code, report) = test(&component, &["--set", "tenant = \"a\"", "--event", "t"])?;
    assert!(code == Some(2) && report["error"].as_str().is_some_and(|error| error.contains("TENANT/TOPIC")), "{report}");
    Ok(())
}

#[test]
fn the_example_keeps_the_contract() -> Result<()> {
    let Some(component) = examples::component("router-rust")? else { return Ok(()) };
    let settings = places::checkout().join("examples/routers/rust/conformance.toml");
    let beside = component.with_file_name("router-rust.toml");
    // Beside the built examples there is no file of one of them.
    let text: toml::Table = std::fs::read_to_string(settings)?.parse()?;
    std::fs::write(&beside, text["test"]["config"].as_table().context("no settings")?.to_string())?;
    let settings = beside.to_str().context("a path of UTF-8")?;
    let (code, report) =
        test(&component, &["--settings", settings, "--event", "acme/orders.placed", "--unwanted", "initech/orders.placed"])?;
    assert_eq!((code, report["passed"].as_u64()), (Some(0), Some(12)), "{report:#}");
    Ok(())
}
