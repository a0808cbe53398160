//! Takes a new configuration over, all of it or nothing: every adapter that it changes is opened before the first takes its place.

use super::adapters::{Adapters, Places, lock, section};
use super::kind::{Kind, absent};
use super::place::{Candidate, Place};
use super::recipe::Recipe;
use super::{AppError, Attempt};
use crate::config::model::Relay;
use crate::config::{Config, changes_relay, fixed};
use crate::fan_out::keys::Keyring;
use crate::plugin::{PublisherPlugin, RouterPlugin, Slot, StoragePlugin};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long new settings are tried for an adapter that waits to be opened. What it waits for is away, as a rule: settings that have not
/// shown themselves to be wrong by then are taken on trust, and its relay goes on trying.
const TRIAL: Duration = Duration::from_secs(5);

/// Why a configuration is not taken over.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: String,
    /// Whether the same file may be fine later, without anything changing that can be looked at.
    pub(super) may_pass: bool,
}

impl From<AppError> for Refusal {
    fn from(error: AppError) -> Self {
        Self { reason: format!("{error}; nothing of the file was taken over"), may_pass: error.may_pass() }
    }
}

/// What a new configuration means for an adapter that is in use by it.
enum Change<P: Kind> {
    /// Nothing.
    None,
    /// It waits to be opened, and other settings are what it waits with from now on.
    Waits,
    /// Another generation, open.
    Next(Arc<Place<P>>, Candidate<P>),
    /// It was not in use before by each relay that uses it now.
    First(Candidate<P>),
}

impl<P: Kind> Change<P> {
    /// Whether a relay that waits for it may go on.
    fn is_first(&self) -> bool {
        matches!(self, Self::Waits | Self::First(_))
    }
}

/// What a new configuration means for all of them.
struct Plan {
    publishers: Vec<(String, Change<PublisherPlugin>)>,
    routers: Vec<(String, Change<RouterPlugin>)>,
    storages: Vec<(String, Change<StoragePlugin>)>,
}

impl Adapters {
    /// Takes a new configuration over, all of it or nothing. Returns whether anything has changed.
    ///
    /// # Errors
    /// Why it is refused; nothing has changed then.
    pub(super) async fn take_over_config(&self, new: Arc<Config>) -> Result<bool, Refusal> {
        let old = self.config();
        let fixed = fixed(&old, &new);
        if !fixed.is_empty() {
            let keys = fixed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let reason = format!("{keys}: cannot change while outhaul runs: restart it; nothing of the file was taken over");
            return Err(Refusal { reason, may_pass: false });
        }
        // What can fail comes first, and changes nothing. Other files are swapped in meanwhile, and relays that wait may begin.
        loop {
            let plan = self.plan(&old, &new).await?;
            if self.still_fits(&plan) {
                return Ok(self.carry_out(plan, &old, new));
            }
        }
    }

    async fn plan(&self, old: &Config, new: &Config) -> Result<Plan, Refusal> {
        let mut plan = Plan { publishers: Vec::new(), routers: Vec::new(), storages: Vec::new() };
        for name in new.publishers.keys().filter(|name| self.routes_to(new, name)) {
            let was_in_use = self.is_known(old, new, |relay| relay.publishers().any(|publisher| publisher == name));
            plan.publishers.push((name.clone(), self.change(&self.publishers, old, new, name, was_in_use).await?));
        }
        for name in new.routers.iter().map(|router| &router.name).filter(|name| self.asks(new, name)) {
            let was_in_use = RouterPlugin::adapter(old, name).is_some() && self.is_known(old, new, |relay| has_router(relay, name));
            plan.routers.push((name.clone(), self.change(&self.routers, old, new, name, was_in_use).await?));
        }
        for (relay, fan_out) in self.relays(new).filter_map(|relay| Some((relay, relay.fan_out.as_ref()?))) {
            let checked = Keyring::of(new, fan_out).check().await;
            checked.map_err(|fault| AppError::Key { relay: relay.name.clone(), fault })?;
        }
        for name in self.relays(new).map(|relay| &relay.storage) {
            plan.storages.push((name.clone(), self.change(&self.storages, old, new, name, true).await?));
        }
        Ok(plan)
    }

