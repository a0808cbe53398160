//! All or nothing, one after the other, and nothing left open.

use super::{Fixture, bounds, found, insert, poll_once, run, select};
use crate::sql::{Access, Bounds, ColumnType, SqlErrorCode, Statement, Value};
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

#[tokio::test]
async fn an_error_leaves_nothing_of_the_call() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let error =
        connection.execute(vec![insert(1), insert(2), Statement::new("INSERT INTO nowhere VALUES (1)")], bounds()).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Missing, "{error}");
    assert_eq!(fixture.count(), 0);
    connection.execute(vec![insert(1), insert(2)], bounds()).await.unwrap();
    assert_eq!(fixture.count(), 2);
}

#[tokio::test]
async fn must_change_rolls_back_and_says_what_it_found() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let update = Statement::new("UPDATE t SET v = 9 WHERE v = 1").must_change(2);
    let error = connection.execute(vec![insert(1), update], bounds()).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Changed);
    assert!(error.detail.contains("statement 2 of 2") && error.detail.contains("changed 1 rows instead of 2"), "{}", error.detail);
    assert_eq!(fixture.count(), 0);

    let returning =
        |rows| Statement::new("INSERT INTO t (v) VALUES (1), (2) RETURNING v").returning([ColumnType::Integer]).must_change(rows);
    let error = run(&connection, returning(3)).await.unwrap_err();
    assert!(error.detail.contains("returned 2 rows instead of 3"), "{}", error.detail);
    assert_eq!(fixture.count(), 0);
    run(&connection, returning(2)).await.unwrap();
    assert_eq!(fixture.count(), 2);
}

#[tokio::test]
async fn a_transaction_commits_what_its_calls_did() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let (mut transaction, rows) = connection.begin(vec![insert(1), select()], bounds()).await.unwrap();
    assert_eq!(found(&rows), 1);
    assert_eq!(found(&transaction.execute(vec![insert(2), select()], bounds()).await.unwrap()), 2);
    assert_eq!(fixture.count(), 0);
    assert_eq!(found(&transaction.commit(vec![insert(3), select()], bounds()).await.unwrap()), 3);
    assert_eq!(fixture.count(), 3);
}

#[tokio::test]
async fn a_transaction_whose_answer_nobody_took_is_rolled_back() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    {
        // One whose answer is taken at once, because the thread was that quick, is none to look at: it is dropped, and another begun.
        let _begin = loop {
            let mut begin = Box::pin(connection.begin(vec![insert(1)], bounds()));
            if poll_once(begin.as_mut()).is_pending() {
                break begin;
            }
        };
        // The answer is there, and was not taken, when the file is locked for others: this one's transaction is open.
        let other = fixture.other();
        other.busy_timeout(Duration::ZERO).unwrap();
        while other.execute("INSERT INTO t (v) VALUES (2)", ()).is_ok() {}
        thread::sleep(Duration::from_millis(20));
    }
    let before = fixture.count();
    connection.execute(vec![insert(3)], bounds()).await.unwrap();
    assert_eq!(fixture.count(), before + 1, "nothing of the first one stays");
}

#[tokio::test]
async fn a_dropped_transaction_is_rolled_back_before_the_next_begins() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let (transaction, _) = connection.begin(vec![insert(1)], bounds()).await.unwrap();
    let mut next = pin!(connection.begin(vec![select()], bounds()));
    assert!(poll_once(next.as_mut()).is_pending());
    drop(transaction);
    let (next, rows) = next.await.unwrap();
    assert_eq!(found(&rows), 0);
    next.commit(vec![insert(2)], bounds()).await.unwrap();
    assert_eq!(fixture.count(), 1);
}

#[tokio::test]
async fn a_begin_that_nobody_waits_for_is_rolled_back() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let other = fixture.other();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    {
        // The thread is at it, and waits for the other's lock.
        let mut begin = pin!(connection.begin(vec![insert(1)], bounds()));
        assert!(poll_once(begin.as_mut()).is_pending());
    }
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(found(&[run(&connection, select()).await.unwrap()]), 0);
    run(&connection, insert(2)).await.unwrap();
    assert_eq!(fixture.count(), 1);
}

#[tokio::test]
async fn an_error_ends_a_transaction() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let (mut transaction, _) = connection.begin(vec![insert(1)], bounds()).await.unwrap();
    transaction.execute(vec![Statement::new("nonsense")], bounds()).await.unwrap_err();
    // The next one does not have to wait until the first is dropped.
    run(&connection, insert(2)).await.unwrap();
    let error = transaction.execute(vec![insert(3)], bounds()).await.unwrap_err();
    assert!(error.detail.contains("the transaction is over"), "{error}");
    transaction.commit(vec![], bounds()).await.unwrap_err();
    assert_eq!(fixture.count(), 1);
}

