//! The daemon: one per user, serving every enabled project and session.

pub mod store;
