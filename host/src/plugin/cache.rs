//! Compiled code on disk, so that a start does not compile what it has compiled before.
//!
//! A cache file is native code that the process will run: it is only loaded if nobody but the process's own user can have written
//! it (owner and mode of the file and of the directory) and its digest is right. Everything else is ignored, with a line in the
//! log, and compiled afresh.

#![allow(unsafe_code, reason = "loading compiled code; the argument is at the one place")]

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use wasmtime::Engine;
use wasmtime::component::Component;

/// First bytes of a cache file: what it is, and the version of its layout (magic, digest of the body, body).
const MAGIC: &[u8] = b"outhaul compiled component 1\n";

/// Largest cache file that is read, in bytes: compiled code is a few times the size of its component.
const MAX_BYTES: u64 = 1 << 30;

/// Files kept: a few generations of a few dozen adapters. Past it, those go that were used longest ago.
const MAX_FILES: usize = 64;

/// Why a cache file was not used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0} is not a regular file or directory of its kind")]
    Kind(PathBuf),
    #[error("{0} belongs to another user")]
    Owner(PathBuf),
    #[error("{0} can be written by others (chmod go-w)")]
    Mode(PathBuf),
    #[error("it is larger than {MAX_BYTES} bytes")]
    Size,
    #[error("its header is wrong")]
    Header,
    #[error("its digest is wrong")]
    Digest,
    #[error("the engine refuses it: {0}")]
    Engine(String),
}

/// The cache directory, for one engine.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    directory: PathBuf,
    /// Of the engine's version and settings: other engines' files are never looked at.
    compatibility: String,
}

struct Digesting(Sha256);

impl Hasher for Digesting {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    fn finish(&self) -> u64 {
        self.0.clone().finalize().iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
    }
}

impl Cache {
    pub(super) fn new(directory: PathBuf, engine: &Engine) -> Self {
        let mut hasher = Digesting(Sha256::new());
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Self { directory, compatibility: format!("{:016x}", hasher.finish()) }
    }

    /// The compiled form of `bytes`, whose SHA-256 is `digest`; compiled and stored where the cache has none that is fit for use.
    pub(super) fn load(&self, engine: &Engine, bytes: &[u8], digest: &str) -> wasmtime::Result<Component> {
        let path = self.directory.join(format!("{digest}-{}.cwasm", self.compatibility));
        match self.read(engine, &path) {
            Ok(Some(component)) => return Ok(component),
            Ok(None) => {}
            Err(unusable) => tracing::warn!(file = %path.display(), "compiled code is not used and made afresh: {unusable}"),
        }
        let component = Component::from_binary(engine, bytes)?;
        if let Err(error) = self.store(&path, &component.serialize()?) {
            tracing::warn!(file = %path.display(), "compiled code cannot be stored: {error}");
        }
        Ok(component)
    }

    fn read(&self, engine: &Engine, path: &Path) -> Result<Option<Component>, Unusable> {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        // Opening a pipe would wait for somebody to write to it.
        let mut file = match File::options().read(true).custom_flags(i32::try_from(flags.bits()).unwrap_or(0)).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let directory = fs::metadata(&self.directory)?;
        check_private(&self.directory, &directory, directory.is_dir())?;
        // Of the opened file, not of the path: nobody can swap it in between.
        let metadata = file.metadata()?;
        check_private(path, &metadata, metadata.is_file())?;
        if metadata.len() > MAX_BYTES {
            return Err(Unusable::Size);
        }
        // Marks it as used, for `prune`. Without the mark it is only compiled again some day.
        if let Err(error) = file.set_modified(SystemTime::now()) {
            tracing::debug!(file = %path.display(), "cannot be marked as used: {error}");
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        let rest = content.strip_prefix(MAGIC).ok_or(Unusable::Header)?;
        let (digest, body) = rest.split_at_checked(32).ok_or(Unusable::Header)?;
        if Sha256::digest(body).as_slice() != digest {
            return Err(Unusable::Digest);
        }
        // SAFETY: `deserialize` runs code from `body`, so `body` must be what `Component::serialize` made. It was written by
        // `store` below, or by something that can act as this process's own user anyway: file and directory belong to the
        // effective user and cannot be written by others, checked on the opened file. The digest rules out damage on disk.
        // The engine itself refuses code of another version, target or configuration.
        match unsafe { Component::deserialize(engine, body) } {
            Ok(component) => Ok(Some(component)),
            Err(error) => Err(Unusable::Engine(format!("{error:#}"))),
        }
    }

    fn store(&self, path: &Path, body: &[u8]) -> Result<(), Unusable> {
        // Distinguishes writers of one process; the process id those of several.
        static WRITERS: AtomicU64 = AtomicU64::new(0);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let metadata = fs::metadata(&self.directory)?;
        check_private(&self.directory, &metadata, metadata.is_dir())?;
        let writer = WRITERS.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_extension(format!("{}-{writer}.tmp", std::process::id()));
        let written = (|| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(MAGIC)?;
            file.write_all(&Sha256::digest(body))?;
            file.write_all(body)?;
            file.sync_data()?;
            fs::rename(&temporary, path)
        })();
        if let Err(error) = written {
            // What is left of it is of no use to anybody; that it cannot be removed is not worse than the error itself.
            let _ = fs::remove_file(&temporary);
            return Err(error.into());
        }
        self.prune()?;
        Ok(())
    }

