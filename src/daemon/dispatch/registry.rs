//! The sessions of this machine, as far as hook events, the CLI's own registry and process liveness tell.
//!
//! A hook event is the first-hand sign; the CLI's registry corrects what hooks cannot tell (a turn that was interrupted, a
//! process that died), and a session that both are silent about keeps what it was last known to do, with the reason.
//! `/clear` gives the process a new session id: the old one lives on in the new one's lineage, and mail for it follows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::claude::{EndReason, HookEvent, HookInput, NoticeKind, StartSource};
use crate::daemon::store::SessionRow;
use crate::domain::{Activity, ProjectName, SessionId, WallMs};

mod session;

pub(crate) use session::Session;

/// A process that owns a session: its id and its start, in clock ticks since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    pub(crate) start: u64,
}

/// What the environment of a hook says about its session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Origin {
    pub(crate) owner: Option<Owner>,
    pub(crate) entrypoint: Option<String>,
    pub(crate) attended: Option<bool>,
    pub(crate) messaging_socket: Option<String>,
    pub(crate) run: Option<String>,
    pub(crate) project: Option<ProjectName>,
}

/// One live session of the CLI's registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) session: SessionId,
    pub(crate) owner: Owner,
    pub(crate) activity: Option<Activity>,
    /// When the CLI wrote that activity, Unix ms.
    pub(crate) at: WallMs,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) entrypoint: Option<String>,
    pub(crate) project: Option<ProjectName>,
}

/// Why a session is unknown whose process goes on under a new id.
const CLEARED: &str = "cleared, the successor is awaited";

/// What an event changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Changed {
    /// Sessions whose rows changed.
    pub(crate) sessions: Vec<SessionId>,
    /// Sessions that live on in a successor.
    pub(crate) forgotten: Vec<SessionId>,
}

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    sessions: BTreeMap<SessionId, Session>,
    /// Old ids and the session that they live on in.
    successors: BTreeMap<SessionId, SessionId>,
}

impl Registry {
    /// The registry as it was stored. Nothing tells yet what became of these sessions: live ones are unknown until a sign.
    pub(crate) fn load(rows: Vec<SessionRow>) -> Self {
        let mut registry = Self::default();
        for row in rows {
            let mut session = Session::from_row(row);
            if session.activity != Activity::Closed {
                session.activity = Activity::Unknown;
                "the daemon was away".clone_into(&mut session.reason);
            }
            for old in &session.lineage {
                registry.successors.insert(*old, session.id);
            }
            registry.sessions.insert(session.id, session);
        }
        registry
    }

    /// The session of this id, or the one that it lives on in.
    pub(crate) fn resolve(&self, id: SessionId) -> Option<&Session> {
        self.sessions
            .get(&id)
            .or_else(|| self.successors.get(&id).and_then(|s| self.sessions.get(s)))
    }

