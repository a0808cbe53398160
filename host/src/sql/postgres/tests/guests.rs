//! What a guest may not do, and what the next user of a session finds.

use super::{Fixture, bounds, insert, on_each, run, wait_for};
use crate::sql::{Access, ColumnType, SqlErrorCode, Statement, Values};
use outhaul_services::Major;

#[test]
fn transaction_control_and_session_state_are_denied_and_hurt_nobody() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        for sql in [
            "BEGIN",
            "COMMIT",
            "SET search_path = x",
            "SELECT set_config('a.b', '1', false)",
            "CREATE TEMP TABLE x (id int)",
            "DO $$ BEGIN END $$",
        ] {
            let error = run(&connection, Statement::new(sql).returning([ColumnType::Text])).await.expect_err(sql);
            assert!(error.code == SqlErrorCode::Denied && error.detail.starts_with("database \"main\": statement 1 of 1"), "{error}");
        }
        for sql in ["DELETE FROM t; DELETE FROM t", "DELETE FROM t; COMMIT", "", "-- nothing"] {
            let error = run(&connection, Statement::new(sql)).await.expect_err(sql);
            assert_eq!(error.code, SqlErrorCode::Syntax, "{sql:?}: {error}");
        }
        // In an open transaction a denied statement ends it, as any error does.
        let (mut transaction, _) = connection.begin(vec![insert("a")], bounds()).await.unwrap();
        transaction.execute(vec![Statement::new("COMMIT")], bounds()).await.unwrap_err();
        assert!(transaction.commit(Vec::new(), bounds()).await.is_err());
        assert_eq!(fixture.count(), 0);
    });
}

/// Statements that a server takes for more than they look like: none of them may leave anything on the session.
#[test]
fn nothing_is_hidden_from_the_guard() {
    on_each(async |fixture| {
        fixture.sql("CREATE TABLE words (v tsvector, q tsquery); INSERT INTO words VALUES ('a', 'a')");
        let connection = fixture.open().await;
        for sql in [
            "--\rCOMMIT /*\n SELECT 1 -- */",
            "--\rDEALLOCATE ALL /*\n SELECT 1 -- */",
            "UPDATE pg_catalog.pg_settings SET setting = 'left' WHERE name = 'application_name'",
            "SELECT U&\"set\\005fconfig\"('application_name', 'left', false)",
            "SELECT count(*)::text FROM ts_stat('SELECT to_tsvector(set_' || 'config(''application_name'', ''left'', false))')",
            "SELECT ts_rewrite(q, 'SELECT q, (set_' || 'config(''application_name'', ''left'', false))::tsquery FROM words')::text FROM words",
            "SELECT query_to_xml('SELECT set_' || 'config(''application_name'', ''left'', false)', true, true, '')::text",
            "SELECT E'a'\n'\\' , ' , set_config('application_name', 'left', false) , $$'$$",
            "SELECT $\u{1f600}$ ' $\u{1f600}$ || set_config('application_name', 'left', false) || ''",
            "SELECT 'x' AS insert INTO TEMP left_behind",
            "CREATE TABLE left_behind AS EXECUTE s1",
            "EXPLAIN ANALYZE EXECUTE s1",
        ] {
            let error = run(&connection, Statement::new(sql).returning([ColumnType::Text])).await.expect_err(sql);
            assert_eq!(error.code, SqlErrorCode::Denied, "{sql}: {error}");
        }
        let left = "SELECT current_setting('application_name') || (SELECT count(*) FROM pg_class WHERE relname = 'left_behind')";
        let rows = run(&connection, Statement::new(left).returning([ColumnType::Text])).await.unwrap();
        let Values::Texts(texts) = &rows.columns[0] else { panic!("no text") };
        assert_eq!(texts.text(0), Some("outhaul0"));
    });
}

