//! The daemon's durable queue: envelopes in, reports out, and what is known of claims, sessions and runs.
//!
//! One file, `queue.db`, one writer. [`Store`] is a handle: each method is one transaction that a single thread
//! carries out. Jobs that arrive while a commit is under way share the next one, so that a burst costs one fsync and
//! not one each; an answer is given only after the commit. What a method promises is therefore durable when it
//! returns, and an acknowledgement built on it is honest.
//!
//! ```text
//! link ──▶ store ─┐                            ┌─▶ durable   (watch: the cursor that an ack may name)
//! planner ─▶ apply ├─▶ jobs ─▶ writer thread ───┼─▶ outbox    (watch: the number after the last report)
//! hooks ─▶ apply ─┘     group → COMMIT → answers └─▶ version   (watch: something in the queue changed)
//!                                   │
//!                                   └─ log long? ─▶ checkpoint thread, beside the commits
//! ```
//!
//! Invariants, each held by a transaction and not by the callers:
//!
//! - An envelope's id takes effect once: `seen_ids` outlives the longest TTL and is filled in the transaction of the insert.
//! - The cursor moves with the envelopes it stands for; within an epoch it never goes back.
//! - No receipt without its change of state, no change of state without its receipt: [`Store::apply`] takes both.
//! - A claim takes only envelopes that are queued, a run only an attempt that has none: the loser gets an error and nothing of its change happens.
//! - A copy of the file is another queue: it draws instances of its own, so that the hub never takes it for the original. So
//!   does a file into which an older copy was put back, as far as its companion tells (`queue.life`, new at each start and
//!   clean end): not one that was made since the last start of a daemon that was killed.
//! - Mail of the hub expires by the hub's clock, which no step of this device's moves.
//! - What was called off, and an attempt that has a newer one, never waits and never starts; no two attempts of a task run at once.
//! - `n` of the outbox is dense from 1 and never used twice.
//! - Nothing here looks at the wall clock or drops mail for its age: expiry is the planner's decision.
//!
//! Only `sqlite.rs` names the database; the SQL stands in one file per aggregate.

mod call_off;
mod claims;
mod codec;
mod envelopes;
mod error;
mod hub_time;
mod outbox;
mod questions;
mod rows;
mod sessions;
mod sqlite;
#[cfg(test)]
mod tests;
mod uploads;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::domain::{Cursor, Envelope, EnvelopeId, Epoch, WallMs};
use crate::wire::RejectedReport;

pub use error::StoreError;
pub use rows::{
    Change, ClaimRow, EnvelopeRow, EnvelopeState, Incoming, NewReport, NewUpload, Position,
    QueueCounts, QueueFilter, RunRow, SessionRow, StoreInfo, Stored, Upload,
};

use hub_time::HubTime;
use sqlite::{Db, Tx};
use writer::{Job, Published};

/// The queue's file inside the daemon's folder.
pub const FILE: &str = "queue.db";

/// A handle on the queue; cheap to clone, every method one transaction.
#[derive(Clone)]
pub struct Store {
    jobs: mpsc::Sender<Job>,
    info: StoreInfo,
    durable: watch::Receiver<Option<Cursor>>,
    outbox: watch::Receiver<u64>,
    pruned: watch::Receiver<u64>,
    version: watch::Receiver<u64>,
    closed: watch::Receiver<()>,
    hub_time: HubTime,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the queue, creating or migrating its file (0600), and starts its writer; blocks for a few milliseconds.
    ///
    /// # Errors
    /// When the file cannot be opened, is damaged, foreign, or of a later version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let (instance, outbox_instance) = (Uuid::new_v4().to_string(), Uuid::new_v4().to_string());
        let db = Db::open(path, &[&instance, &outbox_instance, &now().0])?;
        let beside = Db::connect(path)?;
        db.begin(false)?;
        let read = db.job(envelopes::position);
        db.rollback();
        let (position, _) = read?;
        let hub_time = HubTime::load(&db)?;

