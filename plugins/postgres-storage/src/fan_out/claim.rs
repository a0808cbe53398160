//! Claims of events and of deliveries: of one tenant, or of several in turn, each searched by itself and all of them leased together.

use super::FanOut;
use crate::claim::{ROUNDS, Scope, Searched, weigh};
use crate::outbox::{Outbox, Ready};
use crate::take::{Emissions, Part, Taken, Taking};
use outbox_table::choose::Limits;
use outbox_table::database::{Database, Results, SqlErrorCode, Statement, Transaction, Value};
use outbox_table::decode::Decoded;
use outbox_table::fan_out::{self, Listing, MOST_TENANTS, Turns, share};
use outbox_table::page::text_of;
use outbox_table::random::Random;
use outbox_table::search::{self, Passed, Progress, Segment, Source, Start, Trouble, integer};
use outbox_table::settle::undecodable;
use outbox_table::template::Slot;
use outhaul_sdk::{Batch, ClaimRequest, Claimed, Column, Events, Failure, Refusal};

/// Which table is claimed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Events,
    Deliveries,
}

/// What one round came to.
struct Round {
    taken: Taken,
    unfinished: bool,
    /// Rows were chosen, and none of them was to be had.
    raced: bool,
}

impl<D: Database> Outbox<D> {
    /// Leases events that are due, with their tenants and generations; of one tenant, or of all in turn.
    ///
    /// # Errors
    /// Those of the database; nothing is leased then.
    pub fn claim_events(&mut self, request: &ClaimRequest, tenant: Option<&str>) -> Result<Events, Failure> {
        let (claimed, emissions) = self.claim_of(Of::Events, request, tenant, 0)?;
        let mut tenants = Column::new();
        let mut generations = Vec::with_capacity(claimed.batch.len());
        for message in claimed.batch.messages() {
            let (tenant, generation) = emissions.get(message.id()).map_or(("", 1), |(tenant, generation)| (tenant.as_str(), *generation));
            tenants.push(Some(tenant.as_bytes()));
            generations.push(generation);
        }
        let has_tenants = self.fan_out()?.events.layout.tenant.is_some();
        Ok(Events { claimed, tenants: if has_tenants { tenants } else { Column::new() }, generations })
    }

    /// Leases deliveries that are due; of one tenant, or of all in turn. Those that were tried and are older than the horizon are ended.
    ///
    /// # Errors
    /// Those of the database; nothing is leased then.
    pub fn claim_deliveries(&mut self, request: &ClaimRequest, tenant: Option<&str>, horizon_ms: u64) -> Result<Claimed, Failure> {
        self.claim_of(Of::Deliveries, request, tenant, horizon_ms).map(|(claimed, _)| claimed)
    }

    fn claim_of(&mut self, of: Of, request: &ClaimRequest, tenant: Option<&str>, horizon_ms: u64) -> Result<(Claimed, Emissions), Failure> {
        let mut rounds = 1..ROUNDS;
        let round = loop {
            match self.round_of(of, request, tenant, horizon_ms) {
                Ok(round) if !round.raced || rounds.next().is_none() => break round,
                Ok(_) => {}
                // Nothing was written. Somebody was in the way.
                Err(Trouble::Sql(error)) if error.code == SqlErrorCode::Busy && rounds.next().is_some() => self.forget_turns(),
                Err(Trouble::Sql(error)) => return Err(self.failed_at_fan_out(&error, "claiming")),
                Err(Trouble::Failure(failure)) => {
                    self.forget_turns();
                    return Err(failure);
                }
            }
        };
        let Taken { decoded, mut refused, emissions } = round.taken;
        if !decoded.faults.is_empty() {
            // They are leased and stay out of the batch. Where they cannot be ended now, they come up again when the lease ends.
            let lost = match of {
                Of::Events => self.settle(&request.worker, &undecodable(&decoded.faults)),
                Of::Deliveries => self.settle_deliveries(&request.worker, &fan_out::undecodable(&decoded.faults)),
            };
            if let Ok(lost) = lost {
                let ended = decoded.faults.into_iter().filter(|(id, _)| !lost.contains(id));
                let failure = |reason| if of == Of::Events { Failure::invalid_message(reason) } else { fan_out::integrity(reason) };
                refused.extend(ended.map(|(id, reason)| Refusal { id, failure: failure(reason) }));
            }
        }
        Ok((Claimed { batch: decoded.batch, refused, unfinished: round.unfinished }, emissions))
    }

