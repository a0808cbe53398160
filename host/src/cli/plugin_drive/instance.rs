//! One instance of a session: a task that does what is asked of it, one request after the other.
//!
//! Each is an adapter of its own, as each lane or process of a relay has one: two of them race as two processes would.

use super::request::{Browse, Call};
use super::{messages, router};
use crate::domain::{Batch, Failure, FailureCode, Outcome};
use crate::plugin::{PublisherPlugin, RouterPlugin, StoragePlugin};
use crate::ports::{Claimed, Description, LeaseEnd, PublishCall, Publisher, Storage, StorageAdmin, WakeSource, Workers};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// An adapter that is open.
#[derive(Clone)]
pub(super) enum Opened {
    Storage(Arc<StoragePlugin>),
    Publisher(Arc<PublisherPlugin>),
    Router(Arc<RouterPlugin>),
}

/// Opens adapters, each with the given keys of configuration besides those that all have.
pub(super) trait Opener: Send + Sync + 'static {
    /// Loads and opens one.
    fn open(&self, config: Map<String, Value>) -> impl Future<Output = Result<Opened, Failure>> + Send;
}

/// What is told of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Told {
    /// It went well.
    Fine(Value),
    /// The adapter, or the host in its place, says that it did not.
    Failed(Failure),
    /// The same of a publish call as a whole, with what was reported before.
    Broken(Failure, Value),
    /// It makes no sense here.
    Bad(String),
}

impl From<Result<Value, Failure>> for Told {
    fn from(result: Result<Value, Failure>) -> Self {
        result.map_or_else(Self::Failed, Self::Fine)
    }
}

/// Does one request; `instance` is what is open under its name.
pub(super) async fn perform(opener: &impl Opener, name: &str, instance: &mut Option<Opened>, call: Call) -> Told {
    match (call, &instance) {
        (Call::Open(_), Some(_)) => Told::Bad(format!("open: {name:?} is open already: close it, or name another instance")),
        (Call::Open(config), None) => match opener.open(config).await {
            Ok(opened) => {
                let described = describe(&opened);
                *instance = Some(opened);
                Told::Fine(described)
            }
            Err(failure) => Told::Failed(failure),
        },
        (Call::Close, _) => {
            let was_open = instance.take().is_some();
            Told::Fine(json!({ "was_open": was_open }))
        }
        (_, None) => Told::Bad(format!("{name:?} is not open: send {{\"call\": \"open\"}} first")),
        (Call::Publish(batch, deadline), Some(Opened::Publisher(publisher))) => publish(publisher.as_ref(), batch, deadline).await,
        (_, Some(Opened::Publisher(_))) => Told::Bad("the adapter is a publisher: it has the call publish only".to_owned()),
        (Call::Expand(events), Some(Opened::Router(router))) => router::expand(router, &events).await.into(),
        (Call::Current(inquiries), Some(Opened::Router(router))) => router::current(router, &inquiries).await.into(),
        (_, Some(Opened::Router(_))) => Told::Bad("the adapter is a router: it has the calls expand and current only".to_owned()),
        (Call::Publish(..), Some(Opened::Storage(_))) => Told::Bad("publish: the adapter is a storage".to_owned()),
        (Call::Expand(_) | Call::Current(_), Some(Opened::Storage(_))) => {
            Told::Bad("expand and current are a router's calls: the adapter is a storage".to_owned())
        }
        (Call::SettleAndClaim(..), Some(Opened::Storage(storage))) if !storage.has_fused() => {
            Told::Bad("settle_and_claim: the storage does not export storage-fused: call settle, then claim".to_owned())
        }
        (call, Some(Opened::Storage(storage))) if call.is_for_admin() && !storage.has_admin() => {
            Told::Bad("the storage does not export storage-admin: it has the calls claim, settle, extend and stats".to_owned())
        }
        (call, Some(Opened::Storage(storage))) => on_storage(storage, call).await.into(),
    }
}

