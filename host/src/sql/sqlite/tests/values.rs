//! What goes in comes out, or is refused with a reason.

use super::{Fixture, bounds, found, insert, run};
use crate::domain::Column;
use crate::sql::{Bounds, ColumnType, SqlErrorCode, Statement, Value, Values};
use proptest::prelude::*;
use std::time::Duration;

fn value_of(column: ColumnType) -> BoxedStrategy<Value> {
    let some = match column {
        ColumnType::Integer => any::<i64>().prop_map(Value::Integer).boxed(),
        ColumnType::Real => any::<f64>().prop_filter("SQLite has no NaN", |real| !real.is_nan()).prop_map(Value::Real).boxed(),
        ColumnType::Text => any::<String>().prop_map(Value::Text).boxed(),
        ColumnType::Bytes => prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes).boxed(),
    };
    prop_oneof![4 => some, 1 => Just(Value::Null)].boxed()
}

fn read_back(column: &Values, index: usize) -> Value {
    match column {
        Values::Integers { nulls, .. } | Values::Reals { nulls, .. } if nulls.get(index) == Some(&1) => Value::Null,
        Values::Integers { values, .. } => Value::Integer(values[index]),
        Values::Reals { values, .. } => Value::Real(values[index]),
        Values::Texts(column) => column.text(index).map_or(Value::Null, |text| Value::Text(text.to_owned())),
        Values::Bytes(column) => column.get(index).map_or(Value::Null, |bytes| Value::Bytes(bytes.to_vec())),
    }
}

type Row = (Value, Value, Value, Value);

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (value_of(ColumnType::Integer), value_of(ColumnType::Real), value_of(ColumnType::Text), value_of(ColumnType::Bytes));
    prop::collection::vec(row, 0..12)
}

#[test]
fn values_in_are_values_out() {
    let fixture = Fixture::wal();
    fixture.other().execute_batch("CREATE TABLE wide (id INTEGER PRIMARY KEY, i, r, t, b)").unwrap();
    let connection = fixture.databases.open_blocking("main", crate::sql::Access::ReadWrite).unwrap();
    proptest!(ProptestConfig::with_cases(64), |(rows in rows())| {
        let mut statements = vec![Statement::new("DELETE FROM wide")];
        for (i, r, t, b) in &rows {
            statements.push(
                Statement::new("INSERT INTO wide (i, r, t, b) VALUES (?1, ?2, ?3, ?4)")
                    .bind([i.clone(), r.clone(), t.clone(), b.clone()])
                    .must_change(1),
            );
        }
        let types = [ColumnType::Integer, ColumnType::Real, ColumnType::Text, ColumnType::Bytes];
        statements.push(Statement::new("SELECT i, r, t, b FROM wide ORDER BY id").returning(types).must_change(rows.len() as u64));
        let results = connection.execute_blocking(statements, bounds()).unwrap();
        let columns = &results.last().unwrap().columns;
        prop_assert_eq!(columns.len(), 4);
        for column in columns {
            prop_assert_eq!(column.len(), rows.len());
            if let Values::Texts(packed) | Values::Bytes(packed) = column {
                prop_assert_eq!(packed.check(rows.len()), Ok(()));
            }
        }
        for (index, (i, r, t, b)) in rows.into_iter().enumerate() {
            let back = (read_back(&columns[0], index), read_back(&columns[1], index), read_back(&columns[2], index), read_back(&columns[3], index));
            prop_assert_eq!(back, (i, r, t, b));
        }
    });
}

#[test]
fn arrays_arrive_element_by_element() {
    let fixture = Fixture::wal();
    let connection = fixture.databases.open_blocking("main", crate::sql::Access::ReadOnly).unwrap();
    let element = prop::option::of(any::<String>().prop_map(|text| text.replace('\0', "")));
    proptest!(ProptestConfig::with_cases(64), |(integers in prop::collection::vec(any::<i64>(), 0..20), texts in prop::collection::vec(element, 0..20))| {
        let mut column = Column::default();
        for text in &texts {
            column.push(text.as_deref().map(str::as_bytes));
        }
        let statements = vec![
            Statement::new("SELECT value FROM json_each(?1) ORDER BY key").bind([Value::Integers(integers.clone())]).returning([ColumnType::Integer]),
            Statement::new("SELECT value FROM json_each(?1) ORDER BY key").bind([Value::Texts(column)]).returning([ColumnType::Text]),
        ];
        let results = connection.execute_blocking(statements, bounds()).unwrap();
        prop_assert_eq!(&results[0].columns[0], &Values::Integers { values: integers, nulls: Vec::new() });
        let Values::Texts(back) = &results[1].columns[0] else { panic!("not texts") };
        let back: Vec<Option<String>> = (0..back.len()).map(|index| back.text(index).map(str::to_owned)).collect();
        prop_assert_eq!(back, texts);
    });
}

