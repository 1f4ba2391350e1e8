//! The device's machine: one for the daemon's life, over all its connections.
//!
//! ```text
//!            Connect, RetryDue           TransportUp        hello()         welcome
//! Idle/Waiting ───────────▶ Dialing ───────────▶ Opening ─────────▶ Greeted ───────▶ Open
//!      ▲                       │                    │                  │               │ synced and stored
//!      └───────────────────────┴────────────────────┴──────────────────┘◀──────────────┴─▶ live
//! ```
//!
//! The public state is derived: a link that was live stays RECONNECTING through every phase until it is live again,
//! stopped, or out of time. What follows a failure is the policy's word.

use std::collections::VecDeque;

use crate::domain::{Code, Cursor, Ts};
use crate::wire::{CloseCode, DeviceFrame};

use super::config::ClientConfig;
use super::session::Session;
use super::{Cause, Input, LinkState, Output, Status};
use crate::core::heartbeat::Beat;
use crate::core::retry::{Failure, Policy, classify_close};

#[derive(Debug)]
pub(super) enum Phase {
    /// Down, and nothing is armed.
    Idle,
    /// The daemon is stopping: nothing starts any more.
    Stopped,
    /// Down, a retry is armed; one that the peer asked for is not cut short by a wake.
    Waiting { named: bool },
    /// The transport is being opened.
    Dialing { deadline: Ts },
    /// The transport is up, the snapshot for `hello` was asked for.
    Opening { deadline: Ts },
    /// `hello` is out.
    Greeted { deadline: Ts },
    /// `welcome` came.
    Open(Box<Session>),
}

/// The device's side of the link.
#[derive(Debug)]
pub struct LinkClient {
    pub(super) config: ClientConfig,
    pub(super) phase: Phase,
    pub(super) out: VecDeque<Output>,
    pub(super) policy: Policy,
    /// The state as last told, and since when.
    pub(super) state: LinkState,
    pub(super) since: Ts,
    pub(super) cause: Option<Cause>,
    /// When a synced link was lost, until it is synced again.
    pub(super) lost_at: Option<Ts>,
    /// The last durable cursor.
    pub(super) durable: Option<Cursor>,
    pub(super) hub_offset_ms: i64,
    pub(super) attempt: u32,
    /// Free run slots as told since the dial, to be sent after `welcome`.
    pub(super) capacity: Option<u32>,
    /// The number after the outbox's last row, as told since the dial.
    pub(super) next_n: u64,
    /// The last `error` frame of this connection.
    pub(super) said: Option<(Option<Code>, Option<u64>)>,
    pub(super) hub_error: Option<(String, String)>,
    pub(super) unknown_frames: u64,
    pub(super) unknown_kinds: u64,
    pub(super) unreadable: u64,
    pub(super) malformed: u64,
    /// An envelope without a name at this place closed the connection so often.
    pub(super) nameless: Option<(Cursor, u32)>,
}

