//! The commands over a storage in memory: what they say, what they change, and how they end.

use super::deliveries::{one, page};
use super::open::{Desk, tenant};
use super::purge::{check_tenants, purge};
use super::reemit::reemit;
use super::rekey::rekey;
use super::report::Report;
use super::requeue::requeue;
use super::status::{Reader, read};
use crate::cli::error::CommandError;
use crate::config::model::{SealingKey as Listed, SecretSource};
use crate::fan_out::envelope::{Contents, open, seal};
use crate::fan_out::keys::{Keyring, SealingKey};
use crate::fan_out::{Binding, binding};
use crate::ports::fan_out::memory::Memory;
use crate::ports::fan_out::{Change, Delivery, DeliveryFilter, DeliveryState, Subject, Subscription};
use crate::secrets::Secrets;
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn desk(memory: &Memory) -> Desk<'_> {
    Desk { storage: "outbox", admin: memory }
}

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn delivery(id: &str, subscriber: &str, state: DeliveryState, due_in_ms: u64, code: Option<&str>) -> Delivery {
    Delivery {
        id: id.into(),
        event: "17".into(),
        generation: 1,
        topic: "orders.paid".into(),
        subscriber: subscriber.into(),
        idempotency_key: format!("ik_{id}"),
        key_version: "v1".into(),
        state,
        attempts: 2,
        due_in_ms,
        code: code.map(str::to_owned),
        detail: code.map(|_| "subscriber answered 503\u{1b}[2J".to_owned()),
        created_at: 1_799_999_940_000,
    }
}

fn some_deliveries() -> Memory {
    use DeliveryState::{Complete, Leased, Pending, Quarantined};
    Memory {
        deliveries: vec![
            ("acme", delivery("dl_1", "crm", Complete, 0, None)),
            ("other", delivery("dl_2", "crm", Complete, 0, None)),
            ("acme", delivery("dl_3", "shop", Pending, 90_000, Some("retryable_http"))),
            ("acme", delivery("dl_4", "mail\u{7}", Pending, 0, None)),
            ("acme", delivery("dl_5", "bad", Quarantined, 0, Some("integrity_failure"))),
            ("acme", delivery("dl_6", "busy", Leased, 300, None)),
        ],
        ..Memory::default()
    }
}

fn fault(report: Report) -> (u8, String) {
    let fault = report.fault.expect("all is well");
    (fault.code(), fault.text())
}

fn ended(error: CommandError) -> (u8, String) {
    (error.code(), error.text())
}

#[tokio::test]
async fn an_event_is_emitted_again_or_the_reason_is_told() {
    let memory = Memory::default();
    let report = reemit(desk(&memory), "acme", "17").await.unwrap();
    assert_eq!(report.text, "event \"17\" will be expanded again, as generation 2");
    assert_eq!(report.document, json!({ "event": "17", "generation": 2 }));
    let refused = async |tenant, event| ended(reemit(desk(&memory), tenant, event).await.unwrap_err());
    let pending = "event \"18\" waits to be expanded as generation 1 already: nothing was changed; `outhaul run` expands it";
    assert_eq!(refused("acme", "18").await, (1, pending.to_owned()));
    let unknown = "there is no event \"17\" of the tenant \"other\" in the storage outbox";
    assert_eq!(refused("other", "17").await, (1, unknown.to_owned()));
    let nobody = "there is no event \"17\" without a tenant in the storage outbox; --tenant says whose it is, where there are tenants";
    assert_eq!(refused("", "17").await, (1, nobody.to_owned()));
    let away = Memory { away: true, ..Memory::default() };
    let (code, text) = ended(reemit(desk(&away), "other", "1").await.unwrap_err());
    assert_eq!((code, text.as_str()), (1, "storages.outbox: reemit failed: unavailable: the database is away"));
}

