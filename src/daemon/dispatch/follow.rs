//! Claims on their way: what transcripts, processes and time say about them, and what that makes of their envelopes.

use std::path::Path;

use serde_json::json;

use super::brain::Brain;
use super::followed::Followed;
use super::registry::{Owner, Sighting, project_of};
use crate::claude::live_sessions;
use crate::claude::{ProcessTable as _, SystemProcesses};
use crate::daemon::clock;
use crate::daemon::projects::Project;
use crate::daemon::store::{Change, NewReport};
use crate::delivery::claims::{ClaimState, Effect, Quiet, Sign};
use crate::domain::{
    Activity, ClaimId, Door, EnvelopeId, Receipt, ReportBody, SessionId, Stage, TaskResult,
    TaskState, TaskStatus, WallMs, limits,
};
use crate::local::own_uid;

/// How long a session that closed may still write to its transcript, ms.
const SETTLE_MS: i64 = 2_000;
/// How long a task may take in a live session before it is told to have failed, ms.
const LIVE_TASK_MS: i64 = (limits::RUN_TIMEOUT_S * 1000).cast_signed();

/// The CLI's own list of live sessions, with their projects; `None` if it cannot be read.
pub(super) fn sightings(claude_dir: &Path, projects: &[Project]) -> Option<Vec<Sighting>> {
    let uid = own_uid().unwrap_or_default();
    let scan = match live_sessions(claude_dir, uid, &SystemProcesses) {
        Ok(scan) => scan,
        Err(error) => {
            tracing::warn!(%error, "the CLI's list of live sessions cannot be read");
            return None;
        }
    };
    let sightings = scan
        .sessions
        .into_iter()
        .filter_map(|s| {
            let enabled = projects.iter().map(|p| (&p.name, p.path.as_path()));
            let project = s
                .cwd
                .as_deref()
                .and_then(|cwd| project_of(cwd, enabled).cloned());
            Some(Sighting {
                session: s.session_id,
                owner: Owner {
                    pid: s.pid,
                    start: s.proc_start.parse().ok()?,
                },
                activity: (s.activity != Activity::Unknown).then_some(s.activity),
                at: s.since.unwrap_or_default(),
                cwd: s.cwd,
                entrypoint: s.entrypoint,
                project,
            })
        })
        .collect();
    Some(sightings)
}

/// Whether this very process still runs.
pub(super) fn is_alive(owner: Owner) -> bool {
    SystemProcesses
        .look(owner.pid)
        .is_some_and(|p| p.start.parse() == Ok(owner.start))
}

impl Brain {
    /// Looks at every claim.
    pub(super) async fn follow(&mut self) {
        let ids: Vec<_> = self.claims.keys().copied().collect();
        for id in ids {
            self.look(id).await;
        }
    }

