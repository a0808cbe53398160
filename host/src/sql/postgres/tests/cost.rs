//! What a claim and a settlement cost in round trips, direct and behind a pooler. Run by hand, with the services up:
//! `cargo test -p outhaul --lib sql::postgres -- --ignored --nocapture cost`.

use super::{bounds, databases, wait_for};
use crate::sql::{Access, ColumnType, Connection, Statement, Value};
use outhaul_services::Major;
use std::time::{Duration, Instant};

const CALLS: u32 = 2_000;

fn scan() -> Statement {
    Statement::new("SELECT id, v FROM t WHERE id > $1 ORDER BY id LIMIT 100")
        .bind([Value::Integer(0)])
        .returning([ColumnType::Integer, ColumnType::Text])
}

fn take() -> Statement {
    Statement::new("UPDATE t SET v = $2 WHERE id = ANY($1) RETURNING id, v")
        .bind([Value::Integers((1..=50).collect()), Value::Text("worker".into())])
        .returning([ColumnType::Integer, ColumnType::Text])
}

fn settle() -> Statement {
    Statement::new("UPDATE t SET v = $2 WHERE id = ANY($1)").bind([Value::Integers((1..=50).collect()), Value::Text("done".into())])
}

async fn measure(connection: &Connection) -> (Duration, Duration, Duration) {
    let nothing = || Statement::new("SELECT 1").returning([ColumnType::Integer]);
    let (mut read, mut claim, mut settled) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for call in 0..CALLS + 10 {
        let start = Instant::now();
        connection.execute(vec![nothing()], bounds()).await.unwrap();
        let first = Instant::now();
        let (transaction, _) = connection.begin(vec![scan()], bounds()).await.unwrap();
        transaction.commit(vec![take()], bounds()).await.unwrap();
        let second = Instant::now();
        connection.execute(vec![settle()], bounds()).await.unwrap();
        // The first few prepare their statements.
        if call >= 10 {
            read += first - start;
            claim += second - first;
            settled += second.elapsed();
        }
    }
    (read / CALLS, claim / CALLS, settled / CALLS)
}

#[test]
#[ignore = "measures and prints, and judges nothing"]
#[expect(clippy::print_stdout)]
fn the_cost_of_a_claim() {
    let (Some(server), Some(pooler)) = (outhaul_services::postgres(Major::V15), outhaul_services::pgbouncer()) else { return };
    let database = server.create_database().unwrap();
    let rows = "CREATE TABLE t (id bigserial PRIMARY KEY, v text); INSERT INTO t (v) SELECT 'x' FROM generate_series(1, 1000);";
    let mut client = database.connect().unwrap();
    client.batch_execute(rows).unwrap();
    // The disk is not what is measured.
    client.batch_execute(&format!("ALTER DATABASE {} SET synchronous_commit = off", database.name())).unwrap();
    let direct = format!("{}?sslmode=disable", database.url());
    for (name, url) in [("direct", direct), ("direct, TLS", database.url()), ("pgbouncer", pooler.url(database.name()))] {
        let (read, claim, settle) = wait_for(async {
            let connection = databases(&url, "").open("main", Access::ReadWrite).await.unwrap();
            measure(&connection).await
        });
        println!("{name}: SELECT 1 {read:?}, scan and take {claim:?}, settle {settle:?}");
    }

    let mut client = database.connect().unwrap();
    let [scan, take, settle] = [
        "SELECT id, v FROM t WHERE id > $1 ORDER BY id LIMIT 100",
        "UPDATE t SET v = $2 WHERE id = ANY($1) RETURNING id, v",
        "UPDATE t SET v = $2 WHERE id = ANY($1)",
    ]
    .map(|sql| client.prepare(sql).unwrap());
    let ids: Vec<i64> = (1..=50).collect();
    let (mut claim, mut settled) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..CALLS {
        let start = Instant::now();
        let mut transaction = client.transaction().unwrap();
        transaction.batch_execute("SET LOCAL statement_timeout = 5000").unwrap();
        transaction.query(&scan, &[&0_i64]).unwrap();
        transaction.query(&take, &[&ids, &"worker"]).unwrap();
        transaction.commit().unwrap();
        claim += start.elapsed();
        let start = Instant::now();
        let mut transaction = client.transaction().unwrap();
        transaction.batch_execute("SET LOCAL statement_timeout = 5000").unwrap();
        transaction.execute(&settle, &[&ids, &"done"]).unwrap();
        transaction.commit().unwrap();
        settled += start.elapsed();
    }
    println!("tokio-postgres, a round trip each: scan and take {:?}, settle {:?}", claim / CALLS, settled / CALLS);
}
