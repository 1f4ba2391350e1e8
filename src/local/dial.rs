//! The one place that knows what kind of socket the daemon listens on.
//!
//! On Unix it is a Unix stream socket, and only a peer of the same user is talked to. Another system gets its own
//! `dial` here (a named pipe on Windows); until then it says that it has none.

use std::io;
use std::path::Path;
use std::time::Instant;

#[cfg(unix)]
pub(super) use unix::{Stream, dial, wait_readable};

#[cfg(not(unix))]
pub(super) use other::{Stream, dial, wait_readable};

/// The user this process acts for.
#[cfg(unix)]
#[expect(
    clippy::unnecessary_wraps,
    reason = "other systems have no such number"
)]
pub(crate) fn own_uid() -> Option<u32> {
    Some(rustix::process::geteuid().as_raw())
}

/// The user this process acts for.
#[cfg(not(unix))]
pub(crate) fn own_uid() -> Option<u32> {
    None
}

#[cfg(unix)]
mod unix {
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    };

    use super::{Instant, Path, io, own_uid};

    /// A connection to the daemon.
    pub(in crate::local) type Stream = UnixStream;

    /// The pause between attempts while the listener's backlog is full.
    const BACKLOG_PAUSE: Duration = Duration::from_millis(10);

    /// Connects before `deadline`. The connect is non-blocking: with a stopped daemon and a full backlog a blocking one
    /// would wait for ever.
    pub(in crate::local) fn dial(path: &Path, deadline: Instant) -> io::Result<Stream> {
        let address = SocketAddrUnix::new(path)?;
        let fd = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        loop {
            match connect(&fd, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if Instant::now() + BACKLOG_PAUSE < deadline => {
                    thread::sleep(BACKLOG_PAUSE);
                }
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(e) => return Err(e.into()),
            }
        }
        let stream = UnixStream::from(fd);
        check_peer(&stream)?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// Waits until there is something to read, or the end. Not by the socket's own timeout: that is counted in ticks of
    /// the kernel's clock and comes up to 20 ms late.
    pub(in crate::local) fn wait_readable(stream: &Stream, within: Duration) -> io::Result<()> {
        let within = Timespec::try_from(within).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(stream, PollFlags::IN)];
        match poll(&mut fds, Some(&within))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    /// Refuses a listener of another user: what it answers would end up in a model's context.
    #[cfg(target_os = "linux")]
    fn check_peer(stream: &UnixStream) -> io::Result<()> {
        let peer = rustix::net::sockopt::socket_peercred(stream)?;
        if Some(peer.uid.as_raw()) == own_uid() {
            Ok(())
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Elsewhere the folder's mode (0700) alone says who listens.
    #[cfg(not(target_os = "linux"))]
    fn check_peer(_: &UnixStream) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(not(unix))]
mod other {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::{Instant, Path, io};

    /// A connection to the daemon.
    pub(in crate::local) type Stream = TcpStream;

    /// No local socket on this system yet.
    pub(in crate::local) fn dial(_: &Path, _: Instant) -> io::Result<Stream> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sees to it that the next read ends within this time.
    pub(in crate::local) fn wait_readable(stream: &Stream, within: Duration) -> io::Result<()> {
        stream.set_read_timeout(Some(within))
    }
}
