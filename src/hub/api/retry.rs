//! `POST /tasks/{id}/retry`: a new attempt of a task that ended.
//!
//! The attempt is a new envelope, routed anew, with a fresh life; the task's record goes on, and from this commit on only
//! the new envelope's reports change it. An older attempt that its device may still have (the hub only concluded that it
//! ended) is called off at that device in the same commit, so that the two do not run side by side for longer than the
//! device stays away. The new envelope never carries more trust than the old one nor than the caller has.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};

use super::super::body::OptionalBody;
use super::super::clock::wall;
use super::super::directory::Want;
use super::super::guard::Caller;
use super::super::mailbox::{Item, stored_item, write_item};
use super::super::once::{self, Answer, Effect, Once};
use super::super::problem::{ApiError, ApiResult};
use super::super::records::{self, Attempt, ItemKind, ItemRecord, TaskText, alias_key};
use super::super::state::Hub;
use super::super::store::{Expect, MailboxId, Op};
use super::Path;
use super::asked::RetryPost;
use super::calling_off::ask;
use super::items::{MAX_EXPIRES_S, new_id, status};
use super::views::RetryAnswer;
use crate::auth::Scope;
use crate::domain::limits::FINISHED_KEPT_MS;
use crate::domain::{
    AccountId, Code, DeviceId, Envelope, EnvelopeId, EnvelopeKind, Receipt, Stage, TaskState,
    TaskStatus, Trust,
};

/// `POST /tasks/{id}/retry` `{force?, expires_in_s?}` → 202 `{id, status, attempt, device, url}`.
pub(crate) async fn retry(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: OptionalBody,
) -> ApiResult<Answer> {
    caller.need(Scope::TasksWrite)?;
    caller.need_trust(Trust::Suggest)?;
    let call = format!("POST /tasks/{id}/retry");
    let key = Once::of(&caller, &headers, &call, &body.0.sha256)?;
    let mut f = body.0.fields();
    let asked = RetryPost {
        force: f.flag("force"),
        expires_in_s: f.number("expires_in_s", 1, MAX_EXPIRES_S),
    };
    f.finish()?;
    let effect = || again(&hub, &caller, &id, &asked);
    once::settle(&hub, key.as_ref(), effect).await
}

/// Attempts of one task at most, so that its record stays small.
const MAX_TRIES: usize = 20;
/// What a retry's text is kept beyond the usual time, ms: a day, for an end that came late.
const SLACK_MS: i64 = 24 * 3600 * 1000;

/// Why a task is not tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum No {
    /// It is not over.
    Open,
    /// It was done, and nobody insists.
    Done,
    /// It was tried too often.
    TooOften,
}

fn decide(item: &ItemRecord, force: bool) -> Result<(), No> {
    if !item.is_over() {
        return Err(No::Open);
    }
    if item.state.status == TaskStatus::Completed && !force {
        return Err(No::Done);
    }
    if item.attempts.len() >= MAX_TRIES {
        return Err(No::TooOften);
    }
    Ok(())
}

/// The step that keeps what a retry is made of, until 30 days after its attempt's expiry.
pub(crate) fn keep_text(
    account: &AccountId,
    task: EnvelopeId,
    text: &TaskText,
    e: &Envelope,
) -> Op {
    let until = e.expires_at.plus(FINISHED_KEPT_MS + SLACK_MS);
    records::put(TaskText::key(account, task), text, Expect::Any, Some(until))
}

/// The record at the beginning of its next attempt.
fn next_attempt(item: &ItemRecord, envelope: &Envelope, device: DeviceId) -> ItemRecord {
    let mut after = item.clone();
    if let Some(last) = after.attempts.last_mut() {
        last.receipts = std::mem::take(&mut after.receipts);
        last.status.get_or_insert(item.state.status);
        if last.reason.is_none() {
            last.reason.clone_from(&item.state.reason);
        }
    }
    after.receipts = vec![Receipt {
        stage: Stage::Accepted,
        at: envelope.created_at,
        evidence: None,
    }];
    after.attempts.push(Attempt {
        attempt: envelope.attempt.unwrap_or(1),
        envelope: envelope.id,
        created_at: envelope.created_at,
        started_at: None,
        ended_at: None,
        device: Some(device.clone()),
        status: None,
        reason: None,
        receipts: Vec::new(),
    });
    after.device = device;
    after.expires_at = envelope.expires_at;
    after.state = TaskState::new(TaskStatus::Queued);
    (after.result, after.cancel) = (None, None);
    (after.deadline, after.watch) = (None, None);
    after.presumed = false;
    after
}

