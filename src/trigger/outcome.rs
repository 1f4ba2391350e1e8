//! What the end of a run means for its task.
//!
//! The exit status alone means nothing: an interrupt gives 0, and `subtype: "success"` comes with API errors. In order:
//!
//! 1. A result that says `completed` without an error is a completion, whoever killed the process afterwards; unless
//!    the run was denied every change that it tried: `failed{permission_denied}`.
//! 2. Else whoever ended it decides: cancelled, timed out, or the daemon stopped (`interrupted`).
//! 3. Else the result's error by class. Classes that say nothing about the task (limits, overload, login) are
//!    `blocked`: the task waits and no attempt is spent. The rest is `failed`.
//! 4. Without a result the process died: `interrupted` by a signal, else `failed` by what stderr says.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;

use crate::claude::RunResult;
use crate::domain::{SessionId, TaskResult, TaskState, TaskStatus, WallMs};

/// Tools that change files.
const EDIT_TOOLS: [&str; 4] = ["Edit", "MultiEdit", "Write", "NotebookEdit"];
/// Tools that run commands.
const SHELL_TOOLS: [&str; 2] = ["Bash", "PowerShell"];

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exit {
    /// Its exit status, if it ended by itself.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl Exit {
    /// Whether a signal ended it, be it caught and turned into a status by the program.
    const fn by_signal(self) -> bool {
        self.signal.is_some() || matches!(self.code, Some(129 | 130 | 137 | 143))
    }
}

/// Why we ended a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kill {
    /// The task was cancelled.
    Cancelled,
    /// Its time was up.
    Timeout,
    /// The daemon stops.
    Shutdown,
}

/// What was seen of a run.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// Its result line.
    pub result: Option<&'a RunResult>,
    /// How the process ended.
    pub exit: Exit,
    /// Why we ended it, if we did.
    pub killed_by: Option<Kill>,
    /// The end of what it wrote on stderr, redacted.
    pub stderr: &'a str,
    /// The last progress text: what remains of a run without a result.
    pub last_text: Option<&'a str>,
    /// How often it called each tool.
    pub tools: &'a BTreeMap<String, u32>,
    /// The conversation, as the run itself named it.
    pub session_id: Option<SessionId>,
    /// When a limit ends, if it said so.
    pub resets_at: Option<WallMs>,
}

/// What that means.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Where the task stands.
    pub state: TaskState,
    /// What came of it; for a blocked task, of this try.
    pub result: TaskResult,
}

/// What the end of a run means for its task.
#[must_use]
pub fn outcome(seen: &Observed<'_>) -> Outcome {
    Outcome {
        state: state(seen),
        result: seen.result.map_or_else(
            || TaskResult {
                text: remains(seen),
                is_error: true,
                session_id: seen.session_id,
                ..TaskResult::default()
            },
            |r| TaskResult {
                session_id: r.task.session_id.or(seen.session_id),
                ..r.task.clone()
            },
        ),
    }
}

/// A text for a run that left no result.
fn remains(seen: &Observed<'_>) -> String {
    let parts = [seen.last_text.unwrap_or_default(), seen.stderr.trim()];
    let parts: Vec<_> = parts.into_iter().filter(|p| !p.is_empty()).collect();
    parts.join("\n")
}

fn failed(reason: &str) -> TaskState {
    TaskState::because(TaskStatus::Failed, reason)
}

fn interrupted(reason: &str) -> TaskState {
    TaskState::because(TaskStatus::Interrupted, reason)
}

fn state(seen: &Observed<'_>) -> TaskState {
    if let Some(r) = seen.result
        && r.completed()
    {
        return if denied_all_changes(r, seen.tools) {
            failed("permission_denied")
        } else {
            TaskState::new(TaskStatus::Completed)
        };
    }
    match seen.killed_by {
        Some(Kill::Cancelled) => return TaskState::new(TaskStatus::Cancelled),
        Some(Kill::Timeout) => return failed("timeout"),
        Some(Kill::Shutdown) => return interrupted("daemon_stopped"),
        None => {}
    }
    match seen.result {
        Some(result) => of_result(result, seen),
        None if seen.exit.by_signal() => interrupted("killed"),
        None => of_text(seen.stderr, seen.resets_at).unwrap_or_else(|| failed("no_result")),
    }
}

