//! Holding an answer back: the way to a session that is busy for exactly as long as the test wants.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::request::{Kind, Request};

/// The server's half: what it holds back, and until when.
pub(super) struct Lock {
    marker: String,
    open: watch::Sender<bool>,
    /// How many answers came to wait here.
    held: watch::Sender<usize>,
}

impl Lock {
    pub(super) fn new(marker: &str) -> Self {
        Self {
            marker: marker.to_owned(),
            open: watch::Sender::new(false),
            held: watch::Sender::new(0),
        }
    }

    /// Whether the answer to this request is to be held back.
    pub(super) fn fits(&self, request: &Request) -> bool {
        !*self.open.borrow() && request.kind == Kind::Main && request.contains(&self.marker)
    }

    /// Waits until the test opens the gate.
    pub(super) async fn hold(&self) {
        self.held.send_modify(|held| *held += 1);
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open)
            .await
            .expect("the sender lives in the lock itself");
    }
}

/// The test's half: answers wait while it is alive and not released.
pub(crate) struct Gate {
    lock: Arc<Lock>,
}

impl Gate {
    pub(super) fn new(lock: Arc<Lock>) -> Self {
        Self { lock }
    }

    /// Waits until an answer is held back here: from then on the session is busy.
    ///
    /// # Panics
    /// When none came in time.
    #[track_caller]
    pub(crate) fn wait_until_held(&self, within: Duration) -> impl Future<Output = ()> {
        let caller = Location::caller();
        let mut held = self.lock.held.subscribe();
        async move {
            let held = tokio::time::timeout(within, held.wait_for(|held| *held > 0)).await;
            let marker = &self.lock.marker;
            assert!(
                held.is_ok(),
                "no request held {marker:?} within {within:?} (waited at {caller})"
            );
        }
    }

    /// Lets the answers go, those held and all that follow.
    pub(crate) fn release(self) {
        drop(self);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("marker", &self.lock.marker)
            .finish_non_exhaustive()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.lock.open.send_replace(true);
    }
}
