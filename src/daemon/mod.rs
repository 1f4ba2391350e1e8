//! The daemon: one per user, serving every enabled project and session.

pub mod clock;
pub mod credentials;
mod git;
pub mod lock;
pub mod projects;
pub mod retry_timer;
pub mod store;
