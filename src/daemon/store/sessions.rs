//! SQL on sessions and runs.

use std::path::PathBuf;

use crate::domain::{EnvelopeId, ProjectName, SessionId, WallMs};

use super::codec::{int, json, word};
use super::error::StoreError;
use super::rows::{EnvelopeState, RunRow, SessionRow};
use super::sqlite::{Param, Row, Tx};
use super::{call_off, envelopes};

const SESSION: &str = "session_id, lineage, pid, proc_start, cwd, transcript, project, entrypoint, activity, reason, \
    active_at, told_memory, detail";
const RUN: &str =
    "envelope, task_id, attempt, pid, proc_start, session_id, started_at, state, finished, detail";

pub(super) fn put(tx: &Tx<'_>, row: &SessionRow) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT OR REPLACE INTO sessions ({SESSION}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    );
    let transcript = row.transcript.as_ref().map(|p| p.to_string_lossy());
    let params: [Param<'_>; 13] = [
        &row.session_id.to_string(),
        &json(&row.lineage),
        &row.pid,
        &row.proc_start.map(int),
        &row.cwd.to_string_lossy(),
        &transcript.as_deref(),
        &row.project.as_ref().map(ProjectName::as_str),
        &row.entrypoint,
        &word(&row.activity),
        &row.reason,
        &row.active_at.0,
        &row.told_memory,
        &json(&row.detail),
    ];
    tx.exec(&sql, &params)?;
    tx.changed(0);
    Ok(())
}

pub(super) fn forget(tx: &Tx<'_>, id: SessionId) -> Result<(), StoreError> {
    tx.exec(
        "DELETE FROM sessions WHERE session_id = ?",
        &[&id.to_string()],
    )?;
    tx.changed(0);
    Ok(())
}

fn pid(r: &Row<'_>, i: usize) -> Result<Option<u32>, StoreError> {
    Ok(r.opt_int(i)?.and_then(|v| u32::try_from(v).ok()))
}

fn ticks(r: &Row<'_>, i: usize) -> Result<Option<u64>, StoreError> {
    Ok(r.opt_int(i)?.and_then(|v| u64::try_from(v).ok()))
}

fn read(r: &Row<'_>) -> Result<SessionRow, StoreError> {
    Ok(SessionRow {
        session_id: r.name(0)?,
        lineage: r.json(1)?,
        pid: pid(r, 2)?,
        proc_start: ticks(r, 3)?,
        cwd: PathBuf::from(r.text(4)?),
        transcript: r.opt_text(5)?.map(PathBuf::from),
        project: r.opt_name(6)?,
        entrypoint: r.opt_text(7)?,
        activity: r.word(8)?,
        reason: r.opt_text(9)?,
        active_at: WallMs(r.int(10)?),
        told_memory: r.opt_text(11)?,
        detail: r.json(12)?,
    })
}

/// The session with this id, else the one whose lineage holds it.
pub(super) fn get(tx: &Tx<'_>, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
    let id = id.to_string();
    let sql = format!("SELECT {SESSION} FROM sessions WHERE session_id = ?");
    if let Some(row) = tx.row(&sql, &[&id], read)? {
        return Ok(Some(row));
    }
    let sql = format!(
        "SELECT {SESSION} FROM sessions
         WHERE EXISTS (SELECT 1 FROM json_each(lineage) WHERE value = ?) ORDER BY active_at DESC LIMIT 1"
    );
    tx.row(&sql, &[&id], read)
}

/// Sessions, the most recently active first; of one project if one is named.
pub(super) fn list(
    tx: &Tx<'_>,
    project: Option<&ProjectName>,
    limit: u32,
) -> Result<Vec<SessionRow>, StoreError> {
    let sql = format!(
        "SELECT {SESSION} FROM sessions WHERE ?1 IS NULL OR project = ?1 ORDER BY active_at DESC LIMIT ?2"
    );
    tx.rows(&sql, &[&project.map(ProjectName::as_str), &limit], read)
}