#[tokio::test]
async fn a_list_is_of_one_tenant_and_has_pages() {
    let memory = some_deliveries();
    let acme = DeliveryFilter { tenant: "acme".into(), ..DeliveryFilter::default() };
    let report = page(desk(&memory), &acme, None, 4, now()).await.unwrap();
    let lines: Vec<String> = report.text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        lines,
        [
            "ID EVENT GEN TOPIC SUBSCRIBER STATE ATTEMPTS DUE AGE CODE",
            "dl_1 17 1 orders.paid crm complete 2 - 1m -",
            "dl_3 17 1 orders.paid shop pending 2 in 1m 30s 1m retryable_http",
            "dl_4 17 1 orders.paid mail pending 2 now 1m -",
            "dl_5 17 1 orders.paid bad quarantined 2 - 1m integrity_failure",
            "",
            "there are more: --after 4",
        ]
    );
    assert_eq!(report.document["next"], "4");
    assert_eq!(report.document["deliveries"].as_array().unwrap().len(), 4);
    let last = page(desk(&memory), &acme, Some("4"), 4, now()).await.unwrap();
    let row = last.text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(row, "dl_6 17 1 orders.paid busy leased 2 in 1s 1m -");
    assert_eq!((&last.document["next"], &last.document["deliveries"][0]["id"]), (&Value::Null, &json!("dl_6")));
    let (code, text) = ended(page(desk(&memory), &acme, Some("garbage"), 4, now()).await.unwrap_err());
    let expected = "--after \"garbage\" is not where an earlier list ended: pass what that printed as the next page";
    assert_eq!((code, text.as_str()), (2, expected));
    let none = DeliveryFilter { tenant: "nobody".into(), ..DeliveryFilter::default() };
    assert_eq!(page(desk(&memory), &none, None, 4, now()).await.unwrap().text, "no such deliveries of the tenant \"nobody\"");
    let narrow = DeliveryFilter { state: Some(DeliveryState::Pending), subscriber: Some("shop".into()), event: Some("17".into()), ..acme };
    let found = page(desk(&memory), &narrow, None, 4, now()).await.unwrap().document;
    assert_eq!((found["deliveries"].as_array().unwrap().len(), &found["deliveries"][0]["id"]), (1, &json!("dl_3")));
}

#[tokio::test]
async fn one_delivery_is_shown_to_its_tenant_only() {
    let memory = some_deliveries();
    let report = one(desk(&memory), "acme", "dl_3", now()).await.unwrap();
    let expected = [
        "id              dl_3",
        "event           17",
        "generation      1",
        "topic           orders.paid",
        "subscriber      shop",
        "idempotency key ik_dl_3",
        "key version     v1",
        "state           pending",
        "attempts        2",
        "due             in 1m 30s",
        "created         1m ago",
        "code            retryable_http",
        "last failure    subscriber answered 503 [2J",
    ];
    assert_eq!(report.text, expected.join("\n"));
    assert_eq!(report.document["delivery"]["due_in_ms"], 90_000);
    let other = ended(one(desk(&memory), "other", "dl_3", now()).await.unwrap_err());
    assert_eq!(other, (1, "there is no delivery \"dl_3\" of the tenant \"other\" in the storage outbox".to_owned()));
}

#[test]
fn a_relay_that_works_for_one_tenant_shows_no_other() {
    let told = |asked, only| tenant(asked, only).map_err(ended);
    assert_eq!(told(None, None), Ok(String::new()));
    assert_eq!(told(Some("acme"), None), Ok("acme".to_owned()));
    assert_eq!(told(None, Some("acme")), Ok("acme".to_owned()));
    assert_eq!(told(Some("acme"), Some("acme")), Ok("acme".to_owned()));
    let long = "t".repeat(1989);
    assert_eq!(told(Some(&long), None), Err((2, "--tenant: has 1989 bytes, and may have 1988".to_owned())));
    let (code, text) = told(Some(""), Some("acme")).unwrap_err();
    assert!(code == 2 && text.contains("the relay works for the tenant \"acme\" only"), "{text}");
}

