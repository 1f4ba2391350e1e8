//! The daemon: one per user, serving every enabled project and session.

pub mod clock;
pub mod credentials;
pub mod dial;
mod git;
pub mod link;
pub mod lock;
pub mod projects;
pub mod retry_timer;
pub mod store;
pub mod tls;

pub mod dispatch;
pub mod memory;
mod memory_block;
