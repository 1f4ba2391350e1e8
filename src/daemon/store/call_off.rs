//! SQL on what was called off: the moment a cancel is durable, nothing that waits and that it means can begin any more.
//!
//! A cancel takes effect in the transaction that stores it, before it is acked: what waits ends there, with its reports,
//! and what is claimed or runs is left to whoever has it. It stays as a tombstone, so that an attempt that comes later,
//! comes again or is given back ends the same way. A newer attempt of a task calls the older ones off alike: no two of
//! them ever run at a time.
//!
//! The invariant behind it: **no row that is `queued` is called off.** Every way into that state goes through
//! [`end_if_off`].

use crate::domain::{
    Envelope, EnvelopeId, EnvelopeKind, Receipt, ReportBody, Stage, TaskState, TaskStatus, WallMs,
};

use super::codec::int;
use super::error::StoreError;
use super::rows::{EnvelopeRow, EnvelopeState, NewReport};
use super::sqlite::Tx;
use super::{envelopes, outbox};

/// The reports of an end by call.
pub(super) fn reports(e: &Envelope, at: WallMs) -> Vec<NewReport> {
    let receipt = Receipt {
        stage: Stage::Cancelled,
        at,
        evidence: None,
    };
    let state = TaskState::new(TaskStatus::Cancelled);
    let status = (e.kind == EnvelopeKind::Task)
        .then(|| NewReport::new(e.id.0, at, ReportBody::Status(state)));
    [NewReport::receipt(e.id, receipt)]
        .into_iter()
        .chain(status)
        .collect()
}

/// The task or message that an envelope is (an attempt of).
fn target(e: &Envelope) -> EnvelopeId {
    e.task().map_or(e.id, |t| t.task_id)
}

fn attempt(e: &Envelope) -> u32 {
    e.attempt.unwrap_or(1)
}

/// Whether this attempt or message was called off, or a newer attempt is here.
pub(super) fn is_off(tx: &Tx<'_>, e: &Envelope) -> Result<bool, StoreError> {
    let called = tx.row(
        "SELECT 1 FROM called_off
         WHERE target = ?1 AND (attempt = ?2 OR (attempt IS NULL AND made_at >= ?3)) LIMIT 1",
        &[&target(e).to_string(), &attempt(e), &e.created_at.0],
        |r| r.int(0),
    )?;
    if called.is_some() || e.kind != EnvelopeKind::Task {
        return Ok(called.is_some());
    }
    let newer = tx.row(
        "SELECT 1 FROM envelopes WHERE task_id = ? AND attempt > ? LIMIT 1",
        &[&target(e).to_string(), &attempt(e)],
        |r| r.int(0),
    )?;
    Ok(newer.is_some())
}

/// Ends an envelope that came into the queue although it is called off; gives whether it did.
pub(super) fn end_if_off(tx: &Tx<'_>, e: &Envelope, now: WallMs) -> Result<bool, StoreError> {
    if !is_off(tx, e)? {
        return Ok(false);
    }
    let queued = [EnvelopeState::Queued];
    if envelopes::shift(tx, e.id, &queued, EnvelopeState::Terminal, None, now)? {
        let reports = reports(e, now);
        for report in &reports {
            outbox::append(tx, report)?;
        }
        envelopes::set_final(tx, e.id, &reports.iter().collect::<Vec<_>>())?;
    }
    Ok(true)
}

/// What a new envelope does to others, and others to it.
pub(super) fn arrived(tx: &Tx<'_>, e: &Envelope, now: WallMs) -> Result<(), StoreError> {
    match &e.kind {
        EnvelopeKind::Cancel => cancelled(tx, e, now),
        EnvelopeKind::Task | EnvelopeKind::Message => {
            if !end_if_off(tx, e, now)? && attempt(e) > 1 {
                for older in envelopes::of_task(tx, target(e))? {
                    end_if_off(tx, &older.envelope, now)?;
                }
            }
            Ok(())
        }
        EnvelopeKind::MemoryChanged | EnvelopeKind::Decision | EnvelopeKind::Other(_) => Ok(()),
    }
}

fn cancelled(tx: &Tx<'_>, e: &Envelope, now: WallMs) -> Result<(), StoreError> {
    let (target, attempt) = match (e.cancel(), e.recall()) {
        (Some(cancel), _) => (cancel.task_id, cancel.attempt),
        (None, Some(recall)) => (recall.message_id, None),
        (None, None) => return Ok(()),
    };
    tx.exec(
        "INSERT INTO called_off (target, attempt, made_at, at) VALUES (?, ?, ?, ?)",
        &[&target.to_string(), &attempt, &e.created_at.0, &now.0],
    )?;
    for row in meant(tx, target)? {
        end_if_off(tx, &row.envelope, now)?;
    }
    Ok(())
}

/// The attempts of this task, or this message.
fn meant(tx: &Tx<'_>, target: EnvelopeId) -> Result<Vec<EnvelopeRow>, StoreError> {
    let mut rows = envelopes::of_task(tx, target)?;
    if rows.is_empty() {
        rows.extend(envelopes::get(tx, target)?);
    }
    Ok(rows)
}

/// The rows that this cancel means, as they stand after it took effect.
pub(super) fn rows(tx: &Tx<'_>, cancel: &Envelope) -> Result<Vec<EnvelopeRow>, StoreError> {
    let target = match (cancel.cancel(), cancel.recall()) {
        (Some(cancel), _) => cancel.task_id,
        (None, Some(recall)) => recall.message_id,
        (None, None) => return Ok(Vec::new()),
    };
    let mut off = Vec::new();
    for row in meant(tx, target)? {
        if is_off(tx, &row.envelope)? {
            off.push(row);
        }
    }
    Ok(off)
}

/// Forgets tombstones that were stored before `before`, at most `limit`; gives how many.
pub(super) fn sweep(tx: &Tx<'_>, before: i64, limit: u32) -> Result<usize, StoreError> {
    tx.exec(
        "DELETE FROM called_off WHERE rowid IN (SELECT rowid FROM called_off WHERE at < ? LIMIT ?)",
        &[&before, &int(u64::from(limit))],
    )
}
