//! Publishers that are components: the port [`Publisher`] over the world `publisher-adapter`.

use super::Generation;
use super::bindings::publisher_export::{Guest, GuestIndices};
use super::bindings::{outbox, progress};
use super::convert;
use super::instance::{Adapter, BoxFuture, Call, World};
use super::state::{Reports, State};
use crate::domain::{Batch, Failure, Outcome};
use crate::ports::{PublishCall, Publisher};
use async_trait::async_trait;
use wasmtime::Store;
use wasmtime::component::{HasSelf, Instance, InstancePre, Linker};

/// The exports of the world.
pub(super) struct PublisherWorld(GuestIndices);

impl PublisherWorld {
    pub(super) fn of(pre: &InstancePre<State>) -> wasmtime::Result<Self> {
        Ok(Self(GuestIndices::new(pre)?))
    }

    /// What the host offers to publishers besides what every adapter gets.
    pub(super) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
        progress::add_to_linker::<State, HasSelf<State>>(linker, |state| state)
    }
}

impl World for PublisherWorld {
    type Exports = Guest;
    type Opened = ();

    fn calls(&self) -> Vec<&'static str> {
        vec!["publish"]
    }

    fn load(&self, store: &mut Store<State>, instance: &Instance) -> wasmtime::Result<Guest> {
        self.0.load(store, instance)
    }

    fn open<'a>(
        exports: &'a Guest,
        store: &'a mut Store<State>,
        config: &'a str,
    ) -> BoxFuture<'a, wasmtime::Result<Result<(), outbox::Failure>>> {
        Box::pin(async move { exports.call_open(store, config).await })
    }
}

/// A publisher that runs in the sandbox.
pub struct PublisherPlugin {
    adapter: Adapter<PublisherWorld>,
    generation: Generation,
}

impl PublisherPlugin {
    pub(super) fn new(adapter: Adapter<PublisherWorld>, generation: Generation) -> Self {
        Self { adapter, generation }
    }

    /// Which component it is.
    #[must_use]
    pub fn generation(&self) -> &Generation {
        &self.generation
    }
}

impl std::fmt::Debug for PublisherPlugin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "PublisherPlugin({})", self.adapter.shared().identity)
    }
}

#[async_trait]
impl Publisher for PublisherPlugin {
    async fn publish(&self, batch: Batch, call: PublishCall) -> Result<Vec<Outcome>, Failure> {
        let messages = batch.len();
        // What the host noted in a call names whatever was refused in it: of destinations, that is for the log, and not for the record of
        // a delivery, which may be another tenant's.
        let is_noted = batch.destinations.is_none();
        let deadline_ms = convert::millis(call.deadline);
        let batch = convert::batch_out(batch);
        let reports = Some(Reports::new(call.reports, messages, is_noted));
        let call = Call { name: "publish", limit: call.deadline, cancel: call.cancel, lease: Some(call.lease), reports };
        let outcomes = self
            .adapter
            .call(call, move |exports, store| {
                Box::pin(async move {
                    let outcomes = exports.call_publish(&mut *store, &batch, deadline_ms).await?;
                    let notes = is_noted.then_some(&store.data().notes);
                    Ok(outcomes.into_iter().map(|outcome| convert::outcome_in(outcome, notes)).collect::<Vec<_>>())
                })
            })
            .await?;
        if outcomes.len() != messages {
            let text = format!("returned {} outcomes for {messages} messages", outcomes.len());
            return Err(self.adapter.nonsense("publish", &text));
        }
        Ok(outcomes)
    }
}
