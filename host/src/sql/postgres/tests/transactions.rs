//! What is committed, what is not, and who waits for whom.

use super::{Fixture, bounds, found, insert, on_each, run, select, wait_for};
use crate::sql::{Access, Bounds, ColumnType, SqlErrorCode, Statement, Value};
use outhaul_services::Major;
use std::time::{Duration, Instant};

#[test]
fn a_list_is_one_transaction() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        for _ in 0..3 {
            let rows = connection.execute(vec![insert("a"), insert("b"), select()], bounds()).await.unwrap();
            assert_eq!(rows.iter().map(|rows| rows.changed).collect::<Vec<_>>(), [1, 1, 0]);
            let bad = Statement::new("INSERT INTO t (id, v) VALUES (1, 'twice')");
            let error = connection.execute(vec![insert("c"), bad, insert("d")], bounds()).await.unwrap_err();
            assert_eq!(error.code, SqlErrorCode::Constraint, "{error}");
            assert!(error.detail.contains("database \"main\": statement 2 of 3 (INSERT INTO t (id, v)"), "{error}");
        }
        assert_eq!(fixture.count(), 6);
        assert!(connection.execute(Vec::new(), bounds()).await.unwrap().is_empty());
    });
}

#[test]
fn a_list_may_build_on_what_it_has_created() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        let statements = ["CREATE TABLE u (id bigint)", "CREATE INDEX i ON u (id)", "INSERT INTO u VALUES (1)", "DROP TABLE u"];
        for _ in 0..2 {
            connection.execute(statements.map(Statement::new).to_vec(), bounds()).await.unwrap();
        }
    });
}

#[test]
fn another_number_of_rows_than_must_change_rolls_back() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        connection.execute(vec![insert("a"), insert("b")], bounds()).await.unwrap();
        for _ in 0..2 {
            let update = Statement::new("UPDATE t SET v = 'c'");
            let error = connection.execute(vec![insert("x"), update.clone().must_change(2)], bounds()).await.unwrap_err();
            assert_eq!(error.code, SqlErrorCode::Changed, "{error}");
            assert!(error.detail.contains("it changed 3 rows instead of 2"), "{error}");
            let returning = Statement::new("UPDATE t SET v = 'c' RETURNING id").returning([ColumnType::Integer]);
            let error = connection.execute(vec![returning.clone().must_change(1)], bounds()).await.unwrap_err();
            assert!(error.detail.contains("it returned 2 rows instead of 1"), "{error}");
            assert_eq!(fixture.number("SELECT count(*) FROM t WHERE v = 'c'"), 0);
            connection.execute(vec![update.must_change(2), returning.must_change(2)], bounds()).await.unwrap();
            fixture.sql("UPDATE t SET v = 'a'");
        }
    });
}

#[test]
fn a_transaction_is_committed_or_rolled_back() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        let (mut transaction, rows) = connection.begin(vec![insert("a"), select()], bounds()).await.unwrap();
        assert_eq!(found(&rows), 1);
        assert_eq!(fixture.count(), 0, "seen before it was committed");
        transaction.execute(vec![insert("b")], bounds()).await.unwrap();
        let rows = transaction.commit(vec![insert("c"), select()], bounds()).await.unwrap();
        assert_eq!((found(&rows), fixture.count()), (3, 3));

        // The next call comes after the rollback, on whatever session.
        let (transaction, _) = connection
            .begin(vec![insert("d"), Statement::new("SELECT pg_advisory_xact_lock(7)").returning([ColumnType::Text])], bounds())
            .await
            .unwrap();
        drop(transaction);
        let lock = Statement::new("SELECT pg_advisory_xact_lock(7)").returning([ColumnType::Text]);
        connection.execute(vec![lock], bounds()).await.unwrap();
        assert_eq!(fixture.count(), 3);

        let (mut transaction, _) = connection.begin(vec![insert("e")], bounds()).await.unwrap();
        transaction.execute(vec![Statement::new("SELECT 1 / 0").returning([ColumnType::Integer])], bounds()).await.unwrap_err();
        let error = transaction.execute(vec![insert("f")], bounds()).await.unwrap_err();
        assert!(error.detail.contains("the transaction is over"), "{error}");
        assert_eq!(transaction.commit(Vec::new(), bounds()).await.unwrap_err().code, SqlErrorCode::Other);
        assert_eq!(fixture.count(), 3);
        let (transaction, _) = connection.begin(Vec::new(), bounds()).await.unwrap();
        transaction.commit(Vec::new(), bounds()).await.unwrap();
    });
}

