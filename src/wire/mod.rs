//! The link's language: frames, their limits, versions and close codes.
//!
//! JSON text frames over one WebSocket, tagged by `type`. The version is the WebSocket sub-protocol
//! ([`SUBPROTOCOL`]); the credential is the `Authorization` header of the upgrade. Neither is in a frame, except that
//! a device renews its credential in band with [`DeviceFrame::Auth`].
//!
//! ```text
//! device                                    hub
//!   │  upgrade, Bearer <connect JWT>         │
//!   │ ─────────────────────────────────────▶ │  verified, or a problem+json answer
//!   │  hello {instance, last, outbox, …}     │
//!   │ ─────────────────────────────────────▶ │
//!   │  welcome {epoch, resume, report_n, …}  │
//!   │ ◀───────────────────────────────────── │
//!   │  deliver* (backlog) … synced           │
//!   │ ◀───────────────────────────────────── │
//!   │  ack {seq} after the local commit      │
//!   │ ─────────────────────────────────────▶ │
//!   │  report {n, …}                         │
//!   │ ─────────────────────────────────────▶ │
//!   │  report_ack {n} after the commit       │
//!   │ ◀───────────────────────────────────── │
//! ```
//!
//! Unknown types and unknown fields are ignored and counted, so that either side may be newer.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod close;
mod codec;
pub mod event;
mod frame;
mod poll;
pub mod schema;

pub use close::CloseCode;
pub use codec::{
    DecodeError, Unreadable, decode, encode, encode_deliver, encoded_len, unreadable_envelope,
    unreadable_report,
};
pub use frame::{DeviceFrame, Hello, HubFrame, OutboxPosition, RejectedReport, Resume, Welcome};
pub use poll::{Delivered, POLL_REPORTS, POLL_WAIT_S, PollAck, PollAcked, Polled, encode_polled};

/// The WebSocket sub-protocol: the version of everything in this module.
pub const SUBPROTOCOL: &str = "remote-collab.v1";
