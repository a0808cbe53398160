//! What becomes of rows that are settled.

use super::stage::{
    LONG, MIDDLE, SHORT, Stage, after, by, claimed_exactly, claimed_nothing, failure, ids, name_of, not_before, only, retry, settlement,
};
use crate::conformance::clause::{Checked, Clause, Stop, expect, same};
use crate::domain::{Failure, FailureCode, Settlement, Verdict};
use crate::ports::{ClaimRequest, Filter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(super) static CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "storage.delivered",
        title: "a delivered row is never claimed again",
        demands: "verdict: \"Done: marked or deleted, by configuration\"",
        timed: true,
        check: |stage| Box::pin(never_again(stage, Verdict::Delivered)),
    },
    Clause {
        id: "storage.dead",
        title: "a dead row is never claimed again",
        demands: "verdict: \"Ends dead, with the failure recorded\"",
        timed: true,
        check: |stage| Box::pin(never_again(stage, Verdict::Dead(failure()))),
    },
    Clause {
        id: "storage.retry-waits",
        title: "a row that is to be tried again is not claimed before its delay is over",
        demands: "verdict: \"Due again after the delay\"",
        timed: false,
        check: |stage| Box::pin(waits(stage, retry(LONG))),
    },
    Clause {
        id: "storage.retry",
        title: "a row that is to be tried again is claimed after its delay, and its attempt stays counted",
        demands: "verdict: \"Due again after the delay. The attempt stays counted\"",
        timed: true,
        check: |stage| Box::pin(returns(stage, retry, 2)),
    },
    Clause {
        id: "storage.release-waits",
        title: "a row that is given back is not claimed before its delay is over",
        demands: "verdict: \"Due again after so many milliseconds\"",
        timed: false,
        check: |stage| Box::pin(waits(stage, Verdict::Release { delay: LONG })),
    },
    Clause {
        id: "storage.release",
        title: "a row that is given back is claimed after its delay, and its attempt does not count",
        demands: "verdict: \"Not tried: the attempt is given back\"",
        timed: true,
        check: |stage| Box::pin(returns(stage, |delay| Verdict::Release { delay }, 1)),
    },
    Clause {
        id: "storage.settle-repeated",
        title: "what is settled a second time is reported as lost, and changes nothing",
        demands: "storage: \"All calls may be repeated after a failure\"",
        timed: true,
        check: |stage| Box::pin(repeated(stage)),
    },
    Clause {
        id: "storage.settle-nothing",
        title: "settling and renewing nothing is no failure",
        demands: "settle, extend: lists may be empty",
        timed: false,
        check: |stage| Box::pin(nothing(stage)),
    },
    Clause {
        id: "storage.not-held",
        title: "ids of others, and ids of no row, are reported as lost, and nothing else happens to them",
        demands: "settle: \"returns the ids that `worker` no longer holds: those are left as they are\"",
        timed: false,
        check: |stage| Box::pin(not_held(stage)),
    },
    Clause {
        id: "storage.settle-atomic",
        title: "all verdicts of a call are written at once",
        demands: "settle: \"Writes verdicts, all in one transaction\"",
        timed: false,
        check: |stage| Box::pin(atomic(stage)),
    },
    Clause {
        id: "storage.failure-texts",
        title: "no text of a failure keeps it from being recorded: NUL, 1 MiB, control characters",
        demands: "settle: \"Recording a failure never fails because of its text\"",
        timed: true,
        check: |stage| Box::pin(failure_texts(stage)),
    },
    Clause {
        id: "storage.fused",
        title: "a fused call settles, then claims, for the worker of the request",
        demands: "settle-and-claim: \"`settle`, then `claim`, atomically. `request.worker` is the one that settles\"",
        timed: false,
        check: |stage| Box::pin(fused(stage)),
    },
];

