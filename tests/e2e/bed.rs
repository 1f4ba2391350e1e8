//! The whole product in one home: a hub and a daemon as processes of the real binary, and a producer's HTTP client.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, OnceLock};

use reqwest::Method;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::support::SOON;
use crate::support::claude::{ClaudeHome, Finished, claude_bin, finish};
use crate::support::fake_anthropic::FakeAnthropic;
use crate::support::watch::Watch;

/// The scopes of the producer.
const SCOPES: &str = "tasks:write,tasks:read,messages:write,messages:read,memory:read,memory:write";

/// One process of ours with its ready line.
struct Running {
    child: Child,
    ready: Value,
}

/// A hub, a daemon, and the home in which Claude Code runs beside them.
pub(crate) struct Bed {
    /// The scripted model API.
    pub(crate) api: FakeAnthropic,
    /// The home.
    pub(crate) home: ClaudeHome,
    hub: Mutex<Option<Running>>,
    daemon: Mutex<Option<Running>>,
    hub_url: OnceLock<String>,
    token: String,
    http: reqwest::Client,
}

impl Bed {
    /// Starts hub and daemon, enrolled and connected; `config` goes over the daemon's defaults for tests.
    pub(crate) async fn start(config: Value) -> Self {
        remote_collab::auth::crypto::install();
        let api = FakeAnthropic::start();
        let home = ClaudeHome::new(&api);
        let mut merged = json!({"claude_bin": claude_bin(), "idle_threshold": "0s"});
        for (key, value) in config.as_object().into_iter().flatten() {
            merged[key] = value.clone();
        }
        home.write_json(".claude/remote-collab.json", &merged);
        let mut bed = Self {
            api,
            home,
            hub: Mutex::new(None),
            daemon: Mutex::new(None),
            hub_url: OnceLock::new(),
            token: String::new(),
            http: reqwest::Client::builder()
                .no_proxy()
                .build()
                .expect("an HTTP client"),
        };
        bed.start_hub().await;
        bed.token = bed
            .run(
                &bed.hub_dir(),
                &[
                    "hub", "token", "create", "--name", "ci", "--scope", SCOPES, "--trust", "run",
                ],
                "",
            )
            .await;
        let join = bed
            .run(
                &bed.hub_dir(),
                &[
                    "hub",
                    "token",
                    "create",
                    "--name",
                    "box",
                    "--scope",
                    "devices:enroll",
                ],
                "",
            )
            .await;
        bed.run(
            &bed.daemon_dir(),
            &["login", bed.hub_url(), "--token-stdin", "--name", "box"],
            &join,
        )
        .await;
        bed.start_daemon().await;
        bed
    }

    /// The hub's data folder.
    pub(crate) fn hub_dir(&self) -> PathBuf {
        self.home.join("hub-data")
    }

    /// The daemon's data folder.
    pub(crate) fn daemon_dir(&self) -> PathBuf {
        self.home.join("daemon-data")
    }

    fn hub_url(&self) -> &str {
        self.hub_url.get().expect("the hub was started")
    }

    fn command(&self, data_dir: &Path, args: &[&str]) -> Command {
        let mut command = self
            .home
            .command_of(env!("CARGO_BIN_EXE_remote-collab"), self.home.path());
        command.arg("--data-dir").arg(data_dir).args(args);
        // One runtime folder per home: sockets of tests must not meet.
        command.env("XDG_RUNTIME_DIR", self.home.join("run"));
        command
    }

    /// Runs a command of ours to its end and returns what it printed.
    ///
    /// # Panics
    /// When it fails.
    pub(crate) async fn run(&self, data_dir: &Path, args: &[&str], stdin: &str) -> String {
        let done = finish(&mut self.command(data_dir, args), stdin).await;
        assert!(
            done.status.success(),
            "{args:?}: {}{}",
            done.stdout,
            done.stderr
        );
        done.stdout.trim().to_owned()
    }

