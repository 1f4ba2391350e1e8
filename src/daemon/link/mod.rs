//! The shell of the link: one task that drives [`LinkClient`](crate::core::client::LinkClient) and carries bytes, rows and time to it.
//!
//! ```text
//!           commands ─┐                       ┌─▶ dial (a future; dropped = abandoned)
//!   outbox, capacity ─┤      ┌────────────┐   ├─▶ transport (writes in a task of their own)
//!       frames, dial ─┼────▶ │ LinkClient │ ──┼─▶ queue lane   store envelopes, reset → Stored → ack
//!   commits, reports ─┤      └────────────┘   ├─▶ outbox lane  hello, load, prune, renumber
//!   timers, wake-ups ─┘                       └─▶ status (watch)
//! ```
//!
//! A transport is a WebSocket, or the calls of [`poll`] that look like one. [`Fallback`](crate::core::fallback::Fallback) says
//! which is dialled; on the polls the WebSocket is dialled beside them, and takes their place when it is open.
//!
//! An ack leaves only after `Input::Stored`, and that is fed only after the commit. Credentials are read from their file at
//! every dial and every renewal, so that a new login counts at once. Everything the loop waits for can be cancelled;
//! what cannot (a write that was begun, a commit) runs elsewhere.

mod lane;
mod poll;
mod shell;
mod status;
mod transport;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::config::HubUrl;
use crate::core::client::{ClientConfig, HelloSnapshot};
use crate::domain::{ProjectInfo, SessionInfo};

pub use status::LinkStatus;

use super::clock;
use super::dial::Dialer;
use super::http::HubHttp;
use super::store::{Position, Store};
use super::watchdog::Beat;

/// What `hello` tells beside the queue's position.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Directory {
    /// The CLI's version, if one was found.
    pub claude_version: Option<String>,
    /// Free run slots.
    pub capacity: u32,
    /// The enabled projects.
    pub projects: Vec<ProjectInfo>,
    /// The live sessions.
    pub sessions: Vec<SessionInfo>,
}

impl Directory {
    fn snapshot(self, at: &Position) -> HelloSnapshot {
        HelloSnapshot {
            instance: at.info.instance,
            take_over: false,
            last: at.last,
            outbox_instance: at.info.outbox_instance,
            next_n: at.next_n,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            os: std::env::consts::OS.to_owned(),
            claude_version: self.claude_version,
            capacity: self.capacity,
            projects: self.projects,
            sessions: self.sessions,
        }
    }
}

/// Tells what this device serves at the moment.
pub trait SnapshotSource: Send + Sync {
    /// The directory for a `hello` that is about to be sent.
    fn directory(&self) -> BoxFuture<'static, Directory>;
}

/// What the link is made of.
pub struct LinkParts {
    /// The queue.
    pub store: Store,
    /// Opens transports.
    pub dialer: Dialer,
    /// Makes the calls of the fallback.
    pub http: HubHttp,
    /// How soon the fallback tries the WebSocket again at first, and how often it asks where polls may not wait.
    pub poll_interval: Duration,
    /// The folder of the device's credentials.
    pub credentials: PathBuf,
    /// The hub of the configuration, which wins over that of `login`.
    pub hub: Option<HubUrl>,
    /// What this device serves.
    pub source: Arc<dyn SnapshotSource>,
    /// Free run slots.
    pub capacity: watch::Receiver<u32>,
    /// The machine's limits.
    pub config: ClientConfig,
    /// Beaten by every turn of the loop.
    pub beat: Beat,
}

impl std::fmt::Debug for LinkParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkParts")
            .field("store", &self.store)
            .field("hub", &self.hub)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Command {
    Connect {
        /// Whether a person moved the device here.
        take_over: bool,
        /// Told when the status shows it.
        done: Option<oneshot::Sender<()>>,
    },
    Disconnect,
}

/// A handle on the running link.
#[derive(Debug, Clone)]
pub struct LinkHandle {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<LinkStatus>,
}

impl LinkHandle {
    /// Opens the link, or tries again at once.
    pub async fn connect(&self) {
        // A stopped link has nothing to open.
        let (take_over, done) = (false, None);
        let command = Command::Connect { take_over, done };
        self.commands.send(command).await.ok();
    }

    /// As [`Self::connect`], on a running link: returns when its status shows the attempt. With `take_over` the device moves here:
    /// another instance that holds its key is shut out.
    pub async fn reconnect(&self, take_over: bool) {
        let (done, begun) = oneshot::channel();
        let done = Some(done);
        let command = Command::Connect { take_over, done };
        if self.commands.send(command).await.is_ok() {
            // A link that stops meanwhile shows that.
            begun.await.ok();
        }
    }

    /// Closes the link until [`Self::connect`].
    pub async fn disconnect(&self) {
        self.commands.send(Command::Disconnect).await.ok();
    }

    /// The link's status, as it changes.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<LinkStatus> {
        self.status.clone()
    }
}

/// The link and the future that runs it; it ends after `stop` is cancelled, having said `bye`.
pub fn link(
    parts: LinkParts,
    stop: CancellationToken,
) -> (LinkHandle, impl Future<Output = ()> + Send) {
    let (commands, taken) = mpsc::channel(16);
    let (publish, status) = watch::channel(LinkStatus::idle(clock::wall()));
    let shell = shell::Shell::new(parts, publish);
    (LinkHandle { commands, status }, shell.run(taken, stop))
}
