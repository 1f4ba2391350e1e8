//! The embedded store: SQLite in WAL mode with `synchronous=FULL`.
//!
//! One thread owns the connection that writes. It takes every batch that waits into one transaction, each under a
//! savepoint of its own, so that one commit and one fsync serve all of them and a bad batch fails alone; right after
//! the commit it hands the new rows to their subscribers and then answers the callers. Checkpoints run on another
//! thread and connection, because inside the commit path they would stall it; should they fall behind, the writer
//! makes one itself when the log reaches [`WAL_BOUND`]. Reads use a few read-only connections.
//!
//! Nothing is answered `Ok` that is not stored: a disk that is full or a lock that is held fails the batch with its
//! own error, and the next batch is tried afresh.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row as SqlRow, params};
use tokio::sync::{Semaphore, oneshot};
use uuid::Uuid;

use super::feeds::{Feed, Feeds, Pushed};
use super::{
    Caps, Commit, Done, Due, Expect, Mailbox, MailboxId, Op, Position, Records, Rows, StoreError,
    Stored,
};
use crate::core::server::Row;
use crate::domain::{EnvelopeId, InstanceId, Seq, WallMs, limits::FINISHED_KEPT_MS};

/// `RCHB`: says in the file's header whose it is.
const APPLICATION_ID: i32 = 0x5243_4842;
/// Forward-only steps; `user_version` counts those that were taken.
const MIGRATIONS: &[&str] = &[include_str!("schema.sql")];
/// Batches that may wait for the writer.
const QUEUE: usize = 4096;
/// Batches in one transaction.
const GROUP: usize = 512;
/// How long another process's lock is waited for.
const BUSY: Duration = Duration::from_secs(5);
/// Bytes written after which a checkpoint is asked for.
const CHECKPOINT_EVERY: u64 = 4 << 20;
/// Size of the log at which the writer checkpoints itself.
const WAL_BOUND: u64 = 64 << 20;
const READERS: usize = 2;

/// See the module.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    requests: Mutex<Option<SyncSender<Request>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    readers: Mutex<Vec<Connection>>,
    permits: Semaphore,
    feeds: Feeds,
}

struct Request {
    ops: Vec<Op>,
    reply: oneshot::Sender<Result<Vec<Done>, StoreError>>,
}

impl SqliteStore {
    /// Opens the store in this file, which is made with mode 0600 when it is missing.
    ///
    /// # Errors
    /// When the file cannot be used, is not a store of ours, or is of a later version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, Caps::default())
    }

    /// As [`Self::open`], with other limits per mailbox.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(path: &Path, caps: Caps) -> Result<Self, StoreError> {
        touch_private(path)?;
        let conn = Connection::open(path).map_err(|e| at(path, &e))?;
        prepare(&conn, path)?;
        let readers = (0..READERS)
            .map(|_| open_reader(path))
            .collect::<Result<Vec<_>, _>>()?;
        let feeds = Feeds::default();
        let (tx, rx) = sync_channel(QUEUE);
        let (ask, asked) = sync_channel(1);
        let checkpoints = open_plain(path)?;
        let spawn = |name: &str, f: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(f)
                .map_err(|e| StoreError::Io(e.to_string()))
        };
        spawn(
            "hub-checkpoint",
            Box::new(move || checkpoint_loop(&checkpoints, &asked)),
        )?;
        let writer = Writer {
            conn,
            wal: wal_of(path),
            caps,
            feeds: feeds.clone(),
            ask,
            written: 0,
        };
        let writer = spawn("hub-writer", Box::new(move || writer.run(&rx)))?;
        Ok(Self {
            inner: Arc::new(Inner {
                requests: Mutex::new(Some(tx)),
                writer: Mutex::new(Some(writer)),
                readers: Mutex::new(readers),
                permits: Semaphore::new(READERS),
                feeds,
            }),
        })
    }

    /// Finishes the batches that wait, then closes the file.
    pub async fn close(&self) {
        drop(
            self.inner
                .requests
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        self.inner.permits.close();
        let writer = self
            .inner
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(writer) = writer {
            // A writer that panicked has nothing left to finish.
            drop(tokio::task::spawn_blocking(move || writer.join()).await);
        }
        self.inner
            .readers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    async fn read<T, F>(&self, f: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let permit = self
            .inner
            .permits
            .acquire()
            .await
            .map_err(|_| StoreError::Closed)?;
        let inner = Arc::clone(&self.inner);
        let result = tokio::task::spawn_blocking(move || {
            let take = || {
                inner
                    .readers
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .pop()
            };
            let conn = take().ok_or(StoreError::Closed)?;
            let result = f(&conn).map_err(|e| map(&e));
            inner
                .readers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(conn);
            result
        })
        .await
        .map_err(|e| StoreError::Io(e.to_string()))?;
        drop(permit);
        result
    }
}

fn touch_private(path: &Path) -> Result<(), StoreError> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(path)
        .map(drop)
        .map_err(|e| StoreError::Io(format!("{}: {e}", path.display())))
}