fn change(position: u64, subject: Subject, state: &str, code: Option<&str>) -> Change {
    let of = (subject == Subject::Delivery).then(|| "dl_1".to_owned());
    let subscriber = of.as_ref().map(|_| "crm".to_owned());
    let (event, state, code) = ("17".to_owned(), state.to_owned(), code.map(str::to_owned));
    Change { position, at: 1_800_000_000_000, subject, event, generation: 1, delivery: of, subscriber, state, code }
}

fn some_changes() -> Memory {
    let changes = [
        ("acme", change(1, Subject::Event, "expanded", None)),
        ("other", change(1, Subject::Event, "expanded", None)),
        ("acme", change(2, Subject::Delivery, "pending", Some("network"))),
        ("acme", change(3, Subject::Delivery, "complete", None)),
    ];
    Memory { changes: changes.into(), ..Memory::default() }
}

#[tokio::test]
async fn only_quarantined_deliveries_are_requeued() {
    let memory = some_deliveries();
    let acme = DeliveryFilter { tenant: "acme".into(), ..DeliveryFilter::default() };
    let report = requeue(desk(&memory), acme.clone()).await.unwrap();
    assert_eq!(report.text, "1 delivery of the tenant \"acme\" requeued");
    assert_eq!(report.document, json!({ "requeued": 1 }));
    let named = DeliveryFilter { ids: vec!["dl_1".into(), "dl_5".into(), "dl_9".into()], ..acme.clone() };
    let report = requeue(desk(&memory), named).await.unwrap();
    assert_eq!(report.text, "1 delivery of the tenant \"acme\" requeued; not quarantined, and left alone: 2 of those named");
    let none = DeliveryFilter { subscriber: Some("crm".into()), ..acme };
    let report = requeue(desk(&memory), none).await.unwrap();
    assert_eq!((report.text.as_str(), report.document), ("0 deliveries of the tenant \"acme\" requeued", json!({ "requeued": 0 })));
    assert_eq!(*memory.requeued.lock().unwrap(), [vec!["dl_5"], vec!["dl_5"], Vec::new()]);
}

#[tokio::test]
async fn the_log_is_read_behind_a_position() {
    let memory = some_changes();
    let seen = read(desk(&memory), "acme", 0, 2).await.unwrap();
    assert_eq!((seen.after, seen.through), (0, 2));
    let lines: Vec<String> = seen.report.text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        lines,
        [
            "POSITION AT WHAT ID EVENT GEN SUBSCRIBER STATE CODE",
            "1 2027-01-15T08:00:00Z event - 17 1 - expanded -",
            "2 2027-01-15T08:00:00Z delivery dl_1 17 1 crm pending network",
        ]
    );
    assert_eq!((&seen.report.document["through"], &seen.report.document["changes"][1]["code"]), (&json!(2), &json!("network")));
    let end = read(desk(&memory), "acme", 3, 2).await.unwrap();
    assert_eq!((end.through, end.report.text.as_str()), (3, "no changes behind position 3 of the tenant \"acme\""));
    assert_eq!(end.report.document, json!({ "after": 3, "through": 3, "changes": [] }));
}