async fn never_again(stage: &Stage, verdict: Verdict) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    let what = name_of(&verdict);
    let inserted = stage.insert_of(&host, None, &["1"]).await?;
    let began = Instant::now();
    let claimed = host.claim(&ClaimRequest { lease: MIDDLE, ..by("a") }).await?;
    claimed_exactly("at first", &claimed, &["1"])?;
    host.settle_held("a", verdict.clone(), &ids(&claimed.batch)).await?;
    claimed_nothing(&format!("after `{what}`"), &host.claim(&by("a")).await?)?;
    after(began, MIDDLE).await;
    claimed_nothing(&format!("after `{what}`, when the lease would have ended"), &other.claim(&by("b")).await?)?;
    if let (Verdict::Dead(failure), Ok(_)) = (&verdict, host.admin()) {
        let rows = host.rows(&Filter { ids: inserted, ..Filter::default() }).await?;
        let recorded = rows.first().and_then(|row| row.last_error.clone()).unwrap_or_default();
        expect(recorded.contains(&failure.detail), format!("a recorded failure with the text {:?}", failure.detail), || {
            format!("{recorded:?}")
        })?;
    }
    Ok(())
}

async fn waits(stage: &Stage, verdict: Verdict) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    stage.insert_of(&host, None, &["1"]).await?;
    let claimed = host.claim(&by("a")).await?;
    let when = format!("with `{}` in an hour", name_of(&verdict));
    host.settle_held("a", verdict, &ids(&claimed.batch)).await?;
    claimed_nothing(&format!("{when}, by the same worker"), &host.claim(&by("a")).await?)?;
    claimed_nothing(&format!("{when}, by another worker"), &other.claim(&by("b")).await?)
}

/// After a verdict with a delay, the row comes back with so many attempts.
async fn returns(stage: &Stage, verdict: fn(Duration) -> Verdict, attempts: u32) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    stage.insert_of(&host, None, &["1"]).await?;
    let held = ids(&host.claim(&by("a")).await?.batch);
    let what = format!("`{}` after {} ms", name_of(&verdict(SHORT)), SHORT.as_millis());
    let began = Instant::now();
    host.settle_held("a", verdict(SHORT), &held).await?;
    let again = other.claim_in_time(&what, &by("b")).await?;
    not_before(&what, SHORT, began.elapsed())?;
    claimed_exactly(&what, &again, &["1"])?;
    same(&format!("attempts with {what}"), &again.batch.attempts, &vec![attempts])?;
    other.settle_held("b", verdict(Duration::ZERO), &held).await?;
    let when = format!("`{}` without a delay", name_of(&verdict(SHORT)));
    let at_once = host.claim_in_time(&when, &by("a")).await?;
    claimed_exactly(&when, &at_once, &["1"])?;
    same("attempts after that", &at_once.batch.attempts, &vec![2 * attempts - 1])
}

async fn repeated(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    stage.insert_of(&host, None, &["0", "1", "2"]).await?;
    let held = ids(&host.claim_all(&by("a")).await?.batch);
    let verdicts = [Verdict::Delivered, retry(Duration::ZERO), Verdict::Release { delay: Duration::ZERO }];
    for (place, verdict) in verdicts.into_iter().enumerate() {
        let (what, id) = (name_of(&verdict), only(&held, place));
        host.settle_held("a", verdict.clone(), &id).await?;
        let lost = host.settle("a", &[settlement(verdict, &id)]).await?;
        same(&format!("`{what}` a second time: the ids reported as lost"), &lost, &id)?;
    }
    let claimed = host.claim_in_time_all("what was to be tried again, and what was given back", &by("a"), 2).await?;
    let mut attempts: Vec<(String, u32)> = claimed.batch.messages().map(|message| (message.id().to_owned(), message.attempts())).collect();
    attempts.sort_unstable();
    let [retried, released] = [1, 2].map(|place| held.get(place).cloned().unwrap_or_default());
    let mut expected = vec![(retried.clone(), 2), (released, 1)];
    expected.sort_unstable();
    same("ids and attempts after everything was settled twice", &attempts, &expected)?;
    // The same id twice in one list is one row: its attempt is given back once.
    let twice = [retried.clone(), retried.clone()];
    host.settle("a", &[settlement(Verdict::Release { delay: Duration::ZERO }, &twice)]).await?;
    let again = host.claim_in_time("after a release", &by("b")).await?;
    same("what is claimed after a release that named it twice", &ids(&again.batch), &vec![retried])?;
    same("its attempts", &again.batch.attempts, &vec![2])
}

