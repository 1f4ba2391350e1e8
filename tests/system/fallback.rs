//! The fallback end to end: a real hub and a real daemon, and an edge between them that has its own mind about
//! WebSockets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use remote_collab::core::client::ClientConfig;
use remote_collab::daemon::credentials::{Credentials, Enrolment};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::daemon_link::Device;
use crate::support::edge_proxy::{Acks, EdgeProxy, Upgrades};
use crate::support::queue_db;
use crate::support::sites::{DeviceSite, HubSite, Machine, PATIENCE, stages};

/// Time between two posts of the producer.
const PACE: Duration = Duration::from_millis(10);

/// A daemon behind an edge, which tries the WebSocket again every second or so.
async fn behind_an_edge(hub: &mut HubSite) -> (EdgeProxy, DeviceSite) {
    let edge = EdgeProxy::start(&hub.listen).await;
    let machine = Machine::new();
    let dir = machine.home().join(".claude");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("remote-collab.json"), r#"{"poll_interval": "1s"}"#).unwrap();
    let device = DeviceSite::enrolled_by(machine, hub, &edge.url(), "laptop").await;
    (edge, device)
}

fn is_on(status: &Value, transport: &str) -> bool {
    let link = &status["link"];
    link["state"] == "SYNCED" && link["transport"] == transport
}

async fn on(device: &DeviceSite, transport: &str) -> Value {
    device.until(transport, |s| is_on(s, transport)).await
}

/// Everything is stored, acked and reported.
async fn settled(device: &DeviceSite, count: usize) {
    let db = device.queue_db();
    let count = i64::try_from(count).unwrap();
    let settled = |s: &Value| {
        s["link"]["state"] == "SYNCED"
            && s["link"]["unacked"] == 0
            && s["outbox"]["waiting"] == 0
            && queue_db::count(&db) >= count
    };
    device.until("settled", settled).await;
}

/// Posts messages one after the other until it is told to stop; gives their ids in order.
async fn produce(
    hub: Arc<HubSite>,
    device: String,
    at_least: usize,
    stop: Arc<AtomicBool>,
) -> Vec<String> {
    let mut ids = Vec::new();
    while ids.len() < at_least || !stop.load(Ordering::SeqCst) {
        ids.push(hub.message(&ids.len().to_string(), &device).await);
        sleep(PACE).await;
    }
    ids
}

