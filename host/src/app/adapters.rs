//! The adapters of a running process: each opened once, however many relays use it, in a slot in which one generation takes the
//! place of another. The first opening, a new file and a new configuration share one way: [`Adapters::candidate`] makes a generation,
//! and only one that has compiled, matched its world, linked within its grants and opened is put in place.

use super::around::Around;
use super::inventory::{Inventory, Refused};
use super::kind::{Kind, absent};
use super::place::{Candidate, Memo, Place, Record};
use super::recipe::Recipe;
use super::turn::Turn;
use super::{App, AppError, Attempt, pins};
use crate::config::Config;
use crate::config::model::Relay;
use crate::metrics::AdapterLabels;
use crate::oci::Pinned;
use crate::plugin::{self, PublisherPlugin, RouterPlugin, Sight, Sightings, Slot, StoragePlugin};
use crate::ports::Storage;
use crate::ports::fan_out::Router;
use crate::relay::Lanes;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Waits before something is tried again that may be fine later (a database was away when it opened): from the first, doubling, to the
/// last.
const AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Candidates that are being opened, at most one for each adapter: none waits for another.
pub(super) type Trials = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

pub(super) type Places<P> = Mutex<BTreeMap<String, Arc<Place<P>>>>;

/// All adapters of the process that are in use.
pub(super) struct Adapters {
    pub(super) app: App,
    /// The configuration that the process runs with now.
    pub(super) config: Mutex<Arc<Config>>,
    pub(super) storages: Places<StoragePlugin>,
    pub(super) publishers: Places<PublisherPlugin>,
    pub(super) routers: Places<RouterPlugin>,
    /// How to have a relay begin anew, by its name.
    pub(super) turns: BTreeMap<String, Arc<Turn>>,
    pub(super) inventory: Arc<Inventory>,
    /// An adapter was opened: its file may have changed meanwhile.
    pub(super) opened: Notify,
    /// When the process began.
    pub(super) began: SystemTime,
}

impl Adapters {
    pub(super) fn new(app: App, turns: BTreeMap<String, Arc<Turn>>, inventory: Arc<Inventory>) -> Self {
        let config = Mutex::new(Arc::clone(&app.config));
        let (storages, publishers, routers) = Default::default();
        Self { app, config, storages, publishers, routers, turns, inventory, opened: Notify::new(), began: SystemTime::now() }
    }

    /// The configuration that the process runs with now.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The storage of a relay, opened if it is not open.
    pub(super) async fn storage(&self, name: &str) -> Result<Arc<Slot<StoragePlugin>>, AppError> {
        self.open(&self.storages, name).await
    }

    /// The generation of a storage that is in place now; none: it is not open.
    pub(super) fn open_storage(&self, name: &str) -> Option<Arc<StoragePlugin>> {
        Some(lock(&self.storages).get(name)?.slot.get()?.current())
    }

    /// Whether this process runs the relay.
    pub(super) fn runs(&self, relay: &str) -> bool {
        self.turns.contains_key(relay)
    }

    /// The publishers that a relay sends through, opened if they are not open.
    pub(super) async fn publishers(&self, relay: &Relay) -> Result<BTreeMap<String, Lanes>, AppError> {
        let config = self.config();
        let mut lanes = BTreeMap::new();
        for name in relay.publishers() {
            let Some(publisher) = config.publishers.get(name).filter(|_| !lanes.contains_key(name)) else { continue };
            let slot = self.open(&self.publishers, name).await?;
            let entry = Lanes { publisher: slot, lanes: publisher.lanes, batch: publisher.batch, batch_bytes: publisher.batch_bytes };
            lanes.insert(name.clone(), entry);
        }
        Ok(lanes)
    }

    /// The router that a relay asks: opened if it is a component and not open.
    pub(super) async fn router(&self, name: &str) -> Result<Arc<dyn Router>, AppError> {
        let config = self.config();
        let router = config.routers.iter().find(|router| router.name == name).ok_or_else(|| absent::<RouterPlugin>(name))?;
        match router.plugin() {
            Some(_) => Ok(self.open(&self.routers, name).await?),
            None => self.app.built_in_router(&config, router),
        }
    }

