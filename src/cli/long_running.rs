//! `daemon run`, and what every long-running command shares: the runtime, the signals, the configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::json;

use super::Global;
use super::config::unusable;
use super::report::{Exit, Failure, say};
use super::system::stop_signal;
use crate::auth::crypto;
use crate::claude::config_dir;
use crate::config::{self, DaemonConfig, Sources};
use crate::core::client::ClientConfig;
use crate::daemon::assembly::{self, Whole};
use crate::daemon::status::Claude;
use crate::daemon::watchdog;
use crate::daemon::{DaemonError, Options};
use crate::local::{Places, process_env};
use crate::telemetry;

#[derive(Debug, Subcommand)]
pub(super) enum DaemonCommand {
    /// Run the daemon in the foreground
    Run(RunArgs),
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Where scripts reach the daemon on loopback; port 0 picks a free one [default: 127.0.0.1:9988]
    #[arg(long, value_name = "ADDR")]
    local_listen: Option<SocketAddr>,
}

/// A runtime for one command.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::of("the runtime did not start", &e))
}

/// The daemon's configuration from the user's file, the environment and these flags.
pub(super) fn load_config(flags: &[(&str, String, &str)]) -> Result<DaemonConfig, Failure> {
    let file = process_env("HOME").map(|home| Path::new(&home).join(config::FILE));
    DaemonConfig::load(Sources {
        file: file.as_deref(),
        env: &process_env,
        flags,
    })
    .map_err(|e| unusable(&e))
}

/// The CLI of this machine, with its version; blocks until the CLI told it.
pub(super) fn find_claude(config: &DaemonConfig) -> Claude {
    let path = process_env("PATH");
    match config::find_claude(config.claude_bin.as_deref(), path.as_deref()) {
        Ok(bin) => {
            let version = bin.version();
            Claude {
                problem: version.as_ref().err().map(ToString::to_string),
                version: version.ok(),
                path: Some(bin.path),
            }
        }
        Err(e) => Claude {
            path: None,
            version: None,
            problem: Some(e.to_string()),
        },
    }
}

/// The flag of the loopback address, for [`load_config`].
pub(super) fn listen_flags(
    listen: Option<SocketAddr>,
) -> Vec<(&'static str, String, &'static str)> {
    listen
        .map(|a| ("local_api", format!("http://{a}"), "--local-listen"))
        .into_iter()
        .collect()
}

/// Starts the daemon of this installation.
pub(super) async fn start(places: Places, config: DaemonConfig) -> Result<Whole, Failure> {
    let claude = find_claude(&config);
    let options = Options {
        socket: places.socket(&process_env),
        places,
        config: Arc::new(config),
        claude,
        link: ClientConfig::default(),
        watchdog: watchdog::Limits::default(),
    };
    let claude_dir = config_dir(process_env).unwrap_or_else(|| PathBuf::from(".claude"));
    assembly::start(options, claude_dir)
        .await
        .map_err(|e| failure(&e))
}

fn failure(e: &DaemonError) -> Failure {
    let failure = Failure::of("the daemon did not start", e);
    if e.is_running() {
        return failure.hint("`remote-collab status` shows the running one");
    }
    failure
}

pub(super) fn daemon(global: &Global, command: DaemonCommand) -> Result<Exit, Failure> {
    let DaemonCommand::Run(args) = command;
    telemetry::init("info", telemetry::Format::default());
    crypto::install();
    let places = global.places()?;
    let config = load_config(&listen_flags(args.local_listen))?;
    runtime()?.block_on(async {
        let stop = stop_signal()?;
        let mut daemon = start(places.clone(), config).await?;
        tell_ready(global, &places, &daemon)?;
        watchdog::tell_ready();
        tokio::select! {
            () = stop => {}
            () = daemon.ended() => return Err(Failure::new("the daemon ended by itself; its log says why")),
        }
        watchdog::tell_stopping();
        daemon.stop().await;
        Ok(Exit::Ok)
    })
}

fn tell_ready(global: &Global, places: &Places, daemon: &Whole) -> Result<(), Failure> {
    let listeners = daemon.handle.listeners();
    let local = listeners.loopback.map(|a| format!("http://{a}"));
    if global.json {
        return say(json!({
            "local": local, "local_token": daemon.handle.local_token(), "data_dir": places.root(),
        }));
    }
    say(format_args!("daemon: {}", listeners.socket.display()))?;
    match (local, &listeners.loopback_error) {
        (Some(url), _) => say(format_args!(
            "local: {url} (token in {})",
            listeners.token_file.display()
        )),
        (None, Some(error)) => say(format_args!("local: off ({error})")),
        (None, None) => Ok(()),
    }
}
