//! What a change of a record tells: pure functions.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::domain::{AccountId, Receipt, Reply, TaskResult, WallMs};
use crate::hub::records::{self, ItemKind, ItemRecord};
use crate::hub::store::{LogId, Op};
use crate::wire::event::{
    Accepted, Answered, AttemptBegan, Event, MAX_EVENT_TEXT, Outcome, Reached, Rerouted, Stands,
    Step, Told, cut,
};

/// What happened between two states of an item, in order: the status comes last, after all that belongs to it.
pub(crate) fn told(before: Option<&ItemRecord>, after: &ItemRecord) -> Vec<Told> {
    let Some(before) = before else {
        return vec![accepted(after)];
    };
    let task = after.kind == ItemKind::Task;
    let mut all = Vec::new();
    if before.device != after.device {
        let rerouted = Rerouted {
            from_device: before.device.clone(),
        };
        all.push(if task {
            Told::TaskRerouted(rerouted)
        } else {
            Told::MessageRerouted(rerouted)
        });
    }
    let known = before.attempts.last().map_or(0, |a| a.attempt);
    let began = after.attempts.iter().filter(|a| a.attempt > known);
    all.extend(began.map(|a| {
        Told::TaskAttempt(AttemptBegan {
            attempt: a.attempt,
            envelope: a.envelope,
        })
    }));
    let mut receipts: Vec<&Receipt> = after
        .receipts
        .iter()
        .filter(|r| !before.receipts.contains(r))
        .collect();
    // A terminal receipt is the last word about a message: what came with it stands before it.
    receipts.sort_by_key(|r| r.stage.is_terminal());
    let replies = after
        .replies
        .iter()
        .filter(|r| !before.replies.iter().any(|b| b.id == r.id));
    let replies = replies.map(|r| {
        if task {
            Told::TaskReply(answered(r))
        } else {
            Told::MessageReply(answered(r))
        }
    });
    let (ends, goes_on): (Vec<_>, Vec<_>) =
        receipts.into_iter().partition(|r| r.stage.is_terminal());
    let receipt = |r: &Receipt| {
        if task {
            Told::TaskReceipt(reached(r))
        } else {
            Told::MessageReceipt(reached(r))
        }
    };
    all.extend(goes_on.into_iter().map(receipt));
    all.extend(replies);
    if let Some(result) = &after.result
        && before.result.as_ref() != Some(result)
    {
        all.push(Told::TaskResult(outcome(result)));
    }
    all.extend(ends.into_iter().map(receipt));
    if task && before.state != after.state {
        all.push(Told::TaskStatus(stands(after)));
    }
    all
}

/// A step of a task's run.
pub(crate) fn progress(text: &str) -> Told {
    let (text, truncated) = cut(text);
    Told::TaskProgress(Step { text, truncated })
}

/// The event as it is shown.
pub(crate) fn event(item: &ItemRecord, what: Told, at: WallMs) -> Event {
    Event {
        id: item.id,
        at,
        device: item.device.clone(),
        project: item.to.project.clone(),
        what,
    }
}

/// The step that writes an event.
pub(crate) fn note(account: &AccountId, event: &Event) -> Op {
    Op::Note {
        log: LogId::of(account),
        about: event.id,
        at: event.at,
        json: records::text(event).into(),
    }
}

fn accepted(item: &ItemRecord) -> Told {
    let accepted = Accepted {
        from: item.from.clone(),
        priority: item.priority,
        expires_at: item.expires_at,
        session_id: item.to.session_id,
    };
    match item.kind {
        ItemKind::Task => Told::TaskAccepted(accepted),
        ItemKind::Message => Told::MessageAccepted(accepted),
    }
}

fn reached(receipt: &Receipt) -> Reached {
    let small = |v: &serde_json::Value| v.to_string().len() <= MAX_EVENT_TEXT;
    Reached {
        receipt: Receipt {
            stage: receipt.stage.clone(),
            at: receipt.at,
            evidence: receipt.evidence.clone().filter(small),
        },
        terminal: receipt.stage.is_terminal(),
    }
}

fn answered(reply: &Reply) -> Answered {
    let (content, truncated) = cut(&reply.content);
    Answered {
        reply_id: reply.id,
        content,
        truncated,
        session_id: reply.session_id,
        written_at: reply.at,
    }
}

/// A result, as events show it.
pub(crate) fn outcome(result: &TaskResult) -> Outcome {
    let (text, cut) = cut(&result.text);
    Outcome {
        text,
        truncated: cut || result.truncated,
        is_error: result.is_error,
        cost_usd: result.cost_usd,
        num_turns: result.num_turns,
        session_id: result.session_id,
        permission_denials: result.permission_denials.len(),
    }
}

fn stands(item: &ItemRecord) -> Stands {
    Stands {
        status: item.state.status,
        reason: item.state.reason.clone(),
        until: item.state.until,
        attempt: item.attempts.last().map(|a| a.attempt),
        terminal: item.state.status.is_terminal(),
    }
}
