//! What several test programs use: a hub in a folder of its own, an HTTP client, a raw device.
#![allow(dead_code, reason = "not every test program uses everything")]

pub(crate) mod hub_bed;
pub(crate) mod ws_client;
