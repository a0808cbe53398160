//! The change watch.

use super::{Fixture, create, insert, run};
use std::fs;

#[tokio::test]
async fn commits_are_seen_once_and_rollbacks_never() {
    for journal_mode in ["wal", "delete"] {
        let fixture = Fixture::new(journal_mode);
        let mut watch = fixture.databases.watch("main").unwrap();
        let mut second = fixture.databases.watch("main").unwrap();
        assert!(watch.changed().await.unwrap() && second.changed().await.unwrap());
        assert!(!watch.changed().await.unwrap());

        let other = fixture.other();
        other.execute_batch("BEGIN; INSERT INTO t (v) VALUES (1)").unwrap();
        assert!(!watch.changed().await.unwrap());
        other.execute_batch("ROLLBACK").unwrap();
        assert!(!watch.changed().await.unwrap());

        other.execute_batch("INSERT INTO t (v) VALUES (1)").unwrap();
        assert!(watch.changed().await.unwrap());
        assert!(!watch.changed().await.unwrap());

        run(&fixture.open().await, insert(2)).await.unwrap();
        assert!(watch.changed().await.unwrap());
        assert!(second.changed().await.unwrap());
    }
}

#[tokio::test]
async fn a_file_that_comes_back_counts_as_changed() {
    let fixture = Fixture::new("delete");
    let mut watch = fixture.databases.watch("main").unwrap();
    watch.changed().await.unwrap();
    fs::remove_file(&fixture.path).unwrap();
    watch.changed().await.unwrap_err();
    create(&fixture.path, "delete");
    assert!(watch.changed().await.unwrap());
    assert!(!watch.changed().await.unwrap());
}
