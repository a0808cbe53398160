//! Counts, and how a host learns of new rows.

use super::stage::{LONG, PATIENCE, Stage, briefly, by, claimed_exactly, failure, ids, retry};
use crate::conformance::clause::{Checked, Clause, Stop, expect, same};
use crate::domain::Verdict;
use crate::ports::{Stats, Storage, WakeSource};
use crate::sql::{Heard, SqlError};
use std::time::{Duration, Instant};

/// Ages may be counted in whole seconds.
const AGE_SLACK: Duration = Duration::from_millis(1100);

pub(super) static CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "storage.stats",
        title: "rows are counted by state, and the oldest by its age",
        demands: "stats: what each of the counts is",
        timed: true,
        check: |stage| Box::pin(stats(stage)),
    },
    Clause {
        id: "storage.wake",
        title: "the wake source tells of a message that was inserted",
        demands: "description.wake: \"How the host learns of new rows sooner than by polling\"",
        timed: true,
        check: |stage| Box::pin(wake(stage)),
    },
];

async fn stats(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let counted = async |what: &str, expected: [u64; 4]| {
        let Stats { pending, due, leased, dead, .. } = host.stats().await?;
        same(&format!("{what}: [pending, due, leased, dead]"), &[pending, due, leased, dead], &expected)
    };
    counted("in an empty table", [0, 0, 0, 0]).await?;
    same("the age of the oldest row of an empty table", &host.stats().await?.oldest_pending_ms, &None)?;
    let before = Instant::now();
    stage.insert_of(&host, Some("k"), &["leased"]).await?;
    let inserted = Instant::now();
    counted("with a new row", [1, 1, 0, 0]).await?;
    claimed_exactly("for the counts", &host.claim(&by("a")).await?, &["leased"])?;
    counted("with a leased row", [1, 0, 1, 0]).await?;
    for (payload, verdict) in [("waits", retry(LONG)), ("dead", Verdict::Dead(failure())), ("delivered", Verdict::Delivered)] {
        stage.insert_of(&host, None, &[payload]).await?;
        let claimed = host.claim(&by("a")).await?;
        host.settle_held("a", verdict, &ids(&claimed.batch)).await?;
    }
    counted("with one that waits, a dead and a delivered one besides", [2, 0, 1, 1]).await?;
    stage.insert_of(&host, None, &["ends"]).await?;
    claimed_exactly("for the counts", &host.claim(&briefly("b")).await?, &["ends"])?;
    let began = Instant::now();
    while host.stats().await?.leased > 1 {
        expect(began.elapsed() < PATIENCE, "a row whose lease has ended: not counted as leased", || {
            format!("still counted after {} s", began.elapsed().as_secs())
        })?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    counted("after a lease has ended", [3, 1, 1, 1]).await?;
    stage.insert_of(&host, Some("k"), &["behind"]).await?;
    counted("with one behind the leased one of its key besides, which counts as due", [4, 2, 1, 1]).await?;
    if let Some(oldest) = host.stats().await?.oldest_pending_ms {
        let (least, most) = (inserted.elapsed().saturating_sub(AGE_SLACK), before.elapsed() + AGE_SLACK);
        expect((least..=most).contains(&Duration::from_millis(oldest)), format!("the oldest row to be {least:?} to {most:?} old"), || {
            format!("{oldest} ms")
        })?;
    }
    Ok(())
}

async fn wake(stage: &Stage) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    let failed = |error: SqlError| Stop::failed("the wake source to be listened to", error.to_string());
    let in_vain = || Stop::failed("to be told of a message that was inserted", format!("nothing for {} s", PATIENCE.as_secs()));
    match host.open().plugin.description().wake {
        WakeSource::None => Err(Stop::Skipped("the storage names no wake source: it is polled".to_owned())),
        WakeSource::DataVersion(database) => {
            let mut watch = host.open().databases.watch(&database).map_err(failed)?;
            watch.changed().await.map_err(failed)?;
            expect(!watch.changed().await.map_err(failed)?, "no change before anything was inserted", || "a change".to_owned())?;
            stage.insert_of(&other, None, &["1"]).await?;
            let began = Instant::now();
            while !watch.changed().await.map_err(failed)? {
                if began.elapsed() > PATIENCE {
                    return Err(in_vain());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(())
        }
        WakeSource::Notification { database, channel } => {
            let mut listener = host.open().databases.listen(&database, &channel).map_err(failed)?;
            let connected = listener.heard().await.map_err(failed)?;
            if connected == Heard::Never {
                return Err(Stop::Skipped("notifications do not come through to this process (a pooler?)".to_owned()));
            }
            stage.insert_of(&other, None, &["1"]).await?;
            let heard = tokio::time::timeout(PATIENCE, listener.heard()).await.map_err(|_| in_vain())?;
            same("what is heard", &heard.map_err(failed)?, &Heard::Notification)
        }
    }
}
