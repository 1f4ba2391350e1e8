//! The hub's HTTP API: what is accepted, what is refused and how, what is answered twice.

use remote_collab::domain::{Trust, limits};
use remote_collab::hub::Rate;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::support::hub_bed::{ALL_SCOPES, DEADLINE, HubBed, read, token};
use crate::support::ws_client::WsClient;

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_task_is_there_and_says_where_it_stands() {
    let bed = HubBed::start().await;
    let device = bed.enrol("Dev Laptop").await;
    assert!(device.id.as_str().starts_with("dev-laptop-"));
    let body = json!({"task": "fix it", "metadata": {"ticket": 7}, "priority": "urgent"});
    let got = bed.post("/tasks", &body).await;
    let location = got.headers["location"].to_str().unwrap().to_owned();
    let v = got.ok(202);
    assert_eq!(v["status"], "queued");
    assert_eq!(v["device"], device.id.as_str());
    assert_eq!(v["url"], location);
    let task = bed.get(&location).await.ok(200);
    assert_eq!(task["id"], v["id"]);
    assert_eq!(task["metadata"], json!({"ticket": 7}));
    assert_eq!(task["receipts"][0]["stage"], "accepted");
    assert_eq!(task["attempts"][0]["attempt"], 1);
    assert_eq!(task["from"], json!({"name": "ci", "trust": "run"}));
    let list = bed.get("/tasks?status=queued").await.ok(200);
    assert_eq!(list["tasks"].as_array().unwrap().len(), 1);
    let none = bed.get("/tasks?status=running").await.ok(200);
    assert!(none["tasks"].as_array().unwrap().is_empty());

    let body = json!({"content": "hello", "wake": true});
    let m = bed.post("/messages", &body).await.ok(202);
    let m = bed.get(m["url"].as_str().unwrap()).await.ok(200);
    assert_eq!(m["status"], "accepted");
    bed.hub.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_page_from_newest_to_oldest() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    let mut ids = Vec::new();
    for n in 0..5 {
        let body = json!({"content": format!("{n}")});
        ids.push(bed.post("/messages", &body).await.ok(202)["id"].clone());
    }
    ids.reverse();
    let (mut seen, mut path) = (Vec::new(), "/messages?limit=2".to_owned());
    loop {
        let page = bed.get(&path).await.ok(200);
        seen.extend(
            page["messages"]
                .as_array()
                .unwrap()
                .iter()
                .map(|m| m["id"].clone()),
        );
        match page["next"].as_str() {
            Some(next) => path = format!("/messages?limit=2&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_parallel_posts_with_one_key_make_one_task_and_get_one_answer() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    let mut posts = JoinSet::new();
    for _ in 0..50 {
        let request = bed
            .request(Method::POST, "/tasks")
            .bearer_auth(&bed.token)
            .header("idempotency-key", "k1")
            .json(&json!({"task": "once"}));
        posts.spawn(read(request));
    }
    let answers: Vec<Value> = posts
        .join_all()
        .await
        .into_iter()
        .map(|g| g.ok(202))
        .collect();
    assert!(answers.iter().all(|a| a == &answers[0]));
    let list = bed.get("/tasks").await.ok(200);
    assert_eq!(list["tasks"].as_array().unwrap().len(), 1);

    let keyed = |body: Value| {
        bed.request(Method::POST, "/tasks")
            .bearer_auth(&bed.token)
            .header("idempotency-key", "k1")
            .json(&body)
    };
    read(keyed(json!({"task": "other"})))
        .await
        .refused(409, "idempotency_mismatch");
    // Another token's key of the same text is another key.
    let other = bed.token("other", ALL_SCOPES, Trust::Run).await;
    let request = keyed(json!({"task": "other"})).bearer_auth(&other);
    let request = {
        let mut r = request.build().unwrap();
        r.headers_mut()
            .insert("authorization", format!("Bearer {other}").parse().unwrap());
        r
    };
    assert_eq!(bed.http.execute(request).await.unwrap().status(), 202);

    // A restart does not forget it.
    let bed = bed.restart().await;
    let again = bed
        .request(Method::POST, "/tasks")
        .bearer_auth(&bed.token)
        .header("idempotency-key", "k1")
        .json(&json!({"task": "once"}));
    assert_eq!(read(again).await.ok(202), answers[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_whose_answer_was_cut_off_is_answered_alike_when_repeated() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    let body = r#"{"task":"cut"}"#;
    let text = format!(
        "POST /tasks HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\nidempotency-key: cut\r\ncontent-length: {}\r\n\r\n{body}",
        bed.token,
        body.len()
    );
    for read_first in [false, true] {
        let mut tcp = tokio::net::TcpStream::connect(bed.hub.addr).await.unwrap();
        tcp.write_all(text.as_bytes()).await.unwrap();
        if read_first {
            // One byte of the answer, so that the commit is certain.
            tcp.read_exact(&mut [0; 1]).await.unwrap();
        }
        drop(tcp);
    }
    let again = bed
        .request(Method::POST, "/tasks")
        .bearer_auth(&bed.token)
        .header("idempotency-key", "cut")
        .header("content-type", "application/json")
        .body(body);
    let v = read(again).await.ok(202);
    let list = bed.get("/tasks").await.ok(200);
    assert_eq!(list["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(list["tasks"][0]["id"], v["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_does_not_pin_its_key() {
    let bed = HubBed::start().await;
    let keyed = || {
        let r = bed.request(Method::POST, "/tasks").bearer_auth(&bed.token);
        r.header("idempotency-key", "k").json(&json!({"task": "x"}))
    };
    read(keyed()).await.refused(404, "unknown_target");
    bed.enrol("d").await;
    let first = read(keyed()).await.ok(202);
    bed.enrol("e").await;
    // Now the target would be ambiguous, but the key stands for its answer.
    assert_eq!(read(keyed()).await.ok(202), first);
    bed.post("/tasks", &json!({"task": "x"}))
        .await
        .refused(400, "target_required");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_malformed_request_has_a_stable_code_and_harms_nothing() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    let raw = |path: &str, content_type: &str, body: Vec<u8>| {
        read(
            bed.request(Method::POST, path)
                .bearer_auth(&bed.token)
                .header("content-type", content_type)
                .body(body),
        )
    };
    let json_type = "application/json";
    for path in ["/tasks", "/messages"] {
        raw(path, json_type, b"{".to_vec())
            .await
            .refused(400, "malformed_json");
        raw(path, json_type, vec![])
            .await
            .refused(400, "malformed_json");
        raw(path, json_type, b"\xff\xfe".to_vec())
            .await
            .refused(400, "malformed_json");
        raw(path, json_type, "[".repeat(100_000).into_bytes())
            .await
            .refused(400, "malformed_json");
        raw(path, json_type, b"[]".to_vec())
            .await
            .refused(400, "invalid_field");
        raw(path, "text/plain", b"{}".to_vec())
            .await
            .refused(415, "unsupported_media_type");
        raw(path, json_type, vec![b' '; 3 << 20])
            .await
            .refused(413, "too_large");
    }
    let got = bed
        .post("/tasks", &json!({"task": 5, "session_id": "nope", "priority": "high", "expires_in_s": 0, "expires_in": 3, "options": {"bypass": 1}}))
        .await;
    got.refused(400, "invalid_field");
    let pointers: Vec<_> = got.body["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(
        pointers,
        [
            "/task",
            "/session_id",
            "/priority",
            "/expires_in_s",
            "/options",
            "/expires_in"
        ]
    );
    for (body, status, code) in [
        (json!({}), 400, "invalid_field"),
        (json!({"task": "  "}), 400, "invalid_field"),
        (
            json!({"task": "x", "options": {"permission_mode": "bypassPermissions"}}),
            400,
            "invalid_field",
        ),
        (
            json!({"task": "x", "device": "nobody"}),
            404,
            "unknown_target",
        ),
        (
            json!({"task": "x", "project": "nowhere"}),
            404,
            "unknown_target",
        ),
        (
            json!({"task": "x", "session_id": uuid::Uuid::from_u128(9)}),
            404,
            "unknown_target",
        ),
        (
            json!({"task": "x".repeat(limits::MAX_TASK_BYTES + 1)}),
            413,
            "too_large",
        ),
    ] {
        bed.post("/tasks", &body).await.refused(status, code);
    }
    let content = "x".repeat(limits::MAX_ENVELOPE_BYTES);
    bed.post("/messages", &json!({"content": content}))
        .await
        .refused(413, "too_large");
    let fits = "y".repeat(limits::MAX_TASK_BYTES);
    bed.post("/tasks", &json!({"task": fits})).await.ok(202);

    for (method, path, status, code) in [
        (Method::GET, "/nothing/here", 404, "not_found"),
        (Method::DELETE, "/tasks", 405, "method_not_allowed"),
        (Method::GET, "/tasks/not-an-id", 404, "unknown_task"),
        (
            Method::GET,
            "/messages/00000000-0000-0000-0000-000000000001",
            404,
            "unknown_message",
        ),
        (Method::GET, "/tasks?limit=0", 400, "invalid_field"),
        (Method::GET, "/tasks?colour=red", 400, "invalid_field"),
        (Method::GET, "/memory/not-a-session", 400, "invalid_field"),
        (Method::GET, "/connect", 400, "protocol_error"),
    ] {
        let request = bed.request(method, path).bearer_auth(&bed.token);
        read(request).await.refused(status, code);
    }
    let long = bed.request(Method::POST, "/tasks").bearer_auth(&bed.token);
    let long = long
        .header("idempotency-key", "k".repeat(201))
        .json(&json!({"task": "x"}));
    read(long).await.refused(400, "invalid_field");

    let list = bed.get("/tasks").await.ok(200);
    assert_eq!(list["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(bed.get("/readyz").await.ok(200)["status"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_find_their_device_by_session_project_and_path() {
    let bed = HubBed::start().await;
    let a = bed.enrol("a").await;
    let b = bed.enrol("b").await;
    let (_ws, _, _) = WsClient::synced(bed.hub.addr, &b, 1).await;
    let (lived, lives) = (uuid::Uuid::from_u128(0x01d), uuid::Uuid::from_u128(0x5e55));
    for target in [
        json!({"project": "shop"}),
        json!({"project": "/home/dev/shop"}),
        json!({"session_id": lives}),
        json!({"session_id": lived}),
        json!({"device": b.id.as_str()}),
        json!({"device": "b"}),
    ] {
        let mut body = target.clone();
        body["task"] = json!("x");
        let v = bed.post("/tasks", &body).await.ok(202);
        assert_eq!(v["device"], b.id.as_str(), "{target}");
    }
    let got = bed.post("/tasks", &json!({"task": "x"})).await;
    got.refused(400, "target_required");
    assert_eq!(got.body["known"], json!([a.id.as_str(), b.id.as_str()]));
    let got = bed
        .post("/messages", &json!({"content": "x", "project": "shopp"}))
        .await;
    got.refused(404, "unknown_target");
    assert_eq!(got.body["known"], json!(["shop"]));

    let devices = bed.get("/devices").await.ok(200);
    let online = |id: &str| {
        let all = devices["devices"].as_array().unwrap();
        all.iter().find(|d| d["id"] == id).unwrap()["online"].clone()
    };
    assert_eq!(
        (online(a.id.as_str()), online(b.id.as_str())),
        (json!(false), json!(true))
    );
    let sessions = bed.get("/sessions").await.ok(200);
    assert_eq!(sessions["sessions"][0]["session_id"], lives.to_string());
    let projects = bed.get("/projects").await.ok(200);
    assert_eq!(projects["projects"][0]["approved"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_the_sessions_own_else_its_lineages_else_its_projects() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (_ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let (lived, lives) = (uuid::Uuid::from_u128(0x01d), uuid::Uuid::from_u128(0x5e55));
    let fresh = uuid::Uuid::from_u128(0xf5e5);
    bed.get(&format!("/memory/{lives}"))
        .await
        .refused(404, "not_found");

    let body = json!({"summary": "before", "context": ["a", {"b": 1}]});
    bed.post(&format!("/memory/{lived}"), &body).await.ok(200);
    let got = bed.get(&format!("/memory/{lives}")).await;
    let tag = got.headers["etag"].to_str().unwrap().to_owned();
    let v = got.ok(200);
    assert_eq!(
        (&v["summary"], &v["context"][1]["b"]),
        (&json!("before"), &json!(1))
    );
    assert_eq!(v["session_id"], lived.to_string());
    let again = bed
        .request(Method::GET, &format!("/memory/{lives}"))
        .bearer_auth(&bed.token)
        .header("if-none-match", &tag);
    assert_eq!(read(again).await.status, 304);

    bed.get(&format!("/memory/{fresh}"))
        .await
        .refused(404, "not_found");
    let by_project = bed
        .get(&format!("/memory/{fresh}?project=shop"))
        .await
        .ok(200);
    assert_eq!(by_project["summary"], "before");

    // A device reads and writes with its own key, each JWT once.
    let jwt = device.jwt();
    let own = json!({"summary": "own"});
    bed.post_as(&format!("/memory/{lives}"), &jwt, &own)
        .await
        .ok(200);
    bed.post_as(&format!("/memory/{lives}"), &jwt, &own)
        .await
        .refused(401, "token_used");
    let got = bed
        .get_as(&format!("/memory/{lives}"), &device.jwt())
        .await
        .ok(200);
    assert_eq!(got["summary"], "own");
    bed.post_as("/tasks", &device.jwt(), &json!({"task": "x"}))
        .await
        .refused(403, "scope_missing");

    let path = format!("/memory/{lives}/index");
    bed.get(&path).await.refused(404, "not_found");
    let put = |body: Value| {
        bed.request(Method::PUT, &path)
            .bearer_auth(&bed.token)
            .json(&body)
    };
    let index = json!({"files": ["src/lib.rs"], "symbols": [], "recent_changes": ["x"]});
    assert_eq!(read(put(index)).await.status, 204);
    assert_eq!(bed.get(&path).await.ok(200)["files"][0], "src/lib.rs");
    let of_project = format!("/memory/{fresh}/index?project=shop");
    assert_eq!(bed.get(&of_project).await.ok(200)["files"][0], "src/lib.rs");
    bed.get(&format!("/memory/{fresh}/index"))
        .await
        .refused(404, "not_found");
    read(put(json!({"files": "x"})))
        .await
        .refused(400, "invalid_field");
    let huge = json!({"files": ["x".repeat(limits::MAX_ENVELOPE_BYTES)]});
    read(put(huge)).await.refused(413, "too_large");
    bed.post(&format!("/memory/{lives}"), &json!({}))
        .await
        .refused(400, "invalid_field");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_accounts_things_are_not_found_and_not_forbidden() {
    let bed = HubBed::start().await;
    let device = bed.enrol("mine").await;
    let task = bed.post("/tasks", &json!({"task": "x"})).await.ok(202);
    let message = bed
        .post("/messages", &json!({"content": "x"}))
        .await
        .ok(202);
    let session = uuid::Uuid::from_u128(0x5e55);
    bed.post(&format!("/memory/{session}"), &json!({"summary": "secret"}))
        .await
        .ok(200);
    let stranger = token(&bed.hub, "ci", "other", ALL_SCOPES, Trust::Run).await;
    for (path, code) in [
        (task["url"].as_str().unwrap(), "unknown_task"),
        (message["url"].as_str().unwrap(), "unknown_message"),
        (&*format!("/memory/{session}"), "not_found"),
    ] {
        bed.get_as(path, &stranger).await.refused(404, code);
    }
    for target in [
        json!({"device": device.id.as_str()}),
        json!({"session_id": session}),
    ] {
        let mut body = target;
        body["content"] = json!("x");
        let got = bed.post_as("/messages", &stranger, &body).await;
        got.refused(404, "unknown_target");
        assert!(got.body.get("known").is_none());
    }
    let path = format!("/devices/{}", device.id);
    let delete = bed.request(Method::DELETE, &path).bearer_auth(&stranger);
    read(delete).await.refused(404, "not_found");
    for (path, field) in [
        ("/devices", "devices"),
        ("/sessions", "sessions"),
        ("/tasks", "tasks"),
    ] {
        let v = bed.get_as(path, &stranger).await.ok(200);
        assert!(v[field].as_array().unwrap().is_empty(), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_asks_too_often_is_told_when_to_come_back() {
    let bed = HubBed::start_in(tempfile::tempdir().unwrap(), |c| {
        c.rate = Rate { per_s: 1, burst: 3 };
    })
    .await;
    let mut refused = 0;
    for _ in 0..6 {
        let got = bed.get("/devices").await;
        if got.status == 429 {
            got.refused(429, "rate_limited");
            assert!(
                got.headers["retry-after"]
                    .to_str()
                    .unwrap()
                    .parse::<u64>()
                    .unwrap()
                    >= 1
            );
            refused += 1;
        }
    }
    assert!(refused >= 2);
    let other = bed.token("other", ALL_SCOPES, Trust::Run).await;
    bed.get_as("/devices", &other).await.ok(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_task_survives_the_hub() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    let v = bed
        .post("/tasks", &json!({"task": "keep me"}))
        .await
        .ok(202);
    let url = v["url"].as_str().unwrap();
    let bed = bed.restart().await;
    assert_eq!(bed.get(url).await.ok(200)["status"], "queued");
    let took = std::time::Instant::now();
    bed.hub.shutdown().await;
    assert!(took.elapsed() < DEADLINE);
}
