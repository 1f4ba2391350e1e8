//! Hook inputs in the shape that the CLI was recorded to send.

use std::fs;
use std::path::{Path, PathBuf};

use remote_collab::claude::{EndReason, HookEvent, HookInput, NoticeKind, StartSource};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract/payloads")
}

fn payload(name: &str) -> Value {
    let text = fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn read(name: &str) -> HookInput {
    HookInput::read(&payload(name)).unwrap()
}

#[test]
fn every_recorded_shape_is_read_with_its_session_and_transcript() {
    let mut count = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let input = HookInput::read(&value).unwrap();
        let session = input.session_id.unwrap().to_string();
        let transcript = input.transcript_path.unwrap();
        assert!(
            transcript
                .to_str()
                .unwrap()
                .ends_with(&format!("{session}.jsonl")),
            "{path:?}"
        );
        assert!(input.cwd.unwrap().is_absolute());
        count += 1;
    }
    assert!(count >= 25, "{count}");
}

#[test]
fn each_event_has_its_meaning() {
    let source = |name| match read(name).event {
        HookEvent::SessionStart { source, .. } => source,
        other => panic!("{other:?}"),
    };
    assert_eq!(source("session_start_startup"), StartSource::Startup);
    assert_eq!(source("session_start_clear"), StartSource::Clear);
    assert_eq!(source("session_start_compact"), StartSource::Compact);
    assert_eq!(source("session_start_resume"), StartSource::Resume);
    assert_eq!(source("session_start_fork"), StartSource::Fork);

    let reason = |name| match read(name).event {
        HookEvent::SessionEnd { reason } => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason("session_end_clear"), EndReason::Clear);
    assert_eq!(reason("session_end_exit"), EndReason::PromptInputExit);
    assert_eq!(
        reason("session_end_other"),
        EndReason::Other("other".to_owned())
    );

    assert!(matches!(
        read("user_prompt_submit").event,
        HookEvent::UserPromptSubmit { prompt } if prompt.starts_with('修')
    ));
    assert!(matches!(
        read("stop").event,
        HookEvent::Stop { stop_hook_active: false, last_assistant_message: Some(m), background_tasks: 0 }
            if m == "all done"
    ));
    assert!(matches!(
        read("stop_active").event,
        HookEvent::Stop {
            stop_hook_active: true,
            background_tasks: 1,
            ..
        }
    ));
    assert!(matches!(
        read("notification_idle").event,
        HookEvent::Notification {
            kind: NoticeKind::IdlePrompt,
            ..
        }
    ));
    assert!(matches!(
        read("notification_permission").event,
        HookEvent::Notification {
            kind: NoticeKind::PermissionPrompt,
            ..
        }
    ));
    assert!(matches!(
        read("post_tool_use_failure").event,
        HookEvent::PostToolUseFailure { error, interrupted: false, .. } if error == "Exit code 3"
    ));
    assert!(matches!(
        read("cwd_changed").event,
        HookEvent::CwdChanged { old: Some(_), new: Some(new) } if new.ends_with("web")
    ));
    assert!(matches!(
        read("file_changed").event,
        HookEvent::FileChanged { path: Some(_), .. }
    ));
    assert!(matches!(
        read("pre_compact_manual").event,
        HookEvent::PreCompact { manual: true }
    ));
    assert!(matches!(
        read("pre_compact_auto").event,
        HookEvent::PreCompact { manual: false }
    ));
    assert!(
        matches!(read("permission_request").event, HookEvent::PermissionRequest { tool, .. } if tool == "Bash")
    );
}

#[test]
fn events_inside_a_subagent_and_events_of_a_later_version_are_told_apart() {
    assert!(read("post_tool_use_subagent").agent_id.is_some());
    assert!(read("post_tool_use").agent_id.is_none());
    for name in ["subagent_stop", "post_tool_batch"] {
        assert_eq!(read(name).event.name(), None);
    }
}
