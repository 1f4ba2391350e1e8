//! The bodies of `POST /hook`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What the hook command tells the daemon: the CLI's own input and what the environment says about the session.
///
/// The hook command sends the input as the text it read (`I = &RawValue`); the daemon reads it as a [`Value`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookCall<I = Value> {
    /// The JSON object that the CLI gave on stdin, untouched.
    pub input: I,
    /// `CLAUDE_PID`: the session's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// `CLAUDE_CODE_ENTRYPOINT`: `cli` for an interactive session, `sdk-cli` for `-p` and IDEs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
    /// `CLAUDE_CODE_SESSION_ATTENDED`: whether a person sits at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attended: Option<bool>,
    /// `CLAUDE_CODE_MESSAGING_SOCKET`: the session's inbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messaging_socket: Option<String>,
    /// `REMOTE_COLLAB_RUN`: the run this session belongs to, if the daemon started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// When it happened, Unix ms; only in spooled events, which are read later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<i64>,
}

/// What the hook command is to do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HookAnswer {
    /// Printed to stdout: an object as compact JSON, a string as it is; nothing if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Printed to stderr; only the doorbell says something there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// The exit code: 0, or 2 when the doorbell hands mail over; anything else counts as 0.
    #[serde(default)]
    pub exit: u8,
}