    async fn open<P: Kind>(&self, places: &Places<P>, name: &str) -> Result<Arc<Slot<P>>, AppError> {
        let place = Arc::clone(lock(places).entry(name.to_owned()).or_default());
        let slot = place
            .slot
            .get_or_try_init(|| async {
                let candidate = loop {
                    let candidate = self.first::<P>(&self.config(), name, &place).await?;
                    // A configuration that has come meanwhile may want it otherwise: nothing has begun with it yet.
                    let config = self.config();
                    let adapter = P::adapter(&config, name).ok_or_else(|| absent::<P>(name))?;
                    if Recipe::of(&config, adapter).await == candidate.recipe {
                        break candidate;
                    }
                };
                // One that has come with it is open already.
                let now = lock(places).get(name).and_then(|now| now.slot.get().cloned());
                if let Some(slot) = now {
                    return Ok(slot);
                }
                let slot = Arc::new(Slot::new(Arc::clone(&candidate.plugin)));
                self.note_open(name, &place, candidate);
                self.opened.notify_one();
                Ok::<_, AppError>(slot)
            })
            .await?;
        Ok(Arc::clone(slot))
    }

    /// Makes a generation: found, checked, compiled, linked, opened; in no slot yet.
    pub(super) async fn candidate<P: Kind>(&self, config: &Config, name: &str, attempt: Attempt<'_>) -> Result<Candidate<P>, AppError> {
        let adapter = P::adapter(config, name).ok_or_else(|| absent::<P>(name))?;
        // Before it is loaded: what changes meanwhile is seen at the next look.
        let recipe = Recipe::of(config, adapter).await;
        let prepared = P::prepare(&self.app, config, name, attempt).await?;
        let plugin = P::open(&self.app, config, name, &prepared).await?;
        Ok(Candidate { recipe, plugin })
    }

