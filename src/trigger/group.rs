//! The seam to the system: process groups, signals, start times. A port is another version of this file.

use std::io;
use std::process::ExitStatus;

use crate::claude::{ProcessTable as _, SystemProcesses};

use super::Exit;

/// What to ask of a process, from polite to final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// As Ctrl-C: the CLI ends the turn and its tools, and writes a result.
    Interrupt,
    /// End.
    Terminate,
    /// Be gone.
    Kill,
}

impl Ask {
    /// What to ask next if this one was not heard.
    pub(super) const fn next(self) -> Option<Self> {
        match self {
            Self::Interrupt => Some(Self::Terminate),
            Self::Terminate => Some(Self::Kill),
            Self::Kill => None,
        }
    }
}

#[cfg(unix)]
mod unix {
    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

    use super::*;

    fn pid(id: u32) -> Option<Pid> {
        i32::try_from(id).ok().and_then(Pid::from_raw)
    }

    /// Asks every process of the group that this leader made. A group that is gone is no error.
    pub(in crate::trigger) fn ask_group(leader: u32, ask: Ask) {
        let signal = match ask {
            Ask::Interrupt => Signal::INT,
            Ask::Terminate => Signal::TERM,
            Ask::Kill => Signal::KILL,
        };
        if let Some(pid) = pid(leader) {
            // The only errors are a group that is gone and one that is not ours to end.
            if let Err(error) = kill_process_group(pid, signal) {
                tracing::trace!(leader, %error, "no such group to signal");
            }
        }
    }

    /// Waits until the child ended, and leaves it for its parent to reap: until then neither its id nor its group's
    /// can be given to another process. Blocks.
    pub(in crate::trigger) fn wait_unreaped(child: u32) -> io::Result<()> {
        let pid = pid(child).ok_or(io::ErrorKind::InvalidInput)?;
        loop {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            match waitid(WaitId::Pid(pid), options) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// How the process ended.
    pub(in crate::trigger) fn exit_of(status: ExitStatus) -> Exit {
        use std::os::unix::process::ExitStatusExt as _;
        Exit {
            code: status.code(),
            signal: status.signal(),
        }
    }
}

#[cfg(unix)]
pub(super) use unix::{ask_group, exit_of, wait_unreaped};

/// When a process started, in the system's own unit: with its id it names a process once and for all. `None` if there
/// is no such process, or only its remains, or the system does not say; then no orphan is recognised, and none is
/// stopped by mistake.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    SystemProcesses.look(pid)?.start.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_start_time_and_a_dead_one_none() {
        let mine = start_time(std::process::id());
        assert!(mine.is_some() && mine == start_time(std::process::id()));
        assert_eq!(start_time(u32::MAX), None);
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "exit 0"])
            .spawn()
            .unwrap();
        wait_unreaped(child.id()).unwrap();
        assert_eq!(start_time(child.id()), None, "remains are no process");
        assert!(child.wait().unwrap().success(), "and were left to reap");
    }
}
