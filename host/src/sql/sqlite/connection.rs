//! One connection: how a file is opened, how a lost one is opened again, and the statements that are the host's own.

use super::busy::CallClock;
use super::fault::{Fault, Stage};
use super::guard::Guard;
use crate::config::model;
use crate::sql::SqlErrorCode;
use rusqlite::OpenFlags;
use rusqlite::config::DbConfig;
use rusqlite::ffi::ErrorCode;
use rusqlite::hooks::AuthContext;
use rusqlite::limits::Limit;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Prepared statements kept by a connection. An adapter has a dozen; several may share a connection.
const STATEMENTS_KEPT: usize = 128;

/// Virtual machine instructions between two looks at the deadline: some 50 microseconds of work for one look of 30 nanoseconds.
const STEPS_PER_LOOK: i32 = 1000;

/// Longest value or row, in bytes, unless an adapter may have more returned: what `limits.returned_bytes` is by default. SQLite's
/// own limit is a gigabyte. It bounds what one instruction can do, inside of which nothing looks at the deadline.
const LONGEST_VALUE: i32 = 64 << 20;

/// Limits of SQLite that guests could misuse and no schema comes near to; they hold for reading the schema of the file as well,
/// which is why the others stay as SQLite has them.
const LIMITS: [(Limit, i32); 4] = [
    // A statement of an adapter has some kilobytes, the text of a table's schema as well.
    (Limit::SQLITE_LIMIT_SQL_LENGTH, 1 << 20),
    // LIKE in a trigger or a constraint takes a time of pattern times text, and a guest may choose both.
    (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000),
    // SQLite's own limit for long: a trigger that writes a row of 60 columns as `json_object` has 120.
    (Limit::SQLITE_LIMIT_FUNCTION_ARG, 127),
    // Instructions of one statement or trigger, most of which have no look at the deadline after them.
    (Limit::SQLITE_LIMIT_VDBE_OP, 25_000),
];

/// What the operator configured.
#[derive(Debug)]
pub(super) struct Settings {
    /// Its name in the configuration.
    pub(super) name: String,
    /// Absolute: SQLite takes a path that begins with `file:` for a URI.
    pub(super) path: PathBuf,
    synchronous_full: bool,
    applies_schema: bool,
}

impl Settings {
    pub(super) fn new(name: &str, settings: &model::Sqlite) -> Self {
        let path = std::path::absolute(&settings.path).unwrap_or_else(|_| settings.path.clone());
        Self { name: name.to_owned(), path, synchronous_full: settings.synchronous_full, applies_schema: settings.applies_schema }
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The one connection that writes.
    Writer,
    /// Reads of guests.
    Reader,
    /// Looks at the change counter, and at nothing else.
    Watch,
}

impl Role {
    /// Names the thread.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Reader => "reader",
            Self::Watch => "watch",
        }
    }

    /// Settings of our own connection; nothing here changes the file. The journal mode stays what the file says, and foreign keys
    /// what SQLite was built with (enforced).
    fn pragmas(self, settings: &Settings) -> String {
        let synchronous = if settings.synchronous_full { "FULL" } else { "NORMAL" };
        match self {
            // 64 MiB of cache, and a checkpoint every 10,000 pages: measured, a third more throughput at small batches. No memory
            // mapping, whatever it would add: a file that somebody cuts short (`cp` over it does) ends a process that has it mapped
            // with SIGBUS, and with it every relay of the host. Read as usual, it is an error of one call.
            Self::Writer => format!("PRAGMA cache_size = -65536; PRAGMA wal_autocheckpoint = 10000; PRAGMA synchronous = {synchronous};"),
            Self::Reader => "PRAGMA cache_size = -65536; PRAGMA query_only = ON;".to_owned(),
            Self::Watch => "PRAGMA query_only = ON;".to_owned(),
        }
    }
}

/// Which file it is: a path can come to mean another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// # Errors
    /// `unavailable`, with the path and what to do, if there is no such file.
    fn of(path: &Path) -> Result<Self, Fault> {
        let shown = path.display();
        let unavailable = |detail: String| Err(Fault::harmless(SqlErrorCode::Unavailable, detail));
        match fs::metadata(path) {
            Ok(found) if found.is_file() => Ok(Self { device: found.dev(), inode: found.ino() }),
            Ok(found) if found.is_dir() => unavailable(format!("{shown} is a directory: the url must name the database file itself")),
            Ok(_) => unavailable(format!("{shown} is not a regular file: the url must name a database file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => unavailable(format!(
                "{shown} does not exist, and the host does not create databases: correct the url, or create the file with the application that owns it"
            )),
            Err(error) => unavailable(format!("{shown} cannot be reached: {error}; check the permissions of the file and of its folders")),
        }
    }
}

/// The state of a database as the change watch sees it; a different one means that something may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// Which opening of the file.
    opening: u64,
    /// SQLite's counter, meaningful within one connection only.
    data: i64,
}

/// An open file.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: rusqlite::Connection,
    pub(super) guard: Arc<Guard>,
    file: FileId,
}