fn at(path: &Path, e: &rusqlite::Error) -> StoreError {
    match map(e) {
        StoreError::Io(text) => StoreError::Io(format!("{}: {text}", path.display())),
        other => other,
    }
}

fn map(e: &rusqlite::Error) -> StoreError {
    match e.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::DiskFull,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
        Some(ErrorCode::NotADatabase) => {
            StoreError::Foreign("the store's file is not a database".to_owned())
        }
        _ => StoreError::Io(e.to_string()),
    }
}

fn open_plain(path: &Path) -> Result<Connection, StoreError> {
    let conn = Connection::open(path).map_err(|e| at(path, &e))?;
    conn.busy_timeout(BUSY).map_err(|e| at(path, &e))?;
    Ok(conn)
}

fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(|e| at(path, &e))?;
    conn.busy_timeout(BUSY).map_err(|e| at(path, &e))?;
    Ok(conn)
}

fn wal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

fn prepare(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let err = |e: rusqlite::Error| at(path, &e);
    conn.busy_timeout(BUSY).map_err(err)?;
    conn.execute_batch(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA wal_autocheckpoint=0;",
    )
    .map_err(err)?;
    let get = |name: &str| conn.query_row(&format!("PRAGMA {name}"), [], |r| r.get::<_, i32>(0));
    let (application, version) = (get("application_id"), get("user_version"));
    let (application, version) = (application.map_err(err)?, version.map_err(err)?);
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0))
        .map_err(err)?;
    let ours = application == APPLICATION_ID || (application == 0 && version == 0 && tables == 0);
    if !ours {
        return Err(StoreError::Foreign(format!(
            "{} is a database of another program",
            path.display()
        )));
    }
    let taken = usize::try_from(version).unwrap_or(usize::MAX);
    if taken > MIGRATIONS.len() {
        return Err(StoreError::Foreign(format!(
            "{} was written by a later version (store {taken}, this program knows {}): run that version",
            path.display(),
            MIGRATIONS.len()
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

fn checkpoint_loop(conn: &Connection, asked: &Receiver<()>) {
    while asked.recv().is_ok() {
        // A reader or a busy writer may cut it short; the next one goes on.
        if let Err(e) = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            tracing::warn!(error = %e, "the store's checkpoint failed; it is tried again");
        }
    }
}

struct Writer {
    conn: Connection,
    wal: PathBuf,
    caps: Caps,
    feeds: Feeds,
    ask: SyncSender<()>,
    written: u64,
}

type Answer = (
    oneshot::Sender<Result<Vec<Done>, StoreError>>,
    Result<Vec<Done>, StoreError>,
);

impl Writer {
    fn run(mut self, requests: &Receiver<Request>) {
        while let Ok(first) = requests.recv() {
            let mut group = vec![first];
            while group.len() < GROUP
                && let Ok(next) = requests.try_recv()
            {
                group.push(next);
            }
            self.group(group);
            self.checkpoint_if_due();
        }
        // The last connection to close makes the final checkpoint.
    }

    fn group(&mut self, group: Vec<Request>) {
        let mut pushes = Vec::new();
        let mut answers: Vec<Answer> = Vec::with_capacity(group.len());
        let mut failed = self.conn.execute_batch("BEGIN IMMEDIATE").err();
        for Request { ops, reply } in group {
            let result = match &failed {
                Some(e) => Err(map(e)),
                None => self.one(ops, &mut pushes),
            };
            // A full disk may have ended the whole transaction: then nobody's batch was kept.
            if result.is_err() && failed.is_none() && self.conn.is_autocommit() {
                failed = Some(rusqlite::Error::SqliteFailure(
                    rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL),
                    None,
                ));
            }
            answers.push((reply, result));
        }
        if failed.is_none()
            && let Err(e) = self.conn.execute_batch("COMMIT")
        {
            failed = Some(e);
        }
        if let Some(e) = &failed {
            if !self.conn.is_autocommit() {
                // Nothing else can be done if this fails, and the next BEGIN tells.
                drop(self.conn.execute_batch("ROLLBACK"));
            }
            tracing::warn!(error = %e, "the store could not commit");
            pushes.clear();
        }
        for (mailbox, pushed) in &pushes {
            self.feeds.publish(mailbox, pushed);
        }
        for (reply, result) in answers {
            let result = match (&failed, result) {
                (Some(e), Ok(_)) => Err(map(e)),
                (_, result) => result,
            };
            // A caller that went away repeats with the same ids.
            drop(reply.send(result));
        }
    }

    fn one(
        &mut self,
        ops: Vec<Op>,
        pushes: &mut Vec<(MailboxId, Pushed)>,
    ) -> Result<Vec<Done>, StoreError> {
        let kept = pushes.len();
        self.conn
            .execute_batch("SAVEPOINT batch")
            .map_err(|e| map(&e))?;
        let mut done = Vec::with_capacity(ops.len());
        for op in ops {
            match self.apply(op, pushes) {
                Ok(d) => done.push(d),
                Err(e) => {
                    pushes.truncate(kept);
                    // Fails only if the transaction is gone, which the caller looks at.
                    drop(self.conn.execute_batch("ROLLBACK TO batch; RELEASE batch"));
                    return Err(e);
                }
            }
        }
        self.conn
            .execute_batch("RELEASE batch")
            .map_err(|e| map(&e))?;
        Ok(done)
    }

    fn apply(&mut self, op: Op, pushes: &mut Vec<(MailboxId, Pushed)>) -> Result<Done, StoreError> {
        self.written += 256;
        match op {
            Op::Append {
                mailbox,
                id,
                json,
                expires_at,
            } => {
                self.written += json.len() as u64;
                let (n, b) = self.mailbox(&mailbox)?;
                let known: Option<i64> = self.sql(|c| {
                    c.prepare_cached("SELECT seq FROM envelopes WHERE mailbox = ?1 AND id = ?2")?
                        .query_row(params![n, id.0.as_bytes()], |r| r.get(0))
                        .optional()
                })?;
                if let Some(seq) = known {
                    return Ok(Done::Appended {
                        seq: seq_of(seq),
                        duplicate: true,
                    });
                }
                let size = json.len() as u64;
                if b.count >= self.caps.envelopes || b.bytes + size > self.caps.bytes {
                    return Err(StoreError::MailboxFull);
                }
                let seq = b.at.head.0 + 1;
                self.sql(|c| {
                    c.prepare_cached(
                        "INSERT INTO envelopes (mailbox, seq, id, expires_at, json) VALUES (?1, ?2, ?3, ?4, ?5)",
                    )?
                    .execute(params![n, int(seq), id.0.as_bytes(), expires_at.0, &*json])?;
                    c.prepare_cached(
                        "UPDATE mailboxes SET head = ?2, count = count + 1, bytes = bytes + ?3 WHERE id = ?1",
                    )?
                    .execute(params![n, int(seq), int(size)])
                })?;
                let seq = Seq(seq);
                let row = Row { seq, json };
                let prev = b.at.head;
                pushes.push((mailbox, Pushed { prev, row }));
                Ok(Done::Appended {
                    seq,
                    duplicate: false,
                })
            }
            Op::Ack { mailbox, seq } => {
                let (n, b) = self.mailbox(&mailbox)?;
                let from = b.at.acked;
                let to = seq.min(b.at.head).max(from);
                if to > from {
                    self.update(n, "acked = ?2", int(to.0))?;
                }
                Ok(Done::Acked { from, to })
            }
            Op::Raise { mailbox } => {
                let (n, mut b) = self.mailbox(&mailbox)?;
                b.at.generation += 1;
                self.update(n, "generation = ?2", int(b.at.generation))?;
                Ok(Done::At(b.at))
            }
            Op::Fence {
                mailbox,
                generation,
            } => {
                let (_, b) = self.mailbox(&mailbox)?;
                if b.at.generation == generation {
                    Ok(Done::Nothing)
                } else {
                    Err(StoreError::Fenced)
                }
            }
            Op::Renew { mailbox } => {
                let (n, mut b) = self.mailbox(&mailbox)?;
                b.at.epoch = InstanceId(Uuid::new_v4());
                b.at.acked = Seq(0);
                self.sql(|c| {
                    c.prepare_cached("UPDATE mailboxes SET epoch = ?2, acked = 0 WHERE id = ?1")?
                        .execute(params![n, b.at.epoch.0.as_bytes()])
                })?;
                Ok(Done::At(b.at))
            }
            Op::Retire { mailbox, id } => {
                let (n, _) = self.mailbox(&mailbox)?;
                self.sql(|c| {
                    let size: Option<i64> = c
                        .prepare_cached(
                            "SELECT octet_length(json) FROM envelopes WHERE mailbox = ?1 AND id = ?2 AND json IS NOT NULL",
                        )?
                        .query_row(params![n, id.0.as_bytes()], |r| r.get(0))
                        .optional()?;
                    if let Some(size) = size {
                        c.prepare_cached("UPDATE envelopes SET json = NULL WHERE mailbox = ?1 AND id = ?2")?
                            .execute(params![n, id.0.as_bytes()])?;
                        c.prepare_cached(
                            "UPDATE mailboxes SET count = count - 1, bytes = bytes - ?2 WHERE id = ?1",
                        )?
                        .execute(params![n, size])?;
                    }
                    Ok(())
                })?;
                Ok(Done::Nothing)
            }
            Op::Forget { mailbox, id } => {
                let (n, _) = self.mailbox(&mailbox)?;
                self.sql(|c| {
                    c.prepare_cached(
                        "DELETE FROM envelopes WHERE mailbox = ?1 AND id = ?2 AND json IS NULL",
                    )?
                    .execute(params![n, id.0.as_bytes()])
                })?;
                Ok(Done::Nothing)
            }
            Op::Put {
                key,
                value,
                expect,
                keep_until,
            } => {
                self.written += value.len() as u64;
                let version = self.expected(&key, expect)?.unwrap_or(0) + 1;
                self.sql(|c| {
                    c.prepare_cached(
                        "INSERT INTO records (key, value, version, keep_until) VALUES (?1, ?2, ?3, ?4)
                         ON CONFLICT (key) DO UPDATE SET value = ?2, version = ?3, keep_until = ?4",
                    )?
                    .execute(params![key, value, int(version), keep_until.map(|t| t.0)])
                })?;
                Ok(Done::Put { version })
            }
            Op::Delete { key, expect } => {
                if self.expected(&key, expect)?.is_some() {
                    self.sql(|c| {
                        c.prepare_cached("DELETE FROM records WHERE key = ?1")?
                            .execute(params![key])
                    })?;
                }
                Ok(Done::Nothing)
            }
        }
    }

    fn sql<T>(&self, f: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        f(&self.conn).map_err(|e| map(&e))
    }

    fn update(&self, n: i64, set: &str, value: i64) -> Result<(), StoreError> {
        self.sql(|c| {
            c.prepare_cached(&format!("UPDATE mailboxes SET {set} WHERE id = ?1"))?
                .execute(params![n, value])
                .map(drop)
        })
    }

    fn mailbox(&self, id: &MailboxId) -> Result<(i64, Scalars), StoreError> {
        self.sql(|c| {
            if let Some(found) = scalars(c, id)? {
                return Ok(found);
            }
            c.prepare_cached("INSERT INTO mailboxes (name, epoch) VALUES (?1, ?2)")?
                .execute(params![id.as_str(), Uuid::new_v4().as_bytes()])?;
            scalars(c, id)?.ok_or(rusqlite::Error::QueryReturnedNoRows)
        })
    }

    fn expected(&self, key: &str, expect: Expect) -> Result<Option<u64>, StoreError> {
        let version = self.sql(|c| {
            c.prepare_cached("SELECT version FROM records WHERE key = ?1")?
                .query_row(params![key], |r| r.get::<_, i64>(0))
                .optional()
        })?;
        let version = version.map(|v| v.unsigned_abs());
        let holds = match expect {
            Expect::Any => true,
            Expect::Absent => version.is_none(),
            Expect::Version(v) => version == Some(v),
        };
        if holds {
            Ok(version)
        } else {
            Err(StoreError::Conflict {
                key: key.to_owned(),
            })
        }
    }

    fn checkpoint_if_due(&mut self) {
        if self.written < CHECKPOINT_EVERY {
            return;
        }
        self.written = 0;
        let size = std::fs::metadata(&self.wal).map_or(0, |m| m.len());
        if size > WAL_BOUND {
            // RESTART and not TRUNCATE: overwriting a log is cheaper than growing one.
            if let Err(e) = self
                .conn
                .query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))
            {
                tracing::warn!(error = %e, "the store's log cannot be folded in; it grows");
            }
        } else if let Err(TrySendError::Disconnected(())) = self.ask.try_send(()) {
            tracing::warn!("the store's checkpoint thread is gone");
        }
    }
}

