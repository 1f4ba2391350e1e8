//! The end of a task is called back: signed, at least once, in order, and never to where it must not go.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use remote_collab::domain::Trust;
use remote_collab::hub::{AdminCall, HubConfig, Resolver};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::hub_kill::{CALLBACKS, spawn_with};
use crate::support::hub_bed::{DEADLINE, Device, HubBed, account, read};
use crate::support::ws_client::WsClient;

/// A request as the receiver got it.
#[derive(Debug, Clone)]
struct Got {
    head: String,
    body: String,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|l| {
            let (n, v) = l.split_once(':')?;
            n.eq_ignore_ascii_case(name).then(|| v.trim())
        });
        line.unwrap_or_else(|| panic!("no {name}: {}", self.head))
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A receiver that answers with what it is told, in turn; the last answer stays.
struct Receiver {
    addr: SocketAddr,
    got: mpsc::UnboundedReceiver<Got>,
}

impl Receiver {
    async fn start(answers: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (tx, got) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut n = 0;
            while let Ok((mut tcp, _)) = listener.accept().await {
                let mut bytes = Vec::new();
                let request = loop {
                    let mut chunk = [0; 4096];
                    let read = tcp.read(&mut chunk).await.unwrap_or(0);
                    bytes.extend_from_slice(&chunk[..read]);
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    if let Some((head, body)) = text.split_once("\r\n\r\n") {
                        let length = head.lines().find_map(|l| {
                            let (n, v) = l.split_once(':')?;
                            n.eq_ignore_ascii_case("content-length")
                                .then(|| v.trim().parse::<usize>().unwrap())
                        });
                        if body.len() >= length.unwrap_or(0) {
                            break Some(Got {
                                head: head.to_owned(),
                                body: body.to_owned(),
                            });
                        }
                    }
                    if read == 0 {
                        break None;
                    }
                };
                let Some(request) = request else { continue };
                let answer = answers[n.min(answers.len() - 1)];
                n += 1;
                let text =
                    format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                // Told before it is answered: a hub that is killed in between owes the call still.
                tx.send(request).ok();
                tcp.write_all(text.as_bytes()).await.ok();
            }
        });
        Self { addr, got }
    }

    fn url(&self) -> String {
        format!("http://{}/hook?key=secret", self.addr)
    }

    async fn next(&mut self) -> Got {
        timeout(DEADLINE, self.got.recv())
            .await
            .expect("a call in time")
            .unwrap()
    }
}

fn allowed(config: &mut HubConfig) {
    config.webhooks.allow_private = true;
    config.webhooks.first_wait = Duration::from_millis(20);
}

async fn bed() -> HubBed {
    HubBed::start_in(tempfile::tempdir().unwrap(), allowed).await
}

/// A token with its webhook secret.
async fn producer(bed: &HubBed, name: &str) -> (String, String, String) {
    producer_of(bed, "default", name).await
}

async fn producer_of(bed: &HubBed, of: &str, name: &str) -> (String, String, String) {
    let call = AdminCall::CreateToken {
        name: name.into(),
        account: account(of),
        scopes: [
            "tasks:write",
            "tasks:read",
            "messages:write",
            "messages:read",
        ]
        .map(str::to_owned)
        .to_vec(),
        trust: Trust::Run,
        ttl_s: 600,
    };
    let v = bed.hub.admin(&call).await.unwrap();
    let text = |name: &str| v[name].as_str().unwrap().to_owned();
    (text("token"), text("webhook_secret"), text("jti"))
}

/// Ends a task as a device does that is connected only for this.
async fn complete(addr: SocketAddr, device: &Device, instance: u128, id: &str, replies: usize) {
    let (mut ws, _, rows) = WsClient::synced(addr, device, instance).await;
    if let Some(row) = rows.last() {
        ws.ack(row["seq"].as_u64().unwrap()).await;
    }
    let mut n = 0;
    let mut report = |kind: &str, body: Value| {
        n += 1;
        json!({"type": "report", "n": n, "id": id, "kind": kind, "at": 1000 + n, "body": body})
    };
    let mut all: Vec<Value> = (0..replies)
        .map(|r| {
            let id = uuid::Uuid::from_u128(r as u128 + 1);
            report(
                "reply",
                json!({"id": id, "content": format!("{r}"), "at": 7}),
            )
        })
        .collect();
    all.push(report(
        "result",
        json!({"text": "all done", "is_error": false}),
    ));
    all.push(report("status", json!({"status": "completed"})));
    let last = all.len() as u64;
    for frame in &all {
        ws.send(frame).await;
    }
    loop {
        let frame = ws.frame().await.unwrap();
        if frame["type"] == "report_ack" && frame["n"] == last {
            return;
        }
    }
}

