//! Files that are missing, wrong, replaced, full, damaged, and come back.

use super::super::connection::{Role, Session, Settings};
use super::super::fault::Stage;
use super::{Fixture, create, databases, found, insert, run, select};
use crate::config::model;
use crate::sql::{Access, ColumnType, SqlErrorCode, Statement};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_database_is_never_created() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing.db");
    let databases = databases(&path);
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let error = databases.open("main", access).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::Unavailable);
        assert!(error.detail.contains("missing.db does not exist") && error.detail.contains("correct the url"), "{error}");
    }
    assert!(databases.watch("main").unwrap().changed().await.is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    // It is found once it is there, by the same handle.
    create(&path, "wal");
    run(&databases.open("main", Access::ReadWrite).await.unwrap(), insert(1)).await.unwrap();
}

#[tokio::test]
async fn what_is_not_a_database_is_said_to_be_none() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.db");
    fs::write(&text, "this is not a database, although it is long enough to be mistaken for one at first sight".repeat(20)).unwrap();
    for (path, part) in [
        (dir.path(), "is a directory"),
        (text.as_path(), "not a SQLite database"),
        (&text.join("below"), "cannot be reached"),
        (std::path::Path::new("/dev/null"), "not a regular file"),
    ] {
        let error = databases(path).open("main", Access::ReadWrite).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::Unavailable, "{error}");
        assert!(error.detail.contains(part) && error.detail.contains(&path.display().to_string()), "{part} is not in: {error}");
    }
}

#[tokio::test]
async fn a_file_that_was_replaced_is_opened_again() {
    let fixture = Fixture::wal();
    let writer = fixture.open().await;
    let reader = fixture.databases.open("main", Access::ReadOnly).await.unwrap();
    run(&writer, insert(1)).await.unwrap();
    assert_eq!(found(&[run(&reader, select()).await.unwrap()]), 1);

    let fresh = fixture.path.with_file_name("fresh.db");
    create(&fresh, "delete");
    for ending in ["db-wal", "db-shm"] {
        fs::remove_file(fixture.path.with_extension(ending)).unwrap();
    }
    fs::rename(&fresh, &fixture.path).unwrap();
    assert_eq!(found(&[run(&reader, select()).await.unwrap()]), 0);
    run(&writer, insert(2)).await.unwrap();
    run(&writer, insert(3)).await.unwrap();
    assert_eq!(fixture.count(), 2);
}

#[tokio::test]
async fn a_file_that_was_deleted_is_missed_and_used_again_when_it_is_back() {
    let fixture = Fixture::new("delete");
    let connection = fixture.open().await;
    run(&connection, insert(1)).await.unwrap();
    fs::remove_file(&fixture.path).unwrap();
    let error = run(&connection, insert(2)).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Unavailable);
    assert!(error.detail.contains("does not exist"), "{error}");
    assert!(!fixture.path.exists());
    create(&fixture.path, "wal");
    run(&connection, insert(3)).await.unwrap();
    assert_eq!(fixture.count(), 1);
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_used_again_when_it_is_restored() {
    let fixture = Fixture::new("delete");
    let connection = fixture.open().await;
    for value in 0..50 {
        run(&connection, insert(value)).await.unwrap();
    }
    let backup = fs::read(&fixture.path).unwrap();
    let mut file = fs::OpenOptions::new().write(true).open(&fixture.path).unwrap();
    // The header stays, the table's page is overwritten, and the change counter (byte 24) tells the cache.
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.write_all(&[0xAB; 4096]).unwrap();
    file.seek(SeekFrom::Start(24)).unwrap();
    file.write_all(&[0x7F; 4]).unwrap();
    let error = run(&connection, select()).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Unavailable, "{error}");
    assert!(error.detail.contains("damaged") && error.detail.contains("restore a backup"), "{error}");
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&backup).unwrap();
    assert_eq!(found(&[run(&connection, select()).await.unwrap()]), 50);
}