    /// Removes what was used longest ago, down to [`MAX_FILES`].
    fn prune(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            // Another process may have removed it in between.
            if path.extension().is_some_and(|extension| extension == "cwasm" || extension == "tmp")
                && let Ok(modified) = fs::metadata(&path).and_then(|metadata| metadata.modified())
            {
                files.push((modified, path));
            }
        }
        files.sort_unstable();
        let excess = files.len().saturating_sub(MAX_FILES);
        for (_, path) in files.into_iter().take(excess) {
            match fs::remove_file(path) {
                // Another process prunes as well.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn check_private(path: &Path, metadata: &fs::Metadata, right_kind: bool) -> Result<(), Unusable> {
    if !right_kind {
        return Err(Unusable::Kind(path.to_owned()));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(Unusable::Owner(path.to_owned()));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(Unusable::Mode(path.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::manifest::{Anatomy, ComponentFault};
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// The smallest component: a header.
    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    struct Fixture {
        engine: Engine,
        cache: Cache,
        folder: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let engine = Engine::default();
            let cache = Cache::new(folder.path().join("cache"), &engine);
            cache.load(&engine, EMPTY, "digest").unwrap();
            Self { engine, cache, folder }
        }
        fn file(&self) -> PathBuf {
            let mut files = fs::read_dir(self.folder.path().join("cache")).unwrap();
            let file = files.next().unwrap().unwrap().path();
            assert!(files.next().is_none(), "only the cache file, no temporary one");
            file
        }
        fn read(&self) -> Result<Option<Component>, Unusable> {
            self.cache.read(&self.engine, &self.file())
        }
    }

    #[test]
    fn what_was_stored_is_loaded_again() {
        let fixture = Fixture::new();
        assert!(matches!(fixture.read(), Ok(Some(_))));
        assert_eq!(fs::metadata(fixture.file()).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let fixture = Fixture::new();
        let file = fixture.file();
        let good = fs::read(&file).unwrap();
        for index in [0, MAGIC.len(), MAGIC.len() + 32, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[index] ^= 1;
            fs::write(&file, bad).unwrap();
            assert!(matches!(fixture.read(), Err(Unusable::Header | Unusable::Digest)), "byte {index}");
        }
        fs::write(&file, &good[..MAGIC.len() + 10]).unwrap();
        assert!(matches!(fixture.read(), Err(Unusable::Header)));
        // And is healed by the next load.
        fixture.cache.load(&fixture.engine, EMPTY, "digest").unwrap();
        assert!(matches!(fixture.read(), Ok(Some(_))));
    }

    #[test]
    fn code_for_another_engine_is_not_looked_at_and_refused_where_it_is_put_in_place() {
        let fixture = Fixture::new();
        let mut config = wasmtime::Config::new();
        config.epoch_interruption(true);
        let other = Engine::new(&config).unwrap();
        let cache = Cache::new(fixture.folder.path().join("cache"), &other);
        assert_ne!(cache.compatibility, fixture.cache.compatibility);
        // Nor is it a component, should somebody drop it into the plugin directory.
        let compiled = other.precompile_component(EMPTY).unwrap();
        assert_eq!(Anatomy::read(&compiled), Err(ComponentFault::Compiled));
        let ours = fixture.file();
        cache.load(&other, EMPTY, "digest").unwrap();
        let theirs = ours.with_file_name(format!("digest-{}.cwasm", cache.compatibility));
        fs::rename(theirs, &ours).unwrap();
        // Digest and owner are right: the engine itself has the last word.
        let Err(unusable @ Unusable::Engine(_)) = fixture.read() else { panic!("it was loaded") };
        let text = unusable.to_string();
        assert!(text.starts_with("the engine refuses it: ") && text.contains("epoch"), "{text}");
        fixture.cache.load(&fixture.engine, EMPTY, "digest").unwrap();
        assert!(matches!(fixture.read(), Ok(Some(_))), "made afresh");
    }

    #[test]
    fn what_was_used_longest_ago_goes() {
        let fixture = Fixture::new();
        let used = fixture.file();
        let directory = used.parent().unwrap();
        for index in 0..MAX_FILES {
            let old = File::create(directory.join(format!("{index}.cwasm"))).unwrap();
            old.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::try_from(index).unwrap())).unwrap();
        }
        fixture.cache.store(&directory.join("new.cwasm"), b"").unwrap();
        let left = fs::read_dir(directory).unwrap().count();
        assert_eq!(left, MAX_FILES);
        assert!(used.exists() && directory.join("new.cwasm").exists());
        assert!(!directory.join("0.cwasm").exists() && !directory.join("1.cwasm").exists() && directory.join("2.cwasm").exists());
    }

    #[test]
    fn what_others_can_write_is_not_run() {
        let fixture = Fixture::new();
        let file = fixture.file();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(matches!(fixture.read(), Err(Unusable::Mode(path)) if path == file));
        assert!(fixture.read().err().unwrap().to_string().contains("can be written by others (chmod go-w)"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let directory = file.parent().unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(fixture.read(), Err(Unusable::Mode(path)) if path == directory));
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(matches!(fixture.read(), Ok(Some(_))));
    }

    #[test]
    fn a_foreign_owner_is_refused() {
        let fixture = Fixture::new();
        let file = fixture.file();
        // Only root can give a file away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
            assert!(matches!(fixture.read(), Err(Unusable::Owner(path)) if path == file));
        }
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let fixture = Fixture::new();
        let file = fixture.file();
        fs::remove_file(&file).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        assert!(matches!(fixture.read(), Err(Unusable::Kind(path)) if path == file));
    }

    #[test]
    fn a_link_is_not_followed() {
        let fixture = Fixture::new();
        let file = fixture.file();
        let elsewhere = fixture.folder.path().join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        assert!(matches!(fixture.read(), Err(Unusable::Io(_))));
    }
}
