//! The lists over HTTP: filters, and walks while others write.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remote_collab::domain::Trust;
use remote_collab::wire::SUBPROTOCOL;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::hub_bed::{ALL_SCOPES, HubBed, token};
use crate::support::ws_client::{hello, upgrade};

/// Every row of a list, page by page.
async fn walk(bed: &HubBed, path: &str, name: &str) -> Vec<Value> {
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    for _ in 0..1000 {
        let page = bed.get(&format!("{path}{cursor}")).await.ok(200);
        rows.extend(page[name].as_array().unwrap().iter().cloned());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
    panic!("the walk through {path} does not end");
}

fn ids(rows: &[Value], field: &str) -> Vec<String> {
    let of = rows.iter().map(|r| r[field].as_str().unwrap().to_owned());
    of.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_walk_while_others_post_shows_what_was_there_exactly_once() {
    let bed = Arc::new(HubBed::start().await);
    bed.enrol("d").await;
    let mut there = BTreeSet::new();
    for n in 0..25 {
        let v = bed.post("/tasks", &json!({"task": n.to_string()})).await;
        there.insert(v.ok(202)["id"].as_str().unwrap().to_owned());
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (bed, stop) = (Arc::clone(&bed), Arc::clone(&stop));
        async move {
            while !stop.load(Ordering::Relaxed) {
                bed.post("/tasks", &json!({"task": "more"})).await.ok(202);
            }
        }
    });
    for order in ["newest", "oldest"] {
        let path = format!("/tasks?limit=3&order={order}&created_before=4000000000000");
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        // Oldest first may never come to the end while others post faster.
        while !there.iter().all(|id| seen.contains(id)) {
            let page = bed.get(&format!("{path}{cursor}")).await.ok(200);
            seen.extend(ids(page["tasks"].as_array().unwrap(), "id"));
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let distinct: BTreeSet<_> = seen.iter().cloned().collect();
        assert_eq!(distinct.len(), seen.len(), "a task came twice");
        assert!(there.is_subset(&distinct), "a task was left out");
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_filter_of_tasks_shows_what_it_says() {
    let bed = HubBed::start().await;
    let (a, b) = (bed.enrol("a").await, bed.enrol("b").await);
    let session = Uuid::from_u128(7);
    let bed_ref = &bed;
    let post = |body: Value| async move { bed_ref.post("/tasks", &body).await.ok(202) };
    let one = post(json!({"task": "1", "device": a.id.as_str()})).await;
    let two = post(json!({"task": "2", "device": b.id.as_str(), "session_id": session})).await;
    let other = bed.token("bot", ALL_SCOPES, Trust::Run).await;
    let body = json!({"task": "3", "device": a.id.as_str()});
    let three = bed.post_as("/tasks", &other, &body).await.ok(202);
    let at = |v: &Value| {
        let path = v["url"].as_str().unwrap().to_owned();
        let bed = &bed;
        async move { bed.get(&path).await.ok(200)["created_at"].as_i64().unwrap() }
    };
    let (t1, t3) = (at(&one).await, at(&three).await);
    let list = |query: String| {
        let bed = &bed;
        async move { ids(&walk(bed, &format!("/tasks?{query}"), "tasks").await, "id") }
    };
    let id = |v: &Value| v["id"].as_str().unwrap().to_owned();
    let (one, two, three) = (id(&one), id(&two), id(&three));
    let all = [three.clone(), two.clone(), one.clone()];
    assert_eq!(list(String::new()).await, all);
    assert_eq!(list("limit=1".into()).await, all);
    let oldest = [one.clone(), two.clone(), three.clone()];
    assert_eq!(list("order=oldest&limit=2".into()).await, oldest);
    assert_eq!(
        list(format!("device={}", b.id)).await,
        std::slice::from_ref(&two)
    );
    assert_eq!(
        list(format!("session_id={session}")).await,
        std::slice::from_ref(&two)
    );
    assert_eq!(list("from=bot".into()).await, std::slice::from_ref(&three));
    assert_eq!(list("attempt=1".into()).await.len(), 3);
    assert!(list("attempt=2".into()).await.is_empty());
    assert_eq!(list("status=queued,running".into()).await.len(), 3);
    assert_eq!(list("status=running&status=queued".into()).await.len(), 3);
    assert!(list("status=running".into()).await.is_empty());
    assert!(list(format!("created_before={t1}")).await.is_empty());
    assert!(list(format!("created_after={}", t3 + 1)).await.is_empty());
    let span = format!("created_after={t1}&created_before={}", t3 + 1);
    assert_eq!(list(span).await, all);
    for (query, pointer) in [
        ("status=done", "status"),
        ("order=up", "order"),
        ("created_after=yesterday", "created_after"),
        ("session_id=x", "session_id"),
        ("limit=0", "limit"),
        ("device=a&device=b", "device"),
        ("befor=1", "befor"),
    ] {
        let got = bed.get(&format!("/tasks?{query}")).await;
        got.refused(400, "invalid_field");
        assert_eq!(got.body["errors"][0]["pointer"], pointer, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_that_is_not_of_this_walk_is_refused_and_says_how_to_go_on() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    bed.enrol_in("other", "e").await;
    let other = token(&bed.hub, "ci", "other", ALL_SCOPES, Trust::Run).await;
    for n in 0..3 {
        let device = &bed.get("/devices").await.ok(200)["devices"][0]["id"];
        let body = json!({"task": n.to_string(), "device": device});
        bed.post("/tasks", &body).await.ok(202);
    }
    let next = bed.get("/tasks?limit=1").await.ok(200)["next"].clone();
    let next = next.as_str().unwrap();
    for path in [
        format!("/tasks?status=queued&cursor={next}"),
        format!("/tasks?order=oldest&cursor={next}"),
        format!("/messages?cursor={next}"),
        format!("/sessions?cursor={next}"),
        format!("/projects?cursor={next}"),
        format!("/devices?cursor={next}"),
        format!("/tasks?cursor={}", &next[..next.len() - 2]),
        "/tasks?cursor=".to_owned(),
        "/tasks?cursor=%00%ff".to_owned(),
        format!("/tasks?cursor={}", Uuid::from_u128(1)),
    ] {
        let got = bed.get(&path).await;
        assert_eq!(got.status, 400, "{path}: {:?}", got.body);
        if got.code() != "invalid_field" {
            got.refused(400, "cursor_invalid");
            let detail = got.body["detail"].as_str().unwrap();
            assert!(detail.contains("without a cursor"), "{detail}");
        }
    }
    let path = format!("/tasks?limit=1&cursor={next}");
    let foreign = bed.get_as(&path, &other).await;
    foreign.refused(400, "cursor_invalid");
    // The page's size may change on the way, and a restart changes nothing.
    let bed = bed.restart().await;
    let rest = bed.get(&format!("/tasks?limit=50&cursor={next}")).await;
    assert_eq!(rest.ok(200)["tasks"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_projects_and_devices_are_filtered_and_walked_by_keys_that_stay() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let idle = bed.enrol("idle").await;
    let session = |n: u128, activity: &str, project: &str| json!({"session_id": Uuid::from_u128(n), "activity": activity, "project": project, "active_at": n});
    let mut frame = hello(1, &Value::Null);
    frame["projects"] = json!([
            {"name": "acme/shop", "path": "/a"},
            {"name": "acme/api", "path": "/b"},
        {"name": "old", "path": "/c", "enabled": false},
    ]);
    let activity = |n| if n % 3 == 0 { "busy" } else { "idle" };
    let project = |n| if n < 5 { "acme/shop" } else { "acme/api" };
    frame["sessions"] = (1..=9)
        .map(|n| session(n, activity(n), project(n)))
        .collect();
    let jwt = device.jwt();
    let mut ws = upgrade(bed.hub.addr, Some(&jwt), Some(SUBPROTOCOL))
        .await
        .unwrap();
    ws.send(&frame).await;
    ws.expect("welcome").await;
    let sessions = |query: &'static str| {
        let bed = &bed;
        async move {
            walk(bed, &format!("/sessions?limit=2{query}"), "sessions")
                .await
                .len()
        }
    };
    assert_eq!(sessions("").await, 9);
    assert_eq!(sessions("&activity=busy").await, 3);
    assert_eq!(sessions("&activity=busy,idle").await, 9);
    assert_eq!(sessions("&activity=closed").await, 0);
    assert_eq!(sessions("&project=acme/api").await, 5);
    assert_eq!(sessions("&since=8").await, 2);
    assert_eq!(sessions("&project=acme/api&since=8&activity=busy").await, 1);
    assert_eq!(sessions("&device=nobody").await, 0);
    let all = walk(&bed, "/sessions?limit=2", "sessions").await;
    let got = ids(&all, "session_id");
    let mut sorted = got.clone();
    sorted.sort();
    assert_eq!(got, sorted);
    assert_eq!(all[0]["online"], true);
    let projects = |query: &'static str| {
        let bed = &bed;
        async move {
            ids(
                &walk(bed, &format!("/projects?limit=1{query}"), "projects").await,
                "name",
            )
        }
    };
    assert_eq!(projects("").await, ["acme/api", "acme/shop", "old"]);
    assert_eq!(projects("&enabled=true").await, ["acme/api", "acme/shop"]);
    assert_eq!(projects("&enabled=false").await, ["old"]);
    assert_eq!(projects("&device=nobody").await, Vec::<String>::new());
    let devices = |query: &'static str| {
        let bed = &bed;
        async move {
            ids(
                &walk(bed, &format!("/devices?limit=1{query}"), "devices").await,
                "id",
            )
        }
    };
    assert_eq!(devices("").await, [device.id.as_str(), idle.id.as_str()]);
    assert_eq!(devices("&online=true").await, [device.id.as_str()]);
    assert_eq!(devices("&online=false").await, [idle.id.as_str()]);
    assert_eq!(devices("&revoked=true").await, Vec::<String>::new());
}
