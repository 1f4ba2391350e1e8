//! The real program, in processes of its own.
//!
//! A [`Machine`] is a home folder and a data folder in a temporary one, and the only environment its processes see. A
//! [`HubSite`] runs `hub serve` on a port that it keeps over restarts, a [`DeviceSite`] runs `daemon run`. What the
//! processes write, and their command lines, stay in the machine's `logs` folder: they are shown when a test fails, and
//! [`assert_no_secrets`] reads them. Signals go to children of this test alone, by pid.
#![allow(clippy::print_stderr, reason = "a failed test shows the logs")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use remote_collab::auth::{DeviceKey, crypto};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::hub_bed::{ALL_SCOPES, Device, Got, read};

/// The deadline of every wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// How long a clean stop may take.
pub(crate) const STOP: Duration = Duration::from_secs(10);
/// Time between two looks at another process, which cannot call back.
pub(crate) const LOOK: Duration = Duration::from_millis(20);
/// Lines of each log that a failed test shows.
const SHOWN: usize = 40;

pub(crate) struct Machine {
    root: TempDir,
    /// The filter of the processes' logs.
    pub(crate) log: &'static str,
    /// More of the processes' environment.
    pub(crate) env: Vec<(String, String)>,
    processes: AtomicU32,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }
}

impl Machine {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for dir in ["home", "run", "logs"] {
            std::fs::create_dir(root.path().join(dir)).unwrap();
        }
        Self {
            root,
            log: "info,remote_collab::daemon::link=debug",
            env: Vec::new(),
            processes: AtomicU32::new(0),
        }
    }

    /// A machine with a copy of the other's data folder.
    pub(crate) fn copy_of(other: &Self) -> Self {
        let new = Self::new();
        copy(&other.data(), &new.data());
        new
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.path().join("logs")
    }

    /// A command of this machine whose standard error goes to a log; gives the log's path without its ending, too.
    fn command(&self, args: &[&str]) -> (Command, PathBuf) {
        let n = self.processes.fetch_add(1, Ordering::Relaxed);
        let name = format!("{n:03}-{}", args[0]);
        let log = self.logs().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_remote-collab"));
        command
            .env_clear()
            .env("HOME", self.home())
            .env("XDG_RUNTIME_DIR", self.root.path().join("run"))
            .env("REMOTE_COLLAB_LOG", self.log)
            .envs(self.env.iter().map(|(n, v)| (n, v)))
            .current_dir(self.home())
            .args(args)
            .arg("--data-dir")
            .arg(self.data())
            .stdin(Stdio::null())
            .stderr(File::create(log.with_extension("err")).unwrap())
            .kill_on_drop(true);
        (command, log)
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, args: &[&str], stdin: &str) -> Ran {
        let (mut command, log) = self.command(args);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.unwrap();
        let mut pipe = child.stdin.take().unwrap();
        // A command that reads nothing may be gone already.
        drop(pipe.write_all(stdin.as_bytes()).await);
        drop(pipe);
        let output = timeout(PATIENCE, child.wait_with_output()).await;
        let output = output
            .unwrap_or_else(|_| panic!("{args:?} did not end"))
            .unwrap();
        let err = std::fs::read_to_string(log.with_extension("err")).unwrap();
        if err.is_empty() {
            std::fs::remove_file(log.with_extension("err")).unwrap();
        }
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err,
        }
    }

    /// Starts a long-running command and waits for its ready line.
    pub(crate) async fn spawn(&self, args: &[&str]) -> Process {
        self.spawn_with(args, &[]).await
    }

    /// As [`Self::spawn`], with more in its environment.
    pub(crate) async fn spawn_with(&self, args: &[&str], env: &[(&str, &str)]) -> Process {
        let (mut command, log) = self.command(args);
        let mut child = command
            .envs(env.iter().copied())
            .arg("--json")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, lines.next_line()).await;
        let line = line
            .unwrap_or_else(|_| panic!("{args:?} is not ready"))
            .unwrap();
        let line = line.unwrap_or_else(|| panic!("{args:?} ended before it was ready"));
        let mut rest = tokio::fs::File::create(log.with_extension("out"))
            .await
            .unwrap();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if rest
                    .write_all(format!("{line}\n").as_bytes())
                    .await
                    .is_err()
                {
                    return;
                }
            }
        });
        let pid = child.id().unwrap();
        let process = Process {
            child,
            pid,
            ready: serde_json::from_str(&line).unwrap(),
        };
        std::fs::write(log.with_extension("cmdline"), process.cmdline()).unwrap();
        process
    }

    /// The text of every log, by name.
    pub(crate) fn written(&self) -> Vec<(String, String)> {
        let mut files: Vec<_> = std::fs::read_dir(self.logs())
            .unwrap()
            .map(|f| f.unwrap().path())
            .collect();
        files.sort();
        let text = |p: &PathBuf| String::from_utf8_lossy(&std::fs::read(p).unwrap()).into_owned();
        files
            .iter()
            .map(|p| (p.display().to_string(), text(p)))
            .collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (name, text) in self.written() {
                let lines: Vec<_> = text.lines().collect();
                let from = lines.len().saturating_sub(SHOWN);
                eprintln!("--- {name}, from line {from}\n{}", lines[from..].join("\n"));
            }
        }
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    std::fs::set_permissions(to, std::fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        let to = to.join(entry.file_name());
        if kind.is_dir() {
            copy(&entry.path(), &to);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A running command; killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) pid: u32,
    pub(crate) ready: Value,
}

