//! Which wait follows which failure; the wait itself, with its jitter, is armed by the shell.
//!
//! A failure is first read as a `Failure` class (from an HTTP answer, a close code, silence), then the [`Policy`]
//! turns it into a `Verdict`: wait, dial again at once, or stop. Each class keeps its own count, and all counts
//! start anew only after the link was SYNCED for a minute, so that a hub that accepts and drops makes no hot loop.

use crate::domain::Code;
use crate::wire::CloseCode;

use super::client::DialFailure;

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

/// The waits' sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryConfig {
    /// How many drops are followed by a short wait.
    pub soon_times: u32,
    /// The short wait's upper bound, ms.
    pub soon_ms: u64,
    /// First exponential interval, ms.
    pub initial_ms: u64,
    /// Largest exponential interval, ms.
    pub max_ms: u64,
    /// The linear unit, ms.
    pub unit_ms: u64,
    /// Largest linear interval, ms.
    pub linear_max_ms: u64,
    /// Longest wait that a peer may name, ms.
    pub named_max_ms: u64,
    /// Where a planned restart names no window: back after this, within as much again, ms.
    pub restart_ms: u64,
    /// How often in a row a clock offset is adopted.
    pub skews: u32,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            soon_times: 3,
            soon_ms: 1_000,
            initial_ms: 2_000,
            max_ms: 120_000,
            unit_ms: 2_000,
            linear_max_ms: 60_000,
            named_max_ms: 3_600_000,
            restart_ms: 2_000,
            skews: 3,
        }
    }
}

/// What kind of failure a link met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Failure {
    /// The network, the transport or silence.
    Network,
    /// The peer of a link from before a sleep is gone: it was dead before we looked.
    Asleep,
    /// Too many attempts (429, 4429).
    Limited {
        /// When the peer wants to be asked again, ms.
        after_ms: Option<u64>,
    },
    /// The hub is failing (5xx).
    Server {
        /// When the peer wants to be asked again, ms.
        after_ms: Option<u64>,
    },
    /// The hub restarts as planned (1012, 1001).
    Restart {
        /// The window that it named, ms.
        window_ms: Option<u64>,
    },
    /// An edge in between blocks the upgrade.
    Edge,
    /// One side broke the protocol (4400, 4413).
    Protocol,
    /// The credential was too old: a fresh one may do.
    Stale(Code),
    /// The clocks disagree; the offset is known.
    Skew,
    /// Trying again blindly would not help.
    Fatal(Code),
}

/// What to do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Verdict {
    /// Wait like this, then dial.
    Wait(Retry),
    /// Dial at once.
    Now,
    /// Stay down until the user acts; the code says why.
    Stop(Code),
}

/// The counts behind the waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policy {
    config: RetryConfig,
    drops: u32,
    limited: u32,
    failing: u32,
    blocked: u32,
    stale: bool,
    skews: u32,
}

impl Policy {
    pub(crate) fn new(config: RetryConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Forgets all failures: the link was stable, or the user asked anew.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.config);
    }

    pub(crate) fn next(&mut self, failure: Failure) -> Verdict {
        let c = self.config;
        let named = |ms: u64| ms.min(c.named_max_ms);
        match failure {
            Failure::Network => {
                let before = step(&mut self.drops);
                Verdict::Wait(match before.checked_sub(c.soon_times) {
                    None => Retry::Soon {
                        within_ms: c.soon_ms,
                    },
                    Some(step) => self.exponential(step),
                })
            }
            Failure::Limited { after_ms } => {
                let before = step(&mut self.limited);
                Verdict::Wait(match after_ms {
                    // Never earlier than asked; the spread grows when asking again did not help.
                    Some(ms) => Retry::Named {
                        after_ms: named(ms),
                        spread_ms: doubled(c.initial_ms, before, c.max_ms),
                    },
                    None => self.exponential(before),
                })
            }
            Failure::Server { after_ms } => {
                let before = step(&mut self.failing);
                Verdict::Wait(match after_ms {
                    Some(ms) => Retry::Named {
                        after_ms: named(ms),
                        spread_ms: c.unit_ms,
                    },
                    None => Retry::Linear {
                        unit_ms: c.unit_ms,
                        max_ms: c.linear_max_ms,
                        step: before,
                    },
                })
            }
            Failure::Restart { window_ms } => {
                let window = named(window_ms.unwrap_or(c.restart_ms));
                Verdict::Wait(Retry::Named {
                    after_ms: window,
                    spread_ms: window.max(c.soon_ms),
                })
            }
            Failure::Edge | Failure::Protocol => {
                let before = step(&mut self.blocked);
                Verdict::Wait(self.exponential(before))
            }
            Failure::Stale(code) => {
                if std::mem::replace(&mut self.stale, true) {
                    Verdict::Stop(code)
                } else {
                    Verdict::Now
                }
            }
            Failure::Skew => {
                if step(&mut self.skews) < c.skews {
                    Verdict::Now
                } else {
                    Verdict::Stop(Code::ClockSkew)
                }
            }
            // A sleep is no failure of the way there, and it cannot come often.
            Failure::Asleep => Verdict::Now,
            Failure::Fatal(code) => Verdict::Stop(code),
        }
    }

    const fn exponential(&self, step: u32) -> Retry {
        Retry::Exponential {
            initial_ms: self.config.initial_ms,
            max_ms: self.config.max_ms,
            step,
        }
    }
}

