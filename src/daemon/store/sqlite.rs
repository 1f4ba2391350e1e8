//! The one file of the daemon that names SQLite: opening, versions, transactions, error classes.
//!
//! The rest of the store writes SQL against [`Tx`] and [`Row`], which carry only text and integers.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rusqlite::types::ToSql;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};
use serde::de::DeserializeOwned;

use crate::domain::Cursor;
use crate::local::write_private;

use super::error::StoreError;

/// "rcQ1": tells our file from any other SQLite database.
const APPLICATION_ID: i64 = 0x7263_5131;
/// The newest version this program reads and writes.
const VERSION: i64 = 2;
/// How long to wait for a lock that another program holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that a small statement is taken to add to the log: one page.
const STATEMENT_BYTES: usize = 4096;

/// A value bound to a statement.
pub(super) type Param<'a> = &'a dyn ToSql;

/// One open connection.
pub(super) struct Db {
    conn: Connection,
    path: PathBuf,
}

/// What the transactions of a group did, published once they are durable.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Effects {
    /// The cursor moved here (`Some(None)`: it was forgotten).
    pub(super) cursor: Option<Option<Cursor>>,
    /// The number after the outbox's last row.
    pub(super) next_n: Option<u64>,
    /// The last report that was forgotten because the hub has it.
    pub(super) pruned: Option<u64>,
    /// Envelopes, claims, sessions or runs changed.
    pub(super) changed: bool,
    /// Bytes that went to the log, roughly.
    pub(super) bytes: usize,
}

impl Effects {
    /// Adds what a later job did.
    pub(super) fn merge(&mut self, later: Self) {
        self.cursor = later.cursor.or(self.cursor);
        self.next_n = later.next_n.or(self.next_n);
        self.pruned = later.pruned.or(self.pruned);
        self.changed |= later.changed;
        self.bytes += later.bytes;
    }
}

/// A transaction under way.
pub(super) struct Tx<'c> {
    conn: &'c Connection,
    /// What this job did so far.
    pub(super) effects: RefCell<Effects>,
}

/// One row of an answer.
pub(super) struct Row<'r>(&'r rusqlite::Row<'r>);

impl Db {
    /// Opens the file, creating or migrating it.
    pub(super) fn open(path: &Path, birth: &[Param<'_>]) -> Result<Self, StoreError> {
        create_private(path).map_err(|e| StoreError::Open {
            path: path.to_owned(),
            detail: e.to_string(),
        })?;
        let db = Self::connect(path)?;
        db.check_version(birth)?;
        db.check_health()?;
        db.tell_copy(birth).map_err(|e| opening(path, &e))?;
        db.renew_life()?;
        Ok(db)
    }

    /// A second connection to the same file, for checkpoints.
    pub(super) fn connect(path: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags).map_err(|e| opening(path, &e))?;
        let setup = || -> rusqlite::Result<()> {
            conn.busy_timeout(BUSY_TIMEOUT)?;
            conn.set_prepared_statement_cache_capacity(64);
            conn.execute_batch(
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0;
                 PRAGMA journal_size_limit=8388608; PRAGMA foreign_keys=ON; PRAGMA temp_store=MEMORY;",
            )
        };
        setup().map_err(|e| opening(path, &e))?;
        Ok(Self {
            conn,
            path: path.to_owned(),
        })
    }

