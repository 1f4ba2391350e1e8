//! How `claude -p` is started: its arguments and the changes to its environment, as data.
//!
//! The prompt goes on stdin. No remote text reaches the arguments but a model name that matches a pattern; tool
//! rules are the user's own, and still checked, because a rule that began with `-` would be read as a flag.

use std::ffi::OsString;
use std::fmt;

use crate::domain::{PermissionMode, SessionId};

/// Variables that tell a process which session it belongs to. A run is no part of the session its daemon may have
/// been started from, so none of them is passed on; nor is a producer's token.
pub const ENV_REMOVE: &[&str] = &[
    "AI_AGENT",
    "CLAUDECODE",
    "CLAUDE_CODE_CHILD_NOTES_DIR",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_MESSAGING_SOCKET",
    "CLAUDE_CODE_MESSAGING_TOKEN",
    "CLAUDE_CODE_SESSION_ATTENDED",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_ENV_FILE",
    "CLAUDE_PID",
    "CLAUDE_PROJECT_DIR",
    "REMOTE_COLLAB_TOKEN",
];

/// Marks a run's process and its children; its value is the run's id.
pub const ENV_RUN: &str = "REMOTE_COLLAB_RUN";

/// Which conversation a run belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversation {
    /// A new one under this id.
    New(SessionId),
    /// One that exists and that no live process owns.
    Resume(SessionId),
}

/// How tools that would ask a person are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunMode {
    /// As a producer may ask for.
    Asked(PermissionMode),
    /// Nothing asks; only where the user's own configuration says so.
    Bypass,
}

impl RunMode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Asked(PermissionMode::Manual) => "manual",
            Self::Asked(PermissionMode::AcceptEdits) => "acceptEdits",
            Self::Asked(PermissionMode::Plan) => "plan",
            Self::Asked(PermissionMode::DontAsk) => "dontAsk",
            Self::Bypass => "bypassPermissions",
        }
    }
}

/// Why a run cannot be put into arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeadlessError {
    /// The model's name has another shape.
    #[error(
        "`{0}` is no model name: 1 to 128 of `a-z A-Z 0-9 . _ - : / [ ]`, beginning with a letter or digit"
    )]
    Model(String),
    /// A tool rule could be mistaken for something else.
    #[error(
        "`{0}` is no tool rule: 1 to 500 characters, beginning with a letter, no control characters"
    )]
    Tool(String),
    /// The budget is not a positive number.
    #[error("the budget must be a positive number of US dollars")]
    Budget,
    /// No turns are allowed.
    #[error("a run needs at least one turn")]
    Turns,
}

/// A model's name that is safe as an argument.
#[derive(Clone, PartialEq, Eq)]
pub struct ModelName(String);

impl ModelName {
    /// The checked name: an alias, a full name or a provider's identifier.
    ///
    /// # Errors
    /// [`HeadlessError::Model`] for another shape.
    pub fn new(name: &str) -> Result<Self, HeadlessError> {
        let fits = name.len() <= 128
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-:/[]".contains(c));
        if fits {
            Ok(Self(name.to_owned()))
        } else {
            Err(HeadlessError::Model(name.chars().take(64).collect()))
        }
    }
}

impl fmt::Debug for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// What a run is allowed, already narrowed by the project's policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Headless {
    /// The conversation.
    pub conversation: Conversation,
    /// The permission mode.
    pub mode: RunMode,
    /// Tool rules that need no permission, such as `Bash(git status)`; the user's own words.
    pub allowed_tools: Vec<String>,
    /// The model; the CLI's default if absent.
    pub model: Option<ModelName>,
    /// Model turns at most.
    pub max_turns: u32,
    /// Cost at most, US dollars.
    pub max_budget_usd: f64,
}

impl Headless {
    /// The arguments after the program's name. The prompt is not among them: it goes on stdin.
    ///
    /// # Errors
    /// When a value does not fit, see [`HeadlessError`].
    pub fn args(&self) -> Result<Vec<OsString>, HeadlessError> {
        if self.max_turns == 0 {
            return Err(HeadlessError::Turns);
        }
        if !self.max_budget_usd.is_finite() || self.max_budget_usd <= 0.0 {
            return Err(HeadlessError::Budget);
        }
        let mut args = vec!["-p".to_owned()];
        if !self.allowed_tools.is_empty() {
            // Takes all that follows up to the next flag, so it must not stand last.
            args.push("--allowedTools".to_owned());
            for tool in &self.allowed_tools {
                args.push(tool_rule(tool)?.to_owned());
            }
        }
        let mut flag = |name: &str, value: String| args.extend([name.to_owned(), value]);
        match self.conversation {
            Conversation::New(id) => flag("--session-id", id.to_string()),
            Conversation::Resume(id) => flag("--resume", id.to_string()),
        }
        flag("--permission-mode", self.mode.as_str().to_owned());
        flag("--max-turns", self.max_turns.to_string());
        flag("--max-budget-usd", self.max_budget_usd.to_string());
        if let Some(model) = &self.model {
            flag("--model", model.0.clone());
        }
        flag("--output-format", "stream-json".to_owned());
        args.push("--verbose".to_owned());
        Ok(args.into_iter().map(OsString::from).collect())
    }
}

fn tool_rule(rule: &str) -> Result<&str, HeadlessError> {
    let fits = rule.starts_with(|c: char| c.is_ascii_alphabetic())
        && rule.chars().count() <= 500
        && !rule.chars().any(char::is_control);
    if fits {
        Ok(rule)
    } else {
        Err(HeadlessError::Tool(rule.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Headless {
        Headless {
            conversation: Conversation::Resume(SessionId::from_u128(7)),
            mode: RunMode::Asked(PermissionMode::AcceptEdits),
            allowed_tools: vec!["Read".to_owned(), "Bash(git log *)".to_owned()],
            model: ModelName::new("opus[1m]").ok(),
            max_turns: 50,
            max_budget_usd: 5.0,
        }
    }

    #[test]
    fn a_run_is_spelled_out_and_no_list_stands_last() {
        let args = run().args().unwrap();
        let args: Vec<_> = args.iter().map(|a| a.to_str().unwrap()).collect();
        assert_eq!(
            args,
            [
                "-p",
                "--allowedTools",
                "Read",
                "Bash(git log *)",
                "--resume",
                "00000000-0000-0000-0000-000000000007",
                "--permission-mode",
                "acceptEdits",
                "--max-turns",
                "50",
                "--max-budget-usd",
                "5",
                "--model",
                "opus[1m]",
                "--output-format",
                "stream-json",
                "--verbose",
            ]
        );
    }

    #[test]
    fn no_value_can_be_taken_for_a_flag() {
        for bad in [
            "",
            "--model",
            "-x",
            "a b",
            "a\nb",
            "a;b",
            "$(x)",
            &"a".repeat(129),
        ] {
            assert!(ModelName::new(bad).is_err(), "{bad:?}");
        }
        for good in [
            "opus",
            "claude-opus-5-5",
            "us.anthropic.claude-v1:0",
            "arn:aws:b/x",
        ] {
            assert!(ModelName::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "--dangerously-skip-permissions", " Read", "Re\0ad"] {
            let mut run = run();
            run.allowed_tools.push(bad.to_owned());
            assert!(matches!(run.args(), Err(HeadlessError::Tool(_))), "{bad:?}");
        }
        for budget in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut run = run();
            run.max_budget_usd = budget;
            assert_eq!(run.args(), Err(HeadlessError::Budget));
        }
    }
}
