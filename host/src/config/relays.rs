//! `[[relays]]`: what goes where, and how fast; and what contradicts what.

use super::adapters::{PublisherEntry, StorageEntry, refers};
use super::model::{Breaker, FanOut, Poll, Relay, Route};
use super::section::{Located, Range, Section, check_name};
use super::{fan_out, patterns};
use crate::domain::Backoff;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Rows a claim: more gains nothing (sizes are bounded by bytes anyway).
const BATCH: Range = Range { min: 1, max: 100_000 };
/// Rows that one process holds: bounds its memory.
const IN_FLIGHT: Range = Range { min: 1, max: 10_000_000 };
const ANY: Range = Range { min: 0, max: u32::MAX as u64 };
const PROBES: Range = Range { min: 1, max: 10_000 };
/// Offsets in columns are 32 bits.
const MESSAGE_BYTES: Range = Range { min: 1, max: (4 << 30) - 1 };
/// Far over the memory of any machine that this runs on.
const IN_FLIGHT_BYTES: Range = Range { min: 1, max: 1 << 40 };

/// What relays are checked against.
pub(super) struct Adapters<'a> {
    pub(super) storages: &'a BTreeMap<String, StorageEntry>,
    /// Every name in the file, also of those that have problems.
    pub(super) storage_names: Vec<&'a str>,
    pub(super) publishers: &'a BTreeMap<String, PublisherEntry>,
    /// Every name in the file, also of those that have problems.
    pub(super) publisher_names: Vec<&'a str>,
    /// Every name in the file, also of those that have problems.
    pub(super) router_names: Vec<&'a str>,
    /// Every name in the file, also of those that have problems.
    pub(super) secret_names: Vec<&'a str>,
}

/// Reads all relays.
pub(super) fn relays(sections: Vec<Section<'_>>, adapters: &Adapters<'_>) -> Vec<Relay> {
    let mut names = HashMap::new();
    let mut storages: HashMap<String, Claims> = HashMap::new();
    let mut relays = Vec::new();
    for section in sections {
        let name = section.required("name", "\"orders\"").filter(|name| {
            let wrong = check_name(name.value).err().or_else(|| {
                let before = names.insert(name.value.to_owned(), ());
                before.map(|()| format!("{:?} is the name of an earlier relay: give each its own", name.value))
            });
            wrong.map(|wrong| section.problem(name.at, "name", wrong)).is_none()
        });
        // Deliveries show under a name of their own.
        if let Some(name) = name.filter(|_| section.has("fan_out"))
            && names.insert(fan_out::deliveries_of(name.value), ()).is_some()
        {
            section.problem(
                name.at,
                "name",
                format!("{:?} is the name of an earlier relay, and would be that of its deliveries", fan_out::deliveries_of(name.value)),
            );
        }
        let storage = section
            .required("storage", "\"outbox\" (a [storages.NAME] of this file)")
            .filter(|storage| refers(&section, storage, "storage", "storage", &adapters.storage_names));
        if let (Some(name), Some(storage)) = (name, storage) {
            let claims = Claims {
                relay: name.value.to_owned(),
                fans_out: section.has("fan_out"),
                tenant: section.glance("fan_out", "tenant").map(str::to_owned),
            };
            if let Some(other) = storages.insert(storage.value.to_owned(), claims.clone()) {
                section.problem(storage.at, "storage", contradiction(storage.value, &other, &claims));
            }
        }
        relays.extend(relay(section, name, storage, adapters));
    }
    relays
}

/// What a relay claims from its storage.
#[derive(Clone)]
struct Claims {
    relay: String,
    fans_out: bool,
    /// Of this one only.
    tenant: Option<String>,
}

