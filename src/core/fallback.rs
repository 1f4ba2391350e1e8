//! Which transport the device dials: the WebSocket, or the long poll where something in between blocks it.
//!
//! ```text
//!                 2 upgrades answered by an edge, or 5 that led nowhere
//! WebSocket ────────────────────────────────────────────────▶ LongPoll
//!     ▲  ◀── 2 sessions that could not be opened ───────────────┘ │
//!     └────── a WebSocket dialled beside the polls is open ───────┘
//! ```
//!
//! An edge that answers the upgrade (403, 426, a page of HTML) will do so again, so two answers are enough. What else
//! can go wrong with an upgrade (a cut, silence, a 502) is mostly a hub or a network that is away, where a session would fare no
//! better; but an edge may also swallow upgrades without a word, so after five the session gets its try. A
//! refusal by the hub itself is no failure of the transport and counts for nothing. On the session the WebSocket is
//! dialled beside the polls, in waits that double from `poll_interval`, and the way back is taken only when it is open:
//! so a blocked edge costs a request now and then, and no gap.

use super::client::DialFailure;
use super::retry::{Failure, Retry, classify_dial};

/// A way to the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// One WebSocket.
    WebSocket,
    /// Calls that wait.
    LongPoll,
}

impl Route {
    /// The name as shown to people and machines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WebSocket => "websocket",
            Self::LongPoll => "long_poll",
        }
    }
}

/// The policy's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FallbackConfig {
    /// Upgrades in a row answered by an edge after which a session is opened.
    pub edges: u32,
    /// Upgrades in a row that led nowhere for any reason but the hub's own, after which a session is tried.
    pub failures: u32,
    /// Sessions in a row that could not be opened, after which the WebSocket is dialled again.
    pub sessions: u32,
    /// The first wait before the WebSocket is dialled beside the polls, ms (`poll_interval`).
    pub again_ms: u64,
    /// How often that wait doubles.
    pub doublings: u32,
}

impl Default for FallbackConfig {
    fn default() -> Self {
        Self {
            edges: 2,
            failures: 5,
            sessions: 2,
            again_ms: 10_000,
            doublings: 4,
        }
    }
}

/// The choice between the transports: what failed, and what is dialled next.
#[derive(Debug, Clone)]
pub struct Fallback {
    config: FallbackConfig,
    route: Route,
    /// Upgrades answered by an edge, in a row.
    edges: u32,
    /// Upgrades that led nowhere, in a row, those among them.
    failures: u32,
    /// Sessions that could not be opened, in a row.
    sessions: u32,
    /// WebSockets dialled in vain beside the polls.
    probes: u32,
    cause: Option<String>,
}

impl Fallback {
    /// Begins with the WebSocket.
    #[must_use]
    pub const fn new(config: FallbackConfig) -> Self {
        Self {
            config,
            route: Route::WebSocket,
            edges: 0,
            failures: 0,
            sessions: 0,
            probes: 0,
            cause: None,
        }
    }

    /// What is dialled next.
    #[must_use]
    pub const fn route(&self) -> Route {
        self.route
    }

    /// Why it is not the WebSocket.
    #[must_use]
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// A dial of the WebSocket failed, not beside the polls.
    pub fn upgrade_failed(&mut self, failure: &DialFailure) {
        match (classify_dial(failure), failure) {
            (Failure::Edge, DialFailure::Edge { status, .. }) => {
                self.edges = self.edges.saturating_add(1);
                self.led_nowhere(&format!(
                    "the WebSocket was answered with HTTP {status} by something between here and the hub"
                ));
            }
            (_, DialFailure::Edge { status, .. }) => {
                self.edges = 0;
                self.led_nowhere(&format!("the WebSocket was answered with HTTP {status}"));
            }
            // The hub spoke: the way is open.
            (_, DialFailure::Refused { .. }) => self.forget(),
            (_, DialFailure::Network { detail } | DialFailure::Proxy { detail, .. }) => {
                self.edges = 0;
                self.led_nowhere(&format!("the WebSocket did not open: {detail}"));
            }
        }
    }

    /// A WebSocket was open and ended before `welcome`, without a word of the hub.
    pub fn upgrade_swallowed(&mut self) {
        if self.route == Route::LongPoll {
            // Moved over too early.
            self.probes = self.probes.saturating_add(1);
        }
        self.led_nowhere("the WebSocket opened, but carried nothing");
    }

    fn led_nowhere(&mut self, why: &str) {
        self.failures = self.failures.saturating_add(1);
        if self.edges >= self.config.edges || self.failures >= self.config.failures {
            self.route = Route::LongPoll;
            self.sessions = 0;
            self.cause = Some(why.to_owned());
        }
    }

    /// A session could not be opened.
    pub fn session_failed(&mut self) {
        self.sessions = self.sessions.saturating_add(1);
        if self.sessions >= self.config.sessions {
            self.forget();
        }
    }

    /// `welcome` came over this route.
    pub fn welcomed(&mut self, route: Route) {
        match route {
            Route::WebSocket => self.forget(),
            Route::LongPoll => self.sessions = 0,
        }
    }

    /// A WebSocket that was dialled beside the polls did not open.
    pub fn probe_failed(&mut self, failure: &DialFailure) {
        self.probes = self.probes.saturating_add(1);
        if let DialFailure::Edge { status, .. } = failure {
            self.cause = Some(format!(
                "the WebSocket was answered with HTTP {status} by something between here and the hub"
            ));
        }
    }

