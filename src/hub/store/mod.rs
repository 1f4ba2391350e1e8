//! Where the hub keeps things: mailboxes and records behind small traits.
//!
//! * [`Commit`]: a batch of [`Op`]s carried out in order, all or nothing. A batch is how an accepted task becomes
//!   durable: its idempotency key, its envelope and its record in one step and with one fsync. On a store without
//!   transactions across kinds (NATS JetStream) the same order holds with the append as the commit point: what stands
//!   before it is a claim that a repetition finds again, what stands after it is derived and written anew by repeating
//!   the batch, because an append is idempotent by the envelope's id.
//! * [`Mailbox`]: reading a device's ordered log, and waiting for it to grow.
//! * [`Log`]: an account's events, written by the same batches, bounded by dropping the oldest.
//! * [`Records`]: small JSON texts under string keys, each with a version for compare-and-set.
//!
//! Laws that `tests/contract/store.rs` checks on every implementation: a `seq` is strictly increasing within a mailbox
//! and never given twice, also after rows were dropped; an append of a known id changes nothing and answers the known
//! place; nothing of a failed batch is visible; a subscriber sees every committed row or is told to read again.
//!
//! An ack moves the cursor only. An envelope's text is kept until it is retired (terminal receipt or expiry), its id
//! until [`limits::FINISHED_KEPT_MS`] later, so that a repetition finds it long after the longest life.

pub(crate) mod backup;
mod feeds;
mod life;
mod log;
pub mod memory;
mod schema;
pub mod sqlite;
mod writer;

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::core::server::Row;
use crate::domain::{AccountId, Code, DeviceId, EnvelopeId, Epoch, Seq, WallMs, limits};

pub use feeds::{Feed, Pushed};
pub use log::{Log, LogId, LogPosition, Noted, NotedPage};
pub use memory::MemoryStore;
pub use sqlite::SqliteStore;

/// Names a mailbox: account and device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MailboxId(Arc<str>);

impl MailboxId {
    /// The mailbox of this device.
    #[must_use]
    pub fn of(account: &AccountId, device: &DeviceId) -> Self {
        Self(format!("{account}/{device}").into())
    }

    /// The mailbox with this stored name.
    #[must_use]
    pub fn from_stored(name: &str) -> Self {
        Self(name.into())
    }

    /// The name as stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MailboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a write expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Anything.
    Any,
    /// Nothing under this key.
    Absent,
    /// This version.
    Version(u64),
}

/// One step of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Append an envelope; a known id changes nothing.
    Append {
        /// To which mailbox (made when new).
        mailbox: MailboxId,
        /// The envelope's id.
        id: EnvelopeId,
        /// The encoded envelope.
        json: Arc<str>,
        /// When its text may be dropped.
        expires_at: WallMs,
    },
    /// Move the cursor forward; never back.
    Ack {
        /// Of which mailbox.
        mailbox: MailboxId,
        /// Up to here; beyond the head means the head.
        seq: Seq,
    },
    /// Give a new connection the next generation.
    Raise {
        /// Of which mailbox (made when new).
        mailbox: MailboxId,
    },
    /// Go on only if the mailbox is still at this generation.
    Fence {
        /// Of which mailbox.
        mailbox: MailboxId,
        /// The generation.
        generation: u64,
    },
    /// Begin a new life: new epoch, cursor at 0, rows kept.
    Renew {
        /// Of which mailbox.
        mailbox: MailboxId,
    },
    /// Drop an envelope's text, keep its id.
    Retire {
        /// Of which mailbox.
        mailbox: MailboxId,
        /// The envelope.
        id: EnvelopeId,
    },
    /// Forget an envelope's id, too.
    Forget {
        /// Of which mailbox.
        mailbox: MailboxId,
        /// The envelope.
        id: EnvelopeId,
    },
    /// Append an event to a log (made when new); the oldest ones make room.
    Note {
        /// To which log.
        log: LogId,
        /// The item that it is about.
        about: EnvelopeId,
        /// When, Unix ms.
        at: WallMs,
        /// The event, JSON.
        json: Arc<str>,
    },
    /// Drop a log's events up to this one, never the newest.
    Trim {
        /// Of which log.
        log: LogId,
        /// Up to here.
        seq: Seq,
    },
    /// Write a record.
    Put {
        /// Its key.
        key: String,
        /// Its text.
        value: String,
        /// What must be there.
        expect: Expect,
        /// When it may be dropped; `None` for never.
        keep_until: Option<WallMs>,
    },
    /// Delete a record; deleting nothing is fine when nothing else was expected.
    Delete {
        /// Its key.
        key: String,
        /// What must be there.
        expect: Expect,
    },
}

impl Op {
    /// A [`Op::Put`] without expiry.
    #[must_use]
    pub fn put(key: impl Into<String>, value: impl Into<String>, expect: Expect) -> Self {
        Self::Put {
            key: key.into(),
            value: value.into(),
            expect,
            keep_until: None,
        }
    }
}

