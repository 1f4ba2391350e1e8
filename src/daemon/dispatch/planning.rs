//! What becomes of each envelope that waits: its plan, and what the plan asks for.

use super::brain::Brain;
use crate::config;
use crate::daemon::clock;
use crate::daemon::projects::Project;
use crate::daemon::store::{Change, EnvelopeState, NewReport};
use crate::delivery::planner::{self, Plan, Target};
use crate::delivery::{Approval, Features, Policy, ProjectPolicy, SessionSnapshot};
use crate::domain::{
    Envelope, EnvelopeId, ProjectName, Receipt, ReportBody, Stage, TaskState, TaskStatus, WallMs,
};

impl Brain {
    /// The user's wishes and the device's means, as they are now.
    pub(super) fn policy(&self) -> Policy {
        let config = &self.parts.config;
        let projects = self
            .projects
            .iter()
            .map(|p| {
                let mine = self
                    .registry
                    .iter()
                    .filter(|s| s.project.as_ref() == Some(&p.name));
                let policy = ProjectPolicy {
                    last_active: mine.map(|s| s.active_at).max(),
                    approval: approval(self.project_config(&p.name).approval),
                    ..ProjectPolicy::default()
                };
                (p.name.clone(), policy)
            })
            .collect();
        let f = config.policy.features;
        Policy {
            features: Features {
                memory_injection: f.memory_injection,
                message_notification: f.message_notification,
                remote_task_execution: f.remote_task_execution && config.doors.headless,
            },
            projects,
            approval: approval(config.policy.approval),
            idle_threshold_ms: i64::try_from(config.idle_threshold.as_millis()).unwrap_or(i64::MAX),
            preferred_session: config.session_id,
            paused: self.paused,
            claude_missing: self.parts.claude.is_none(),
            blocked: self.runs.block(),
            capacity: self.runs.free(),
            ..Policy::default()
        }
    }

    /// What the configuration says about this project.
    pub(super) fn project_config(&self, name: &ProjectName) -> &config::Policy {
        let config = &self.parts.config;
        config.projects.get(name.as_str()).unwrap_or(&config.policy)
    }

    /// The enabled project of this name.
    pub(super) fn project(&self, name: &ProjectName) -> Option<&Project> {
        self.projects.iter().find(|p| p.name == *name)
    }

    pub(super) fn plan(
        &self,
        envelope: &Envelope,
        policy: &Policy,
        snapshots: &[SessionSnapshot],
        now: WallMs,
    ) -> Plan {
        let of_project;
        let target = match (&envelope.to.session_id, &envelope.to.project) {
            (Some(id), _) => {
                let id = self.registry.resolve(*id).map(|s| s.id);
                match snapshots.iter().find(|s| Some(s.session_id) == id) {
                    Some(session) => Target::Session(session),
                    None => Target::Unknown,
                }
            }
            (None, Some(name)) => {
                of_project = snapshots
                    .iter()
                    .filter(|s| s.project.as_ref() == Some(name))
                    .cloned()
                    .collect::<Vec<_>>();
                Target::Project {
                    name,
                    sessions: &of_project,
                }
            }
            (None, None) => Target::Device {
                sessions: snapshots,
            },
        };
        planner::plan(envelope, target, policy, now)
    }

    pub(super) fn snapshots(&self) -> Vec<SessionSnapshot> {
        self.registry
            .iter()
            .map(super::registry::Session::snapshot)
            .collect()
    }

    pub(super) async fn plan_all(&mut self) {
        let mut ids: Vec<_> = self
            .mail
            .iter()
            .filter(|(_, m)| !m.taken)
            .map(|(id, m)| (m.ord, *id))
            .collect();
        ids.sort_unstable();
        self.plan_each(ids.into_iter().map(|(_, id)| id).collect())
            .await;
    }