/// The state for a result that is not a completion.
fn of_result(r: &RunResult, seen: &Observed<'_>) -> TaskState {
    let text = r.task.text.as_str();
    match r.terminal_reason.as_deref() {
        Some("max_turns") => return failed("max_turns"),
        Some("budget_exhausted") => return failed("budget"),
        Some(reason) if reason.starts_with("aborted") => return interrupted("aborted"),
        _ => {}
    }
    match r.subtype.as_str() {
        "error_max_turns" => return failed("max_turns"),
        "error_max_budget_usd" => return failed("budget"),
        _ => {}
    }
    if !r.task.is_error {
        // No error and no completion: a hook of the user's blocked the prompt before anything ran.
        let nothing_ran = r.task.num_turns == Some(0);
        return failed(if nothing_ran {
            "prompt_blocked"
        } else {
            "not_completed"
        });
    }
    if r.api_error_status.is_some() || r.terminal_reason.as_deref() == Some("api_error") {
        return of_api_error(r, seen.resets_at);
    }
    of_text(text, seen.resets_at)
        .or_else(|| of_text(seen.stderr, seen.resets_at))
        .unwrap_or_else(|| failed("execution_error"))
}

fn of_api_error(r: &RunResult, resets_at: Option<WallMs>) -> TaskState {
    let text = r.task.text.as_str();
    let class = r.api_error_type.as_deref().unwrap_or_default();
    match (class, r.api_error_status) {
        ("authentication_error" | "permission_error", _) | (_, Some(401 | 403)) => {
            blocked("claude_auth", None)
        }
        ("billing_error", _) | (_, Some(402)) => blocked("claude_billing", None),
        ("rate_limit_error", _) | (_, Some(429)) => blocked("rate_limit", resets_at),
        ("overloaded_error", _) | (_, Some(503 | 529)) => blocked("overloaded", None),
        (_, Some(413)) => failed("context_overflow"),
        (_, Some(500..=599)) => blocked("api_unavailable", None),
        (_, Some(_)) => of_text(text, resets_at).unwrap_or_else(|| failed("bad_request")),
        (_, None) => of_text(text, resets_at).unwrap_or_else(|| blocked("api_unavailable", None)),
    }
}

/// The state that a message of the CLI speaks of, for what comes without a class. The words are the CLI's own and may
/// change; then the task fails with a reason that is less precise.
fn of_text(text: &str, resets_at: Option<WallMs>) -> Option<TaskState> {
    let text = text.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|w| text.contains(w));
    Some(if says(&["no conversation found"]) {
        failed("session_not_found")
    } else if says(&["is already in use"]) {
        failed("session_in_use")
    } else if says(&[
        "please run /login",
        "invalid api key",
        "token has expired",
        "not logged in",
    ]) {
        blocked("claude_auth", None)
    } else if says(&["credit balance is too low"]) {
        blocked("claude_billing", None)
    } else if says(&["prompt is too long", "context window", "context length"]) {
        failed("context_overflow")
    } else if says(&["usage limit", "session limit", "rate limit", "weekly limit"]) {
        blocked("rate_limit", resets_at)
    } else {
        return None;
    })
}

fn blocked(reason: &str, until: Option<WallMs>) -> TaskState {
    TaskState {
        until,
        ..TaskState::because(TaskStatus::Blocked, reason)
    }
}

