//! Who is told about committed rows.
//!
//! The writer hands each row to the mailbox's subscribers right after the commit, without waiting: a full queue is
//! answered by raising `head` instead, which a subscriber cannot miss, and which makes it read the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};

use super::MailboxId;
use crate::core::server::Row;
use crate::domain::Seq;

/// Rows that may wait for a subscriber; beyond it reads the store.
const QUEUE: usize = 256;

/// A row right after its commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The mailbox's head before it.
    pub prev: Seq,
    /// The row.
    pub row: Row,
}

/// A subscription to one mailbox.
#[derive(Debug)]
pub struct Feed {
    /// Rows in order.
    pub rows: mpsc::Receiver<Pushed>,
    /// Changes when rows were left out: read the store up to here.
    pub missed: watch::Receiver<Seq>,
}

#[derive(Debug)]
struct Subscriber {
    rows: mpsc::Sender<Pushed>,
    missed: watch::Sender<Seq>,
}

/// The subscriptions of a store.
#[derive(Debug, Clone, Default)]
pub(super) struct Feeds(Arc<Mutex<HashMap<MailboxId, Vec<Subscriber>>>>);

impl Feeds {
    pub(super) fn subscribe(&self, mailbox: &MailboxId) -> Feed {
        let (rows_tx, rows) = mpsc::channel(QUEUE);
        let (missed_tx, missed) = watch::channel(Seq::default());
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Closed subscriptions of this and of other mailboxes go whenever a new one comes.
        map.retain(|_, subs| {
            subs.retain(|s| !s.rows.is_closed());
            !subs.is_empty()
        });
        map.entry(mailbox.clone()).or_default().push(Subscriber {
            rows: rows_tx,
            missed: missed_tx,
        });
        Feed { rows, missed }
    }

    pub(super) fn publish(&self, mailbox: &MailboxId, pushed: &Pushed) {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for sub in map.get(mailbox).into_iter().flatten() {
            if let Err(mpsc::error::TrySendError::Full(_)) = sub.rows.try_send(pushed.clone()) {
                sub.missed.send_replace(pushed.row.seq);
            }
        }
    }
}
