//! The true status document: everything in it is looked at when it is asked for.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::local_api::{Api, Listeners};
use super::store::StoreError;
use crate::domain::{Activity, WallMs};

/// Sessions that are shown.
const SESSIONS: u32 = 100;

/// The CLI on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claude {
    /// Its path, if one was found.
    pub path: Option<PathBuf>,
    /// Its version, if it told.
    pub version: Option<String>,
    /// Why there is none.
    pub problem: Option<String>,
}

/// What does not change while the daemon runs.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) data_dir: PathBuf,
    pub(super) started_at: WallMs,
    pub(super) listeners: Listeners,
    pub(super) claude: Claude,
}

/// The document of `GET /status`.
pub(super) async fn document(api: &Api) -> Result<Value, StoreError> {
    let counts = api.store.counts().await?;
    let held: serde_json::Map<_, _> = counts
        .held
        .into_iter()
        .map(|(reason, n)| (reason, n.into()))
        .collect();
    let sessions = api.store.sessions(None, SESSIONS).await?;
    let live: Vec<_> = sessions
        .iter()
        .filter(|s| s.activity != Activity::Closed)
        .map(|s| {
            let mut shown = json!(s.info());
            shown["cwd"] = json!(s.cwd);
            shown["pid"] = json!(s.pid);
            shown
        })
        .collect();
    let runs: Vec<_> = api
        .store
        .unfinished_runs()
        .await?
        .iter()
        .map(|r| {
            json!({
                "task_id": r.task_id, "attempt": r.attempt, "state": r.state,
                "session_id": r.session_id, "pid": r.pid, "started_at": r.started_at,
            })
        })
        .collect();
    let (projects, projects_error) = match api.projects.list() {
        Ok(projects) => (projects, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let link = api.link.status().borrow().clone();
    let facts = &api.facts;
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "started_at": facts.started_at,
        "data_dir": facts.data_dir,
        "link": link,
        "queue": {
            "queued": counts.queued, "held": held, "claimed": counts.claimed, "done_last_day": counts.terminal,
        },
        "outbox": { "waiting": counts.outbox, "rejected": counts.rejected_reports },
        "paused": api.control.is_paused(),
        "listeners": {
            "socket": facts.listeners.socket,
            "local": facts.listeners.loopback.map(|a| format!("http://{a}")),
            "local_error": facts.listeners.loopback_error,
            "token_file": facts.listeners.token_file,
        },
        "projects": projects,
        "projects_error": projects_error,
        "sessions": live,
        "runs": runs,
        "runs_at_most": api.config.policy.runs.concurrent,
        "claude": {
            "path": facts.claude.path, "version": facts.claude.version, "problem": facts.claude.problem,
        },
    }))
}
