//! Stops a run that outlived its daemon.
//!
//! A daemon that starts finds in its store the runs that its predecessor had started: process id and start time. Only
//! a process that matches both is the one that was meant; ids are given out anew, so it is compared again before
//! every signal. The run's whole group is stopped, as its tools belong to it.

use std::time::Duration;

use super::group::{Ask, ask_group, start_time};

/// How often to look whether it is gone.
const LOOK: Duration = Duration::from_millis(20);

/// What became of an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanEnd {
    /// There was no such process any more.
    Gone,
    /// It was stopped.
    Stopped,
    /// It does not go.
    Stuck,
}

/// Stops the process with this id and start time and its group: interrupt, terminate, kill, each after `grace`.
///
/// # Cancel safety
/// Dropping the future sends no further signal.
pub async fn stop(pid: u32, started: u64, grace: Duration) -> OrphanEnd {
    if start_time(pid) != Some(started) {
        return OrphanEnd::Gone;
    }
    let end = stop_leader(pid, started, grace).await;
    // Its tools may have outlived it. Their group keeps its id from being given out again; if there are none, the id
    // was free for one look's time at most.
    if end == OrphanEnd::Stopped {
        ask_group(pid, Ask::Kill);
    }
    end
}

async fn stop_leader(pid: u32, started: u64, grace: Duration) -> OrphanEnd {
    let is_there = || start_time(pid) == Some(started);
    let mut ask = Some(Ask::Interrupt);
    while let Some(now) = ask {
        if !is_there() {
            return OrphanEnd::Stopped;
        }
        ask_group(pid, now);
        let gone = tokio::time::timeout(grace, async {
            while is_there() {
                tokio::time::sleep(LOOK).await;
            }
        });
        if gone.await.is_ok() {
            return OrphanEnd::Stopped;
        }
        ask = now.next();
    }
    OrphanEnd::Stuck
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

    use super::*;

    fn sleeper(script: &str) -> (Child, u64) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).process_group(0);
        let child = command.spawn().unwrap();
        let started = start_time(child.id()).unwrap();
        (child, started)
    }

    #[tokio::test]
    async fn an_orphan_is_stopped_even_if_it_does_not_listen() {
        let script = "trap '' INT TERM; while :; do sleep 1; done";
        let (mut child, started) = sleeper(script);
        let end = stop(child.id(), started, Duration::from_millis(100)).await;
        assert_eq!(end, OrphanEnd::Stopped);
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_process_with_the_same_id_but_another_start_is_left_alone() {
        let (mut child, started) = sleeper("sleep 60");
        let end = stop(child.id(), started + 1, Duration::from_millis(100)).await;
        assert_eq!(end, OrphanEnd::Gone);
        assert_eq!(start_time(child.id()), Some(started), "still there");
        assert_eq!(
            stop(child.id(), started, Duration::from_secs(5)).await,
            OrphanEnd::Stopped
        );
        child.wait().unwrap();
    }
}
