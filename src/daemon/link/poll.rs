//! The fallback as a transport: the machine's frames become calls, the answers become frames.
//!
//! ```text
//! hello ─▶ POST /poll/open ─▶ welcome
//!          GET /poll ───────▶ deliver*, synced      one at a time, again as soon as it is answered
//! ack, report, capacity, bye, ping
//!       ─▶ POST /poll/ack ──▶ report_ack, pong      one at a time; what comes meanwhile goes with the next
//! ```
//!
//! The machine sees the same events as from a WebSocket and does not know the difference. A call whose answer was lost is
//! made again, because every one may be: `after`, `seq` and `n` say where the device stands. After three losses the
//! transport is over, and so it is at every refusal, told as the close that it would be on a WebSocket.
//!
//! Some edges do not let an answer wait. When a poll that waited is lost, the session asks without waiting from then on,
//! every `poll_interval`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::HubUrl;
use crate::core::retry::{Retry, reason_with_window};
use crate::daemon::clock;
use crate::daemon::credentials::Credentials;
use crate::daemon::dial::Event;
use crate::daemon::http::{HttpError, HubHttp};
use crate::daemon::retry_timer;
use crate::domain::{Code, Epoch, Problem, Report, Seq, limits};
use crate::wire::{
    CloseCode, DeviceFrame, Hello, HubFrame, POLL_REPORTS, POLL_WAIT_S, PollAck, PollAcked, Resume,
    Welcome, encode, encode_deliver, encoded_len,
};

use super::transport::Out;

/// Time for a call that does not wait, and on top of one that does.
const CALL: Duration = Duration::from_secs(10);
/// Time for the last call.
const LAST: Duration = Duration::from_secs(2);
/// Time between two calls of a kind: what comes meanwhile goes together.
const PACE: Duration = Duration::from_millis(100);
/// A poll that is lost after this was waiting, and something in between did not like it.
const WAITED: Duration = Duration::from_secs(2);
/// Losses in a row that end the transport.
const LOSSES: u32 = 3;
/// The wait after a loss, at most.
const AGAIN: Retry = Retry::Soon { within_ms: 1_000 };
/// Bytes of reports in one call; one larger report goes alone.
const REPORT_BYTES: usize = limits::MAX_FRAME_BYTES;

/// Who polls, and how.
pub(super) struct Poll {
    pub(super) http: HubHttp,
    pub(super) hub: HubUrl,
    pub(super) credentials: Credentials,
    /// Hub time minus local time, ms.
    pub(super) offset_ms: AtomicI64,
    /// The wait between polls that may not wait.
    pub(super) interval: Duration,
}

/// Why a call has no answer.
#[derive(Debug)]
enum Fault {
    /// Nothing came, or something that is not the hub answered.
    Lost(String),
    /// The hub refused.
    Refused(Box<Problem>),
}

/// The answer of a poll, the envelopes unread: the machine reads them.
#[derive(Debug, Deserialize)]
struct Answer {
    envelopes: Vec<Row>,
    synced: Option<Seq>,
    #[serde(default)]
    more: bool,
}

#[derive(Debug, Deserialize)]
struct Row {
    seq: Seq,
    envelope: Box<RawValue>,
}

/// What `POST /poll/ack` brings, kept until it is answered.
#[derive(Debug)]
struct Brought {
    body: String,
    reports: bool,
    pings: Vec<u64>,
    bye: bool,
}

impl Poll {
    /// One call, signed afresh; once more with the hub's time if the clock is off.
    async fn call<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &str,
        body: Option<String>,
        within: Duration,
    ) -> Result<T, Fault> {
        let mut url = self.hub.api(path);
        if !query.is_empty() {
            url.set_query(Some(query));
        }
        let mut again = true;
        loop {
            let now = clock::wall().plus(self.offset_ms.load(Ordering::Relaxed));
            let token = self
                .credentials
                .mint(now)
                .map_err(|e| Fault::Lost(e.to_string()))?;
            let answer = self
                .http
                .exchange(url.clone(), &token, body.clone(), within)
                .await;
            match answer {
                Ok(bytes) => {
                    return serde_json::from_slice(&bytes)
                        .map_err(|e| Fault::Lost(format!("the hub's answer cannot be read: {e}")));
                }
                Err(HttpError::Refused(p)) if p.known_code() == Some(Code::ClockSkew) => {
                    let Some(hub_now) = p.now.filter(|_| std::mem::take(&mut again)) else {
                        return Err(Fault::Lost(p.to_string()));
                    };
                    let offset = hub_now.saturating_sub(clock::wall().0);
                    self.offset_ms.store(offset, Ordering::Relaxed);
                }
                Err(HttpError::Refused(p)) => return Err(Fault::Refused(p)),
                Err(e) => return Err(Fault::Lost(e.to_string())),
            }
        }
    }

    /// Runs the transport until it is closed, dropped, or over.
    pub(super) async fn run(self, mut out: mpsc::Receiver<Out>, events: mpsc::Sender<Event>) {
        let poll = Arc::new(self);
        let hello = loop {
            match out.recv().await {
                Some(Out::Frame(frame)) => match *frame {
                    DeviceFrame::Hello(hello) => break hello,
                    _ => continue,
                },
                Some(Out::Ping(_)) => continue,
                Some(Out::Close(..)) | None => return,
            }
        };
        let body = Some(encode(&hello));
        let open = poll.call::<Welcome>(&["poll", "open"], "", body, CALL);
        let opened = tokio::select! {
            opened = open => opened,
            () = closed(&mut out) => return,
        };
        let session = match opened {
            Ok(welcome) => Session::new(poll, &hello, welcome, events),
            Err(fault) => return tell(&events, fault).await,
        };
        session.run(out).await;
    }
}