/// Why two relays of a file cannot have one storage, and what can be had instead.
fn contradiction(storage: &str, other: &Claims, own: &Claims) -> String {
    let already = format!("the relay {:?} claims from {storage:?} already", other.relay);
    let own_storage = "a [storages.NAME] of its own with the same plugin, database and config";
    match (other.fans_out && own.fans_out, &other.tenant, &own.tenant) {
        (true, Some(others), Some(own)) if others != own => format!(
            "{already}, and a storage serves one relay: its instances are as many as one needs, and are swapped when that one is at rest; \
             give this one {own_storage}"
        ),
        (true, ..) => format!(
            "{already}, and each would take events that are the other's to expand: make one relay of both; or set another fan_out.tenant for \
             each, and give this one {own_storage}"
        ),
        (false, ..) => format!(
            "{already}, and each would take rows that only the other has routes for: \
             put the routes of both into one relay, or give each a table of its own"
        ),
    }
}

fn relay(section: Section<'_>, name: Option<Located<&str>>, storage: Option<Located<&str>>, adapters: &Adapters<'_>) -> Option<Relay> {
    let fan_out = section.section("fan_out");
    let fans_out = fan_out.is_present();
    let routes = if fans_out { no_routes(&section) } else { routes(&section, adapters) };
    let max_message_bytes = section.size("max_message_bytes", 8 << 20, MESSAGE_BYTES);
    let breaker = breaker(section.section("breaker"));
    let storage_entry = storage.and_then(|storage| adapters.storages.get(storage.value));
    let own = pace(&section, 10, max_message_bytes, storage_entry);
    for publisher in routes.iter().filter_map(|route| adapters.publishers.get(&route.publisher)) {
        if !fits(&section, max_message_bytes, publisher) {
            break;
        }
    }
    let fan_out = if fans_out { Some(fan_out::fan_out(fan_out, name.map(|name| name.value), storage, breaker, adapters)) } else { None };
    section.finish();
    let name = name?.value.to_owned();
    let fan_out = match fan_out {
        None => None,
        // What is missing was told.
        Some(fan_out) => Some(fan_out?),
    };
    Some(own.relay(name, storage?.value.to_owned(), routes, fan_out, max_message_bytes.value, breaker))
}

/// Where there is `fan_out`, there is nothing that routes could say.
fn no_routes(section: &Section<'_>) -> Vec<Route> {
    if !section.list("routes").is_empty() {
        section.problem_here(
            "routes and fan_out contradict each other: with fan_out all goes to fan_out.publisher, so leave one of the two out",
        );
    }
    Vec::new()
}

/// How a pipeline works its rows off.
pub(super) struct Pace {
    batch: u32,
    in_flight: usize,
    in_flight_bytes: usize,
    lease: Duration,
    max_attempts: u32,
    backoff: Backoff,
    publish_timeout: Duration,
    settle_delay: Duration,
    poll: Poll,
}

impl Pace {
    /// A relay that works so.
    pub(super) fn relay(
        self,
        name: String,
        storage: String,
        routes: Vec<Route>,
        fan_out: Option<FanOut>,
        max_message_bytes: usize,
        breaker: Breaker,
    ) -> Relay {
        let Self { batch, in_flight, in_flight_bytes, lease, max_attempts, backoff, publish_timeout, settle_delay, poll } = self;
        Relay {
            name,
            storage,
            routes,
            fan_out,
            batch,
            in_flight,
            in_flight_bytes,
            max_message_bytes,
            lease,
            max_attempts,
            backoff,
            publish_timeout,
            settle_delay,
            poll,
            breaker,
        }
    }
}