fn describe(opened: &Opened) -> Value {
    match opened {
        Opened::Publisher(publisher) => json!({ "kind": "publisher", "sha256": publisher.generation().sha256 }),
        Opened::Router(router) => json!({ "kind": "router", "sha256": router.generation().sha256 }),
        Opened::Storage(storage) => {
            let Description { strict_order, fused, wake } = storage.description();
            let wake = match wake {
                WakeSource::None => Value::Null,
                WakeSource::DataVersion(database) => json!({ "data_version": database }),
                WakeSource::Notification { database, channel } => json!({ "notification": { "database": database, "channel": channel } }),
            };
            json!({
                "kind": "storage",
                "sha256": storage.generation().sha256,
                "strict_order": strict_order,
                "fused": storage.has_fused(),
                "prefers_fused": fused,
                "wake": wake,
                "admin": storage.has_admin(),
            })
        }
    }
}

async fn on_storage(storage: &StoragePlugin, call: Call) -> Result<Value, Failure> {
    Ok(match call {
        Call::Claim(request) => claimed(&storage.claim(&request).await?),
        Call::Settle(worker, settlements) => json!({ "lost": storage.settle(&worker, &settlements).await? }),
        Call::SettleAndClaim(settlements, request) => {
            let turn = storage.settle_and_claim(&settlements, &request).await?;
            json!({ "lost": turn.lost, "claimed": claimed(&turn.claimed) })
        }
        Call::Extend(worker, ids, lease) => json!({ "lost": storage.extend(&worker, &ids, lease).await? }),
        Call::Stats => json!(storage.stats().await?),
        Call::Schema => json!({ "sql": storage.schema().await? }),
        Call::CreateSchema => {
            storage.create_schema().await?;
            json!({})
        }
        Call::Enqueue(batch) => json!({ "ids": storage.enqueue(&batch).await? }),
        Call::Browse(Browse { filter, after, limit, with_messages }) => {
            let page = storage.browse(&filter, after.as_deref(), limit, with_messages).await?;
            json!({ "rows": page.rows, "messages": page.messages.as_ref().map(messages::list), "next": page.next })
        }
        Call::Requeue(filter) => json!({ "rows": storage.requeue(&filter).await? }),
        Call::Discard(filter) => json!({ "rows": storage.discard(&filter).await? }),
        Call::Purge(older_than, limit) => json!({ "rows": storage.purge(older_than, limit).await? }),
        // Told apart before.
        Call::Open(_) | Call::Close | Call::Publish(..) | Call::Expand(_) | Call::Current(_) => {
            return Err(Failure::new(FailureCode::InvalidConfiguration, "this call is none of a storage"));
        }
    })
}

fn claimed(claimed: &Claimed) -> Value {
    let refused = claimed.refused.iter().map(|(id, why)| json!({ "id": id, "failure": messages::failure(why) }));
    json!({
        "messages": messages::list(&claimed.batch),
        "refused": refused.collect::<Vec<_>>(),
        "unfinished": claimed.unfinished,
    })
}

async fn publish(publisher: &impl Publisher, batch: Batch, deadline: Duration) -> Told {
    let (reports, mut reported) = mpsc::unbounded_channel::<(usize, Outcome)>();
    let lease = Arc::new(LeaseEnd::new(Instant::now() + deadline));
    let result = publisher
        .publish(batch, PublishCall { deadline, reports, lease, cancel: CancellationToken::new(), workers: Workers::default() })
        .await;
    let mut early = Vec::new();
    while let Ok((index, outcome)) = reported.try_recv() {
        let mut report = messages::outcome(&outcome);
        if let Value::Object(report) = &mut report {
            report.insert("index".to_owned(), index.into());
        }
        early.push(report);
    }
    let early = Value::Array(early);
    match result {
        Ok(outcomes) => {
            let outcomes: Vec<Value> = outcomes.iter().map(messages::outcome).collect();
            Told::Fine(json!({ "outcomes": outcomes, "reports": early }))
        }
        Err(failure) => Told::Broken(failure, early),
    }
}
