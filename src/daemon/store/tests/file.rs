//! The file: locks, damage, copies, rights, space.

use super::*;

#[tokio::test]
async fn a_write_lock_held_by_another_program_means_nothing_was_stored() {
    let f = fixture();
    let other = Db::connect(&f.dir.path().join(FILE)).unwrap();
    other.begin(true).unwrap();
    let refused = f.store.store_envelope(at(1), message(1)).await;
    assert_eq!(refused, Err(StoreError::Busy));
    other.rollback();
    assert_eq!(*f.store.durable().borrow(), None);
    assert!(f.waiting().await.is_empty());
    let stored = f.store.store_envelope(at(1), message(1)).await;
    assert_eq!(stored, Ok(Stored::New), "it recovers by itself");
}

#[tokio::test]
async fn files_that_are_not_ours_to_read_are_refused_with_the_reason() {
    let f = fixture();
    let path = f.dir.path().join(FILE);
    f.store.close().await;
    let set = |pragma: &str| {
        let db = Db::connect(&path).unwrap();
        let tx = db
            .begin(true)
            .and_then(|()| db.job(|tx| tx.exec(pragma, &[])));
        tx.unwrap();
        db.commit().unwrap();
    };
    set("PRAGMA user_version=99");
    let newer = Store::open(&path).unwrap_err();
    assert!(matches!(newer, StoreError::Newer { found: 99, .. }));
    set("PRAGMA application_id=5");
    let foreign = Store::open(&path).unwrap_err();
    assert!(matches!(foreign, StoreError::Foreign { .. }));
    let damaged = f.dir.path().join("damaged.db");
    std::fs::write(&damaged, "this is no database, it is a letter".repeat(100)).unwrap();
    let corrupt = Store::open(&damaged).unwrap_err();
    assert!(matches!(corrupt, StoreError::Corrupt { .. }), "{corrupt:?}");
    let missing = Store::open(&f.dir.path().join("no/such/dir.db")).unwrap_err();
    assert!(matches!(missing, StoreError::Open { .. }));
}

#[cfg(unix)]
#[tokio::test]
async fn a_copied_queue_has_its_mail_and_names_of_its_own() {
    let fx = fixture();
    fx.fill(vec![message(1)]).await;
    let born = fx.store.info();
    let fx = fx.reopened().await;
    assert_eq!(fx.store.info(), born, "a restart is no copy");
    fx.store.close().await;
    let original = fx.dir.path().join(FILE);
    let copy = fx.dir.path().join("copy.db");
    std::fs::copy(&original, &copy).unwrap();
    let copied = Store::open(&copy).unwrap();
    assert_ne!(copied.info().instance, born.instance);
    assert_ne!(copied.info().outbox_instance, born.outbox_instance);
    assert_eq!(copied.cursor().await.unwrap(), Some(at(1)));
    assert_eq!(Store::open(&original).unwrap().info(), born);
}

#[tokio::test]
async fn the_file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let f = fixture();
    let mode = |name: &str| {
        let meta = std::fs::metadata(f.dir.path().join(name)).unwrap();
        meta.permissions().mode() & 0o777
    };
    f.fill(vec![message(1)]).await;
    assert_eq!((mode(FILE), mode("queue.db-wal")), (0o600, 0o600));
}

#[tokio::test]
async fn a_full_disk_is_reported_and_stores_nothing_and_heals() {
    let f = fixture();
    let pages = |n: u32| {
        let sql = format!("PRAGMA max_page_count={n}");
        f.store
            .job(false, move |tx| tx.row(&sql, &[], |r| r.int(0)))
    };
    let max = pages(1).await.unwrap().unwrap();
    let big = Envelope {
        body: json!({ "content": "x".repeat(200_000) }),
        ..message(1)
    };
    let full = f.store.store_envelope(at(1), big.clone()).await;
    assert_eq!(full, Err(StoreError::DiskFull));
    assert_eq!(*f.store.durable().borrow(), None);
    pages(u32::try_from(max).unwrap() + 1_000).await.unwrap();
    assert_eq!(f.store.store_envelope(at(1), big).await, Ok(Stored::New));
}

#[tokio::test]
async fn a_queue_of_the_version_before_is_taken_over_with_all_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    std::fs::write(&path, "").unwrap();
    let db = Db::connect(&path).unwrap();
    let id = EnvelopeId::from_u128(1);
    let (uuid, content) = (Uuid::from_u128(5).to_string(), codec::json(&task(1)));
    db.begin(true).unwrap();
    db.job(|tx| {
        for sql in include_str!("../schema.sql").split_inclusive(";\n") {
            tx.exec(sql, &[])?;
        }
        tx.exec("PRAGMA application_id=0x72635131", &[])?;
        tx.exec("PRAGMA user_version=1", &[])?;
        tx.exec(
            "INSERT INTO meta (one, instance, outbox_instance, created_at) VALUES (1, ?, ?, 1)",
            &[&uuid, &uuid],
        )?;
        tx.exec(
            "INSERT INTO envelopes (id, seq, kind, priority, task_id, received_at, expires_at, state, changed_at, json)
             VALUES (?1, 1, 'task', 1, ?1, 1, 9, 'queued', 1, ?2)",
            &[&id.to_string(), &content],
        )
    })
    .unwrap();
    db.commit().unwrap();
    drop(db);
    let store = Store::open(&path).unwrap();
    let row = store.envelope(id).await.unwrap().unwrap();
    assert_eq!((row.envelope, row.starts), (task(1), 0));
    // Its attempt is known: a newer one ends it.
    let newer = Envelope {
        id: EnvelopeId::from_u128(2),
        attempt: Some(2),
        ..task(1)
    };
    store.store_envelope(at(2), newer).await.unwrap();
    let row = store.envelope(id).await.unwrap().unwrap();
    assert_eq!(row.state, EnvelopeState::Terminal);
}

#[tokio::test]
async fn an_older_copy_that_is_put_back_in_place_has_names_of_its_own() {
    let fx = fixture();
    fx.fill(vec![message(1)]).await;
    let born = fx.store.info();
    let path = fx.dir.path().join(FILE);
    fx.store.close().await;
    let old = std::fs::read(&path).unwrap();
    for _ in 0..2 {
        let store = Store::open(&path).unwrap();
        assert_eq!(store.info(), born, "a restart is no restoration");
        store.store_envelope(at(9), message(9)).await.unwrap();
        store.close().await;
    }
    // The same file, with what it held before.
    std::fs::write(&path, old).unwrap();
    let restored = Store::open(&path).unwrap();
    assert_ne!(restored.info().instance, born.instance);
    assert_ne!(restored.info().outbox_instance, born.outbox_instance);
    assert_eq!(restored.cursor().await.unwrap(), Some(at(1)));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_hubs_clock_is_known_over_a_restart() {
    let f = fixture();
    assert_eq!(f.store.hub_offset_ms(), 0);
    f.store.hub_clock(now().plus(90_000));
    // Behind it in the queue of the writer.
    f.fill(vec![message(1)]).await;
    let f = f.reopened().await;
    assert!(f.store.hub_offset_ms().abs_diff(90_000) < 5_000);
}
