//! Tasks: what may be asked, where one stands, what came of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{EnvelopeId, SessionId, WallMs};

/// Where a task stands; the last eight are terminal.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Durable at the hub.
    Queued,
    /// Durable at the device.
    Delivered,
    /// A person has to decide.
    AwaitingApproval,
    /// Cannot start now; the reason says why, `until` when that may change.
    Blocked,
    /// A run or a live session works on it.
    Running,
    /// Done as asked.
    Completed,
    /// Tried and not done.
    Failed,
    /// Called off.
    Cancelled,
    /// Not started in time.
    Expired,
    /// Refused by the device.
    Rejected,
    /// The run ended without an answer (crash, silence); may be retried.
    Interrupted,
    /// Gave up after the attempts.
    Dead,
    /// The device knows no such kind of work.
    Unsupported,
}

impl TaskStatus {
    /// Every status, in the order of a task's life.
    pub const ALL: &'static [Self] = &[
        Self::Queued,
        Self::Delivered,
        Self::AwaitingApproval,
        Self::Blocked,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
        Self::Rejected,
        Self::Interrupted,
        Self::Dead,
        Self::Unsupported,
    ];

    /// The status as it stands on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Delivered => "delivered",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Blocked => "blocked",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Rejected => "rejected",
            Self::Interrupted => "interrupted",
            Self::Dead => "dead",
            Self::Unsupported => "unsupported",
        }
    }

    /// Whether nothing follows on this status within its attempt.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Queued
            | Self::Delivered
            | Self::AwaitingApproval
            | Self::Blocked
            | Self::Running => false,
            Self::Completed
            | Self::Failed
            | Self::Cancelled
            | Self::Expired
            | Self::Rejected
            | Self::Interrupted
            | Self::Dead
            | Self::Unsupported => true,
        }
    }
}

/// A status with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct TaskState {
    /// Where the task stands.
    pub status: TaskStatus,
    /// A stable word for why, where a status has reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When a block may end, Unix ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<WallMs>,
}

impl TaskState {
    /// The status without a reason.
    #[must_use]
    pub const fn new(status: TaskStatus) -> Self {
        Self {
            status,
            reason: None,
            until: None,
        }
    }

    /// The status for this reason.
    #[must_use]
    pub fn because(status: TaskStatus, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: Some(reason.into()),
            until: None,
        }
    }
}

/// How a run treats tools that would ask a person; `bypassPermissions` cannot be asked for remotely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PermissionMode {
    /// What would ask is denied.
    #[serde(rename = "manual")]
    Manual,
    /// Edits inside the project are allowed.
    #[serde(rename = "acceptEdits")]
    AcceptEdits,
    /// Reads only, ends in a plan.
    #[serde(rename = "plan")]
    Plan,
    /// Only what the rules allow.
    #[serde(rename = "dontAsk")]
    DontAsk,
}

/// A producer's wishes for a run: each only narrows the project's run policy.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunOptions {
    /// The model's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Model turns at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4_294_967_295_u32))]
    pub max_turns: Option<u32>,
    /// Cost at most, US dollars; more than nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub max_budget_usd: Option<f64>,
    /// Wall-clock time at most, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 9_007_199_254_740_992_u64))]
    pub timeout_s: Option<u64>,
    /// A permission mode no wider than the project's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<PermissionMode>,
    /// A subset of the project's allowed tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// More context for the run, fenced like the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append_context: Option<String>,
}

/// A tool use that the run was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct PermissionDenial {
    /// The tool's name.
    pub tool_name: String,
    /// What it was to be called with.
    #[serde(default)]
    pub tool_input: Value,
}

/// What came of a task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct TaskResult {
    /// The last assistant message, or the error.
    pub text: String,
    /// Whether the CLI called it an error.
    pub is_error: bool,
    /// Cost as the CLI counted it, US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Model turns taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_turns: Option<u32>,
    /// The conversation that did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Tool uses that were refused.
    #[serde(default)]
    pub permission_denials: Vec<PermissionDenial>,
    /// Whether `text` was cut to fit a frame.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The whole text, where the device uploads it: `text` is its beginning then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<WholeText>,
}

/// Names a text that is uploaded beside its report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WholeText {
    /// Its length, bytes of UTF-8.
    pub bytes: u64,
    /// The SHA-256 of those bytes, 64 lower-case hex digits.
    pub sha256: String,
}

/// One step of a run, as `stream-json` told it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// What happened, in a few words.
    pub text: String,
}

/// An answer to a sender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reply {
    /// The text.
    pub content: String,
    /// The session that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// When it was written, Unix ms.
    pub at: WallMs,
    /// The reply's own id.
    pub id: EnvelopeId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_one_word_in_code_and_on_the_wire() {
        for status in TaskStatus::ALL {
            let word = serde_json::to_value(status).unwrap();
            assert_eq!(word, status.as_str());
        }
    }
}
