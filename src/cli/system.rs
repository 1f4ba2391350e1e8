//! What the command line needs of the operating system: a port is another version of this file.

use super::report::Failure;

/// Resolves when the process is asked to stop (SIGTERM or SIGINT); the handlers stand when this returns. From then on a
/// limit of file sizes makes a write fail, as a full disk does, and no longer ends the process.
#[cfg(unix)]
pub(super) fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let arm = |kind| signal(kind).map_err(|e| Failure::of("signals cannot be handled", &e));
    let (mut term, mut int) = (arm(SignalKind::terminate())?, arm(SignalKind::interrupt())?);
    drop(arm(SignalKind::from_raw(
        rustix::process::Signal::XFSZ.as_raw(),
    ))?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

/// Resolves when the process is asked to stop (Ctrl-C).
#[cfg(not(unix))]
pub(super) fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    Ok(async {
        // Without a handler there is nothing to wait for but the end of the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// The host's name as the system tells it.
#[cfg(unix)]
pub(super) fn node_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// The host's name as the system tells it.
#[cfg(not(unix))]
pub(super) fn node_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// Lets this process open as many files as its hard limit allows, and tells how many that is: every connection is one.
#[cfg(unix)]
pub(super) fn allow_many_files() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files stays as it is");
            current
        }
    }
}

/// How many files this process can open, where the system tells.
#[cfg(not(unix))]
pub(super) fn allow_many_files() -> Option<u64> {
    None
}