/// The steps of a new attempt, and the answer.
async fn again(hub: &Hub, caller: &Caller, id: &str, asked: &RetryPost) -> ApiResult<Effect> {
    let (account, by) = (&caller.account, caller.sender());
    let Item { version, item } = stored_item(hub, ItemKind::Task, account, id).await?;
    decide(&item, asked.force.unwrap_or(false)).map_err(|no| refused(no, &item))?;
    let text = hub.store.get(TaskText::key(account, item.id)).await?;
    let mut text: TaskText = text.as_ref().and_then(records::read).ok_or_else(|| {
        ApiError::new(Code::Conflict, "the task's text is no longer kept")
            .hint("post it as a new task")
    })?;
    if let Some(s) = asked.expires_in_s {
        text.ttl_ms = s * 1000;
    }
    let want = Want {
        session: item.to.session_id,
        project: item.to.project.as_ref().map(ToString::to_string),
        device: (!item.anywhere && item.to.session_id.is_none()).then(|| item.device.to_string()),
    };
    let route = hub.route(account, &want, ItemKind::Task)?;
    let now = wall();
    let mut from = text.from.clone();
    from.trust = from.trust.min(by.trust);
    let envelope = Envelope {
        id: new_id(),
        kind: EnvelopeKind::Task,
        from,
        to: item.to.clone(),
        priority: item.priority,
        body: text.body.clone(),
        wake: text.wake,
        created_at: now,
        expires_at: now.plus(text.ttl_ms),
        attempt: Some(item.attempts.last().map_or(0, |a| a.attempt) + 1),
        hops: text.hops,
        reply_to: None,
    };
    let mut ops = Vec::new();
    let called_off = item.cancel.as_ref().is_some_and(|c| c.of == item.current());
    if item.presumed && !called_off {
        let never = hub.never_handed(account, &item.device, item.current());
        if never.await?.is_none() {
            ops.extend(ask(account, &item, by, new_id(), now));
        }
    }
    ops.push(Op::Append {
        mailbox: MailboxId::of(account, &route.device),
        id: envelope.id,
        json: records::text(&envelope).into(),
        expires_at: envelope.expires_at,
    });
    ops.push(Op::Put {
        key: alias_key(account, envelope.id),
        value: item.id.to_string(),
        expect: Expect::Absent,
        keep_until: Some(envelope.expires_at.plus(2 * FINISHED_KEPT_MS)),
    });
    ops.push(keep_text(account, item.id, &text, &envelope));
    let after = next_attempt(&item, &envelope, route.device);
    ops.extend(write_item(account, Some((version, &item)), &after, now));
    let url = format!("/tasks/{}", item.id);
    let answer = RetryAnswer {
        id: item.id,
        status: status(&after),
        attempt: envelope.attempt.unwrap_or(1),
        device: after.device.clone(),
        url: url.clone(),
    };
    Ok(Effect {
        ops,
        answer: Answer {
            status: StatusCode::ACCEPTED,
            location: Some(url),
            body: records::value(&answer),
        },
    })
}

fn refused(no: No, item: &ItemRecord) -> ApiError {
    let status = status(item);
    let (title, hint) = match no {
        No::Open => (
            format!("the task is not over: it is `{status}`"),
            "wait for its end, or cancel it first",
        ),
        No::Done => (
            "the task is `completed`".to_owned(),
            "send `{\"force\": true}` (`--force`) to do it once more",
        ),
        No::TooOften => (
            format!("the task had {MAX_TRIES} attempts"),
            "post it as a new task",
        ),
    };
    let mut e = ApiError::new(Code::Conflict, title).hint(hint);
    e.0.state = Some(status);
    e
}

#[cfg(test)]
#[path = "retry_tests.rs"]
mod tests;
