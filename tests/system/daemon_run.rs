//! `daemon run` as a process: its ready line, its end by a signal, and what a killed one leaves.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use remote_collab::local::{Places, process_env};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::fake_hub::DEADLINE;

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remote-collab"));
    command
        .args(["--data-dir"])
        .arg(dir.join("data"))
        .env("HOME", dir)
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("CLAUDECODE")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

fn daemon_run(dir: &Path) -> Command {
    let mut command = command(dir);
    command.args(["daemon", "run", "--json", "--local-listen", "127.0.0.1:0"]);
    command
}

async fn output(command: &mut Command) -> Output {
    timeout(DEADLINE, command.output()).await.unwrap().unwrap()
}

/// A daemon that said its ready line.
async fn ready(dir: &Path) -> (Child, Value) {
    let mut child = daemon_run(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap();
    let line = serde_json::from_str(&line.expect("no ready line")).unwrap();
    (child, line)
}

fn socket(dir: &Path) -> PathBuf {
    let places = Places::resolve(Some(&dir.join("data")), &process_env).unwrap();
    places.find_socket(&|_| None)
}

async fn end(child: &mut Child, signal: Signal) -> std::process::ExitStatus {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    timeout(DEADLINE, child.wait()).await.unwrap().unwrap()
}

#[tokio::test]
async fn sigterm_ends_the_daemon_cleanly_and_removes_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, line) = ready(dir.path()).await;
    assert!(
        line["local"]
            .as_str()
            .unwrap()
            .starts_with("http://127.0.0.1:")
    );
    assert!(!line["local_token"].as_str().unwrap().is_empty());
    assert!(socket(dir.path()).exists());
    let status = end(&mut child, Signal::TERM).await;
    assert!(status.success(), "{status}");
    assert!(!socket(dir.path()).exists());
}

#[tokio::test]
async fn a_second_daemon_run_says_who_is_running_and_a_killed_one_is_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let (mut first, _) = ready(dir.path()).await;
    let refused = output(&mut daemon_run(dir.path())).await;
    assert!(!refused.status.success());
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    let pid = first.id().unwrap().to_string();
    assert!(words.contains(&pid), "{words}");
    end(&mut first, Signal::KILL).await;
    assert!(socket(dir.path()).exists(), "a stale socket is left");
    let gone = output(command(dir.path()).args(["status", "--json"])).await;
    assert_eq!(
        gone.status.code(),
        Some(3),
        "a stale socket is not a daemon"
    );
    let (mut second, _) = ready(dir.path()).await;
    let up = output(command(dir.path()).args(["status", "--json"])).await;
    assert!(String::from_utf8_lossy(&up.stdout).contains("DISCONNECTED"));
    end(&mut second, Signal::TERM).await;
}