/// Reads it, and what in it contradicts what.
pub(super) fn pace(section: &Section<'_>, most_attempts: u32, max_message_bytes: Located<usize>, storage: Option<&StorageEntry>) -> Pace {
    let seconds = Duration::from_secs;
    let batch = section.number("batch", 500u32, BATCH);
    let in_flight = section.number("in_flight", 5000usize, IN_FLIGHT);
    let in_flight_bytes = section.size("in_flight_bytes", 64 << 20, IN_FLIGHT_BYTES);
    let lease = section.duration("lease", seconds(60), false);
    let max_attempts = section.number("max_attempts", most_attempts, ANY);
    let backoff = backoff(section.section("backoff"));
    let publish_timeout = section.duration("publish_timeout", seconds(10), false);
    let settle_delay = section.duration("settle_delay", Duration::from_millis(2), true);
    let poll = poll(section.section("poll"));

    longer(section, ("lease", lease), ("publish_timeout", publish_timeout), "a message must not be claimed again while it is being sent");
    longer(section, ("lease", lease), ("settle_delay", settle_delay), "outcomes must be written while the lease lasts");
    if usize::try_from(batch.value).is_ok_and(|batch| batch > in_flight.value) {
        let (at, key) = if batch.written { (batch.at, "batch") } else { (in_flight.at, "in_flight") };
        let text = format!("in_flight ({}) must be at least batch ({}): a claim could never be whole", in_flight.value, batch.value);
        section.problem(at, key, text);
    }
    if max_message_bytes.value > in_flight_bytes.value {
        let text = format!(
            "max_message_bytes ({}) must not be more than in_flight_bytes ({})",
            max_message_bytes.shown_size(),
            in_flight_bytes.shown_size()
        );
        let (at, key) =
            if max_message_bytes.written { (max_message_bytes.at, "max_message_bytes") } else { (in_flight_bytes.at, "in_flight_bytes") };
        section.problem(at, key, text);
    }
    if let Some(entry) = storage {
        against_storage(section, entry, lease, max_message_bytes);
    }
    Pace {
        batch: batch.value,
        in_flight: in_flight.value,
        in_flight_bytes: in_flight_bytes.value,
        lease: lease.value,
        max_attempts: max_attempts.value,
        backoff,
        publish_timeout: publish_timeout.value,
        settle_delay: settle_delay.value,
        poll,
    }
}

/// Whether the largest message fits into a publisher; if not, that is reported.
pub(super) fn fits(section: &Section<'_>, max_message_bytes: Located<usize>, publisher: &PublisherEntry) -> bool {
    let fits = max_message_bytes.value < publisher.memory.value;
    if !fits {
        let text = format!(
            "max_message_bytes ({}) must be smaller than limits.memory of publishers.{} ({}): a message is copied into the adapter's memory",
            max_message_bytes.shown_size(),
            publisher.publisher.adapter.name,
            publisher.memory.shown_size()
        );
        let other = publisher.memory.with(format!("publishers.{}.limits.memory", publisher.publisher.adapter.name));
        blame(section, max_message_bytes.with("max_message_bytes"), other, text);
    }
    fits
}

/// A storage call that outlasts the lease, or a message that the storage may not hand over, could never end well.
fn against_storage(section: &Section<'_>, storage: &StorageEntry, lease: Located<Duration>, max_message_bytes: Located<usize>) {
    let (name, call_timeout, returned) = (&storage.adapter.name, storage.call_timeout, storage.returned_bytes);
    if call_timeout.value >= lease.value {
        let text = format!(
            "lease ({}) must be longer than limits.call_timeout of storages.{name} ({}): a claim could outlast its own lease",
            lease.shown(),
            call_timeout.shown()
        );
        blame(section, lease.with("lease"), call_timeout.with(format!("storages.{name}.limits.call_timeout")), text);
    }
    let most = storage.adapter.limits.most_claimed_bytes();
    if max_message_bytes.value > most {
        let text = format!(
            "max_message_bytes ({}) must not be more than a quarter of limits.returned_bytes of storages.{name} ({}), nor an eighth of its limits.memory: it could not hand such a message over",
            max_message_bytes.shown_size(),
            returned.shown_size()
        );
        blame(section, max_message_bytes.with("max_message_bytes"), returned.with(format!("storages.{name}.limits.returned_bytes")), text);
    }
}

