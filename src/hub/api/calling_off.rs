//! Calling off: `POST /tasks/{id}/cancel` and `DELETE /messages/{id}`.
//!
//! "Called off" is said at once only when it is certainly true: when no connection of the device ever had the envelope
//! ([`crate::hub::handed`]). Then the text goes in the same commit, fenced so that a device that comes back meanwhile
//! makes it fail, and nothing can deliver it later. In every other case the device may have the envelope, acked or not,
//! and it decides: the hub sends it a `cancel` envelope, one per attempt, which stands behind the one that it calls off
//! in the same mailbox, and the item shows since when that was asked for. What the device then reports is the truth.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde_json::json;

use super::super::body::OptionalBody;
use super::super::clock::wall;
use super::super::guard::Caller;
use super::super::mailbox::{Item, stored_item, write_item};
use super::super::once::{self, Answer, Effect, Once};
use super::super::problem::{ApiError, ApiResult};
use super::super::records::{self, CancelWish, ItemKind, ItemRecord, control_key};
use super::super::reports;
use super::super::state::Hub;
use super::super::store::{Expect, MailboxId, Op};
use super::Path;
use super::items::{new_id, status};
use super::views::CancelAnswer;
use crate::auth::Scope;
use crate::domain::{
    AccountId, CancelBody, Code, Door, Envelope, EnvelopeId, EnvelopeKind, Priority, RecallBody,
    Sender, Stage, TaskStatus, Trust, WallMs, limits::FINISHED_KEPT_MS,
};

/// `POST /tasks/{id}/cancel` → 200 when the task is called off, 202 when its device decides.
pub(crate) async fn cancel(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: OptionalBody,
) -> ApiResult<Answer> {
    caller.need(Scope::TasksWrite)?;
    caller.need_trust(Trust::Suggest)?;
    let call = format!("POST /tasks/{id}/cancel");
    let key = Once::of(&caller, &headers, &call, &body.0.sha256)?;
    body.0.fields().finish()?;
    let effect = || call_off(&hub, &caller, ItemKind::Task, &id);
    once::settle(&hub, key.as_ref(), effect).await
}

/// `DELETE /messages/{id}` → 200 when the message is taken back, 202 when its device decides.
pub(crate) async fn recall(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(id): Path<String>,
) -> ApiResult<Answer> {
    caller.need(Scope::MessagesWrite)?;
    let effect = || call_off(&hub, &caller, ItemKind::Message, &id);
    once::settle(&hub, None, effect).await
}

/// What calling off comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// It was called off before.
    Already,
    /// It ended otherwise.
    Finished,
    /// A session has the message.
    Taken,
    /// Nobody ever had it: it ends here.
    AtOnce,
    /// Its device was asked before.
    Asked,
    /// Its device has to be asked.
    Ask,
}

/// Decides; `never_handed` is proof that no device has it.
fn decide(item: &ItemRecord, never_handed: bool) -> Decision {
    let cancelled = match item.kind {
        ItemKind::Task => item.state.status == TaskStatus::Cancelled,
        ItemKind::Message => item.receipts.iter().any(|r| r.stage == Stage::Cancelled),
    };
    if cancelled {
        return Decision::Already;
    }
    // What the hub only concluded may still go on at the device, unless it never got there.
    if item.is_over() && (!item.presumed || never_handed) {
        return Decision::Finished;
    }
    if never_handed {
        return Decision::AtOnce;
    }
    let taken = |s: &Stage| matches!(s, Stage::Claimed { .. } | Stage::HandedOver | Stage::Seen);
    if item.kind == ItemKind::Message && item.receipts.last().is_some_and(|r| taken(&r.stage)) {
        return Decision::Taken;
    }
    match &item.cancel {
        Some(wish) if wish.of == item.current() => Decision::Asked,
        _ => Decision::Ask,
    }
}

