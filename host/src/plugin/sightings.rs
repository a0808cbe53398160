//! What was last seen of component files: which have a new content, and which may still be being written. A file counts once it has
//! stood still for a moment, and is read again only after it was touched.

use super::catalog;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// A file must have stood still for so long. A copy over a slow network may pause for longer: then what is there so far is refused
/// as a damaged component, and looked at again when more has come.
pub const STILL: Duration = Duration::from_millis(250);

/// Files remembered: far more than any configuration names.
const MAX_FILES: usize = 1024;

/// What changes whenever a file is written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    /// Cannot be set by who copies times along.
    changed: (i64, i64),
}

#[derive(Debug)]
struct Sighting {
    /// None: no such file.
    mark: Option<Mark>,
    since: Instant,
    /// SHA-256 of what the mark stands for, once it was read.
    digest: Option<String>,
}

/// What there is to say of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Sight {
    /// It stands still, with this SHA-256 in hexadecimal.
    Still(String),
    /// It was touched a moment ago: look again after [`STILL`].
    Moving,
    /// It is not there, and was not a moment ago.
    Gone,
    /// It cannot be read.
    Unreadable(String),
}

/// The files looked at so far.
#[derive(Debug, Default)]
pub struct Sightings(HashMap<PathBuf, Sighting>);

impl Sightings {
    /// Looks at a file.
    pub async fn look(&mut self, file: &Path, now: Instant) -> Sight {
        let mark = match mark(file).await {
            Ok(mark) => mark,
            Err(error) => return Sight::Unreadable(error.to_string()),
        };
        if self.0.len() >= MAX_FILES && !self.0.contains_key(file) {
            self.0.clear();
        }
        let sighting = self.0.entry(file.to_owned()).or_insert(Sighting { mark, since: now, digest: None });
        if sighting.mark != mark {
            *sighting = Sighting { mark, since: now, digest: None };
        }
        if let Some(digest) = &sighting.digest {
            return Sight::Still(digest.clone());
        }
        if now.saturating_duration_since(sighting.since) < STILL {
            return Sight::Moving;
        }
        if mark.is_none() {
            return Sight::Gone;
        }
        let digest = match catalog::bytes(file).await {
            Ok((_, digest)) => digest,
            Err(error) => return Sight::Unreadable(error.to_string()),
        };
        // Read while it was replaced: what was read may be half of each.
        if self::mark(file).await.ok().flatten() != mark {
            *sighting = Sighting { mark: None, since: now, digest: None };
            return Sight::Moving;
        }
        sighting.digest = Some(digest.clone());
        Sight::Still(digest)
    }
}

async fn mark(file: &Path) -> io::Result<Option<Mark>> {
    match tokio::fs::metadata(file).await {
        Ok(metadata) => Ok(Some(Mark {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn digest(content: &str) -> Sight {
        Sight::Still(catalog::digest(content.as_bytes()))
    }

    #[tokio::test]
    async fn a_file_counts_once_it_stands_still() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.wasm");
        let (mut sightings, start) = (Sightings::default(), Instant::now());
        let at = |stills: u32| start + STILL * stills;
        assert_eq!(sightings.look(&file, at(0)).await, Sight::Moving);
        assert_eq!(sightings.look(&file, at(1)).await, Sight::Gone);
        std::fs::write(&file, "half").unwrap();
        assert_eq!(sightings.look(&file, at(2)).await, Sight::Moving);
        std::fs::File::options().append(true).open(&file).unwrap().write_all(b" and half").unwrap();
        assert_eq!(sightings.look(&file, at(3)).await, Sight::Moving, "it was written to in between");
        assert_eq!(sightings.look(&file, at(4)).await, digest("half and half"));
        assert_eq!(sightings.look(&file, at(4)).await, digest("half and half"), "known without a wait");
        let next = folder.path().join("next");
        std::fs::write(&next, "another").unwrap();
        std::fs::rename(next, &file).unwrap();
        assert_eq!(sightings.look(&file, at(5)).await, Sight::Moving);
        assert_eq!(sightings.look(&file, at(6)).await, digest("another"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(sightings.look(&file, at(7)).await, Sight::Moving, "it may be being replaced");
        assert_eq!(sightings.look(&file, at(8)).await, Sight::Gone);
    }

    #[tokio::test]
    async fn what_cannot_be_read_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let (mut sightings, start) = (Sightings::default(), Instant::now());
        sightings.look(folder.path(), start).await;
        let Sight::Unreadable(reason) = sightings.look(folder.path(), start + STILL).await else { panic!("it is a folder") };
        assert!(reason.contains("not a regular file"), "{reason}");
    }
}