#[tokio::test]
async fn a_checkpoint_moves_only_from_where_it_is_expected() {
    let memory = some_changes();
    let reader = Reader { desk: desk(&memory), tenant: "acme", name: "billing" };
    let seen = reader.read(2).await.unwrap();
    assert_eq!((seen.after, seen.through, &seen.report.document["reader"]), (0, 2, &json!("billing")));
    let moved = reader.set(0, 2).await.unwrap();
    assert_eq!(moved.text, "the checkpoint of \"billing\" is at 2 now");
    assert_eq!(moved.document, json!({ "reader": "billing", "checkpoint": 2, "advanced": true }));
    assert_eq!(reader.read(2).await.unwrap().after, 2);

    let stale = reader.set(0, 3).await.unwrap();
    assert_eq!(stale.document, json!({ "reader": "billing", "checkpoint": 2, "advanced": false }));
    let text = "the checkpoint of \"billing\" was not moved: it is at 2, not at 0";
    assert_eq!(fault(stale), (1, text.to_owned()));
    let far = fault(reader.set(2, 4).await.unwrap());
    assert_eq!(far, (1, "the checkpoint of \"billing\" was not moved: the log does not reach position 4 yet".to_owned()));
    let back = ended(reader.set(2, 1).await.unwrap_err());
    assert_eq!(back, (2, "--through 1 is before --expected 2: a checkpoint never goes back".to_owned()));

    // Somebody else reads and moves between our reading and our moving.
    *memory.other_reader.lock().unwrap() = Some(3);
    let lost = fault(reader.set(2, 3).await.unwrap());
    assert!(lost.1.ends_with("it is at 3, not at 2"), "{}", lost.1);
}

#[test]
fn a_relay_of_one_tenant_deletes_no_others_deliveries_unasked() {
    let (code, text) = ended(check_tenants(Some("acme"), false).unwrap_err());
    assert!(code == 2 && text.contains("the tenant \"acme\" only") && text.contains("--all-tenants"), "{text}");
    assert!(check_tenants(Some("acme"), true).is_ok() && check_tenants(None, false).is_ok());
}

#[tokio::test]
async fn old_deliveries_go_in_steps() {
    let memory = Memory { old: Mutex::new((0..2500).map(|number| if number < 2100 { 90 } else { 10 }).collect()), ..Memory::default() };
    let steps = Cell::new(0);
    let report = purge(desk(&memory), Duration::from_secs(60), |_| steps.set(steps.get() + 1)).await.unwrap();
    assert_eq!((steps.get(), report.text.as_str(), &report.document), (3, "2100 deliveries deleted", &json!({ "purged": 2100 })));
    assert_eq!(memory.old.lock().unwrap().len(), 400);
}

const TOKEN: &str = "https://crm.example/hunter2";

fn keys() -> (tempfile::TempDir, Keyring, BTreeMap<&'static str, [u8; 32]>) {
    let folder = tempfile::tempdir().unwrap();
    let bytes = BTreeMap::from([("v1", [1; 32]), ("v2", [2; 32]), ("gone", [3; 32])]);
    let mut sources = BTreeMap::new();
    for version in ["v1", "v2"] {
        let file = folder.path().join(version);
        std::fs::write(&file, bytes[version].iter().map(|byte| format!("{byte:02x}")).collect::<String>()).unwrap();
        sources.insert(version.to_owned(), SecretSource::File(file));
    }
    let listed = |version: &str| Listed { version: version.to_owned(), secret: version.to_owned() };
    (folder, Keyring::new(Secrets::new(sources), vec![listed("v2"), listed("v1")]), bytes)
}

fn sealed(subscriber: &str, version: &str, key: [u8; 32]) -> (Binding, Vec<u8>) {
    let subscription = Subscription {
        tenant: "acme".into(),
        subscriber: subscriber.into(),
        principal: String::new(),
        url: TOKEN.into(),
        signing_scope: None,
        authentication: None,
        revision: "1".into(),
    };
    let cause = binding::Cause { namespace: "", event: "17", topic: "t", key: Some("k"), generation: 1, body_sha256: "00" };
    let binding = Binding::new(&cause, &subscription, "none", version);
    let contents = Contents { url: TOKEN.into(), authentication: None, headers: Vec::new(), payload: Some(b"{}".to_vec()), created_at: 5 };
    let envelope = seal(&SealingKey::of(key), &binding, &contents).unwrap();
    (binding, envelope)
}

