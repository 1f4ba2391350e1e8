//! Receipts: how far an envelope came.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::WallMs;

/// A way into a session.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Door {
    /// Additional context from a hook's output.
    Hooks,
    /// A line to the session's own socket.
    Inbox,
    /// The watched file and its `FileChanged` hook.
    Doorbell,
    /// A `claude -p` run.
    Headless,
    /// The MCP server's `claude/channel`.
    Channel,
    /// A program that asked the local API.
    LocalApi,
}

/// How far an envelope came; the last five are terminal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum Stage {
    /// Durable at the hub.
    Accepted,
    /// Durable at the device.
    OnDevice,
    /// Waits; the reason is a stable word.
    Held {
        /// Why.
        reason: String,
    },
    /// A door holds it.
    Claimed {
        /// Which.
        door: Door,
    },
    /// Left our hands.
    HandedOver,
    /// Reached the model: there is evidence in the transcript.
    Seen,
    /// The turn that saw a message ended; a task has its terminal status.
    Done,
    /// Not delivered in time.
    Expired,
    /// Recalled.
    Cancelled,
    /// Cannot be delivered.
    Undeliverable {
        /// Why.
        reason: String,
    },
    /// The device knows no such kind.
    Unsupported,
}

impl Stage {
    /// Whether nothing follows on this stage.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        match self {
            Self::Accepted
            | Self::OnDevice
            | Self::Held { .. }
            | Self::Claimed { .. }
            | Self::HandedOver
            | Self::Seen => false,
            Self::Done
            | Self::Expired
            | Self::Cancelled
            | Self::Undeliverable { .. }
            | Self::Unsupported => true,
        }
    }
}

/// A stage with its time and proof.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    /// The stage.
    #[serde(flatten)]
    pub stage: Stage,
    /// When it was reached, Unix ms.
    pub at: WallMs,
    /// What shows it: the session, the transcript's entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
}
