//! The long run with many hosts: PostgreSQL to a cluster of Kafka, while hosts and brokers are killed in turn.
//!
//! What must hold in the end is in [`crate::ledger`], applied to what a consumer reads that is not the project's. In Kafka's terms:
//!
//! - All records of a key are in one partition, and the order of a partition is the order of its offsets.
//! - An **inversion** is a record that is the first of its event while a later event of its key has a smaller offset. With the events
//!   1 to 4 of a key, `1 2 3 1 2 3 4` has none: the second `1 2 3` is a replay after a crash, a consumer that remembers what it has
//!   seen skips it, and each event's first record comes after those of all events before it. `1 3 2` has one, and so has `1 3 1 2 3`:
//!   whoever has seen 3 would take 2 for old.
//! - **Duplicates** are records of an event beyond its first. A host that is killed leaves what it had sent and not settled; a broker
//!   that is killed leaves what it had stored and not confirmed. They are counted; how many rows a killed host held, too.
//!
//! Only one broker is down at a time, and the next is killed when the last one has caught up: with `min.insync.replicas=2` of three
//! replicas a second loss would stop the topic, which is another test.

use crate::host::{Host, log_field};
use crate::kafka::Reader;
use crate::ledger::{Event, Report};
use crate::postgres::{Outbox, Persistent};
use crate::rig::{Config, Rig};
use anyhow::{Context, Result, bail};
use outhaul_services::{Cluster, ClusterOptions, Database, Major, Postgres};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The topic of the run.
const TOPIC: &str = "events";

/// Its partitions.
const PARTITIONS: i32 = 12;

/// Events of one transaction.
const TRANSACTION: u64 = 200;

/// Producers wait while more rows than this are pending, so that the hosts work from the first second to the last, and on a table of
/// a size that is found in earnest.
const MOST_PENDING: usize = 40_000;

/// Who writes: each has keys of its own, so that the order of a key is the order of its transactions.
const PRODUCERS: u64 = 2;

/// How long nothing may move before the run fails: brokers start slowly on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(180);

/// What to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many hosts share the table.
    pub hosts: usize,
    /// How many events are written.
    pub events: u64,
    /// Over how many keys.
    pub keys: u64,
    /// For every choice.
    pub seed: u64,
    /// Pause between two disturbances: from half of it to twice as long.
    pub pause: Duration,
    /// Pause of each producer between two transactions: none in a long run; in a short one so much that it lasts for some disturbances.
    pub pace: Duration,
}

/// What happened, and what came of it.
#[derive(Debug)]
pub struct Summary {
    plan: Plan,
    hosts_killed: u32,
    brokers_killed: u32,
    held: usize,
    report: Report,
    delivering: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.delivering.as_secs_f64();
        let rate = f64::from(u32::try_from(self.plan.events).unwrap_or(u32::MAX)) / seconds;
        write!(
            formatter,
            "seed {}: {} hosts, {} keys; killed {} hosts and {} brokers in {seconds:.0} s ({rate:.0} events a second): {}; the killed hosts \
             held {} rows",
            self.plan.seed, self.plan.hosts, self.plan.keys, self.hosts_killed, self.brokers_killed, self.report, self.held
        )
    }
}

