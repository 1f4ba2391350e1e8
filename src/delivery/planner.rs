//! The planner: which door an envelope takes now, or why it takes none.
//!
//! `plan` is total: every combination of envelope, target and policy has exactly one answer, and every answer that is
//! not a delivery carries a [`Reason`]. It keeps nothing; the daemon plans again at every change (a hook event, the
//! registry, the policy, `until`), so a plan is only ever about now.
//!
//! The order of the questions matters. What can never be delivered is refused first, so that a sender is not told to
//! wait for it; then what the user does not want now; then the approval; then the place. Rule 3 (one writer per
//! session) is kept in one spot: `resume` is reached only with `!session.is_live()`.

use crate::domain::{
    Activity, Envelope, EnvelopeKind, Priority, ProjectName, SessionId, Stage, TaskState,
    TaskStatus, Trust, WallMs, limits,
};

use super::{
    Approval, ApprovalState, DoorState, Features, Policy, ProjectPolicy, Reason, SessionSnapshot,
    Tree, Workspace,
};

/// Whom an envelope is for, as far as the device could resolve it.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A session addressed by id, or the successor of that id.
    Session(&'a SessionSnapshot),
    /// A project without a session; `sessions` are those of the project, live and closed.
    Project {
        /// Its name.
        name: &'a ProjectName,
        /// Its sessions.
        sessions: &'a [SessionSnapshot],
    },
    /// The device; `sessions` are all that it knows.
    Device {
        /// Its sessions.
        sessions: &'a [SessionSnapshot],
    },
    /// A session that the device does not, or no longer, know.
    Unknown,
}

/// The earliest hook event that hands an envelope over; every later one in this list does so, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    /// The next tool boundary, the turn's end or the next prompt.
    NextTool,
    /// The turn's end or the next prompt.
    TurnEnd,
    /// The next prompt.
    NextPrompt,
}

/// What to do with an envelope now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Its session's hooks take it along.
    Hooks {
        /// Which session.
        session: SessionId,
        /// When at the earliest.
        at: At,
    },
    /// A line to the session's own socket.
    Inbox {
        /// Which session.
        session: SessionId,
    },
    /// Ring; the session's hook then takes it.
    Doorbell {
        /// Which session.
        session: SessionId,
    },
    /// A headless run.
    Headless {
        /// The closed session to resume; `None` starts a new one.
        resume: Option<SessionId>,
        /// The enabled project whose folder it runs in.
        project: ProjectName,
        /// Where in it.
        workspace: Workspace,
    },
    /// Stays in the queue.
    Hold {
        /// Why.
        reason: Reason,
        /// When that ends by itself, if it does; never after the envelope's expiry.
        until: Option<WallMs>,
    },
    /// A message that cannot be delivered.
    Undeliverable {
        /// Why.
        reason: Reason,
    },
    /// A task that this device refuses.
    Reject {
        /// Why.
        reason: Reason,
    },
    /// A kind of a later version.
    Unsupported,
    /// Not delivered in time.
    Expired,
    /// Not for a session: the daemon acts on it itself (`cancel`, `memory_changed`, `decision`).
    Control,
}

impl Plan {
    /// The receipt to report, where the plan is one; deliveries are reported by their claims and runs.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        match self {
            Self::Hold { reason, .. } => Some(Stage::Held {
                reason: reason.as_str().to_owned(),
            }),
            Self::Undeliverable { reason } | Self::Reject { reason } => {
                Some(Stage::Undeliverable {
                    reason: reason.as_str().to_owned(),
                })
            }
            Self::Unsupported => Some(Stage::Unsupported),
            Self::Expired => Some(Stage::Expired),
            Self::Hooks { .. }
            | Self::Inbox { .. }
            | Self::Doorbell { .. }
            | Self::Headless { .. }
            | Self::Control => None,
        }
    }

    /// The task state to report, where the plan is one.
    #[must_use]
    pub fn task_state(&self) -> Option<TaskState> {
        match self {
            Self::Hold { reason, until } => Some(TaskState {
                status: match reason {
                    Reason::AwaitingApproval => TaskStatus::AwaitingApproval,
                    _ => TaskStatus::Blocked,
                },
                reason: Some(reason.as_str().to_owned()),
                until: *until,
            }),
            Self::Undeliverable { reason } | Self::Reject { reason } => {
                Some(TaskState::because(TaskStatus::Rejected, reason.as_str()))
            }
            Self::Unsupported => Some(TaskState::new(TaskStatus::Unsupported)),
            Self::Expired => Some(TaskState::new(TaskStatus::Expired)),
            Self::Hooks { .. }
            | Self::Inbox { .. }
            | Self::Doorbell { .. }
            | Self::Headless { .. }
            | Self::Control => None,
        }
    }
}

