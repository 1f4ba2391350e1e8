//! Hub and daemon over real sockets and files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed wait or step is a failed test"
)]

mod cases_hub;
mod cases_local;
#[cfg(target_os = "linux")]
mod cases_runs;
mod daemon_hub;
mod daemon_link;
mod daemon_local;
mod daemon_run;
mod fake_hub;
#[cfg(target_os = "linux")]
mod fallback;
mod hook_command;
mod hub_auth;
#[cfg(target_os = "linux")]
mod hub_backup;
mod hub_events;
#[cfg(target_os = "linux")]
mod hub_faults;
mod hub_http;
mod hub_kill;
#[cfg(unix)]
mod hub_listen;
mod hub_lists;
#[cfg(target_os = "linux")]
mod hub_owner;
mod hub_poll;
mod hub_results;
#[cfg(target_os = "linux")]
mod hub_retention;
mod hub_socket;
mod hub_tasks;
#[cfg(target_os = "linux")]
mod hub_webhooks;
#[cfg(target_os = "linux")]
mod killed;
#[cfg(target_os = "linux")]
mod lifecycle;
#[cfg(target_os = "linux")]
mod link_abuse;
#[cfg(target_os = "linux")]
mod link_holder;
#[cfg(target_os = "linux")]
mod link_limits;
mod link_unreadable;
#[cfg(target_os = "linux")]
mod link_wake;
#[cfg(target_os = "linux")]
mod no_secrets;
#[cfg(target_os = "linux")]
mod proxies;
#[cfg(target_os = "linux")]
mod run_bed;
#[cfg(target_os = "linux")]
mod runs_called_off;
#[cfg(target_os = "linux")]
mod runs_reported;
mod settings_file;
#[cfg(target_os = "linux")]
mod soak;
#[cfg(target_os = "linux")]
mod status_truth;
#[path = "../support/mod.rs"]
mod support;
#[cfg(target_os = "linux")]
mod watchdog;
