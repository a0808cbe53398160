//! One run: engines started on a table, watched until all rows are done, and ended.

use super::clear::{Cleared, Whose};
use super::destination::Destination;
use super::error::BenchError;
use super::left::Left;
use super::load::{AWAY, Producer};
use super::measured::{MeasuredPublisher, MeasuredStorage};
use super::model::{Cpu, Memory, Run, Second};
use super::native;
use super::own::Own;
use super::plan::{Plan, To};
use super::tally::{Sum, Tally};
use super::usage::{self, Used};
use super::{Progress, Stage};
use crate::app::{App, worker_name};
use crate::config::model::Relay;
use crate::ports::{Publisher, Storage};
use crate::relay::{self, Health, Lanes, Mode, Parts, Shutdown, Summary};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Between two samples.
const SECOND: Duration = Duration::from_secs(1);

/// Without progress for so long, the table is asked whether there is anything left: an answer that was lost is not counted.
const QUIET: Duration = Duration::from_secs(5);

/// Over the longest time that a row may have to wait for its turn: without progress for so long, there will be none.
const GRACE: Duration = Duration::from_secs(60);

/// Without a verdict for so long there will be none: no lease, back-off or pause of the breaker lasts longer.
fn patience(relay: &Relay) -> Duration {
    relay.lease.max(relay.backoff.max).max(relay.breaker.max) + GRACE
}

/// A run that came to its end.
pub(super) struct Ended {
    pub(super) run: Run,
    /// The database server that it ran on: its kind and version.
    pub(super) server: Option<(String, String)>,
}

/// What came of a run. One that came to its end may be followed by an error: of the purge.
pub(super) struct Outcome {
    pub(super) ended: Option<Ended>,
    pub(super) error: Option<BenchError>,
    /// None: nothing was begun.
    pub(super) left: Option<Left>,
}

/// Who is told how far it is.
pub(super) type Tell<'a> = &'a (dyn Fn(Progress) + Send + Sync);

/// Makes one run. What is left in the table is told however it has ended, unless nothing was begun. A forced end ends it wherever it is.
pub(super) async fn run(plan: &Plan, side: char, stop: &Shutdown, tell: Tell<'_>) -> Outcome {
    let nothing = |error| Outcome { ended: None, error: Some(error), left: None };
    let producer = match unless_forced(Producer::open(plan), stop).await {
        Ok(producer) => producer,
        Err(error) => return nothing(error),
    };
    let ended = unless_forced(prepared(plan, &producer, side, stop, tell), stop).await;
    let mut left = Left {
        config: plan.config.file.clone(),
        storage: plan.storage.name.clone(),
        relay: plan.relay.name.clone(),
        delivered: false,
        dead: producer.own().dead(),
        // After a write whose answer was lost, there are more than are known of.
        pending: (ended.is_ok() || !producer.has_begun()).then_some(0),
        refused: producer.own().take_refused(),
    };
    let looking_after = async {
        if producer.make_pending(&left.refused).await {
            left.refused.clear();
        }
        if left.pending.is_none() {
            let cleared = clear(&producer, side, stop, tell).await;
            left.pending = cleared.as_ref().map(|cleared| cleared.left);
            left.refused.extend(cleared.into_iter().flat_map(|cleared| cleared.refused));
        }
        let purged = if ended.is_ok() && plan.purge {
            producer.purge(&stop.graceful, &|done| tell(Progress { stage: Stage::Purging, side, done, ..Progress::default() })).await
        } else {
            Ok(())
        };
        // If it does not answer, it has said so elsewhere.
        left.delivered = producer.keeps_delivered().await.unwrap_or(false);
        purged
    };
    let looked_after = unless_forced(looking_after, stop).await;
    let (ended, error) = match ended {
        Ok(ended) => (Some(ended), looked_after.err()),
        Err(error) => (None, Some(error)),
    };
    Outcome { ended, error, left: Some(left) }
}

