//! What the link does when the network, the machine or the hub goes away: figures that only time gives.
//!
//! 1. **Half-open**: a proxy forgets four links at different points of their heartbeat; both ends still look connected.
//!    Measured until `status` no longer says SYNCED. Bar: 45 s.
//! 2. **Sleep**: four daemons are stopped (SIGSTOP) for 60 s; the proxy forgets the links of two meanwhile. Measured from
//!    SIGCONT until the daemon is SYNCED and a message posted during the sleep is on the device. Bar: 5 s.
//! 3. **Restart under load**: 2,000 devices, each the product's own link machine, dialer and retry timer over a real
//!    socket, lose their hub twice: by a planned restart (1012 with a window) and by SIGKILL. Every attempt is noted, with
//!    the wait that preceded it. Shown: attempts over time, and how far the waits are from what the policy says
//!    (Kolmogorov-Smirnov distance of the waits, each as a part of its bound, from the uniform distribution). Bar: 0.05.
//!    The plots are written as SVG files into the target folder.
//!
//! `cargo bench --bench link [-- --check]`, some four minutes; with `--check` a missed bar is the exit code 1.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a failed step of a benchmark ends it"
)]

mod away;
mod plot;
mod storm;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;

use tokio::runtime::Builder;

/// A figure and the bar it has to stay under.
struct Figure {
    what: &'static str,
    value: f64,
    bar: f64,
}

fn main() -> ExitCode {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let mut figures = Vec::new();
    runtime.block_on(async {
        figures.extend(away::measure().await);
        figures.extend(storm::measure().await);
    });
    println!("\n| what | measured | bar |\n|---|--:|--:|");
    let mut missed = false;
    for figure in &figures {
        let word = if figure.value <= figure.bar {
            ""
        } else {
            missed = true;
            " MISSED"
        };
        println!(
            "| {} | {:.3} | {}{word} |",
            figure.what, figure.value, figure.bar
        );
    }
    if missed && std::env::args().any(|a| a == "--check") {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
