//! What a device's word does to a task or a message: pure functions from record and report to record.
//!
//! Reports come in the order in which the device wrote them, each once (the outbox number is compared before). Still a
//! report may be about the past, and these rules keep the record true:
//!
//! * **An older attempt is fenced.** A receipt, status or result that names the envelope of an earlier attempt changes nothing.
//! * **Terminal is final**, with one exception: `interrupted` was the hub's own guess about a silent device, so the same
//!   attempt's own word still replaces it.
//! * **A receipt is there once.** After a terminal one none is added. `on_device` comes from the ack and needs no report.
//! * The task's terminal status is its terminal receipt, and the other way round, whichever is told first.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use super::records::{ItemKind, ItemRecord};
use crate::domain::{
    EnvelopeId, Receipt, ReportBody, Stage, TaskResult, TaskState, TaskStatus, WallMs,
};

/// Receipts kept of one item; a session that is held and claimed again and again adds no more.
const MAX_RECEIPTS: usize = 64;
/// Replies kept of one item.
const MAX_REPLIES: usize = 100;

/// What a report changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The record is another.
    Changed,
    /// Nothing new: late, repeated, or of an older attempt.
    Same,
}

impl ItemRecord {
    /// Whether nothing follows: the envelope may go.
    pub(crate) fn is_over(&self) -> bool {
        match self.kind {
            ItemKind::Task => self.state.status.is_terminal(),
            ItemKind::Message => self.receipts.iter().any(|r| r.stage.is_terminal()),
        }
    }

    /// The envelope of the present attempt.
    pub(crate) fn current(&self) -> EnvelopeId {
        self.attempts.last().map_or(self.id, |a| a.envelope)
    }
}

/// Applies the ack of `envelope` at `at` (the hub's time).
pub(crate) fn on_device(item: &mut ItemRecord, envelope: EnvelopeId, at: WallMs) -> Effect {
    if envelope != item.current() || item.receipts.iter().any(|r| r.stage == Stage::OnDevice) {
        return Effect::Same;
    }
    if item.kind == ItemKind::Task && item.state.status == TaskStatus::Queued {
        item.state = TaskState::new(TaskStatus::Delivered);
    }
    // Reports may have overtaken the ack; the receipt still stands in its place.
    let place = item
        .receipts
        .iter()
        .position(|r| r.stage != Stage::Accepted)
        .unwrap_or(item.receipts.len());
    let receipt = Receipt {
        stage: Stage::OnDevice,
        at,
        evidence: None,
    };
    item.receipts.insert(place, receipt);
    Effect::Changed
}

/// Applies what the device said about `envelope` at `at` (the device's time).
pub(crate) fn apply(
    item: &mut ItemRecord,
    envelope: EnvelopeId,
    body: ReportBody,
    at: WallMs,
) -> Effect {
    if let ReportBody::Reply(reply) = body {
        // An answer is an answer, whichever attempt wrote it.
        let known = item.replies.iter().any(|r| r.id == reply.id);
        if known || item.replies.len() >= MAX_REPLIES {
            return Effect::Same;
        }
        item.replies.push(reply);
        return Effect::Changed;
    }
    if envelope != item.current() {
        return Effect::Same;
    }
    match body {
        ReportBody::Receipt(receipt) => add_receipt(item, receipt),
        ReportBody::Status(state) => set_state(item, state, at),
        ReportBody::Result(result) => set_result(item, result),
        ReportBody::Progress(_)
        | ReportBody::Reply(_)
        | ReportBody::Session(_)
        | ReportBody::Project(_)
        | ReportBody::Note(_) => Effect::Same,
    }
}

/// Ends an item whose time is up before its device had it.
pub(crate) fn expire(item: &mut ItemRecord, now: WallMs) -> Effect {
    if item.is_over() {
        return Effect::Same;
    }
    let receipt = Receipt {
        stage: Stage::Expired,
        at: now,
        evidence: None,
    };
    add_receipt(item, receipt)
}

fn add_receipt(item: &mut ItemRecord, receipt: Receipt) -> Effect {
    let over = item.receipts.iter().any(|r| r.stage.is_terminal());
    let last_of_kind = item
        .receipts
        .iter()
        .rev()
        .find(|r| r.stage == receipt.stage);
    let known = match &receipt.stage {
        // A claim may be repeated after proof that nothing was delivered, a hold may come back.
        Stage::Claimed { .. } | Stage::Held { .. } | Stage::HandedOver => {
            last_of_kind.is_some_and(|r| r.at >= receipt.at)
        }
        _ => last_of_kind.is_some(),
    };
    let full = item.receipts.len() >= MAX_RECEIPTS && !receipt.stage.is_terminal();
    if over || known || full {
        return Effect::Same;
    }
    if item.kind == ItemKind::Task && !item.state.status.is_terminal() {
        let ended = match &receipt.stage {
            Stage::Expired => Some(TaskState::new(TaskStatus::Expired)),
            Stage::Cancelled => Some(TaskState::new(TaskStatus::Cancelled)),
            Stage::Unsupported => Some(TaskState::new(TaskStatus::Unsupported)),
            Stage::Undeliverable { reason } => {
                Some(TaskState::because(TaskStatus::Rejected, reason))
            }
            _ => None,
        };
        if let Some(state) = ended {
            end(item, state, receipt.at);
        }
    }
    item.receipts.push(receipt);
    Effect::Changed
}

fn set_state(item: &mut ItemRecord, state: TaskState, at: WallMs) -> Effect {
    let now = item.state.status;
    let final_word = now.is_terminal() && now != TaskStatus::Interrupted;
    // Reports come in the device's order: one that says `delivered` again gave the task back to its queue.
    let backwards = state.status == TaskStatus::Queued;
    if item.kind != ItemKind::Task || final_word || backwards || item.state == state {
        return Effect::Same;
    }
    if state.status == TaskStatus::Running
        && let Some(attempt) = item.attempts.last_mut()
    {
        attempt.started_at.get_or_insert(at);
    }
    if state.status.is_terminal() {
        let stage = match state.status {
            TaskStatus::Expired => Stage::Expired,
            TaskStatus::Cancelled => Stage::Cancelled,
            TaskStatus::Unsupported => Stage::Unsupported,
            _ => Stage::Done,
        };
        end(item, state, at);
        add_receipt(
            item,
            Receipt {
                stage,
                at,
                evidence: None,
            },
        );
    } else {
        item.state = state;
    }
    Effect::Changed
}

fn end(item: &mut ItemRecord, state: TaskState, at: WallMs) {
    item.state = state;
    if let Some(attempt) = item.attempts.last_mut() {
        attempt.ended_at = Some(at);
    }
}

fn set_result(item: &mut ItemRecord, result: TaskResult) -> Effect {
    if item.kind != ItemKind::Task || item.result.is_some() {
        return Effect::Same;
    }
    item.result = Some(result);
    Effect::Changed
}

#[cfg(test)]
#[path = "reports_tests.rs"]
mod tests;