impl LinkClient {
    /// A machine at rest: DISCONNECTED until [`Input::Connect`].
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        Self {
            policy: Policy::new(config.retry),
            config,
            phase: Phase::Idle,
            out: VecDeque::new(),
            state: LinkState::Disconnected,
            since: Ts::default(),
            cause: Some(Cause::Idle),
            lost_at: None,
            durable: None,
            hub_offset_ms: 0,
            attempt: 0,
            capacity: None,
            next_n: 1,
            said: None,
            hub_error: None,
            unknown_frames: 0,
            unknown_kinds: 0,
            unreadable: 0,
            malformed: 0,
            nameless: None,
        }
    }

    /// The link's state.
    #[must_use]
    pub const fn state(&self) -> LinkState {
        self.state
    }

    /// The link at a glance.
    #[must_use]
    pub fn status(&self) -> Status {
        let session = match &self.phase {
            Phase::Open(session) => Some(session),
            _ => None,
        };
        Status {
            state: self.state,
            cause: self.cause.clone(),
            attempt: self.attempt,
            generation: session.map(|s| s.generation),
            since: self.since,
            cursor: self.durable,
            unacked: session.map_or(0, |s| s.inbox.unacked()),
            reports_in_flight: session.map_or(0, |s| s.pump.in_flight()),
            hub_error: self.hub_error.clone(),
            unknown_frames: self.unknown_frames,
            unknown_kinds: self.unknown_kinds,
            unreadable: self.unreadable,
            malformed: self.malformed,
        }
    }

    /// The next thing to do; acks and loads come when nothing else is left, so that several commits share one ack.
    pub fn poll_output(&mut self) -> Option<Output> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        let Phase::Open(session) = &mut self.phase else {
            return None;
        };
        if let Some(seq) = session.inbox.take_ack() {
            return Some(Output::Send(DeviceFrame::Ack { seq }));
        }
        session.pump.load()
    }

    /// When [`Self::handle_timeout`] has to be called, and what for.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Ts, &'static str)> {
        let own = match &self.phase {
            Phase::Idle | Phase::Stopped | Phase::Waiting { .. } => None,
            Phase::Dialing { deadline } => Some((*deadline, "connect")),
            Phase::Opening { deadline } | Phase::Greeted { deadline } => {
                Some((*deadline, "handshake"))
            }
            Phase::Open(s) => {
                let stage = match s.live {
                    None => Some((s.progress, "replay")),
                    Some(live) if self.attempt > 0 => {
                        Some((live.plus(self.config.stable_after_ms), "stable"))
                    }
                    Some(_) => None,
                };
                [Some(s.beat.deadline()), Some((s.renew_at, "auth")), stage]
                    .into_iter()
                    .flatten()
                    .min_by_key(|(at, _)| *at)
            }
        };
        let give_up = self.give_up_at().map(|at| (at, "reconnect"));
        own.into_iter().chain(give_up).min_by_key(|(at, _)| *at)
    }

    fn give_up_at(&self) -> Option<Ts> {
        Some(self.lost_at?.plus(self.config.reconnect_timeout_ms?))
    }

    /// The time of [`Self::poll_timeout`] has come; harmless when it has not.
    pub fn handle_timeout(&mut self, now: Ts) {
        if self.give_up_at().is_some_and(|at| now >= at) {
            let cause = Cause::Lost {
                detail: "not reopened within reconnect_timeout".to_owned(),
            };
            self.hang_up(CloseCode::GoingAway, "reconnect timeout");
            self.rest(Phase::Idle, cause, now);
            return;
        }
        match &mut self.phase {
            Phase::Dialing { deadline } if now >= *deadline => {
                let cause = Cause::Lost {
                    detail: "the connection did not come up in time".to_owned(),
                };
                self.hang_up(CloseCode::GoingAway, "connect timeout");
                self.fail(Failure::Network, cause, now);
            }
            Phase::Opening { deadline } | Phase::Greeted { deadline } if now >= *deadline => {
                self.hang_up(CloseCode::Heartbeat, "no welcome in time");
                self.fail(Failure::Network, Cause::Silent, now);
            }
            Phase::Open(_) => self.session_timeout(now),
            _ => {}
        }
    }

    fn session_timeout(&mut self, now: Ts) {
        let Phase::Open(s) = &mut self.phase else {
            return;
        };
        match s.beat.on_timeout(now) {
            Beat::Quiet => {}
            Beat::Ping(ping) => self.out.push_back(Output::Ping(ping)),
            Beat::Dead => {
                let failure = if s.beat.is_silent(now) {
                    Failure::Network
                } else {
                    Failure::Asleep
                };
                return self.deaf(failure, now);
            }
        }
        if now >= s.renew_at {
            // Asked again until a token comes; the hub closes with 4401 if none does.
            s.renew_at = now.plus(self.config.handshake_timeout_ms);
            self.out.push_back(Output::MintToken);
        }
        match s.live {
            None if now >= s.progress => {
                if s.inbox.has_stored(s.inbox.received()) {
                    self.hang_up(CloseCode::Heartbeat, "the backlog stands still");
                    self.fail(Failure::Network, Cause::Silent, now);
                } else {
                    s.progress = now.plus(s.dead_ms);
                }
            }
            Some(live) if now >= live.plus(self.config.stable_after_ms) => {
                self.attempt = 0;
                self.policy.reset();
            }
            _ => {}
        }
    }

    /// Something happened.
    pub fn handle(&mut self, input: Input, now: Ts) {
        match input {
            Input::Connect => {
                if matches!(self.phase, Phase::Idle | Phase::Waiting { .. }) {
                    self.disarm();
                    self.policy.reset();
                    self.attempt = 0;
                    // Somebody acted: what was wrong before is no news any more.
                    self.cause = None;
                    self.dial(now);
                }
            }
            Input::RetryDue => {
                if matches!(self.phase, Phase::Waiting { .. }) {
                    self.dial(now);
                }
            }
            Input::Disconnect => self.leave(Phase::Idle, Cause::User, now),
            Input::Shutdown => self.leave(Phase::Stopped, Cause::Shutdown, now),
            Input::TransportUp => {
                if matches!(self.phase, Phase::Dialing { .. }) {
                    self.phase = Phase::Opening {
                        deadline: now.plus(self.config.handshake_timeout_ms),
                    };
                    self.tell(None, now);
                    self.out.push_back(Output::SendHello);
                }
            }
            Input::TransportFailed(failure) => {
                if matches!(self.phase, Phase::Dialing { .. }) {
                    self.dial_failed(&failure, now);
                }
            }
            Input::TransportClosed { code, detail } => {
                if self.has_transport() || matches!(self.phase, Phase::Dialing { .. }) {
                    let failure = match classify_close(code, &detail, self.said) {
                        Failure::Network if self.is_doubted(now) => Failure::Asleep,
                        failure => failure,
                    };
                    let detail = match code {
                        Some(code) => format!("closed with {code}: {detail}"),
                        None => detail,
                    };
                    self.fail(failure, Cause::Lost { detail }, now);
                }
            }
            Input::Heard => {
                if let Phase::Open(s) = &mut self.phase {
                    s.beat.heard(now);
                }
            }
            Input::Pong(ping) => {
                if let Phase::Open(s) = &mut self.phase {
                    s.beat.pong(ping, now);
                }
            }
            Input::Drained => {
                if let Phase::Open(s) = &mut self.phase {
                    s.beat.drained();
                }
            }
            Input::Text(text) => self.text(&text, now),
            Input::Stored { epoch, seq } => self.stored(Cursor { epoch, seq }, now),
            Input::Reports(rows) => {
                if let Phase::Open(s) = &mut self.phase {
                    s.pump.rows(rows, &mut self.out);
                }
            }
            Input::OutboxGrew { next_n } => match &mut self.phase {
                Phase::Open(s) => s.pump.grew(next_n),
                // The snapshot for `hello` may be older than this.
                _ => self.next_n = self.next_n.max(next_n),
            },
            Input::Capacity(free) => match &self.phase {
                Phase::Open(_) => self
                    .out
                    .push_back(Output::Send(DeviceFrame::Capacity { free })),
                _ => self.capacity = Some(free),
            },
            Input::Token(token) => {
                if let Phase::Open(s) = &mut self.phase {
                    s.renew_at = now.plus(s.auth_ms / 3 * 2);
                    self.out
                        .push_back(Output::Send(DeviceFrame::Auth { token }));
                }
            }
            Input::Woke => self.woke(now),
        }
    }

    fn woke(&mut self, now: Ts) {
        let soon = now.plus(self.config.probe_ms);
        match &mut self.phase {
            Phase::Idle | Phase::Stopped | Phase::Waiting { named: true } => {}
            Phase::Waiting { named: false } => {
                self.disarm();
                self.dial(now);
            }
            Phase::Dialing { deadline }
            | Phase::Opening { deadline }
            | Phase::Greeted { deadline } => *deadline = soon.min(*deadline),
            // The hub, which did not sleep, gave this connection up.
            Phase::Open(s) if s.beat.is_silent(now) => self.deaf(Failure::Asleep, now),
            Phase::Open(s) => {
                if let Some(ping) = s.beat.probe(now, self.config.probe_ms) {
                    self.out.push_back(Output::Ping(ping));
                }
            }
        }
    }

    /// Whether a probe waits for an answer.
    fn is_doubted(&self, now: Ts) -> bool {
        matches!(&self.phase, Phase::Open(s) if s.beat.is_doubted(now))
    }

    /// The hub does not answer.
    fn deaf(&mut self, failure: Failure, now: Ts) {
        self.hang_up(CloseCode::Heartbeat, "silent");
        self.fail(failure, Cause::Silent, now);
    }
}
