//! SQL on claims, and the transaction that changes state and produces reports together.

use std::path::PathBuf;

use crate::domain::{ClaimId, EnvelopeId, WallMs};

use super::codec::{int, json, word};
use super::error::StoreError;
use super::rows::{Change, ClaimRow, EnvelopeState, NewReport};
use super::sqlite::{Param, Row, Tx};
use super::{call_off, envelopes, outbox, sessions, uploads};

/// How long terminal envelopes and closed claims can still be looked at.
const LOOKED_AT_MS: i64 = 24 * 3600 * 1000;
/// Rows that one sweep deletes of each table at most, so that it never holds up a hook.
const SWEEP_ROWS: u32 = 500;

/// Carries out all changes, or none.
pub(super) fn apply(tx: &Tx<'_>, changes: &[Change], now: WallMs) -> Result<(), StoreError> {
    use EnvelopeState::{Claimed, Queued, Terminal};
    for change in changes {
        match change {
            Change::Report(report) => outbox::append(tx, report)?,
            Change::Hold { id, reason } => {
                if !envelopes::hold(tx, *id, reason.as_deref(), now)? {
                    return Err(StoreError::NotQueued(*id));
                }
            }
            Change::Requeue { id, hold } => requeue(tx, *id, hold.as_deref(), now)?,
            Change::Finish(id) => {
                envelopes::shift(tx, *id, &[Queued, Claimed], Terminal, None, now)?;
                envelopes::set_final(tx, *id, &finals(changes, *id))?;
            }
            Change::FinishQueued(id) => {
                if !envelopes::shift(tx, *id, &[Queued], Terminal, None, now)? {
                    return Err(StoreError::NotQueued(*id));
                }
                envelopes::set_final(tx, *id, &finals(changes, *id))?;
            }
            Change::OpenClaim(row) => open(tx, row, now)?,
            Change::UpdateClaim(row) => update(tx, row)?,
            Change::Session(row) => sessions::put(tx, row)?,
            Change::ForgetSession(id) => sessions::forget(tx, *id)?,
            Change::StartRun(row) => sessions::start_run(tx, row, now)?,
            Change::UpdateRun(row) => sessions::update_run(tx, row)?,
            Change::ForgetRun(id) => {
                sessions::forget_run(tx, *id)?;
                envelopes::count_start(tx, *id, -1)?;
            }
            Change::LoseRun(id) => sessions::forget_run(tx, *id)?,
            Change::Upload(new) => uploads::begin(tx, new, now)?,
            Change::Post(envelope) => drop(envelopes::store_local(tx, envelope, now)?),
        }
    }
    Ok(())
}

fn requeue(tx: &Tx<'_>, id: EnvelopeId, hold: Option<&str>, now: WallMs) -> Result<(), StoreError> {
    let claimed = [EnvelopeState::Claimed];
    if !envelopes::shift(tx, id, &claimed, EnvelopeState::Queued, None, now)? {
        return Ok(());
    }
    let row = envelopes::get(tx, id)?;
    if let Some(row) = row
        && !call_off::end_if_off(tx, &row.envelope, now)?
        && hold.is_some()
    {
        envelopes::hold(tx, id, hold, now)?;
    }
    Ok(())
}

fn finals(changes: &[Change], id: EnvelopeId) -> Vec<&NewReport> {
    changes
        .iter()
        .flat_map(|c| match c {
            Change::Report(r) => std::slice::from_ref(r),
            Change::Upload(u) => u.reports.as_slice(),
            _ => &[],
        })
        .filter(|r| r.id == id.0)
        .collect()
}

