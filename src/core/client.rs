//! The device's side of the link: the words it shares with its shell. The machine itself is [`LinkClient`].
//!
//! The shell's part of the contract:
//! - outputs are carried out in order; after [`Output::Close`] or a new [`Output::Dial`] nothing of the older transport
//!   is fed in any more (its late frames and its close are dropped);
//! - [`Output::Close`] while a dial is under way abandons the dial;
//! - every [`Output::LoadReports`] is answered by one [`Input::Reports`], also when it is empty;
//! - [`Input::Stored`] may be coalesced, and may come late: it is a fact about the queue, not about a connection.

use crate::domain::{
    Cursor, Envelope, EnvelopeId, Epoch, InstanceId, ProjectInfo, Report, Seq, SessionInfo, WallMs,
};
use crate::wire::{CloseCode, DeviceFrame, RejectedReport};

use super::retry::Retry;

mod config;
mod frames;
mod machine;
mod moved;
mod outbox;
mod session;
mod status;
mod transitions;

#[cfg(test)]
mod tests;

pub use config::ClientConfig;
pub use machine::LinkClient;
pub(crate) use session::cut;
pub use status::Status;

/// The link's state, under the names used in `status`, logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkState {
    /// No connection; perhaps a retry is armed.
    Disconnected,
    /// The transport is being opened for the first time since DISCONNECTED.
    Connecting,
    /// The transport is up; `hello`, `welcome` and the backlog are under way.
    Handshake,
    /// The backlog is done; envelopes come as they are posted.
    Synced,
    /// A synced link was lost; it is being reopened.
    Reconnecting,
}

impl LinkState {
    /// The name as shown to people and machines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disconnected => "DISCONNECTED",
            Self::Connecting => "CONNECTING",
            Self::Handshake => "HANDSHAKE",
            Self::Synced => "SYNCED",
            Self::Reconnecting => "RECONNECTING",
        }
    }
}

/// Why a dial did not bring a transport, as the shell read it off the network or the HTTP answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DialFailure {
    /// Name, route, refusal, time-out, TLS; with a proxy, the way to it and what it does after its answer.
    Network {
        /// What happened, for people.
        detail: String,
    },
    /// A `problem+json` answer with one of our codes.
    Refused {
        /// The code (`domain::Code` text).
        code: String,
        /// What the hub said.
        message: String,
        /// Hub time minus local time when the answer came, ms, with `clock_skew`: the machine knows no wall clock.
        hub_offset_ms: Option<i64>,
        /// `retry_after_s` of the problem, or `Retry-After`, seconds.
        retry_after_s: Option<u64>,
    },
    /// An HTTP status without one of our codes: an edge in between.
    Edge {
        /// The status.
        status: u16,
        /// `Retry-After`, seconds.
        retry_after_s: Option<u64>,
    },
    /// A proxy refused the tunnel to the hub.
    Proxy {
        /// The status of its answer to CONNECT.
        status: u16,
        /// `Retry-After`, seconds.
        retry_after_s: Option<u64>,
        /// What happened, with the proxy's name, for people.
        detail: String,
    },
}

/// Why the link is down or was lost; `status` shows it with what to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Not started yet.
    Idle,
    /// The user disconnected.
    User,
    /// The daemon is stopping.
    Shutdown,
    /// The transport failed or was closed.
    Lost {
        /// What happened, for people.
        detail: String,
    },
    /// Nothing was heard for too long.
    Silent,
    /// Refused, and trying again blindly would not help.
    Fatal {
        /// The code (`domain::Code` text).
        code: String,
        /// What the hub said.
        message: String,
    },
}

/// What the shell tells the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Start, the user's `connect`, or new credentials.
    Connect,
    /// The user's `disconnect`.
    Disconnect,
    /// The daemon stops: say `bye`, close.
    Shutdown,
    /// The armed retry is due.
    RetryDue,
    /// The WebSocket is open.
    TransportUp,
    /// The dial failed.
    TransportFailed(DialFailure),
    /// A text frame came (any size; decoded by the machine).
    Text(String),
    /// A sign of life came that says nothing more: a ping, a foreign pong.
    Heard,
    /// The pong of the ping with this number came ([`Output::Ping`]).
    Pong(u64),
    /// Everything that had come off the transport was fed in, and nothing more waits there. Only needed after
    /// [`Input::Woke`]; feeding it at every idle moment is fine.
    Drained,
    /// The transport closed, with the peer's close code if one came.
    TransportClosed {
        /// The code.
        code: Option<u16>,
        /// The peer's words or the transport's error.
        detail: String,
    },
    /// Every envelope up to here is durable in the queue.
    Stored {
        /// The life of the mailbox it belongs to.
        epoch: Epoch,
        /// The last durable envelope.
        seq: Seq,
    },
    /// Rows of the outbox, in order, as asked for by [`Output::LoadReports`]; fewer than `limit` means there are no more.
    Reports(Vec<Report>),
    /// The outbox grew; `next_n` is the number after its last row.
    OutboxGrew {
        /// The next report's number.
        next_n: u64,
    },
    /// Free run slots changed.
    Capacity(u32),
    /// A fresh JWT, as asked for by [`Output::MintToken`].
    Token(String),
    /// The machine slept: the suspend-aware clock jumped.
    Woke,
}

