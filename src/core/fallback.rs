//! Which transport the device dials: the WebSocket, or the long poll where something in between blocks it.
//!
//! ```text
//!                 2 upgrades answered by an edge, or 5 that led nowhere
//! WebSocket ────────────────────────────────────────────────▶ LongPoll
//!     ▲  ◀── 2 sessions that could not be opened ───────────────┘ │
//!     └────── a WebSocket dialled beside the polls is open ───────┘
//! ```
//!
//! An edge that answers the upgrade (403, 426, a page of HTML) will do so again, so two answers are enough, and the second
//! question follows the first answer at once: somebody who is blocked works on polls within seconds. What else
//! can go wrong with an upgrade (a cut, silence, a 502) is mostly a hub or a network that is away, where a session would fare no
//! better; but an edge may also swallow upgrades without a word, so after five the session gets its try. A
//! refusal by the hub itself is no failure of the transport and counts for nothing. On the session the WebSocket is
//! dialled beside the polls, in waits that double twice from `poll_interval`, and the way back is taken only when it is
//! open: so a blocked edge costs a request now and then, and no gap. Only an edge that opens the WebSocket and then carries
//! nothing costs a gap; after each one the wait doubles twice more.
//!
//! Shortened waits are for finding the way that works. When neither did, the growing waits of the policy hold until one does.

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
    /// How often that wait doubles while the upgrade is refused.
    pub doublings: u32,
    /// How often it doubles for WebSockets that opened and carried nothing, twice for each.
    pub swallowed_doublings: u32,
}

impl Default for FallbackConfig {
    fn default() -> Self {
        Self {
            edges: 2,
            failures: 5,
            sessions: 2,
            again_ms: 10_000,
            doublings: 2,
            swallowed_doublings: 8,
        }
    }
}

/// The choice between the transports: what failed, and what is dialled next.
#[derive(Debug, Clone)]
pub struct Fallback {
    config: FallbackConfig,
    route: Route,
    /// Upgrades answered by an edge since the hub was heard.
    edges: u32,
    /// Upgrades that led nowhere since then, those among them.
    failures: u32,
    /// The last of them was answered by an edge.
    answered: bool,
    /// Sessions that could not be opened, in a row.
    sessions: u32,
    /// WebSockets dialled in vain beside the polls.
    probes: u32,
    /// WebSockets that took the polls' place and carried nothing.
    swallowed: u32,
    /// Neither way worked, and none has since.
    lost: bool,
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
            answered: false,
            sessions: 0,
            probes: 0,
            swallowed: 0,
            lost: false,
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
        self.answered = false;
        match (classify_dial(failure), failure) {
            (Failure::Edge, DialFailure::Edge { status, .. }) => {
                self.answered = true;
                self.edges = self.edges.saturating_add(1);
                self.led_nowhere(&answered(*status));
            }
            (_, DialFailure::Edge { status, .. }) => {
                self.led_nowhere(&format!("the WebSocket was answered with HTTP {status}"));
            }
            // The hub spoke: the way is open.
            (_, DialFailure::Refused { .. }) => self.forget(),
            (_, DialFailure::Network { detail } | DialFailure::Proxy { detail, .. }) => {
                self.led_nowhere(&format!("the WebSocket did not open: {detail}"));
            }
        }
    }

    /// A WebSocket was open and ended before `welcome`, without a word of the hub.
    pub fn upgrade_swallowed(&mut self) {
        if self.route == Route::LongPoll {
            // Moved over too early.
            self.swallowed = self.swallowed.saturating_add(1);
        }
        self.answered = false;
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
            self.lost = true;
        }
    }

    /// `welcome` came over this route.
    pub fn welcomed(&mut self, route: Route) {
        match route {
            Route::WebSocket => self.forget(),
            Route::LongPoll => (self.sessions, self.lost) = (0, false),
        }
    }

    /// A WebSocket that was dialled beside the polls did not open.
    pub fn probe_failed(&mut self, failure: &DialFailure) {
        self.probes = self.probes.saturating_add(1);
        if let DialFailure::Edge { status, .. } = failure {
            self.cause = Some(answered(*status));
        }
    }

    /// The wait before the WebSocket is dialled beside the polls.
    #[must_use]
    pub fn probe_after(&self) -> Retry {
        let c = self.config;
        let refused = self.probes.min(c.doublings);
        let swallowed = self.swallowed.saturating_mul(2).min(c.swallowed_doublings);
        let times = 1_u64 << refused.max(swallowed).min(32);
        Retry::Named {
            after_ms: c.again_ms.saturating_mul(times),
            spread_ms: c.again_ms / 2,
        }
    }

    /// The machine woke, perhaps in another network: what was refused there may be open here.
    pub fn woke(&mut self) {
        self.probes = 0;
    }

    /// The wait before the next dial. Another way need not wait for what the last one did wrong, nor the question whether
    /// an edge means its answer; but a peer that named a time is heard, and whoever found no way at all waits.
    #[must_use]
    pub fn wait(&self, dialled: Route, retry: Retry) -> Retry {
        let other = dialled != self.route || (dialled == Route::WebSocket && self.answered);
        match retry {
            Retry::Exponential { .. } if other && !self.lost => Retry::Soon { within_ms: 1_000 },
            retry => retry,
        }
    }

    /// Begins anew: the WebSocket works, or the hub or the user spoke.
    pub fn forget(&mut self) {
        *self = Self::new(self.config);
    }
}

