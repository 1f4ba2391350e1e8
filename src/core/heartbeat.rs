//! Whether the peer is alive: each side pings at an interval and counts anything heard as life.

use crate::domain::Ts;

/// What a time-out asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beat {
    /// Nothing is due.
    Quiet,
    /// Ping now.
    Ping,
    /// The peer is dead.
    Dead,
}

/// One side's heartbeat on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    interval_ms: u64,
    dead_ms: u64,
    heard: Ts,
    next_ping: Ts,
    /// Set by a probe: something must be heard before then.
    probe: Option<Ts>,
}

impl Heartbeat {
    pub(crate) fn new(interval_ms: u64, dead_ms: u64, now: Ts) -> Self {
        let interval_ms = interval_ms.max(1);
        Self {
            interval_ms,
            dead_ms: dead_ms.max(interval_ms),
            heard: now,
            next_ping: now.plus(interval_ms),
            probe: None,
        }
    }

    /// Something came from the peer.
    pub(crate) fn heard(&mut self, now: Ts) {
        self.heard = self.heard.max(now);
        self.probe = None;
    }

    /// Doubts the peer: a ping goes out now, and something must come back within `within_ms`.
    pub(crate) fn probe(&mut self, now: Ts, within_ms: u64) {
        self.next_ping = now.plus(self.interval_ms);
        let until = now.plus(within_ms);
        self.probe = Some(self.probe.map_or(until, |earlier| earlier.min(until)));
    }

    pub(crate) fn deadline(&self) -> (Ts, &'static str) {
        let dead = self.dead_at();
        if self.next_ping < dead {
            (self.next_ping, "ping")
        } else {
            (dead, "heartbeat")
        }
    }

    pub(crate) fn on_timeout(&mut self, now: Ts) -> Beat {
        if now >= self.dead_at() {
            return Beat::Dead;
        }
        if now >= self.next_ping {
            self.next_ping = now.plus(self.interval_ms);
            return Beat::Ping;
        }
        Beat::Quiet
    }

    fn dead_at(&self) -> Ts {
        let silent = self.heard.plus(self.dead_ms);
        self.probe.map_or(silent, |probe| probe.min(silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_missed_heartbeats_are_death_and_anything_heard_is_life() {
        let mut beat = Heartbeat::new(20_000, 45_000, Ts(0));
        assert_eq!(beat.deadline(), (Ts(20_000), "ping"));
        assert_eq!(beat.on_timeout(Ts(20_000)), Beat::Ping);
        assert_eq!(beat.on_timeout(Ts(40_000)), Beat::Ping);
        assert_eq!(beat.deadline(), (Ts(45_000), "heartbeat"));
        beat.heard(Ts(41_000));
        assert_eq!(beat.on_timeout(Ts(45_000)), Beat::Quiet);
        assert_eq!(beat.on_timeout(Ts(86_000)), Beat::Dead);
    }

    #[test]
    fn a_probe_shortens_the_wait_until_something_is_heard() {
        let mut beat = Heartbeat::new(20_000, 45_000, Ts(0));
        beat.probe(Ts(1_000), 5_000);
        assert_eq!(beat.deadline(), (Ts(6_000), "heartbeat"));
        let mut deaf = beat.clone();
        assert_eq!(deaf.on_timeout(Ts(6_000)), Beat::Dead);
        beat.heard(Ts(1_500));
        assert_eq!(beat.deadline(), (Ts(21_000), "ping"));
    }
}