/// What the machine wants done, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Open the transport with a fresh connect JWT; `hub_offset_ms` is added to the local clock when signing.
    Dial {
        /// Hub time minus local time, ms; 0 until a `clock_skew` told otherwise.
        hub_offset_ms: i64,
    },
    /// Read hello's snapshot from the shell's stores and feed it to [`LinkClient::hello`].
    SendHello,
    /// Send this frame.
    Send(DeviceFrame),
    /// Send a WebSocket ping that carries this number, so that its own pong is known.
    Ping(u64),
    /// Close the transport with this code, or drop it if a close was already received.
    Close {
        /// The code.
        code: CloseCode,
        /// A word for the peer.
        reason: String,
    },
    /// Store this envelope at this cursor (idempotent by id), then feed [`Input::Stored`].
    Store {
        /// Its place.
        cursor: Cursor,
        /// The envelope.
        envelope: Box<Envelope>,
    },
    /// The envelope at this cursor cannot be read: if it has a name, note durably that it is finished and append the
    /// receipt `undeliverable` with this reason; in any case move the durable cursor past it, then feed [`Input::Stored`].
    Refuse {
        /// Its place.
        cursor: Cursor,
        /// Its name, if that could be read.
        id: Option<EnvelopeId>,
        /// What is wrong with it.
        reason: String,
    },
    /// The hub's mailbox has a new life: keep the queue, forget the old cursor durably.
    ResetCursor {
        /// The new life.
        epoch: Epoch,
    },
    /// Read up to `limit` outbox rows after `after_n` and feed [`Input::Reports`].
    LoadReports {
        /// The last row that is in flight or done.
        after_n: u64,
        /// How many at most.
        limit: u32,
    },
    /// The hub has every report up to `through_n`: delete them; `rejected` ones are logged and kept aside.
    PruneReports {
        /// The last one done.
        through_n: u64,
        /// The refused ones.
        rejected: Vec<RejectedReport>,
    },
    /// The hub holds more reports of this outbox instance than the outbox ever numbered (an older copy was put back): give
    /// the waiting rows, in order, the numbers after `after_n`, then feed [`Input::OutboxGrew`].
    RenumberOutbox {
        /// The hub's last number.
        after_n: u64,
    },
    /// Sign a fresh JWT and feed [`Input::Token`].
    MintToken,
    /// Arm the retry timer of this kind, then feed [`Input::RetryDue`]; replaces an armed one.
    ArmRetry(Retry),
    /// Disarm the retry timer.
    CancelRetry,
    /// The state changed: for `status`, logs and metrics.
    State {
        /// The new state.
        state: LinkState,
        /// Why, when it is worse than before.
        cause: Option<Cause>,
    },
    /// The hub's time was learnt: hub minus local, ms.
    HubClock {
        /// The hub's time when `welcome` was written, Unix ms.
        hub_now: WallMs,
    },
}

/// What `hello` carries, read from the stores when the transport is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloSnapshot {
    /// The queue's instance.
    pub instance: InstanceId,
    /// Whether a person moved the device here: another instance that holds the key is shut out.
    pub take_over: bool,
    /// The durable cursor.
    pub last: Option<Cursor>,
    /// The outbox's instance.
    pub outbox_instance: InstanceId,
    /// The number after the outbox's last row.
    pub next_n: u64,
    /// The daemon's version.
    pub build: String,
    /// The operating system.
    pub os: String,
    /// The CLI's version.
    pub claude_version: Option<String>,
    /// Free run slots.
    pub capacity: u32,
    /// The enabled projects.
    pub projects: Vec<ProjectInfo>,
    /// The live sessions.
    pub sessions: Vec<SessionInfo>,
}
