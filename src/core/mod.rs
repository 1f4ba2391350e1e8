//! The link as two sans-IO machines: [`client`] on the device, [`server`] at the hub.
//!
//! Both are driven the same way. The shell feeds an input with the time, then takes outputs until there are none,
//! carries them out in order, and comes back with what happened; between inputs it waits for bytes, rows, or the next
//! time-out:
//!
//! ```text
//! handle(input, now)      something happened
//! poll_output()           what to do about it, in order, until None
//! poll_timeout()          when to call handle_timeout, and why
//! handle_timeout(now)     that time has come
//! ```
//!
//! The machines know no clock, socket, disk or randomness: time is a [`Ts`](crate::domain::Ts) given from outside, waiting with jitter is
//! the shell's ([`retry::Retry`] says which kind of wait), and rows are asked for and confirmed by outputs and inputs.
//! So the same code runs in production and in the property tests.
//!
//! The law they keep together: what the hub accepted is durable there, what the device acked is durable there, and
//! every envelope takes effect once, in order.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod client;
pub mod fallback;
mod heartbeat;
mod resume;
pub mod retry;
pub mod server;
mod window;

pub use window::{REPORT_BACKLOG, REPORT_WINDOW};
