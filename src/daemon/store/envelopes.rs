//! SQL on envelopes, seen ids and the cursor.

use crate::domain::{
    ClaimId, Cursor, Envelope, EnvelopeId, EnvelopeKind, Epoch, InstanceId, Receipt, ReportKind,
    Seq, SessionId, Stage, WallMs,
};

use super::call_off;
use super::codec::{int, json, lane, word};
use super::error::StoreError;
use super::outbox;
use super::rows::{
    EnvelopeRow, EnvelopeState, Incoming, NewReport, Position, QueueCounts, QueueFilter, StoreInfo,
    Stored,
};
use super::sqlite::{Param, Row, Tx};

const COLUMNS: &str = "json, ord, seq, state, hold_reason, claim, received_at, starts";

/// Envelopes from the local API that may wait at once.
pub(super) const LOCAL_LIMIT: u64 = 10_000;
/// Largest final report that is kept to be told again, bytes.
const FINAL_BYTES: usize = 64 << 10;

pub(super) fn position(tx: &Tx<'_>) -> Result<Position, StoreError> {
    let info = tx.row("SELECT instance, outbox_instance FROM meta", &[], |r| {
        Ok(StoreInfo {
            instance: r.name::<InstanceId>(0)?,
            outbox_instance: r.name::<InstanceId>(1)?,
        })
    })?;
    Ok(Position {
        info: info.ok_or_else(no_meta)?,
        last: cursor(tx)?,
        next_n: outbox::next_n(tx)?,
    })
}

fn cursor(tx: &Tx<'_>) -> Result<Option<Cursor>, StoreError> {
    let row = tx.row("SELECT epoch, seq FROM meta", &[], |r| {
        let (epoch, seq) = (r.opt_name::<Epoch>(0)?, r.opt_int(1)?);
        Ok(epoch.zip(seq).map(|(epoch, seq)| Cursor {
            epoch,
            seq: Seq(u64::try_from(seq).unwrap_or(0)),
        }))
    })?;
    row.ok_or_else(no_meta)
}

fn no_meta() -> StoreError {
    StoreError::Failed("the meta row is missing".into())
}

fn set_cursor(tx: &Tx<'_>, cursor: Cursor) -> Result<(), StoreError> {
    tx.exec(
        "UPDATE meta SET epoch = ?, seq = ?",
        &[&cursor.epoch.to_string(), &int(cursor.seq.0)],
    )?;
    tx.effects.borrow_mut().cursor = Some(Some(cursor));
    Ok(())
}

/// The mailbox has a new life: what is queued stays, the cursor begins anew.
pub(super) fn reset_cursor(tx: &Tx<'_>, epoch: Epoch) -> Result<(), StoreError> {
    set_cursor(tx, Cursor { epoch, seq: Seq(0) })
}

/// Stores a batch off the link and moves the cursor; a cursor of the same epoch never goes back.
pub(super) fn store(
    tx: &Tx<'_>,
    batch: &[Incoming],
    now: WallMs,
) -> Result<Vec<Stored>, StoreError> {
    let mut out = Vec::with_capacity(batch.len());
    let mut cursor = cursor(tx)?;
    for item in batch {
        let done = insert(tx, &item.envelope, Some(item.cursor.seq), now)?;
        if done == Stored::Duplicate {
            tell_again(tx, item.envelope.id)?;
        }
        out.push(done);
        if cursor.is_none_or(|c| c.epoch != item.cursor.epoch || c.seq < item.cursor.seq) {
            cursor = Some(item.cursor);
        }
    }
    if let Some(cursor) = cursor {
        set_cursor(tx, cursor)?;
    }
    Ok(out)
}

/// Longest part of a reader's words that a receipt carries, characters.
const REASON: usize = 200;

/// Notes that an envelope cannot be read, and moves the cursor past it.
pub(super) fn refuse(
    tx: &Tx<'_>,
    at: Cursor,
    id: Option<EnvelopeId>,
    reason: &str,
    now: WallMs,
) -> Result<(), StoreError> {
    if let Some(id) = id {
        let fresh = tx.exec(
            "INSERT INTO seen_ids (id, at) VALUES (?, ?) ON CONFLICT DO NOTHING",
            &[&id.to_string(), &now.0],
        )?;
        if fresh == 0 {
            tell_again(tx, id)?;
        } else {
            let reason: String = reason.chars().take(REASON).collect();
            let stage = Stage::Undeliverable {
                reason: format!("unreadable: {reason}"),
            };
            let receipt = Receipt {
                stage,
                at: now,
                evidence: None,
            };
            let report = NewReport::receipt(id, receipt);
            outbox::append(tx, &report)?;
            set_final(tx, id, &[&report])?;
        }
    }
    match cursor(tx)? {
        Some(known) if known.epoch == at.epoch && known.seq >= at.seq => Ok(()),
        _ => set_cursor(tx, at),
    }
}

