//! Sizes and numbers at their bounds, credentials that change, and devices that do not come back.

use std::time::Duration;

use remote_collab::auth::token::peek_device;
use remote_collab::daemon::credentials::{Credentials, Enrolment};
use remote_collab::domain::{DeviceId, limits};
use remote_collab::wire::{DeviceFrame, Resume};
use serde_json::{Value, json};

use crate::daemon_link::{Device, enrolled};
use crate::support::hub_bed::HubBed;
use crate::support::queue_db;
use crate::support::sites::{DeviceSite, HubSite, stages};
use crate::support::ws_client::WsClient;

#[tokio::test]
async fn the_largest_accepted_envelope_arrives_in_one_frame_and_one_byte_more_is_refused() {
    let bed = HubBed::start().await;
    let device = bed.enrol("laptop").await;
    let (mut ws, ..) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let body = |content: &str| json!({"content": content, "device": device.id});
    bed.post("/messages", &body(""))
        .await
        .refused(400, "invalid_field");
    bed.post("/messages", &body("x")).await.ok(202);
    let first = ws.expect("deliver").await;
    let around = first["envelope"].to_string().len() - 1;
    // A quote is two bytes of JSON: what counts is the encoded size.
    let room = limits::MAX_ENVELOPE_BYTES - around;
    let mut largest = "\"".repeat(room / 2);
    largest.push_str(&"x".repeat(room % 2));
    bed.post("/messages", &body(&format!("{largest}x")))
        .await
        .refused(413, "too_large");
    bed.post("/messages", &body(&largest)).await.ok(202);
    let frame = ws.expect("deliver").await;
    assert_eq!(frame["envelope"]["body"]["content"], *largest);
    let encoded = frame["envelope"].to_string().len();
    assert_eq!(encoded, limits::MAX_ENVELOPE_BYTES);
    assert!(frame.to_string().len() <= limits::MAX_FRAME_BYTES);
}

fn greeting(outbox: u128, next_n: u64) -> Value {
    let mut hello = crate::support::ws_client::hello(1, &Value::Null);
    hello["outbox"] = json!({"instance": uuid::Uuid::from_u128(outbox), "next_n": next_n});
    hello
}

async fn greet(
    bed: &HubBed,
    device: &crate::support::hub_bed::Device,
    hello: &Value,
) -> (WsClient, u64) {
    let jwt = device.jwt();
    let protocol = Some(remote_collab::wire::SUBPROTOCOL);
    let mut ws = crate::support::ws_client::upgrade(bed.hub.addr, Some(&jwt), protocol)
        .await
        .unwrap();
    ws.send(hello).await;
    let welcome = ws.expect("welcome").await;
    ws.until_synced().await;
    (ws, welcome["report_n"].as_u64().unwrap())
}

#[tokio::test]
async fn an_outbox_that_was_lost_begins_at_one_and_one_whose_record_the_hub_lost_goes_on_where_it_is()
 {
    let bed = HubBed::start().await;
    let device = bed.enrol("laptop").await;
    let note = |n: u64| json!({"type": "report", "n": n, "id": uuid::Uuid::from_u128(1), "kind": "note", "at": 1, "body": n});
    let (mut ws, report_n) = greet(&bed, &device, &greeting(7, 1)).await;
    assert_eq!(report_n, 0);
    for n in 1..=3 {
        ws.send(&note(n)).await;
    }
    while ws.expect("report_ack").await["n"] != 3 {}
    drop(ws);
    // The same outbox is told where it stands, over a restart of the hub, too.
    let bed = bed.restart().await;
    let (ws, report_n) = greet(&bed, &device, &greeting(7, 4)).await;
    assert_eq!(report_n, 3);
    drop(ws);
    // The device lost it: a new one counts from one, and the old numbers mean nothing.
    let (mut ws, report_n) = greet(&bed, &device, &greeting(8, 1)).await;
    assert_eq!(report_n, 0);
    ws.send(&note(1)).await;
    assert_eq!(ws.expect("report_ack").await["n"], 1);
    drop(ws);
    // The hub knows nothing of this one any more: what is confirmed long ago is not asked for, the rest is taken.
    let (mut ws, report_n) = greet(&bed, &device, &greeting(7, 6)).await;
    assert_eq!(report_n, 0);
    ws.send(&note(4)).await;
    ws.send(&json!({"type": "report", "n": 5, "id": uuid::Uuid::from_u128(1), "kind": "receipt", "at": 1, "body": 5}))
        .await;
    ws.send(&note(6)).await;
    let mut rejected = Vec::new();
    loop {
        let ack = ws.expect("report_ack").await;
        rejected.extend(ack["rejected"].as_array().cloned().unwrap_or_default());
        if ack["n"] == 6 {
            break;
        }
    }
    assert_eq!(
        rejected,
        [json!({"n": 5, "code": "invalid_field"})],
        "and it blocks nothing"
    );
}

