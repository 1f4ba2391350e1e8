//! The way to the daemon on this machine: where its files lie, and a small blocking HTTP client over its Unix socket.
//!
//! The hook command, the command line and the MCP server all talk to the daemon through here. The hook runs at every
//! tool call of every session, so nothing in this module needs tokio, TLS, SQLite or tracing: it is std, `httparse`
//! and a few safe system calls. One exchange is one connection; one deadline covers all of it, from the connect
//! (which can block when a stopped daemon's backlog is full) to the last byte of the answer.
//!
//! ```text
//! <data dir>/                      --data-dir, REMOTE_COLLAB_DATA_DIR, or XDG data home
//!   daemon/                        the daemon's database, secrets, spool
//!     socket                       the path of the socket the daemon listens on, written by the daemon
//!     spool/                       hook events of the time the daemon was away
//!   hub/                           an embedded hub's store and keys
//! $XDG_RUNTIME_DIR/remote-collab/<hash of data dir>.sock
//! ```
//!
//! A session may run with another environment than the daemon (a service manager sets `XDG_RUNTIME_DIR`, a container
//! or `env -i` drops it), so the daemon's own note of its socket's path wins over computing it a second time.

mod client;
mod dial;
mod paths;
mod types;

pub use client::{Client, ClientError, Response};
pub(crate) use dial::own_uid;
pub use paths::{Env, Places, PlacesError, process_env, write_private};
pub use types::{HookAnswer, HookCall};