pub(super) fn start_run(tx: &Tx<'_>, row: &RunRow, now: WallMs) -> Result<(), StoreError> {
    let from = [EnvelopeState::Queued, EnvelopeState::Claimed];
    let Some(attempt) =
        envelopes::get(tx, row.envelope)?.filter(|e| e.state != EnvelopeState::Terminal)
    else {
        return Err(StoreError::NotQueued(row.envelope));
    };
    if call_off::is_off(tx, &attempt.envelope)? {
        return Err(StoreError::NotQueued(row.envelope));
    }
    // Another attempt that goes, as a run or in a live session, is in the way of this one.
    let task = row.task_id.to_string();
    let other = tx.row(
        "SELECT 1 FROM runs WHERE task_id = ?1 AND finished = 0
         UNION ALL SELECT 1 FROM envelopes WHERE task_id = ?1 AND state = 'claimed' AND id <> ?2 LIMIT 1",
        &[&task, &row.envelope.to_string()],
        |r| r.int(0),
    )?;
    if other.is_some() {
        return Err(StoreError::RunExists {
            task: row.task_id,
            attempt: row.attempt,
        });
    }
    envelopes::shift(
        tx,
        row.envelope,
        &from,
        EnvelopeState::Claimed,
        attempt.claim,
        now,
    )?;
    envelopes::count_start(tx, row.envelope, 1)?;
    let sql = format!(
        "INSERT INTO runs ({RUN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    );
    if write(tx, row, &sql)? == 0 {
        return Err(StoreError::RunExists {
            task: row.task_id,
            attempt: row.attempt,
        });
    }
    Ok(())
}

pub(super) fn update_run(tx: &Tx<'_>, row: &RunRow) -> Result<(), StoreError> {
    let sql = format!("INSERT OR REPLACE INTO runs ({RUN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    write(tx, row, &sql)?;
    Ok(())
}

pub(super) fn forget_run(tx: &Tx<'_>, id: EnvelopeId) -> Result<(), StoreError> {
    tx.changed(0);
    tx.exec("DELETE FROM runs WHERE envelope = ?", &[&id.to_string()])?;
    Ok(())
}

fn write(tx: &Tx<'_>, row: &RunRow, sql: &str) -> Result<usize, StoreError> {
    let params: [Param<'_>; 10] = [
        &row.envelope.to_string(),
        &row.task_id.to_string(),
        &row.attempt,
        &row.pid,
        &row.proc_start.map(int),
        &row.session_id.map(|s| s.to_string()),
        &row.started_at.0,
        &row.state,
        &i64::from(row.finished),
        &json(&row.detail),
    ];
    tx.changed(0);
    tx.exec(sql, &params)
}

fn read_run(r: &Row<'_>) -> Result<RunRow, StoreError> {
    Ok(RunRow {
        envelope: r.name(0)?,
        task_id: r.name(1)?,
        attempt: u32::try_from(r.int(2)?).unwrap_or(u32::MAX),
        pid: pid(r, 3)?,
        proc_start: ticks(r, 4)?,
        session_id: r.opt_name(5)?,
        started_at: WallMs(r.int(6)?),
        state: r.text(7)?,
        finished: r.int(8)? != 0,
        detail: r.json(9)?,
    })
}

/// Runs that are not finished, oldest first.
pub(super) fn unfinished_runs(tx: &Tx<'_>) -> Result<Vec<RunRow>, StoreError> {
    let sql = format!("SELECT {RUN} FROM runs WHERE finished = 0 ORDER BY started_at");
    tx.rows(&sql, &[], read_run)
}

/// All runs of a task, by attempt.
pub(super) fn runs_of(tx: &Tx<'_>, task: EnvelopeId) -> Result<Vec<RunRow>, StoreError> {
    let sql = format!("SELECT {RUN} FROM runs WHERE task_id = ? ORDER BY attempt");
    tx.rows(&sql, &[&task.to_string()], read_run)
}
