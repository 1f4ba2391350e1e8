//! The local API: axum on a Unix socket and on loopback, for hooks, the command line, scripts and tools.
//!
//! | who | proves itself by | may |
//! |---|---|---|
//! | socket | file mode 0600, the peer's uid, its pid where the system tells | everything; control only with no Claude process above it |
//! | loopback | a bearer token from a 0600 file; `Host` and `Origin` of this machine | everything but control |
//!
//! A page in a browser has neither token nor the right `Host` (DNS rebinding) or `Origin`, and every POST must be JSON,
//! which a form cannot be. Errors are `problem+json` with a stable code. What needs more than the queue (hooks, memory,
//! pausing) is asked of [`HookHandler`] and [`Control`].

mod body;
mod control;
mod guard;
mod listen;
mod messages;
mod once;
mod person;
mod routes;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use secrecy::SecretString;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::config::DaemonConfig;
use crate::domain::{Problem, SessionId};
use crate::local::{HookAnswer, HookCall};

use super::link::LinkHandle;
use super::projects::{Project, Projects};
use super::status::Facts;
use super::store::Store;

pub(super) use listen::{bind_socket, bind_tcp};
pub(super) use messages::return_expired;

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its process, where the system tells; never over loopback.
    pub pid: Option<u32>,
    /// Which way it came.
    pub via: Via,
}

/// The way into the local API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The Unix socket.
    Socket,
    /// Loopback.
    Loopback,
}

/// Answers hook events.
pub trait HookHandler: Send + Sync {
    /// What the hook is to print; the future is dropped when the hook gives up.
    fn hook(&self, call: HookCall, peer: Peer) -> BoxFuture<'static, HookAnswer>;
}

/// What the local API asks of the rest of the daemon.
pub trait Control: Send + Sync {
    /// What is remembered for a session: `{summary, context[], …}`.
    fn memory(&self, session: SessionId) -> BoxFuture<'static, Result<Value, Problem>>;

    /// The index of a session: `{files, symbols, recent_changes}`.
    fn index(&self, session: SessionId) -> BoxFuture<'static, Result<Value, Problem>>;

    /// Captures memory now and sends it; gives what was sent.
    fn sync_memory(&self) -> BoxFuture<'static, Result<Value, Problem>>;

    /// Stops or goes on handing out what is queued; durable.
    fn set_paused(&self, paused: bool) -> BoxFuture<'static, Result<(), Problem>>;

    /// Whether handing out is stopped.
    fn is_paused(&self) -> bool;

    /// The list of enabled projects changed.
    fn projects_changed(&self);
}

/// What the routes work with.
pub(super) struct Api {
    pub(super) store: Store,
    pub(super) link: LinkHandle,
    pub(super) projects: Projects,
    /// What the hub was told last.
    pub(super) told: Mutex<Vec<Project>>,
    pub(super) config: Arc<DaemonConfig>,
    pub(super) facts: Facts,
    pub(super) hooks: Arc<dyn HookHandler>,
    pub(super) control: Arc<dyn Control>,
    pub(super) token: SecretString,
    pub(super) stop: CancellationToken,
}

/// Where the local API can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listeners {
    /// The Unix socket.
    pub socket: PathBuf,
    /// The loopback address; `None` if it was taken.
    pub loopback: Option<SocketAddr>,
    /// Why there is no loopback address.
    pub loopback_error: Option<String>,
    /// The file with the loopback token.
    pub token_file: PathBuf,
}

pub(super) use routes::serve;
