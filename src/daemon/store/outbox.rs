//! SQL on the outbox.

use crate::domain::{Report, ReportKind, WallMs};
use crate::wire::RejectedReport;

use super::codec::{int, json, word};
use super::error::StoreError;
use super::rows::{NewReport, report};
use super::sqlite::{Row, Tx};

/// Reports that may wait before steps of runs are dropped; nothing else is ever dropped.
const PROGRESS_LIMIT: u64 = 20_000;
/// Refused reports that are kept for people.
const REJECTED_KEPT: i64 = 1_000;

/// The number that the next report will carry.
pub(super) fn next_n(tx: &Tx<'_>) -> Result<u64, StoreError> {
    let last = tx.row(
        "SELECT seq FROM sqlite_sequence WHERE name = 'outbox'",
        &[],
        |r| r.count(0),
    )?;
    Ok(last.unwrap_or(0) + 1)
}

/// Appends a report; one about an envelope that the hub does not know stays here.
pub(super) fn append(tx: &Tx<'_>, new: &NewReport) -> Result<(), StoreError> {
    let id = new.id.to_string();
    let body = json(&new.body);
    let local = tx.row(
        "SELECT 1 FROM envelopes WHERE id = ? AND seq IS NULL",
        &[&id],
        |r| r.int(0),
    )?;
    if local.is_some() {
        tx.exec(
            "INSERT INTO local_reports (id, kind, at, body) VALUES (?, ?, ?, ?)",
            &[&id, &word(&new.kind), &new.at.0, &body],
        )?;
        return Ok(());
    }
    if new.kind == ReportKind::Progress && depth(tx)? >= PROGRESS_LIMIT {
        return Ok(());
    }
    append_raw(tx, &id, &word(&new.kind), new.at.0, &body)
}

pub(super) fn append_raw(
    tx: &Tx<'_>,
    id: &str,
    kind: &str,
    at: i64,
    body: &str,
) -> Result<(), StoreError> {
    tx.exec(
        "INSERT INTO outbox (id, kind, at, body) VALUES (?, ?, ?, ?)",
        &[&id, &kind, &at, &body],
    )?;
    let n = u64::try_from(tx.last_id()).unwrap_or(0);
    let mut effects = tx.effects.borrow_mut();
    effects.next_n = Some(n + 1);
    effects.bytes += body.len();
    Ok(())
}

fn depth(tx: &Tx<'_>) -> Result<u64, StoreError> {
    let span = tx.row(
        "SELECT coalesce(max(n) - min(n) + 1, 0) FROM outbox",
        &[],
        |r| r.count(0),
    )?;
    Ok(span.unwrap_or(0))
}

fn read(r: &Row<'_>) -> Result<Report, StoreError> {
    Ok(report(
        r.count(0)?,
        r.name(1)?,
        r.word(2)?,
        WallMs(r.int(3)?),
        r.json(4)?,
    ))
}

/// Reports after `n`, in order.
pub(super) fn after(tx: &Tx<'_>, n: u64, limit: u32) -> Result<Vec<Report>, StoreError> {
    tx.rows(
        "SELECT n, id, kind, at, body FROM outbox WHERE n > ? ORDER BY n LIMIT ?",
        &[&int(n), &limit],
        read,
    )
}

/// Reports about an envelope that only this daemon knows, oldest first; `n` is their order.
pub(super) fn local(tx: &Tx<'_>, id: uuid::Uuid) -> Result<Vec<Report>, StoreError> {
    tx.rows(
        "SELECT rowid, id, kind, at, body FROM local_reports WHERE id = ? ORDER BY rowid",
        &[&id.to_string()],
        read,
    )
}

/// Forgets reports that the hub has, keeping the refused ones aside.
pub(super) fn prune(
    tx: &Tx<'_>,
    through: u64,
    rejected: &[RejectedReport],
) -> Result<(), StoreError> {
    for r in rejected {
        tx.exec(
            "INSERT INTO rejected_reports (n, code, id, kind, at, body)
             SELECT n, ?, id, kind, at, body FROM outbox WHERE n = ?",
            &[&r.code, &int(r.n)],
        )?;
    }
    if !rejected.is_empty() {
        tx.exec(
            "DELETE FROM rejected_reports WHERE rowid <= (SELECT max(rowid) FROM rejected_reports) - ?",
            &[&REJECTED_KEPT],
        )?;
    }
    tx.exec("DELETE FROM outbox WHERE n <= ?", &[&int(through)])?;
    tx.effects.borrow_mut().pruned = Some(through);
    Ok(())
}

/// Gives the waiting rows, in order, the numbers after `after`; the next report follows on them.
pub(super) fn renumber(tx: &Tx<'_>, after: u64) -> Result<u64, StoreError> {
    // Negative numbers are nobody's: with them in between no row meets another one's number.
    tx.exec("UPDATE outbox SET n = -n", &[])?;
    let rows = tx.rows("SELECT n FROM outbox ORDER BY n DESC", &[], |r| r.int(0))?;
    let mut n = int(after);
    for old in rows {
        n = n.saturating_add(1);
        tx.exec("UPDATE outbox SET n = ? WHERE n = ?", &[&n, &old])?;
    }
    let told = tx.exec(
        "UPDATE sqlite_sequence SET seq = ? WHERE name = 'outbox'",
        &[&n],
    )?;
    if told == 0 {
        tx.exec(
            "INSERT INTO sqlite_sequence (name, seq) VALUES ('outbox', ?)",
            &[&n],
        )?;
    }
    let next_n = next_n(tx)?;
    tx.effects.borrow_mut().next_n = Some(next_n);
    Ok(next_n)
}
