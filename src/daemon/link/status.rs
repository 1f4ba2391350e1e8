//! What the daemon tells about its link.

use serde::Serialize;

use crate::core::client::{Cause, LinkState, Status};
use crate::domain::{Code, Cursor, WallMs};

/// The link for `status`, published after every change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinkStatus {
    /// Its state, under the names of the design.
    pub state: &'static str,
    /// When that was entered, Unix ms.
    pub since: WallMs,
    /// Why it is not better, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The stable code of a refusal that will not be tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What the user can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// When the next attempt is due, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<WallMs>,
    /// The transport in use: `websocket` or `long_poll`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<&'static str>,
    /// Why it is not the WebSocket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_cause: Option<String>,
    /// The hub's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub: Option<String>,
    /// This device's name there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Attempts since the link was last stable.
    pub attempt: u32,
    /// The connection's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The last durable cursor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
    /// Envelopes received and not yet acked.
    pub unacked: usize,
    /// Reports sent and not yet confirmed.
    pub reports_in_flight: usize,
    /// Frames of unknown type, ignored.
    pub unknown_frames: u64,
    /// Envelopes of unknown kind, stored all the same.
    pub unknown_kinds: u64,
    /// Envelopes that could not be read: reported `undeliverable`, or passed over when they had not even a name.
    pub unreadable: u64,
    /// Texts that were no frames.
    pub malformed: u64,
    /// Hub time minus local time as last learnt, ms.
    pub hub_offset_ms: i64,
    /// Why nothing is stored, and therefore nothing acked, at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
}

impl LinkStatus {
    /// Whether envelopes and reports flow.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.state == LinkState::Synced.as_str()
    }

    /// A link that was not started.
    pub(super) fn idle(since: WallMs) -> Self {
        Self {
            state: LinkState::Disconnected.as_str(),
            since,
            cause: None,
            code: None,
            hint: None,
            retry_at: None,
            transport: None,
            fallback_cause: None,
            hub: None,
            device: None,
            attempt: 0,
            generation: None,
            cursor: None,
            unacked: 0,
            reports_in_flight: 0,
            unknown_frames: 0,
            unknown_kinds: 0,
            unreadable: 0,
            malformed: 0,
            hub_offset_ms: 0,
            store_error: None,
        }
    }

    /// Takes over what the machine tells.
    pub(super) fn take(&mut self, machine: &Status, since: WallMs) {
        self.state = machine.state.as_str();
        self.since = since;
        (self.cause, self.code, self.hint) = explain(machine.cause.as_ref());
        self.attempt = machine.attempt;
        self.generation = machine.generation;
        self.cursor = machine.cursor;
        self.unacked = machine.unacked;
        self.reports_in_flight = machine.reports_in_flight;
        self.unknown_frames = machine.unknown_frames;
        self.unknown_kinds = machine.unknown_kinds;
        self.unreadable = machine.unreadable;
        self.malformed = machine.malformed;
    }
}

fn explain(cause: Option<&Cause>) -> (Option<String>, Option<String>, Option<String>) {
    let some = |s: &str| Some(s.to_owned());
    match cause {
        None => (None, None, None),
        Some(Cause::Idle) => (some("not started"), None, None),
        Some(Cause::User) => (
            some("disconnected by you"),
            None,
            some("`remote-collab connect` opens it again"),
        ),
        Some(Cause::Shutdown) => (some("the daemon is stopping"), None, None),
        Some(Cause::Silent) => (some("the hub went silent"), None, None),
        Some(Cause::Lost { detail }) => (Some(detail.clone()), None, None),
        Some(Cause::Fatal { code, message }) => {
            let cause = if message.is_empty() { code } else { message };
            (
                Some(cause.clone()),
                Some(code.clone()),
                advice(Code::parse(code)),
            )
        }
    }
}

/// What helps against a refusal.
fn advice(code: Option<Code>) -> Option<String> {
    let text = match code? {
        Code::TokenMissing => {
            "enrol it with a join token of the hub: `remote-collab login URL --token-stdin < FILE`"
        }
        Code::TokenInvalid | Code::TokenExpired | Code::TokenRevoked | Code::TokenUsed => {
            "enrol this device anew: `remote-collab login URL --token-stdin < FILE`"
        }
        Code::DeviceRevoked => {
            "the device was revoked at the hub; `remote-collab login URL --token-stdin < FILE` enrols it anew, the local queue is kept"
        }
        Code::KeyHeldElsewhere => {
            "`remote-collab login --take-over` moves the device here and shuts the other one out; unless it was moved before, it is enough to stop the other daemon and run `remote-collab connect` here"
        }
        Code::Superseded => {
            "another daemon of this device took over; `remote-collab connect` takes it back"
        }
        Code::VersionUnsupported => "update remote-collab, here or at the hub",
        Code::ClockSkew => "set this machine's clock",
        _ => "`remote-collab connect` tries again",
    };
    Some(text.to_owned())
}
