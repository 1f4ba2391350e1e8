//! The shell against scripted programs in a folder of their own.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;
use crate::trigger::outcome;

const DEADLINE: Duration = Duration::from_secs(60);
const STEP: &str =
    r#"echo '{"type":"assistant","message":{"content":[{"type":"text","text":"step"}]}}'"#;

/// A line of shell that prints a completed result with this text.
fn result(text: &str) -> String {
    format!(
        r#"echo "{{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"terminal_reason\":\"completed\",\"result\":\"{text}\"}}""#
    )
}

struct Fake {
    dir: tempfile::TempDir,
    spec: RunSpec,
}

fn install(path: &Path, script: &str) {
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

fn fake(script: &str) -> Fake {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("claude");
    install(&program, script);
    let spec = RunSpec {
        program,
        args: vec!["-p".into()],
        cwd: dir.path().to_owned(),
        prompt: Prompt::new("Lead.", "body"),
        env: Vec::new(),
        run_id: "run-1".into(),
        session_id: SessionId::from_u128(7),
        timeout: DEADLINE,
        grace: DEADLINE,
        spawn_retry: vec![Duration::from_millis(20); 5],
    };
    Fake { dir, spec }
}

async fn stored(_: RunStarted) -> Result<(), io::Error> {
    Ok(())
}

/// Runs to the end; once a first step was told, `then` is done.
async fn drive(spec: &RunSpec, stops: &Stops, then: impl FnOnce()) -> Result<Ended, RunError> {
    let (tx, mut rx) = mpsc::channel(8);
    let run = run(spec, stored, tx, stops);
    let both = async {
        tokio::join!(run, async {
            if rx.recv().await.is_some() {
                then();
            }
            while rx.recv().await.is_some() {}
        })
    };
    tokio::time::timeout(DEADLINE, both)
        .await
        .expect("ends in time")
        .0
}

async fn to_end(spec: &RunSpec) -> Ended {
    drive(spec, &Stops::default(), || {}).await.unwrap()
}

fn text(ended: &Ended) -> &str {
    ended.result.as_ref().map_or("", |r| r.task.text.as_str())
}

fn read_pid(path: &Path) -> u32 {
    std::fs::read_to_string(path)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

async fn is_gone(pid: u32) {
    let gone = async {
        while start_time(pid).is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, gone)
        .await
        .expect("process is gone");
}

#[tokio::test]
async fn a_run_gets_its_prompt_on_stdin_and_tells_steps_and_result() {
    let init = r#"echo '{"type":"system","subtype":"init","session_id":"00000000-0000-0000-0000-000000000009"}'"#;
    let mut f = fake(&format!(
        "{init}; {STEP}; body=$(cat | tail -n 1); {}",
        result("$1 $body")
    ));
    f.spec.prompt = Prompt::new("Lead.", "do it");
    let (tx, mut rx) = mpsc::channel(8);
    let ended = run(&f.spec, stored, tx, &Stops::default()).await.unwrap();
    assert_eq!(text(&ended), "-p do it");
    let id = SessionId::from_u128(9);
    assert_eq!(
        rx.recv().await,
        Some(RunEvent::Session(id)),
        "not the id that was asked for"
    );
    let step = Progress {
        text: "step".into(),
    };
    assert_eq!(rx.recv().await, Some(RunEvent::Progress(step)));
    assert_eq!((ended.session_id, ended.exit.code), (Some(id), Some(0)));
    let state = outcome(&ended.observed()).state;
    assert_eq!(state, TaskState::new(TaskStatus::Completed));
}

#[tokio::test]
async fn full_pipes_on_both_sides_do_not_block() {
    let noise = "head -c 10485760 /dev/zero | tr '\\0' x >&2";
    let chatter = "head -c 10485760 /dev/zero | tr '\\0' '\\n'";
    let mut f = fake(&format!("{noise}; {chatter}; n=$(wc -c); {}", result("$n")));
    let body = "x".repeat(10 << 20);
    f.spec.prompt = Prompt::new("Lead.", &body);
    let ended = to_end(&f.spec).await;
    assert_eq!(
        text(&ended).trim(),
        f.spec.prompt.as_str().len().to_string()
    );
    assert!(ended.stderr.len() <= 8 << 10);
}

#[tokio::test]
async fn a_line_of_twenty_megabytes_is_skipped_and_the_result_is_read() {
    let long = "head -c 20971520 /dev/zero | tr '\\0' x; echo; echo nonsense";
    let f = fake(&format!("cat > /dev/null; {long}; {}", result("ok")));
    let ended = to_end(&f.spec).await;
    assert_eq!((text(&ended), ended.unread_lines), ("ok", (1, 1)));
}

#[tokio::test]
async fn a_program_that_reads_nothing_and_says_nothing_has_no_result() {
    let mut f = fake("echo 'No conversation found with session ID: x' >&2; exit 1");
    f.spec.prompt = Prompt::new("Lead.", &"x".repeat(1 << 20));
    let ended = to_end(&f.spec).await;
    assert_eq!(ended.result, None);
    let state = outcome(&ended.observed()).state;
    assert_eq!(state.reason.as_deref(), Some("session_not_found"));
    let silent = to_end(&fake("exit 0").spec).await;
    let state = outcome(&silent.observed()).state;
    assert_eq!(state.reason.as_deref(), Some("no_result"));
}

#[tokio::test]
async fn only_a_run_whose_model_answered_has_seen_its_prompt() {
    let said = [
        (String::from("exit 1"), false),
        (
            // No such conversation: the model was never asked.
            r#"echo '{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0}'; exit 1"#.into(),
            false,
        ),
        (format!("{STEP}; exit 1"), true),
        (result("done"), true),
    ];
    for (script, seen) in said {
        let ended = to_end(&fake(&script).spec).await;
        assert_eq!(ended.was_answered(), seen, "{script}");
    }
}

#[tokio::test]
async fn cancel_interrupts_and_waits_for_the_programs_own_end() {
    let aborted = r#"echo "{\"type\":\"result\",\"subtype\":\"error_during_execution\",\"is_error\":true,\"terminal_reason\":\"aborted_tools\"}""#;
    let f = fake(&format!(
        "trap '{aborted}; exit 0' INT; {STEP}; while :; do sleep 0.05; done"
    ));
    let stops = Stops::default();
    let ended = drive(&f.spec, &stops, || stops.cancel.cancel())
        .await
        .unwrap();
    assert_eq!(
        (ended.exit.code, ended.killed_by),
        (Some(0), Some(Kill::Cancelled))
    );
    assert!(ended.result.is_some(), "what it says at its end is read");
    let state = outcome(&ended.observed()).state;
    assert_eq!(state, TaskState::new(TaskStatus::Cancelled));
}

#[tokio::test]
async fn who_does_not_listen_is_terminated_and_then_killed() {
    for (deaf_to, signal) in [("INT", 15), ("INT TERM", 9)] {
        let mut f = fake(&format!(
            "trap '' {deaf_to}; {STEP}; while :; do sleep 0.05; done"
        ));
        f.spec.grace = Duration::from_millis(100);
        let stops = Stops::default();
        let ended = drive(&f.spec, &stops, || stops.shutdown.cancel())
            .await
            .unwrap();
        assert_eq!(ended.exit.signal, Some(signal));
        assert_eq!(ended.killed_by, Some(Kill::Shutdown));
    }
}

#[tokio::test]
async fn the_wall_clock_ends_a_run() {
    let mut f = fake("while :; do sleep 0.05; done");
    f.spec.timeout = Duration::from_millis(100);
    let ended = to_end(&f.spec).await;
    assert_eq!(ended.killed_by, Some(Kill::Timeout));
    let state = outcome(&ended.observed()).state;
    assert_eq!(state, TaskState::because(TaskStatus::Failed, "timeout"));
}

#[tokio::test]
async fn a_grandchild_does_not_outlive_its_run() {
    let script = "(trap '' INT TERM HUP; exec sleep 600) & echo $! > grandchild; cat > /dev/null";
    let f = fake(&format!("{script}; {}", result("ok")));
    let ended = to_end(&f.spec).await;
    assert_eq!(text(&ended), "ok", "its hold on the pipes delays nothing");
    is_gone(read_pid(&f.dir.path().join("grandchild"))).await;
}

#[tokio::test]
async fn the_start_is_stored_before_the_prompt_is_read() {
    let f = fake("read -r line && echo \"$line\" > got");
    let (tx, _rx) = mpsc::channel(8);
    let noted = Arc::new(Mutex::new(None));
    let note = Arc::clone(&noted);
    let got = f.dir.path().join("got");
    let before = got.clone();
    let refuse = move |started: RunStarted| async move {
        assert!(!before.exists());
        *note.lock().unwrap() = Some(started);
        Err(io::Error::other("disk full"))
    };
    let error = run(&f.spec, refuse, tx, &Stops::default())
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::NotStored(_)));
    let started: RunStarted = noted.lock().unwrap().unwrap();
    assert_ne!(started.start_time, 0);
    assert_eq!(started.session_id, SessionId::from_u128(7));
    is_gone(started.pid).await;
    assert!(!got.exists(), "no prompt was read");
}

