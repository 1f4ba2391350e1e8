//! The ways down and back: dialling, failing, leaving, and telling the state.

use crate::core::retry::{Failure, Verdict, classify_dial};
use crate::domain::Ts;
use crate::wire::{CloseCode, DeviceFrame};

use super::machine::Phase;
use super::session::cut;
use super::{Cause, DialFailure, LinkClient, LinkState, Output};

impl LinkClient {
    pub(super) const fn has_transport(&self) -> bool {
        matches!(
            self.phase,
            Phase::Opening { .. } | Phase::Greeted { .. } | Phase::Open(_)
        )
    }

    pub(super) fn dial(&mut self, now: Ts) {
        self.attempt = self.attempt.saturating_add(1);
        self.said = None;
        self.capacity = None;
        self.next_n = 1;
        self.phase = Phase::Dialing {
            deadline: now.plus(self.config.connect_timeout_ms),
        };
        self.tell(None, now);
        self.out.push_back(Output::Dial {
            hub_offset_ms: self.hub_offset_ms,
        });
    }

    pub(super) fn dial_failed(&mut self, failure: &DialFailure, now: Ts) {
        let detail = match failure {
            DialFailure::Network { detail } | DialFailure::Proxy { detail, .. } => detail.clone(),
            DialFailure::Refused {
                code,
                message,
                hub_offset_ms,
                ..
            } => {
                self.hub_error = Some((code.clone(), message.clone()));
                if let Some(offset) = hub_offset_ms {
                    self.hub_offset_ms = *offset;
                }
                format!("refused: {message} ({code})")
            }
            DialFailure::Edge { status, .. } => {
                format!("HTTP {status} from something between here and the hub")
            }
        };
        self.fail(classify_dial(failure), Cause::Lost { detail }, now);
    }

    /// The hub broke the protocol: close, and come back with growing waits.
    pub(super) fn breach(&mut self, code: CloseCode, why: String, now: Ts) {
        self.hang_up(code, &why);
        self.fail(Failure::Protocol, Cause::Lost { detail: why }, now);
    }

    /// Closes the transport or abandons the dial; outputs after this concern no connection.
    pub(super) fn hang_up(&mut self, code: CloseCode, reason: &str) {
        if self.has_transport() || matches!(self.phase, Phase::Dialing { .. }) {
            self.out.push_back(Output::Close {
                code,
                reason: cut(reason),
            });
        }
    }

    /// The link is down: the policy says what follows.
    pub(super) fn fail(&mut self, failure: Failure, cause: Cause, now: Ts) {
        if let Phase::Open(s) = &self.phase
            && let Some(live) = s.live
        {
            if now.since(live) >= self.config.stable_after_ms {
                self.attempt = 0;
                self.policy.reset();
            }
            self.lost_at = Some(now);
        }
        match self.policy.next(failure) {
            Verdict::Wait(retry) => {
                let named = matches!(retry, super::Retry::Named { .. });
                self.phase = Phase::Waiting { named };
                self.tell(Some(cause), now);
                self.out.push_back(Output::ArmRetry(retry));
            }
            Verdict::Now => {
                self.phase = Phase::Waiting { named: false };
                self.tell(Some(cause), now);
                self.dial(now);
            }
            Verdict::Stop(code) => {
                let message = match (&self.hub_error, cause) {
                    (Some((said, message)), _) if said == code.as_str() => message.clone(),
                    (_, Cause::Lost { detail }) => detail,
                    _ => String::new(),
                };
                let cause = Cause::Fatal {
                    code: code.as_str().to_owned(),
                    message,
                };
                self.rest(Phase::Idle, cause, now);
            }
        }
    }

    /// Leaves on purpose, from any state.
    pub(super) fn leave(&mut self, phase: Phase, cause: Cause, now: Ts) {
        if matches!(self.phase, Phase::Stopped) {
            return;
        }
        let (code, word) = match phase {
            Phase::Stopped => (CloseCode::GoingAway, "shutdown"),
            _ => (CloseCode::Normal, "disconnect"),
        };
        if let Phase::Open(s) = &mut self.phase {
            if let Some(seq) = s.inbox.take_ack() {
                self.out.push_back(Output::Send(DeviceFrame::Ack { seq }));
            }
            self.out.push_back(Output::Send(DeviceFrame::Bye {
                reason: word.to_owned(),
            }));
        }
        self.hang_up(code, word);
        self.disarm();
        self.rest(phase, cause, now);
    }

    /// Goes DISCONNECTED with nothing armed.
    pub(super) fn rest(&mut self, phase: Phase, cause: Cause, now: Ts) {
        self.disarm();
        self.lost_at = None;
        self.phase = phase;
        self.tell(Some(cause), now);
    }

    pub(super) fn disarm(&mut self) {
        if matches!(self.phase, Phase::Waiting { .. }) {
            self.out.push_back(Output::CancelRetry);
            self.phase = Phase::Idle;
        }
    }

    /// Tells the state if it, or the reason for it, is another than before.
    pub(super) fn tell(&mut self, cause: Option<Cause>, now: Ts) {
        let state = match &self.phase {
            Phase::Open(s) if s.live.is_some() => LinkState::Synced,
            Phase::Stopped => LinkState::Disconnected,
            _ if self.lost_at.is_some() => LinkState::Reconnecting,
            Phase::Idle | Phase::Waiting { .. } => LinkState::Disconnected,
            Phase::Dialing { .. } => LinkState::Connecting,
            Phase::Opening { .. } | Phase::Greeted { .. } | Phase::Open(_) => LinkState::Handshake,
        };
        // On the way back the last failure stays the reason, until the link is up.
        let keep = cause.is_none() && state != LinkState::Synced;
        if state == self.state && (keep || cause == self.cause) {
            return;
        }
        if !keep {
            self.cause.clone_from(&cause);
        }
        if state != self.state {
            self.state = state;
            self.since = now;
        }
        self.out.push_back(Output::State { state, cause });
    }
}