    /// The relays of this process.
    fn relays<'a>(&self, config: &'a Config) -> impl Iterator<Item = &'a Relay> {
        config.relays.iter().filter(|relay| self.turns.contains_key(&relay.name))
    }

    /// Whether a relay of this process sends through a publisher.
    fn routes_to(&self, config: &Config, publisher: &str) -> bool {
        self.relays(config).any(|relay| relay.publishers().any(|name| name == publisher))
    }

    /// Whether a relay of this process asks a router that is a component.
    fn asks(&self, config: &Config, router: &str) -> bool {
        RouterPlugin::adapter(config, router).is_some() && self.relays(config).any(|relay| has_router(relay, router))
    }

    /// Whether all relays of this process that use something by a new configuration did so before: then it is open, or they wait for it
    /// already. A relay that is at work is not made to wait for what nobody has tried.
    fn is_known(&self, old: &Config, new: &Config, uses: impl Fn(&Relay) -> bool) -> bool {
        let used = |relay: &Relay| old.relays.iter().any(|before| before.name == relay.name && uses(before));
        self.relays(new).filter(|relay| uses(relay)).all(used)
    }

    async fn change<P: Kind>(
        &self,
        places: &Places<P>,
        old: &Config,
        new: &Config,
        name: &str,
        was_in_use: bool,
    ) -> Result<Change<P>, AppError> {
        let adapter = P::adapter(new, name).ok_or_else(|| absent::<P>(name))?;
        let recipe = Recipe::of(new, adapter).await;
        let place = lock(places).get(name).cloned();
        if let Some((place, slot)) = place.and_then(|place| place.slot.get().cloned().map(|slot| (place, slot))) {
            if place.record().made_of.as_ref().is_some_and(|(made_of, _)| *made_of == recipe) {
                return Ok(Change::None);
            }
            let generation = slot.current().generation().number.saturating_add(1);
            return Ok(Change::Next(place, self.candidate(new, name, Attempt::of(generation)).await?));
        }
        if !was_in_use {
            return self.candidate(new, name, Attempt::FIRST).await.map(Change::First);
        }
        if let Some(before) = P::adapter(old, name)
            && Recipe::of(old, before).await == recipe
        {
            return Ok(Change::None);
        }
        match tokio::time::timeout(TRIAL, self.candidate::<P>(new, name, Attempt::FIRST)).await {
            Ok(Err(error)) if error.is_configuration() && !matches!(error, AppError::AbsentDatabase { .. }) => Err(error),
            Ok(_) | Err(_) => Ok(Change::Waits),
        }
    }

    /// Whether everything still is as it was when this was planned. From here on nothing fails.
    fn still_fits(&self, plan: &Plan) -> bool {
        fn fits<P: Kind>(places: &Places<P>, (name, change): &(String, Change<P>)) -> bool {
            match change {
                Change::None => true,
                Change::Waits | Change::First(_) => lock(places).get(name).is_none_or(|place| !place.slot.initialized()),
                Change::Next(place, candidate) => {
                    let current = place.slot.get().map(|slot| slot.current().generation().number);
                    current.is_some_and(|current| current.saturating_add(1) == candidate.plugin.generation().number)
                }
            }
        }
        plan.publishers.iter().all(|change| fits(&self.publishers, change))
            && plan.routers.iter().all(|change| fits(&self.routers, change))
            && plan.storages.iter().all(|change| fits(&self.storages, change))
    }

    /// Returns whether anything has changed.
    fn carry_out(&self, plan: Plan, old: &Config, new: Arc<Config>) -> bool {
        let Plan { publishers, routers, storages } = plan;
        let waits = |relay: &Relay| {
            any(&publishers, |name, change| change.is_first() && relay.publishers().any(|publisher| publisher == name))
                || any(&routers, |name, change| change.is_first() && has_router(relay, name))
                || any(&storages, |name, change| change.is_first() && relay.storage == name)
        };
        let anew: Vec<String> =
            self.relays(&new).filter(|relay| changes_relay(old, &new, relay) || waits(relay)).map(|relay| relay.name.clone()).collect();
        let changed = !anew.is_empty()
            || any(&publishers, |_, change| !matches!(change, Change::None))
            || any(&routers, |_, change| !matches!(change, Change::None))
            || any(&storages, |_, change| !matches!(change, Change::None));
        let (routed_to, asked) = (names(&publishers), names(&routers));
        // One that says the same is the same: what is under way for it goes on.
        if *old != *new {
            *self.config.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
        self.put_all(&self.publishers, publishers);
        self.put_all(&self.routers, routers);
        self.put_all(&self.storages, storages);
        for turn in anew.iter().filter_map(|relay| self.turns.get(relay)) {
            turn.begin_anew(None);
        }
        self.close_others(&self.publishers, &routed_to);
        self.close_others(&self.routers, &asked);
        changed
    }

    /// Lets go of adapters that nobody uses any more.
    fn close_others<P: Kind>(&self, places: &Places<P>, used: &[String]) {
        lock(places).retain(|name, _| {
            let stays = used.contains(name);
            if !stays {
                self.inventory.closed(&section::<P>(name));
            }
            stays
        });
    }

    fn put_all<P: Kind>(&self, places: &Places<P>, changes: Vec<(String, Change<P>)>) {
        for (name, change) in changes {
            match change {
                Change::None | Change::Waits => {}
                Change::First(candidate) => {
                    // Not into a place that a relay waits with: it may be opening it right now, and finds this one when it has.
                    let place = Place::opened(Arc::new(Slot::new(Arc::clone(&candidate.plugin))));
                    self.note_open(&name, &place, candidate);
                    lock(places).insert(name, Arc::new(place));
                }
                Change::Next(place, candidate) => {
                    if let Some(slot) = place.slot.get() {
                        P::put(self, &name, &place, slot, candidate);
                    }
                }
            }
        }
    }
}

fn has_router(relay: &Relay, router: &str) -> bool {
    relay.fan_out.as_ref().is_some_and(|fan_out| fan_out.router == router)
}

fn any<P: Kind>(changes: &[(String, Change<P>)], is: impl Fn(&str, &Change<P>) -> bool) -> bool {
    changes.iter().any(|(name, change)| is(name, change))
}

fn names<P: Kind>(changes: &[(String, Change<P>)]) -> Vec<String> {
    changes.iter().map(|(name, _)| name.clone()).collect()
}
