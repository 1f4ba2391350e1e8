//! What the planner is told: sessions as the registry sees them, and the user's wishes.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::{Activity, EnvelopeId, ProjectName, SessionId, WallMs, limits};

use super::Reason;

/// What is known of a door of one session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DoorState {
    /// It was seen to work with this CLI version and session.
    Proven,
    /// It is set up, but nothing has shown yet that it works.
    Armed,
    /// It is not used; the text says why.
    Off {
        /// Why.
        reason: String,
    },
}

impl DoorState {
    /// The door that is off for this reason.
    #[must_use]
    pub fn off(reason: impl Into<String>) -> Self {
        Self::Off {
            reason: reason.into(),
        }
    }
}

/// The doors of one session beside its hooks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Doors {
    /// The session's own socket: undocumented, hence used only if [`DoorState::Proven`].
    pub inbox: DoorState,
    /// The watched file: documented, hence used if armed or proven.
    pub doorbell: DoorState,
}

impl Default for Doors {
    fn default() -> Self {
        Self {
            inbox: DoorState::off("not_probed"),
            doorbell: DoorState::off("not_armed"),
        }
    }
}

/// One session as the registry, the hook events and process liveness show it together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSnapshot {
    /// Its present id.
    pub session_id: SessionId,
    /// The project its folder belongs to, enabled or not.
    pub project: Option<ProjectName>,
    /// What it is doing.
    pub activity: Activity,
    /// Since when it is doing so.
    pub since: WallMs,
    /// Whether a live process (pid with start time) owns it; such a session is never resumed.
    pub owned_by_live_process: bool,
    /// Since when nothing happened in it, where that is known.
    pub idle_since: Option<WallMs>,
    /// The last sign of its user's or Claude's activity.
    pub last_active: WallMs,
    /// Whether it is a one-shot `-p` session of the user: it takes mail only if addressed by id.
    pub one_shot: bool,
    /// Whether its live process is one of our runs: it takes no mail at all.
    pub own_run: bool,
    /// Its doors beside hooks.
    pub doors: Doors,
}

impl SessionSnapshot {
    /// Whether a process has it, or may have it. Rule 3 hangs on this: only a session that is closed **and** without a
    /// process may be resumed; where the two disagree, it counts as live.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.owned_by_live_process || self.activity != Activity::Closed
    }

    /// What it is doing; a closed session that a process owns after all is unknown.
    #[must_use]
    pub fn activity(&self) -> Activity {
        match self.activity {
            Activity::Closed if self.owned_by_live_process => Activity::Unknown,
            other => other,
        }
    }
}

/// What may be delivered at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Memory is given at a session's start; no concern of the planner.
    pub memory_injection: bool,
    /// Messages are delivered.
    pub message_notification: bool,
    /// Tasks are done, and closed sessions are resumed.
    pub remote_task_execution: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            memory_injection: true,
            message_notification: true,
            remote_task_execution: true,
        }
    }
}

/// When a person has to approve a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Approval {
    /// By the sender's trust: `run` goes, `suggest` waits.
    #[default]
    ByTrust,
    /// Always.
    Always,
}

/// Where the approval of one task stands; no entry means that nobody was asked yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalState {
    /// A person was asked at this time.
    Asked(WallMs),
    /// A person said yes.
    Approved,
    /// A person said no.
    Denied,
}

/// Where a new session of a project works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Workspace {
    /// In the project's folder.
    #[default]
    Same,
    /// In a git worktree of its own.
    Worktree,
}

/// The state of a project's tree; a caller that does not look says [`Tree::Free`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tree {
    /// Nothing in the way.
    #[default]
    Free,
    /// Uncommitted changes.
    Dirty,
    /// A session works in it.
    Busy,
}

/// What the planner needs to know of an enabled project.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProjectPolicy {
    /// The last activity in it, if any.
    pub last_active: Option<WallMs>,
    /// What may be delivered in it; `None` for the user's own rule.
    pub features: Option<Features>,
    /// When a person has to approve, where the project is stricter than the user's own rule.
    pub approval: Approval,
    /// Where new sessions work.
    pub workspace: Workspace,
    /// Its tree.
    pub tree: Tree,
    /// Whether a worktree can be made of it.
    pub can_worktree: bool,
}

/// Why no run can start at present, apart from capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Why.
    pub reason: Reason,
    /// When that ends, if known.
    pub until: Option<WallMs>,
}

/// The user's wishes and the device's means, as they are now.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// What may be delivered at all.
    pub features: Features,
    /// The enabled projects.
    pub projects: BTreeMap<ProjectName, ProjectPolicy>,
    /// When a person has to approve a task.
    pub approval: Approval,
    /// Where each task's approval stands.
    pub approvals: BTreeMap<EnvelopeId, ApprovalState>,
    /// How long a person has to decide, ms.
    pub approval_expiry_ms: i64,
    /// How long a closed session is left alone, ms.
    pub idle_threshold_ms: i64,
    /// The session that unaddressed messages prefer.
    pub preferred_session: Option<SessionId>,
    /// Whether the user paused everything.
    pub paused: bool,
    /// Whether the user wants quiet, and until when if that is known.
    pub do_not_disturb: Option<Option<WallMs>>,
    /// Senders that the user does not want to hear, by name.
    pub muted: BTreeSet<String>,
    /// Whether no `claude` was found.
    pub claude_missing: bool,
    /// Why no run can start (limits, login), if so.
    pub blocked: Option<Block>,
    /// Free run slots.
    pub capacity: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            features: Features::default(),
            projects: BTreeMap::new(),
            approval: Approval::ByTrust,
            approvals: BTreeMap::new(),
            approval_expiry_ms: 15 * 60 * 1000,
            idle_threshold_ms: limits::IDLE_THRESHOLD_MS.cast_signed(),
            preferred_session: None,
            paused: false,
            do_not_disturb: None,
            muted: BTreeSet::new(),
            claude_missing: false,
            blocked: None,
            capacity: limits::CONCURRENT_RUNS,
        }
    }
}
