//! Leases: who may have a row, until when, and by whose clock.

use super::stage::{
    Host, LONG, MIDDLE, SHORT, Stage, after, briefly, by, claimed_exactly, claimed_nothing, ids, not_before, only, patient, retry,
};
use crate::conformance::clause::{Checked, Clause, Stop, expect, same};
use crate::domain::Verdict;
use crate::plugin::Skew;
use crate::ports::ClaimRequest;
use futures_util::future::join_all;
use std::time::{Duration, Instant};

/// The longest time that can be asked for.
const EVER: Duration = Duration::from_millis(u64::MAX);

/// How far a clock is off that nobody should look at.
const OFF: Duration = Duration::from_secs(24 * 3600);

pub(super) static CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "storage.invisible-while-leased",
        title: "a row that is leased cannot be claimed, by nobody",
        demands: "claim: \"keeps them from every other worker until the lease ends\"",
        timed: false,
        check: |stage| Box::pin(invisible_while_leased(stage)),
    },
    Clause {
        id: "storage.expiry",
        title: "a row whose lease has ended can be claimed again, and the attempt counts",
        demands: "claim: \"counts an attempt for each, and keeps them from every other worker until the lease ends\"",
        timed: true,
        check: |stage| Box::pin(expiry(stage)),
    },
    Clause {
        id: "storage.attempts-used-up",
        title: "a row that was claimed `max-attempts` times ends dead instead of being claimed; 0: never",
        demands: "claim-request: \"A row that was claimed so often already, and has come free again, ends dead\"",
        timed: true,
        check: |stage| Box::pin(attempts_used_up(stage)),
    },
    Clause {
        id: "storage.no-overlap",
        title: "claims at the same time return each row once",
        demands: "claim: \"keeps them from every other worker\"",
        timed: false,
        check: |stage| Box::pin(no_overlap(stage)),
    },
    Clause {
        id: "storage.any-instance",
        title: "any instance settles and renews what another one has claimed for the same worker",
        demands: "open: several instances work at once; what counts is the worker's name",
        timed: false,
        check: |stage| Box::pin(any_instance(stage)),
    },
    Clause {
        id: "storage.extend",
        title: "a renewed lease ends when the renewal says, later or sooner",
        demands: "extend: \"Lets the leases that `worker` holds end `lease-ms` milliseconds from now\"",
        timed: true,
        check: |stage| Box::pin(extend(stage)),
    },
    Clause {
        id: "storage.clock",
        title: "no clock but the database's judges a lease or a due time",
        demands: "storage: \"Time is the database's\" (the clock of the sandbox is a day off, one way and the other)",
        timed: true,
        check: |stage| Box::pin(clock(stage)),
    },
    Clause {
        id: "storage.long-durations",
        title: "the longest durations do not overflow",
        demands: "claim, settle, extend: durations are any number of milliseconds of 64 bits",
        timed: false,
        check: |stage| Box::pin(long_durations(stage)),
    },
];

async fn invisible_while_leased(stage: &Stage) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    stage.insert_of(&host, None, &["1", "2"]).await?;
    claimed_exactly("of two messages", &host.claim_all(&by("a")).await?, &["1", "2"])?;
    claimed_nothing("by the worker that holds the leases", &host.claim(&by("a")).await?)?;
    claimed_nothing("by another worker", &host.claim(&by("b")).await?)?;
    claimed_nothing("by another worker on another host", &other.claim(&by("c")).await?)
}

async fn expiry(stage: &Stage) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    stage.insert_of(&host, None, &["1"]).await?;
    let began = Instant::now();
    let first = host.claim(&briefly("a")).await?;
    claimed_exactly("at first", &first, &["1"])?;
    same("attempts at the first claim", &first.batch.attempts, &vec![1])?;
    let again = other.claim_in_time("after the lease has ended", &by("b")).await?;
    not_before("a row whose lease has ended", SHORT, began.elapsed())?;
    claimed_exactly("after the lease has ended", &again, &["1"])?;
    same("attempts at the second claim", &again.batch.attempts, &vec![2])
}

async fn attempts_used_up(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let inserted = stage.insert_of(&host, None, &["1"]).await?;
    let last = ClaimRequest { max_attempts: 1, ..briefly("a") };
    claimed_exactly("with no attempt so far and max-attempts = 1", &host.claim(&last).await?, &["1"])?;
    let refused = host.claim_in_time("after the lease of the last attempt has ended", &last).await?;
    let seen: Vec<String> = refused.refused.iter().map(|(id, _)| id.clone()).collect();
    expect(seen == inserted && refused.batch.is_empty(), format!("ended dead: {inserted:?}, and nothing claimed"), || {
        format!("ended dead: {seen:?}; claimed: {:?}", ids(&refused.batch))
    })?;
    claimed_nothing("after it has ended dead", &host.claim(&by("b")).await?)?;
    // Without a limit, as often as it takes.
    stage.insert_of(&host, None, &["2"]).await?;
    for attempt in 1..=4_u32 {
        let claimed = host.claim_in_time("without a delay", &by("a")).await?;
        claimed_exactly("with max-attempts = 0", &claimed, &["2"])?;
        same("attempts", &claimed.batch.attempts, &vec![attempt])?;
        host.settle_held("a", retry(Duration::ZERO), &ids(&claimed.batch)).await?;
    }
    Ok(())
}

