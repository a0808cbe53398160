//! Which rows a claim takes.

use crate::after;
use crate::statement::{batch, run, statement};
use outhaul_sdk::database::failure::recorded;
use outhaul_sdk::database::{ColumnType, Transaction, Value};
use outhaul_sdk::{ClaimRequest, Claimed, Failure, FailureCode, Refusal};

/// Rows that one claim ends dead at most; the host claims again at once.
const MOST_REFUSED: usize = 1000;

/// A row that is due, free, and behind no row of its key that is not: without its body, which may be large.
struct Candidate {
    seq: i64,
    id: String,
    attempts: u64,
    bytes: u64,
}

/// What becomes of the candidates.
#[derive(Default)]
struct Choice {
    chosen: Vec<i64>,
    refused: Vec<(i64, Refusal)>,
    unfinished: bool,
}

pub(crate) fn claim<T: Transaction>(transaction: &T, table: &str, now: i64, request: &ClaimRequest) -> Result<Claimed, Failure> {
    let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
    let asked = limit.saturating_add(MOST_REFUSED);
    let candidates = candidates(transaction, table, now, asked)?;
    let cut_short = candidates.len() == asked;
    let mut choice = choose(candidates, limit, request);
    choice.unfinished |= cut_short && choice.chosen.len() < limit;

    let lease =
        format!("UPDATE {table} SET attempts = attempts + 1, worker = ?1, lease_end = ?2 WHERE seq IN (SELECT value FROM json_each(?3))");
    let lease_end = Value::Integer(after(now, request.lease_ms));
    let leased = statement(lease, [Value::Text(request.worker.clone()), lease_end, Value::Integers(choice.chosen.clone())], &[]);
    run(transaction, "leasing", leased)?;
    for (seq, refusal) in &choice.refused {
        let end =
            format!("UPDATE {table} SET state = 'dead', settled_at = ?1, last_error = ?2, worker = NULL, lease_end = 0 WHERE seq = ?3");
        let ended = [Value::Integer(now), Value::Text(recorded(&refusal.failure)), Value::Integer(*seq)];
        run(transaction, "ending rows", statement(end, ended, &[]))?;
    }
    let batch = batch(transaction, table, choice.chosen)?;
    Ok(Claimed { batch, refused: choice.refused.into_iter().map(|(_, refusal)| refusal).collect(), unfinished: choice.unfinished })
}

fn candidates<T: Transaction>(transaction: &T, table: &str, now: i64, limit: usize) -> Result<Vec<Candidate>, Failure> {
    use ColumnType::{Integer, Text};
    // A key of NULL equals none: such a row waits for nobody.
    let sql = format!(
        "SELECT seq, id, attempts, \
           octet_length(headers) + coalesce(octet_length(payload), 0) + coalesce(octet_length(key), 0) \
         FROM {table} AS row \
         WHERE state = 'pending' AND due_at <= ?1 AND lease_end <= ?1 AND NOT EXISTS ( \
           SELECT 1 FROM {table} AS earlier \
           WHERE earlier.key = row.key AND earlier.seq < row.seq AND earlier.state = 'pending' \
             AND (earlier.due_at > ?1 OR earlier.lease_end > ?1)) \
         ORDER BY seq LIMIT ?2"
    );
    let parameters = [Value::Integer(now), Value::Integer(i64::try_from(limit).unwrap_or(i64::MAX))];
    let mut found = run(transaction, "looking for rows", statement(sql, parameters, &[Integer, Text, Integer, Integer]))?;
    let (seqs, ids, attempts, bytes) = (found.integers()?, found.bytes()?, found.integers()?, found.integers()?);
    let candidate = |index| {
        let id = ids.text(index).unwrap_or_default().to_owned();
        seqs.get(index).map(|seq| Candidate { seq, id, attempts: attempts.count(index), bytes: bytes.count(index) })
    };
    Ok((0..seqs.len()).filter_map(candidate).collect())
}

/// Takes the candidates in their order, as many as fit. One that can never be claimed again is refused, and its followers go on.
fn choose(candidates: Vec<Candidate>, limit: usize, request: &ClaimRequest) -> Choice {
    let mut choice = Choice::default();
    let mut bytes = 0_u64;
    for candidate in candidates {
        if choice.chosen.len() == limit {
            break;
        }
        let attempts = candidate.attempts;
        let failure = if request.max_attempts > 0 && attempts >= u64::from(request.max_attempts) {
            let text = format!("gave up after {attempts} attempts: the lease of the last one ran out");
            Some(Failure::of(FailureCode::Other("attempts-used-up".to_owned()), text))
        } else if candidate.bytes > request.max_message_bytes {
            let text = format!("{} bytes are more than the limit of {}", candidate.bytes, request.max_message_bytes);
            Some(Failure::of(FailureCode::TooLarge, text))
        } else {
            None
        };
        if let Some(failure) = failure {
            if choice.refused.len() == MOST_REFUSED {
                choice.unfinished = true;
                break;
            }
            choice.refused.push((candidate.seq, Refusal { id: candidate.id, failure }));
            continue;
        }
        bytes = bytes.saturating_add(candidate.bytes);
        if bytes > request.max_bytes && !choice.chosen.is_empty() {
            break;
        }
        choice.chosen.push(candidate.seq);
    }
    choice
}

#[cfg(test)]
mod tests {
    use super::*;
    use outhaul_sdk::testing::claim_request;

    fn candidates(rows: &[(u64, u64)]) -> Vec<Candidate> {
        let candidate =
            |(seq, (attempts, bytes)): (i64, &(u64, u64))| Candidate { seq, id: seq.to_string(), attempts: *attempts, bytes: *bytes };
        (0..).zip(rows).map(candidate).collect()
    }

    #[test]
    fn rows_are_taken_in_order_up_to_each_limit() {
        let rows = [(0, 40), (0, 40), (0, 40)];
        assert_eq!(choose(candidates(&rows), 2, &claim_request("w", 2)).chosen, [0, 1]);
        let request = |max_bytes| ClaimRequest { max_bytes, ..claim_request("w", 3) };
        assert_eq!(choose(candidates(&rows), 3, &request(80)).chosen, [0, 1]);
        assert_eq!(choose(candidates(&rows), 3, &request(1)).chosen, [0], "the first may be larger");
    }

    #[test]
    fn what_can_never_be_claimed_again_is_refused() {
        let request = ClaimRequest { max_attempts: 3, max_message_bytes: 50, ..claim_request("w", 9) };
        let choice = choose(candidates(&[(3, 1), (2, 51), (2, 50)]), 9, &request);
        assert_eq!(choice.chosen, [2]);
        let told: Vec<&FailureCode> = choice.refused.iter().map(|(_, refusal)| &refusal.failure.code).collect();
        assert_eq!(told, [&FailureCode::Other("attempts-used-up".into()), &FailureCode::TooLarge]);
        assert!(!choice.unfinished);
    }

    #[test]
    fn a_claim_that_refuses_a_thousand_is_unfinished() {
        let request = ClaimRequest { max_attempts: 1, ..claim_request("w", 9) };
        let choice = choose(candidates(&[(1, 1); MOST_REFUSED + 1]), 9, &request);
        assert!(choice.unfinished && choice.refused.len() == MOST_REFUSED);
    }
}
