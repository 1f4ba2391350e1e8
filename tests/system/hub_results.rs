//! Results beyond a frame: up from the device in pieces, joined to their report by the hash, down whole.

use remote_collab::domain::limits::{MAX_RESULT_BYTES, RESULT_CHUNK_BYTES};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::hub_bed::{Device, Got, HubBed, read};
use crate::support::ws_client::WsClient;

fn hash(text: &str) -> String {
    use std::fmt::Write;
    let digest = remote_collab::auth::crypto::sha256(text.as_bytes());
    digest.iter().fold(String::new(), |mut s, b| {
        write!(s, "{b:02x}").unwrap();
        s
    })
}

/// A text of this many bytes that is not the same anywhere, with characters of several bytes.
fn text(bytes: usize) -> String {
    let mut s = String::new();
    let mut n = 0;
    while s.len() + 16 <= bytes {
        s.push_str(&format!("{n:08} 文é\n"));
        n += 1;
    }
    s.extend(std::iter::repeat_n('.', bytes - s.len()));
    s
}

struct Piece<'a> {
    attempt: u32,
    offset: usize,
    whole: &'a str,
    len: usize,
}

async fn put(bed: &HubBed, device: &Device, task: &Value, p: Piece<'_>) -> Got {
    let (total, sha256) = (p.whole.len(), hash(p.whole));
    let Piece {
        attempt, offset, ..
    } = p;
    let query = format!("attempt={attempt}&offset={offset}&total={total}&sha256={sha256}");
    let body = p.whole.get(offset..offset + p.len).unwrap().to_owned();
    put_raw(bed, &device.jwt(), task, &query, body).await
}

async fn put_raw(bed: &HubBed, token: &str, task: &Value, query: &str, body: String) -> Got {
    let path = format!("{}/result?{query}", task["url"].as_str().unwrap());
    let request = bed.request(Method::PUT, &path).bearer_auth(token);
    let request = request.header("content-type", "text/plain; charset=utf-8");
    read(request.body(body)).await
}

/// The whole text as `GET /tasks/{id}/result` serves it.
async fn whole(bed: &HubBed, task: &Value) -> String {
    let path = format!("{}/result", task["url"].as_str().unwrap());
    let request = bed.request(Method::GET, &path).bearer_auth(&bed.token);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["content-type"],
        "text/plain; charset=utf-8"
    );
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    response.text().await.unwrap()
}

/// A device with one task that it has; its connection has to be kept.
async fn with_task(bed: &HubBed) -> (Device, WsClient, Value) {
    let device = bed.enrol("d").await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let task = bed.post("/tasks", &json!({"task": "x"})).await.ok(202);
    ws.expect("deliver").await;
    (device, ws, task)
}

async fn report(ws: &mut WsClient, n: u64, task: &Value, kind: &str, body: Value) {
    let frame =
        json!({"type": "report", "n": n, "id": task["id"], "kind": kind, "at": 5, "body": body});
    ws.send(&frame).await;
    let ack = ws.expect("report_ack").await;
    assert!(ack.get("rejected").is_none(), "{ack}");
}

fn result_of(text: &str) -> Value {
    let beginning: String = text.chars().take(1000).collect();
    json!({
        "text": beginning, "is_error": false, "truncated": true,
        "whole": {"bytes": text.len(), "sha256": hash(text)},
    })
}

