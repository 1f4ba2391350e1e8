//! The end of a run: what it means for its envelope, durable together with every report of it.

use uuid::Uuid;

use super::brain::Brain;
use super::planning::reports;
use super::result_size;
use crate::auth::crypto::sha256;
use crate::daemon::clock;
use crate::daemon::store::{Change, EnvelopeRow, NewReport, NewUpload};
use crate::delivery::{Block, Reason};
use crate::domain::{
    EnvelopeId, EnvelopeKind, Reply, ReportBody, Stage, TaskResult, TaskState, TaskStatus, WallMs,
    WholeText,
};
use crate::trigger::{self, Ended, RunError};

/// The first wait after a failure that says nothing about the task (overload, login), ms; it doubles.
const BLOCK_MS: i64 = 30_000;
/// The longest such wait, ms.
const BLOCK_MAX_MS: i64 = 30 * 60_000;

/// Why what kills its daemon is given up.
const POISON: &str = "daemon_died_at_every_start";

impl Brain {
    pub(super) async fn ended(&mut self, id: EnvelopeId, ended: Result<Ended, RunError>) {
        let Some(active) = self.runs.active.remove(&id) else {
            return;
        };
        self.replan();
        let now = clock::wall();
        let (mut state, result, read) = match &ended {
            Ok(ended) => {
                let outcome = trigger::outcome(&ended.observed());
                (outcome.state, outcome.result, true)
            }
            Err(error) => {
                tracing::warn!(%id, %error, "a run did not begin");
                let text = error.to_string();
                let result = TaskResult {
                    text,
                    is_error: true,
                    ..TaskResult::default()
                };
                (error.task_state(), result, false)
            }
        };
        if state.status == TaskStatus::Blocked {
            self.blocked(&mut state, now);
            self.give_back(id, &state, now).await;
            return;
        }
        if !read && state.status == TaskStatus::Interrupted {
            // Stopped before it read a word: it starts again with the next daemon.
            self.give_back(id, &TaskState::new(TaskStatus::Delivered), now)
                .await;
            return;
        }
        self.runs.blocks = 0;
        let mut row = active.row;
        row.finished = true;
        row.state = "ended".to_owned();
        let (task_id, attempt) = (row.task_id, row.attempt);
        let mut changes = vec![Change::UpdateRun(row)];
        if ended.as_ref().is_ok_and(Ended::was_answered) {
            changes.extend(reports(id, Some(&Stage::Seen), None, now));
        }
        if active.message {
            changes.extend(self.message_end(id, &state, &result, now));
        } else {
            changes.extend(
                self.task_end(id, (task_id, attempt), &state, result, now)
                    .await,
            );
        }
        changes.push(Change::Finish(id));
        tracing::info!(%id, project = %active.project, status = ?state.status, "a run ended");
        if self.apply_surely(changes).await {
            self.mail.remove(&id);
        }
    }

    /// The reports of a task's end, in order: what came of it, then how it ended. Where the whole text does not fit into a
    /// frame they wait until it is at the hub.
    async fn task_end(
        &self,
        id: EnvelopeId,
        (task_id, attempt): (EnvelopeId, u32),
        state: &TaskState,
        result: TaskResult,
        now: WallMs,
    ) -> Vec<Change> {
        let row = self.parts.store.envelope(id).await;
        if row.is_ok_and(|row| row.is_some_and(|row| row.local)) {
            // Never in a frame: read here, and whole.
            let told = NewReport::new(id.0, now, ReportBody::Result(result));
            let mut changes = vec![Change::Report(told)];
            changes.extend(reports(id, Some(&end_stage(state)), Some(state), now));
            return changes;
        }
        let (mut result, whole) = result_size::for_report(result);
        result.whole = whole.as_deref().map(|text| WholeText {
            bytes: text.len() as u64,
            sha256: hex(&sha256(text.as_bytes())),
        });
        let named = result.whole.clone();
        let told = NewReport::new(id.0, now, ReportBody::Result(result));
        let mut changes = vec![Change::Report(told)];
        changes.extend(reports(id, Some(&end_stage(state)), Some(state), now));
        let (Some(text), Some(whole)) = (whole, named) else {
            return changes;
        };
        let reports = changes.into_iter().filter_map(|c| match c {
            Change::Report(report) => Some(report),
            _ => None,
        });
        vec![Change::Upload(NewUpload {
            envelope: id,
            task_id,
            attempt,
            text,
            whole,
            reports: reports.collect(),
        })]
    }

