//! Routers that are components: the port [`Router`] over the world `router-adapter`.

use super::Generation;
use super::bindings::router_export::{Guest, GuestIndices};
use super::bindings::{outbox, sql};
use super::convert;
use super::instance::{Adapter, BoxFuture, Call, World};
use super::state::State;
use crate::domain::{Batch, Column, Failure};
use crate::ports::fan_out::{Inquiry, Router, Subscription};
use async_trait::async_trait;
use std::time::Duration;
use wasmtime::Store;
use wasmtime::component::{HasSelf, Instance, InstancePre, Linker};

/// Instances of one router: expansion asks with one call at a time, and deliveries ask beside it.
pub(super) const INSTANCES: usize = 4;

/// The exports of the world.
pub(super) struct RouterWorld(GuestIndices);

impl RouterWorld {
    pub(super) fn of(pre: &InstancePre<State>) -> wasmtime::Result<Self> {
        Ok(Self(GuestIndices::new(pre)?))
    }

    /// What the host offers to routers besides what every adapter gets.
    pub(super) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
        sql::add_to_linker::<State, HasSelf<State>>(linker, |state| state)
    }
}

impl World for RouterWorld {
    type Exports = Guest;
    type Opened = ();

    fn calls(&self) -> Vec<&'static str> {
        vec!["expand", "current"]
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

/// A router that runs in the sandbox.
pub struct RouterPlugin {
    adapter: Adapter<RouterWorld>,
    generation: Generation,
}

impl RouterPlugin {
    pub(super) fn new(adapter: Adapter<RouterWorld>, generation: Generation) -> Self {
        Self { adapter, generation }
    }

    /// Which component it is.
    #[must_use]
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    fn call(&self, name: &'static str, deadline: Duration) -> Call {
        Call::of(name, deadline.min(self.adapter.shared().limits.call_timeout))
    }

    /// As many answers as questions, or nothing of them is used.
    fn counted<T>(&self, call: &'static str, answers: Vec<T>, questions: usize, what: &str) -> Result<Vec<T>, Failure> {
        if answers.len() == questions {
            return Ok(answers);
        }
        Err(self.adapter.nonsense(call, &format!("returned {} answers for {questions} {what}", answers.len())))
    }
}

impl std::fmt::Debug for RouterPlugin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "RouterPlugin({})", self.adapter.shared().identity)
    }
}

/// What subscriptions hold is looked at by whoever asked: built-in routers can be as wrong.
#[async_trait]
impl Router for RouterPlugin {
    async fn expand(
        &self,
        events: &Batch,
        tenants: &[String],
        deadline: Duration,
    ) -> Result<Vec<Result<Vec<Subscription>, Failure>>, Failure> {
        let questions = events.len();
        let (events, tenants) = (convert::batch_out(events.clone()), convert::column_out(Column::of_texts(tenants)));
        let answers = self
            .adapter
            .call(self.call("expand", deadline), move |exports, store| {
                Box::pin(async move {
                    let answers = exports.call_expand(&mut *store, &events, &tenants).await?;
                    let notes = &store.data().notes;
                    let answer = |answer: Result<Vec<_>, _>| match answer {
                        Ok(subscriptions) => Ok(subscriptions.into_iter().map(convert::subscription_in).collect::<Vec<_>>()),
                        Err(failure) => Err(convert::failure_noted(failure, notes)),
                    };
                    Ok(answers.into_iter().map(answer).collect::<Vec<_>>())
                })
            })
            .await?;
        self.counted("expand", answers, questions, "events")
    }

    async fn current(&self, inquiries: &[Inquiry], deadline: Duration) -> Result<Vec<Result<Option<Subscription>, Failure>>, Failure> {
        let questions = inquiries.len();
        let inquiries: Vec<_> = inquiries.iter().map(convert::inquiry_out).collect();
        let answers = self
            .adapter
            .call(self.call("current", deadline), move |exports, store| {
                Box::pin(async move {
                    let answers = exports.call_current(&mut *store, &inquiries).await?;
                    let notes = &store.data().notes;
                    let answer = |answer: Result<Option<_>, _>| match answer {
                        Ok(subscription) => Ok(subscription.map(convert::subscription_in)),
                        Err(failure) => Err(convert::failure_noted(failure, notes)),
                    };
                    Ok(answers.into_iter().map(answer).collect::<Vec<_>>())
                })
            })
            .await?;
        self.counted("current", answers, questions, "inquiries")
    }
}