impl Open {
    fn new(settings: &Settings, role: Role, clock: &Arc<CallClock>) -> Result<Self, Fault> {
        let file = FileId::of(&settings.path)?;
        let fault = |error: rusqlite::Error| Fault::of(&error, Stage::Open, settings);
        // Never CREATE. A reader opens read-write as well, so that it can recover a log that a crashed process has left behind.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE;
        let mut connection = rusqlite::Connection::open_with_flags(&settings.path, flags).map_err(fault)?;
        let waiting = Arc::clone(clock);
        connection.busy_handler(Some(move |tries: i32| waiting.wait(u32::try_from(tries).unwrap_or(u32::MAX)))).map_err(fault)?;
        let running = Arc::clone(clock);
        connection.progress_handler(STEPS_PER_LOOK, Some(move || running.passed())).map_err(fault)?;
        // A schema written by somebody else must not run functions with side effects in our process.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(fault)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(fault)?;
        for (limit, most) in LIMITS {
            connection.set_limit(limit, most).map_err(fault)?;
        }
        connection.execute_batch(&role.pragmas(settings)).map_err(fault)?;
        if role == Role::Writer && connection.is_readonly("main").map_err(fault)? {
            return Err(Fault::harmless(
                SqlErrorCode::ReadOnly,
                format!("{} is write-protected: let the host write to it and to its folder", settings.path.display()),
            ));
        }
        connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
        let guard = Arc::new(Guard::new(settings.applies_schema));
        let judge = Arc::clone(&guard);
        connection.authorizer(Some(move |context: AuthContext<'_>| judge.judge(context))).map_err(fault)?;
        Ok(Self { connection, guard, file })
    }

    /// Bounds values and rows for a call that may have so many bytes returned.
    pub(super) fn bound_values(&self, returned_bytes: usize) -> Result<(), rusqlite::Error> {
        let most = i32::try_from(returned_bytes).unwrap_or(i32::MAX).max(LONGEST_VALUE);
        self.connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, most).map(drop)
    }

    /// Runs one of the host's own statements. Not from the cache of prepared statements: a guest could take it from there.
    fn host(&self, sql: &str) -> Result<(), rusqlite::Error> {
        self.guard.as_host(|| self.connection.execute_batch(sql))
    }
}

fn is_locked(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed))
}

/// A file that is open, or will be opened by the next call.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) settings: Arc<Settings>,
    role: Role,
    pub(super) clock: Arc<CallClock>,
    open: Option<Open>,
    openings: u64,
}

impl Session {
    pub(super) fn new(settings: Arc<Settings>, role: Role) -> Self {
        Self { settings, role, clock: Arc::new(CallClock::new()), open: None, openings: 0 }
    }

    /// Whether a file is open, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The open connection. Opens the file if it is not open, or if another one has come to be under its path: writes to a deleted
    /// file would succeed, and be lost.
    pub(super) fn ready(&mut self) -> Result<&Open, Fault> {
        let current = self.open.as_ref().is_some_and(|open| FileId::of(&self.settings.path).is_ok_and(|file| file == open.file));
        if !current {
            // Closed first: what was open must not outlive a failure to open what is there now.
            self.open = None;
            self.open = Some(Open::new(&self.settings, self.role, &self.clock)?);
            self.openings += 1;
        }
        self.current()
    }

    /// The connection in whose transaction we are.
    pub(super) fn current(&self) -> Result<&Open, Fault> {
        self.open.as_ref().ok_or_else(|| Fault::harmless(SqlErrorCode::Unavailable, "the database is not open"))
    }

    /// Whether a transaction is open.
    pub(super) fn in_transaction(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.connection.is_autocommit())
    }

    /// Begins a transaction; `IMMEDIATE` takes the write lock at once, so that nothing in it can fail for want of it later.
    pub(super) fn begin(&mut self, immediate: bool) -> Result<(), Fault> {
        let (settings, clock) = (Arc::clone(&self.settings), Arc::clone(&self.clock));
        let open = self.ready()?;
        let mut tries = 0;
        loop {
            match open.host(if immediate { "BEGIN IMMEDIATE" } else { "BEGIN" }) {
                // SQLite does not ask its busy handler about every lock: not where it suspects a deadlock, and not while processes
                // race for the lock table of a log. Nothing has been done yet, so that trying again is always right.
                Err(error) if is_locked(&error) && clock.wait(tries) => tries += 1,
                result => return result.map_err(|error| Fault::of(&error, Stage::Begin, &settings)),
            }
        }
    }

    /// Commits.
    pub(super) fn commit(&self) -> Result<(), Fault> {
        self.current()?.host("COMMIT").map_err(|error| Fault::of(&error, Stage::Commit, &self.settings))
    }

    /// Ends whatever transaction is open. Cannot fail: a connection that cannot roll back is closed, which does.
    pub(super) fn roll_back(&mut self) {
        self.clock.clear();
        if self.in_transaction() && self.open.as_ref().is_some_and(|open| open.host("ROLLBACK").is_err()) {
            self.close();
        }
    }

    /// Closes the file. The next call opens it again.
    pub(super) fn close(&mut self) {
        self.clock.clear();
        self.open = None;
    }

    /// The state of the database. Two system calls in WAL mode, four in rollback-journal mode.
    pub(super) fn version(&mut self, deadline: Instant) -> Result<Version, Fault> {
        self.clock.set(deadline);
        let settings = Arc::clone(&self.settings);
        let open = self.ready()?;
        let data = open
            .connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row((), |row| row.get(0)))
            .map_err(|error| Fault::of(&error, Stage::Run, &settings))?;
        Ok(Version { opening: self.openings, data })
    }
}
