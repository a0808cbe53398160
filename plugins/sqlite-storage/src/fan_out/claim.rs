//! Claiming tenant by tenant: the tenants of a claim share out its rows, in one transaction.

use super::FanOut;
use crate::claim::not_ready;
use crate::outbox::{Outbox, Ready};
use crate::search::{Looking, Search, Taken};
use crate::walk;
use outbox_table::choose::Limits;
use outbox_table::database::{Database, Results, Rows, Statement, Transaction, Value};
use outbox_table::fan_out::{self, Listing, MOST_TENANTS, Turns, share};
use outbox_table::random::Random;
use outbox_table::search::{self, Segment, Source, Trouble, integer};
use outbox_table::settle::undecodable;
use outbox_table::template::{Slot, Template};
use outhaul_sdk::{ClaimRequest, Claimed, Column, Events, Failure, Refusal};
use std::collections::HashMap;
use std::time::Instant;

/// A claim of one table.
struct Claim<'a> {
    ready: &'a Ready,
    request: &'a ClaimRequest,
    /// Only the rows of this one.
    tenant: Option<&'a str>,
    horizon_ms: u64,
    /// What is asked about the leased rows `Ids` before the transaction ends.
    ask: Option<&'a Template>,
    states_tried: bool,
}

/// What a claim came to.
struct Done {
    taken: Taken,
    unfinished: bool,
    /// The answer about the leased rows.
    answer: Option<Rows>,
}

impl<D: Database> Outbox<D> {
    /// Leases events that are due; of one tenant, or of all in turn.
    ///
    /// # Errors
    /// Those of the database; nothing is leased then.
    pub fn claim_events(&mut self, request: &ClaimRequest, tenant: Option<&str>) -> Result<Events, Failure> {
        self.fan_out()?;
        let done = loop {
            match self.events(request, tenant) {
                Ok(Some(done)) => break done,
                // Rows were found, and nothing was leased: their states are to be tried first.
                Ok(None) => self.try_states()?,
                Err(Trouble::Sql(error)) => return Err(self.failed(&error, "claiming events")),
                Err(Trouble::Failure(failure)) => {
                    self.event_turns.forget();
                    return Err(failure);
                }
            }
        };
        let Done { taken, unfinished, answer } = done;
        let mut refused = taken.refused;
        if !taken.faults.is_empty()
            && let Ok(lost) = self.settle(&request.worker, &undecodable(&taken.faults))
        {
            let ended = taken.faults.into_iter().filter(|(id, _)| !lost.contains(id));
            refused.extend(ended.map(|(id, reason)| Refusal { id, failure: Failure::invalid_message(reason) }));
        }
        let of_events = self.read_of_events(answer)?;
        let mut events =
            Events { claimed: Claimed { batch: taken.batch, refused, unfinished }, tenants: Column::new(), generations: Vec::new() };
        for message in events.claimed.batch.messages() {
            let (tenant, generation) = of_events.get(message.id()).cloned().unwrap_or((String::new(), 1));
            events.tenants.push(Some(tenant.as_bytes()));
            events.generations.push(generation);
        }
        Ok(events)
    }

    /// The transaction; none if the table's states are to be tried first.
    fn events(&mut self, request: &ClaimRequest, tenant: Option<&str>) -> Result<Option<Done>, Trouble> {
        let Self { writer, random, notice, ready: Some(ready), fan_out: Some(fan_out), event_turns, .. } = self else {
            return Err(Trouble::Failure(not_ready()));
        };
        let states_tried = ready.states_tried;
        let FanOut { events, of_events, .. } = fan_out;
        let ready = events.as_ref().unwrap_or(ready);
        Claim { ready, request, tenant, horizon_ms: 0, ask: Some(of_events), states_tried }.run(writer, event_turns, random, notice)
    }

    /// Tenant and generation by id, from the answer to `of_events`.
    pub(super) fn read_of_events(&self, answer: Option<Rows>) -> Result<HashMap<String, (String, u32)>, Failure> {
        let (Some(answer), Some(ready)) = (answer, &self.ready) else { return Ok(HashMap::new()) };
        let mut reader = Results::new(vec![answer]).next_rows()?;
        let (ids, tenants, generations) = (ready.decoding.ids.read(&mut reader)?, reader.bytes()?, reader.integers()?);
        let event = |at| {
            let generation = u32::try_from(generations.count(at)).unwrap_or(u32::MAX);
            (ids.text(at).into_owned(), (outbox_table::page::text_of(&tenants, at), generation))
        };
        Ok((0..ids.len()).map(event).collect())
    }

