//! The daemon: one per user, serving every enabled project and session.
//!
//! ```text
//!                 ┌──────────────────── Daemon (lock, queue, projects, hub client) ─────────────────────┐
//!   hub ◀══link══▶│ link ──▶ store ◀── planner, hooks, runs (given from outside) ◀── local_api ◀─ hooks │◀─ CLI, scripts
//!                 └─────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! It comes up in two steps. [`Daemon::open`] takes the lock and opens what lasts: whoever decides about mail and runs is built on
//! that. [`Daemon::start`] then opens the listeners and the link with these decision makers, and gives a
//! [`DaemonHandle`]. Nothing of it lives in globals, so that tests and `up` run several in one process.
//!
//! It ends in order when it is cancelled: no new requests, `bye` to the hub after the commits under way, the socket
//! removed, the queue closed, the lock released; all within a deadline.

pub mod assembly;
pub mod clock;
pub mod credentials;
pub mod dial;
pub mod dispatch;
mod git;
mod handle;
mod head;
pub mod http;
pub mod link;
pub mod local_api;
pub mod lock;
pub mod memory;
mod memory_block;
pub mod projects;
mod questions;
pub mod retry_timer;
pub mod server_events;
pub mod status;
pub mod store;
pub mod tls;
mod uploads;
pub mod watchdog;
pub mod way;

pub use handle::{Daemon, DaemonError, DaemonHandle, Options, Parts};
