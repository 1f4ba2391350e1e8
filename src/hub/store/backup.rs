//! Backups: one file that is enough to be this hub again.
//!
//! A backup is a copy of the store as it stood at one moment (`VACUUM INTO`: a reader's snapshot, so that the hub goes on
//! writing meanwhile), with one more table: the signing keys and what the backup is of. Its header carries another mark
//! than a store's, so that no hub takes it for its store; [`unpack`] makes a store of it again, in a new life.

use std::path::Path;

use serde::Serialize;

use super::schema::{
    Connection, OptionalExtension, SqlResult, at, map, open_reader, params, prepare,
};
use super::{StoreError, life, schema};
use crate::domain::WallMs;

/// A key's file name and text.
pub(crate) type KeyFile = (String, Vec<u8>);

/// What a backup holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Contents {
    /// The hub's name.
    pub hub_id: String,
    /// When it was made, Unix ms.
    pub made_at: WallMs,
    /// Enrolled devices, revoked ones included.
    pub devices: u64,
    /// Tasks and messages.
    pub items: u64,
    /// Envelopes that still have their text.
    pub envelopes: u64,
    /// Signing keys.
    pub keys: u64,
}

/// Copies the store in `db`, which may be in use, into the empty file `into`.
pub(super) fn copy(db: &Path, into: &Path) -> Result<(), StoreError> {
    let conn = open_reader(db)?;
    let text = into
        .to_str()
        .ok_or_else(|| StoreError::Io(format!("{} is not a name in UTF-8", into.display())))?;
    conn.execute("VACUUM INTO ?1", [text])
        .map(drop)
        .map_err(|e| at(into, &e))
}

/// Makes the copy a backup: checks it, adds the keys, and writes all of it to disk.
pub(super) fn seal(file: &Path, keys: &[KeyFile], made_at: WallMs) -> Result<Contents, StoreError> {
    let err = |e| at(file, &e);
    let mut conn = Connection::open(file).map_err(err)?;
    check_integrity(&conn, file)?;
    let tx = conn.transaction().map_err(err)?;
    let write = || -> SqlResult<()> {
        tx.execute_batch(
            "CREATE TABLE backup (name TEXT NOT NULL UNIQUE, value BLOB NOT NULL) STRICT;",
        )?;
        let mut put = tx.prepare("INSERT INTO backup (name, value) VALUES (?1, ?2)")?;
        put.execute(params!["made_at", made_at.0.to_string().as_bytes()])?;
        for (name, text) in keys {
            put.execute(params![format!("key/{name}"), text])?;
        }
        tx.execute_batch(&format!("PRAGMA application_id={}", schema::BACKUP_ID))
    };
    write().map_err(err)?;
    tx.commit().map_err(err)?;
    let contents = contents(&conn).map_err(err)?;
    conn.close().map_err(|(_, e)| err(e))?;
    std::fs::File::open(file)
        .and_then(|f| f.sync_all())
        .map_err(|e| StoreError::Io(format!("{}: {e}", file.display())))?;
    Ok(contents)
}

/// Reads a backup whole and tells what it holds, without changing anything.
///
/// # Errors
/// When it is no backup of ours, damaged, or of a later version.
pub(crate) fn check(file: &Path) -> Result<Contents, StoreError> {
    let conn = open_reader(file)?;
    if schema::application_id(&conn).map_err(|e| at(file, &e))? != schema::BACKUP_ID {
        return Err(StoreError::Foreign(format!(
            "{} is no backup of a hub: `hub backup` makes one",
            file.display()
        )));
    }
    schema::check_version(&conn, file)?;
    check_integrity(&conn, file)?;
    let contents = contents(&conn).map_err(|e| at(file, &e))?;
    if contents.keys == 0 {
        return Err(StoreError::Foreign(format!(
            "{} holds no signing key",
            file.display()
        )));
    }
    Ok(contents)
}

/// Makes the copy of a backup in `file` a store in a new life, and gives the keys that it held.
pub(crate) fn unpack(file: &Path) -> Result<Vec<KeyFile>, StoreError> {
    let err = |e| at(file, &e);
    let conn = Connection::open(file).map_err(err)?;
    let take = || -> SqlResult<Vec<KeyFile>> {
        // The keys leave no trace in the store's free pages.
        conn.execute_batch("PRAGMA secure_delete=ON; BEGIN IMMEDIATE")?;
        let keys = conn
            .prepare("SELECT substr(name, 5), value FROM backup WHERE name LIKE 'key/%'")?
            .query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?
            .collect::<SqlResult<Vec<KeyFile>>>()?;
        life::renew(&conn)?;
        life::forget(&conn)?;
        conn.execute_batch(&format!(
            "DROP TABLE backup; PRAGMA application_id={}; COMMIT",
            schema::APPLICATION_ID
        ))?;
        Ok(keys)
    };
    let keys = take().map_err(err)?;
    // Brings an older version's store up to this one; the close folds the log in.
    prepare(&conn, file)?;
    conn.close().map_err(|(_, e)| err(e))?;
    Ok(keys)
}

fn check_integrity(conn: &Connection, file: &Path) -> Result<(), StoreError> {
    let damaged =
        |why: String| StoreError::Foreign(format!("{} is damaged: {why}", file.display()));
    let told: String = conn
        .query_row("PRAGMA integrity_check(1)", [], |r| r.get(0))
        .map_err(|e| damaged(map(&e).to_string()))?;
    if told == "ok" {
        Ok(())
    } else {
        Err(damaged(told))
    }
}

fn contents(conn: &Connection) -> SqlResult<Contents> {
    let count = |sql: &str| conn.query_row(sql, [], |r| r.get::<_, i64>(0).map(schema::nat));
    let records = |prefix: &str| {
        count(&format!(
            "SELECT count(*) FROM records WHERE key >= '{prefix}/' AND key < '{prefix}0'"
        ))
    };
    let made_at: Option<Vec<u8>> = conn
        .query_row("SELECT value FROM backup WHERE name = 'made_at'", [], |r| {
            r.get(0)
        })
        .optional()?;
    let made_at = made_at.and_then(|b| String::from_utf8(b).ok()?.parse().ok());
    Ok(Contents {
        hub_id: conn
            .query_row("SELECT value FROM records WHERE key = 'hub/id'", [], |r| {
                r.get(0)
            })
            .optional()?
            .unwrap_or_default(),
        made_at: WallMs(made_at.unwrap_or(0)),
        devices: records("device")?,
        items: records("task")? + records("message")?,
        envelopes: count("SELECT count(*) FROM envelopes WHERE json IS NOT NULL")?,
        keys: count("SELECT count(*) FROM backup WHERE name LIKE 'key/%'")?,
    })
}
