//! What the hub writes under which key.
//!
//! | key | record |
//! |---|---|
//! | `device/<account>/<device>` | [`DeviceRecord`] |
//! | `outbox/<account>/<device>` | [`OutboxRecord`]: the last durable report |
//! | `session/<account>/<session>` | [`SessionRecord`] |
//! | `project/<account>/<device>/<project>` | [`ProjectRecord`] |
//! | `approval/<account>/<device>/<project>` | [`ApprovalRecord`]: whether a person lets the device serve the project |
//! | `task/<account>/<id>`, `message/<account>/<id>` | [`ItemRecord`]; ids are UUIDv7, so that keys sort by time |
//! | `alias/<account>/<envelope>` | the id of the task that a later attempt's envelope belongs to |
//! | `text/<account>/<task>` | [`TaskText`]: what a retry needs, kept after the envelope's text was dropped |
//! | `control/<account>/<envelope>` | the device that a `cancel` was sent to |
//! | `watch/<Unix ms, 13 digits>/<account>/<task or message>/<id>` | empty: when to ask whether the device is silent past its deadline |
//! | `idem/<account>/<token name>/<sha256 of the key>` | [`IdemRecord`] |
//! | `memory/<account>/<session>`, `memory-project/<account>/<project>` | [`MemoryRecord`] |
//! | `index/<account>/<session>`, `index-project/<account>/<project>` | [`IndexRecord`] |
//! | `join/<jti>` | [`JoinRecord`]: a join token that was used |
//! | `account/<account>` | [`AccountRecord`] |
//! | `token/<account>/<jti>`, `revoked/<jti>` | [`TokenRecord`]; a call-back |
//! | `hook/<account>/<item>/<id>` | [`HookRecord`](super::webhooks::HookRecord): a callback that is owed |
//! | `hook-state/<account>/<item>` | [`HookState`](super::webhooks::HookState): how its callbacks went |
//! | `hook-secret/<jti>` | the secret that signs a token's callbacks |
//! | `hub/id` | the hub's own name |

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::handed::Mark;
use super::store::{Expect, Op, Stored};
use super::webhooks::Callback;
use crate::auth::PublicKey;
use crate::domain::{
    AccountId, Address, DeviceId, EnvelopeId, InstanceId, Priority, ProjectInfo, ProjectName,
    Receipt, Reply, Sender, SessionId, SessionInfo, TaskResult, TaskState, TaskStatus, Trust,
    WallMs,
};

/// An enrolled machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeviceRecord {
    pub(crate) id: DeviceId,
    pub(crate) account: AccountId,
    pub(crate) name: String,
    pub(crate) public_key: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) build: String,
    #[serde(default)]
    pub(crate) claude_version: Option<String>,
    pub(crate) enrolled_at: WallMs,
    #[serde(default)]
    pub(crate) revoked_at: Option<WallMs>,
    #[serde(default)]
    pub(crate) instance: Option<InstanceId>,
    /// Instances that a take-over shut out, the latest last: refused until a person takes the device back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) shut_out: Vec<InstanceId>,
    #[serde(default)]
    pub(crate) last_seen: Option<WallMs>,
    /// What was handed to it at most, as its last connection left it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handed: Option<Mark>,
    /// Whether its projects are approved as it announces them: it came with the account's own join token.
    #[serde(default = "yes")]
    pub(crate) vouched: bool,
}

const fn yes() -> bool {
    true
}

/// Shut-out instances that are remembered of a device.
const SHUT_OUT: usize = 32;

impl DeviceRecord {
    pub(crate) fn key(account: &AccountId, device: &DeviceId) -> String {
        format!("device/{account}/{device}")
    }

    /// Gives the device to `to`, as a person told: every other instance that held it is shut out.
    pub(crate) fn give_to(&mut self, to: InstanceId, live: Option<InstanceId>) {
        for other in [self.instance, live].into_iter().flatten() {
            if other != to && !self.shut_out.contains(&other) {
                self.shut_out.push(other);
            }
        }
        self.shut_out.retain(|i| *i != to);
        let over = self.shut_out.len().saturating_sub(SHUT_OUT);
        self.shut_out.drain(..over);
    }

    pub(crate) fn public(&self) -> Option<PublicKey> {
        self.public_key.parse().ok()
    }
}

/// Where the device's outbox stands at the hub.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct OutboxRecord {
    pub(crate) instance: InstanceId,
    pub(crate) n: u64,
}

impl OutboxRecord {
    pub(crate) fn key(account: &AccountId, device: &DeviceId) -> String {
        format!("outbox/{account}/{device}")
    }
}

/// A session of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    #[serde(flatten)]
    pub(crate) info: SessionInfo,
    pub(crate) device: DeviceId,
}

impl SessionRecord {
    pub(crate) fn key(account: &AccountId, session: SessionId) -> String {
        format!("session/{account}/{session}")
    }
}

/// A project of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProjectRecord {
    #[serde(flatten)]
    pub(crate) info: ProjectInfo,
    pub(crate) device: DeviceId,
    /// Whether the account lets this device serve this project; true when the device came with the account's own join token.
    pub(crate) approved: bool,
}

