//! What a claim returns: how much, and in which order.

use super::stage::{Host, Stage, by, claimed_exactly, claimed_nothing, ids, message, payloads, settlement};
use crate::conformance::clause::{Checked, Clause, Stop, expect, same};
use crate::domain::{Message, NewMessage, Verdict};
use crate::ports::{ClaimRequest, Claimed};

pub(super) static CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "storage.empty-claim",
        title: "a claim of an empty table returns nothing",
        demands: "claim: \"An empty batch means that nothing is due that can be had now\"",
        timed: false,
        check: |stage| Box::pin(empty_claim(stage)),
    },
    Clause {
        id: "storage.order-in-batch",
        title: "a batch has the messages of a key in the order of insertion",
        demands: "batch: \"for one key, the order of insertion\"",
        timed: false,
        check: |stage| Box::pin(order_in_batch(stage)),
    },
    Clause {
        id: "storage.order-across-claims",
        title: "from claim to claim, the messages of a key come in the order of insertion",
        demands: "claim: \"With strict order, a key's rows are claimed in insertion order\"",
        timed: false,
        check: |stage| Box::pin(order_across_claims(stage)),
    },
    Clause {
        id: "storage.limit",
        title: "a claim returns at most `limit` rows, and leases no others",
        demands: "claim-request: \"At most so many rows\"",
        timed: false,
        check: |stage| Box::pin(limit(stage)),
    },
    Clause {
        id: "storage.max-bytes",
        title: "a claim returns at most `max-bytes`, or else one row",
        demands: "claim-request: \"At most so many bytes, headers and keys included (the first row may be larger)\"",
        timed: false,
        check: |stage| Box::pin(max_bytes(stage)),
    },
    Clause {
        id: "storage.max-message-bytes",
        title: "a row over `max-message-bytes` ends dead and is reported, and lets the others go",
        demands: "claim-request: \"A row with more bytes than this ends dead instead of being claimed\"",
        timed: false,
        check: |stage| Box::pin(max_message_bytes(stage)),
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

async fn order_across_claims(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    host.needs_strict_order()?;
    let numbers: Vec<String> = (0..24).map(|number| number.to_string()).collect();
    let messages = numbers.iter().enumerate().map(|(place, number)| message(Some(if place % 2 == 0 { "j" } else { "k" }), number));
    stage.insert(&host, &messages.collect::<Vec<_>>()).await?;
    let mut seen: [Vec<String>; 2] = Default::default();
    for _ in 0..=numbers.len() {
        let claimed = host.claim(&ClaimRequest { limit: 5, ..by("a") }).await?;
        for message in claimed.batch.messages() {
            let [of_j, of_k] = &mut seen;
            let of_key = if message.key() == Some("j") { of_j } else { of_k };
            of_key.push(String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned());
        }
        let delivered = settlement(Verdict::Delivered, ids(&claimed.batch));
        if !claimed.batch.is_empty() {
            host.settle("a", &[delivered]).await?;
        }
    }
    let expected = [0, 1].map(|first| numbers.iter().skip(first).step_by(2).cloned().collect());
    same("what was claimed of two keys, one after the other", &seen, &expected)
}

async fn limit(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    stage.insert_of(&host, None, &["0", "1", "2", "3", "4"]).await?;
    let request = ClaimRequest { limit: 2, ..by("a") };
    let mut seen = Vec::new();
    for _ in 0..5 {
        let claimed = host.claim(&request).await?;
        expect(claimed.batch.len() <= 2, "at most 2 rows", || format!("{} rows", claimed.batch.len()))?;
        seen.extend(payloads(&claimed.batch));
    }
    seen.sort_unstable();
    // A row that was leased beyond the limit would not be among them.
    same("the messages of all claims", &seen, &["0", "1", "2", "3", "4"].map(str::to_owned).to_vec())
}

/// Bytes of a message as the contract counts them: payload, key, names and values of headers.
fn bytes_of(message: Message<'_>) -> usize {
    let headers: usize = message.headers().map(|(name, value)| name.len() + value.len()).sum();
    message.payload().map_or(0, <[u8]>::len) + message.key().map_or(0, str::len) + headers
}

async fn max_bytes(stage: &Stage) -> Checked {
    const ROW: usize = 10_000;
    const ROWS: usize = 6;
    const MOST: u64 = 25_000;
    let host = stage.host().await?;
    let text = "x".repeat(ROW);
    stage.insert_of(&host, None, &[text.as_str(); ROWS]).await?;
    in_parts(&host, "payloads", ROWS, MOST).await?;
    stage.insert_of(&host, None, &[text.as_str(); 2]).await?;
    let claimed = host.claim(&ClaimRequest { max_bytes: 1, ..by("a") }).await?;
    expect(claimed.batch.len() == 1, format!("with max-bytes = 1: one row, of {ROW} bytes"), || format!("{} rows", claimed.batch.len()))?;
    in_parts(&host, "payloads", 1, MOST).await?;
    // A database has an index on keys, and an index has a limit: many long keys, and none too long.
    let keys: Vec<String> = (0..40).map(|number| format!("{number:02}{}", "k".repeat(998))).collect();
    let messages: Vec<_> = keys.iter().map(|key| message(Some(key), "p")).collect();
    stage.insert(&host, &messages).await?;
    in_parts(&host, "keys", keys.len(), MOST).await?;
    let headers = || NewMessage { headers: vec![("name", text.as_bytes())], ..message(None, "p") };
    let messages: Vec<_> = (0..ROWS).map(|_| headers()).collect();
    match stage.insert_if_taken(&host, &messages).await? {
        Ok(_) => in_parts(&host, "headers", ROWS, MOST).await,
        // The table has none, or none so long.
        Err(_) => Ok(()),
    }
}

/// Claims so many rows, with at most so many bytes in each claim.
async fn in_parts(host: &Host, of: &str, rows: usize, most: u64) -> Checked {
    let request = ClaimRequest { max_bytes: most, ..by("a") };
    let mut found = 0;
    while found < rows {
        let claimed = host.claim(&request).await?;
        let here = claimed.batch.len();
        let bytes: usize = claimed.batch.messages().map(bytes_of).sum();
        let fits = here == 1 || u64::try_from(bytes).unwrap_or(u64::MAX) <= most;
        expect(here > 0 && fits, format!("some of the rows with long {of}, at most {most} bytes in all, or one"), || {
            format!("{here} rows of {bytes} bytes in all, after {found} of {rows} rows")
        })?;
        found += here;
    }
    Ok(())
}

async fn max_message_bytes(stage: &Stage) -> Checked {
    const LARGE: usize = 100_000;
    let host = stage.host().await?;
    let text = "x".repeat(LARGE);
    let long_key = "k".repeat(1_000);
    too_large(stage, &host, "payload", message(Some("k"), &text), 50_000).await?;
    too_large(stage, &host, "key", message(Some(&long_key), "p"), 800).await?;
    too_large(stage, &host, "headers", NewMessage { headers: vec![("name", text.as_bytes())], ..message(Some("h"), "p") }, 50_000).await
}

/// That a message whose bytes are mostly in its `what` ends dead, and lets one behind it and one beside it go.
async fn too_large(stage: &Stage, host: &Host, what: &str, large: NewMessage<'_>, most: u64) -> Checked {
    let key = large.key;
    let Ok(inserted) = stage.insert_if_taken(host, &[large]).await? else { return Ok(()) };
    let [large_id] = inserted.as_slice() else { return Err(Stop::failed("one id", format!("{inserted:?}"))) };
    // One with the same long key would be as large.
    let behind = key.filter(|key| key.len() < 100);
    stage.insert(host, &[message(behind, "behind it"), message(None, "beside it")]).await?;
    let claimed = host.claim_all(&ClaimRequest { max_message_bytes: most, ..by("a") }).await?;
    let refused: Vec<&String> = claimed.refused.iter().map(|(id, _)| id).collect();
    let expected = format!("the id {large_id} of the row with a large {what} among `refused`, where max-message-bytes is {most}");
    expect(refused == [large_id], expected, || format!("refused: {refused:?}; claimed: {} rows", claimed.batch.len()))?;
    let held = ids(&claimed.batch);
    claimed_exactly("of the others", &Claimed { refused: Vec::new(), ..claimed }, &["behind it", "beside it"])?;
    claimed_nothing("once it was refused, also with a larger limit", &host.claim(&by("b")).await?)?;
    host.settle_held("a", Verdict::Delivered, &held).await
}
