//! End-to-end tests with the real Claude Code CLI against a scripted model API.
//!
//! `./tests/run` installs what they need; they run on Linux.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of the support is a failed test"
)]

mod bed;
mod cases_hand_over;
mod cases_ignored;
mod cases_memory;
mod cases_sessions;
mod cases_text;
mod cli_task;
mod crashes;
mod fake_api;
mod harness;
mod main_path;
#[path = "../support/mod.rs"]
mod support;
