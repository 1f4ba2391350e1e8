//! What a device says upwards.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{Progress, ProjectInfo, Receipt, Reply, SessionInfo, TaskResult, TaskState, WallMs};

/// What a report tells.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportKind {
    /// A stage an envelope reached; body [`Receipt`].
    Receipt,
    /// Where a task stands; body [`TaskState`].
    Status,
    /// A step of a run; body [`Progress`].
    Progress,
    /// What came of a task; body [`TaskResult`].
    Result,
    /// An answer to a sender; body [`Reply`].
    Reply,
    /// A session appeared or changed; body [`SessionInfo`].
    Session,
    /// A project was enabled or disabled; body [`ProjectInfo`].
    Project,
    /// A note about a project.
    Note,
    /// A kind of a later version.
    #[serde(untagged)]
    Other(String),
}

/// One row of a device's outbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Its place in the outbox, from 1, dense within one outbox instance.
    pub n: u64,
    /// The envelope, session or project entry it is about.
    pub id: Uuid,
    /// What it tells.
    pub kind: ReportKind,
    /// When it happened, Unix ms, by the device's clock.
    pub at: WallMs,
    /// The content, by kind.
    pub body: Value,
}

/// A report's content, read by its kind.
#[derive(Debug, Clone, PartialEq)]
pub enum ReportBody {
    /// See [`ReportKind::Receipt`].
    Receipt(Receipt),
    /// See [`ReportKind::Status`].
    Status(TaskState),
    /// See [`ReportKind::Progress`].
    Progress(Progress),
    /// See [`ReportKind::Result`].
    Result(TaskResult),
    /// See [`ReportKind::Reply`].
    Reply(Reply),
    /// See [`ReportKind::Session`].
    Session(SessionInfo),
    /// See [`ReportKind::Project`].
    Project(ProjectInfo),
    /// See [`ReportKind::Note`].
    Note(Value),
}

/// Why a report cannot be read; it is answered in `report_ack.rejected` and blocks nothing else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAReport {
    /// A kind of a later version.
    #[error("unknown report kind `{0}`")]
    UnknownKind(String),
    /// The body does not have the kind's shape.
    #[error("bad report body: {0}")]
    Body(String),
}

impl Report {
    /// The body by its kind.
    ///
    /// # Errors
    /// When the kind is unknown or the body has another shape.
    pub fn read(&self) -> Result<ReportBody, NotAReport> {
        fn get<T: serde::de::DeserializeOwned>(v: &Value) -> Result<T, NotAReport> {
            T::deserialize(v).map_err(|e| NotAReport::Body(e.to_string()))
        }
        Ok(match &self.kind {
            ReportKind::Receipt => ReportBody::Receipt(get(&self.body)?),
            ReportKind::Status => ReportBody::Status(get(&self.body)?),
            ReportKind::Progress => ReportBody::Progress(get(&self.body)?),
            ReportKind::Result => ReportBody::Result(get(&self.body)?),
            ReportKind::Reply => ReportBody::Reply(get(&self.body)?),
            ReportKind::Session => ReportBody::Session(get(&self.body)?),
            ReportKind::Project => ReportBody::Project(get(&self.body)?),
            ReportKind::Note => ReportBody::Note(self.body.clone()),
            ReportKind::Other(kind) => return Err(NotAReport::UnknownKind(kind.clone())),
        })
    }
}

impl ReportBody {
    /// The kind and the JSON of this content, to fill a [`Report`].
    #[must_use]
    pub fn into_parts(self) -> (ReportKind, Value) {
        fn json<T: Serialize>(v: T) -> Value {
            serde_json::to_value(v).unwrap_or(Value::Null)
        }
        match self {
            Self::Receipt(v) => (ReportKind::Receipt, json(v)),
            Self::Status(v) => (ReportKind::Status, json(v)),
            Self::Progress(v) => (ReportKind::Progress, json(v)),
            Self::Result(v) => (ReportKind::Result, json(v)),
            Self::Reply(v) => (ReportKind::Reply, json(v)),
            Self::Session(v) => (ReportKind::Session, json(v)),
            Self::Project(v) => (ReportKind::Project, json(v)),
            Self::Note(v) => (ReportKind::Note, v),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Door, Stage};

    #[test]
    fn a_receipt_goes_through_a_report_unchanged() {
        let receipt = Receipt {
            stage: Stage::Claimed { door: Door::Hooks },
            at: WallMs(5),
            evidence: Some(serde_json::json!({"session_id": "x"})),
        };
        let (kind, body) = ReportBody::Receipt(receipt.clone()).into_parts();
        let report = Report {
            n: 1,
            id: Uuid::from_u128(1),
            kind,
            at: WallMs(5),
            body,
        };
        assert_eq!(report.read(), Ok(ReportBody::Receipt(receipt)));
    }

    #[test]
    fn a_bad_body_is_an_error_and_not_a_panic() {
        let report = Report {
            n: 1,
            id: Uuid::from_u128(1),
            kind: ReportKind::Status,
            at: WallMs(0),
            body: serde_json::json!([1]),
        };
        assert!(matches!(report.read(), Err(NotAReport::Body(_))));
    }
}
