//! What the hub tells those who watch: the `data` of its server-sent events.
//!
//! An [`Event`] is one change of one task or message, numbered in the account's log; its [`Position`] is the `id` of the
//! server-sent event. A [`StreamNotice`] is about the stream itself and is not in the log.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::domain::{
    DeviceId, EnvelopeId, Epoch, InstanceId, Priority, ProjectName, Receipt, Sender, Seq,
    SessionId, TaskStatus, WallMs,
};

/// Longest text inside an event, bytes; the whole text stands at the item itself.
pub const MAX_EVENT_TEXT: usize = 4 << 10;

/// One change of a task or a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// The task's or the message's id.
    pub id: EnvelopeId,
    /// When the hub committed it, Unix ms.
    pub at: WallMs,
    /// The device that the item goes to.
    pub device: DeviceId,
    /// The project that the item is addressed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectName>,
    /// What changed.
    #[serde(flatten)]
    pub what: Told,
}

/// What changed, by its type: the `event` of the server-sent event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type")]
pub enum Told {
    /// A task is durable at the hub.
    #[serde(rename = "task.accepted")]
    TaskAccepted(Accepted),
    /// A new attempt of a task began.
    #[serde(rename = "task.attempt")]
    TaskAttempt(AttemptBegan),
    /// A task goes to another device now.
    #[serde(rename = "task.rerouted")]
    TaskRerouted(Rerouted),
    /// A task's envelope reached a stage.
    #[serde(rename = "task.receipt")]
    TaskReceipt(Reached),
    /// A step of a task's run.
    #[serde(rename = "task.progress")]
    TaskProgress(Step),
    /// The one who works on a task answered.
    #[serde(rename = "task.reply")]
    TaskReply(Answered),
    /// What came of a task.
    #[serde(rename = "task.result")]
    TaskResult(Outcome),
    /// Where a task stands now; comes after everything that belongs to it.
    #[serde(rename = "task.status")]
    TaskStatus(Stands),
    /// A message is durable at the hub.
    #[serde(rename = "message.accepted")]
    MessageAccepted(Accepted),
    /// A message goes to another device now.
    #[serde(rename = "message.rerouted")]
    MessageRerouted(Rerouted),
    /// A session answered a message.
    #[serde(rename = "message.reply")]
    MessageReply(Answered),
    /// A message's envelope reached a stage.
    #[serde(rename = "message.receipt")]
    MessageReceipt(Reached),
}

/// See [`Told::TaskAccepted`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Accepted {
    /// Who sent it.
    pub from: Sender,
    /// Its lane.
    pub priority: Priority,
    /// When it ends undelivered, Unix ms.
    pub expires_at: WallMs,
    /// The session that it is addressed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

/// See [`Told::TaskAttempt`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptBegan {
    /// Its number, from 1.
    pub attempt: u32,
    /// The envelope that carries it.
    pub envelope: EnvelopeId,
}

/// See [`Told::TaskRerouted`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rerouted {
    /// The device that it was taken from.
    pub from_device: DeviceId,
}

/// See [`Told::TaskReceipt`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reached {
    /// The stage, its time and what shows it; large evidence is left out.
    pub receipt: Receipt,
    /// Whether nothing follows on this stage.
    pub terminal: bool,
}

/// See [`Told::TaskProgress`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// What happened, in a few words.
    pub text: String,
    /// Whether `text` was cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// See [`Told::TaskReply`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answered {
    /// The reply's own id.
    pub reply_id: EnvelopeId,
    /// The text.
    pub content: String,
    /// Whether `content` was cut; the item's `replies` hold it whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The session that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// When it was written, Unix ms, by the device's clock.
    pub written_at: WallMs,
}

/// See [`Told::TaskResult`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// The last assistant message, or the error.
    pub text: String,
    /// Whether `text` was cut; the task's `result` holds more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
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
    pub permission_denials: usize,
}

/// See [`Told::TaskStatus`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stands {
    /// Where it stands.
    pub status: TaskStatus,
    /// A stable word for why, where a status has reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When a block may end, Unix ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<WallMs>,
    /// The number of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Whether nothing follows on this status within its attempt.
    pub terminal: bool,
}

impl Told {
    /// Every type, in the order of the reference in `proto/`.
    pub const TYPES: &'static [&'static str] = &[
        "task.accepted",
        "task.attempt",
        "task.rerouted",
        "task.receipt",
        "task.progress",
        "task.reply",
        "task.result",
        "task.status",
        "message.accepted",
        "message.rerouted",
        "message.reply",
        "message.receipt",
    ];

    /// The type, as it stands in `event:` and in `type`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::TaskAccepted(_) => "task.accepted",
            Self::TaskAttempt(_) => "task.attempt",
            Self::TaskRerouted(_) => "task.rerouted",
            Self::TaskReceipt(_) => "task.receipt",
            Self::TaskProgress(_) => "task.progress",
            Self::TaskReply(_) => "task.reply",
            Self::TaskResult(_) => "task.result",
            Self::TaskStatus(_) => "task.status",
            Self::MessageAccepted(_) => "message.accepted",
            Self::MessageRerouted(_) => "message.rerouted",
            Self::MessageReply(_) => "message.reply",
            Self::MessageReceipt(_) => "message.receipt",
        }
    }
}

