//! The dispatcher: the one task that knows what waits, which sessions live, who holds what, and which runs go.
//!
//! Everything that could concern two parties at once (a hook that asks for mail, an envelope that just arrived, a run
//! that ended) passes through this actor, so there are no locks and no order to get wrong. It decides nothing by itself:
//! [`crate::delivery`] and [`crate::trigger`] hold the decisions, the [`Store`] makes each of them durable together with its
//! reports, and this module carries facts in and effects out.
//!
//! ```text
//! store.version ──▶ refresh ──▶ plan each ──▶ hold / refuse / start a run      (planning, runs)
//! POST /hook    ──▶ registry ──▶ claim for this boundary ──▶ text for the hook  (hooks)
//! every moment  ──▶ transcripts, leases, the CLI's registry ──▶ signs           (follow)
//! ```
//!
//! What it must never do: wait for the network (memory is fetched by the hook's own task), wait for a run, or hand over
//! before the claim is durable.

mod brain;
mod call_off;
mod env_file;
mod follow;
mod followed;
mod hooks;
mod mail;
mod planning;
mod recover;
pub(crate) mod registry;
mod result_size;
mod run_end;
mod runs;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::claude::HookName;
use crate::config::DaemonConfig;
use crate::daemon::memory::MemorySource;
use crate::daemon::memory_block::Told;
use crate::daemon::projects::Projects;
use crate::daemon::store::{Store, StoreError};
use crate::domain::{ProjectName, SessionId, SessionInfo};
use crate::local::{HookAnswer, HookCall, Places};

pub(crate) use brain::Brain;

/// Messages that wait for the actor at most; a hook that finds no place is answered with nothing.
const QUEUE: usize = 256;

/// What the dispatcher works with.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The queue.
    pub store: Store,
    /// The configuration.
    pub config: Arc<DaemonConfig>,
    /// The CLI, if one was found.
    pub claude: Option<PathBuf>,
    /// The CLI's own folder (`~/.claude`).
    pub claude_dir: PathBuf,
    /// The enabled projects.
    pub projects: Projects,
    /// The hub's memory.
    pub memory: MemorySource,
    /// The installation.
    pub places: Places,
}

/// What a hook's own task has to do before it can answer.
#[derive(Debug)]
enum Reply {
    Answer(HookAnswer),
    /// A session starts: give it memory.
    Start(Start),
}

/// A session that is to be given memory.
#[derive(Debug, Clone)]
struct Start {
    event: HookName,
    session: SessionId,
    project: ProjectName,
    /// What it was told before, if it still knows it.
    told: Option<Told>,
}

/// What the actor is told.
#[derive(Debug)]
enum Msg {
    Hook {
        call: Box<HookCall>,
        peer_pid: Option<u32>,
        reply: oneshot::Sender<Reply>,
    },
    Told {
        session: SessionId,
        told: Told,
    },
    Run(runs::RunMsg),
    Pause {
        paused: bool,
        done: oneshot::Sender<std::io::Result<()>>,
    },
    ProjectsChanged,
    /// Whether the actor still takes its turns.
    Ask(oneshot::Sender<()>),
}

/// What the rest of the daemon may know at any time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct View {
    /// The sessions, most recently active first.
    pub sessions: Vec<SessionInfo>,
    /// Runs that go.
    pub running: u32,
    /// Free run slots.
    pub free: u32,
    /// Whether the user paused everything.
    pub paused: bool,
}

/// A handle on the dispatcher; cheap to clone.
#[derive(Debug, Clone)]
pub struct Dispatcher {
    tx: mpsc::Sender<Msg>,
    view: watch::Receiver<View>,
    capacity: watch::Receiver<u32>,
    memory: MemorySource,
    memory_tokens: usize,
}

impl Dispatcher {
    /// Reads what the store knows, stops runs that an earlier daemon left behind, and starts the actor on `tracker`; it ends
    /// with `cancel`, after its runs were stopped. `ended` is dropped with it, however it ends.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn start(
        parts: Parts,
        tracker: &TaskTracker,
        cancel: CancellationToken,
        ended: DropGuard,
    ) -> Result<Self, StoreError> {
        let (tx, rx) = mpsc::channel(QUEUE);
        let (view_tx, view) = watch::channel(View::default());
        let (memory, memory_tokens) = (parts.memory.clone(), parts.config.memory_tokens);
        let (capacity_tx, capacity) = watch::channel(parts.config.policy.runs.concurrent);
        let publisher = brain::Publisher {
            view: view_tx,
            capacity: capacity_tx,
        };
        let brain = Brain::load(parts, tx.clone(), publisher, tracker.clone()).await?;
        tracker.spawn(async move {
            let _ended = ended;
            brain.run(rx, cancel).await;
        });
        Ok(Self {
            tx,
            view,
            capacity,
            memory,
            memory_tokens,
        })
    }

    /// Whether the actor takes its turns: never ends while it does not.
    pub async fn answers(&self) -> bool {
        let (done, answered) = oneshot::channel();
        self.tx.send(Msg::Ask(done)).await.is_ok() && answered.await.is_ok()
    }

    /// What is known now; changes with it.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<View> {
        self.view.clone()
    }

    /// Free run slots; changes with them.
    #[must_use]
    pub fn capacity(&self) -> watch::Receiver<u32> {
        self.capacity.clone()
    }

    /// Answers a hook. `peer_pid` is the process at the other end of the socket.
    ///
    /// # Cancel safety
    /// Dropping this while mail is being claimed gives the mail back.
    pub async fn hook(&self, call: HookCall, peer_pid: Option<u32>) -> HookAnswer {
        let (reply, answer) = oneshot::channel();
        let msg = Msg::Hook {
            call: Box::new(call),
            peer_pid,
            reply,
        };
        // A full queue means that the hook would be late anyway.
        if self.tx.try_send(msg).is_err() {
            return HookAnswer::default();
        }
        match answer.await {
            Ok(Reply::Answer(answer)) => answer,
            Ok(Reply::Start(start)) => self.greet(start).await,
            Err(_) => HookAnswer::default(),
        }
    }

    /// Gives a starting session its memory.
    async fn greet(&self, start: Start) -> HookAnswer {
        let known = self.memory.knowledge(start.session, &start.project).await;
        let Some(block) = known.block(start.told.as_ref(), self.memory_tokens) else {
            return HookAnswer::default();
        };
        let output = crate::claude::HookOutput::context(start.event, block.text).into_json();
        let told = Msg::Told {
            session: start.session,
            told: block.told,
        };
        if self.tx.send(told).await.is_err() {
            tracing::debug!("the dispatcher ended before a session's memory was noted");
        }
        HookAnswer {
            output,
            ..HookAnswer::default()
        }
    }

    /// Holds everything, or lets it go again; outlives a restart.
    ///
    /// # Errors
    /// When that cannot be kept.
    pub async fn pause(&self, paused: bool) -> std::io::Result<()> {
        let (done, wait) = oneshot::channel();
        let gone = || std::io::Error::other("the dispatcher has ended");
        self.tx
            .send(Msg::Pause { paused, done })
            .await
            .map_err(|_| gone())?;
        wait.await.map_err(|_| gone())?
    }

    /// The list of enabled projects changed; it is read anew.
    pub fn projects_changed(&self) {
        // With a full queue the list is read at the next look at the CLI's registry.
        drop(self.tx.try_send(Msg::ProjectsChanged));
    }
}
