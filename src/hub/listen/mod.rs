//! Who may connect, how long a connection may do nothing, and how TLS comes before HTTP.
//!
//! ```text
//! accept ─▶ admit ──▶ task of its own: [TLS handshake, bounded] ─▶ HTTP/1.1, paced ─▶ router
//!             │ full: a task says 429 (plain) or closes (TLS)            └─▶ upgraded: the socket's own task
//! ```
//!
//! The loop does nothing but accept: a peer that stalls stalls its own task, and that only for a bounded time. `admit`
//! counts connections in all and per address ([`Limits`]); a permit lives in the connection's stream, so that it
//! counts until the last byte, also after an upgrade. `pace` closes what sends no head, sends nothing between two requests,
//! or takes no answer. At a stop the listener closes first; then every connection ends after the answer it is at.

mod admit;
mod pace;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

pub use admit::{Connections, Limits};
pub use pace::Pacing;

pub(super) use self::admit::Admission;
use self::admit::{Permit, Refused};
use self::pace::{Answer, Pace, Paced};
use super::tls::ServerTls;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4096;
/// How long a TLS handshake counts as one of those under way: a peer that stalls does not hold up those who do not.
const HANDSHAKE_COUNTS: Duration = Duration::from_millis(500);
/// Longest head of a request, bytes.
const MAX_HEAD: usize = 64 << 10;
/// Refused connections that are told why at a time; what is beyond is closed at once.
const TOLD: usize = 64;
/// Time for a refused connection to send its head, and to read the refusal.
const TELL: Duration = Duration::from_secs(2);
/// Wait after an accept that failed for want of files or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// What a refused plain connection is told.
const REFUSAL: &str = concat!(
    "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/problem+json\r\nRetry-After: 10\r\n",
    "Connection: close\r\nContent-Length: 131\r\n\r\n",
    r#"{"type":"about:blank","title":"too many connections from this address","status":429,"code":"rate_limited","retry_after_s":10}      "#
);

/// Listens; a port that was just left is taken back at once.
pub(super) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// What serves connections.
pub(super) struct Server {
    app: Router,
    tls: Option<ServerTls>,
    admission: Arc<Admission>,
    pacing: Pacing,
    handshakes: Semaphore,
    stop: CancellationToken,
}

impl Server {
    pub(super) fn new(
        app: Router,
        tls: Option<ServerTls>,
        limits: Limits,
        pacing: Pacing,
        stop: CancellationToken,
    ) -> Self {
        Self {
            app,
            tls,
            admission: Arc::new(Admission::new(limits)),
            pacing,
            handshakes: Semaphore::new(pacing.handshakes),
            stop,
        }
    }

    /// The counters, as they change.
    pub(super) fn admission(&self) -> Arc<Admission> {
        Arc::clone(&self.admission)
    }

    /// Accepts until the stop, then waits for the connections. Dropping the future ends them all.
    pub(super) async fn run(self, listener: TcpListener) {
        let server = Arc::new(self);
        let (mut open, mut told) = (JoinSet::new(), JoinSet::new());
        loop {
            let accepted = tokio::select! {
                () = server.stop.cancelled() => break,
                // Ended tasks are taken off, so that the set holds only what is open.
                Some(_) = open.join_next() => continue,
                Some(_) = told.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            let (tcp, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(e) if is_of_one_connection(&e) => continue,
                Err(e) => {
                    tracing::warn!(error = %e, "a connection could not be accepted");
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            // A push must not wait for the peer's delayed ACK.
            if let Err(e) = tcp.set_nodelay(true) {
                tracing::debug!(error = %e, "TCP_NODELAY was refused");
            }
            match server.admission.admit(peer.ip()) {
                Ok(permit) => {
                    open.spawn(Arc::clone(&server).connection(tcp, permit));
                }
                Err(Refused) if server.tls.is_none() && told.len() < TOLD => {
                    told.spawn(refuse(tcp));
                }
                Err(Refused) => drop(tcp),
            }
        }
        drop(listener);
        told.abort_all();
        while open.join_next().await.is_some() {}
    }

    async fn connection(self: Arc<Self>, tcp: TcpStream, permit: Permit) {
        let Some(tls) = &self.tls else {
            return self.http(tcp, permit).await;
        };
        let mut handshake = pin!(async {
            // The semaphore is never closed.
            let slot = self.handshakes.acquire().await.ok();
            let mut accept = pin!(tls.accept(tcp));
            if let Ok(shaken) = timeout(HANDSHAKE_COUNTS, &mut accept).await {
                return shaken;
            }
            drop(slot);
            accept.await
        });
        let shaken = tokio::select! {
            () = self.stop.cancelled() => return,
            shaken = timeout(self.pacing.handshake, &mut handshake) => shaken,
        };
        match shaken {
            Ok(Ok(stream)) => self.http(stream, permit).await,
            Ok(Err(e)) => {
                self.admission.handshake_failed();
                tracing::debug!(error = %e, "a TLS handshake failed");
            }
            Err(_) => {
                self.admission.handshake_failed();
                tracing::debug!("a TLS handshake did not come to its end in time");
            }
        }
    }

    async fn http<S>(&self, stream: S, permit: Permit)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let pace = Arc::new(Pace::new(self.pacing, Instant::now()));
        let io = Paced::new(stream, Arc::clone(&pace), permit);
        let app = TowerToHyperService::new(self.app.clone());
        let service = {
            let pace = Arc::clone(&pace);
            service_fn(move |request: Request<Incoming>| {
                let busy = Pace::busy(&pace);
                let answer = app.call(request);
                async move {
                    let answer = answer.await;
                    answer.map(|a| a.map(|body| Body::new(Answer::new(body, busy))))
                }
            })
        };
        let mut http = http1::Builder::new();
        let connection = http
            .keep_alive(true)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        let mut connection = pin!(connection);
        let mut timer = pin!(sleep_until(Instant::now()));
        // The pace changes only while the connection is polled, so that its deadline is looked at right after.
        let mut served = pin!(std::future::poll_fn(|cx| {
            let draining = pace.is_draining();
            if self.stop.is_cancelled() && !draining {
                pace.drain(Instant::now());
                connection.as_mut().graceful_shutdown();
            }
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended.map_err(|e| e.to_string()));
            }
            let Some(due) = pace.due() else {
                return Poll::Pending;
            };
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            timer
                .as_mut()
                .poll(cx)
                .map(|()| Err("the peer took too long".to_owned()))
        }));
        let ended = tokio::select! {
            ended = &mut served => ended,
            // Wakes the connection once, which then sees the stop.
            () = self.stop.cancelled() => served.await,
        };
        if let Err(why) = ended {
            self.admission.cut();
            tracing::debug!(%why, "a connection was cut");
        }
    }
}

/// Tells a plain connection that there are too many. Its head is read first: an answer before the question is none.
async fn refuse(mut tcp: TcpStream) {
    let mut sink = [0; 1024];
    let tell = async {
        if tcp.read(&mut sink).await? == 0 {
            return Ok(());
        }
        tcp.write_all(REFUSAL.as_bytes()).await?;
        tcp.shutdown().await?;
        // Closing over unread bytes would reset the connection before the peer has read.
        while tcp.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    };
    // Whoever is slower than this learns it from the close.
    drop(timeout(TELL, tell).await);
}

/// Whether only this one connection failed, before it was accepted.
fn is_of_one_connection(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_is_as_long_as_it_says() {
        let (head, body) = REFUSAL.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("Content-Length: {}", body.len())),
            "{}",
            body.len()
        );
        assert!(serde_json::from_str::<crate::domain::Problem>(body).is_ok());
    }
}