#[test]
fn errors_have_the_codes_of_the_contract() {
    on_each(async |fixture| {
        fixture.sql("CREATE TABLE strict_one (id int PRIMARY KEY, n int NOT NULL CHECK (n > 0)); CREATE ROLE nobody; DROP ROLE nobody");
        let connection = fixture.open().await;
        for (sql, code) in [
            ("DELETE FROM nowhere", SqlErrorCode::Missing),
            ("DELETE FROM t WHERE absent = 1", SqlErrorCode::Missing),
            ("INSERT INTO nowhere.t VALUES (1)", SqlErrorCode::Missing),
            ("DELETE FORM t", SqlErrorCode::Syntax),
            ("DELETE FROM t WHERE nofunction(1)", SqlErrorCode::Syntax),
            ("INSERT INTO strict_one VALUES (1, 0)", SqlErrorCode::Constraint),
            ("INSERT INTO strict_one VALUES (1, NULL)", SqlErrorCode::Constraint),
            ("INSERT INTO strict_one VALUES (1, 'x'::text::int)", SqlErrorCode::TypeMismatch),
            ("UPDATE t SET v = (1 / (id - id))::text", SqlErrorCode::TypeMismatch),
        ] {
            fixture.sql("INSERT INTO t (v) VALUES ('a')");
            let error = run(&connection, Statement::new(sql)).await.expect_err(sql);
            assert_eq!(error.code, code, "{sql}: {error}");
        }
        // What a server says of a constraint names no value of the row.
        run(&connection, Statement::new("INSERT INTO strict_one VALUES (7777, 1)")).await.unwrap();
        let error = run(&connection, Statement::new("INSERT INTO strict_one VALUES (7777, 1)")).await.unwrap_err();
        assert!(error.code == SqlErrorCode::Constraint && error.detail.contains("strict_one_pkey"), "{error}");
        assert!(!error.detail.replace("VALUES (7777, 1)", "").contains("7777"), "{error}");
    });
}

#[test]
fn a_table_that_was_altered_is_used_again_at_the_second_call() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        let select = Statement::new("SELECT v FROM t").returning([ColumnType::Text]);
        run(&connection, select.clone()).await.unwrap();
        fixture.sql("ALTER TABLE t ALTER v TYPE int USING 1");
        let error = run(&connection, select.clone()).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::Unavailable, "{error}");
        run(&connection, select).await.unwrap();
    });
}

#[test]
fn more_statements_than_are_kept_still_run() {
    let Some(fixture) = Fixture::new(Major::V17) else { return };
    wait_for(async {
        let connection = fixture.open().await;
        for round in 0..2 {
            for number in 0..200 {
                let rows = run(&connection, Statement::new(format!("SELECT {number}")).returning([ColumnType::Integer])).await.unwrap();
                assert_eq!(rows.columns, [Values::Integers { values: vec![number], nulls: vec![] }], "round {round}");
            }
        }
        let kept = Statement::new("SELECT count(*) FROM pg_prepared_statements").returning([ColumnType::Integer]);
        let Values::Integers { values, .. } = run(&connection, kept).await.unwrap().columns.remove(0) else { panic!("no number") };
        assert!(values[0] <= 129, "{} statements are prepared on the server", values[0]);
    });
}

#[test]
fn prepared_statements_that_are_gone_are_done_without() {
    on_each(async |fixture| {
        fixture.sql("CREATE FUNCTION forget() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$");
        let connection = fixture.open().await;
        let forget = Statement::new("SELECT forget()").returning([ColumnType::Text]);
        run(&connection, insert("a")).await.unwrap();
        run(&connection, forget).await.unwrap();
        let error = run(&connection, insert("lost")).await.unwrap_err();
        assert!(error.code == SqlErrorCode::Unavailable && error.detail.contains("without prepared statements"), "{error}");
        for _ in 0..2 {
            run(&connection, insert("b")).await.unwrap();
        }
        assert_eq!(fixture.count(), 3);
    });
}

#[test]
fn the_planner_keeps_to_the_index_whatever_the_role_says() {
    on_each(async |fixture| {
        let settings = ["enable_seqscan", "enable_bitmapscan", "jit", "TimeZone", "bytea_output", "transaction_isolation"];
        let name = fixture.database.name().to_owned();
        fixture.sql(&format!(
            "ALTER DATABASE {name} SET default_transaction_isolation = serializable; ALTER DATABASE {name} SET bytea_output = escape; \
             ALTER DATABASE {name} SET TimeZone = 'Asia/Tokyo'"
        ));
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let connection = fixture.databases.open("main", access).await.unwrap();
            let sql = format!("SELECT concat_ws(' ', {})", settings.map(|name| format!("current_setting('{name}')")).join(", "));
            let rows = run(&connection, Statement::new(sql).returning([ColumnType::Text])).await.unwrap();
            let Values::Texts(texts) = &rows.columns[0] else { panic!("no text") };
            assert_eq!(texts.text(0), Some("off off off UTC hex read committed"));
        }
    });
}