/// Waits for the close, or for the transport to be dropped.
async fn closed(out: &mut mpsc::Receiver<Out>) {
    while !matches!(out.recv().await, Some(Out::Close(..)) | None) {}
}

/// Tells the end as a WebSocket would: the hub's `error`, then a close.
async fn tell(events: &mpsc::Sender<Event>, fault: Fault) {
    let (said, code, detail) = match fault {
        Fault::Lost(detail) => (None, None, detail),
        Fault::Refused(problem) => {
            let (code, detail) = as_close(&problem);
            (Some(problem), code, detail)
        }
    };
    if let Some(p) = said {
        let frame = HubFrame::Error {
            code: p.code,
            message: p.title,
            retry_after_s: p.retry_after_s,
        };
        // Whoever dropped the transport needs no end.
        events.send(Event::Text(encode(&frame))).await.ok();
    }
    let code = code.map(CloseCode::as_u16);
    events.send(Event::Closed { code, detail }).await.ok();
}

/// The close that a refusal amounts to, as `proto/README.md` lists them.
fn as_close(problem: &Problem) -> (Option<CloseCode>, String) {
    let window = || {
        let ms = problem.retry_after_s.map(|s| s.saturating_mul(1_000));
        ms.map(reason_with_window).unwrap_or_default()
    };
    let close = match problem.known_code() {
        Some(Code::GoingAway) => return (Some(CloseCode::Restart), window()),
        Some(Code::RateLimited) => return (Some(CloseCode::SlowDown), window()),
        Some(Code::DeviceRevoked) => CloseCode::Forbidden,
        Some(Code::Superseded | Code::KeyHeldElsewhere) => CloseCode::Superseded,
        Some(Code::TooLarge) => CloseCode::TooLarge,
        Some(code) if code.http_status() == 401 => CloseCode::Unauthenticated,
        Some(code) if matches!(code.http_status(), 400 | 409 | 415) => CloseCode::Protocol,
        _ => return (None, format!("{} ({})", problem.title, problem.code)),
    };
    (Some(close), problem.code.clone())
}

type Call<T> = Option<BoxFuture<'static, Result<T, Fault>>>;

/// An open session.
struct Session {
    poll: Arc<Poll>,
    events: mpsc::Sender<Event>,
    epoch: Epoch,
    generation: u64,
    wait_s: u64,
    /// The last envelope received, and the last acked.
    received: Seq,
    acked: Seq,
    synced: bool,
    reports: VecDeque<Report>,
    capacity: Option<u32>,
    bye: Option<String>,
    pings: Vec<u64>,
    /// An ack, a capacity, a ping or a bye waits.
    due: bool,
    /// Whether polls may wait.
    holds: bool,
    polling: Call<Answer>,
    polled_at: Instant,
    next_poll: Instant,
    poll_losses: u32,
    acking: Call<PollAcked>,
    brought: Option<Brought>,
    next_ack: Instant,
    ack_losses: u32,
    welcome: Option<Welcome>,
}

/// The transport is over, and that was told if there was something to tell.
struct Over;

impl Session {
    fn new(poll: Arc<Poll>, hello: &Hello, welcome: Welcome, events: mpsc::Sender<Event>) -> Self {
        let start = match (welcome.resume, hello.last) {
            (Resume::Continue, Some(last)) => last.seq,
            _ => Seq(0),
        };
        let now = Instant::now();
        Self {
            poll,
            events,
            epoch: welcome.epoch,
            generation: welcome.generation,
            wait_s: welcome.heartbeat_s.clamp(1, POLL_WAIT_S.min(20)),
            received: start,
            acked: start,
            synced: false,
            reports: VecDeque::new(),
            capacity: None,
            bye: None,
            pings: Vec::new(),
            due: false,
            holds: true,
            polling: None,
            polled_at: now,
            next_poll: now,
            poll_losses: 0,
            acking: None,
            brought: None,
            next_ack: now,
            ack_losses: 0,
            welcome: Some(welcome),
        }
    }

