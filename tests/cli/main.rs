//! What the commands print, whole: standard output, standard error and the exit code, as snapshots.
//!
//! `cargo insta review` (or `INSTA_UPDATE=always`) takes over a wanted change. What differs from run to run (ids, times,
//! ports, paths) is replaced by a word in brackets.
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of the support is a failed test"
)]

#[cfg(target_os = "linux")]
mod config;
#[cfg(target_os = "linux")]
mod control;
#[cfg(target_os = "linux")]
mod help;
#[cfg(target_os = "linux")]
mod producer;
#[cfg(target_os = "linux")]
mod shown;
#[path = "../support/mod.rs"]
mod support;
