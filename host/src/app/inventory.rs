//! What the process says of its adapters: which component each runs, and what was refused; and of its configuration.

use crate::plugin::Generation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Something that was refused, the running one staying.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// SHA-256 of the component; none: it could not be read, or what was refused is a configuration.
    pub sha256: Option<String>,
    /// Why.
    pub reason: String,
    /// Unix milliseconds.
    pub at: u64,
}

impl Refused {
    /// Refused now.
    pub(super) fn now(sha256: Option<String>, reason: String) -> Self {
        Self { sha256, reason, at: now() }
    }
}

/// An adapter of the running process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// As in `publishers.webhooks`.
    pub adapter: String,
    /// `plugin` of the configuration.
    pub plugin: String,
    /// The generation's number, from 1.
    pub generation: u64,
    /// The file that it was read from.
    pub file: PathBuf,
    /// Of what runs; the file may be another one by now.
    pub sha256: String,
    /// `version` of its manifest.
    pub version: Option<String>,
    /// When it was opened, in Unix milliseconds.
    pub since: u64,
    /// The file is gone: a restart would fail.
    pub file_is_gone: bool,
    /// The last candidate for the next generation, if it was refused and nothing has taken its place since.
    pub refused: Option<Refused>,
}

/// What `GET /plugins` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The configuration file of the process.
    pub config: PathBuf,
    /// What was wrong with the file when it was last read again; none: it is what the process runs with.
    pub config_refused: Option<Refused>,
    /// Every adapter that is open.
    pub plugins: Vec<Running>,
}

/// The adapters that are open, for whoever asks.
#[derive(Debug)]
pub struct Inventory {
    config: PathBuf,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    running: BTreeMap<String, Running>,
    config_refused: Option<Refused>,
}

impl Inventory {
    /// Of a process with this configuration file; nothing is open yet.
    #[must_use]
    pub fn new(config: PathBuf) -> Self {
        Self { config, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Every change is one step: a panic elsewhere cannot have left one half-done.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A generation is in its place now.
    pub fn opened(&self, adapter: &str, plugin: &str, generation: &Generation) {
        let Generation { number, file, sha256, version } = generation.clone();
        let (adapter, plugin) = (adapter.to_owned(), plugin.to_owned());
        let entry = Running {
            adapter: adapter.clone(),
            plugin,
            generation: number,
            file,
            sha256,
            version,
            since: now(),
            file_is_gone: false,
            refused: None,
        };
        self.known().running.insert(adapter, entry);
    }

    /// An adapter is no longer used.
    pub fn closed(&self, adapter: &str) {
        self.known().running.remove(adapter);
    }

    /// A candidate was refused, or what was refused is gone.
    pub fn refused(&self, adapter: &str, refused: Option<Refused>) {
        if let Some(running) = self.known().running.get_mut(adapter) {
            running.refused = refused;
        }
    }

    /// Whether the file of an adapter is there.
    pub fn gone(&self, adapter: &str, is_gone: bool) {
        if let Some(running) = self.known().running.get_mut(adapter) {
            running.file_is_gone = is_gone;
        }
    }

    /// The configuration was refused, or is what the process runs with.
    pub fn config_refused(&self, refused: Option<Refused>) {
        self.known().config_refused = refused;
    }

    /// All of it.
    #[must_use]
    pub fn document(&self) -> Document {
        let known = self.known();
        Document {
            config: self.config.clone(),
            config_refused: known.config_refused.clone(),
            plugins: known.running.values().cloned().collect(),
        }
    }
}

/// Unix milliseconds.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_to_an_adapter_is_told() {
        let inventory = Inventory::new("outhaul.toml".into());
        let generation = |number| Generation { number, file: "p/a.wasm".into(), sha256: format!("{number}"), version: None };
        let told = || inventory.document().plugins;
        inventory.refused("publishers.a", Some(Refused::now(None, "not open yet".into())));
        assert_eq!(told(), []);
        inventory.opened("publishers.a", "a", &generation(1));
        inventory.gone("publishers.a", true);
        inventory.refused("publishers.a", Some(Refused::now(None, "cannot be read".into())));
        assert!(told()[0].file_is_gone && told()[0].refused.is_some());
        inventory.opened("publishers.a", "a", &generation(2));
        assert_eq!((told().len(), told()[0].generation, told()[0].file_is_gone), (1, 2, false));
        assert_eq!(told()[0].refused, None);
        inventory.closed("publishers.a");
        assert_eq!(told(), []);
    }
}
