//! The device's side: its disk, its work under way, and the shell around the machine.

use std::collections::BTreeSet;

use remote_collab::core::client::{self, HelloSnapshot, LinkState};
use remote_collab::core::retry::Retry;
use remote_collab::domain::{Cursor, Envelope, Epoch, InstanceId, Report, ReportKind, Seq, WallMs};
use remote_collab::wire::encode;

use super::world::{MAX_FRAME, Msg, World};

/// What the daemon's disk holds.
#[derive(Debug, Clone)]
pub(super) struct DeviceDisk {
    pub(super) instance: InstanceId,
    pub(super) queue: Vec<u128>,
    pub(super) known: BTreeSet<u128>,
    pub(super) cursor: Option<Cursor>,
    pub(super) outbox: Vec<Report>,
    pub(super) next_n: u64,
}

#[derive(Debug)]
pub(super) enum DeviceWork {
    Snapshot,
    Store(Cursor, Box<Envelope>),
    Reset(Epoch),
    LoadReports(u64, u32),
    Prune(u64),
    Renumber(u64),
    Mint,
}

impl World {
    pub(super) fn feed(&mut self, input: client::Input) {
        self.client.handle(input, self.now);
        self.device_outputs();
    }

    pub(super) fn device_outputs(&mut self) {
        while let Some(output) = self.client.poll_output() {
            match output {
                client::Output::Dial { .. } => {
                    self.dialing = true;
                    self.conn = None;
                }
                client::Output::SendHello => self.device_work.push_back(DeviceWork::Snapshot),
                client::Output::Send(frame) => {
                    if let remote_collab::wire::DeviceFrame::Ack { seq } = &frame {
                        self.check_ack(*seq);
                    }
                    self.send_up(Msg::Text(encode(&frame)));
                }
                client::Output::Ping(n) => self.send_up(Msg::Ping(n)),
                client::Output::Refuse { id, .. } => {
                    panic!("this hub writes nothing unreadable: {id:?}")
                }
                client::Output::Close { code, reason } => {
                    self.dialing = false;
                    self.send_up(Msg::Close(Some(code.as_u16()), reason));
                    if let Some(at) = self.conn.take() {
                        self.conns[at].device_open = false;
                    }
                }
                client::Output::Store { cursor, envelope } => {
                    self.device_work
                        .push_back(DeviceWork::Store(cursor, envelope));
                }
                client::Output::ResetCursor { epoch } => {
                    self.device_work.push_back(DeviceWork::Reset(epoch));
                }
                client::Output::LoadReports { after_n, limit } => {
                    self.device_work
                        .push_back(DeviceWork::LoadReports(after_n, limit));
                }
                client::Output::PruneReports {
                    through_n,
                    rejected,
                } => {
                    for r in rejected {
                        assert_eq!(r.code, "too_large", "this hub refuses nothing");
                        let set_aside = |row: &&Report| row.n == r.n;
                        let row = self.device.outbox.iter().find(set_aside);
                        let id = row.map(|row| row.id.as_u128());
                        self.reported.retain(|known| Some(*known) != id);
                    }
                    self.device_work.push_back(DeviceWork::Prune(through_n));
                }
                client::Output::RenumberOutbox { after_n } => {
                    self.device_work.push_back(DeviceWork::Renumber(after_n));
                }
                client::Output::MintToken => self.device_work.push_back(DeviceWork::Mint),
                client::Output::ArmRetry(retry) => {
                    self.retry_at = Some(self.now.plus(wait_ms(retry)));
                }
                client::Output::CancelRetry => self.retry_at = None,
                client::Output::State { .. } | client::Output::HubClock { .. } => {}
            }
        }
    }

    pub(super) fn send_up(&mut self, msg: Msg) {
        if let Some(at) = self.conn {
            self.conns[at].up.push_back(msg);
        }
    }

    /// One row of work is committed at the device.
    pub(super) fn device_step(&mut self) {
        let Some(work) = self.device_work.pop_front() else {
            return;
        };
        match work {
            DeviceWork::Snapshot => {
                let snapshot = HelloSnapshot {
                    instance: self.device.instance,
                    take_over: false,
                    last: self.device.cursor,
                    outbox_instance: self.device.instance,
                    next_n: self.device.next_n,
                    build: String::new(),
                    os: String::new(),
                    claude_version: None,
                    capacity: 1,
                    projects: Vec::new(),
                    sessions: Vec::new(),
                };
                self.client.hello(snapshot, self.now);
                self.device_outputs();
            }
            DeviceWork::Store(cursor, envelope) => {
                let id = envelope.id.0.as_u128();
                if self.device.known.insert(id) {
                    self.device.queue.push(id);
                    self.durable_ever.insert(id);
                }
                self.device.cursor = Some(cursor);
                self.feed(client::Input::Stored {
                    epoch: cursor.epoch,
                    seq: cursor.seq,
                });
            }
            DeviceWork::Reset(epoch) => {
                self.device.cursor = Some(Cursor { epoch, seq: Seq(0) });
            }
            DeviceWork::LoadReports(after, limit) => {
                let rows = self.device.outbox.iter().filter(|r| r.n > after);
                let rows = rows.take(limit as usize).cloned().collect();
                self.feed(client::Input::Reports(rows));
            }
            DeviceWork::Prune(through) => self.device.outbox.retain(|r| r.n > through),
            DeviceWork::Renumber(after) => {
                let mut n = after;
                for row in &mut self.device.outbox {
                    n += 1;
                    row.n = n;
                }
                self.device.next_n = n + 1;
                let next_n = self.device.next_n;
                self.feed(client::Input::OutboxGrew { next_n });
            }
            DeviceWork::Mint => self.feed(client::Input::Token("jwt".into())),
        }
    }

    pub(super) fn write_report(&mut self, large: bool) {
        self.put_back &= self.client.state() != LinkState::Synced;
        if self.put_back {
            return;
        }
        self.serial += 1;
        let id = self.serial;
        let body = if large { MAX_FRAME } else { 10 };
        self.device.outbox.push(Report {
            n: self.device.next_n,
            id: uuid::Uuid::from_u128(id),
            kind: ReportKind::Note,
            at: WallMs(0),
            body: serde_json::json!("x".repeat(body)),
        });
        self.reported.push(id);
        self.device.next_n += 1;
        let next_n = self.device.next_n;
        self.feed(client::Input::OutboxGrew { next_n });
    }
}

fn wait_ms(retry: Retry) -> u64 {
    match retry {
        Retry::Soon { within_ms } => within_ms / 2,
        Retry::Exponential {
            initial_ms,
            max_ms,
            step,
        } => (initial_ms << step.min(16)).min(max_ms) / 2,
        Retry::Linear {
            unit_ms,
            max_ms,
            step,
        } => (unit_ms * u64::from(step + 1)).min(max_ms),
        Retry::Named {
            after_ms,
            spread_ms,
        } => after_ms + spread_ms / 2,
    }
}