fn answered(status: u16) -> String {
    format!("the WebSocket was answered with HTTP {status} by something between here and the hub")
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
        let mixed = [edge(403), network(), edge(502), edge(403)];
        assert_eq!(after(&mixed[..3]).route(), Route::WebSocket);
        assert_eq!(
            after(&mixed).route(),
            Route::LongPoll,
            "silence unsays no answer"
        );
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
        let wait_s = |f: &Fallback| match f.probe_after() {
            Retry::Named {
                after_ms,
                spread_ms: 5_000,
            } => after_ms / 1_000,
            other => panic!("{other:?}"),
        };
        let mut waits = Vec::new();
        for _ in 0..5 {
            waits.push(wait_s(&f));
            f.probe_failed(&edge(403));
        }
        assert_eq!(waits, [10, 20, 40, 40, 40]);
        f.woke();
        assert_eq!(wait_s(&f), 10, "another network, perhaps");
        // Each of these was a gap.
        waits.clear();
        for _ in 0..5 {
            f.upgrade_swallowed();
            waits.push(wait_s(&f));
        }
        assert_eq!(waits, [40, 160, 640, 2_560, 2_560]);
        f.probe_failed(&edge(426));
        assert!(f.cause().unwrap().contains("426"));
        let mut extreme = Fallback::new(FallbackConfig {
            again_ms: u64::MAX,
            ..FallbackConfig::default()
        });
        (extreme.probes, extreme.swallowed) = (u32::MAX, u32::MAX);
        assert!(matches!(extreme.probe_after(), Retry::Named { .. }));
    }

    #[test]
    fn an_edge_is_asked_a_second_time_at_once_however_often_that_was_before() {
        let long = |step| Retry::Exponential {
            initial_ms: 2_000,
            max_ms: 120_000,
            step,
        };
        let soon = Retry::Soon { within_ms: 1_000 };
        let mut f = Fallback::new(FallbackConfig::default());
        for step in 0..8 {
            f.upgrade_failed(&edge(403));
            assert_eq!(f.wait(Route::WebSocket, long(2 * step)), soon);
            f.upgrade_failed(&edge(403));
            assert_eq!(f.wait(Route::WebSocket, long(2 * step + 1)), soon);
            f.welcomed(Route::LongPoll);
            f.welcomed(Route::WebSocket);
        }
        f.upgrade_failed(&network());
        assert_eq!(f.wait(Route::WebSocket, long(0)), long(0), "no answer");
    }

    #[test]
    fn where_neither_way_works_the_waits_grow_until_one_does() {
        let long = Retry::Exponential {
            initial_ms: 2_000,
            max_ms: 120_000,
            step: 5,
        };
        let mut f = after(&[edge(403), edge(403)]);
        f.session_failed();
        f.session_failed();
        for _ in 0..2 {
            assert_eq!(f.wait(Route::LongPoll, long), long);
            f.upgrade_failed(&edge(403));
            assert_eq!(f.wait(Route::WebSocket, long), long);
        }
        assert_eq!(f.route(), Route::LongPoll);
        f.welcomed(Route::LongPoll);
        assert_ne!(f.wait(Route::WebSocket, long), long);
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
