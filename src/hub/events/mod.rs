//! What happens to tasks and messages, told to those who watch.
//!
//! ```text
//! write_item ──told──▶ store (the change and its events, one commit) ──watch──▶ stream ══▶ reader
//!                        └────────────── read after ──────────────────────────────▲
//! ```
//!
//! [`told`] derives events from a record before and after a change, so that whoever writes an item has told it. They go
//! into the account's log ([`super::store::Log`]) by the same commit; an event is there exactly if its change is.
//!
//! A stream ([`stream`]) watches first and reads then, so that nothing falls between; it remembers the place of the last
//! event that it told, and whenever it falls behind the watcher's ring it reads the log from there. A reader that comes
//! back with `Last-Event-ID` goes on from its place, or is told `reset` when the place is gone or of another life of the
//! store, and gets the present state. Readers wait in a bounded queue; one that takes nothing for half a minute is let
//! go, and can come back with its place.

use std::time::Duration;

mod filter;
mod stream;
mod tell;

pub(crate) use filter::Filter;
pub(crate) use stream::{Begin, Frame, Reader, Streams, Watching, has_more, open};
pub(crate) use tell::{event, note, outcome, progress, told};

/// How event streams are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventsConfig {
    /// Time between two signs of life.
    pub heartbeat: Duration,
    /// Time that a reader may take nothing while something waits for it.
    pub patience: Duration,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(15),
            patience: Duration::from_secs(30),
        }
    }
}
