//! A long-poll session: a device's link carried by calls, for where a WebSocket is blocked.
//!
//! ```text
//! POST /poll/open ─hello──▶┐                        ┌─▶ store, presence, fence
//! POST /poll/ack ──frames─▶│ Calls ═ Shell ═ LinkServer
//! GET  /poll ◀──rows─ Board ◀─deliver───────────────┘
//! ```
//!
//! The session is a task like that of a socket, with the same machine: admission, window, generation, revocation,
//! heartbeat and drain are not decided here. What the machine delivers lies on the [`Board`] until it is acked, so that
//! a poll whose answer was lost is answered again; a poll reads the board and never the store. A call's ack and reports
//! go to the machine as the frames they are, and the call is answered when the machine's stores are done.
//!
//! Each call carries a connect JWT of its own. It is a signature check instead of a look-up, but nothing that passes a
//! proxy can be used twice, a revoked device is refused by the same check as everywhere, and there is no second
//! kind of secret to expire, renew and keep out of logs. Each call renews the session's credential and is its sign of
//! life: a session whose device makes none for the heartbeat's dead time ends and leaves its place.
//!
//! A stop of the hub meets many devices between two calls. What it has to say to them is kept in [`Polls`], and the hub
//! goes on listening until they have asked, for a moment at most.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::link::{Came, Carrier, Gone, Shell};
use super::problem::{ApiError, ApiResult};
use super::records::DeviceRecord;
use super::state::Hub;
use super::store::{Mailbox, MailboxId};
use crate::core::server::{Input, Row};
use crate::domain::{Code, Cursor, DeviceId, Epoch, Seq, limits};
use crate::wire::{
    CloseCode, DeviceFrame, Hello, HubFrame, PollAck, PollAcked, RejectedReport, Resume, Welcome,
    encode, encode_polled,
};

mod registry;

pub(crate) use registry::Polls;

/// Calls that may wait for the session's task.
const CALLS: usize = 16;
/// Bytes of envelopes in one answer; one larger envelope goes alone.
const ANSWER: usize = limits::MAX_FRAME_BYTES;
/// Refusals that are remembered, so that a repeated call is told the same.
const REJECTED: usize = 256;
/// Time for the stores of a call.
const STORED: Duration = Duration::from_secs(30);
/// A session as its calls see it.
#[derive(Debug)]
pub(crate) struct PollSession {
    epoch: Epoch,
    generation: u64,
    calls: mpsc::Sender<Call>,
    board: Arc<Board>,
}

/// What lies ready for the device.
#[derive(Debug, Default)]
struct Board {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Delivered and not acked, in order.
    rows: VecDeque<Row>,
    delivered: Seq,
    acked: Seq,
    synced: Option<Seq>,
    /// An answer carried `synced`.
    told: bool,
    report_n: u64,
    rejected: VecDeque<RejectedReport>,
    ended: Option<ApiError>,
    /// The newest poll; an older one does not wait any longer.
    turn: u64,
    /// Polls that wait.
    waiting: usize,
}

/// One call on its way to the machine.
#[derive(Debug)]
struct Call {
    frames: Vec<String>,
    waits: Option<Waits>,
}

/// A call that is answered when its stores are done.
#[derive(Debug)]
struct Waits {
    seq: Seq,
    first_n: u64,
    last_n: u64,
    bye: bool,
    reply: oneshot::Sender<ApiResult<PollAcked>>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, f: impl FnOnce(&mut State)) {
        f(&mut self.lock());
        self.changed.send_replace(());
    }
}

impl State {
    fn settled(&self, w: &Waits) -> bool {
        self.acked >= w.seq && self.report_n >= w.last_n
    }

    fn acked(&self, w: &Waits) -> PollAcked {
        PollAcked {
            acked: self.acked,
            report_n: self.report_n,
            rejected: self
                .rejected
                .iter()
                .filter(|r| (w.first_n..=w.last_n).contains(&r.n))
                .cloned()
                .collect(),
        }
    }

