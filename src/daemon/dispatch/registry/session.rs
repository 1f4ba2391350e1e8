//! One session: what is known of it, as a row of the store, as the planner sees it, as the hub is told.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Owner;
use crate::daemon::memory_block::Told;
use crate::daemon::store::SessionRow;
use crate::delivery::{Doors, SessionSnapshot};
use crate::domain::{Activity, ProjectName, SessionId, SessionInfo, WallMs};

/// Reports of a start by one process within this time, without an end or a compaction between them, are of one start, ms.
const SAME_START_MS: i64 = 5_000;

/// What the row keeps beside its columns.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Detail {
    since: WallMs,
    idle_since: Option<WallMs>,
    attended: Option<bool>,
    messaging_socket: Option<String>,
    run: Option<String>,
    continuations: u32,
}

/// One session.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) lineage: Vec<SessionId>,
    pub(crate) owner: Option<Owner>,
    pub(crate) cwd: PathBuf,
    pub(crate) transcript: Option<PathBuf>,
    pub(crate) project: Option<ProjectName>,
    pub(crate) entrypoint: Option<String>,
    pub(crate) activity: Activity,
    pub(crate) reason: String,
    pub(crate) since: WallMs,
    pub(crate) idle_since: Option<WallMs>,
    pub(crate) active_at: WallMs,
    pub(crate) attended: Option<bool>,
    pub(crate) messaging_socket: Option<String>,
    /// The run that the process belongs to, if it is one of ours.
    pub(crate) run: Option<String>,
    /// Continuations of ours since the user's last prompt.
    pub(crate) continuations: u32,
    /// What of the memory it was told.
    pub(crate) told: Told,
    /// When its last start was heard of, and from which process; not stored.
    pub(super) started: Option<(Owner, WallMs)>,
}

impl Session {
    pub(super) fn new(id: SessionId, now: WallMs) -> Self {
        Self {
            id,
            lineage: Vec::new(),
            owner: None,
            cwd: PathBuf::new(),
            transcript: None,
            project: None,
            entrypoint: None,
            activity: Activity::Unknown,
            reason: "no sign yet".to_owned(),
            since: now,
            idle_since: None,
            active_at: now,
            attended: None,
            messaging_socket: None,
            run: None,
            continuations: 0,
            told: Told::new(),
            started: None,
        }
    }

    /// Whether it is a one-shot `-p` session of the user, or an IDE's.
    pub(crate) fn one_shot(&self) -> bool {
        self.run.is_none()
            && (self.entrypoint.as_deref().is_some_and(|e| e != "cli")
                || self.attended == Some(false))
    }

    /// The session as the planner wants it.
    pub(crate) fn snapshot(&self) -> SessionSnapshot {
        SessionSnapshot {
            session_id: self.id,
            project: self.project.clone(),
            activity: self.activity,
            since: self.since,
            owned_by_live_process: self.owner.is_some() && self.activity != Activity::Closed,
            idle_since: self.idle_since,
            last_active: self.active_at,
            one_shot: self.one_shot(),
            own_run: self.run.is_some() && self.activity != Activity::Closed,
            doors: Doors::default(),
        }
    }

    pub(super) fn set(&mut self, activity: Activity, reason: &str, now: WallMs) {
        if self.activity != activity {
            self.activity = activity;
            self.since = now;
        }
        reason.clone_into(&mut self.reason);
        self.idle_since = match activity {
            Activity::Idle | Activity::Closed => self.idle_since.or(Some(now)),
            Activity::Busy | Activity::Waiting | Activity::Unknown => None,
        };
    }

    /// The session as the hub and the user are shown it.
    pub(crate) fn info(&self) -> SessionInfo {
        SessionInfo {
            session_id: self.id,
            lineage: self.lineage.clone(),
            project: self.project.clone(),
            activity: self.activity,
            reason: Some(self.reason.clone()),
            active_at: self.active_at,
        }
    }

    /// Whether this start was not heard of before, to be asked once for each report of a start: with hooks in several
    /// settings files the CLI reports it several times.
    pub(crate) fn is_new_start(&mut self, now: WallMs) -> bool {
        let Some(owner) = self.owner else { return true };
        let again = self.started.is_some_and(|(who, at)| {
            who == owner && now.0.saturating_sub(at.0).abs() < SAME_START_MS
        });
        if !again {
            self.started = Some((owner, now));
        }
        !again
    }

    /// The row for the store.
    pub(crate) fn row(&self) -> SessionRow {
        let detail = Detail {
            since: self.since,
            idle_since: self.idle_since,
            attended: self.attended,
            messaging_socket: self.messaging_socket.clone(),
            run: self.run.clone(),
            continuations: self.continuations,
        };
        SessionRow {
            session_id: self.id,
            lineage: self.lineage.clone(),
            pid: self.owner.map(|o| o.pid),
            proc_start: self.owner.map(|o| o.start),
            cwd: self.cwd.clone(),
            transcript: self.transcript.clone(),
            project: self.project.clone(),
            entrypoint: self.entrypoint.clone(),
            activity: self.activity,
            reason: Some(self.reason.clone()),
            active_at: self.active_at,
            told_memory: serde_json::to_string(&self.told).ok(),
            detail: serde_json::to_value(detail).unwrap_or_default(),
        }
    }

    pub(super) fn from_row(row: SessionRow) -> Self {
        let detail: Detail = serde_json::from_value(row.detail).unwrap_or_default();
        Self {
            id: row.session_id,
            lineage: row.lineage,
            owner: row
                .pid
                .zip(row.proc_start)
                .map(|(pid, start)| Owner { pid, start }),
            cwd: row.cwd,
            transcript: row.transcript,
            project: row.project,
            entrypoint: row.entrypoint,
            activity: row.activity,
            reason: row.reason.unwrap_or_default(),
            since: detail.since,
            idle_since: detail.idle_since,
            active_at: row.active_at,
            attended: detail.attended,
            messaging_socket: detail.messaging_socket,
            run: detail.run,
            continuations: detail.continuations,
            told: row
                .told_memory
                .and_then(|t| serde_json::from_str(&t).ok())
                .unwrap_or_default(),
            started: None,
        }
    }
}
