//! Notices that files have changed: told by the operating system where it can, and by looking from time to time in any case, since
//! not every file system tells (a network one does not, of what others write).

use notify::{Config, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How often to look where the system tells.
const TOLD: Duration = Duration::from_secs(10);

/// How often to look where it does not. Looking is asking for the metadata of a few files.
const UNTOLD: Duration = Duration::from_secs(2);

/// A folder, and which of its files matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) files: Files,
}

/// Which files of a folder matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Files {
    /// Every component.
    Components,
    /// Those with these names.
    Named(Vec<std::ffi::OsString>),
}

impl Files {
    fn has(&self, path: &Path) -> bool {
        // How Kubernetes replaces the files of a mounted volume all at once: the link `..data` is renamed.
        if path.file_name() == Some(OsStr::new("..data")) {
            return true;
        }
        match self {
            Self::Components => path.extension() == Some(OsStr::new("wasm")),
            Self::Named(names) => path.file_name().is_some_and(|name| names.iter().any(|known| known == name)),
        }
    }
}

/// Watches folders, as long as it lives.
pub(super) struct Watch {
    folders: Vec<Watched>,
    changed: Arc<Notify>,
}

struct Watched {
    folder: Folder,
    /// Device and inode of what is watched: another folder of that name has to be watched anew.
    identity: Option<(u64, u64)>,
    watcher: Option<RecommendedWatcher>,
    warned: bool,
}

impl Watch {
    /// Notifies `changed` whenever something may have changed. [`Watch::renew`] begins it.
    pub(super) fn new(folders: Vec<Folder>, changed: Arc<Notify>) -> Self {
        let watched = |folder| Watched { folder, identity: None, watcher: None, warned: false };
        Self { folders: folders.into_iter().map(watched).collect(), changed }
    }

    /// Watches what is not watched: a folder that was not there, or was replaced. Returns when to look without being told.
    pub(super) fn renew(&mut self) -> Duration {
        for watched in &mut self.folders {
            let path = &watched.folder.path;
            let identity = std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
            if identity.is_some() && identity == watched.identity && watched.watcher.is_some() {
                continue;
            }
            match watch(&watched.folder, &self.changed) {
                Ok(watcher) => (watched.watcher, watched.identity, watched.warned) = (Some(watcher), identity, false),
                Err(error) => {
                    watched.watcher = None;
                    if !std::mem::replace(&mut watched.warned, true) {
                        let every = humantime::format_duration(UNTOLD);
                        tracing::warn!(folder = %path.display(), %every, "cannot be watched, and is looked at from time to time: {error}");
                    }
                }
            }
        }
        if self.folders.iter().all(|watched| watched.watcher.is_some()) { TOLD } else { UNTOLD }
    }
}

fn watch(folder: &Folder, changed: &Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let (files, changed) = (folder.files.clone(), Arc::clone(changed));
    let told = move |event: notify::Result<Event>| {
        let matters = match event {
            // Reading is no change, and looking at the files reads them.
            Ok(Event { kind: EventKind::Access(_), .. }) => false,
            Ok(event) => event.paths.is_empty() || event.paths.iter().any(|path| files.has(path)),
            // Events were lost: look.
            Err(_) => true,
        };
        if matters {
            changed.notify_one();
        }
    };
    let mut watcher = RecommendedWatcher::new(told, Config::default())?;
    watcher.watch(&folder.path, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest wait for what must come at once.
    const SOON: Duration = Duration::from_secs(20);

    async fn told(changed: &Notify) {
        tokio::time::timeout(SOON, changed.notified()).await.expect("nothing was told");
    }

    #[tokio::test]
    async fn files_that_matter_are_told_also_in_a_folder_that_comes_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugins");
        let changed = Arc::new(Notify::new());
        let mut watch = Watch::new(vec![Folder { path: path.clone(), files: Files::Components }], Arc::clone(&changed));
        assert_eq!(watch.renew(), UNTOLD, "there is no such folder");
        std::fs::create_dir(&path).unwrap();
        assert_eq!(watch.renew(), TOLD);
        std::fs::write(path.join("a.wasm"), "x").unwrap();
        told(&changed).await;
        // Replaced as a whole.
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        std::fs::create_dir(&path).unwrap();
        watch.renew();
        drop(tokio::time::timeout(Duration::ZERO, changed.notified()).await);
        std::fs::write(path.join("b.wasm"), "x").unwrap();
        told(&changed).await;
    }

    #[test]
    fn only_some_files_matter() {
        let named = Files::Named(vec!["outhaul.toml".into()]);
        assert!(named.has(Path::new("/a/outhaul.toml")) && named.has(Path::new("/a/..data")));
        assert!(!named.has(Path::new("/a/outbox.db-wal")));
        assert!(Files::Components.has(Path::new("/a/x.wasm")) && !Files::Components.has(Path::new("/a/x.wasm.new")));
    }
}
