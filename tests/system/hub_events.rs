//! Who watches misses nothing and sees nothing twice.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use remote_collab::domain::Trust;
use remote_collab::hub::AdminCall;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::hub_kill::spawn;
use crate::support::hub_bed::{DEADLINE, HubBed, account, token};
use crate::support::sse::{Sse, Told};
use crate::support::ws_client::WsClient;

fn get(bed: &HubBed, path: &str) -> RequestBuilder {
    get_as(bed, path, &bed.token)
}

fn get_as(bed: &HubBed, path: &str, token: &str) -> RequestBuilder {
    // A stream is longer than the bed's calls may be.
    static HTTP: LazyLock<reqwest::Client> = LazyLock::new(|| {
        // Tests may run in one process, each with a runtime of its own: no connection outlives its test.
        let client = reqwest::Client::builder().pool_max_idle_per_host(0);
        client.build().unwrap()
    });
    HTTP.request(Method::GET, format!("{}{path}", bed.hub.url()))
        .bearer_auth(token)
}

async fn watch(bed: &HubBed, path: &str) -> Sse {
    Sse::open(get(bed, path)).await
}

async fn back(bed: &HubBed, path: &str, id: &str) -> Sse {
    Sse::open(get(bed, path).header("last-event-id", id)).await
}

async fn post(bed: &HubBed, kind: &str, n: usize) -> String {
    let body = if kind == "tasks" {
        json!({"task": format!("{n}")})
    } else {
        json!({"content": format!("{n}")})
    };
    let v = bed.post(&format!("/{kind}"), &body).await.ok(202);
    v["id"].as_str().unwrap().to_owned()
}

fn report(n: u64, id: &str, kind: &str, body: &Value) -> Value {
    json!({"type": "report", "n": n, "id": id, "kind": kind, "at": 1000 + n, "body": body})
}

