//! The hub's side of the link: one machine per connection. Here are the words it shares with its shell; the machine itself
//! is [`LinkServer`].
//!
//! The shell's part of the contract: outputs are carried out in order; every [`Output::Load`], [`Output::StoreAck`],
//! [`Output::StoreReports`] and [`Output::VerifyToken`] is answered once; after [`Output::Close`] the machine is done
//! and may be dropped, but stores that it asked for before are still carried out.

use std::sync::Arc;

use crate::domain::{Epoch, Report, Seq, WallMs};
use crate::wire::{CloseCode, Hello, HubFrame, RejectedReport};

mod config;
mod feed;
mod machine;

#[cfg(test)]
mod tests;

pub use config::ServerConfig;
pub use machine::{LinkServer, ServerStatus};

/// One row of a mailbox as the store gives it: the envelope's JSON goes out as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its place.
    pub seq: Seq,
    /// The encoded envelope.
    pub json: Arc<str>,
}

/// What the shell tells the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A text frame came.
    Text(String),
    /// A ping or pong came.
    Heard,
    /// The hub admitted the hello of [`Output::Admit`]: the generation was raised and an older connection superseded.
    Admitted(Admission),
    /// The hub refused the hello, or cannot go on with this connection (a store that cannot be written, say).
    Refused {
        /// The code (`domain::Code` text).
        code: String,
        /// What to tell the device.
        message: String,
        /// The close code.
        close: CloseCode,
    },
    /// Rows as asked for by [`Output::Load`], in order; `more` says whether further rows wait behind them.
    Loaded {
        /// The rows.
        rows: Vec<Row>,
        /// Whether the mailbox goes on after the last row.
        more: bool,
    },
    /// The mailbox grew up to here.
    Wake {
        /// The mailbox's new head.
        head: Seq,
    },
    /// A row was just committed; the machine may send it without a load if it is the next one.
    Pushed {
        /// The row that preceded it in this mailbox (so that a gap is noticed).
        prev: Seq,
        /// The row.
        row: Row,
    },
    /// The ack is committed.
    AckStored {
        /// Up to here.
        seq: Seq,
    },
    /// The reports are committed or rejected for good.
    ReportsStored {
        /// The last one (cumulative).
        through_n: u64,
        /// The refused ones.
        rejected: Vec<RejectedReport>,
    },
    /// The token of [`Output::VerifyToken`] holds.
    TokenAccepted,
    /// It does not.
    TokenRefused {
        /// The code (`domain::Code` text).
        code: String,
    },
    /// A newer connection of this device took over.
    Superseded,
    /// Another instance took the device over, as a person told it to: this one is shut out.
    TakenOver,
    /// The device was revoked.
    Revoked,
    /// The hub stops as planned; devices are to come back after `after_ms`.
    Drain {
        /// When to come back, ms.
        after_ms: u64,
    },
}

/// What the hub answers to an admitted hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The mailbox's life.
    pub epoch: Epoch,
    /// Its last envelope.
    pub head: Seq,
    /// The connection's number.
    pub generation: u64,
    /// The hub's time.
    pub now: WallMs,
    /// The last durable report of the device's outbox instance; 0 for none.
    pub report_n: u64,
}

/// What the machine wants done, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Decide about this hello and feed [`Input::Admitted`] or [`Input::Refused`].
    Admit(Box<Hello>),
    /// Send this frame.
    Send(HubFrame),
    /// Send a `deliver` frame around this row.
    Deliver(Row),
    /// Read rows after `after`, at most `limit` rows and `max_bytes` bytes (at least one row), and feed [`Input::Loaded`].
    Load {
        /// The last row sent.
        after: Seq,
        /// Rows at most.
        limit: u32,
        /// Bytes at most.
        max_bytes: u64,
    },
    /// Commit the cursor and the `on_device` receipts (compare-and-set on the generation), then feed [`Input::AckStored`].
    StoreAck {
        /// Up to here.
        seq: Seq,
    },
    /// Commit these reports in order (compare-and-set on the generation), then feed [`Input::ReportsStored`].
    StoreReports(Vec<Report>),
    /// Free run slots of the device changed.
    Capacity(u32),
    /// Verify this connect JWT against the device's key, then feed the answer.
    VerifyToken(String),
    /// Send a WebSocket ping.
    Ping,
    /// Close with this code; nothing follows.
    Close {
        /// The code.
        code: CloseCode,
        /// A word for the peer.
        reason: String,
    },
    /// The backlog is done: the device is present.
    Synced,
}
