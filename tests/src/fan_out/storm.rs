//! The long run of fan-out: two hosts that are killed at random, an endpoint that is always down, a slow one, and healthy ones that fail
//! a tenth of the requests.
//!
//! What must hold in the end, for each healthy subscriber, is in [`crate::ledger`]: every event once or more, the first acceptances in
//! the order of their key. A delivery may be accepted once more than that for each time that it was held by somebody when a host was
//! killed. All requests of an event to a subscriber have one idempotency key, and no other request has it. In the table there is exactly one row for
//! each event and subscriber.

use super::stage::{Subscription, insert_events, path};
use super::{Database, Ground, Plan, Stage, TENANT};
use crate::ledger::{Event, Report};
use crate::receiver::{Answer, Request};
use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What to do.
#[derive(Debug, Clone, Copy)]
pub struct Storm {
    /// How many events are written.
    pub events: u64,
    /// How many subscribers have each of them: one of them is down and one is slow, the others are healthy.
    pub subscribers: usize,
    /// How often a host is killed, spread over the time in which the events are written.
    pub kills: u32,
    /// Events a second.
    pub pace: u32,
    /// For every choice.
    pub seed: u64,
}

/// Keys of the events.
const KEYS: u64 = 100;

/// Events of one transaction.
const TRANSACTION: u64 = 10;

/// How slow the slow endpoint is.
const SLOW: Duration = Duration::from_millis(200);

/// How long the end of a run may take, in which everything left over is delivered to the healthy ones.
const CLEAN_UP: Duration = Duration::from_secs(300);

const DOWN: &str = "down";
const SLUGGISH: &str = "slow";

/// What one run came to.
#[derive(Debug)]
pub struct Outcome {
    healthy: usize,
    kills: u32,
    held: usize,
    duplicates: usize,
    failed: usize,
    latencies: Latencies,
    took: Duration,
}

/// From the commit of an event to its first acceptance by a healthy subscriber, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Latencies {
    /// Half of them are shorter.
    pub median: u128,
    /// 99 % of them are shorter.
    pub p99: u128,
    /// The longest.
    pub longest: u128,
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latencies { median, p99, longest } = self.latencies;
        write!(
            formatter,
            "{} healthy subscribers, {} kills, {:.0} s: commit to delivery p50 {median} ms, p99 {p99} ms, at most {longest} ms; {} failed \
             attempts, {} duplicates, {} deliveries were held at the kills",
            self.healthy,
            self.kills,
            self.took.as_secs_f64(),
            self.failed,
            self.duplicates,
            self.held
        )
    }
}

/// Both runs: with the bad endpoints, and without.
#[derive(Debug)]
pub struct Summary {
    storm: Storm,
    with: Outcome,
    without: Outcome,
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Storm { events, subscribers, seed, .. } = self.storm;
        writeln!(formatter, "seed {seed}: {events} events, {subscribers} subscribers")?;
        writeln!(formatter, "  with one down and one slow: {}", self.with)?;
        write!(formatter, "  without them:              {}", self.without)
    }
}

/// Runs twice: with the two bad endpoints, and without.
///
/// # Errors
/// If a promise was broken.
pub fn run(ground: Ground<'_>, storm: Storm, mut progress: impl FnMut(String)) -> Result<Summary> {
    ensure!(storm.subscribers >= 3, "at least three subscribers: one is down, one is slow, one is healthy");
    let with = once(ground, storm, true, &mut progress).context("with the bad endpoints")?;
    progress(format!("with the bad endpoints: {with}"));
    let without = once(ground, storm, false, &mut progress).context("without the bad endpoints")?;
    Ok(Summary { storm, with, without })
}

/// A run's parts.
struct Field {
    stage: Stage,
    storm: Storm,
    healthy: Vec<String>,
    bad: usize,
    /// How many duplicates each event may have, by subscriber.
    allowed: BTreeMap<String, BTreeMap<Event, usize>>,
    held: usize,
}

fn once(ground: Ground<'_>, storm: Storm, with_bad: bool, progress: &mut impl FnMut(String)) -> Result<Outcome> {
    let start = Instant::now();
    let mut field = Field::new(ground, storm, with_bad)?;
    let mut hosts = vec![field.stage.host()?, field.stage.host()?];
    let writer = Writer { place: field.stage.database.again()?, storm };
    let writing = std::thread::spawn(move || writer.write());
    let mut random = StdRng::seed_from_u64(storm.seed.rotate_left(32));
    let whole = Duration::from_secs_f64(f64::from(u32::try_from(storm.events)?) / f64::from(storm.pace));
    let mut logs = String::new();
    for number in 1..=storm.kills {
        let pause = whole.as_secs_f64() / f64::from(storm.kills + 1);
        std::thread::sleep(Duration::from_secs_f64(random.random_range(0.5 * pause..1.5 * pause)));
        let index = random.random_range(0..hosts.len());
        hosts[index].process().kill()?;
        field.count_held()?;
        logs += &hosts[index].log();
        hosts[index] = field.stage.host()?;
        progress(format!("{number} kills, {} requests", field.stage.receiver.look(<[_]>::len)));
    }
    let commits = writing.join().map_err(|_| anyhow::anyhow!("the producer panicked"))?.context("the producer failed")?;
    let delivered = field.wait_for_all(&commits);
    for host in &hosts {
        logs += &host.log();
        logs += &host.metrics()?;
    }
    delivered.with_context(|| kept(&logs, storm.seed))?;
    for host in hosts {
        host.shut_down()?;
    }
    field.finish(&commits, start).with_context(|| kept(&logs, storm.seed))
}

