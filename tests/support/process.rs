//! A process held by a handle, so that its number cannot come to mean another one.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::watch;

/// A process, whoever its parent is.
#[derive(Debug)]
pub(crate) struct Process {
    pid: i32,
    handle: OwnedFd,
}

impl Process {
    /// Takes hold of a process; `None` if there is none of this number.
    pub(crate) fn open(pid: i32) -> Option<Self> {
        match pidfd_open(Pid::from_raw(pid)?, PidfdFlags::NONBLOCK) {
            Ok(handle) => Some(Self { pid, handle }),
            Err(Errno::SRCH) => None,
            Err(error) => panic!("cannot take hold of process {pid}: {error}"),
        }
    }

    /// Its number.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends it a signal; one that has ended gets none.
    pub(crate) fn signal(&self, signal: Signal) {
        match pidfd_send_signal(&self.handle, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => panic!("cannot signal process {}: {error}", self.pid),
        }
    }

    /// Waits for its end; whether it came in time.
    pub(crate) async fn ended(&self, within: Duration) -> bool {
        let handle = watch::asynchronous(self.handle.as_fd());
        tokio::time::timeout(within, handle.readable())
            .await
            .is_ok()
    }

    /// Waits for its end where no runtime is at hand, such as in a destructor; whether it came in time.
    pub(crate) fn ended_blocking(&self, within: Duration) -> bool {
        let wait = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(self.ended(within))
        };
        std::thread::scope(|threads| threads.spawn(wait).join()).unwrap_or(false)
    }
}
