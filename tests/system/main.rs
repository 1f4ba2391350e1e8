//! Hub and daemon over real sockets and files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed wait or step is a failed test"
)]

mod daemon_link;
mod daemon_local;
mod fake_hub;
