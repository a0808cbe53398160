//! What the command line needs: making the table, inserting, and what becomes of settled rows.

use super::stage::{Host, LONG, Stage, by, call_failed, claimed_exactly, claimed_nothing, failure, ids, message, retry, settlement};
use crate::conformance::clause::{Checked, Clause, Stop, expect, same};
use crate::domain::{Batch, FailureCode, NewMessage, Verdict};
use crate::plugin::Request;
use crate::ports::{Filter, RowState};
use std::time::Duration;

/// Pages, or steps, after which a loop over them is taken for endless.
const MOST_STEPS: usize = 50;

pub(super) static CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "storage.schema",
        title: "opening and `schema` change nothing; `create-schema` makes the table, and again changes nothing",
        demands: "open: \"Must not change the database\"; schema: \"Creates nothing\"; create-schema: \"Running it again changes nothing\"",
        timed: false,
        check: |stage| Box::pin(schema(stage)),
    },
    Clause {
        id: "storage.enqueue",
        title: "messages are inserted all or none, and each gets an id",
        demands: "enqueue: \"Inserts messages in one transaction and returns their ids\"",
        timed: false,
        check: |stage| Box::pin(enqueue(stage)),
    },
    Clause {
        id: "storage.requeue",
        title: "requeued: dead rows that match are pending again, with no attempts; others are left alone",
        demands: "requeue: \"Makes dead rows pending again, with no attempts counted; returns how many\"",
        timed: false,
        check: |stage| Box::pin(requeue(stage)),
    },
    Clause {
        id: "storage.discard",
        title: "discarded: dead rows that match are gone; others are left alone",
        demands: "discard: \"Deletes dead rows; returns how many. Rows in other states are left alone\"",
        timed: false,
        check: |stage| Box::pin(discard(stage)),
    },
    Clause {
        id: "storage.purge",
        title: "purged: delivered rows that are old enough are gone, step by step; others are left alone",
        demands: "purge: \"Deletes delivered rows that were settled more than `older-than-ms` milliseconds ago, at most `limit` in one call\"",
        timed: false,
        check: |stage| Box::pin(purge(stage)),
    },
];

async fn schema(stage: &Stage) -> Checked {
    if stage.has_insert_command() {
        return Err(Stop::Skipped("the table comes from --insert-command".to_owned()));
    }
    stage.host().await?.admin()?;
    let bare = stage.bare().await?;
    let database = bare.database()?;
    let objects = async || database.objects().await.map_err(|error| Stop::failed("the tables to be counted", error.to_string()));
    let host = bare.host().await?;
    same("tables and the like after opening", &objects().await?, &0)?;
    let text = host.admin()?.schema().await.map_err(call_failed("schema"))?;
    expect(!text.trim().is_empty(), "a text of DDL", || "an empty one".to_owned())?;
    same("tables and the like after `schema`", &objects().await?, &0)?;
    host.admin()?.create_schema().await.map_err(call_failed("create-schema"))?;
    let made = objects().await?;
    let sees_tables = bare.asks_for(Request::Databases);
    expect(made > 0 || !sees_tables, "a table after `create-schema`", || "none".to_owned())?;
    bare.insert_of(&host, None, &["1"]).await?;
    host.admin()?.create_schema().await.map_err(call_failed("create-schema"))?;
    same("tables and the like after a second `create-schema`", &objects().await?, &made)?;
    // As another process sees it.
    let other = bare.host().await?;
    claimed_exactly("after a second `create-schema`", &other.claim(&by("a")).await?, &["1"])
}