#[tokio::test]
async fn a_credential_is_renewed_in_place_by_what_the_files_say_then() {
    let (mut hub, dir) = enrolled().await;
    let device = Device::start(dir.path()).await;
    let mut connection = hub.accept().await;
    connection.hello().await;
    connection
        .welcome_with(|w| {
            w.resume = Resume::Reset;
            w.auth_expires_in_s = 3;
        })
        .await;
    connection.synced(0).await;
    let renewed = async |connection: &mut crate::fake_hub::Connection| loop {
        if let DeviceFrame::Auth { token } = connection.recv().await {
            return token;
        }
    };
    let first = renewed(&mut connection).await;
    let before = Credentials::load(dir.path()).unwrap().unwrap().enrolment;
    assert_eq!(peek_device(&first), Some(before.device.clone()));
    let other = Enrolment {
        device: DeviceId::new("renamed").unwrap(),
        ..before
    };
    Credentials::save(dir.path(), &other).unwrap();
    let mut second = renewed(&mut connection).await;
    if peek_device(&second) != Some(other.device.clone()) {
        // Signed just before the file was written.
        second = renewed(&mut connection).await;
    }
    assert_ne!(first, second);
    assert_eq!(peek_device(&second), Some(other.device));
    assert_eq!(hub.tokens().len(), 1, "all on one connection");
    device.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_device_stops_keeps_its_queue_and_is_back_after_a_login() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run().await;
    device.synced().await;
    let id = hub.message("before", &device.name).await;
    hub.becomes(&format!("/messages/{id}"), |m| {
        stages(m).contains(&"on_device")
    })
    .await;
    hub.machine
        .run(&["hub", "devices", "revoke", &device.name], "")
        .await
        .ok();
    let status = device
        .until("the refusal", |s| s["link"]["code"] == "device_revoked")
        .await;
    assert_eq!(status["link"]["state"], "DISCONNECTED");
    assert_eq!(status["link"]["retry_at"], Value::Null);
    let hint = status["link"]["hint"].as_str().unwrap();
    assert!(hint.contains("remote-collab login"), "{hint}");
    assert_eq!(queue_db::count(&device.queue_db()), 1);

    let join = hub.join_token().await;
    let args = [
        "login",
        &hub.url(),
        "--token-stdin",
        "--name",
        "laptop",
        "--json",
    ];
    let said = device.machine.run(&args, &join).await.ok();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_ne!(said["device"], *device.name, "a new key is a new device");
    device.synced().await;
    hub.message("after", said["device"].as_str().unwrap()).await;
    device
        .until("the mail", |_| queue_db::count(&device.queue_db()) == 2)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mail_of_a_revoked_device_ends_in_bounded_time_also_what_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let bed = HubBed::start_in(dir, |c| {
        c.lifecycle.sweep_every = Duration::from_millis(50);
        c.lifecycle.revoked_grace = Duration::ZERO;
    })
    .await;
    let device = bed.enrol("laptop").await;
    let (mut ws, ..) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let post = async |path: &str, body: Value| {
        let posted = bed.post(path, &body).await.ok(202);
        format!("{path}/{}", posted["id"].as_str().unwrap())
    };
    let had = post("/messages", json!({"content": "had", "device": device.id})).await;
    let running = post("/tasks", json!({"task": "running", "device": device.id})).await;
    ws.expect("deliver").await;
    let task = ws.expect("deliver").await;
    ws.ack(task["seq"].as_u64().unwrap()).await;
    ws.send(&json!({"type": "report", "n": 1, "id": task["envelope"]["id"], "kind": "status", "at": 1, "body": {"status": "running"}}))
        .await;
    ws.expect("report_ack").await;
    drop(ws);
    let waits = post("/tasks", json!({"task": "waits", "device": device.id})).await;
    let revoked = bed
        .send(
            bed.request(reqwest::Method::DELETE, &format!("/devices/{}", device.id))
                .bearer_auth(&bed.token),
        )
        .await;
    assert!((200..300).contains(&revoked.status), "{revoked:?}");
    let ended = |v: &Value| stages(v).contains(&"undeliverable");
    bed.becomes(&had, ended).await;
    let v = bed.becomes(&waits, |v| v["status"] == "rejected").await;
    assert_eq!(v["reason"], "device_revoked", "{v}");
    let v = bed
        .becomes(&running, |v| v["status"] == "interrupted")
        .await;
    assert_eq!(v["reason"], "device_revoked", "{v}");
}

#[tokio::test]
async fn the_window_counts_bytes_too_and_what_does_not_fit_waits_for_an_ack() {
    let dir = tempfile::tempdir().unwrap();
    let bed = HubBed::start_in(dir, |c| c.link.window_bytes = 100_000).await;
    let device = bed.enrol("laptop").await;
    let (mut ws, ..) = WsClient::synced(bed.hub.addr, &device, 1).await;
    for n in 0..3 {
        let body = json!({"content": format!("{n}{}", "x".repeat(60_000)), "device": device.id});
        bed.post("/messages", &body).await.ok(202);
    }
    for n in 0..3_u64 {
        let frame = ws.expect("deliver").await;
        let content = frame["envelope"]["body"]["content"].as_str().unwrap();
        assert!(content.starts_with(&n.to_string()));
        // Nothing else is on its way: what is asked now is answered next.
        let id = uuid::Uuid::from_u128(1);
        ws.send(
            &json!({"type": "report", "n": n + 1, "id": id, "kind": "note", "at": 1, "body": ""}),
        )
        .await;
        assert_eq!(ws.expect("report_ack").await["n"], n + 1);
        ws.ack(frame["seq"].as_u64().unwrap()).await;
    }
}
