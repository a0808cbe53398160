//! Keeps a running process up to date with its files: components, pins, and the configuration. One task, so that one change is
//! judged and taken over after the other.

use super::adapters::Adapters;
use super::inventory::{Inventory, Refused};
use super::watch::{Files, Folder, Watch};
use crate::config::{self, Config};
use crate::metrics::{Metrics, ResultLabels};
use crate::plugin::{STILL, Sight, Sightings};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What it works with.
pub(super) struct Reload {
    pub(super) adapters: Arc<Adapters>,
    pub(super) inventory: Arc<Inventory>,
    pub(super) metrics: Metrics,
    /// SIGHUP.
    pub(super) hangup: Arc<Notify>,
}

/// What brought a reading of the configuration about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Signal,
    Change,
}

impl Reload {
    /// Goes on for ever; the caller drops it.
    pub(super) async fn run(self) {
        for result in ["applied", "refused", "unchanged"] {
            self.metrics.config_reloads.get_or_create(&ResultLabels { result }).inc_by(0);
        }
        // What is watched cannot change while the process runs.
        let config = self.adapters.config();
        let (watches_plugins, watches_config) = (config.plugins.watch, config.watch_config);
        let changed = Arc::new(Notify::new());
        let mut watch = Watch::new(folders(&config), Arc::clone(&changed));
        let mut sightings = Sightings::default();
        // SHA-256 of the configuration file when it was last judged.
        let mut judged = None;
        // Whether files are looked at although they are not watched: until all that a signal was sent for stand still.
        let mut looking = false;
        loop {
            let mut wait = if watches_plugins || watches_config { Some(watch.renew()) } else { None };
            if watches_config {
                match sightings.look(&config.file, Instant::now()).await {
                    Sight::Still(sha256) if judged.as_ref() != Some(&sha256) => {
                        judged = Some(sha256);
                        self.reload(&config.file, Cause::Change).await;
                    }
                    Sight::Moving => wait = Some(STILL),
                    Sight::Still(_) | Sight::Gone | Sight::Unreadable(_) => {}
                }
            }
            if watches_plugins || looking {
                let again = self.adapters.look(&mut sightings).await;
                looking = again.is_some();
                wait = wait.into_iter().chain(again).min();
            }
            tokio::select! {
                () = changed.notified() => {}
                () = self.adapters.opened.notified() => {}
                () = self.hangup.notified() => {
                    self.reload(&config.file, Cause::Signal).await;
                    looking = true;
                }
                () = sleep(wait) => {}
            }
        }
    }

    /// Reads the configuration, and takes it over as a whole or not at all.
    async fn reload(&self, file: &Path, cause: Cause) {
        let taken = match config::load(file) {
            Ok(new) => self.adapters.take_over_config(new).await,
            Err(error) => Err(format!("{:#}", anyhow::Error::new(error))),
        };
        let result = match &taken {
            Ok(true) => "applied",
            Ok(false) => "unchanged",
            Err(_) => "refused",
        };
        self.metrics.config_reloads.get_or_create(&ResultLabels { result }).inc();
        let shown = file.display();
        match taken {
            Ok(true) => {
                tracing::info!("{shown} is taken over");
                for config::Warning { relay, place, text } in config::warnings(&self.adapters.config()) {
                    tracing::warn!(relay, key = place.map(|place| place.to_string()), "{text}");
                }
            }
            Ok(false) if cause == Cause::Signal => tracing::info!("nothing has changed in {shown} that is in use"),
            Ok(false) => {}
            Err(reason) => {
                tracing::error!("{shown} is refused, and the configuration stays as it was: {reason}");
                return self.inventory.config_refused(Some(Refused::now(None, reason)));
            }
        }
        self.inventory.config_refused(None);
    }
}

/// Where the files are that matter.
fn folders(config: &Config) -> Vec<Folder> {
    let mut folders = Vec::new();
    let mut named: Vec<OsString> = Vec::new();
    if config.plugins.watch {
        folders.push(Folder { path: config.plugins.dir.clone(), files: Files::Components });
        named.extend(config.plugins.pins.file_name().map(OsString::from));
    }
    if config.watch_config {
        named.extend(config.file.file_name().map(OsString::from));
    }
    if !named.is_empty() {
        let path = config.file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        folders.push(Folder { path: path.to_owned(), files: Files::Named(named) });
    }
    folders
}

/// None: for ever.
async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
