//! The embedded store: SQLite in WAL mode with `synchronous=FULL`.
//!
//! One thread owns the connection that writes. It takes every batch that waits into one transaction, each under a
//! savepoint of its own, so that one commit and one fsync serve all of them and a bad batch fails alone; right after
//! the commit it hands the new rows to their subscribers and then answers the callers. Checkpoints run on another
//! thread and connection, because inside the commit path they would stall it; should they fall behind, the writer
//! makes one itself when the log reaches 64 MiB. Reads use a few read-only connections.
//!
//! Nothing is answered `Ok` that is not stored: a disk that is full or a lock that is held fails the batch with its
//! own error, and the next batch is tried afresh.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Semaphore, broadcast, oneshot};
use tokio::time::timeout;

use super::feeds::{Feed, Feeds};
use super::log::Watchers;
use super::schema::{
    Connection, OptionalExtension, SqlResult, at, envelope_id, int, log_scalars, map, noted,
    open_plain, open_reader, params, prepare, scalars, seq_of, stored, touch_private, wal_of,
};
use super::writer::{Request, Writer, checkpoint_loop};
use super::{
    Caps, Commit, Done, Due, Expect, Log, LogId, LogPosition, Mailbox, MailboxId, Noted, NotedPage,
    Op, Position, Records, Rows, StoreError, Stored, backup, life,
};
use crate::core::server::Row;
use crate::domain::{
    EnvelopeId, Seq, WallMs,
    limits::{EVENTS_KEPT_MS, FINISHED_KEPT_MS},
};

/// Batches that may wait for the writer.
const QUEUE: usize = 4096;
const READERS: usize = 2;
/// How long the reads under way may take at the store's end.
const READS_END: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    requests: Mutex<Option<SyncSender<Request>>>,
    /// The writer, and the checkpoints, which end after it.
    threads: Mutex<Vec<JoinHandle<()>>>,
    readers: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
    feeds: Feeds,
    watchers: Watchers,
    path: PathBuf,
    /// Long readers that are at work: the writer does not wait for them.
    snapshots: Arc<AtomicUsize>,
}

/// Counts a long reader until it is dropped.
struct Held(Arc<AtomicUsize>);