#[tokio::test]
async fn a_file_cut_short_is_an_error_of_the_call_and_not_the_end_of_the_process() {
    let fixture = Fixture::wal();
    fixture
        .other()
        .execute_batch("CREATE TABLE large (v); INSERT INTO large VALUES (zeroblob(1000000)); PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    let writer = fixture.open().await;
    let reader = fixture.databases.open("main", Access::ReadOnly).await.unwrap();
    // With a commit in the log SQLite takes the size of the database from there, and not from the file.
    run(&writer, insert(1)).await.unwrap();
    run(&reader, select()).await.unwrap();
    fs::OpenOptions::new().write(true).open(&fixture.path).unwrap().set_len(3 * 4096).unwrap();
    let error = run(&reader, Statement::new("SELECT hex(v) FROM large").returning([ColumnType::Text])).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Unavailable, "{error}");
}

#[test]
fn a_full_disk_is_unavailable_and_the_connection_goes_on() {
    let fixture = Fixture::wal();
    let settings =
        Arc::new(Settings::new("main", &model::Sqlite { path: fixture.path.clone(), synchronous_full: false, applies_schema: false }));
    let mut session = Session::new(Arc::clone(&settings), Role::Writer);
    session.clock.set(Instant::now() + Duration::from_secs(60));
    session.begin(true).unwrap();
    let open = session.current().unwrap();
    // As full as a disk: SQLite may not add a page.
    open.guard.as_host(|| open.connection.execute_batch("PRAGMA max_page_count = 1")).unwrap();
    let error = open.connection.execute("INSERT INTO t (v) VALUES (zeroblob(100000))", ()).unwrap_err();
    let fault = super::super::fault::Fault::of(&error, Stage::Run, &settings);
    assert_eq!(fault.error.code, SqlErrorCode::Unavailable);
    assert!(fault.error.detail.contains("make room on the disk") && !fault.lost, "{}", fault.error);
    session.roll_back();
    assert!(session.is_open() && !session.in_transaction());
    session.clock.set(Instant::now() + Duration::from_secs(60));
    session.begin(true).unwrap();
    session.commit().unwrap();
}

/// Runs one test of this program as a user to whom permissions apply. Numbers that belong to nobody: 65534 is `nobody` of most
/// systems.
fn run_as_nobody(test: &str) {
    use std::os::unix::process::CommandExt;
    let this = std::env::current_exe().unwrap();
    let ran = std::process::Command::new(this).args(["--exact", test]).uid(65534).gid(65534).current_dir("/").output().unwrap();
    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && output.contains("1 passed"), "{output}{}", String::from_utf8_lossy(&ran.stderr));
}

#[tokio::test]
async fn a_write_protected_file_can_be_read_but_not_written() {
    use std::os::unix::fs::PermissionsExt;
    if rustix::process::geteuid().is_root() {
        // Root may write to any file.
        return run_as_nobody("sql::sqlite::tests::files::a_write_protected_file_can_be_read_but_not_written");
    }
    let fixture = Fixture::new("delete");
    fs::set_permissions(&fixture.path, fs::Permissions::from_mode(0o444)).unwrap();
    let error = fixture.databases.open("main", Access::ReadWrite).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::ReadOnly);
    assert!(error.detail.contains("write-protected"), "{error}");
    let reader = fixture.databases.open("main", Access::ReadOnly).await.unwrap();
    assert_eq!(found(&[run(&reader, select()).await.unwrap()]), 0);
}

#[tokio::test]
async fn the_settings_are_ours_and_the_file_stays_as_it_is() {
    for (journal_mode, synchronous_full) in [("wal", true), ("delete", false)] {
        let fixture = Fixture::new(journal_mode);
        let settings =
            Arc::new(Settings::new("main", &model::Sqlite { path: fixture.path.clone(), synchronous_full, applies_schema: false }));
        let mut session = Session::new(settings, Role::Writer);
        session.clock.set(Instant::now() + Duration::from_secs(60));
        let open = session.ready().unwrap();
        let pragma = |name: &str| -> String {
            let value: rusqlite::types::Value =
                open.guard.as_host(|| open.connection.pragma_query_value(None, name, |row| row.get(0))).unwrap();
            match value {
                rusqlite::types::Value::Integer(integer) => integer.to_string(),
                rusqlite::types::Value::Text(text) => text,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(pragma("journal_mode"), journal_mode);
        assert_eq!(pragma("synchronous"), if synchronous_full { "2" } else { "1" });
        assert_eq!(pragma("trusted_schema"), "0");
        assert_eq!(pragma("cache_size"), "-65536");
        assert_eq!(pragma("query_only"), "0");
    }
}
