//! The hub's machine: one for the life of a connection.
//!
//! ```text
//! AwaitHello ──hello──▶ Admitting ──Admitted──▶ Open ──▶ Closed
//! ```
//!
//! The generation that the admission gave fences this connection: acks and reports that it asks to be stored are
//! compare-and-set by the store, so that frames of an older connection which are still being read change nothing.

use std::collections::VecDeque;

use crate::domain::{Code, Cursor, Report, Seq, Ts};
use crate::wire::{
    CloseCode, DecodeError, DeviceFrame, HubFrame, RejectedReport, Welcome, decode,
    unreadable_report,
};

use super::config::ServerConfig;
use super::feed::Feed;
use super::{Admission, Input, Output};
use crate::core::client::cut;
use crate::core::heartbeat::{Beat, Heartbeat};
use crate::core::resume::decide;
use crate::core::retry::reason_with_window;
use crate::core::window::Flight;

/// A connection at a glance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerStatus {
    /// Whether the hello was admitted and the connection is open.
    pub open: bool,
    /// The connection's number; 0 before admission.
    pub generation: u64,
    /// Envelopes in flight.
    pub in_flight: usize,
    /// Frames of unknown type, ignored.
    pub unknown_frames: u64,
}

#[derive(Debug)]
enum Phase {
    AwaitHello {
        deadline: Ts,
    },
    Admitting {
        deadline: Ts,
        last: Option<Cursor>,
        head: Seq,
    },
    Open(Box<Session>),
    Closed,
}

#[derive(Debug)]
struct Session {
    generation: u64,
    feed: Feed,
    ack: Option<Seq>,
    storing_ack: bool,
    /// The last report received.
    received_n: u64,
    /// The last report committed or refused for good.
    stored_n: u64,
    reports: Vec<Report>,
    storing_reports: bool,
    beat: Heartbeat,
    expires_at: Ts,
    reauth_at: Option<Ts>,
    verifying: bool,
}

/// The hub's side of the link, for one connection.
#[derive(Debug)]
pub struct LinkServer {
    config: ServerConfig,
    phase: Phase,
    out: VecDeque<Output>,
    unknown_frames: u64,
}

impl LinkServer {
    /// The machine of a connection that came up at `now`.
    #[must_use]
    pub fn new(config: ServerConfig, now: Ts) -> Self {
        Self {
            phase: Phase::AwaitHello {
                deadline: now.plus(config.handshake_timeout_ms),
            },
            config,
            out: VecDeque::new(),
            unknown_frames: 0,
        }
    }

    /// The connection at a glance.
    #[must_use]
    pub fn status(&self) -> ServerStatus {
        let session = match &self.phase {
            Phase::Open(s) => Some(s),
            _ => None,
        };
        ServerStatus {
            open: session.is_some(),
            generation: session.map_or(0, |s| s.generation),
            in_flight: session.map_or(0, |s| s.feed.in_flight()),
            unknown_frames: self.unknown_frames,
        }
    }

