//! What a claim returns.

use super::stage::{Stage, by, claimed_nothing, ids, message};
use crate::conformance::clause::{Checked, Clause, expect, same};

pub(super) static CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "storage.empty-claim",
        title: "a claim of an empty table returns nothing",
        demands: "claim: \"An empty batch means that nothing is due\"",
        check: |stage| Box::pin(empty_claim(stage)),
    },
    Clause {
        id: "storage.order-in-batch",
        title: "a batch is in the order of insertion",
        demands: "batch: \"for one key, the order of insertion\"",
        check: |stage| Box::pin(order_in_batch(stage)),
    },
];

async fn empty_claim(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    claimed_nothing("in an empty table", &host.claim(&by("a")).await?)?;
    claimed_nothing("in an empty table, a second time", &host.claim(&by("a")).await?)
}

async fn order_in_batch(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    // More than nine, so that an order by text shows.
    let numbers: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    let messages: Vec<_> = numbers.iter().map(|number| message(Some("k"), number)).collect();
    let inserted = stage.insert(&host, &messages).await?;
    let claimed = host.claim(&by("a")).await?;
    let seen = ids(&claimed.batch);
    expect(!seen.is_empty(), "a batch that begins with the first message of the key", || "an empty batch".to_owned())?;
    same("the ids of the batch", &seen, &inserted.into_iter().take(seen.len()).collect())
}