async fn no_overlap(stage: &Stage) -> Checked {
    const ROWS: usize = 60;
    let mut hosts = Vec::new();
    for _ in 0..4 {
        hosts.push(stage.host().await?);
    }
    let first = hosts.first().ok_or_else(|| Stop::failed("a host", "none"))?;
    let mut inserted = stage.insert_of(first, None, &["p"; ROWS]).await?;
    let claims = hosts.iter().enumerate().map(|(number, host)| async move {
        let request = ClaimRequest { limit: 5, ..by(&format!("worker-{number}")) };
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.extend(ids(&patient(|| host.storage().claim(&request)).await?.batch));
        }
        Ok::<_, Stop>(seen)
    });
    let mut seen = Vec::new();
    for claimed in join_all(claims).await {
        seen.extend(claimed?);
    }
    seen.extend(ids(&first.claim_all(&by("rest")).await?.batch));
    seen.sort_unstable();
    inserted.sort_unstable();
    expect(seen == inserted, format!("each of {ROWS} rows once"), || {
        let mut once = seen.clone();
        once.dedup();
        format!("{} rows, {} of them different", seen.len(), once.len())
    })
}

async fn any_instance(stage: &Stage) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    let inserted = stage.insert_of(&host, None, &["1"]).await?;
    host.claim(&by("a")).await?;
    let lost = other.extend("a", &inserted, LONG).await?;
    expect(lost.is_empty(), "a renewal by another instance: nothing lost", || format!("lost: {lost:?}"))?;
    other.settle_held("a", Verdict::Delivered, &inserted).await?;
    claimed_nothing("after another instance has settled it", &host.claim(&by("a")).await?)
}

async fn extend(stage: &Stage) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    stage.insert_of(&host, None, &["1"]).await?;
    let began = Instant::now();
    let claimed = host.claim(&ClaimRequest { lease: MIDDLE, ..by("a") }).await?;
    claimed_exactly("at first", &claimed, &["1"])?;
    let held = ids(&claimed.batch);
    let lost = host.extend("a", &held, LONG).await?;
    expect(lost.is_empty(), "a renewal of a lease that is held: nothing lost", || format!("lost: {lost:?}"))?;
    after(began, MIDDLE).await;
    claimed_nothing("after the first end of a renewed lease", &other.claim(&by("b")).await?)?;
    let began = Instant::now();
    host.extend("a", &held, SHORT).await?;
    let again = other.claim_in_time("after the end of a lease that was made shorter", &by("b")).await?;
    not_before("a row whose lease was made shorter", SHORT, began.elapsed())?;
    same("attempts: a renewal counts none", &again.batch.attempts, &vec![2])
}

async fn clock(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let ahead = stage.host_with_clock(Skew::Ahead(OFF)).await?;
    let behind = stage.host_with_clock(Skew::Behind(OFF)).await?;
    // What one has leased, the others see as leased.
    for (which, skewed, others) in [("behind", &behind, [&host, &ahead]), ("ahead", &ahead, [&host, &behind])] {
        stage.insert_of(skewed, None, &["1"]).await?;
        let claimed = skewed.claim(&by("a")).await?;
        claimed_exactly(&format!("by a worker whose clock is {which}"), &claimed, &["1"])?;
        for other in others {
            claimed_nothing(&format!("while a worker whose clock is {which} holds the lease"), &other.claim(&by("b")).await?)?;
        }
        skewed.settle_held("a", retry(LONG), &ids(&claimed.batch)).await?;
        for other in others {
            let when = format!("while it waits for its retry, by the word of a worker whose clock is {which}");
            claimed_nothing(&when, &other.claim(&by("b")).await?)?;
        }
        // And what ends, ends for all.
        stage.insert_of(&host, None, &["2"]).await?;
        claimed_exactly("of another message", &skewed.claim(&briefly("a")).await?, &["2"])?;
        let what = format!("after the end of a lease of a worker whose clock is {which}");
        let again = host.claim_in_time(&what, &by("b")).await?;
        claimed_exactly(&what, &again, &["2"])?;
        host.settle_held("b", Verdict::Delivered, &ids(&again.batch)).await?;
    }
    Ok(())
}

async fn long_durations(stage: &Stage) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    stage.insert_of(&host, None, &["0", "1", "2", "3"]).await?;
    let claimed = host.claim_all(&ClaimRequest { lease: EVER, ..by("a") }).await?;
    claimed_exactly("with the longest lease", &claimed, &["0", "1", "2", "3"])?;
    let nothing = async |host: &Host, when: &str| claimed_nothing(when, &host.claim(&by("b")).await?);
    nothing(&other, "under the longest lease").await?;
    let held = ids(&claimed.batch);
    let lost = host.extend("a", &only(&held, 0), EVER).await?;
    expect(lost.is_empty(), "a renewal for the longest time: nothing lost", || format!("lost: {lost:?}"))?;
    host.settle_held("a", retry(EVER), &only(&held, 1)).await?;
    host.settle_held("a", Verdict::Release { delay: EVER }, &only(&held, 2)).await?;
    nothing(&other, "after the longest renewal, retry and release").await?;
    host.settle_held("a", Verdict::Delivered, &only(&held, 3)).await?;
    same("rows that are pending", &host.stats().await?.pending, &3)
}
