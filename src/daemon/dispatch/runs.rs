//! Headless runs: from a plan to a process, from its end to the reports.
//!
//! A run is durable before its process starts, its process before it reads a word, its end together with all reports
//! of it. So a daemon that dies leaves one of three things: a run that never read its prompt (it starts again), a run
//! whose process is known (it is stopped and reported `interrupted`), or a finished one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use super::Msg;
use super::brain::Brain;
use super::env_file;
use super::planning::reports;
use super::registry::Changed;
use crate::claude::headless::{Conversation, ModelName, RunMode};
use crate::config;
use crate::daemon::clock;
use crate::daemon::store::{Change, NewReport, RunRow, StoreError};
use crate::delivery::fence::{HeadlessFrame, Letter, headless_prompt};
use crate::delivery::{Block, Tree};
use crate::domain::{
    ClaimId, Door, Envelope, EnvelopeId, PermissionMode, ProjectName, ReportBody, SessionId, Stage,
    TaskState, TaskStatus, limits,
};
use crate::trigger::{
    self, Decision, Ended, ProjectRuns, RunError, RunEvent, RunRequest, RunSpec, RunStarted,
    Running, SPAWN_RETRY_MS, Stops,
};

/// How long a run is asked to end before it is asked harder.
const GRACE: Duration = Duration::from_secs(5);
/// Steps of a run that wait to be reported; the latest ones count.
const STEPS: usize = 16;
/// Between two reports of a run's progress.
const PROGRESS: Duration = Duration::from_millis(500);

/// What a run tells the actor.
#[derive(Debug)]
pub(super) enum RunMsg {
    Started {
        id: EnvelopeId,
        started: RunStarted,
        stored: oneshot::Sender<Result<(), StoreError>>,
    },
    Event {
        id: EnvelopeId,
        event: RunEvent,
    },
    Ended {
        id: EnvelopeId,
        ended: Box<Result<Ended, RunError>>,
    },
}

/// What the run's row keeps beside its columns.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Detail {
    pub(super) nonce: Option<ClaimId>,
    pub(super) message: bool,
    pub(super) resumed: bool,
}

#[derive(Debug)]
pub(super) struct Active {
    pub(super) row: RunRow,
    stops: Stops,
    pub(super) project: ProjectName,
    pub(super) message: bool,
    progress_at: Option<Instant>,
}

/// The runs that go.
#[derive(Debug)]
pub(super) struct Runs {
    cap: u32,
    pub(super) active: BTreeMap<EnvelopeId, Active>,
    /// Failures in a row that said nothing about the task.
    pub(super) blocks: u32,
    /// No run starts before this block's time.
    pub(super) blocked: Option<Block>,
}

impl Runs {
    pub(super) fn new(cap: u32) -> Self {
        Self {
            cap,
            active: BTreeMap::new(),
            blocks: 0,
            blocked: None,
        }
    }