/// Counts one more and tells how many came before.
const fn step(count: &mut u32) -> u32 {
    let before = *count;
    *count = before.saturating_add(1);
    before
}

fn doubled(initial: u64, step: u32, max: u64) -> u64 {
    initial
        .saturating_mul(1u64.checked_shl(step).unwrap_or(u64::MAX))
        .min(max)
}

/// The class of a dial that brought no transport.
pub(crate) fn classify_dial(failure: &DialFailure) -> Failure {
    match failure {
        DialFailure::Network { .. } => Failure::Network,
        DialFailure::Edge {
            status,
            retry_after_s,
        } => {
            let after_ms = retry_after_s.map(|s| s.saturating_mul(1_000));
            match status {
                429 => Failure::Limited { after_ms },
                500..=599 => Failure::Server { after_ms },
                _ => Failure::Edge,
            }
        }
        DialFailure::Proxy {
            status,
            retry_after_s,
            ..
        } => match status {
            429 | 503 if retry_after_s.is_some() => Failure::Limited {
                after_ms: retry_after_s.map(|s| s.saturating_mul(1_000)),
            },
            // The proxy is well, the way beyond it is not: as without a proxy.
            500..=599 => Failure::Network,
            _ => Failure::Edge,
        },
        DialFailure::Refused {
            code,
            hub_offset_ms,
            retry_after_s,
            ..
        } => {
            let after_ms = retry_after_s.map(|s| s.saturating_mul(1_000));
            match Code::parse(code) {
                // A later version's code: nothing is known about it, so it cannot be taken as final.
                None => Failure::Edge,
                Some(Code::ClockSkew) if hub_offset_ms.is_some() => Failure::Skew,
                Some(code) => classify_code(code, after_ms),
            }
        }
    }
}

/// The class of one of our codes.
fn classify_code(code: Code, after_ms: Option<u64>) -> Failure {
    match code {
        Code::TokenExpired | Code::TokenUsed => Failure::Stale(code),
        Code::HeartbeatLost => Failure::Network,
        other => match other.http_status() {
            429 => Failure::Limited { after_ms },
            500..=599 => Failure::Server { after_ms },
            _ => Failure::Fatal(other),
        },
    }
}

/// The class of a closed transport: its close code, the peer's words, and the `error` frame before it, if any.
pub(crate) fn classify_close(
    code: Option<u16>,
    reason: &str,
    said: Option<(Option<Code>, Option<u64>)>,
) -> Failure {
    let said_code = said.and_then(|(code, _)| code);
    let said_after = said
        .and_then(|(_, after)| after)
        .map(|s| s.saturating_mul(1_000));
    let why = said_code.or_else(|| Code::parse(reason.trim()));
    match code.and_then(CloseCode::from_u16) {
        None | Some(CloseCode::Normal | CloseCode::Heartbeat) => match why {
            // The hub said that its store is away, then closed.
            Some(code) if code.http_status() >= 500 => classify_code(code, said_after),
            _ => Failure::Network,
        },
        Some(CloseCode::GoingAway | CloseCode::Restart) => Failure::Restart {
            window_ms: window_in(reason).or(said_after),
        },
        Some(CloseCode::Protocol | CloseCode::TooLarge) => Failure::Protocol,
        Some(CloseCode::Unauthenticated) => match why {
            Some(code @ (Code::TokenExpired | Code::TokenUsed)) => Failure::Stale(code),
            Some(code) if code.http_status() == 401 => Failure::Fatal(code),
            _ => Failure::Fatal(Code::TokenInvalid),
        },
        Some(CloseCode::Forbidden) => Failure::Fatal(
            why.filter(|c| c.http_status() == 403)
                .unwrap_or(Code::DeviceRevoked),
        ),
        Some(CloseCode::Superseded) => Failure::Fatal(
            why.filter(|c| *c == Code::KeyHeldElsewhere)
                .unwrap_or(Code::Superseded),
        ),
        Some(CloseCode::SlowDown) => Failure::Limited {
            after_ms: window_in(reason).or(said_after),
        },
    }
}

/// The marker of a time in a close reason.
const WINDOW: &str = "retry_after_ms=";

/// A close reason that names a time.
pub(crate) fn reason_with_window(after_ms: u64) -> String {
    format!("{WINDOW}{after_ms}")
}

/// The time named in a close reason, ms.
fn window_in(reason: &str) -> Option<u64> {
    let (_, rest) = reason.split_once(WINDOW)?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .map_or(rest, |end| &rest[..end]);
    digits.parse().ok()
}
