//! Whether a tenant with very many due deliveries holds up one with ten.
//!
//! Measured from the commit of ten events until their deliveries are out: first alone, then while the deliveries of the large tenant,
//! all inserted before, are due and being sent.
//!
//! How long that takes depends on the machine. What does not is how many of the large tenant's deliveries may go before the ten
//! ([`overtaken`]): what the host has in memory already, and what it claims together with them.

use super::stage::Subscription;
use super::{Ground, Plan, Stage};
use anyhow::Result;
use std::fmt;
use std::time::{Duration, Instant};

/// Events of the small tenant.
const FEW: usize = 10;

/// The large tenant's subscribers: each of its events has so many deliveries.
const SUBSCRIBERS: usize = 100;

/// What was measured.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Summary {
    /// Deliveries of the large tenant that were due.
    pub due: usize,
    /// How long the few took alone, in milliseconds.
    pub alone_ms: u128,
    /// How long they took beside the large tenant, in milliseconds.
    pub beside_ms: u128,
    /// How many deliveries of the large tenant went out meanwhile.
    pub overtaken: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { due, alone_ms, beside_ms, overtaken } = self;
        write!(
            formatter,
            "{FEW} deliveries of a tenant: {alone_ms} ms alone, {beside_ms} ms beside {due} due ones of another, of which {overtaken} went \
             out meanwhile"
        )
    }
}

/// Measures with so many deliveries of the large tenant.
///
/// # Errors
/// If something does not come.
pub fn run(ground: Ground<'_>, due: usize, mut progress: impl FnMut(String)) -> Result<Summary> {
    let mut stage = ground.stage(&Plan::usual())?;
    let inserted = held(&mut stage, due, &mut progress)?;

    let host = stage.host()?;
    // Once for the instances, then for the clock.
    few(&mut stage, 1)?;
    let alone = few(&mut stage, 2)?;
    progress(format!("alone: {} ms", alone.as_millis()));
    let releasing = Instant::now();
    stage.database.make_due()?;
    progress(format!("all are due after {:.0} s", releasing.elapsed().as_secs_f64()));
    wait_for_the_large(&stage)?;
    let before = large(&stage);
    let beside = few(&mut stage, 3)?;
    let overtaken = large(&stage) - before;
    drop(host);
    Ok(Summary { due: inserted, alone_ms: alone.as_millis(), beside_ms: beside.as_millis(), overtaken })
}

/// How many of the large tenant's deliveries go out between the moment in which ten of the small one's, inserted after all of them, become due,
/// and the last of the ten, where a claim takes `batch` deliveries and the host holds `in_flight`.
///
/// # Errors
/// If something does not come.
pub fn overtaken(ground: Ground<'_>, due: usize, batch: usize, in_flight: usize) -> Result<usize> {
    let pace = format!("batch = {batch}\nin_flight = {in_flight}");
    let mut stage = ground.stage(&Plan::usual().with("relays.0.fan_out.delivery", &pace))?;
    held(&mut stage, due, &mut |_| {})?;
    stage.database.hold_deliveries()?;
    insert_few(&mut stage)?;
    stage.rig.drain()?;
    stage.database.drop_trigger("held_for_the_test")?;
    let host = stage.host()?;
    make_due(&mut stage, "large")?;
    wait_for_the_large(&stage)?;
    make_due(&mut stage, "small")?;
    let before = large(&stage);
    let log = stage.receiver.wait_for_as_long_as(Duration::from_secs(600), "the small tenant's deliveries", |log| {
        log.iter().filter(|request| request.path.starts_with("/small/")).count() >= FEW
    })?;
    drop(host);
    let last = log.iter().rposition(|request| request.path.starts_with("/small/")).unwrap_or(log.len());
    let sent = log.iter().take(last).filter(|request| request.path.starts_with("/large/")).count();
    Ok(sent.saturating_sub(before))
}

/// Inserts so many deliveries of the large tenant, none of them due; their number.
fn held(stage: &mut Stage, due: usize, progress: &mut impl FnMut(String)) -> Result<usize> {
    stage.subscribe_as("only", Subscription { tenant: Some("small"), ..Default::default() })?;
    for number in 0..SUBSCRIBERS {
        stage.subscribe_as(&format!("s{number}"), Subscription { tenant: Some("large"), ..Default::default() })?;
    }
    stage.database.hold_deliveries()?;
    let events = due.div_ceil(SUBSCRIBERS);
    let rows: Vec<String> = (0..events).map(|number| format!("('large', 'orders', 'k{}', NULL)", number % 97)).collect();
    for chunk in rows.chunks(500) {
        stage.database.run(&format!("INSERT INTO outbox (tenant, topic, key, payload) VALUES {}", chunk.join(", ")))?;
    }
    let expanding = Instant::now();
    let drained = stage.rig.start(&["drain", "--json"])?;
    drained.output().wait_for_as_long_as(Duration::from_secs(3600), "the end of the expansion", |captured| captured.ended.then_some(()))?;
    let inserted = stage.database.number("SELECT count(*) FROM outbox_deliveries")?;
    anyhow::ensure!(inserted == (events * SUBSCRIBERS) as u64, "{inserted} deliveries of {events} events");
    progress(format!("{inserted} deliveries were inserted in {:.0} s", expanding.elapsed().as_secs_f64()));
    stage.database.drop_trigger("held_for_the_test")?;
    Ok(events * SUBSCRIBERS)
}

/// Requests to the large tenant's endpoints.
fn large(stage: &Stage) -> usize {
    stage.receiver.look(|log| log.iter().filter(|request| request.path.starts_with("/large/")).count())
}

/// Until its deliveries are being sent.
fn wait_for_the_large(stage: &Stage) -> Result<()> {
    stage.receiver.wait_for_as_long_as(Duration::from_secs(600), "the large tenant's deliveries", |log| {
        log.iter().filter(|request| request.path.starts_with("/large/")).count() >= 100
    })?;
    Ok(())
}

/// Makes the deliveries of a tenant due.
fn make_due(stage: &mut Stage, tenant: &str) -> Result<()> {
    let past = stage.database.in_ms(-1000);
    stage.database.run(&format!("UPDATE outbox_deliveries SET available_at = {past} WHERE account_id = '{tenant}' AND state = 'pending'"))
}

/// Commits the few events.
fn insert_few(stage: &mut Stage) -> Result<()> {
    let rows: Vec<String> = (0..FEW).map(|number| format!("('small', 'orders', 'k{number}', NULL)")).collect();
    stage.database.run(&format!("INSERT INTO outbox (tenant, topic, key, payload) VALUES {}", rows.join(", ")))
}

/// Commits the few events for the `round`th time; how long until all are out.
fn few(stage: &mut Stage, round: usize) -> Result<Duration> {
    insert_few(stage)?;
    let committed = Instant::now();
    stage.receiver.wait_for_as_long_as(Duration::from_secs(600), "the small tenant's deliveries", |log| {
        log.iter().filter(|request| request.path.starts_with("/small/") && request.accepted()).count() >= FEW * round
    })?;
    Ok(committed.elapsed())
}
