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
//! Some edges do not let an answer wait. When two polls in a row were lost after they waited, the session asks without
//! waiting from then on, every `poll_interval`. That, and calls that are lost again and again though others come through, is told in `status`.

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
use crate::core::retry::Retry;
use crate::daemon::clock;
use crate::daemon::credentials::Credentials;
use crate::daemon::dial::Event;
use crate::daemon::http::{HttpError, HubHttp};
use crate::daemon::retry_timer;
use crate::domain::{Code, Epoch, Report, Seq, limits};
use crate::wire::{
    CloseCode, DeviceFrame, Hello, HubFrame, POLL_REPORTS, POLL_WAIT_S, PollAck, PollAcked, Resume,
    Welcome, encode, encode_deliver, encoded_len,
};

use super::transport::Out;

mod fault;

use fault::{Fault, tell};

/// Time for a call that does not wait, and on top of one that does.
const CALL: Duration = Duration::from_secs(10);
/// Time for the last call.
const LAST: Duration = Duration::from_secs(2);
/// Time between two calls of a kind: what comes meanwhile goes together.
const PACE: Duration = Duration::from_millis(100);
/// A poll that is lost after this was waiting, and something in between did not like it.
const WAITED: Duration = Duration::from_secs(2);
/// Such polls in a row after which none waits.
const CUT_OFF: u32 = 2;
/// Losses in a row that end the transport.
const LOSSES: u32 = 3;
/// Losses that are told together, and how long without one until all is well again.
const TOLD: u32 = 2;
const QUIET: Duration = Duration::from_secs(60);
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
    /// Polls in a row that were lost after they waited.
    cut_off: u32,
    polling: Call<Answer>,
    polled_at: Instant,
    next_poll: Instant,
    poll_losses: u32,
    acking: Call<PollAcked>,
    brought: Option<Brought>,
    next_ack: Instant,
    ack_losses: u32,
    /// Losses of either kind until there was none for a while, and the last one.
    losses: u32,
    lost_at: Instant,
    /// Why polls do not wait.
    no_waits: Option<String>,
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
            cut_off: 0,
            polling: None,
            polled_at: now,
            next_poll: now,
            poll_losses: 0,
            acking: None,
            brought: None,
            next_ack: now,
            ack_losses: 0,
            losses: 0,
            lost_at: now,
            no_waits: None,
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

    /// Takes note of a lost call.
    async fn lost(&mut self, now: Instant, detail: &str) -> Result<(), Over> {
        if now - self.lost_at >= QUIET {
            self.losses = 0;
        }
        self.losses = self.losses.saturating_add(1);
        self.lost_at = now;
        if self.losses < TOLD {
            return Ok(());
        }
        let n = self.losses;
        let text = format!("{n} calls were lost of late, the last one: {detail}");
        self.say(Event::Trouble(Some(text))).await
    }

    /// Takes note of an answer.
    async fn answered(&mut self, now: Instant) -> Result<(), Over> {
        if self.losses == 0 || now - self.lost_at < QUIET {
            return Ok(());
        }
        self.losses = 0;
        self.say(Event::Trouble(self.no_waits.clone())).await
    }

    async fn polled(&mut self, answer: Result<Answer, Fault>) -> Result<(), Over> {
        self.polling = None;
        let now = Instant::now();
        let waited = now - self.polled_at >= WAITED;
        match answer {
            Ok(answer) => {
                self.poll_losses = 0;
                if waited {
                    self.cut_off = 0;
                }
                self.answered(now).await?;
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
                self.cut_off += u32::from(self.holds && self.synced && waited);
                if self.holds && self.cut_off >= CUT_OFF {
                    tracing::warn!(
                        %detail,
                        interval = ?self.poll.interval,
                        "a poll that waited was lost; asking at intervals instead"
                    );
                    self.holds = false;
                    let every = self.poll.interval.as_secs();
                    let text = format!(
                        "calls that wait are cut off ({detail}): the hub is asked every {every} s"
                    );
                    self.no_waits = Some(text.clone());
                    return self.say(Event::Trouble(Some(text))).await;
                }
                self.poll_losses += 1;
                if self.poll_losses >= LOSSES {
                    return self.over(Fault::Lost(detail)).await;
                }
                self.next_poll = now + retry_timer::delay(AGAIN);
                self.lost(now, &detail).await
            }
            Err(fault) => self.over(fault).await,
        }
    }

    async fn acked(&mut self, answer: Result<PollAcked, Fault>) -> Result<(), Over> {
        self.acking = None;
        match answer {
            Ok(acked) => {
                self.ack_losses = 0;
                self.answered(Instant::now()).await?;
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
                let now = Instant::now();
                self.next_ack = now + retry_timer::delay(AGAIN);
                self.lost(now, &detail).await
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
