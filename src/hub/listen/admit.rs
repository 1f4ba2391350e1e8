//! How many connections there may be, in all and of one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::domain::limits;

/// A refusal is told in the log at most this often, with how many there were.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of one address (IPv6: of one /64). `None`: the default, but as many as there may be in all from loopback, where a
    /// proxy in front makes all clients one address.
    pub per_address: Option<u32>,
    /// In all.
    pub total: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_address: None,
            total: limits::CONNECTIONS,
        }
    }
}

impl Limits {
    fn of(self, peer: IpAddr) -> u32 {
        match self.per_address {
            Some(n) => n,
            None if peer.is_loopback() => self.total,
            None => limits::CONNECTIONS_PER_ADDRESS,
        }
    }
}

/// What became of connections so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connections {
    /// Open now, upgraded ones included.
    pub open: u32,
    /// Refused because their address had too many.
    pub refused_of_address: u64,
    /// Refused because there were too many in all.
    pub refused_in_all: u64,
    /// Ended in or before the TLS handshake.
    pub failed_handshakes: u64,
    /// Cut because the peer was too slow, or broke off.
    pub cut: u64,
}

#[derive(Debug)]
struct State {
    by_address: HashMap<IpAddr, u32>,
    counts: Connections,
    /// When a refusal was told last, and how many came since.
    told: Option<Instant>,
    untold: u64,
}

/// Counts connections.
#[derive(Debug)]
pub(in crate::hub) struct Admission {
    limits: Limits,
    state: Mutex<State>,
}

/// There are too many.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// A connection's place; free again when this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    admission: Arc<Admission>,
    of: IpAddr,
}

impl Admission {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: Mutex::new(State {
                by_address: HashMap::new(),
                counts: Connections::default(),
                told: None,
                untold: 0,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection of this peer.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Result<Permit, Refused> {
        let peer = peer.to_canonical();
        let of = group(peer);
        let mut state = self.state();
        let mine = state.by_address.get(&of).copied().unwrap_or(0);
        if state.counts.open >= self.limits.total {
            state.counts.refused_in_all += 1;
        } else if mine >= self.limits.of(peer) {
            state.counts.refused_of_address += 1;
        } else {
            state.counts.open += 1;
            state.by_address.insert(of, mine + 1);
            drop(state);
            return Ok(Permit {
                admission: Arc::clone(self),
                of,
            });
        }
        state.untold += 1;
        let now = Instant::now();
        if state
            .told
            .is_none_or(|at| now.duration_since(at) >= TELL_EVERY)
        {
            let refused = std::mem::take(&mut state.untold);
            state.told = Some(now);
            let open = state.counts.open;
            drop(state);
            tracing::warn!(%peer, open, of_this_address = mine, refused, "too many connections");
        }
        Err(Refused)
    }

    pub(super) fn handshake_failed(&self) {
        self.state().counts.failed_handshakes += 1;
    }

    pub(super) fn cut(&self) {
        self.state().counts.cut += 1;
    }

    pub(in crate::hub) fn counts(&self) -> Connections {
        self.state().counts
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        state.counts.open = state.counts.open.saturating_sub(1);
        match state.by_address.get_mut(&self.of) {
            Some(n) if *n > 1 => *n -= 1,
            _ => {
                state.by_address.remove(&self.of);
            }
        }
    }
}

/// What counts as one address: whoever has an IPv6 address has 2^64 of them.
fn group(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(per_address: Option<u32>, total: u32) -> Arc<Admission> {
        Arc::new(Admission::new(Limits { per_address, total }))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_has_its_share_and_others_still_come_in() {
        let a = admission(Some(2), 10);
        let first = a.admit(ip("192.0.2.1")).unwrap();
        let _second = a.admit(ip("::ffff:192.0.2.1")).unwrap();
        assert_eq!(a.admit(ip("192.0.2.1")).unwrap_err(), Refused);
        let _other = a.admit(ip("192.0.2.2")).unwrap();
        drop(first);
        let _again = a.admit(ip("192.0.2.1")).unwrap();
        assert_eq!((a.counts().open, a.counts().refused_of_address), (3, 1));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let a = admission(Some(1), 10);
        let _one = a.admit(ip("2001:db8::1")).unwrap();
        assert!(a.admit(ip("2001:db8::ffff:2")).is_err());
        assert!(a.admit(ip("2001:db8:0:1::1")).is_ok());
    }

    #[test]
    fn loopback_is_limited_only_when_told_to() {
        let a = admission(None, 1_000);
        let open: Vec<_> = (0..1_000)
            .map(|_| a.admit(ip("127.0.0.1")).unwrap())
            .collect();
        assert!(a.admit(ip("::1")).is_err());
        assert_eq!(a.counts().refused_in_all, 1);
        drop(open);
        let per = limits::CONNECTIONS_PER_ADDRESS;
        let open: Vec<_> = (0..per)
            .map(|_| a.admit(ip("192.0.2.1")).unwrap())
            .collect();
        assert!(a.admit(ip("192.0.2.1")).is_err());
        drop(open);
        assert_eq!(a.counts().open, 0);
        assert!(a.state().by_address.is_empty());
    }
}
