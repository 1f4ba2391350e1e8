//! What several test programs use: a hub in a folder of its own, an HTTP client, a raw device, the real program in
//! processes of its own; a scripted model API, the real Claude Code CLI in a throwaway home, and interactive sessions
//! of it in a terminal.
//!
//! What drives the CLI waits for events (a request in the log, a byte on the screen, a change in a folder);
//! each wait has a deadline, and a missed one panics with what was seen instead.
#![allow(dead_code, reason = "not every test program uses everything")]

#[cfg(target_os = "linux")]
pub(crate) mod claude;
#[cfg(target_os = "linux")]
pub(crate) mod connect_proxy;
pub(crate) mod edge_proxy;
pub(crate) mod fake_anthropic;
pub(crate) mod fault_proxy;
pub(crate) mod hub_bed;
#[cfg(target_os = "linux")]
pub(crate) mod interactive;
pub(crate) mod poll_client;
#[cfg(unix)]
pub(crate) mod private_ca;
#[cfg(target_os = "linux")]
pub(crate) mod process;
pub(crate) mod queue_db;
#[cfg(target_os = "linux")]
pub(crate) mod sites;
pub(crate) mod sse;
#[cfg(target_os = "linux")]
pub(crate) mod tmux;
#[cfg(target_os = "linux")]
pub(crate) mod watch;
pub(crate) mod ws_client;

use std::time::Duration;

/// The deadline for one step of a test: far above what it takes, so that only a hang reaches it.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A text that occurs nowhere else, to be searched for in requests, transcripts and on screens.
pub(crate) fn marker(label: &str) -> String {
    format!("{label}-{}", uuid::Uuid::new_v4().simple())
}