    /// Makes the first generation. A component that cannot be used is no reason to stop waiting with the one that could be, when
    /// opening it failed.
    async fn first<P: Kind>(&self, config: &Config, name: &str, place: &Place<P>) -> Result<Candidate<P>, AppError> {
        let adapter = P::adapter(config, name).ok_or_else(|| absent::<P>(name))?;
        let recipe = Recipe::of(config, adapter).await;
        let prepared = match P::prepare(&self.app, config, name, Attempt::FIRST).await {
            Ok(prepared) => {
                place.record().told = None;
                let prepared = Arc::new(prepared);
                place.set_ready(Some((adapter.plugin.clone(), Arc::clone(&prepared))));
                prepared
            }
            Err(error) => {
                let usable = |ready: &Arc<P::Prepared>| error.is_of_component() && is_pinned::<P>(config, &adapter.plugin, ready);
                let Some(ready) = place.ready(&adapter.plugin).filter(usable) else { return Err(error) };
                if self.is_news(place, &error.to_string()) {
                    self.app.metrics.adapter_candidates_refused.get_or_create(&labels(name)).inc();
                    tracing::error!(adapter = name, "a candidate is refused, the component before it waits to be opened: {error}");
                }
                ready
            }
        };
        let plugin = P::open(&self.app, config, name, &prepared).await?;
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

    pub(super) fn note_open<P: Kind>(&self, name: &str, place: &Place<P>, candidate: Candidate<P>) {
        let Candidate { recipe, plugin } = candidate;
        let generation = plugin.generation();
        self.inventory.opened(&section::<P>(name), &recipe.adapter.plugin, generation);
        let labels = labels(name);
        self.app.metrics.adapter_generation.get_or_create(&labels).set(i64::try_from(generation.number).unwrap_or(i64::MAX));
        // `increase()` does not see the first step of a series that begins with it.
        self.app.metrics.adapter_swaps.get_or_create(&labels).inc_by(0);
        self.app.metrics.adapter_candidates_refused.get_or_create(&labels).inc_by(0);
        place.set_ready(None);
        let mut record = place.record();
        *record = Record { made_of: Some((recipe, generation.sha256.clone())), trying: record.trying, ..Record::default() };
    }

    /// Looks at the files of every open adapter, and begins to try what has changed; what can be used is swapped in. Returns how soon to
    /// look again; none: nothing but the trials is under way.
    pub(super) async fn look(self: &Arc<Self>, sightings: &mut Sightings, trials: &mut Trials) -> Option<Duration> {
        let publishers = self.look_at_all(&self.publishers, sightings, trials).await;
        let routers = self.look_at_all(&self.routers, sightings, trials).await;
        let storages = self.look_at_all(&self.storages, sightings, trials).await;
        publishers.into_iter().chain(routers).chain(storages).min()
    }

    async fn look_at_all<P: Kind>(self: &Arc<Self>, all: &Places<P>, sightings: &mut Sightings, trials: &mut Trials) -> Option<Duration> {
        let mut soonest: Option<Duration> = None;
        for (name, place) in places(all) {
            let Some(slot) = place.slot.get().cloned() else { continue };
            if place.record().trying {
                continue;
            }
            match self.look_at(&name, &place, &slot, sightings).await {
                Looked::Same => {}
                Looked::Again(again) => soonest = soonest.into_iter().chain([again]).min(),
                Looked::Other(news) => {
                    place.record().trying = true;
                    let adapters = Arc::clone(self);
                    trials.push(Box::pin(async move { adapters.try_candidate(&name, &place, &slot, news).await }));
                }
            }
        }
        soonest
    }

    async fn look_at<P: Kind>(&self, name: &str, place: &Place<P>, slot: &Slot<P>, sightings: &mut Sightings) -> Looked {
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
                place.record().unreadable = true;
                if self.is_news(place, &reason) {
                    self.note_refused(name, &section, generation, None, format!("{} cannot be read: {reason}", file.display()));
                }
                return Looked::Same;
            }
        };
        self.inventory.gone(&section, false);
        let (recipe, around) = (Recipe::of(&config, adapter).await, Around::of(&config, adapter).await);
        // Before this very candidate is tried again; none: it is a new one.
        let mut waited = None;
        {
            let mut record = place.record();
            record.told = None;
            // What was told of that is no longer so.
            let was_unreadable = std::mem::take(&mut record.unreadable);
            let runs = record.made_of.as_ref().is_some_and(|(made_of, made)| *made_of == recipe && *made == sha256);
            if runs {
                if record.refused.take().is_some() || was_unreadable {
                    self.inventory.refused(&section, None);
                }
                return Looked::Same;
            }
            if let Some(memo) = record.refused.as_ref().filter(|memo| memo.is_of(&recipe, &sha256, &around)) {
                if was_unreadable {
                    self.inventory.refused(&section, Some(Refused::now(Some(sha256.clone()), memo.reason.clone())));
                }
                let Some(again) = memo.again else { return Looked::Same };
                let left = again.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    return Looked::Again(left);
                }
                waited = Some(memo.wait);
            }
        }
        tracing::info!(adapter = name, generation, sha256, "trying {}", adapter.plugin);
        Looked::Other(Box::new(News { config: Arc::clone(&config), generation, recipe, sha256, around, waited }))
    }

    /// Opens what a look has found, and puts it in place.
    async fn try_candidate<P: Kind>(&self, name: &str, place: &Place<P>, slot: &Slot<P>, news: Box<News>) {
        let News { config, generation, recipe, sha256, around, waited } = *news;
        let read = OnceLock::new();
        let attempt = Attempt { generation: generation.saturating_add(1), read: Some(&read) };
        let tried = self.candidate::<P>(&config, name, attempt).await;
        let is_still = self.is_still::<P>(name, &recipe).await;
        place.record().trying = false;
        // Meanwhile it is to be otherwise, or there is another generation: the next look is at that.
        if !is_still || slot.current().generation().number != generation {
            return;
        }
        let is_other = tried_another(&sha256, read.get(), tried.as_ref().err());
        match tried {
            _ if is_other => {}
            Ok(candidate) => P::put(self, name, place, slot, candidate),
            Err(error) => {
                let wait = next_wait(waited);
                let again = error.may_pass().then(|| Instant::now() + wait);
                let reason = error.to_string();
                let before = {
                    let mut record = place.record();
                    let asked = std::mem::take(&mut record.asked);
                    record.refused.replace(Memo { recipe, sha256: sha256.clone(), around, again, wait, reason: reason.clone(), asked })
                };
                if waited.is_some() && before.is_some_and(|before| before.reason == reason) {
                    tracing::debug!(adapter = name, generation, sha256, "the candidate is refused again: {reason}");
                } else {
                    self.note_refused(name, &section::<P>(name), generation, Some(sha256), reason);
                }
            }
        }
    }

    /// Whether a configuration that has come meanwhile wants an adapter to be the same.
    async fn is_still<P: Kind>(&self, name: &str, recipe: &Recipe) -> bool {
        loop {
            let config = self.config();
            let Some(adapter) = P::adapter(&config, name) else { return false };
            let is_same = Recipe::of(&config, adapter).await == *recipe;
            if Arc::ptr_eq(&config, &self.config()) {
                return is_same;
            }
        }
    }

    /// Has what was refused tried again at the next look, whether or not anything has changed.
    pub(super) fn ask_again(&self) {
        fn ask<P: Kind>(all: &Places<P>) {
            for (_, place) in places(all) {
                let mut record = place.record();
                record.told = None;
                record.asked = record.trying;
                if let Some(memo) = &mut record.refused {
                    memo.asked = true;
                }
            }
        }
        ask(&self.publishers);
        ask(&self.routers);
        ask(&self.storages);
    }

    /// Whether this of the file is not told yet.
    fn is_news<P: Kind>(&self, place: &Place<P>, what: &str) -> bool {
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
    pub(super) fn put_storage(
        &self,
        name: &str,
        place: &Place<StoragePlugin>,
        slot: &Slot<StoragePlugin>,
        candidate: Candidate<StoragePlugin>,
    ) {
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
        {
            let (made_of, mut record) = (Some((candidate.recipe.clone(), generation.sha256.clone())), place.record());
            *record = Record { made_of, waits: true, trying: record.trying, ..Record::default() };
        }
        turn.begin_anew(Some(candidate));
    }
}