async fn nothing(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let none: [&str; 0] = [];
    let every = || [Verdict::Delivered, retry(LONG), Verdict::Release { delay: LONG }, Verdict::Dead(failure())];
    stage.insert_of(&host, None, &["1"]).await?;
    let empty: Vec<Settlement> = every().into_iter().map(|verdict| settlement(verdict, none)).collect();
    for settlements in [&[][..], &empty] {
        same("what is lost of nothing that was settled", &host.settle("a", settlements).await?, &Vec::new())?;
    }
    same("what is lost of nothing that was renewed", &host.extend("a", &[], LONG).await?, &Vec::new())?;
    claimed_exactly("after nothing was settled", &host.claim(&by("a")).await?, &["1"])
}

async fn not_held(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let of_other = stage.insert_of(&host, None, &["1"]).await?;
    claimed_exactly("by another worker", &host.claim(&by("other")).await?, &["1"])?;
    let mine = stage.insert_of(&host, None, &["2"]).await?;
    claimed_exactly("by the worker", &host.claim(&by("a")).await?, &["2"])?;
    let (other_id, my_id) = match (of_other.first(), mine.first()) {
        (Some(other), Some(mine)) => (other, mine),
        _ => return Err(Stop::failed("two ids", "fewer")),
    };
    let free = stage.insert_of(&host, None, &["3"]).await?;
    // Of no row; and what some readers of numbers take for the id of one.
    let mut wrong: Vec<String> =
        ["", "0", "-1", "no such id", "99999999999999999999999", "1e3", "' OR '1' = '1", "7c9e6679-7425-40de-944b-e07fc1f90ae7"]
            .map(str::to_owned)
            .to_vec();
    wrong.extend([format!("0{my_id}"), format!("+{my_id}"), format!(" {my_id}"), format!("{my_id} "), format!("{my_id}.0")]);
    wrong.retain(|id| ![other_id, my_id].contains(&id) && !free.contains(id));
    wrong.push(other_id.clone());
    wrong.extend(free.iter().cloned());
    let sorted = |mut ids: Vec<String>| {
        ids.sort_unstable();
        ids
    };
    for verdict in [retry(Duration::ZERO), Verdict::Release { delay: Duration::ZERO }, Verdict::Dead(failure()), Verdict::Delivered] {
        let lost = host.settle("a", &[settlement(verdict.clone(), &wrong)]).await?;
        let what = format!("`{}` on ids that the worker does not hold: the ids reported as lost", name_of(&verdict));
        same(&what, &sorted(lost), &sorted(wrong.clone()))?;
    }
    let lost = host.extend("a", &wrong, Duration::ZERO).await?;
    same("a renewal of ids that the worker does not hold: the ids reported as lost", &sorted(lost), &sorted(wrong))?;
    // Among those that it holds, what it does not hold keeps nothing back.
    let mixed = [other_id.clone(), my_id.clone()];
    let lost = host.settle("a", &[settlement(Verdict::Delivered, &mixed)]).await?;
    same("an id of another worker beside one's own: the ids reported as lost", &lost, &of_other)?;
    claimed_exactly("after all that: the row that nobody held", &host.claim_all(&by("c")).await?, &["3"])?;
    host.settle_held("other", Verdict::Delivered, &of_other).await
}

