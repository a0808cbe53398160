//! Other connections and other processes.

use super::{Fixture, bounds, databases, found, insert, poll_once, run, select};
use crate::sql::{Access, Bounds, ColumnType, SqlErrorCode, Statement};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Set for the test that plays another process.
const OTHER: &str = "OUTHAUL_TEST_OTHER_PROCESS";

/// Starts this test binary once more, to run `other_process` on the database, and waits until it says that it is at work.
fn start_other(role: &str, path: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sql::sqlite::tests::locks::other_process", "--ignored", "--nocapture"])
        .env(OTHER, format!("{role}:{}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("at work")), "the other process has ended");
    child
}

#[test]
#[ignore = "plays another process; the tests below start it"]
#[expect(clippy::print_stdout)]
fn other_process() {
    let task = std::env::var(OTHER).unwrap();
    let (role, path) = task.split_once(':').unwrap();
    let connection = rusqlite::Connection::open(path).unwrap();
    match role {
        // Commits every millisecond until it is killed.
        "writer" => {
            connection.busy_timeout(Duration::from_secs(60)).unwrap();
            connection.execute("INSERT INTO t (v) VALUES (-1)", ()).unwrap();
            println!("at work");
            loop {
                connection.execute("INSERT INTO t (v) VALUES (-1)", ()).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        }
        // Gets half a transaction into the file.
        "spoiler" => {
            connection.execute_batch("PRAGMA cache_size = 5; BEGIN IMMEDIATE").unwrap();
            connection.execute("UPDATE t SET v = zeroblob(5000)", ()).unwrap();
            println!("at work");
            thread::sleep(Duration::from_secs(600));
        }
        _ => panic!("no such role: {role}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_hears_of_a_lock_while_eight_claim_and_another_process_commits() {
    let fixture = Fixture::wal();
    let mut writer = start_other("writer", &fixture.path);
    let claimers: Vec<_> = (0..8)
        .map(|_| {
            // Databases of its own: as far as SQLite's locks go, eight hosts.
            let databases = databases(&fixture.path);
            tokio::spawn(async move {
                let connection = databases.open("main", Access::ReadWrite).await?;
                for _ in 0..25 {
                    let scan = Statement::new("SELECT id FROM t WHERE v = -1 LIMIT 5").returning([ColumnType::Integer]);
                    let (transaction, _) = connection.begin(vec![scan], bounds()).await?;
                    transaction.commit(vec![Statement::new("UPDATE t SET v = 1 WHERE v = -1"), insert(2)], bounds()).await?;
                }
                Ok::<(), crate::sql::SqlError>(())
            })
        })
        .collect();
    let mut results = Vec::new();
    for claimer in claimers {
        results.push(claimer.await.unwrap());
    }
    assert!(writer.try_wait().unwrap().is_none(), "the other process has ended early");
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let claims: i64 = fixture.other().query_row("SELECT count(*) FROM t WHERE v = 2", (), |row| row.get(0)).unwrap();
    assert_eq!(claims, 200);
}

#[tokio::test]
async fn a_lock_held_for_too_long_is_busy_at_the_deadline_and_not_much_later() {
    for journal_mode in ["wal", "delete"] {
        let fixture = Fixture::new(journal_mode);
        let connection = fixture.open().await;
        let other = fixture.other();
        other.execute_batch("BEGIN EXCLUSIVE").unwrap();
        let start = Instant::now();
        let error = connection.execute(vec![insert(1)], Bounds::within(Duration::from_millis(200), 1 << 20)).await.unwrap_err();
        let took = start.elapsed();
        assert_eq!(error.code, SqlErrorCode::Busy, "{error}");
        assert!(error.detail.contains("another process or connection held its lock"), "{error}");
        assert!(took >= Duration::from_millis(200), "{took:?}");
        // A loaded machine is slow to wake a thread; SQLite's own time-out would be five seconds.
        assert!(took < Duration::from_secs(3), "{took:?}");
        other.execute_batch("COMMIT").unwrap();
        run(&connection, insert(2)).await.unwrap();
        assert_eq!(fixture.count(), 1);
    }
}

#[tokio::test]
async fn opening_waits_for_a_lock_too() {
    let fixture = Fixture::new("delete");
    let other = fixture.other();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let mut opening = pin!(fixture.databases.open("main", Access::ReadOnly));
    assert!(poll_once(opening.as_mut()).is_pending());
    // Nothing tells that it waits: it must still do so after SQLite alone would have given up.
    thread::sleep(Duration::from_millis(50));
    assert!(poll_once(opening.as_mut()).is_pending());
    other.execute_batch("COMMIT").unwrap();
    let reader = opening.await.unwrap();
    assert_eq!(found(&[run(&reader, select()).await.unwrap()]), 0);
}

#[tokio::test]
async fn a_commit_in_rollback_journal_mode_waits_for_readers() {
    let fixture = Fixture::new("delete");
    let connection = fixture.open().await;
    let other = fixture.other();
    other.execute_batch("BEGIN; SELECT * FROM t").unwrap();

    let (transaction, _) = connection.begin(vec![insert(1)], bounds()).await.unwrap();
    let error = transaction.commit(vec![], Bounds::within(Duration::from_millis(50), 1 << 20)).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Busy, "{error}");
    assert!(error.detail.contains("committing"), "{error}");

    let committing = thread::spawn(move || connection.execute_blocking(vec![insert(2)], bounds()));
    // A commit that waits lets no new reader in.
    let newcomer = fixture.other();
    newcomer.busy_timeout(Duration::ZERO).unwrap();
    while newcomer.query_row("SELECT count(*) FROM t", (), |row| row.get::<_, i64>(0)).is_ok() {
        assert!(!committing.is_finished(), "it did not wait: {:?}", committing.join());
    }
    other.execute_batch("COMMIT").unwrap();
    committing.join().unwrap().unwrap();
    assert_eq!(fixture.count(), 1);
}

#[tokio::test]
async fn a_statement_that_runs_past_the_deadline_is_ended() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let endless = || {
        Statement::new("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
            .returning([ColumnType::Integer])
    };
    let short = || Bounds::within(Duration::from_millis(50), 1 << 20);
    let error = connection.execute(vec![insert(1), endless()], short()).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Timeout, "{error}");
    let writes = Statement::new("INSERT INTO t (v) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n");
    let (mut transaction, _) = connection.begin(vec![insert(1)], bounds()).await.unwrap();
    assert_eq!(transaction.execute(vec![writes], short()).await.unwrap_err().code, SqlErrorCode::Timeout);
    run(&connection, insert(2)).await.unwrap();
    assert_eq!(fixture.count(), 1);

    // Many short statements are ended as well.
    let error = connection.execute(vec![insert(1)], Bounds { deadline: Instant::now(), max_result_bytes: 1 << 20 }).await.unwrap_err();
    assert!(matches!(error.code, SqlErrorCode::Timeout | SqlErrorCode::Busy), "{error}");
}

#[tokio::test]
async fn what_a_killed_process_left_half_done_is_undone() {
    for journal_mode in ["delete", "wal"] {
        let fixture = Fixture::new(journal_mode);
        let mut connection = fixture.other();
        let fill = connection.transaction().unwrap();
        for value in 0..200 {
            fill.execute("INSERT INTO t (v) VALUES (?1)", [value]).unwrap();
        }
        fill.commit().unwrap();
        drop(connection);
        let mut spoiler = start_other("spoiler", &fixture.path);
        spoiler.kill().unwrap();
        spoiler.wait().unwrap();

        let reader = fixture.databases.open("main", Access::ReadOnly).await.unwrap();
        let intact = Statement::new("SELECT count(*) FROM t WHERE typeof(v) = 'integer'").returning([ColumnType::Integer]);
        assert_eq!(found(&[run(&reader, intact).await.unwrap()]), 200, "{journal_mode}");
        run(&fixture.open().await, insert(1)).await.unwrap();
    }
}

#[tokio::test]
async fn readers_of_a_busy_database_are_served() {
    let fixture = Fixture::wal();
    let reader = fixture.databases.open("main", Access::ReadOnly).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (other, stopping) = (fixture.other(), Arc::clone(&stop));
    let writer = thread::spawn(move || {
        while !stopping.load(Ordering::Relaxed) {
            other.execute("INSERT INTO t (v) VALUES (1)", ()).unwrap();
        }
    });
    let mut last = 0;
    for _ in 0..200 {
        let now = found(&[run(&reader, select()).await.unwrap()]);
        assert!(now >= last);
        last = now;
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}
