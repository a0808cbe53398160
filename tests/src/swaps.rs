//! The long run of swaps: two versions of a publisher take turns while messages flow, and every tenth candidate is a bad one.
//!
//! Nothing crashes here, so there is no excuse for a duplicate: every event must be accepted exactly once, in order. How long messages
//! take from their row to the receiver is measured in stretches with and without swaps that take turns as well, so that both
//! see the same machine.

use crate::components::{self, Bad};
use crate::host::Host;
use crate::ledger::{Event, Report};
use crate::outbox::{DELIVERED, Habits, Producer};
use crate::receiver::{Answer, Receiver, Request};
use crate::rig::{Config, Rig};
use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Every so many candidates one is bad.
const BAD_EVERY: u32 = 10;

/// Swaps between two stretches without any.
const STRETCH: u32 = 20;

/// What came of it.
#[derive(Debug)]
pub struct Summary {
    seed: u64,
    swaps: u32,
    refused: u32,
    report: Report,
    quiet: Latency,
    swapping: Latency,
    took: Duration,
}

/// From the row to the receiver.
#[derive(Debug, Clone, Copy)]
struct Latency {
    messages: usize,
    median: Duration,
    p99: Duration,
}

impl fmt::Display for Latency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, p99) = (self.median.as_millis(), self.p99.as_millis());
        write!(formatter, "median {median} ms, p99 {p99} ms of {} messages", self.messages)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "seed {}: {} swaps, {} candidates refused, {:.0} s: {}, 0 stuck; while swapping {}; without swaps {}",
            self.seed,
            self.swaps,
            self.refused,
            self.took.as_secs_f64(),
            self.report,
            self.swapping,
            self.quiet
        )
    }
}

/// A stretch of time in which there were swaps, or none, in Unix milliseconds.
struct Stretch {
    swapping: bool,
    from: u64,
    until: u64,
}

/// Swaps so often.
///
/// # Errors
/// If a promise was broken.
pub fn run(swaps: u32, seed: u64, mut progress: impl FnMut(String)) -> Result<Summary> {
    let start = Instant::now();
    let mut random = StdRng::seed_from_u64(seed);
    let receiver = Receiver::start(|request| Answer::status(204).after(Duration::from_millis(request.number as u64 % 8)))?;
    let config =
        Config::to(receiver.address())?.set_all("relays.0", "batch = 50\nin_flight = 200\npoll = { min = \"5ms\", max = \"20ms\" }");
    let rig = Rig::with_fixtures(&config)?;
    let folder = rig.path().join("plugins");
    let versions = [components::publisher("0.1.1")?, components::publisher("0.1.2")?];
    let bad = components::bad()?;
    // Each version is compiled once; the run is about swaps, not about the compiler.
    for version in &versions {
        components::put(&folder, "http-publisher", version)?;
        rig.run(&["check"])?.success()?;
    }
    let host = rig.host()?;
    // Some 200 messages a second: what waits in a queue would hide what a swap costs.
    let producers: Vec<Producer> = [("a", 1), ("b", 2)]
        .map(|(prefix, offset)| {
            let (prefix, seed) = (prefix.into(), seed.wrapping_add(offset));
            Producer::start(rig.database(), Habits { prefix, keys: 40, pause: Duration::from_millis(20), most_pending: 1500, seed })
        })
        .into();
    receiver.wait_for_accepted(100)?;

    let mut stretches = Vec::new();
    let (mut done, mut refused) = (0, 0);
    while done < swaps {
        let length = {
            let from = now()?;
            let until = swaps.min(done + STRETCH);
            while done < until {
                let candidate = done + refused + 1;
                if candidate.is_multiple_of(BAD_EVERY) {
                    refused += 1;
                    refuse(&host, &folder, &bad[(refused as usize - 1) % bad.len()], refused)?;
                    continue;
                }
                done += 1;
                // The second one is running when the run begins.
                let bytes = &versions[(done as usize + 1) % 2];
                if random.random_bool(0.5) {
                    components::put(&folder, "http-publisher", bytes)?;
                } else {
                    components::write_over(&folder, "http-publisher", bytes)?;
                }
                host.wait_for_metric("outhaul_adapter_swaps_total{adapter=\"webhooks\"}", f64::from(done))?;
            }
            let until = now()?;
            stretches.push(Stretch { swapping: true, from, until });
            Duration::from_millis(until - from)
        };
        progress(format!("{done} swaps, {refused} refused, {} requests", receiver.look(<[_]>::len)));
        let from = now()?;
        std::thread::sleep(length);
        stretches.push(Stretch { swapping: false, from, until: now()? });
    }

    let mut committed = BTreeSet::new();
    for producer in producers {
        committed.extend(producer.finish()?);
    }
    let count = committed.len();
    receiver.wait_for(&format!("{count} events"), |requests| requests.iter().filter(|request| request.accepted()).count() >= count)?;
    let outbox = rig.outbox()?;
    outbox.wait_for_rows("every row to be settled", |rows| rows.iter().all(|row| row.status == DELIVERED && row.leased_by.is_none()))?;
    let (late, lost) = (host.metric("outhaul_late_settles_total")?, host.metric("outhaul_leases_lost_total")?);
    let created = rig.outbox()?.created()?;
    host.shut_down()?;
    if late + lost > 0.5 {
        bail!("{late} late verdicts and {lost} lost leases, although nothing was stopped");
    }

    let requests = receiver.requests();
    let accepted = requests.iter().map(|request| Event::from_payload(&request.body)).collect::<Result<Vec<_>>>()?;
    let report = Report::new(&committed, &accepted);
    report.check(&BTreeMap::new()).with_context(|| format!("broken promise (seed {seed}): {report}"))?;
    for version in ["0.1.1", "0.1.2"] {
        if requests.iter().all(|request| request.header("user-agent") != Some(&components::agent(version))) {
            bail!("version {version} has sent nothing: nothing was swapped");
        }
    }
    let of = |swapping| latency(&requests, &created, &stretches, swapping);
    Ok(Summary { seed, swaps: done, refused, report, quiet: of(false)?, swapping: of(true)?, took: start.elapsed() })
}

fn refuse(host: &Host, folder: &std::path::Path, bad: &Bad, count: u32) -> Result<()> {
    components::put(folder, "http-publisher", &bad.bytes)?;
    host.wait_for_metric("outhaul_adapter_candidates_refused_total{adapter=\"webhooks\"}", f64::from(count))
        .with_context(|| format!("{} was not refused", bad.what))
}

fn latency(requests: &[Request], created: &HashMap<String, u64>, stretches: &[Stretch], swapping: bool) -> Result<Latency> {
    // Of one clock to the other.
    let (instant, wall) = (Instant::now(), now()?);
    let mut took: Vec<u64> = Vec::new();
    for request in requests {
        let row = *created.get(&request.id).with_context(|| format!("no row {}", request.id))?;
        if stretches.iter().any(|stretch| stretch.swapping == swapping && (stretch.from..stretch.until).contains(&row)) {
            let ago = u64::try_from(instant.saturating_duration_since(request.at).as_millis())?;
            took.push((wall - ago).saturating_sub(row));
        }
    }
    took.sort_unstable();
    let at = |part: usize| took.get((took.len() * part / 100).min(took.len().saturating_sub(1))).copied().map(Duration::from_millis);
    let (median, p99) = (at(50).context("no message was measured")?, at(99).context("no message was measured")?);
    Ok(Latency { messages: took.len(), median, p99 })
}

/// Unix milliseconds.
fn now() -> Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}
