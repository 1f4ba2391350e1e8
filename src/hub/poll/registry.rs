//! Which device has a session, and who was not told yet that the hub stops.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::{Board, PollSession};
use crate::domain::DeviceId;
use crate::hub::limits::{Limiter, Rate};
use crate::hub::problem::ApiError;

/// Calls of one device: two at a time, ten times a second, and room for a burst.
const RATE: Rate = Rate {
    per_s: 30,
    burst: 300,
};
/// How long a stopping hub goes on listening for devices that are between two calls.
const LINGER: Duration = Duration::from_secs(2);

/// The sessions that are open, one per device at most.
#[derive(Debug)]
pub(crate) struct Polls {
    open: Mutex<BTreeMap<DeviceId, Arc<PollSession>>>,
    /// Devices whose session ended with the hub between two calls, and what they are to be told.
    unheard: watch::Sender<BTreeMap<DeviceId, ApiError>>,
    pub(crate) limiter: Limiter,
}

impl Default for Polls {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            unheard: watch::Sender::default(),
            limiter: Limiter::new(RATE),
        }
    }
}

impl Polls {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<DeviceId, Arc<PollSession>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn session(&self, device: &DeviceId, generation: u64) -> Option<Arc<PollSession>> {
        let open = self.lock().get(device).cloned();
        open.filter(|s| s.generation == generation)
    }

    pub(super) fn enter(&self, device: &DeviceId, session: Arc<PollSession>) {
        let mut open = self.lock();
        if open
            .get(device)
            .is_none_or(|s| s.generation < session.generation)
        {
            open.insert(device.clone(), session);
        }
    }

    pub(super) fn leave(&self, device: &DeviceId, board: &Arc<Board>) {
        let mut open = self.lock();
        if open
            .get(device)
            .is_some_and(|s| Arc::ptr_eq(&s.board, board))
        {
            open.remove(device);
        }
    }

    /// Keeps why the session ended, for the device's next call.
    pub(super) fn keep(&self, device: &DeviceId, why: ApiError) {
        self.unheard.send_modify(|unheard| {
            unheard.insert(device.clone(), why);
        });
    }

    /// What was kept for the device, once.
    pub(super) fn ask(&self, device: &DeviceId) -> Option<ApiError> {
        let mut why = None;
        self.unheard.send_if_modified(|unheard| {
            why = unheard.remove(device);
            why.is_some()
        });
        why
    }

    /// Waits until every device was told, for a moment at most.
    pub(crate) async fn told(&self) {
        let mut unheard = self.unheard.subscribe();
        let told = unheard.wait_for(BTreeMap::is_empty);
        if timeout(LINGER, told).await.is_err() {
            tracing::debug!("not every device on polls was told that the hub stops");
        }
    }
}