    fn check_version(&self, birth: &[Param<'_>]) -> Result<(), StoreError> {
        let get = |name: &str| {
            self.conn
                .query_row(&format!("PRAGMA {name}"), [], |r| r.get::<_, i64>(0))
                .map_err(|e| opening(&self.path, &e))
        };
        let (application, found) = (get("application_id")?, get("user_version")?);
        let tables: i64 = self
            .conn
            .query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0))
            .map_err(|e| opening(&self.path, &e))?;
        match (application, found) {
            (0, 0) if tables == 0 => self.create(birth).map_err(|e| opening(&self.path, &e)),
            (APPLICATION_ID, VERSION) => Ok(()),
            (APPLICATION_ID, 1) => self.migrate().map_err(|e| opening(&self.path, &e)),
            (APPLICATION_ID, found) => Err(StoreError::Newer {
                path: self.path.clone(),
                found,
                known: VERSION,
            }),
            _ => Err(StoreError::Foreign {
                path: self.path.clone(),
            }),
        }
    }

    fn create(&self, birth: &[Param<'_>]) -> rusqlite::Result<()> {
        let tx = self.conn.unchecked_transaction()?;
        tx.execute_batch(include_str!("schema.sql"))?;
        tx.execute_batch(include_str!("schema_2.sql"))?;
        tx.execute(
            "INSERT INTO meta (one, instance, outbox_instance, created_at) VALUES (1, ?, ?, ?)",
            birth,
        )?;
        tx.execute_batch(&format!(
            "PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION};"
        ))?;
        tx.commit()
    }

    /// Brings a file of version 1 to this one, in one transaction.
    fn migrate(&self) -> rusqlite::Result<()> {
        let tx = self.conn.unchecked_transaction()?;
        tx.execute_batch(include_str!("schema_2.sql"))?;
        tx.execute_batch(&format!("PRAGMA user_version={VERSION};"))?;
        tx.commit()
    }

    /// Draws new instances when the file is a copy, so that nobody takes it for the one it was copied from; a file just
    /// created only learns where it was born.
    fn tell_copy(&self, birth: &[Param<'_>]) -> rusqlite::Result<()> {
        let (Some(file), [instance, outbox, ..]) = (file_id(&self.path), birth) else {
            return Ok(());
        };
        // A companion of another life: an older copy was put back into the file. Without one nothing is known.
        let told = std::fs::read_to_string(life_file(&self.path)).ok();
        let params = [*instance, *outbox, &file, &told];
        self.conn.execute(
            "UPDATE meta SET instance = ?1, outbox_instance = ?2, file = ?3
             WHERE file IS NOT ?3 OR (life IS NOT NULL AND ?4 IS NOT NULL AND ?4 IS NOT life AND ?4 IS NOT life_before)",
            params.as_slice(),
        )?;
        Ok(())
    }

    /// Begins another life of the file: the name goes into it first and then into its companion, so that a crash in
    /// between leaves the companion with the name before.
    pub(super) fn renew_life(&self) -> Result<(), StoreError> {
        let name = uuid::Uuid::new_v4().to_string();
        self.conn
            .execute("UPDATE meta SET life_before = life, life = ?", [&name])
            .map_err(|e| class(&e))?;
        write_private(&life_file(&self.path), name.as_bytes())
            .map_err(|e| StoreError::Failed(format!("the queue's companion: {e}")))
    }

    fn check_health(&self) -> Result<(), StoreError> {
        let verdict: String = self
            .conn
            .query_row("PRAGMA quick_check(1)", [], |r| r.get(0))
            .map_err(|e| opening(&self.path, &e))?;
        if verdict == "ok" {
            return Ok(());
        }
        Err(StoreError::Corrupt {
            path: self.path.clone(),
            detail: verdict,
        })
    }

    /// Begins a transaction that may write (`true`) or only reads.
    pub(super) fn begin(&self, write: bool) -> Result<(), StoreError> {
        self.batch(if write {
            "BEGIN IMMEDIATE"
        } else {
            "BEGIN DEFERRED"
        })
    }

    /// Makes everything since [`Self::begin`] durable, or nothing.
    pub(super) fn commit(&self) -> Result<(), StoreError> {
        self.batch("COMMIT").inspect_err(|_| self.rollback())
    }

    /// Undoes everything since [`Self::begin`].
    pub(super) fn rollback(&self) {
        if !self.conn.is_autocommit()
            && let Err(error) = self.batch("ROLLBACK")
        {
            tracing::error!(%error, "the queue could not roll back");
        }
    }

    /// Whether a transaction is under way; a full disk can end one by itself.
    pub(super) fn in_transaction(&self) -> bool {
        !self.conn.is_autocommit()
    }

    /// Runs the one job of a transaction; after its failure the transaction must be rolled back.
    pub(super) fn only_job<T>(
        &self,
        f: impl FnOnce(&Tx<'_>) -> Result<T, StoreError>,
    ) -> Result<(T, Effects), StoreError> {
        let tx = Tx {
            conn: &self.conn,
            effects: RefCell::default(),
        };
        let value = f(&tx)?;
        Ok((value, tx.effects.into_inner()))
    }

    /// Runs one job of a group so that its failure undoes only itself. The savepoint copies every page that the job
    /// changes.
    pub(super) fn job<T>(
        &self,
        f: impl FnOnce(&Tx<'_>) -> Result<T, StoreError>,
    ) -> Result<(T, Effects), StoreError> {
        self.batch("SAVEPOINT job")?;
        let done = self.only_job(f);
        if done.is_ok() {
            self.batch("RELEASE job")?;
        } else if self.in_transaction() {
            self.batch("ROLLBACK TO job")?;
            self.batch("RELEASE job")?;
        }
        done
    }

    /// Copies the log back into the file as far as nobody is in the way; gives the log's length and what was copied, in pages.
    pub(super) fn checkpoint(&self, truncate: bool) -> Result<(i64, i64), StoreError> {
        let mode = if truncate { "TRUNCATE" } else { "PASSIVE" };
        self.conn
            .query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |r| {
                Ok((r.get(1)?, r.get(2)?))
            })
            .map_err(|e| class(&e))
    }

    /// Runs a statement without parameters and rows.
    fn batch(&self, sql: &str) -> Result<(), StoreError> {
        let run = || self.conn.prepare_cached(sql)?.execute([]);
        run().map(drop).map_err(|e| class(&e))
    }
}

impl Tx<'_> {
    /// Runs a statement that changes rows; gives how many.
    pub(super) fn exec(&self, sql: &str, params: &[Param<'_>]) -> Result<usize, StoreError> {
        let mut statement = self.conn.prepare_cached(sql).map_err(|e| class(&e))?;
        let n = statement.execute(params).map_err(|e| class(&e))?;
        self.effects.borrow_mut().bytes += STATEMENT_BYTES;
        Ok(n)
    }

    /// The row id of the last insert.
    pub(super) fn last_id(&self) -> i64 {
        self.conn.last_insert_rowid()
    }

    /// The answer's rows, each read by `f`.
    pub(super) fn rows<T>(
        &self,
        sql: &str,
        params: &[Param<'_>],
        f: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut statement = self.conn.prepare_cached(sql).map_err(|e| class(&e))?;
        let mut rows = statement.query(params).map_err(|e| class(&e))?;
        let mut out = Vec::new();
        while let Some(row) = rows.next().map_err(|e| class(&e))? {
            out.push(f(&Row(row))?);
        }
        Ok(out)
    }

    /// The answer's first row, if it has one.
    pub(super) fn row<T>(
        &self,
        sql: &str,
        params: &[Param<'_>],
        f: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let mut statement = self.conn.prepare_cached(sql).map_err(|e| class(&e))?;
        statement
            .query_row(params, |row| Ok(f(&Row(row))))
            .optional()
            .map_err(|e| class(&e))?
            .transpose()
    }

    /// Notes that rows of the queue changed and that about `bytes` of content went to the log.
    pub(super) fn changed(&self, bytes: usize) {
        let mut effects = self.effects.borrow_mut();
        effects.changed = true;
        effects.bytes += bytes;
    }
}

impl Row<'_> {
    pub(super) fn int(&self, i: usize) -> Result<i64, StoreError> {
        self.0.get(i).map_err(|e| class(&e))
    }

    pub(super) fn opt_int(&self, i: usize) -> Result<Option<i64>, StoreError> {
        self.0.get(i).map_err(|e| class(&e))
    }

    pub(super) fn count(&self, i: usize) -> Result<u64, StoreError> {
        Ok(u64::try_from(self.int(i)?).unwrap_or(0))
    }

    pub(super) fn text(&self, i: usize) -> Result<String, StoreError> {
        self.0.get(i).map_err(|e| class(&e))
    }

    pub(super) fn opt_text(&self, i: usize) -> Result<Option<String>, StoreError> {
        self.0.get(i).map_err(|e| class(&e))
    }

    /// A column whose text is a checked name or id.
    pub(super) fn name<T: FromStr>(&self, i: usize) -> Result<T, StoreError> {
        let text = self.text(i)?;
        text.parse().map_err(|_| unreadable(i, &text))
    }

    pub(super) fn opt_name<T: FromStr>(&self, i: usize) -> Result<Option<T>, StoreError> {
        let Some(text) = self.opt_text(i)? else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| unreadable(i, &text))
    }

    /// A column that holds JSON.
    pub(super) fn json<T: DeserializeOwned>(&self, i: usize) -> Result<T, StoreError> {
        let text = self.text(i)?;
        serde_json::from_str(&text).map_err(|_| unreadable(i, &text))
    }

    /// A column that holds one of a type's words.
    pub(super) fn word<T: DeserializeOwned>(&self, i: usize) -> Result<T, StoreError> {
        let text = self.text(i)?;
        super::codec::from_word(&text).ok_or_else(|| unreadable(i, &text))
    }
}

fn unreadable(column: usize, text: &str) -> StoreError {
    let start: String = text.chars().take(40).collect();
    StoreError::Failed(format!("column {column} cannot be read: `{start}`"))
}

/// What tells a file from its copies; `None` where the system has nothing of the kind.
fn file_id(path: &Path) -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(path).ok().map(|m| m.ino().to_string())
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// The file beside the queue that holds the name of its present life.
fn life_file(path: &Path) -> PathBuf {
    path.with_extension("life")
}

/// Creates the file for this user alone, if it is not there.
fn create_private(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

fn opening(path: &Path, e: &rusqlite::Error) -> StoreError {
    match e.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => StoreError::Corrupt {
            path: path.to_owned(),
            detail: e.to_string(),
        },
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => StoreError::Open {
            path: path.to_owned(),
            detail: e.to_string(),
        },
        _ => class(e),
    }
}

fn class(e: &rusqlite::Error) -> StoreError {
    match e.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
        Some(ErrorCode::DiskFull) => StoreError::DiskFull,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            StoreError::ReadOnly(e.to_string())
        }
        _ => StoreError::Failed(e.to_string()),
    }
}
