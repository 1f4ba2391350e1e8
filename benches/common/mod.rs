//! What the measuring programs share: samples, the table, and how they end.

use std::process::ExitCode;
use std::time::Duration;

/// Measured times.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(pub(crate) Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// The time that this share of the samples does not exceed, µs.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(at).map_or(f64::NAN, |d| d.as_secs_f64() * 1e6)
    }

    pub(crate) fn p50(&self) -> f64 {
        self.quantile(0.5)
    }
}

/// Prints the head of a table whose last column is a ratio to `to`.
pub(crate) fn head(to: &str) {
    println!("\n| what | p50 µs | p99 µs | × {to} |\n|---|--:|--:|--:|");
}

/// Prints a row of it.
pub(crate) fn row(what: &str, samples: &Samples, ratio: Option<f64>) {
    let ratio = ratio.map_or_else(String::new, |r| format!("{r:.2}"));
    println!(
        "| {what} | {:.0} | {:.0} | {ratio} |",
        samples.p50(),
        samples.quantile(0.99)
    );
}

/// Tells whether what was measured holds; with `--check` a miss is the exit code 1.
pub(crate) fn verdict(what: &str, ratio: f64, bar: f64) -> ExitCode {
    let holds = ratio <= bar;
    let word = if holds { "holds" } else { "MISSED" };
    println!("\n{what}: {ratio:.2}, bar {bar}: {word}");
    if !holds && std::env::args().any(|a| a == "--check") {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The middle of a few figures.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let (low, high) = (figures.len().saturating_sub(1) / 2, figures.len() / 2);
    match (figures.get(low), figures.get(high)) {
        (Some(low), Some(high)) => f64::midpoint(*low, *high),
        _ => f64::NAN,
    }
}
