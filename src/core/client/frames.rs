//! What the hub says, and the `hello` that it answers.

use crate::domain::{Code, Cursor, Seq, Ts};
use crate::wire::{
    CloseCode, DecodeError, DeviceFrame, Hello, HubFrame, OutboxPosition, Unreadable, Welcome,
    decode, encoded_len, unreadable_envelope,
};

use super::machine::Phase;
use super::outbox::Pump;
use super::session::{MAX_NUMBER, Session, Step};
use super::{HelloSnapshot, LinkClient, Output};
use crate::core::heartbeat::Heartbeat;
use crate::core::resume::{Adopt, adopt};
use crate::core::window::Inbox;

/// How often an envelope without a readable id closes the connection before it is passed over.
const NAMELESS: u32 = 3;

impl LinkClient {
    /// Sends `hello` with what the stores hold now; ignored when the transport is gone already.
    pub fn hello(&mut self, snapshot: HelloSnapshot, now: Ts) {
        let Phase::Opening { deadline } = self.phase else {
            return;
        };
        // The store may have told of later commits already.
        self.durable = match (snapshot.last, self.durable) {
            (Some(read), Some(told)) if told > read => Some(told),
            (read, _) => read,
        };
        self.next_n = self.next_n.max(snapshot.next_n);
        let mut hello = Hello {
            instance: snapshot.instance,
            take_over: snapshot.take_over,
            last: self.durable,
            outbox: OutboxPosition {
                instance: snapshot.outbox_instance,
                next_n: self.next_n,
            },
            build: snapshot.build,
            os: snapshot.os,
            claude_version: snapshot.claude_version,
            capacity: snapshot.capacity,
            projects: snapshot.projects,
            sessions: snapshot.sessions,
        };
        // A directory too large for a frame is cut: the rest follows as reports.
        while encoded_len(&hello) + 32 > self.config.max_frame_bytes {
            if hello.sessions.is_empty() && hello.projects.is_empty() {
                break;
            }
            hello.sessions.truncate(hello.sessions.len() / 2);
            if hello.sessions.is_empty() {
                hello.projects.truncate(hello.projects.len() / 2);
            }
        }
        self.phase = Phase::Greeted {
            deadline: deadline.max(now),
        };
        self.out.push_back(Output::Send(DeviceFrame::Hello(hello)));
    }

    pub(super) fn text(&mut self, text: &str, now: Ts) {
        if !self.has_transport() {
            return;
        }
        let frame = match decode::<HubFrame>(text, self.config.max_frame_bytes) {
            Ok(frame) => frame,
            Err(DecodeError::Malformed(_)) if self.unreadable(text, now) => return,
            Err(e) => {
                self.malformed = self.malformed.saturating_add(1);
                let code = match e {
                    DecodeError::TooLarge { .. } => CloseCode::TooLarge,
                    DecodeError::Malformed(_) => CloseCode::Protocol,
                };
                return self.breach(code, e.to_string(), now);
            }
        };
        if let Phase::Open(s) = &mut self.phase {
            s.beat.heard(now);
        }
        match frame {
            HubFrame::Unknown => self.unknown_frames = self.unknown_frames.saturating_add(1),
            HubFrame::Error {
                code,
                message,
                retry_after_s,
            } => {
                self.said = Some((Code::parse(&code), retry_after_s));
                self.hub_error = Some((code, message));
            }
            HubFrame::Welcome(welcome) => match self.phase {
                Phase::Greeted { .. } => self.welcome(&welcome, now),
                _ => self.breach(CloseCode::Protocol, "welcome at the wrong time".into(), now),
            },
            frame => {
                let Phase::Open(s) = &mut self.phase else {
                    return self.breach(CloseCode::Protocol, "a frame before welcome".into(), now);
                };
                match s.frame(frame, now, &mut self.out) {
                    Ok(Step::On) => {}
                    Ok(Step::UnknownKind) => {
                        self.unknown_kinds = self.unknown_kinds.saturating_add(1);
                    }
                    Ok(Step::Synced) => self.maybe_live(now),
                    Err(why) => self.breach(CloseCode::Protocol, why, now),
                }
            }
        }
    }

