//! The store's file: how it is opened, what its tables are, how its rows and errors read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{ErrorCode, OpenFlags, Row as SqlRow};
use uuid::Uuid;

pub(super) use rusqlite::{
    Connection, Error as SqlError, OptionalExtension, Result as SqlResult, params,
};

use super::{LogId, LogPosition, MailboxId, Noted, Position, StoreError, Stored};
use crate::domain::{EnvelopeId, InstanceId, Seq, WallMs};

/// `RCHB`: says in the file's header whose it is.
pub(super) const APPLICATION_ID: i32 = 0x5243_4842;
/// `RCHK`: a backup, which no hub takes for its store.
pub(super) const BACKUP_ID: i32 = 0x5243_484B;
/// Forward-only steps; `user_version` counts those that were taken.
const MIGRATIONS: &[&str] = &[include_str!("schema.sql"), include_str!("log.sql")];
/// How long another process's lock is waited for.
const BUSY: Duration = Duration::from_secs(5);
/// Statements that stay prepared: all of them.
const STATEMENTS: usize = 64;

pub(super) fn touch_private(path: &Path) -> Result<(), StoreError> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(path)
        .map(drop)
        .map_err(|e| StoreError::Io(format!("{}: {e}", path.display())))
}

pub(super) fn at(path: &Path, e: &rusqlite::Error) -> StoreError {
    match map(e) {
        StoreError::Io(text) => StoreError::Io(format!("{}: {text}", path.display())),
        StoreError::Foreign(text) => StoreError::Foreign(format!("{}: {text}", path.display())),
        other => other,
    }
}

pub(super) fn map(e: &rusqlite::Error) -> StoreError {
    match e.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::DiskFull,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Foreign(format!(
            "the store's file is damaged ({e}): restore a backup"
        )),
        Some(ErrorCode::NotADatabase) => {
            StoreError::Foreign("the store's file is not a database".to_owned())
        }
        _ => StoreError::Io(e.to_string()),
    }
}

pub(super) fn open_plain(path: &Path) -> Result<Connection, StoreError> {
    let conn = Connection::open(path).map_err(|e| at(path, &e))?;
    conn.busy_timeout(BUSY).map_err(|e| at(path, &e))?;
    Ok(conn)
}

pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(|e| at(path, &e))?;
    conn.busy_timeout(BUSY).map_err(|e| at(path, &e))?;
    Ok(conn)
}

pub(super) fn wal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

pub(super) fn prepare(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let err = |e: rusqlite::Error| at(path, &e);
    conn.busy_timeout(BUSY).map_err(err)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    conn.execute_batch(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA wal_autocheckpoint=0;",
    )
    .map_err(err)?;
    let application = application_id(conn).map_err(err)?;
    let taken = check_version(conn, path)?;
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0))
        .map_err(err)?;
    if application == BACKUP_ID {
        return Err(StoreError::Foreign(format!(
            "{} is a backup and no store: `remote-collab hub restore` makes a store of it",
            path.display()
        )));
    }
    let ours = application == APPLICATION_ID || (application == 0 && taken == 0 && tables == 0);
    if !ours {
        return Err(StoreError::Foreign(format!(
            "{} is a database of another program",
            path.display()
        )));
    }
    for (i, step) in MIGRATIONS.iter().enumerate().skip(taken) {
        conn.execute_batch(&format!(
            "BEGIN IMMEDIATE;\n{step}\nPRAGMA application_id={APPLICATION_ID};\nPRAGMA user_version={};\nCOMMIT;",
            i + 1
        ))
        .map_err(err)?;
    }
    Ok(())
}

pub(super) fn application_id(conn: &Connection) -> SqlResult<i32> {
    conn.query_row("PRAGMA application_id", [], |r| r.get(0))
}

/// How many of our steps the file has taken.
pub(super) fn check_version(conn: &Connection, path: &Path) -> Result<usize, StoreError> {
    let version: i64 = conn
        .query_row("PRAGMA user_version", [], |r| r.get(0))
        .map_err(|e| at(path, &e))?;
    let taken = usize::try_from(version).unwrap_or(usize::MAX);
    if taken > MIGRATIONS.len() {
        return Err(StoreError::Foreign(format!(
            "{} was written by a later version (store {taken}, this program knows {}): run that version",
            path.display(),
            MIGRATIONS.len()
        )));
    }
    Ok(taken)
}

pub(super) struct Scalars {
    pub(super) at: Position,
    pub(super) count: u64,
    pub(super) bytes: u64,
}

pub(super) fn scalars(c: &Connection, id: &MailboxId) -> rusqlite::Result<Option<(i64, Scalars)>> {
    c.prepare_cached(
        "SELECT id, epoch, head, acked, generation, count, bytes FROM mailboxes WHERE name = ?1",
    )?
    .query_row(params![id.as_str()], |r| {
        let at = Position {
            epoch: InstanceId(Uuid::from_bytes(r.get(1)?)),
            head: seq_of(r.get(2)?),
            acked: seq_of(r.get(3)?),
            generation: nat(r.get(4)?),
        };
        let (count, bytes) = (nat(r.get(5)?), nat(r.get(6)?));
        Ok((r.get(0)?, Scalars { at, count, bytes }))
    })
    .optional()
}

/// SQLite's integers are signed; none of ours comes near the bound.
pub(super) fn int(v: u64) -> i64 {
    i64::try_from(v).unwrap_or(i64::MAX)
}

pub(super) fn nat(v: i64) -> u64 {
    u64::try_from(v).unwrap_or(0)
}

pub(super) fn seq_of(v: i64) -> Seq {
    Seq(nat(v))
}

pub(super) fn envelope_id(r: &SqlRow<'_>, i: usize) -> rusqlite::Result<EnvelopeId> {
    r.get(i).map(|b| EnvelopeId(Uuid::from_bytes(b)))
}

pub(super) fn stored(r: &SqlRow<'_>) -> rusqlite::Result<Stored> {
    Ok(Stored {
        key: r.get(0)?,
        value: r.get(1)?,
        version: nat(r.get(2)?),
        keep_until: r.get::<_, Option<i64>>(3)?.map(WallMs),
    })
}

/// The log's number and where it stands.
pub(super) fn log_scalars(
    c: &Connection,
    id: &LogId,
) -> rusqlite::Result<Option<(i64, LogPosition)>> {
    let found = c
        .prepare_cached("SELECT id, epoch FROM logs WHERE name = ?1")?
        .query_row(params![id.as_str()], |r| {
            Ok((r.get::<_, i64>(0)?, InstanceId(Uuid::from_bytes(r.get(1)?))))
        })
        .optional()?;
    let Some((n, epoch)) = found else {
        return Ok(None);
    };
    let newest = c
        .prepare_cached("SELECT seq, at FROM events WHERE log = ?1 ORDER BY seq DESC LIMIT 1")?
        .query_row(params![n], |r| Ok((seq_of(r.get(0)?), WallMs(r.get(1)?))))
        .optional()?;
    let (head, at) = newest.unwrap_or_default();
    Ok(Some((n, LogPosition { epoch, head, at })))
}

/// A row of `seq, about, at, json`.
pub(super) fn noted(r: &SqlRow<'_>) -> rusqlite::Result<Noted> {
    Ok(Noted {
        seq: seq_of(r.get(0)?),
        about: envelope_id(r, 1)?,
        at: WallMs(r.get(2)?),
        json: r.get_ref(3)?.as_str()?.into(),
    })
}