/// Keeps what the hosts logged for whoever looks into a broken promise; where.
fn kept(logs: &str, seed: u64) -> String {
    let file = std::env::temp_dir().join(format!("outhaul-fan-out-{seed}.log"));
    match std::fs::write(&file, logs) {
        Ok(()) => format!("the logs of the hosts are in {}", file.display()),
        Err(error) => format!("the logs of the hosts cannot be kept in {}: {error}", file.display()),
    }
}

/// The producer.
struct Writer {
    place: Database,
    storm: Storm,
}

impl Writer {
    /// Writes everything at its pace; returns when each event was committed.
    fn write(mut self) -> Result<HashMap<Event, Instant>> {
        let start = Instant::now();
        let mut random = StdRng::seed_from_u64(self.storm.seed);
        let mut numbers: BTreeMap<u64, u64> = BTreeMap::new();
        let mut commits = HashMap::new();
        let mut written = 0;
        while written < self.storm.events {
            let due = start + Duration::from_secs_f64(f64::from(u32::try_from(written)?) / f64::from(self.storm.pace));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let events: Vec<Event> = (0..TRANSACTION.min(self.storm.events - written))
                .map(|_| {
                    let key = random.random_range(0..KEYS);
                    let number = numbers.entry(key).or_default();
                    *number += 1;
                    Event { key: format!("k{key}"), number: *number }
                })
                .collect();
            insert_events(&mut self.place, TENANT, "orders", &events)?;
            let now = Instant::now();
            written += TRANSACTION;
            commits.extend(events.into_iter().map(|event| (event, now)));
        }
        Ok(commits)
    }
}

impl Field {
    fn new(ground: Ground<'_>, storm: Storm, with_bad: bool) -> Result<Self> {
        let short = "lease = \"5s\"\npublish_timeout = \"4s\"";
        let plan = Plan::usual()
            .with("relays.0", short)
            .with("relays.0", "max_attempts = 0")
            .with("relays.0.fan_out.delivery", short)
            // The endpoint that is down is asked ever more seldom, as in production.
            .with("relays.0.fan_out.delivery.backoff", "max = \"5s\"")
            .with("storages.outbox", "limits = { call_timeout = \"2s\" }");
        let mut stage = ground.stage(&plan)?;
        let random = Mutex::new(StdRng::seed_from_u64(storm.seed.rotate_left(16)));
        let (down, slow) = (path(TENANT, DOWN), path(TENANT, SLUGGISH));
        stage.receiver.set_script(move |request| {
            if request.path == down {
                return Answer::status(503);
            }
            if request.path == slow {
                return Answer::status(204).after(SLOW);
            }
            let fails = random.lock().unwrap_or_else(std::sync::PoisonError::into_inner).random_bool(0.1);
            Answer::status(if fails { 500 } else { 204 })
        });
        let healthy: Vec<String> = (0..storm.subscribers - 2).map(|number| format!("healthy{number}")).collect();
        let bad: &[&str] = if with_bad { &[DOWN, SLUGGISH] } else { &[] };
        for subscriber in healthy.iter().map(String::as_str).chain(bad.iter().copied()) {
            stage.subscribe_as(subscriber, Subscription::default())?;
        }
        // Compiles the components into the shared cache: a host that is killed while it compiles never gets to work.
        stage.rig.run(&["check"])?.success()?;
        Ok(Self { stage, storm, healthy, bad: bad.len(), allowed: BTreeMap::new(), held: 0 })
    }

    /// Counts the deliveries that somebody holds: one of the two hosts has just died.
    fn count_held(&mut self) -> Result<()> {
        let sql = "SELECT d.subscriber_id, e.payload FROM outbox_deliveries AS d JOIN outbox AS e ON CAST(e.id AS TEXT) = d.notification_id \
             WHERE d.state = 'pending' AND d.leased_by IS NOT NULL";
        for row in self.stage.database.rows(sql)? {
            let [Some(subscriber), Some(payload)] = &row[..] else { bail!("a delivery without an event") };
            let payload = unhex(payload.trim_start_matches("\\x"))?;
            *self.allowed.entry(subscriber.clone()).or_default().entry(Event::from_payload(&payload)?).or_default() += 1;
            self.held += 1;
        }
        Ok(())
    }