    /// Plans these envelopes in order and does what the plans say.
    pub(super) async fn plan_each(&mut self, ids: Vec<EnvelopeId>) {
        if ids.is_empty() {
            return;
        }
        let now = clock::wall();
        let snapshots = self.snapshots();
        let mut changes = Vec::new();
        let mut done = Vec::new();
        let mut policy = self.policy();
        for id in ids {
            // Capacity changes with every run that starts.
            policy.capacity = self.runs.free();
            let Some(mail) = self.mail.get(&id).filter(|m| !m.taken) else {
                continue;
            };
            let plan = self.plan(&mail.head, &policy, &snapshots, now);
            let expires = mail.head.expires_at;
            let is_task = mail.is_task();
            let until = match &plan {
                Plan::Hold { until, .. } => Some(until.map_or(expires, |t| t.min(expires))),
                Plan::Hooks { .. } | Plan::Inbox { .. } | Plan::Doorbell { .. } => Some(expires),
                _ => None,
            };
            let reason = match &plan {
                Plan::Hold { reason, .. } => Some(reason.as_str().to_owned()),
                _ => None,
            };
            let stage = plan.stage();
            let state = plan.task_state().filter(|_| is_task);
            if let Some(mail) = self.mail.get_mut(&id) {
                mail.until = until;
                if reason != mail.hold && plan_waits(&plan) {
                    mail.hold.clone_from(&reason);
                    changes.push(Change::Hold { id, reason });
                    changes.extend(reports(id, stage.as_ref(), state.as_ref(), now));
                    continue;
                }
            }
            match plan {
                Plan::Hold { .. }
                | Plan::Hooks { .. }
                | Plan::Inbox { .. }
                | Plan::Doorbell { .. } => {}
                Plan::Undeliverable { .. }
                | Plan::Reject { .. }
                | Plan::Unsupported
                | Plan::Expired => {
                    changes.push(Change::FinishQueued(id));
                    changes.extend(reports(id, stage.as_ref(), state.as_ref(), now));
                    done.push(id);
                }
                Plan::Control => self.control(id).await,
                Plan::Headless {
                    resume, project, ..
                } => self.start_run(id, resume, project).await,
            }
        }
        if self.apply(changes).await {
            for id in done {
                self.mail.remove(&id);
            }
        }
    }

    /// An envelope that is not for a session.
    async fn control(&mut self, id: EnvelopeId) {
        let Some(mail) = self.mail.get(&id) else {
            return;
        };
        let cancel = mail.head.cancel();
        let now = clock::wall();
        let mut changes = Vec::new();
        if let Some(cancel) = cancel {
            changes.extend(self.cancel(cancel.task_id).await);
        }
        changes.push(Change::FinishQueued(id));
        changes.extend(reports(id, Some(&Stage::Done), None, now));
        if self.apply(changes).await {
            self.mail.remove(&id);
        }
    }

    /// Stops a task: one that waits ends here, one that runs is told to stop.
    async fn cancel(&mut self, task: EnvelopeId) -> Vec<Change> {
        let waiting = match self.parts.store.attempts(task).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::error!(%error, %task, "a task to be cancelled cannot be read");
                Vec::new()
            }
        };
        let now = clock::wall();
        let mut changes = Vec::new();
        for row in waiting {
            let id = row.envelope.id;
            if row.state == EnvelopeState::Queued {
                changes.push(Change::FinishQueued(id));
                let state = TaskState::new(TaskStatus::Cancelled);
                changes.extend(reports(id, Some(&Stage::Cancelled), Some(&state), now));
                self.mail.remove(&id);
            } else {
                self.runs.cancel(id);
            }
        }
        changes
    }
}

const fn approval(configured: config::Approval) -> Approval {
    match configured {
        config::Approval::ByTrust => Approval::ByTrust,
        config::Approval::Always => Approval::Always,
    }
}

/// Whether the envelope stays in the queue under this plan.
const fn plan_waits(plan: &Plan) -> bool {
    matches!(
        plan,
        Plan::Hold { .. } | Plan::Hooks { .. } | Plan::Inbox { .. } | Plan::Doorbell { .. }
    )
}

/// The reports of a stage and, for a task, of its state.
pub(super) fn reports(
    id: EnvelopeId,
    stage: Option<&Stage>,
    state: Option<&TaskState>,
    at: WallMs,
) -> Vec<Change> {
    let receipt = stage.map(|stage| {
        NewReport::receipt(
            id,
            Receipt {
                stage: stage.clone(),
                at,
                evidence: None,
            },
        )
    });
    let status = state.map(|s| NewReport::new(id.0, at, ReportBody::Status(s.clone())));
    status
        .into_iter()
        .chain(receipt)
        .map(Change::Report)
        .collect()
}
