//! The server's limits.

use crate::core::window::REPORT_BACKLOG;
use crate::domain::limits;

/// The server's limits; times in milliseconds unless named otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// From the open transport to `hello`, and from `hello` to the admission.
    pub handshake_timeout_ms: u64,
    /// Interval of pings; the device is told whole seconds.
    pub heartbeat_ms: u64,
    /// Silence after which the device is dead.
    pub dead_ms: u64,
    /// Envelopes in flight.
    pub window: u32,
    /// Bytes in flight.
    pub window_bytes: u64,
    /// Largest frame taken, bytes.
    pub max_frame_bytes: usize,
    /// Life of a connection's credential, seconds.
    pub auth_expires_s: u64,
    /// How long before that a renewal is asked for, seconds.
    pub reauth_within_s: u64,
    /// Uncommitted reports at most.
    pub report_backlog: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            handshake_timeout_ms: limits::HANDSHAKE_TIMEOUT_MS,
            heartbeat_ms: limits::HEARTBEAT_MS,
            dead_ms: limits::HEARTBEAT_DEAD_MS,
            window: limits::WINDOW_ENVELOPES,
            window_bytes: limits::WINDOW_BYTES,
            max_frame_bytes: limits::MAX_FRAME_BYTES,
            auth_expires_s: limits::AUTH_EXPIRES_S,
            reauth_within_s: 60,
            report_backlog: REPORT_BACKLOG,
        }
    }
}