    pub(super) fn running(&self) -> u32 {
        u32::try_from(self.active.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn free(&self) -> u32 {
        self.cap.saturating_sub(self.running())
    }

    /// Whether a run of ours works in the project's folder: two would write over each other.
    pub(super) fn tree(&self, project: &ProjectName) -> Tree {
        if self.active.values().any(|a| a.project == *project) {
            Tree::Busy
        } else {
            Tree::Free
        }
    }

    /// Why no run can start at present, if so.
    pub(super) fn block(&self) -> Option<Block> {
        self.blocked
    }

    /// Tells the run of this attempt to stop, if there is one.
    pub(super) fn cancel(&self, id: EnvelopeId) {
        if let Some(active) = self.active.get(&id) {
            active.stops.cancel.cancel();
        }
    }

    /// The sessions in which runs of ours work.
    pub(super) fn sessions(&self) -> BTreeSet<SessionId> {
        self.active
            .values()
            .filter_map(|a| a.row.session_id)
            .collect()
    }
}

impl Brain {
    /// Starts the run that was planned for this envelope, or says why not.
    pub(super) async fn start_run(
        &mut self,
        id: EnvelopeId,
        resume: Option<SessionId>,
        project: ProjectName,
    ) {
        // A session may have been opened since the last look: never two writers.
        Box::pin(self.sight()).await;
        let envelope = match self.parts.store.envelope(id).await {
            Ok(Some(row)) if row.starts >= limits::MAX_ATTEMPTS => {
                self.bury(&row).await;
                return;
            }
            Ok(Some(row)) => row.envelope,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "a task cannot be read");
                return;
            }
        };
        let Some(letter) = Letter::of(&envelope) else {
            return;
        };
        let conversation = resume.map_or_else(
            || Conversation::New(SessionId(Uuid::new_v4())),
            Conversation::Resume,
        );
        let decision = self.decide(&envelope, conversation, &project);
        let now = clock::wall();
        let plan = match decision {
            Decision::Start(plan) => plan,
            Decision::Wait(reason) => {
                let reason = reason.as_str();
                if let Some(mail) = self.mail.get_mut(&id)
                    && mail.hold.as_deref() != Some(reason)
                {
                    mail.hold = Some(reason.to_owned());
                    let stage = Stage::Held {
                        reason: reason.to_owned(),
                    };
                    let mut changes = vec![Change::Hold {
                        id,
                        reason: Some(reason.to_owned()),
                    }];
                    changes.extend(reports(id, Some(&stage), None, now));
                    self.apply(changes).await;
                }
                return;
            }
            Decision::Refuse(reason) => {
                let state = reason.task_state();
                let stage = Stage::Undeliverable {
                    reason: reason.as_str().to_owned(),
                };
                let mut changes = vec![Change::FinishQueued(id)];
                changes.extend(reports(id, Some(&stage), Some(&state), now));
                if self.apply(changes).await {
                    self.mail.remove(&id);
                }
                return;
            }
        };
        let Some(program) = self.parts.claude.clone() else {
            return;
        };
        let policy = self.project_config(&project);
        let env = policy
            .runs
            .env_file
            .as_deref()
            .map_or_else(|| Ok(Vec::new()), env_file::read);
        let args = plan.headless.args();
        let (env, args) = match (env, args) {
            (Ok(env), Ok(args)) => (env, args),
            (env, args) => {
                let why = env.err().or_else(|| args.err().map(|e| e.to_string()));
                self.refuse_run(id, "bad_configuration", &why.unwrap_or_default())
                    .await;
                return;
            }
        };
        let (Conversation::New(session) | Conversation::Resume(session)) = conversation;
        let nonce = ClaimId(Uuid::new_v4());
        let frame = HeadlessFrame {
            nonce,
            project: &project,
            approved: false,
        };
        let prompt = headless_prompt(&letter, frame);
        let is_message = envelope.message().is_some();
        let detail = Detail {
            nonce: Some(nonce),
            message: is_message,
            resumed: resume.is_some(),
        };
        let row = RunRow {
            envelope: id,
            task_id: envelope.task().map_or(id, |t| t.task_id),
            attempt: envelope.attempt.unwrap_or(1),
            pid: None,
            proc_start: None,
            session_id: Some(session),
            started_at: now,
            state: "starting".to_owned(),
            finished: false,
            detail: serde_json::to_value(detail).unwrap_or_default(),
        };
        let running = TaskState::new(TaskStatus::Running);
        let claimed = Stage::Claimed {
            door: Door::Headless,
        };
        let mut changes = vec![Change::StartRun(row.clone())];
        changes.extend(reports(
            id,
            Some(&claimed),
            (!is_message).then_some(&running),
            now,
        ));
        if !self.apply(changes).await {
            return;
        }
        if let Some(mail) = self.mail.get_mut(&id) {
            mail.taken = true;
            mail.hold = None;
        }
        let spec = RunSpec {
            program,
            args,
            cwd: plan.cwd,
            prompt,
            env,
            run_id: id.to_string(),
            session_id: session,
            timeout: Duration::from_millis(plan.timeout_ms),
            grace: GRACE,
            spawn_retry: SPAWN_RETRY_MS
                .into_iter()
                .map(Duration::from_millis)
                .collect(),
        };
        let stops = Stops::default();
        let active = Active {
            row,
            stops: stops.clone(),
            project,
            message: is_message,
            progress_at: None,
        };
        self.runs.active.insert(id, active);
        self.tracker
            .spawn(carry_out(id, spec, stops, self.tx.clone()));
    }

    fn decide(
        &self,
        envelope: &Envelope,
        conversation: Conversation,
        project: &ProjectName,
    ) -> Decision {
        let policy = &self.project_config(project).runs;
        let runs = self.project(project).map(|p| ProjectRuns {
            folder: p.path.clone(),
            mode: mode(policy.permission_mode),
            allowed_tools: policy.allowed_tools.clone(),
            model: policy.model.as_deref().and_then(|m| ModelName::new(m).ok()),
            max_turns: policy.max_turns,
            max_budget_usd: policy.max_budget_usd,
            timeout_s: policy.timeout.as_secs(),
        });
        let options = envelope.task().map(|t| t.options).unwrap_or_default();
        // The folder is looked at again: it may have become a link to somewhere else since it was enabled.
        let cwd = runs
            .as_ref()
            .and_then(|r| r.folder.canonicalize().ok())
            .unwrap_or_default();
        let live = self
            .registry
            .iter()
            .filter(|s| s.run.is_none() && s.snapshot().is_live())
            .map(|s| s.id)
            .collect();
        let running = Running {
            sessions: self.runs.sessions(),
            live,
            cap: self.runs.cap,
        };
        let request = RunRequest {
            conversation,
            cwd: &cwd,
            worktrees: None,
            options: &options,
            hops: envelope.hops,
        };
        trigger::decide(request, runs.as_ref(), &running)
    }

