//! Strict order: what holds back the later rows of a key, and what lets them go.

use super::stage::{LONG, Stage, briefly, by, claimed_exactly, claimed_nothing, failure, ids, payloads, retry};
use crate::conformance::clause::{Checked, Clause, expect};
use crate::domain::Verdict;

/// The same for everything that holds back.
const DEMANDS: &str = "claim: \"a row that waits (for a retry, for visibility) or is leased holds back the later ones of its key\"";

pub(super) static CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "storage.retried-head",
        title: "a row that waits for its retry holds back the later ones of its key, and no others",
        demands: DEMANDS,
        timed: false,
        check: |stage| Box::pin(waiting_head(stage, retry(LONG))),
    },
    Clause {
        id: "storage.released-head",
        title: "a row that was given back and waits holds back the later ones of its key, and no others",
        demands: DEMANDS,
        timed: false,
        check: |stage| Box::pin(waiting_head(stage, Verdict::Release { delay: LONG })),
    },
    Clause {
        id: "storage.leased-head",
        title: "a row that is leased holds back the later ones of its key, and no others",
        demands: DEMANDS,
        timed: false,
        check: |stage| Box::pin(leased_head(stage)),
    },
    Clause {
        id: "storage.settled-head",
        title: "a delivered or dead row lets the later ones of its key go",
        demands: "claim: \"an unbroken run from its first unsettled row\"",
        timed: true,
        check: |stage| Box::pin(settled_head(stage)),
    },
    Clause {
        id: "storage.expired-run",
        title: "rows of a key whose leases have ended come again from the first on",
        demands: "claim: \"claimed in insertion order as an unbroken run from its first unsettled row\"",
        timed: true,
        check: |stage| Box::pin(expired_run(stage)),
    },
    Clause {
        id: "storage.no-key",
        title: "rows without a key hold back nothing",
        demands: "batch: \"None: the message is independent of all others\"",
        timed: false,
        check: |stage| Box::pin(no_key(stage)),
    },
];

async fn waiting_head(stage: &Stage, verdict: Verdict) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    host.needs_strict_order()?;
    stage.insert_of(&host, Some("k"), &["1"]).await?;
    let head = host.claim(&by("a")).await?;
    claimed_exactly("at first", &head, &["1"])?;
    host.settle_held("a", verdict, &ids(&head.batch)).await?;
    stage.insert_of(&host, Some("k"), &["2", "3"]).await?;
    stage.insert_of(&host, Some("other"), &["x"]).await?;
    claimed_exactly("while the first of a key waits: the message of the other key", &host.claim_all(&by("a")).await?, &["x"])?;
    claimed_nothing("while the first of a key waits, on another host", &other.claim(&by("b")).await?)
}

async fn leased_head(stage: &Stage) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    host.needs_strict_order()?;
    stage.insert_of(&host, Some("k"), &["1"]).await?;
    let head = host.claim(&by("a")).await?;
    claimed_exactly("at first", &head, &["1"])?;
    stage.insert_of(&host, Some("k"), &["2"]).await?;
    stage.insert_of(&host, Some("other"), &["x"]).await?;
    let seen = other.claim_all(&by("b")).await?;
    claimed_exactly("while another worker holds the first of a key: the message of the other key", &seen, &["x"])?;
    claimed_nothing("by the worker that holds the first of a key", &host.claim(&by("a")).await?)?;
    host.settle_held("a", Verdict::Delivered, &ids(&head.batch)).await?;
    claimed_exactly("once the first is delivered", &other.claim(&by("b")).await?, &["2"])
}

async fn settled_head(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    for verdict in [Verdict::Dead(failure()), Verdict::Delivered] {
        let when = format!("after `{}` of the first of a key", super::stage::name_of(&verdict));
        stage.insert_of(&host, Some("k"), &["1"]).await?;
        let head = host.claim(&by("a")).await?;
        claimed_exactly("at first", &head, &["1"])?;
        host.settle_held("a", verdict, &ids(&head.batch)).await?;
        stage.insert_of(&host, Some("k"), &["2"]).await?;
        let next = host.claim(&by("a")).await?;
        claimed_exactly(&when, &next, &["2"])?;
        host.settle_held("a", Verdict::Delivered, &ids(&next.batch)).await?;
    }
    Ok(())
}

async fn expired_run(stage: &Stage) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    host.needs_strict_order()?;
    let all = ["1", "2", "3"];
    stage.insert_of(&host, Some("k"), &all).await?;
    for (when, claimed) in [
        ("at first", host.claim(&briefly("a")).await?),
        ("after their leases have ended", other.claim_in_time("after their leases have ended", &by("b")).await?),
    ] {
        let seen = payloads(&claimed.batch);
        let is_run = !seen.is_empty() && all.iter().zip(&seen).all(|(expected, seen)| expected == seen);
        expect(is_run && seen.len() <= all.len(), format!("{when}: {all:?}, from the first on"), || format!("{seen:?}"))?;
    }
    Ok(())
}

async fn no_key(stage: &Stage) -> Checked {
    let (host, other) = (stage.host().await?, stage.host().await?);
    stage.insert_of(&host, None, &["waits"]).await?;
    let waiting = host.claim(&by("a")).await?;
    host.settle_held("a", retry(LONG), &ids(&waiting.batch)).await?;
    stage.insert_of(&host, None, &["leased"]).await?;
    claimed_exactly("while another message without a key waits", &host.claim(&by("a")).await?, &["leased"])?;
    stage.insert_of(&host, None, &["free"]).await?;
    claimed_exactly("while others without a key wait and are leased", &other.claim(&by("b")).await?, &["free"])
}
