//! The adapters of a running process: each opened once, however many relays use it, in a slot in which one generation takes the
//! place of another. The first opening, a new file and a new configuration share one way: [`Adapters::candidate`] makes a generation,
//! and only one that has compiled, matched its world, linked within its grants and opened is put in place.

use super::inventory::{Inventory, Refused};
use super::kind::{Kind, absent};
use super::place::{Candidate, Memo, Place, Record};
use super::recipe::Recipe;
use super::turn::Turn;
use super::{App, AppError, pins};
use crate::config::model::Relay;
use crate::config::{Config, changes_relay, fixed};
use crate::metrics::AdapterLabels;
use crate::oci::Pinned;
use crate::plugin::{self, PublisherPlugin, Sight, Sightings, Slot, StoragePlugin};
use crate::ports::Storage;
use crate::relay::Lanes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Waits before a candidate is tried again that may be fine later (a database was away when it opened): from the first, doubling, to the
/// last.
const AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

type Places<P> = Mutex<BTreeMap<String, Arc<Place<P>>>>;

/// All adapters of the process that are in use.
pub(super) struct Adapters {
    app: App,
    /// The configuration that the process runs with now.
    config: Mutex<Arc<Config>>,
    storages: Places<StoragePlugin>,
    publishers: Places<PublisherPlugin>,
    /// How to have a relay begin anew, by its name.
    turns: BTreeMap<String, Arc<Turn>>,
    inventory: Arc<Inventory>,
    /// An adapter was opened: its file may have changed meanwhile.
    pub(super) opened: Notify,
}

impl Adapters {
    pub(super) fn new(app: App, turns: BTreeMap<String, Arc<Turn>>, inventory: Arc<Inventory>) -> Self {
        let config = Mutex::new(Arc::clone(&app.config));
        Self { app, config, storages: Mutex::default(), publishers: Mutex::default(), turns, inventory, opened: Notify::new() }
    }

    /// The configuration that the process runs with now.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The storage of a relay, opened if it is not open.
    pub(super) async fn storage(&self, name: &str) -> Result<Arc<Slot<StoragePlugin>>, AppError> {
        self.open(&self.storages, name).await
    }

    /// The publishers that a relay's routes name, opened if they are not open.
    pub(super) async fn publishers(&self, relay: &Relay) -> Result<BTreeMap<String, Lanes>, AppError> {
        let config = self.config();
        let mut lanes = BTreeMap::new();
        for name in relay.routes.iter().map(|route| &route.publisher) {
            let Some(publisher) = config.publishers.get(name).filter(|_| !lanes.contains_key(name)) else { continue };
            let slot = self.open(&self.publishers, name).await?;
            let entry = Lanes { publisher: slot, lanes: publisher.lanes, batch: publisher.batch, batch_bytes: publisher.batch_bytes };
            lanes.insert(name.clone(), entry);
        }
        Ok(lanes)
    }

    async fn open<P: Kind>(&self, places: &Places<P>, name: &str) -> Result<Arc<Slot<P>>, AppError> {
        let place = Arc::clone(lock(places).entry(name.to_owned()).or_default());
        let slot = place
            .slot
            .get_or_try_init(|| async {
                let candidate = loop {
                    let candidate = self.candidate::<P>(&self.config(), name, 1).await?;
                    // A configuration that has come meanwhile may want it otherwise: nothing has begun with it yet.
                    let config = self.config();
                    let adapter = P::adapter(&config, name).ok_or_else(|| absent::<P>(name))?;
                    if Recipe::of(&config, adapter).await == candidate.recipe {
                        break candidate;
                    }
                };
                let slot = Arc::new(Slot::new(Arc::clone(&candidate.plugin)));
                self.note_open(name, &place, candidate);
                self.opened.notify_one();
                Ok::<_, AppError>(slot)
            })
            .await?;
        Ok(Arc::clone(slot))
    }

    /// Makes a generation: found, checked, compiled, linked, opened; in no slot yet.
    async fn candidate<P: Kind>(&self, config: &Config, name: &str, generation: u64) -> Result<Candidate<P>, AppError> {
        let adapter = P::adapter(config, name).ok_or_else(|| absent::<P>(name))?;
        // Before it is loaded: what changes meanwhile is seen at the next look.
        let recipe = Recipe::of(config, adapter).await;
        let plugin = P::load(&self.app, config, name, generation).await?;
        Ok(Candidate { recipe, plugin })
    }

