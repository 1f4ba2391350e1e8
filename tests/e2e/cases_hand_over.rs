//! Mail on its way into a session, and everything that can die in between.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bed::{Bed, stages};
use crate::support::interactive::Interactive;
use crate::support::{SOON, marker};

/// Puts a shell script between the CLI and our hook at one event: `$1` is a folder for its notes, the rest is the hook.
pub(crate) fn wrap(folder: &Path, notes: &Path, event: &str, script: &str) {
    let wrapper = notes.join("wrapper.sh");
    std::fs::write(&wrapper, format!("#!/bin/sh\n{script}\n")).expect("the wrapper");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let file = folder.join(".claude/settings.local.json");
    let text = std::fs::read_to_string(&file).expect("enable wrote it");
    let mut settings: Value = serde_json::from_str(&text).expect("settings are JSON");
    let hook = &mut settings["hooks"][event][0]["hooks"][0];
    let mut args = vec![json!(notes), hook["command"].clone()];
    args.extend(hook["args"].as_array().expect("exec form").iter().cloned());
    hook["command"] = json!(wrapper);
    hook["args"] = Value::Array(args);
    std::fs::write(&file, settings.to_string()).expect("settings");
}

/// The script's beginning: it lets the hook speak, and kills the daemon at its first word.
const KILL_AT_FIRST_MAIL: &str = r#"notes=$1; shift
said=$("$@"); code=$?
if [ -n "$said" ] && [ ! -e "$notes/killed" ]; then
  kill -9 "$(cat "$notes/daemon")"; echo x > "$notes/killed""#;

#[tokio::test]
async fn mail_whose_hook_output_is_lost_with_the_daemon_comes_again_and_once() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    // Between the hook's claim and its output: the claim is durable, and nobody ever reads the text.
    let script = format!("{KILL_AT_FIRST_MAIL}\n  exit 0\nfi\nprintf %s \"$said\"; exit $code");
    wrap(&folder, bed.home.path(), "UserPromptSubmit", &script);
    std::fs::write(bed.home.join("daemon"), bed.daemon_pid().to_string()).expect("a note");
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    let marker = marker("message");
    let body = json!({"project": "shop", "content": marker});
    let id = bed.post("/messages", &body).await;
    bed.receipt(&id, "on_device").await;

    session.ask(&bed.api, "first").await;
    assert!(bed.home.join("killed").exists(), "the hook had the mail");
    assert_eq!(bed.api.count_in_context(&session.session_id(), &marker), 0);
    bed.kill_daemon().await;
    bed.start_daemon().await;
    // A prompt is the proof that a whole turn passed without it.
    session.ask(&bed.api, "second").await;
    session.ask(&bed.api, "third").await;

    let message = bed.receipt(&id, "done").await;
    assert_eq!(stages(&message).iter().filter(|s| *s == "seen").count(), 1);
    assert_eq!(bed.api.count_in_context(&session.session_id(), &marker), 1);
    session.ask(&bed.api, "fourth").await;
    assert_eq!(bed.api.count_in_context(&session.session_id(), &marker), 1);
    assert_eq!(session.exit().await, 0);
}

#[tokio::test]
async fn mail_that_the_hook_printed_as_the_daemon_was_killed_comes_once() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let script = format!("{KILL_AT_FIRST_MAIL}\nfi\nprintf %s \"$said\"; exit $code");
    wrap(&folder, bed.home.path(), "UserPromptSubmit", &script);
    std::fs::write(bed.home.join("daemon"), bed.daemon_pid().to_string()).expect("a note");
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    let marker = marker("message");
    let body = json!({"project": "shop", "content": marker});
    let id = bed.post("/messages", &body).await;
    bed.receipt(&id, "on_device").await;

    session.ask(&bed.api, "first").await;
    assert!(bed.home.join("killed").exists(), "the hook had the mail");
    assert_eq!(bed.api.count_in_context(&session.session_id(), &marker), 1);
    bed.kill_daemon().await;
    bed.start_daemon().await;
    session.ask(&bed.api, "second").await;
    session.ask(&bed.api, "third").await;

    let message = bed.receipt(&id, "done").await;
    assert_eq!(stages(&message).iter().filter(|s| *s == "seen").count(), 1);
    assert_eq!(bed.api.count_in_context(&session.session_id(), &marker), 1);
    assert_eq!(session.exit().await, 0);
}

#[tokio::test]
async fn mail_claimed_for_a_session_that_is_killed_goes_to_the_next_one_once() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    // The hook has its answer and the CLI never gets it.
    let script = r#"notes=$1; shift
