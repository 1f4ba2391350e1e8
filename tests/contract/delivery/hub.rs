//! The hub's side: its disk, its work under way, and the shell around the machines.

use std::collections::BTreeMap;

use remote_collab::core::server::{self, Admission, Row};
use remote_collab::domain::{
    Address, Cursor, Envelope, EnvelopeId, EnvelopeKind, Epoch, Priority, Report, Sender, Seq,
    Trust, WallMs,
};
use remote_collab::wire::{CloseCode, Hello, encode, encode_deliver};

use super::world::{Msg, World};

/// One row of the hub's mailbox.
#[derive(Debug, Clone)]
pub(super) struct Mail {
    pub(super) seq: Seq,
    pub(super) id: u128,
    pub(super) terminal: bool,
}

/// What the hub's disk holds.
#[derive(Debug, Clone)]
pub(super) struct HubDisk {
    pub(super) epoch: Epoch,
    pub(super) next_seq: u64,
    pub(super) mail: Vec<Mail>,
    pub(super) generation: u64,
    /// Per outbox instance: the last number, and the reports in the order of their commits.
    pub(super) reports: BTreeMap<u128, (u64, Vec<(u64, u128)>)>,
}

/// Work that the hub's store has accepted but not committed; a crash loses it.
#[derive(Debug)]
pub(super) enum HubWork {
    Append(u128),
    Admit(usize, Box<Hello>),
    Load(usize, Seq, u32, u64),
    Ack(usize, Seq),
    Reports(usize, Vec<Report>),
    Verify(usize),
}

impl World {
    pub(super) fn feed_server(&mut self, at: usize, input: server::Input) {
        if !self.conns[at].hub_open {
            return;
        }
        self.conns[at].server.handle(input, self.now);
        self.server_outputs(at);
    }

    pub(super) fn server_outputs(&mut self, at: usize) {
        while let Some(output) = self.conns[at].server.poll_output() {
            let conn = &mut self.conns[at];
            match output {
                server::Output::Admit(hello) => {
                    self.hub_work.push_back(HubWork::Admit(at, hello));
                }
                server::Output::Send(frame) => conn.down.push_back(Msg::Text(encode(&frame))),
                server::Output::Deliver(row) => conn
                    .down
                    .push_back(Msg::Text(encode_deliver(row.seq, &row.json))),
                server::Output::Load {
                    after,
                    limit,
                    max_bytes,
                } => self
                    .hub_work
                    .push_back(HubWork::Load(at, after, limit, max_bytes)),
                server::Output::StoreAck { seq } => self.hub_work.push_back(HubWork::Ack(at, seq)),
                server::Output::StoreReports(reports) => {
                    self.hub_work.push_back(HubWork::Reports(at, reports));
                }
                server::Output::VerifyToken(_) => self.hub_work.push_back(HubWork::Verify(at)),
                server::Output::Ping => conn.down.push_back(Msg::Ping(0)),
                server::Output::Close { code, reason } => {
                    assert!(
                        !matches!(code, CloseCode::Protocol | CloseCode::TooLarge),
                        "the hub found a breach: {reason}; {:?}",
                        conn.down
                    );
                    conn.down.push_back(Msg::Close(Some(code.as_u16()), reason));
                    conn.hub_open = false;
                }
                server::Output::Capacity(_) | server::Output::Synced => {}
            }
        }
    }

    /// One row of work is committed at the hub.
    pub(super) fn hub_step(&mut self) {
        let Some(work) = self.hub_work.pop_front() else {
            return;
        };
        match work {
            HubWork::Append(id) => {
                let prev = self.hub.mail.last().map_or(Seq(0), |m| m.seq);
                // Not dense: other mailboxes take numbers as well.
                let seq = Seq(self.hub.next_seq + u64::from(id % 3 == 0));
                self.hub.next_seq = seq.0 + 1;
                self.hub.mail.push(Mail {
                    seq,
                    id,
                    terminal: false,
                });
                for at in 0..self.conns.len() {
                    let note = if id % 4 == 0 {
                        server::Input::Wake { head: seq }
                    } else {
                        let row = row(seq, id);
                        server::Input::Pushed { prev, row }
                    };
                    self.notes.push_back((at, note));
                }
            }
            HubWork::Admit(at, hello) => {
                let head = self.hub.mail.last().map_or(Seq(0), |m| m.seq);
                let ahead = |last: Cursor| last.epoch == self.hub.epoch && last.seq > head;
                if hello.last.is_some_and(ahead) {
                    self.hub.epoch = self.fresh();
                }
                self.hub.generation += 1;
                self.conns[at].generation = self.hub.generation;
                for older in 0..self.conns.len() {
                    if older != at && self.conns[older].generation > 0 {
                        self.answers.push_back((older, server::Input::Superseded));
                    }
                }
                let outbox = hello.outbox.instance.0.as_u128();
                self.conns[at].outbox = outbox;
                let admission = Admission {
                    epoch: self.hub.epoch,
                    head,
                    generation: self.hub.generation,
                    now: WallMs(0),
                    report_n: self.hub.reports.get(&outbox).map_or(0, |(n, _)| *n),
                };
                self.answers
                    .push_back((at, server::Input::Admitted(admission)));
            }
            HubWork::Load(at, after, limit, max_bytes) => {
                let mut waiting = self
                    .hub
                    .mail
                    .iter()
                    .filter(|m| m.seq > after && !m.terminal)
                    .peekable();
                let mut rows: Vec<Row> = Vec::new();
                let mut bytes = 0;
                while let Some(mail) = waiting.peek() {
                    let row = row(mail.seq, mail.id);
                    bytes += row.json.len() as u64;
                    if rows.len() >= limit as usize || (!rows.is_empty() && bytes > max_bytes) {
                        break;
                    }
                    rows.push(row);
                    waiting.next();
                }
                let more = waiting.next().is_some();
                self.answers
                    .push_back((at, server::Input::Loaded { rows, more }));
            }
            HubWork::Ack(at, seq) => {
                if self.conns[at].generation == self.hub.generation {
                    self.answers
                        .push_back((at, server::Input::AckStored { seq }));
                }
            }
            HubWork::Reports(at, reports) => {
                if self.conns[at].generation == self.hub.generation {
                    let instance = self.conns[at].outbox;
                    let (through, rows) = self.hub.reports.entry(instance).or_default();
                    for report in reports {
                        assert!(report.n > *through, "report {} twice", report.n);
                        *through = report.n;
                        rows.push((report.n, report.id.as_u128()));
                    }
                    let stored = server::Input::ReportsStored {
                        through_n: *through,
                        rejected: Vec::new(),
                    };
                    self.answers.push_back((at, stored));
                }
            }
            HubWork::Verify(at) => {
                let verdict = if std::mem::take(&mut self.refuse_token) {
                    server::Input::TokenRefused {
                        code: "token_expired".into(),
                    }
                } else {
                    server::Input::TokenAccepted
                };
                self.answers.push_back((at, verdict));
            }
        }
    }
}

fn row(seq: Seq, id: u128) -> Row {
    let envelope = Envelope {
        id: EnvelopeId::from_u128(id),
        kind: EnvelopeKind::Message,
        from: Sender {
            name: "ci".into(),
            trust: Trust::Inform,
        },
        to: Address::default(),
        priority: Priority::Normal,
        body: serde_json::json!({"content": "x".repeat(usize::try_from(id % 7).unwrap_or(0) * 40)}),
        wake: false,
        created_at: WallMs(0),
        expires_at: WallMs(1),
        attempt: None,
        hops: 0,
        reply_to: None,
    };
    Row {
        seq,
        json: encode(&envelope).into(),
    }
}
