//! How long a connection may keep its place without doing anything for it.
//!
//! A connection is idle between two requests, in a head once the first byte of the next came, and busy from the head's
//! end until the answer's body is gone. Idle and head have each a limit; busy has none of its own (bodies and handlers bound
//! themselves, streams of events last), but a write that the peer does not take has one at all times.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::admit::Permit;

/// The limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pacing {
    /// For a TLS handshake.
    pub handshake: Duration,
    /// TLS handshakes at a time; what is beyond waits within its own time.
    pub handshakes: usize,
    /// From a head's first byte to its last.
    pub head: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// For the peer to take the next bytes of an answer.
    pub write: Duration,
    /// At a stop, for a connection that is not at an answer.
    pub drain: Duration,
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            handshakes: 512,
            head: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            write: Duration::from_secs(30),
            drain: Duration::from_secs(2),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Head,
    Busy,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    since: Instant,
    /// Since when the peer takes nothing.
    stalled: Option<Instant>,
    drained: Option<Instant>,
}

/// Where a connection is, and since when.
#[derive(Debug)]
pub(super) struct Pace {
    limits: Pacing,
    state: Mutex<State>,
}

impl Pace {
    /// A new connection is in its first head: a peer that connects has something to say.
    pub(super) fn new(limits: Pacing, now: Instant) -> Self {
        Self {
            limits,
            state: Mutex::new(State {
                phase: Phase::Head,
                since: now,
                stalled: None,
                drained: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.state();
        state.phase = phase;
        state.since = Instant::now();
    }

    /// A head is complete; busy until the guard goes.
    pub(super) fn busy(pace: &Arc<Self>) -> Busy {
        pace.enter(Phase::Busy);
        Busy(Arc::clone(pace))
    }

    /// When the connection has to be cut, as things stand.
    pub(super) fn due(&self) -> Option<Instant> {
        let state = self.state();
        let phase = match state.phase {
            Phase::Idle => Some(state.since + self.limits.idle),
            Phase::Head => Some(state.since + self.limits.head),
            Phase::Busy => None,
        };
        let drain = state
            .drained
            .filter(|_| state.phase != Phase::Busy)
            .map(|at| at + self.limits.drain);
        let write = state.stalled.map(|at| at + self.limits.write);
        [phase, drain, write].into_iter().flatten().min()
    }

    pub(super) fn drain(&self, now: Instant) {
        self.state().drained = Some(now);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.state().drained.is_some()
    }

    fn read(&self) {
        if self.state().phase == Phase::Idle {
            self.enter(Phase::Head);
        }
    }

    fn wrote<T>(&self, poll: &Poll<T>) {
        let mut state = self.state();
        match (poll, state.stalled) {
            (Poll::Pending, None) => state.stalled = Some(Instant::now()),
            (Poll::Ready(_), Some(_)) => state.stalled = None,
            _ => {}
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct Busy(Arc<Pace>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.enter(Phase::Idle);
    }
}

/// A connection's stream, watched; holds the connection's place.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    pace: Arc<Pace>,
    _permit: Permit,
}

impl<S> Paced<S> {
    pub(super) const fn new(stream: S, pace: Arc<Pace>, permit: Permit) -> Self {
        Self {
            stream,
            pace,
            _permit: permit,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.pace.read();
        }
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.pace.wrote(&poll);
        poll
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.pace.wrote(&poll);
        poll
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        self.pace.wrote(&poll);
        poll
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// An answer's body; the connection is busy as long as it lives.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    _busy: Busy,
}

impl Answer {
    pub(super) const fn new(body: Body, busy: Busy) -> Self {
        Self { body, _busy: busy }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
