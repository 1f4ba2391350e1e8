//! The whole daemon, as its own machine sees it: socket, loopback, lock, status, start and stop.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use remote_collab::config::DaemonConfig;
use remote_collab::core::client::ClientConfig;
use remote_collab::daemon::link::{Directory, LinkStatus, SnapshotSource};
use remote_collab::daemon::local_api::{Control, HookHandler, Peer};
use remote_collab::daemon::status::Claude;
use remote_collab::daemon::store::QueueFilter;
use remote_collab::daemon::{Daemon, DaemonError, DaemonHandle, Options, Parts};
use remote_collab::domain::{Code, Problem, ReportKind, SessionId};
use remote_collab::local::{Client, HookAnswer, HookCall, Places, Response};
use remote_collab::wire::{DeviceFrame, HubFrame};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::fake_hub::{DEADLINE, FakeHub};

#[derive(Default)]
struct Fake {
    paused: AtomicBool,
}

impl HookHandler for Fake {
    fn hook(&self, call: HookCall, peer: Peer) -> BoxFuture<'static, HookAnswer> {
        let output = json!({ "event": call.input["hook_event_name"], "pid": peer.pid });
        let output = Some(output);
        std::future::ready(HookAnswer {
            output,
            ..HookAnswer::default()
        })
        .boxed()
    }
}

impl Control for Fake {
    fn memory(&self, session: SessionId) -> BoxFuture<'static, Result<Value, Problem>> {
        std::future::ready(Ok(json!({ "summary": session }))).boxed()
    }

    fn index(&self, _: SessionId) -> BoxFuture<'static, Result<Value, Problem>> {
        std::future::ready(Err(Problem::new(Code::NotFound, "no index"))).boxed()
    }

    fn sync_memory(&self) -> BoxFuture<'static, Result<Value, Problem>> {
        std::future::ready(Ok(json!({}))).boxed()
    }

    fn set_paused(&self, paused: bool) -> BoxFuture<'static, Result<(), Problem>> {
        self.paused.store(paused, Ordering::Relaxed);
        std::future::ready(Ok(())).boxed()
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    fn projects_changed(&self) {}
}

impl SnapshotSource for Fake {
    fn directory(&self) -> BoxFuture<'static, Directory> {
        std::future::ready(Directory::default()).boxed()
    }
}

pub(crate) struct Running {
    dir: TempDir,
    pub(crate) daemon: DaemonHandle,
    _capacity: watch::Sender<u32>,
}

fn options(dir: &Path, local: &str) -> Options {
    let places = Places::resolve(Some(&dir.join("data")), &|_| None).unwrap();
    let config = DaemonConfig {
        local_api: local.parse().unwrap(),
        ..DaemonConfig::default()
    };
    Options {
        socket: places.socket(&|_| None),
        places,
        config: Arc::new(config),
        claude: Claude {
            path: None,
            version: None,
            problem: Some("no `claude` in PATH".into()),
        },
        link: ClientConfig::default(),
        watchdog: remote_collab::daemon::watchdog::Limits::default(),
    }
}

async fn start(daemon: Daemon) -> (DaemonHandle, watch::Sender<u32>) {
    let fake = Arc::new(Fake::default());
    let (capacity, free) = watch::channel(2);
    let parts = Parts {
        hooks: fake.clone(),
        control: fake.clone(),
        source: fake,
        capacity: free,
    };
    (daemon.start(parts).await.unwrap(), capacity)
}

pub(crate) async fn running() -> Running {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::open(options(dir.path(), "127.0.0.1:0")).unwrap();
    let (daemon, capacity) = start(daemon).await;
    Running {
        dir,
        daemon,
        _capacity: capacity,
    }
}

async fn exchange(socket: PathBuf, method: &'static str, path: String, body: Value) -> Response {
    let body = match &body {
        Value::Null => Vec::new(),
        Value::String(raw) => raw.clone().into_bytes(),
        body => serde_json::to_vec(body).unwrap(),
    };
    tokio::task::spawn_blocking(move || {
        let client = Client::new(socket);
        client.exchange(method, &path, &body, DEADLINE).unwrap()
    })
    .await
    .unwrap()
}

impl Running {
    pub(crate) async fn call(&self, method: &'static str, path: &str, body: Value) -> (u16, Value) {
        let socket = self.daemon.listeners().socket.clone();
        let answer = exchange(socket, method, path.to_owned(), body).await;
        (answer.status, serde_json::from_slice(&answer.body).unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path, Value::Null).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let (status, body) = self.call("POST", path, body).await;
        assert!(status < 300, "{body}");
        body
    }