    /// Waits until the healthy ones have everything, and it is written down. Asks the database: what looks through all requests again and
    /// again keeps the receiver from answering.
    fn wait_for_all(&mut self, commits: &HashMap<Event, Instant>) -> Result<()> {
        let expected = commits.len() as u64 * self.healthy.len() as u64;
        let sql = "SELECT count(*) FROM outbox_deliveries WHERE subscriber_id LIKE 'healthy%' AND state = 'complete'";
        let start = Instant::now();
        loop {
            let complete = self.stage.database.number(sql)?;
            if complete >= expected {
                return Ok(());
            }
            ensure!(start.elapsed() < CLEAN_UP, "{complete} of {expected} deliveries to healthy subscribers are complete");
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn finish(mut self, commits: &HashMap<Event, Instant>, start: Instant) -> Result<Outcome> {
        let committed: BTreeSet<Event> = commits.keys().cloned().collect();
        let mut latencies = Vec::new();
        let (mut duplicates, mut failed) = (0, 0);
        let mut keys: BTreeMap<String, (String, Event)> = BTreeMap::new();
        for subscriber in &self.healthy {
            let requests = self.stage.requests(subscriber);
            failed += requests.iter().filter(|request| !request.accepted()).count();
            check_keys(subscriber, &requests, &mut keys)?;
            let mut first: HashMap<Event, Instant> = HashMap::new();
            let mut accepted = Vec::new();
            for request in requests.iter().filter(|request| request.accepted()) {
                let event = Event::from_payload(&request.body)?;
                first.entry(event.clone()).or_insert(request.at);
                accepted.push(event);
            }
            let report = Report::new(&committed, &accepted);
            let none = BTreeMap::new();
            report.check(self.allowed.get(subscriber).unwrap_or(&none)).with_context(|| format!("{subscriber}: {report}"))?;
            duplicates += report.duplicate_count();
            latencies.extend(first.iter().filter_map(|(event, at)| Some(at.saturating_duration_since(*commits.get(event)?).as_millis())));
        }
        self.check_table()?;
        // The healthy ones alone are often served between two kills, which tests nothing new but their latency.
        if self.bad > 0 && self.storm.kills > 0 && self.held == 0 {
            bail!("nothing was held at any kill, so nothing was tested");
        }
        latencies.sort_unstable();
        let at = |part: f64| {
            // Far below 2^52.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let index = (latencies.len() as f64 * part) as usize;
            latencies.get(index.min(latencies.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        let latencies = Latencies { median: at(0.5), p99: at(0.99), longest: at(1.0) };
        let (healthy, kills, held) = (self.healthy.len(), self.storm.kills, self.held);
        Ok(Outcome { healthy, kills, held, duplicates, failed, latencies, took: start.elapsed() })
    }

    /// Exactly one row for each event, generation and subscriber.
    fn check_table(&mut self) -> Result<()> {
        let expected = self.storm.events * (self.healthy.len() + self.bad) as u64;
        let rows = self.stage.database.number("SELECT count(*) FROM outbox_deliveries")?;
        let distinct =
            "SELECT count(*) FROM (SELECT DISTINCT notification_id, emission_generation, subscriber_id FROM outbox_deliveries) AS d";
        let distinct = self.stage.database.number(distinct)?;
        let others = self.stage.database.number("SELECT count(*) FROM outbox_deliveries WHERE emission_generation <> 1")?;
        ensure!((rows, distinct, others) == (expected, expected, 0), "{rows} deliveries, {distinct} distinct, expected {expected}");
        let ended = self.stage.database.number("SELECT count(*) FROM outbox_deliveries WHERE state IN ('suppressed', 'quarantined')")?;
        ensure!(ended == 0, "{ended} deliveries ended without a reason to");
        let open = self.stage.database.number("SELECT count(*) FROM outbox WHERE status <> 'done'")?;
        ensure!(open == 0, "{open} events are not expanded");
        Ok(())
    }
}

/// One idempotency key for each event and subscriber, and for nothing else.
fn check_keys(subscriber: &str, requests: &[Request], keys: &mut BTreeMap<String, (String, Event)>) -> Result<()> {
    let mut by_event: HashMap<Event, &str> = HashMap::new();
    for request in requests {
        let event = Event::from_payload(&request.body)?;
        let first = *by_event.entry(event.clone()).or_insert(&request.id);
        ensure!(first == request.id, "{subscriber} had {event} as {first} and as {}", request.id);
        let owner = keys.entry(request.id.clone()).or_insert_with(|| (subscriber.to_owned(), event.clone()));
        ensure!(
            (owner.0.as_str(), &owner.1) == (subscriber, &event),
            "{} is the key of {owner:?} and of {event} to {subscriber}",
            request.id
        );
    }
    Ok(())
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).context("not hexadecimal")).collect()
}
