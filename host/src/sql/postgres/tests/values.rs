//! Types and nulls, in and out.

use super::{bounds, on_each, run};
use crate::domain::Column;
use crate::sql::{Bounds, ColumnType, SqlErrorCode, Statement, Value, Values};
use std::time::Duration;

fn texts(values: &[Option<&str>]) -> Column {
    let mut column = Column::default();
    values.iter().for_each(|value| column.push(value.map(str::as_bytes)));
    column
}

#[test]
fn known_types_are_handed_out_as_the_server_writes_them_and_others_refused() {
    on_each(async |fixture| {
        fixture.sql("CREATE TYPE mood AS ENUM ('sad', 'happy')");
        let connection = fixture.open().await;
        for expression in [
            "1::int2",
            "-7::int8",
            "4294967295::oid",
            "0.1::float8",
            "-1e15::float8",
            "0.00001::float8",
            "123456.7::float4",
            "1e6::float4",
            "'NaN'::float8",
            "1.50::numeric",
            "-123456789012345678901234567890.000100::numeric",
            "10000::numeric",
            "0.00000001::numeric",
            "'-Infinity'::numeric",
            "'a b'::bpchar",
            "'é'::varchar",
            "'n'::name",
            "'a'::\"char\"",
            "'happy'::mood",
            "'c1f1a7b0-0000-4000-8000-00000000000a'::uuid",
            "'{\"b\": 1,  \"a\":[]}'::json",
            "'{\"b\": 1,  \"a\":[]}'::jsonb",
            "'2026-01-02 03:04:05.678+02'::timestamptz",
            "'1969-12-31 23:59:59.999999'::timestamp",
            "'0044-03-15 12:00:00 BC'::timestamptz",
            "'12345-06-07'::timestamp",
            "'infinity'::timestamptz",
            "'-infinity'::date",
            "'2026-01-02'::date",
            "'0001-01-01'::date",
            "'0005-02-29 BC'::date",
            "'\\x00ff'::bytea",
        ] {
            let sql = format!("SELECT {expression}, ({expression})::text, NULL::text");
            let rows = run(&connection, Statement::new(sql).returning([ColumnType::Text; 3])).await;
            let rows = rows.unwrap_or_else(|error| panic!("{expression}: {error}"));
            assert_eq!(rows.columns[0], rows.columns[1], "{expression}");
            assert_eq!(rows.columns[2], Values::Texts(texts(&[None])));
        }
        for (expression, name) in [("'1 day'::interval", "INTERVAL"), ("'10.0.0.0/8'::cidr", "CIDR"), ("ARRAY['a']", "TEXT[]")] {
            for asked in [ColumnType::Text, ColumnType::Bytes] {
                let statement = |cast| Statement::new(format!("SELECT ({expression}){cast} AS c")).returning([asked]);
                let error = run(&connection, statement("")).await.unwrap_err();
                assert_eq!(error.code, SqlErrorCode::TypeMismatch, "{error}");
                assert!(error.detail.contains(name) && error.detail.contains("as in c::text"), "{error}");
                run(&connection, statement("::text")).await.unwrap();
            }
        }
        for (expression, text) in [("'\\x00ff'::bytea", "\\x00ff"), ("true", "t"), ("'a'::\"char\"", "a"), ("'happy'::mood", "happy")] {
            let rows = run(&connection, Statement::new(format!("SELECT {expression}")).returning([ColumnType::Text])).await.unwrap();
            assert_eq!(rows.columns, [Values::Texts(texts(&[Some(text)]))], "{expression}");
        }
    });
}

#[test]
fn numbers_and_bytes_are_converted() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        use ColumnType::{Bytes, Integer, Real};
        let sql = "SELECT x::int2, x::int4, x, x > 0, x::float4, x / 2::float8, x::numeric, x FROM (VALUES (NULL::int8), (3)) AS v(x)";
        let asked = [Integer, Integer, Integer, Integer, Real, Real, Real, Real];
        let rows = run(&connection, Statement::new(sql).returning(asked)).await.unwrap();
        let integers = |value| Values::Integers { values: vec![0, value], nulls: vec![1, 0] };
        let reals = |value| Values::Reals { values: vec![0.0, value], nulls: vec![1, 0] };
        let wanted = [integers(3), integers(3), integers(3), integers(1), reals(3.0), reals(1.5), reals(3.0), reals(3.0)];
        assert_eq!(rows.columns, wanted);

        let sql = "SELECT '\\x00ff41'::bytea, 'é', '[1]'::json, '{\"a\":1}'::jsonb, NULL::bytea";
        let statement = Statement::new(sql).returning([Bytes; 5]);
        for _ in 0..2 {
            let rows = run(&connection, statement.clone()).await.unwrap();
            let bytes = |value: Option<&[u8]>| {
                let mut column = Column::default();
                column.push(value);
                Values::Bytes(column)
            };
            let wanted = [Some(&b"\x00\xff\x41"[..]), Some("é".as_bytes()), Some(b"[1]"), Some(b"{\"a\": 1}"), None];
            assert_eq!(rows.columns, wanted.map(bytes));
        }
    });
}

