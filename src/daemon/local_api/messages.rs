//! Mail for programs that ask, and mail and tasks from programs on this machine.
//!
//! A program is a door like any other: without `peek` it gets a claim, and mail that it does not confirm before the lease ends
//! goes back to the queue. What a person, a policy or a pause holds is not handed out.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use super::body::{ApiError, ApiResult, Asked, JsonBody};
use super::once::Once;
use super::person::need_person;
use super::{Api, Peer, Via};
use crate::daemon::clock;
use crate::daemon::store::{ClaimRow, EnvelopeRow, NewReport, QueueFilter, Store, StoreError};
use crate::delivery::Reason;
use crate::domain::{
    Address, ClaimId, Code, Door, Envelope, EnvelopeId, EnvelopeKind, Priority, ProjectName,
    Receipt, ReportKind, RunOptions, Sender, SessionId, Stage, Trust, WallMs, limits,
};

/// Messages in one answer, and in one push.
const MOST: u32 = 100;
/// Rows that are looked at to find them.
const LOOKED_AT: u32 = 1_000;
/// The longest wait before leases are looked at again.
const IDLE: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize)]
pub(super) struct Ask {
    session: Option<SessionId>,
    #[serde(default)]
    peek: Option<String>,
    limit: Option<u32>,
}

pub(super) async fn list(State(api): State<Arc<Api>>, Asked(ask): Asked<Ask>) -> ApiResult {
    let limit = ask.limit.unwrap_or(20).clamp(1, MOST) as usize;
    let peek = ask
        .peek
        .as_deref()
        .is_some_and(|v| !matches!(v, "0" | "false"));
    let mut sessions = Vec::new();
    let mut project = None;
    if let Some(id) = ask.session {
        sessions.push(id);
        if let Some(row) = api.store.session(id).await? {
            sessions.push(row.session_id);
            sessions.extend(row.lineage);
            project = row.project;
        }
    }
    let filter = QueueFilter {
        kind: Some(EnvelopeKind::Message),
        ..QueueFilter::default()
    };
    let mut rows = api.store.queued(filter, LOOKED_AT).await?;
    rows.retain(|row| {
        let to = &row.envelope.to;
        let ours = match (&to.session_id, &to.project) {
            _ if ask.session.is_none() => true,
            (Some(id), _) => sessions.contains(id),
            (None, Some(name)) => project.as_ref() == Some(name),
            (None, None) => true,
        };
        ours && (peek || !is_withheld(row))
    });
    rows.truncate(limit);
    let claim = if peek || rows.is_empty() {
        None
    } else {
        Some(claim(&api, ask.session, &rows).await?)
    };
    let messages: Vec<Value> = rows.iter().map(shown).collect();
    Ok(Json(json!({ "claim": claim, "messages": messages })))
}

/// Whether a person, a policy or a pause holds it; other reasons concern other doors.
fn is_withheld(row: &EnvelopeRow) -> bool {
    let Some(reason) = row.hold_reason.as_deref() else {
        return false;
    };
    [
        Reason::Paused,
        Reason::DoNotDisturb,
        Reason::SenderMuted,
        Reason::MessageNotificationOff,
        Reason::AwaitingApproval,
    ]
    .iter()
    .any(|r| r.as_str() == reason)
}

fn shown(row: &EnvelopeRow) -> Value {
    let e = &row.envelope;
    json!({
        "id": e.id,
        "content": e.message().map(|m| m.content),
        "from": e.from.name,
        "trust": e.from.trust,
        "timestamp": e.created_at,
        "priority": e.priority,
        "to": e.to,
        "held": row.hold_reason,
    })
}

async fn claim(
    api: &Api,
    session: Option<SessionId>,
    rows: &[EnvelopeRow],
) -> Result<ClaimId, StoreError> {
    let now = clock::wall();
    let lease = i64::try_from(limits::CLAIM_LEASE_MS).unwrap_or(30_000);
    let row = ClaimRow {
        id: ClaimId(Uuid::new_v4()),
        door: Door::LocalApi,
        session,
        envelopes: rows.iter().map(|r| r.envelope.id).collect(),
        transcript: None,
        offset: 0,
        opened_at: now,
        lease_until: now.plus(lease),
        state: "handed_over".into(),
        closed: false,
        detail: Value::Null,
    };
    let id = row.id;
    let door = Door::LocalApi;
    let mut reports = stage(&row, &Stage::Claimed { door }, now);
    reports.extend(stage(&row, &Stage::HandedOver, now));
    api.store.open_claim(row, reports).await?;
    Ok(id)
}