    async fn run(mut self, mut out: mpsc::Receiver<Out>) {
        if let Some(welcome) = self.welcome.take() {
            let frame = encode(&HubFrame::Welcome(welcome));
            if self.say(Event::Text(frame)).await.is_err() {
                return;
            }
        }
        loop {
            self.start();
            let poll_due = self.polling.is_none().then_some(self.next_poll);
            let ack_due = (self.acking.is_none() && self.has_news()).then_some(self.next_ack);
            let done = tokio::select! {
                biased;
                sent = out.recv() => match sent {
                    Some(Out::Frame(frame)) => {
                        self.take(*frame);
                        Ok(())
                    }
                    Some(Out::Ping(number)) => {
                        self.pings.push(number);
                        self.due = true;
                        Ok(())
                    }
                    Some(Out::Close(code, ..)) => {
                        if matches!(code, CloseCode::Normal | CloseCode::GoingAway) {
                            // A hub that does not answer notices the silence.
                            timeout(LAST, self.leave()).await.ok();
                        }
                        return;
                    }
                    None => return,
                },
                acked = ready(&mut self.acking) => self.acked(acked).await,
                polled = ready(&mut self.polling) => self.polled(polled).await,
                () = at(poll_due) => Ok(()),
                () = at(ack_due) => Ok(()),
            };
            if done.is_err() {
                return;
            }
        }
    }

    fn take(&mut self, frame: DeviceFrame) {
        match frame {
            DeviceFrame::Ack { seq } => {
                self.acked = self.acked.max(seq);
                self.due = true;
            }
            DeviceFrame::Report(report) => self.reports.push_back(report),
            DeviceFrame::Capacity { free } => {
                self.capacity = Some(free);
                self.due = true;
            }
            DeviceFrame::Bye { reason } => {
                self.bye = Some(reason);
                self.due = true;
            }
            // Every call renews the credential.
            DeviceFrame::Auth { .. } | DeviceFrame::Hello(_) | DeviceFrame::Unknown => {}
        }
    }

    fn has_news(&self) -> bool {
        self.due || !self.reports.is_empty() || self.brought.is_some()
    }

    /// Starts the calls whose time has come.
    fn start(&mut self) {
        let now = Instant::now();
        if self.polling.is_none() && now >= self.next_poll {
            // Until the backlog is done a poll only looks.
            let wait_s = match (self.holds, self.synced) {
                (false, _) => 0,
                (true, false) => 1,
                (true, true) => self.wait_s,
            };
            let query = format!(
                "generation={}&after={}&wait_s={wait_s}",
                self.generation, self.received.0
            );
            let poll = Arc::clone(&self.poll);
            let within = CALL + Duration::from_secs(wait_s);
            self.polled_at = now;
            self.next_poll = now + PACE;
            self.polling =
                Some(async move { poll.call(&["poll"], &query, None, within).await }.boxed());
        }
        if self.acking.is_none() && self.has_news() && now >= self.next_ack {
            let body = self.bring();
            let poll = Arc::clone(&self.poll);
            self.next_ack = now + PACE;
            self.acking = Some(
                async move { poll.call(&["poll", "ack"], "", Some(body), CALL).await }.boxed(),
            );
        }
    }

    /// The body of the next `POST /poll/ack`: the one whose answer was lost, else what came since.
    fn bring(&mut self) -> String {
        if let Some(brought) = &mut self.brought {
            return brought.body.clone();
        }
        let (mut reports, mut bytes) = (Vec::new(), 0);
        while let Some(report) = self.reports.front() {
            bytes += encoded_len(report);
            if reports.len() >= POLL_REPORTS || (bytes > REPORT_BYTES && !reports.is_empty()) {
                break;
            }
            reports.extend(self.reports.pop_front());
        }
        let has_reports = !reports.is_empty();
        // The session ends with the bye: it goes with the last reports.
        let bye = self.bye.take_if(|_| self.reports.is_empty());
        let body = PollAck {
            epoch: self.epoch,
            generation: self.generation,
            seq: self.acked,
            reports,
            capacity: self.capacity.take(),
            bye,
        };
        let text = encode(&body);
        self.due = self.bye.is_some();
        self.brought = Some(Brought {
            body: text.clone(),
            reports: has_reports,
            pings: std::mem::take(&mut self.pings),
            bye: body.bye.is_some(),
        });
        text
    }

    fn say(&self, event: Event) -> impl Future<Output = Result<(), Over>> + Send + use<> {
        let events = self.events.clone();
        async move { events.send(event).await.map_err(|_| Over) }
    }

    fn over(&self, fault: Fault) -> impl Future<Output = Result<(), Over>> + Send + use<> {
        let events = self.events.clone();
        async move {
            tell(&events, fault).await;
            Err(Over)
        }
    }

