//! What tasks and messages have in common: the fields of a POST, the way into a mailbox, the lists.

use std::sync::Arc;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde_json::Value;
use uuid::Uuid;

use super::super::body::{Fields, too_large};
use super::super::clock::wall;
use super::super::directory::Want;
use super::super::guard::Caller;
use super::super::mailbox::{stored_item, write_item};
use super::super::once::{Answer, Effect};
use super::super::problem::ApiResult;
use super::super::records::{self, Attempt, ItemKind, ItemRecord, TaskText};
use super::super::state::Hub;
use super::super::store::{MailboxId, Op};
use super::retry::keep_text;
use super::views::{Accepted, stage_word};
use crate::domain::{
    Envelope, EnvelopeId, EnvelopeKind, Priority, ProjectName, Receipt, SessionId, Stage,
    TaskState, TaskStatus, limits,
};

/// Longest life that a producer may ask for, seconds: 30 days.
pub(super) const MAX_EXPIRES_S: i64 = 30 * 24 * 3600;

/// What every POST may say besides its text.
#[derive(Debug, Default, JsonSchema)]
pub(crate) struct Common {
    /// The session it is for, or one whose successor is meant.
    session_id: Option<SessionId>,
    /// The project it is for: its name, or its absolute path on a device.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"\S"))]
    project: Option<String>,
    /// The device it is for: its id or its name.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"\S"))]
    device: Option<String>,
    /// Its lane; `normal` when not said.
    priority: Option<Priority>,
    /// For how long it is worth delivering, seconds; a day for a task, seven for a message when not said.
    #[schemars(range(min = 1, max = 2_592_000))]
    expires_in_s: Option<i64>,
    /// Where its end and each reply are POSTed by Standard Webhooks: an `https` URL of the public Internet.
    #[schemars(length(max = 2048), url)]
    callback_url: Option<String>,
}

impl Common {
    pub(crate) fn take(f: &mut Fields) -> Self {
        let session_id = match f.text("session_id").map(|s| s.parse::<SessionId>()) {
            Some(Err(e)) => {
                f.fault("session_id", e.to_string());
                None
            }
            Some(Ok(id)) => Some(id),
            None => None,
        };
        let mut name = |field: &str| match f.text(field) {
            Some(s) if s.trim().is_empty() || s.chars().count() > 1024 => {
                f.fault(field, "must be 1 to 1024 characters");
                None
            }
            other => other,
        };
        let (project, device) = (name("project"), name("device"));
        Self {
            session_id,
            project,
            device,
            priority: f.shaped("priority"),
            callback_url: f.text("callback_url"),
            expires_in_s: f.number("expires_in_s", 1, MAX_EXPIRES_S),
        }
    }
}

/// A text on its way into a mailbox.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) kind: ItemKind,
    pub(crate) common: Common,
    pub(crate) wake: bool,
    pub(crate) metadata: Option<Value>,
    /// The envelope's body, given the item's id.
    pub(crate) body: Value,
    pub(crate) id: EnvelopeId,
    /// A run's wall clock as asked for, seconds.
    pub(crate) timeout_s: Option<u64>,
}

/// A fresh id: time-ordered, so that lists sort by it.
pub(crate) fn new_id() -> EnvelopeId {
    EnvelopeId(Uuid::now_v7())
}

/// The steps that accept a draft, and the answer: routed, sized, with its record.
pub(crate) fn accept(hub: &Hub, caller: &Caller, draft: Draft) -> ApiResult<Effect> {
    let Common {
        session_id,
        project,
        device,
        priority,
        expires_in_s,
        callback_url,
    } = draft.common;
    let callback = callback_url
        .map(|url| {
            let token = caller.producer()?.jti;
            hub.webhooks.accept(&caller.account, token, url)
        })
        .transpose()?;
    let want = Want {
        session: session_id,
        project,
        device,
    };
    let route = hub.route(&caller.account, &want, draft.kind)?;
    let by_name = route.to.project.as_ref().map(ProjectName::as_str) == want.project.as_deref();
    let anywhere =
        want.project.is_some() && by_name && want.device.is_none() && want.session.is_none();
    let now = wall();
    let (kind, ttl_ms, path) = match draft.kind {
        ItemKind::Task => (EnvelopeKind::Task, limits::TASK_TTL_MS, "tasks"),
        ItemKind::Message => (EnvelopeKind::Message, limits::MESSAGE_TTL_MS, "messages"),
    };
    let ttl_ms = expires_in_s.map_or(ttl_ms, |s| s * 1000);
    let attempt = (draft.kind == ItemKind::Task).then_some(1);
    let envelope = Envelope {
        id: draft.id,
        kind,
        from: caller.sender(),
        to: route.to,
        priority: priority.unwrap_or_default(),
        body: draft.body,
        wake: draft.wake,
        created_at: now,
        expires_at: now.plus(ttl_ms),
        attempt,
        hops: 0,
        reply_to: None,
    };
    let json: Arc<str> = records::text(&envelope).into();
    if json.len() > limits::MAX_ENVELOPE_BYTES {
        return Err(too_large(
            "the encoded envelope",
            limits::MAX_ENVELOPE_BYTES,
        ));
    }
    let text = (draft.kind == ItemKind::Task).then(|| TaskText {
        from: envelope.from.clone(),
        body: envelope.body.clone(),
        wake: envelope.wake,
        hops: envelope.hops,
        ttl_ms,
    });
    let text = text.map(|text| keep_text(&caller.account, draft.id, &text, &envelope));
    let record = ItemRecord {
        id: draft.id,
        kind: draft.kind,
        device: route.device.clone(),
        to: envelope.to,
        from: envelope.from,
        priority: envelope.priority,
        created_at: now,
        expires_at: envelope.expires_at,
        state: TaskState::new(TaskStatus::Queued),
        receipts: vec![Receipt {
            stage: Stage::Accepted,
            at: now,
            evidence: None,
        }],
        attempts: attempt
            .map(|attempt| Attempt {
                attempt,
                envelope: draft.id,
                created_at: now,
                started_at: None,
                ended_at: None,
                device: Some(route.device.clone()),
                status: None,
                reason: None,
                receipts: Vec::new(),
            })
            .into_iter()
            .collect(),
        replies: Vec::new(),
        result: None,
        metadata: draft.metadata,
        anywhere,
        timeout_s: draft.timeout_s,
        cancel: None,
        rerouted: Vec::new(),
        presumed: false,
        deadline: None,
        watch: None,
        callback,
    };
    let url = format!("/{path}/{}", draft.id);
    let mut ops = vec![Op::Append {
        mailbox: MailboxId::of(&caller.account, &route.device),
        id: draft.id,
        json,
        expires_at: envelope.expires_at,
    }];
    ops.extend(write_item(&caller.account, None, &record, now));
    ops.extend(text);
    let answer = Answer {
        status: StatusCode::ACCEPTED,
        location: Some(url.clone()),
        body: records::value(&Accepted {
            id: draft.id,
            status: status(&record),
            device: route.device,
            url,
        }),
    };
    Ok(Effect { ops, answer })
}

/// A task's status, or how far a message came: its last receipt.
pub(crate) fn status(item: &ItemRecord) -> String {
    match item.kind {
        ItemKind::Task => item.state.status.as_str().to_owned(),
        ItemKind::Message => stage_word(item),
    }
}

/// The item of this id, or the 404 of its kind.
pub(crate) async fn one(
    hub: &Hub,
    caller: &Caller,
    kind: ItemKind,
    id: &str,
) -> ApiResult<ItemRecord> {
    let found = stored_item(hub, kind, &caller.account, id).await?;
    Ok(found.item)
}
