//! What travels from the hub to a device.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{EnvelopeId, ProjectName, RunOptions, SessionId, WallMs};

/// How far a sender is believed: `inform` may only send messages, a `suggest` task waits for a person, a `run` task runs at once.
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
pub enum Trust {
    /// Messages only.
    Inform,
    /// Tasks wait for a person.
    #[default]
    Suggest,
    /// Tasks run at once.
    Run,
}

/// Who sent an envelope, as the hub verified it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Sender {
    /// The token's name.
    pub name: String,
    /// The token's trust.
    pub trust: Trust,
}

/// Which project or session of the device an envelope is for; both absent means the device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
pub struct Address {
    /// An enabled project's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectName>,
    /// A session, or one whose successor is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

/// The lane of an envelope; order holds within a lane. Ordered from least to most pressing.
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
pub enum Priority {
    /// May wait.
    Low,
    /// At the next turn boundary.
    #[default]
    Normal,
    /// At the next tool boundary.
    Urgent,
}

/// What an envelope is; an unknown kind is kept as it came, acked and reported `unsupported`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvelopeKind {
    /// A text for a session; body [`MessageBody`].
    Message,
    /// One attempt of a task; body [`TaskBody`].
    Task,
    /// Stop a task or take a message back; body [`CancelBody`] or [`RecallBody`].
    Cancel,
    /// The hub's memory of a project changed.
    MemoryChanged,
    /// A person decided about an approval.
    Decision,
    /// A kind of a later version.
    #[serde(untagged)]
    Other(String),
}

/// One immutable message, task attempt or control item.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Envelope {
    /// The envelope's name and idempotency key.
    pub id: EnvelopeId,
    /// What it is.
    pub kind: EnvelopeKind,
    /// Who sent it.
    pub from: Sender,
    /// Whom it is for on the device.
    #[serde(default)]
    pub to: Address,
    /// Its lane.
    #[serde(default)]
    pub priority: Priority,
    /// The content, by kind: JSON that the hub never looks into after POST.
    pub body: Value,
    /// Whether an idle or closed session is woken for it.
    #[serde(default)]
    pub wake: bool,
    /// When the hub accepted it, Unix ms.
    pub created_at: WallMs,
    /// When it is no longer worth delivering, Unix ms.
    pub expires_at: WallMs,
    /// Which attempt of a task this is, from 1; absent for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// How many agents this passed through; bounded by [`super::limits::MAX_HOPS`].
    #[serde(default)]
    pub hops: u8,
    /// The envelope this answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<EnvelopeId>,
}

/// The body of a `message`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MessageBody {
    /// The text, as the producer wrote it.
    pub content: String,
}

/// The body of a `task`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskBody {
    /// The task this is an attempt of; the first attempt's envelope has the same id.
    pub task_id: EnvelopeId,
    /// The request, as the producer wrote it.
    pub task: String,
    /// Wishes that only narrow the project's run policy.
    #[serde(default)]
    pub options: RunOptions,
    /// The producer's own data, returned with the task and never interpreted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// The body of a `cancel` of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CancelBody {
    /// The task to stop.
    pub task_id: EnvelopeId,
    /// The attempt that is meant; absent means every one that the device has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// The body of a `cancel` of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecallBody {
    /// The message to take back while nothing has claimed it.
    pub message_id: EnvelopeId,
}

impl Envelope {
    /// The body as a message; `None` if the kind or the shape is another.
    #[must_use]
    pub fn message(&self) -> Option<MessageBody> {
        self.body_as(&EnvelopeKind::Message)
    }

    /// The body as a task attempt; `None` if the kind or the shape is another.
    #[must_use]
    pub fn task(&self) -> Option<TaskBody> {
        self.body_as(&EnvelopeKind::Task)
    }

    /// The body as the cancellation of a task; `None` if the kind or the shape is another.
    #[must_use]
    pub fn cancel(&self) -> Option<CancelBody> {
        self.body_as(&EnvelopeKind::Cancel)
    }

    /// The body as the recall of a message; `None` if the kind or the shape is another.
    #[must_use]
    pub fn recall(&self) -> Option<RecallBody> {
        self.body_as(&EnvelopeKind::Cancel)
    }

    fn body_as<T: serde::de::DeserializeOwned>(&self, kind: &EnvelopeKind) -> Option<T> {
        if self.kind != *kind {
            return None;
        }
        T::deserialize(&self.body).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_survives_the_round_trip() {
        let kind: EnvelopeKind = serde_json::from_str("\"hologram\"").unwrap();
        assert_eq!(kind, EnvelopeKind::Other("hologram".into()));
        assert_eq!(serde_json::to_string(&kind).unwrap(), "\"hologram\"");
        assert_eq!(
            serde_json::to_string(&EnvelopeKind::MemoryChanged).unwrap(),
            "\"memory_changed\""
        );
    }

    #[test]
    fn priorities_order_from_low_to_urgent() {
        assert!(Priority::Low < Priority::Normal && Priority::Normal < Priority::Urgent);
    }
}
