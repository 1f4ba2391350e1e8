//! The whole daemon: what lasts, the dispatcher on it, listeners and link in front.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clock;
use super::dispatch::{self, Dispatcher};
use super::http::{Fetched, HttpError, HubHttp};
use super::link::{Directory, SnapshotSource};
use super::local_api::{Control, HookHandler, Peer};
use super::memory::{AskHub, MemorySource};
use super::projects::Projects;
use super::status::Claude;
use super::store::{EnvelopeRow, EnvelopeState, QueueFilter, StoreError};
use super::uploads;
use super::{Daemon, DaemonError, DaemonHandle, Options, Parts};
use crate::domain::{Code, Problem, ProjectName, SessionId};
use crate::local::{HookAnswer, HookCall};

/// How long runs may take to end when the daemon stops.
const RUNS_TIMEOUT: Duration = Duration::from_secs(20);

/// A running daemon with its dispatcher.
#[derive(Debug)]
pub struct Whole {
    /// Listeners, link and queue.
    pub handle: DaemonHandle,
    /// What waits, lives and runs.
    pub dispatcher: Dispatcher,
    claude: Claude,
    tracker: TaskTracker,
    cancel: CancellationToken,
}

/// Starts a daemon for the installation of `options`; `claude_dir` is the CLI's own folder.
///
/// # Errors
/// When another daemon runs, or something cannot be used.
pub async fn start(options: Options, claude_dir: PathBuf) -> Result<Whole, DaemonError> {
    let daemon = Daemon::open(options)?;
    let options = daemon.options();
    let dir = options.places.daemon();
    let hub = Arc::new(Hub(daemon.http().clone()));
    let memory = MemorySource::new(Some(hub), dir.join("memory"), clock::wall);
    let parts = dispatch::Parts {
        store: daemon.store().clone(),
        config: Arc::clone(&options.config),
        claude: options.claude.path.clone(),
        claude_dir,
        projects: daemon.projects().clone(),
        memory: memory.clone(),
        places: options.places.clone(),
    };
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    // Nothing works without the dispatcher: with its end the daemon ends.
    let ended = daemon.stopping().drop_guard();
    let dispatcher = Dispatcher::start(parts, &tracker, cancel.clone(), ended).await?;
    let asked = dispatcher.clone();
    daemon
        .watchdog()
        .ask("dispatcher", daemon.stopping(), move || {
            let asked = asked.clone();
            async move { asked.answers().await }
        });
    let desk = Arc::new(Desk {
        dispatcher: dispatcher.clone(),
        projects: daemon.projects().clone(),
        memory,
        claude_version: options.claude.version.clone(),
    });
    let parts = Parts {
        hooks: Arc::clone(&desk) as _,
        control: Arc::clone(&desk) as _,
        source: desk,
        capacity: dispatcher.capacity(),
    };
    let claude = options.claude.clone();
    let (store, http) = (daemon.store().clone(), daemon.http().clone());
    let handle = daemon.start(parts).await?;
    let uploads = uploads::run(store, http, handle.link().status());
    let stopped = cancel.clone();
    tracker.spawn(async move { stopped.run_until_cancelled(uploads).await });
    Ok(Whole {
        handle,
        dispatcher,
        claude,
        tracker,
        cancel,
    })
}

impl Whole {
    /// The CLI that was found at the start.
    #[must_use]
    pub const fn claude(&self) -> &Claude {
        &self.claude
    }

    /// Envelopes that wait, are on their way, or ended lately, at most `limit` of each.
    ///
    /// # Errors
    /// When the queue cannot be read.
    pub async fn recent(&self, limit: u32) -> Result<Vec<EnvelopeRow>, StoreError> {
        let mut rows = Vec::new();
        for state in [
            EnvelopeState::Queued,
            EnvelopeState::Claimed,
            EnvelopeState::Terminal,
        ] {
            let filter = QueueFilter {
                state: Some(state),
                ..QueueFilter::default()
            };
            rows.extend(self.handle.store().queued(filter, limit).await?);
        }
        Ok(rows)
    }

    /// Stops cleanly: runs first, then the link, the listeners and the queue; each within a deadline.
    pub async fn stop(self) {
        self.cancel.cancel();
        self.tracker.close();
        if timeout(RUNS_TIMEOUT, self.tracker.wait()).await.is_err() {
            tracing::warn!("runs did not end in time; the next daemon will find them");
        }
        self.handle.stop().await;
    }

