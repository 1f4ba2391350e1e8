//! A daemon as a process, a hub that does what a test tells it, and a program that stands for the CLI.
//!
//! The program obeys words in the task's text: `WAIT` goes on until its file is made or it is interrupted, `BIG` says a
//! result of megabytes. It notes what it does, so that a test can tell how often each task was begun.

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use remote_collab::daemon::projects::Projects;
use remote_collab::domain::{
    Address, Envelope, EnvelopeId, EnvelopeKind, Priority, ProjectName, Report, Sender, Trust,
    WallMs,
};
use remote_collab::local::Places;
use remote_collab::wire::{DeviceFrame, Hello, HubFrame};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::fake_hub::{Connection, DEADLINE, FakeHub};
use crate::support::watch::Watch;

const PROGRAM: &str = r#"#!/bin/sh
dir=$(dirname "$0")
[ "$1" = --version ] && { echo "2.1.332 (Claude Code)"; exit 0; }
prompt=$(cat)
name=$(printf %s "$prompt" | grep -o 'job-[a-z0-9]*' | head -n 1)
say() { printf '{"type":"result","subtype":"%s","is_error":%s,"terminal_reason":"%s","num_turns":1,"result":"' "$1" "$2" "$3"; }
echo "$name start" >> "$dir/log"
trap 'echo "$name stopped" >> "$dir/log"; say error_during_execution true aborted_tools; echo "partial\"}"; exit 0' INT
echo '{"type":"assistant","message":{"content":[{"type":"text","text":"half done"}]}}'
case $prompt in
  *WAIT*) while [ ! -e "$dir/go-$name" ]; do sleep 0.05; done;;
esac
say success false completed
case $prompt in
  *BIG*) seq 1 200000 | tr '\n' ' ';;
  *) printf done;;
esac
echo '"}'
echo "$name end" >> "$dir/log"
"#;

/// The text that `BIG` says.
pub(crate) fn big() -> String {
    (1..=200_000).map(|n| format!("{n} ")).collect()
}

/// What stands around the daemon.
pub(crate) struct RunBed {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) hub: FakeHub,
    daemon: Option<Child>,
    seq: u64,
}

/// The hub's end of a link.
pub(crate) struct Link {
    connection: Connection,
    pub(crate) hello: Hello,
    /// Reports that came and were confirmed.
    pub(crate) reports: Vec<Report>,
    waiting: VecDeque<Report>,
    /// Whether reports are confirmed.
    pub(crate) confirm: bool,
}

pub(crate) fn id(n: u128) -> EnvelopeId {
    EnvelopeId::from_u128(n)
}

fn envelope(n: u128, kind: EnvelopeKind, body: Value) -> Envelope {
    Envelope {
        id: id(n),
        kind,
        from: Sender {
            name: "ci".into(),
            trust: Trust::Run,
        },
        to: Address::default(),
        priority: Priority::Normal,
        body,
        wake: true,
        created_at: WallMs(i64::try_from(n).unwrap()),
        expires_at: WallMs(i64::MAX),
        attempt: None,
        hops: 0,
        reply_to: None,
    }
}

/// A task for one of the three projects; its job is named after it.
pub(crate) fn task(n: u128, project: usize, words: &str) -> Envelope {
    attempt(n, n, 1, project, words)
}

pub(crate) fn attempt(n: u128, task: u128, attempt: u32, project: usize, words: &str) -> Envelope {
    let body = json!({"task_id": id(task), "task": format!("job-{n} {words}")});
    let mut e = envelope(n, EnvelopeKind::Task, body);
    e.attempt = Some(attempt);
    e.to.project = Some(ProjectName::new(format!("p{project}")).unwrap());
    e
}

pub(crate) fn cancel(n: u128, task: u128) -> Envelope {
    envelope(n, EnvelopeKind::Cancel, json!({"task_id": id(task)}))
}

