//! What a call costs on top of SQLite itself. Run by hand: `cargo test -p outhaul --lib sql:: -- --ignored --nocapture cost`.

use super::{Fixture, bounds, run, select};
use crate::sql::Access;
use std::time::Instant;

const CALLS: u32 = 2_000;

#[tokio::test]
#[ignore = "measures and prints, and judges nothing"]
#[expect(clippy::print_stdout)]
async fn the_cost_of_a_hop() {
    let fixture = Fixture::wal();
    let reader = fixture.databases.open("main", Access::ReadOnly).await.unwrap();
    run(&reader, select()).await.unwrap();
    let start = Instant::now();
    for _ in 0..CALLS {
        reader.execute(vec![select()], bounds()).await.unwrap();
    }
    println!("a call:              {:?}", start.elapsed() / CALLS);

    let direct = fixture.other();
    let start = Instant::now();
    for _ in 0..CALLS {
        direct.execute_batch("BEGIN").unwrap();
        let _: i64 = direct.prepare_cached("SELECT count(*) FROM t").unwrap().query_row((), |row| row.get(0)).unwrap();
        direct.execute_batch("COMMIT").unwrap();
    }
    println!("the same, direct:    {:?}", start.elapsed() / CALLS);

    let mut watch = fixture.databases.watch("main").unwrap();
    watch.changed().await.unwrap();
    let start = Instant::now();
    for _ in 0..CALLS {
        watch.changed().await.unwrap();
    }
    println!("a look for changes:  {:?}", start.elapsed() / CALLS);
}
