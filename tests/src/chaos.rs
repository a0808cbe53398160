//! The long runs: hosts that are killed and frozen while producers write and the receiver fails.
//!
//! What must hold in the end is in [`crate::ledger`]; how many duplicates there may be is counted here. A message is published once
//! for each time that it is claimed, and its verdict is written once its publish has ended. So a message can be accepted once more
//! than that only if a host was disturbed between the two: it held the message when it was killed, or when it was frozen for longer
//! than its lease. After each disturbance the host stands still, so the table says exactly what it held: `leased_by` is its
//! worker id, `status` is still pending. Each of these events gets an allowance of one duplicate for that disturbance; any duplicate
//! beyond its allowance is a fault.

use crate::host::{Host, SHORT_LEASE, log_field};
use crate::ledger::{Event, Report};
use crate::outbox::{self, Habits, Outbox, Producer};
use crate::process::Process;
use crate::receiver::{Answer, Receiver};
use crate::rig::{Config, Rig};
use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// For so long more the two hosts are disturbed where no late settle was refused yet.
const UNTIL_LATE: Duration = Duration::from_secs(60);

/// What happened in a run, and what came of it.
#[derive(Debug)]
pub struct Summary {
    seed: u64,
    kills: u32,
    freezes: u32,
    held: usize,
    late_settles: f64,
    report: Report,
    took: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "seed {}: {} kills, {} freezes, {:.0} s: {}; in flight at the disturbances {}, late settles refused {}",
            self.seed,
            self.kills,
            self.freezes,
            self.took.as_secs_f64(),
            self.report,
            self.held,
            self.late_settles
        )
    }
}

/// Where a run takes place.
struct Field {
    rig: Rig,
    receiver: Receiver,
    producers: Vec<Producer>,
    observer: Outbox,
    allowed: BTreeMap<Event, usize>,
    held: usize,
    /// Workers whose host is gone: what they still hold was counted when they went.
    gone: BTreeSet<String>,
    seed: u64,
    start: Instant,
}

/// How fast things go in a run.
struct Pace {
    /// The receiver takes up to so long for an answer.
    slowest_answer: Duration,
    /// Outcomes wait so long before they are written: the longer, the more of them are caught by a freeze.
    settle_delay: Duration,
}

/// How long the end of a run may take, in which everything left over is delivered.
const CLEAN_UP: Duration = Duration::from_secs(120);

impl Field {
    fn new(seed: u64, pace: Pace) -> Result<Self> {
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        let receiver = Receiver::start(move |_| {
            let (fails, delay) = {
                let mut random = random.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                (random.random_bool(0.2), random.random_range(Duration::ZERO..=pace.slowest_answer))
            };
            Answer::status(if fails { 503 } else { 204 }).after(delay)
        })?;
        let config = Config::to(receiver.address())?.set("storages.outbox.limits.call_timeout", "2s").set_all(
            "relays.0",
            &format!(
                r#"
                batch = 50
                in_flight = 200
                lease = "{lease}ms"
                publish_timeout = "{timeout}ms"
                max_attempts = 0
                backoff = {{ base = "20ms", factor = 2.0, max = "200ms", jitter = 0.5 }}
                breaker = {{ failures = 0 }}
                poll = {{ min = "5ms", max = "100ms" }}
                settle_delay = "{settle}ms"
                "#,
                lease = SHORT_LEASE.as_millis(),
                timeout = SHORT_LEASE.as_millis() * 2 / 3,
                settle = pace.settle_delay.as_millis(),
            ),
        );
        let rig = Rig::new(&config)?;
        // Compiles the components into the shared cache: a host that is killed while it compiles never gets to work.
        rig.run(&["check"])?.success()?;
        let producers = [("a", 1), ("b", 2)].map(|(prefix, offset)| {
            let habits = Habits {
                prefix: prefix.into(),
                keys: 40,
                pause: Duration::from_millis(5),
                most_pending: 1500,
                seed: seed.wrapping_add(offset),
            };
            Producer::start(rig.database(), habits)
        });
        Ok(Self {
            observer: rig.outbox()?,
            rig,
            receiver,
            producers: producers.into(),
            allowed: BTreeMap::new(),
            held: 0,
            gone: BTreeSet::new(),
            seed,
            start: Instant::now(),
        })
    }

    /// Counts what the host that stands still holds. `of` says which workers it may be.
    fn count_held(&mut self, of: impl Fn(&str) -> bool) -> Result<BTreeSet<String>> {
        let mut workers = BTreeSet::new();
        for (worker, event) in self.observer.held()? {
            if of(&worker) && !self.gone.contains(&worker) {
                *self.allowed.entry(event).or_default() += 1;
                self.held += 1;
                workers.insert(worker);
            }
        }
        Ok(workers)
    }