#[test]
fn parameters_arrive_with_their_types() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        let sql = "SELECT concat_ws('|', $1::text, $2 + 1, $3 * 2, $4 || '!', encode($5, 'hex'), $6, $7, cardinality($6), cardinality($7), $8::int IS NULL)";
        let parameters = |integers: Vec<i64>, strings: Column| {
            [
                Value::Null,
                Value::Integer(i64::MAX - 1),
                Value::Real(0.25),
                Value::Text("é'\"".into()),
                Value::Bytes(vec![0, 255]),
                Value::Integers(integers),
                Value::Texts(strings),
                Value::Null,
            ]
        };
        let statement = Statement::new(sql).returning([ColumnType::Text]);
        let full = statement.clone().bind(parameters(vec![1, -2], texts(&[Some("a"), None, Some(""), Some("b,c")])));
        let rows = run(&connection, full).await.unwrap();
        let text = "9223372036854775807|0.5|é'\"!|00ff|{1,-2}|{a,NULL,\"\",\"b,c\"}|2|4|t";
        assert_eq!(rows.columns, [Values::Texts(texts(&[Some(text)]))]);
        let rows = run(&connection, statement.bind(parameters(vec![], Column::default()))).await.unwrap();
        let text = "9223372036854775807|0.5|é'\"!|00ff|{}|{}|0|0|t";
        assert_eq!(rows.columns, [Values::Texts(texts(&[Some(text)]))]);
    });
}

#[test]
fn a_parameter_of_another_type_makes_another_statement() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        let statement = |value| Statement::new("SELECT $1::text").bind([value]).returning([ColumnType::Text]);
        for (value, text) in
            [(Value::Null, None), (Value::Integer(7), Some("7")), (Value::Text("x".into()), Some("x")), (Value::Null, None)]
        {
            let rows = run(&connection, statement(value)).await.unwrap();
            assert_eq!(rows.columns, [Values::Texts(texts(&[text]))]);
        }
    });
}

#[test]
fn what_does_not_fit_is_said_before_anything_runs() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        for (sql, asked, part) in [
            ("INSERT INTO t (v) VALUES ('a') RETURNING id, v", vec![ColumnType::Integer], "returns 2 columns, but the types of 1"),
            ("INSERT INTO t (v) VALUES ('a') RETURNING v", vec![ColumnType::Integer], "column 1 (v)"),
            ("INSERT INTO t (v) VALUES ('a') RETURNING id", vec![], "returns 1 columns, but the types of 0"),
            ("INSERT INTO t (v) VALUES ('a')", vec![ColumnType::Text], "returns 0 columns"),
        ] {
            for _ in 0..2 {
                let error = run(&connection, Statement::new(sql).returning(asked.clone())).await.expect_err(sql);
                assert_eq!(error.code, SqlErrorCode::TypeMismatch, "{error}");
                assert!(error.detail.contains(part) && error.detail.contains("INSERT"), "{error}");
            }
        }
        for (value, part) in [
            (Value::Text("a\0b".into()), "parameter 1 holds a NUL"),
            (Value::Texts(texts(&[Some("a\0b")])), "parameter 1 holds a NUL"),
            (Value::Texts(Column { data: vec![0xff], ends: vec![1], nulls: vec![] }), "parameter 1"),
        ] {
            let error = run(&connection, Statement::new("SELECT $1").bind([value]).returning([ColumnType::Text])).await.unwrap_err();
            assert!(error.code == SqlErrorCode::TypeMismatch && error.detail.contains(part), "{error}");
        }
        assert_eq!(fixture.count(), 0);
    });
}

#[test]
fn a_result_over_the_limit_is_not_read_to_its_end() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        let few = Bounds::within(Duration::from_secs(60), 1000);
        for sql in ["SELECT repeat('x', 50000000)", "SELECT repeat('x', 100) FROM generate_series(1, 500000)"] {
            let statement = Statement::new(sql).returning([ColumnType::Text]);
            let error = connection.execute(vec![statement], few).await.unwrap_err();
            assert!(error.code == SqlErrorCode::TypeMismatch && error.detail.contains("returned_bytes"), "{error}");
        }
        let insert =
            Statement::new("INSERT INTO t (v) SELECT 'x' FROM generate_series(1, 200) RETURNING id").returning([ColumnType::Integer]);
        let error = connection.execute(vec![insert.clone()], few).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::TypeMismatch, "{error}");
        assert_eq!(fixture.count(), 0, "what could not be handed out was committed");
        // All results of a call count together.
        let statement = Statement::new("SELECT repeat('x', 400)").returning([ColumnType::Text]);
        connection.execute(vec![statement.clone(); 2], few).await.unwrap();
        connection.execute(vec![statement; 3], few).await.unwrap_err();
        connection.execute(vec![insert], bounds()).await.unwrap();
        assert_eq!(fixture.count(), 200);
    });
}

#[test]
fn much_can_go_both_ways_at_once() {
    on_each(async |fixture| {
        let connection = fixture.open().await;
        let text = "x".repeat(8 << 20);
        let echo = Statement::new("SELECT $1").bind([Value::Text(text.clone())]).returning([ColumnType::Text]);
        let wide = Bounds::within(Duration::from_secs(60), 64 << 20);
        for _ in 0..2 {
            let rows = connection.execute(vec![echo.clone(); 4], wide).await.unwrap();
            assert!(rows.iter().all(|rows| rows.columns == [Values::Texts(texts(&[Some(&text)]))]));
        }
    });
}