    /// Looks at the claims of one session.
    pub(super) async fn follow_session(&mut self, session: SessionId) {
        let ids: Vec<_> = self
            .claims
            .iter()
            .filter(|(_, f)| f.claim.session == session)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.look(id).await;
        }
    }

    async fn look(&mut self, id: ClaimId) {
        let Some(mut followed) = self.claims.get(&id).cloned() else {
            return;
        };
        let read = tokio::task::spawn_blocking(move || {
            let signs = followed.read();
            (followed, signs)
        });
        // Nobody else changes claims meanwhile: this is the actor.
        let Ok((followed, signs)) = read.await else {
            return;
        };
        let behind = followed.behind;
        self.claims.insert(id, followed);
        for sign in signs {
            self.sign(id, sign).await;
        }
        let Some(followed) = self.claims.get(&id) else {
            return;
        };
        let now = clock::wall();
        let claim = &followed.claim;
        let session = self.registry.resolve(claim.session);
        let closed = session
            .is_none_or(|s| s.activity == Activity::Closed && s.since.plus(SETTLE_MS) <= now);
        let rotated = session.is_some_and(|s| s.id != claim.session);
        let pending = followed.is_pending();
        if (closed || rotated) && claim.state == ClaimState::Unconfirmed {
            self.forget(id, now).await;
            return;
        }
        if behind {
            // No conclusion from a transcript that was not read to its end.
        } else if rotated {
            // The session goes on under another id and without what stood in this transcript unanswered.
            let read = claim.transcript.is_some();
            self.sign(id, Sign::TurnBoundaryWithoutNonce).await;
            if !read {
                self.sign(id, Sign::ProcessGone).await;
            }
            self.sign(id, Sign::TurnEnded).await;
        } else if closed {
            if pending {
                // A prompt whose process was killed stays in the conversation.
                let turn_ended = true;
                self.sign(id, Sign::EvidenceSeen { turn_ended }).await;
            }
            // Its turn is over with its process: what was seen is done, what was not never will be.
            self.sign(id, Sign::ProcessGone).await;
            self.sign(id, Sign::TurnEnded).await;
        } else if claim.state.is_open() && claim.lease_until <= now {
            let quiet = match session {
                // Idle after Esc: the next prompt tells.
                Some(s) if s.activity == Activity::Idle && !pending => {
                    Quiet::IdleSince(s.idle_since.unwrap_or(s.since))
                }
                _ => Quiet::Busy,
            };
            self.sign(id, Sign::LeaseDue(quiet)).await;
        }
        if self.overdue_task(id, now) {
            self.give_up(id, now).await;
        }
    }

    /// Whether the claim holds a task whose session has had its time.
    fn overdue_task(&self, id: ClaimId, now: WallMs) -> bool {
        self.claims.get(&id).is_some_and(|f| {
            f.opened_at.plus(LIVE_TASK_MS) <= now
                && f.claim.envelopes.iter().any(|e| self.is_task(*e))
        })
    }

    fn is_task(&self, id: EnvelopeId) -> bool {
        self.mail.get(&id).is_some_and(super::mail::Mail::is_task)
    }

    /// Tells a claim of a sign, and makes durable what follows.
    pub(super) async fn sign(&mut self, id: ClaimId, sign: Sign) {
        let now = clock::wall();
        let Some(followed) = self.claims.get_mut(&id) else {
            return;
        };
        let before = followed.claim.clone();
        let effect = followed.claim.on(sign, now);
        if before == followed.claim {
            return;
        }
        let changes = self.effects(id, &effect, now);
        if !self.apply(changes).await {
            // Refused: the claim is another one now, or the store is away; the store is right.
            self.reload_claim(id).await;
            return;
        }
        let Some(followed) = self.claims.get(&id) else {
            return;
        };
        let (done, envelopes) = (
            followed.claim.state == ClaimState::Done,
            followed.claim.envelopes.clone(),
        );
        if effect.requeue {
            for envelope in &envelopes {
                if let Some(mail) = self.mail.get_mut(envelope) {
                    mail.taken = false;
                }
            }
            self.replan();
        }
        if done {
            for envelope in &envelopes {
                self.mail.remove(envelope);
            }
        }
        if self
            .claims
            .get(&id)
            .is_some_and(|f| f.claim.state.is_final())
        {
            self.claims.remove(&id);
            // The lane is free again.
            self.replan();
        }
    }

    fn effects(&self, id: ClaimId, effect: &Effect, now: WallMs) -> Vec<Change> {
        let Some(followed) = self.claims.get(&id) else {
            return Vec::new();
        };
        let claim = &followed.claim;
        let row = Followed::row(claim, followed.last_message.as_deref(), followed.opened_at);
        let mut changes = vec![Change::UpdateClaim(row)];
        for envelope in &claim.envelopes {
            let task = self.is_task(*envelope);
            for stage in &effect.receipts {
                if *stage == Stage::Done && task {
                    let result = TaskResult {
                        text: followed.last_message.clone().unwrap_or_default(),
                        session_id: Some(claim.session),
                        ..TaskResult::default()
                    };
                    let state = TaskState::new(TaskStatus::Completed);
                    changes.push(report(*envelope, now, ReportBody::Result(result)));
                    changes.push(report(*envelope, now, ReportBody::Status(state)));
                }
                let evidence = (*stage == Stage::Seen)
                    .then(|| json!({"session_id": claim.session, "nonce": claim.nonce()}));
                let receipt = Receipt {
                    stage: stage.clone(),
                    at: now,
                    evidence,
                };
                changes.push(Change::Report(NewReport::receipt(*envelope, receipt)));
            }
            if effect.requeue {
                changes.push(Change::Requeue {
                    id: *envelope,
                    hold: None,
                });
                if task {
                    let again = TaskState::new(TaskStatus::Delivered);
                    changes.push(report(*envelope, now, ReportBody::Status(again)));
                }
            } else if claim.state == ClaimState::Done {
                changes.push(Change::Finish(*envelope));
            }
        }
        changes
    }

    /// A task that its live session never ended: the sender learns that, and the claim is closed.
    async fn give_up(&mut self, id: ClaimId, now: WallMs) {
        let Some(mut followed) = self.claims.get(&id).cloned() else {
            return;
        };
        followed.claim.state = ClaimState::Done;
        let row = Followed::row(&followed.claim, None, followed.opened_at);
        let mut changes = vec![Change::UpdateClaim(row)];
        for envelope in &followed.claim.envelopes {
            if self.is_task(*envelope) {
                let state = TaskState::because(TaskStatus::Failed, "declined");
                changes.push(report(*envelope, now, ReportBody::Status(state)));
            }
            let receipt = Receipt {
                stage: Stage::Done,
                at: now,
                evidence: None,
            };
            changes.push(Change::Report(NewReport::receipt(*envelope, receipt)));
            changes.push(Change::Finish(*envelope));
        }
        self.end_claim(id, &followed.claim.envelopes, changes).await;
    }

    /// A claim that nothing will ever tell about: its session is over and had no transcript. For the sender of a message it
    /// stays `handed_over`; a task has no result.
    async fn forget(&mut self, id: ClaimId, now: WallMs) {
        let Some(followed) = self.claims.get(&id) else {
            return;
        };
        let mut row = Followed::row(&followed.claim, None, followed.opened_at);
        row.closed = true;
        let mut changes = vec![Change::UpdateClaim(row)];
        let envelopes = followed.claim.envelopes.clone();
        for envelope in &envelopes {
            if self.is_task(*envelope) {
                let state = TaskState::because(TaskStatus::Failed, "no_result");
                changes.push(report(*envelope, now, ReportBody::Status(state)));
            }
            changes.push(Change::Finish(*envelope));
        }
        self.end_claim(id, &envelopes, changes).await;
    }

    async fn end_claim(&mut self, id: ClaimId, envelopes: &[EnvelopeId], changes: Vec<Change>) {
        if !self.apply(changes).await {
            // Still open: the next look tries again.
            return;
        }
        self.claims.remove(&id);
        for envelope in envelopes {
            self.mail.remove(envelope);
        }
        self.replan();
    }

    async fn reload_claim(&mut self, id: ClaimId) {
        match self.parts.store.claim(id).await {
            Ok(Some(row)) if !row.closed => {
                if let Some((id, followed)) = Followed::load(row) {
                    self.claims.insert(id, followed);
                }
            }
            Ok(_) => {
                self.claims.remove(&id);
            }
            Err(error) => tracing::error!(%error, %id, "a claim cannot be read"),
        }
    }

    /// Looks at the claims that programs opened through the local API: with one that came or went, the queue is another.
    pub(super) async fn look_at_foreign(&mut self) {
        match self.parts.store.open_claims().await {
            Ok(rows) => {
                let foreign = rows
                    .iter()
                    .filter(|r| r.door == Door::LocalApi)
                    .map(|r| r.id)
                    .collect();
                if foreign != self.foreign {
                    self.foreign = foreign;
                    self.resync().await;
                }
            }
            Err(error) => tracing::error!(%error, "open claims cannot be read"),
        }
    }
}

fn report(id: EnvelopeId, now: WallMs, body: ReportBody) -> Change {
    Change::Report(NewReport::new(id.0, now, body))
}
