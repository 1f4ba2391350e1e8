//! What the hub shows: the answers of the reading calls, as named shapes with their JSON Schemas.
//!
//! A field that may be absent is left out when there is nothing to say, except where a reader waits for it to be
//! filled (`result`, `last_seen`): those are `null` until then. Times are Unix milliseconds.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::super::records::{
    Attempt, DeviceRecord, ItemRecord, ProjectRecord, Rerouted, SessionRecord,
};
use super::super::state::Hub;
use super::super::webhooks::CallbackView;
use crate::auth::PublicKey;
use crate::domain::{
    AccountId, DeviceId, EnvelopeId, Priority, ProjectInfo, ProjectName, Receipt, Reply, Sender,
    SessionId, SessionInfo, TaskResult, TaskStatus, WallMs,
};

/// Longest result text in a view, bytes.
const SHOWN_RESULT: usize = 64 << 10;

/// A task as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct TaskView {
    /// Its id, a UUIDv7.
    pub(crate) id: EnvelopeId,
    /// Where it stands.
    pub(crate) status: TaskStatus,
    /// A stable word for why it stands there, where the status has reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// When a block may end, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<WallMs>,
    /// What it has in common with messages.
    #[serde(flatten)]
    pub(crate) common: CommonView,
    /// The tries at it, oldest first.
    pub(crate) attempts: Vec<Attempt>,
    /// What came of it; `null` before its end.
    pub(crate) result: Option<ResultView>,
    /// What to do about it, where somebody has to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

/// What came of a task, as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ResultView {
    /// As its device told it, the text perhaps cut: `truncated` says so.
    #[serde(flatten)]
    pub(crate) result: TaskResult,
    /// Where the whole text is, when `text` is only its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
}

impl ResultView {
    fn of(item: &ItemRecord, mut result: TaskResult) -> Self {
        // What the hub cuts, and what the device cut and uploads.
        let mut elsewhere = result.whole.is_some();
        if result.text.len() > SHOWN_RESULT {
            let mut ends = (0..=SHOWN_RESULT).rev();
            let end = ends.find(|i| result.text.is_char_boundary(*i));
            result.text.truncate(end.unwrap_or(0));
            (result.truncated, elsewhere) = (true, true);
        }
        Self {
            result,
            url: elsewhere.then(|| format!("/tasks/{}/result", item.id)),
        }
    }
}

/// A message as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct MessageView {
    /// Its id, a UUIDv7.
    pub(crate) id: EnvelopeId,
    /// How far it came: the stage of its last receipt.
    pub(crate) status: String,
    /// What it has in common with tasks.
    #[serde(flatten)]
    pub(crate) common: CommonView,
}

/// What tasks and messages show alike.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct CommonView {
    /// The device that it goes to.
    pub(crate) device: DeviceId,
    /// The project that it is addressed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<ProjectName>,
    /// The session that it is addressed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_id: Option<SessionId>,
    /// Who sent it.
    pub(crate) from: Sender,
    /// How urgent it is.
    pub(crate) priority: Priority,
    /// When it was accepted, Unix ms.
    pub(crate) created_at: WallMs,
    /// When it ends undelivered, Unix ms.
    pub(crate) expires_at: WallMs,
    /// The stages that it reached, oldest first.
    pub(crate) receipts: Vec<Receipt>,
    /// What was answered to its sender, oldest first.
    pub(crate) replies: Vec<Reply>,
    /// The producer's own data, unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Value>,
    /// Since when its device is asked to call it off, Unix ms; until it has decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cancel_requested_at: Option<WallMs>,
    /// The devices that it was taken from because they stayed away, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rerouted: Vec<Rerouted>,
    /// How its callback stands; shown for one item, not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) callback: Option<CallbackView>,
}

/// What became of the wish to call a task or a message off.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct CancelAnswer {
    /// Its id.
    pub(crate) id: EnvelopeId,
    /// Where it stands: `cancelled`, or what it still is until its device has decided.
    pub(crate) status: String,
    /// Since when its device is asked, Unix ms; absent when it is called off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cancel_requested_at: Option<WallMs>,
    /// Where it is shown.
    pub(crate) url: String,
}

