//! What goes wrong between a producer and the hub: every call repeated, and texts at the edge of what a frame holds.

use remote_collab::domain::limits::{MAX_ENVELOPE_BYTES, MAX_TASK_BYTES};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::hub_bed::{Got, HubBed, read};
use crate::support::ws_client::WsClient;

async fn keyed(bed: &HubBed, path: &str, key: &str, body: &Value) -> Got {
    let request = bed.request(Method::POST, path).bearer_auth(&bed.token);
    read(request.header("idempotency-key", key).json(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_that_changes_something_is_done_once_per_key_and_refuses_another_body_under_it()
{
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    drop(ws);
    let id = |v: &Value| v["id"].as_str().unwrap().to_owned();
    let task = id(&bed.post("/tasks", &json!({"task": "x"})).await.ok(202));
    let session = uuid::Uuid::from_u128(0x5e55);
    let device_id = device.id.as_str();
    for (path, body, other) in [
        (
            "/messages".to_owned(),
            json!({"content": "a"}),
            json!({"content": "b"}),
        ),
        (
            "/tasks".to_owned(),
            json!({"task": "a"}),
            json!({"task": "a", "priority": "low"}),
        ),
        (
            format!("/memory/{session}"),
            json!({"summary": "a"}),
            json!({"summary": "b"}),
        ),
        (
            format!("/tasks/{task}/cancel"),
            json!({}),
            // It takes no body but this one.
            Value::Null,
        ),
        (
            format!("/tasks/{task}/retry"),
            json!({}),
            json!({"force": true}),
        ),
        (
            "/projects/shop/approve".to_owned(),
            json!({}),
            json!({"device": device_id}),
        ),
        (
            "/projects/shop/unapprove".to_owned(),
            json!({}),
            json!({"device": device_id}),
        ),
    ] {
        let key = format!("key of {path}");
        let first = keyed(&bed, &path, &key, &body).await;
        assert!(first.status < 300, "{path}: {first:?}");
        for _ in 0..3 {
            let again = keyed(&bed, &path, &key, &body).await;
            let same = (again.status, &again.body) == (first.status, &first.body);
            assert!(same, "{path}: {first:?} and then {again:?}");
        }
        if other.is_null() {
            continue;
        }
        let got = keyed(&bed, &path, &key, &other).await;
        assert_eq!(
            (got.status, got.code()),
            (409, "idempotency_mismatch"),
            "{path}"
        );
    }
    // Each was in effect once.
    let count = |v: Value, of: &str| v[of].as_array().unwrap().len();
    assert_eq!(count(bed.get("/tasks").await.ok(200), "tasks"), 2);
    assert_eq!(count(bed.get("/messages").await.ok(200), "messages"), 1);
    let shown = bed.get(&format!("/tasks/{task}")).await.ok(200);
    assert_eq!(count(shown.clone(), "attempts"), 2, "one retry: {shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_accepted_up_to_the_last_byte_fits_a_frame_and_one_byte_more_is_refused() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut ws, welcome, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let frame_limit = usize::try_from(welcome["max_frame_bytes"].as_u64().unwrap()).unwrap();
    bed.post("/messages", &json!({"content": "-"}))
        .await
        .ok(202);
    let small = ws.expect("deliver").await;
    ws.ack(small["seq"].as_u64().unwrap()).await;
    let around = small["envelope"].to_string().len() - 1;

    // The same length once encoded, of characters that grow on their way by different measures.
    for (unit, encoded) in [
        ("x", 1),
        ("\"", 2),
        ("\n", 2),
        ("\u{1}", 6),
        ("文", 3),
        ("🦀", 4),
    ] {
        let room = MAX_ENVELOPE_BYTES - around;
        let fits = unit.repeat(room / encoded) + &"x".repeat(room % encoded);
        let mut over = fits.clone();
        over.push('x');
        bed.post("/messages", &json!({"content": over}))
            .await
            .refused(413, "too_large");
        bed.post("/messages", &json!({"content": fits}))
            .await
            .ok(202);
        let frame = ws.expect("deliver").await;
        assert_eq!(frame["envelope"]["body"]["content"], fits);
        assert_eq!(
            frame["envelope"].to_string().len(),
            MAX_ENVELOPE_BYTES,
            "{unit:?}"
        );
        assert!(frame.to_string().len() <= frame_limit);
        ws.ack(frame["seq"].as_u64().unwrap()).await;
    }
    // A task within its own limit that grows beyond an envelope's.
    let grows = "\u{1}".repeat(MAX_TASK_BYTES);
    bed.post("/tasks", &json!({"task": grows}))
        .await
        .refused(413, "too_large");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_no_run_could_read_is_refused_at_every_post_and_the_hub_serves_on() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    // The CLI reads ten megabytes from its standard input and no more.
    let text = "x".repeat((10 << 20) + 1);
    for (path, body) in [
        ("/tasks", json!({"task": text})),
        ("/messages", json!({"content": text})),
        (
            "/tasks",
            json!({"task": "x", "options": {"append_context": text}}),
        ),
        ("/tasks", json!({"task": "x", "metadata": {"note": text}})),
    ] {
        bed.post(path, &body).await.refused(413, "too_large");
    }
    bed.post("/tasks", &json!({"task": "x"})).await.ok(202);
}
