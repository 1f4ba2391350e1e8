//! A hub and a daemon in memory around the real link machines: what is durable, what is only under way, and the
//! network between them. Nothing moves unless a step of the plan moves it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use remote_collab::core::client::{self, ClientConfig, DialFailure, LinkClient};
use remote_collab::core::server::{self, LinkServer, ServerConfig};
use remote_collab::domain::{InstanceId, Report, Ts};

use super::device::{DeviceDisk, DeviceWork};
use super::hub::{HubDisk, HubWork};

/// The hub's frame limit in these tests; a large report exceeds it.
pub(super) const MAX_FRAME: usize = 4_096;

#[derive(Debug, Clone)]
pub(super) enum Msg {
    Text(String),
    Ping(u64),
    Pong(u64),
    Close(Option<u16>, String),
}

/// One TCP connection: first in, first out, each way.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) server: LinkServer,
    pub(super) generation: u64,
    /// The outbox that says hello here.
    pub(super) outbox: u128,
    pub(super) up: VecDeque<Msg>,
    pub(super) down: VecDeque<Msg>,
    pub(super) device_open: bool,
    pub(super) hub_open: bool,
    pub(super) stalled: bool,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Post(u8),
    Report {
        large: bool,
    },
    Finish(u8),
    Up {
        back: u8,
        count: u8,
    },
    Down {
        count: u8,
    },
    Device(u8),
    Hub(u8),
    Answers(u8),
    Notes(u8),
    /// The newest notes overtake older ones, which are dropped.
    SkipNotes(u8),
    /// Everything moves a little, in turn.
    Flow(u8),
    Dial,
    Pass(u32),
    Cut {
        keep_up: u8,
        hub_knows: bool,
    },
    HubCut {
        keep_down: u8,
    },
    Stall,
    CrashDevice {
        hub_knows: bool,
    },
    CrashHub {
        device_knows: bool,
    },
    LoseQueue,
    RestoreHub(u8),
    RestoreOutbox,
    RefuseToken,
    Expire,
    FailDial(u8),
    Drain,
    Connect,
    Disconnect,
    Woke,
}

pub(crate) struct World {
    pub(super) now: Ts,
    pub(super) window: u32,
    pub(super) window_bytes: u64,
    pub(super) serial: u128,
    // the hub
    pub(super) hub: HubDisk,
    pub(super) hub_work: VecDeque<HubWork>,
    pub(super) answers: VecDeque<(usize, server::Input)>,
    pub(super) notes: VecDeque<(usize, server::Input)>,
    pub(super) refuse_token: bool,
    // the network
    pub(super) conns: Vec<Conn>,
    pub(super) dialing: bool,
    pub(super) fail_dial: Option<u8>,
    // the device
    pub(super) client: LinkClient,
    pub(super) device: DeviceDisk,
    pub(super) device_work: VecDeque<DeviceWork>,
    pub(super) conn: Option<usize>,
    pub(super) retry_at: Option<Ts>,
    // the books
    pub(super) last_id: u128,
    pub(super) durable_ever: BTreeSet<u128>,
    /// Ids of reports that the present outbox should bring to the hub.
    pub(super) reported: Vec<u128>,
    pub(super) outbox_backup: Option<(Vec<Report>, u64)>,
    pub(super) hub_restored: bool,
    /// An older outbox was put back: nothing is written until it met the hub, else its numbers could not tell.
    pub(super) put_back: bool,
}

impl World {
    pub(crate) fn new(window: u32, window_bytes: u64) -> Self {
        let mut world = Self {
            now: Ts(0),
            window,
            window_bytes,
            serial: 100,
            hub: HubDisk {
                epoch: InstanceId::from_u128(1),
                next_seq: 1,
                mail: Vec::new(),
                generation: 0,
                reports: BTreeMap::new(),
            },
            hub_work: VecDeque::new(),
            answers: VecDeque::new(),
            notes: VecDeque::new(),
            refuse_token: false,
            conns: Vec::new(),
            dialing: false,
            fail_dial: None,
            client: LinkClient::new(ClientConfig::default()),
            device: DeviceDisk {
                instance: InstanceId::from_u128(2),
                queue: Vec::new(),
                known: BTreeSet::new(),
                cursor: None,
                outbox: Vec::new(),
                next_n: 1,
            },
            device_work: VecDeque::new(),
            conn: None,
            retry_at: None,
            last_id: 0,
            durable_ever: BTreeSet::new(),
            reported: Vec::new(),
            outbox_backup: None,
            hub_restored: false,
            put_back: false,
        };
        world.feed(client::Input::Connect);
        world
    }

    pub(super) fn fresh(&mut self) -> InstanceId {
        self.serial += 1;
        InstanceId::from_u128(self.serial)
    }