struct Scalars {
    at: Position,
    count: u64,
    bytes: u64,
}

fn scalars(c: &Connection, id: &MailboxId) -> rusqlite::Result<Option<(i64, Scalars)>> {
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
fn int(v: u64) -> i64 {
    i64::try_from(v).unwrap_or(i64::MAX)
}

fn nat(v: i64) -> u64 {
    u64::try_from(v).unwrap_or(0)
}

fn seq_of(v: i64) -> Seq {
    Seq(nat(v))
}

fn envelope_id(r: &SqlRow<'_>, i: usize) -> rusqlite::Result<EnvelopeId> {
    r.get(i).map(|b| EnvelopeId(Uuid::from_bytes(b)))
}

fn stored(r: &SqlRow<'_>) -> rusqlite::Result<Stored> {
    Ok(Stored {
        key: r.get(0)?,
        value: r.get(1)?,
        version: nat(r.get(2)?),
        keep_until: r.get::<_, Option<i64>>(3)?.map(WallMs),
    })
}

impl Commit for SqliteStore {
    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Done>, StoreError> {
        let (reply, answer) = oneshot::channel();
        {
            let requests = self
                .inner
                .requests
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let requests = requests.as_ref().ok_or(StoreError::Closed)?;
            requests
                .try_send(Request { ops, reply })
                .map_err(|e| match e {
                    TrySendError::Full(_) => StoreError::Busy,
                    TrySendError::Disconnected(_) => StoreError::Closed,
                })?;
        }
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

impl Mailbox for SqliteStore {
    async fn read_after(
        &self,
        mailbox: &MailboxId,
        after: Seq,
        limit: u32,
        max_bytes: u64,
    ) -> Result<Rows, StoreError> {
        let name = mailbox.clone();
        self.read(move |c| {
            let mut q = c.prepare_cached(
                "SELECT e.seq, e.json FROM envelopes e JOIN mailboxes m ON m.id = e.mailbox
                 WHERE m.name = ?1 AND e.seq > ?2 AND e.json IS NOT NULL ORDER BY e.seq",
            )?;
            let mut found = q.query(params![name.as_str(), int(after.0)])?;
            let (mut out, mut bytes) = (Rows::default(), 0);
            while let Some(r) = found.next()? {
                let json: Arc<str> = r.get_ref(1)?.as_str()?.into();
                bytes += json.len() as u64;
                let full = out.rows.len() >= limit as usize || bytes > max_bytes;
                if full && !out.rows.is_empty() {
                    out.more = true;
                    break;
                }
                let seq = seq_of(r.get(0)?);
                out.rows.push(Row { seq, json });
            }
            Ok(out)
        })
        .await
    }

    async fn ids_between(
        &self,
        mailbox: &MailboxId,
        from: Seq,
        to: Seq,
    ) -> Result<Vec<EnvelopeId>, StoreError> {
        let name = mailbox.clone();
        self.read(move |c| {
            c.prepare_cached(
                "SELECT e.id FROM envelopes e JOIN mailboxes m ON m.id = e.mailbox
                 WHERE m.name = ?1 AND e.seq > ?2 AND e.seq <= ?3 ORDER BY e.seq",
            )?
            .query_map(params![name.as_str(), int(from.0), int(to.0)], |r| {
                envelope_id(r, 0)
            })?
            .collect()
        })
        .await
    }

    async fn position(&self, mailbox: &MailboxId) -> Result<Option<Position>, StoreError> {
        let name = mailbox.clone();
        self.read(move |c| Ok(scalars(c, &name)?.map(|(_, s)| s.at)))
            .await
    }

    fn subscribe(&self, mailbox: &MailboxId) -> Feed {
        self.inner.feeds.subscribe(mailbox)
    }

    async fn due(&self, now: WallMs, limit: u32) -> Result<Vec<Due>, StoreError> {
        self.read(move |c| {
            c.prepare_cached(
                "SELECT m.name, e.id, e.seq <= m.acked FROM envelopes e JOIN mailboxes m ON m.id = e.mailbox
                 WHERE e.json IS NOT NULL AND e.expires_at <= ?1 ORDER BY e.expires_at LIMIT ?2",
            )?
            .query_map(params![now.0, limit], |r| {
                Ok(Due {
                    mailbox: MailboxId::from_stored(r.get_ref(0)?.as_str()?),
                    id: envelope_id(r, 1)?,
                    acked: r.get(2)?,
                })
            })?
            .collect()
        })
        .await
    }

    async fn retain(&self, now: WallMs, limit: u32) -> Result<usize, StoreError> {
        // Found on a reading connection, deleted by the writer: a bounded batch of small steps.
        let keys: Vec<String> = self
            .read(move |c| {
                c.prepare_cached("SELECT key FROM records WHERE keep_until <= ?1 LIMIT ?2")?
                    .query_map(params![now.0, limit], |r| r.get(0))?
                    .collect()
            })
            .await?;
        let n = keys.len();
        if n > 0 {
            let ops = keys
                .into_iter()
                .map(|key| Op::Delete {
                    key,
                    expect: Expect::Any,
                })
                .collect();
            self.commit(ops).await?;
        }
        let left = usize::try_from(limit).unwrap_or(0).saturating_sub(n);
        Ok(n + self.forget(now.plus(-FINISHED_KEPT_MS), left).await?)
    }
}

impl SqliteStore {
    async fn forget(&self, before: WallMs, limit: usize) -> Result<usize, StoreError> {
        let ids: Vec<(String, EnvelopeId)> = self
            .read(move |c| {
                c.prepare_cached(
                    "SELECT m.name, e.id FROM envelopes e JOIN mailboxes m ON m.id = e.mailbox
                     WHERE e.json IS NULL AND e.expires_at <= ?1 LIMIT ?2",
                )?
                .query_map(params![before.0, int(limit as u64)], |r| {
                    Ok((r.get(0)?, envelope_id(r, 1)?))
                })?
                .collect()
            })
            .await?;
        let n = ids.len();
        if n > 0 {
            let ops = ids
                .into_iter()
                .map(|(mailbox, id)| Op::Forget {
                    mailbox: MailboxId::from_stored(&mailbox),
                    id,
                })
                .collect();
            self.commit(ops).await?;
        }
        Ok(n)
    }
}

impl Records for SqliteStore {
    async fn get_many(&self, keys: Vec<String>) -> Result<Vec<Stored>, StoreError> {
        self.read(move |c| {
            let mut q = c.prepare_cached(
                "SELECT key, value, version, keep_until FROM records WHERE key = ?1",
            )?;
            let mut out = Vec::with_capacity(keys.len());
            for key in &keys {
                out.extend(q.query_row(params![key], stored).optional()?);
            }
            Ok(out)
        })
        .await
    }

    async fn list(
        &self,
        prefix: &str,
        from: Option<String>,
        limit: u32,
        newest_first: bool,
    ) -> Result<Vec<Stored>, StoreError> {
        let low = prefix.to_owned();
        let high = format!("{prefix}\u{10ffff}");
        self.read(move |c| {
            let sql = if newest_first {
                "SELECT key, value, version, keep_until FROM records
                 WHERE key >= ?1 AND key < ?2 ORDER BY key DESC LIMIT ?3"
            } else {
                "SELECT key, value, version, keep_until FROM records
                 WHERE key > ?1 AND key < ?2 ORDER BY key LIMIT ?3"
            };
            let (low, high) = match (newest_first, from) {
                (true, Some(from)) => (low, from),
                (false, Some(from)) => (from, high),
                (_, None) => (low, high),
            };
            c.prepare_cached(sql)?
                .query_map(params![low, high, limit], stored)?
                .collect()
        })
        .await
    }
}
