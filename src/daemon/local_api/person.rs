//! Whether a person is at the other end: no Claude process and none of our runs among the peer's ancestors.
//!
//! The parents tell as long as they live. A process that was cut loose from its parents still carries the environment that
//! Claude gave it, so that is looked at, too.

use std::collections::BTreeSet;

use super::body::ApiError;
use super::{Api, Peer, Via};
use crate::claude::{Process, SystemProcesses, ancestors};
use crate::domain::Code;

/// Sessions that are looked at for their processes.
const SESSIONS: u32 = 500;
/// Variables that Claude, or we for a run, put into a child's environment.
const MARKS: [&str; 2] = ["CLAUDECODE=", "REMOTE_COLLAB_RUN="];

/// Refuses whoever is not a person at the socket.
pub(super) async fn need_person(api: &Api, peer: Peer) -> Result<(), ApiError> {
    let refuse = |why: &str| {
        Err(ApiError::new(Code::PersonRequired, why)
            .hint("run the command yourself, in a terminal of your own"))
    };
    let Some(pid) = peer.pid.filter(|_| peer.via == Via::Socket) else {
        return refuse("control is only possible through the daemon's socket");
    };
    let mut ours = BTreeSet::new();
    for session in api.store.sessions(None, SESSIONS).await? {
        ours.extend(session.pid.zip(session.proc_start));
    }
    for run in api.store.unfinished_runs().await? {
        ours.extend(run.pid.zip(run.proc_start));
    }
    let line = ancestors(&SystemProcesses, pid);
    if line.is_empty() {
        return refuse("the caller is gone or cannot be looked at");
    }
    if line.iter().any(|p| is_claude(p, &ours)) || is_marked(pid) {
        return refuse("this needs a person; Claude, and what Claude started, cannot do it");
    }
    Ok(())
}

fn is_claude(process: &Process, ours: &BTreeSet<(u32, u64)>) -> bool {
    let start = process.start.parse().unwrap_or(0);
    process.name == "claude" || ours.contains(&(process.pid, start))
}

#[cfg(target_os = "linux")]
fn is_marked(pid: u32) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|b| *b == 0)
        .any(|v| MARKS.iter().any(|m| v.starts_with(m.as_bytes())))
}

#[cfg(not(target_os = "linux"))]
fn is_marked(_: u32) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claude_is_known_by_its_name_or_as_the_process_of_a_session_and_not_by_a_recycled_pid() {
        let process = |name: &str, start: &str| Process {
            pid: 7,
            parent: 1,
            start: start.into(),
            uid: 0,
            name: name.into(),
        };
        let ours = BTreeSet::from([(7, 70)]);
        assert!(is_claude(&process("claude", "1"), &BTreeSet::new()));
        assert!(is_claude(&process("node", "70"), &ours));
        assert!(!is_claude(&process("bash", "71"), &ours));
    }
}