        let (cursor_tx, durable) = watch::channel(position.last);
        let (next_n_tx, outbox) = watch::channel(position.next_n);
        let (pruned_tx, pruned) = watch::channel(0);
        let (version_tx, version) = watch::channel(0);
        let (closed_tx, closed) = watch::channel(());
        let (jobs, taken) = mpsc::channel(writer::QUEUE);
        let (ask, asked) = std::sync::mpsc::sync_channel(1);
        let published = Published {
            cursor: cursor_tx,
            next_n: next_n_tx,
            pruned: pruned_tx,
            version: version_tx,
        };
        let log_is_long = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&log_is_long);
        spawn("queue-checkpoint", path, move || {
            writer::checkpointer(&beside, &asked, &flag);
        })?;
        spawn("queue-writer", path, move || {
            writer::run(&db, taken, &published, &ask, &log_is_long);
            drop(db);
            drop(closed_tx);
        })?;
        Ok(Self {
            jobs,
            info: position.info,
            durable,
            outbox,
            pruned,
            version,
            closed,
            hub_time,
        })
    }

    /// What the file is.
    #[must_use]
    pub const fn info(&self) -> StoreInfo {
        self.info
    }

    /// The highest cursor that is durable; changes after each commit that moved it.
    #[must_use]
    pub fn durable(&self) -> watch::Receiver<Option<Cursor>> {
        self.durable.clone()
    }

    /// The number that the next report will carry; changes after each commit that appended one.
    #[must_use]
    pub fn outbox(&self) -> watch::Receiver<u64> {
        self.outbox.clone()
    }

    /// The last report that the hub has confirmed since this start, 0 for none; changes with each confirmation.
    #[must_use]
    pub fn confirmed(&self) -> watch::Receiver<u64> {
        self.pruned.clone()
    }

    /// Counts commits that changed envelopes, claims, sessions or runs.
    #[must_use]
    pub fn version(&self) -> watch::Receiver<u64> {
        self.version.clone()
    }

    /// Gives up this handle and, if it was the last one, waits until the writer has finished and closed the file.
    pub async fn close(self) {
        let Self {
            jobs, mut closed, ..
        } = self;
        drop(jobs);
        // Only the end of the writer ends this wait: the channel carries nothing.
        drop(closed.changed().await);
    }

    /// A store whose writer is gone: it takes nothing.
    #[cfg(test)]
    pub(in crate::daemon) fn without_writer(self) -> Self {
        let (jobs, _) = mpsc::channel(1);
        Self { jobs, ..self }
    }

    async fn job<T, F>(&self, write: bool, f: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (job, answer) = Job::new(write, f);
        self.jobs.send(job).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Stores envelopes off the link and moves the cursor to the last of them, in one commit; an unknown kind is stored
    /// as finished and reported `unsupported`.
    ///
    /// # Errors
    /// When nothing of it was stored.
    pub async fn store(&self, batch: Vec<Incoming>) -> Result<Vec<Stored>, StoreError> {
        self.job(true, move |tx| envelopes::store(tx, &batch, now()))
            .await
    }

    /// Stores one envelope off the link, see [`Self::store`].
    ///
    /// # Errors
    /// When it was not stored.
    pub async fn store_envelope(
        &self,
        cursor: Cursor,
        envelope: Envelope,
    ) -> Result<Stored, StoreError> {
        let batch = [Incoming { cursor, envelope }];
        let done = self
            .job(true, move |tx| envelopes::store(tx, &batch, now()))
            .await?;
        Ok(done.first().copied().unwrap_or(Stored::Duplicate))
    }

    /// Moves the cursor past an envelope that cannot be read; if it has a name, notes it as finished and reports it
    /// `undeliverable` with this reason.
    ///
    /// # Errors
    /// When nothing of it was stored.
    pub async fn refuse(
        &self,
        cursor: Cursor,
        id: Option<EnvelopeId>,
        reason: String,
    ) -> Result<(), StoreError> {
        self.job(true, move |tx| {
            envelopes::refuse(tx, cursor, id, &reason, now())
        })
        .await
    }

    /// Stores envelopes that came through the local API: they have no place in the mailbox and their reports stay here.
    ///
    /// # Errors
    /// When the queue is full or nothing was stored.
    pub async fn post_local(&self, batch: Vec<Envelope>) -> Result<Vec<Stored>, StoreError> {
        self.job(true, move |tx| {
            let now = now();
            batch
                .iter()
                .map(|e| envelopes::store_local(tx, e, now))
                .collect()
        })
        .await
    }

    /// The mailbox has a new life: keeps what is queued and begins its cursor anew.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn reset_cursor(&self, epoch: Epoch) -> Result<(), StoreError> {
        self.job(true, move |tx| envelopes::reset_cursor(tx, epoch))
            .await
    }

    /// Carries out all changes in one transaction, or none of them.
    ///
    /// # Errors
    /// When a condition of one of them does not hold (see [`Change`]), or the file cannot be written.
    pub async fn apply(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        self.job(true, move |tx| claims::apply(tx, &changes, now()))
            .await
    }

    /// Appends reports to the outbox.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn append(&self, reports: Vec<NewReport>) -> Result<(), StoreError> {
        self.apply(reports.into_iter().map(Change::Report).collect())
            .await
    }

    /// Forgets reports up to `through`, keeping the refused ones aside for people.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn prune_reports(
        &self,
        through: u64,
        rejected: Vec<RejectedReport>,
    ) -> Result<(), StoreError> {
        self.job(true, move |tx| outbox::prune(tx, through, &rejected))
            .await
    }

    /// Gives the waiting reports, in order, the numbers after `after`, when the hub knows higher ones of this outbox than
    /// it ever gave (an older copy of the file was put back); gives the number that the next report will carry.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn renumber_outbox(&self, after: u64) -> Result<u64, StoreError> {
        self.job(true, move |tx| outbox::renumber(tx, after)).await
    }

    /// Opens a claim on envelopes that must all be queued, with its reports.
    ///
    /// # Errors
    /// [`StoreError::NotQueued`] if one of them is not; nothing was done then.
    pub async fn open_claim(
        &self,
        claim: ClaimRow,
        reports: Vec<NewReport>,
    ) -> Result<(), StoreError> {
        let mut changes = vec![Change::OpenClaim(claim)];
        changes.extend(reports.into_iter().map(Change::Report));
        self.apply(changes).await
    }

    /// Replaces an open claim, gives back or finishes envelopes of it, with the reports.
    ///
    /// # Errors
    /// [`StoreError::UnknownClaim`] if it is closed or unknown; nothing was done then.
    pub async fn update_claim(
        &self,
        claim: ClaimRow,
        requeue: Vec<EnvelopeId>,
        finish: Vec<EnvelopeId>,
        reports: Vec<NewReport>,
    ) -> Result<(), StoreError> {
        let mut changes = vec![Change::UpdateClaim(claim)];
        changes.extend(
            requeue
                .into_iter()
                .map(|id| Change::Requeue { id, hold: None }),
        );
        changes.extend(reports.into_iter().map(Change::Report));
        changes.extend(finish.into_iter().map(Change::Finish));
        self.apply(changes).await
    }

    /// Says why a queued envelope waits, with the reports.
    ///
    /// # Errors
    /// [`StoreError::NotQueued`] if it does not wait; nothing was done then.
    pub async fn hold(
        &self,
        id: EnvelopeId,
        reason: impl Into<String> + Send,
        reports: Vec<NewReport>,
    ) -> Result<(), StoreError> {
        let reason = Some(reason.into());
        let mut changes = vec![Change::Hold { id, reason }];
        changes.extend(reports.into_iter().map(Change::Report));
        self.apply(changes).await
    }

    /// Nothing follows on this envelope; the reports are remembered as its end.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn finish(&self, id: EnvelopeId, reports: Vec<NewReport>) -> Result<(), StoreError> {
        let mut changes = vec![Change::Finish(id)];
        changes.extend(reports.into_iter().map(Change::Report));
        self.apply(changes).await
    }

    /// Inserts or replaces a session.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn put_session(&self, row: SessionRow) -> Result<(), StoreError> {
        self.apply(vec![Change::Session(row)]).await
    }

    /// Starts a run with its reports: claims the attempt's envelope in the same transaction.
    ///
    /// # Errors
    /// [`StoreError::NotQueued`] if the attempt is over, [`StoreError::RunExists`] if it has a run; nothing was done then.
    pub async fn start_run(&self, run: RunRow, reports: Vec<NewReport>) -> Result<(), StoreError> {
        let mut changes = vec![Change::StartRun(run)];
        changes.extend(reports.into_iter().map(Change::Report));
        self.apply(changes).await
    }

    /// Replaces a run's row, with reports.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn update_run(&self, run: RunRow, reports: Vec<NewReport>) -> Result<(), StoreError> {
        let mut changes = vec![Change::UpdateRun(run)];
        changes.extend(reports.into_iter().map(Change::Report));
        self.apply(changes).await
    }

    /// Lets the reports go that wait for this upload, which goes on.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn release_upload(&self, id: EnvelopeId) -> Result<(), StoreError> {
        self.job(true, move |tx| uploads::release(tx, id)).await
    }

    /// Forgets an upload that is done or never will be; the reports that wait for it go with that.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn end_upload(&self, id: EnvelopeId) -> Result<(), StoreError> {
        self.job(true, move |tx| uploads::end(tx, id)).await
    }

    /// Deletes a bounded part of what is past its keeping time at `now`; gives whether there is more.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn sweep(&self, now: WallMs) -> Result<bool, StoreError> {
        self.job(true, move |tx| claims::sweep(tx, now)).await
    }
}

fn spawn(name: &str, path: &Path, f: impl FnOnce() + Send + 'static) -> Result<(), StoreError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(f)
        .map(drop)
        .map_err(|e| StoreError::Open {
            path: path.to_owned(),
            detail: e.to_string(),
        })
}

fn now() -> WallMs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    WallMs(since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
}
