//! How fast fan-out is through the real binary: events expanded a second at some numbers of subscribers, and deliveries made a second to
//! an HTTP receiver in this process.
//!
//! One event more goes first and is held by the receiver while it is the only one that may be in flight: so nothing is delivered while
//! the expansion is measured, and nothing is expanded while the deliveries are.

use super::stage::path;
use super::{Ground, Plan, Stage, TENANT};
use crate::host::Host;
use crate::ledger::Event;
use crate::process::poll;
use crate::receiver::{Answer, Gate};
use anyhow::{Result, ensure};
use std::fmt;
use std::time::{Duration, Instant};

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Subscribers of each event.
    pub subscribers: usize,
    /// Deliveries in all: so many events that there are about as many.
    pub deliveries: usize,
}

/// What was measured.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Rates {
    /// Its name.
    pub database: &'static str,
    /// Subscribers of each event.
    pub subscribers: usize,
    /// Events.
    pub events: usize,
    /// Deliveries.
    pub deliveries: usize,
    /// Events expanded a second.
    pub expanded_per_second: f64,
    /// Deliveries that this inserted a second.
    pub inserted_per_second: f64,
    /// Deliveries made and settled a second.
    pub delivered_per_second: f64,
}

impl Rates {
    /// The head of a table of these.
    pub const HEAD: &'static str = "database    subscribers    events  deliveries  expanded/s  inserted/s  delivered/s";
}

impl fmt::Display for Rates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:<10}  {:>11}  {:>8}  {:>10}  {:>10.0}  {:>10.0}  {:>11.0}",
            self.database,
            self.subscribers,
            self.events,
            self.deliveries,
            self.expanded_per_second,
            self.inserted_per_second,
            self.delivered_per_second
        )
    }
}

/// The subscriber that keeps the deliveries waiting.
const BRAKE: &str = "brake";

/// Keys of the events.
const KEYS: usize = 500;

/// How long one of the two parts may take.
const LIMIT: Duration = Duration::from_secs(1800);

/// Measures one load.
///
/// # Errors
/// If something does not come.
pub fn run(ground: Ground<'_>, load: Load) -> Result<Rates> {
    let events = load.deliveries.div_ceil(load.subscribers);
    let one = "in_flight = 1\nbatch = 1\npublish_timeout = \"600s\"\nlease = \"1h\"";
    let plan = Plan::usual().with("relays.0.fan_out.delivery", one).with("publishers.webhooks.config", "timeout = \"600s\"");
    let mut stage = ground.stage(&plan)?;
    stage.subscribe_as(BRAKE, super::stage::Subscription { topics: Some(BRAKE), ..Default::default() })?;
    for number in 0..load.subscribers {
        stage.subscribe_as(&format!("s{number}"), super::stage::Subscription { topics: Some("orders"), ..Default::default() })?;
    }
    let gate = Gate::closed();
    stage.answer(BRAKE, Answer::status(204).behind(&gate));
    let host = stage.host()?;
    stage.event(BRAKE, None, b"x")?;
    stage.wait_for_requests(BRAKE, 1)?;

    let rows: Vec<Event> = (0..events).map(|number| Event { key: format!("k{}", number % KEYS), number: number as u64 }).collect();
    stage.events_of(TENANT, "orders", &rows)?;
    let expanding = Instant::now();
    wait_for(&mut stage, "SELECT count(*) FROM outbox WHERE status = 'pending'", 0, &host)?;
    let expanding = expanding.elapsed();
    let deliveries = events * load.subscribers;
    let inserted = stage.database.number("SELECT count(*) FROM outbox_deliveries WHERE subscriber_id <> 'brake' AND attempts = 0")?;
    ensure!(inserted == deliveries as u64, "{inserted} deliveries wait, expected {deliveries}");

    // The brake has done its part.
    let mut host = host;
    host.process().kill()?;
    gate.open();
    stage.database.run("UPDATE outbox_deliveries SET state = 'suppressed', leased_by = NULL WHERE subscriber_id = 'brake'")?;
    stage.reconfigure(|config| {
        let usual = "in_flight = 2000\nbatch = 500\npublish_timeout = \"30s\"\nlease = \"60s\"";
        config.set_all("relays.0.fan_out.delivery", usual).set("publishers.webhooks.config.timeout", "20s")
    })?;
    let host = stage.host()?;
    // From the first request on: the start of the process is not what is measured.
    let brake = path(TENANT, BRAKE);
    stage.receiver.wait_for("the first delivery", |log| log.iter().any(|request| request.path != brake))?;
    let delivering = Instant::now();
    wait_for(&mut stage, "SELECT count(*) FROM outbox_deliveries WHERE state = 'pending'", 0, &host)?;
    let delivering = delivering.elapsed();
    let requests = stage.receiver.look(<[_]>::len);
    ensure!(requests == deliveries + 1, "{requests} requests for {deliveries} deliveries");
    host.shut_down()?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let rate = |count: usize, time: Duration| count as f64 / time.as_secs_f64();
    Ok(Rates {
        database: ground.name(),
        subscribers: load.subscribers,
        events,
        deliveries,
        expanded_per_second: rate(events, expanding),
        inserted_per_second: rate(deliveries, expanding),
        delivered_per_second: rate(deliveries, delivering),
    })
}

/// Waits until a count is so small, however long that takes as long as it gets smaller.
fn wait_for(stage: &mut Stage, count: &str, few: u64, host: &Host) -> Result<()> {
    let end = Instant::now() + LIMIT;
    let mut last = u64::MAX;
    while last > few {
        ensure!(Instant::now() < end, "{last} are left after {} s; the host logged:\n{}", LIMIT.as_secs(), host.log());
        let before = last;
        poll("progress", || {
            last = stage.database.number(count)?;
            Ok(last < before || last <= few)
        })?;
    }
    Ok(())
}
