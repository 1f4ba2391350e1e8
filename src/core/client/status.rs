//! What `status` tells about the link.

use crate::domain::{Cursor, Ts};

use super::{Cause, LinkState};

/// The link at a glance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Where it stands.
    pub state: LinkState,
    /// Why it is down or was lost; `None` while it is up or on its way for the first time.
    pub cause: Option<Cause>,
    /// Dials since the link was last stable (SYNCED for a minute).
    pub attempt: u32,
    /// The connection's number, while connected.
    pub generation: Option<u64>,
    /// When `state` was entered.
    pub since: Ts,
    /// The last cursor known to be durable.
    pub cursor: Option<Cursor>,
    /// Envelopes received on this connection and not yet acked.
    pub unacked: usize,
    /// Reports sent and not yet confirmed.
    pub reports_in_flight: usize,
    /// The last `error` frame of the hub: code and message.
    pub hub_error: Option<(String, String)>,
    /// Frames of unknown type, ignored, since the machine was made.
    pub unknown_frames: u64,
    /// Envelopes of unknown kind, stored all the same.
    pub unknown_kinds: u64,
    /// Envelopes that could not be read: reported `undeliverable`, or passed over when they had not even a name.
    pub unreadable: u64,
    /// Texts that were not frames; each closed a connection.
    pub malformed: u64,
}