/// Writes, disturbs, reads back. None if PostgreSQL or Kafka cannot be had.
///
/// # Errors
/// If a promise was broken, or nothing was disturbed.
pub fn run(plan: Plan, mut progress: impl FnMut(String)) -> Result<Option<Summary>> {
    let options =
        ClusterOptions { brokers: 3, heap: 384, settings: vec![("min.insync.replicas".into(), "2".into())], ..ClusterOptions::default() };
    let started = Postgres::start(Major::V17).and_then(|server| Ok((server, Cluster::start(options)?)));
    let Some((server, mut cluster)) = outhaul_services::or_skip(started) else { return Ok(None) };
    cluster.create_topic(TOPIC, PARTITIONS)?;
    let database = server.create_database()?;
    let rig = Rig::new(&configuration(&cluster, &database)?)?;
    // Compiles the components into the shared cache: a host that is killed while it compiles never gets to work.
    rig.run(&["check"])?.success()?;

    let start = Instant::now();
    let written = Arc::new(AtomicU64::new(0));
    let producers: Vec<_> = (0..PRODUCERS).map(|index| producer(&plan, index, database.url(), Arc::clone(&written))).collect();
    let mut field = Field {
        hosts: (0..plan.hosts).map(|_| rig.host()).collect::<Result<_>>()?,
        random: StdRng::seed_from_u64(plan.seed.rotate_left(32)),
        observer: Outbox::of(&database)?,
        rig,
        written,
        start,
        hosts_killed: 0,
        brokers_killed: 0,
        held: 0,
    };
    field.disturb(&plan, &mut cluster, &mut progress)?;
    let mut committed = BTreeSet::new();
    for producer in producers {
        committed.extend(producer.join().map_err(|_| anyhow::anyhow!("a producer panicked"))??);
    }
    field.settle(&mut progress)?;
    let delivering = start.elapsed();
    for host in std::mem::take(&mut field.hosts) {
        host.shut_down()?;
    }
    progress("everything is settled; reading it back".into());
    let report = Report::new(&committed, &accepted(&Reader::new(&cluster.bootstrap())?)?);
    let (hosts_killed, brokers_killed, held) = (field.hosts_killed, field.brokers_killed, field.held);
    let summary = Summary { plan, hosts_killed, brokers_killed, held, report, delivering };
    // Duplicates are counted and not judged: a killed broker says of no record whether it was stored.
    let allowed: BTreeMap<Event, usize> = summary.report.duplicates.clone();
    summary.report.check(&allowed).with_context(|| format!("broken promise: {summary}"))?;
    if summary.hosts_killed == 0 || summary.brokers_killed == 0 {
        bail!("nothing was killed before the end, so nothing was tested: {summary}");
    }
    Ok(Some(summary))
}

fn configuration(cluster: &Cluster, database: &Database) -> Result<Config> {
    Ok(Config::to_kafka(cluster)?.on_postgres(&database.url()).set("storages.outbox.limits.call_timeout", "3s").set_all(
        "relays.0",
        r#"
        lease = "5s"
        publish_timeout = "3s"
        max_attempts = 0
        poll = { min = "5ms", max = "200ms" }
        "#,
    ))
}

/// Writes its share of the events, in transactions of several, over keys of its own.
fn producer(plan: &Plan, index: u64, url: String, written: Arc<AtomicU64>) -> JoinHandle<Result<BTreeSet<Event>>> {
    let share = |total: u64| total / PRODUCERS + u64::from(index < total % PRODUCERS);
    let (keys, mut left) = (share(plan.keys).max(1), share(plan.events));
    let mut random = StdRng::seed_from_u64(plan.seed.wrapping_add(index));
    let pace = plan.pace;
    std::thread::spawn(move || {
        let mut database = Persistent::new(url.clone());
        let mut observer = Outbox::connect(&url)?;
        let mut numbers: HashMap<u64, u64> = HashMap::new();
        let mut committed = BTreeSet::new();
        while left > 0 {
            let mut events = Vec::new();
            for _ in 0..left.min(TRANSACTION) {
                let key = random.random_range(0..keys);
                let number = numbers.entry(key).or_default();
                *number += 1;
                events.push(Event { key: format!("p{index}-{key}"), number: *number });
            }
            database.add_events(TOPIC, &events)?;
            left -= u64::try_from(events.len())?;
            written.fetch_add(u64::try_from(events.len())?, Ordering::Relaxed);
            committed.extend(events);
            std::thread::sleep(pace);
            poll_slowly("the hosts to catch up", || Ok(observer.count("pending")? <= MOST_PENDING))?;
        }
        Ok(committed)
    })
}