/// A new attempt of a task.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct RetryAnswer {
    /// The task's id.
    pub(crate) id: EnvelopeId,
    /// Where it stands: `queued`.
    pub(crate) status: String,
    /// The number of the new attempt.
    pub(crate) attempt: u32,
    /// The device that it goes to.
    pub(crate) device: DeviceId,
    /// Where it is shown.
    pub(crate) url: String,
}

/// A device as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct DeviceView {
    /// Its id.
    pub(crate) id: DeviceId,
    /// The name that it was enrolled under.
    pub(crate) name: String,
    /// Its operating system, as it told.
    pub(crate) os: String,
    /// Its daemon's build, as it told.
    pub(crate) build: String,
    /// Its Claude Code CLI's version; `null` when none was found there.
    pub(crate) claude_version: Option<String>,
    /// When it was enrolled, Unix ms.
    pub(crate) enrolled_at: WallMs,
    /// When it was last connected, Unix ms; `null` if it never was.
    pub(crate) last_seen: Option<WallMs>,
    /// When it was revoked, Unix ms; `null` if it is not.
    pub(crate) revoked_at: Option<WallMs>,
    /// Whether it is connected now.
    pub(crate) online: bool,
    /// Whether it has taken its backlog.
    pub(crate) synced: bool,
    /// Free run slots; `null` while it is away.
    pub(crate) capacity: Option<u32>,
}

/// A session as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct SessionView {
    /// What the device told of it.
    #[serde(flatten)]
    pub(crate) info: SessionInfo,
    /// The device that it is on.
    pub(crate) device: DeviceId,
    /// Whether that device is connected now.
    pub(crate) online: bool,
}

/// A project of a device as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ProjectView {
    /// What the device told of it.
    #[serde(flatten)]
    pub(crate) info: ProjectInfo,
    /// The device that serves it.
    pub(crate) device: DeviceId,
    /// Whether the account lets this device serve it.
    pub(crate) approved: bool,
    /// Whether that device is connected now.
    pub(crate) online: bool,
}

/// One page of `GET /tasks`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct TaskPage {
    /// The tasks, in the order asked for; may be fewer than the limit, even none, while `next` is set.
    pub(crate) tasks: Vec<TaskView>,
    /// The cursor of the following page; `null` at the end.
    pub(crate) next: Option<String>,
}

/// One page of `GET /messages`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct MessagePage {
    /// The messages, in the order asked for; may be fewer than the limit, even none, while `next` is set.
    pub(crate) messages: Vec<MessageView>,
    /// The cursor of the following page; `null` at the end.
    pub(crate) next: Option<String>,
}

/// One page of `GET /devices`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct DevicePage {
    /// The devices, by id.
    pub(crate) devices: Vec<DeviceView>,
    /// The cursor of the following page; `null` at the end.
    pub(crate) next: Option<String>,
}

/// One page of `GET /sessions`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct SessionPage {
    /// The sessions, by id.
    pub(crate) sessions: Vec<SessionView>,
    /// The cursor of the following page; `null` at the end.
    pub(crate) next: Option<String>,
}

/// One page of `GET /projects`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ProjectPage {
    /// The projects, by device and name.
    pub(crate) projects: Vec<ProjectView>,
    /// The cursor of the following page; `null` at the end.
    pub(crate) next: Option<String>,
}

/// What was accepted.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Accepted {
    /// Its id.
    pub(crate) id: EnvelopeId,
    /// Where it stands: a task's status, or the stage a message reached.
    pub(crate) status: String,
    /// The device it goes to.
    pub(crate) device: DeviceId,
    /// Where it is shown.
    pub(crate) url: String,
}

/// A device that was made.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Enrolled {
    /// Its id: the `iss` of its connect JWTs.
    pub(crate) device_id: DeviceId,
    /// The hub's name: the `aud` of its connect JWTs.
    pub(crate) hub_id: String,
    /// The account it belongs to.
    pub(crate) account: AccountId,
}

/// That the process answers.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Health {
    /// `ok`.
    pub(crate) status: &'static str,
    /// The hub's name: the `aud` of every token for it.
    pub(crate) hub_id: String,
    /// The hub's time, Unix ms.
    pub(crate) now: WallMs,
}

