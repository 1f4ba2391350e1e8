//! An open connection: what `welcome` agreed on, and what each frame after it does.

use std::collections::VecDeque;

use crate::core::heartbeat::Heartbeat;
use crate::core::window::Inbox;
use crate::domain::{Cursor, EnvelopeKind, Epoch, Seq, Ts};
use crate::wire::HubFrame;

use super::Output;
use super::outbox::Pump;

/// Numbers above this fit no store.
pub(super) const MAX_NUMBER: u64 = i64::MAX as u64;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) epoch: Epoch,
    pub(super) generation: u64,
    pub(super) window: usize,
    pub(super) inbox: Inbox,
    pub(super) pump: Pump,
    pub(super) beat: Heartbeat,
    /// The backlog's last envelope, once `synced` came.
    pub(super) synced: Option<Seq>,
    /// Since when the link is SYNCED.
    pub(super) live: Option<Ts>,
    /// The replay has to move by then.
    pub(super) progress: Ts,
    /// When a fresh token is asked for.
    pub(super) renew_at: Ts,
    pub(super) auth_ms: u64,
    pub(super) dead_ms: u64,
}

/// What a frame of an open session amounts to.
pub(super) enum Step {
    On,
    UnknownKind,
    Synced,
}

impl Session {
    /// Takes note of a delivered envelope; `None` for a duplicate, which only has to be acked again.
    ///
    /// # Errors
    /// When the hub breaks the window, or numbers absurdly.
    pub(super) fn take(&mut self, seq: Seq, now: Ts) -> Result<Option<Cursor>, String> {
        if seq.0 == 0 || seq.0 > MAX_NUMBER {
            return Err(format!("deliver with seq {}", seq.0));
        }
        self.progress = now.plus(self.dead_ms);
        if !self.inbox.deliver(seq) {
            return Ok(None);
        }
        if self.inbox.unacked() > self.window {
            return Err(format!("more than {} envelopes in flight", self.window));
        }
        let epoch = self.epoch;
        Ok(Some(Cursor { epoch, seq }))
    }

    pub(super) fn frame(
        &mut self,
        frame: HubFrame,
        now: Ts,
        out: &mut VecDeque<Output>,
    ) -> Result<Step, String> {
        match frame {
            HubFrame::Deliver { seq, envelope } => {
                let Some(cursor) = self.take(seq, now)? else {
                    return Ok(Step::On);
                };
                let known_kind = !matches!(envelope.kind, EnvelopeKind::Other(_));
                out.push_back(Output::Store { cursor, envelope });
                Ok(if known_kind {
                    Step::On
                } else {
                    Step::UnknownKind
                })
            }
            HubFrame::Synced { seq } => {
                if self.synced.is_some() {
                    return Err("synced twice".to_owned());
                }
                // A hub may name its head although the last envelopes needed no delivery.
                self.synced = Some(seq.min(self.inbox.received()));
                Ok(Step::Synced)
            }
            HubFrame::ReportAck { n, rejected } => {
                self.pump.confirmed(n, rejected, out)?;
                Ok(Step::On)
            }
            HubFrame::Reauth { .. } => {
                self.renew_at = now;
                Ok(Step::On)
            }
            HubFrame::Welcome(_) | HubFrame::Error { .. } | HubFrame::Unknown => Ok(Step::On),
        }
    }
}

/// A close reason has at most 123 bytes on the wire.
pub(crate) fn cut(reason: &str) -> String {
    let mut end = reason.len().min(120);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}