    /// Whether the connection is over: nothing follows on the last output.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// The next thing to do; commits and loads come when nothing else is left, so that they are gathered.
    pub fn poll_output(&mut self) -> Option<Output> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        let Phase::Open(s) = &mut self.phase else {
            return None;
        };
        if !s.storing_ack
            && let Some(seq) = s.ack.take()
        {
            s.storing_ack = true;
            return Some(Output::StoreAck { seq });
        }
        if !s.storing_reports && !s.reports.is_empty() {
            s.storing_reports = true;
            return Some(Output::StoreReports(std::mem::take(&mut s.reports)));
        }
        s.feed.load()
    }

    /// When [`Self::handle_timeout`] has to be called, and what for.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Ts, &'static str)> {
        match &self.phase {
            Phase::AwaitHello { deadline } => Some((*deadline, "hello")),
            Phase::Admitting { deadline, .. } => Some((*deadline, "admission")),
            Phase::Open(s) => [
                Some(s.beat.deadline()),
                s.reauth_at.map(|at| (at, "reauth")),
                Some((s.expires_at, "auth")),
            ]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at),
            Phase::Closed => None,
        }
    }

    /// The time of [`Self::poll_timeout`] has come; harmless when it has not.
    pub fn handle_timeout(&mut self, now: Ts) {
        match &mut self.phase {
            Phase::AwaitHello { deadline } if now >= *deadline => {
                self.fail(
                    Code::HeartbeatLost,
                    "no hello in time",
                    CloseCode::Heartbeat,
                );
            }
            Phase::Admitting { deadline, .. } if now >= *deadline => {
                let message = "the hub could not decide about the hello in time";
                self.fail(Code::StoreUnavailable, message, CloseCode::GoingAway);
            }
            Phase::Open(s) => {
                match s.beat.on_timeout(now) {
                    Beat::Quiet => {}
                    Beat::Ping(_) => self.out.push_back(Output::Ping),
                    Beat::Dead => {
                        let message = "nothing was heard for too long";
                        return self.fail(Code::HeartbeatLost, message, CloseCode::Heartbeat);
                    }
                }
                if s.reauth_at.is_some_and(|at| now >= at) {
                    s.reauth_at = None;
                    self.out.push_back(Output::Send(HubFrame::Reauth {
                        within_s: s.expires_at.since(now) / 1_000,
                    }));
                }
                if now >= s.expires_at {
                    if s.verifying {
                        // The device was in time; the verdict is on its way.
                        s.expires_at = now.plus(self.config.handshake_timeout_ms);
                        s.verifying = false;
                    } else {
                        let message = "the credential was not renewed in time";
                        self.fail(Code::TokenExpired, message, CloseCode::Unauthenticated);
                    }
                }
            }
            _ => {}
        }
    }

    /// Something happened.
    pub fn handle(&mut self, input: Input, now: Ts) {
        match input {
            Input::Text(text) => self.text(&text, now),
            Input::Heard => {
                if let Phase::Open(s) = &mut self.phase {
                    s.beat.heard(now);
                }
            }
            Input::Admitted(admission) => self.admitted(&admission, now),
            Input::Refused {
                code,
                message,
                close,
            } => {
                self.end(&code, message, None, close, &code);
            }
            Input::Wake { head } => match &mut self.phase {
                Phase::Open(s) => s.feed.wake(head),
                // The admission may have read the head before this.
                Phase::Admitting { head: seen, .. } => *seen = head.max(*seen),
                _ => {}
            },
            Input::Pushed { prev, row } => match &mut self.phase {
                Phase::Open(s) => s.feed.pushed(prev, row, &mut self.out),
                Phase::Admitting { head, .. } => *head = row.seq.max(*head),
                _ => {}
            },
            Input::Loaded { rows, more } => {
                if let Phase::Open(s) = &mut self.phase {
                    s.feed.loaded(rows, more, &mut self.out);
                }
            }
            Input::AckStored { .. } => {
                if let Phase::Open(s) = &mut self.phase {
                    s.storing_ack = false;
                }
            }
            Input::ReportsStored {
                through_n,
                rejected,
            } => {
                if let Phase::Open(s) = &mut self.phase {
                    s.storing_reports = false;
                    s.stored_n = s.stored_n.max(through_n.min(s.received_n));
                    self.out.push_back(Output::Send(HubFrame::ReportAck {
                        n: s.stored_n,
                        rejected,
                    }));
                }
            }
            Input::TokenAccepted => {
                if let Phase::Open(s) = &mut self.phase {
                    s.renewed(&self.config, now);
                }
            }
            Input::TokenRefused { code } => {
                if let Phase::Open(_) = &self.phase {
                    let message = "the renewed credential does not hold".to_owned();
                    self.end(&code, message, None, CloseCode::Unauthenticated, &code);
                }
            }
            Input::Superseded => {
                let message = "a newer connection of this device took over";
                self.fail(Code::Superseded, message, CloseCode::Superseded);
            }
            Input::TakenOver => {
                let message =
                    "the key of this device was taken over by another machine or data folder";
                self.fail(Code::KeyHeldElsewhere, message, CloseCode::Superseded);
            }
            Input::Revoked => {
                let message = "this device was revoked; enrol it again to go on";
                self.fail(Code::DeviceRevoked, message, CloseCode::Forbidden);
            }
            Input::Drain { after_ms } => {
                let message = "the hub restarts".to_owned();
                let after_s = after_ms.div_ceil(1_000);
                let reason = reason_with_window(after_ms);
                let code = Code::GoingAway.as_str();
                self.end(code, message, Some(after_s), CloseCode::Restart, &reason);
            }
        }
    }

    fn text(&mut self, text: &str, now: Ts) {
        if self.is_closed() {
            return;
        }
        let frame = match decode::<DeviceFrame>(text, self.config.max_frame_bytes) {
            Ok(frame) => frame,
            Err(e @ DecodeError::TooLarge { .. }) => {
                return self.fail(Code::TooLarge, &e.to_string(), CloseCode::TooLarge);
            }
            Err(e) => match unreadable_report(text) {
                // One bad report blocks neither the rest nor the link.
                Some(report) => DeviceFrame::Report(report),
                None => return self.fail(Code::MalformedJson, &e.to_string(), CloseCode::Protocol),
            },
        };
        match (frame, &mut self.phase) {
            (DeviceFrame::Unknown, phase) => {
                self.unknown_frames = self.unknown_frames.saturating_add(1);
                if let Phase::Open(s) = phase {
                    s.beat.heard(now);
                }
            }
            (DeviceFrame::Bye { .. }, _) => self.close(CloseCode::Normal, "bye"),
            (DeviceFrame::Hello(hello), Phase::AwaitHello { .. }) => {
                self.phase = Phase::Admitting {
                    deadline: now.plus(self.config.handshake_timeout_ms),
                    last: hello.last,
                    head: Seq(0),
                };
                self.out.push_back(Output::Admit(Box::new(hello)));
            }
            (DeviceFrame::Hello(_), _) => self.breach("hello twice"),
            (frame, Phase::Open(s)) => {
                s.beat.heard(now);
                if let Err(why) = s.frame(frame, &mut self.out) {
                    self.breach(&why);
                } else if s.reports.len() > self.config.report_backlog {
                    let message = "too many reports before the last ones were committed";
                    self.fail(Code::RateLimited, message, CloseCode::SlowDown);
                }
            }
            (_, Phase::AwaitHello { .. }) => self.breach("a frame before hello"),
            (_, Phase::Admitting { .. } | Phase::Closed) => self.breach("a frame before welcome"),
        }
    }

    fn admitted(&mut self, a: &Admission, now: Ts) {
        let Phase::Admitting { last, head, .. } = &self.phase else {
            return;
        };
        let (resume, start) = decide(*last, a.epoch, a.head);
        let head = a.head.max(*head);
        let c = &self.config;
        self.out.push_back(Output::Send(HubFrame::Welcome(Welcome {
            epoch: a.epoch,
            head: a.head,
            resume,
            generation: a.generation,
            now: a.now,
            heartbeat_s: (c.heartbeat_ms / 1_000).max(1),
            window: c.window.max(1),
            max_frame_bytes: c.max_frame_bytes as u64,
            auth_expires_in_s: c.auth_expires_s,
            report_n: a.report_n,
        })));
        let flight = Flight::new(c.window, c.window_bytes);
        let mut session = Session {
            generation: a.generation,
            feed: Feed::new(flight, start, a.head, head),
            ack: None,
            storing_ack: false,
            received_n: a.report_n,
            stored_n: a.report_n,
            reports: Vec::new(),
            storing_reports: false,
            beat: Heartbeat::new(c.heartbeat_ms, c.dead_ms, now),
            expires_at: now,
            reauth_at: None,
            verifying: false,
        };
        session.renewed(c, now);
        if a.head <= start {
            session.feed.finish_backlog(&mut self.out);
        }
        self.phase = Phase::Open(Box::new(session));
    }

    fn breach(&mut self, why: &str) {
        self.fail(Code::ProtocolError, why, CloseCode::Protocol);
    }

    fn fail(&mut self, code: Code, message: &str, close: CloseCode) {
        self.end(
            code.as_str(),
            message.to_owned(),
            None,
            close,
            code.as_str(),
        );
    }

    /// Says why, then ends the connection.
    fn end(
        &mut self,
        code: &str,
        message: String,
        retry_after_s: Option<u64>,
        close: CloseCode,
        reason: &str,
    ) {
        if self.is_closed() {
            return;
        }
        self.flush();
        self.out.push_back(Output::Send(HubFrame::Error {
            code: code.to_owned(),
            message,
            retry_after_s,
        }));
        self.close(close, reason);
    }

    fn close(&mut self, code: CloseCode, reason: &str) {
        self.flush();
        self.phase = Phase::Closed;
        self.out.push_back(Output::Close {
            code,
            reason: cut(reason),
        });
    }

    /// What the device sent before the end is still committed.
    fn flush(&mut self) {
        if let Phase::Open(s) = &mut self.phase {
            if let Some(seq) = s.ack.take() {
                self.out.push_back(Output::StoreAck { seq });
            }
            if !s.reports.is_empty() {
                let reports = std::mem::take(&mut s.reports);
                self.out.push_back(Output::StoreReports(reports));
            }
        }
    }
}