    pub(crate) fn step(&mut self, step: &Step) {
        match *step {
            Step::Post(count) => {
                for _ in 0..count {
                    self.last_id += 1;
                    self.hub_work.push_back(HubWork::Append(self.last_id));
                }
            }
            Step::Report { large } => self.write_report(large),
            Step::Finish(nth) => {
                // Expired, recalled or done: the hub has no reason to deliver it any more.
                let len = self.hub.mail.len().max(1);
                if let Some(mail) = self.hub.mail.get_mut(nth as usize % len) {
                    mail.terminal = true;
                }
            }
            Step::Up { back, count } => {
                let Some(conn) = self.conns.len().checked_sub(1 + back as usize) else {
                    return;
                };
                for _ in 0..count {
                    self.up(conn);
                }
            }
            Step::Down { count } => {
                for _ in 0..count {
                    self.down();
                }
            }
            Step::Device(count) => (0..count).for_each(|_| self.device_step()),
            Step::Hub(count) => (0..count).for_each(|_| self.hub_step()),
            Step::Answers(count) => {
                for _ in 0..count {
                    if let Some((conn, input)) = self.answers.pop_front() {
                        self.feed_server(conn, input);
                    }
                }
            }
            Step::Notes(count) => {
                for _ in 0..count {
                    if let Some((conn, input)) = self.notes.pop_front() {
                        self.feed_server(conn, input);
                    }
                }
            }
            Step::SkipNotes(count) => {
                for _ in 0..count {
                    let first = self.notes.front().map(|(conn, _)| *conn);
                    let later = self.notes.iter().skip(1).any(|(c, _)| Some(*c) == first);
                    if later {
                        self.notes.pop_front();
                    }
                }
            }
            Step::Flow(rounds) => (0..rounds).for_each(|_| self.round()),
            Step::Dial => self.dial(),
            Step::Pass(ms) => self.pass(u64::from(ms)),
            Step::Cut { keep_up, hub_knows } => self.cut(keep_up as usize, hub_knows),
            Step::HubCut { keep_down } => {
                if let Some(conn) = self.conn {
                    let conn = &mut self.conns[conn];
                    conn.hub_open = false;
                    conn.down.truncate(keep_down as usize);
                }
            }
            Step::Stall => {
                if let Some(conn) = self.conn {
                    self.conns[conn].stalled = true;
                }
            }
            Step::CrashDevice { hub_knows } => self.crash_device(hub_knows),
            Step::CrashHub { device_knows } => self.crash_hub(device_knows),
            Step::LoseQueue => {
                self.crash_device(true);
                let instance = self.fresh();
                self.device = DeviceDisk {
                    instance,
                    queue: Vec::new(),
                    known: BTreeSet::new(),
                    cursor: None,
                    outbox: Vec::new(),
                    next_n: 1,
                };
                self.reported.clear();
                self.outbox_backup = None;
                self.put_back = false;
            }
            Step::RestoreHub(keep) => {
                self.crash_hub(true);
                self.hub.epoch = self.fresh();
                self.hub.mail.truncate(keep as usize);
                for (through, rows) in self.hub.reports.values_mut() {
                    rows.truncate(keep as usize);
                    *through = rows.last().map_or(0, |(n, _)| *n);
                }
                self.hub_restored = true;
            }
            Step::RestoreOutbox => match self.outbox_backup.take() {
                None => {
                    self.outbox_backup = Some((self.device.outbox.clone(), self.device.next_n));
                }
                Some((outbox, next_n)) => {
                    self.crash_device(true);
                    // Reports written after the backup are gone with it, except those that the hub has.
                    let kept: BTreeSet<u128> = outbox.iter().map(|r| r.id.as_u128()).collect();
                    let at_hub = self.reports_at_hub();
                    self.reported
                        .retain(|id| kept.contains(id) || at_hub.contains(id));
                    self.device.outbox = outbox;
                    self.device.next_n = next_n;
                    self.put_back = true;
                }
            },
            Step::RefuseToken => self.refuse_token = true,
            Step::Expire => {
                if let Some(conn) = self.conn {
                    let code = "token_expired".to_owned();
                    self.feed_server(conn, server::Input::TokenRefused { code });
                }
            }
            Step::FailDial(kind) => self.fail_dial = Some(kind),
            Step::Drain => {
                for conn in 0..self.conns.len() {
                    self.feed_server(conn, server::Input::Drain { after_ms: 500 });
                }
            }
            Step::Connect => self.feed(client::Input::Connect),
            Step::Disconnect => self.feed(client::Input::Disconnect),
            Step::Woke => self.feed(client::Input::Woke),
        }
    }

    // ---- the network ----