    fn round_of(&mut self, of: Of, request: &ClaimRequest, tenant: Option<&str>, horizon_ms: u64) -> Result<Round, Trouble> {
        let fan_out = self.fan_out()?;
        let is_searched_by_tenant = match of {
            Of::Events => fan_out.events.layout.tenant.is_some(),
            Of::Deliveries => true,
        };
        let Self { writer, random, fan_out: Some(fan_out), .. } = self else { return Ok(nothing(false)) };
        let FanOut { events, deliveries, turns_of_events, turns_of_deliveries, .. } = fan_out;
        let (ready, turns) = match of {
            Of::Events => (&*events, turns_of_events),
            Of::Deliveries => (&*deliveries, turns_of_deliveries),
        };
        let limits = search::limits(request, ready.layout.config.strict_order);
        let most = limits.rows.min(MOST_TENANTS);
        let (transaction, listing) = match tenant {
            // Without tenants there is one, and it has no name.
            _ if !is_searched_by_tenant && tenant.is_none_or(str::is_empty) => (writer.begin(Vec::new())?.0, one("")),
            Some(tenant) if is_searched_by_tenant && ready.layout.tenants().takes(tenant) => (writer.begin(Vec::new())?.0, one(tenant)),
            Some(_) => return Ok(nothing(false)),
            None => {
                let [front, behind] = ready.tenants.as_ref().ok_or_else(missing)?;
                let list = |template: &outbox_table::template::Template, cursor: Option<&str>| {
                    template.fill(|slot| match slot {
                        Slot::Keys => integer(most),
                        _ => cursor.map_or(Value::Null, |cursor| Value::Text(cursor.to_owned())),
                    })
                };
                let mut statements: Vec<Statement> = turns.cursor().map(|cursor| list(behind, Some(cursor))).into_iter().collect();
                statements.push(list(front, None));
                let has_cursor = statements.len() > 1;
                let (transaction, rows) = writer.begin(statements)?;
                let mut results = Results::new(rows);
                let mut next = || -> Result<Vec<String>, Failure> {
                    let tenants = results.next_rows()?.bytes()?;
                    Ok((0..tenants.len()).map(|at| text_of(&tenants, at)).collect())
                };
                let behind = if has_cursor { next()? } else { Vec::new() };
                let front = next()?;
                (transaction, if has_cursor { Listing::new(behind, front, most) } else { Listing::new(front, Vec::new(), most) })
            }
        };
        let mut turn = Turn { ready, request, random, limits, horizon_ms, is_searched_by_tenant };
        let found = turn.search(&transaction, turns, &listing.tenants)?;
        // A claim of one tenant says nothing of the others.
        let more = tenant.is_none() && turns.looked(&listing, found.looked, !found.parts.is_empty() || found.unfinished);
        let others = tenant.is_none() && !listing.is_all(found.looked);
        if found.parts.is_empty() {
            return Ok(nothing(found.unfinished || more));
        }
        if !ready.states_tried {
            drop(transaction);
            self.try_states()?;
            if let Some(fan_out) = &mut self.fan_out {
                fan_out.events.states_tried = true;
                fan_out.turns_of_events.forget();
            }
            return self.round_of(of, request, tenant, horizon_ms);
        }
        // What some tenants have left is for those that have more.
        let hungry = if found.has_room() && listing.tenants.len() > 1 { found.hungry.clone() } else { Vec::new() };
        turn.limits = Limits { rows: found.rows, bytes: found.bytes, first_bytes: found.bytes, ..limits };
        let (mut taken, kept) = turn.take(transaction, turns, found, !hungry.is_empty())?;
        if let Some(transaction) = kept {
            let found = turn.search(&transaction, turns, &hungry)?;
            if found.parts.is_empty() {
                transaction.commit(Vec::new())?;
            } else {
                let (more, _) = turn.take(transaction, turns, found, false)?;
                taken.decoded.batch.append(more.decoded.batch);
                taken.decoded.faults.extend(more.decoded.faults);
                taken.refused.extend(more.refused);
                taken.emissions.extend(more.emissions);
            }
        }
        let raced = taken.decoded.batch.is_empty() && taken.decoded.faults.is_empty() && taken.refused.is_empty();
        // What another host has locked is its own; what tenants have that were not looked at is for the next claim.
        Ok(Round { taken, unfinished: raced && others, raced })
    }
}

/// A claim of several tenants.
struct Turn<'a> {
    ready: &'a Ready,
    request: &'a ClaimRequest,
    random: &'a mut Random,
    /// What may still be taken.
    limits: Limits,
    horizon_ms: u64,
    is_searched_by_tenant: bool,
}

/// What was found of the tenants of a claim.
struct Searches<'t> {
    parts: Vec<Part<'t>>,
    /// Of each part, what the next claim passes over, and whether there may be rows in front of those that were found.
    passed: Vec<(Option<Passed>, bool)>,
    /// Tenants that have more than their share.
    hungry: Vec<String>,
    /// How many tenants were looked at.
    looked: usize,
    /// A search was cut short.
    unfinished: bool,
    /// What is left to take.
    rows: usize,
    bytes: u64,
}

impl Searches<'_> {
    fn has_room(&self) -> bool {
        self.rows > 0 && self.bytes > 0
    }
}