impl Process {
    pub(crate) fn cmdline(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/cmdline", self.pid)).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.child.start_kill().unwrap();
        timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap();
    }

    /// SIGTERM; panics unless it ends in the time of a clean stop.
    pub(crate) async fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let ended = timeout(STOP, self.child.wait()).await;
        ended.expect("a clean stop in time").unwrap()
    }
}

/// A client that keeps its connections.
pub(crate) fn http_client() -> reqwest::Client {
    crypto::install();
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE);
    client.build().unwrap()
}

/// A hub on a port that it keeps.
pub(crate) struct HubSite {
    pub(crate) machine: Machine,
    process: Option<Process>,
    pub(crate) listen: String,
    pub(crate) http: reqwest::Client,
    /// A producer's token with every scope and trust `run`.
    pub(crate) token: String,
    /// Every token that was made.
    pub(crate) secrets: Vec<String>,
}

impl HubSite {
    pub(crate) async fn start() -> Self {
        Self::start_on(Machine::new()).await
    }

    pub(crate) async fn start_on(machine: Machine) -> Self {
        let mut site = Self {
            machine,
            process: None,
            listen: "127.0.0.1:0".to_owned(),
            http: http_client(),
            token: String::new(),
            secrets: Vec::new(),
        };
        site.serve().await;
        site.token = site
            .make_token(&[
                "--name",
                "ci",
                "--trust",
                "run",
                "--scope",
                &ALL_SCOPES.join(","),
            ])
            .await;
        site
    }

    /// Starts the hub, after a stop on the port it had.
    pub(crate) async fn serve(&mut self) {
        let args = [
            "hub",
            "serve",
            "--token-rate",
            "10000",
            "--listen",
            &self.listen,
        ];
        let process = self.machine.spawn(&args).await;
        let url = process.ready["hub"].as_str().unwrap();
        url.strip_prefix("http://")
            .unwrap()
            .clone_into(&mut self.listen);
        self.process = Some(process);
    }

    pub(crate) fn process(&self) -> &Process {
        self.process.as_ref().expect("a running hub")
    }

    pub(crate) async fn kill(&mut self) {
        self.process.take().unwrap().kill().await;
    }

    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.process.take().unwrap().terminate().await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    /// What `hub token create` prints.
    pub(crate) async fn make_token(&mut self, args: &[&str]) -> String {
        let args = [&["hub", "token", "create"], args].concat();
        let token = self.machine.run(&args, "").await.ok().trim().to_owned();
        self.secrets.push(token.clone());
        token
    }

    pub(crate) async fn join_token(&mut self) -> String {
        self.make_token(&["--name", "join", "--scope", "devices:enroll"])
            .await
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        read(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Got {
        read(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.url()))
            .bearer_auth(&self.token)
    }

    /// Posts a message and gives its id.
    pub(crate) async fn message(&self, content: &str, device: &str) -> String {
        let body = json!({ "content": content, "device": device });
        let answer = self.post("/messages", &body).await.ok(202);
        answer["id"].as_str().unwrap().to_owned()
    }

    /// Polls until the item looks as wanted.
    pub(crate) async fn becomes(&self, url: &str, want: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let v = self.get(url).await.ok(200);
            if want(&v) {
                return v;
            }
            assert!(Instant::now() < until, "{url}: {v}");
            sleep(LOOK).await;
        }
    }

    /// Enrols a key that this test holds itself.
    pub(crate) async fn enrol_bare(&mut self, name: &str) -> Device {
        let join = self.join_token().await;
        let key = DeviceKey::generate().unwrap();
        let body = json!({"public_key": key.public().to_string(), "name": name, "os": "linux", "build": "t"});
        let request = self.http.post(format!("{}/enroll", self.url()));
        let v = read(request.bearer_auth(join).json(&body)).await.ok(200);
        Device {
            id: v["device_id"].as_str().unwrap().parse().unwrap(),
            key,
            hub_id: v["hub_id"].as_str().unwrap().to_owned(),
        }
    }
}