impl Held {
    fn of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
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
        Self::open_prepared(path, caps, |_| Ok(()))
    }

    /// As [`Self::open`], in a new life if the store is not the one that `mark` stands for; see [`super::life`]. Tells
    /// whether a new life began.
    ///
    /// # Errors
    /// As [`Self::open`], or when the mark cannot be read or written.
    pub(crate) fn open_marked(path: &Path, mark: &Path) -> Result<(Self, bool), StoreError> {
        let mut begun = Ok(false);
        let store = Self::open_prepared(path, Caps::default(), |c| {
            begun = life::begin(c, mark);
            Ok(())
        })?;
        Ok((store, begun?))
    }

    /// Writes a backup into the empty file `into`; the writer goes on meanwhile.
    pub(crate) async fn backup(
        &self,
        into: &Path,
        keys: impl FnOnce() -> Vec<backup::KeyFile> + Send + 'static,
        now: WallMs,
    ) -> Result<backup::Contents, StoreError> {
        let (inner, into) = (Arc::clone(&self.inner), into.to_owned());
        let work = move || {
            let _held = Held::of(&inner.snapshots);
            backup::copy(&inner.path, &into)?;
            // After the copy: every token in it was signed by one of these.
            backup::seal(&into, &keys(), now)
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|e| StoreError::Io(e.to_string()))?
    }

    fn open_prepared(
        path: &Path,
        caps: Caps,
        then: impl FnOnce(&Connection) -> SqlResult<()>,
    ) -> Result<Self, StoreError> {
        touch_private(path)?;
        let conn = Connection::open(path).map_err(|e| at(path, &e))?;
        prepare(&conn, path)?;
        then(&conn).map_err(|e| at(path, &e))?;
        let readers = (0..READERS)
            .map(|_| open_reader(path))
            .collect::<Result<Vec<_>, _>>()?;
        let (feeds, watchers) = (Feeds::default(), Watchers::default());
        let snapshots = Arc::new(AtomicUsize::new(0));
        let (tx, rx) = sync_channel(QUEUE);
        let (ask, asked) = sync_channel(1);
        let checkpoints = open_plain(path)?;
        let spawn = |name: &str, f: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(f)
                .map_err(|e| StoreError::Io(e.to_string()))
        };
        let checkpoint = spawn(
            "hub-checkpoint",
            Box::new(move || checkpoint_loop(&checkpoints, &asked)),
        )?;
        let writer = Writer {
            conn,
            wal: wal_of(path),
            caps,
            feeds: feeds.clone(),
            watchers: watchers.clone(),
            ask,
            written: 0,
            snapshots: Arc::clone(&snapshots),
        };
        let writer = spawn("hub-writer", Box::new(move || writer.run(&rx)))?;
        Ok(Self {
            inner: Arc::new(Inner {
                requests: Mutex::new(Some(tx)),
                threads: Mutex::new(vec![writer, checkpoint]),
                readers: Mutex::new(readers),
                permits: Arc::new(Semaphore::new(READERS)),
                feeds,
                watchers,
                path: path.to_owned(),
                snapshots,
            }),
        })
    }

    /// Finishes the batches that wait, then closes the file.
    pub async fn close(&self) {
        // The readers first: one that were the last to close would fold nothing in.
        let all = u32::try_from(READERS).unwrap_or(u32::MAX);
        let reads = timeout(READS_END, self.inner.permits.acquire_many(all)).await;
        if reads.is_err() {
            tracing::warn!("the store closes beside a read that does not end");
        }
        self.inner.permits.close();
        self.inner
            .readers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        drop(
            self.inner
                .requests
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        // The last connection to close folds the log in and removes it: until then the file alone is not the store.
        let threads = std::mem::take(
            &mut *self
                .inner
                .threads
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for thread in threads {
            // One that panicked has nothing left to finish.
            drop(tokio::task::spawn_blocking(move || thread.join()).await);
        }
    }

    async fn read<T, F>(&self, f: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> SqlResult<T> + Send + 'static,
    {
        let permit = Arc::clone(&self.inner.permits).acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::Closed)?;
        let inner = Arc::clone(&self.inner);
        let read = tokio::task::spawn_blocking(move || {
            let take = || {
                inner
                    .readers
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .pop()
            };
            let conn = take().ok_or(StoreError::Closed)?;
            let result = f(&conn).map_err(|e| map(&e));
            if !inner.permits.is_closed() {
                inner
                    .readers
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(conn);
            }
            // Held to here, also when nobody waits for the result any more: whoever has all permits has all readers.
            drop(permit);
            result
        });
        read.await.map_err(|e| StoreError::Io(e.to_string()))?
    }
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
        let limit = usize::try_from(limit).unwrap_or(0);
        let n = n + self
            .trim_old(now.plus(-EVENTS_KEPT_MS), limit.saturating_sub(n))
            .await?;
        let before = now.plus(-FINISHED_KEPT_MS);
        Ok(n + self.forget(before, limit.saturating_sub(n)).await?)
    }
}

