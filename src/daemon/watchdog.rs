//! Whether the daemon's loops still go round: a process that looks healthy while one of them hangs serves nobody.
//!
//! Each long loop beats: the link's with every turn, the others by answering a question that goes all the way through
//! them (the queue's writer tells its place, the dispatcher answers, the local API answers over its own socket). One
//! thread outside the runtime looks at the beats, because a runtime that hangs looks at nothing; a loop that has not
//! beaten for [`Limits::stall`] ends the process, and the service manager starts a new one on the same queue.
//!
//! The thread counts only the time that it was awake itself: a look that comes late (a stopped process, a sleeping or
//! an overloaded machine) counts as one look. So a sleep of any length is no stall.
//!
//! Under systemd the same thread tells the manager that all is well, with `WatchdogSec` of the unit; it is the second
//! line, for the case that this thread hangs, too.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

/// How long a loop may stand still.
const STALL: Duration = Duration::from_secs(75);
/// The longest time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Looks in the time of a stall, at least.
const LOOKS: u32 = 30;
/// Questions in the time of a stall.
const QUESTIONS: u32 = 6;
/// The exit status of a daemon that ended itself (`EX_SOFTWARE`).
const STALLED: i32 = 70;

/// When a loop is taken to hang, and what follows.
#[derive(Clone)]
pub struct Limits {
    /// How long a loop may stand still.
    pub stall: Duration,
    /// What is done about it, given the loop's name; by default the process ends with status 70.
    pub stalled: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stall: STALL,
            stalled: Arc::new(end),
        }
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits")
            .field("stall", &self.stall)
            .finish_non_exhaustive()
    }
}

#[expect(
    clippy::exit,
    reason = "a loop that hangs cannot be asked to end, and may hold up everything that would"
)]
fn end(_name: &str) {
    std::process::exit(STALLED)
}

/// The hand of one loop; one that nobody watches beats for itself.
#[derive(Debug, Clone, Default)]
pub struct Beat(Arc<AtomicU64>);

impl Beat {
    /// The loop went round.
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A loop as the thread sees it.
#[derive(Debug)]
struct Watched {
    name: &'static str,
    beat: Beat,
    /// The count at the last look.
    seen: u64,
    /// Waking time since it changed.
    still: Duration,
}

impl Watched {
    /// Looks again after `passed`; whether the loop has stood still for too long.
    fn look(&mut self, passed: Duration, stall: Duration) -> bool {
        let now = self.beat.0.load(Ordering::Relaxed);
        if now == self.seen {
            self.still += passed;
        } else {
            self.seen = now;
            self.still = Duration::ZERO;
        }
        self.still >= stall
    }
}

#[derive(Debug, Default)]
struct Shared {
    watched: Mutex<Vec<Watched>>,
    stop: AtomicBool,
}

/// The watching thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<Shared>,
    thread: Thread,
    stall: Duration,
}

impl Watchdog {
    /// Starts watching.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(limits: Limits) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (seen, stall) = (Arc::clone(&shared), limits.stall);
        let thread = std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || watch(&seen, &limits))?;
        Ok(Self {
            shared,
            thread: thread.thread().clone(),
            stall,
        })
    }

    /// Watches one more loop.
    #[must_use]
    pub fn watch(&self, name: &'static str) -> Beat {
        let beat = Beat::default();
        let watched = Watched {
            name,
            beat: beat.clone(),
            seen: 0,
            still: Duration::ZERO,
        };
        self.shared
            .watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(watched);
        beat
    }

    /// Watches one more loop by asking it; a question that is answered with `true` is a beat, one that never is, is none.
    pub fn ask<F>(
        &self,
        name: &'static str,
        stop: CancellationToken,
        question: impl Fn() -> F + Send + 'static,
    ) where
        F: Future<Output = bool> + Send,
    {
        let beat = self.watch(name);
        let every = self.stall / QUESTIONS;
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            loop {
                if question().await {
                    beat.beat();
                }
                tokio::time::sleep(every).await;
            }
        }));
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