/// A developer's machine with a daemon.
pub(crate) struct DeviceSite {
    pub(crate) machine: Machine,
    process: Option<Process>,
    pub(crate) name: String,
}

impl DeviceSite {
    /// A device enrolled under this name whose daemon does not run.
    pub(crate) async fn enrolled(hub: &mut HubSite, name: &str) -> Self {
        Self::enrolled_on(Machine::new(), hub, name).await
    }

    pub(crate) async fn enrolled_on(machine: Machine, hub: &mut HubSite, name: &str) -> Self {
        let url = hub.url();
        Self::enrolled_by(machine, hub, &url, name).await
    }

    /// A device that knows its hub under another address: that of a proxy.
    pub(crate) async fn enrolled_by(
        machine: Machine,
        hub: &mut HubSite,
        url: &str,
        name: &str,
    ) -> Self {
        let join = hub.join_token().await;
        let args = ["login", url, "--token-stdin", "--name", name, "--json"];
        let said: Value = serde_json::from_str(&machine.run(&args, &join).await.ok()).unwrap();
        Self {
            machine,
            process: None,
            name: said["device"].as_str().unwrap().to_owned(),
        }
    }

    /// The same device with a copy of its data folder on another machine.
    pub(crate) fn copy(&self) -> Self {
        Self {
            machine: Machine::copy_of(&self.machine),
            process: None,
            name: self.name.clone(),
        }
    }

    pub(crate) async fn run(&mut self) {
        self.run_at("127.0.0.1:0").await;
    }

    /// Runs the daemon with more in its environment.
    pub(crate) async fn run_with(&mut self, env: &[(&str, &str)]) {
        let args = ["daemon", "run", "--local-listen", "127.0.0.1:0"];
        self.process = Some(self.machine.spawn_with(&args, env).await);
    }

    pub(crate) async fn run_at(&mut self, listen: &str) {
        let args = ["daemon", "run", "--local-listen", listen];
        self.process = Some(self.machine.spawn(&args).await);
    }

    pub(crate) fn process(&self) -> &Process {
        self.process.as_ref().expect("a running daemon")
    }

    pub(crate) async fn kill(&mut self) {
        self.process.take().unwrap().kill().await;
    }

    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.process.take().unwrap().terminate().await
    }

    /// What `status --json` says, with its exit code.
    pub(crate) async fn status(&self) -> (Option<i32>, Value) {
        let ran = self.machine.run(&["status", "--json"], "").await;
        (
            ran.code,
            serde_json::from_str(&ran.out).unwrap_or(Value::Null),
        )
    }

    /// Polls `status` until it looks as wanted.
    pub(crate) async fn until(&self, what: &str, want: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let (_, status) = self.status().await;
            if want(&status) {
                return status;
            }
            assert!(Instant::now() < until, "{what}: {status}");
            sleep(LOOK).await;
        }
    }

    pub(crate) async fn synced(&self) -> Value {
        self.until("SYNCED", |s| s["link"]["state"] == "SYNCED")
            .await
    }

    pub(crate) fn local_token(&self) -> &str {
        self.process().ready["local_token"].as_str().unwrap()
    }

    /// A request to the loopback API, with its token.
    pub(crate) fn local(
        &self,
        http: &reqwest::Client,
        method: Method,
        path: &str,
    ) -> reqwest::RequestBuilder {
        let url = self.process().ready["local"].as_str().unwrap();
        http.request(method, format!("{url}{path}"))
            .bearer_auth(self.local_token())
    }

    pub(crate) fn queue_db(&self) -> PathBuf {
        self.machine.data().join("daemon/queue.db")
    }
}

/// The stages of an item's receipts.
pub(crate) fn stages(item: &Value) -> Vec<&str> {
    let receipts = item["receipts"].as_array().unwrap();
    receipts
        .iter()
        .map(|r| r["stage"].as_str().unwrap())
        .collect()
}

/// Looks for these secrets, and for anything that looks like a JWT, in all that the processes wrote and were called with.
pub(crate) fn assert_no_secrets(machines: &[&Machine], secrets: &[String]) {
    assert!(
        secrets.iter().all(|s| s.len() >= 16),
        "too short to look for"
    );
    for (name, text) in machines.iter().flat_map(|m| m.written()) {
        for secret in secrets.iter().map(String::as_str).chain(["eyJ"]) {
            if let Some(at) = text.find(secret) {
                let line = text[..at].lines().count();
                panic!("{name} holds a secret in line {line}");
            }
        }
    }
}
