//! How often one token may ask: a bucket per token.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use crate::domain::{Ts, limits};

/// Tokens that are remembered; a full bucket is the same as none, so the fullest go first.
const MAX_BUCKETS: usize = 10_000;

/// Requests per second of one token, and how many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Per second, for long.
    pub per_s: u32,
    /// At once.
    pub burst: u32,
}

impl Rate {
    /// So many per second for long, ten times as many at once.
    #[must_use]
    pub const fn per_second(per_s: u32) -> Self {
        Self {
            per_s,
            burst: per_s.saturating_mul(limits::TOKEN_BURST / limits::TOKEN_RATE_PER_S),
        }
    }
}

impl Default for Rate {
    fn default() -> Self {
        Self::per_second(limits::TOKEN_RATE_PER_S)
    }
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// Thousandths of a request.
    left: u64,
    at: Ts,
}

impl Bucket {
    fn refilled(self, rate: Rate, now: Ts) -> u64 {
        let gained = now.since(self.at).saturating_mul(u64::from(rate.per_s));
        self.left
            .saturating_add(gained)
            .min(u64::from(rate.burst) * 1000)
    }
}

/// The buckets.
#[derive(Debug)]
pub(crate) struct Limiter {
    rate: Rate,
    buckets: Mutex<HashMap<Uuid, Bucket>>,
}

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            rate,
            buckets: Mutex::default(),
        }
    }

    /// Takes one request.
    ///
    /// # Errors
    /// When the bucket is empty: seconds until it holds one again.
    pub(crate) fn take(&self, token: Uuid, now: Ts) -> Result<(), u64> {
        let rate = self.rate;
        let mut map = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if map.len() >= MAX_BUCKETS {
            map.retain(|_, b| b.refilled(rate, now) < u64::from(rate.burst) * 1000);
        }
        let bucket = map.entry(token).or_insert(Bucket {
            left: u64::from(rate.burst) * 1000,
            at: now,
        });
        let left = bucket.refilled(rate, now);
        let (left, result) = if left >= 1000 {
            (left - 1000, Ok(()))
        } else {
            let missing_ms = (1000 - left).div_ceil(u64::from(rate.per_s.max(1)));
            (left, Err(missing_ms.div_ceil(1000).max(1)))
        };
        *bucket = Bucket { left, at: now };
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_then_the_rate_holds() {
        let limiter = Limiter::new(Rate {
            per_s: 10,
            burst: 3,
        });
        let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
        for _ in 0..3 {
            assert_eq!(limiter.take(a, Ts(0)), Ok(()));
        }
        assert_eq!(limiter.take(a, Ts(0)), Err(1));
        assert_eq!(limiter.take(b, Ts(0)), Ok(()));
        assert_eq!(limiter.take(a, Ts(99)), Err(1));
        assert_eq!(limiter.take(a, Ts(100)), Ok(()));
        assert_eq!(limiter.take(a, Ts(100_000)), Ok(()));
    }
}
