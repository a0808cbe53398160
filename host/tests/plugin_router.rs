//! Routers that are components, behind their port: what they answer, and what becomes of those that do not.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test stops at the first surprise")]

mod plugin_bench;

use outhaul::domain::{Batch, Failure, FailureCode, NewMessage};
use outhaul::plugin::{RouterPlugin, Slot};
use outhaul::ports::fan_out::{Inquiry, Router, Subscription};
use plugin_bench::{Bench, texts};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(20);

type Answers = Result<Vec<Result<Vec<Subscription>, Failure>>, Failure>;

/// The fixture with a fault.
async fn router(bench: &Bench, fault: Option<&str>) -> Arc<RouterPlugin> {
    bench.router("wrong-router", |router| router.config = config(fault)).await.unwrap()
}

fn config(fault: Option<&str>) -> Value {
    json!({ "tenant": "a", "fault": fault })
}

async fn expand(router: &impl Router, deadline: Duration) -> Answers {
    let mut events = Batch::default();
    for (id, topic) in [("1", "t"), ("2", "x"), ("3", "t")] {
        events.push(&NewMessage { id: Some(id), topic, payload: Some(b"x"), attempts: 1, ..NewMessage::default() });
    }
    router.expand(&events, &texts(&["a", "a", "b"]), deadline).await
}

async fn current(router: &impl Router) -> Result<Vec<Result<Option<Subscription>, Failure>>, Failure> {
    let inquiry = |subscriber: &str| Inquiry { tenant: "a".into(), subscriber: subscriber.into(), topic: "t".into() };
    router.current(&["one", "gone"].map(inquiry), DEADLINE).await
}

fn names(answers: Answers) -> Vec<Vec<String>> {
    answers.ok().unwrap().into_iter().map(|answer| answer.ok().unwrap().into_iter().map(|one| one.subscriber).collect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_router_answers_comes_through() {
    let bench = Bench::new();
    let router = router(&bench, None).await;
    let expanded = expand(&*router, DEADLINE).await;
    let one = expanded.as_ref().ok().unwrap()[0].as_ref().ok().unwrap()[0].clone();
    assert_eq!((one.tenant.as_str(), one.url.as_str(), one.revision.as_str()), ("a", "https://h.example/hunter2", "1"));
    assert_eq!(names(expanded), [vec!["one", "two"], vec!["two"], vec![]]);
    let answers = current(&*router).await.ok().unwrap();
    assert!(answers[0].as_ref().ok().unwrap().as_ref() == Some(&one) && matches!(answers[1], Ok(None)));
    let metrics = bench.metrics.encode();
    for call in ["expand", "current"] {
        assert!(metrics.contains(&format!("outhaul_adapter_calls_total{{adapter=\"wrong-router\",call=\"{call}\"}} 1")), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_or_does_not_end_is_a_failure_that_names_the_router() {
    let bench = Bench::new();
    for (fault, code, expected) in [
        ("short", "adapter-fault", "expand returned 2 answers for 3 events"),
        ("panics", "trapped", "expand panicked"),
        ("spins", "timeout", "expand was ended: its time was over"),
    ] {
        let router = router(&bench, Some(fault)).await;
        // However long the call may take, it may not take longer than the limit of all calls.
        let failure = expand(&*router, Duration::from_millis(400)).await.err().unwrap();
        assert_eq!(failure.code, FailureCode::from_word(code), "{failure}");
        let told = format!("router \"wrong-router\" (generation 1): {expected}");
        assert!(failure.detail.starts_with(&told), "{failure}");
    }
    let short = router(&bench, Some("short")).await;
    let failure = current(&*short).await.err().unwrap();
    assert!(failure.detail.contains("current returned 1 answers for 2 inquiries"), "{failure}");
    let limited = bench.router("wrong-router", |router| {
        router.config = config(Some("spins"));
        router.limits.call_timeout = Duration::from_millis(300);
    });
    assert_eq!(expand(&*limited.await.unwrap(), Duration::from_secs(600)).await.err().unwrap().code, FailureCode::Timeout);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_granted_is_told_with_the_line_to_add() {
    let bench = Bench::new();
    let asking = router(&bench, Some("asks-for-secret")).await;
    let answers = expand(&*asking, DEADLINE).await.ok().unwrap();
    let failure = answers[0].as_ref().err().unwrap();
    assert_eq!(failure.code, FailureCode::InvalidConfiguration);
    assert!(failure.detail.contains("add allow_secrets = [\"token\"] under [routers.wrong-router]"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_generation_answers_from_the_next_call_on() {
    let bench = Bench::new();
    let slot = Slot::new(router(&bench, None).await);
    assert_eq!(names(expand(&slot, DEADLINE).await)[1], ["two"]);
    let before = slot.swap(router(&bench, Some("any-topic")).await);
    assert_eq!(names(expand(&slot, DEADLINE).await)[1], ["one", "two"]);
    assert_eq!(current(&slot).await.ok().unwrap().len(), 2);
    assert_eq!(Arc::strong_count(&before), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_router_is_refused() {
    let bench = Bench::new();
    let refused = bench.router("null-publisher", |_| {}).await.err().unwrap().to_string();
    assert!(refused.contains("is not a router: it exports outhaul:adapter/publisher@"), "{refused}");
    let refused = bench.router("wrong-router", |router| router.config = json!({ "tenat": "a" })).await.err().unwrap().to_string();
    assert!(refused.contains("router \"wrong-router\" (generation 1): open: `tenat`: unknown field"), "{refused}");
}