    /// Puts a candidate in the place of the generation that is there.
    pub(super) fn take_over<P: Kind>(&self, name: &str, place: &Place<P>, slot: &Slot<P>, candidate: Candidate<P>) {
        let before = slot.swap(Arc::clone(&candidate.plugin));
        let (now, before) = (candidate.plugin.generation().clone(), before.generation().clone());
        self.note_open(name, place, candidate);
        self.app.metrics.adapter_swaps.get_or_create(&labels(name)).inc();
        tracing::info!(
            adapter = name,
            generation = now.number,
            sha256 = now.sha256,
            version = now.version,
            before = before.sha256,
            "swapped: calls in flight end on generation {}",
            before.number
        );
    }

    /// Puts a storage's candidate in place, if one has waited for its relay.
    pub(super) fn take_over_waiting(&self, storage: &str, turn: &Turn) {
        let place = lock(&self.storages).get(storage).cloned();
        if let (Some(candidate), Some(place)) = (turn.take_storage(), place)
            && let Some(slot) = place.slot.get()
        {
            self.take_over(storage, &place, slot, candidate);
        }
    }

    fn note_open<P: Kind>(&self, name: &str, place: &Place<P>, candidate: Candidate<P>) {
        let Candidate { recipe, plugin } = candidate;
        let generation = plugin.generation();
        self.inventory.opened(&section::<P>(name), &recipe.adapter.plugin, generation);
        let labels = labels(name);
        self.app.metrics.adapter_generation.get_or_create(&labels).set(i64::try_from(generation.number).unwrap_or(i64::MAX));
        // `increase()` does not see the first step of a series that begins with it.
        self.app.metrics.adapter_swaps.get_or_create(&labels).inc_by(0);
        self.app.metrics.adapter_candidates_refused.get_or_create(&labels).inc_by(0);
        *place.record() = Record { made_of: Some((recipe, generation.sha256.clone())), ..Record::default() };
    }

    /// Looks at the files of every open adapter, and swaps in what has changed. Returns how soon to look again; none: nothing is
    /// under way.
    pub(super) async fn look(&self, sightings: &mut Sightings) -> Option<Duration> {
        let mut soonest = None;
        for (name, place) in places(&self.publishers) {
            let Some(slot) = place.slot.get() else { continue };
            match self.look_at(&name, &place, slot, sightings).await {
                Looked::Candidate(candidate) => self.take_over(&name, &place, slot, *candidate),
                Looked::Again(again) => soonest = earlier(soonest, again),
                Looked::Same => {}
            }
        }
        for (name, place) in places(&self.storages) {
            let Some(slot) = place.slot.get() else { continue };
            match self.look_at(&name, &place, slot, sightings).await {
                Looked::Candidate(candidate) => self.put_storage(&name, &place, slot, *candidate),
                Looked::Again(again) => soonest = earlier(soonest, again),
                Looked::Same => {}
            }
        }
        soonest
    }

