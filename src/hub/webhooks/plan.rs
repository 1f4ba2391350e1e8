//! When a call is made again: pure.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::domain::WallMs;

/// Tries of one call: with the waits between them about a day.
pub(crate) const MAX_ATTEMPTS: u32 = 14;
/// After this time a call is not made again, ms.
const MAX_AGE_MS: i64 = 26 * 3600 * 1000;
/// Longest wait, ms; also the longest `Retry-After` that is honoured.
const MAX_WAIT_MS: i64 = 4 * 3600 * 1000;

/// How a call went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// 2xx.
    Delivered,
    /// 410: no more of them.
    Gone,
    /// Anything else.
    Failed {
        why: String,
        retry_after_s: Option<u64>,
    },
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done,
    /// Neither this call nor a later one of the item.
    Stop,
    Again {
        at: WallMs,
    },
    GiveUp,
}

/// What follows on the `attempts`th try (from 1) of a call that came up at `created_at`. `first_ms` is the wait after
/// the first failure; each further one triples it. `spin` is any number: it moves the wait by up to a fifth either way.
pub(crate) fn judge(
    outcome: &Outcome,
    attempts: u32,
    created_at: WallMs,
    now: WallMs,
    first_ms: i64,
    spin: u32,
) -> Verdict {
    let retry_after_s = match outcome {
        Outcome::Delivered => return Verdict::Done,
        Outcome::Gone => return Verdict::Stop,
        Outcome::Failed { retry_after_s, .. } => *retry_after_s,
    };
    if attempts >= MAX_ATTEMPTS || now.0.saturating_sub(created_at.0) >= MAX_AGE_MS {
        return Verdict::GiveUp;
    }
    let factor = 3_i64.saturating_pow(attempts.saturating_sub(1));
    let wait = first_ms.saturating_mul(factor).min(MAX_WAIT_MS);
    let spread = wait / 5;
    let wait = wait - spread + i64::from(spin) % (2 * spread + 1);
    let asked = retry_after_s.map_or(0, |s| {
        i64::try_from(s).unwrap_or(i64::MAX).saturating_mul(1000)
    });
    Verdict::Again {
        at: now.plus(wait.max(asked.min(MAX_WAIT_MS))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: i64 = 5000;

    fn failed(retry_after_s: Option<u64>) -> Outcome {
        Outcome::Failed {
            why: "500".into(),
            retry_after_s,
        }
    }

    #[test]
    fn a_call_is_tried_for_about_a_day_with_growing_waits() {
        for spin in [0, 1, 12_345, u32::MAX] {
            let (mut now, mut waits) = (WallMs(0), Vec::new());
            for attempt in 1.. {
                match judge(&failed(None), attempt, WallMs(0), now, FIRST, spin) {
                    Verdict::Again { at } => {
                        waits.push(at.0 - now.0);
                        now = at;
                    }
                    Verdict::GiveUp => break,
                    other => panic!("{other:?}"),
                }
            }
            assert!((4000..=6000).contains(&waits[0]));
            assert!(waits.len() < MAX_ATTEMPTS as usize);
            let hours = now.0 / 3_600_000;
            assert!((15..=30).contains(&hours), "{hours} h, {waits:?}");
        }
    }

    #[test]
    fn the_receivers_word_counts() {
        let judge = |o: &Outcome| judge(o, 1, WallMs(0), WallMs(10), FIRST, 0);
        assert_eq!(judge(&Outcome::Delivered), Verdict::Done);
        assert_eq!(judge(&Outcome::Gone), Verdict::Stop);
        let at = |v| match v {
            Verdict::Again { at } => at.0 - 10,
            other => panic!("{other:?}"),
        };
        assert_eq!(at(judge(&failed(Some(60)))), 60_000);
        assert_eq!(at(judge(&failed(Some(0)))), 4000);
        assert_eq!(at(judge(&failed(Some(u64::MAX)))), MAX_WAIT_MS);
    }
}
