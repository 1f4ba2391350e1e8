//! The writer thread: takes jobs, commits them in groups, answers after the commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{mpsc, oneshot, watch};

use crate::domain::Cursor;

use super::error::StoreError;
use super::sqlite::{Db, Effects, Tx};

/// Jobs that may wait for the writer; whoever is next waits asynchronously.
pub(super) const QUEUE: usize = 1_024;
/// Jobs in one commit at most.
const GROUP: usize = 256;
/// Log content after which a checkpoint is asked for, bytes.
const CHECKPOINT_BYTES: usize = 4 << 20;
/// Log length at which the writer stops to shorten it, pages: 64 MiB.
const LOG_PAGES_MAX: i64 = 16_384;

type Answer = Box<dyn FnOnce(Option<StoreError>) + Send>;
type Work = Box<dyn FnOnce(Result<Turn<'_>, StoreError>) -> Option<(Effects, Answer)> + Send>;

/// A job's turn within the transaction of its group.
#[derive(Clone, Copy)]
struct Turn<'d> {
    db: &'d Db,
    /// Whether the job is the whole group.
    alone: bool,
}

impl Turn<'_> {
    fn run<T>(
        self,
        f: impl FnOnce(&Tx<'_>) -> Result<T, StoreError>,
    ) -> Result<(T, Effects), StoreError> {
        if self.alone {
            self.db.only_job(f)
        } else {
            self.db.job(f)
        }
    }
}

/// A job for the writer.
pub(super) struct Job {
    write: bool,
    work: Work,
}

impl Job {
    /// The job around `f`, and where its answer comes when it is durable.
    pub(super) fn new<T, F>(write: bool, f: F) -> (Self, oneshot::Receiver<Result<T, StoreError>>)
    where
        T: Send + 'static,
        F: FnOnce(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let work: Work = Box::new(move |turn| match turn.and_then(|turn| turn.run(f)) {
            Ok((value, effects)) => {
                let answer: Answer = Box::new(move |failed| {
                    // Nobody waits any more if the receiver is gone; the change stands.
                    drop(reply.send(failed.map_or(Ok(value), Err)));
                });
                Some((effects, answer))
            }
            Err(error) => {
                drop(reply.send(Err(error)));
                None
            }
        });
        (Self { write, work }, answer)
    }
}

/// What subscribers see, published after each commit.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) cursor: watch::Sender<Option<Cursor>>,
    pub(super) next_n: watch::Sender<u64>,
    pub(super) pruned: watch::Sender<u64>,
    pub(super) version: watch::Sender<u64>,
}

/// Runs until the last handle is gone.
pub(super) fn run(
    db: &Db,
    mut jobs: mpsc::Receiver<Job>,
    published: &Published,
    checkpoints: &std::sync::mpsc::SyncSender<()>,
    log_is_long: &AtomicBool,
) {
    let mut bytes = 0;
    while let Some(first) = jobs.blocking_recv() {
        let mut group = vec![first];
        while group.len() < GROUP
            && let Ok(job) = jobs.try_recv()
        {
            group.push(job);
        }
        bytes += commit(db, group, published);
        if log_is_long.swap(false, Ordering::Relaxed) {
            if let Err(error) = db.checkpoint(true) {
                tracing::warn!(%error, "the queue's log could not be shortened");
            }
            bytes = 0;
        } else if bytes >= CHECKPOINT_BYTES && checkpoints.try_send(()).is_ok() {
            bytes = 0;
        }
    }
    // What is put back from now on is older than this.
    if let Err(error) = db.renew_life() {
        tracing::debug!(%error, "the queue's life was not renewed at its end");
    }
    if let Err(error) = db.checkpoint(true) {
        tracing::debug!(%error, "the last checkpoint was left to the next start");
    }
}

/// Does a group in one transaction; gives the bytes that went to the log.
fn commit(db: &Db, group: Vec<Job>, published: &Published) -> usize {
    let write = group.iter().any(|job| job.write);
    if let Err(error) = db.begin(write) {
        for job in group {
            (job.work)(Err(error.clone()));
        }
        return 0;
    }
    let mut effects = Effects::default();
    let mut answers = Vec::with_capacity(group.len());
    let alone = group.len() == 1;
    for job in group {
        // A full disk can end the transaction by itself; what follows must not begin one of its own.
        let turn = if db.in_transaction() {
            Ok(Turn { db, alone })
        } else {
            Err(StoreError::DiskFull)
        };
        if let Some((done, answer)) = (job.work)(turn) {
            effects.merge(done);
            answers.push(answer);
        }
    }
    if answers.is_empty() {
        // Every job failed, and has been told.
        db.rollback();
        return 0;
    }
    let failed = if db.in_transaction() {
        db.commit().err()
    } else {
        // SQLite rolled the whole transaction back by itself: nothing of the group happened.
        Some(StoreError::DiskFull)
    };
    if failed.is_none() {
        publish(effects, published);
    }
    for answer in answers {
        answer(failed.clone());
    }
    effects.bytes
}

fn publish(effects: Effects, published: &Published) {
    if let Some(cursor) = effects.cursor {
        published.cursor.send_replace(cursor);
    }
    if let Some(next_n) = effects.next_n {
        published.next_n.send_replace(next_n);
    }
    if let Some(pruned) = effects.pruned {
        published.pruned.send_replace(pruned);
    }
    if effects.changed {
        published.version.send_modify(|v| *v += 1);
    }
}

/// Copies the log back whenever it is asked to, beside the writer.
pub(super) fn checkpointer(
    db: &Db,
    asked: &std::sync::mpsc::Receiver<()>,
    log_is_long: &Arc<AtomicBool>,
) {
    while asked.recv().is_ok() {
        match db.checkpoint(false) {
            Ok((pages, _)) if pages > LOG_PAGES_MAX => log_is_long.store(true, Ordering::Relaxed),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the queue could not be checkpointed"),
        }
    }
}