impl Turn<'_> {
    /// Searches each tenant for its share of what may be taken; what one leaves goes to the later ones.
    fn search<'t, T: Transaction>(
        &mut self,
        transaction: &T,
        turns: &mut Turns<Progress>,
        tenants: &'t [String],
    ) -> Result<Searches<'t>, Trouble> {
        let (ready, whole) = (self.ready, self.limits);
        let horizon_ms = self.horizon_ms;
        let is_searched_by_tenant = self.is_searched_by_tenant;
        let table = |tenant: &'t str| Searched { ready, scope: Scope { tenant: is_searched_by_tenant.then_some(tenant), horizon_ms } };
        let mut starts = Vec::with_capacity(tenants.len());
        let mut statements = Vec::with_capacity(tenants.len());
        let even = share(whole.rows, tenants.len());
        for tenant in tenants {
            let progress = turns.memory(tenant);
            let start = Start { floor: None, rows: progress.rows(even), passed: progress.passed() };
            statements.push(table(tenant).scan(start.after(), start.rows));
            starts.push(start);
        }
        let mut firsts = Results::new(if statements.is_empty() { Vec::new() } else { transaction.execute(statements)? });
        let mut searches = Searches {
            parts: Vec::new(),
            passed: Vec::new(),
            hungry: Vec::new(),
            looked: 0,
            unfinished: false,
            rows: whole.rows,
            bytes: whole.bytes,
        };
        for (tenant, start) in tenants.iter().zip(starts) {
            if !searches.has_room() {
                break;
            }
            let left = tenants.len() - searches.looked;
            let first = Segment::read(&ready.decoding, &mut firsts.next_rows()?)?;
            let limits = Limits {
                rows: share(searches.rows, left),
                bytes: searches.bytes.div_ceil(u64::try_from(left.max(1)).unwrap_or(u64::MAX)),
                // The first row of all may be larger than the batch, the first one of a tenant larger than its share.
                first_bytes: if searches.rows == whole.rows { whole.first_bytes } else { searches.bytes },
                ..whole
            };
            // An estimate refuses nothing.
            let searched = if ready.weigh.is_some() { Limits { max_message_bytes: u64::MAX, ..limits } } else { limits };
            let table = table(tenant);
            let progress = turns.memory(tenant);
            let found = search::look(transaction, &table, progress, searched, start, first)?;
            let (cut_short, probe) = (found.unfinished, found.left_out());
            let (mut found, mut passed) = found.choose(self.random, searched, table.worth());
            searches.looked += 1;
            searches.unfinished |= cut_short;
            if found.is_empty() {
                progress.keep(passed, false);
                continue;
            }
            let (cut, bytes) = weigh(ready, transaction, &mut found, limits)?;
            if cut {
                // Others were to be passed over than are left now.
                passed = None;
            }
            let rows = found.choice.taken.len();
            // A search ends when it has half of what it may take.
            if found.choice.first_left.is_some() || rows.saturating_mul(2) >= limits.rows {
                searches.hungry.push(tenant.clone());
            }
            searches.rows -= rows.min(searches.rows);
            searches.bytes = searches.bytes.saturating_sub(bytes);
            searches.passed.push((passed, probe));
            searches.parts.push(Part { tenant, found });
        }
        Ok(searches)
    }

    /// Leases what was found.
    fn take<T: Transaction>(
        &self,
        transaction: T,
        turns: &mut Turns<Progress>,
        found: Searches<'_>,
        keep: bool,
    ) -> Result<(Taken, Option<T>), Trouble> {
        let Searches { parts, passed, .. } = found;
        let probe = passed.iter().any(|(_, probe)| *probe);
        let (ready, request, horizon_ms) = (self.ready, self.request, self.horizon_ms);
        let (taken, kept) = Taking { ready, request, parts: &parts, probe, horizon_ms }.take(transaction, keep)?;
        let got = taken.decoded.batch.len() + taken.decoded.faults.len();
        let wanted: usize = parts.iter().map(|part| part.found.choice.taken.len()).sum();
        for (part, (passed, _)) in parts.iter().zip(passed) {
            let progress = turns.memory(part.tenant);
            if got.saturating_mul(2) < wanted {
                progress.lost_a_race(part.found.choice.taken.len());
            }
            progress.keep(passed, true);
        }
        Ok((taken, kept))
    }
}

/// A claim of one tenant.
fn one(tenant: &str) -> Listing {
    Listing::new(vec![tenant.to_owned()], Vec::new(), MOST_TENANTS)
}

fn nothing(unfinished: bool) -> Round {
    let decoded = Decoded { batch: Batch::new(), faults: Vec::new() };
    Round { taken: Taken { decoded, refused: Vec::new(), emissions: Emissions::new() }, unfinished, raced: false }
}

fn missing() -> Failure {
    Failure::invalid_configuration("`fan_out.tenant`: there are no tenants")
}