    fn reports_stored(&mut self, through_n: u64, rejected: &[RejectedReport]) {
        self.report_n = self.report_n.max(through_n);
        self.rejected.extend(rejected.iter().cloned());
        let over = self.rejected.len().saturating_sub(REJECTED);
        self.rejected.drain(..over);
    }

    /// The answer to a poll; `None` while there is nothing to tell.
    fn answer(&mut self, s: &PollSession, after: Seq, turn: u64, now: bool) -> Option<String> {
        let mut bytes = 0;
        let waiting: Vec<&Row> = self.rows.iter().filter(|r| r.seq > after).collect();
        let fit = waiting
            .iter()
            .take_while(|r| {
                let first = bytes == 0;
                bytes += r.json.len();
                first || bytes <= ANSWER
            })
            .count();
        let more = fit < waiting.len();
        let last = fit.checked_sub(1).map(|i| waiting[i].seq);
        let synced = self
            .synced
            .filter(|synced| !more || last.is_some_and(|seq| seq >= *synced));
        let news = fit > 0 || (synced.is_some() && !self.told);
        if !news && !now && turn == self.turn {
            return None;
        }
        let rows = waiting[..fit].iter().map(|r| (r.seq, &*r.json));
        let text = encode_polled(s.epoch, s.generation, rows, synced, more);
        self.told |= synced.is_some();
        Some(text)
    }
}

impl Hub {
    /// Opens a session: the hello's admission, as on a WebSocket.
    pub(crate) async fn open_poll(
        self: &Arc<Self>,
        device: Arc<DeviceRecord>,
        hello: Hello,
    ) -> ApiResult<Welcome> {
        let board = Arc::new(Board::default());
        let (calls, taken) = mpsc::channel(CALLS);
        let (tell, told) = oneshot::channel();
        let id = device.id.clone();
        let carrier = Calls {
            hub: Arc::clone(self),
            device: id.clone(),
            calls: taken,
            last: hello.last,
            frames: VecDeque::from([encode(&DeviceFrame::Hello(hello))]),
            waiting: Vec::new(),
            board: Arc::clone(&board),
            welcome: Some(tell),
            said: None,
        };
        let shell = Shell::new(Arc::clone(self), device, carrier);
        tokio::spawn(self.sockets.track_future(shell.run()));
        // The machine bounds the wait.
        let welcome = told.await.unwrap_or_else(|_| Err(closed()))?;
        let session = Arc::new(PollSession {
            epoch: welcome.epoch,
            generation: welcome.generation,
            calls,
            board: Arc::clone(&board),
        });
        self.polls.enter(&id, session);
        if board.lock().ended.is_some() {
            // It ended before it was entered.
            self.polls.leave(&id, &board);
        }
        tracing::info!(device = %id, generation = welcome.generation, "a device polls");
        Ok(welcome)
    }

    /// The device's open session of this generation.
    pub(crate) async fn poll_session(
        &self,
        device: &DeviceRecord,
        generation: u64,
    ) -> ApiResult<Arc<PollSession>> {
        if let Some(session) = self.polls.session(&device.id, generation) {
            return Ok(session);
        }
        if let Some(why) = self.polls.ask(&device.id) {
            return Err(why);
        }
        if self.draining.is_cancelled() {
            return Err(ApiError::new(Code::GoingAway, "the hub is stopping").retry_after(2));
        }
        let mailbox = MailboxId::of(&device.account, &device.id);
        let newest = self.store.position(&mailbox).await?;
        if newest.is_some_and(|p| p.generation > generation) {
            return Err(ApiError::new(
                Code::Superseded,
                "a newer connection of this device took over",
            ));
        }
        Err(closed())
    }
}

fn closed() -> ApiError {
    ApiError::new(
        Code::PollClosed,
        "this long-poll session is not open any more",
    )
    .hint("open one: POST /poll/open")
}

impl PollSession {
    /// A sign of life; a full queue holds enough of them.
    fn touch(&self) {
        let call = Call {
            frames: Vec::new(),
            waits: None,
        };
        drop(self.calls.try_send(call));
    }