/// Whether the run tried to change something and was let change nothing: each edit denied, or, where it edited by
/// commands alone, each command.
fn denied_all_changes(r: &RunResult, tools: &BTreeMap<String, u32>) -> bool {
    let all_denied = |names: &[&str]| {
        let denials = &r.task.permission_denials;
        let denied = denials
            .iter()
            .filter(|d| names.contains(&d.tool_name.as_str()));
        let denied = denied.count();
        let called = names.iter().filter_map(|n| tools.get(*n));
        let called: usize = called.map(|n| *n as usize).sum();
        (denied > 0 && called <= denied, called.max(denied))
    };
    let (no_edit, edits) = all_denied(&EDIT_TOOLS);
    let (no_command, _) = all_denied(&SHELL_TOOLS);
    no_edit || edits == 0 && no_command
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::claude::{StreamEvent, StreamReader};
    use TaskStatus::{Blocked, Cancelled, Completed, Failed, Interrupted};

    /// Reads lines as a run would write them.
    fn read(lines: &[Value]) -> (Option<RunResult>, BTreeMap<String, u32>) {
        let mut reader = StreamReader::default();
        let mut result = None;
        for line in lines {
            for event in reader.feed(format!("{line}\n").as_bytes()) {
                if let StreamEvent::Result(r) = event {
                    result = Some(*r);
                }
            }
        }
        (result, reader.tools().clone())
    }

    fn exit(code: i32) -> Exit {
        Exit {
            code: Some(code),
            signal: None,
        }
    }

    fn see(lines: &[Value], exit: Exit, killed_by: Option<Kill>, stderr: &str) -> Outcome {
        let (result, tools) = read(lines);
        outcome(&Observed {
            result: result.as_ref(),
            exit,
            killed_by,
            stderr,
            last_text: Some("half done"),
            tools: &tools,
            session_id: Some(SessionId::from_u128(5)),
            resets_at: Some(WallMs(99)),
        })
    }

    fn ok() -> Value {
        json!({"type": "result", "subtype": "success", "is_error": false,
            "terminal_reason": "completed", "result": "done", "num_turns": 1})
    }

    fn api(status: u16, class: &str) -> Value {
        json!({"type": "result", "subtype": "success", "is_error": true, "terminal_reason": "api_error",
            "api_error_status": status, "api_error_type": class, "result": "API Error"})
    }

    fn error(subtype: &str, reason: &str, text: &str) -> Value {
        json!({"type": "result", "subtype": subtype, "is_error": true, "terminal_reason": reason,
            "errors": [text]})
    }

    #[test]
    fn results_mean_what_they_say_and_not_what_the_status_says() {
        let hook = json!({"type": "result", "subtype": "success", "is_error": false, "num_turns": 0,
            "result": "UserPromptSubmit operation blocked by hook: x"});
        for (line, code, status, reason) in [
            (ok(), 0, Completed, None),
            (ok(), 1, Completed, None),
            (api(529, "overloaded_error"), 1, Blocked, Some("overloaded")),
            (api(500, "api_error"), 1, Blocked, Some("api_unavailable")),
            (api(429, "rate_limit_error"), 1, Blocked, Some("rate_limit")),
            (
                api(401, "authentication_error"),
                1,
                Blocked,
                Some("claude_auth"),
            ),
            (
                api(403, "permission_error"),
                1,
                Blocked,
                Some("claude_auth"),
            ),
            (
                api(402, "billing_error"),
                1,
                Blocked,
                Some("claude_billing"),
            ),
            (
                api(400, "invalid_request_error"),
                1,
                Failed,
                Some("bad_request"),
            ),
            (
                api(413, "request_too_large"),
                1,
                Failed,
                Some("context_overflow"),
            ),
            (
                error("error_max_turns", "max_turns", ""),
                1,
                Failed,
                Some("max_turns"),
            ),
            (
                error("error_max_budget_usd", "budget_exhausted", ""),
                1,
                Failed,
                Some("budget"),
            ),
            (
                error(
                    "error_during_execution",
                    "",
                    "No conversation found with session ID: x",
                ),
                1,
                Failed,
                Some("session_not_found"),
            ),
            (
                error("error_during_execution", "aborted_tools", ""),
                0,
                Interrupted,
                Some("aborted"),
            ),
            (
                error("error_during_execution", "", "odd"),
                1,
                Failed,
                Some("execution_error"),
            ),
            (
                error("success", "", "Prompt is too long"),
                1,
                Failed,
                Some("context_overflow"),
            ),
            (
                error("success", "", "Not logged in · Please run /login"),
                1,
                Blocked,
                Some("claude_auth"),
            ),
            (
                error("success", "", "You've hit your session limit · resets 8pm"),
                1,
                Blocked,
                Some("rate_limit"),
            ),
            (hook, 0, Failed, Some("prompt_blocked")),
            (
                json!({"type": "result", "is_error": false}),
                0,
                Failed,
                Some("not_completed"),
            ),
        ] {
            let got = see(std::slice::from_ref(&line), exit(code), None, "").state;
            assert_eq!(
                (got.status, got.reason.as_deref()),
                (status, reason),
                "{line}"
            );
            let until = (reason == Some("rate_limit")).then_some(WallMs(99));
            assert_eq!(got.until, until);
        }
    }

    #[test]
    fn whoever_ended_a_run_decides_unless_it_was_complete() {
        let aborted = error("error_during_execution", "aborted_streaming", "");
        for (kill, status, reason) in [
            (Kill::Cancelled, Cancelled, None),
            (Kill::Timeout, Failed, Some("timeout")),
            (Kill::Shutdown, Interrupted, Some("daemon_stopped")),
        ] {
            for lines in [&[aborted.clone()][..], &[]] {
                let got = see(lines, exit(0), Some(kill), "").state;
                assert_eq!((got.status, got.reason.as_deref()), (status, reason));
            }
            let got = see(&[ok()], exit(0), Some(kill), "").state;
            assert_eq!(got.status, Completed, "the work is done");
        }
    }

    #[test]
    fn without_a_result_the_processes_end_is_told() {
        let signal = |n| Exit {
            code: None,
            signal: Some(n),
        };
        let in_use = "Error: Session ID 1 is already in use.";
        for (e, stderr, status, reason) in [
            (signal(9), "", Interrupted, "killed"),
            (exit(143), "", Interrupted, "killed"),
            (exit(0), "", Failed, "no_result"),
            (exit(1), "unknown option", Failed, "no_result"),
            (exit(1), in_use, Failed, "session_in_use"),
            (
                exit(1),
                "No conversation found with session ID: 1",
                Failed,
                "session_not_found",
            ),
        ] {
            let got = see(&[], e, None, stderr);
            assert_eq!(got.state, TaskState::because(status, reason));
            assert!(got.result.is_error);
            assert_eq!(got.result.session_id, Some(SessionId::from_u128(5)));
            assert!(
                got.result.text.starts_with("half done"),
                "what there was is kept"
            );
            assert!(got.result.text.contains(stderr));
        }
    }

    #[test]
    fn a_run_that_was_denied_every_change_failed() {
        let call = |name: &str| {
            json!({"type": "assistant", "message": {"content": [
                {"type": "tool_use", "name": name, "input": {}}]}})
        };
        let end = |denied: &[&str]| {
            let mut line = ok();
            line["permission_denials"] = denied
                .iter()
                .map(|n| json!({"tool_name": n, "tool_input": {}}))
                .collect();
            line
        };
        for (calls, denied, complete) in [
            (&["Write"][..], &["Write"][..], false),
            (&["Write", "Edit"], &["Write", "Edit"], false),
            (&["Read", "Bash", "Write"], &["Write"], false),
            (&["Bash"], &["Bash"], false),
            (&[], &["Write"], false),
            (&["Write", "Edit"], &["Write"], true),
            (&["Write", "Bash"], &["Bash"], true),
            (&["Bash", "Bash"], &["Bash"], true),
            (&["WebFetch"], &["WebFetch"], true),
            (&["Read"], &[], true),
        ] {
            let mut lines: Vec<_> = calls.iter().map(|c| call(c)).collect();
            lines.push(end(denied));
            let got = see(&lines, exit(0), None, "");
            let want = if complete {
                TaskState::new(Completed)
            } else {
                failed("permission_denied")
            };
            assert_eq!(got.state, want, "{calls:?} {denied:?}");
            assert_eq!(got.result.permission_denials.len(), denied.len());
        }
    }
}