    /// Ends what killed the daemon at each of its starts: it is not started again by itself.
    pub(super) async fn bury(&mut self, row: &EnvelopeRow) {
        let (id, now) = (row.envelope.id, clock::wall());
        tracing::error!(%id, starts = row.starts, "the daemon died at every start of a run; it is given up");
        let mut changes = vec![Change::FinishQueued(id)];
        if row.envelope.kind == EnvelopeKind::Task {
            let text = format!(
                "The daemon died at each of the {} starts of this task. It is not started again by itself: see the \
                 device's log, then start it once more by `POST /tasks/{{id}}/retry`.",
                row.starts
            );
            let result = TaskResult {
                text,
                is_error: true,
                ..TaskResult::default()
            };
            let report = NewReport::new(id.0, now, ReportBody::Result(result));
            changes.push(Change::Report(report));
            let state = TaskState::because(TaskStatus::Dead, POISON);
            changes.extend(reports(id, Some(&Stage::Done), Some(&state), now));
        } else {
            let reason = POISON.to_owned();
            let stage = Stage::Undeliverable { reason };
            changes.extend(reports(id, Some(&stage), None, now));
        }
        if self.apply(changes).await {
            self.mail.remove(&id);
        }
    }

    /// What the sender of a message learns: the session's answer, or why there is none.
    #[expect(
        clippy::unused_self,
        reason = "stands beside `ended`, whose other half it is"
    )]
    fn message_end(
        &self,
        id: EnvelopeId,
        state: &TaskState,
        result: &TaskResult,
        now: WallMs,
    ) -> Vec<Change> {
        if state.status != TaskStatus::Completed {
            let reason = state
                .reason
                .clone()
                .unwrap_or_else(|| "run_failed".to_owned());
            return reports(id, Some(&Stage::Undeliverable { reason }), None, now);
        }
        let reply = Reply {
            content: result_size::cut(result.text.clone()),
            session_id: result.session_id,
            at: now,
            id: EnvelopeId(Uuid::now_v7()),
        };
        let mut changes = vec![Change::Report(NewReport::new(
            id.0,
            now,
            ReportBody::Reply(reply),
        ))];
        changes.extend(reports(id, Some(&Stage::Done), None, now));
        changes
    }

    /// Runs pause: what failed says nothing about the task.
    fn blocked(&mut self, state: &mut TaskState, now: WallMs) {
        let wait = BLOCK_MS
            .saturating_mul(1 << self.runs.blocks.min(10))
            .min(BLOCK_MAX_MS);
        self.runs.blocks += 1;
        let until = state
            .until
            .filter(|t| *t > now)
            .unwrap_or_else(|| now.plus(wait));
        state.until = Some(until);
        let reason = state
            .reason
            .as_deref()
            .and_then(Reason::parse)
            .unwrap_or(Reason::Overloaded);
        self.runs.blocked = Some(Block {
            reason,
            until: Some(until),
        });
    }

    /// Puts an attempt back that was not spent.
    pub(super) async fn give_back(&mut self, id: EnvelopeId, state: &TaskState, now: WallMs) {
        let is_task = self.mail.get(&id).is_none_or(super::mail::Mail::is_task);
        let stage = state.reason.clone().map(|reason| Stage::Held { reason });
        let mut changes = vec![
            Change::ForgetRun(id),
            Change::Requeue {
                id,
                hold: state.reason.clone(),
            },
        ];
        changes.extend(reports(id, stage.as_ref(), is_task.then_some(state), now));
        if self.apply_surely(changes).await
            && let Some(mail) = self.mail.get_mut(&id)
        {
            mail.taken = false;
            mail.hold.clone_from(&state.reason);
        }
    }
}

/// The stage that a task's terminal status is.
pub(super) fn end_stage(state: &TaskState) -> Stage {
    match state.status {
        TaskStatus::Cancelled => Stage::Cancelled,
        _ => Stage::Done,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, b| {
        text.push_str(&format!("{b:02x}"));
        text
    })
}
