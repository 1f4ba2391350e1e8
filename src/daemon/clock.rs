//! The daemon's clocks: one that only runs while the machine is awake, one that also counts its sleep.
//!
//! Waiting is done by the first (it is what timers follow); a jump of the second against it means that the machine
//! slept, that peers may have forgotten us meanwhile, and that the link is to be probed at once.

use rustix::time::{ClockId, clock_gettime};

use crate::domain::{Ts, WallMs};

/// A gap between the clocks from which on the machine is taken to have slept, ms.
const SLEPT_MS: u64 = 2_000;
/// Time between two looks from which on this process is taken to have been stopped, ms; the shells look every second. A
/// machine that is so busy costs one ping.
const STOPPED_MS: u64 = 3_000;

/// Time since this clock was made, and whether the machine or this process slept.
#[derive(Debug, Clone)]
pub struct Clock {
    origin_ms: u64,
    last: Look,
}

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    awake_ms: u64,
    asleep_ms: u64,
}

impl Look {
    fn take() -> Self {
        Self {
            awake_ms: awake_ms(),
            asleep_ms: asleep_ms(),
        }
    }

    /// Whether something slept from the earlier look to this one.
    const fn slept_since(self, earlier: Self) -> bool {
        self.asleep_ms.saturating_sub(earlier.asleep_ms) >= SLEPT_MS
            || self.awake_ms.saturating_sub(earlier.awake_ms) >= STOPPED_MS
    }
}

impl Clock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        let last = Look::take();
        Self {
            origin_ms: last.awake_ms,
            last,
        }
    }

    /// Monotonic time since the clock was made.
    #[must_use]
    pub fn now(&self) -> Ts {
        Ts(awake_ms().saturating_sub(self.origin_ms))
    }

    /// Whether the machine slept, or this process was stopped, since the last call; to be called every second.
    pub fn slept(&mut self) -> bool {
        let look = Look::take();
        let slept = look.slept_since(self.last);
        self.last = look;
        slept
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// The wall clock, Unix ms.
#[must_use]
pub fn wall() -> WallMs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    WallMs(since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
}

fn read_ms(id: ClockId) -> u64 {
    let t = clock_gettime(id);
    let s = u64::try_from(t.tv_sec).unwrap_or(0);
    let ns = u64::try_from(t.tv_nsec).unwrap_or(0);
    s.saturating_mul(1_000).saturating_add(ns / 1_000_000)
}

/// Time since the machine was started, its sleep included where the system tells; nobody can set it.
pub(crate) fn since_boot_ms() -> i64 {
    i64::try_from(awake_ms().saturating_add(asleep_ms())).unwrap_or(i64::MAX)
}

fn awake_ms() -> u64 {
    read_ms(ClockId::Monotonic)
}

/// How long the machine slept since it was started.
#[cfg(target_os = "linux")]
fn asleep_ms() -> u64 {
    read_ms(ClockId::Boottime).saturating_sub(awake_ms())
}

/// Without a suspend-aware clock the heartbeat alone notices a sleep.
#[cfg(not(target_os = "linux"))]
fn asleep_ms() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_clock_has_not_slept_and_does_not_go_back() {
        let mut clock = Clock::new();
        let first = clock.now();
        assert!(!clock.slept());
        assert!(clock.now() >= first);
    }

    #[test]
    fn a_jump_between_the_clocks_and_a_stopped_process_count_as_sleep() {
        let look = |awake_ms, asleep_ms| Look {
            awake_ms,
            asleep_ms,
        };
        let before = look(1_000, 50);
        assert!(!look(3_000, 60).slept_since(before));
        assert!(look(3_000, 600_050).slept_since(before), "suspended");
        assert!(look(61_000, 50).slept_since(before), "stopped");
        assert!(look(5_000, 50).slept_since(before), "stopped for a moment");
    }
}
