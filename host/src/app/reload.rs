//! Keeps a running process up to date with its files: components, pins, and the configuration. One task decides, so that one change
//! is taken over after the other; what is tried (a component that compiles, a registry that is slow to answer) is under way beside.

use super::adapters::{Adapters, Trials};
use super::around::Around;
use super::inventory::{Inventory, Refused};
use super::recipe::digest;
use super::second_try::{Due, SecondTry};
use super::take_over::Refusal;
use super::watch::{Files, Folder, Watch};
use crate::config::{self, Config};
use crate::metrics::{Metrics, ResultLabels};
use crate::plugin::{STILL, Sight, Sightings};
use futures_util::StreamExt;
use std::ffi::OsString;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
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
    /// It was refused, and may be fine now. How long was waited; none: something was mended.
    Again(Option<Duration>),
}

/// What a reading of the configuration came to.
struct Verdict {
    cause: Cause,
    /// What was read, and what it met; none: the file itself is wrong.
    read: Option<(Arc<Config>, Around)>,
    /// Whether anything has changed, or why not.
    taken: Result<bool, Refusal>,
}

/// A reading that is under way.
struct Reading<'a> {
    /// SHA-256 of the file when it began; none: it could not be read.
    of: Option<[u8; 32]>,
    verdict: Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>,
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
        let mut reading: Option<Reading<'_>> = None;
        // Whether a signal has come while that same file was being read: what it depends on may have changed meanwhile.
        let mut asked = false;
        let mut refused: Option<SecondTry> = None;
        let mut trials = Trials::new();
        // Whether files are looked at although they are not watched: until all that a signal was sent for stand still.
        let mut looking = false;
        loop {
            let mut wait = if watches_plugins || watches_config { Some(watch.renew()) } else { None };
            if watches_config {
                // Whether the file is there as it was judged: what is being written is not tried again.
                let mut stands = false;
                match sightings.look(&config.file, Instant::now()).await {
                    Sight::Still(sha256) if judged.as_ref() != Some(&sha256) => {
                        judged = Some(sha256);
                        // What is read already is not what is wanted any more.
                        reading = Some(self.begin(&config.file, Cause::Change).await);
                    }
                    Sight::Still(_) => stands = true,
                    Sight::Moving => wait = Some(STILL),
                    // When it is back it is read, whatever it is then.
                    Sight::Gone | Sight::Unreadable(_) => judged = None,
                }
                if let Some(refused) = refused.as_mut().filter(|_| stands && reading.is_none()) {
                    let around = Around::of_all(&refused.config).await;
                    let waited = refused.has_met(&around).then_some(refused.wait);
                    match refused.due(around) {
                        Due::Now => reading = Some(self.begin(&config.file, Cause::Again(waited)).await),
                        Due::In(left) => wait = wait.into_iter().chain([left]).min(),
                        Due::Open => {}
                    }
                }
            }
            // A signal may be for files and settings that go together: the settings come first.
            if watches_plugins || (looking && reading.is_none()) {
                let again = self.adapters.look(&mut sightings, &mut trials).await;
                looking = again.is_some() || !trials.is_empty();
                wait = wait.into_iter().chain(again).min();
            }
            tokio::select! {
                () = changed.notified() => {}
                () = self.adapters.opened.notified() => {}
                () = self.hangup.notified() => {
                    // What is being read goes on to its end, however often it is asked for; only another file takes its place.
                    asked = match &reading {
                        Some(reading) => reading.of == digest(&config.file).await,
                        None => false,
                    };
                    if !asked {
                        reading = Some(self.begin(&config.file, Cause::Signal).await);
                    }
                    self.adapters.ask_again();
                    looking = true;
                }
                Some(()) = trials.next() => {}
                verdict = ended(&mut reading) => {
                    reading = if std::mem::take(&mut asked) { Some(self.begin(&config.file, Cause::Signal).await) } else { None };
                    refused = self.conclude(&config.file, verdict, refused.take());
                }
                () = sleep(wait) => {}
            }
        }
    }

    /// Begins to read the configuration.
    async fn begin<'a>(&'a self, file: &'a Path, cause: Cause) -> Reading<'a> {
        Reading { of: digest(file).await, verdict: Box::pin(self.read(file, cause)) }
    }

    /// Reads the configuration, and takes it over as a whole or not at all.
    async fn read(&self, file: &Path, cause: Cause) -> Verdict {
        match config::load(file) {
            Ok(new) => {
                let new = Arc::new(new);
                // Before it is tried: what changes meanwhile is a reason to try again.
                let around = Around::of_all(&new).await;
                let taken = self.adapters.take_over_config(Arc::clone(&new)).await;
                Verdict { cause, read: Some((new, around)), taken }
            }
            Err(error) => {
                let reason = format!("{:#}", anyhow::Error::new(error));
                Verdict { cause, read: None, taken: Err(Refusal { reason, may_pass: false }) }
            }
        }
    }

    /// Tells what has become of a configuration. Returns when to try it again, if it was refused.
    fn conclude(&self, file: &Path, verdict: Verdict, before: Option<SecondTry>) -> Option<SecondTry> {
        let Verdict { cause, read, taken } = verdict;
        let (result, shown) = (|result| self.metrics.config_reloads.get_or_create(&ResultLabels { result }).inc(), file.display());
        match taken {
            Ok(true) => {
                result("applied");
                tracing::info!("{shown} is taken over");
                for config::Warning { relay, place, text } in config::warnings(&self.adapters.config()) {
                    tracing::warn!(relay, key = place.map(|place| place.to_string()), "{text}");
                }
            }
            Ok(false) => {
                result("unchanged");
                if cause == Cause::Signal {
                    tracing::info!("nothing has changed in {shown} that is in use");
                }
            }
            Err(Refusal { reason, may_pass }) => {
                let waited = match (cause, &read) {
                    // Nothing was tried, so nothing is known that was not before.
                    (Cause::Again(_), None) => return before.map(SecondTry::put_off),
                    (Cause::Again(waited), Some(_)) => waited,
                    (Cause::Signal | Cause::Change, _) => None,
                };
                if waited.is_some() && before.is_some_and(|before| before.reason == reason) {
                    tracing::debug!("{shown} is refused again: {reason}");
                } else {
                    result("refused");
                    tracing::error!("{shown} is refused, and the configuration stays as it was: {reason}");
                    self.inventory.config_refused(Some(Refused::now(None, reason.clone())));
                }
                return read.map(|(config, around)| SecondTry::new(config, around, reason, may_pass, waited));
            }
        }
        self.inventory.config_refused(None);
        None
    }
}

/// None: never.
async fn ended(reading: &mut Option<Reading<'_>>) -> Verdict {
    match reading {
        Some(reading) => reading.verdict.as_mut().await,
        None => std::future::pending().await,
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
