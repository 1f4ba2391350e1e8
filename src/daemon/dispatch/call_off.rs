//! What is called off: by its sender, or because a newer attempt of the same task is here.
//!
//! What waited has ended already, in the transaction that stored the cancel or the newer attempt (the store's `call_off`).
//! Here is the rest, what somebody has:
//!
//! - a run is asked to end, interrupt first; its end is reported as it truly was, `cancelled` only if the call came first;
//! - a task in a live session cannot be taken back. It ends as `cancelled`, its receipt's evidence says that the text may
//!   have been read, and the session is told at its next boundary; what the session says about it later counts no more.
//!   The person at that session is never interrupted from afar;
//! - a message that somebody has goes its way.

use serde_json::json;
use uuid::Uuid;

use super::brain::Brain;
use super::followed::Followed;
use super::planning::reports;
use crate::daemon::clock;
use crate::daemon::store::{Change, EnvelopeRow, EnvelopeState, NewReport};
use crate::delivery::claims::ClaimState;
use crate::domain::{
    Activity, Address, Envelope, EnvelopeId, EnvelopeKind, Priority, Receipt, ReportBody, Sender,
    SessionId, Stage, TaskState, TaskStatus, Trust, WallMs,
};

/// Characters of a task's text by which its session is reminded of it.
const REMINDER: usize = 100;
/// How long a session may be told that its task was called off, ms.
const NOTICE_MS: i64 = 3_600_000;

impl Brain {
    /// An envelope that is not for a session.
    pub(super) async fn control(&mut self, id: EnvelopeId) {
        let Some(mail) = self.mail.get(&id) else {
            return;
        };
        let head = mail.head.clone();
        if head.kind == EnvelopeKind::Cancel && !self.call_off(&head).await {
            // The store is away: the cancel still waits, and is done when everything is read anew.
            return;
        }
        let now = clock::wall();
        let mut changes = vec![Change::FinishQueued(id)];
        changes.extend(reports(id, Some(&Stage::Done), None, now));
        if self.apply(changes).await {
            self.mail.remove(&id);
        }
    }

    /// Does what a cancel asks for with what somebody has; false if the store cannot tell now.
    async fn call_off(&mut self, cancel: &Envelope) -> bool {
        let rows = match self.parts.store.called_off(cancel.clone()).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::error!(%error, id = %cancel.id, "what is to be called off cannot be read");
                return false;
            }
        };
        for row in rows {
            self.stop_attempt(row, &cancel.from).await;
        }
        true
    }

    /// Ends older attempts where a newer one of the same task came.
    pub(super) async fn supersede(&mut self, new: &[EnvelopeId]) {
        for id in new {
            let Some(mail) = self.mail.get(id) else {
                continue;
            };
            let (newest, by) = (mail.head.attempt.unwrap_or(1), mail.head.from.clone());
            let Some(task) = mail.head.task().filter(|_| newest > 1) else {
                continue;
            };
            match self.parts.store.attempts(task.task_id).await {
                Ok(rows) => {
                    for row in rows {
                        if row.envelope.attempt.unwrap_or(1) < newest {
                            self.stop_attempt(row, &by).await;
                        }
                    }
                }
                Err(error) => tracing::error!(%error, %id, "older attempts cannot be read"),
            }
        }
    }

    /// Whether another attempt of this task is under way: this one has to wait for its end.
    pub(super) fn other_attempt_goes(&self, envelope: &Envelope) -> bool {
        let Some(task) = envelope.task() else {
            return false;
        };
        self.mail.values().any(|m| {
            m.taken
                && m.head.id != envelope.id
                && m.head.task().is_some_and(|t| t.task_id == task.task_id)
        })
    }

    async fn stop_attempt(&mut self, row: EnvelopeRow, by: &Sender) {
        let id = row.envelope.id;
        match row.state {
            EnvelopeState::Terminal => {
                self.mail.remove(&id);
            }
            EnvelopeState::Claimed if row.envelope.kind == EnvelopeKind::Task => {
                self.runs.cancel(id);
                self.let_go(&row.envelope, by).await;
            }
            EnvelopeState::Claimed | EnvelopeState::Queued => {}
        }
    }

    /// Takes a task out of the claim that a live session has on it.
    async fn let_go(&mut self, task: &Envelope, by: &Sender) {
        let id = task.id;
        let held = self
            .claims
            .iter()
            .find(|(_, f)| f.claim.envelopes.contains(&id));
        let Some((claim_id, mut followed)) = held.map(|(c, f)| (*c, f.clone())) else {
            return;
        };
        let now = clock::wall();
        let claim = &mut followed.claim;
        let session = claim.session;
        let handed = claim.state != ClaimState::Claimed;
        claim.envelopes.retain(|e| *e != id);
        if claim.envelopes.is_empty() {
            claim.state = ClaimState::Done;
        }
        let is_over = claim.state.is_final();
        let last = followed.last_message.as_deref();
        let row = Followed::row(&followed.claim, last, followed.opened_at);
        let receipt = Receipt {
            stage: Stage::Cancelled,
            at: now,
            evidence: handed.then(|| json!({"handed_over": true, "session_id": session})),
        };
        let state = TaskState::new(TaskStatus::Cancelled);
        let mut changes = vec![
            Change::UpdateClaim(row),
            // First, so that its evidence is not lost to the receipt that the status implies.
            Change::Report(NewReport::receipt(id, receipt)),
            Change::Report(NewReport::new(id.0, now, ReportBody::Status(state))),
            Change::Finish(id),
        ];
        let lives = self
            .registry
            .resolve(session)
            .is_some_and(|s| s.activity != Activity::Closed);
        if handed && lives {
            changes.push(Change::Post(notice(task, by, session, now)));
        }
        if !self.apply(changes).await {
            return;
        }
        if is_over {
            self.claims.remove(&claim_id);
        } else {
            self.claims.insert(claim_id, followed);
        }
        self.mail.remove(&id);
        self.replan();
    }
}

/// What a session is told about a task that it was given and that was called off.
fn notice(task: &Envelope, by: &Sender, session: SessionId, now: WallMs) -> Envelope {
    let text = task.task().map(|t| t.task).unwrap_or_default();
    let mut start: String = text.chars().take(REMINDER).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    let content = format!(
        "The task that you were given earlier was called off by its sender. Do no further work on it and report nothing \
         about it; what is done so far stays as it is. It began with:\n\n{start}"
    );
    Envelope {
        id: EnvelopeId(Uuid::now_v7()),
        kind: EnvelopeKind::Message,
        from: Sender {
            name: by.name.clone(),
            trust: Trust::Inform,
        },
        to: Address {
            project: None,
            session_id: Some(session),
        },
        priority: Priority::Urgent,
        body: json!({ "content": content }),
        wake: false,
        created_at: now,
        expires_at: now.plus(NOTICE_MS),
        attempt: None,
        hops: 0,
        reply_to: None,
    }
}