/// Until the end is forced: then nothing is waited for.
async fn unless_forced<T>(work: impl Future<Output = Result<T, BenchError>>, stop: &Shutdown) -> Result<T, BenchError> {
    tokio::select! {
        biased;
        () = stop.forced.cancelled() => Err(BenchError::Interrupted),
        ended = work => ended,
    }
}

async fn prepared(plan: &Plan, producer: &Producer, side: char, stop: &Shutdown, tell: Tell<'_>) -> Result<Ended, BenchError> {
    let server = producer.server().await?;
    let destination = match plan.destination {
        Some(answers) => Some(Destination::start(answers).await.map_err(BenchError::Destination)?),
        None => None,
    };
    let plan = destination.as_ref().map_or_else(|| plan.clone(), |destination| plan.sending_to(destination.address()));
    let run = measure(&plan, producer, side, stop, tell).await?;
    Ok(Ended { run, server })
}

/// Removes the rows of a run that has ended early. None: how many are left is not known.
async fn clear(producer: &Producer, side: char, stop: &Shutdown, tell: Tell<'_>) -> Option<Cleared> {
    // The next signal ends this too.
    let until = if stop.graceful.is_cancelled() { &stop.forced } else { &stop.graceful };
    let mut cleared = Cleared::default();
    let clearing = producer.clearing(Whose::Known(producer.own()));
    let ended = clearing.run(&mut cleared, until, |cleared| tell(Progress { side, ..cleared.into() })).await;
    ended.is_ok().then_some(cleared)
}

async fn measure(plan: &Plan, producer: &Producer, side: char, stop: &Shutdown, tell: Tell<'_>) -> Result<Run, BenchError> {
    let tally = Arc::new(Tally::new(plan.rate.is_some())?);
    // First: what cannot be opened is known before a row is written.
    let mut hosts = Vec::new();
    for _ in 0..plan.hosts {
        hosts.push(Host::open(plan, &tally, producer.own()).await?);
    }
    if plan.rate.is_none() {
        let telling = async {
            let mut ticks = tokio::time::interval(SECOND);
            loop {
                ticks.tick().await;
                tell(Progress { side, done: producer.written(), rows: plan.count, ..Progress::default() });
            }
        };
        tokio::select! {
            filled = producer.fill(&tally, &stop.graceful) => filled?,
            () = telling => {}
        }
    }
    let watched = Watched { plan, producer, tally: &tally, side, tell };
    let before = Used::now();
    let start_bytes = usage::memory().0;
    let series = watched.until_done(hosts, stop).await?;
    let (user_seconds, system_seconds) = Used::now().since(&before);
    let (end_bytes, most_bytes) = usage::memory();
    // The kernel notes the most now and then only.
    let seen = series.iter().map(|second| second.resident_bytes).chain([start_bytes, end_bytes, most_bytes]);
    let Sum { done, retried, took, calls, latency, from_due, wrote } = tally.sum();
    let delivered = count(done.delivered);
    Ok(Run {
        side,
        settings: plan.settings().clone(),
        delivered: done.delivered,
        retried,
        dead: done.dead,
        unaccounted: producer.own().open().1,
        seconds: took.as_secs_f64(),
        per_second: if took.is_zero() { 0.0 } else { delivered / took.as_secs_f64() },
        latency,
        latency_from_due: from_due,
        achieved_rate: plan.rate.map(|_| count(plan.count) / wrote.as_secs_f64()),
        cpu: Cpu {
            user_seconds,
            system_seconds,
            us_per_message: (done.delivered > 0).then(|| (user_seconds + system_seconds) * 1e6 / delivered),
        },
        memory: Memory {
            start_bytes,
            middle_bytes: series.get(series.len() / 2).map_or(start_bytes, |second| second.resident_bytes),
            end_bytes,
            peak_bytes: seen.max().unwrap_or(0),
        },
        calls,
        series,
    })
}

/// Exact up to 2^52.
fn count(number: u64) -> f64 {
    number as f64
}

