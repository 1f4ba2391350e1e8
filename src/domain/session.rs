//! Sessions and projects as the hub's directories show them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ProjectName, SessionId, WallMs};

/// What a session is doing.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// In a turn.
    Busy,
    /// Between turns.
    Idle,
    /// In a turn, until a person answers a permission prompt.
    Waiting,
    /// Alive, but nothing tells what it does.
    #[default]
    Unknown,
    /// No process owns it.
    Closed,
}

/// A Claude Code conversation on a device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SessionInfo {
    /// Its present id.
    pub session_id: SessionId,
    /// Ids it had before, oldest first; mail for any of them reaches it.
    #[serde(default)]
    pub lineage: Vec<SessionId>,
    /// The enabled project its folder belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectName>,
    /// What it is doing.
    pub activity: Activity,
    /// What tells so, or why nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The last sign of life, Unix ms.
    pub active_at: WallMs,
}

/// An enabled folder on a device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ProjectInfo {
    /// Its name.
    pub name: ProjectName,
    /// Its absolute, canonical path on the device.
    pub path: String,
    /// False when it was disabled.
    #[serde(default = "yes")]
    pub enabled: bool,
}

const fn yes() -> bool {
    true
}
