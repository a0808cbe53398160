//! Behind pgbouncer in transaction mode: another server process for each transaction, and no state of a session.

use super::{bounds, databases, found, insert, run, select, wait_for};
use crate::sql::{Access, Bounds, ColumnType, SqlErrorCode, Statement, Value, Values};
use outhaul_services::{Database, Major};
use std::time::Duration;

fn behind_the_pooler() -> Option<(String, Database)> {
    let pooler = outhaul_services::pgbouncer()?;
    let database = outhaul_services::postgres(Major::V15)?.create_database().unwrap();
    database.connect().unwrap().batch_execute("CREATE TABLE t (id bigserial PRIMARY KEY, v text, b bytea, j jsonb)").unwrap();
    Some((pooler.url(database.name()), database))
}

#[test]
fn everything_works_on_changing_servers() {
    let Some((url, database)) = behind_the_pooler() else { return };
    wait_for(async {
        let databases = databases(&url, "max_connections = 20");
        let connection = databases.open("main", Access::ReadWrite).await.unwrap();
        // Transactions at once, so that no session keeps its server.
        for _ in 0..20 {
            let mut open = Vec::new();
            for _ in 0..5 {
                open.push(connection.begin(vec![insert("a"), select()], bounds()).await.unwrap().0);
            }
            for mut transaction in open {
                transaction.execute(vec![insert("b")], bounds()).await.unwrap();
                transaction.commit(vec![insert("c"), select()], bounds()).await.unwrap();
            }
        }
        assert_eq!(found(&[run(&connection, select()).await.unwrap()]), 300);
        let calls = (0..200).map(|_| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.execute(vec![insert("d"), insert("e").must_change(1)], bounds()).await.unwrap() })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        let read_only = databases.open("main", Access::ReadOnly).await.unwrap();
        assert_eq!(found(&[run(&read_only, select()).await.unwrap()]), 700);
        assert_eq!(run(&read_only, insert("x")).await.unwrap_err().code, SqlErrorCode::ReadOnly);
    });
    drop(database);
}

#[test]
fn values_arrays_and_checks_are_the_same() {
    let Some((url, _database)) = behind_the_pooler() else { return };
    wait_for(async {
        let databases = databases(&url, "");
        let connection = databases.open("main", Access::ReadWrite).await.unwrap();
        for _ in 0..3 {
            let sql = "INSERT INTO t (v, b, j) SELECT 'v' || x, $2, $3::jsonb FROM unnest($1::bigint[]) AS u(x) RETURNING id, v, b, j, j, NULL::bytea";
            let statement = Statement::new(sql)
                .bind([Value::Integers(vec![7]), Value::Bytes(vec![0, 255, b'A']), Value::Text("{\"a\":1}".into())])
                .returning([
                    ColumnType::Integer,
                    ColumnType::Text,
                    ColumnType::Bytes,
                    ColumnType::Text,
                    ColumnType::Bytes,
                    ColumnType::Bytes,
                ]);
            let rows = connection.execute(vec![statement], bounds()).await.unwrap().remove(0);
            assert_eq!(rows.changed, 1);
            let [_, Values::Texts(v), Values::Bytes(b), Values::Texts(j), Values::Bytes(k), Values::Bytes(n)] = rows.columns.as_slice()
            else {
                panic!("{rows:?}")
            };
            assert_eq!(
                (v.text(0), b.get(0), j.text(0), k.get(0), n.get(0)),
                (Some("v7"), Some(&b"\0\xffA"[..]), Some("{\"a\": 1}"), Some(&b"{\"a\": 1}"[..]), None)
            );
        }
        for (sql, asked) in [
            ("INSERT INTO t (v) VALUES ('a') RETURNING id, v", vec![ColumnType::Integer]),
            ("INSERT INTO t (v) VALUES ('a') RETURNING id, v", vec![ColumnType::Integer; 3]),
            ("INSERT INTO t (v) VALUES ('a') RETURNING v", vec![ColumnType::Integer]),
            ("INSERT INTO t (v) VALUES ('a') RETURNING id", vec![]),
        ] {
            for _ in 0..2 {
                let error = run(&connection, Statement::new(sql).returning(asked.clone())).await.expect_err(sql);
                assert_eq!(error.code, SqlErrorCode::TypeMismatch, "{error}");
            }
        }
        assert_eq!(found(&[run(&connection, select()).await.unwrap()]), 3);
    });
}

#[test]
fn types_of_the_database_itself_are_looked_up() {
    let Some((url, database)) = behind_the_pooler() else { return };
    database.connect().unwrap().batch_execute("CREATE TYPE mood AS ENUM ('sad', 'happy'); ALTER TABLE t ADD m mood").unwrap();
    wait_for(async {
        let databases = databases(&url, "");
        let connection = databases.open("main", Access::ReadWrite).await.unwrap();
        let sql = "INSERT INTO t (m) VALUES ($1::text::mood) RETURNING m";
        let statement = Statement::new(sql).bind([Value::Text("happy".into())]).returning([ColumnType::Text]);
        for _ in 0..3 {
            let rows = connection.execute(vec![insert("a"), statement.clone()], bounds()).await.unwrap();
            let Values::Texts(texts) = &rows[1].columns[0] else { panic!("{rows:?}") };
            assert_eq!(texts.text(0), Some("happy"));
        }
        assert_eq!(found(&[run(&connection, select()).await.unwrap()]), 6);
    });
}

#[test]
fn deadlines_hold() {
    let Some((url, _database)) = behind_the_pooler() else { return };
    wait_for(async {
        let databases = databases(&url, "");
        let connection = databases.open("main", Access::ReadWrite).await.unwrap();
        let sleep = Statement::new("SELECT pg_sleep(60)").returning([ColumnType::Text]);
        let error = connection.execute(vec![sleep], Bounds::within(Duration::from_millis(300), 1000)).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::Timeout, "{error}");
        // The settings of that transaction have not stayed on the server that others use now.
        let sleep = Statement::new("SELECT pg_sleep(0.6)").returning([ColumnType::Text]);
        connection.execute(vec![sleep], bounds()).await.unwrap();
    });
}