#[tokio::test]
async fn a_nul_in_a_text_of_an_array_is_not_cut_off_in_silence() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let statement = Statement::new("SELECT value FROM json_each(?1)")
        .bind([Value::Texts(Column::of_texts(["before\0after"]))])
        .returning([ColumnType::Text]);
    match run(&connection, statement).await {
        Ok(rows) => assert_eq!(read_back(&rows.columns[0], 0), Value::Text("before\0after".to_owned())),
        Err(error) => assert_eq!(error.code, SqlErrorCode::TypeMismatch, "{error}"),
    }
}

#[tokio::test]
async fn conversions_are_those_of_the_contract() {
    use ColumnType::{Bytes, Integer, Real, Text};
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let text = |text: &str| Value::Text(text.to_owned());
    let cases = [
        ("SELECT 7", Text, Some(text("7"))),
        ("SELECT -9223372036854775808", Text, Some(text("-9223372036854775808"))),
        ("SELECT 1.0", Text, Some(text("1.0"))),
        ("SELECT 0.1", Text, Some(text("0.1"))),
        ("SELECT 1e300", Text, Some(text("1e300"))),
        ("SELECT 7", Real, Some(Value::Real(7.0))),
        ("SELECT 'é'", Bytes, Some(Value::Bytes("é".as_bytes().to_vec()))),
        ("SELECT x'41ff42'", Text, Some(text("A\u{FFFD}B"))),
        ("SELECT CAST(x'41ff42' AS TEXT)", Text, Some(text("A\u{FFFD}B"))),
        ("SELECT x''", Bytes, Some(Value::Bytes(Vec::new()))),
        ("SELECT ''", Text, Some(text(""))),
        ("SELECT NULL", Integer, Some(Value::Null)),
        ("SELECT NULL", Real, Some(Value::Null)),
        ("SELECT NULL", Text, Some(Value::Null)),
        ("SELECT NULL", Bytes, Some(Value::Null)),
        ("SELECT '7'", Integer, None),
        ("SELECT 7.0", Integer, None),
        ("SELECT x'37'", Integer, None),
        ("SELECT '7'", Real, None),
        ("SELECT 7", Bytes, None),
        ("SELECT 7.5", Bytes, None),
    ];
    for (sql, asked, expected) in cases {
        match (run(&connection, Statement::new(sql).returning([asked])).await, expected) {
            (Ok(rows), Some(expected)) => assert_eq!(read_back(&rows.columns[0], 0), expected, "{sql} as {asked:?}"),
            (Err(error), None) => assert_eq!(error.code, SqlErrorCode::TypeMismatch, "{sql} as {asked:?}"),
            (other, expected) => panic!("{sql} as {asked:?}: {other:?} instead of {expected:?}"),
        }
    }
}

#[tokio::test]
async fn a_mismatch_names_statement_and_column() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let statements = vec![insert(1), Statement::new("SELECT 1 AS a, 'x' AS b").returning([ColumnType::Integer, ColumnType::Integer])];
    let error = connection.execute(statements, bounds()).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::TypeMismatch);
    for part in ["database \"main\"", "statement 2 of 2", "column 2 (b)", "Text", "integer was asked for"] {
        assert!(error.detail.contains(part), "{part} is not in: {}", error.detail);
    }
    assert_eq!(fixture.count(), 0);
}

#[tokio::test]
async fn null_marks_start_with_the_first_null() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let rows =
        run(&connection, Statement::new("SELECT column1 FROM (VALUES (1), (NULL), (3))").returning([ColumnType::Integer])).await.unwrap();
    assert_eq!(rows.columns, vec![Values::Integers { values: vec![1, 0, 3], nulls: vec![0, 1, 0] }]);
}

