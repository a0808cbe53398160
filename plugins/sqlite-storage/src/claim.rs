//! Claiming: scan, choose, lease; in one transaction, together with settling where that is asked for.

use crate::outbox::Outbox;
use crate::search::Search;
use outbox_table::database::{Database, Results, Transaction};
use outbox_table::search::{self, Segment, Source, Trouble};
use outbox_table::settle::undecodable;
use outhaul_sdk::{Batch, ClaimRequest, Claimed, Failure, FailureCode, Refusal, Settlement, Turn};

impl<D: Database> Outbox<D> {
    /// Leases rows that are due.
    ///
    /// # Errors
    /// Those of the database; nothing is leased then.
    pub fn claim(&mut self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        self.settle_and_claim(&[], request).map(|turn| turn.claimed)
    }

    /// Settles, then claims, in one transaction.
    ///
    /// # Errors
    /// Those of the database; nothing is settled or leased then.
    pub fn settle_and_claim(&mut self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        let (mut turn, faults) = match self.turn(settlements, request) {
            Ok(done) => done,
            Err(Trouble::Sql(error)) => return Err(self.failed(&error, "claiming")),
            Err(Trouble::Failure(failure)) => return Err(failure),
        };
        if !faults.is_empty() {
            // They are leased and stay out of the batch. Where they cannot be ended now, they come up again when the lease ends, and
            // are reported then; the rows beside them must not wait for that.
            if let Ok(lost) = self.settle(&request.worker, &undecodable(&faults)) {
                let ended = faults.into_iter().filter(|(id, _)| !lost.contains(id));
                turn.claimed.refused.extend(ended.map(|(id, reason)| Refusal { id, failure: Failure::invalid_message(reason) }));
            }
        }
        Ok(turn)
    }

    /// The transaction; and the leased rows that could not be decoded.
    fn turn(&mut self, settlements: &[Settlement], request: &ClaimRequest) -> Result<(Turn, Vec<(String, String)>), Trouble> {
        self.ready()?;
        let Self { writer, random, notice, ready: Some(ready), looking, .. } = self else { return Err(Trouble::Failure(not_ready())) };
        let search = Search { ready, tenant: None, horizon_ms: 0 };
        let limits = search::limits(request, ready.layout.config.strict_order);
        let start = looking.start(ready, limits);

        let mut statements = Vec::new();
        let written = ready.verdicts.settle(&request.worker, settlements, &mut statements);
        statements.push(search.scan(start.after(), start.rows));
        let (transaction, rows) = writer.begin(statements)?;
        let mut results = Results::new(rows);
        let lost = ready.verdicts.lost(written, &mut results)?;
        let first = Segment::read(&ready.decoding, &mut results.next_rows()?)?;

        let mut chosen = search.choose(&transaction, looking, random, (request, limits), (start, first))?;
        *notice = chosen.notice().or(notice.take());
        if !(chosen.is_empty() || ready.states_tried) {
            drop(transaction);
            self.try_states()?;
            return self.turn(settlements, request);
        }
        if chosen.is_empty() {
            if !settlements.is_empty() {
                transaction.commit(Vec::new())?;
            }
            looking.keep(&mut chosen);
            let claimed = Claimed { batch: Batch::new(), refused: Vec::new(), unfinished: chosen.unfinished };
            return Ok((Turn { lost, claimed }, Vec::new()));
        }
        let rows = transaction.commit(std::mem::take(&mut chosen.statements))?;
        looking.keep(&mut chosen);
        let taken = search.read(&mut chosen, rows)?;
        Ok((Turn { lost, claimed: Claimed { batch: taken.batch, refused: taken.refused, unfinished: false } }, taken.faults))
    }
}

pub(crate) fn not_ready() -> Failure {
    Failure::of(FailureCode::Unavailable, "the table is not there")
}