    /// Rows after `after`, as soon as there are some or the backlog's end is news, at the latest after `wait`.
    pub(crate) async fn poll(&self, after: Seq, wait: Duration) -> ApiResult<String> {
        self.touch();
        let mut changed = self.board.changed.subscribe();
        let mut turn = 0;
        self.board.change(|s| {
            s.turn += 1;
            s.waiting += 1;
            turn = s.turn;
        });
        let _waits = Waiting(&self.board);
        let until = tokio::time::Instant::now() + wait;
        let mut now = wait.is_zero();
        loop {
            changed.mark_unchanged();
            {
                let mut state = self.board.lock();
                if let Some(e) = &state.ended {
                    return Err(e.clone());
                }
                if after > state.delivered {
                    let detail = format!("is beyond the last delivery {}", state.delivered.0);
                    return Err(ApiError::field("after", detail));
                }
                if let Some(text) = state.answer(self, after, turn, now) {
                    drop(state);
                    self.touch();
                    return Ok(text);
                }
            }
            tokio::select! {
                // The board outlives the wait: it is held here.
                _ = changed.changed() => {}
                () = tokio::time::sleep_until(until) => now = true,
            }
        }
    }

    /// Commits what a call brings.
    pub(crate) async fn ack(&self, body: PollAck) -> ApiResult<PollAcked> {
        if body.epoch != self.epoch {
            return Err(ApiError::new(
                Code::Conflict,
                "the mailbox began a new life: places of another epoch mean nothing here",
            )
            .hint("open a new session: POST /poll/open"));
        }
        let (reply, done) = oneshot::channel();
        let waits = Waits {
            seq: body.seq,
            first_n: body.reports.first().map_or(0, |r| r.n),
            last_n: body.reports.last().map_or(0, |r| r.n),
            bye: body.bye.is_some(),
            reply,
        };
        let reports = body.reports.into_iter().map(DeviceFrame::Report);
        let ack = DeviceFrame::Ack { seq: body.seq };
        let capacity = body.capacity.map(|free| DeviceFrame::Capacity { free });
        let bye = body.bye.map(|reason| DeviceFrame::Bye { reason });
        let frames = reports.chain([ack]).chain(capacity).chain(bye);
        let call = Call {
            frames: frames.map(|f| encode(&f)).collect(),
            waits: Some(waits),
        };
        self.calls.try_send(call).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => ApiError::new(
                Code::RateLimited,
                "this session makes calls faster than they are stored",
            )
            .retry_after(1),
            mpsc::error::TrySendError::Closed(_) => self.over(),
        })?;
        match timeout(STORED, done).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(self.over())),
            Err(_) => Err(ApiError::new(
                Code::StoreUnavailable,
                "the store did not confirm in time",
            )
            .hint("the same call can be made again")
            .retry_after(2)),
        }
    }

    fn over(&self) -> ApiError {
        self.board.lock().ended.clone().unwrap_or_else(closed)
    }
}

/// A poll that waits, until it is answered or whoever made it is gone.
struct Waiting<'a>(&'a Board);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

/// The carrier: calls in, the board out.
struct Calls {
    hub: Arc<Hub>,
    device: DeviceId,
    calls: mpsc::Receiver<Call>,
    /// Where the device stood in its hello.
    last: Option<Cursor>,
    /// Frames of the calls that came.
    frames: VecDeque<String>,
    waiting: Vec<Waits>,
    board: Arc<Board>,
    welcome: Option<oneshot::Sender<ApiResult<Welcome>>>,
    /// The last `error` frame.
    said: Option<ApiError>,
}

impl Calls {
    /// Answers the calls whose stores are done.
    fn settle(&mut self) {
        let state = self.board.lock();
        for w in std::mem::take(&mut self.waiting) {
            if w.bye || !state.settled(&w) {
                self.waiting.push(w);
            } else {
                // Whoever called may have gone.
                let answer = state.acked(&w);
                w.reply.send(Ok(answer)).ok();
            }
        }
    }

