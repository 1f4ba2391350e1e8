//! The two clocks of this process.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::domain::{Ts, WallMs};

/// The wall clock, Unix ms.
pub(crate) fn wall() -> WallMs {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    WallMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// A monotonic clock with its origin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mono(Instant);

impl Mono {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Ts {
        Ts(u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// The instant of `at`, for a timer.
    pub(crate) fn instant(self, at: Ts) -> Instant {
        self.0 + Duration::from_millis(at.0)
    }
}
