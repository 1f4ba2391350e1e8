//! Standard input with a deadline: whoever starts a hook and neither writes nor closes must not keep it for ever.

use std::io::{self, Read};
use std::time::{Duration, Instant};

/// The wait for the whole input; the CLI writes it at once.
const DEADLINE: Duration = Duration::from_secs(1);

/// Standard input, which fails with [`io::ErrorKind::TimedOut`] once its time is over.
#[derive(Debug)]
pub(super) struct Stdin {
    until: Instant,
}

impl Stdin {
    /// Standard input from now on; nothing else may read it.
    pub(super) fn new() -> Self {
        Self {
            until: Instant::now() + DEADLINE,
        }
    }
}

#[cfg(unix)]
impl Read for Stdin {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        use rustix::event::{PollFd, PollFlags, poll};
        use rustix::time::Timespec;

        // Not through the standard library's buffer: what it held would not wake the poll.
        let stdin = io::stdin();
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let ready = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&left));
            match ready {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(rustix::io::read(&stdin, buf)?)
    }
}

#[cfg(not(unix))]
impl Read for Stdin {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        io::stdin().lock().read(buf)
    }
}
