//! What is kept: changes that the store takes or refuses, and sessions stored and reported a moment after they changed.

use tokio::time::Instant;

use super::{AGAIN, Brain, RESYNC_GAP};
use crate::daemon::clock;
use crate::daemon::store::{Change, NewReport, StoreError};
use crate::domain::{Code, ReportBody};

impl Brain {
    /// Tries once more to keep what has happened.
    pub(super) async fn save_again(&mut self) {
        for changes in std::mem::take(&mut self.unsaved) {
            self.apply_surely(changes).await;
        }
    }

    /// Makes changes durable; false if the store refused, after which everything is read anew.
    pub(in crate::daemon::dispatch) async fn apply(&mut self, changes: Vec<Change>) -> bool {
        if changes.is_empty() {
            return true;
        }
        match self.parts.store.apply(changes).await {
            Ok(()) => true,
            Err(error) => {
                self.refused(&error);
                false
            }
        }
    }

    /// As [`Self::apply`], for what has happened already: a store that is full or away is asked again until it takes it.
    pub(in crate::daemon::dispatch) async fn apply_surely(&mut self, changes: Vec<Change>) -> bool {
        match self.parts.store.apply(changes.clone()).await {
            Ok(()) => true,
            Err(error) => {
                self.refused(&error);
                if is_away(&error) {
                    self.unsaved.push(changes);
                }
                false
            }
        }
    }

    /// The store is right: what is known here is read anew, but not from within the reading itself.
    fn refused(&mut self, error: &StoreError) {
        tracing::warn!(%error, "a change was refused; the queue is read anew");
        let now = Instant::now();
        let at = if is_away(error) {
            now + AGAIN
        } else {
            self.resynced.map_or(now, |t| now.max(t + RESYNC_GAP))
        };
        self.resync_at = Some(self.resync_at.map_or(at, |t| t.min(at)));
    }

    /// Stores and reports the sessions that changed.
    pub(in crate::daemon::dispatch) async fn flush(&mut self) {
        self.flush_at = None;
        let mut changes: Vec<Change> = Vec::new();
        let (forgotten, dirty) = (
            std::mem::take(&mut self.forgotten),
            std::mem::take(&mut self.dirty),
        );
        for id in &forgotten {
            self.reported.remove(id);
            changes.push(Change::ForgetSession(*id));
        }
        let now = clock::wall();
        for id in dirty.iter().copied() {
            let Some(session) = self.registry.get_mut(id) else {
                continue;
            };
            let row = session.row();
            let info = row.info();
            let told = self.reported.get(&id).is_some_and(|before| {
                (before.activity, &before.project, &before.lineage)
                    == (info.activity, &info.project, &info.lineage)
            });
            if !told {
                changes.push(Change::Report(NewReport::new(
                    id.0,
                    now,
                    ReportBody::Session(info.clone()),
                )));
                self.reported.insert(id, info);
            }
            changes.push(Change::Session(row));
        }
        if !self.apply(changes).await {
            // Told when the store takes it.
            for id in &dirty {
                self.reported.remove(id);
            }
            self.forgotten.extend(forgotten);
            self.dirty.extend(dirty);
            self.flush_at = Some(Instant::now() + AGAIN);
        }
    }
}

/// Whether the store could not do it now, rather than that the change does not fit what it holds.
fn is_away(error: &StoreError) -> bool {
    error.code() != Code::Conflict
}
