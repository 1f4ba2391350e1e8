//! Waiting for a change in a folder, told by the kernel.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// What counts as a change of a folder.
const CHANGES: inotify::WatchFlags = inotify::WatchFlags::CREATE
    .union(inotify::WatchFlags::MODIFY)
    .union(inotify::WatchFlags::CLOSE_WRITE)
    .union(inotify::WatchFlags::MOVED_TO)
    .union(inotify::WatchFlags::MOVED_FROM)
    .union(inotify::WatchFlags::DELETE);

/// A set of watched folders.
#[derive(Debug)]
pub(crate) struct Watch {
    events: AsyncFd<OwnedFd>,
}

impl Watch {
    /// Watches nothing yet.
    pub(crate) fn new() -> Self {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let events = inotify::init(flags).expect("the kernel can watch folders");
        Self {
            events: asynchronous(events),
        }
    }

    /// Watches a folder too, or its nearest parent while it does not exist; again is harmless.
    pub(crate) fn arm(&self, dir: &Path) {
        for existing in dir.ancestors() {
            match inotify::add_watch(self.events.get_ref(), existing, CHANGES) {
                Ok(_) => return,
                Err(Errno::NOENT) => {}
                Err(error) => panic!("cannot watch {}: {error}", existing.display()),
            }
        }
    }

    /// Waits for the next change in any watched folder.
    pub(crate) async fn changed(&self) {
        let mut ready = self.events.readable().await.expect("the watch stays open");
        let mut events = [0; 4096];
        while rustix::io::read(self.events.get_ref(), &mut events).is_ok() {}
        ready.clear_ready();
    }
}

/// Asks again at every change in a folder until there is an answer.
///
/// # Panics
/// When there is none in time, with the files that are there.
#[track_caller]
pub(crate) fn until<T, F: FnMut() -> Option<T>>(
    dir: &Path,
    within: Duration,
    ask: F,
) -> impl Future<Output = T> + use<T, F> {
    let dir = dir.to_owned();
    until_in(move || vec![dir.clone()], within, ask)
}

/// Asks again at every change in one of several folders, named anew each time, until there is an answer.
///
/// # Panics
/// When there is none in time, with the files that are there.
#[track_caller]
pub(crate) fn until_in<T>(
    dirs: impl Fn() -> Vec<PathBuf>,
    within: Duration,
    mut ask: impl FnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let watch = Watch::new();
        let found = tokio::time::timeout(within, async {
            loop {
                dirs().iter().for_each(|dir| watch.arm(dir));
                if let Some(found) = ask() {
                    return found;
                }
                watch.changed().await;
            }
        });
        found.await.unwrap_or_else(|_| {
            let mut paths: Vec<PathBuf> = dirs().iter().flat_map(|dir| files_in(dir)).collect();
            paths.dedup();
            let seen: String = paths.iter().map(|path| beginning(path)).collect();
            panic!("nothing fitted within {within:?} (waited at {caller}); files:{seen}")
        })
    }
}

/// A file's path and how it begins, for the message of a failed wait.
fn beginning(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let text: String = text.chars().take(800).collect();
    format!("\n{}: {text}", path.display())
}

/// Makes a handle one that can be awaited.
pub(super) fn asynchronous<H: AsRawFd>(handle: H) -> AsyncFd<H> {
    #[expect(
        deprecated,
        reason = "deprecated for handles that may close on their own; those of the callers do not"
    )]
    AsyncFd::new(handle).expect("a runtime that drives I/O")
}

/// The paths in a folder in order, none if it does not exist.
pub(crate) fn files_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}