    /// The wait before the WebSocket is dialled beside the polls.
    #[must_use]
    pub fn probe_after(&self) -> Retry {
        let c = self.config;
        let times = 1_u64 << self.probes.min(c.doublings).min(32);
        Retry::Named {
            after_ms: c.again_ms.saturating_mul(times),
            spread_ms: c.again_ms / 2,
        }
    }

    /// The wait before the next dial: another way need not wait for what the last one did wrong, unless the peer named a
    /// time.
    #[must_use]
    pub fn wait(&self, dialled: Route, retry: Retry) -> Retry {
        match retry {
            Retry::Exponential { .. } if dialled != self.route => Retry::Soon { within_ms: 1_000 },
            retry => retry,
        }
    }

    /// Begins anew: the WebSocket works, or the hub or the user spoke.
    pub fn forget(&mut self) {
        *self = Self::new(self.config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(status: u16) -> DialFailure {
        DialFailure::Edge {
            status,
            retry_after_s: None,
        }
    }

    fn network() -> DialFailure {
        DialFailure::Network {
            detail: "refused".into(),
        }
    }

    fn refused() -> DialFailure {
        DialFailure::Refused {
            code: "device_revoked".into(),
            message: "no".into(),
            hub_offset_ms: None,
            retry_after_s: None,
        }
    }

    fn after(failures: &[DialFailure]) -> Fallback {
        let mut f = Fallback::new(FallbackConfig::default());
        for failure in failures {
            f.upgrade_failed(failure);
        }
        f
    }

    #[test]
    fn two_answers_of_an_edge_open_the_fallback_and_its_cause_is_told() {
        for statuses in [[403, 426], [200, 404], [301, 403]] {
            let one = after(&[edge(statuses[0])]);
            assert_eq!((one.route(), one.cause()), (Route::WebSocket, None));
            let two = after(&statuses.map(edge));
            assert_eq!(two.route(), Route::LongPoll);
            assert!(two.cause().unwrap().contains(&statuses[1].to_string()));
        }
    }

    #[test]
    fn a_hub_that_is_away_gets_five_tries_before_a_session_is_tried() {
        for failure in [network(), edge(502), edge(503), edge(429)] {
            let four = vec![failure.clone(); 4];
            assert_eq!(after(&four).route(), Route::WebSocket, "{failure:?}");
            let five = vec![failure.clone(); 5];
            assert_eq!(after(&five).route(), Route::LongPoll, "{failure:?}");
        }
        let mixed = [edge(403), network(), edge(403), network(), edge(403)];
        assert_eq!(after(&mixed[..4]).route(), Route::WebSocket);
        assert_eq!(after(&mixed).route(), Route::LongPoll);
        let mut swallowed = Fallback::new(FallbackConfig::default());
        (0..5).for_each(|_| swallowed.upgrade_swallowed());
        assert_eq!(swallowed.route(), Route::LongPoll);
    }

    #[test]
    fn a_word_of_the_hub_itself_or_a_welcome_begins_anew() {
        let spoke = [edge(403), refused(), edge(403)];
        assert_eq!(after(&spoke).route(), Route::WebSocket);
        let mut f = after(&[edge(403), edge(403)]);
        f.welcomed(Route::LongPoll);
        assert_eq!(f.route(), Route::LongPoll, "the session is no proof");
        f.welcomed(Route::WebSocket);
        assert_eq!((f.route(), f.cause()), (Route::WebSocket, None));
        f.upgrade_failed(&edge(403));
        assert_eq!(f.route(), Route::WebSocket);
    }

    #[test]
    fn two_sessions_that_do_not_open_lead_back_to_the_socket() {
        let mut f = after(&[edge(403), edge(403)]);
        f.session_failed();
        f.welcomed(Route::LongPoll);
        f.session_failed();
        assert_eq!(f.route(), Route::LongPoll, "not in a row");
        f.session_failed();
        assert_eq!(f.route(), Route::WebSocket);
    }

    #[test]
    fn the_socket_is_tried_again_in_doubling_waits_that_have_an_end() {
        let mut f = after(&[edge(403), edge(403)]);
        let mut waits = Vec::new();
        for _ in 0..7 {
            match f.probe_after() {
                Retry::Named {
                    after_ms,
                    spread_ms: 5_000,
                } => waits.push(after_ms / 1_000),
                other => panic!("{other:?}"),
            }
            f.probe_failed(&edge(403));
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 160, 160]);
        f.probe_failed(&edge(426));
        assert!(f.cause().unwrap().contains("426"));
        let mut extreme = Fallback::new(FallbackConfig {
            again_ms: u64::MAX,
            ..FallbackConfig::default()
        });
        extreme.probes = u32::MAX;
        assert!(matches!(extreme.probe_after(), Retry::Named { .. }));
    }

    #[test]
    fn the_other_way_is_dialled_soon_but_not_before_a_named_time() {
        let f = after(&[edge(403), edge(403)]);
        let long = Retry::Exponential {
            initial_ms: 2_000,
            max_ms: 120_000,
            step: 5,
        };
        let soon = Retry::Soon { within_ms: 1_000 };
        assert_eq!(f.wait(Route::WebSocket, long), soon);
        assert_eq!(f.wait(Route::LongPoll, long), long);
        let named = Retry::Named {
            after_ms: 60_000,
            spread_ms: 1,
        };
        assert_eq!(f.wait(Route::WebSocket, named), named);
    }
}
