//! Taking turns: which tenants a claim looks at, and how much each may take, so that how many rows one has due does not decide when
//! another's come up.
//!
//! A claim looks at so many tenants with unsettled rows, behind those that the last one has looked at, and shares out what it may take
//! among them; what a tenant leaves goes to the later ones. So a tenant comes up within as many claims as there are such lists in the
//! table. Where nothing is due at any tenant of a list, the claim says that it is unfinished, until the lists have come round once.

use std::collections::{HashMap, HashSet};

/// Tenants that one claim looks at: each costs a search, and a transaction that writes should not take long.
pub const MOST_TENANTS: usize = 64;
/// Tenants of whom it is remembered how far their rows were looked at; of a few hundred bytes each. Forgetting costs a search from the front.
const MOST_REMEMBERED: usize = 1024;

/// What is remembered between claims.
#[derive(Debug)]
pub struct Turns<M> {
    /// The list goes on behind this tenant; none: from the first one.
    cursor: Option<String>,
    memory: HashMap<String, (u64, M)>,
    clock: u64,
    barren: Option<Barren>,
}

/// Claims in a row that found nothing.
#[derive(Debug)]
struct Barren {
    /// The first tenant that they have looked at.
    first: String,
    /// How often they have come to the end of the tenants.
    wraps: u32,
}

/// The tenants of one claim, in the order in which they are looked at.
#[derive(Debug, PartialEq, Eq)]
pub struct Listing {
    /// Tenants.
    pub tenants: Vec<String>,
    /// The last tenant of all, and with it the end, was passed.
    wrapped: bool,
    /// These are all tenants.
    whole: bool,
}

impl Listing {
    /// From the next `most` tenants behind the cursor, and the first `most` of all; both without repeats, in the order of the database.
    #[must_use]
    pub fn new(behind: Vec<String>, front: Vec<String>, most: usize) -> Self {
        let mut tenants = behind;
        let wrapped = tenants.len() < most;
        let mut whole = false;
        if wrapped {
            let known: HashSet<String> = tenants.iter().cloned().collect();
            whole = front.len() < most || front.iter().any(|tenant| known.contains(tenant));
            // Those behind the cursor come last of all: the first of them ends what is before the cursor.
            for tenant in front.into_iter().take_while(|tenant| !known.contains(tenant)) {
                whole &= tenants.len() < most;
                tenants.push(tenant);
            }
        }
        tenants.truncate(most);
        Self { tenants, wrapped, whole }
    }

    /// Whether a claim that has looked at the first `looked` of them has looked at every tenant.
    #[must_use]
    pub fn is_all(&self, looked: usize) -> bool {
        self.whole && looked >= self.tenants.len()
    }
}

impl<M> Default for Turns<M> {
    fn default() -> Self {
        Self { cursor: None, memory: HashMap::new(), clock: 0, barren: None }
    }
}

impl<M: Default> Turns<M> {
    /// Behind which tenant the next claim looks.
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// What is remembered of a tenant.
    pub fn memory(&mut self, tenant: &str) -> &mut M {
        self.clock += 1;
        if !self.memory.contains_key(tenant)
            && self.memory.len() >= MOST_REMEMBERED
            && let Some(oldest) = self.memory.iter().min_by_key(|(_, (used, _))| *used).map(|(tenant, _)| tenant.clone())
        {
            self.memory.remove(&oldest);
        }
        let (used, memory) = self.memory.entry(tenant.to_owned()).or_default();
        *used = self.clock;
        memory
    }

    /// What was seen in a transaction that did not commit is worth nothing.
    pub fn forget(&mut self) {
        self.memory.clear();
        self.barren = None;
    }

    /// After a claim that has looked at the first `looked` tenants of a listing, and (`took`) found something to take or to end, or knows
    /// that there is something. Whether there may be rows that are due at tenants that were not looked at.
    pub fn looked(&mut self, listing: &Listing, looked: usize, took: bool) -> bool {
        let whole = listing.is_all(looked);
        let seen = listing.tenants.get(..looked).unwrap_or(&listing.tenants);
        // When all were looked at, the next claim begins with another one: the first of a list has the best of it.
        self.cursor = if whole { seen.first() } else { seen.last() }.cloned().or(self.cursor.take());
        if took || whole {
            self.barren = None;
            return false;
        }
        let Some(first) = seen.first() else { return false };
        let wrapped = listing.wrapped && looked >= listing.tenants.len();
        match &mut self.barren {
            None => self.barren = Some(Barren { first: first.clone(), wraps: u32::from(wrapped) }),
            Some(barren) => {
                barren.wraps += u32::from(wrapped);
                // The first one may be gone meanwhile: a second end says as much.
                if seen.contains(&barren.first) || barren.wraps > 1 {
                    self.barren = None;
                    return false;
                }
            }
        }
        true
    }
}