/// What a look at the file of an adapter came to.
enum Looked {
    /// Nothing to do.
    Same,
    /// To be looked at again so soon.
    Again(Duration),
    /// To be tried.
    Other(Box<News>),
}

/// A component or settings that may take the place of what runs.
struct News {
    config: Arc<Config>,
    /// What runs.
    generation: u64,
    recipe: Recipe,
    sha256: String,
    around: Around,
    /// It was refused before, and so long was waited since; none: it is new.
    waited: Option<Duration>,
}

/// Whether what was tried is not what a look had found: it was replaced or taken away in between, and may be half-written. What became
/// of it says nothing of the file that the look had found, and the next look is at what is there then.
fn tried_another(looked_at: &str, read: Option<&String>, failed: Option<&AppError>) -> bool {
    match read {
        Some(read) => read != looked_at,
        None => failed.is_some_and(AppError::is_of_absent_file),
    }
}

/// How long to wait before another try, after one that had waited so long; none: the first.
pub(super) fn next_wait(waited: Option<Duration>) -> Duration {
    waited.map_or(AGAIN.0, |waited| (waited * 2).min(AGAIN.1))
}

/// Whether a component may be loaded by the pins as they are now.
fn is_pinned<P: Kind>(config: &Config, plugin: &str, prepared: &P::Prepared) -> bool {
    match pins(config) {
        Ok(Some(pins)) => pins.of(plugin) == Some(&P::prepared(prepared).sha256),
        Ok(None) => true,
        Err(_) => false,
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn places<P: Kind>(places: &Places<P>) -> Vec<(String, Arc<Place<P>>)> {
    lock(places).iter().map(|(name, place)| (name.clone(), Arc::clone(place))).collect()
}

pub(super) fn section<P: Kind>(name: &str) -> String {
    format!("{}.{name}", P::SECTION)
}

fn labels(name: &str) -> AdapterLabels {
    AdapterLabels { adapter: name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::PluginError;

    #[test]
    fn a_refusal_is_of_the_file_that_was_tried() {
        let failed = |source: PluginError| AppError::Open { kind: "publishers", name: "p".into(), place: None, source: Box::new(source) };
        let path = std::path::PathBuf::from("plugins/p.wasm");
        let compile = failed(PluginError::Compile { path: path.clone(), reason: "no".into() });
        let missing = failed(PluginError::Missing { path, present: "the directory has no component".into() });
        let (found, other) = ("aa".to_owned(), "bb".to_owned());
        assert!(!tried_another(&found, Some(&found), None));
        assert!(!tried_another(&found, Some(&found), Some(&compile)));
        assert!(tried_another(&found, Some(&other), None) && tried_another(&found, Some(&other), Some(&compile)));
        assert!(tried_another(&found, None, Some(&missing)), "it was taken away");
        // Nothing of it was read: a registry that is away, pins that are damaged.
        let pins = failed(PluginError::Pins(crate::plugin::PinsError { file: "outhaul.lock".into(), reason: "are damaged".into() }));
        assert!(!tried_another(&found, None, Some(&pins)));
    }
}