    async fn polled(&mut self, answer: Result<Answer, Fault>) -> Result<(), Over> {
        self.polling = None;
        let now = Instant::now();
        match answer {
            Ok(answer) => {
                self.poll_losses = 0;
                let idle = answer.envelopes.is_empty() && !answer.more;
                if idle {
                    self.say(Event::Heard).await?;
                    if !self.holds && self.synced {
                        self.next_poll = now + self.poll.interval;
                    }
                }
                for row in answer.envelopes {
                    self.received = self.received.max(row.seq);
                    let text = encode_deliver(row.seq, row.envelope.get());
                    self.say(Event::Text(text)).await?;
                }
                if let Some(seq) = answer.synced
                    && !std::mem::replace(&mut self.synced, true)
                {
                    let frame = encode(&HubFrame::Synced { seq });
                    self.say(Event::Text(frame)).await?;
                }
                Ok(())
            }
            Err(Fault::Lost(detail)) => {
                let waited = self.holds && self.synced && now - self.polled_at >= WAITED;
                if waited {
                    tracing::warn!(
                        %detail,
                        interval = ?self.poll.interval,
                        "a poll that waited was lost; asking at intervals instead"
                    );
                    self.holds = false;
                    return Ok(());
                }
                self.poll_losses += 1;
                if self.poll_losses >= LOSSES {
                    return self.over(Fault::Lost(detail)).await;
                }
                self.next_poll = now + retry_timer::delay(AGAIN);
                Ok(())
            }
            Err(fault) => self.over(fault).await,
        }
    }

    async fn acked(&mut self, answer: Result<PollAcked, Fault>) -> Result<(), Over> {
        self.acking = None;
        match answer {
            Ok(acked) => {
                self.ack_losses = 0;
                let brought = self.brought.take();
                self.say(Event::Heard).await?;
                if let Some(brought) = brought {
                    for number in brought.pings {
                        self.say(Event::Pong(number)).await?;
                    }
                    if brought.reports {
                        let frame = HubFrame::ReportAck {
                            n: acked.report_n,
                            rejected: acked.rejected,
                        };
                        self.say(Event::Text(encode(&frame))).await?;
                    }
                }
                Ok(())
            }
            Err(Fault::Lost(detail)) => {
                self.ack_losses += 1;
                if self.ack_losses >= LOSSES {
                    return self.over(Fault::Lost(detail)).await;
                }
                self.next_ack = Instant::now() + retry_timer::delay(AGAIN);
                Ok(())
            }
            Err(fault) => self.over(fault).await,
        }
    }

    /// Makes the last calls: what was not told yet, with the `bye`.
    async fn leave(&mut self) {
        self.polling = None;
        if self.bye.is_none() && !self.brought.as_ref().is_some_and(|b| b.bye) {
            // Another transport goes on from here.
            return;
        }
        loop {
            if self.acking.is_none() {
                if !self.has_news() {
                    return;
                }
                self.next_ack = Instant::now();
                self.next_poll = self.next_ack + LAST;
                self.start();
            }
            let bye = self.brought.as_ref().is_some_and(|b| b.bye);
            let answer = ready(&mut self.acking).await;
            let lost = answer.is_err();
            self.acking = None;
            self.brought = None;
            if bye || lost {
                return;
            }
        }
    }
}

async fn ready<T>(call: &mut Call<T>) -> Result<T, Fault> {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_as_the_close_that_it_would_be() {
        let told = |code: Code, after: Option<u64>| {
            let mut problem = Problem::new(code, "no");
            problem.retry_after_s = after;
            let (close, detail) = as_close(&problem);
            (close.map(CloseCode::as_u16), detail)
        };
        let window = "retry_after_ms=3000".to_owned();
        assert_eq!(told(Code::GoingAway, Some(3)), (Some(1012), window.clone()));
        assert_eq!(told(Code::GoingAway, None), (Some(1012), String::new()));
        assert_eq!(told(Code::RateLimited, Some(3)), (Some(4429), window));
        for (code, close) in [
            (Code::DeviceRevoked, 4403),
            (Code::Superseded, 4409),
            (Code::KeyHeldElsewhere, 4409),
            (Code::TokenExpired, 4401),
            (Code::TokenInvalid, 4401),
            (Code::TooLarge, 4413),
            (Code::ProtocolError, 4400),
            (Code::InvalidField, 4400),
            (Code::Conflict, 4400),
        ] {
            assert_eq!(told(code, None), (Some(close), code.as_str().to_owned()));
        }
        for code in [
            Code::PollClosed,
            Code::HeartbeatLost,
            Code::StoreUnavailable,
            Code::DiskFull,
            // A hub that knows no fallback.
            Code::NotFound,
        ] {
            assert_eq!(told(code, Some(1)).0, None, "{code}");
        }
    }
}
