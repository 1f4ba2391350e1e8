//! What a hook is told on stdin, read tolerantly: a field that is missing or of another type is as if it were not there.

use std::path::PathBuf;

use serde_json::Value;

use super::hook_event::{EndReason, HookEvent, HookName, NoticeKind, StartSource};
use crate::domain::SessionId;

/// Why something is not a hook's input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAHook {
    /// It is no JSON object.
    #[error("the hook input is not a JSON object")]
    NotAnObject,
    /// It names no event.
    #[error("the hook input has no `hook_event_name`")]
    NoEvent,
}

/// What every event carries, and the event.
#[derive(Debug, Clone, PartialEq)]
pub struct HookInput {
    /// The conversation; absent if it is no UUID.
    pub session_id: Option<SessionId>,
    /// Where the conversation is written down.
    pub transcript_path: Option<PathBuf>,
    /// The session's present folder.
    pub cwd: Option<PathBuf>,
    /// The subagent that it happened in; such events concern nobody else.
    pub agent_id: Option<String>,
    /// The turn's prompt.
    pub prompt_id: Option<String>,
    /// How tools that would ask are treated: `default`, `auto`, `acceptEdits`, `plan`, `dontAsk`, `bypassPermissions`.
    pub permission_mode: Option<String>,
    /// What happened.
    pub event: HookEvent,
}

impl HookInput {
    /// Reads a hook's input.
    ///
    /// # Errors
    /// When it is no object or names no event.
    pub fn read(input: &Value) -> Result<Self, NotAHook> {
        if !input.is_object() {
            return Err(NotAHook::NotAnObject);
        }
        let name = text(input, "hook_event_name").ok_or(NotAHook::NoEvent)?;
        Ok(Self {
            session_id: text(input, "session_id").and_then(|v| v.parse().ok()),
            transcript_path: path(input, "transcript_path"),
            cwd: path(input, "cwd"),
            agent_id: text(input, "agent_id"),
            prompt_id: text(input, "prompt_id"),
            permission_mode: text(input, "permission_mode"),
            event: event(name, input),
        })
    }
}

fn text(v: &Value, key: &str) -> Option<String> {
    v.get(key)?.as_str().map(str::to_owned)
}

fn path(v: &Value, key: &str) -> Option<PathBuf> {
    text(v, key).filter(|p| !p.is_empty()).map(PathBuf::from)
}

fn flag(v: &Value, key: &str) -> bool {
    v.get(key).and_then(Value::as_bool).unwrap_or_default()
}

fn event(name: String, v: &Value) -> HookEvent {
    let word = |key| text(v, key).unwrap_or_default();
    let value = |key| v.get(key).cloned().unwrap_or_default();
    let Some(known) = HookName::parse(&name) else {
        return HookEvent::Other { name };
    };
    match known {
        HookName::SessionStart => HookEvent::SessionStart {
            source: match word("source").as_str() {
                "startup" => StartSource::Startup,
                "clear" => StartSource::Clear,
                "compact" => StartSource::Compact,
                "resume" => StartSource::Resume,
                "fork" => StartSource::Fork,
                other => StartSource::Other(other.to_owned()),
            },
            model: text(v, "model"),
        },
        HookName::UserPromptSubmit => HookEvent::UserPromptSubmit {
            prompt: word("prompt"),
        },
        HookName::PreToolUse => HookEvent::PreToolUse {
            tool: word("tool_name"),
            input: value("tool_input"),
        },
        HookName::PostToolUse => HookEvent::PostToolUse {
            tool: word("tool_name"),
            input: value("tool_input"),
        },
        HookName::PostToolUseFailure => HookEvent::PostToolUseFailure {
            tool: word("tool_name"),
            input: value("tool_input"),
            error: word("error"),
            interrupted: flag(v, "is_interrupt"),
        },
        HookName::Stop => HookEvent::Stop {
            stop_hook_active: flag(v, "stop_hook_active"),
            last_assistant_message: text(v, "last_assistant_message"),
            background_tasks: v
                .get("background_tasks")
                .and_then(Value::as_array)
                .map_or(0, Vec::len),
        },
        HookName::StopFailure => HookEvent::StopFailure {
            error: word("error"),
            message: text(v, "error_details").or_else(|| text(v, "last_assistant_message")),
        },
        HookName::Notification => HookEvent::Notification {
            kind: match word("notification_type").as_str() {
                "permission_prompt" => NoticeKind::PermissionPrompt,
                "idle_prompt" => NoticeKind::IdlePrompt,
                other => NoticeKind::Other(other.to_owned()),
            },
            message: word("message"),
        },
        HookName::PermissionRequest => HookEvent::PermissionRequest {
            tool: word("tool_name"),
            input: value("tool_input"),
        },
        HookName::CwdChanged => HookEvent::CwdChanged {
            old: path(v, "old_cwd"),
            new: path(v, "new_cwd"),
        },
        HookName::FileChanged => HookEvent::FileChanged {
            path: path(v, "file_path"),
            change: word("event"),
        },
        HookName::PreCompact => HookEvent::PreCompact {
            manual: word("trigger") == "manual",
        },
        HookName::PostCompact => HookEvent::PostCompact {
            manual: word("trigger") == "manual",
            summary: text(v, "compact_summary"),
        },
        HookName::SessionEnd => HookEvent::SessionEnd {
            reason: match word("reason").as_str() {
                "clear" => EndReason::Clear,
                "logout" => EndReason::Logout,
                "prompt_input_exit" => EndReason::PromptInputExit,
                "resume" => EndReason::Resume,
                other => EndReason::Other(other.to_owned()),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_and_wrong_fields_are_as_if_they_were_not_there() {
        for name in HookName::ALL {
            for odd in [json!(null), json!(7), json!([]), json!({"x": 1})] {
                let input = json!({
                    "hook_event_name": name.as_str(), "session_id": odd, "cwd": odd, "source": odd,
                    "prompt": odd, "tool_name": odd, "background_tasks": odd, "agent_id": odd,
                    "stop_hook_active": odd, "reason": odd, "trigger": odd,
                });
                let read = HookInput::read(&input).unwrap();
                assert_eq!(read.event.name(), Some(*name));
                assert_eq!(
                    (read.session_id, read.cwd, read.agent_id),
                    (None, None, None)
                );
            }
        }
    }

    #[test]
    fn an_unknown_event_is_kept_by_its_name() {
        let read = HookInput::read(&json!({"hook_event_name": "Teleported", "x": 1})).unwrap();
        assert_eq!(
            read.event,
            HookEvent::Other {
                name: "Teleported".to_owned()
            }
        );
        assert_eq!(HookInput::read(&json!([])), Err(NotAHook::NotAnObject));
        assert_eq!(HookInput::read(&json!({})), Err(NotAHook::NoEvent));
    }
}