impl RunBed {
    /// A hub, three enabled projects and the program; no daemon yet.
    pub(crate) async fn new() -> Self {
        let hub = FakeHub::start().await;
        let dir = tempfile::tempdir().unwrap();
        let places = Places::resolve(Some(&dir.path().join("data")), &|_| None).unwrap();
        places.create_daemon_dirs().unwrap();
        hub.enrol(&places.daemon(), "http");
        let projects = Projects::new(places.daemon());
        for n in 1..=3 {
            let folder = dir.path().join(format!("p{n}"));
            std::fs::create_dir(&folder).unwrap();
            let name = ProjectName::new(format!("p{n}")).unwrap();
            projects.enable(&folder, Some(name), WallMs(1)).unwrap();
        }
        let bed = Self {
            dir,
            hub,
            daemon: None,
            seq: 0,
        };
        bed.program(PROGRAM);
        let config = json!({"claude_bin": bed.path("claude"), "runs": {"concurrent": 3}});
        std::fs::create_dir(bed.path(".claude")).unwrap();
        std::fs::write(bed.path(".claude/remote-collab.json"), config.to_string()).unwrap();
        bed
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts another program in the CLI's place.
    pub(crate) fn program(&self, script: &str) {
        let (new, path) = (self.path("claude.new"), self.path("claude"));
        std::fs::write(&new, script).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// Starts the daemon and takes its link.
    pub(crate) async fn start(&mut self) -> Link {
        self.spawn().await;
        self.link().await
    }

    /// Starts the daemon and waits for its ready line.
    pub(crate) async fn spawn(&mut self) {
        let log = std::fs::File::create(self.path("daemon.log")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_remote-collab"))
            .arg("--data-dir")
            .arg(self.path("data"))
            .args(["daemon", "run", "--json", "--local-listen", "127.0.0.1:0"])
            .env("HOME", self.dir.path())
            .env("REMOTE_COLLAB_LOG", "debug")
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("CLAUDECODE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = timeout(DEADLINE, lines.next_line()).await.unwrap();
        assert!(ready.unwrap().is_some(), "no ready line");
        self.daemon = Some(child);
    }

    /// The daemon's next link, greeted and in sync.
    pub(crate) async fn link(&mut self) -> Link {
        let (mut connection, hello) = self.hub.greet().await;
        let seq = hello.last.map_or(0, |c| c.seq.0);
        connection.synced(seq).await;
        Link {
            connection,
            hello,
            reports: Vec::new(),
            waiting: VecDeque::new(),
            confirm: true,
        }
    }

    /// Ends the daemon by this signal.
    pub(crate) async fn end(&mut self, signal: Signal) {
        let mut child = self.daemon.take().unwrap();
        let pid = i32::try_from(child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
        timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
    }

    /// Puts an envelope on the link.
    pub(crate) async fn deliver(&mut self, link: &mut Link, envelope: Envelope) {
        self.seq += 1;
        link.connection.deliver(self.seq, envelope).await;
    }

    /// Lets a job that waits go on.
    pub(crate) fn go(&self, job: u128) {
        std::fs::write(self.path(&format!("go-job-{job}")), "").unwrap();
    }

    /// What the program did so far.
    pub(crate) fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the program noted this.
    pub(crate) async fn until_logged(&self, line: &str) {
        let watch = Watch::new();
        watch.arm(self.dir.path());
        let seen = timeout(DEADLINE, async {
            while !self.log().iter().any(|l| l == line) {
                watch.changed().await;
            }
        });
        if seen.await.is_err() {
            panic!("never `{line}`: {:?}\n{}", self.log(), self.words());
        }
    }

    /// The end of the daemon's log.
    pub(crate) fn words(&self) -> String {
        let text = std::fs::read_to_string(self.path("daemon.log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(30).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Link {
    /// The next report, confirmed.
    pub(crate) async fn report(&mut self) -> Report {
        loop {
            let frame = match self.waiting.pop_front() {
                Some(report) => DeviceFrame::Report(report),
                None => self.connection.recv().await,
            };
            if let DeviceFrame::Report(report) = frame {
                if self.confirm {
                    let ack = HubFrame::ReportAck {
                        n: report.n,
                        rejected: vec![],
                    };
                    self.connection.send(ack).await;
                }
                self.reports.push(report.clone());
                return report;
            }
        }
    }

    /// Waits for the status of this attempt.
    pub(crate) async fn status(&mut self, n: u128, status: &str) -> Value {
        self.until(n, "status", |b| b["status"] == status).await
    }

    /// Waits for a stage of this envelope.
    pub(crate) async fn stage(&mut self, n: u128, stage: &str) -> Value {
        self.until(n, "receipt", |b| b["stage"] == stage).await
    }

    async fn until(&mut self, n: u128, kind: &str, is: impl Fn(&Value) -> bool) -> Value {
        let matches = |r: &Report| r.id == id(n).0 && json!(r.kind) == kind && is(&r.body);
        if let Some(known) = self.reports.iter().find(|r| matches(r)) {
            return known.body.clone();
        }
        loop {
            let report = self.report().await;
            if matches(&report) {
                return report.body;
            }
        }
    }

    /// What was reported about an envelope so far, in order: kinds with their words.
    pub(crate) fn told(&self, n: u128) -> Vec<String> {
        let of = self.reports.iter().filter(|r| r.id == id(n).0);
        of.filter_map(|r| {
            let word = match json!(r.kind).as_str()? {
                "status" => &r.body["status"],
                "receipt" => &r.body["stage"],
                "result" => return Some("result".to_owned()),
                _ => return None,
            };
            word.as_str().map(str::to_owned)
        })
        .collect()
    }

    /// The results of an attempt.
    pub(crate) fn results(&self, n: u128) -> Vec<Value> {
        let of = self.reports.iter().filter(|r| r.id == id(n).0);
        of.filter(|r| json!(r.kind) == "result")
            .map(|r| r.body.clone())
            .collect()
    }

    /// Cuts the link.
    pub(crate) fn cut(self) -> Vec<Report> {
        self.reports
    }
}

/// How often a job was begun.
pub(crate) fn starts(log: &[String], job: u128) -> usize {
    log.iter()
        .filter(|l| **l == format!("job-{job} start"))
        .count()
}
