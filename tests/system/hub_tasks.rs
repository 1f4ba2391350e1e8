//! The hub's half of a task's life: calling off, trying again, silence, moving to another device; and of a message's.
//! Devices speak the protocol by hand, so that what happens between two frames is the test's to choose.

use std::time::Duration;

use remote_collab::domain::Trust;
use remote_collab::hub::{HubConfig, Lifecycle};
use remote_collab::wire::SUBPROTOCOL;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::hub_bed::{DEADLINE, Device, Got, HubBed, read};
use crate::support::ws_client::{WsClient, hello, upgrade};

/// A hub that looks at what time ends all the time and has no patience.
fn impatient(config: &mut HubConfig) {
    config.lifecycle = Lifecycle {
        sweep_every: Duration::from_millis(20),
        away_silence: Duration::from_millis(50),
        online_silence: Duration::from_secs(3600),
        reroute_after: Duration::from_millis(50),
        ..Lifecycle::default()
    };
}

async fn impatient_bed() -> HubBed {
    HubBed::start_in(tempfile::tempdir().unwrap(), impatient).await
}

/// A connected device that reports by hand.
struct Dev {
    ws: WsClient,
    welcome: Value,
    rows: Vec<Value>,
    n: u64,
}

impl Dev {
    /// Connects as the device that lost its queue, or as one that stands at `last`.
    async fn connect(bed: &HubBed, device: &Device, last: &Value) -> Self {
        Self::connect_as(bed, device, last, |_| {}).await
    }

    async fn connect_as(
        bed: &HubBed,
        device: &Device,
        last: &Value,
        change: impl FnOnce(&mut Value),
    ) -> Self {
        let mut ws = upgrade(bed.hub.addr, Some(&device.jwt()), Some(SUBPROTOCOL))
            .await
            .unwrap();
        let mut frame = hello(1, last);
        change(&mut frame);
        ws.send(&frame).await;
        let welcome = ws.expect("welcome").await;
        let rows = ws.until_synced().await;
        let n = welcome["report_n"].as_u64().unwrap();
        Self {
            ws,
            welcome,
            rows,
            n,
        }
    }

    async fn deliver(&mut self) -> Value {
        self.ws.expect("deliver").await
    }

    async fn ack(&mut self, row: &Value) {
        self.ws.ack(row["seq"].as_u64().unwrap()).await;
    }

    /// Reports and waits for the hub's commit; the code of a refusal.
    async fn report(&mut self, kind: &str, id: &Value, body: Value) -> Option<String> {
        self.n += 1;
        let frame =
            json!({"type": "report", "n": self.n, "id": id, "kind": kind, "at": 5, "body": body});
        self.ws.send(&frame).await;
        loop {
            let frame = self.ws.frame().await.unwrap();
            if frame["type"] == "report_ack" {
                assert_eq!(frame["n"], self.n);
                let code = frame["rejected"][0]["code"].as_str();
                return code.map(str::to_owned);
            }
            assert_eq!(frame["type"], "deliver", "{frame}");
            self.rows.push(frame);
        }
    }

    async fn status(&mut self, id: &Value, status: &str) -> Option<String> {
        self.report("status", id, json!({ "status": status })).await
    }

    async fn receipt(&mut self, id: &Value, stage: Value) -> Option<String> {
        let mut body = stage;
        body["at"] = json!(5);
        self.report("receipt", id, body).await
    }

    fn cursor(&self, row: &Value) -> Value {
        json!({"epoch": self.welcome["epoch"], "seq": row["seq"]})
    }

    /// Ends the connection and waits until the hub has noticed.
    async fn leave(self, bed: &HubBed, device: &Device) {
        drop(self.ws);
        until(|| async {
            let v = bed.get("/devices").await.ok(200);
            let all = v["devices"].as_array().unwrap().clone();
            let of = all.iter().find(|d| d["id"] == device.id.as_str());
            of.unwrap()["online"] == false
        })
        .await;
    }
}

async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "it does not happen");
        tokio::task::yield_now().await;
    }
}

