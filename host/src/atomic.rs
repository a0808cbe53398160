//! Writing files that others read: all of one or nothing of it, also where the process or the machine dies on the way.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// How temporary files begin; a process that dies leaves one.
pub(crate) const TEMPORARY: &str = ".outhaul-";

/// Puts a file in the place of what is there, if anything is: written beside it, on the disk, then renamed. Others may read it, within
/// what the process's umask allows.
///
/// # Errors
/// It cannot be written; nothing has changed then.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A temporary file is private otherwise.
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).permissions(permissions).tempfile_in(folder)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.as_file().sync_data()?;
    file.persist(path).map_err(|error| error.error)?;
    // The new name, too.
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_one_is_there_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "a longer old one").unwrap();
        replace(&path, &[b"one", b"two"]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "onetwo");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace(&folder.path().join("none/a"), &[]).is_err());
    }
}
