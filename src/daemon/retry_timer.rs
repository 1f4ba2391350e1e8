//! Turns the link's wish to wait into a delay with jitter: the one file that uses the `backoff` crate.
//!
//! The crate draws uniformly from `interval · (1 ± factor)`; with a factor of 1 around half the interval that is full
//! jitter, uniform from 0 to the interval.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff;

use crate::core::retry::Retry;

/// Part by which a linear wait may differ.
const LINEAR_JITTER: f64 = 0.2;

/// The delay for this kind of wait; another one at every call.
#[must_use]
pub fn delay(retry: Retry) -> Duration {
    match retry {
        Retry::Soon { within_ms } => full_jitter(within_ms),
        Retry::Exponential {
            initial_ms,
            max_ms,
            step,
        } => {
            let doubled =
                initial_ms.saturating_mul(1u64.checked_shl(step.min(40)).unwrap_or(u64::MAX));
            full_jitter(doubled.min(max_ms))
        }
        Retry::Linear {
            unit_ms,
            max_ms,
            step,
        } => {
            let wait = unit_ms.saturating_mul(u64::from(step) + 1).min(max_ms);
            draw(wait, LINEAR_JITTER)
        }
        Retry::Named {
            after_ms,
            spread_ms,
        } => Duration::from_millis(after_ms) + full_jitter(spread_ms),
    }
}

/// Uniform from 0 to `ms`.
fn full_jitter(ms: u64) -> Duration {
    draw(ms.div_ceil(2), 1.0).min(Duration::from_millis(ms))
}

fn draw(ms: u64, factor: f64) -> Duration {
    let interval = Duration::from_millis(ms);
    let mut policy = ExponentialBackoff {
        current_interval: interval,
        initial_interval: interval,
        randomization_factor: factor,
        multiplier: 1.0,
        max_interval: interval,
        max_elapsed_time: None,
        ..ExponentialBackoff::default()
    };
    policy.next_backoff().unwrap_or(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(retry: Retry) -> Vec<u128> {
        (0..2_000).map(|_| delay(retry).as_millis()).collect()
    }

    fn spread(delays: &[u128]) -> (u128, u128, u128) {
        let mean = delays.iter().sum::<u128>() / delays.len() as u128;
        let (min, max) = (delays.iter().min(), delays.iter().max());
        (*min.unwrap(), mean, *max.unwrap())
    }

    #[test]
    fn waits_are_spread_over_the_whole_interval() {
        let exponential = |step| Retry::Exponential {
            initial_ms: 2_000,
            max_ms: 120_000,
            step,
        };
        for (retry, bound) in [
            (Retry::Soon { within_ms: 1_000 }, 1_000),
            (exponential(0), 2_000),
            (exponential(3), 16_000),
            (exponential(60), 120_000),
        ] {
            let (min, mean, max) = spread(&many(retry));
            assert!(max <= bound, "{retry:?}: {max}");
            assert!(min < bound / 20 && max > bound - bound / 20, "{retry:?}");
            assert!(
                (bound * 9 / 20..bound * 11 / 20).contains(&mean),
                "{retry:?}: {mean}"
            );
        }
    }

    #[test]
    fn a_failing_hub_is_asked_in_growing_steps_and_a_named_time_is_kept() {
        let linear = Retry::Linear {
            unit_ms: 5_000,
            max_ms: 60_000,
            step: 1,
        };
        let (min, _, max) = spread(&many(linear));
        assert!(min >= 8_000 && max <= 12_000);
        let named = Retry::Named {
            after_ms: 30_000,
            spread_ms: 5_000,
        };
        let (min, _, max) = spread(&many(named));
        assert!(min >= 30_000 && max <= 35_000);
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        for retry in [
            Retry::Soon { within_ms: 0 },
            Retry::Exponential {
                initial_ms: u64::MAX,
                max_ms: 1,
                step: u32::MAX,
            },
            Retry::Linear {
                unit_ms: u64::MAX,
                max_ms: 1,
                step: u32::MAX,
            },
        ] {
            assert!(delay(retry) <= Duration::from_millis(2));
        }
    }
}