/// What an [`Op`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// The envelope stands here.
    Appended {
        /// Its place.
        seq: Seq,
        /// Whether it stood there before.
        duplicate: bool,
    },
    /// The cursor moved (or did not, when both are equal).
    Acked {
        /// From here.
        from: Seq,
        /// To here.
        to: Seq,
    },
    /// The mailbox after a [`Op::Raise`] or [`Op::Renew`].
    At(Position),
    /// The event stands here.
    Noted {
        /// Its place.
        seq: Seq,
    },
    /// The record's version.
    Put {
        /// The version.
        version: u64,
    },
    /// Nothing to tell.
    Nothing,
}

/// Where a mailbox stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Its life.
    pub epoch: Epoch,
    /// Its last envelope.
    pub head: Seq,
    /// The device's cursor.
    pub acked: Seq,
    /// The newest connection.
    pub generation: u64,
}

/// Rows of a mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rows {
    /// In order.
    pub rows: Vec<Row>,
    /// Whether more follow.
    pub more: bool,
}

/// An envelope whose time is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Where it lies.
    pub mailbox: MailboxId,
    /// Its id.
    pub id: EnvelopeId,
    /// Whether the device has it.
    pub acked: bool,
}

/// A record as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its key.
    pub key: String,
    /// Its text.
    pub value: String,
    /// Its version: grows with every write of the key.
    pub version: u64,
    /// When it may be dropped.
    pub keep_until: Option<WallMs>,
}

/// Why the store did not do it; nothing of the batch was kept, except that after [`StoreError::Io`] or
/// [`StoreError::Closed`] it is unknown, which a repetition with the same ids settles.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A record was not what a write expected.
    #[error("the record `{key}` was changed by somebody else")]
    Conflict {
        /// Its key.
        key: String,
    },
    /// A newer connection took the mailbox over.
    #[error("a newer connection of the device took over")]
    Fenced,
    /// The mailbox is at its limit.
    #[error("the device's mailbox is full")]
    MailboxFull,
    /// Another process holds the store, or too many requests wait.
    #[error("the store is busy")]
    Busy,
    /// No space is left.
    #[error("the disk is full")]
    DiskFull,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// Reading or writing failed.
    #[error("the store failed: {0}")]
    Io(String),
    /// The file is not a store of ours, or of a later version.
    #[error("{0}")]
    Foreign(String),
}

impl StoreError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Conflict { .. } => Code::Conflict,
            Self::Fenced => Code::Superseded,
            Self::MailboxFull => Code::MailboxFull,
            Self::DiskFull => Code::DiskFull,
            Self::Closed => Code::GoingAway,
            Self::Busy | Self::Io(_) | Self::Foreign(_) => Code::StoreUnavailable,
        }
    }
}

/// Batches of writes.
pub trait Commit {
    /// Carries out the steps in order, all or nothing; when it returns `Ok`, they are durable.
    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Vec<Done>, StoreError>> + Send;
}

/// Reading mailboxes.
pub trait Mailbox {
    /// Rows after `after` that still have their text: at most `limit` rows and `max_bytes` bytes, but at least one row.
    fn read_after(
        &self,
        mailbox: &MailboxId,
        after: Seq,
        limit: u32,
        max_bytes: u64,
    ) -> impl Future<Output = Result<Rows, StoreError>> + Send;

    /// The ids appended after `from` up to and including `to`, in order, dropped or not.
    fn ids_between(
        &self,
        mailbox: &MailboxId,
        from: Seq,
        to: Seq,
    ) -> impl Future<Output = Result<Vec<EnvelopeId>, StoreError>> + Send;

    /// Where the mailbox stands; `None` if it was never used.
    fn position(
        &self,
        mailbox: &MailboxId,
    ) -> impl Future<Output = Result<Option<Position>, StoreError>> + Send;

    /// Rows as they are committed from now on.
    fn subscribe(&self, mailbox: &MailboxId) -> Feed;