impl Session {
    fn frame(&mut self, frame: DeviceFrame, out: &mut VecDeque<Output>) -> Result<(), String> {
        match frame {
            DeviceFrame::Ack { seq } => {
                if self.feed.ack(seq)? {
                    self.ack = Some(seq);
                }
            }
            DeviceFrame::Report(report) => self.report(report, out)?,
            DeviceFrame::Capacity { free } => out.push_back(Output::Capacity(free)),
            DeviceFrame::Auth { token } => {
                self.verifying = true;
                out.push_back(Output::VerifyToken(token));
            }
            DeviceFrame::Hello(_) | DeviceFrame::Bye { .. } | DeviceFrame::Unknown => {}
        }
        Ok(())
    }

    /// Takes a report: the next number, or a later one while nothing is in flight; an older one is confirmed again.
    fn report(&mut self, report: Report, out: &mut VecDeque<Output>) -> Result<(), String> {
        let n = report.n;
        if n == 0 || n > i64::MAX as u64 {
            return Err(format!("report with n {n}"));
        }
        if n <= self.received_n {
            if n <= self.stored_n {
                out.push_back(Output::Send(HubFrame::ReportAck {
                    n: self.stored_n,
                    rejected: Vec::<RejectedReport>::new(),
                }));
            }
            return Ok(());
        }
        if n != self.received_n + 1 && self.stored_n != self.received_n {
            return Err(format!("report {n} after {}", self.received_n));
        }
        self.received_n = n;
        self.reports.push(report);
        Ok(())
    }

    /// The credential holds anew.
    fn renewed(&mut self, config: &ServerConfig, now: Ts) {
        self.verifying = false;
        self.expires_at = now.plus(config.auth_expires_s.saturating_mul(1_000));
        let early = config.reauth_within_s.min(config.auth_expires_s / 6);
        self.reauth_at = Some(now.plus((config.auth_expires_s - early).saturating_mul(1_000)));
    }
}