    /// One raw request over loopback; gives the whole answer.
    pub(crate) async fn loopback(&self, request: &str) -> String {
        let address = self.daemon.listeners().loopback.unwrap();
        let mut tcp = TcpStream::connect(address).await.unwrap();
        let request = request
            .replace("HOST", &address.to_string())
            .replace("TOKEN", self.daemon.local_token());
        tcp.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(DEADLINE, tcp.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        answer
    }
}

#[tokio::test]
async fn a_second_daemon_for_the_same_data_folder_is_refused_until_the_first_ended() {
    let first = running().await;
    let second = Daemon::open(options(first.dir.path(), "127.0.0.1:0")).unwrap_err();
    assert!(second.is_running());
    let pid = std::process::id().to_string();
    assert!(second.to_string().contains(&pid), "{second}");
    // The refused one has not touched the socket.
    assert_eq!(first.get("/healthz").await["status"], "ok");
    first.daemon.stop().await;
    Daemon::open(options(first.dir.path(), "127.0.0.1:0")).unwrap();
}

#[tokio::test]
async fn a_clean_stop_removes_the_socket_and_a_start_replaces_what_a_dead_daemon_left() {
    let first = running().await;
    let socket = first.daemon.listeners().socket.clone();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    timeout(DEADLINE, first.daemon.stop()).await.unwrap();
    assert!(!socket.exists());
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "a stale socket");
    let daemon = Daemon::open(options(first.dir.path(), "127.0.0.1:0")).unwrap();
    let (daemon, _capacity) = start(daemon).await;
    let answer = exchange(socket, "GET", "/readyz".into(), Value::Null).await;
    assert_eq!(answer.status, 200);
    daemon.stop().await;
}

#[tokio::test]
async fn a_taken_port_is_told_and_the_socket_is_served() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::open(options(dir.path(), &at)).unwrap();
    let (daemon, capacity) = start(daemon).await;
    let run = Running {
        dir,
        daemon,
        _capacity: capacity,
    };
    let status = run.get("/status").await;
    assert_eq!(status["listeners"]["local"], Value::Null);
    let error = status["listeners"]["local_error"].as_str().unwrap();
    assert!(error.contains(&at), "{error}");
    run.daemon.stop().await;
}

#[tokio::test]
async fn status_tells_the_truth_about_a_device_without_a_hub() {
    let run = running().await;
    let mut link = run.daemon.link().status();
    let failed = timeout(DEADLINE, link.wait_for(|s| s.code.is_some())).await;
    failed.unwrap().unwrap();
    let message = json!({ "messages": [{ "content": "a" }, { "content": "b" }] });
    run.post("/messages/push", message).await;
    let status = run.get("/status").await;
    assert_eq!(status["link"]["state"], "DISCONNECTED");
    assert_eq!(status["link"]["code"], "token_missing");
    assert!(status["link"]["hint"].as_str().unwrap().contains("login"));
    assert_eq!(status["queue"]["queued"], 2);
    assert_eq!(status["pid"], std::process::id());
    assert_eq!(status["claude"]["problem"], "no `claude` in PATH");
    run.daemon.stop().await;
}

#[tokio::test]
async fn programs_claim_messages_once_and_confirm_them() {
    let run = running().await;
    let session = SessionId::from_u128(5);
    let push = json!({ "messages": [
        { "content": "for all", "from": "build" },
        { "content": "for 5", "session_id": session, "priority": "urgent" },
        { "content": "for 6", "session_id": SessionId::from_u128(6) },
    ]});
    run.post("/messages/push", push).await;
    let path = format!("/messages?session={session}");
    let texts = |answer: &Value| {
        let messages = answer["messages"].as_array().unwrap();
        let text = |m: &Value| m["content"].as_str().unwrap().to_owned();
        messages.iter().map(text).collect::<Vec<_>>()
    };
    let peeked = run.get(&format!("{path}&peek=1")).await;
    assert_eq!(texts(&peeked), ["for 5", "for all"]);
    assert_eq!(peeked["claim"], Value::Null);
    let claimed = run.get(&path).await;
    assert_eq!(texts(&claimed), ["for 5", "for all"]);
    assert_eq!(claimed["messages"][1]["from"], "local:build");
    assert_eq!(claimed["messages"][1]["trust"], "inform");
    assert!(texts(&run.get(&path).await).is_empty(), "claimed only once");
    let confirm = json!({ "claim": claimed["claim"] });
    run.post("/messages/confirm", confirm.clone()).await;
    run.post("/messages/confirm", confirm).await;
    let counts = run.daemon.store().counts().await.unwrap();
    assert_eq!((counts.queued, counts.claimed, counts.terminal), (1, 0, 2));
    run.daemon.stop().await;
}

