//! The client's limits.

use crate::core::retry::RetryConfig;
use crate::core::window::REPORT_WINDOW;
use crate::domain::limits;

/// The client's limits; times in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// From the dial to the open transport.
    pub connect_timeout_ms: u64,
    /// From the open transport to `welcome`; also how long a token may take to be signed.
    pub handshake_timeout_ms: u64,
    /// On top of two heartbeats before the hub is dead.
    pub heartbeat_margin_ms: u64,
    /// The wait for a sign of life after a wake from sleep.
    pub probe_ms: u64,
    /// SYNCED time after which failures are forgotten.
    pub stable_after_ms: u64,
    /// RECONNECTING time after which the link gives up; `None` for never.
    pub reconnect_timeout_ms: Option<u64>,
    /// Largest frame taken, bytes.
    pub max_frame_bytes: usize,
    /// Reports in flight at most.
    pub report_window: usize,
    /// The waits.
    pub retry: RetryConfig,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout_ms: limits::CONNECT_TIMEOUT_MS,
            handshake_timeout_ms: limits::HANDSHAKE_TIMEOUT_MS,
            heartbeat_margin_ms: limits::HEARTBEAT_DEAD_MS - 2 * limits::HEARTBEAT_MS,
            probe_ms: 2_000,
            stable_after_ms: limits::STABLE_AFTER_MS,
            reconnect_timeout_ms: None,
            max_frame_bytes: limits::MAX_FRAME_BYTES,
            report_window: REPORT_WINDOW,
            retry: RetryConfig::default(),
        }
    }
}
