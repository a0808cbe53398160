//! Fan-out over the admin address, asked over real connections.

use super::tests::server;
use super::{Absent, FanOutOf, FanOuts};
use crate::ports::fan_out::memory::Memory;
use crate::ports::fan_out::{Change, Delivery, DeliveryState, Subject};
use serde_json::{Value, json};
use std::sync::Arc;

/// The relays `orders` (of all tenants), `only` (of the tenant `acme`), `routed` and `closed`.
pub(super) struct Orders(Arc<Memory>);

impl Default for Orders {
    fn default() -> Self {
        let delivery = |id: &str, state| Delivery {
            id: id.into(),
            event: "17".into(),
            generation: 1,
            topic: "t".into(),
            subscriber: "crm".into(),
            idempotency_key: "ik_1".into(),
            key_version: "v1".into(),
            state,
            attempts: 1,
            due_in_ms: 0,
            code: None,
            detail: None,
            created_at: 5,
        };
        let change = |position| Change {
            position,
            at: 5,
            subject: Subject::Event,
            event: "17".into(),
            generation: 1,
            delivery: None,
            subscriber: None,
            state: "expanded".into(),
            code: None,
        };
        Self(Arc::new(Memory {
            deliveries: vec![
                ("acme", delivery("dl_1", DeliveryState::Complete)),
                ("other", delivery("dl_2", DeliveryState::Complete)),
                ("acme", delivery("dl_3", DeliveryState::Quarantined)),
            ],
            changes: vec![("acme", change(1)), ("other", change(1)), ("acme", change(2))],
            ..Memory::default()
        }))
    }
}

impl FanOuts for Orders {
    fn of(&self, relay: &str) -> Result<FanOutOf, Absent> {
        let of = |tenant: Option<&str>| Ok(FanOutOf { tenant: tenant.map(str::to_owned), admin: Arc::clone(&self.0) as _ });
        match relay {
            "orders" => of(None),
            "only" => of(Some("acme")),
            "routed" => Err(Absent::NoFanOut),
            "closed" => Err(Absent::NotOpen),
            _ => Err(Absent::NoRelay),
        }
    }
}

fn document((code, answer): (u16, String)) -> (u16, Value) {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (code, serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}")))
}

