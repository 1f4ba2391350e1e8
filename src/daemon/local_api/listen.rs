//! The two listeners: whose connections are taken, and how many.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use super::{Peer, Via};

/// Connections at a time; more wait in the backlog.
const CONNECTIONS: usize = 256;
/// The wait after a failed accept (too many open files).
const AGAIN: Duration = Duration::from_millis(100);

/// The socket's listener.
pub(in crate::daemon) struct Socket {
    inner: UnixListener,
    places: Arc<Semaphore>,
    uid: u32,
}

/// The loopback listener.
pub(in crate::daemon) struct Loopback {
    inner: TcpListener,
    places: Arc<Semaphore>,
}

/// Binds the socket for its owner alone, replacing what a dead daemon left; only to be called under the daemon's lock.
pub(in crate::daemon) fn bind_socket(path: &Path) -> io::Result<Socket> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{} is no socket", path.display()),
            ));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    // The folder is open to the owner alone, so nobody can come in between bind and chmod.
    let inner = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(Socket {
        inner,
        places: Arc::new(Semaphore::new(CONNECTIONS)),
        uid: rustix::process::geteuid().as_raw(),
    })
}

/// Binds loopback; gives the address, too, for port 0.
pub(in crate::daemon) async fn bind_tcp(at: SocketAddr) -> io::Result<(Loopback, SocketAddr)> {
    let inner = TcpListener::bind(at).await?;
    let address = inner.local_addr()?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    Ok((Loopback { inner, places }, address))
}

/// A connection that holds one of the places.
pub(in crate::daemon) struct Held<S> {
    stream: S,
    _place: OwnedSemaphorePermit,
}

async fn place(places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    match Arc::clone(places).acquire_owned().await {
        Ok(place) => place,
        // The semaphore is never closed.
        Err(_) => std::future::pending().await,
    }
}

impl Listener for Socket {
    type Io = Held<UnixStream>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Peer) {
        let place = place(&self.places).await;
        loop {
            let stream = match self.inner.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    sleep(AGAIN).await;
                    continue;
                }
            };
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == self.uid => {
                    let pid = peer.pid().and_then(|p| u32::try_from(p).ok());
                    let peer = Peer {
                        pid,
                        via: Via::Socket,
                    };
                    return (
                        Held {
                            stream,
                            _place: place,
                        },
                        peer,
                    );
                }
                _ => tracing::warn!("a connection of another user was refused"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer {
            pid: None,
            via: Via::Socket,
        })
    }
}

impl Listener for Loopback {
    type Io = Held<TcpStream>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Peer) {
        let place = place(&self.places).await;
        loop {
            match self.inner.accept().await {
                Ok((stream, _)) => {
                    let peer = Peer {
                        pid: None,
                        via: Via::Loopback,
                    };
                    return (
                        Held {
                            stream,
                            _place: place,
                        },
                        peer,
                    );
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer {
            pid: None,
            via: Via::Loopback,
        })
    }
}

impl Connected<IncomingStream<'_, Socket>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Socket>) -> Self {
        *stream.remote_addr()
    }
}

impl Connected<IncomingStream<'_, Loopback>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Loopback>) -> Self {
        *stream.remote_addr()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Held<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Held<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