    /// Leases deliveries that are due; of one tenant, or of all in turn. Those that were tried, are older than the horizon (0: there is none)
    /// and are free again are quarantined.
    ///
    /// # Errors
    /// Those of the database; nothing is leased then.
    pub fn claim_deliveries(&mut self, request: &ClaimRequest, tenant: Option<&str>, horizon_ms: u64) -> Result<Claimed, Failure> {
        self.fan_out()?;
        let done = match self.deliveries(request, tenant, horizon_ms) {
            Ok(Some(done)) => done,
            Ok(None) => return Err(not_ready()),
            Err(Trouble::Sql(error)) => return Err(self.failed(&error, "claiming deliveries")),
            Err(Trouble::Failure(failure)) => {
                self.delivery_turns.forget();
                return Err(failure);
            }
        };
        let Done { taken, unfinished, .. } = done;
        let mut refused = taken.refused;
        let verdicts = fan_out::undecodable(&taken.faults);
        if !verdicts.is_empty()
            && let Ok(lost) = self.settle_deliveries(&request.worker, &verdicts)
        {
            let ended = taken.faults.into_iter().filter(|(id, _)| !lost.contains(id));
            refused.extend(ended.map(|(id, reason)| Refusal { id, failure: fan_out::integrity(reason) }));
        }
        Ok(Claimed { batch: taken.batch, refused, unfinished })
    }

    fn deliveries(&mut self, request: &ClaimRequest, tenant: Option<&str>, horizon_ms: u64) -> Result<Option<Done>, Trouble> {
        let Self { writer, random, notice, fan_out: Some(fan_out), delivery_turns, .. } = self else {
            return Err(Trouble::Failure(not_ready()));
        };
        let ready = &fan_out.deliveries;
        Claim { ready, request, tenant, horizon_ms, ask: None, states_tried: true }.run(writer, delivery_turns, random, notice)
    }
}

impl Claim<'_> {
    /// Claims, in one transaction.
    fn run<D: Database>(
        &self,
        writer: &D,
        turns: &mut Turns<Looking>,
        random: &mut Random,
        notice: &mut Option<String>,
    ) -> Result<Option<Done>, Trouble> {
        let limits = search::limits(self.request, self.ready.layout.config.strict_order);
        let (transaction, listing) = self.begin(writer, turns, limits.rows)?;
        let mut round =
            Round { claim: self, transaction: &transaction, turns, random, notice, limits, taken: Taken::default(), unfinished: false };
        let looked = round.share_out(&listing.tenants)?;
        let Round { taken, unfinished, limits: left, .. } = round;
        let wrote = left.rows < limits.rows || !taken.refused.is_empty();
        if wrote && !self.states_tried {
            // Dropping the transaction rolls it back, and what was seen in it is worth nothing.
            turns.forget();
            return Ok(None);
        }
        let answer = if wrote { transaction.commit(self.asked(&taken).into_iter().collect())?.pop() } else { None };
        let others = self.tenant.is_none() && turns.looked(&listing, looked, wrote);
        Ok(Some(Done { taken, unfinished: !wrote && (unfinished || others), answer }))
    }

    /// Begins the transaction, with the tenants that it is about.
    fn begin<D: Database>(&self, writer: &D, turns: &Turns<Looking>, rows: usize) -> Result<(D::Transaction, Listing), Trouble> {
        let one = |tenant: &str| Listing::new(Vec::new(), vec![tenant.to_owned()], MOST_TENANTS);
        let (Some(templates), None) = (&self.ready.scan.tenants, self.tenant) else {
            // Without tenants, every event is the empty one's.
            let has_none = self.ready.scan.tenants.is_none() && self.tenant.is_some_and(|tenant| !tenant.is_empty());
            let listing = if has_none { Listing::new(Vec::new(), Vec::new(), 1) } else { one(self.tenant.unwrap_or_default()) };
            return Ok((writer.begin(Vec::new())?.0, listing));
        };
        let most = rows.min(MOST_TENANTS);
        let cursor = turns.cursor();
        let [front, behind] = templates;
        let fill = |template: &Template| {
            template.fill(|slot| match slot {
                Slot::Tenant => cursor.map_or(Value::Null, |cursor| Value::Text(cursor.to_owned())),
                Slot::Limit => integer(most),
                _ => Value::Null,
            })
        };
        let statements = if cursor.is_some() { vec![fill(front), fill(behind)] } else { vec![fill(front)] };
        let (transaction, rows) = writer.begin(statements)?;
        let mut results = Results::new(rows);
        let mut names = || -> Result<Vec<String>, Failure> {
            let tenants = results.next_rows()?.bytes()?;
            Ok((0..tenants.len()).filter_map(|at| tenants.text(at).map(str::to_owned)).collect())
        };
        let front = names()?;
        let behind = if cursor.is_some() { names()? } else { front.clone() };
        Ok((transaction, Listing::new(behind, front, most)))
    }

    /// What is asked about the rows that were leased.
    fn asked(&self, taken: &Taken) -> Option<Statement> {
        let ids = self.ready.decoding.ids.parameter(&taken.batch.ids).0;
        self.ask.map(|template| template.fill(|slot| if slot == Slot::Ids { ids.clone() } else { Value::Null }))
    }
}