/// That a write is durable.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Ready {
    /// `ready`.
    pub(crate) status: &'static str,
    /// Devices that are connected now.
    pub(crate) devices_online: usize,
}

/// Public keys (RFC 7517).
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Jwks {
    /// Newest first.
    pub(crate) keys: Vec<Jwk>,
}

/// A public key (RFC 8037).
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Jwk {
    /// `OKP`.
    pub(crate) kty: &'static str,
    /// `Ed25519`.
    pub(crate) crv: &'static str,
    /// `sig`.
    #[serde(rename = "use")]
    pub(crate) usage: &'static str,
    /// `EdDSA`.
    pub(crate) alg: &'static str,
    /// Its name: its RFC 7638 thumbprint.
    pub(crate) kid: String,
    /// The key, base64url without padding.
    pub(crate) x: String,
}

impl Jwk {
    pub(crate) fn of(key: &PublicKey) -> Self {
        Self {
            kty: "OKP",
            crv: "Ed25519",
            usage: "sig",
            alg: "EdDSA",
            kid: key.thumbprint(),
            x: key.to_string(),
        }
    }
}

impl TaskView {
    pub(crate) fn of(item: &ItemRecord) -> Self {
        Self {
            id: item.id,
            status: item.state.status,
            reason: item.state.reason.clone(),
            until: item.state.until,
            common: CommonView::of(item),
            attempts: item.attempts.clone(),
            result: item.result.clone().map(|r| ResultView::of(item, r)),
            hint: hint(item),
        }
    }
}

/// What to do about a task that nobody will start again by itself.
fn hint(item: &ItemRecord) -> Option<String> {
    let id = item.id;
    match item.state.status {
        TaskStatus::Dead => Some(format!(
            "its attempts crashed; when you know why: `remote-collab tasks retry {id}`"
        )),
        TaskStatus::Interrupted => Some(format!(
            "it may have been done in part; to start it again: `remote-collab tasks retry {id}`"
        )),
        _ => None,
    }
}

impl MessageView {
    pub(crate) fn of(item: &ItemRecord) -> Self {
        Self {
            id: item.id,
            status: stage_word(item),
            common: CommonView::of(item),
        }
    }
}

impl CommonView {
    fn of(item: &ItemRecord) -> Self {
        let asked = item.cancel.as_ref().filter(|_| !item.is_over());
        Self {
            device: item.device.clone(),
            project: item.to.project.clone(),
            session_id: item.to.session_id,
            from: item.from.clone(),
            priority: item.priority,
            created_at: item.created_at,
            expires_at: item.expires_at,
            receipts: item.receipts.clone(),
            replies: item.replies.clone(),
            metadata: item.metadata.clone(),
            cancel_requested_at: asked.map(|wish| wish.at),
            rerouted: item.rerouted.clone(),
            callback: None,
        }
    }
}

impl DeviceView {
    pub(crate) fn of(hub: &Hub, d: &DeviceRecord) -> Self {
        let presence = hub.presence.of(&d.id);
        Self {
            id: d.id.clone(),
            name: d.name.clone(),
            os: d.os.clone(),
            build: d.build.clone(),
            claude_version: d.claude_version.clone(),
            enrolled_at: d.enrolled_at,
            last_seen: d.last_seen,
            revoked_at: d.revoked_at,
            online: presence.is_some(),
            synced: presence.is_some_and(|(_, synced)| synced),
            capacity: presence.map(|(free, _)| free),
        }
    }
}

impl SessionView {
    pub(crate) fn of(hub: &Hub, s: SessionRecord) -> Self {
        let online = hub.presence.is_online(&s.device);
        Self {
            info: s.info,
            device: s.device,
            online,
        }
    }
}

impl ProjectView {
    pub(crate) fn of(hub: &Hub, p: ProjectRecord) -> Self {
        let online = hub.presence.is_online(&p.device);
        Self {
            info: p.info,
            device: p.device,
            approved: p.approved,
            online,
        }
    }
}

/// How far an item came, as the word of its last receipt's stage.
pub(crate) fn stage_word(item: &ItemRecord) -> String {
    item.receipts
        .last()
        .and_then(|r| serde_json::to_value(&r.stage).ok())
        .and_then(|v| v.get("stage")?.as_str().map(str::to_owned))
        .unwrap_or_default()
}
