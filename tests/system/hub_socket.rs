//! The hub's side of the link, seen by a device that speaks the protocol by hand.

use serde_json::{Value, json};

use crate::support::hub_bed::{DEADLINE, HubBed};
use crate::support::ws_client::{WsClient, hello, upgrade};
use remote_collab::wire::SUBPROTOCOL;

fn texts(rows: &[Value]) -> Vec<String> {
    let content = |r: &Value| {
        r["envelope"]["body"]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    rows.iter().map(content).collect()
}

async fn post(bed: &HubBed, text: &str) -> Value {
    bed.post("/messages", &json!({"content": text}))
        .await
        .ok(202)
}

fn stages(v: &Value) -> Vec<&str> {
    let all = v["receipts"].as_array().unwrap();
    all.iter().map(|r| r["stage"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_comes_in_order_then_what_is_posted() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    for text in ["1", "2", "3"] {
        post(&bed, text).await;
    }
    let (mut ws, welcome, rows) = WsClient::synced(bed.hub.addr, &device, 1).await;
    assert_eq!(texts(&rows), ["1", "2", "3"]);
    assert_eq!(
        (&welcome["resume"], &welcome["head"]),
        (&json!("reset"), &json!(3))
    );
    post(&bed, "4").await;
    let row = ws.expect("deliver").await;
    assert_eq!(texts(&[row]), ["4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_makes_a_receipt_and_moves_only_the_cursor() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut ws, welcome, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let task = bed.post("/tasks", &json!({"task": "x"})).await.ok(202);
    let url = task["url"].as_str().unwrap();
    let seq = ws.expect("deliver").await["seq"].as_u64().unwrap();
    ws.ack(seq).await;
    let v = bed.becomes(url, |v| v["status"] == "delivered").await;
    assert_eq!(stages(&v), ["accepted", "on_device"]);
    drop(ws);
    // A device that stands at its cursor gets nothing again; one that lost its queue gets it.
    let mut ws = upgrade(bed.hub.addr, Some(&device.jwt()), Some(SUBPROTOCOL))
        .await
        .unwrap();
    let last = json!({"epoch": welcome["epoch"], "seq": seq});
    ws.send(&hello(1, &last)).await;
    assert_eq!(ws.expect("welcome").await["resume"], "continue");
    assert!(ws.until_synced().await.is_empty());
    drop(ws);
    let (_ws, _, rows) = WsClient::synced(bed.hub.addr, &device, 1).await;
    assert_eq!(rows.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_make_the_task_and_are_taken_once() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let task = bed.post("/tasks", &json!({"task": "x"})).await.ok(202);
    let (id, url) = (&task["id"], task["url"].as_str().unwrap());
    let seq = ws.expect("deliver").await["seq"].as_u64().unwrap();
    ws.ack(seq).await;
    let report = |n: u64, kind: &str, id: &Value, body: Value| json!({"type": "report", "n": n, "id": id, "kind": kind, "at": 5, "body": body});
    ws.send(&report(1, "status", id, json!({"status": "running"})))
        .await;
    ws.send(&report(
        2,
        "status",
        &json!(uuid::Uuid::from_u128(7)),
        json!({"status": "running"}),
    ))
    .await;
    ws.send(&report(3, "hologram", id, json!(1))).await;
    ws.send(&report(
        4,
        "result",
        id,
        json!({"text": "done", "is_error": false}),
    ))
    .await;
    ws.send(&report(5, "status", id, json!({"status": "completed"})))
        .await;
    let (mut done, mut rejected) = (0, Vec::new());
    while done < 5 {
        let ack = ws.expect("report_ack").await;
        done = ack["n"].as_u64().unwrap();
        rejected.extend(ack["rejected"].as_array().into_iter().flatten().cloned());
    }
    let codes: Vec<_> = rejected
        .iter()
        .map(|r| (r["n"].clone(), r["code"].clone()))
        .collect();
    assert_eq!(
        codes,
        [
            (json!(2), json!("unknown_message")),
            (json!(3), json!("invalid_field"))
        ]
    );
    let v = bed.becomes(url, |v| stages(v).contains(&"on_device")).await;
    assert_eq!(
        (&v["status"], &v["result"]["text"]),
        (&json!("completed"), &json!("done"))
    );
    assert_eq!(stages(&v), ["accepted", "on_device", "done"]);

    // The same outbox goes on after its last report; the envelope of a finished task is not sent again.
    drop(ws);
    let bed = bed.restart().await;
    let (mut ws, welcome, rows) = WsClient::synced(bed.hub.addr, &device, 1).await;
    assert_eq!((&welcome["report_n"], rows.len()), (&json!(5), 0));
    ws.send(&report(5, "status", id, json!({"status": "failed"})))
        .await;
    ws.expect("report_ack").await;
    ws.send(&report(6, "status", id, json!({"status": "failed"})))
        .await;
    ws.expect("report_ack").await;
    assert_eq!(bed.get(url).await.ok(200)["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_projects_are_kept_as_reported() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let session = uuid::Uuid::from_u128(0xabc);
    ws.send(&json!({"type": "report", "n": 1, "id": session, "kind": "session", "at": 5,
        "body": {"session_id": session, "lineage": [uuid::Uuid::from_u128(0x5e55)], "activity": "busy", "active_at": 9}}))
        .await;
    ws.send(
        &json!({"type": "report", "n": 2, "id": session, "kind": "project", "at": 5,
        "body": {"name": "blog", "path": "/blog"}}),
    )
    .await;
    while ws.expect("report_ack").await["n"] != 2 {}
    // Mail for the earlier id is taken, for its successor's device.
    let body = json!({"content": "x", "session_id": uuid::Uuid::from_u128(0x5e55)});
    bed.post("/messages", &body).await.ok(202);
    bed.post("/messages", &json!({"content": "x", "project": "blog"}))
        .await
        .ok(202);
    // A hello without them closes and disables.
    drop(ws);
    let mut ws = upgrade(bed.hub.addr, Some(&device.jwt()), Some(SUBPROTOCOL))
        .await
        .unwrap();
    let mut frame = hello(1, &Value::Null);
    frame["projects"] = json!([]);
    frame["sessions"] = json!([]);
    ws.send(&frame).await;
    ws.expect("welcome").await;
    bed.post("/messages", &json!({"content": "x", "project": "blog"}))
        .await
        .refused(404, "unknown_target");
    let v = bed.get("/sessions").await.ok(200);
    assert!(
        v["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .all(|s| s["activity"] == "closed")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_instance_takes_over_and_a_copy_of_the_key_is_refused() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut first, one, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let mut copy = WsClient::open(bed.hub.addr, &device, 2).await;
    let (code, close) = copy.end().await;
    assert_eq!((code.as_str(), close), ("key_held_elsewhere", 4409));
    let (mut second, two, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    assert!(two["generation"].as_u64() > one["generation"].as_u64());
    assert_eq!(first.end().await, ("superseded".to_owned(), 4409));
    post(&bed, "for the newer one").await;
    second.expect("deliver").await;
    assert_eq!(bed.hub.devices_online(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_knows_more_than_the_store_gets_a_new_epoch() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    post(&bed, "1").await;
    let (ws, welcome, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    drop(ws);
    let mut ws = upgrade(bed.hub.addr, Some(&device.jwt()), Some(SUBPROTOCOL))
        .await
        .unwrap();
    let beyond = json!({"epoch": welcome["epoch"], "seq": 99});
    ws.send(&hello(1, &beyond)).await;
    let anew = ws.expect("welcome").await;
    assert_eq!(anew["resume"], "reset");
    assert_ne!(anew["epoch"], welcome["epoch"]);
    assert_eq!(texts(&ws.until_synced().await), ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_frames_end_the_connection_with_a_code_and_harm_nothing() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    post(&bed, "kept").await;
    let ack = json!({"type": "ack", "seq": 1}).to_string();
    let first_frames: Vec<(String, &str, u16)> = vec![
        ("{".into(), "malformed_json", 4400),
        ("[]".into(), "malformed_json", 4400),
        (ack.clone(), "protocol_error", 4400),
        (
            format!("\"{}\"", "x".repeat((1 << 20) + 10)),
            "too_large",
            4413,
        ),
    ];
    for (text, code, close) in first_frames {
        let mut ws = upgrade(bed.hub.addr, Some(&device.jwt()), Some(SUBPROTOCOL))
            .await
            .unwrap();
        ws.send_text(text).await;
        assert_eq!(ws.end().await, (code.to_owned(), close));
    }
    let later: Vec<(Value, &str, u16)> = vec![
        (json!({"type": "ack", "seq": 77}), "protocol_error", 4400),
        (hello(1, &Value::Null), "protocol_error", 4400),
        (json!({"type": "auth", "token": "x"}), "token_invalid", 4401),
        (json!({"type": "ack", "seq": "one"}), "malformed_json", 4400),
    ];
    for (frame, code, close) in later {
        let (mut ws, _, rows) = WsClient::synced(bed.hub.addr, &device, 1).await;
        assert_eq!(texts(&rows), ["kept"]);
        ws.send(&frame).await;
        assert_eq!(ws.end().await, (code.to_owned(), close), "{frame}");
    }
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    ws.send(&json!({"type": "teleport", "x": 1})).await;
    ws.send(&json!({"type": "capacity", "free": 1, "later": true}))
        .await;
    ws.send(&json!({"type": "auth", "token": device.jwt()}))
        .await;
    post(&bed, "still here").await;
    ws.expect("deliver").await;
    ws.send(&json!({"type": "bye", "reason": "test"})).await;
    assert_eq!(ws.end().await.1, 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_beyond_the_library_limit_is_refused_too() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    ws.send_text("x".repeat(3 << 20)).await;
    assert_eq!(ws.end().await, ("too_large".to_owned(), 4413));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_hub_tells_its_devices_when_to_come_back() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let stop = tokio::spawn(bed.hub.shutdown());
    let frame = ws.frame().await.unwrap();
    assert_eq!(
        (&frame["type"], &frame["code"]),
        (&json!("error"), &json!("going_away"))
    );
    assert!(frame["retry_after_s"].as_u64().unwrap() >= 1);
    assert_eq!(ws.frame().await, Err(1012));
    tokio::time::timeout(DEADLINE, stop).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_posts_at_a_slow_device_come_once_and_in_order() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    // More than the window and the push queue hold, before anything is read or acked.
    let mut posts = tokio::task::JoinSet::new();
    for n in 0..1000 {
        let body = json!({"content": format!("{n}")});
        let request = bed
            .request(reqwest::Method::POST, "/messages")
            .bearer_auth(&bed.token);
        posts.spawn(crate::support::hub_bed::read(request.json(&body)));
        if posts.len() >= 64 {
            assert_eq!(posts.join_next().await.unwrap().unwrap().status, 202);
        }
    }
    while let Some(got) = posts.join_next().await {
        assert_eq!(got.unwrap().status, 202);
    }
    let (mut last, mut ids) = (0, std::collections::BTreeSet::new());
    while ids.len() < 1000 {
        let row = ws.expect("deliver").await;
        let seq = row["seq"].as_u64().unwrap();
        assert!(seq > last);
        last = seq;
        assert!(ids.insert(row["envelope"]["id"].as_str().unwrap().to_owned()));
        if ids.len() % 50 == 0 {
            ws.ack(seq).await;
        }
    }
}
