//! What has had its time goes, in bounded steps, and what has not stays.
//!
//! Time passes here in the store's own file: the hub stops, its times are moved back, and the hub starts again.

use std::time::Duration;

use remote_collab::domain::limits::{EVENTS_KEPT_MS, FINISHED_KEPT_MS, IDEMPOTENCY_TTL_MS};
use reqwest::Method;
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use crate::support::hub_bed::{DEADLINE, HubBed, now};

const HOUR_MS: i64 = 3600 * 1000;

fn db(bed: &tempfile::TempDir) -> Connection {
    Connection::open(bed.path().join("hub/hub.db")).unwrap()
}

fn count(db: &Connection, sql: &str) -> i64 {
    db.query_row(sql, [], |r| r.get(0)).unwrap()
}

/// Posts a task under this key; gives its id.
async fn task(bed: &HubBed, key: &str) -> String {
    let request = bed
        .request(Method::POST, "/tasks")
        .bearer_auth(&bed.token)
        .header("idempotency-key", key)
        .json(&json!({"task": "x"}));
    let v = bed.send(request).await.ok(202);
    v["id"].as_str().unwrap().to_owned()
}

/// Moves everything about a task back by these times: its record, its envelope, its idempotency key and its events.
fn age(db: &Connection, id: &str, kept_ms: i64, key_ms: i64, events_ms: i64) {
    let bytes = id.parse::<Uuid>().unwrap().into_bytes();
    let like = format!("%{id}%");
    let run = |sql: &str, p: &[&dyn rusqlite::ToSql]| assert!(db.execute(sql, p).unwrap() > 0);
    run(
        "UPDATE records SET keep_until = keep_until - ?1 WHERE key = ?2",
        params![kept_ms, format!("task/default/{id}")],
    );
    run(
        "UPDATE records SET keep_until = keep_until - ?1 WHERE key LIKE 'idem/%' AND value LIKE ?2",
        params![key_ms, like],
    );
    run(
        "UPDATE envelopes SET expires_at = ?1 WHERE id = ?2 AND json IS NULL",
        params![now().0 - kept_ms, bytes],
    );
    run(
        "UPDATE events SET at = at - ?1 WHERE about = ?2",
        params![events_ms, bytes],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_items_go_after_30_days_keys_after_24_hours_events_after_a_week_and_no_sooner() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    let mut finished = Vec::new();
    for key in ["old", "young"] {
        let id = task(&bed, key).await;
        let cancel = bed.post(&format!("/tasks/{id}/cancel"), &json!({})).await;
        assert_eq!(cancel.ok(200)["status"], "cancelled");
        finished.push(id);
    }
    let open = task(&bed, "open").await;
    let HubBed { dir, hub, .. } = bed;
    hub.shutdown().await;
    {
        let db = db(&dir);
        let past = [FINISHED_KEPT_MS, IDEMPOTENCY_TTL_MS, EVENTS_KEPT_MS].map(|t| t + HOUR_MS);
        let short = past.map(|t| t - 2 * HOUR_MS);
        age(&db, &finished[0], past[0], past[1], past[2]);
        age(&db, &finished[1], short[0], short[1], short[2]);
        // What is open has no time to be kept until: only the life of its envelope ends it.
        let sql = format!(
            "SELECT count(*) FROM records WHERE key = 'task/default/{open}' AND keep_until IS NULL"
        );
        assert_eq!(count(&db, &sql), 1);
    }
    let bed = HubBed::start_in(dir, |_| {}).await;
    let until = Instant::now() + DEADLINE;
    while bed.get(&format!("/tasks/{}", finished[0])).await.status != 404 {
        assert!(Instant::now() < until, "the old task stays");
    }
    for id in [&finished[1], &open] {
        let shown = bed.get(&format!("/tasks/{id}")).await.ok(200);
        assert_eq!(shown["receipts"][0]["stage"], "accepted");
    }
    // A key that ran out stands for nothing any more; the others for what they did.
    assert_eq!(task(&bed, "young").await, finished[1]);
    assert_eq!(task(&bed, "open").await, open);
    assert!(!finished.contains(&task(&bed, "old").await));
    let HubBed { dir, hub, .. } = bed;
    hub.shutdown().await;
    let db = db(&dir);
    let about = |id: &str, table: &str, column: &str| {
        let id = id.parse::<Uuid>().unwrap().simple();
        count(
            &db,
            &format!("SELECT count(*) FROM {table} WHERE {column} = x'{id}'"),
        )
    };
    assert_eq!(about(&finished[0], "envelopes", "id"), 0);
    assert_eq!(about(&finished[0], "events", "about"), 0);
    for id in [&finished[1], &open] {
        assert_eq!(about(id, "envelopes", "id"), 1);
        assert!(about(id, "events", "about") > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_backlog_is_swept_in_steps_while_posts_go_on() {
    const BACKLOG: i64 = 40_000;
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    bed.post("/tasks", &json!({"task": "x"})).await.ok(202);
    let HubBed { dir, hub, .. } = bed;
    hub.shutdown().await;
    {
        let mut db = db(&dir);
        let tx = db.transaction().unwrap();
        {
            let log: i64 = tx
                .query_row("SELECT id FROM logs WHERE name = 'default'", [], |r| {
                    r.get(0)
                })
                .unwrap();
            let mut record = tx
                .prepare("INSERT INTO records (key, value, version, keep_until) VALUES (?1, '{}', 1, ?2)")
                .unwrap();
            let mut event = tx
                .prepare(
                    "INSERT INTO events (log, seq, about, at, json) VALUES (?1, ?2, ?3, ?4, '{}')",
                )
                .unwrap();
            // The events of the setting begin at 1: these stand before them.
            let first = 10 * BACKLOG;
            tx.execute("UPDATE events SET seq = seq + ?1", [first])
                .unwrap();
            for n in 0..BACKLOG {
                record
                    .execute(params![format!("idem/default/ci/{n:06}"), 1 + n])
                    .unwrap();
                if n < BACKLOG / 4 {
                    event
                        .execute(params![log, 1 + n, [0_u8; 16], 1 + n])
                        .unwrap();
                }
            }
        }
        tx.commit().unwrap();
    }
    let bed = HubBed::start_in(dir, |c| c.lifecycle.sweep_every = Duration::from_millis(1)).await;
    let looking = db(&bed.dir);
    let left = || {
        let records = "SELECT count(*) FROM records WHERE key LIKE 'idem/%' AND value = '{}'";
        let events = "SELECT count(*) FROM events WHERE json = '{}'";
        count(&looking, records) + count(&looking, events)
    };
    let (until, mut answered, mut before) = (Instant::now() + 6 * DEADLINE, Vec::new(), 0);
    loop {
        let v = bed.post("/tasks", &json!({"task": "y"})).await.ok(202);
        answered.push(v["id"].as_str().unwrap().to_owned());
        match left() {
            0 => break,
            n => before = n,
        }
        assert!(Instant::now() < until, "{before} are left");
    }
    // The first answer did not have to wait for the end of it.
    assert!(before > 0 && answered.len() > 1, "{answered:?}");
    let mut shown = Vec::new();
    let mut page = String::new();
    loop {
        let v = bed.get(&format!("/tasks?limit=100{page}")).await.ok(200);
        let tasks = v["tasks"].as_array().unwrap().iter();
        shown.extend(tasks.map(|t| t["id"].as_str().unwrap().to_owned()));
        match &v["next"] {
            Value::String(next) => page = format!("&cursor={next}"),
            _ => break,
        }
    }
    assert!(answered.iter().all(|id| shown.contains(id)));
    drop(looking);
    bed.hub.shutdown().await;
}
