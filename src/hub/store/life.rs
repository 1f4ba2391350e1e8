//! The lives of a store.
//!
//! A cursor means something only within one life of its mailbox. A store whose file was replaced by an older copy of
//! itself would give numbers again that devices have passed, and skip what it now stores under them. So store and folder
//! carry the same mark, drawn anew at every start: in the record `hub/life`, and in a file beside the store. When they
//! differ, the store is not the one that ran here last, and every mailbox and every event log begins a new life: a new
//! epoch, the cursor at 0, the rows kept. Devices keep their queues and know by the ids what they have.
//!
//! A new life where none was needed costs only a repetition, so the record is written first and the file after it.

use std::io::Write as _;
use std::path::Path;

use uuid::Uuid;

use super::StoreError;
use super::schema::{Connection, OptionalExtension, SqlResult, map, params};

/// The record that carries the mark.
const KEY: &str = "hub/life";
/// Above every generation that a connection of the life before can have had: none of them can pass for a new one.
const GENERATIONS: i64 = 1 << 32;

/// Compares the marks, begins a new life when they differ, and draws the next one; tells whether a new life began.
pub(super) fn begin(conn: &Connection, mark: &Path) -> Result<bool, StoreError> {
    let io = |e: std::io::Error| StoreError::Io(format!("{}: {e}", mark.display()));
    let known: Option<String> = conn
        .query_row("SELECT value FROM records WHERE key = ?1", [KEY], |r| {
            r.get(0)
        })
        .optional()
        .map_err(|e| map(&e))?;
    let beside = match std::fs::read_to_string(mark) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(io(e)),
    };
    let replaced = known != beside;
    let next = Uuid::new_v4().to_string();
    let write = || -> SqlResult<()> {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        if replaced {
            renew(conn)?;
        }
        conn.execute(
            "INSERT INTO records (key, value, version) VALUES (?1, ?2, 1)
             ON CONFLICT (key) DO UPDATE SET value = ?2, version = version + 1",
            params![KEY, next],
        )?;
        conn.execute_batch("COMMIT")
    };
    write().map_err(|e| {
        // The error is what matters; the connection is dropped with it.
        drop(conn.execute_batch("ROLLBACK"));
        map(&e)
    })?;
    let dir = mark.parent().unwrap_or_else(|| Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(io)?;
    file.write_all(next.as_bytes()).map_err(io)?;
    file.as_file().sync_all().map_err(io)?;
    file.persist(mark).map_err(|e| io(e.error))?;
    Ok(replaced)
}

/// Takes the mark out: the next start draws one and finds nothing amiss.
pub(super) fn forget(conn: &Connection) -> SqlResult<()> {
    conn.execute("DELETE FROM records WHERE key = ?1", [KEY])
        .map(drop)
}

/// Gives every mailbox and every event log a new epoch; within a transaction of the caller's.
pub(super) fn renew(conn: &Connection) -> SqlResult<()> {
    let ids = |table: &str| -> SqlResult<Vec<i64>> {
        conn.prepare(&format!("SELECT id FROM {table}"))?
            .query_map([], |r| r.get(0))?
            .collect()
    };
    for id in ids("mailboxes")? {
        conn.execute(
            "UPDATE mailboxes SET epoch = ?2, acked = 0, generation = generation + ?3 WHERE id = ?1",
            params![id, Uuid::new_v4().as_bytes(), GENERATIONS],
        )?;
    }
    let logs: bool = conn.query_row(
        "SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'logs'",
        [],
        |r| r.get(0),
    )?;
    if logs {
        for id in ids("logs")? {
            conn.execute(
                "UPDATE logs SET epoch = ?2 WHERE id = ?1",
                params![id, Uuid::new_v4().as_bytes()],
            )?;
        }
    }
    Ok(())
}