    /// The session of exactly this id, to be changed.
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions.get_mut(&id)
    }

    /// All sessions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    /// Takes a hook event in.
    pub(crate) fn hear(&mut self, input: &HookInput, origin: &Origin, now: WallMs) -> Changed {
        let mut changed = Changed::default();
        let Some(id) = input.session_id else {
            return changed;
        };
        if let HookEvent::SessionStart {
            source: StartSource::Clear,
            ..
        } = &input.event
        {
            self.rotate(id, origin.owner, &mut changed);
        }
        let session = self
            .sessions
            .entry(id)
            .or_insert_with(|| Session::new(id, now));
        let before = session.row();
        session.active_at = session.active_at.max(now);
        if let Some(cwd) = &input.cwd {
            session.cwd.clone_from(cwd);
        }
        if input.transcript_path.is_some() {
            session.transcript.clone_from(&input.transcript_path);
        }
        session.project.clone_from(&origin.project);
        if origin.owner.is_some() {
            session.owner = origin.owner;
            session.run.clone_from(&origin.run);
            session.entrypoint.clone_from(&origin.entrypoint);
            session.attended = origin.attended;
            session
                .messaging_socket
                .clone_from(&origin.messaging_socket);
        }
        if let HookEvent::PreCompact { .. } | HookEvent::SessionEnd { .. } = &input.event {
            session.started = None;
        }
        match &input.event {
            HookEvent::SessionStart { source, .. } => match source {
                // A compaction may stand in the middle of a turn.
                StartSource::Compact => {}
                _ => session.set(Activity::Idle, "SessionStart", now),
            },
            HookEvent::UserPromptSubmit { .. } => {
                session.set(Activity::Busy, "UserPromptSubmit", now);
            }
            HookEvent::PreToolUse { .. } => session.set(Activity::Busy, "PreToolUse", now),
            HookEvent::PostToolUse { .. } => session.set(Activity::Busy, "PostToolUse", now),
            HookEvent::PostToolUseFailure { interrupted, .. } => {
                let activity = if *interrupted {
                    Activity::Idle
                } else {
                    Activity::Busy
                };
                session.set(activity, "PostToolUseFailure", now);
            }
            HookEvent::Stop {
                background_tasks: 0,
                ..
            } => session.set(Activity::Idle, "Stop", now),
            HookEvent::Stop { .. } => {
                session.set(Activity::Idle, "Stop, background tasks run", now)
            }
            HookEvent::StopFailure { .. } => session.set(Activity::Idle, "StopFailure", now),
            HookEvent::PermissionRequest { .. } => {
                session.set(Activity::Waiting, "PermissionRequest", now);
            }
            HookEvent::Notification {
                kind: NoticeKind::PermissionPrompt,
                ..
            } => {
                session.set(Activity::Waiting, "permission prompt", now);
            }
            HookEvent::Notification {
                kind: NoticeKind::IdlePrompt,
                ..
            } => {
                session.set(Activity::Idle, "idle prompt", now);
            }
            HookEvent::SessionEnd {
                reason: EndReason::Clear,
            } => {
                session.set(Activity::Unknown, CLEARED, now);
            }
            HookEvent::SessionEnd { .. } => {
                session.set(Activity::Closed, "SessionEnd", now);
                session.owner = None;
            }
            HookEvent::Notification { .. }
            | HookEvent::CwdChanged { .. }
            | HookEvent::FileChanged { .. }
            | HookEvent::PreCompact { .. }
            | HookEvent::PostCompact { .. }
            | HookEvent::Other { .. } => {}
        }
        if before != session.row() {
            changed.sessions.push(id);
        }
        changed
    }

    /// The session that `owner` had before lives on in `id`.
    fn rotate(&mut self, id: SessionId, owner: Option<Owner>, changed: &mut Changed) {
        let Some(owner) = owner else { return };
        let old = self
            .sessions
            .values()
            .filter(|s| s.owner == Some(owner) && s.id != id && s.activity != Activity::Closed)
            .max_by_key(|s| s.active_at)
            .map(|s| s.id);
        if let Some(old) = old {
            self.succeed(old, id, changed);
        }
    }

    /// `old` lives on in `new`, which inherits its lineage.
    pub(crate) fn succeed(&mut self, old: SessionId, new: SessionId, changed: &mut Changed) {
        let Some(gone) = self.sessions.remove(&old) else {
            return;
        };
        let session = self.sessions.entry(new).or_insert_with(|| Session {
            owner: gone.owner,
            cwd: gone.cwd.clone(),
            project: gone.project.clone(),
            entrypoint: gone.entrypoint.clone(),
            run: gone.run.clone(),
            activity: gone.activity,
            reason: gone.reason.clone(),
            since: gone.since,
            idle_since: gone.idle_since,
            ..Session::new(new, gone.active_at)
        });
        session.lineage = gone.lineage.iter().copied().chain([old]).collect();
        for id in &session.lineage {
            self.successors.insert(*id, new);
        }
        changed.forgotten.push(old);
        changed.sessions.push(new);
    }

    /// Nothing tells what became of sessions that no known process owns: their events were heard long after.
    pub(crate) fn doubt_ownerless(&mut self, now: WallMs) -> Changed {
        let mut changed = Changed::default();
        for session in self.sessions.values_mut() {
            if session.owner.is_none()
                && !matches!(session.activity, Activity::Closed | Activity::Unknown)
            {
                session.set(Activity::Unknown, "the daemon was away", now);
                changed.sessions.push(session.id);
            }
        }
        changed
    }

    /// Takes the CLI's own list of live sessions in; `alive` tells whether a process still runs.
    pub(crate) fn sight(
        &mut self,
        sightings: &[Sighting],
        alive: impl Fn(Owner) -> bool,
        now: WallMs,
    ) -> Changed {
        let mut changed = Changed::default();
        for seen in sightings {
            if seen.project.is_none() && !self.sessions.contains_key(&seen.session) {
                // Outside every project, and no hook of ours has spoken there: no concern of ours.
                continue;
            }
            // The list may tell of a `/clear` before the successor's own event does.
            let cleared = self.sessions.values().find(|s| {
                s.id != seen.session && s.owner == Some(seen.owner) && s.reason == CLEARED
            });
            if let Some(old) = cleared.map(|s| s.id) {
                self.succeed(old, seen.session, &mut changed);
            }
            let session = self
                .sessions
                .entry(seen.session)
                .or_insert_with(|| Session::new(seen.session, seen.at));
            let before = session.row();
            session.owner = Some(seen.owner);
            if let Some(cwd) = &seen.cwd {
                session.cwd.clone_from(cwd);
            }
            if seen.entrypoint.is_some() {
                session.entrypoint.clone_from(&seen.entrypoint);
            }
            session.project.clone_from(&seen.project);
            // A hook event that is younger than the CLI's note knows better.
            let newer = seen.at >= session.since || session.activity == Activity::Unknown;
            match seen.activity {
                Some(activity) if newer && activity != session.activity => {
                    session.set(activity, "the CLI's session registry", seen.at.min(now));
                    session.active_at = session.active_at.max(seen.at.min(now));
                }
                None if session.activity == Activity::Closed => {
                    session.set(Activity::Unknown, "a live process has it", now);
                }
                _ => {}
            }
            if before != session.row() {
                changed.sessions.push(seen.session);
            }
        }
        for session in self.sessions.values_mut() {
            if session.activity == Activity::Closed
                || sightings.iter().any(|s| s.session == session.id)
            {
                continue;
            }
            let gone = match session.owner {
                Some(owner) => !alive(owner) || sightings.iter().any(|s| s.owner == owner),
                None => session.activity == Activity::Unknown,
            };
            if gone {
                session.set(Activity::Closed, "its process is gone", now);
                session.owner = None;
                changed.sessions.push(session.id);
            }
        }
        changed
    }

    /// Forgets closed sessions that nobody heard of since `before`; at most `keep` closed ones stay in any case.
    pub(crate) fn sweep(&mut self, before: WallMs, keep: usize) -> Changed {
        let mut closed: Vec<_> = self
            .sessions
            .values()
            .filter(|s| s.activity == Activity::Closed)
            .map(|s| (s.active_at, s.id))
            .collect();
        closed.sort_unstable_by(|a, b| b.cmp(a));
        let mut changed = Changed::default();
        for (i, (at, id)) in closed.into_iter().enumerate() {
            if i >= keep || at < before {
                self.sessions.remove(&id);
                self.successors.retain(|_, new| *new != id);
                changed.forgotten.push(id);
            }
        }
        changed
    }
}

/// The deepest of these folders that `cwd` lies in.
pub(crate) fn project_of<'a>(
    cwd: &Path,
    projects: impl IntoIterator<Item = (&'a ProjectName, &'a Path)>,
) -> Option<&'a ProjectName> {
    projects
        .into_iter()
        .filter(|(_, path)| cwd.starts_with(path))
        .max_by_key(|(_, path)| path.components().count())
        .map(|(name, _)| name)
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