fn stage(claim: &ClaimRow, stage: &Stage, at: WallMs) -> Vec<NewReport> {
    let receipt = |id: &EnvelopeId| {
        let evidence = (*stage == Stage::Seen).then(|| json!({ "confirmed_claim": claim.id }));
        let stage = stage.clone();
        NewReport::receipt(
            *id,
            Receipt {
                stage,
                at,
                evidence,
            },
        )
    };
    claim.envelopes.iter().map(receipt).collect()
}

#[derive(Debug, Deserialize)]
pub(super) struct Confirm {
    claim: ClaimId,
}

pub(super) async fn confirm(
    State(api): State<Arc<Api>>,
    JsonBody(body): JsonBody<Confirm>,
) -> ApiResult {
    let row = api.store.claim(body.claim).await?;
    let row = row
        .filter(|r| r.door == Door::LocalApi)
        .ok_or_else(|| ApiError::new(Code::UnknownMessage, format!("no claim `{}`", body.claim)))?;
    let confirmed = json!({ "confirmed": row.envelopes });
    if row.closed && row.state == "confirmed" {
        return Ok(Json(confirmed));
    }
    let now = clock::wall();
    let finish = row.envelopes.clone();
    let mut reports = stage(&row, &Stage::Seen, now);
    reports.extend(stage(&row, &Stage::Done, now));
    let closed = ClaimRow {
        closed: true,
        state: "confirmed".into(),
        ..row
    };
    match api
        .store
        .update_claim(closed, vec![], finish, reports)
        .await
    {
        Ok(()) => Ok(Json(confirmed)),
        Err(StoreError::UnknownClaim(id)) => Err(ApiError::new(
            Code::Conflict,
            format!("the lease of claim `{id}` ended"),
        )
        .hint("its messages went back to the queue; ask again")),
        Err(e) => Err(e.into()),
    }
}

