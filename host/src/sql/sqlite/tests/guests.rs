//! What a guest may not do.

use super::{Fixture, bounds, insert, run};
use crate::sql::{ColumnType, SqlErrorCode, Statement};

#[tokio::test]
async fn whatever_leaves_the_database_or_the_transaction_is_denied() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    // The host's own statements have been run: a guest must not find them among the prepared ones.
    run(&connection, insert(1)).await.unwrap();
    for (sql, part) in [
        ("ATTACH 'other.db' AS other", "ATTACH"),
        ("DETACH main", "DETACH"),
        ("BEGIN", "execute or begin and commit"),
        ("BEGIN IMMEDIATE", "execute or begin and commit"),
        ("COMMIT", "execute or begin and commit"),
        ("END", "execute or begin and commit"),
        ("ROLLBACK", "execute or begin and commit"),
        ("SAVEPOINT s", "execute or begin and commit"),
        ("RELEASE s", "execute or begin and commit"),
        ("PRAGMA journal_mode = DELETE", "PRAGMA journal_mode is not allowed"),
        ("PRAGMA query_only = OFF", "PRAGMA query_only is not allowed"),
        ("PRAGMA writable_schema = ON", "PRAGMA writable_schema is not allowed"),
        ("pragma SYNCHRONOUS = off", "not allowed"),
        ("CREATE TEMP TABLE t (id)", "temporary"),
        ("CREATE TEMPORARY VIEW t AS SELECT 1", "temporary"),
        ("CREATE TEMP TRIGGER r AFTER INSERT ON t BEGIN SELECT 1; END", "temporary"),
        ("CREATE TABLE temp.u (id)", "temporary"),
        ("CREATE VIEW TEMP.u AS SELECT 1", "temporary"),
        ("CREATE VIRTUAL TABLE temp.u USING fts5 (v)", "temporary"),
    ] {
        let error = run(&connection, Statement::new(sql)).await.expect_err(sql);
        assert_eq!(error.code, SqlErrorCode::Denied, "{sql}: {error}");
        assert!(error.detail.contains(part), "{sql}: {part} is not in: {}", error.detail);
    }
    for sql in ["SELECT load_extension('x')", "SELECT fts3_tokenizer('simple')", "SELECT file FROM pragma_database_list"] {
        let error = run(&connection, Statement::new(sql).returning([ColumnType::Text])).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::Denied, "{sql}: {error}");
    }
    run(&connection, Statement::new("VACUUM")).await.unwrap_err();
    let copy = fixture.path.with_file_name("copy.db");
    run(&connection, Statement::new(format!("VACUUM INTO '{}'", copy.display()))).await.unwrap_err();
    assert!(!copy.exists());
    // None of it has hurt the connection.
    run(&connection, insert(2)).await.unwrap();
    assert_eq!(fixture.count(), 2);
}

#[tokio::test]
async fn a_storage_may_look_at_its_tables() {
    let fixture = Fixture::wal();
    fixture.other().execute_batch("CREATE INDEX i ON t (v)").unwrap();
    let connection = fixture.open().await;
    use ColumnType::{Integer, Text};
    let infos = [Integer, Text, Text, Integer, Text, Integer];
    for statement in [
        Statement::new("PRAGMA table_info(t)").returning(infos).must_change(2),
        Statement::new("PRAGMA table_xinfo(t)").returning(infos.into_iter().chain([Integer])).must_change(2),
        Statement::new("PRAGMA index_list(t)").returning([Integer, Text, Integer, Text, Integer]).must_change(1),
        Statement::new("PRAGMA index_info(i)").returning([Integer, Integer, Text]).must_change(1),
        Statement::new("PRAGMA index_xinfo(i)").returning([Integer, Integer, Text, Integer, Text, Integer]).must_change(2),
        Statement::new("PRAGMA data_version").returning([Integer]).must_change(1),
        Statement::new("SELECT name FROM pragma_table_info('t')").returning([Text]).must_change(2),
        Statement::new("SELECT name FROM pragma_index_list('t')").returning([Text]).must_change(1),
        Statement::new("SELECT name FROM sqlite_schema").returning([Text]).must_change(2),
    ] {
        run(&connection, statement).await.unwrap();
    }
}

#[tokio::test]
async fn a_storage_may_create_alter_and_drop_its_own() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let statements = [
        "CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, key TEXT)",
        "CREATE INDEX outbox_key ON outbox (key) WHERE key IS NOT NULL",
        "ALTER TABLE outbox ADD COLUMN leased_by TEXT",
        "ALTER TABLE outbox RENAME COLUMN leased_by TO worker",
        "ALTER TABLE outbox RENAME TO queue",
        "CREATE VIEW waiting AS SELECT * FROM queue",
        "CREATE TRIGGER r AFTER INSERT ON queue BEGIN UPDATE queue SET key = 'k' WHERE id = NEW.id; END",
        "INSERT INTO queue (key) VALUES ('a')",
        "DROP VIEW waiting",
        "DROP TABLE queue",
    ];
    connection.execute(statements.into_iter().map(Statement::new).collect(), bounds()).await.unwrap();
}

#[tokio::test]
async fn one_text_is_one_statement() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    for sql in ["DELETE FROM t; DELETE FROM t", "SELECT 1; ATTACH 'x' AS y", "", "  -- nothing", ";"] {
        let error = run(&connection, Statement::new(sql)).await.unwrap_err();
        assert!(matches!(error.code, SqlErrorCode::Syntax | SqlErrorCode::Denied), "{sql:?}: {error}");
    }
    run(&connection, Statement::new("DELETE FROM t; -- and no more")).await.unwrap();
}

#[tokio::test]
async fn errors_have_the_codes_of_the_contract() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    run(&connection, Statement::new("CREATE TABLE strict_one (id INTEGER PRIMARY KEY, n INTEGER NOT NULL CHECK (n > 0)) STRICT"))
        .await
        .unwrap();
    for (sql, code) in [
        ("DELETE FROM nowhere", SqlErrorCode::Missing),
        ("DELETE FROM t WHERE absent = 1", SqlErrorCode::Missing),
        ("INSERT INTO t (absent) VALUES (1)", SqlErrorCode::Missing),
        ("DELETE FROM t INDEXED BY absent", SqlErrorCode::Missing),
        ("DELETE FORM t", SqlErrorCode::Syntax),
        ("DELETE FROM t WHERE nofunction(1)", SqlErrorCode::Syntax),
        ("INSERT INTO strict_one (n) VALUES (0)", SqlErrorCode::Constraint),
        ("INSERT INTO strict_one (n) VALUES (NULL)", SqlErrorCode::Constraint),
        ("INSERT INTO strict_one (n) VALUES ('x')", SqlErrorCode::Constraint),
        ("INSERT INTO t (id) VALUES ('x')", SqlErrorCode::TypeMismatch),
        ("INSERT INTO t (v) SELECT value FROM json_each('[')", SqlErrorCode::Other),
    ] {
        let error = run(&connection, Statement::new(sql)).await.expect_err(sql);
        assert_eq!(error.code, code, "{sql}: {error}");
    }
}
