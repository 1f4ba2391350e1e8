//! Pure contracts: laws that hold for every implementation, golden frames, layer order.
#![allow(clippy::unwrap_used, reason = "a failed wait or step is a failed test")]

mod claude_hooks;
mod delivery;
mod events;
mod frames;
mod layers;
mod openapi;
mod plugin;
mod poll;
mod readme;
mod schemas;
mod store;
mod store_close;