#[tokio::test]
async fn old_deliveries_are_sealed_with_the_newest_key_and_those_that_do_not_open_are_left() {
    let (_folder, keyring, bytes) = keys();
    let mut tampered = sealed("tampered", "v1", bytes["v1"]);
    tampered.0.subscriber_id = "somebody else".into();
    let rows = vec![
        sealed("crm", "v1", bytes["v1"]),
        tampered,
        sealed("shop", "v2", bytes["v2"]),
        sealed("lost", "gone", bytes["gone"]),
        // Ends while it is sealed again.
        sealed("quick", "v1", bytes["v1"]),
        sealed("mail", "v1", bytes["v1"]),
    ];
    let memory = Memory { sealed: Mutex::new(rows.clone()), ..Memory::default() };
    let other = rekey(desk(&memory), Some("other"), &keyring, |_| {}).await.unwrap();
    assert_eq!((&other.document["resealed"], &other.document["left"]), (&json!(0), &json!([])));
    let report = rekey(desk(&memory), None, &keyring, |_| {}).await.unwrap();
    let (altered, lost) = (rows[1].0.delivery_id.as_str(), rows[3].0.delivery_id.as_str());
    let refused = "the envelope does not authenticate: it, or a column beside it, is not what was sealed";
    let unknown = "there is no key of the version \"gone\" in fan_out.keys";
    assert_eq!(
        report.text,
        [
            "sealed again with the key of the version \"v2\": 2".to_owned(),
            "ended or sealed by others meanwhile: 1".to_owned(),
            format!("left as it is: {altered}, key version \"v1\": {refused}"),
            format!("left as it is: {lost}, key version \"gone\": {unknown}"),
        ]
        .join("\n")
    );
    let left = json!([
        { "id": altered, "key_version": "v1", "reason": refused },
        { "id": lost, "key_version": "gone", "reason": unknown },
    ]);
    assert_eq!(report.document, json!({ "version": "v2", "resealed": 2, "changed_meanwhile": 1, "left": left }));
    assert!(!report.text.contains("hunter2") && !report.document.to_string().contains("hunter2"));
    let (code, text) = fault(report);
    assert!(code == 1 && text.starts_with("2 deliveries do not open: an attempt would quarantine them (integrity_failure)"), "{text}");

    let after = memory.sealed.lock().unwrap().clone();
    for index in [0, 5] {
        let (binding, envelope) = &after[index];
        assert_eq!(*binding, Binding { key_version: "v2".into(), ..rows[index].0.clone() });
        assert_eq!(open(&SealingKey::of(bytes["v2"]), binding, envelope).unwrap_or_else(|_| panic!("does not open")).url, TOKEN);
    }
    for index in [1, 2, 3, 4] {
        assert_eq!(after[index], rows[index], "{index}");
    }
}

#[tokio::test]
async fn with_a_key_that_cannot_be_read_nothing_is_taken_for_a_forgery() {
    let (folder, keyring, bytes) = keys();
    let memory = Memory { sealed: Mutex::new(vec![sealed("crm", "v1", bytes["v1"])]), ..Memory::default() };
    std::fs::remove_file(folder.path().join("v1")).unwrap();
    let (code, text) = ended(rekey(desk(&memory), None, &keyring, |_| {}).await.unwrap_err());
    assert!(code == 1 && text.starts_with("the key of the version \"v1\" cannot be read"), "{text}");
    std::fs::write(folder.path().join("v2"), "hunter2").unwrap();
    let (code, text) = ended(rekey(desk(&memory), None, &keyring, |_| {}).await.unwrap_err());
    assert!(code == 2 && text.contains("\"v2\"") && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn nothing_to_do_is_well() {
    let (_folder, keyring, _) = keys();
    let report = rekey(desk(&Memory::default()), None, &keyring, |_| {}).await.unwrap();
    assert_eq!(report.text, "sealed again with the key of the version \"v2\": 0");
    assert!(report.fault.is_none());
}