/// The tenants of one claim, in its transaction.
struct Round<'a, T> {
    claim: &'a Claim<'a>,
    transaction: &'a T,
    turns: &'a mut Turns<Looking>,
    random: &'a mut Random,
    notice: &'a mut Option<String>,
    /// What is left to take.
    limits: Limits,
    taken: Taken,
    /// There may be due rows at the tenants that were looked at.
    unfinished: bool,
}

impl<T: Transaction> Round<'_, T> {
    /// Gives each tenant its share, and what is left to those that could have used more; how many it has come to.
    fn share_out(&mut self, tenants: &[String]) -> Result<usize, Trouble> {
        let started = Instant::now();
        let over = |limits: Limits| limits.rows == 0 || limits.bytes == 0 || started.elapsed() >= walk::MAX_TIME;
        let mut looked = 0;
        let mut hungry = Vec::new();
        for tenant in tenants {
            if looked > 0 && over(self.limits) {
                break;
            }
            if self.take(tenant, tenants.len() - looked)? {
                hungry.push(tenant);
            }
            looked += 1;
        }
        if tenants.len() > 1 {
            for (at, tenant) in hungry.iter().enumerate() {
                if over(self.limits) {
                    break;
                }
                self.take(tenant, hungry.len() - at)?;
            }
        }
        Ok(looked)
    }

    /// Searches the rows of a tenant, and leases its share of what is left; whether it had more.
    fn take(&mut self, tenant: &str, tenants: usize) -> Result<bool, Trouble> {
        let Claim { ready, request, horizon_ms, .. } = *self.claim;
        let search = Search { ready, tenant: ready.layout.by_tenant.as_ref().map(|_| tenant), horizon_ms };
        let bytes = self.limits.bytes.div_ceil(u64::try_from(tenants.max(1)).unwrap_or(u64::MAX));
        // The first row of all may be larger than the batch, the first one of a tenant larger than its share.
        let first_bytes = if self.taken.batch.is_empty() { u64::MAX } else { self.limits.bytes };
        let limits = Limits { rows: share(self.limits.rows, tenants), bytes, first_bytes, ..self.limits };
        let looking = self.turns.memory(tenant);
        let start = looking.start(ready, limits);
        let rows = self.transaction.execute(vec![search.scan(start.after(), start.rows)])?;
        let first = Segment::read(&ready.decoding, &mut Results::new(rows).next_rows()?)?;
        let mut chosen = search.choose(self.transaction, looking, self.random, (request, limits), (start, first))?;
        *self.notice = chosen.notice().or(self.notice.take());
        if !chosen.is_empty() {
            let rows = self.transaction.execute(std::mem::take(&mut chosen.statements))?;
            let taken = search.read(&mut chosen, rows)?;
            self.taken.batch.append(taken.batch);
            self.taken.refused.extend(taken.refused);
            self.taken.faults.extend(taken.faults);
        }
        looking.keep(&mut chosen);
        self.limits.rows = self.limits.rows.saturating_sub(chosen.rows);
        self.limits.bytes = self.limits.bytes.saturating_sub(chosen.bytes);
        // What was left only for want of room is there for the next claim.
        self.unfinished |= chosen.unfinished || chosen.left;
        Ok(chosen.left || chosen.rows == limits.rows)
    }
}