#[tokio::test]
async fn transactions_take_turns_in_the_order_in_which_they_asked() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let (first, _) = connection.begin(vec![insert(0)], bounds()).await.unwrap();
    let waiting: Vec<_> = (1..=8)
        .map(|value| {
            let connection = connection.clone();
            let mut call = Box::pin(async move { connection.execute(vec![insert(value)], bounds()).await });
            assert!(poll_once(call.as_mut()).is_pending());
            call
        })
        .collect();
    first.commit(vec![], bounds()).await.unwrap();
    let tasks: Vec<_> = waiting.into_iter().rev().map(tokio::spawn).collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let order: Vec<i64> = fixture
        .other()
        .prepare("SELECT v FROM t ORDER BY id")
        .unwrap()
        .query_map((), |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(order, (0..=8).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_call_behind_an_open_transaction_ends_at_its_deadline() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let (transaction, _) = connection.begin(vec![insert(1)], bounds()).await.unwrap();
    let error = connection.execute(vec![insert(2)], Bounds::within(Duration::from_millis(30), 1 << 20)).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Busy);
    assert!(error.detail.contains("another transaction of this host"), "{error}");
    // Opening does not need the turn.
    fixture.databases.open("main", Access::ReadWrite).await.unwrap();
    transaction.commit(vec![], bounds()).await.unwrap();
    assert_eq!(fixture.count(), 1);
}

#[tokio::test]
async fn a_reader_neither_waits_for_the_writer_nor_writes() {
    let fixture = Fixture::wal();
    let writer = fixture.open().await;
    let reader = fixture.databases.open("main", Access::ReadOnly).await.unwrap();
    let (transaction, _) = writer.begin(vec![insert(1)], bounds()).await.unwrap();
    assert_eq!(found(&[run(&reader, select()).await.unwrap()]), 0);
    transaction.commit(vec![], bounds()).await.unwrap();
    assert_eq!(found(&[run(&reader, select()).await.unwrap()]), 1);

    for refused in [insert(2), Statement::new("CREATE TABLE u (id)"), Statement::new("DELETE FROM t")] {
        assert_eq!(run(&reader, refused).await.unwrap_err().code, SqlErrorCode::ReadOnly);
    }
    assert_eq!(reader.begin(vec![], bounds()).await.unwrap_err().code, SqlErrorCode::ReadOnly);
    assert_eq!(fixture.count(), 1);
}

#[test]
fn plain_threads_do_the_same_without_a_runtime() {
    let fixture = Fixture::wal();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let databases = fixture.databases.clone();
            thread::spawn(move || {
                let connection = databases.open_blocking("main", Access::ReadWrite).unwrap();
                for value in 0..10 {
                    let (mut transaction, rows) = connection.begin_blocking(vec![select()], bounds()).unwrap();
                    let before = found(&rows);
                    transaction.execute_blocking(vec![insert(value)], bounds()).unwrap();
                    let rows = transaction.commit_blocking(vec![select()], bounds()).unwrap();
                    assert_eq!(found(&rows), before + 1);
                    drop(connection.begin_blocking(vec![insert(-1)], bounds()).unwrap());
                }
                connection.execute_blocking(vec![insert(10)], bounds()).unwrap();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(fixture.count(), 44);
    let connection = fixture.databases.open_blocking("main", Access::ReadWrite).unwrap();
    let (_open, _) = connection.begin_blocking(vec![], bounds()).unwrap();
    let error = connection.execute_blocking(vec![insert(1)], Bounds::within(Duration::from_millis(20), 1 << 20)).unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Busy);
}

#[tokio::test]
async fn threads_end_with_the_last_handle() {
    let Fixture { databases, path, _dir } = Fixture::wal();
    let connection = databases.open("main", Access::ReadWrite).await.unwrap();
    let (transaction, _) = connection.begin(vec![insert(1)], bounds()).await.unwrap();
    let log = path.with_extension("db-wal");
    assert!(log.exists());
    drop((databases, connection));
    drop(transaction);
    // The last connection to close takes the log away.
    let patience = Instant::now() + Duration::from_secs(30);
    while log.exists() {
        assert!(Instant::now() < patience, "the writer's connection is still open");
        thread::yield_now();
    }
    let count: i64 = rusqlite::Connection::open(&path).unwrap().query_row("SELECT count(*) FROM t", (), |row| row.get(0)).unwrap();
    assert_eq!(count, 0);
}

#[tokio::test]
async fn an_unknown_name_is_denied_with_the_line_to_add() {
    let fixture = Fixture::wal();
    let error = fixture.databases.open("other", Access::ReadOnly).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Denied);
    assert!(error.detail.contains("[databases.other]"), "{error}");
    assert_eq!(fixture.databases.watch("other").unwrap_err().code, SqlErrorCode::Denied);
}

#[tokio::test]
async fn parameters_are_bound_by_number() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let statement =
        Statement::new("SELECT ?2 || ?1 || ?2").bind([Value::Text("a".into()), Value::Text("b".into())]).returning([ColumnType::Text]);
    let rows = run(&connection, statement).await.unwrap();
    assert_eq!(rows.columns, vec![crate::sql::Values::Texts(crate::domain::Column::of_texts(["bab"]))]);
}
