//! Instances of one adapter: made, opened, called, thrown away. One Store an instance, reused from call to call; after a trap, a
//! time-out or a dropped call it is never used again, and the next call makes and opens a fresh one.

use super::bindings::outbox;
use super::call::{Ended, Gate};
use super::convert;
use super::engine::TICK;
use super::limits;
use super::state::{Reports, Shared, State};
use crate::domain::{Failure, FailureCode};
use crate::metrics::{AdapterLabels, CallLabels, Metrics};
use crate::ports::LeaseEnd;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use wasmtime::Store;
use wasmtime::component::{Instance as WasmInstance, InstancePre};

pub(super) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Handles that one instance may hold (requests, streams, transactions): a batch of requests at once needs a few thousand.
const MAX_HANDLES: usize = 100_000;

/// What an adapter exports, looked up in an instance, and how it is opened.
pub(super) trait World: Send + Sync + 'static {
    /// The exports of one instance.
    type Exports: Send + Sync + 'static;
    /// What opening returns.
    type Opened: Send + 'static;

    /// What the relay calls, by the names under which calls are counted.
    fn calls(&self) -> Vec<&'static str>;

    /// Looks the exports up.
    fn load(&self, store: &mut Store<State>, instance: &WasmInstance) -> wasmtime::Result<Self::Exports>;

    /// Calls `open`.
    fn open<'a>(
        exports: &'a Self::Exports,
        store: &'a mut Store<State>,
        config: &'a str,
    ) -> BoxFuture<'a, wasmtime::Result<Result<Self::Opened, outbox::Failure>>>;
}

/// An adapter that is loaded and linked.
pub(super) struct Adapter<W: World> {
    world: W,
    shared: Arc<Shared>,
    pre: InstancePre<State>,
    /// The configuration as JSON.
    config: String,
    metrics: Metrics,
    idle: Mutex<Vec<Opened<W>>>,
    permits: Semaphore,
}

struct Opened<W: World> {
    store: Store<State>,
    exports: W::Exports,
    /// The call that it has served last.
    last: &'static str,
}

/// One call of an export.
pub(super) struct Call {
    /// The export's name.
    pub(super) name: &'static str,
    /// How long it may take, the wait for a free instance included.
    pub(super) limit: Duration,
    /// Given up by the caller.
    pub(super) cancel: CancellationToken,
    /// Up to when messages may be sent, for `publish`.
    pub(super) lease: Option<Arc<LeaseEnd>>,
    /// Where early outcomes go, for `publish`.
    pub(super) reports: Option<Reports>,
}

impl Call {
    pub(super) fn of(name: &'static str, limit: Duration) -> Self {
        Self { name, limit, cancel: CancellationToken::new(), lease: None, reports: None }
    }
}

/// Counts an instance as lost, unless its call ended well: also where the call's future is dropped.
struct Loss<'a, W: World> {
    adapter: &'a Adapter<W>,
    averted: bool,
}

impl<W: World> Drop for Loss<'_, W> {
    fn drop(&mut self) {
        if !self.averted {
            let labels = AdapterLabels { adapter: self.adapter.shared.identity.name.clone() };
            self.adapter.metrics.adapter_restarts.get_or_create(&labels).inc();
        }
    }
}

impl<W: World> Adapter<W> {
    /// An adapter of at most `instances` instances; none is made yet.
    pub(super) fn new(world: W, shared: Arc<Shared>, pre: InstancePre<State>, config: String, metrics: Metrics, instances: usize) -> Self {
        let permits = Semaphore::new(instances.clamp(1, Semaphore::MAX_PERMITS));
        Self { world, shared, pre, config, metrics, idle: Mutex::default(), permits }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Makes and opens the first instance, and says what opening returned.
    pub(super) async fn start(&self) -> Result<W::Opened, Failure> {
        self.count_from_zero();
        let gate = Gate::new(self.shared.limits.call_timeout, CancellationToken::new());
        let (opened, description) = self.make(&gate).await?;
        self.keep(opened);
        Ok(description)
    }

    /// Calls an export of a free instance, made afresh if there is none.
    pub(super) async fn call<R, F>(&self, call: Call, run: F) -> Result<R, Failure>
    where
        R: Send,
        F: for<'a> FnOnce(&'a W::Exports, &'a mut Store<State>) -> BoxFuture<'a, wasmtime::Result<R>> + Send,
    {
        let mut gate = Gate::new(call.limit, call.cancel);
        if let Some(lease) = call.lease {
            gate = gate.under(lease);
        }
        // Held until the end; the semaphore is never closed.
        let _permit = gate.run(self.permits.acquire()).await.map_err(|ended| {
            self.shared.failure(
                FailureCode::not_started(),
                call.name,
                &format!("did not start: {ended} while every instance was busy"),
                None,
            )
        })?;
        let mut opened = match self.free(call.name) {
            Some(opened) => opened,
            None => self.make(&gate).await?.0,
        };
        opened.last = call.name;
        let mut loss = Loss { adapter: self, averted: false };
        opened.store.data_mut().begin(gate.clone(), call.reports);
        self.count(call.name);
        // The deadline counts in ticks from the engine's epoch, which has moved on since the last call.
        opened.store.set_epoch_deadline(1);
        let ended = gate.run(run(&opened.exports, &mut opened.store)).await;
        let result = self.judge(call.name, ended, opened.store.data())?;
        loss.averted = true;
        self.keep(opened);
        Ok(result)
    }

    /// A free instance, rather one that has served the same call last: what it remembers is of use to the next one, as where a claim has
    /// found rows.
    fn free(&self, call: &'static str) -> Option<Opened<W>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        match idle.iter().rposition(|opened| opened.last == call) {
            Some(index) => Some(idle.remove(index)),
            None => idle.pop(),
        }
    }

