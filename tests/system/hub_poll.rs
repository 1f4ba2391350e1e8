//! The hub's side of the fallback, seen by a device that makes every call by hand.

use remote_collab::core::server::ServerConfig;
use remote_collab::domain::Trust;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::hub_bed::{DEADLINE, Got, HubBed, read};
use crate::support::poll_client::{PollClient, open, texts};
use crate::support::ws_client::{WsClient, hello};

async fn post(bed: &HubBed, text: &str) -> Value {
    let body = json!({ "content": text });
    bed.post("/messages", &body).await.ok(202)
}

fn report(n: u64, id: &Value, stage: &str) -> Value {
    json!({"n": n, "id": id, "kind": "receipt", "at": 1, "body": {"stage": stage, "at": 1}})
}

/// A poll that has arrived and waits: it ended the wait of another.
async fn waiting(client: &PollClient<'_>, after: u64) -> JoinHandle<Got> {
    let polls = [(); 2].map(|()| tokio::spawn(read(client.request(after, 20))));
    loop {
        // Whichever came first is answered when the other arrives.
        for (poll, other) in [(0, 1), (1, 0)] {
            if polls[poll].is_finished() {
                let [a, b] = polls;
                return if other == 0 { a } else { b };
            }
        }
        tokio::task::yield_now().await;
    }
}