fn watch(shared: &Shared, limits: &Limits) {
    let look = (limits.stall / LOOKS).min(LOOK);
    let tell = sd_notify::watchdog_enabled().map(|within| within / 3);
    let (mut last, mut told) = (Instant::now(), None::<Instant>);
    while !shared.stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(look);
        let now = Instant::now();
        // Nobody ran for longer than this look was meant to take, or this thread would have looked.
        let passed = now.duration_since(last).min(2 * look);
        last = now;
        if let Some(name) = stalled(shared, passed, limits.stall) {
            tracing::error!(
                loop_name = name,
                after_s = limits.stall.as_secs(),
                "a loop of the daemon stands still; the daemon ends"
            );
            (limits.stalled)(name);
            return;
        }
        if let Some(every) = tell
            && told.is_none_or(|at| now.duration_since(at) >= every)
        {
            told = Some(now);
            notify(&NotifyState::Watchdog);
        }
    }
}

fn stalled(shared: &Shared, passed: Duration, stall: Duration) -> Option<&'static str> {
    let mut watched = shared
        .watched
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let mut first = None;
    for one in watched.iter_mut() {
        if one.look(passed, stall) {
            first.get_or_insert(one.name);
        }
    }
    first
}

/// Tells the service manager that the daemon can be reached.
pub fn tell_ready() {
    notify(&NotifyState::Ready);
}

/// Tells the service manager that the daemon stops.
pub fn tell_stopping() {
    notify(&NotifyState::Stopping);
}

/// Nothing happens without a service manager (`NOTIFY_SOCKET`).
fn notify(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        tracing::debug!(%error, "the service manager was not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn limits(stall: Duration) -> (Limits, mpsc::Receiver<String>) {
        let (tx, rx) = mpsc::channel();
        let stalled = Arc::new(move |name: &str| tx.send(name.to_owned()).unwrap());
        (Limits { stall, stalled }, rx)
    }

    #[test]
    fn a_loop_that_stands_still_is_named_and_one_that_turns_is_not() {
        let (limits, named) = limits(Duration::from_millis(300));
        let dog = Watchdog::start(limits).unwrap();
        let turning = dog.watch("turning");
        let _still = dog.watch("still");
        let name = loop {
            turning.beat();
            if let Ok(name) = named.recv_timeout(Duration::from_millis(5)) {
                break name;
            }
        };
        assert_eq!(name, "still");
    }

    #[tokio::test]
    async fn a_question_that_is_never_answered_names_the_loop_that_was_asked() {
        let (limits, named) = limits(Duration::from_millis(300));
        let dog = Watchdog::start(limits).unwrap();
        let stop = CancellationToken::new();
        dog.ask("answering", stop.clone(), || std::future::ready(true));
        dog.ask("hanging", stop.clone(), std::future::pending::<bool>);
        let name = tokio::task::spawn_blocking(move || named.recv_timeout(Duration::from_secs(20)));
        assert_eq!(name.await.unwrap().unwrap(), "hanging");
    }

    #[test]
    fn a_sleep_of_any_length_counts_as_one_look() {
        let stall = Duration::from_secs(75);
        let mut watched = Watched {
            name: "any",
            beat: Beat::default(),
            seen: 0,
            still: Duration::ZERO,
        };
        // As `watch` cuts it: an hour of sleep is two looks long, so 38 of them are a stall.
        let passed = Duration::from_secs(3_600).min(2 * LOOK);
        assert!(!watched.look(passed, stall));
        assert!((0..36).all(|_| !watched.look(passed, stall)));
        assert!(watched.look(passed, stall));
        watched.beat.beat();
        assert!(!watched.look(passed, stall));
    }

    #[test]
    fn a_watchdog_that_was_dropped_names_nothing() {
        let (limits, named) = limits(Duration::from_millis(200));
        let dog = Watchdog::start(limits).unwrap();
        let _still = dog.watch("still");
        drop(dog);
        // The thread drops what it holds when it ends.
        assert!(named.recv_timeout(Duration::from_secs(20)).is_err());
    }
}