#[tokio::test]
async fn what_sqlite_cannot_hold_is_refused() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let insert = |value| Statement::new("INSERT INTO t (v) VALUES (?1)").bind([value]);
    let half_a_character = Column { data: "é".as_bytes().to_vec(), ends: vec![1, 2], nulls: Vec::new() };
    let wild = Column { data: Vec::new(), ends: vec![7], nulls: Vec::new() };
    for value in [Value::Real(f64::NAN), Value::Texts(half_a_character), Value::Texts(wild)] {
        let error = run(&connection, insert(value)).await.unwrap_err();
        assert_eq!(error.code, SqlErrorCode::TypeMismatch);
        assert!(error.detail.contains("parameter 1"), "{}", error.detail);
    }
    assert_eq!(fixture.count(), 0);
}

#[tokio::test]
async fn a_result_over_the_limit_is_refused_while_it_is_read() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    // Without end: only a limit that is looked at row by row stops it.
    let endless = Statement::new("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, '' FROM n")
        .returning([ColumnType::Integer, ColumnType::Text]);
    let tight = Bounds::within(Duration::from_secs(60), 10_000);
    let error = connection.execute(vec![endless], tight).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::TypeMismatch);
    assert!(error.detail.contains("10000 bytes") && error.detail.contains("limits.returned_bytes"), "{}", error.detail);

    // The limit is for all results of the call together, and a value as long as it allows passes.
    let text = |length: usize| Statement::new("SELECT ?1").bind([Value::Text("x".repeat(length))]).returning([ColumnType::Text]);
    assert!(connection.execute(vec![text(4_992), text(4_992)], tight).await.is_ok());
    assert!(connection.execute(vec![text(4_992), text(4_993)], tight).await.is_err());
}

#[tokio::test]
async fn a_value_is_as_long_as_may_be_returned_and_no_longer() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let hex = || Statement::new("SELECT length(hex(?1))").bind([Value::Bytes(vec![0; 40 << 20])]).returning([ColumnType::Integer]);
    let error = run(&connection, hex()).await.unwrap_err();
    assert_eq!(error.code, SqlErrorCode::TypeMismatch);
    assert!(error.detail.contains("over 64 MiB"), "{error}");
    // For an adapter that may have more returned; and for the next one the bound is back.
    let wide = Bounds::within(Duration::from_secs(60), 100 << 20);
    assert!(connection.execute(vec![hex()], wide).await.is_ok());
    assert!(run(&connection, hex()).await.is_err());
    // A storage can still see that a message is too long for it.
    fixture.other().execute("INSERT INTO t (v) VALUES (zeroblob(70000000))", ()).unwrap();
    let length = Statement::new("SELECT octet_length(v) FROM t").returning([ColumnType::Integer]);
    assert_eq!(found(&[run(&connection, length).await.unwrap()]), 70_000_000);
}

#[tokio::test]
async fn columns_and_parameters_must_be_as_many_as_the_statement_has() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    for (statement, code, part) in [
        (Statement::new("SELECT 1, 2").returning([ColumnType::Integer]), SqlErrorCode::TypeMismatch, "returns 2 columns"),
        (Statement::new("SELECT 1"), SqlErrorCode::TypeMismatch, "returns 1 columns"),
        (insert(1).returning([ColumnType::Integer]), SqlErrorCode::TypeMismatch, "returns 0 columns"),
        (Statement::new("INSERT INTO t (v) VALUES (?1)"), SqlErrorCode::Syntax, "takes 1 parameters, and got 0"),
        (insert(1).bind([Value::Null]), SqlErrorCode::Syntax, "takes 1 parameters, and got 2"),
    ] {
        let error = run(&connection, statement).await.unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(error.detail.contains(part), "{part} is not in: {}", error.detail);
    }
    assert_eq!(fixture.count(), 0);
}

#[tokio::test]
async fn changed_counts_the_rows_of_that_statement() {
    let fixture = Fixture::wal();
    let connection = fixture.open().await;
    let statements = vec![
        Statement::new("INSERT INTO t (v) VALUES (1), (2), (3)"),
        Statement::new("SELECT v FROM t").returning([ColumnType::Integer]),
        Statement::new("UPDATE t SET v = 0 WHERE v > 100"),
        Statement::new("UPDATE t SET v = v + 1 WHERE v > 1 RETURNING id").returning([ColumnType::Integer]),
        Statement::new("CREATE TABLE u (id)"),
        Statement::new("DELETE FROM t"),
    ];
    let changed: Vec<u64> = connection.execute(statements, bounds()).await.unwrap().iter().map(|rows| rows.changed).collect();
    assert_eq!(changed, [3, 0, 0, 2, 0, 3]);
}