/// The steps that call this item off, and the answer.
async fn call_off(hub: &Hub, caller: &Caller, kind: ItemKind, id: &str) -> ApiResult<Effect> {
    let account = &caller.account;
    let Item { version, item } = stored_item(hub, kind, account, id).await?;
    let current = item.current();
    let absent = hub.never_handed(account, &item.device, current).await?;
    let now = wall();
    let mut after = item.clone();
    let mut ops = Vec::new();
    match (decide(&item, absent.is_some()), absent) {
        (Decision::Finished, _) => return Err(finished(&item)),
        (Decision::Taken, _) => return Err(taken(&item)),
        (Decision::AtOnce, Some(absent)) => {
            ops.push(absent.fence());
            ops.push(Op::Retire {
                mailbox: absent.mailbox.clone(),
                id: current,
            });
            reports::call_off(&mut after, now);
        }
        (Decision::Already | Decision::Asked, _) => {}
        (Decision::Ask | Decision::AtOnce, _) => {
            let wish = new_id();
            after.cancel = Some(CancelWish {
                envelope: wish,
                of: current,
                at: now,
            });
            ops.extend(ask(account, &item, caller.sender(), wish, now));
        }
    }
    if after != item {
        ops.extend(write_item(account, Some((version, &item)), &after, now));
    }
    let asked = after.cancel.as_ref().filter(|_| !after.is_over());
    let url = format!("/{}/{}", kind.path(), item.id);
    let answer = CancelAnswer {
        id: item.id,
        status: status(&after),
        cancel_requested_at: asked.map(|wish| wish.at),
        url: url.clone(),
    };
    let settled = asked.is_none();
    Ok(Effect {
        ops,
        answer: Answer {
            status: if settled {
                StatusCode::OK
            } else {
                StatusCode::ACCEPTED
            },
            location: (!settled).then_some(url),
            body: records::value(&answer),
        },
    })
}

/// The steps that ask the device of the present attempt to call it off.
pub(super) fn ask(
    account: &AccountId,
    item: &ItemRecord,
    by: Sender,
    id: EnvelopeId,
    now: WallMs,
) -> Vec<Op> {
    let body = match item.kind {
        ItemKind::Task => json!(CancelBody {
            task_id: item.id,
            attempt: item.attempts.last().map(|a| a.attempt),
        }),
        ItemKind::Message => json!(RecallBody {
            message_id: item.id
        }),
    };
    let expires_at = now.plus(FINISHED_KEPT_MS);
    let envelope = Envelope {
        id,
        kind: EnvelopeKind::Cancel,
        from: by,
        to: item.to.clone(),
        priority: Priority::Urgent,
        body,
        wake: false,
        created_at: now,
        expires_at,
        attempt: None,
        hops: 0,
        reply_to: None,
    };
    vec![
        Op::Append {
            mailbox: MailboxId::of(account, &item.device),
            id,
            json: records::text(&envelope).into(),
            expires_at,
        },
        Op::Put {
            key: control_key(account, id),
            value: item.device.to_string(),
            expect: Expect::Any,
            keep_until: Some(expires_at),
        },
    ]
}

fn finished(item: &ItemRecord) -> ApiError {
    let (what, status) = (item.kind.word(), status(item));
    let mut e = ApiError::new(Code::Conflict, format!("the {what} is already `{status}`"));
    e.0.state = Some(status);
    e.hint("nothing is left to call off")
}

fn taken(item: &ItemRecord) -> ApiError {
    let last = item.receipts.last();
    let who = last.map_or_else(String::new, |r| {
        let door = match &r.stage {
            Stage::Claimed { door } => format!("the door `{}` of ", word(door)),
            _ => String::new(),
        };
        let session = r.evidence.as_ref().and_then(|e| e.get("session_id"));
        let session = session.and_then(|s| s.as_str()).map(str::to_owned);
        let session = session.or_else(|| item.to.session_id.map(|s| s.to_string()));
        match session {
            Some(s) => format!("{door}session `{s}` on device `{}`", item.device),
            None => format!("{door}a session on device `{}`", item.device),
        }
    });
    let status = status(item);
    let mut e = ApiError::new(
        Code::Conflict,
        format!("{who} has the message: it is `{status}`"),
    );
    e.0.state = Some(status);
    e.hint("what was handed to a session cannot be taken back: send another message")
}

fn word(door: &Door) -> String {
    serde_json::to_value(door)
        .ok()
        .and_then(|v| v.as_str().map(str::to_owned))
        .unwrap_or_default()
}

#[cfg(test)]
#[path = "calling_off_tests.rs"]
mod tests;