#[tokio::test]
async fn deliveries_are_of_the_tenant_that_is_named() {
    let server = server().await;
    let ids = async |query: &str| {
        let (code, page) = document(server.ask(&format!("GET /api/fan-out/orders/deliveries?{query}")).await);
        assert_eq!(code, 200, "{page}");
        let ids: Vec<String> = page["deliveries"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
        (ids.join(" "), page["next"].clone())
    };
    assert_eq!(ids("tenant=acme").await, ("dl_1 dl_3".to_owned(), Value::Null));
    assert_eq!(ids("tenant=other&event=17&subscriber=crm").await.0, "dl_2");
    assert_eq!(ids("tenant=").await.0, "");
    assert_eq!(ids("tenant=acme&state=quarantined").await.0, "dl_3");
    assert_eq!(ids("tenant=acme&id=dl_2").await.0, "", "another tenant's");
    assert_eq!(ids("tenant=acme&limit=1").await, ("dl_1".to_owned(), json!("1")));
    assert_eq!(ids("tenant=acme&limit=1&after=1").await, ("dl_3".to_owned(), Value::Null));
}

#[tokio::test]
async fn what_is_wrong_is_told() {
    let server = server().await;
    let long_reader = format!("PUT /api/fan-out/orders/checkpoints/{}?tenant=a&expected=0&through=0", "r".repeat(513));
    let long_tenant = format!("GET /api/fan-out/orders/status?tenant={}", "t".repeat(1989));
    for (request, code, told) in [
        ("GET /api/fan-out/orders/deliveries", 400, "tenant"),
        ("GET /api/fan-out/orders/deliveries?tenant=a&stat=x", 400, "stat"),
        ("GET /api/fan-out/orders/deliveries?tenant=a&state=dead", 400, "dead"),
        ("GET /api/fan-out/orders/deliveries?tenant=a&limit=0", 400, "from 1 to 1000"),
        ("GET /api/fan-out/orders/status?tenant=a&limit=1001", 400, "from 1 to 1000"),
        ("GET /api/fan-out/nobody/status?tenant=a", 404, "no relay of that name"),
        ("GET /api/fan-out/routed/status?tenant=a", 404, "has no fan_out"),
        ("GET /api/fan-out/closed/status?tenant=a", 503, "not open yet"),
        ("GET /api/fan-out/only/status?tenant=other", 404, "another tenant only"),
        ("POST /api/fan-out/orders/reemit?tenant=acme", 400, "event"),
        ("POST /api/fan-out/orders/reemit?tenant=other&event=17", 404, "no such event"),
        ("PUT /api/fan-out/orders/checkpoints/r?tenant=acme&expected=2&through=1", 400, "never goes back"),
        ("GET /api/fan-out/orders/nothing?tenant=a", 404, "no such path"),
        ("GET /api/fan-out/orders/deliveries?tenant=a&after=garbage", 400, "after: is not where an earlier page ended"),
        ("GET /api/fan-out/orders/deliveries?tenant=a&after=%00", 400, "after: has a NUL"),
        ("GET /api/fan-out/orders/deliveries?tenant=a%00", 400, "tenant: has a NUL"),
        ("GET /api/fan-out/orders/deliveries?tenant=a&event=%00", 400, "event: has a NUL"),
        ("GET /api/fan-out/orders/deliveries?tenant=a&subscriber=%00", 400, "subscriber: has a NUL"),
        ("GET /api/fan-out/orders/deliveries?tenant=a&id=%00", 400, "id: has a NUL"),
        ("GET /api/fan-out/orders/status?tenant=a%00", 400, "tenant: has a NUL"),
        ("GET /api/fan-out/orders/status?tenant=a&after=garbage", 400, "after"),
        ("GET /api/fan-out/orders/status?tenant=a&after=-1", 400, "after"),
        ("GET /api/fan-out/orders/checkpoints/r%00?tenant=a", 400, "reader: has a NUL"),
        ("PUT /api/fan-out/orders/checkpoints/r%00?tenant=a&expected=0&through=0", 400, "reader: has a NUL"),
        ("PUT /api/fan-out/orders/checkpoints/r?tenant=a&expected=x&through=0", 400, "expected"),
        ("POST /api/fan-out/orders/reemit?tenant=acme&event=%00", 400, "event: has a NUL"),
        (long_reader.as_str(), 400, "reader: has 513 bytes, and may have 512"),
        (long_tenant.as_str(), 400, "tenant: has 1989 bytes, and may have 1988"),
    ] {
        let (found, answer) = document(server.ask(request).await);
        assert!(found == code && answer["error"].as_str().unwrap().contains(told), "{request}: {found} {answer}");
    }
    assert_eq!(server.ask("GET /api/fan-out/orders/reemit?tenant=acme&event=17").await.0, 405);
    assert_eq!(document(server.ask("GET /api/fan-out/only/status?tenant=acme").await).0, 200);
}

#[tokio::test]
async fn the_log_is_read_and_a_checkpoint_moved_by_compare_and_set() {
    let server = server().await;
    let ask = async |request: &str| document(server.ask(request).await);
    let (_, log) = ask("GET /api/fan-out/orders/status?tenant=acme&after=1").await;
    assert_eq!((&log["after"], &log["through"], log["changes"].as_array().unwrap().len()), (&json!(1), &json!(2), 1));
    let at = "/api/fan-out/orders/checkpoints/billing?tenant=acme";
    assert_eq!(ask(&format!("GET {at}")).await, (200, json!({ "reader": "billing", "checkpoint": 0 })));
    let moved = json!({ "reader": "billing", "checkpoint": 2, "advanced": true });
    assert_eq!(ask(&format!("PUT {at}&expected=0&through=2")).await, (200, moved));
    let (code, lost) = ask(&format!("PUT {at}&expected=0&through=2")).await;
    assert_eq!((code, &lost["checkpoint"], &lost["advanced"]), (409, &json!(2), &json!(false)));
    let (code, far) = ask(&format!("PUT {at}&expected=2&through=3")).await;
    assert!(code == 409 && far["error"].as_str().unwrap().contains("does not reach"), "{far}");
    assert_eq!(ask(&format!("GET {at}")).await.1["checkpoint"], 2);
}

#[tokio::test]
async fn an_event_is_emitted_again_but_not_by_a_page() {
    let server = server().await;
    let request = "POST /api/fan-out/orders/reemit?tenant=acme&event=17";
    assert_eq!(document(server.ask(request).await), (200, json!({ "event": "17", "generation": 2 })));
    let (code, pending) = document(server.ask("POST /api/fan-out/orders/reemit?tenant=acme&event=18").await);
    assert_eq!((code, &pending["generation"]), (409, &json!(1)));
    assert_eq!(server.ask_with(request, "origin: https://evil.example\r\n").await.0, 403);
    let put = "PUT /api/fan-out/orders/checkpoints/r?tenant=acme&expected=0&through=1";
    assert_eq!(server.ask_with(put, "origin: null\r\n").await.0, 403);
}
