//! Whether a tenant with very many due deliveries holds up one with ten.
//!
//! Measured from the commit of ten events until their deliveries are out: first alone, then while the deliveries of the large tenant,
//! all inserted before, are due and being sent.

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

    let host = stage.host()?;
    // Once for the instances, then for the clock.
    few(&mut stage, 1)?;
    let alone = few(&mut stage, 2)?;
    progress(format!("alone: {} ms", alone.as_millis()));
    let releasing = Instant::now();
    stage.database.make_due()?;
    progress(format!("all are due after {:.0} s", releasing.elapsed().as_secs_f64()));
    stage.receiver.wait_for_as_long_as(Duration::from_secs(600), "the large tenant's deliveries", |log| {
        log.iter().filter(|request| request.path.starts_with("/large/")).count() >= 100
    })?;
    let large = |stage: &Stage| stage.receiver.look(|log| log.iter().filter(|request| request.path.starts_with("/large/")).count());
    let before = large(&stage);
    let beside = few(&mut stage, 3)?;
    let overtaken = large(&stage) - before;
    drop(host);
    Ok(Summary { due: events * SUBSCRIBERS, alone_ms: alone.as_millis(), beside_ms: beside.as_millis(), overtaken })
}

/// Commits the few events for the `round`th time; how long until all are out.
fn few(stage: &mut Stage, round: usize) -> Result<Duration> {
    let rows: Vec<String> = (0..FEW).map(|number| format!("('small', 'orders', 'k{number}', NULL)")).collect();
    stage.database.run(&format!("INSERT INTO outbox (tenant, topic, key, payload) VALUES {}", rows.join(", ")))?;
    let committed = Instant::now();
    stage.receiver.wait_for_as_long_as(Duration::from_secs(600), "the small tenant's deliveries", |log| {
        log.iter().filter(|request| request.path.starts_with("/small/") && request.accepted()).count() >= FEW * round
    })?;
    Ok(committed.elapsed())
}