/// Asks, and if it is not so, again after a while that is no load.
fn poll_slowly(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > end {
            bail!("waited in vain for {what}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

struct Field {
    rig: Rig,
    hosts: Vec<Host>,
    observer: Outbox,
    random: StdRng,
    written: Arc<AtomicU64>,
    start: Instant,
    hosts_killed: u32,
    brokers_killed: u32,
    held: usize,
}

impl Field {
    /// Kills a host, a broker, a host and so on, until everything is written.
    fn disturb(&mut self, plan: &Plan, cluster: &mut Cluster, progress: &mut impl FnMut(String)) -> Result<()> {
        loop {
            self.pause(plan, progress)?;
            self.kill_host()?;
            if self.is_written(plan) && self.brokers_killed > 0 {
                return Ok(());
            }
            self.pause(plan, progress)?;
            let broker = (0..cluster.brokers()).choose(&mut self.random).context("no brokers")?;
            cluster.kill(broker)?;
            self.brokers_killed += 1;
            self.pause(plan, progress)?;
            cluster.start_again(broker)?;
            poll_slowly("the broker to catch up", || Ok(cluster.is_in_sync(TOPIC).unwrap_or(false)))?;
            if self.is_written(plan) {
                return Ok(());
            }
        }
    }

    /// Says how far it is and lets time pass: a disturbance comes at any moment.
    fn pause(&mut self, plan: &Plan, progress: &mut impl FnMut(String)) -> Result<()> {
        progress(self.describe()?);
        std::thread::sleep(plan.pause.mul_f64(self.random.random_range(0.5..2.0)));
        for host in &mut self.hosts {
            if host.process().has_ended() {
                bail!("a host ended by itself:\n{}", host.log());
            }
        }
        Ok(())
    }

    fn is_written(&self, plan: &Plan) -> bool {
        self.written.load(Ordering::Relaxed) >= plan.events
    }

    fn kill_host(&mut self) -> Result<()> {
        let index = (0..self.hosts.len()).choose(&mut self.random).context("no hosts")?;
        let host = &mut self.hosts[index];
        let line = host.process().errors().wait_for_line("relay started")?;
        let worker = log_field(&line, "worker").with_context(|| format!("no worker id in {line}"))?;
        host.process().kill()?;
        // It goes on under `WORKER.1`, `WORKER.2` after leases have run out.
        let sql = "SELECT count(*) FROM outbox WHERE status = 'pending' AND (leased_by = $1 OR starts_with(leased_by, $1 || '.'))";
        let held: i64 = self.observer.client().query_one(sql, &[&worker])?.get(0);
        self.held += usize::try_from(held)?;
        self.hosts_killed += 1;
        self.hosts[index] = self.rig.host()?;
        Ok(())
    }

    fn describe(&mut self) -> Result<String> {
        Ok(format!(
            "{:>4.0} s: {:>8} events written, {:>6} pending; killed {} hosts (holding {} rows) and {} brokers",
            self.start.elapsed().as_secs_f64(),
            self.written.load(Ordering::Relaxed),
            self.observer.count("pending")?,
            self.hosts_killed,
            self.held,
            self.brokers_killed
        ))
    }

    /// Waits until no row is pending, for as long as they become fewer.
    fn settle(&mut self, progress: &mut impl FnMut(String)) -> Result<()> {
        let (mut fewest, mut since) = (usize::MAX, Instant::now());
        loop {
            let pending = self.observer.count("pending")?;
            if pending == 0 {
                return Ok(());
            }
            if pending < fewest {
                (fewest, since) = (pending, Instant::now());
            }
            if since.elapsed() > PATIENCE {
                let log = self.hosts.first().map(Host::log).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(20).collect();
                bail!("{pending} rows are pending and do not become fewer; the last lines of a host, latest first:\n{}", last.join("\n"));
            }
            progress(self.describe()?);
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

/// Every record's event, by partition in the order of offsets.
fn accepted(reader: &Reader) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    let mut homes: HashMap<String, i32> = HashMap::new();
    reader.visit(TOPIC, |record| {
        let event = Event::from_payload(record.payload.as_deref().context("a record without a payload")?)?;
        if record.key_text() != Some(&event.key) {
            bail!("{event} has the key {:?}", record.key_text());
        }
        let home = *homes.entry(event.key.clone()).or_insert(record.partition);
        if home != record.partition {
            bail!("{event} is in partition {}, others of its key in {home}", record.partition);
        }
        events.push(event);
        Ok(())
    })?;
    Ok(events)
}
