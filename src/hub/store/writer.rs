//! The one thread that writes: group commit, a savepoint per batch, rows handed on right after the commit.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};

use tokio::sync::oneshot;
use uuid::Uuid;

use super::feeds::{Feeds, Pushed};
use super::log::{LogId, LogPosition, Noted, SLACK, Watchers};
use super::schema::{
    Connection, OptionalExtension, Scalars, SqlError, SqlResult, int, log_scalars, map, params,
    scalars, seq_of,
};
use super::{Caps, Done, Expect, MailboxId, Op, StoreError};
use crate::core::server::Row;
use crate::domain::{InstanceId, Seq};

/// Batches in one transaction.
const GROUP: usize = 512;
/// Bytes written after which a checkpoint is asked for.
const CHECKPOINT_EVERY: u64 = 4 << 20;
/// Size of the log at which the writer checkpoints itself.
const WAL_BOUND: u64 = 64 << 20;

/// A batch and where its outcome goes.
pub(super) struct Request {
    pub(super) ops: Vec<Op>,
    pub(super) reply: oneshot::Sender<Result<Vec<Done>, StoreError>>,
}

/// Folds the log into the file whenever it is asked to, on a connection and thread of its own.
pub(super) fn checkpoint_loop(conn: &Connection, asked: &Receiver<()>) {
    while asked.recv().is_ok() {
        // A reader or a busy writer may cut it short; the next one goes on.
        if let Err(e) = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            tracing::warn!(error = %e, "the store's checkpoint failed; it is tried again");
        }
    }
}

pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) wal: PathBuf,
    pub(super) caps: Caps,
    pub(super) feeds: Feeds,
    pub(super) watchers: Watchers,
    pub(super) ask: SyncSender<()>,
    pub(super) written: u64,
    /// Long readers that are at work.
    pub(super) snapshots: Arc<AtomicUsize>,
}

/// What is handed on after the commit.
#[derive(Default)]
struct Pushes {
    rows: Vec<(MailboxId, Pushed)>,
    events: Vec<(LogId, Noted)>,
}

type Answer = (
    oneshot::Sender<Result<Vec<Done>, StoreError>>,
    Result<Vec<Done>, StoreError>,
);

impl Writer {
    pub(super) fn run(mut self, requests: &Receiver<Request>) {
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
        let mut pushes = Pushes::default();
        let mut answers: Vec<Answer> = Vec::with_capacity(group.len());
        let alone = group.len() == 1;
        let mut failed = self.run_sql("BEGIN IMMEDIATE").err();
        for Request { ops, reply } in group {
            let result = match &failed {
                Some(e) => Err(e.clone()),
                None if alone => self.all(ops, &mut pushes),
                None => self.one(ops, &mut pushes),
            };
            // A full disk may have ended the whole transaction: then nobody's batch was kept.
            if let Err(e) = &result
                && failed.is_none()
                && self.conn.is_autocommit()
            {
                failed = Some(e.clone());
            }
            answers.push((reply, result));
        }
        if failed.is_none() {
            let kept = answers.iter().any(|(_, result)| result.is_ok());
            failed = self.run_sql(if kept { "COMMIT" } else { "ROLLBACK" }).err();
        }
        if let Some(e) = &failed {
            if !self.conn.is_autocommit()
                && let Err(e) = self.run_sql("ROLLBACK")
            {
                tracing::error!(error = %e, "the store cannot roll back; the next batch tells");
            }
            tracing::warn!(error = %e, "the store could not commit");
            pushes = Pushes::default();
        }
        for (mailbox, pushed) in &pushes.rows {
            self.feeds.publish(mailbox, pushed);
        }
        for (log, noted) in pushes.events {
            self.watchers.publish(&log, noted);
        }
        for (reply, result) in answers {
            let result = match (&failed, result) {
                (Some(e), Ok(_)) => Err(e.clone()),
                (_, result) => result,
            };
            // A caller that went away repeats with the same ids.
            drop(reply.send(result));
        }
    }