    /// Leaves before it tells, so that whoever was told finds no session.
    fn end(&mut self, why: ApiError) {
        if let Some(welcome) = self.welcome.take() {
            welcome.send(Err(why.clone())).ok();
        }
        // An ack that is being stored is answered with what was stored, and tells nothing of the end.
        let unheard = {
            let state = self.board.lock();
            why.0.known_code() == Some(Code::GoingAway)
                && state.ended.is_none()
                && state.waiting == 0
        };
        if unheard {
            self.hub.polls.keep(&self.device, why.clone());
        }
        self.hub.polls.leave(&self.device, &self.board);
        self.board.change(|s| {
            s.rows.clear();
            s.ended.get_or_insert(why);
        });
    }
}

impl Carrier for Calls {
    async fn send(&mut self, frame: HubFrame) -> Result<(), Gone> {
        match frame {
            HubFrame::Welcome(w) => {
                let start = match (w.resume, self.last) {
                    (Resume::Continue, Some(last)) => last.seq,
                    _ => Seq(0),
                };
                self.board.change(|s| {
                    (s.delivered, s.acked, s.report_n) = (start, start, w.report_n);
                });
                // Whoever gave up waiting opens another one; this one must not be in its way.
                let told = self.welcome.take().map(|welcome| welcome.send(Ok(w)));
                if !matches!(told, Some(Ok(()))) {
                    return Err(Gone);
                }
            }
            HubFrame::Synced { seq } => self.board.change(|s| s.synced = Some(seq)),
            HubFrame::Error {
                code,
                message,
                retry_after_s,
            } => {
                let code = Code::parse(&code).unwrap_or(Code::PollClosed);
                let said = ApiError::new(code, message);
                self.said = Some(match retry_after_s {
                    Some(s) => said.retry_after(s),
                    None => said,
                });
            }
            // Reports are confirmed when they are stored; every call renews the credential.
            HubFrame::ReportAck { .. }
            | HubFrame::Reauth { .. }
            | HubFrame::Deliver { .. }
            | HubFrame::Unknown => {}
        }
        Ok(())
    }

    async fn deliver(&mut self, row: Row) -> Result<(), Gone> {
        self.board.change(|s| {
            s.delivered = row.seq;
            s.rows.push_back(row);
        });
        Ok(())
    }

    async fn ping(&mut self) -> Result<(), Gone> {
        // The device's next call is its sign of life.
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        Ok(())
    }

    async fn close(&mut self, _: CloseCode, _: String) {
        let why = self.said.take().unwrap_or_else(closed);
        self.end(why);
    }

    async fn next(&mut self) -> Came {
        if let Some(frame) = self.frames.pop_front() {
            return Came::Frame(frame);
        }
        let Some(call) = self.calls.recv().await else {
            return Came::Over;
        };
        self.frames.extend(call.frames);
        self.waiting.extend(call.waits);
        self.settle();
        Came::Verified
    }

    fn stored(&mut self, done: &Input) {
        match done {
            Input::AckStored { seq } => self.board.change(|s| {
                s.acked = s.acked.max(*seq);
                while s.rows.front().is_some_and(|r| r.seq <= s.acked) {
                    s.rows.pop_front();
                }
            }),
            Input::ReportsStored {
                through_n,
                rejected,
            } => self
                .board
                .change(|s| s.reports_stored(*through_n, rejected)),
            _ => return,
        }
        self.settle();
    }
}

impl Drop for Calls {
    /// The session is over and its stores are done: nobody waits any longer.
    fn drop(&mut self) {
        self.end(closed());
        let state = self.board.lock();
        for w in self.waiting.drain(..) {
            let answer = match &state.ended {
                Some(why) if !(w.bye && state.settled(&w)) => Err(why.clone()),
                _ => Ok(state.acked(&w)),
            };
            w.reply.send(answer).ok();
        }
    }
}
