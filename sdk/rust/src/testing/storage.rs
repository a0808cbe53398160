//! A storage, called natively; what it claims is held against its contract.

use crate::{
    Batch, ClaimRequest, Claimed, Column, Description, Failure, FailureCode, MinimalStorage, Retry, Settlement, Verdict,
    database::failure::code_word,
};
use std::collections::HashSet;

/// An opened storage.
#[derive(Debug)]
pub struct StorageBench<S> {
    storage: S,
    /// What it says of itself.
    pub description: Description,
}

/// What came of a claim instead of rows.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageFault {
    /// The storage says so.
    #[error("{}: {}", code_word(&.0.code), .0.detail)]
    Failed(Failure),
    /// More than asked for.
    #[error("{rows} rows were claimed, and {limit} were asked for")]
    TooMany {
        /// Rows of the batch.
        rows: usize,
        /// What the request said.
        limit: u32,
    },
    /// The columns of a batch have one value a message.
    #[error("the column `{column}` has {values} values for {rows} rows")]
    Column {
        /// As in `record batch`.
        column: &'static str,
        /// Its values.
        values: usize,
        /// Rows of the batch.
        rows: usize,
    },
    /// A row is claimed or refused once.
    #[error("row `{0}` came twice in one claim")]
    Twice(String),
    /// A claim is an attempt.
    #[error("row `{0}` was claimed and has no attempt counted")]
    NoAttempt(String),
}

impl<S: MinimalStorage> StorageBench<S> {
    /// Opens the storage with a configuration, as JSON.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn open(config: &str) -> Result<Self, Failure> {
        S::open(config).map(|(storage, description)| Self { storage, description })
    }

    /// The storage itself, for all other calls.
    pub fn adapter(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Claims.
    ///
    /// # Errors
    /// Those of the storage; and if what comes back cannot be an answer to the request.
    pub fn claim(&mut self, request: &ClaimRequest) -> Result<Claimed, StorageFault> {
        let claimed = self.storage.claim(request).map_err(StorageFault::Failed)?;
        check(&claimed, request.limit)?;
        Ok(claimed)
    }
}

fn check(claimed: &Claimed, limit: u32) -> Result<(), StorageFault> {
    let batch = &claimed.batch;
    let rows = batch.len();
    if u32::try_from(rows).map_or(true, |rows| rows > limit) {
        return Err(StorageFault::TooMany { rows, limit });
    }
    for (column, values) in [
        ("topics", batch.topics.len()),
        ("keys", batch.keys.len()),
        ("header-ends", batch.header_ends.len()),
        ("payloads", batch.payloads.len()),
        ("attempts", batch.attempts.len()),
        ("created-at", batch.created_at.len()),
    ] {
        if values != rows {
            return Err(StorageFault::Column { column, values, rows });
        }
    }
    let mut seen = HashSet::new();
    for id in batch.messages().map(|message| message.id()).chain(claimed.refused.iter().map(|refusal| refusal.id.as_str())) {
        if !seen.insert(id) {
            return Err(StorageFault::Twice(id.to_owned()));
        }
    }
    match batch.messages().find(|message| message.attempts() == 0) {
        Some(message) => Err(StorageFault::NoAttempt(message.id().to_owned())),
        None => Ok(()),
    }
}

/// A claim of at most `limit` rows under a lease of a minute, without other limits.
#[must_use]
pub fn claim_request(worker: &str, limit: u32) -> ClaimRequest {
    ClaimRequest { worker: worker.to_owned(), limit, max_bytes: u64::MAX, lease_ms: 60_000, max_attempts: 0, max_message_bytes: u64::MAX }
}

/// The ids of a batch, in its order.
#[must_use]
pub fn ids(batch: &Batch) -> Vec<String> {
    batch.messages().map(|message| message.id().to_owned()).collect()
}

/// One verdict for these rows.
#[must_use]
pub fn settlement<S: AsRef<str>>(verdict: Verdict, ids: &[S]) -> Settlement {
    Settlement { verdict, ids: Column::of_texts(ids) }
}

/// Due again after the delay.
#[must_use]
pub fn retry(detail: &str, delay_ms: u64) -> Verdict {
    Verdict::Retry(Retry { failure: Failure::of(FailureCode::Network, detail), delay_ms })
}

/// Never again.
#[must_use]
pub fn dead(detail: &str) -> Verdict {
    Verdict::Dead(Failure::of(FailureCode::InvalidMessage, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewMessage, Refusal};

    fn claimed(ids: &[&str]) -> Claimed {
        let mut batch = Batch::new();
        for id in ids {
            batch.push(&NewMessage { id, topic: "t", attempts: 1, ..NewMessage::default() });
        }
        Claimed { batch, refused: Vec::new(), unfinished: false }
    }

    #[test]
    fn a_claim_that_keeps_the_contract_passes() {
        assert_eq!(check(&claimed(&["1", "2"]), 2), Ok(()));
        assert_eq!(check(&claimed(&[]), 1), Ok(()));
    }

    #[test]
    fn a_claim_that_breaks_it_is_told() {
        let told = |change: &dyn Fn(&mut Claimed), limit| {
            let mut claimed = claimed(&["1", "2"]);
            change(&mut claimed);
            check(&claimed, limit).unwrap_err().to_string()
        };
        assert_eq!(told(&|_| {}, 1), "2 rows were claimed, and 1 were asked for");
        assert_eq!(told(&|claimed| claimed.batch.keys.push(None), 2), "the column `keys` has 3 values for 2 rows");
        assert_eq!(told(&|claimed| claimed.batch.attempts[1] = 0, 2), "row `2` was claimed and has no attempt counted");
        let refusal = || Refusal { id: "1".into(), failure: Failure::invalid_message("no") };
        assert_eq!(told(&|claimed| claimed.refused.push(refusal()), 2), "row `1` came twice in one claim");
    }
}