impl ProjectRecord {
    pub(crate) fn key(account: &AccountId, device: &DeviceId, name: &ProjectName) -> String {
        format!("project/{account}/{device}/{name}")
    }
}

/// What a person decided about a device's project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ApprovalRecord {
    pub(crate) device: DeviceId,
    pub(crate) project: ProjectName,
    pub(crate) approved: bool,
    /// The token's name; for the hub's own commands its owner's word.
    pub(crate) by: String,
    pub(crate) at: WallMs,
}

impl ApprovalRecord {
    pub(crate) fn key(account: &AccountId, device: &DeviceId, project: &ProjectName) -> String {
        format!("approval/{account}/{device}/{project}")
    }
}

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemKind {
    Task,
    Message,
}

impl ItemKind {
    pub(crate) fn prefix(self, account: &AccountId) -> String {
        match self {
            Self::Task => format!("task/{account}/"),
            Self::Message => format!("message/{account}/"),
        }
    }

    pub(crate) fn key(self, account: &AccountId, id: EnvelopeId) -> String {
        format!("{}{id}", self.prefix(account))
    }

    /// What it is called.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Message => "message",
        }
    }

    /// The path that it stands under.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Task => "tasks",
            Self::Message => "messages",
        }
    }
}

/// One try at a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Attempt {
    /// Its number, from 1.
    pub(crate) attempt: u32,
    /// The envelope that carries it.
    pub(crate) envelope: EnvelopeId,
    /// When it was accepted, Unix ms.
    pub(crate) created_at: WallMs,
    /// When work on it began, Unix ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<WallMs>,
    /// When it ended, Unix ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended_at: Option<WallMs>,
    /// The device that it went to; absent in records of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<DeviceId>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<TaskStatus>,
    /// Why it ended so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The stages that it reached; those of the present attempt stand with the task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) receipts: Vec<Receipt>,
}

/// A wish to call the present attempt off that its device has to decide about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CancelWish {
    /// The `cancel` envelope.
    pub(crate) envelope: EnvelopeId,
    /// What it calls off.
    pub(crate) of: EnvelopeId,
    pub(crate) at: WallMs,
}

/// An envelope's move from an absent device to another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Rerouted {
    /// The device that stayed away.
    pub(crate) from: DeviceId,
    /// The device that has it now.
    pub(crate) to: DeviceId,
    /// When, Unix ms.
    pub(crate) at: WallMs,
}

/// What a retry is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TaskText {
    pub(crate) from: Sender,
    pub(crate) body: Value,
    pub(crate) wake: bool,
    pub(crate) hops: u8,
    pub(crate) ttl_ms: i64,
}

impl TaskText {
    pub(crate) fn key(account: &AccountId, task: EnvelopeId) -> String {
        format!("text/{account}/{task}")
    }
}

/// Where the device of a `cancel` envelope stands, so that its answer is known.
pub(crate) fn control_key(account: &AccountId, envelope: EnvelopeId) -> String {
    format!("control/{account}/{envelope}")
}

/// Where the task of a later attempt's envelope stands.
pub(crate) fn alias_key(account: &AccountId, envelope: EnvelopeId) -> String {
    format!("alias/{account}/{envelope}")
}

/// A task or a message as it is shown: derived from its envelopes and from what its device reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ItemRecord {
    pub(crate) id: EnvelopeId,
    pub(crate) kind: ItemKind,
    pub(crate) device: DeviceId,
    #[serde(flatten)]
    pub(crate) to: Address,
    pub(crate) from: Sender,
    pub(crate) priority: Priority,
    pub(crate) created_at: WallMs,
    pub(crate) expires_at: WallMs,
    pub(crate) state: TaskState,
    pub(crate) receipts: Vec<Receipt>,
    #[serde(default)]
    pub(crate) attempts: Vec<Attempt>,
    #[serde(default)]
    pub(crate) replies: Vec<Reply>,
    #[serde(default)]
    pub(crate) result: Option<TaskResult>,
    #[serde(default)]
    pub(crate) metadata: Option<Value>,
    /// Addressed by a project's name alone: any device that serves it will do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) anywhere: bool,
    /// A run's wall clock as the producer asked for it, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cancel: Option<CancelWish>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rerouted: Vec<Rerouted>,
    /// The end is the hub's own conclusion: the device's word replaces it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) presumed: bool,
    /// When the run has to be over, by the hub's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deadline: Option<WallMs>,
    /// When its silence is looked at: the time in the key of its `watch` record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) watch: Option<WallMs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) callback: Option<Callback>,
}

impl ItemRecord {
    /// The key of the record that says when to look at this item's silence.
    pub(crate) fn watch_key(&self, account: &AccountId, at: WallMs) -> String {
        let kind = self.kind.word();
        format!("watch/{:013}/{account}/{kind}/{}", at.0.max(0), self.id)
    }
}

/// The answer that an idempotency key stands for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct IdemRecord {
    pub(crate) body_sha256: String,
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) body: Value,
}

