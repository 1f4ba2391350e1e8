//! The event log of an account: what happened, in order, for those who watch.
//!
//! A log is no mailbox: nobody acks it, and it is never full. [`super::Op::Note`] appends to it in the same batch as the
//! change that it tells, and the oldest events go when there are more than [`super::Caps::events`] or when they are
//! older than [`limits::EVENTS_KEPT_MS`](crate::domain::limits::EVENTS_KEPT_MS); the newest one always stays, so that a
//! number is never given twice. Whoever asks for a position that is gone has to be told so: [`Log::log_position`] names
//! the epoch and the head, and a row carries its time, by which a number of another life is recognised.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::broadcast;

use super::StoreError;
use crate::domain::{AccountId, EnvelopeId, Epoch, Seq, WallMs};

/// Events that may wait for a watcher; one that falls behind further reads the store.
const QUEUE: usize = 1024;
/// How many events over the limit may stand before the oldest are dropped, so that not every write also deletes.
pub(super) const SLACK: u64 = 64;

/// Names a log: the account's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(Arc<str>);

impl LogId {
    /// The log of this account.
    #[must_use]
    pub fn of(account: &AccountId) -> Self {
        Self(account.as_str().into())
    }

    /// The name as stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The log with this stored name.
    pub(super) fn from_stored(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An event as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// Its place: strictly increasing within the log.
    pub seq: Seq,
    /// The task or message that it is about.
    pub about: EnvelopeId,
    /// When it was written, Unix ms.
    pub at: WallMs,
    /// The event, JSON.
    pub json: Arc<str>,
}

/// Events of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NotedPage {
    /// In order.
    pub rows: Vec<Noted>,
    /// Whether more follow.
    pub more: bool,
}

/// Where a log stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    /// Its life.
    pub epoch: Epoch,
    /// Its newest event; 0 for none.
    pub head: Seq,
    /// When that was written; 0 for none.
    pub at: WallMs,
}

/// Reading and watching event logs.
pub trait Log {
    /// Events after `after`, all or those about one item: at most `limit` and `max_bytes`, but at least one.
    fn events_after(
        &self,
        log: &LogId,
        after: Seq,
        about: Option<EnvelopeId>,
        limit: u32,
        max_bytes: u64,
    ) -> impl Future<Output = Result<NotedPage, StoreError>> + Send;

    /// Where the log stands; `None` if nothing was ever written to it.
    fn log_position(
        &self,
        log: &LogId,
    ) -> impl Future<Output = Result<Option<LogPosition>, StoreError>> + Send;

    /// Events as they are committed from now on; a watcher that is too slow is told how many it missed.
    fn watch(&self, log: &LogId) -> broadcast::Receiver<Arc<Noted>>;
}

/// The watchers of a store's logs.
#[derive(Debug, Clone, Default)]
pub(super) struct Watchers(Arc<Mutex<HashMap<LogId, broadcast::Sender<Arc<Noted>>>>>);

impl Watchers {
    pub(super) fn watch(&self, log: &LogId) -> broadcast::Receiver<Arc<Noted>> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.retain(|_, sender| sender.receiver_count() > 0);
        map.entry(log.clone())
            .or_insert_with(|| broadcast::Sender::new(QUEUE))
            .subscribe()
    }

    pub(super) fn publish(&self, log: &LogId, noted: Noted) {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = map.get(log) {
            // Nobody watches any more.
            drop(sender.send(Arc::new(noted)));
        }
    }
}
