//! What a device's word does to a task or a message: pure functions from record and report to record.
//!
//! Reports come in the order in which the device wrote them, each once (the outbox number is compared before). Still a
//! report may be about the past, and these rules keep the record true:
//!
//! * **An older attempt is fenced.** A receipt, status or result that names the envelope of an earlier attempt changes nothing.
//! * **Terminal is final**, unless it was the hub's own conclusion about a silent device ([`ItemRecord::presumed`]) or
//!   an `interrupted`: the same attempt's own word still replaces those, and the receipts that the hub wrote go with them.
//! * **A receipt is there once.** After a terminal one none is added. `on_device` comes from the ack and needs no report.
//! * The task's terminal status is its terminal receipt, and the other way round, whichever is told first.
//! * **The third crash is the last.** An attempt that its device ends by a crash is `interrupted` (or failed without a
//!   result); when [`MAX_ATTEMPTS`] of them did, the task is `dead`: it may be what kills, and is only started again by
//!   somebody who was told so.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use serde_json::json;

use super::records::{Attempt, ItemKind, ItemRecord};
use crate::domain::limits::MAX_ATTEMPTS;
use crate::domain::{
    DeviceId, EnvelopeId, Receipt, ReportBody, Stage, TaskResult, TaskState, TaskStatus, WallMs,
};

/// The reason of what the hub concludes about a device that stays silent.
pub(crate) const SILENT: &str = "device_silent";
/// The reason of a run that its daemon's planned end stopped.
const STOPPED: &str = "daemon_stopped";

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

    /// Whether this device was sent this envelope of the item.
    pub(crate) fn was_sent(&self, envelope: EnvelopeId, device: &DeviceId) -> bool {
        let attempt = self.attempts.iter().find(|a| a.envelope == envelope);
        *device
            == *attempt
                .and_then(|a| a.device.as_ref())
                .unwrap_or(&self.device)
    }

    /// Whether the device has the present envelope, or had it.
    pub(crate) fn is_on_device(&self) -> bool {
        self.receipts.iter().any(|r| r.stage == Stage::OnDevice)
    }

    /// Whether the end, if there is one, may still be replaced by the device's word.
    pub(crate) fn is_open(&self) -> bool {
        let counted_out = || {
            let last = self.attempts.last().and_then(|a| a.status);
            self.state.status == TaskStatus::Dead && last != Some(TaskStatus::Dead)
        };
        let interrupted = self.state.status == TaskStatus::Interrupted;
        !self.is_over() || self.presumed || interrupted || counted_out()
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
        ReportBody::Receipt(receipt) if item.presumed => {
            // What was concluded about the silence was wrong: the device speaks.
            unpresume(item);
            add_receipt(item, receipt);
            Effect::Changed
        }
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

/// Ends an item whose time is up before its device had it. A row that was on the wire at that moment may have got there
/// all the same, so the device's word would still count.
pub(crate) fn expire(item: &mut ItemRecord, now: WallMs) -> Effect {
    if item.is_over() {
        return Effect::Same;
    }
    let effect = add_receipt(item, by_hub(Stage::Expired, now));
    item.presumed = true;
    effect
}

/// Ends an item whose device has it and stayed silent past its deadline. A message that left the device's hands keeps its
/// last stage: whether it was seen is not known and will not be.
pub(crate) fn presume_silent(item: &mut ItemRecord, now: WallMs) -> Effect {
    if item.is_over() || item.presumed {
        return Effect::Same;
    }
    item.watch = None;
    item.presumed = true;
    let handed = |s: &Stage| matches!(s, Stage::HandedOver | Stage::Seen);
    match item.kind {
        ItemKind::Task => {
            end(
                item,
                TaskState::because(TaskStatus::Interrupted, SILENT),
                now,
            );
            item.receipts.push(by_hub(Stage::Done, now));
        }
        ItemKind::Message if item.receipts.last().is_some_and(|r| handed(&r.stage)) => {}
        ItemKind::Message => {
            let reason = SILENT.to_owned();
            item.receipts
                .push(by_hub(Stage::Undeliverable { reason }, now));
        }
    }
    Effect::Changed
}

/// Calls off an item that no device was ever sent.
pub(crate) fn call_off(item: &mut ItemRecord, now: WallMs) -> Effect {
    if item.is_over() {
        return Effect::Same;
    }
    let stage = Stage::Cancelled;
    let (at, evidence) = (now, None);
    add_receipt(
        item,
        Receipt {
            stage,
            at,
            evidence,
        },
    )
}

fn by_hub(stage: Stage, at: WallMs) -> Receipt {
    Receipt {
        stage,
        at,
        evidence: Some(json!({ "by": "hub" })),
    }
}

/// Takes back what the hub had concluded by itself.
fn unpresume(item: &mut ItemRecord) {
    item.presumed = false;
    let by_hub = Some(json!({ "by": "hub" }));
    item.receipts.retain(|r| r.evidence != by_hub);
    if item.kind == ItemKind::Task && item.state.status.is_terminal() {
        item.state = TaskState::new(TaskStatus::Delivered);
        if let Some(attempt) = item.attempts.last_mut() {
            (attempt.ended_at, attempt.status, attempt.reason) = (None, None, None);
        }
    }
}

/// Ends an item whose device is gone for good: what it had begun is `interrupted`, the rest `undeliverable`.
pub(crate) fn abandon(item: &mut ItemRecord, reason: &str, now: WallMs) -> Effect {
    if item.is_over() {
        return Effect::Same;
    }
    let begun = !matches!(
        item.state.status,
        TaskStatus::Queued | TaskStatus::Delivered
    );
    if item.kind == ItemKind::Task && begun {
        let state = TaskState::because(TaskStatus::Interrupted, reason);
        return set_state(item, state, now);
    }
    let stage = Stage::Undeliverable {
        reason: reason.to_owned(),
    };
    let receipt = Receipt {
        stage,
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
    if receipt.stage.is_terminal() {
        (item.deadline, item.watch) = (None, None);
    }
    item.receipts.push(receipt);
    Effect::Changed
}

fn set_state(item: &mut ItemRecord, state: TaskState, at: WallMs) -> Effect {
    let final_word = item.is_over() && !item.is_open();
    // Reports come in the device's order: one that says `delivered` again gave the task back to its queue.
    let backwards = state.status == TaskStatus::Queued;
    if item.kind != ItemKind::Task || final_word || backwards || item.state == state {
        return Effect::Same;
    }
    if item.presumed {
        unpresume(item);
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
    if let Some(attempt) = item.attempts.last_mut() {
        attempt.ended_at = Some(at);
        attempt.status = Some(state.status);
        attempt.reason.clone_from(&state.reason);
    }
    (item.deadline, item.watch) = (None, None);
    item.state = state;
    if is_crash(item.state.status, item.state.reason.as_deref()) {
        let crashed = |a: &&Attempt| a.status.is_some_and(|s| is_crash(s, a.reason.as_deref()));
        let crashes = item.attempts.iter().filter(crashed).count();
        if crashes >= MAX_ATTEMPTS as usize {
            item.state.status = TaskStatus::Dead;
        }
    }
}

/// Whether an attempt that ended so may have been ended by the task itself.
fn is_crash(status: TaskStatus, reason: Option<&str>) -> bool {
    match status {
        TaskStatus::Interrupted => !matches!(reason, Some(SILENT | STOPPED)),
        TaskStatus::Failed => reason == Some("no_result"),
        _ => false,
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