    async fn refuse_run(&mut self, id: EnvelopeId, reason: &str, why: &str) {
        tracing::error!(%id, reason, why, "a run cannot be started");
        let now = clock::wall();
        let state = TaskState::because(TaskStatus::Failed, reason);
        let stage = Stage::Undeliverable {
            reason: reason.to_owned(),
        };
        let is_task = self.mail.get(&id).is_some_and(super::mail::Mail::is_task);
        let mut changes = vec![Change::FinishQueued(id)];
        changes.extend(reports(id, Some(&stage), is_task.then_some(&state), now));
        if self.apply(changes).await {
            self.mail.remove(&id);
        }
    }

    /// Takes in what a run tells.
    pub(super) async fn run_msg(&mut self, msg: RunMsg) {
        match msg {
            RunMsg::Started {
                id,
                started,
                stored,
            } => {
                let done = self.started(id, started).await;
                // The run's task is gone only if the daemon stops, and then it has killed its process.
                drop(stored.send(done));
            }
            RunMsg::Event {
                id,
                event: RunEvent::Session(session),
            } => self.named(id, session),
            RunMsg::Event {
                id,
                event: RunEvent::Progress(progress),
            } => {
                let Some(active) = self.runs.active.get_mut(&id) else {
                    return;
                };
                let due = active.progress_at.is_none_or(|t| t.elapsed() >= PROGRESS);
                if due && !active.message {
                    active.progress_at = Some(Instant::now());
                    let report =
                        NewReport::new(id.0, clock::wall(), ReportBody::Progress(progress));
                    self.apply(vec![Change::Report(report)]).await;
                }
            }
            RunMsg::Ended { id, ended } => self.ended(id, *ended).await,
        }
    }

    /// Makes a process durable before it reads its prompt.
    async fn started(&mut self, id: EnvelopeId, started: RunStarted) -> Result<(), StoreError> {
        let Some(active) = self.runs.active.get_mut(&id) else {
            return Err(StoreError::Closed);
        };
        active.row.pid = Some(started.pid);
        active.row.proc_start = Some(started.start_time);
        active.row.state = "running".to_owned();
        let mut changes = vec![Change::UpdateRun(active.row.clone())];
        changes.extend(reports(id, Some(&Stage::HandedOver), None, clock::wall()));
        self.parts.store.apply(changes).await
    }

    /// The CLI gave the conversation an id of its own.
    fn named(&mut self, id: EnvelopeId, session: SessionId) {
        let Some(active) = self.runs.active.get_mut(&id) else {
            return;
        };
        let asked = active.row.session_id.replace(session);
        if let Some(asked) = asked.filter(|a| *a != session) {
            let mut changed = Changed::default();
            self.registry.succeed(asked, session, &mut changed);
            self.changed(changed);
        }
    }

    /// Ends all runs because the daemon stops, and stores what came of them.
    pub(super) async fn stop_runs(&mut self, rx: &mut mpsc::Receiver<Msg>) {
        for active in self.runs.active.values() {
            active.stops.shutdown.cancel();
        }
        let deadline = Instant::now() + GRACE * 4;
        while !self.runs.active.is_empty() {
            match tokio::time::timeout_at(deadline, rx.recv()).await {
                Ok(Some(Msg::Run(msg))) => self.run_msg(msg).await,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
    }
}

/// One run, from its spec to its end; tells the actor.
async fn carry_out(id: EnvelopeId, spec: RunSpec, stops: Stops, tx: mpsc::Sender<Msg>) {
    let (events, mut steps) = mpsc::channel(STEPS);
    let started = |started| {
        let tx = tx.clone();
        async move {
            let (stored, done) = oneshot::channel();
            let msg = Msg::Run(RunMsg::Started {
                id,
                started,
                stored,
            });
            tx.send(msg).await.map_err(|_| StoreError::Closed)?;
            done.await.map_err(|_| StoreError::Closed)?
        }
    };
    let forward = async {
        while let Some(event) = steps.recv().await {
            if tx
                .send(Msg::Run(RunMsg::Event { id, event }))
                .await
                .is_err()
            {
                break;
            }
        }
    };
    let (ended, ()) = tokio::join!(trigger::run(&spec, started, events, &stops), forward);
    let msg = Msg::Run(RunMsg::Ended {
        id,
        ended: Box::new(ended),
    });
    if tx.send(msg).await.is_err() {
        tracing::error!(%id, "a run ended after the dispatcher; it will be found at the next start");
    }
}

const fn mode(configured: config::RunMode) -> RunMode {
    match configured {
        config::RunMode::Manual => RunMode::Asked(PermissionMode::Manual),
        config::RunMode::AcceptEdits => RunMode::Asked(PermissionMode::AcceptEdits),
        config::RunMode::Plan => RunMode::Asked(PermissionMode::Plan),
        config::RunMode::DontAsk => RunMode::Asked(PermissionMode::DontAsk),
        config::RunMode::BypassPermissions => RunMode::Bypass,
    }
}