#[tokio::test]
async fn what_a_program_does_not_confirm_goes_back_to_the_queue() {
    let run = running().await;
    run.post(
        "/messages/push",
        json!({ "messages": [{ "content": "a" }] }),
    )
    .await;
    let claimed = run.get("/messages").await;
    let store = run.daemon.store();
    let mut claim = store.open_claims().await.unwrap().remove(0);
    claim.lease_until = remote_collab::daemon::clock::wall();
    store
        .update_claim(claim, vec![], vec![], vec![])
        .await
        .unwrap();
    let mut version = store.version();
    let back = async {
        while store
            .queued(QueueFilter::default(), 10)
            .await
            .unwrap()
            .is_empty()
        {
            version.changed().await.unwrap();
        }
    };
    timeout(DEADLINE, back).await.unwrap();
    let (status, problem) = run
        .call(
            "POST",
            "/messages/confirm",
            json!({ "claim": claimed["claim"] }),
        )
        .await;
    assert_eq!((status, &problem["code"]), (409, &json!("conflict")));
    run.daemon.stop().await;
}

#[tokio::test]
async fn a_local_task_is_queued_with_the_trust_to_run_and_can_be_looked_at() {
    let run = running().await;
    let task = json!({ "task": "make it so", "options": { "max_turns": 3 } });
    let posted = run.post("/tasks", task).await;
    let shown = run.get(posted["url"].as_str().unwrap()).await;
    assert_eq!(shown["status"], "queued");
    let rows = run
        .daemon
        .store()
        .queued(QueueFilter::default(), 10)
        .await
        .unwrap();
    assert_eq!(rows[0].envelope.task().unwrap().task, "make it so");
    assert_eq!(json!(rows[0].envelope.from.trust), "run");
    run.daemon.stop().await;
}

#[tokio::test]
async fn bad_requests_get_a_problem_with_a_stable_code() {
    let run = running().await;
    for (method, path, body, status, code) in [
        ("GET", "/nothing", Value::Null, 404, "not_found"),
        ("GET", "/hook", Value::Null, 405, "method_not_allowed"),
        ("POST", "/messages/push", json!("{,"), 400, "malformed_json"),
        (
            "POST",
            "/messages/push",
            json!({ "messages": 1 }),
            400,
            "invalid_field",
        ),
        (
            "POST",
            "/messages/push",
            json!({ "messages": [] }),
            400,
            "invalid_field",
        ),
        (
            "POST",
            "/tasks",
            json!({ "task": " " }),
            400,
            "invalid_field",
        ),
        (
            "POST",
            "/tasks",
            json!({ "task": "x", "bypass": 1 }),
            400,
            "invalid_field",
        ),
        (
            "POST",
            "/messages/confirm",
            json!({ "claim": SessionId::from_u128(1) }),
            404,
            "unknown_message",
        ),
        ("GET", "/memory", Value::Null, 400, "invalid_field"),
        (
            "GET",
            "/memory?session=../etc",
            Value::Null,
            400,
            "invalid_field",
        ),
        ("POST", "/control/explode", json!({}), 404, "not_found"),
    ] {
        let (got, problem) = run.call(method, path, body.clone()).await;
        let got = (got, problem["code"].as_str().unwrap());
        assert_eq!(got, (status, code), "{method} {path} {body}");
    }
    run.daemon.stop().await;
}

#[tokio::test]
async fn loopback_needs_the_token_and_refuses_foreign_hosts_origins_and_control() {
    let run = running().await;
    let auth = "authorization: Bearer TOKEN\r\nconnection: close";
    for (request, expected) in [
        (format!("GET /status HTTP/1.1\r\nhost: HOST\r\n{auth}\r\n\r\n"), "200"),
        ("GET /status HTTP/1.1\r\nhost: HOST\r\nconnection: close\r\n\r\n".into(), "token_missing"),
        (
            "GET /status HTTP/1.1\r\nhost: HOST\r\nauthorization: Bearer no\r\nconnection: close\r\n\r\n".into(),
            "token_invalid",
        ),
        (format!("GET /status HTTP/1.1\r\nhost: evil.example\r\n{auth}\r\n\r\n"), "origin_refused"),
        (
            format!("GET /status HTTP/1.1\r\nhost: HOST\r\norigin: https://evil.example\r\n{auth}\r\n\r\n"),
            "origin_refused",
        ),
        (
            format!("POST /messages/push HTTP/1.1\r\nhost: HOST\r\n{auth}\r\ncontent-length: 2\r\n\r\n{{}}"),
            "unsupported_media_type",
        ),
        (
            format!(
                "POST /control/pause HTTP/1.1\r\nhost: HOST\r\n{auth}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
            ),
            "person_required",
        ),
    ] {
        let answer = run.loopback(&request).await;
        assert!(answer.contains(expected), "{request}\n{answer}");
    }
    let mode = std::fs::metadata(&run.daemon.listeners().token_file).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    run.daemon.stop().await;
}