    pub(super) fn dial(&mut self) {
        if !std::mem::take(&mut self.dialing) {
            return;
        }
        let failure = self.fail_dial.take().map(|kind| match kind % 4 {
            0 => DialFailure::Network {
                detail: "refused".into(),
            },
            1 => DialFailure::Edge {
                status: 503,
                retry_after_s: None,
            },
            2 => DialFailure::Edge {
                status: 429,
                retry_after_s: Some(3),
            },
            _ => DialFailure::Refused {
                code: "clock_skew".into(),
                message: "your clock is off".into(),
                hub_offset_ms: Some(5),
                retry_after_s: None,
            },
        });
        if let Some(failure) = failure {
            return self.feed(client::Input::TransportFailed(failure));
        }
        let config = ServerConfig {
            window: self.window,
            window_bytes: self.window_bytes,
            max_frame_bytes: MAX_FRAME,
            ..ServerConfig::default()
        };
        self.conns.push(Conn {
            server: LinkServer::new(config, self.now),
            generation: 0,
            outbox: 0,
            up: VecDeque::new(),
            down: VecDeque::new(),
            device_open: true,
            hub_open: true,
            stalled: false,
        });
        self.conn = Some(self.conns.len() - 1);
        self.feed(client::Input::TransportUp);
    }

    /// One message arrives at the hub.
    pub(super) fn up(&mut self, at: usize) {
        let conn = &mut self.conns[at];
        if conn.stalled || !conn.hub_open {
            return;
        }
        let Some(msg) = conn.up.pop_front() else {
            return;
        };
        match msg {
            Msg::Text(text) => self.feed_server(at, server::Input::Text(text)),
            Msg::Ping(n) => {
                conn.down.push_back(Msg::Pong(n));
                self.feed_server(at, server::Input::Heard);
            }
            Msg::Pong(_) => self.feed_server(at, server::Input::Heard),
            Msg::Close(..) => conn.hub_open = false,
        }
    }

    /// One message arrives at the device.
    pub(super) fn down(&mut self) {
        let Some(at) = self.conn else { return };
        let conn = &mut self.conns[at];
        if conn.stalled {
            return;
        }
        let Some(msg) = conn.down.pop_front() else {
            if !conn.hub_open {
                self.closed(None, "end of stream");
            }
            return;
        };
        match msg {
            Msg::Text(text) => self.feed(client::Input::Text(text)),
            Msg::Ping(n) => {
                conn.up.push_back(Msg::Pong(n));
                self.feed(client::Input::Heard);
            }
            Msg::Pong(n) => self.feed(client::Input::Pong(n)),
            Msg::Close(code, reason) => self.closed(code, &reason),
        }
    }

    pub(super) fn closed(&mut self, code: Option<u16>, reason: &str) {
        if let Some(at) = self.conn.take() {
            self.conns[at].device_open = false;
            self.feed(client::Input::TransportClosed {
                code,
                detail: reason.to_owned(),
            });
        }
    }

    pub(super) fn cut(&mut self, keep_up: usize, hub_knows: bool) {
        if let Some(at) = self.conn {
            let conn = &mut self.conns[at];
            conn.up.truncate(keep_up);
            if hub_knows {
                conn.up.push_back(Msg::Close(None, String::new()));
            }
            self.closed(None, "cut");
        }
    }

    // ---- crashes ----

    pub(super) fn crash_device(&mut self, hub_knows: bool) {
        if let Some(at) = self.conn.take() {
            self.conns[at].device_open = false;
            if hub_knows {
                self.conns[at].up.push_back(Msg::Close(None, String::new()));
            }
        }
        self.dialing = false;
        self.device_work.clear();
        self.retry_at = None;
        self.client = LinkClient::new(ClientConfig::default());
        self.feed(client::Input::Connect);
    }

    pub(super) fn crash_hub(&mut self, device_knows: bool) {
        self.hub_work.clear();
        self.answers.clear();
        self.notes.clear();
        for conn in &mut self.conns {
            conn.hub_open = false;
            if !device_knows {
                conn.stalled = true;
            }
        }
    }

    // ---- time ----

    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now.plus(ms);
        while let Some(at) = self.next_event().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.fire();
        }
        self.now = end;
    }

    pub(super) fn next_event(&self) -> Option<Ts> {
        let servers = self.conns.iter().filter(|c| c.hub_open);
        servers
            .filter_map(|c| c.server.poll_timeout())
            .chain(self.client.poll_timeout())
            .map(|(at, _)| at)
            .chain(self.retry_at)
            .min()
    }

    pub(super) fn fire(&mut self) {
        if self.retry_at.is_some_and(|at| at <= self.now) {
            self.retry_at = None;
            self.feed(client::Input::RetryDue);
        }
        self.client.handle_timeout(self.now);
        self.device_outputs();
        for at in 0..self.conns.len() {
            if self.conns[at].hub_open {
                self.conns[at].server.handle_timeout(self.now);
                self.server_outputs(at);
            }
        }
    }
}
