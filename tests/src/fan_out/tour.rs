//! Fan-out shown to a person, step by step: three subscribers, one slow, one that answers 410, one whose subscription changes half way; a
//! re-emit; a row tampered with; the status log at the end. Everything that is said is checked.

use super::stage::Subscription;
use super::{Ground, Plan, TENANT};
use crate::receiver::{Answer, Request};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// How slow the slow one is.
const SLOW: Duration = Duration::from_millis(200);

/// Events of one customer each, before and after the change.
const EVENTS: usize = 4;

/// Shows it; each text that is said is a paragraph or a piece of output.
///
/// # Errors
/// If something is not as it is said to be.
pub fn run(ground: Ground<'_>, mut say: impl FnMut(&str)) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    stage.answer("slow", Answer::status(204).after(SLOW));
    stage.answer("closed", Answer::status(410));
    for subscriber in ["slow", "closed", "mover"] {
        stage
            .subscribe_as(subscriber, Subscription { authentication: Some(r#"{"type":"bearer","token":"demo"}"#), ..Default::default() })?;
    }
    say("1.  A shop writes its events into the table `outbox`; the table `subscriptions` says who wants them. Three do:");
    say(&table(&[
        ["slow", "answers after 200 ms"],
        ["closed", "answers 410: it does not want anything any more"],
        ["mover", "is well, and will move to another address half way"],
    ]));

    let host = stage.host()?;
    let mut ids = Vec::new();
    for number in 1..=EVENTS {
        ids.push(stage.event("orders.placed", Some(&format!("customer-{}", number % 2)), format!("order {number}").as_bytes())?);
    }
    let ended = stage.database.wait_for_ended(3 * EVENTS)?;
    let with = |subscriber: &str, state: &str| ended.iter().filter(|one| one.subscriber == subscriber && one.state == state).count();
    ensure!((with("slow", "complete"), with("closed", "quarantined"), with("mover", "complete")) == (EVENTS, EVENTS, EVENTS));
    say(&format!(
        "2.  {EVENTS} events are committed. Each becomes three deliveries, each with its own lease, retries and end: the 410 is final for \
         `closed` alone, and nobody waits for `slow`:"
    ));
    say(&stage.fanout("list", &["--tenant", TENANT])?.success()?);

    stage.answer("mover", Answer::status(503));
    let waiting = stage.event("orders.placed", Some("customer-1"), b"order 5")?;
    stage.wait_for_requests("mover", EVENTS + 2)?;
    let before = stage.requests("mover").len();
    let address = stage.receiver.address();
    stage.resubscribe("mover", &format!("url = 'http://{address}/acme/mover-new', revision = '2'"))?;
    let suppressed =
        |one: &super::rows::Delivery| one.subscriber == "mover" && one.outcome() == ("suppressed", Some("subscription_changed"));
    stage.database.wait_for_deliveries("the delivery to the old address to end", |all| all.iter().any(suppressed))?;
    let late = stage.requests("mover").len() - before;
    ensure!(late <= 1, "{late} requests to the old address after the change");
    let moved = stage.event("orders.placed", Some("customer-1"), b"order 6")?;
    stage.receiver.wait_for("the new address to get the next event", |log| to(log, "/acme/mover-new") == 1)?;
    stage.database.wait_for_ended(3 * (EVENTS + 2))?;
    say(&format!(
        "3.  `mover` fails for a while, so event {waiting} waits for it; then its subscription changes. Before each attempt outhaul asks \
         whether the subscription still is the one that the delivery was made for: it is not, so event {waiting} is not sent to the old \
         address any more (suppressed), nor to one that it was not meant for. Event {moved}, expanded after the change, goes to the new one."
    ));
    say(&stage.fanout("list", &["--tenant", TENANT, "--event", &waiting])?.success()?);

    let again = ids.first().context("an event")?.clone();
    stage.resubscribe("closed", "active = FALSE")?;
    say(&format!("4.  Event {again} is emitted once more, by `outhaul fanout reemit`, for the subscribers of today; `closed` has left:"));
    say(&stage.fanout("reemit", &["--tenant", TENANT, &again])?.success()?);
    let ended = stage.database.wait_for_ended(3 * (EVENTS + 2) + 2)?;
    let second: Vec<_> = ended.iter().filter(|one| one.generation == 2).collect();
    ensure!(second.len() == 2 && second.iter().all(|one| one.event == again && one.state == "complete"), "{second:?}");
    let requests: Vec<Request> = stage.requests("slow").into_iter().filter(|request| request.body == "order 1").collect();
    let [first, repeated] = &requests[..] else { anyhow::bail!("{} requests of the first order to `slow`", requests.len()) };
    ensure!(first.id != repeated.id && first.body == repeated.body, "another generation has another key");
    say(&format!(
        "    `slow` has the same bytes again, under another idempotency key, because this is on purpose:\n\n      {}\n      {}",
        first.id, repeated.id
    ));

    stage.database.hold_deliveries()?;
    let edited = stage.event("orders.placed", Some("customer-0"), b"order 7")?;
    stage.database.wait_for_deliveries("two more deliveries", |all| all.iter().filter(|one| one.event == edited).count() == 2)?;
    let edit =
        format!("UPDATE outbox_deliveries SET subscriber_id = 'thief' WHERE notification_id = '{edited}' AND subscriber_id = 'mover'");
    stage.database.run(&edit)?;
    let before = stage.receiver.look(<[_]>::len);
    stage.database.release_deliveries()?;
    let ended = stage.database.wait_for_ended(3 * (EVENTS + 2) + 4)?;
    let thief = ended.iter().find(|one| one.subscriber == "thief").context("the row that was edited")?;
    ensure!(thief.outcome() == ("quarantined", Some("integrity_failure")), "{thief:?}");
    let sent = stage.receiver.look(<[_]>::len) - before;
    ensure!(sent == 1, "{sent} requests, expected the one to `slow`");
    say("5.  Somebody edits a delivery in the database:");
    say(&format!("      {edit}"));
    say(
        "    The envelope with destination, credentials and body is sealed together with every routing column of its row. It does not open: \
         the delivery is quarantined, with no look-up and no request made.",
    );
    say(&stage.fanout("show", &["--tenant", TENANT, &thief.id])?.success()?);

    say(
        "6.  Everything that changed, in the order in which it did, is in the status log. Readers page through it, each with a checkpoint:",
    );
    let log = stage.fanout("status", &["--tenant", TENANT, "--reader", "demo", "--advance"])?.success()?;
    for word in ["subscription_changed", "integrity_failure", "permanent_http"] {
        ensure!(log.contains(word), "{word} is not in {log}");
    }
    say(&log);
    let rest = stage.fanout_json("status", &["--reader", "demo"])?;
    ensure!(rest["changes"].as_array().is_some_and(Vec::is_empty), "the reader has read everything: {rest}");
    let secrets = stage.database.everything()?;
    ensure!(!secrets.contains("/acme/") && !secrets.contains("\"demo\""), "no address and no token in plaintext");
    say("    No address and no token is in the database in plaintext, and none was printed or logged. All of this was checked.");
    host.shut_down()
}

fn to(log: &[Request], path: &str) -> usize {
    log.iter().filter(|request| request.path == path).count()
}

fn table(rows: &[[&str; 2]]) -> String {
    rows.iter().map(|[name, what]| format!("      {name:<8}{what}")).collect::<Vec<_>>().join("\n")
}