fn kinds(all: &[Told]) -> Vec<&str> {
    all.iter().map(|t| t.kind.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tasks_stream_tells_its_life_and_ends_with_its_terminal_status() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let other = post(&bed, "tasks", 0).await;
    let id = post(&bed, "tasks", 1).await;
    let path = format!("/tasks/{id}/events");
    let mut sse = watch(&bed, &path).await;
    let snapshot = sse.expect("snapshot").await;
    assert_eq!(snapshot.data["task"]["id"], *id);
    assert_eq!(snapshot.data["task"]["status"], "queued");
    let open = sse.expect("open").await;
    assert_eq!(open.data["position"], open.id);
    for _ in 0..2 {
        let seq = ws.expect("deliver").await["seq"].as_u64().unwrap();
        ws.ack(seq).await;
    }
    let mut all = vec![
        sse.expect("task.receipt").await,
        sse.expect("task.status").await,
    ];
    ws.send(&report(1, &id, "status", &json!({"status": "running"})))
        .await;
    ws.send(&report(2, &id, "progress", &json!({"text": "reading"})))
        .await;
    ws.send(&report(
        3,
        &other,
        "progress",
        &json!({"text": "of another"}),
    ))
    .await;
    let reply = json!({"id": uuid::Uuid::from_u128(5), "content": "half done", "at": 7});
    ws.send(&report(4, &id, "reply", &reply)).await;
    let result = json!({"text": "all done", "is_error": false, "cost_usd": 0.5});
    ws.send(&report(5, &id, "result", &result)).await;
    ws.send(&report(6, &id, "status", &json!({"status": "completed"})))
        .await;
    all.extend(sse.rest().await);
    assert_eq!(
        kinds(&all),
        [
            "task.receipt",
            "task.status",
            "task.status",
            "task.progress",
            "task.reply",
            "task.result",
            "task.receipt",
            "task.status",
            "end"
        ]
    );
    assert!(all[..8].iter().all(|t| t.data["id"] == *id));
    assert_eq!(all[0].data["receipt"]["stage"], "on_device");
    assert_eq!(all[1].data["status"], "delivered");
    assert_eq!(all[3].data["text"], "reading");
    assert_eq!(all[4].data["content"], "half done");
    assert_eq!(all[5].data["text"], "all done");
    let last = &all[7].data;
    assert_eq!(
        (&last["status"], &last["terminal"]),
        (&json!("completed"), &json!(true))
    );
    assert_eq!(all[8].data["reason"], "finished");
    assert_eq!(all[8].data["position"], all[7].id);
    // One that comes back has nothing more to hear, from anywhere else it gets the rest.
    let done = get(&bed, &path).header("last-event-id", &all[7].id);
    assert_eq!(done.send().await.unwrap().status(), 204);
    let again = back(&bed, &path, &all[4].id).await.rest().await;
    assert_eq!(again[..3], all[5..8]);
    let whole = watch(&bed, &format!("{path}?after=start"))
        .await
        .rest()
        .await;
    assert_eq!(whole[0].kind, "open");
    assert_eq!(whole[1].kind, "task.accepted");
    assert_eq!(whole[2..10], all[..8]);
    // And one that asks of a finished task sees it, and the end.
    let after = watch(&bed, &path).await.rest().await;
    assert_eq!(kinds(&after), ["snapshot", "open", "end"]);
    assert_eq!(after[0].data["task"]["status"], "completed");
    bed.get("/tasks/0190163d-8694-739b-aea5-966c26f8ad90/events")
        .await
        .refused(404, "unknown_task");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_comes_once_and_in_order_across_sigkills_of_the_hub() {
    const POSTS: usize = 8;
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    let HubBed { dir, hub, .. } = bed;
    hub.shutdown().await;
    let http = reqwest::Client::new();
    let (mut ids, mut seen) = (Vec::new(), Vec::new());
    let mut place = "start".to_owned();
    for round in 0..4 {
        let (child, ready) = spawn(dir.path());
        let url = |path: &str| format!("{}{path}", ready["url"].as_str().unwrap());
        let token = ready["token"].as_str().unwrap();
        let path = format!("/events?after={place}");
        let request = http.get(url(&path)).bearer_auth(token);
        let mut sse = Sse::open(request).await;
        for n in 0..POSTS {
            let body = json!({"task": format!("{round} {n}")});
            let post = http.post(url("/tasks")).bearer_auth(token).json(&body);
            let v: Value = post.send().await.unwrap().json().await.unwrap();
            ids.push(v["id"].clone());
        }
        // Part of it is read in this life, and the hub is killed before the rest.
        while seen.len() < round * POSTS + POSTS / 2 {
            let told = sse.next().await.unwrap();
            if told.kind == "task.accepted" {
                seen.push(told.data["id"].clone());
                place = told.id;
            }
        }
        drop(child);
    }
    let bed = HubBed::start_in(dir, |_| {}).await;
    let mut sse = back(&bed, "/events", &place).await;
    while seen.len() < ids.len() {
        seen.push(sse.expect("task.accepted").await.data["id"].clone());
    }
    assert_eq!(seen, ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_steps_of_an_offline_run_come_in_their_order() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let id = post(&bed, "tasks", 0).await;
    let mut sse = watch(&bed, "/events?kinds=task.progress").await;
    sse.expect("open").await;
    for n in 0..200 {
        let step = json!({"text": format!("{n}")});
        ws.send(&report(n + 1, &id, "progress", &step)).await;
        if n % 32 == 31 {
            // The window of reports: a device waits for the hub's word.
            while ws.frame().await.unwrap()["type"] != "report_ack" {}
        }
    }
    for n in 0..200 {
        let told = sse.expect("task.progress").await;
        assert_eq!(told.data["text"], format!("{n}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_and_scopes_choose_what_is_told() {
    let bed = HubBed::start().await;
    bed.enrol("a").await;
    bed.enrol("b").await;
    let devices = bed.get("/devices").await.ok(200);
    let a = devices["devices"][0]["id"].as_str().unwrap().to_owned();
    let b = devices["devices"][1]["id"].as_str().unwrap().to_owned();
    let reader = bed.token("reader", &["messages:read"], Trust::Inform).await;
    let mut all = watch(&bed, "/events").await;
    let mut of_b = watch(
        &bed,
        &format!("/events?device={b}&kinds=message,task.status"),
    )
    .await;
    let mut narrow = Sse::open(get_as(&bed, "/events", &reader)).await;
    for sse in [&mut all, &mut of_b, &mut narrow] {
        sse.expect("open").await;
    }
    bed.post("/tasks", &json!({"task": "1", "device": a}))
        .await
        .ok(202);
    bed.post("/messages", &json!({"content": "2", "device": a}))
        .await
        .ok(202);
    bed.post("/messages", &json!({"content": "3", "device": b}))
        .await
        .ok(202);
    for kind in ["task.accepted", "message.accepted", "message.accepted"] {
        all.expect(kind).await;
    }
    assert_eq!(of_b.expect("message.accepted").await.data["device"], *b);
    assert_eq!(narrow.expect("message.accepted").await.data["device"], *a);
    assert_eq!(narrow.expect("message.accepted").await.data["device"], *b);
    for (path, code) in [
        ("/events?kinds=task.status", "scope_missing"),
        (
            "/events?task=0190163d-8694-739b-aea5-966c26f8ad90",
            "scope_missing",
        ),
    ] {
        bed.get_as(path, &reader).await.refused(403, code);
    }
    let writer = bed.token("writer", &["tasks:write"], Trust::Run).await;
    bed.get_as("/events", &writer)
        .await
        .refused(403, "scope_missing");
    for path in [
        "/events?kinds=weather",
        "/events?after=yesterday",
        "/events?x=1",
    ] {
        bed.get(path).await.refused(400, "invalid_field");
    }
    let bad = get(&bed, "/events").header("last-event-id", "42");
    assert_eq!(bed.send(bad).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_account_hears_nothing() {
    let bed = HubBed::start().await;
    bed.enrol("a").await;
    let scopes = ["tasks:read", "messages:read"];
    let other = &token(&bed.hub, "x", "other", &scopes, Trust::Run).await;
    let mut sse = Sse::open(get_as(&bed, "/events?after=start", other)).await;
    sse.expect("open").await;
    let id = post(&bed, "tasks", 0).await;
    bed.get_as(&format!("/tasks/{id}/events"), other)
        .await
        .refused(404, "unknown_task");
    bed.hub
        .admin(&AdminCall::RevokeToken {
            account: account("other"),
            token: "x".into(),
        })
        .await
        .unwrap();
    assert_eq!(kinds(&sse.rest().await), ["end"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_gone_or_of_another_life_is_told_and_the_present_state_follows() {
    let bed = HubBed::start().await;
    bed.enrol("a").await;
    let id = post(&bed, "tasks", 0).await;
    let mut sse = watch(&bed, "/events?after=start").await;
    sse.expect("open").await;
    let place = sse.expect("task.accepted").await.id;
    let parts: Vec<&str> = place.split('-').collect();
    let other_life = format!("{}-{}-{}", "1".repeat(32), parts[1], parts[2]);
    let other_time = format!("{}-{}-1", parts[0], parts[1]);
    let beyond = format!("{}-99-{}", parts[0], parts[2]);
    for wrong in [other_life, other_time, beyond] {
        let mut sse = back(&bed, "/events", &wrong).await;
        let reset = sse.expect("reset").await;
        assert_eq!(reset.data["reason"], "other_epoch");
        let snapshot = sse.expect("snapshot").await;
        assert_eq!(snapshot.data["task"]["id"], *id);
        assert_eq!(sse.expect("open").await.id, place);
        let mut sse = back(&bed, &format!("/tasks/{id}/events"), &wrong).await;
        sse.expect("reset").await;
        sse.expect("snapshot").await;
        sse.expect("open").await;
    }
    let second = post(&bed, "messages", 1).await;
    let mut sse = back(&bed, "/events", &place).await;
    assert_eq!(sse.expect("message.accepted").await.data["id"], *second);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_hear_the_same_and_those_of_one_token_are_bounded() {
    let bed = HubBed::start().await;
    bed.enrol("a").await;
    let mut streams = Vec::new();
    for t in 0..8 {
        let token = bed
            .token(&format!("t{t}"), &["tasks:read"], Trust::Inform)
            .await;
        for _ in 0..16 {
            let mut sse = Sse::open(get_as(&bed, "/events", &token)).await;
            sse.expect("open").await;
            streams.push(sse);
        }
        bed.get_as("/events", &token)
            .await
            .refused(429, "rate_limited");
    }
    for n in 0..20 {
        post(&bed, "tasks", n).await;
    }
    let mut all = BTreeSet::new();
    for sse in &mut streams {
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(sse.expect("task.accepted").await.id);
        }
        all.insert(ids);
    }
    assert_eq!(all.len(), 1);
    // A place becomes free with the reader that leaves.
    drop(streams);
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while get(&bed, "/events").send().await.unwrap().status() != 200 {
        assert!(tokio::time::Instant::now() < deadline);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_token_and_with_the_hub_and_shows_life_until_then() {
    let dir = tempfile::tempdir().unwrap();
    let bed = HubBed::start_in(dir, |c| c.events.heartbeat = Duration::from_millis(50)).await;
    bed.enrol("a").await;
    let token = bed.token("gone", &["messages:read"], Trust::Inform).await;
    let mut ended = Sse::open(get_as(&bed, "/events", &token)).await;
    ended.expect("open").await;
    ended.beat().await;
    let before = ended.id.clone();
    // What is not for a reader moves its place all the same, so that it does not come back to a place that is gone.
    post(&bed, "tasks", 1).await;
    while ended.id == before {
        ended.beat().await;
    }
    let call = AdminCall::RevokeToken {
        account: account("default"),
        token: "gone".into(),
    };
    bed.hub.admin(&call).await.unwrap();
    let rest = ended.rest().await;
    assert_eq!(kinds(&rest), ["end"]);
    assert_eq!(rest[0].data["reason"], "token_revoked");
    assert_eq!(rest[0].data["position"], ended.id);
    let mut drained = watch(&bed, "/events").await;
    drained.expect("open").await;
    bed.hub.shutdown().await;
    let rest = drained.rest().await;
    assert_eq!(rest[0].data["reason"], "going_away");
}