/// What to do with this envelope now.
#[must_use]
pub fn plan(envelope: &Envelope, target: Target<'_>, policy: &Policy, now: WallMs) -> Plan {
    let is_task = match &envelope.kind {
        EnvelopeKind::Message => false,
        EnvelopeKind::Task => true,
        EnvelopeKind::Cancel | EnvelopeKind::MemoryChanged | EnvelopeKind::Decision => {
            return Plan::Control;
        }
        EnvelopeKind::Other(_) => return Plan::Unsupported,
    };
    if now >= envelope.expires_at {
        return Plan::Expired;
    }
    let ask = Ask {
        envelope,
        policy,
        now,
        is_task,
    };
    let place = match ask.refusal().map_or_else(|| ask.place(target), Err) {
        Ok(place) => place,
        Err(plan) => return plan,
    };
    if let Some(hold) = ask
        .unwanted(place.project())
        .or_else(|| ask.approval(place.project()))
    {
        return hold;
    }
    match place {
        Place::Live(session) => ask.live(session),
        Place::Closed(session) => ask.closed(session),
        Place::New(project) => ask.new_session(project),
        Place::None(reason) => ask.hold(reason, None),
    }
}

/// Chooses the session for mail that names none: a live one before a closed one, then the preferred, then the most
/// recently active, then the smaller id. Users' one-shot sessions and our own runs are never chosen.
#[must_use]
pub fn choose_session<'a>(
    sessions: impl IntoIterator<Item = &'a SessionSnapshot>,
    preferred: Option<SessionId>,
) -> Option<&'a SessionSnapshot> {
    sessions
        .into_iter()
        .filter(|s| !s.one_shot && !s.own_run)
        .max_by_key(|s| {
            (
                s.is_live(),
                preferred == Some(s.session_id),
                s.last_active,
                std::cmp::Reverse(s.session_id),
            )
        })
}

/// Where an envelope would go if nothing else stood in its way.
enum Place<'a> {
    Live(&'a SessionSnapshot),
    Closed(&'a SessionSnapshot),
    New(&'a ProjectName),
    None(Reason),
}

impl<'a> Place<'a> {
    fn of(session: &'a SessionSnapshot) -> Self {
        if session.is_live() {
            Self::Live(session)
        } else {
            Self::Closed(session)
        }
    }

    fn project(&self) -> Option<&'a ProjectName> {
        match self {
            Self::Live(s) | Self::Closed(s) => s.project.as_ref(),
            Self::New(p) => Some(p),
            Self::None(_) => None,
        }
    }
}

struct Ask<'a> {
    envelope: &'a Envelope,
    policy: &'a Policy,
    now: WallMs,
    is_task: bool,
}

impl<'a> Ask<'a> {
    fn hold(&self, reason: Reason, until: Option<WallMs>) -> Plan {
        Plan::Hold {
            reason,
            until: until.map(|t| t.min(self.envelope.expires_at)),
        }
    }

    fn refuse(&self, reason: Reason) -> Plan {
        if self.is_task {
            Plan::Reject { reason }
        } else {
            Plan::Undeliverable { reason }
        }
    }

