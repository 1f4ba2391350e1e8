//! What becomes of each envelope that waits: its plan, and what the plan asks for.

use std::collections::BTreeMap;

use super::brain::Brain;
use crate::config;
use crate::daemon::clock;
use crate::daemon::projects::Project;
use crate::daemon::store::{Change, NewReport};
use crate::delivery::planner::{self, Plan, Target};
use crate::delivery::{Approval, Features, Policy, ProjectPolicy, Reason, SessionSnapshot};
use crate::domain::{
    Activity, Envelope, EnvelopeId, ProjectName, Receipt, ReportBody, SessionId, Stage, TaskState,
    TaskStatus, WallMs,
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
                let own = self.project_config(&p.name);
                let policy = ProjectPolicy {
                    last_active: mine.map(|s| s.active_at).max(),
                    features: Some(features(own.features, config.doors.headless)),
                    approval: approval(own.approval),
                    tree: self.runs.tree(&p.name),
                    ..ProjectPolicy::default()
                };
                (p.name.clone(), policy)
            })
            .collect();
        Policy {
            features: features(config.policy.features, config.doors.headless),
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

    /// What the user's configuration and the project's own file say about this project.
    pub(super) fn project_config(&self, name: &ProjectName) -> &config::Policy {
        let narrowed = self.policies.get(name);
        narrowed.unwrap_or_else(|| self.parts.config.policy_of(name.as_str()))
    }

    /// The enabled project of this name.
    pub(super) fn project(&self, name: &ProjectName) -> Option<&Project> {
        self.projects.iter().find(|p| p.name == *name)
    }

    pub(super) fn plan(
        &self,
        envelope: &Envelope,
        policy: &Policy,
        scene: &Scene,
        now: WallMs,
    ) -> Plan {
        let target = match (&envelope.to.session_id, &envelope.to.project) {
            (Some(id), _) => {
                let id = self.registry.resolve(*id).map(|s| s.id);
                match id.and_then(|id| scene.sessions.get(&id)) {
                    Some(session) => Target::Session(session),
                    None => Target::Unknown,
                }
            }
            (None, Some(name)) => Target::Project {
                name,
                sessions: scene.of_project.get(name).map_or(&[], std::slice::from_ref),
            },
            (None, None) => Target::Device {
                sessions: scene.of_device.as_slice(),
            },
        };
        match planner::plan(envelope, target, policy, now) {
            // Two attempts of a task never go at once; the older one is being stopped.
            Plan::Headless { .. }
            | Plan::Hooks { .. }
            | Plan::Inbox { .. }
            | Plan::Doorbell { .. }
                if self.other_attempt_goes(envelope) =>
            {
                Plan::Hold {
                    reason: Reason::OlderAttempt,
                    until: None,
                }
            }
            plan => plan,
        }
    }

    /// The sessions as they are now. `acting` is in a turn, whatever was last heard of it.
    pub(super) fn scene(&self, policy: &Policy, acting: Option<(SessionId, WallMs)>) -> Scene {
        let running = self.runs.sessions();
        let snapshots = self.registry.iter().map(|s| {
            let mut snapshot = s.snapshot();
            if running.contains(&s.id) {
                // Also before its first hook event tells so.
                snapshot.own_run = true;
                snapshot.owned_by_live_process = true;
            }
            if let Some((_, now)) = acting.filter(|(id, _)| *id == s.id) {
                snapshot.activity = Activity::Busy;
                snapshot.last_active = now;
                snapshot.owned_by_live_process = true;
            }
            snapshot
        });
        Scene::new(snapshots, policy)
    }

    pub(super) async fn plan_all(&mut self) {
        self.tell_time();
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
        let mut changes = Vec::new();
        let mut done = Vec::new();
        let mut policy = self.policy();
        let mut scene = self.scene(&policy, None);
        for id in ids {
            // Capacity changes with every run that starts.
            policy.capacity = self.runs.free();
            let Some(mail) = self.mail.get(&id).filter(|m| !m.taken) else {
                continue;
            };
            let plan = self.plan(&mail.head, &policy, &scene, now);
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
            // What is held no more goes back to where it was before.
            let state = plan
                .task_state()
                .or_else(|| plan_waits(&plan).then(|| TaskState::new(TaskStatus::Delivered)))
                .filter(|_| is_task);
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
                } => {
                    self.start_run(id, resume, project.clone()).await;
                    // The next one must not resume the same session, nor work in the same folder.
                    if let Some(p) = policy.projects.get_mut(&project) {
                        p.tree = self.runs.tree(&project);
                    }
                    scene = self.scene(&policy, None);
                }
            }
        }
        if self.apply(changes).await {
            for id in done {
                self.mail.remove(&id);
            }
        }
    }
}

/// The sessions that mail may go to, looked up once for many envelopes.
#[derive(Debug, Default)]
pub(super) struct Scene {
    sessions: BTreeMap<SessionId, SessionSnapshot>,
    /// Of each project the one session that its mail goes to.
    of_project: BTreeMap<ProjectName, SessionSnapshot>,
    /// The one that mail goes to that names neither session nor project.
    of_device: Option<SessionSnapshot>,
}

impl Scene {
    fn new(snapshots: impl Iterator<Item = SessionSnapshot>, policy: &Policy) -> Self {
        let sessions: BTreeMap<_, _> = snapshots.map(|s| (s.session_id, s)).collect();
        let mut groups: BTreeMap<&ProjectName, Vec<&SessionSnapshot>> = BTreeMap::new();
        let mut reachable = Vec::new();
        for s in sessions.values() {
            if let Some(project) = &s.project {
                groups.entry(project).or_default().push(s);
            }
            if s.project
                .as_ref()
                .is_none_or(|p| policy.projects.contains_key(p))
            {
                reachable.push(s);
            }
        }
        let choose = |of: Vec<&SessionSnapshot>| {
            planner::choose_session(of, policy.preferred_session).cloned()
        };
        let of_project = groups
            .into_iter()
            .filter_map(|(name, of)| Some((name.clone(), choose(of)?)))
            .collect();
        let of_device = choose(reachable);
        Self {
            sessions,
            of_project,
            of_device,
        }
    }
}

const fn features(configured: config::Features, headless: bool) -> Features {
    Features {
        memory_injection: configured.memory_injection,
        message_notification: configured.message_notification,
        remote_task_execution: configured.remote_task_execution && headless,
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