async fn enqueue(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    same("the ids of no messages", &host.enqueue(&Batch::default()).await?, &Vec::new())?;
    let mut batch = Batch::default();
    ["1", "2", "3"].iter().for_each(|payload| batch.push(&message(None, payload)));
    let inserted = host.enqueue(&batch).await?;
    let mut different = inserted.clone();
    different.sort_unstable();
    different.dedup();
    expect(different.len() == 3, "three different ids", || format!("{inserted:?}"))?;
    let mut claimed = host.claim_all(&by("a")).await?;
    claimed_exactly("after three were inserted", &claimed, &["1", "2", "3"])?;
    let by_id = |payload: &str| {
        claimed.batch.messages().find(|message| message.payload() == Some(payload.as_bytes())).map(|message| message.id().to_owned())
    };
    let seen: Vec<String> = ["1", "2", "3"].iter().filter_map(|payload| by_id(payload)).collect();
    same("ids in the order of the messages", &inserted, &seen)?;
    claimed = host.claim(&by("a")).await?;
    claimed_nothing("after all were claimed", &claimed)?;
    // One that cannot go in, behind one that can: an id twice.
    let twice = NewMessage { id: Some("700200"), ..message(None, "twice") };
    let mut batch = Batch::default();
    [&message(None, "first"), &twice, &twice].into_iter().for_each(|message| batch.push(message));
    match host.admin()?.enqueue(&batch).await {
        // It makes ids of its own.
        Ok(_) => Ok(()),
        Err(failure) if failure.code.is_adapter_fault() || failure.code == FailureCode::Timeout => Err(call_failed("enqueue")(failure)),
        Err(_) => claimed_nothing("after an insertion that failed", &host.claim(&by("a")).await?),
    }
}

/// Rows in every state, all of topic `t` but for one dead of topic `u`.
struct Rows {
    dead: Vec<String>,
    dead_elsewhere: Vec<String>,
    pending: Vec<String>,
    leased: Vec<String>,
    delivered: Vec<String>,
}

impl Rows {
    async fn of(stage: &Stage, host: &Host) -> Result<Self, Stop> {
        host.admin()?;
        let elsewhere = NewMessage { topic: "u", ..message(None, "dead elsewhere") };
        let dead_elsewhere = stage.insert(host, &[elsewhere]).await?;
        let dead = stage.insert_of(host, None, &["dead 1", "dead 2"]).await?;
        host.claim_all(&by("a")).await?;
        let all_dead: Vec<&String> = dead.iter().chain(&dead_elsewhere).collect();
        host.settle("a", &[settlement(Verdict::Dead(failure()), all_dead)]).await?;
        let delivered = stage.insert_of(host, None, &["delivered"]).await?;
        host.claim_all(&by("a")).await?;
        host.settle("a", &[settlement(Verdict::Delivered, &delivered)]).await?;
        let leased = stage.insert_of(host, None, &["leased"]).await?;
        host.claim_all(&by("a")).await?;
        let pending = stage.insert_of(host, None, &["pending"]).await?;
        Ok(Self { dead, dead_elsewhere, pending, leased, delivered })
    }

    /// Filters that mean dead rows: which, and how many of them there are.
    fn filters(&self) -> Vec<(&'static str, Filter, u64)> {
        let ids = |ids: &[&Vec<String>]| ids.iter().copied().flatten().cloned().collect::<Vec<_>>();
        let first = self.dead.iter().take(1).cloned().collect();
        vec![
            ("of rows of a state that is not dead", Filter { state: Some(RowState::Pending), ..Filter::default() }, 0),
            (
                "by ids of rows in other states",
                Filter { ids: ids(&[&self.pending, &self.leased, &self.delivered]), ..Filter::default() },
                0,
            ),
            ("by an id of no row", Filter { ids: vec!["no such id".to_owned()], ..Filter::default() }, 0),
            ("by topic", Filter { topic: Some("u".to_owned()), ..Filter::default() }, 1),
            ("by id", Filter { ids: first, ..Filter::default() }, 1),
            (
                "by a topic that is not that of the id",
                Filter { topic: Some("u".to_owned()), ids: ids(&[&self.dead]), ..Filter::default() },
                0,
            ),
            ("of all dead rows that are left", Filter { state: Some(RowState::Dead), ..Filter::default() }, 1),
            ("of everything, when nothing is dead any more", Filter::default(), 0),
        ]
    }
}