impl SqliteStore {
    /// Drops at most `limit` events that are not newer than `before`, and no log's newest; tells how many.
    async fn trim_old(&self, before: WallMs, limit: usize) -> Result<usize, StoreError> {
        let (ops, n) = self
            .read(move |c| {
                let mut logs = c.prepare_cached("SELECT id, name FROM logs")?;
                let mut found = logs.query([])?;
                let (mut ops, mut n) = (Vec::new(), 0);
                while n < limit
                    && let Some(log) = found.next()?
                {
                    // From the oldest on: the first that stays ends the search.
                    let old: Vec<Seq> = c
                        .prepare_cached(
                            "SELECT seq, at FROM events
                             WHERE log = ?1 AND seq < (SELECT max(seq) FROM events WHERE log = ?1)
                             ORDER BY seq LIMIT ?2",
                        )?
                        .query_map(
                            params![log.get::<_, i64>(0)?, int((limit - n) as u64)],
                            |r| Ok((seq_of(r.get(0)?), WallMs(r.get(1)?))),
                        )?
                        .take_while(|e| e.as_ref().map_or(true, |(_, at)| *at <= before))
                        .map(|e| e.map(|(seq, _)| seq))
                        .collect::<SqlResult<_>>()?;
                    n += old.len();
                    if let Some(&seq) = old.last() {
                        let log = LogId::from_stored(log.get_ref(1)?.as_str()?);
                        ops.push(Op::Trim { log, seq });
                    }
                }
                Ok((ops, n))
            })
            .await?;
        if !ops.is_empty() {
            self.commit(ops).await?;
        }
        Ok(n)
    }

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

impl Log for SqliteStore {
    async fn events_after(
        &self,
        log: &LogId,
        after: Seq,
        about: Option<EnvelopeId>,
        limit: u32,
        max_bytes: u64,
    ) -> Result<NotedPage, StoreError> {
        let name = log.clone();
        self.read(move |c| {
            let mut q = c.prepare_cached(
                "SELECT e.seq, e.about, e.at, e.json FROM events e JOIN logs l ON l.id = e.log
                 WHERE l.name = ?1 AND e.seq > ?2 AND (?3 IS NULL OR e.about = ?3) ORDER BY e.seq",
            )?;
            let about = about.map(|id| id.0.into_bytes());
            let mut found = q.query(params![name.as_str(), int(after.0), about])?;
            let mut page = NotedPage::default();
            let mut bytes = 0;
            while let Some(r) = found.next()? {
                let row: Noted = noted(r)?;
                bytes += row.json.len() as u64;
                let full = page.rows.len() >= limit as usize || bytes > max_bytes;
                if full && !page.rows.is_empty() {
                    page.more = true;
                    break;
                }
                page.rows.push(row);
            }
            Ok(page)
        })
        .await
    }

    async fn log_position(&self, log: &LogId) -> Result<Option<LogPosition>, StoreError> {
        let name = log.clone();
        self.read(move |c| Ok(log_scalars(c, &name)?.map(|(_, at)| at)))
            .await
    }

    fn watch(&self, log: &LogId) -> broadcast::Receiver<Arc<Noted>> {
        self.inner.watchers.watch(log)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn big(n: u128) -> Vec<Op> {
        vec![
            Op::put(format!("k{n}"), "v", Expect::Absent),
            Op::Append {
                mailbox: MailboxId::from_stored("default/d"),
                id: EnvelopeId::from_u128(n),
                json: "x".repeat(40_000).into(),
                expires_at: WallMs(i64::MAX),
            },
        ]
    }

    #[tokio::test]
    async fn a_full_disk_is_told_keeps_nothing_by_halves_and_heals_without_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hub.db");
        let bounded = |c: &Connection| c.execute_batch("PRAGMA max_page_count = 100");
        let store = SqliteStore::open_prepared(&path, Caps::default(), bounded).unwrap();
        let mut stored = 0;
        let refused = loop {
            match store.commit(big(stored)).await {
                Ok(_) => stored += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(refused, StoreError::DiskFull);
        assert_eq!(refused.code().http_status(), 507);
        assert!(stored > 3);
        let mailbox = MailboxId::from_stored("default/d");
        let rows = store
            .read_after(&mailbox, Seq(0), 999, 1 << 30)
            .await
            .unwrap();
        assert_eq!(rows.rows.len() as u128, stored);
        let keys = store.list("k", None, 999, false).await.unwrap();
        assert_eq!(keys.len() as u128, stored);
        // A small batch beside the one that does not fit is not dragged down.
        let small = vec![Op::put("small", "v", Expect::Any)];
        let (large, small) = tokio::join!(store.commit(big(stored)), store.commit(small));
        assert_eq!(large, Err(StoreError::DiskFull));
        assert!(small.is_ok() || small == Err(StoreError::DiskFull));
        let retire = Op::Retire {
            mailbox,
            id: EnvelopeId::from_u128(0),
        };
        store.commit(vec![retire]).await.unwrap();
        store.commit(big(stored)).await.unwrap();
        store.close().await;
    }
}