/// Uploads what the hub lacks in pieces of this many characters' worth of bytes.
async fn upload(bed: &HubBed, device: &Device, task: &Value, text: &str, size: usize) -> usize {
    let (mut offset, mut pieces) = (0, 0);
    while offset < text.len() {
        let mut len = size.min(text.len() - offset);
        while !text.is_char_boundary(offset + len) {
            len -= 1;
        }
        let piece = Piece {
            attempt: 1,
            offset,
            whole: text,
            len,
        };
        let v = put(bed, device, task, piece).await.ok(200);
        offset = usize::try_from(v["received"].as_u64().unwrap()).unwrap();
        assert_eq!(v["complete"], offset == text.len());
        pieces += 1;
    }
    pieces
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_of_sixteen_mebibytes_goes_up_in_pieces_and_comes_down_whole() {
    let bed = HubBed::start().await;
    let (device, mut ws, task) = with_task(&bed).await;
    let big = text(MAX_RESULT_BYTES);
    report(&mut ws, 1, &task, "result", result_of(&big)).await;
    let path = format!("{}/result", task["url"].as_str().unwrap());
    bed.get(&path).await.refused(404, "not_found");
    let pieces = upload(&bed, &device, &task, &big, RESULT_CHUNK_BYTES).await;
    assert!(pieces >= 32);
    assert!(whole(&bed, &task).await == big);
    let v = bed.get(task["url"].as_str().unwrap()).await.ok(200);
    assert_eq!(
        (&v["result"]["truncated"], &v["result"]["url"]),
        (&json!(true), &json!(path))
    );
    assert_eq!(v["result"]["whole"]["bytes"], MAX_RESULT_BYTES);
    // Durable, and the pieces are gone: the text stands there once.
    drop(ws);
    let bed = bed.restart().await;
    assert!(whole(&bed, &task).await == big);
    let db = rusqlite::Connection::open(bed.dir.path().join("hub/hub.db")).unwrap();
    let left = "SELECT count(*) FROM records WHERE key LIKE 'piece/%'";
    let left: i64 = db.query_row(left, [], |r| r.get(0)).unwrap();
    assert_eq!(left, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_survives_lost_answers_repetitions_overtaking_pieces_and_a_restart() {
    let bed = HubBed::start().await;
    let (device, mut ws, task) = with_task(&bed).await;
    let whole_text = text(100_000);
    let piece = |offset, len| Piece {
        attempt: 1,
        offset,
        whole: &whole_text,
        len,
    };
    let stands = |v: Value| (v["received"].as_u64().unwrap(), v["complete"] == true);
    // Asking takes nothing.
    let v = put(&bed, &device, &task, piece(0, 0)).await.ok(200);
    assert_eq!(stands(v), (0, false));
    let first = whole_text
        .char_indices()
        .map(|(i, _)| i)
        .find(|i| *i >= 40_000)
        .unwrap();
    let v = put(&bed, &device, &task, piece(first, 100_000 - first))
        .await
        .ok(200);
    assert_eq!(stands(v), (0, false), "a piece that overtook is not taken");
    // The same piece many times at once counts once.
    let mut same = JoinSet::new();
    let (total, sha256) = (whole_text.len(), hash(&whole_text));
    let path = format!(
        "{}/result?attempt=1&offset=0&total={total}&sha256={sha256}",
        task["url"].as_str().unwrap()
    );
    for _ in 0..8 {
        let request = bed.request(Method::PUT, &path).bearer_auth(device.jwt());
        same.spawn(read(request.body(whole_text[..first].to_owned())));
    }
    for got in same.join_all().await {
        assert_eq!(stands(got.ok(200)), (first as u64, false));
    }
    drop(ws);
    let bed = bed.restart().await;
    let v = put(&bed, &device, &task, piece(0, 0)).await.ok(200);
    assert_eq!(stands(v), (first as u64, false));
    let v = put(&bed, &device, &task, piece(first, 100_000 - first))
        .await
        .ok(200);
    assert_eq!(stands(v), (100_000, true));
    // Late pieces of what is complete change nothing; another text of this attempt will never be taken.
    let v = put(&bed, &device, &task, piece(0, first)).await.ok(200);
    assert_eq!(stands(v), (100_000, true));
    let other = text(50_000);
    let foreign = Piece {
        attempt: 1,
        offset: 0,
        whole: &other,
        len: 50_000,
    };
    put(&bed, &device, &task, foreign)
        .await
        .refused(409, "conflict");
    // The report that names it comes last.
    (ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    report(&mut ws, 1, &task, "result", result_of(&whole_text)).await;
    assert_eq!(whole(&bed, &task).await, whole_text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_whose_hash_is_another_begins_anew_and_so_does_another_text() {
    let bed = HubBed::start().await;
    let (device, _ws, task) = with_task(&bed).await;
    let good = text(60_000);
    let lie = format!("attempt=1&offset=0&total=60000&sha256={}", "0".repeat(64));
    let got = put_raw(&bed, &device.jwt(), &task, &lie, good.clone()).await;
    got.refused(400, "invalid_field");
    let begun = text(90_000);
    let at = begun
        .char_indices()
        .map(|(i, _)| i)
        .find(|i| *i >= 30_000)
        .unwrap();
    let piece = Piece {
        attempt: 1,
        offset: 0,
        whole: &begun,
        len: at,
    };
    let v = put(&bed, &device, &task, piece).await.ok(200);
    assert_eq!(v["received"], at);
    upload(&bed, &device, &task, &good, 30_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_the_devices_own_bounded_and_of_its_present_attempt() {
    let bed = HubBed::start().await;
    let (device, mut ws, task) = with_task(&bed).await;
    let ok = text(100_000);
    let query = |offset: usize, total: usize| {
        format!(
            "attempt=1&offset={offset}&total={total}&sha256={}",
            hash(&ok)
        )
    };
    let send = |token: String, query: String, body: String| {
        let (bed, task) = (&bed, &task);
        async move { put_raw(bed, &token, task, &query, body).await }
    };
    let piece = || ok[..0].to_owned() + &".".repeat(20_000);
    send(bed.token.clone(), query(0, 100_000), piece())
        .await
        .refused(403, "scope_missing");
    let stranger = bed.enrol("stranger").await;
    send(stranger.jwt(), query(0, 100_000), piece())
        .await
        .refused(404, "unknown_task");
    send(device.jwt(), query(0, MAX_RESULT_BYTES + 1), piece())
        .await
        .refused(413, "too_large");
    let long = ".".repeat(RESULT_CHUNK_BYTES + 1);
    send(device.jwt(), query(0, MAX_RESULT_BYTES), long)
        .await
        .refused(413, "too_large");
    for (query, body) in [
        (query(0, 0), piece()),
        (query(90_000, 100_000), piece()),
        (query(0, 100_000), ".".to_owned()),
        (
            "attempt=1&offset=0&total=100000&sha256=xyz".to_owned(),
            piece(),
        ),
        ("attempt=1&offset=0&total=100000".to_owned(), piece()),
        (format!("{}&colour=red", query(0, 100_000)), piece()),
    ] {
        send(device.jwt(), query, body)
            .await
            .refused(400, "invalid_field");
    }
    let unknown = "attempt=2&offset=0&total=1&sha256=".to_owned() + &hash("x");
    send(device.jwt(), unknown, "x".to_owned())
        .await
        .refused(404, "unknown_task");

    // A later attempt fences the older one's text.
    report(&mut ws, 1, &task, "status", json!({"status": "failed"})).await;
    let retry = format!("{}/retry", task["url"].as_str().unwrap());
    bed.post(&retry, &json!({})).await.ok(202);
    send(device.jwt(), query(0, 100_000), piece())
        .await
        .refused(409, "conflict");

    // So many at a time and no more.
    let mut tasks = Vec::new();
    for n in 0..5 {
        tasks.push(
            bed.post(
                "/tasks",
                &json!({"task": "x", "device": device.id.as_str()}),
            )
            .await
            .ok(202),
        );
        let got = put_raw(&bed, &device.jwt(), &tasks[n], &query(0, 100_000), piece()).await;
        if n < 4 {
            assert_eq!(got.ok(200)["received"], 20_000);
        } else {
            got.refused(429, "rate_limited");
            assert!(got.headers.contains_key("retry-after"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_begin_at_once_are_counted_together() {
    let bed = HubBed::start().await;
    let (device, _ws, _) = with_task(&bed).await;
    let mut starts = JoinSet::new();
    for _ in 0..12 {
        let task = bed.post("/tasks", &json!({"task": "x"})).await.ok(202);
        let url = task["url"].as_str().unwrap();
        let path = format!(
            "{url}/result?attempt=1&offset=0&total=100000&sha256={}",
            hash("x")
        );
        let request = bed.request(Method::PUT, &path).bearer_auth(device.jwt());
        let request = request.header("content-type", "text/plain; charset=utf-8");
        starts.spawn(read(request.body(".".repeat(20_000))));
    }
    let answers = starts.join_all().await;
    let taken = answers.iter().filter(|got| got.status == 200).count();
    let full = answers.iter().filter(|got| got.status == 429).count();
    assert_eq!((taken, full), (4, 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_result_is_shown_by_its_beginning_and_served_whole() {
    let bed = HubBed::start().await;
    let (_device, mut ws, task) = with_task(&bed).await;
    let long = text(200_000);
    report(
        &mut ws,
        1,
        &task,
        "result",
        json!({"text": long, "is_error": false}),
    )
    .await;
    let url = task["url"].as_str().unwrap();
    let v = bed.get(url).await.ok(200);
    let shown = v["result"]["text"].as_str().unwrap();
    assert!(shown.len() <= 64 << 10 && long.starts_with(shown));
    assert_eq!(v["result"]["truncated"], true);
    assert_eq!(whole(&bed, &task).await, long);
    let none = bed.post("/tasks", &json!({"task": "x"})).await.ok(202);
    let path = format!("{}/result", none["url"].as_str().unwrap());
    bed.get(&path).await.refused(404, "not_found");
    bed.get("/tasks/nope/result")
        .await
        .refused(404, "unknown_task");
}