fn url(v: &Value) -> &str {
    v["url"].as_str().unwrap()
}

async fn task(bed: &HubBed, body: &Value) -> Value {
    bed.post("/tasks", body).await.ok(202)
}

async fn cancel(bed: &HubBed, task: &Value) -> Got {
    bed.post(&format!("{}/cancel", url(task)), &json!({})).await
}

async fn retry(bed: &HubBed, task: &Value, body: &Value) -> Got {
    bed.post(&format!("{}/retry", url(task)), body).await
}

async fn recall(bed: &HubBed, message: &Value) -> Got {
    let request = bed.request(Method::DELETE, url(message));
    read(request.bearer_auth(&bed.token)).await
}

fn kinds(rows: &[Value]) -> Vec<&str> {
    let kind = |r: &'_ Value| -> &'static str {
        match r["envelope"]["kind"].as_str().unwrap() {
            "task" => "task",
            "message" => "message",
            "cancel" => "cancel",
            other => panic!("{other}"),
        }
    };
    rows.iter().map(kind).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_device_ever_had_is_called_off_at_once_and_never_delivered() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let first = task(&bed, &json!({"task": "never connected"})).await;
    let v = cancel(&bed, &first).await.ok(200);
    assert_eq!(v["status"], "cancelled");
    assert!(v.get("cancel_requested_at").is_none());
    let shown = bed.get(url(&first)).await.ok(200);
    assert_eq!(shown["status"], "cancelled");
    assert_eq!(shown["receipts"][1]["stage"], "cancelled");

    // A device that was here and left: what came later was never on the wire, also after a restart of the hub.
    let dev = Dev::connect(&bed, &device, &Value::Null).await;
    assert!(dev.rows.is_empty());
    dev.leave(&bed, &device).await;
    let second = task(&bed, &json!({"task": "away"})).await;
    cancel(&bed, &second).await.ok(200);
    let third = task(&bed, &json!({"task": "restart"})).await;
    let message = bed
        .post("/messages", &json!({"content": "m"}))
        .await
        .ok(202);
    let bed = bed.restart().await;
    cancel(&bed, &third).await.ok(200);
    assert_eq!(recall(&bed, &message).await.ok(200)["status"], "cancelled");
    // Twice is fine.
    assert_eq!(cancel(&bed, &third).await.ok(200)["status"], "cancelled");
    assert_eq!(recall(&bed, &message).await.ok(200)["status"], "cancelled");
    let dev = Dev::connect(&bed, &device, &Value::Null).await;
    assert!(dev.rows.is_empty(), "{:?}", dev.rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_on_the_wire_is_called_off_by_its_device_alone_and_asked_for_once() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let t = task(&bed, &json!({"task": "x"})).await;
    let row = dev.deliver().await;
    // The frame is at the device, its ack never comes.
    dev.leave(&bed, &device).await;
    let first = cancel(&bed, &t).await.ok(202);
    assert_eq!(first["status"], "queued");
    assert!(first["cancel_requested_at"].is_i64());
    assert_eq!(cancel(&bed, &t).await.ok(202), first);
    let shown = bed.get(url(&t)).await.ok(200);
    assert_eq!(shown["cancel_requested_at"], first["cancel_requested_at"]);

    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    assert_eq!(kinds(&dev.rows), ["task", "cancel"]);
    assert_eq!(dev.rows[0]["envelope"], row["envelope"]);
    let wish = dev.rows[1].clone();
    assert_eq!(
        wish["envelope"]["body"],
        json!({"task_id": t["id"], "attempt": 1})
    );
    dev.ack(&wish).await;
    dev.status(&t["id"], "cancelled").await;
    let done = dev.receipt(&wish["envelope"]["id"], json!({"stage": "done"}));
    assert_eq!(done.await, None);
    let v = bed.becomes(url(&t), |v| v["status"] == "cancelled").await;
    assert!(v.get("cancel_requested_at").is_none());
    // The wish was answered: nothing is left to deliver.
    drop(dev);
    let dev = Dev::connect(&bed, &device, &Value::Null).await;
    assert!(dev.rows.is_empty(), "{:?}", dev.rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_was_killed_does_not_know_what_was_on_the_wire_and_asks_the_device() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let t = task(&bed, &json!({"task": "x"})).await;
    dev.deliver().await;
    // The store as a kill would leave it: a copy, while the device is connected.
    let copy = tempfile::tempdir().unwrap();
    copy_dir(bed.dir.path(), copy.path());
    drop(dev);
    bed.hub.shutdown().await;
    let bed = HubBed::start_in(copy, |_| {}).await;
    let v = cancel(&bed, &t).await.ok(202);
    assert_eq!(v["status"], "queued");
    let later = task(&bed, &json!({"task": "since then"})).await;
    cancel(&bed, &later).await.ok(200);
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (kind, to) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            std::fs::create_dir_all(&to).unwrap();
            let mode = entry.metadata().unwrap().permissions();
            std::fs::set_permissions(&to, mode).unwrap();
            copy_dir(&entry.path(), &to);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), &to).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ended_before_the_cancel_came_keeps_its_end_and_a_finished_task_says_so() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let t = task(&bed, &json!({"task": "x"})).await;
    let row = dev.deliver().await;
    dev.ack(&row).await;
    dev.status(&t["id"], "running").await;
    let keyed = || {
        bed.request(Method::POST, &format!("{}/cancel", url(&t)))
            .bearer_auth(&bed.token)
            .header("idempotency-key", "c")
    };
    let asked = read(keyed()).await.ok(202);
    assert_eq!(asked["status"], "running");
    assert_eq!(dev.deliver().await["envelope"]["kind"], "cancel");
    dev.status(&t["id"], "completed").await;
    assert_eq!(bed.get(url(&t)).await.ok(200)["status"], "completed");
    let got = cancel(&bed, &t).await;
    got.refused(409, "conflict");
    assert_eq!(got.body["state"], "completed");
    assert_eq!(
        read(keyed()).await.ok(202),
        asked,
        "the key stands for its answer"
    );
    let strange = bed.post("/tasks/nope/cancel", &json!({})).await;
    strange.refused(404, "unknown_task");
    let field = bed
        .post(&format!("{}/cancel", url(&t)), &json!({"now": 1}))
        .await;
    field.refused(400, "invalid_field");
    let reader = bed.token("reader", &["tasks:read"], Trust::Run).await;
    let path = format!("{}/cancel", url(&t));
    bed.post_as(&path, &reader, &json!({}))
        .await
        .refused(403, "scope_missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_called_off_while_its_device_is_away_is_called_off_right_after_it_is_back() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let t = task(&bed, &json!({"task": "x"})).await;
    let row = dev.deliver().await;
    dev.ack(&row).await;
    dev.status(&t["id"], "running").await;
    let cursor = dev.cursor(&row);
    dev.leave(&bed, &device).await;
    cancel(&bed, &t).await.ok(202);
    // It is part of the backlog: the device has it before it is in sync.
    let mut dev = Dev::connect(&bed, &device, &cursor).await;
    assert_eq!(kinds(&dev.rows), ["cancel"]);
    dev.status(&t["id"], "cancelled").await;
    assert_eq!(bed.get(url(&t)).await.ok(200)["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_a_new_attempt_and_an_older_one_is_fenced_out() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let t = task(&bed, &json!({"task": "do it", "options": {"max_turns": 3}})).await;
    let first = dev.deliver().await;
    dev.ack(&first).await;
    retry(&bed, &t, &json!({})).await.refused(409, "conflict");
    dev.status(&t["id"], "failed").await;
    let keyed = || {
        bed.request(Method::POST, &format!("{}/retry", url(&t)))
            .bearer_auth(&bed.token)
            .header("idempotency-key", "r")
    };
    let again = read(keyed()).await.ok(202);
    assert_eq!(read(keyed()).await.ok(202), again);
    assert_eq!(
        (&again["attempt"], &again["status"]),
        (&json!(2), &json!("queued"))
    );
    let second = dev.deliver().await;
    let envelope = &second["envelope"];
    assert_eq!(envelope["body"], first["envelope"]["body"]);
    assert_eq!(envelope["attempt"], 2);
    assert_ne!(envelope["id"], t["id"]);
    assert!(envelope["expires_at"].as_i64() >= first["envelope"]["expires_at"].as_i64());

    // The older attempt speaks up: heard, and without effect.
    assert_eq!(dev.status(&t["id"], "completed").await, None);
    let result = json!({"text": "old", "is_error": false});
    assert_eq!(dev.report("result", &t["id"], result).await, None);
    let v = bed.get(url(&t)).await.ok(200);
    assert_eq!(
        (&v["status"], &v["result"]),
        (&json!("queued"), &Value::Null)
    );

    dev.ack(&second).await;
    let new = &envelope["id"];
    dev.status(new, "running").await;
    let result = json!({"text": "new", "is_error": false});
    dev.report("result", new, result).await;
    dev.status(new, "completed").await;
    let v = bed.get(url(&t)).await.ok(200);
    assert_eq!(
        (&v["status"], &v["result"]["text"]),
        (&json!("completed"), &json!("new"))
    );
    let attempts = v["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[0]["status"], "failed");
    assert_eq!(attempts[1]["status"], "completed");

    // What was done is done once more only when somebody insists; it survives a restart that it can be.
    retry(&bed, &t, &json!({})).await.refused(409, "conflict");
    drop(dev);
    let bed = bed.restart().await;
    let v = retry(&bed, &t, &json!({"force": true, "expires_in_s": 60}))
        .await
        .ok(202);
    assert_eq!(v["attempt"], 3);
    let dev = Dev::connect(&bed, &device, &Value::Null).await;
    assert_eq!(kinds(&dev.rows), ["task"]);
    assert_eq!(dev.rows[0]["envelope"]["attempt"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_never_raises_the_trust_of_what_it_repeats() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let scopes = &["tasks:write", "tasks:read"];
    let suggests = bed.token("suggests", scopes, Trust::Suggest).await;
    let t = bed
        .post_as("/tasks", &suggests, &json!({"task": "x"}))
        .await
        .ok(202);
    dev.deliver().await;
    dev.status(&t["id"], "failed").await;
    retry(&bed, &t, &json!({})).await.ok(202);
    let from = dev.deliver().await["envelope"]["from"].clone();
    assert_eq!(from, json!({"name": "suggests", "trust": "suggest"}));

    let t = task(&bed, &json!({"task": "x"})).await;
    dev.deliver().await;
    dev.status(&t["id"], "failed").await;
    let path = format!("{}/retry", url(&t));
    bed.post_as(&path, &suggests, &json!({})).await.ok(202);
    let from = dev.deliver().await["envelope"]["from"].clone();
    assert_eq!(from, json!({"name": "ci", "trust": "suggest"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_crashes_three_times_is_dead_and_says_how_to_start_it_again() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let t = task(&bed, &json!({"task": "poison"})).await;
    for n in 1..=3 {
        let row = dev.deliver().await;
        dev.ack(&row).await;
        let id = row["envelope"]["id"].clone();
        dev.status(&id, "running").await;
        let crash = json!({"status": "interrupted", "reason": "daemon_died"});
        dev.report("status", &id, crash).await;
        dev.receipt(&id, json!({"stage": "done"})).await;
        let v = bed.get(url(&t)).await.ok(200);
        if n < 3 {
            assert_eq!(v["status"], "interrupted");
            retry(&bed, &t, &json!({})).await.ok(202);
        } else {
            assert_eq!(
                (&v["status"], &v["reason"]),
                (&json!("dead"), &json!("daemon_died"))
            );
            let redrive = format!("remote-collab tasks retry {}", t["id"].as_str().unwrap());
            assert!(v["hint"].as_str().unwrap().contains(&redrive), "{v}");
        }
    }
    // Explicitly, it is started again.
    assert_eq!(retry(&bed, &t, &json!({})).await.ok(202)["attempt"], 4);
    let row = dev.deliver().await;
    dev.status(&row["envelope"]["id"], "completed").await;
    assert_eq!(bed.get(url(&t)).await.ok(200)["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undelivered_task_expires_in_time_and_is_never_delivered() {
    let bed = impatient_bed().await;
    let device = bed.enrol("d").await;
    let t = task(&bed, &json!({"task": "x", "expires_in_s": 1})).await;
    let v = bed.becomes(url(&t), |v| v["status"] == "expired").await;
    assert_eq!(v["receipts"][1]["stage"], "expired");
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    assert!(dev.rows.is_empty());
    // It may be tried again, with a fresh life. That the device never had the first attempt is not known any more.
    retry(&bed, &t, &json!({"expires_in_s": 600})).await.ok(202);
    let rows = [dev.deliver().await, dev.deliver().await];
    assert_eq!(kinds(&rows), ["cancel", "task"]);
    assert_eq!(rows[0]["envelope"]["body"]["attempt"], 1);
    assert_eq!(rows[1]["envelope"]["attempt"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_silent_device_is_interrupted_and_its_late_result_still_counts() {
    let bed = impatient_bed().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let body = json!({"task": "x", "options": {"timeout_s": 1}});
    let t = task(&bed, &body).await;
    let row = dev.deliver().await;
    dev.ack(&row).await;
    dev.status(&t["id"], "running").await;
    let cursor = dev.cursor(&row);
    dev.leave(&bed, &device).await;
    let v = bed.becomes(url(&t), |v| v["status"] == "interrupted").await;
    assert_eq!(v["reason"], "device_silent");
    // The device finished while nobody heard it; its outbox kept the reports.
    let mut dev = Dev::connect(&bed, &device, &cursor).await;
    let result = json!({"text": "late", "is_error": false});
    assert_eq!(dev.report("result", &t["id"], result).await, None);
    assert_eq!(dev.status(&t["id"], "completed").await, None);
    let v = bed.get(url(&t)).await.ok(200);
    assert_eq!(
        (&v["status"], &v["result"]["text"], &v["reason"]),
        (&json!("completed"), &json!("late"), &Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_after_silence_fences_the_old_run_and_calls_it_off() {
    let bed = impatient_bed().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let body = json!({"task": "x", "options": {"timeout_s": 1}});
    let t = task(&bed, &body).await;
    let row = dev.deliver().await;
    dev.ack(&row).await;
    dev.status(&t["id"], "running").await;
    let cursor = dev.cursor(&row);
    dev.leave(&bed, &device).await;
    bed.becomes(url(&t), |v| v["status"] == "interrupted").await;
    retry(&bed, &t, &json!({})).await.ok(202);
    let mut dev = Dev::connect(&bed, &device, &cursor).await;
    assert_eq!(kinds(&dev.rows), ["cancel", "task"]);
    let body = &dev.rows[0]["envelope"]["body"];
    assert_eq!(body, &json!({"task_id": t["id"], "attempt": 1}));
    assert_eq!(dev.status(&t["id"], "completed").await, None);
    assert_eq!(bed.get(url(&t)).await.ok(200)["status"], "queued");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_its_device_took_along_ends_and_the_devices_late_word_wins() {
    let bed = impatient_bed().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let body = json!({"content": "x", "expires_in_s": 1});
    let m = bed.post("/messages", &body).await.ok(202);
    let row = dev.deliver().await;
    dev.ack(&row).await;
    let cursor = dev.cursor(&row);
    bed.becomes(url(&m), |v| v["status"] == "on_device").await;
    dev.leave(&bed, &device).await;
    let v = bed
        .becomes(url(&m), |v| v["status"] == "undeliverable")
        .await;
    let receipts = v["receipts"].as_array().unwrap();
    assert_eq!(receipts.last().unwrap()["reason"], "device_silent");
    let mut dev = Dev::connect(&bed, &device, &cursor).await;
    dev.receipt(&m["id"], json!({"stage": "seen"})).await;
    dev.receipt(&m["id"], json!({"stage": "done"})).await;
    let v = bed.get(url(&m)).await.ok(200);
    assert_eq!(v["status"], "done");
    assert_eq!(v["receipts"].as_array().unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_taken_back_while_nothing_has_claimed_it_and_not_after() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let post = || async {
        bed.post("/messages", &json!({"content": "x"}))
            .await
            .ok(202)
    };
    let m = post().await;
    let row = dev.deliver().await;
    dev.ack(&row).await;
    dev.receipt(&m["id"], json!({"stage": "held", "reason": "closed"}))
        .await;
    let asked = recall(&bed, &m).await.ok(202);
    assert_eq!(asked["status"], "held");
    let wish = dev.deliver().await;
    assert_eq!(wish["envelope"]["body"], json!({"message_id": m["id"]}));
    assert_eq!(recall(&bed, &m).await.ok(202), asked);
    dev.receipt(&m["id"], json!({"stage": "cancelled"})).await;
    assert_eq!(bed.get(url(&m)).await.ok(200)["status"], "cancelled");
    assert_eq!(recall(&bed, &m).await.ok(200)["status"], "cancelled");

    let m = post().await;
    dev.deliver().await;
    let session = uuid::Uuid::from_u128(0x5e55);
    let claimed = json!({"stage": "claimed", "door": "hooks", "evidence": {"session_id": session}});
    dev.receipt(&m["id"], claimed).await;
    let got = recall(&bed, &m).await;
    got.refused(409, "conflict");
    assert_eq!(got.body["state"], "claimed");
    let title = got.body["title"].as_str().unwrap();
    assert!(
        title.contains(&session.to_string()) && title.contains("hooks"),
        "{title}"
    );

    // Asked while unclaimed, claimed at that moment: the truth is told.
    let m = post().await;
    dev.deliver().await;
    recall(&bed, &m).await.ok(202);
    dev.receipt(&m["id"], json!({"stage": "seen"})).await;
    dev.receipt(&m["id"], json!({"stage": "done"})).await;
    let got = recall(&bed, &m).await;
    got.refused(409, "conflict");
    assert_eq!(got.body["state"], "done");
}

fn without_sessions(frame: &mut Value) {
    frame["sessions"] = json!([]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_absent_device_never_had_goes_to_another_one_and_it_gets_nothing_later() {
    let bed = impatient_bed().await;
    let (a, b) = (bed.enrol("a").await, bed.enrol("b").await);
    let mut at_a = Dev::connect_as(&bed, &a, &Value::Null, without_sessions).await;
    let shop = json!({"task": "x", "project": "shop"});
    let had = task(&bed, &shop).await;
    let row = at_a.deliver().await;
    let cursor = at_a.cursor(&row);
    at_a.leave(&bed, &a).await;
    let t = task(&bed, &shop).await;
    let m = json!({"content": "m", "project": "shop"});
    let m = bed.post("/messages", &m).await.ok(202);
    let named = json!({"task": "x", "project": "shop", "device": a.id.as_str()});
    let named = task(&bed, &named).await;
    let by_path = task(&bed, &json!({"task": "x", "project": "/home/dev/shop"})).await;
    for v in [&t, &m, &named, &by_path] {
        assert_eq!(v["device"], a.id.as_str());
    }
    let mut at_b = Dev::connect_as(&bed, &b, &Value::Null, without_sessions).await;
    let mut got = std::mem::take(&mut at_b.rows);
    while got.len() < 2 {
        got.push(at_b.deliver().await);
    }
    let ids: Vec<_> = got.iter().map(|r| r["envelope"]["id"].clone()).collect();
    assert_eq!(ids, [t["id"].clone(), m["id"].clone()]);
    let v = bed.get(url(&t)).await.ok(200);
    assert_eq!(v["device"], b.id.as_str());
    assert_eq!(v["attempts"][0]["device"], b.id.as_str());
    assert_eq!(v["rerouted"][0]["from"], a.id.as_str());
    assert_eq!(v["rerouted"][0]["to"], b.id.as_str());
    at_b.status(&t["id"], "running").await;

    // The old device is back: what it had is there again, what moved is not, and its word about that is refused.
    let mut at_a = Dev::connect_as(&bed, &a, &Value::Null, without_sessions).await;
    let ids: Vec<_> = at_a
        .rows
        .iter()
        .map(|r| r["envelope"]["id"].clone())
        .collect();
    let kept = [&had, &named, &by_path].map(|v| v["id"].clone());
    assert_eq!(ids, kept);
    let refused = at_a.status(&t["id"], "completed").await;
    assert_eq!(refused.as_deref(), Some("unknown_message"));
    assert_eq!(bed.get(url(&t)).await.ok(200)["status"], "running");
    at_a.leave(&bed, &a).await;
    let at_a = Dev::connect_as(&bed, &a, &cursor, without_sessions).await;
    assert_eq!(at_a.rows.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_go_to_a_device_with_a_free_run_slot() {
    let bed = HubBed::start().await;
    let (a, b) = (bed.enrol("a").await, bed.enrol("b").await);
    let slots = |free: u32, active: i64| {
        move |frame: &mut Value| {
            frame["capacity"] = json!(free);
            frame["sessions"] = json!([{
                "session_id": uuid::Uuid::from_u128(u128::from(free) + 77), "project": "shop",
                "activity": "idle", "active_at": active,
            }]);
        }
    };
    let far = 9_000_000_000_000;
    let mut at_a = Dev::connect_as(&bed, &a, &Value::Null, slots(2, far + 1)).await;
    let mut at_b = Dev::connect_as(&bed, &b, &Value::Null, slots(1, far)).await;
    let shop = json!({"task": "x", "project": "shop"});
    // `a` was active last; each task takes a slot there until `a` says otherwise.
    let mut went = Vec::new();
    for _ in 0..4 {
        went.push(
            task(&bed, &shop).await["device"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    let (a_id, b_id) = (a.id.as_str(), b.id.as_str());
    assert_eq!(went, [a_id, a_id, b_id, a_id]);
    at_a.ws.send(&json!({"type": "capacity", "free": 0})).await;
    at_b.ws.send(&json!({"type": "capacity", "free": 3})).await;
    until(|| async {
        let v = bed.get("/devices").await.ok(200);
        let free: Vec<_> = v["devices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["capacity"].clone())
            .collect();
        free == [json!(0), json!(3)]
    })
    .await;
    assert_eq!(task(&bed, &shop).await["device"], b_id);
    // A message takes no slot.
    let m = json!({"content": "m", "project": "shop"});
    assert_eq!(bed.post("/messages", &m).await.ok(202)["device"], a_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_gets_nothing_by_its_name_until_a_person_lets_its_device_serve_it() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let named = |frame: &mut Value| {
        frame["projects"] = json!([{"name": "github.com/acme/shop", "path": "/home/dev/shop"}]);
        frame["sessions"] = json!([]);
    };
    let dev = Dev::connect_as(&bed, &device, &Value::Null, named).await;
    let to_it = json!({"task": "x", "project": "github.com/acme/shop"});
    task(&bed, &to_it).await;
    let path = |verb: &str| format!("/projects/github.com%2Facme%2Fshop/{verb}");
    let v = bed
        .post(&path("unapprove"), &json!({"device": device.id.as_str()}))
        .await
        .ok(200);
    assert_eq!(
        (&v["approved"], &v["name"]),
        (&json!(false), &json!("github.com/acme/shop"))
    );
    bed.post("/tasks", &to_it)
        .await
        .refused(404, "unknown_target");
    // Whatever the device announces later, and whatever becomes of the hub.
    dev.leave(&bed, &device).await;
    let bed = bed.restart().await;
    let mut dev = Dev::connect_as(&bed, &device, &Value::Null, named).await;
    let info = json!({"name": "github.com/acme/shop", "path": "/home/dev/shop2"});
    let any = json!(uuid::Uuid::from_u128(5));
    assert_eq!(dev.report("project", &any, info).await, None);
    bed.post("/tasks", &to_it)
        .await
        .refused(404, "unknown_target");
    let shown = bed.get("/projects").await.ok(200);
    assert_eq!(shown["projects"][0]["approved"], false);

    let by_path = "/projects/%2Fhome%2Fdev%2Fshop2/approve";
    let reader = bed.token("reader", &["tasks:write"], Trust::Run).await;
    bed.post_as(by_path, &reader, &json!({}))
        .await
        .refused(403, "scope_missing");
    let v = bed.post(by_path, &json!({})).await.ok(200);
    assert_eq!(v["approved"], true);
    task(&bed, &to_it).await;
    let got = bed.post("/projects/nothing/approve", &json!({})).await;
    got.refused(404, "unknown_target");
    assert_eq!(got.body["known"], json!(["github.com/acme/shop"]));
    let other = json!({"device": "nobody"});
    bed.post(&path("approve"), &other)
        .await
        .refused(404, "unknown_target");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envelope_whose_ack_was_lost_is_offered_again_at_once() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let mut dev = Dev::connect(&bed, &device, &Value::Null).await;
    let first = task(&bed, &json!({"task": "1"})).await;
    let row = dev.deliver().await;
    dev.ack(&row).await;
    bed.becomes(url(&first), |v| v["status"] == "delivered")
        .await;
    let cursor = dev.cursor(&row);
    let second = task(&bed, &json!({"task": "2"})).await;
    dev.deliver().await;
    // The daemon is killed before its commit; the same machine is back before the hub noticed, and waits for nothing.
    let generation = dev.welcome["generation"].as_u64().unwrap();
    let mut back = Dev::connect(&bed, &device, &cursor).await;
    assert!(back.welcome["generation"].as_u64().unwrap() > generation);
    let ids: Vec<_> = back
        .rows
        .iter()
        .map(|r| r["envelope"]["id"].clone())
        .collect();
    assert_eq!(ids, [second["id"].clone()]);
    assert_eq!(dev.ws.end().await, ("superseded".to_owned(), 4409));
    let row = back.rows[0].clone();
    back.ack(&row).await;
    bed.becomes(url(&second), |v| v["status"] == "delivered")
        .await;
}

/// A write lock on the hub's store, held from outside until dropped.
fn locked(bed: &HubBed) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(bed.dir.path().join("hub/hub.db")).unwrap();
    db.busy_timeout(DEADLINE).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    db
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_under_a_foreign_write_lock_succeeds_or_stores_nothing_and_a_5xx_pins_no_key() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    let keyed = || {
        bed.request(Method::POST, "/tasks")
            .bearer_auth(&bed.token)
            .header("idempotency-key", "k")
            .json(&json!({"task": "x"}))
    };
    let count = || async {
        let v = bed.get("/tasks").await.ok(200);
        v["tasks"].as_array().unwrap().len()
    };
    // Held beyond the store's patience.
    let lock = locked(&bed);
    let got = read(keyed()).await;
    got.refused(503, "store_unavailable");
    assert!(got.headers.contains_key("retry-after"));
    assert_eq!(count().await, 0);
    drop(lock);
    let first = read(keyed()).await.ok(202);
    assert_eq!(read(keyed()).await.ok(202), first);
    assert_eq!(count().await, 1);

    // Released in time: the request that waited succeeds.
    let lock = locked(&bed);
    let waiting = tokio::spawn(read(
        bed.request(Method::POST, "/tasks")
            .bearer_auth(&bed.token)
            .json(&json!({"task": "y"})),
    ));
    until(|| async { bed.get("/healthz").await.status == 200 }).await;
    assert_eq!(count().await, 1);
    drop(lock);
    waiting.await.unwrap().ok(202);
    assert_eq!(count().await, 2);
}
