//! Which wait follows which failure; the wait itself, with its jitter, is armed by the shell.

/// The kind of wait before the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// Uniformly within this many milliseconds: a dropped link, the first three times.
    Soon {
        /// Upper bound, ms.
        within_ms: u64,
    },
    /// Exponential from `initial_ms` to `max_ms`, full jitter; `step` counts from 0.
    Exponential {
        /// First interval, ms.
        initial_ms: u64,
        /// Largest interval, ms.
        max_ms: u64,
        /// How many such waits came before.
        step: u32,
    },
    /// `step + 1` times `unit_ms`, at most `max_ms`, with a little jitter: a failing hub.
    Linear {
        /// The unit, ms.
        unit_ms: u64,
        /// Largest interval, ms.
        max_ms: u64,
        /// How many such waits came before.
        step: u32,
    },
    /// Not before `after_ms`, then within `spread_ms` more: the peer named a time.
    Named {
        /// Lower bound, ms.
        after_ms: u64,
        /// Jitter on top, ms.
        spread_ms: u64,
    },
}
