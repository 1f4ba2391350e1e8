//! Work on the queue, one piece at a time and in order, beside the loop of the link.
//!
//! Two lanes exist: what moves the cursor (envelopes, resets) and what concerns the outbox. Within the first, envelopes that
//! wait while a commit is under way go into the next one together: one fsync for all of them. A piece that fails is
//! tried again until it works, because nothing after it may overtake it; meanwhile nothing is acked.

use std::collections::VecDeque;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::core::client::HelloSnapshot;
use crate::daemon::store::{Incoming, Store, StoreError, Stored};
use crate::domain::{Cursor, EnvelopeId, Epoch, Report};
use crate::wire::RejectedReport;

use super::SnapshotSource;

/// Envelopes in one commit at most; the link's window bounds them anyway.
const BATCH: usize = 256;
/// The wait after a failure.
const AGAIN: Duration = Duration::from_secs(1);

/// A piece of work.
#[derive(Debug, Clone)]
pub(super) enum Work {
    /// Store envelopes at their cursors.
    Store(Vec<Incoming>),
    /// Note that an envelope cannot be read, and move the cursor past it.
    Refuse(Cursor, Option<EnvelopeId>, String),
    /// Begin the cursor anew.
    Reset(Epoch),
    /// Read hello's snapshot.
    Hello,
    /// Read reports.
    Load { after_n: u64, limit: u32 },
    /// Forget reports.
    Prune(u64, Vec<RejectedReport>),
    /// Number reports anew.
    Renumber(u64),
}

/// What a piece of work gave.
#[derive(Debug)]
pub(super) enum Done {
    Stored {
        last: Cursor,
        count: usize,
        fresh: usize,
    },
    Hello(Box<HelloSnapshot>),
    Loaded(Vec<Report>),
    Renumbered {
        next_n: u64,
    },
    Nothing,
    Failed(StoreError),
}

/// A queue of work with at most one piece under way.
#[derive(Default)]
pub(super) struct Lane {
    waiting: VecDeque<Work>,
    running: Option<BoxFuture<'static, (Work, Done)>>,
}

impl Lane {
    /// Adds a piece; envelopes join a batch that still waits.
    pub(super) fn push(&mut self, work: Work) {
        if let (Work::Store(more), Some(Work::Store(batch))) = (&work, self.waiting.back_mut())
            && batch.len() + more.len() <= BATCH
        {
            batch.extend(more.iter().cloned());
            return;
        }
        self.waiting.push_back(work);
    }

    /// Begins the next piece if none is under way.
    pub(super) fn start(&mut self, store: &Store, source: &dyn SnapshotSource) {
        if self.running.is_none()
            && let Some(work) = self.waiting.pop_front()
        {
            self.running = Some(run(work, store.clone(), source, None));
        }
    }

    /// What the piece under way gave; never ends while there is none. May be cancelled.
    pub(super) async fn done(&mut self) -> Done {
        let Some(running) = &mut self.running else {
            return std::future::pending().await;
        };
        let (_, done) = running.await;
        self.running = None;
        done
    }

    /// As [`Self::done`], for work whose failure is tried again after a while.
    pub(super) async fn done_or_again(
        &mut self,
        store: &Store,
        source: &dyn SnapshotSource,
    ) -> Done {
        let Some(running) = &mut self.running else {
            return std::future::pending().await;
        };
        let (work, done) = running.await;
        self.running = match &done {
            Done::Failed(error) if *error != StoreError::Closed => {
                Some(run(work, store.clone(), source, Some(AGAIN)))
            }
            _ => None,
        };
        done
    }

    /// Whether nothing waits and nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_none()
    }
}

fn run(
    work: Work,
    store: Store,
    source: &dyn SnapshotSource,
    wait: Option<Duration>,
) -> BoxFuture<'static, (Work, Done)> {
    let directory = matches!(work, Work::Hello).then(|| source.directory());
    async move {
        if let Some(wait) = wait {
            tokio::time::sleep(wait).await;
        }
        let done = match work.clone() {
            Work::Store(batch) => store_batch(&store, batch).await,
            Work::Refuse(cursor, id, reason) => {
                let refused = store.refuse(cursor, id, reason).await;
                refused.map(|()| Done::Stored {
                    last: cursor,
                    count: 1,
                    fresh: 0,
                })
            }
            Work::Reset(epoch) => store.reset_cursor(epoch).await.map(|()| Done::Nothing),
            Work::Hello => match directory {
                Some(directory) => {
                    let position = store.position().await;
                    let directory = directory.await;
                    position.map(|at| Done::Hello(Box::new(directory.snapshot(&at))))
                }
                None => Ok(Done::Nothing),
            },
            Work::Load { after_n, limit } => {
                let rows = store.reports_after(after_n, limit).await;
                rows.map(Done::Loaded)
            }
            Work::Prune(through, rejected) => {
                let pruned = store.prune_reports(through, rejected).await;
                pruned.map(|()| Done::Nothing)
            }
            Work::Renumber(after) => {
                let next_n = store.renumber_outbox(after).await;
                next_n.map(|next_n| Done::Renumbered { next_n })
            }
        };
        (work, done.unwrap_or_else(Done::Failed))
    }
    .boxed()
}

async fn store_batch(store: &Store, batch: Vec<Incoming>) -> Result<Done, StoreError> {
    let Some(last) = batch.last().map(|item| item.cursor) else {
        return Ok(Done::Nothing);
    };
    let stored = store.store(batch).await?;
    let count = stored.len();
    let fresh = stored.iter().filter(|s| **s == Stored::New).count();
    Ok(Done::Stored { last, count, fresh })
}
