//! SQL on results that are uploaded beside the link.
//!
//! A text is kept in pieces, each small enough to be read, sent and answered for by itself, and cut between characters. The
//! reports of the task's end wait in the same row: they come into the outbox in one transaction with the news that the
//! text is up, or is known not to get there. So whoever hears how a task ended can read what came of it.

use crate::domain::{EnvelopeId, WallMs, WholeText};

use super::codec::{from_word, int, json, word};
use super::error::StoreError;
use super::outbox;
use super::rows::{NewReport, NewUpload, Upload};
use super::sqlite::{Row, Tx};

/// A piece at most, bytes.
const PIECE: usize = 256 << 10;
/// Texts that may wait at once, and their bytes.
const MOST: u64 = 64;
const MOST_BYTES: u64 = 256 << 20;

/// Keeps a text with its reports; without room for it the reports go at once and name no text.
pub(super) fn begin(tx: &Tx<'_>, new: &NewUpload, now: WallMs) -> Result<(), StoreError> {
    let (count, bytes) = tx
        .row(
            "SELECT count(*), coalesce(sum(bytes), 0) FROM uploads",
            &[],
            |r| Ok((r.count(0)?, r.count(1)?)),
        )?
        .unwrap_or_default();
    if count >= MOST || bytes + new.whole.bytes > MOST_BYTES {
        tracing::warn!(task = %new.task_id, "too many results wait for upload: this one is reported without its end");
        for report in &new.reports {
            let mut report = report.clone();
            if let Some(body) = report.body.as_object_mut() {
                body.remove("whole");
            }
            outbox::append(tx, &report)?;
        }
        return Ok(());
    }
    let id = new.envelope.to_string();
    let reports: Vec<_> = new
        .reports
        .iter()
        .map(|r| (r.id, word(&r.kind), r.at, &r.body))
        .collect();
    tx.exec(
        "INSERT OR REPLACE INTO uploads (envelope, task_id, attempt, bytes, sha256, at, reports)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        &[
            &id,
            &new.task_id.to_string(),
            &new.attempt,
            &int(new.whole.bytes),
            &new.whole.sha256,
            &now.0,
            &json(&reports),
        ],
    )?;
    let mut start = 0;
    while start < new.text.len() {
        let mut end = (start + PIECE).min(new.text.len());
        while !new.text.is_char_boundary(end) {
            end -= 1;
        }
        tx.exec(
            "INSERT INTO upload_pieces (envelope, start, text) VALUES (?, ?, ?)",
            &[&id, &int(start as u64), &&new.text[start..end]],
        )?;
        start = end;
    }
    tx.changed(new.text.len());
    Ok(())
}

fn read(r: &Row<'_>) -> Result<Upload, StoreError> {
    Ok(Upload {
        envelope: r.name(0)?,
        task_id: r.name(1)?,
        attempt: u32::try_from(r.int(2)?).unwrap_or(u32::MAX),
        whole: WholeText {
            bytes: r.count(3)?,
            sha256: r.text(4)?,
        },
        at: WallMs(r.int(5)?),
    })
}

/// All uploads, oldest first.
pub(super) fn list(tx: &Tx<'_>) -> Result<Vec<Upload>, StoreError> {
    tx.rows(
        "SELECT envelope, task_id, attempt, bytes, sha256, at FROM uploads ORDER BY at, envelope",
        &[],
        read,
    )
}

/// The piece that holds the byte at `offset`, from there on; `None` if the text ends before.
pub(super) fn piece(
    tx: &Tx<'_>,
    id: EnvelopeId,
    offset: u64,
) -> Result<Option<String>, StoreError> {
    let found = tx.row(
        "SELECT start, text FROM upload_pieces WHERE envelope = ? AND start <= ? ORDER BY start DESC LIMIT 1",
        &[&id.to_string(), &int(offset)],
        |r| Ok((r.count(0)?, r.text(1)?)),
    )?;
    Ok(found.and_then(|(start, text)| {
        let from = usize::try_from(offset - start).ok()?;
        // A hub that stopped within a character gets the rest of no piece: it has to begin again.
        text.get(from..)
            .filter(|t| !t.is_empty())
            .map(str::to_owned)
    }))
}

/// Appends the reports that wait for the text, if they still do.
pub(super) fn release(tx: &Tx<'_>, id: EnvelopeId) -> Result<(), StoreError> {
    type Kept = Vec<(uuid::Uuid, String, WallMs, serde_json::Value)>;
    let key = id.to_string();
    let kept = tx.row(
        "SELECT reports FROM uploads WHERE envelope = ? AND reports IS NOT NULL",
        &[&key],
        |r| r.json::<Kept>(0),
    )?;
    for (id, kind, at, body) in kept.unwrap_or_default() {
        let kind = from_word(&kind).ok_or_else(|| StoreError::Failed("unknown report".into()))?;
        outbox::append(tx, &NewReport { id, kind, at, body })?;
    }
    tx.exec(
        "UPDATE uploads SET reports = NULL WHERE envelope = ?",
        &[&key],
    )?;
    Ok(())
}

/// Forgets an upload; its reports go now.
pub(super) fn end(tx: &Tx<'_>, id: EnvelopeId) -> Result<(), StoreError> {
    release(tx, id)?;
    let key = id.to_string();
    tx.exec("DELETE FROM upload_pieces WHERE envelope = ?", &[&key])?;
    tx.exec("DELETE FROM uploads WHERE envelope = ?", &[&key])?;
    tx.changed(0);
    Ok(())
}