/// What the next of `tenants` may take of what is left.
#[must_use]
pub fn share(left: usize, tenants: usize) -> usize {
    left.div_ceil(tenants.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Tenants with so many due rows each; one claim, as a storage makes it.
    fn claim(due: &mut BTreeMap<String, usize>, turns: &mut Turns<()>, limit: usize) -> (BTreeMap<String, usize>, bool) {
        let most = limit.min(MOST_TENANTS);
        let cursor = turns.cursor().map(str::to_owned);
        let behind = due.keys().filter(|tenant| cursor.as_ref().is_none_or(|cursor| *tenant > cursor)).take(most).cloned().collect();
        let listing = Listing::new(behind, due.keys().take(most).cloned().collect(), most);
        let (mut left, mut looked, mut taken) = (limit, 0, BTreeMap::new());
        for tenant in &listing.tenants {
            if left == 0 {
                break;
            }
            let rows = due[tenant].min(share(left, listing.tenants.len() - looked));
            looked += 1;
            left -= rows;
            if rows > 0 {
                *taken.entry(tenant.clone()).or_insert(0) += rows;
                *due.get_mut(tenant).unwrap() -= rows;
            }
        }
        let took = !taken.is_empty();
        (taken, turns.looked(&listing, looked, took))
    }

    fn tenants(rows: impl IntoIterator<Item = usize>) -> BTreeMap<String, usize> {
        rows.into_iter().enumerate().map(|(at, rows)| (format!("t{at:05}"), rows)).collect()
    }

    #[test]
    fn a_small_tenant_beside_a_large_one_has_its_rows_with_the_first_claim() {
        let mut due = tenants([1_000_000, 10]);
        let (taken, unfinished) = claim(&mut due, &mut Turns::default(), 100);
        assert_eq!((taken["t00000"], taken["t00001"], unfinished), (50, 10, false));
        // The other way round, what the small one leaves goes to the large one.
        let (taken, _) = claim(&mut tenants([10, 1_000_000]), &mut Turns::default(), 100);
        assert_eq!((taken["t00000"], taken["t00001"]), (10, 90));
    }

    #[test]
    fn claims_of_one_row_go_round() {
        let (mut due, mut turns) = (tenants([9, 9, 9]), Turns::default());
        let taken: Vec<String> = (0..4).map(|_| claim(&mut due, &mut turns, 1).0.into_keys().next().unwrap()).collect();
        assert_eq!(taken, ["t00000", "t00001", "t00002", "t00000"]);
    }

    #[test]
    fn each_claim_begins_with_another_tenant() {
        let (mut due, mut turns) = (tenants([100, 100, 100]), Turns::default());
        let firsts: Vec<Option<String>> = (0..4)
            .map(|_| {
                claim(&mut due, &mut turns, 6);
                turns.cursor().map(str::to_owned)
            })
            .collect();
        assert_eq!(firsts, ["t00000", "t00001", "t00002", "t00000"].map(|tenant| Some(tenant.to_owned())));
    }

    #[test]
    fn nothing_due_anywhere_ends_after_one_round_of_all_tenants() {
        let mut due = tenants(std::iter::repeat_n(0, 1000));
        let mut turns = Turns::default();
        let claims = 1 + (0..100).position(|_| !claim(&mut due, &mut turns, 500).1).unwrap();
        assert!((16..=17).contains(&claims), "{claims} claims for 1000 tenants");
        // From wherever the cursor is by then.
        let claims = 1 + (0..100).position(|_| !claim(&mut due, &mut turns, 500).1).unwrap();
        assert!((16..=17).contains(&claims), "{claims} claims for 1000 tenants");
    }

    #[test]
    fn a_round_ends_even_if_its_first_tenant_is_gone() {
        let mut due = tenants(std::iter::repeat_n(0, 200));
        let mut turns = Turns::default();
        assert!(claim(&mut due, &mut turns, 500).1);
        due.remove("t00000");
        let claims = 1 + (0..100).position(|_| !claim(&mut due, &mut turns, 500).1).unwrap();
        assert!(claims <= 8, "{claims}");
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let mut turns: Turns<u32> = Turns::default();
        for tenant in 0..MOST_REMEMBERED {
            *turns.memory(&tenant.to_string()) = 1;
        }
        *turns.memory("0") = 2;
        turns.memory("new");
        assert_eq!((turns.memory.len(), *turns.memory("0")), (MOST_REMEMBERED, 2));
        assert_eq!(*turns.memory("1"), 0, "forgotten");
    }

    proptest! {
        #[test]
        fn every_tenant_comes_up_within_a_round(rows in prop::collection::vec(0..200_usize, 1..300), limit in 1..600_usize) {
            let (mut due, mut turns) = (tenants(rows.clone()), Turns::default());
            let waiting: Vec<String> = due.iter().filter(|(_, rows)| **rows > 0).map(|(tenant, _)| tenant.clone()).collect();
            let mut seen = HashSet::new();
            for _ in 0..rows.len().div_ceil(limit.min(MOST_TENANTS)) + 1 {
                let (taken, unfinished) = claim(&mut due, &mut turns, limit);
                prop_assert!(taken.values().sum::<usize>() <= limit);
                prop_assert!(!taken.is_empty() || unfinished || due.values().all(|rows| *rows == 0));
                seen.extend(taken.into_keys());
            }
            prop_assert_eq!(waiting.iter().find(|tenant| !seen.contains(*tenant)), None);
        }
    }
}
