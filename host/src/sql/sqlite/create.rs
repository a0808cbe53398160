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