    /// Deals with a `deliver` whose envelope cannot be read; false if the text is no such thing.
    ///
    /// One that has a name is refused by it. One without cannot be told of, and the hub would send it again for ever: it
    /// closes the connection a few times, should the hub mend it, and is passed over then.
    fn unreadable(&mut self, text: &str, now: Ts) -> bool {
        let Phase::Open(s) = &mut self.phase else {
            return false;
        };
        let Some(Unreadable { seq, id, reason }) = unreadable_envelope(text) else {
            return false;
        };
        s.beat.heard(now);
        let at = Cursor {
            epoch: s.epoch,
            seq,
        };
        if id.is_none() {
            let times = match self.nameless {
                Some((known, times)) if known == at => times + 1,
                _ => 1,
            };
            self.nameless = Some((at, times));
            if times <= NAMELESS {
                self.malformed = self.malformed.saturating_add(1);
                let why = format!("an envelope without a readable id at {}: {reason}", seq.0);
                self.breach(CloseCode::Protocol, why, now);
                return true;
            }
        }
        match s.take(seq, now) {
            Ok(None) => {}
            Ok(Some(cursor)) => {
                self.unreadable = self.unreadable.saturating_add(1);
                self.out.push_back(Output::Refuse { cursor, id, reason });
            }
            Err(why) => self.breach(CloseCode::Protocol, why, now),
        }
        true
    }

    fn welcome(&mut self, w: &Welcome, now: Ts) {
        if w.report_n > MAX_NUMBER || w.head.0 > MAX_NUMBER {
            return self.breach(
                CloseCode::Protocol,
                "welcome with absurd numbers".into(),
                now,
            );
        }
        let start = match adopt(self.durable, w.epoch, w.resume) {
            Adopt::Contradiction => {
                let why = "the hub continues a cursor of another epoch".into();
                return self.breach(CloseCode::Protocol, why, now);
            }
            Adopt::Continue(seq) => seq,
            Adopt::Reset => {
                self.out.push_back(Output::ResetCursor { epoch: w.epoch });
                self.durable = Some(Cursor {
                    epoch: w.epoch,
                    seq: Seq(0),
                });
                Seq(0)
            }
        };
        self.out.push_back(Output::HubClock { hub_now: w.now });
        if let Some(free) = self.capacity.take() {
            self.out
                .push_back(Output::Send(DeviceFrame::Capacity { free }));
        }
        let mut next_n = self.next_n;
        if w.report_n >= next_n.max(1) {
            self.out.push_back(Output::RenumberOutbox {
                after_n: w.report_n,
            });
            next_n = w.report_n.saturating_add(1);
        } else if w.report_n > 0 {
            self.out.push_back(Output::PruneReports {
                through_n: w.report_n,
                rejected: Vec::new(),
            });
        }
        let max_frame = usize::try_from(w.max_frame_bytes).unwrap_or(usize::MAX);
        let heartbeat_ms = w.heartbeat_s.clamp(1, 3_600) * 1_000;
        let dead_ms = 2 * heartbeat_ms + self.config.heartbeat_margin_ms;
        let auth_ms = w.auth_expires_in_s.clamp(1, 7 * 24 * 3_600) * 1_000;
        self.phase = Phase::Open(Box::new(Session {
            epoch: w.epoch,
            generation: w.generation,
            window: (w.window as usize).max(1),
            inbox: Inbox::new(start),
            pump: Pump::new(
                w.report_n,
                next_n,
                self.config.report_window,
                max_frame.min(self.config.max_frame_bytes),
            ),
            beat: Heartbeat::new(heartbeat_ms, dead_ms, now),
            synced: None,
            live: None,
            progress: now.plus(dead_ms),
            renew_at: now.plus(auth_ms / 3 * 2),
            auth_ms,
            dead_ms,
        }));
    }

    pub(super) fn stored(&mut self, at: Cursor, now: Ts) {
        self.durable = match self.durable {
            Some(known) if known.epoch == at.epoch => {
                Some(if at.seq > known.seq { at } else { known })
            }
            Some(known) => Some(known),
            None => Some(at),
        };
        if let Phase::Open(s) = &mut self.phase
            && s.epoch == at.epoch
        {
            s.inbox.stored(at.seq);
            s.progress = now.plus(s.dead_ms);
            self.maybe_live(now);
        }
    }

    /// SYNCED: the backlog was sent, and every envelope of it is durable here.
    fn maybe_live(&mut self, now: Ts) {
        if let Phase::Open(s) = &mut self.phase
            && s.live.is_none()
            && s.synced.is_some_and(|seq| s.inbox.has_stored(seq))
        {
            s.live = Some(now);
            self.lost_at = None;
            self.hub_error = None;
            self.tell(None, now);
        }
    }
}
