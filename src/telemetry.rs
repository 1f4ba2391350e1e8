//! Logs: one subscriber, on stderr, so that stdout stays the program's own.
//!
//! `REMOTE_COLLAB_LOG` takes the usual filter directives (`info`, `remote_collab::hub=debug`). Secrets never reach a
//! log because the types that hold them redact themselves; the text of tasks and messages is never logged either.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The environment variable with the filter directives.
pub const LOG_ENV: &str = "REMOTE_COLLAB_LOG";

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people: coloured on a terminal unless `NO_COLOR` is set.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Installs the subscriber for this process; a second call changes nothing. `level` is the default (`info`, `debug`).
pub fn init(level: &str, format: Format) {
    let filter = EnvFilter::try_from_env(LOG_ENV)
        .or_else(|_| EnvFilter::try_new(level))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let base = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A line that cannot be written is lost: to complain about it on the same full disk would panic.
        .log_internal_errors(false);
    // An error means that a subscriber is there already: tests and embedded use.
    drop(match format {
        Format::Text => base.with_ansi(ansi).try_init(),
        Format::Json => base.json().try_init(),
    });
}