/// Polls until the item's callback looks as wanted.
async fn becomes(bed: &HubBed, url: &str, want: impl Fn(&Value) -> bool) -> Value {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let v = bed.get(url).await.ok(200)["callback"].clone();
        if want(&v) {
            return v;
        }
        assert!(tokio::time::Instant::now() < deadline, "{v}");
        tokio::task::yield_now().await;
    }
}

async fn post(bed: &HubBed, token: &str, url: &str) -> String {
    let body = json!({"task": "x", "callback_url": url, "metadata": {"build": 7}});
    let v = bed.post_as("/tasks", token, &body).await.ok(202);
    v["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_fails_twice_gets_the_same_call_again_and_another_program_verifies_it() {
    let bed = bed().await;
    let device = bed.enrol("d").await;
    let (token, secret, _) = producer(&bed, "p").await;
    let mut receiver =
        Receiver::start(&["500 No", "503 Later\r\nretry-after: 0", "204 Fine"]).await;
    let id = post(&bed, &token, &receiver.url()).await;
    complete(bed.hub.addr, &device, 1, &id, 0).await;
    let calls = [
        receiver.next().await,
        receiver.next().await,
        receiver.next().await,
    ];
    for call in &calls {
        assert!(call.head.starts_with("POST /hook?key=secret HTTP/1.1\r\n"));
        assert_eq!(call.header("content-type"), "application/json");
        assert_eq!(call.header("webhook-id"), calls[0].header("webhook-id"));
        assert_eq!(call.body, calls[0].body);
        verify(call, &secret, true);
    }
    let other = producer(&bed, "q").await.1;
    verify(&calls[0], &other, false);
    let v = calls[0].json();
    assert_eq!(v["type"], "task.status");
    assert_eq!(v["data"]["id"], *id);
    assert_eq!(v["data"]["status"], "completed");
    assert_eq!(v["data"]["result"]["text"], "all done");
    assert_eq!(v["data"]["metadata"], json!({"build": 7}));
    assert_eq!(v["data"]["url"], format!("/tasks/{id}"));
    let state = becomes(&bed, &format!("/tasks/{id}"), |c| c["delivered"] == 1).await;
    assert_eq!(state["attempts"], 3);
    assert_eq!(state["last_error"], Value::Null);
    assert_eq!(state["url"], format!("http://{}/hook", receiver.addr));
    assert!(receiver.got.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_and_the_end_are_called_back_in_order() {
    let bed = bed().await;
    let device = bed.enrol("d").await;
    let (token, ..) = producer(&bed, "p").await;
    let mut receiver = Receiver::start(&["200 Ok", "500 No", "200 Ok"]).await;
    let id = post(&bed, &token, &receiver.url()).await;
    complete(bed.hub.addr, &device, 1, &id, 3).await;
    let mut told = Vec::new();
    for _ in 0..5 {
        let v = receiver.next().await.json();
        told.push(match v["data"]["content"].as_str() {
            Some(content) => content.to_owned(),
            None => v["data"]["status"].as_str().unwrap().to_owned(),
        });
    }
    assert_eq!(told, ["0", "1", "1", "2", "completed"]);
    let shown = bed.get(&format!("/tasks/{id}")).await.ok(200);
    let replies: Vec<_> = shown["replies"].as_array().unwrap().iter().collect();
    assert_eq!(replies.len(), 3);
    // A message's terminal receipt calls, too.
    let mut receiver = Receiver::start(&["200 Ok"]).await;
    let body = json!({"content": "hi", "callback_url": receiver.url()});
    let v = bed.post_as("/messages", &token, &body).await.ok(202);
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 2).await;
    let done = json!({"type": "report", "n": 1, "id": v["id"], "kind": "receipt", "at": 5, "body": {"stage": "done", "at": 5}});
    ws.send(&done).await;
    let call = receiver.next().await.json();
    assert_eq!(call["type"], "message.receipt");
    assert_eq!(call["data"]["receipt"]["stage"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed_and_410_ends_the_calls() {
    let bed = bed().await;
    let device = bed.enrol("d").await;
    let (token, ..) = producer(&bed, "p").await;
    let mut secret_place = Receiver::start(&["200 Ok"]).await;
    let location: &'static str =
        Box::leak(format!("302 Found\r\nlocation: {}", secret_place.url()).into_boxed_str());
    let answers: &'static [&'static str] = Box::leak(vec![location, "410 Gone"].into_boxed_slice());
    let mut receiver = Receiver::start(answers).await;
    let id = post(&bed, &token, &receiver.url()).await;
    complete(bed.hub.addr, &device, 1, &id, 2).await;
    receiver.next().await;
    receiver.next().await;
    let state = becomes(&bed, &format!("/tasks/{id}"), |c| c["stopped"] == true).await;
    assert!(state["last_error"].as_str().unwrap().contains("410"));
    assert!(secret_place.got.try_recv().is_err());
    // Neither the second reply nor the end is told: a later call of another item is.
    let mut next = Receiver::start(&["200 Ok"]).await;
    let second = post(&bed, &token, &next.url()).await;
    complete(bed.hub.addr, &device, 2, &second, 0).await;
    next.next().await;
    assert!(receiver.got.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_resolved_once_per_call_and_the_connection_goes_to_the_checked_address() {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut receiver = Receiver::start(&["200 Ok"]).await;
    let target = receiver.addr;
    let count = Arc::clone(&asked);
    // Each answer is another: the first is the one that counts.
    let rebinding = Resolver::of(move |name, _| {
        assert_eq!(name, "hook.test");
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        let ip = if first {
            [127, 0, 0, 1]
        } else {
            [169, 254, 169, 254]
        };
        Box::pin(async move { Ok(vec![SocketAddr::from((ip, 9))]) })
    });
    let dir = tempfile::tempdir().unwrap();
    let bed = HubBed::start_in(dir, |c| {
        allowed(c);
        c.webhooks.resolver = rebinding;
    })
    .await;
    let device = bed.enrol("d").await;
    let (token, ..) = producer(&bed, "p").await;
    let url = format!("http://hook.test:{}/", target.port());
    let id = post(&bed, &token, &url).await;
    complete(bed.hub.addr, &device, 1, &id, 0).await;
    let call = receiver.next().await;
    assert_eq!(call.header("host"), format!("hook.test:{}", target.port()));
    becomes(&bed, &format!("/tasks/{id}"), |c| c["delivered"] == 1).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    // The name's next answer is a place that is never called, allowed or not.
    let id = post(&bed, &token, &url).await;
    complete(bed.hub.addr, &device, 2, &id, 0).await;
    let state = becomes(&bed, &format!("/tasks/{id}"), |c| c["attempts"] == 1).await;
    let why = state["last_error"].as_str().unwrap();
    assert!(why.contains("169.254.169.254"), "{why}");
    assert!(receiver.got.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_answered_2xx_is_taken_however_slowly_the_body_comes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let receiver = tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nand then nothing";
            tcp.write_all(answer).await.unwrap();
            open.push(tcp);
        }
    });
    let bed = HubBed::start_in(tempfile::tempdir().unwrap(), |c| {
        allowed(c);
        // A name that takes its time to be found leaves less of it for the answer.
        c.webhooks.resolver = Resolver::of(|_, port| {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
            })
        });
    })
    .await;
    let device = bed.enrol("d").await;
    let (token, ..) = producer(&bed, "p").await;
    let id = post(&bed, &token, &format!("http://hook.test:{port}/")).await;
    complete(bed.hub.addr, &device, 1, &id, 0).await;
    let state = becomes(&bed, &format!("/tasks/{id}"), |c| c["attempts"] == 1).await;
    assert_eq!(state["delivered"], 1, "{state}");
    receiver.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_allows_nothing_private_connects_to_nothing_private() {
    let receiver = Receiver::start(&["200 Ok"]).await;
    let (port, mut calls) = (receiver.addr.port(), receiver.got);
    let inside = Resolver::of(move |_, _| {
        // One public answer does not make the other one public.
        let all = ["93.184.216.34", "127.0.0.1"].map(|ip| SocketAddr::new(ip.parse().unwrap(), 1));
        Box::pin(async move { Ok(all.to_vec()) })
    });
    let dir = tempfile::tempdir().unwrap();
    let bed = HubBed::start_in(dir, |c| c.webhooks.resolver = inside).await;
    let device = bed.enrol("d").await;
    let (token, ..) = producer(&bed, "p").await;
    for bad in [
        format!("http://127.0.0.1:{port}/"),
        format!("https://127.0.0.1:{port}/"),
        format!("https://[::ffff:127.0.0.1]:{port}/"),
        format!("https://u:p@hook.test:{port}/"),
        format!("http://hook.test:{port}/"),
        "/relative".to_owned(),
    ] {
        let body = json!({"task": "x", "callback_url": bad});
        let got = bed.post_as("/tasks", &token, &body).await;
        got.refused(400, "invalid_field");
        assert_eq!(got.body["errors"][0]["pointer"], "/callback_url");
    }
    let id = post(&bed, &token, &format!("https://hook.test:{port}/")).await;
    complete(bed.hub.addr, &device, 1, &id, 0).await;
    let state = becomes(&bed, &format!("/tasks/{id}"), |c| c["attempts"] == 1).await;
    assert!(state["last_error"].as_str().unwrap().contains("127.0.0.1"));
    assert!(state["next_attempt_at"].is_i64());
    assert!(calls.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_owed_when_the_hub_was_killed_is_made_after_its_start() {
    let mut receiver = Receiver::start(&["500 No"]).await;
    let bed = bed().await;
    let device = bed.enrol("d").await;
    let HubBed { dir, hub, http, .. } = bed;
    hub.shutdown().await;
    let (child, ready) = spawn_with(dir.path(), CALLBACKS);
    let url = ready["url"].as_str().unwrap();
    let addr: SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
    let body = json!({"task": "x", "callback_url": receiver.url()});
    let token = ready["token"].as_str().unwrap();
    let v = read(
        http.post(format!("{url}/tasks"))
            .bearer_auth(token)
            .json(&body),
    )
    .await;
    let id = v.ok(202)["id"].as_str().unwrap().to_owned();
    complete(addr, &device, 1, &id, 0).await;
    // It was tried and not taken; the hub dies with the call on its list.
    let first = receiver.next().await;
    drop(child);
    while receiver.got.try_recv().is_ok() {}
    let (child, _) = spawn_with(dir.path(), CALLBACKS);
    let again = receiver.next().await;
    assert_eq!(again.header("webhook-id"), first.header("webhook-id"));
    assert_eq!(again.body, first.body);
    drop(child);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_secret_is_shown_once_renewed_on_demand_and_in_no_answer() {
    let bed = bed().await;
    let device = bed.enrol("d").await;
    let (token, secret, jti) = producer(&bed, "p").await;
    let list = bed
        .hub
        .admin(&AdminCall::ListTokens {
            account: account("default"),
        })
        .await
        .unwrap();
    assert!(!list.to_string().contains("whsec_"));
    let renew = |token: &str| AdminCall::RenewWebhookSecret {
        account: account("default"),
        token: token.to_owned(),
    };
    let renewed = bed.hub.admin(&renew(&jti)).await.unwrap();
    let renewed = renewed["webhook_secret"].as_str().unwrap().to_owned();
    assert_ne!(renewed, secret);
    assert!(bed.hub.admin(&renew("nobody")).await.is_err());
    let mut receiver = Receiver::start(&["200 Ok"]).await;
    let id = post(&bed, &token, &receiver.url()).await;
    let shown = bed.get(&format!("/tasks/{id}")).await.ok(200).to_string();
    assert!(!shown.contains("key=secret") && !shown.contains("whsec_"));
    complete(bed.hub.addr, &device, 1, &id, 0).await;
    let call = receiver.next().await;
    verify(&call, &renewed, true);
    verify(&call, &secret, false);
    // A token that is called back ends its calls.
    let id = post(&bed, &token, &receiver.url()).await;
    let revoke = AdminCall::RevokeToken {
        account: account("default"),
        token: "p".into(),
    };
    bed.hub.admin(&revoke).await.unwrap();
    complete(bed.hub.addr, &device, 2, &id, 0).await;
    becomes(&bed, &format!("/tasks/{id}"), |c| c["stopped"] == true).await;
    assert!(receiver.got.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_panics_is_made_again_and_holds_nothing_up() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let breaking = Resolver::of(move |_, port| {
        let n = count.fetch_add(1, Ordering::SeqCst);
        assert!(n != 0, "the first look-up breaks down at once");
        Box::pin(async move {
            assert!(n != 1, "the second one breaks down later");
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
        })
    });
    let bed = HubBed::start_in(tempfile::tempdir().unwrap(), |c| {
        allowed(c);
        c.webhooks.resolver = breaking;
    })
    .await;
    let device = bed.enrol("d").await;
    let (token, ..) = producer(&bed, "p").await;
    let mut receiver = Receiver::start(&["200 Ok"]).await;
    let url = format!("http://hook.test:{}/", receiver.addr.port());
    let id = post(&bed, &token, &url).await;
    complete(bed.hub.addr, &device, 1, &id, 0).await;
    assert_eq!(receiver.next().await.json()["data"]["id"], *id);
    let state = becomes(&bed, &format!("/tasks/{id}"), |c| c["delivered"] == 1).await;
    assert_eq!(state["attempts"], 3);
    // And the next one of the same host is made at once.
    let id = post(&bed, &token, &url).await;
    complete(bed.hub.addr, &device, 2, &id, 0).await;
    assert_eq!(receiver.next().await.json()["data"]["id"], *id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_account_calls_nobody_back_and_leaves_no_secret_behind() {
    let (begun, mut begins) = mpsc::unbounded_channel();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let wait = Arc::clone(&gate);
    let gated = Resolver::of(move |name, port| {
        begun.send(name).ok();
        let wait = Arc::clone(&wait);
        Box::pin(async move {
            wait.acquire().await.unwrap().forget();
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
        })
    });
    let bed = HubBed::start_in(tempfile::tempdir().unwrap(), |c| {
        allowed(c);
        c.webhooks.resolver = gated;
    })
    .await;
    let device = bed.enrol_in("acme", "goes").await;
    let (token, _, jti) = producer_of(&bed, "acme", "p").await;
    let mut receiver = Receiver::start(&["500 No"]).await;
    let port = receiver.addr.port();
    // Three calls are owed, of which the first fails once and is under way again when the account goes.
    let id = post(&bed, &token, &format!("http://acme.test:{port}/")).await;
    complete(bed.hub.addr, &device, 1, &id, 2).await;
    assert_eq!(begins.recv().await.unwrap(), "acme.test");
    gate.add_permits(1);
    receiver.next().await;
    assert_eq!(begins.recv().await.unwrap(), "acme.test");
    let delete = AdminCall::DeleteAccount {
        account: account("acme"),
    };
    bed.hub.admin(&delete).await.unwrap();
    gate.add_permits(100);
    receiver.next().await;
    // Another account's call, to know that the worker goes on.
    let device = bed.enrol("stays").await;
    let (token, _, stays) = producer(&bed, "q").await;
    let mut other = Receiver::start(&["200 Ok"]).await;
    let url = format!("http://default.test:{}/", other.addr.port());
    let id = post(&bed, &token, &url).await;
    complete(bed.hub.addr, &device, 2, &id, 0).await;
    other.next().await;
    assert_eq!(begins.recv().await.unwrap(), "default.test");
    becomes(&bed, &format!("/tasks/{id}"), |c| c["delivered"] == 1).await;
    bed.hub.shutdown().await;
    assert!(begins.try_recv().is_err());
    assert!(receiver.got.try_recv().is_err());
    let db = rusqlite::Connection::open(bed.dir.path().join("hub/hub.db")).unwrap();
    let keys: Vec<String> = db
        .prepare("SELECT key FROM records WHERE key LIKE 'hook%' OR key LIKE '%/acme/%'")
        .unwrap()
        .query_map([], |r| r.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(keys.contains(&format!("hook-secret/{stays}")), "{keys:?}");
    assert!(keys.contains(&format!("hook-state/default/{id}")));
    let left = |k: &&String| k.contains("acme") || k.contains(&jti) || k.starts_with("hook/");
    assert_eq!(keys.iter().filter(left).count(), 0, "{keys:?}");
}

/// Verifies a call as the text of Standard Webhooks says, by another program than ours.
fn verify(call: &Got, secret: &str, holds: bool) {
    const PROGRAM: &str = "
import base64, hashlib, hmac, json, sys, time
given = json.load(sys.stdin)
key = base64.b64decode(given['secret'].removeprefix('whsec_'))
assert abs(time.time() - int(given['timestamp'])) < 300, 'not now'
signed = '.'.join([given['id'], given['timestamp'], given['body']]).encode()
want = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
versions = [v.split(',', 1) for v in given['signature'].split(' ')]
print('holds' if any(v == 'v1' and hmac.compare_digest(s, want) for v, s in versions) else 'fails')
";
    let given = json!({
        "secret": secret, "body": call.body, "id": call.header("webhook-id"),
        "timestamp": call.header("webhook-timestamp"), "signature": call.header("webhook-signature"),
    });
    let mut child = Command::new("python3")
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, given.to_string().as_bytes()).unwrap();
    drop(stdin);
    let out = child.wait_with_output().unwrap();
    let word = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    assert_eq!(word, if holds { "holds" } else { "fails" });
}