/// What a session (or the newest session of a project) should know at its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Memory")]
pub(crate) struct MemoryRecord {
    /// The session it was written for.
    pub(crate) session_id: SessionId,
    /// The project it was written for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<ProjectName>,
    /// What happened, in prose.
    pub(crate) summary: String,
    /// Single things worth knowing, each text or an object.
    pub(crate) context: Vec<Value>,
    /// When it was written, Unix ms.
    pub(crate) updated_at: WallMs,
}

/// What a session's folder holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Index")]
pub(crate) struct IndexRecord {
    /// Files worth knowing.
    pub(crate) files: Vec<Value>,
    /// Names worth knowing.
    pub(crate) symbols: Vec<Value>,
    /// What changed of late.
    pub(crate) recent_changes: Vec<Value>,
    /// When it was written, Unix ms.
    pub(crate) updated_at: WallMs,
}

/// Which device a join token made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JoinRecord {
    pub(crate) device: DeviceId,
    pub(crate) public_key: String,
}

/// A tenant, besides the one that is always there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct AccountRecord {
    pub(crate) account: AccountId,
    pub(crate) created_at: WallMs,
    /// Its deletion began: it takes nothing any more.
    #[serde(default)]
    pub(crate) deleting: bool,
}

impl AccountRecord {
    pub(crate) fn key(account: &AccountId) -> String {
        format!("account/{account}")
    }
}

/// The account whose record stands under this key; `None` for those of the hub itself, and for join tokens and
/// call-backs, which outlive their account.
pub(crate) fn account_of(key: &str) -> Option<&str> {
    let mut parts = key.split('/');
    match parts.next()? {
        "hub" | "join" | "revoked" => None,
        // Its time comes first.
        "watch" => parts.nth(1),
        _ => parts.next(),
    }
}

/// A token that was handed out: what the list shows, never the token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    pub(crate) jti: Uuid,
    pub(crate) account: AccountId,
    pub(crate) name: String,
    pub(crate) scopes: Vec<String>,
    pub(crate) trust: Trust,
    pub(crate) created_at: WallMs,
    pub(crate) expires_at: WallMs,
}

/// Reads a record; `None` for one that a later version wrote in another shape.
pub(crate) fn read<T: serde::de::DeserializeOwned>(stored: &Stored) -> Option<T> {
    match serde_json::from_str(&stored.value) {
        Ok(v) => Some(v),
        Err(e) => {
            tracing::warn!(key = %stored.key, error = %e, "a record cannot be read; it is left alone");
            None
        }
    }
}

/// The text of a record.
pub(crate) fn text<T: Serialize>(record: &T) -> String {
    // Records are plain data with string keys: serialisation cannot fail.
    serde_json::to_string(record).unwrap_or_default()
}

/// A record that [`put`] writes: each but [`ItemRecord`], which is written by [`super::mailbox::write_item`] alone, because
/// its changes are told.
pub(crate) trait Record: Serialize {}

impl Record for AccountRecord {}
impl Record for DeviceRecord {}
impl Record for OutboxRecord {}
impl Record for SessionRecord {}
impl Record for ProjectRecord {}
impl Record for IdemRecord {}
impl Record for MemoryRecord {}
impl Record for IndexRecord {}
impl Record for JoinRecord {}
impl Record for TokenRecord {}
impl Record for TaskText {}
impl Record for ApprovalRecord {}

/// A record, or the view of one, as JSON.
pub(crate) fn value<T: Serialize>(record: &T) -> Value {
    // As above.
    serde_json::to_value(record).unwrap_or_default()
}

/// The step that writes a record.
pub(crate) fn put<T: Record>(
    key: String,
    record: &T,
    expect: Expect,
    keep_until: Option<WallMs>,
) -> Op {
    Op::Put {
        key,
        value: text(record),
        expect,
        keep_until,
    }
}

#[cfg(test)]
impl ItemRecord {
    /// A fresh item with the id 1 on the device `d`, for tests.
    pub(crate) fn sample(kind: ItemKind) -> Self {
        let attempts = vec![Attempt {
            attempt: 1,
            envelope: EnvelopeId::from_u128(1),
            created_at: WallMs(1),
            started_at: None,
            ended_at: None,
            device: None,
            status: None,
            reason: None,
            receipts: Vec::new(),
        }];
        Self {
            id: EnvelopeId::from_u128(1),
            kind,
            device: DeviceId::new("d").unwrap(),
            to: Address::default(),
            from: Sender {
                name: "ci".into(),
                trust: Trust::Run,
            },
            priority: Priority::Normal,
            created_at: WallMs(1),
            expires_at: WallMs(1000),
            state: TaskState::new(TaskStatus::Queued),
            receipts: vec![Receipt {
                stage: crate::domain::Stage::Accepted,
                at: WallMs(1),
                evidence: None,
            }],
            attempts: if kind == ItemKind::Task {
                attempts
            } else {
                Vec::new()
            },
            replies: Vec::new(),
            result: None,
            metadata: None,
            anywhere: false,
            timeout_s: None,
            cancel: None,
            rerouted: Vec::new(),
            presumed: false,
            deadline: None,
            watch: None,
            callback: None,
        }
    }
}