    /// Stops the producers, lets the hosts deliver what is left, and checks everything.
    fn finish(mut self, hosts: Vec<Host>, kills: u32, freezes: u32, mut late_settles: f64) -> Result<Summary> {
        let mut committed = BTreeSet::new();
        for producer in std::mem::take(&mut self.producers) {
            committed.extend(producer.finish()?);
        }
        let count = committed.len();
        self.receiver.wait_for_as_long_as(CLEAN_UP, "every committed event", |requests| {
            let accepted: BTreeSet<&str> =
                requests.iter().filter(|request| request.accepted()).map(|request| request.id.as_str()).collect();
            accepted.len() >= count
        })?;
        for host in hosts {
            late_settles += host.metric("outhaul_late_settles_total")?;
            host.shut_down()?;
        }
        let accepted = self.receiver.look(|requests| -> Result<Vec<Event>> {
            requests.iter().filter(|request| request.accepted()).map(|request| Event::from_payload(&request.body)).collect()
        })?;
        let report = Report::new(&committed, &accepted);
        let summary = Summary { seed: self.seed, kills, freezes, held: self.held, late_settles, report, took: self.start.elapsed() };
        summary.report.check(&self.allowed).with_context(|| format!("broken promise: {summary}"))?;
        if self.held == 0 {
            bail!("nothing was in flight at any disturbance, so nothing was tested: {summary}");
        }
        let stuck: Vec<_> =
            self.observer.rows()?.into_iter().filter(|row| row.status != outbox::DELIVERED || row.leased_by.is_some()).collect();
        if !stuck.is_empty() {
            bail!("{} rows are stuck, the first is {:?}: {summary}", stuck.len(), stuck.first());
        }
        Ok(summary)
    }
}

/// Kills the host at random moments, from its first millisecond on.
///
/// # Errors
/// If a promise was broken.
pub fn kill(kills: u32, seed: u64, mut progress: impl FnMut(String)) -> Result<Summary> {
    let mut field = Field::new(seed, Pace { slowest_answer: Duration::from_millis(4), settle_delay: Duration::from_millis(2) })?;
    let mut random = StdRng::seed_from_u64(seed.rotate_left(32));
    for number in 1..=kills {
        let mut host: Process = Host::launch(&field.rig.config(), |_| {})?;
        std::thread::sleep(random.random_range(Duration::ZERO..Duration::from_millis(1500)));
        if host.has_ended() {
            bail!("the host ended by itself:\n{}", host.errors().text());
        }
        host.kill()?;
        let workers = field.count_held(|_| true)?;
        field.gone.extend(workers);
        if number % 10 == 0 {
            let requests = field.receiver.look(<[_]>::len);
            progress(format!("{number} kills, {requests} requests, {} events were in flight at the kills", field.held));
        }
    }
    let last = field.rig.host()?;
    field.finish(vec![last], kills, 0, 0.0)
}

/// Kills and freezes two hosts that share one database file.
///
/// # Errors
/// If a promise was broken, or no late settle was refused: then the freezes have not tested what they should.
pub fn two_hosts(length: Duration, seed: u64, mut progress: impl FnMut(String)) -> Result<Summary> {
    let mut field = Field::new(seed, Pace { slowest_answer: Duration::from_millis(60), settle_delay: Duration::from_millis(100) })?;
    let mut random = StdRng::seed_from_u64(seed.rotate_left(32));
    let mut hosts = vec![field.rig.host()?, field.rig.host()?];
    let (mut kills, mut freezes, mut late) = (0, 0, 0.0);
    let end = Instant::now() + length;
    // Chance decides whether a host is frozen with verdicts to write: it goes on, for a while, until one was refused.
    let is_seen = |hosts: &[Host], late: f64| -> Result<bool> {
        let late = hosts.iter().try_fold(late, |late, host| anyhow::Ok(late + host.metric("outhaul_late_settles_total")?))?;
        Ok(late >= 1.0)
    };
    while Instant::now() < end || (freezes > 0 && Instant::now() < end + UNTIL_LATE && !is_seen(&hosts, late)?) {
        std::thread::sleep(random.random_range(Duration::from_millis(300)..Duration::from_millis(1500)));
        let index = random.random_range(0..hosts.len());
        let worker = worker(&mut hosts[index])?;
        if random.random_bool(0.4) {
            late += hosts[index].metric("outhaul_late_settles_total")?;
            hosts[index].process().kill()?;
            let workers = field.count_held(|held| is_of(held, &worker))?;
            field.gone.extend(workers);
            hosts[index] = field.rig.host()?;
            kills += 1;
        } else {
            hosts[index].process().freeze()?;
            // Frozen in the middle of a write, it keeps the lock, and the leases of the other host run out as well.
            let everybody = field.observer.is_locked()?;
            field.count_held(|held| everybody || is_of(held, &worker))?;
            std::thread::sleep(SHORT_LEASE + random.random_range(Duration::from_millis(200)..Duration::from_millis(1200)));
            hosts[index].process().thaw()?;
            freezes += 1;
        }
        progress(format!("{kills} kills, {freezes} freezes, {} events were in flight at them", field.held));
    }
    let summary = field.finish(hosts, kills, freezes, late)?;
    if summary.freezes > 0 && summary.late_settles < 1.0 {
        bail!("no late settle was refused: {summary}");
    }
    Ok(summary)
}

/// Whether a name in the table belongs to this worker: it goes on under `WORKER.1`, `WORKER.2` after leases have run out.
fn is_of(name: &str, worker: &str) -> bool {
    name.strip_prefix(worker).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The worker id of a host, as it logs it when its relay starts.
fn worker(host: &mut Host) -> Result<String> {
    let line = host.process().errors().wait_for_line("relay started")?;
    log_field(&line, "worker").with_context(|| format!("no worker id in {line}"))
}
