//! The frames, one variant each, and their JSON form.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::{
    Cursor, Envelope, Epoch, InstanceId, ProjectInfo, Report, Seq, SessionInfo, WallMs,
};

/// What a device sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DeviceFrame {
    /// The first frame: who is here and where it stands.
    Hello(Hello),
    /// Every envelope up to `seq` is durable here (cumulative).
    Ack {
        /// The last durable envelope.
        seq: Seq,
    },
    /// One row of the outbox.
    Report(Report),
    /// Free run slots, for routing.
    Capacity {
        /// How many runs could start now.
        free: u32,
    },
    /// A fresh connect JWT, before the old one's time is up.
    Auth {
        /// The JWT.
        token: String,
    },
    /// The device is leaving on purpose.
    Bye {
        /// Why, in a word.
        reason: String,
    },
    /// A type of a later version: ignored and counted.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The body of `hello`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hello {
    /// Random, born with the queue: tells a restart from a clone.
    pub instance: InstanceId,
    /// Whether a person moved the device here (`login --take-over`): another instance is not refused to but shut out, for
    /// good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub take_over: bool,
    /// The last envelope that is durable here; `null` replays all that is not terminal.
    pub last: Option<Cursor>,
    /// Where the outbox stands.
    pub outbox: OutboxPosition,
    /// The daemon's version.
    #[serde(default)]
    pub build: String,
    /// The operating system.
    #[serde(default)]
    pub os: String,
    /// The CLI's version, if one was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claude_version: Option<String>,
    /// Free run slots.
    #[serde(default)]
    pub capacity: u32,
    /// The enabled projects.
    #[serde(default)]
    pub projects: Vec<ProjectInfo>,
    /// The live sessions.
    #[serde(default)]
    pub sessions: Vec<SessionInfo>,
}

/// The outbox's instance and the number its next report will carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct OutboxPosition {
    /// Random, born with the outbox: a new one starts at `n` 1 again.
    pub instance: InstanceId,
    /// The next report's number.
    pub next_n: u64,
}

/// What the hub sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum HubFrame {
    /// The answer to `hello`.
    Welcome(Welcome),
    /// One envelope; at most `window` are in flight.
    Deliver {
        /// Its place in the mailbox.
        seq: Seq,
        /// The envelope.
        envelope: Box<Envelope>,
    },
    /// The backlog up to `seq` was sent.
    Synced {
        /// The last envelope of the backlog.
        seq: Seq,
    },
    /// Every report up to `n` is durable here, or rejected for good.
    ReportAck {
        /// The last report (cumulative).
        n: u64,
        /// The ones that were refused.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        rejected: Vec<RejectedReport>,
    },
    /// Send a fresh `auth` within this time.
    Reauth {
        /// Seconds.
        within_s: u64,
    },
    /// Something is wrong; a close may follow.
    Error {
        /// A stable code, see `domain::Code`.
        code: String,
        /// What happened.
        message: String,
        /// When to come back, seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_s: Option<u64>,
    },
    /// A type of a later version: ignored and counted.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The body of `welcome`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Welcome {
    /// The present life of the mailbox.
    pub epoch: Epoch,
    /// The mailbox's last envelope.
    pub head: Seq,
    /// Whether the device's cursor still holds.
    pub resume: Resume,
    /// The connection's number: higher than every earlier one's.
    pub generation: u64,
    /// The hub's time, Unix ms.
    pub now: WallMs,
    /// Interval of pings, seconds.
    pub heartbeat_s: u64,
    /// Envelopes in flight at most.
    pub window: u32,
    /// Largest frame, bytes.
    pub max_frame_bytes: u64,
    /// When the device must have renewed its credential, seconds.
    pub auth_expires_in_s: u64,
    /// The last report of this outbox that is durable at the hub; 0 for none.
    pub report_n: u64,
}

/// What became of the cursor in `hello`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resume {
    /// It holds: delivery goes on after it.
    Continue,
    /// It is of another life, or none was given: everything not terminal is delivered anew.
    Reset,
}

/// A report that the hub refused for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RejectedReport {
    /// Its number.
    pub n: u64,
    /// A stable code.
    pub code: String,
}
