//! Proves the harness itself against the real CLI, one promise a test.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::claude::{ClaudeHome, LiveSession};
use crate::support::fake_anthropic::{FakeAnthropic, Place, Reply};
use crate::support::interactive::Interactive;
use crate::support::{SOON, marker};

/// Settings with one hook of the user's, a shell command.
fn hook(event: &str, command: &str) -> Value {
    let entry = json!({"type": "command", "command": "/bin/sh", "args": ["-c", command]});
    json!({"hooks": {event: [{"hooks": [entry]}]}})
}

#[tokio::test]
async fn prompt_on_stdin_reaches_the_scripted_api() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let marker = marker("stdin");

    let prompt = format!("{marker} [[say:It is done.]]");
    let result = home.print_json(&home.project("work"), &[], &prompt).await;

    assert_eq!(result["result"], "It is done.");
    let session = result["session_id"]
        .as_str()
        .expect("a result names its session");
    assert_eq!(api.count_in_context(session, &marker), 1);
    assert!(api.main_requests()[0].newest_user_text().contains(&marker));
}

#[tokio::test]
async fn prompt_typed_into_a_terminal_is_answered_on_its_screen() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let marker = marker("typed");

    let session = Interactive::start(&home, &home.project("work"), &[]).await;
    session
        .type_prompt(&format!("{marker} [[say:The screen shows this.]]"))
        .await;

    let request = api.wait_for_marker(&marker, SOON).await;
    assert_eq!(request.session_id(), Some(session.session_id().as_str()));
    session
        .wait_for_text("● The screen shows this.", SOON)
        .await;
    assert_eq!(session.exit().await, 0);
    assert!(
        home.live_sessions().is_empty(),
        "an ended session leaves the registry"
    );
}

#[tokio::test]
async fn text_of_a_hook_stands_in_the_models_context_once() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let marker = marker("hook");
    let output = json!({"hookSpecificOutput": {
        "hookEventName": "UserPromptSubmit",
        "additionalContext": marker,
    }});
    home.settings(&hook(
        "UserPromptSubmit",
        &format!("cat >/dev/null; echo '{output}'"),
    ));

    let result = home.print_json(&home.project("work"), &[], "hello").await;

    let session = result["session_id"]
        .as_str()
        .expect("a result names its session");
    assert_eq!(api.count_in_context(session, &marker), 1);
    let request = api.last_main(session).expect("the session sent its prompt");
    let hook_texts = request.texts(Place::MidSystem);
    assert!(
        hook_texts.iter().any(|text| text.contains(&marker)),
        "{hook_texts:#?}"
    );
}

#[tokio::test]
async fn resumed_session_still_knows_the_earlier_turn() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let project = home.project("work");
    let (first, second) = (marker("first"), marker("second"));

    let begun = home.print_json(&project, &[], &first).await;
    let session = begun["session_id"]
        .as_str()
        .expect("a result names its session");
    let resumed = home
        .print_json(&project, &["--resume", session], &second)
        .await;

    assert_eq!(resumed["session_id"], begun["session_id"]);
    assert_eq!(api.count_in_context(session, &first), 1);
    assert_eq!(api.count_in_context(session, &second), 1);
}

#[tokio::test]
async fn session_is_busy_exactly_while_its_answer_is_held_back() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let marker = marker("held");
    let gate = api.gate(&marker);

    let session = Interactive::start(&home, &home.project("work"), &[]).await;
    session
        .type_prompt(&format!("{marker} [[say:Released.]]"))
        .await;
    gate.wait_until_held(SOON).await;
    session.wait_for_status("busy", SOON).await;

    gate.release();
    session.wait_for_status("idle", SOON).await;
    session.wait_for_text("● Released.", SOON).await;
}

#[tokio::test]
async fn queued_answers_are_given_in_order_and_tools_really_run() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let project = home.project("work");
    let marker = marker("queued");
    let touch = |name: &str| Reply::tool("Bash", json!({"command": format!("touch {name}")}));
    api.queue(
        &marker,
        [touch("one"), touch("two"), Reply::say("Both are there.")],
    );

    let args = ["--permission-mode", "acceptEdits"];
    let result = home.print_json(&project, &args, &marker).await;

    assert_eq!(result["result"], "Both are there.");
    assert!(project.join("one").exists() && project.join("two").exists());
    let replies: Vec<_> = api
        .main_requests()
        .iter()
        .map(|r| r.reply.clone())
        .collect();
    assert_eq!(replies, ["tool:Bash", "tool:Bash", "say"]);
}

