//! What several test programs use: a hub in a folder of its own, an HTTP client, a raw device, a scripted
//! model API.
#![allow(dead_code, reason = "not every test program uses everything")]

pub(crate) mod fake_anthropic;
pub(crate) mod hub_bed;
pub(crate) mod ws_client;

use std::time::Duration;

/// The deadline for one step of a test: far above what it takes, so that only a hang reaches it.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A text that occurs nowhere else, to be searched for in requests, transcripts and on screens.
pub(crate) fn marker(label: &str) -> String {
    format!("{label}-{}", uuid::Uuid::new_v4().simple())
}
