//! What a guest may not do.

use super::{Fixture, bounds, databases_with, found, insert, run};
use crate::sql::{Access, ColumnType, SqlErrorCode, Statement, Values};

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
        ("CREATE VIRTUAL TABLE u USING fts5 (v)", "virtual tables are not allowed"),
        ("CREATE VIEW u AS SELECT instr(v, v) FROM t", "views"),
        ("CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT replace(NEW.v, 'a', 'b'); END", "triggers"),
        ("CREATE TABLE u (v CHECK (v NOT LIKE '%x%'))", "function like"),
        ("CREATE TABLE u (v DEFAULT (zeroblob(9)))", "function zeroblob"),
        ("CREATE TABLE u (v, w AS (instr(v, v)))", "function instr"),
        ("CREATE INDEX i ON t (replace(v, 'a', 'b'))", "function replace"),
        ("ALTER TABLE t ADD COLUMN w AS (instr(v, v))", "ALTER TABLE with parentheses"),
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
async fn triggers_and_columns_with_a_constraint_are_created_where_an_operator_has_a_schema_applied_and_nothing_else_is() {
    let fixture = Fixture::wal();
    let connection = databases_with(&fixture.path, true).open("main", Access::ReadWrite).await.unwrap();
    run(&connection, Statement::new("CREATE TABLE log (v)")).await.unwrap();
    let trigger = "CREATE TRIGGER IF NOT EXISTS r AFTER INSERT ON t BEGIN INSERT INTO log VALUES (NEW.v); END";
    run(&connection, Statement::new(trigger)).await.unwrap();
    run(&connection, Statement::new("ALTER TABLE t ADD COLUMN owner TEXT NOT NULL DEFAULT '' CHECK (typeof(owner) = 'text')"))
        .await
        .unwrap();
    for (sql, part) in [
        ("CREATE TEMP TRIGGER s AFTER INSERT ON t BEGIN SELECT 1; END", "temporary"),
        ("CREATE VIEW u AS SELECT 1", "views"),
        ("CREATE VIRTUAL TABLE u USING fts5 (v)", "virtual tables"),
    ] {
        let error = run(&connection, Statement::new(sql)).await.expect_err(sql);
        assert!(error.code == SqlErrorCode::Denied && error.detail.contains(part), "{sql}: {error}");
    }
    // It runs for everybody from then on.
    let connection = fixture.open().await;
    run(&connection, insert(7)).await.unwrap();
    let rows = run(&connection, Statement::new("SELECT v FROM log").returning([ColumnType::Integer])).await.unwrap();
    assert!(matches!(rows.columns.first(), Some(Values::Integers { values, .. }) if *values == [7]), "{rows:?}");
    let error = run(&connection, Statement::new("CREATE TRIGGER s AFTER INSERT ON t BEGIN SELECT 1; END")).await.unwrap_err();
    assert!(error.detail.contains("`outhaul schema --apply`"), "{error}");
}

#[tokio::test]
async fn a_function_that_no_deadline_can_end_is_denied_by_name() {
    let fixture = Fixture::wal();
    fixture.other().execute_batch("CREATE VIEW service AS SELECT replace(v, 'a', 'b') AS v FROM t").unwrap();
    let connection = fixture.open().await;
    for (sql, function) in [
        ("SELECT instr(v, 'a') FROM t", "instr"),
        ("SELECT [replace]/* */(v, 'a', 'b') FROM t", "replace"),
        ("SELECT trim(v, 'a') FROM t", "trim"),
        ("SELECT v FROM t WHERE v LIKE '%a%'", "like"),
        ("SELECT ?1LIKE?1", "like"),
        ("SELECT v FROM t WHERE v GLOB '*a*'", "glob"),
        ("SELECT randomblob(9)", "randomblob"),
        ("SELECT zeroblob(9)", "zeroblob"),
        ("SELECT printf('%d', 1)", "printf"),
        ("SELECT format('%d', 1)", "format"),
        // SQLite gives the name of a WITH clause as it gives that of a view or of a trigger.
        ("WITH service AS MATERIALIZED (SELECT instr(v, 'a') FROM t) SELECT * FROM service", "instr"),
        ("SELECT v FROM service WHERE replace(v, 'a', 'b') = 'b'", "replace"),
        ("DELETE FROM t WHERE id = 1 RETURNING ltrim(v, 'a')", "ltrim"),
        ("SELECT count(*) FROM dbstat", "dbstat"),
    ] {
        let parameters = if sql.contains('?') { vec![crate::sql::Value::Text("a".into())] } else { Vec::new() };
        let statement = Statement::new(sql).bind(parameters).returning([ColumnType::Text]);
        let error = run(&connection, statement).await.expect_err(sql);
        assert_eq!(error.code, SqlErrorCode::Denied, "{sql}: {error}");
        assert!(error.detail.contains(&format!("{function} is not allowed")), "{sql}: {error}");
    }
    let sensible = "SELECT count(*) FROM (SELECT row_number() OVER (ORDER BY id) AS n, coalesce(lower(v), '') || unixepoch('subsec') AS w, \
                    '{}' ->> 'a', substr(v, 1, 3), CURRENT_TIMESTAMP FROM t), json_each(json_array(1, 2)) WHERE length(w) > 0 AND n IN (1, 2)";
    run(&connection, Statement::new(sensible).returning([ColumnType::Integer])).await.unwrap();
}

#[tokio::test]
async fn the_functions_of_the_services_own_schema_go_on_working() {
    let fixture = Fixture::wal();
    fixture
        .other()
        .execute_batch(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, v TEXT CHECK (v LIKE 'order-%'), tag TEXT DEFAULT (printf('%04d', 7)), \
             w AS (instr(v, '-')));
             CREATE TRIGGER tidy AFTER INSERT ON orders BEGIN \
             UPDATE orders SET v = (WITH c AS MATERIALIZED (SELECT replace(NEW.v, 'a', 'b') AS r) SELECT r FROM c) WHERE id = NEW.id; END;
             CREATE VIEW trimmed AS SELECT trim(v) AS v FROM orders WHERE v GLOB 'order-*';
             CREATE INDEX by_w ON orders (ltrim(v, 'order-'));",
        )
        .unwrap();
    let connection = fixture.open().await;
    // REPLACE is no call of replace().
    run(&connection, Statement::new("INSERT OR REPLACE INTO orders (id, v) VALUES (1, 'order-aa')")).await.unwrap();
    let select = "SELECT count(*) FROM trimmed AS t JOIN orders AS o ON o.v = t.v WHERE t.v = 'order-bb' AND o.w = 6 AND o.tag = '0007'";
    assert_eq!(found(&[run(&connection, Statement::new(select).returning([ColumnType::Integer])).await.unwrap()]), 1);
    let error = run(&connection, Statement::new("INSERT INTO orders (v) VALUES ('other')")).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Constraint, "{error}");
    run(&connection, Statement::new("ALTER TABLE orders RENAME COLUMN tag TO label")).await.unwrap();
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
        "INSERT INTO queue (key) VALUES ('a')",
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