/// An engine with its adapters, opened over databases of its own.
struct Host {
    app: App,
    storage: Arc<dyn Storage>,
    publisher: Arc<dyn Publisher>,
    health: Arc<Health>,
}

impl Host {
    async fn open(plan: &Plan, tally: &Arc<Tally>, own: &Arc<Own>) -> Result<Self, BenchError> {
        let app = App::new(plan.config.clone())?;
        let inner: Arc<dyn Storage> = match plan.native {
            false => app.storage(&plan.storage).await?,
            true => match native::storage(&plan.storage, app.databases()).await {
                Some(opened) => opened.map_err(|failure| BenchError::Native { storage: plan.storage.name.clone(), failure })?,
                None => {
                    let section = format!("storages.{}", plan.storage.name);
                    return Err(BenchError::NoNative { section, plugin: plan.storage.plugin.clone() });
                }
            },
        };
        let storage = Arc::new(MeasuredStorage { inner, tally: Arc::clone(tally), own: Arc::clone(own) });
        let inner: Arc<dyn Publisher> = match &plan.to {
            To::Nowhere(..) => Arc::new(native::NullPublisher),
            To::Publisher(publisher) => app.publisher(publisher).await?,
        };
        let publisher = Arc::new(MeasuredPublisher { inner, tally: Arc::clone(tally) });
        Ok(Self { app, storage, publisher, health: Arc::default() })
    }

    /// Runs until it is asked to end.
    fn run(self, plan: &Plan, shutdown: Shutdown) -> impl Future<Output = Result<Summary, BenchError>> + Send + use<> {
        let Self { app, storage, publisher, health } = self;
        let (lanes, batch, batch_bytes) = plan.to.calls();
        let wake = Arc::new(Notify::new());
        // Rows that come while it runs are what there is to wake for.
        let source = plan.rate.map(|_| storage.description().wake).unwrap_or_default();
        let watch = app.wake(&plan.relay, &plan.storage, &source, &wake);
        let name = plan.relay.name.clone();
        let parts = Parts {
            config: plan.relay.clone(),
            storage,
            publishers: BTreeMap::from([(plan.to.name().to_owned(), Lanes { publisher, lanes, batch, batch_bytes })]),
            metrics: app.metrics.clone(),
            worker: worker_name(),
            wake,
            mode: Mode::Run,
            health,
            feeder: None,
            half: None,
        };
        async move {
            let (_app, _watch) = (app, watch);
            relay::run(parts, shutdown).await.map_err(|failure| BenchError::Ended { relay: name, reason: failure.to_string() })
        }
    }
}

/// A run under way.
struct Watched<'a> {
    plan: &'a Plan,
    producer: &'a Producer,
    tally: &'a Tally,
    side: char,
    tell: Tell<'a>,
}