    async fn look_at<P: Kind>(&self, name: &str, place: &Place<P>, slot: &Slot<P>, sightings: &mut Sightings) -> Looked<P> {
        let config = self.config();
        let Some(adapter) = P::adapter(&config, name) else { return Looked::Same };
        let (section, generation) = (section::<P>(name), slot.current().generation().number);
        let file = plugin::file(&config.plugins.dir, &adapter.plugin);
        let sight = match Pinned::in_plugin(&adapter.plugin) {
            None => sightings.look(&file, Instant::now()).await,
            // What a digest stands for does not change, whatever becomes of the file.
            Some(_) => match &place.record().made_of {
                Some((_, sha256)) => Sight::Still(sha256.clone()),
                None => return Looked::Same,
            },
        };
        let sha256 = match sight {
            Sight::Still(sha256) => sha256,
            Sight::Moving => return Looked::Again(plugin::STILL),
            Sight::Gone => {
                if self.is_news(place, "gone") {
                    let file = file.display();
                    tracing::warn!(adapter = name, generation, "{file} is gone: its generation stays; put it back before the next start");
                    self.inventory.gone(&section, true);
                }
                return Looked::Same;
            }
            Sight::Unreadable(reason) => {
                if self.is_news(place, &reason) {
                    self.note_refused(name, &section, generation, None, format!("{} cannot be read: {reason}", file.display()));
                }
                return Looked::Same;
            }
        };
        self.inventory.gone(&section, false);
        let recipe = Recipe::of(&config, adapter).await;
        let pinned = pinned(&config, &adapter.plugin);
        // Before this very candidate is tried again; none: it is a new one.
        let mut waited = None;
        {
            let mut record = place.record();
            record.told = None;
            let runs = record.made_of.as_ref().is_some_and(|(made_of, made)| *made_of == recipe && *made == sha256);
            if runs {
                if record.refused.take().is_some() {
                    self.inventory.refused(&section, None);
                }
                return Looked::Same;
            }
            if let Some(memo) = record.refused.as_ref().filter(|memo| memo.is_of(&recipe, &sha256, &pinned)) {
                let Some(again) = memo.again else { return Looked::Same };
                let left = again.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    return Looked::Again(left);
                }
                waited = Some(memo.wait);
            }
        }
        tracing::info!(adapter = name, generation, sha256, "trying {}", adapter.plugin);
        match self.candidate::<P>(&config, name, generation.saturating_add(1)).await {
            // It was replaced in between, and may be half-written.
            Ok(candidate) if candidate.plugin.generation().sha256 != sha256 => Looked::Again(plugin::STILL),
            Ok(candidate) => Looked::Candidate(Box::new(candidate)),
            Err(error) => {
                let wait = waited.map_or(AGAIN.0, |waited: Duration| (waited * 2).min(AGAIN.1));
                let again = (!error.is_configuration()).then(|| Instant::now() + wait);
                place.record().refused = Some(Memo { recipe, sha256: sha256.clone(), pinned, again, wait });
                match waited {
                    None => self.note_refused(name, &section, generation, Some(sha256), error.to_string()),
                    Some(_) => tracing::debug!(adapter = name, generation, sha256, "the candidate is refused again: {error}"),
                }
                again.map_or(Looked::Same, |_| Looked::Again(wait))
            }
        }
    }

    /// Whether this of the file is not told yet.
    fn is_news<P>(&self, place: &Place<P>, what: &str) -> bool {
        let mut record = place.record();
        let news = record.told.as_deref() != Some(what);
        record.told = Some(what.to_owned());
        news
    }

    fn note_refused(&self, name: &str, section: &str, generation: u64, sha256: Option<String>, reason: String) {
        self.app.metrics.adapter_candidates_refused.get_or_create(&labels(name)).inc();
        self.inventory.refused(section, Some(Refused::now(sha256.clone(), reason.clone())));
        // Last: whoever reads it finds the rest.
        tracing::error!(adapter = name, generation, sha256, "a candidate is refused, generation {generation} goes on: {reason}");
    }

    /// Puts a storage's candidate in place: at once where it goes on with what the one before has claimed, else when that is settled.
    fn put_storage(&self, name: &str, place: &Place<StoragePlugin>, slot: &Slot<StoragePlugin>, candidate: Candidate<StoragePlugin>) {
        // With other settings, rows in flight may belong to another table than its own; and with another order or another way of
        // claiming, to another relay than what its pipeline was made for.
        let same_settings = place.record().is_in_place_with(&candidate.recipe.adapter.config);
        if same_settings && candidate.plugin.description() == slot.description() {
            self.take_over(name, place, slot, candidate);
        } else {
            self.hand_over(name, place, candidate);
        }
    }

    /// Has the relay of a storage finish what is in flight on the generation that it has, and begin anew with another.
    fn hand_over(&self, storage: &str, place: &Place<StoragePlugin>, candidate: Candidate<StoragePlugin>) {
        let config = self.config();
        let Some(relay) = config.relays.iter().find(|relay| relay.storage == storage) else { return };
        let Some(turn) = self.turns.get(&relay.name) else { return };
        let generation = candidate.plugin.generation();
        tracing::info!(
            adapter = storage,
            relay = relay.name,
            generation = generation.number,
            sha256 = generation.sha256,
            "to be swapped when what is in flight is settled"
        );
        *place.record() = Record { made_of: Some((candidate.recipe.clone(), generation.sha256.clone())), waits: true, ..Record::default() };
        turn.begin_anew(Some(candidate));
    }

    /// Takes a new configuration over, all of it or nothing. Returns whether anything has changed.
    ///
    /// # Errors
    /// Why it is refused; nothing has changed then.
    pub(super) async fn take_over_config(&self, new: Config) -> Result<bool, String> {
        let old = self.config();
        let fixed = fixed(&old, &new);
        if !fixed.is_empty() {
            let keys = fixed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(format!("{keys}: cannot change while outhaul runs: restart it; nothing of the file was taken over"));
        }
        let relays: Vec<&Relay> = new.relays.iter().filter(|relay| self.turns.contains_key(&relay.name)).collect();
        let routed = |name: &str| relays.iter().any(|relay| relay.routes.iter().any(|route| route.publisher == name));
        let refuse = |error: AppError| format!("{error}; nothing of the file was taken over");

        // What can fail comes first, and changes nothing.
        let mut publishers = Vec::new();
        for (name, place) in places(&self.publishers).into_iter().filter(|(name, _)| routed(name)) {
            if let Some(candidate) = self.changed(&new, &name, &place).await.map_err(refuse)? {
                publishers.push((name, place, candidate));
            }
        }
        let mut fresh = Vec::new();
        for name in new.publishers.keys().filter(|name| routed(name)) {
            let was_routed =
                |relay: &Relay| self.turns.contains_key(&relay.name) && relay.routes.iter().any(|route| route.publisher == *name);
            if !old.relays.iter().any(was_routed) && !lock(&self.publishers).contains_key(name) {
                fresh.push((name.clone(), self.candidate::<PublisherPlugin>(&new, name, 1).await.map_err(refuse)?));
            }
        }
        let mut storages = Vec::new();
        for (name, place) in places(&self.storages) {
            if let Some(candidate) = self.changed(&new, &name, &place).await.map_err(refuse)? {
                storages.push((name, place, candidate));
            }
        }

        // From here on nothing fails.
        let anew: Vec<String> = relays.iter().filter(|relay| changes_relay(&old, &new, relay)).map(|relay| relay.name.clone()).collect();
        let changed = !(publishers.is_empty() && fresh.is_empty() && storages.is_empty() && anew.is_empty());
        let routed: Vec<String> = new.publishers.keys().filter(|name| routed(name)).cloned().collect();
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        for (name, candidate) in fresh {
            let place = Place::opened(Arc::new(Slot::new(Arc::clone(&candidate.plugin))));
            self.note_open(&name, &place, candidate);
            lock(&self.publishers).insert(name, Arc::new(place));
        }
        for (name, place, candidate) in publishers {
            if let Some(slot) = place.slot.get() {
                self.take_over(&name, &place, slot, candidate);
            }
        }
        for (name, place, candidate) in storages {
            let Some(slot) = place.slot.get() else { continue };
            self.put_storage(&name, &place, slot, candidate);
        }
        for turn in anew.iter().filter_map(|relay| self.turns.get(relay)) {
            turn.begin_anew(None);
        }
        lock(&self.publishers).retain(|name, _| {
            let stays = routed.contains(name);
            if !stays {
                self.inventory.closed(&section::<PublisherPlugin>(name));
            }
            stays
        });
        Ok(changed)
    }

    /// A candidate for an open adapter, if the new configuration changes it.
    async fn changed<P: Kind>(&self, new: &Config, name: &str, place: &Place<P>) -> Result<Option<Candidate<P>>, AppError> {
        let Some(slot) = place.slot.get() else { return Ok(None) };
        let adapter = P::adapter(new, name).ok_or_else(|| absent::<P>(name))?;
        let recipe = Recipe::of(new, adapter).await;
        if place.record().made_of.as_ref().is_some_and(|(made_of, _)| *made_of == recipe) {
            return Ok(None);
        }
        let generation = slot.current().generation().number.saturating_add(1);
        self.candidate(new, name, generation).await.map(Some)
    }
}

/// What a look at the file of an adapter came to.
enum Looked<P> {
    /// Nothing to do.
    Same,
    /// To be looked at again so soon.
    Again(Duration),
    /// A new generation is open.
    Candidate(Box<Candidate<P>>),
}

/// What the pins say of a plugin, or what is wrong with them: where it changes, a refused candidate is tried again.
fn pinned(config: &Config, plugin: &str) -> String {
    match pins(config) {
        Ok(Some(pins)) => pins.of(plugin).unwrap_or_default().to_owned(),
        Ok(None) => "anything".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn places<P>(places: &Places<P>) -> Vec<(String, Arc<Place<P>>)> {
    lock(places).iter().map(|(name, place)| (name.clone(), Arc::clone(place))).collect()
}

fn section<P: Kind>(name: &str) -> String {
    format!("{}.{name}", P::SECTION)
}

fn labels(name: &str) -> AdapterLabels {
    AdapterLabels { adapter: name.to_owned() }
}

fn earlier(soonest: Option<Duration>, other: Duration) -> Option<Duration> {
    Some(soonest.map_or(other, |soonest| soonest.min(other)))
}
