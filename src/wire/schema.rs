//! JSON Schemas of everything that crosses the link, for clients written from `proto/` alone.
//!
//! They say what this version reads: fields that have a default may be absent. Frames of unknown types are not in them; a
//! reader ignores and counts those.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

use super::event::{Event, StreamNotice, Webhook};
use super::{DeviceFrame, Hello, HubFrame, PollAck, PollAcked, Polled, Welcome};
use crate::domain::{
    CancelBody, Envelope, MessageBody, Problem, Progress, ProjectInfo, RecallBody, Receipt, Reply,
    SessionInfo, TaskBody, TaskResult, TaskState,
};

/// Every schema with the name of its file in `proto/schema/`, without the extension.
#[must_use]
pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("device_frame", of::<DeviceFrame>()),
        ("hub_frame", of::<HubFrame>()),
        ("envelope", of::<Envelope>()),
        ("body_message", of::<MessageBody>()),
        ("body_task", of::<TaskBody>()),
        ("body_cancel", of::<CancelBody>()),
        ("body_recall", of::<RecallBody>()),
        ("report_receipt", of::<Receipt>()),
        ("report_status", of::<TaskState>()),
        ("report_progress", of::<Progress>()),
        ("report_result", of::<TaskResult>()),
        ("report_reply", of::<Reply>()),
        ("report_session", of::<SessionInfo>()),
        ("report_project", of::<ProjectInfo>()),
        ("poll_open", of::<Hello>()),
        ("poll_opened", of::<Welcome>()),
        ("polled", of::<Polled>()),
        ("poll_ack", of::<PollAck>()),
        ("poll_acked", of::<PollAcked>()),
        ("event", of::<Event>()),
        ("stream_notice", of::<StreamNotice>()),
        ("webhook", of::<Webhook>()),
        ("problem", of::<Problem>()),
    ]
}

fn of<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12()
        .for_deserialize()
        .into_generator();
    generator.into_root_schema_for::<T>().to_value()
}