fn open(tx: &Tx<'_>, row: &ClaimRow, now: WallMs) -> Result<(), StoreError> {
    for id in &row.envelopes {
        let queued = [EnvelopeState::Queued];
        if !envelopes::shift(tx, *id, &queued, EnvelopeState::Claimed, Some(row.id), now)? {
            return Err(StoreError::NotQueued(*id));
        }
    }
    write(
        tx,
        row,
        "INSERT INTO claims
           (door, session, envelopes, transcript, offset, opened_at, lease_until, state, closed, detail, id)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    Ok(())
}

fn update(tx: &Tx<'_>, row: &ClaimRow) -> Result<(), StoreError> {
    let n = write(
        tx,
        row,
        "UPDATE claims SET door = ?, session = ?, envelopes = ?, transcript = ?, offset = ?, opened_at = ?,
           lease_until = ?, state = ?, closed = ?, detail = ? WHERE id = ? AND closed = 0",
    )?;
    if n == 0 {
        return Err(StoreError::UnknownClaim(row.id));
    }
    Ok(())
}

fn write(tx: &Tx<'_>, row: &ClaimRow, sql: &str) -> Result<usize, StoreError> {
    let transcript = row.transcript.as_ref().map(|p| p.to_string_lossy());
    let params: [Param<'_>; 11] = [
        &word(&row.door),
        &row.session.map(|s| s.to_string()),
        &json(&row.envelopes),
        &transcript.as_deref(),
        &int(row.offset),
        &row.opened_at.0,
        &row.lease_until.0,
        &row.state,
        &i64::from(row.closed),
        &json(&row.detail),
        &row.id.to_string(),
    ];
    tx.changed(0);
    tx.exec(sql, &params)
}

const COLUMNS: &str = "id, door, session, envelopes, transcript, offset, opened_at, lease_until, state, closed, detail";

fn read(r: &Row<'_>) -> Result<ClaimRow, StoreError> {
    Ok(ClaimRow {
        id: r.name(0)?,
        door: r.word(1)?,
        session: r.opt_name(2)?,
        envelopes: r.json(3)?,
        transcript: r.opt_text(4)?.map(PathBuf::from),
        offset: r.count(5)?,
        opened_at: WallMs(r.int(6)?),
        lease_until: WallMs(r.int(7)?),
        state: r.text(8)?,
        closed: r.int(9)? != 0,
        detail: r.json(10)?,
    })
}

/// Claims that are not closed, oldest first.
pub(super) fn open_claims(tx: &Tx<'_>) -> Result<Vec<ClaimRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM claims WHERE closed = 0 ORDER BY opened_at, rowid");
    tx.rows(&sql, &[], read)
}

/// One claim, open or closed within the last day.
pub(super) fn get(tx: &Tx<'_>, id: ClaimId) -> Result<Option<ClaimRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM claims WHERE id = ?");
    tx.row(&sql, &[&id.to_string()], read)
}

/// Deletes what is past its time; gives whether there is more of it.
pub(super) fn sweep(tx: &Tx<'_>, now: WallMs) -> Result<bool, StoreError> {
    let day = now.0.saturating_sub(LOOKED_AT_MS);
    let month = now
        .0
        .saturating_sub(crate::domain::limits::FINISHED_KEPT_MS);
    let mut more = false;
    for (sql, before) in [
        (
            "DELETE FROM local_reports WHERE id IN
               (SELECT id FROM envelopes WHERE state = 'terminal' AND changed_at < ? LIMIT ?)",
            day,
        ),
        (
            "DELETE FROM envelopes WHERE ord IN
               (SELECT ord FROM envelopes WHERE state = 'terminal' AND changed_at < ? LIMIT ?)",
            day,
        ),
        (
            "DELETE FROM claims WHERE id IN
               (SELECT id FROM claims WHERE closed = 1 AND lease_until < ? LIMIT ?)",
            day,
        ),
        (
            "DELETE FROM sessions WHERE session_id IN
               (SELECT session_id FROM sessions WHERE activity = 'closed' AND active_at < ? LIMIT ?)",
            month,
        ),
        (
            "DELETE FROM runs WHERE (task_id, attempt) IN
               (SELECT task_id, attempt FROM runs WHERE finished = 1 AND started_at < ? LIMIT ?)",
            month,
        ),
        (
            "DELETE FROM seen_ids WHERE id IN
               (SELECT s.id FROM seen_ids s WHERE s.at < ?
                  AND NOT EXISTS (SELECT 1 FROM envelopes e WHERE e.id = s.id) LIMIT ?)",
            month,
        ),
    ] {
        let limit: Param<'_> = &SWEEP_ROWS;
        let n = tx.exec(sql, &[&before, limit])?;
        more |= n >= SWEEP_ROWS as usize;
    }
    more |= call_off::sweep(tx, month, SWEEP_ROWS)? >= SWEEP_ROWS as usize;
    Ok(more)
}