    /// Envelopes that still have their text and whose time is up, at most `limit`.
    fn due(
        &self,
        now: WallMs,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Due>, StoreError>> + Send;

    /// Drops at most `limit` ids, records and events whose keeping time is over, never a log's newest event; tells how
    /// many.
    fn retain(
        &self,
        now: WallMs,
        limit: u32,
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;
}

/// Reading records.
pub trait Records {
    /// The records under these keys, those that exist, in any order.
    fn get_many(
        &self,
        keys: Vec<String>,
    ) -> impl Future<Output = Result<Vec<Stored>, StoreError>> + Send;

    /// At most `limit` records whose keys begin with `prefix`, in order of their keys: upwards from after `from`, or
    /// with `newest_first` downwards from before it.
    fn list(
        &self,
        prefix: &str,
        from: Option<String>,
        limit: u32,
        newest_first: bool,
    ) -> impl Future<Output = Result<Vec<Stored>, StoreError>> + Send;
}

/// A store of any kind, chosen at start.
#[derive(Debug, Clone)]
pub enum AnyStore {
    /// The embedded default.
    Sqlite(SqliteStore),
    /// Nothing survives the process: tests and simulation.
    Memory(MemoryStore),
}

macro_rules! each {
    ($self:ident, $s:ident => $call:expr) => {
        match $self {
            AnyStore::Sqlite($s) => $call,
            AnyStore::Memory($s) => $call,
        }
    };
}

impl AnyStore {
    /// The record under this key.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn get(&self, key: impl Into<String>) -> Result<Option<Stored>, StoreError> {
        Ok(self.get_many(vec![key.into()]).await?.pop())
    }

    /// Every record whose key begins with `prefix`, read in bounded pages.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list_all(&self, prefix: &str) -> Result<Vec<Stored>, StoreError> {
        const PAGE: u32 = 500;
        let mut all = Vec::new();
        let mut from = None;
        loop {
            let page = self.list(prefix, from.take(), PAGE, false).await?;
            let full = page.len() == PAGE as usize;
            from = page.last().map(|s| s.key.clone());
            all.extend(page);
            if !full {
                return Ok(all);
            }
        }
    }

    /// Writes a backup into the empty file `into`: the store as it stands now, with these keys.
    ///
    /// # Errors
    /// When the store is in memory only, the disk is full, or reading or writing fails.
    pub(crate) async fn backup(
        &self,
        into: &Path,
        keys: impl FnOnce() -> Vec<backup::KeyFile> + Send + 'static,
        now: WallMs,
    ) -> Result<backup::Contents, StoreError> {
        match self {
            Self::Sqlite(s) => s.backup(into, keys, now).await,
            Self::Memory(_) => Err(StoreError::Io("a store in memory has no backup".to_owned())),
        }
    }

    /// Finishes what is queued and closes; later calls answer [`StoreError::Closed`].
    pub async fn close(&self) {
        match self {
            Self::Sqlite(s) => s.close().await,
            Self::Memory(_) => {}
        }
    }
}

impl Commit for AnyStore {
    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Done>, StoreError> {
        each!(self, s => s.commit(ops).await)
    }
}

impl Mailbox for AnyStore {
    async fn read_after(
        &self,
        mailbox: &MailboxId,
        after: Seq,
        limit: u32,
        max_bytes: u64,
    ) -> Result<Rows, StoreError> {
        each!(self, s => s.read_after(mailbox, after, limit, max_bytes).await)
    }
    async fn ids_between(
        &self,
        mailbox: &MailboxId,
        from: Seq,
        to: Seq,
    ) -> Result<Vec<EnvelopeId>, StoreError> {
        each!(self, s => s.ids_between(mailbox, from, to).await)
    }
    async fn position(&self, mailbox: &MailboxId) -> Result<Option<Position>, StoreError> {
        each!(self, s => s.position(mailbox).await)
    }
    fn subscribe(&self, mailbox: &MailboxId) -> Feed {
        each!(self, s => s.subscribe(mailbox))
    }
    async fn due(&self, now: WallMs, limit: u32) -> Result<Vec<Due>, StoreError> {
        each!(self, s => s.due(now, limit).await)
    }
    async fn retain(&self, now: WallMs, limit: u32) -> Result<usize, StoreError> {
        each!(self, s => s.retain(now, limit).await)
    }
}

impl Log for AnyStore {
    async fn events_after(
        &self,
        log: &LogId,
        after: Seq,
        about: Option<EnvelopeId>,
        limit: u32,
        max_bytes: u64,
    ) -> Result<NotedPage, StoreError> {
        each!(self, s => s.events_after(log, after, about, limit, max_bytes).await)
    }
    async fn log_position(&self, log: &LogId) -> Result<Option<LogPosition>, StoreError> {
        each!(self, s => s.log_position(log).await)
    }
    fn watch(&self, log: &LogId) -> broadcast::Receiver<Arc<Noted>> {
        each!(self, s => s.watch(log))
    }
}

impl Records for AnyStore {
    async fn get_many(&self, keys: Vec<String>) -> Result<Vec<Stored>, StoreError> {
        each!(self, s => s.get_many(keys).await)
    }
    async fn list(
        &self,
        prefix: &str,
        from: Option<String>,
        limit: u32,
        newest_first: bool,
    ) -> Result<Vec<Stored>, StoreError> {
        each!(self, s => s.list(prefix, from, limit, newest_first).await)
    }
}

/// The limits of one mailbox, and of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Envelopes that still have their text.
    pub envelopes: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Events of one account's log; the oldest make room.
    pub events: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            envelopes: limits::MAILBOX_ENVELOPES,
            bytes: limits::MAILBOX_BYTES,
            events: limits::EVENTS_KEPT,
        }
    }
}