said=$("$@")
if [ -n "$said" ]; then echo x > "$notes/claimed"; exec sleep 60; fi"#;
    wrap(&folder, bed.home.path(), "UserPromptSubmit", script);
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    let marker = marker("message");
    let body = json!({"project": "shop", "content": marker});
    let id = bed.post("/messages", &body).await;
    bed.receipt(&id, "on_device").await;
    session.type_prompt("what is new?").await;
    bed.receipt(&id, "handed_over").await;
    session.kill(Signal::KILL).await;

    bed.run(
        &bed.daemon_dir(),
        &["disable", folder.to_str().expect("UTF-8")],
        "",
    )
    .await;
    bed.enable(&folder).await;
    let next = Interactive::start(&bed.home, &folder, &[]).await;
    // Which of the next prompts finds it depends on when the death is noticed.
    let path = format!("/messages/{id}");
    let done = |v: &Value| stages(v).iter().any(|s| s == "done");
    let mut message = Value::Null;
    for _ in 0..60 {
        if done(&message) {
            break;
        }
        next.ask(&bed.api, "what is new now?").await;
        message = bed.call(reqwest::Method::GET, &path, None).await;
    }
    assert!(stages(&message).iter().filter(|s| *s == "claimed").count() > 1);
    assert_eq!(stages(&message).iter().filter(|s| *s == "seen").count(), 1);
    assert_eq!(bed.api.count_in_context(&next.session_id(), &marker), 1);
    next.hang_up().await;
}

#[tokio::test]
async fn messages_sent_during_a_turn_arrive_at_its_end_in_order_and_once() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    let turn = marker("turn");
    let gate = bed.api.gate(&turn);
    session.type_prompt(&turn).await;
    gate.wait_until_held(SOON).await;
    let markers: Vec<_> = (0..3).map(|i| marker(&format!("m{i}"))).collect();
    let mut ids = Vec::new();
    for marker in &markers {
        let body = json!({"project": "shop", "content": marker});
        ids.push(bed.post("/messages", &body).await);
    }
    for id in &ids {
        bed.receipt(id, "on_device").await;
    }
    gate.release();
    for id in &ids {
        bed.receipt(id, "done").await;
    }
    let request = bed.api.last_main(&session.session_id()).expect("a request");
    let given = request.given_text();
    let places: Vec<_> = markers.iter().map(|m| given.find(m.as_str())).collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{places:?}"
    );
    assert!(markers.iter().all(|m| request.count(m) == 1));
    assert_eq!(session.exit().await, 0);
}

#[tokio::test]
async fn twenty_messages_at_a_stop_continue_the_turn_once_and_all_arrive_once() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    let turn = marker("turn");
    let gate = bed.api.gate(&turn);
    session.type_prompt(&turn).await;
    gate.wait_until_held(SOON).await;
    let markers: Vec<_> = (0..20).map(|i| marker(&format!("m{i}"))).collect();
    let mut ids = Vec::new();
    for marker in &markers {
        // Nine of them fill one hook's output.
        let content = format!("{marker} {}", "文".repeat(600));
        let body = json!({"project": "shop", "content": content});
        ids.push(bed.post("/messages", &body).await);
    }
    for id in &ids {
        bed.receipt(id, "on_device").await;
    }
    let before = bed.api.main_requests().len();
    gate.release();
    bed.receipt(&ids[0], "done").await;
    session.wait_for_turns(1).await;
    let asked = bed.api.main_requests().len() - before;
    assert_eq!(asked, 1, "one continuation, then the turn is over");
    let id = session.session_id();
    let given = |m: &String| bed.api.count_in_context(&id, m);
    assert!((1..20).contains(&markers.iter().filter(|m| given(m) == 1).count()));

    session.ask(&bed.api, "go on").await;
    session.ask(&bed.api, "and on").await;
    for id in &ids {
        bed.receipt(id, "done").await;
    }
    let request = bed.api.last_main(&id).expect("a request");
    assert!(markers.iter().all(|m| request.count(m) == 1));
    let text = request.given_text();
    let places: Vec<_> = markers.iter().map(|m| text.find(m.as_str())).collect();
    assert!(places.is_sorted(), "{places:?}");
    let saved = "Output too large";
    assert!(!text.contains(saved), "no hook output was cut by the CLI");
    assert_eq!(session.exit().await, 0);
}

#[tokio::test]
async fn a_result_made_while_the_hub_is_away_outlives_the_daemon_and_comes_once() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let marker = marker("task");
    let gate = bed.api.gate(&marker);
    let body = json!({"project": "shop", "task": format!("{marker} [[say:kept]]")});
    let id = bed.post("/tasks", &body).await;
    gate.wait_until_held(SOON).await;

    bed.kill_hub().await;
    gate.release();
    bed.until_local("the run is over", |v| v["runs"] == json!([]))
        .await;
    bed.kill_daemon().await;
    bed.start_hub().await;
    bed.start_daemon().await;

    let task = bed.task(&id, "completed").await;
    assert_eq!(task["result"]["text"], "kept");
    assert_eq!(stages(&task).iter().filter(|s| *s == "done").count(), 1);
    let runs = bed
        .api
        .main_requests()
        .iter()
        .filter(|r| r.contains(&marker))
        .count();
    assert_eq!(runs, 1, "one execution");
}

#[tokio::test]
async fn a_task_in_a_live_session_has_its_result_also_when_the_stop_hook_was_lost() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    // As a hook that came too late on a loaded machine.
    wrap(&folder, bed.home.path(), "Stop", "exit 0");
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    session.ask(&bed.api, "hello").await;
    let id = session.session_id();
    let body = json!({"session_id": id, "task": "say done"});
    let task = bed.post("/tasks", &body).await;
    bed.task(&task, "delivered").await;
    session.ask(&bed.api, "anything? [[say:I did it.]]").await;
    let done = bed.task(&task, "completed").await;
    assert_eq!(done["result"]["text"], "I did it.");
    assert_eq!(session.exit().await, 0);
}
