//! A hub whose store cannot be written: what it answered 202 for is stored, what it refused is not, and it goes on.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use reqwest::Method;
use rusqlite::Connection;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::support::hub_bed::{Got, read};
use crate::support::sites::HubSite;

async fn post(hub: &HubSite, key: &str) -> Got {
    let body = json!({"task": key, "metadata": {"key": key}});
    let request = hub.request(Method::POST, "/tasks").json(&body);
    read(request.header("idempotency-key", key)).await
}

/// The keys of the tasks that the hub shows, in order.
async fn shown(hub: &HubSite) -> Vec<String> {
    let list = hub.get("/tasks").await.ok(200);
    let tasks = list["tasks"].as_array().unwrap().iter();
    let mut all: Vec<String> = tasks
        .map(|t| t["metadata"]["key"].as_str().unwrap().to_owned())
        .collect();
    all.sort();
    all
}

/// The device gets exactly these tasks.
async fn stored(hub: &HubSite, want: &[&str]) {
    assert_eq!(shown(hub).await, want);
    let db = Connection::open(hub.machine.data().join("hub/hub.db")).unwrap();
    let count = |sql: &str| -> usize {
        let n: i64 = db.query_row(sql, [], |r| r.get(0)).unwrap();
        usize::try_from(n).unwrap()
    };
    assert_eq!(count("SELECT count(*) FROM envelopes"), want.len());
    let keys = "SELECT count(*) FROM records WHERE key LIKE 'idem/%'";
    assert_eq!(count(keys), want.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_under_another_process_write_lock_is_stored_or_refused_and_nothing_between() {
    let mut hub = HubSite::start().await;
    hub.enrol_bare("laptop").await;
    post(&hub, "a").await.ok(202);
    let lock = Connection::open(hub.machine.data().join("hub/hub.db")).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Each waits for the lock as long as the store does, one after the other: about ten seconds.
    for key in ["b", "c"] {
        let refused = post(&hub, key).await;
        refused.refused(503, "store_unavailable");
        assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    }
    assert_eq!(shown(&hub).await, ["a"]);
    // One that comes under the lock and outlives it.
    let (waits, ()) = tokio::join!(post(&hub, "d"), async {
        lock.execute_batch("ROLLBACK").unwrap();
    });
    if waits.status != 202 {
        waits.refused(503, "store_unavailable");
        assert_eq!(shown(&hub).await, ["a"]);
    }
    for key in ["a", "b", "c", "d"] {
        post(&hub, key).await.ok(202);
    }
    stored(&hub, &["a", "b", "c", "d"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_whose_files_cannot_grow_refuses_stores_no_half_and_goes_on_when_they_can() {
    let mut hub = HubSite::start().await;
    hub.enrol_bare("laptop").await;
    post(&hub, "a").await.ok(202);
    let limit = |hub: &HubSite, bytes: Option<u64>| {
        let pid = Pid::from_raw(i32::try_from(hub.process().pid).unwrap()).unwrap();
        let limit = Rlimit {
            current: bytes,
            maximum: None,
        };
        prlimit(Some(pid), Resource::Fsize, limit).unwrap();
    };
    let wal = hub.machine.data().join("hub/hub.db-wal");
    let size = || std::fs::metadata(&wal).unwrap().len();
    let mut kept = vec!["a"];
    // No byte more; and half a page more, so that a commit breaks off in the middle. Not even the log can be written
    // under the last.
    for (key, bytes) in [("b", size()), ("c", size() + 2000), ("d", 0)] {
        let bytes = if key == "c" { size() + 2000 } else { bytes };
        limit(&hub, Some(bytes));
        for _ in 0..3 {
            let refused = post(&hub, key).await;
            assert!(
                matches!(
                    (refused.status, refused.code()),
                    (503, "store_unavailable") | (507, "disk_full")
                ),
                "{refused:?}"
            );
            assert!(refused.headers.contains_key("retry-after"));
        }
        // Reading goes on meanwhile.
        assert_eq!(shown(&hub).await, kept);
        limit(&hub, None);
        let v = post(&hub, key).await.ok(202);
        assert_eq!(post(&hub, key).await.ok(202)["id"], v["id"]);
        kept.push(key);
        stored(&hub, &kept).await;
    }
    hub.kill().await;
    hub.serve().await;
    stored(&hub, &kept).await;
    post(&hub, "e").await.ok(202);
}

fn set_modes(dir: &Path, of_dir: u32, of_file: u32) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_file() {
            let mode = std::fs::Permissions::from_mode(of_file);
            std::fs::set_permissions(entry.path(), mode).unwrap();
        } else if kind.is_dir() {
            set_modes(&entry.path(), of_dir, of_file);
        }
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(of_dir)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_becomes_read_only_loses_nothing_and_is_told_at_the_next_start() {
    let mut hub = HubSite::start().await;
    hub.enrol_bare("laptop").await;
    post(&hub, "a").await.ok(202);
    let dir = hub.machine.data().join("hub");
    set_modes(&dir, 0o500, 0o400);
    // A superuser may write all the same.
    let bound = std::fs::write(dir.join("probe"), "").is_err();
    // What is open stays writable: the hub goes on.
    post(&hub, "b").await.ok(202);
    hub.terminate().await;
    let ran = hub.machine.run(&["hub", "token", "list"], "").await;
    if bound {
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains(dir.to_str().unwrap()), "{ran:?}");
    } else {
        std::fs::remove_file(dir.join("probe")).unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    set_modes(&dir, 0o700, 0o600);
    hub.serve().await;
    post(&hub, "c").await.ok(202);
    stored(&hub, &["a", "b", "c"]).await;
}
