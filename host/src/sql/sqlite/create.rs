//! Creates a file, for an operator who asks for it: never for an adapter.

use super::connection::Settings;
use crate::sql::{SqlError, SqlErrorCode};
use rusqlite::{Connection, OpenFlags};
use std::fs::File;
use std::io::ErrorKind;

/// Creates the file in WAL mode, in which readers and the one writer do not wait for each other. Says false, and leaves it as it
/// is, where there is a file already.
pub(super) fn create(settings: &Settings) -> Result<bool, SqlError> {
    let path = &settings.path;
    let failed = |reason: String| {
        let detail = format!("cannot create {}: {reason}; check the folder and its permissions", path.display());
        SqlError::new(SqlErrorCode::Unavailable, detail)
    };
    match File::create_new(path) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(failed(error.to_string())),
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| failed(error.to_string()))?;
    connection.pragma_update(None, "journal_mode", "wal").map_err(|error| failed(error.to_string()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use crate::config::model::{Database, Sqlite};
    use crate::sql::{Databases, SqlErrorCode};
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    fn databases(path: PathBuf) -> Databases {
        Databases::new(
            &BTreeMap::from([("main".to_owned(), Database::Sqlite(Sqlite { path, synchronous_full: true, applies_schema: false }))]),
            &BTreeMap::new(),
        )
    }

    #[tokio::test]
    async fn a_file_is_created_once_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        assert!(databases(path.clone()).create("main").await.unwrap());
        let mode: String = rusqlite::Connection::open(&path).unwrap().query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        std::fs::write(&path, "somebody's").unwrap();
        assert!(!databases(path.clone()).create("main").await.unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
        let error = databases(folder.path().join("none/a.db")).create("main").await.unwrap_err();
        assert!(error.code == SqlErrorCode::Unavailable && error.detail.contains("none/a.db"), "{}", error.detail);
        assert_eq!(databases(path).create("other").await.unwrap_err().code, SqlErrorCode::Denied);
    }
}