    fn enabled(&self, project: &ProjectName) -> Option<&'a ProjectPolicy> {
        self.policy.projects.get(project)
    }

    fn features(&self, project: Option<&ProjectName>) -> Features {
        let of_project = project.and_then(|p| self.enabled(p)?.features);
        of_project.unwrap_or(self.policy.features)
    }

    /// What no waiting would change.
    fn refusal(&self) -> Option<Plan> {
        let e = self.envelope;
        let readable = e.message().is_some() || e.task().is_some();
        let denied = self.policy.approvals.get(&e.id) == Some(&ApprovalState::Denied);
        if !readable {
            Some(self.refuse(Reason::BadBody))
        } else if e.hops > limits::MAX_HOPS {
            Some(self.refuse(Reason::HopsExceeded))
        } else if self.is_task && e.from.trust == Trust::Inform {
            Some(self.refuse(Reason::TrustTooLow))
        } else if self.is_task && denied {
            Some(self.refuse(Reason::Denied))
        } else {
            None
        }
    }

    /// What the user does not want now.
    fn unwanted(&self, project: Option<&ProjectName>) -> Option<Plan> {
        let p = self.policy;
        let features = self.features(project);
        if p.muted.contains(&self.envelope.from.name) {
            Some(self.hold(Reason::SenderMuted, None))
        } else if p.paused {
            Some(self.hold(Reason::Paused, None))
        } else if let Some(until) = p.do_not_disturb.filter(|u| u.is_none_or(|t| self.now < t)) {
            Some(self.hold(Reason::DoNotDisturb, until))
        } else if self.is_task && !features.remote_task_execution {
            Some(self.hold(Reason::RemoteTaskExecutionOff, None))
        } else if !self.is_task && !features.message_notification {
            Some(self.hold(Reason::MessageNotificationOff, None))
        } else {
            None
        }
    }

    fn approval(&self, project: Option<&ProjectName>) -> Option<Plan> {
        let stricter = project
            .and_then(|p| self.enabled(p))
            .is_some_and(|p| p.approval == Approval::Always);
        let needed = self.is_task
            && (stricter
                || self.policy.approval == Approval::Always
                || self.envelope.from.trust != Trust::Run);
        if !needed {
            return None;
        }
        let asked = match self.policy.approvals.get(&self.envelope.id) {
            Some(ApprovalState::Approved) => return None,
            Some(ApprovalState::Denied) => return Some(self.refuse(Reason::Denied)),
            Some(ApprovalState::Asked(at)) => *at,
            None => self.now,
        };
        let until = asked.plus(self.policy.approval_expiry_ms);
        Some(if self.now >= until {
            self.refuse(Reason::ApprovalExpired)
        } else {
            self.hold(Reason::AwaitingApproval, Some(until))
        })
    }

    /// Where it would go; `Err` is the plan when there is no such place.
    fn place(&self, target: Target<'a>) -> Result<Place<'a>, Plan> {
        match target {
            Target::Unknown => Err(self.refuse(Reason::UnknownSession)),
            Target::Session(session) => {
                let enabled = session.project.as_ref().map(|p| self.enabled(p).is_some());
                match enabled {
                    Some(true) => Ok(Place::of(session)),
                    // With hooks in the user's own settings a session may live outside every project: mail reaches it,
                    // work does not.
                    None if !self.is_task => Ok(Place::of(session)),
                    _ if self.is_task => Err(self.refuse(Reason::ProjectNotEnabled)),
                    _ => Ok(Place::None(Reason::ProjectNotEnabled)),
                }
            }
            Target::Project { name, sessions } => match (self.enabled(name), self.is_task) {
                (None, true) => Err(self.refuse(Reason::ProjectNotEnabled)),
                (None, false) => Ok(Place::None(Reason::ProjectNotEnabled)),
                (Some(_), true) => Ok(Place::New(name)),
                (Some(_), false) => Ok(choose_session(sessions, self.policy.preferred_session)
                    .map_or(Place::None(Reason::NoSession), Place::of)),
            },
            Target::Device { .. } if self.is_task => self
                .policy
                .projects
                .iter()
                .max_by_key(|(name, p)| (p.last_active, std::cmp::Reverse(*name)))
                .map(|(name, _)| Place::New(name))
                .ok_or_else(|| self.refuse(Reason::ProjectNotEnabled)),
            Target::Device { sessions } => {
                let reachable = sessions
                    .iter()
                    .filter(|s| s.project.as_ref().is_none_or(|p| self.enabled(p).is_some()));
                Ok(choose_session(reachable, self.policy.preferred_session)
                    .map_or(Place::None(Reason::NoSession), Place::of))
            }
        }
    }

    fn live(&self, s: &SessionSnapshot) -> Plan {
        let session = s.session_id;
        if s.own_run {
            return self.hold(Reason::SessionRunning, None);
        }
        let urgent = self.envelope.priority == Priority::Urgent;
        let inbox = s.doors.inbox == DoorState::Proven;
        // In one-shot runs the CLI drops what a `FileChanged` hook says.
        let doorbell =
            !s.one_shot && matches!(s.doors.doorbell, DoorState::Armed | DoorState::Proven);
        match s.activity() {
            Activity::Waiting => self.hold(Reason::WaitingPermission, None),
            Activity::Busy if urgent && inbox => Plan::Inbox { session },
            Activity::Idle if self.wakes() && inbox => Plan::Inbox { session },
            Activity::Idle if self.wakes() && doorbell => Plan::Doorbell { session },
            Activity::Idle => Plan::Hooks {
                session,
                at: At::NextPrompt,
            },
            Activity::Busy | Activity::Unknown | Activity::Closed => Plan::Hooks {
                session,
                at: if urgent { At::NextTool } else { At::TurnEnd },
            },
        }
    }

    fn closed(&self, s: &SessionSnapshot) -> Plan {
        if !self.wakes() {
            return self.hold(Reason::SessionClosed, None);
        }
        let quiet_since = s.idle_since.unwrap_or(s.last_active).min(self.now);
        let until = quiet_since.plus(self.policy.idle_threshold_ms);
        if self.now < until {
            return self.hold(Reason::IdleThreshold, Some(until));
        }
        let Some(project) = s.project.as_ref() else {
            return self.hold(Reason::ProjectNotEnabled, None);
        };
        self.run(Some(s), project, Workspace::Same)
    }

    fn new_session(&self, project: &ProjectName) -> Plan {
        let Some(p) = self.enabled(project) else {
            return self.refuse(Reason::ProjectNotEnabled);
        };
        let workspace = match (p.workspace, p.tree) {
            (Workspace::Worktree, _) if p.can_worktree => Workspace::Worktree,
            (_, Tree::Free) => Workspace::Same,
            (_, Tree::Dirty | Tree::Busy) if p.can_worktree => Workspace::Worktree,
            (_, Tree::Dirty) => return self.hold(Reason::TreeDirty, None),
            (_, Tree::Busy) => return self.hold(Reason::TreeBusy, None),
        };
        self.run(None, project, workspace)
    }

    /// The only place that plans a run: of a new session, or of one that no process owns.
    fn run(
        &self,
        resume: Option<&SessionSnapshot>,
        project: &ProjectName,
        workspace: Workspace,
    ) -> Plan {
        let p = self.policy;
        if resume.is_some_and(SessionSnapshot::is_live) {
            return self.hold(Reason::SessionRunning, None);
        }
        if !self.features(Some(project)).remote_task_execution {
            return self.hold(Reason::RemoteTaskExecutionOff, None);
        }
        if p.claude_missing {
            return self.hold(Reason::ClaudeNotFound, None);
        }
        if let Some(block) = p.blocked.filter(|b| b.until.is_none_or(|t| self.now < t)) {
            return self.hold(block.reason, block.until);
        }
        if p.capacity == 0 {
            return self.hold(Reason::NoCapacity, None);
        }
        Plan::Headless {
            resume: resume.map(|s| s.session_id),
            project: project.clone(),
            workspace,
        }
    }

    /// A task always wakes: its sender waits for a result.
    fn wakes(&self) -> bool {
        self.envelope.wake || self.is_task
    }
}

#[cfg(test)]
mod tests;