/// Reports a contradiction at the one of two keys that was written; where both were, at the relay's.
fn blame(section: &Section<'_>, own: Located<&str>, other: Located<String>, text: String) {
    if own.written || !other.written {
        section.problem(own.at, own.value, text);
    } else {
        section.problem_elsewhere(other.at, other.value, text);
    }
}

/// Reports where one duration of a section is not longer than another; the place is that of the one that was written.
fn longer(section: &Section<'_>, long: (&str, Located<Duration>), short: (&str, Located<Duration>), why: &str) {
    let ((long_key, long), (short_key, short)) = (long, short);
    if long.value <= short.value {
        let text = format!("{long_key} ({}) must be longer than {short_key} ({}): {why}", long.shown(), short.shown());
        let (at, key) = if long.written || !short.written { (long.at, long_key) } else { (short.at, short_key) };
        section.problem(at, key, text);
    }
}

/// Reports where a floor is above its ceiling.
fn ordered(section: &Section<'_>, low: (&str, Located<Duration>), high: (&str, Located<Duration>)) {
    let ((low_key, low), (high_key, high)) = (low, high);
    if low.value > high.value {
        let text = format!("{low_key} ({}) must not be longer than {high_key} ({})", low.shown(), high.shown());
        let (at, key) = if low.written { (low.at, low_key) } else { (high.at, high_key) };
        section.problem(at, key, text);
    }
}

fn routes(section: &Section<'_>, adapters: &Adapters<'_>) -> Vec<Route> {
    let list = section.list("routes");
    if list.is_empty() {
        section.problem_here("routes: has none: add routes = [ { topic = \"*\", publisher = \"NAME\" } ]");
    }
    let mut earlier: Vec<String> = Vec::new();
    let mut routes = Vec::new();
    for route in list {
        let topic = route.required("topic", "\"orders.*\"");
        let publisher = route
            .required("publisher", "\"webhooks\" (a [publishers.NAME] of this file)")
            .filter(|publisher| refers(&route, publisher, "publisher", "publisher", &adapters.publisher_names));
        let matcher = topic.and_then(|topic| {
            if let Some(before) = earlier.iter().find(|before| *before == "*" || *before == topic.value) {
                route.problem(topic.at, "topic", format!("is never reached: the route {before:?} before it takes every such topic"));
            }
            earlier.push(topic.value.to_owned());
            patterns::glob(topic.value).map_err(|error| route.problem(topic.at, "topic", error)).ok()
        });
        if let (Some(topic), Some(matcher), Some(publisher)) = (topic, matcher, publisher) {
            routes.push(Route { topic: topic.value.to_owned(), matcher, publisher: publisher.value.to_owned() });
        }
        route.finish();
    }
    routes
}

fn backoff(section: Section<'_>) -> Backoff {
    let base = section.duration("base", Duration::from_secs(1), false);
    let factor = section.float("factor", 2.0, 1.0..=1000.0);
    let max = section.duration("max", Duration::from_secs(300), false);
    let jitter = section.float("jitter", 0.25, 0.0..=1.0);
    ordered(&section, ("base", base), ("max", max));
    section.finish();
    Backoff { base: base.value, factor: factor.value, max: max.value, jitter: jitter.value }
}

fn poll(section: Section<'_>) -> Poll {
    let min = section.duration("min", Duration::from_millis(50), false);
    let max = section.duration("max", Duration::from_secs(1), false);
    let wake_check = section.duration("wake_check", Duration::from_millis(10), false);
    ordered(&section, ("min", min), ("max", max));
    section.finish();
    Poll { min: min.value, max: max.value, wake_check: wake_check.value }
}

fn breaker(section: Section<'_>) -> Breaker {
    let failures = section.number("failures", 5u32, ANY);
    let open = section.duration("open", Duration::from_secs(5), false);
    let max = section.duration("max", Duration::from_secs(60), false);
    let probes = section.number("probes", 10usize, PROBES);
    ordered(&section, ("open", open), ("max", max));
    section.finish();
    Breaker { failures: failures.value, open: open.value, max: max.value, probes: probes.value }
}
