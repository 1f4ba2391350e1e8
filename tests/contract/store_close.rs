//! How a store ends.

use std::path::Path;

use remote_collab::hub::store::{Commit, Expect, Op, Records, SqliteStore, StoreError};
use tokio::task::JoinSet;

/// Reads that go on until the store is closed.
const READERS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn a_store_closed_beside_reads_is_one_file_that_can_be_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hub.db");
    for round in 0..20 {
        let store = SqliteStore::open(&path).unwrap();
        let put = Op::put(format!("a/{round}"), "x".repeat(10_000), Expect::Any);
        store.commit(vec![put]).await.unwrap();
        let mut reads = JoinSet::new();
        for _ in 0..READERS {
            let store = store.clone();
            reads.spawn(async move {
                loop {
                    match store.list("a/", None, 100, false).await {
                        Ok(_) => {}
                        Err(e) => return e,
                    }
                }
            });
        }
        // Some have begun.
        store.list("a/", None, 1, false).await.unwrap();
        store.close().await;
        let wal = Path::new(&path).with_extension("db-wal");
        assert!(!wal.exists(), "round {round}: the log was left behind");
        while let Some(end) = reads.join_next().await {
            assert_eq!(end.unwrap(), StoreError::Closed);
        }
    }
}