#[test]
fn what_fails_at_commit_is_told_and_not_there() {
    on_each(async |fixture| {
        fixture.sql("ALTER TABLE t ADD UNIQUE (v) DEFERRABLE INITIALLY DEFERRED");
        let connection = fixture.open().await;
        run(&connection, insert("a")).await.unwrap();
        // A transaction by itself, and one with a COMMIT.
        for statements in [vec![insert("a")], vec![insert("b"), insert("a")]] {
            let error = connection.execute(statements, bounds()).await.unwrap_err();
            assert_eq!(error.code, SqlErrorCode::Constraint, "{error}");
        }
        run(&connection, insert("c")).await.unwrap();
        assert_eq!(fixture.count(), 2);
    });
}

#[test]
fn a_read_only_connection_takes_no_writes() {
    on_each(async |fixture| {
        let connection = fixture.databases.open("main", Access::ReadOnly).await.unwrap();
        let error = run(&connection, insert("a")).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::ReadOnly, "{error}");
        assert_eq!(connection.begin(Vec::new(), bounds()).await.unwrap_err().code, SqlErrorCode::ReadOnly);
        assert_eq!(found(&[run(&connection, select()).await.unwrap()]), 0);
        assert_eq!(connection.dialect(), crate::sql::Dialect::Postgres);
    });
}

#[test]
fn plain_threads_have_the_same() {
    let Some(fixture) = Fixture::new(Major::V15) else { return };
    let connection = fixture.databases.open_blocking("main", Access::ReadWrite).unwrap();
    connection.execute_blocking(vec![insert("a")], bounds()).unwrap();
    let (mut transaction, rows) = connection.begin_blocking(vec![insert("b"), select()], bounds()).unwrap();
    assert_eq!(found(&rows), 2);
    transaction.execute_blocking(vec![insert("c")], bounds()).unwrap();
    transaction.commit_blocking(vec![insert("d")], bounds()).unwrap();
    let (transaction, _) = connection.begin_blocking(vec![insert("e")], bounds()).unwrap();
    drop(transaction);
    assert_eq!(fixture.count(), 4);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let connection = connection.clone();
            std::thread::spawn(move || {
                (0..50).for_each(|_| drop(connection.execute_blocking(vec![insert("x"), select()], bounds()).unwrap()))
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(fixture.count(), 204);
    // On a thread that a runtime knows of, as adapters have that are plain Rust, a dropped transaction keeps its session.
    let sessions =
        || fixture.number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outhaul'");
    let before = sessions();
    let pid = Statement::new("SELECT pg_backend_pid()").returning([ColumnType::Integer]);
    let first = wait_for(async {
        let (connection, pid) = (connection.clone(), pid.clone());
        let dropped = tokio::task::spawn_blocking(move || found(&connection.begin_blocking(vec![insert("e"), pid], bounds()).unwrap().1));
        dropped.await.unwrap()
    });
    assert_eq!(found(&connection.execute_blocking(vec![pid], bounds()).unwrap()), first);
    assert_eq!((sessions(), fixture.count()), (before, 204));
    // A transaction stays in its world; the databases may go within a runtime.
    let (mut transaction, _) = connection.begin_blocking(Vec::new(), bounds()).unwrap();
    wait_for(async move {
        assert!(transaction.execute(vec![select()], bounds()).await.unwrap_err().detail.contains("blocking calls"));
        assert_eq!(found(&connection.execute(vec![select()], bounds()).await.unwrap()), 204);
        drop((transaction, connection, fixture.databases));
    });
}

#[test]
fn locks_of_others_are_busy_and_long_statements_time_out() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        run(&connection, insert("a")).await.unwrap();
        let (holder, _) = connection.begin(vec![Statement::new("UPDATE t SET v = 'b'")], bounds()).await.unwrap();
        let short = || Bounds::within(Duration::from_millis(500), 1000);
        let start = Instant::now();
        let error = connection.execute(vec![Statement::new("UPDATE t SET v = 'c'")], short()).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::Busy, "{error}");
        assert!(start.elapsed() < Duration::from_secs(20));
        drop(holder);
        let error =
            connection.execute(vec![Statement::new("SELECT pg_sleep(60)").returning([ColumnType::Text])], short()).await.unwrap_err();
        assert!(error.code == SqlErrorCode::Timeout && error.detail.contains("limits.call_timeout"), "{error}");
        let error = connection.execute(vec![select()], Bounds::within(Duration::ZERO, 1000)).await.unwrap_err();
        assert!(matches!(error.code, SqlErrorCode::Timeout | SqlErrorCode::Busy), "{error}");
        let number = Statement::new("UPDATE t SET v = $1").bind([Value::Text("d".into())]).must_change(1);
        connection.execute(vec![number], bounds()).await.unwrap();
    });
}