/// Gives back what programs took and did not confirm; runs until it is dropped.
pub(in crate::daemon) async fn return_expired(store: Store) {
    let mut changed = store.version();
    loop {
        let now = clock::wall();
        let mut next = IDLE;
        for claim in store.open_claims().await.unwrap_or_default() {
            if claim.door != Door::LocalApi {
                continue;
            }
            let left = claim.lease_until.0.saturating_sub(now.0);
            if let Ok(left @ 1..) = u64::try_from(left) {
                next = next.min(Duration::from_millis(left));
                continue;
            }
            let requeue = claim.envelopes.clone();
            let closed = ClaimRow {
                closed: true,
                state: "lease_ended".into(),
                ..claim
            };
            if let Err(error) = store.update_claim(closed, requeue, vec![], vec![]).await {
                tracing::warn!(%error, "a program's claim could not be given back yet");
                next = next.min(Duration::from_secs(1));
            }
        }
        if let Ok(Err(_)) = timeout(next, changed.changed()).await {
            return;
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Push {
    messages: Vec<Pushed>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pushed {
    content: String,
    id: Option<EnvelopeId>,
    from: Option<String>,
    session_id: Option<SessionId>,
    project: Option<ProjectName>,
    #[serde(default)]
    priority: Priority,
    #[serde(default)]
    wake: bool,
    expires_in_s: Option<i64>,
}

pub(super) async fn push(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<Push>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let key = Once::of(&headers, "POST /messages/push")?;
    if body.messages.is_empty() || body.messages.len() > MOST as usize {
        let rule = format!("`messages` must hold 1 to {MOST} messages");
        return Err(ApiError::new(Code::InvalidField, rule));
    }
    let mut batch = Vec::new();
    for (place, m) in body.messages.into_iter().enumerate() {
        check_length("content", &m.content)?;
        if m.id.is_some() && key.is_some() {
            let rule = "give each message an `id`, or the request an `Idempotency-Key`, not both";
            return Err(ApiError::new(Code::InvalidField, rule));
        }
        let name = m
            .from
            .map_or_else(|| "local".to_owned(), |n| format!("local:{n}"));
        if name.len() > 100 || name.chars().any(char::is_control) {
            let rule = "`from` must be at most 90 characters without control characters";
            return Err(ApiError::new(Code::InvalidField, rule));
        }
        let from = Sender {
            name,
            trust: Trust::Inform,
        };
        let to = Address {
            project: m.project,
            session_id: m.session_id,
        };
        let life = lifetime(m.expires_in_s, limits::MESSAGE_TTL_MS)?;
        let mut e = envelope(EnvelopeKind::Message, from, to, life);
        e.id = m.id.or(key.as_ref().map(|k| k.id(place))).unwrap_or(e.id);
        e.priority = m.priority;
        e.wake = m.wake;
        e.body = json!({ "content": m.content });
        batch.push(e);
    }
    let ids: Vec<_> = batch.iter().map(|e| e.id).collect();
    let new = Once::store(key.as_ref(), &api, batch).await?;
    Ok((
        StatusCode::ACCEPTED,
        Json(json!({ "ids": ids, "new": new })),
    ))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Task {
    task: String,
    session_id: Option<SessionId>,
    project: Option<ProjectName>,
    #[serde(default)]
    priority: Priority,
    expires_in_s: Option<i64>,
    #[serde(default)]
    options: RunOptions,
    metadata: Option<Value>,
}

/// A task for this device. A person's runs at once; one from inside a session or a run waits for a person.
pub(super) async fn task(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    JsonBody(t): JsonBody<Task>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let key = Once::of(&headers, "POST /tasks")?;
    check_length("task", &t.task)?;
    let trusted = peer.via == Via::Loopback || need_person(&api, peer).await.is_ok();
    let from = Sender {
        name: "local".into(),
        trust: if trusted { Trust::Run } else { Trust::Suggest },
    };
    let to = Address {
        project: t.project,
        session_id: t.session_id,
    };
    let life = lifetime(t.expires_in_s, limits::TASK_TTL_MS)?;
    let mut e = envelope(EnvelopeKind::Task, from, to, life);
    e.id = key.as_ref().map_or(e.id, |k| k.id(0));
    e.priority = t.priority;
    e.wake = true;
    e.attempt = Some(1);
    let mut body = json!({ "task_id": e.id, "task": t.task, "options": t.options });
    if let Some(metadata) = t.metadata {
        body["metadata"] = metadata;
    }
    e.body = body;
    let id = e.id;
    if serde_json::to_vec(&e).map_or(0, |v| v.len()) > limits::MAX_ENVELOPE_BYTES {
        let rule = format!(
            "the task is larger than {} bytes",
            limits::MAX_ENVELOPE_BYTES
        );
        return Err(ApiError::new(Code::TooLarge, rule));
    }
    Once::store(key.as_ref(), &api, vec![e]).await?;
    let answer =
        json!({ "id": id, "status": "queued", "device": "local", "url": format!("/tasks/{id}") });
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

/// Where a task stands that came through this API.
pub(super) async fn get_task(State(api): State<Arc<Api>>, Path(id): Path<String>) -> ApiResult {
    let unknown = || {
        ApiError::new(
            Code::UnknownTask,
            format!("no task `{id}` came through this daemon's API"),
        )
        .hint("tasks that came from the hub are shown there")
    };
    let id: EnvelopeId = id.parse().map_err(|_| unknown())?;
    let row = api.store.envelope(id).await?;
    let row = row.filter(|r| r.local).ok_or_else(unknown)?;
    let mut receipts = Vec::new();
    let mut status = json!({ "status": row.state.as_str() });
    let mut result = Value::Null;
    for report in api.store.local_reports(id).await? {
        match report.kind {
            ReportKind::Receipt => receipts.push(report.body),
            ReportKind::Status => status = report.body,
            ReportKind::Result => result = report.body,
            _ => {}
        }
    }
    status["id"] = json!(id);
    status["held"] = json!(row.hold_reason);
    status["receipts"] = json!(receipts);
    status["result"] = result;
    Ok(Json(status))
}

/// Refuses a text that says nothing, and one that is too long for any door.
fn check_length(field: &str, text: &str) -> Result<(), ApiError> {
    if text.trim().is_empty() {
        let rule = format!("`{field}` must not be empty");
        return Err(ApiError::new(Code::InvalidField, rule));
    }
    if text.len() > limits::MAX_TASK_BYTES {
        let rule = format!("`{field}` is larger than {} bytes", limits::MAX_TASK_BYTES);
        return Err(ApiError::new(Code::TooLarge, rule));
    }
    Ok(())
}

fn lifetime(asked_s: Option<i64>, default_ms: i64) -> Result<i64, ApiError> {
    match asked_s {
        None => Ok(default_ms),
        Some(s @ 1..=2_592_000) => Ok(s * 1_000),
        Some(_) => Err(ApiError::new(
            Code::InvalidField,
            "`expires_in_s` must be from 1 to 2592000",
        )),
    }
}

fn envelope(kind: EnvelopeKind, from: Sender, to: Address, life_ms: i64) -> Envelope {
    let now = clock::wall();
    Envelope {
        id: EnvelopeId(Uuid::now_v7()),
        kind,
        from,
        to,
        priority: Priority::Normal,
        body: Value::Null,
        wake: false,
        created_at: now,
        expires_at: now.plus(life_ms),
        attempt: None,
        hops: 0,
        reply_to: None,
    }
}
