//! Late writes: what a worker says of a row whose lease has gone to another one is refused, and changes nothing.

use super::stage::{LONG, Stage, briefly, by, claimed_exactly, claimed_nothing, failure, ids, name_of, retry, settlement};
use crate::conformance::clause::{Checked, Clause, same};
use crate::domain::Verdict;
use std::time::Duration;

/// The same for each kind of write.
const DEMANDS: &str = "settle, extend: \"returns the ids that `worker` no longer holds: those are left as they are\"";

pub(super) static CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "storage.late-delivered",
        title: "`delivered` by a worker whose lease has gone to another is refused",
        demands: DEMANDS,
        timed: true,
        check: |stage| Box::pin(late(stage, Some(Verdict::Delivered))),
    },
    Clause {
        id: "storage.late-retry",
        title: "`retry` by a worker whose lease has gone to another is refused",
        demands: DEMANDS,
        timed: true,
        check: |stage| Box::pin(late(stage, Some(retry(Duration::ZERO)))),
    },
    Clause {
        id: "storage.late-release",
        title: "`release` by a worker whose lease has gone to another is refused",
        demands: DEMANDS,
        timed: true,
        check: |stage| Box::pin(late(stage, Some(Verdict::Release { delay: Duration::ZERO }))),
    },
    Clause {
        id: "storage.late-dead",
        title: "`dead` by a worker whose lease has gone to another is refused",
        demands: DEMANDS,
        timed: true,
        check: |stage| Box::pin(late(stage, Some(Verdict::Dead(failure())))),
    },
    Clause {
        id: "storage.late-extend",
        title: "a renewal by a worker whose lease has gone to another is refused",
        demands: DEMANDS,
        timed: true,
        check: |stage| Box::pin(late(stage, None)),
    },
];

/// A verdict, or else a renewal, that comes too late.
async fn late(stage: &Stage, verdict: Option<Verdict>) -> Checked {
    let (first, second) = (stage.host().await?, stage.host().await?);
    let inserted = stage.insert_of(&first, None, &["1"]).await?;
    claimed_exactly("at first", &first.claim(&briefly("a")).await?, &["1"])?;
    let taken = second.claim_in_time("after the lease of the first worker has ended", &by("b")).await?;
    claimed_exactly("after the lease of the first worker has ended", &taken, &["1"])?;
    let (what, lost) = match verdict {
        Some(verdict) => (format!("`{}`", name_of(&verdict)), first.settle("a", &[settlement(verdict, &inserted)]).await?),
        // One that would end the other's lease at once.
        None => ("a renewal".to_owned(), first.extend("a", &inserted, Duration::ZERO).await?),
    };
    same(&format!("{what} by the worker that has lost the row: the ids reported as lost"), &lost, &inserted)?;
    claimed_nothing(&format!("after {what} came too late: the second worker still holds the row"), &first.claim(&by("c")).await?)?;
    let lost = second.extend("b", &inserted, LONG).await?;
    same(&format!("after {what} came too late: what the second worker has lost"), &lost, &Vec::new())?;
    second.settle_held("b", retry(Duration::ZERO), &inserted).await?;
    let again = first.claim_in_time("once the second worker has given it back", &by("c")).await?;
    same(&format!("after {what} came too late: what is claimed at last"), &ids(&again.batch), &inserted)?;
    same("attempts: two that ended, and this one", &again.batch.attempts, &vec![3])
}