async fn requeue(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let rows = Rows::of(stage, &host).await?;
    for (what, filter, expected) in rows.filters() {
        let changed = host.admin()?.requeue(&filter).await.map_err(call_failed("requeue"))?;
        same(&format!("rows requeued {what}"), &changed, &expected)?;
    }
    let claimed = host.claim_all(&by("b")).await?;
    claimed_exactly("after everything dead was requeued", &claimed, &["dead 1", "dead 2", "dead elsewhere", "pending"])?;
    same("attempts of rows that were requeued", &claimed.batch.attempts, &vec![1; 4])?;
    same("dead rows after all were requeued", &host.stats().await?.dead, &0)?;
    host.settle_held("a", Verdict::Delivered, &rows.leased).await
}

async fn discard(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let rows = Rows::of(stage, &host).await?;
    for (what, filter, expected) in rows.filters() {
        let changed = host.admin()?.discard(&filter).await.map_err(call_failed("discard"))?;
        same(&format!("rows discarded {what}"), &changed, &expected)?;
    }
    let gone = rows.dead.iter().chain(&rows.dead_elsewhere).cloned().collect();
    same("rows that are left of those discarded", &host.rows(&Filter { ids: gone, ..Filter::default() }).await?, &Vec::new())?;
    claimed_exactly("after everything dead was discarded", &host.claim_all(&by("b")).await?, &["pending"])?;
    host.settle_held("a", Verdict::Delivered, &rows.leased).await
}

async fn purge(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let admin = host.admin()?;
    let settled = stage.insert_of(&host, None, &["1", "2", "3", "4", "5"]).await?;
    host.claim_all(&by("a")).await?;
    host.settle_held("a", Verdict::Delivered, &settled).await?;
    let kept = stage.insert_of(&host, None, &["dead", "waits", "pending"]).await?;
    host.claim_all(&by("a")).await?;
    let [dead, waits, free] = [0, 1, 2].map(|place| kept.iter().skip(place).take(1).cloned().collect::<Vec<_>>());
    host.settle_held("a", Verdict::Dead(failure()), &dead).await?;
    host.settle_held("a", retry(LONG), &waits).await?;
    host.settle_held("a", Verdict::Release { delay: Duration::ZERO }, &free).await?;
    let delivered = || Filter { state: Some(RowState::Delivered), ..Filter::default() };
    let there = host.rows(&delivered()).await?.len();
    match admin.purge(LONG, 100).await {
        Ok(purged) => same("rows purged of those settled more than an hour ago", &purged, &0)?,
        Err(failure) if failure.code == FailureCode::InvalidConfiguration => return Err(Stop::Skipped(failure.to_string())),
        Err(failure) => return Err(call_failed("purge")(failure)),
    }
    same("delivered rows after that", &host.rows(&delivered()).await?.len(), &there)?;
    // Settled more than a millisecond ago, in the coarsest of the units that databases count in.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut steps = Vec::new();
    while steps.last() != Some(&0) && steps.len() < MOST_STEPS {
        steps.push(admin.purge(Duration::ZERO, 2).await.map_err(call_failed("purge"))?);
    }
    let sum: u64 = steps.iter().sum();
    let is_right = steps.iter().all(|step| *step <= 2) && sum == u64::try_from(there).unwrap_or(u64::MAX);
    expect(is_right, format!("{there} rows purged, at most 2 in a step, and then 0"), || format!("{steps:?}"))?;
    same("delivered rows after the purge", &host.rows(&delivered()).await?, &Vec::new())?;
    let left = host.rows(&Filter { ids: kept.clone(), ..Filter::default() }).await?;
    same("rows in other states after the purge", &left.into_iter().map(|row| row.id).collect(), &kept)?;
    claimed_exactly("after the purge", &host.claim_all(&by("b")).await?, &["pending"])?;
    let claimed = ids(&host.claim(&by("b")).await?.batch);
    same("what is left to claim", &claimed, &Vec::new())
}
