//! Headless runs: whether one may start, how it is carried out, and what its end means.
//!
//! | file | is |
//! |---|---|
//! | `policy` | pure: start, wait or refuse; a producer's wishes only narrow the user's policy |
//! | `outcome` | pure: a run's result line, exit and killer → the task's state |
//! | `runner` | the shell: one process, its pipes, its clock, its end |
//! | `group` | the seam to the system: process groups, signals, start times |
//! | `orphan` | stops what a daemon that died has left behind |
//! | `redact` | pure: what of a program's output may be kept |

mod group;
pub mod orphan;
mod outcome;
mod policy;
mod redact;
mod runner;

pub use group::start_time;
pub use outcome::{Exit, Kill, Observed, Outcome, outcome};
pub use policy::{
    Decision, ProjectRuns, RefuseReason, RunPlan, RunRequest, Running, SPAWN_RETRY_MS, WaitReason,
    decide,
};
pub use redact::redact;
pub use runner::{Ended, RunError, RunEvent, RunSpec, RunStarted, Stops, run};
