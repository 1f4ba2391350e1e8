//! End-to-end tests with the real Claude Code CLI against a scripted model API.
//!
//! `./tests/run` installs what they need; they run on Linux.

#![cfg(target_os = "linux")]

#[path = "../support/mod.rs"]
mod support;

mod fake_api;
