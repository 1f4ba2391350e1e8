//! Times in files: `"90s"`, `"5m"`, `"1h"`, `"250ms"`, or plain seconds.

use std::time::Duration;

/// The time that a text names; plain numbers are seconds.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let n: u64 = number.parse().ok()?;
    let seconds = |factor: u64| n.checked_mul(factor).map(Duration::from_secs);
    match unit.trim() {
        "ms" => Some(Duration::from_millis(n)),
        "" | "s" => seconds(1),
        "m" | "min" => seconds(60),
        "h" => seconds(3_600),
        "d" => seconds(86_400),
        _ => None,
    }
}