    /// Runs a producer's command, whatever it ends with; the token is in the environment.
    pub(crate) async fn producer(&self, args: &[&str]) -> Finished {
        let mut command = self.command(&self.home.join("nowhere"), args);
        command
            .args(["--hub", self.hub_url()])
            .env("REMOTE_COLLAB_TOKEN", &self.token);
        finish(&mut command, "").await
    }

    async fn spawn(&self, data_dir: &Path, args: &[&str]) -> Running {
        let log = std::fs::File::create(data_dir.with_extension("log")).expect("a log file");
        let mut child = self
            .command(data_dir, args)
            .arg("--json")
            .env("REMOTE_COLLAB_LOG", "debug")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        let out = child.stdout.take().expect("its output is piped");
        let mut lines = BufReader::new(out).lines();
        let line = tokio::time::timeout(SOON, lines.next_line()).await;
        let line = line
            .expect("ready in time")
            .expect("readable")
            .unwrap_or_else(|| {
                let log =
                    std::fs::read_to_string(data_dir.with_extension("log")).unwrap_or_default();
                panic!("{args:?} ended before it was ready: {log}")
            });
        // Held open, so that the process never writes into a closed pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Running {
            child,
            ready: serde_json::from_str(&line).expect("one line of JSON"),
        }
    }

    /// Starts the hub, on its old port if it had one.
    pub(crate) async fn start_hub(&self) {
        let listen = self
            .hub_url
            .get()
            .and_then(|url| url.strip_prefix("http://"));
        let listen = listen.unwrap_or("127.0.0.1:0").to_owned();
        let hub = self
            .spawn(&self.hub_dir(), &["hub", "serve", "--listen", &listen])
            .await;
        let url = hub.ready["hub"]
            .as_str()
            .expect("the hub's address")
            .to_owned();
        assert_eq!(
            *self.hub_url.get_or_init(|| url.clone()),
            url,
            "the old port again"
        );
        put(&self.hub, hub);
    }

    /// Starts the daemon and waits until it is in sync.
    pub(crate) async fn start_daemon(&self) {
        let args = ["daemon", "run", "--local-listen", "127.0.0.1:0"];
        put(&self.daemon, self.spawn(&self.daemon_dir(), &args).await);
        self.until("the device is online", Method::GET, "/devices", |v| {
            v["devices"][0]["online"] == true
        })
        .await;
    }

    /// Kills the hub where it stands.
    pub(crate) async fn kill_hub(&self) {
        kill(take(&self.hub)).await;
    }

    /// Kills the daemon where it stands.
    pub(crate) async fn kill_daemon(&self) {
        kill(take(&self.daemon)).await;
    }

    /// The daemon's process.
    pub(crate) fn daemon_pid(&self) -> u32 {
        let daemon = self.daemon.lock().expect("no test panicked here");
        let pid = daemon.as_ref().and_then(|d| d.child.id());
        pid.expect("the daemon runs")
    }

    /// Sends the daemon a signal.
    pub(crate) fn signal_daemon(&self, signal: Signal) {
        signal_process(self.daemon_pid(), signal);
    }

    /// Sends the hub a signal.
    pub(crate) fn signal_hub(&self, signal: Signal) {
        let hub = self.hub.lock().expect("no test panicked here");
        let pid = hub.as_ref().and_then(|h| h.child.id());
        signal_process(pid.expect("the hub runs"), signal);
    }

    /// Asks the daemon for its status at every change of its store until the answer satisfies the condition.
    ///
    /// # Panics
    /// When none does in time.
    pub(crate) async fn until_local(&self, what: &str, done: impl Fn(&Value) -> bool) -> Value {
        let watch = Watch::new();
        watch.arm(&self.daemon_dir().join("daemon"));
        let mut last = Value::Null;
        let found = tokio::time::timeout(SOON * 2, async {
            loop {
                let mut status = self.command(&self.daemon_dir(), &["status", "--json"]);
                // Its exit code tells about the link, which may be away.
                last = finish(&mut status, "").await.json();
                if done(&last) {
                    return;
                }
                drop(tokio::time::timeout(SOON / 40, watch.changed()).await);
            }
        });
        if found.await.is_err() {
            panic!("not in time: {what}\n{last:#}\n{}", self.logs());
        }
        last
    }

    /// Enables a folder as the user would.
    pub(crate) async fn enable(&self, folder: &Path) {
        let folder = folder.to_str().expect("UTF-8");
        self.run(&self.daemon_dir(), &["enable", folder], "").await;
    }

    /// One request of the producer; the answer must not be an error.
    ///
    /// # Panics
    /// When it is one.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let (status, answer) = self.try_call(method, path, body).await.expect("an answer");
        assert!(status < 400, "{path}: {status} {answer}");
        answer
    }

    /// One request of the producer; `None` without an answer.
    pub(crate) async fn try_call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Option<(u16, Value)> {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.hub_url()))
            .bearer_auth(&self.token)
            .timeout(SOON);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.ok()?;
        Some((
            answer.status().as_u16(),
            answer.json().await.unwrap_or_default(),
        ))
    }

    /// Posts a task or a message; returns its id.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> String {
        let answer = self.call(Method::POST, path, Some(body)).await;
        answer["id"].as_str().expect("an id").to_owned()
    }

    /// Asks again at every change of the hub's store until the answer satisfies the condition.
    ///
    /// # Panics
    /// When none does in time.
    pub(crate) async fn until(
        &self,
        what: &str,
        method: Method,
        path: &str,
        done: impl Fn(&Value) -> bool,
    ) -> Value {
        let watch = Watch::new();
        watch.arm(&self.hub_dir().join("hub"));
        let mut last = Value::Null;
        let found = tokio::time::timeout(SOON * 2, async {
            loop {
                if let Some((_, answer)) = self.try_call(method.clone(), path, None).await {
                    last = answer;
                    if done(&last) {
                        return;
                    }
                }
                // Presence is no row: it changes with the link, which leaves traces in the store soon after.
                drop(tokio::time::timeout(SOON / 40, watch.changed()).await);
            }
        });
        if found.await.is_err() {
            panic!("not in time: {what}\n{last:#}\n{}", self.logs());
        }
        last
    }

    /// Waits for a task's status.
    pub(crate) async fn task(&self, id: &str, status: &str) -> Value {
        let path = format!("/tasks/{id}");
        self.until(&format!("task is {status}"), Method::GET, &path, |v| {
            v["status"] == status
        })
        .await
    }

    /// Waits for a receipt of a message.
    pub(crate) async fn receipt(&self, id: &str, stage: &str) -> Value {
        let path = format!("/messages/{id}");
        self.until(&format!("message is {stage}"), Method::GET, &path, |v| {
            stages(v).iter().any(|s| s == stage)
        })
        .await
    }

    /// The ends of the logs, for the message of a failed test.
    fn logs(&self) -> String {
        [self.hub_dir(), self.daemon_dir()]
            .map(|dir| {
                let log = std::fs::read_to_string(dir.with_extension("log")).unwrap_or_default();
                let lines: Vec<_> = log.lines().rev().take(40).collect();
                lines.into_iter().rev().collect::<Vec<_>>().join("\n")
            })
            .join("\n---\n")
    }
}

fn put(place: &Mutex<Option<Running>>, running: Running) {
    *place.lock().expect("no test panicked here") = Some(running);
}

fn take(place: &Mutex<Option<Running>>) -> Running {
    place
        .lock()
        .expect("no test panicked here")
        .take()
        .expect("it runs")
}

fn signal_process(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.expect("a process id");
    rustix::process::kill_process(pid, signal).expect("it can be signalled");
}

async fn kill(mut running: Running) {
    running.child.kill().await.expect("it can be killed");
}

/// The stages of an item's receipts, in order.
pub(crate) fn stages(item: &Value) -> Vec<String> {
    let receipts = item["receipts"].as_array().into_iter().flatten();
    receipts
        .filter_map(|r| r["stage"].as_str().map(str::to_owned))
        .collect()
}