#[tokio::test]
async fn a_dropped_run_is_killed_with_its_group() {
    let f = fake(&format!(
        "sleep 600 & echo $! > child; echo $$ > self; {STEP}; wait"
    ));
    let (tx, mut rx) = mpsc::channel(8);
    let spec = f.spec.clone();
    let task = tokio::spawn(async move { run(&spec, stored, tx, &Stops::default()).await });
    let first = tokio::time::timeout(DEADLINE, rx.recv()).await.unwrap();
    assert!(matches!(first, Some(RunEvent::Progress(_))));
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    is_gone(read_pid(&f.dir.path().join("self"))).await;
    is_gone(read_pid(&f.dir.path().join("child"))).await;
}

#[tokio::test]
async fn a_slow_reader_of_steps_gets_the_latest_and_slows_nothing() {
    let f = fake(&format!(
        "cat > /dev/null; i=0; while [ $i -lt 50 ]; do {STEP}; i=$((i+1)); done; {}",
        result("ok")
    ));
    let (tx, mut rx) = mpsc::channel(3);
    let ended = run(&f.spec, stored, tx, &Stops::default()).await.unwrap();
    let mut told = 0;
    while rx.recv().await.is_some() {
        told += 1;
    }
    assert_eq!((told, ended.skipped), (3, 47));
    assert_eq!(ended.last_text.as_deref(), Some("step"));
}