/// Each message is in the queue once and in order, and the hub was told of each once.
async fn assert_all_once(hub: &HubSite, device: &DeviceSite, ids: &[String]) {
    let rows = queue_db::messages(&device.queue_db());
    let queued: Vec<_> = rows.iter().map(|r| r.id.as_str()).collect();
    let posted: Vec<_> = ids.iter().map(String::as_str).collect();
    assert_eq!(queued, posted, "once each, in order");
    assert!(rows.windows(2).all(|w| w[0].seq < w[1].seq));
    for id in ids {
        let item = hub.get(&format!("/messages/{id}")).await.ok(200);
        assert_eq!(stages(&item), ["accepted", "on_device", "held"], "{item}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_flows_once_and_in_order_while_the_link_moves_to_polls_and_back() {
    let mut hub = HubSite::start().await;
    let (edge, mut device) = behind_an_edge(&mut hub).await;
    let hub = Arc::new(hub);
    device.run().await;
    let first = on(&device, "websocket").await;
    assert_eq!(first["link"]["fallback_cause"], Value::Null);

    let stop = Arc::new(AtomicBool::new(false));
    let name = device.name.clone();
    let producer = tokio::spawn(produce(Arc::clone(&hub), name, 500, Arc::clone(&stop)));
    let mut generation = first["link"]["generation"].as_u64().unwrap();
    for status in [403, 426, 200] {
        edge.upgrades(Upgrades::Answered(status));
        edge.cut();
        let polls = on(&device, "long_poll").await;
        let cause = polls["link"]["fallback_cause"].as_str().unwrap();
        assert!(cause.contains(&status.to_string()), "{cause}");
        let newer = polls["link"]["generation"].as_u64().unwrap();
        assert!(newer > generation);
        edge.upgrades(Upgrades::Through);
        let socket = on(&device, "websocket").await;
        assert_eq!(socket["link"]["fallback_cause"], Value::Null);
        generation = socket["link"]["generation"].as_u64().unwrap();
        assert!(generation > newer);
    }
    // And once more: the last of it goes over polls.
    edge.upgrades(Upgrades::Answered(403));
    edge.cut();
    on(&device, "long_poll").await;
    stop.store(true, Ordering::SeqCst);
    let ids = timeout(PATIENCE, producer).await.unwrap().unwrap();
    assert!(ids.len() >= 500);
    assert!(edge.answered() >= 8);
    settled(&device, ids.len()).await;
    assert!(device.terminate().await.success());
    assert_all_once(&hub, &device, &ids).await;
}

/// Loses acks of a hundred envelopes, then cuts; nothing may come twice, also not over a restart.
async fn acks_are_lost(
    hub: &HubSite,
    edge: &EdgeProxy,
    device: &mut DeviceSite,
    acks: Acks,
    ids: &mut Vec<String>,
) {
    let before = edge.lost();
    edge.acks(acks);
    for _ in 0..100 {
        ids.push(hub.message("x", &device.name).await);
    }
    let db = device.queue_db();
    let all = i64::try_from(ids.len()).unwrap();
    device
        .until("queued", |_| queue_db::count(&db) >= all)
        .await;
    device.until("lost", |_| edge.lost() > before).await;
    edge.acks(Acks::Pass);
    edge.cut();
    settled(device, ids.len()).await;
    device.kill().await;
    device.run().await;
    settled(device, ids.len()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_envelopes_whose_acks_are_lost_are_queued_once_on_either_transport() {
    let mut hub = HubSite::start().await;
    let (edge, mut device) = behind_an_edge(&mut hub).await;
    device.run().await;
    let mut ids = Vec::new();
    on(&device, "websocket").await;
    acks_are_lost(&hub, &edge, &mut device, Acks::Lost, &mut ids).await;
    edge.upgrades(Upgrades::Answered(403));
    edge.cut();
    for acks in [Acks::Lost, Acks::Unanswered] {
        on(&device, "long_poll").await;
        acks_are_lost(&hub, &edge, &mut device, acks, &mut ids).await;
    }
    on(&device, "long_poll").await;
    assert!(device.terminate().await.success());
    assert_all_once(&hub, &device, &ids).await;
}

/// What becomes of polls that wait once the backlog is done.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    /// Nothing ever.
    Hang,
    /// An edge ends them after a while.
    CutOff(StatusCode),
    /// An edge answers every second one.
    Flaky(StatusCode),
}

/// A hub of calls only.
struct Calls {
    fate: Fate,
    asked: AtomicUsize,
    waits: mpsc::UnboundedSender<u64>,
}

async fn answer(
    State(calls): State<Arc<Calls>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, StatusCode> {
    let query = query.unwrap();
    let (_, wait) = query.split_once("wait_s=").unwrap();
    let wait: u64 = wait.parse().unwrap();
    calls.waits.send(wait).unwrap();
    let epoch = uuid::Uuid::from_u128(0xE);
    let nothing =
        json!({"epoch": epoch, "generation": 1, "envelopes": [], "synced": 0, "more": false});
    match (wait, calls.fate) {
        (0 | 1, _) => Ok(Json(nothing)),
        (_, Fate::Hang) => std::future::pending().await,
        (_, Fate::CutOff(status)) => {
            sleep(Duration::from_millis(2_100)).await;
            Err(status)
        }
        (_, Fate::Flaky(status)) => match calls.asked.fetch_add(1, Ordering::SeqCst) % 2 {
            0 => Err(status),
            _ => Ok(Json(nothing)),
        },
    }
}

/// Serves [`Calls`]; the waits of its polls, and a folder with an enrolled device.
async fn calls(fate: Fate, heartbeat_s: u64) -> (tempfile::TempDir, mpsc::UnboundedReceiver<u64>) {
    let (waits, seen) = mpsc::unbounded_channel();
    let opened = json!({
        "epoch": uuid::Uuid::from_u128(0xE), "head": 0, "resume": "reset", "generation": 1, "now": 1,
        "heartbeat_s": heartbeat_s, "window": 16, "max_frame_bytes": 1 << 20, "auth_expires_in_s": 900, "report_n": 0,
    });
    let silent = fate == Fate::Hang;
    let acked = move || async move {
        if silent {
            std::future::pending::<()>().await;
        }
        Json(json!({"acked": 0, "report_n": 0}))
    };
    let app = Router::new()
        .route("/connect", get(|| async { StatusCode::FORBIDDEN }))
        .route("/poll/open", post(|| async move { Json(opened) }))
        .route("/poll", get(answer))
        .route("/poll/ack", post(acked))
        .with_state(Arc::new(Calls {
            fate,
            asked: AtomicUsize::new(0),
            waits,
        }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let dir = tempfile::tempdir().unwrap();
    Credentials::key(dir.path()).unwrap();
    let enrolment = Enrolment {
        hub: format!("http://{address}").parse().unwrap(),
        hub_id: "fake".into(),
        device: "laptop".parse().unwrap(),
        account: "default".parse().unwrap(),
    };
    Credentials::save(dir.path(), &enrolment).unwrap();
    (dir, seen)
}

#[tokio::test]
async fn a_poll_that_hangs_is_noticed_like_a_silent_hub() {
    let (dir, _waits) = calls(Fate::Hang, 2).await;
    let config = ClientConfig {
        heartbeat_margin_ms: 100,
        ..ClientConfig::default()
    };
    let device = Device::with(dir.path(), None, config).await;
    device
        .until(|s| s.is_synced() && s.transport == Some("long_poll"))
        .await;
    let lost = device.until(|s| s.state == "RECONNECTING").await;
    assert_eq!(lost.cause.as_deref(), Some("the hub went silent"));
    device.stop().await;
}

#[tokio::test]
async fn where_polls_may_not_wait_the_daemon_asks_at_intervals_and_stays_in_sync() {
    let (dir, mut waits) = calls(Fate::CutOff(StatusCode::GATEWAY_TIMEOUT), 20).await;
    let device = Device::start(dir.path()).await;
    device
        .until(|s| s.is_synced() && s.transport == Some("long_poll"))
        .await;
    let mut seen = BTreeSet::new();
    let mut asked = 0;
    while asked < 3 {
        let wait = timeout(PATIENCE, waits.recv()).await.unwrap().unwrap();
        asked += u32::from(wait == 0);
        seen.insert(wait);
    }
    assert_eq!(seen, [0, 1, 20].into(), "it looked, it waited, it asked");
    let told = device.until(|s| s.cause.is_some()).await;
    assert!(told.is_synced());
    let cause = told.cause.unwrap();
    assert!(cause.starts_with("calls that wait are cut off"), "{cause}");
    device.stop().await;
}

#[tokio::test]
async fn calls_that_are_lost_again_and_again_are_told_while_the_link_holds() {
    let (dir, _waits) = calls(Fate::Flaky(StatusCode::BAD_GATEWAY), 20).await;
    let device = Device::start(dir.path()).await;
    let told = device.until(|s| s.is_synced() && s.cause.is_some()).await;
    assert_eq!(told.transport, Some("long_poll"));
    let cause = told.cause.unwrap();
    assert!(
        cause.contains("calls were lost of late") && cause.contains("502"),
        "{cause}"
    );
    device.stop().await;
}

/// What the daemon wrote.
fn daemon_log(device: &DeviceSite) -> String {
    let files = std::fs::read_dir(device.machine.logs()).unwrap();
    let files = files.map(|f| f.unwrap().path());
    let of_daemon = |f: &std::path::PathBuf| f.to_string_lossy().ends_with("daemon.err");
    let texts = files
        .filter(of_daemon)
        .map(|f| std::fs::read_to_string(f).unwrap());
    texts.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn on_polls_a_restart_of_the_hub_is_a_planned_one_and_a_revocation_is_final() {
    let mut hub = HubSite::start().await;
    let (edge, mut device) = behind_an_edge(&mut hub).await;
    edge.upgrades(Upgrades::Answered(403));
    device.run().await;
    let mut before = on(&device, "long_poll").await;
    // Whether the device waits for an answer or is between two calls.
    let mut ids = Vec::new();
    for restarts in 1..=3 {
        ids.push(hub.message("x", &device.name).await);
        if restarts > 1 {
            settled(&device, restarts).await;
        }
        assert!(hub.terminate().await.success());
        device
            .until("it heard", |s| s["link"]["state"] != "SYNCED")
            .await;
        hub.serve().await;
        let newer = |s: &Value| {
            is_on(s, "long_poll")
                && s["link"]["generation"].as_u64() > before["link"]["generation"].as_u64()
        };
        before = device.until("back", newer).await;
        let planned = daemon_log(&device)
            .matches("closed with 1012: retry_after_ms=")
            .count();
        assert_eq!(planned, restarts, "each is told once");
    }
    // A hub that was killed forgot the session: it is opened anew.
    hub.kill().await;
    hub.serve().await;
    on(&device, "long_poll").await;
    settled(&device, ids.len()).await;
    assert_all_once(&hub, &device, &ids).await;
    let path = format!("/devices/{}", device.name);
    let revoke = hub.request(reqwest::Method::DELETE, &path);
    assert_eq!(revoke.send().await.unwrap().status(), 204);
    let revoked = device
        .until("revoked", |s| s["link"]["code"].is_string())
        .await;
    assert_eq!(revoked["link"]["code"], "device_revoked");
    assert_eq!(revoked["link"]["state"], "DISCONNECTED");
}