/// Stores an envelope that came through the local API.
pub(super) fn store_local(
    tx: &Tx<'_>,
    envelope: &Envelope,
    now: WallMs,
) -> Result<Stored, StoreError> {
    let waiting = tx
        .row(
            "SELECT count(*) FROM envelopes WHERE seq IS NULL AND state <> 'terminal'",
            &[],
            |r| r.count(0),
        )?
        .unwrap_or(0);
    if waiting >= LOCAL_LIMIT {
        return Err(StoreError::Full { limit: LOCAL_LIMIT });
    }
    insert(tx, envelope, None, now)
}

fn insert(tx: &Tx<'_>, e: &Envelope, seq: Option<Seq>, now: WallMs) -> Result<Stored, StoreError> {
    let id = e.id.to_string();
    let fresh = tx.exec(
        "INSERT INTO seen_ids (id, at) VALUES (?, ?) ON CONFLICT DO NOTHING",
        &[&id, &now.0],
    )?;
    if fresh == 0 {
        return Ok(Stored::Duplicate);
    }
    let unsupported = matches!(e.kind, EnvelopeKind::Other(_));
    let state = if unsupported {
        EnvelopeState::Terminal
    } else {
        EnvelopeState::Queued
    };
    let content = json(e);
    let task = e.task();
    let attempt = task.as_ref().map(|_| e.attempt.unwrap_or(1));
    tx.exec(
        "INSERT INTO envelopes
           (id, seq, kind, priority, project, session, task_id, attempt, received_at, expires_at, state, changed_at,
            json)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        &[
            &id,
            &seq.map(|s| int(s.0)),
            &word(&e.kind),
            &lane(e.priority),
            &e.to.project.as_ref().map(|p| p.as_str().to_owned()),
            &e.to.session_id.map(|s| s.to_string()),
            &task.map(|t| t.task_id.to_string()),
            &attempt,
            &now.0,
            &e.expires_at.0,
            &state.as_str(),
            &now.0,
            &content,
        ],
    )?;
    tx.changed(content.len());
    if unsupported {
        let receipt = Receipt {
            stage: Stage::Unsupported,
            at: now,
            evidence: None,
        };
        let report = NewReport::receipt(e.id, receipt);
        outbox::append(tx, &report)?;
        set_final(tx, e.id, &[&report])?;
    }
    call_off::arrived(tx, e, now)?;
    Ok(Stored::New)
}

/// The hub sent a finished envelope once more: it did not hear, or forgot, how it ended.
fn tell_again(tx: &Tx<'_>, id: EnvelopeId) -> Result<(), StoreError> {
    let id = id.to_string();
    let last = tx.row(
        "SELECT final FROM seen_ids WHERE id = ?1 AND final IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM outbox WHERE id = ?1)
           AND NOT EXISTS (SELECT 1 FROM uploads WHERE envelope = ?1 AND reports IS NOT NULL)",
        &[&id],
        |r| r.json::<Vec<(String, i64, serde_json::Value)>>(0),
    )?;
    for (kind, at, body) in last.unwrap_or_default() {
        outbox::append_raw(tx, &id, &kind, at, &json(&body))?;
    }
    Ok(())
}

/// Remembers how an envelope ended, for [`tell_again`].
pub(super) fn set_final(
    tx: &Tx<'_>,
    id: EnvelopeId,
    reports: &[&NewReport],
) -> Result<(), StoreError> {
    let rows = |with_result: bool| {
        let kept = reports
            .iter()
            .filter(|r| with_result || r.kind != ReportKind::Result);
        json(
            &kept
                .map(|r| (word(&r.kind), r.at.0, &r.body))
                .collect::<Vec<_>>(),
        )
    };
    let mut text = rows(true);
    if text.len() > FINAL_BYTES {
        // How it ended is told again also where what came of it is too long to be kept twice.
        text = rows(false);
    }
    if reports.is_empty() || text.len() > FINAL_BYTES {
        return Ok(());
    }
    tx.exec(
        "UPDATE seen_ids SET final = ? WHERE id = ?",
        &[&text, &id.to_string()],
    )?;
    Ok(())
}