fn stages(v: &Value) -> Vec<&str> {
    let all = v["receipts"].as_array().unwrap();
    all.iter().map(|r| r["stage"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_opens_as_a_socket_does_and_gives_the_backlog_in_order() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    for text in ["1", "2", "3"] {
        post(&bed, text).await;
    }
    let client = PollClient::open(&bed, &device, 1).await;
    let mut fields: Vec<_> = client.welcome.as_object().unwrap().keys().collect();
    let (mut ws, welcome, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let mut frame: Vec<_> = welcome.as_object().unwrap().keys().collect();
    frame.retain(|k| *k != "type");
    fields.sort();
    frame.sort();
    assert_eq!(fields, frame, "the same fields as the frame");
    ws.send(&json!({"type": "bye", "reason": "test"})).await;
    ws.end().await;

    let client = PollClient::open(&bed, &device, 1).await;
    let polled = client.poll(0, 20).await.ok(200);
    assert_eq!(texts(&polled), ["1", "2", "3"]);
    assert_eq!(polled["synced"], 3);
    assert_eq!(polled["epoch"], client.welcome["epoch"]);
    assert_eq!(polled["more"], false);
    // An answer that was lost is given again, from wherever the device stands.
    assert_eq!(texts(&client.poll(1, 20).await.ok(200)), ["2", "3"]);
    assert!(texts(&client.poll(3, 0).await.ok(200)).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_poll_is_answered_by_the_next_message_and_an_empty_mailbox_by_synced() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let client = PollClient::open(&bed, &device, 1).await;
    let polled = client.poll(0, 20).await.ok(200);
    assert_eq!((&polled["synced"], texts(&polled).len()), (&json!(0), 0));
    let waiting = tokio::spawn(read(client.request(0, 20)));
    post(&bed, "now").await;
    let polled = timeout(DEADLINE, waiting).await.unwrap().unwrap().ok(200);
    assert_eq!(texts(&polled), ["now"]);
    // A newer poll ends an older one's wait.
    let older = tokio::spawn(read(client.request(1, 20)));
    loop {
        let newer = client.poll(1, 0).await.ok(200);
        assert!(texts(&newer).is_empty());
        if older.is_finished() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(texts(&older.await.unwrap().ok(200)).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_and_its_reports_are_answered_after_the_commit_and_a_repetition_changes_nothing() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let posted = post(&bed, "x").await;
    let client = PollClient::open(&bed, &device, 1).await;
    client.poll(0, 20).await.ok(200);
    let mut body = client.body(1);
    body["capacity"] = json!(7);
    body["reports"] = json!([
        report(1, &posted["id"], "seen"),
        {"n": 2, "id": posted["id"], "kind": "status", "at": 1, "body": [1]},
        report(3, &posted["id"], "done"),
    ]);
    let acked = client.call(&body).await.ok(200);
    let expected =
        json!({"acked": 1, "report_n": 3, "rejected": [{"n": 2, "code": "invalid_field"}]});
    assert_eq!(acked, expected);
    let item = bed.get(posted["url"].as_str().unwrap()).await.ok(200);
    assert_eq!(stages(&item), ["accepted", "on_device", "seen", "done"]);
    let devices = bed.get("/devices").await.ok(200);
    assert_eq!(devices["devices"][0]["capacity"], 7);
    // The answer was lost: the device says it again.
    assert_eq!(client.call(&body).await.ok(200), expected);
    assert_eq!(bed.get(posted["url"].as_str().unwrap()).await.ok(200), item);
    // The terminal receipt retired it, the cursor is past it: nothing comes again.
    let last = json!({"epoch": client.welcome["epoch"], "seq": 1});
    let again = open(&bed, &device, 1, &last).await.ok(200);
    assert_eq!(
        (&again["resume"], &again["report_n"]),
        (&json!("continue"), &json!(3))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unacked_envelopes_never_exceed_the_window() {
    let bed = HubBed::start_in(tempfile::tempdir().unwrap(), |c| c.link.window = 4).await;
    let device = bed.enrol("d").await;
    for n in 0..10 {
        post(&bed, &n.to_string()).await;
    }
    let client = PollClient::open(&bed, &device, 1).await;
    let mut got = Vec::new();
    let mut after = 0;
    while got.len() < 4 {
        let polled = client.poll(after, 20).await.ok(200);
        got.extend(texts(&polled));
        after = got.len() as u64;
    }
    assert_eq!(got.len(), 4);
    assert!(texts(&client.poll(4, 0).await.ok(200)).is_empty());
    client.ack(4).await.ok(200);
    while got.len() < 8 {
        got.extend(texts(&client.poll(got.len() as u64, 20).await.ok(200)));
    }
    client.ack(8).await.ok(200);
    while got.len() < 10 {
        got.extend(texts(&client.poll(got.len() as u64, 20).await.ok(200)));
    }
    let all: Vec<_> = (0..10).map(|n| n.to_string()).collect();
    assert_eq!(got, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_fences_the_session_and_a_session_fences_the_socket() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let client = PollClient::open(&bed, &device, 1).await;
    client.poll(0, 20).await.ok(200);
    let waiting = tokio::spawn(read(client.request(0, 20)));
    let (mut ws, welcome, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    assert!(welcome["generation"].as_u64().unwrap() > client.generation());
    let ended = timeout(DEADLINE, waiting).await.unwrap().unwrap();
    ended.refused(409, "superseded");
    client.poll(0, 20).await.refused(409, "superseded");
    client.ack(0).await.refused(409, "superseded");
    let newer = PollClient::open(&bed, &device, 1).await;
    assert_eq!(ws.end().await, ("superseded".to_owned(), 4409));
    newer.poll(0, 20).await.ok(200);
    // A session fences a session, too.
    let newest = PollClient::open(&bed, &device, 1).await;
    newer.ack(0).await.refused(409, "superseded");
    newest.ack(0).await.ok(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_the_key_is_refused_while_the_session_lives_and_admitted_after_its_bye() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let client = PollClient::open(&bed, &device, 1).await;
    let copy = open(&bed, &device, 2, &Value::Null).await;
    copy.refused(409, "key_held_elsewhere");
    let mut ws = WsClient::open(bed.hub.addr, &device, 2).await;
    assert_eq!(ws.end().await, ("key_held_elsewhere".to_owned(), 4409));
    client.poll(0, 0).await.ok(200);
    let mut bye = client.body(0);
    bye["bye"] = json!("shutdown");
    client.call(&bye).await.ok(200);
    let copy = PollClient::open(&bed, &device, 2).await;
    // The copy's own socket is refused the other way round.
    let mut ws = WsClient::open(bed.hub.addr, &device, 1).await;
    assert_eq!(ws.end().await, ("key_held_elsewhere".to_owned(), 4409));
    copy.poll(0, 0).await.ok(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_stops_polling_leaves_its_place_in_bounded_time() {
    let bed = HubBed::start_in(tempfile::tempdir().unwrap(), |c| {
        c.link = ServerConfig {
            heartbeat_ms: 100,
            dead_ms: 250,
            ..ServerConfig::default()
        };
    })
    .await;
    let device = bed.enrol("d").await;
    let client = PollClient::open(&bed, &device, 1).await;
    client.poll(0, 20).await.ok(200);
    assert_eq!(bed.hub.devices_online(), 1);
    let left = async {
        while bed.hub.devices_online() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, left).await.expect("it leaves");
    client.poll(0, 0).await.refused(410, "poll_closed");
    // Another instance may take the place now.
    PollClient::open(&bed, &device, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_device_is_refused_at_once_also_while_it_waits() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let client = PollClient::open(&bed, &device, 1).await;
    client.poll(0, 20).await.ok(200);
    let waiting = tokio::spawn(read(client.request(0, 20)));
    let path = format!("/devices/{}", device.id);
    let request = bed.request(Method::DELETE, &path).bearer_auth(&bed.token);
    assert_eq!(bed.send(request).await.status, 204);
    let ended = timeout(DEADLINE, waiting).await.unwrap().unwrap();
    ended.refused(403, "device_revoked");
    client.ack(0).await.refused(403, "device_revoked");
    let reopened = open(&bed, &device, 1, &Value::Null).await;
    reopened.refused(403, "device_revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_hub_ends_waiting_polls_and_names_when_to_come_back() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let client = PollClient::open(&bed, &device, 1).await;
    client.poll(0, 20).await.ok(200);
    let waiting = waiting(&client, 0).await;
    let late = client.request(0, 0);
    timeout(DEADLINE, bed.hub.shutdown()).await.unwrap();
    let ended = timeout(DEADLINE, waiting).await.unwrap().unwrap();
    ended.refused(503, "going_away");
    assert!(ended.body["retry_after_s"].as_u64().unwrap() >= 1);
    assert!(late.send().await.is_err(), "the hub is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_wrong_say_what_is_wrong() {
    let bed = HubBed::start().await;
    let (device, other) = (bed.enrol("d").await, bed.enrol("e").await);
    // Whoever is no device, or uses a JWT twice.
    let none = bed.send(bed.request(Method::GET, "/poll?generation=1&after=0"));
    none.await.refused(401, "token_missing");
    let producer = bed.get("/messages/pending?generation=1&after=0").await;
    producer.refused(403, "scope_missing");
    let jwt = device.jwt();
    let twice = json!({});
    bed.post_as("/poll/open", &jwt, &twice)
        .await
        .refused(400, "invalid_field");
    bed.post_as("/poll/open", &jwt, &twice)
        .await
        .refused(401, "token_used");
    let narrow = bed.token("narrow", &["messages:read"], Trust::Inform).await;
    bed.post_as("/poll/ack", &narrow, &twice)
        .await
        .refused(403, "scope_missing");
    // Bodies.
    let text = bed
        .request(Method::POST, "/poll/open")
        .bearer_auth(device.jwt());
    bed.send(text.body("x"))
        .await
        .refused(415, "unsupported_media_type");
    let torn = bed
        .request(Method::POST, "/poll/open")
        .bearer_auth(device.jwt());
    let torn = torn.header("content-type", "application/json").body("{");
    bed.send(torn).await.refused(400, "malformed_json");
    let mut large = hello(1, &Value::Null);
    large["build"] = json!("x".repeat(1 << 20));
    bed.post_as("/poll/open", &device.jwt(), &large)
        .await
        .refused(413, "too_large");
    large["build"] = json!("x".repeat(3 << 20));
    bed.post_as("/poll/open", &device.jwt(), &large)
        .await
        .refused(413, "too_large");

    let client = PollClient::open(&bed, &device, 1).await;
    let get = |query: String| {
        let request = bed.request(Method::GET, &format!("/poll?{query}"));
        bed.send(request.bearer_auth(device.jwt()))
    };
    let generation = client.generation();
    for query in [
        String::new(),
        "generation=x&after=0".to_owned(),
        format!("generation={generation}"),
        format!("generation={generation}&after=-1"),
        format!("generation={generation}&after=0&wait_s=61"),
        format!("generation={generation}&after=0&wait=1"),
        format!("generation={generation}&after=9"),
    ] {
        get(query).await.refused(400, "invalid_field");
    }
    // Another generation, another device, another epoch.
    get(format!("generation={}&after=0", generation + 1))
        .await
        .refused(410, "poll_closed");
    let foreign = bed.request(
        Method::GET,
        &format!("/poll?generation={generation}&after=0"),
    );
    let foreign = bed.send(foreign.bearer_auth(other.jwt())).await;
    foreign.refused(410, "poll_closed");
    let mut body = client.body(0);
    body["epoch"] = json!(uuid::Uuid::new_v4());
    client.call(&body).await.refused(409, "conflict");
    let mut body = client.body(0);
    body["reports"] = (1..=65)
        .map(|n| report(n, &json!(uuid::Uuid::new_v4()), "seen"))
        .collect();
    client.call(&body).await.refused(400, "invalid_field");
    client
        .call(&json!({"generation": generation}))
        .await
        .refused(400, "invalid_field");
    // None of it hurt the session; an ack beyond the last delivery ends it, as on a socket.
    client.ack(0).await.ok(200);
    client.ack(9).await.refused(400, "protocol_error");
    client.ack(0).await.refused(410, "poll_closed");
    let client = PollClient::open(&bed, &device, 1).await;
    let mut gap = client.body(0);
    let id = json!(uuid::Uuid::new_v4());
    gap["reports"] = json!([report(1, &id, "seen"), report(3, &id, "seen")]);
    client.call(&gap).await.refused(400, "protocol_error");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_public_form_is_the_same_session_under_other_names() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let posted = post(&bed, "x").await;
    let client = PollClient::open(&bed, &device, 1).await;
    let path = format!(
        "/messages/pending?generation={}&after=0&wait_s=20",
        client.generation()
    );
    let pending = bed.get_as(&path, &device.jwt()).await.ok(200);
    assert_eq!(texts(&pending), ["x"]);
    let acked = bed
        .post_as("/messages/ack", &device.jwt(), &client.body(1))
        .await
        .ok(200);
    assert_eq!(acked, json!({"acked": 1, "report_n": 0}));
    let item = bed.get(posted["url"].as_str().unwrap()).await.ok(200);
    assert_eq!(stages(&item), ["accepted", "on_device"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_its_credential_because_every_call_renews_it() {
    let bed = HubBed::start_in(tempfile::tempdir().unwrap(), |c| c.link.auth_expires_s = 3).await;
    let device = bed.enrol("d").await;
    let client = PollClient::open(&bed, &device, 1).await;
    client.poll(0, 0).await.ok(200);
    for _ in 0..5 {
        client.poll(0, 1).await.ok(200);
    }
    client.ack(0).await.ok(200);
}