/// What a stream says about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamNotice {
    /// The stream stands at `position`: every event after it follows.
    Open {
        /// The place in the log.
        position: String,
    },
    /// The asked position cannot be gone on from: events may have been missed. The present state follows as `snapshot`s,
    /// then `open`.
    Reset {
        /// Why.
        reason: ResetReason,
    },
    /// An item as it stands now; it may already hold what the next events tell.
    Snapshot {
        /// The task as `GET /tasks/{id}` shows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<Value>,
        /// The message as `GET /messages/{id}` shows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Value>,
    },
    /// The last event of the stream.
    End {
        /// Why it ends.
        reason: EndReason,
        /// The place in the log up to which the stream told everything.
        position: String,
    },
}

/// The `data` of any event of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EventData {
    /// A change of a task or a message.
    Event(Event),
    /// A word about the stream.
    Notice(StreamNotice),
}

/// The body of a callback, by Standard Webhooks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Webhook {
    /// The event's type.
    #[serde(rename = "type")]
    pub kind: String,
    /// When it happened, RFC 3339.
    pub timestamp: String,
    /// The event, and what belongs to it.
    pub data: CallbackData,
}

/// What a callback tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallbackData {
    /// The event as a stream tells it.
    #[serde(flatten)]
    pub event: Event,
    /// Where the item is shown, below the hub's URL.
    pub url: String,
    /// What came of a task, with its terminal status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Outcome>,
    /// The producer's own data, unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// The time as RFC 3339 in UTC, to the second.
#[must_use]
pub fn utc(at: WallMs) -> String {
    let s = at.0.div_euclid(1000);
    let (days, s) = (s.div_euclid(86_400), s.rem_euclid(86_400));
    // Days since 0000-03-01, in eras of 400 years, so that a leap day comes last in its year.
    let z = days + 719_468;
    let (era, day) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        s / 3600,
        s / 60 % 60,
        s % 60
    )
}

/// Why a position cannot be gone on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResetReason {
    /// The events after it are no longer kept.
    Gone,
    /// It belongs to another life of the hub's store.
    OtherEpoch,
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The task has its terminal status, and everything was told.
    Finished,
    /// The reader took nothing for too long.
    SlowReader,
    /// The hub stops; come back.
    GoingAway,
    /// The token was called back.
    TokenRevoked,
    /// The token's time is over.
    TokenExpired,
    /// The hub's store cannot be read now; come back.
    StoreUnavailable,
}

impl StreamNotice {
    /// The `event` of the server-sent event.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::Reset { .. } => "reset",
            Self::Snapshot { .. } => "snapshot",
            Self::End { .. } => "end",
        }
    }
}

/// A place in an account's log: the `id` of a server-sent event. Its text is opaque to clients.
///
/// The time of the event stands in it beside epoch and number, so that a store that was put back by hand, whose numbers
/// came to mean something else without a new epoch, is recognised as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The log's life.
    pub epoch: Epoch,
    /// The event's number; 0 is before the first.
    pub seq: Seq,
    /// When it was written, Unix ms.
    pub at: WallMs,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.epoch.0.simple(), self.seq.0, self.at.0)
    }
}

/// A text that is no position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no position of an event stream")]
pub struct NotAPosition;

impl FromStr for Position {
    type Err = NotAPosition;

    fn from_str(s: &str) -> Result<Self, NotAPosition> {
        let mut parts = s.split('-');
        let (Some(epoch), Some(seq), Some(at), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NotAPosition);
        };
        Ok(Self {
            epoch: InstanceId(Uuid::try_parse(epoch).map_err(|_| NotAPosition)?),
            seq: Seq(seq.parse().map_err(|_| NotAPosition)?),
            at: WallMs(at.parse().map_err(|_| NotAPosition)?),
        })
    }
}

/// The text, cut to [`MAX_EVENT_TEXT`] bytes at a character's end, and whether it was.
#[must_use]
pub fn cut(text: &str) -> (String, bool) {
    if text.len() <= MAX_EVENT_TEXT {
        return (text.to_owned(), false);
    }
    let end = text.floor_char_boundary(MAX_EVENT_TEXT);
    (text[..end].to_owned(), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back_and_nothing_else_is_one() {
        let p = Position {
            epoch: InstanceId::from_u128(7),
            seq: Seq(42),
            at: WallMs(1_790_000_000_000),
        };
        assert_eq!(p.to_string().parse(), Ok(p));
        for bad in ["", "1", "-", "a-b-c", "0-1-2-3", &format!("{p}-"), "🦀-1-1"] {
            assert_eq!(bad.parse::<Position>(), Err(NotAPosition), "{bad}");
        }
    }

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (ms, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_614_265_330_999, "2021-02-25T15:02:10Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(WallMs(ms)), want);
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("short"), ("short".to_owned(), false));
        let (text, truncated) = cut(&"é".repeat(MAX_EVENT_TEXT));
        assert!(truncated && text.len() <= MAX_EVENT_TEXT && text.ends_with('é'));
        let (text, _) = cut(&format!("x{}", "é".repeat(MAX_EVENT_TEXT)));
        assert_eq!(text.len(), MAX_EVENT_TEXT - 1);
    }
}