/// Moves an envelope on; `from` lists the states it may be in. Gives whether it did.
pub(super) fn shift(
    tx: &Tx<'_>,
    id: EnvelopeId,
    from: &[EnvelopeState],
    to: EnvelopeState,
    claim: Option<ClaimId>,
    now: WallMs,
) -> Result<bool, StoreError> {
    let id = id.to_string();
    let claim = claim.map(|c| c.to_string());
    for state in from {
        let n = tx.exec(
            "UPDATE envelopes SET state = ?, claim = ?, hold_reason = NULL, changed_at = ?
             WHERE id = ? AND state = ?",
            &[&to.as_str(), &claim, &now.0, &id, &state.as_str()],
        )?;
        if n > 0 {
            tx.changed(0);
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sets or clears why a queued envelope waits; gives whether it is queued.
pub(super) fn hold(
    tx: &Tx<'_>,
    id: EnvelopeId,
    reason: Option<&str>,
    now: WallMs,
) -> Result<bool, StoreError> {
    let n = tx.exec(
        "UPDATE envelopes SET hold_reason = ?, changed_at = ? WHERE id = ? AND state = 'queued'",
        &[&reason, &now.0, &id.to_string()],
    )?;
    tx.changed(0);
    Ok(n > 0)
}

fn read(r: &Row<'_>) -> Result<EnvelopeRow, StoreError> {
    let state = r.text(3)?;
    Ok(EnvelopeRow {
        envelope: r.json(0)?,
        ord: r.int(1)?,
        local: r.opt_int(2)?.is_none(),
        state: EnvelopeState::parse(&state)
            .ok_or_else(|| StoreError::Failed(format!("unknown state `{state}`")))?,
        hold_reason: r.opt_text(4)?,
        claim: r.opt_name(5)?,
        received_at: WallMs(r.int(6)?),
        starts: u32::try_from(r.int(7)?).unwrap_or(u32::MAX),
    })
}

/// One envelope.
pub(super) fn get(tx: &Tx<'_>, id: EnvelopeId) -> Result<Option<EnvelopeRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM envelopes WHERE id = ?");
    tx.row(&sql, &[&id.to_string()], read)
}

/// Envelopes in lane order: the most pressing lane first, by arrival within it.
pub(super) fn list(
    tx: &Tx<'_>,
    filter: &QueueFilter,
    limit: u32,
) -> Result<Vec<EnvelopeRow>, StoreError> {
    let state = filter.state.unwrap_or(EnvelopeState::Queued).as_str();
    let kind = filter.kind.as_ref().map(word);
    let project = filter.project.as_ref().map(|p| p.as_str().to_owned());
    let sessions = (!filter.sessions.is_empty()).then(|| json(&filter.sessions));
    let priority = filter.priority.map(lane);
    let sql = format!(
        "SELECT {COLUMNS} FROM envelopes
         WHERE state = ?1 AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR project = ?3)
           AND (?4 IS NULL OR session IN (SELECT value FROM json_each(?4)))
           AND (?5 IS NULL OR priority = ?5)
         ORDER BY priority DESC, ord LIMIT ?6"
    );
    let params: [Param<'_>; 6] = [&state, &kind, &project, &sessions, &priority, &limit];
    tx.rows(&sql, &params, read)
}

/// Envelopes that are queued or claimed and arrived after `after`, by arrival.
pub(super) fn arrived(tx: &Tx<'_>, after: i64, limit: u32) -> Result<Vec<EnvelopeRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM envelopes WHERE ord > ? AND state <> 'terminal' ORDER BY ord LIMIT ?"
    );
    tx.rows(&sql, &[&after, &limit], read)
}

/// Counts a begun run of this envelope (`by` 1), or takes one back that says nothing about it (-1).
pub(super) fn count_start(tx: &Tx<'_>, id: EnvelopeId, by: i64) -> Result<(), StoreError> {
    tx.exec(
        "UPDATE envelopes SET starts = max(0, starts + ?) WHERE id = ?",
        &[&by, &id.to_string()],
    )?;
    Ok(())
}

/// All attempts of a task, oldest first.
pub(super) fn of_task(tx: &Tx<'_>, task: EnvelopeId) -> Result<Vec<EnvelopeRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM envelopes WHERE task_id = ? ORDER BY ord");
    tx.rows(&sql, &[&task.to_string()], read)
}

/// Queued envelopes whose time is over.
pub(super) fn overdue(
    tx: &Tx<'_>,
    now: WallMs,
    limit: u32,
) -> Result<Vec<EnvelopeRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM envelopes WHERE state = 'queued' AND expires_at <= ? ORDER BY ord LIMIT ?"
    );
    tx.rows(&sql, &[&now.0, &limit], read)
}

/// The ids of sessions that queued mail is addressed to.
pub(super) fn addressed_sessions(tx: &Tx<'_>) -> Result<Vec<SessionId>, StoreError> {
    tx.rows(
        "SELECT DISTINCT session FROM envelopes WHERE state = 'queued' AND session IS NOT NULL",
        &[],
        |r| r.name(0),
    )
}

/// How much stands where.
pub(super) fn counts(tx: &Tx<'_>) -> Result<QueueCounts, StoreError> {
    let mut counts = QueueCounts::default();
    let rows = tx.rows(
        "SELECT state, hold_reason, count(*) FROM envelopes GROUP BY state, hold_reason",
        &[],
        |r| Ok((r.text(0)?, r.opt_text(1)?, r.count(2)?)),
    )?;
    for (state, hold, n) in rows {
        match (state.as_str(), hold) {
            ("queued", Some(reason)) => counts.held.push((reason, n)),
            ("queued", None) => counts.queued += n,
            ("claimed", _) => counts.claimed += n,
            _ => counts.terminal += n,
        }
    }
    let count = |sql: &str| tx.row(sql, &[], |r| r.count(0)).map(|n| n.unwrap_or(0));
    counts.outbox = count("SELECT count(*) FROM outbox")?;
    counts.rejected_reports = count("SELECT count(*) FROM rejected_reports")?;
    Ok(counts)
}