    /// Runs a statement without parameters and rows.
    fn run_sql(&self, sql: &str) -> Result<(), StoreError> {
        self.sql(|c| c.prepare_cached(sql)?.execute([])).map(drop)
    }

    /// One batch of a group, so that its failure undoes only itself. The savepoint copies every page that the batch
    /// changes: a batch that is alone in its transaction does without.
    fn one(&mut self, ops: Vec<Op>, pushes: &mut Pushes) -> Result<Vec<Done>, StoreError> {
        self.run_sql("SAVEPOINT batch")?;
        let done = self.all(ops, pushes);
        if done.is_ok() {
            self.run_sql("RELEASE batch")?;
        } else {
            // Fails only if the transaction is gone, which the caller looks at.
            drop(
                self.run_sql("ROLLBACK TO batch")
                    .and_then(|()| self.run_sql("RELEASE batch")),
            );
        }
        done
    }

    /// The steps of a batch; after a failure, what was done before it stands until it is rolled back.
    fn all(&mut self, ops: Vec<Op>, pushes: &mut Pushes) -> Result<Vec<Done>, StoreError> {
        let kept = (pushes.rows.len(), pushes.events.len());
        let done: Result<_, _> = ops.into_iter().map(|op| self.apply(op, pushes)).collect();
        if done.is_err() {
            pushes.rows.truncate(kept.0);
            pushes.events.truncate(kept.1);
        }
        done
    }

    fn apply(&mut self, op: Op, pushes: &mut Pushes) -> Result<Done, StoreError> {
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
                pushes.rows.push((mailbox, Pushed { prev, row }));
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
            Op::Note {
                log,
                about,
                at,
                json,
            } => {
                self.written += json.len() as u64;
                let (n, end) = self.log(&log)?;
                let seq = Seq(end.head.0 + 1);
                self.sql(|c| {
                    c.prepare_cached(
                        "INSERT INTO events (log, seq, about, at, json) VALUES (?1, ?2, ?3, ?4, ?5)",
                    )?
                    .execute(params![n, int(seq.0), about.0.as_bytes(), at.0, &*json])
                })?;
                if seq.0.is_multiple_of(SLACK) {
                    self.trim(n, Seq(seq.0.saturating_sub(self.caps.events)))?;
                }
                let noted = Noted {
                    seq,
                    about,
                    at,
                    json,
                };
                pushes.events.push((log, noted));
                Ok(Done::Noted { seq })
            }
            Op::Trim { log, seq } => {
                let (n, end) = self.log(&log)?;
                self.trim(n, seq.min(Seq(end.head.0.saturating_sub(1))))?;
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

    fn sql<T>(&self, f: impl FnOnce(&Connection) -> SqlResult<T>) -> Result<T, StoreError> {
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
            scalars(c, id)?.ok_or(SqlError::QueryReturnedNoRows)
        })
    }

    fn log(&self, id: &LogId) -> Result<(i64, LogPosition), StoreError> {
        self.sql(|c| {
            if let Some(found) = log_scalars(c, id)? {
                return Ok(found);
            }
            c.prepare_cached("INSERT INTO logs (name, epoch) VALUES (?1, ?2)")?
                .execute(params![id.as_str(), Uuid::new_v4().as_bytes()])?;
            log_scalars(c, id)?.ok_or(SqlError::QueryReturnedNoRows)
        })
    }

    fn trim(&self, log: i64, up_to: Seq) -> Result<(), StoreError> {
        self.sql(|c| {
            c.prepare_cached("DELETE FROM events WHERE log = ?1 AND seq <= ?2")?
                .execute(params![log, int(up_to.0)])
                .map(drop)
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
        // Behind a long reader the log cannot begin anew, and to wait for it would stall every commit.
        let free = self.snapshots.load(Ordering::SeqCst) == 0;
        if size > WAL_BOUND && free {
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