async fn atomic(stage: &Stage) -> Checked {
    const GROUPS: usize = 8;
    const ROWS: usize = 200;
    let (host, observer) = (stage.host().await?, stage.host().await?);
    for round in 0..3_u32 {
        let before = observer.stats().await?.pending;
        stage.insert_of(&host, None, &["p"; ROWS]).await?;
        let held = ids(&host.claim_all(&ClaimRequest { limit: 1000, ..by("a") }).await?.batch);
        let verdict = |group: usize| if group.is_multiple_of(2) { Verdict::Delivered } else { Verdict::Dead(failure()) };
        let groups = held.chunks(held.len().div_ceil(GROUPS).max(1)).enumerate();
        let settlements: Vec<Settlement> = groups.map(|(group, ids)| settlement(verdict(group), ids)).collect();
        let all = before + u64::try_from(held.len()).unwrap_or(u64::MAX);
        let is_written = AtomicBool::new(false);
        let write = async {
            let lost = host.settle("a", &settlements).await;
            is_written.store(true, Ordering::Relaxed);
            lost
        };
        let observe = async {
            // A call that was begun is not given up: that would be another clause's matter.
            while !is_written.load(Ordering::Relaxed) {
                let pending = observer.stats().await?.pending;
                expect([before, all].contains(&pending), format!("{all} rows pending, and then {before}"), || {
                    format!("{pending} pending while {GROUPS} settlements of one call were written (round {round})")
                })?;
            }
            Ok(())
        };
        let (lost, observed) = tokio::join!(write, observe);
        let lost = lost?;
        observed?;
        expect(lost.is_empty(), "nothing lost", || format!("lost: {} ids", lost.len()))?;
        same("rows that are pending in the end", &observer.stats().await?.pending, &before)?;
    }
    Ok(())
}

async fn failure_texts(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let long = "é".repeat(512 << 10);
    let texts =
        ["a\0b", "\0", "", "a\r\n\tb\u{1b}[31m\u{7f}", "\u{202e}txt\u{feff}\u{fffe}\u{10ffff}\u{fffd}", "%s {} \\ ' \" $1 ?1 --", &long];
    let codes = [FailureCode::Timeout, FailureCode::Other(String::new()), FailureCode::Other("odd \0 word ö".to_owned())];
    for (place, text) in texts.into_iter().enumerate() {
        let shown: String = text.chars().take(20).collect();
        // As it is: the host would clean and cut it, and another host may not.
        let failure = Failure {
            code: codes.get(place % codes.len()).cloned().unwrap_or(FailureCode::Timeout),
            detail: text.to_owned(),
            retry_after: Some(Duration::from_millis(u64::MAX)),
        };
        let inserted = stage.insert_of(&host, None, &["1"]).await?;
        let when = format!("for a failure with the text {shown:?} ({} bytes)", text.len());
        claimed_exactly(&when, &host.claim(&by("a")).await?, &["1"])?;
        let retried = Verdict::Retry { failure: failure.clone(), delay: Duration::ZERO };
        host.settle_held("a", retried, &inserted).await?;
        let again = host.claim_in_time(&when, &by("a")).await?;
        claimed_exactly(&format!("{when}, after `retry`"), &again, &["1"])?;
        host.settle_held("a", Verdict::Dead(failure), &inserted).await?;
        claimed_nothing(&format!("{when}, after `dead`"), &host.claim(&by("a")).await?)?;
    }
    Ok(())
}

async fn fused(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    if !host.open().plugin.has_fused() {
        return Err(Stop::Skipped("the storage does not export storage-fused".to_owned()));
    }
    let first = stage.insert_of(&host, Some("k"), &["1"]).await?;
    claimed_exactly("at first", &host.claim(&by("a")).await?, &["1"])?;
    let second = stage.insert_of(&host, Some("k"), &["2"]).await?;
    // Behind the first one until this very call settles it.
    let delivered = |ids: &[String]| [settlement(Verdict::Delivered, ids)];
    let turn = host.turn(&delivered(&first), &by("a")).await?;
    same("settled and claimed in one call: what is lost", &turn.lost, &Vec::new())?;
    claimed_exactly("in the call that settles the message before it", &turn.claimed, &["2"])?;
    // The worker of the request settles, and holds what was claimed.
    stage.insert_of(&host, None, &["3"]).await?;
    let turn = host.turn(&delivered(&second), &by("b")).await?;
    same("settled for a worker that does not hold the row: what is lost", &turn.lost, &second)?;
    claimed_exactly("beside a verdict that came from the wrong worker", &turn.claimed, &["3"])?;
    host.settle_held("b", Verdict::Delivered, &ids(&turn.claimed.batch)).await?;
    host.settle_held("a", Verdict::Delivered, &second).await?;
    let turn = host.turn(&[], &by("a")).await?;
    claimed_nothing("in a call that settles nothing", &turn.claimed)
}