    fn keep(&self, mut opened: Opened<W>) {
        opened.store.data_mut().end();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(opened);
    }

    async fn make(&self, gate: &Gate) -> Result<(Opened<W>, W::Opened), Failure> {
        let mut store = Store::new(self.pre.engine(), State::new(Arc::clone(&self.shared)));
        store.limiter(|state| &mut state.limits);
        store.set_hostcall_fuel(self.shared.limits.returned_bytes);
        store.set_max_component_handles(MAX_HANDLES);
        // A guest that computes gives way at every tick, and is dropped by `Gate::run` when its time is over.
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        store.data_mut().begin(gate.clone(), None);
        self.count("open");
        let made = gate
            .run(async {
                let instance = self.pre.instantiate_async(&mut store).await?;
                self.world.load(&mut store, &instance)
            })
            .await;
        let exports = self.judge("instantiation", made, store.data())?;
        let answer = gate.run(W::open(&exports, &mut store, &self.config)).await;
        match self.judge("open", answer, store.data())? {
            Ok(description) => Ok((Opened { store, exports, last: "open" }, description)),
            Err(failure) => Err(self.shared.guest_failure("open", failure, store.data())),
        }
    }

    /// Shows the series of faults and restarts before there are any: `increase()` does not see the first step of a series that
    /// begins with it.
    fn count_from_zero(&self) {
        for call in ["instantiation", "open"].into_iter().chain(self.world.calls()) {
            self.metrics.adapter_faults.get_or_create(&self.labels(call)).inc_by(0);
        }
        let labels = AdapterLabels { adapter: self.shared.identity.name.clone() };
        self.metrics.adapter_restarts.get_or_create(&labels).inc_by(0);
    }

    fn count(&self, call: &'static str) {
        self.metrics.adapter_calls.get_or_create(&self.labels(call)).inc();
    }

    fn labels(&self, call: &'static str) -> CallLabels {
        CallLabels { adapter: self.shared.identity.name.clone(), call: call.to_owned() }
    }

    /// What came of running guest code. After an error its store must not be used again.
    fn judge<R>(&self, call: &'static str, ended: Result<wasmtime::Result<R>, Ended>, state: &State) -> Result<R, Failure> {
        let (code, text) = match ended {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => {
                tracing::debug!(adapter = self.shared.identity.name, "{call}: {error:?}");
                (FailureCode::trapped(), limits::describe(&error, &self.shared.limits))
            }
            Err(ended) => (FailureCode::Timeout, format!("was ended: {ended}")),
        };
        self.metrics.adapter_faults.get_or_create(&self.labels(call)).inc();
        Err(self.shared.failure(code, call, &text, Some(state)))
    }

    /// A failure because the guest answered nonsense: the answer is thrown away, nothing of it is used.
    pub(super) fn nonsense(&self, call: &'static str, text: &str) -> Failure {
        self.metrics.adapter_faults.get_or_create(&self.labels(call)).inc();
        self.shared.failure(FailureCode::adapter_fault(), call, text, None)
    }

    /// [`Adapter::call`] for exports that return a failure of their own.
    pub(super) async fn try_call<R, F>(&self, call: Call, run: F) -> Result<R, Failure>
    where
        R: Send + 'static,
        F: for<'a> FnOnce(&'a W::Exports, &'a mut Store<State>) -> BoxFuture<'a, wasmtime::Result<Result<R, outbox::Failure>>>
            + Send
            + 'static,
    {
        let (name, shared) = (call.name, Arc::clone(&self.shared));
        self.call(call, move |exports, store| {
            Box::pin(async move {
                Ok(match run(exports, &mut *store).await? {
                    Ok(value) => Ok(value),
                    Err(failure) => Err(shared.guest_failure(name, failure, store.data())),
                })
            })
        })
        .await?
    }
}

impl Shared {
    /// A failure that names the adapter, the call and what the host knows besides.
    fn failure(&self, code: FailureCode, call: &str, text: &str, state: Option<&State>) -> Failure {
        let mut text = format!("{}: {call} {text}", self.identity);
        if let Some(state) = state {
            state.finish_output();
            if let Some(notes) = state.notes.text() {
                text.push_str(&format!("; {notes}"));
            }
            let lines = state.tail.take();
            if !lines.is_empty() {
                text.push_str(&format!("; stderr: {}", lines.join(" | ")));
            }
        }
        Failure::new(code, text)
    }

    /// A failure that the guest itself returned, with its name and what the host refused in the call.
    fn guest_failure(&self, call: &str, failure: outbox::Failure, state: &State) -> Failure {
        let failure = convert::failure_noted(failure, &state.notes);
        let named = Failure::new(failure.code, format!("{}: {call}: {}", self.identity, failure.detail));
        Failure { retry_after: failure.retry_after, ..named }
    }
}

/// The ticker must be finer than any limit that an operator would set.
const _: () = assert!(TICK.as_millis() <= 100);
