//! remote-collab makes Claude Code remotely callable.
//!
//! Remote systems POST tasks and messages to a hub; the hub pushes them over one WebSocket to a daemon on the
//! developer's machine; the daemon keeps them in a durable queue, hands them to live sessions through hooks, and
//! starts headless runs where no session is open. `ARCHITECTURE.md` is the map; the modules stand here in the order
//! in which they may import each other.

pub mod auth;
pub mod claude;
pub mod cli;
pub mod config;
pub mod core;
pub mod daemon;
pub mod delivery;
pub mod domain;
pub mod hook;
pub mod hub;
pub mod local;
pub mod telemetry;
pub mod trigger;
pub mod wire;