impl Watched<'_> {
    /// Runs the engines until all rows are done, and ends them.
    async fn until_done(&self, hosts: Vec<Host>, stop: &Shutdown) -> Result<Vec<Second>, BenchError> {
        let begun = Instant::now();
        let shutdown = Shutdown { graceful: stop.graceful.child_token(), forced: stop.forced.child_token() };
        let health: Vec<Arc<Health>> = hosts.iter().map(|host| Arc::clone(&host.health)).collect();
        let mut running = JoinSet::new();
        for host in hosts {
            running.spawn(host.run(self.plan, shutdown.clone()));
        }
        let mut series = Series { begun, delivered: 0, seconds: Vec::new() };
        let enough = CancellationToken::new();
        let ended = {
            let (flowing, mut flows) = (self.flow(&enough), true);
            tokio::pin!(flowing);
            let ended = tokio::select! {
                // First: an engine that has nothing to do ends at the same signal.
                biased;
                () = stop.graceful.cancelled() => Err(BenchError::Interrupted),
                ended = self.watch(&mut series, &health) => ended,
                error = &mut flowing => {
                    flows = false;
                    Err(error)
                }
                Some(ended) = running.join_next() => Err(self.ended_early(ended)),
            };
            // What is being written is written to its end, or nobody knew whether it was.
            enough.cancel();
            if flows {
                tokio::select! {
                    _ = flowing => {}
                    () = stop.forced.cancelled() => {}
                }
            }
            ended
        };
        shutdown.graceful.cancel();
        while running.join_next().await.is_some() {}
        ended?;
        // What the last settle has brought.
        series.take(self.tally, self.producer.written());
        Ok(series.seconds)
    }

    /// Writes a steady load. Never ends but by an error, or when it is enough.
    async fn flow(&self, enough: &CancellationToken) -> BenchError {
        if let Some(rate) = self.plan.rate
            && let Err(error) = self.producer.flow(rate, self.tally, enough).await
        {
            return error;
        }
        enough.cancelled().await;
        BenchError::Interrupted
    }

    fn ended_early(&self, ended: Result<Result<Summary, BenchError>, tokio::task::JoinError>) -> BenchError {
        let reason = match ended {
            Ok(Err(error)) => return error,
            Ok(Ok(_)) => "nobody had asked it to".to_owned(),
            Err(error) => format!("a fault in outhaul itself: {error}"),
        };
        BenchError::Ended { relay: self.plan.relay.name.clone(), reason }
    }

    /// Takes a sample a second, until all rows are done or will never be.
    async fn watch(&self, series: &mut Series, health: &[Arc<Health>]) -> Result<(), BenchError> {
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + SECOND, SECOND);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let patience = patience(&self.plan.relay);
        let (mut before, mut progress, mut well) = ((0, 0), Instant::now(), Instant::now());
        loop {
            tokio::select! {
                () = self.tally.news.notified() => {
                    if self.tally.has_foreign() {
                        return Err(BenchError::Foreign { storage: self.plan.storage.name.clone() });
                    }
                    if self.tally.is_complete() {
                        return Ok(());
                    }
                    continue;
                }
                _ = ticks.tick() => {}
            }
            let written = self.producer.written();
            let second = series.take(self.tally, written);
            let done = self.tally.done().rows();
            let per_second = second.delivered;
            (self.tell)(Progress {
                stage: Stage::Running,
                side: self.side,
                done,
                rows: self.plan.count,
                per_second,
                ..Progress::default()
            });
            // A try that failed is progress, too: its row may have many of them before it ends.
            let settled = (done, self.tally.retries());
            if settled != before {
                (before, progress) = (settled, Instant::now());
            }
            let errors: Vec<String> = health.iter().filter_map(|health| health.storage_error()).collect();
            match errors.into_iter().next() {
                None => well = Instant::now(),
                Some(reason) if well.elapsed() > AWAY => {
                    return Err(BenchError::Ended { relay: self.plan.relay.name.clone(), reason });
                }
                Some(_) => {}
            }
            let since = progress.elapsed();
            // Where it cannot be asked, it is away: see above.
            if written == self.plan.count && since > QUIET && matches!(self.producer.pending().await, Ok(0)) {
                return match self.producer.own().open() {
                    (0, _) => Ok(()),
                    (rows, _) => Err(BenchError::Elsewhere { storage: self.plan.storage.name.clone(), rows, written }),
                };
            }
            if written > done && since > patience {
                return Err(BenchError::Stalled { since: Duration::from_secs(since.as_secs()), done, rows: written });
            }
        }
    }
}

/// The samples of a run.
struct Series {
    begun: Instant,
    /// Delivered until the last one.
    delivered: u64,
    seconds: Vec<Second>,
}

impl Series {
    fn take(&mut self, tally: &Tally, written: u64) -> Second {
        let lately = tally.lately();
        let second = Second {
            at_seconds: self.begun.elapsed().as_secs_f64(),
            delivered: lately.done.delivered.saturating_sub(self.delivered),
            backlog: written.saturating_sub(lately.done.rows()),
            claim_p50_us: lately.claim_p50_us,
            latency_p99_ms: lately.latency_p99_ms,
            resident_bytes: usage::memory().0,
        };
        self.delivered = lately.done.delivered;
        self.seconds.push(second);
        second
    }
}