#[tokio::test]
async fn hooks_are_answered_with_the_peers_process_known() {
    let run = running().await;
    let call = json!({ "input": { "hook_event_name": "Stop" }, "pid": 1 });
    let answer = run.post("/hook", call).await;
    assert_eq!(answer["output"]["event"], "Stop");
    assert_eq!(answer["output"]["pid"], std::process::id());
    run.daemon.stop().await;
}

#[tokio::test]
async fn control_is_refused_to_whoever_descends_from_a_sessions_process() {
    let run = running().await;
    let paused = run.post("/control/pause", json!({})).await;
    assert_eq!(paused["paused"], true, "a person may");
    let table = remote_collab::claude::SystemProcesses;
    let line = remote_collab::claude::ancestors(&table, std::process::id());
    let own = line.first().unwrap();
    let row = remote_collab::daemon::store::SessionRow {
        session_id: SessionId::from_u128(1),
        lineage: vec![],
        pid: Some(own.pid),
        proc_start: own.start.parse().ok(),
        cwd: "/".into(),
        transcript: None,
        project: None,
        entrypoint: Some("cli".into()),
        activity: remote_collab::domain::Activity::Busy,
        reason: None,
        active_at: remote_collab::domain::WallMs(1),
        told_memory: None,
        detail: Value::Null,
    };
    run.daemon.store().put_session(row).await.unwrap();
    for verb in ["resume", "enable", "disconnect"] {
        let (status, problem) = run
            .call("POST", &format!("/control/{verb}"), json!({}))
            .await;
        assert_eq!((status, &problem["code"]), (403, &json!("person_required")));
    }
    let posted = run.post("/tasks", json!({ "task": "escape" })).await;
    assert!(posted["id"].is_string());
    let rows = run
        .daemon
        .store()
        .queued(QueueFilter::default(), 1)
        .await
        .unwrap();
    assert_eq!(json!(rows[0].envelope.from.trust), "suggest");
    run.daemon.stop().await;
}

#[tokio::test]
async fn enable_returns_once_the_hub_knows_and_disable_leaves_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = FakeHub::start().await;
    let options = options(dir.path(), "127.0.0.1:0");
    options.places.create_daemon_dirs().unwrap();
    hub.enrol(&options.places.daemon(), "http");
    let (daemon, capacity) = start(Daemon::open(options).unwrap()).await;
    let run = Running {
        dir,
        daemon,
        _capacity: capacity,
    };
    let (mut connection, _) = hub.greet().await;
    connection.synced(0).await;
    let mut link = run.daemon.link().status();
    timeout(DEADLINE, link.wait_for(LinkStatus::is_synced))
        .await
        .unwrap()
        .unwrap();
    let hub_side = tokio::spawn(async move {
        let mut told = Vec::new();
        while let Some(frame) = connection.recv_or_end().await {
            if let DeviceFrame::Report(report) = frame {
                assert_eq!(report.kind, ReportKind::Project);
                told.push((report.body["name"].clone(), report.body["enabled"].clone()));
                let (n, rejected) = (report.n, vec![]);
                connection.send(HubFrame::ReportAck { n, rejected }).await;
            }
        }
        told
    });
    for name in ["a", "b"] {
        let path = run.dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        let answer = run.post("/control/enable", json!({ "path": path })).await;
        assert_eq!(
            (&answer["project"], &answer["hub"]),
            (&json!(name), &json!("known"))
        );
    }
    let gone = run.post("/control/disable", json!({ "name": "a" })).await;
    assert_eq!(gone["hub"], "known");
    let status = run.get("/status").await;
    assert_eq!(status["projects"].as_array().unwrap().len(), 1);
    run.daemon.stop().await;
    let told = timeout(DEADLINE, hub_side).await.unwrap().unwrap();
    let expected = [("a", true), ("b", true), ("a", false)];
    let expected = expected.map(|(n, e)| (json!(n), json!(e)));
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_state_folder_that_cannot_be_used_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), "127.0.0.1:0");
    std::fs::write(options.places.root(), "a file").unwrap();
    let error = Daemon::open(options).unwrap_err();
    assert!(matches!(error, DaemonError::Io { .. }));
    assert!(error.to_string().contains("data"), "{error}");
}

#[tokio::test]
async fn a_stop_does_not_wait_for_idle_connections() {
    let run = running().await;
    let address = run.daemon.listeners().loopback.unwrap();
    let _idle = TcpStream::connect(address).await.unwrap();
    timeout(Duration::from_secs(9), run.daemon.stop())
        .await
        .unwrap();
}