    /// Waits until it has stopped by itself, because a part of it ended.
    pub async fn ended(&mut self) {
        self.handle.ended().await;
    }
}

/// The hub's memory over HTTP.
#[derive(Debug)]
struct Hub(HubHttp);

impl AskHub for Hub {
    fn memory(
        &self,
        session: SessionId,
        project: &ProjectName,
    ) -> BoxFuture<'_, Result<(Value, Value), String>> {
        let project = project.clone();
        async move {
            let (memory, index) = tokio::join!(
                self.0.get_memory(session, Some(&project), None),
                self.0.get_index(session, Some(&project), None)
            );
            Ok((body(memory)?, body(index)?))
        }
        .boxed()
    }
}

fn body(fetched: Result<Fetched, HttpError>) -> Result<Value, String> {
    match fetched {
        Ok(Fetched::Found { body, .. }) => Ok(body),
        Ok(Fetched::Missing | Fetched::NotModified) => Ok(Value::Null),
        Err(error) => Err(error.to_string()),
    }
}

/// What listeners and link ask of the dispatcher.
#[derive(Debug)]
struct Desk {
    dispatcher: Dispatcher,
    projects: Projects,
    memory: MemorySource,
    claude_version: Option<String>,
}

impl HookHandler for Desk {
    fn hook(&self, call: HookCall, peer: Peer) -> BoxFuture<'static, HookAnswer> {
        let dispatcher = self.dispatcher.clone();
        async move { dispatcher.hook(call, peer.pid).await }.boxed()
    }
}

impl SnapshotSource for Desk {
    fn directory(&self) -> BoxFuture<'static, Directory> {
        let view = self.dispatcher.view().borrow().clone();
        let projects = self.projects.list().unwrap_or_else(|error| {
            tracing::error!(%error, "the enabled projects cannot be read");
            Vec::new()
        });
        let directory = Directory {
            claude_version: self.claude_version.clone(),
            capacity: view.free,
            projects: projects.iter().map(|p| p.info(true)).collect(),
            sessions: view.sessions,
        };
        async move { directory }.boxed()
    }
}

impl Desk {
    /// Memory and index of a session; the project is the session's own.
    fn known(&self, session: SessionId) -> BoxFuture<'static, Result<(Value, Value), Problem>> {
        let view = self.dispatcher.view().borrow().clone();
        let project = view
            .sessions
            .into_iter()
            .find(|s| s.session_id == session || s.lineage.contains(&session))
            .and_then(|s| s.project);
        let memory = self.memory.clone();
        async move {
            let project = project.ok_or_else(|| {
                Problem::new(
                    Code::UnknownTarget,
                    format!("no session `{session}` in an enabled project"),
                )
                .hint("`remote-collab status` lists the sessions")
            })?;
            Ok(memory.documents(session, &project).await)
        }
        .boxed()
    }
}

impl Control for Desk {
    fn memory(&self, session: SessionId) -> BoxFuture<'static, Result<Value, Problem>> {
        let known = self.known(session);
        async move { known.await.map(|(memory, _)| memory) }.boxed()
    }

    fn index(&self, session: SessionId) -> BoxFuture<'static, Result<Value, Problem>> {
        let known = self.known(session);
        async move { known.await.map(|(_, index)| index) }.boxed()
    }

    fn sync_memory(&self) -> BoxFuture<'static, Result<Value, Problem>> {
        let sessions = self.dispatcher.view().borrow().sessions.clone();
        let memory = self.memory.clone();
        async move {
            let mut projects: Vec<ProjectName> = Vec::new();
            for session in sessions {
                let Some(project) = session.project.filter(|p| !projects.contains(p)) else {
                    continue;
                };
                memory.documents(session.session_id, &project).await;
                projects.push(project);
            }
            Ok(json!({ "fetched": projects }))
        }
        .boxed()
    }

    fn set_paused(&self, paused: bool) -> BoxFuture<'static, Result<(), Problem>> {
        let dispatcher = self.dispatcher.clone();
        async move {
            dispatcher.pause(paused).await.map_err(|error| {
                Problem::new(
                    Code::Internal,
                    format!("the pause could not be kept: {error}"),
                )
            })
        }
        .boxed()
    }

    fn is_paused(&self) -> bool {
        self.dispatcher.view().borrow().paused
    }

    fn projects_changed(&self) {
        self.dispatcher.projects_changed();
    }
}
