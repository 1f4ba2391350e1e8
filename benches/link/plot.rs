//! Counts over time, as text and as an SVG picture.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// Width of the longest bar of the text, characters.
const WIDTH: usize = 60;
const PX_WIDE: usize = 900;
const PX_HIGH: usize = 300;

/// How many of the times fall into each step.
pub(super) fn bins(times: &[Duration], step: Duration) -> Vec<usize> {
    let mut bins = Vec::new();
    for time in times {
        let at = usize::try_from(time.as_millis() / step.as_millis()).unwrap();
        if bins.len() <= at {
            bins.resize(at + 1, 0);
        }
        bins[at] += 1;
    }
    bins
}

/// Prints the counts as bars.
pub(super) fn text(bins: &[usize], step: Duration) {
    let most = bins.iter().copied().max().unwrap_or(0).max(1);
    for (n, count) in bins.iter().enumerate() {
        let at = step.as_secs_f64() * n as f64;
        println!("{at:6.2} s {count:5} {}", "#".repeat(count * WIDTH / most));
    }
}

/// Writes the counts as a picture.
pub(super) fn svg(path: &Path, title: &str, bins: &[usize], step: Duration) {
    let most = bins.iter().copied().max().unwrap_or(0).max(1);
    let wide = PX_WIDE as f64 / bins.len().max(1) as f64;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <text x=\"50\" y=\"16\">{title}; {} ms a bar, highest {most}</text>\n",
        PX_WIDE + 100,
        PX_HIGH + 60,
        step.as_millis(),
    );
    for (n, count) in bins.iter().enumerate() {
        let high = (count * PX_HIGH) as f64 / most as f64;
        let (x, y) = (50.0 + wide * n as f64, 26.0 + PX_HIGH as f64 - high);
        let bar = wide * 0.9;
        writeln!(picture, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{bar:.1}\" height=\"{high:.1}\" fill=\"#47a\"/>").unwrap();
    }
    let end = step.as_secs_f64() * bins.len() as f64;
    writeln!(
        picture,
        "<text x=\"50\" y=\"{0}\">0 s</text>\n<text x=\"{1}\" y=\"{0}\">{end:.1} s</text>\n</svg>",
        PX_HIGH + 44,
        PX_WIDE + 30,
    )
    .unwrap();
    std::fs::write(path, picture).unwrap();
}

/// The largest distance between what was drawn, each a part of its bound, and the uniform distribution.
pub(super) fn distance_from_uniform(mut parts: Vec<f64>) -> f64 {
    parts.sort_by(f64::total_cmp);
    let n = parts.len() as f64;
    let far = parts.iter().enumerate().map(|(i, x)| {
        let (below, above) = (i as f64 / n, (i + 1) as f64 / n);
        (x - below).abs().max((above - x).abs())
    });
    far.fold(0.0, f64::max)
}