#[tokio::test]
async fn scripted_error_is_retried_by_the_cli_until_it_passes() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);

    let prompt = "hello [[error:529*1]] [[say:At last.]]";
    let result = home.print_json(&home.project("work"), &[], prompt).await;

    assert_eq!(result["result"], "At last.");
    let replies: Vec<_> = api
        .main_requests()
        .iter()
        .map(|r| r.reply.clone())
        .collect();
    assert_eq!(replies, ["error:529", "say"]);
}

#[tokio::test]
async fn subagents_do_not_count_as_the_conversation() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let (own, agents) = (marker("own"), marker("agents"));
    let task =
        json!({"description": "a task", "prompt": agents, "subagent_type": "general-purpose"});

    let prompt = format!("{own} [[tool:Agent:{task}]]");
    let result = home.print_json(&home.project("work"), &[], &prompt).await;

    let session = result["session_id"]
        .as_str()
        .expect("a result names its session");
    let agent = api.wait_for(|request| request.is_subagent(), SOON).await;
    assert_eq!(
        (agent.session_id(), agent.count(&agents)),
        (Some(session), 1)
    );
    assert_eq!(
        api.last_main(session).map(|request| request.is_subagent()),
        Some(false)
    );
}

#[tokio::test]
async fn long_prompts_and_prompts_of_several_lines_arrive_whole() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let session = Interactive::start(&home, &home.project("work"), &[]).await;

    for text in [
        "one line",
        &"many words ".repeat(40),
        &"very long ".repeat(400),
        "two\nlines",
    ] {
        let prompt = format!("{}{text}{}", marker("begin"), marker("end"));
        let request = session.ask(&api, &prompt).await;
        assert_eq!(request.count(&prompt), 1);
    }
}

#[tokio::test]
async fn prompt_typed_while_busy_waits_for_its_turn() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let (first, second) = (marker("first"), marker("second"));
    let gate = api.gate(&first);
    let session = Interactive::start(&home, &home.project("work"), &[]).await;

    session.type_prompt(&first).await;
    gate.wait_until_held(SOON).await;
    session.type_prompt(&second).await;
    assert_eq!(api.main_requests().len(), 1);

    gate.release();
    let request = api.wait_for_marker(&second, SOON).await;
    assert_eq!(request.count(&first), 1);
    assert_eq!(api.main_requests().len(), 2);
}

#[tokio::test]
async fn transcript_tells_of_a_prompt_when_it_is_written() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let marker = marker("written");
    let session = Interactive::start(&home, &home.project("work"), &[]).await;
    let id = session.session_id();

    let typed = session.type_prompt(&marker);
    let holds_marker =
        |entry: &Value| entry["type"] == "user" && entry["message"].to_string().contains(&marker);
    let (entry, ()) = tokio::join!(home.wait_for_entry(&id, holds_marker, SOON), typed);
    assert_eq!(entry["sessionId"], id);
}

#[tokio::test]
async fn killed_session_stays_in_the_registry() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let session = Interactive::start(&home, &home.project("work"), &[]).await;
    let pid = session.pid();

    assert_eq!(session.kill(Signal::KILL).await, 128 + 9);
    assert_eq!(
        home.live_sessions()
            .iter()
            .map(LiveSession::pid)
            .collect::<Vec<_>>(),
        [pid]
    );
}

#[tokio::test]
async fn session_ends_when_its_terminal_is_closed() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let session = Interactive::start(&home, &home.project("work"), &[]).await;

    session.hang_up().await;
    assert!(
        home.live_sessions().is_empty(),
        "a hung up session leaves the registry"
    );
}

#[tokio::test]
async fn untrusted_folder_asks_before_anything_runs() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let folder = home.untrusted_project("strange");
    home.settings(&hook("SessionStart", "touch started"));

    let session = Interactive::launch(&home, &folder, &[]).await;
    session.wait_for_text("trust this folder", SOON).await;
    assert!(!folder.join("started").exists());
}

#[tokio::test]
async fn git_project_is_clean_and_has_a_commit() {
    let api = FakeAnthropic::start();
    let home = ClaudeHome::new(&api);
    let project = home.git_project("work").await;

    assert_eq!(home.git(&project, &["status", "--porcelain"]).await, "");
    assert_eq!(
        home.git(&project, &["rev-list", "--count", "HEAD"]).await,
        "1\n"
    );
}
