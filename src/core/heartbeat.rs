//! Whether the peer is alive: each side pings at an interval and counts anything heard as life.
//!
//! A probe doubts more. After a sleep the peer may have forgotten us long ago, and frames that it sent before still lie in
//! our own buffers: they say nothing about now. So a probe is answered by the pong of its own ping, or by anything that is
//! heard after the shell has said that the buffers are empty.

use crate::domain::Ts;

/// What a time-out asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beat {
    /// Nothing is due.
    Quiet,
    /// Ping now, with this number.
    Ping(u64),
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
    /// Pings so far: each has its own number.
    pings: u64,
    probe: Option<Probe>,
}

/// A doubt that only something new from the peer dispels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Probe {
    until: Ts,
    /// The number of its ping; a later one's pong is an answer, too.
    ping: u64,
    /// Whether what was received before it has been read.
    drained: bool,
}

impl Heartbeat {
    pub(crate) fn new(interval_ms: u64, dead_ms: u64, now: Ts) -> Self {
        let interval_ms = interval_ms.max(1);
        Self {
            interval_ms,
            dead_ms: dead_ms.max(interval_ms),
            heard: now,
            next_ping: now.plus(interval_ms),
            pings: 0,
            probe: None,
        }
    }

    /// Something came from the peer.
    pub(crate) fn heard(&mut self, now: Ts) {
        self.heard = self.heard.max(now);
        if self.probe.is_some_and(|p| p.drained) {
            self.probe = None;
        }
    }

    /// The answer to the ping of this number came.
    pub(crate) fn pong(&mut self, ping: u64, now: Ts) {
        self.heard(now);
        if self.probe.is_some_and(|p| ping >= p.ping) {
            self.probe = None;
        }
    }

    /// Everything that had come was fed in: what is heard from now on is new.
    pub(crate) const fn drained(&mut self) {
        if let Some(probe) = &mut self.probe {
            probe.drained = true;
        }
    }

    /// Doubts the peer: a ping goes out now, and something new must come back within `within_ms`. Gives the ping's number;
    /// none while an earlier probe waits.
    pub(crate) fn probe(&mut self, now: Ts, within_ms: u64) -> Option<u64> {
        if self.probe.is_some() {
            return None;
        }
        let ping = self.ping(now);
        self.probe = Some(Probe {
            until: now.plus(within_ms),
            ping,
            drained: false,
        });
        Some(ping)
    }

    /// Whether the peer is doubted, or was silent for too long.
    pub(crate) fn is_doubted(&self, now: Ts) -> bool {
        self.probe.is_some() || self.is_silent(now)
    }

    /// Whether the peer was silent for too long.
    pub(crate) fn is_silent(&self, now: Ts) -> bool {
        now >= self.heard.plus(self.dead_ms)
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
            return Beat::Ping(self.ping(now));
        }
        Beat::Quiet
    }

    fn ping(&mut self, now: Ts) -> u64 {
        self.next_ping = now.plus(self.interval_ms);
        self.pings += 1;
        self.pings
    }

    fn dead_at(&self) -> Ts {
        let silent = self.heard.plus(self.dead_ms);
        self.probe.map_or(silent, |probe| probe.until.min(silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_missed_heartbeats_are_death_and_anything_heard_is_life() {
        let mut beat = Heartbeat::new(20_000, 45_000, Ts(0));
        assert_eq!(beat.deadline(), (Ts(20_000), "ping"));
        assert_eq!(beat.on_timeout(Ts(20_000)), Beat::Ping(1));
        assert_eq!(beat.on_timeout(Ts(40_000)), Beat::Ping(2));
        assert_eq!(beat.deadline(), (Ts(45_000), "heartbeat"));
        beat.heard(Ts(41_000));
        assert_eq!(beat.on_timeout(Ts(45_000)), Beat::Quiet);
        assert_eq!(beat.on_timeout(Ts(86_000)), Beat::Dead);
    }

    #[test]
    fn a_probe_is_answered_by_its_own_pong_and_not_by_what_lay_in_the_buffers() {
        let mut beat = Heartbeat::new(20_000, 45_000, Ts(0));
        assert_eq!(beat.on_timeout(Ts(20_000)), Beat::Ping(1));
        assert_eq!(beat.probe(Ts(21_000), 2_000), Some(2));
        assert_eq!(beat.probe(Ts(21_500), 2_000), None, "one at a time");
        beat.heard(Ts(21_001));
        beat.pong(1, Ts(21_002));
        assert_eq!(beat.deadline(), (Ts(23_000), "heartbeat"));
        let mut deaf = beat.clone();
        assert_eq!(deaf.on_timeout(Ts(23_000)), Beat::Dead);
        beat.pong(2, Ts(21_800));
        assert_eq!(beat.deadline(), (Ts(41_000), "ping"));
    }

    #[test]
    fn a_probe_is_answered_by_anything_that_comes_after_the_buffers_were_read() {
        let mut beat = Heartbeat::new(20_000, 45_000, Ts(0));
        beat.drained();
        beat.probe(Ts(1_000), 2_000);
        beat.heard(Ts(1_100));
        assert!(beat.is_doubted(Ts(1_100)));
        beat.drained();
        assert!(beat.is_doubted(Ts(1_200)));
        beat.heard(Ts(1_300));
        assert!(!beat.is_doubted(Ts(1_300)));
    }
}