#[tokio::test]
async fn the_environment_names_the_run_and_no_other_session() {
    let mut f = fake(&result("$REMOTE_COLLAB_RUN|$CLAUDECODE|$CLAUDE_PID|$MINE"));
    f.spec.env = [
        ("CLAUDECODE", "1"),
        ("CLAUDE_PID", "2"),
        ("MINE", "3"),
        ("REMOTE_COLLAB_RUN", "x"),
    ]
    .map(|(k, v)| (k.into(), v.into()))
    .into();
    assert_eq!(text(&to_end(&f.spec).await), "run-1|||3");
}

#[tokio::test]
async fn what_looks_like_a_credential_is_not_kept() {
    let f = fake("echo 'key sk-'ant-api03-abcdefghijkl' refused' >&2; exit 1");
    assert_eq!(to_end(&f.spec).await.stderr, "key [redacted] refused");
}

#[tokio::test]
async fn a_start_that_fails_is_told_by_its_class() {
    let f = fake("exit 0");
    let stops = Stops::default();
    let mut spec = f.spec.clone();
    spec.spawn_retry = vec![Duration::from_millis(1); 3];
    spec.program = f.dir.path().join("absent");
    let missing = drive(&spec, &stops, || {}).await.unwrap_err();
    assert!(matches!(missing, RunError::ClaudeNotFound(_)));
    assert_eq!(
        missing.task_state(),
        TaskState::because(TaskStatus::Blocked, "claude_not_found")
    );

    spec.cwd = f.dir.path().join("absent");
    let folder = drive(&spec, &stops, || {}).await.unwrap_err();
    assert!(matches!(folder, RunError::FolderMissing(_)));

    let mut spec = f.spec.clone();
    std::fs::set_permissions(&spec.program, std::fs::Permissions::from_mode(0o600)).unwrap();
    spec.spawn_retry = vec![DEADLINE; 5];
    let denied = drive(&spec, &stops, || {}).await.unwrap_err();
    assert!(
        matches!(denied, RunError::Spawn { tries: 1, .. }),
        "{denied}"
    );
    assert_eq!(
        denied.task_state(),
        TaskState::because(TaskStatus::Failed, "spawn")
    );

    stops.cancel.cancel();
    let off = drive(&f.spec, &stops, || {}).await.unwrap_err();
    assert_eq!(off.task_state(), TaskState::new(TaskStatus::Cancelled));
}

#[tokio::test]
async fn a_program_that_is_just_being_replaced_is_started_at_a_later_try() {
    let mut f = fake("exit 0");
    let program = f.dir.path().join("claude-next");
    f.spec.program.clone_from(&program);
    f.spec.spawn_retry = vec![Duration::from_millis(20); 500];
    let script = result("ok");
    let updater = tokio::task::spawn_blocking(move || install(&program, &script));
    assert_eq!(text(&to_end(&f.spec).await), "ok");
    updater.await.unwrap();
}
