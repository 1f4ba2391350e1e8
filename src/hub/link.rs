//! The shell of the hub's machine: one task drives one [`LinkServer`] over a [`Carrier`].
//!
//! The machine decides; this shell carries out. It takes the machine's outputs in order, runs stores and loads beside
//! the reading (the machine asks for one of each at a time), and feeds back what happened. It waits for, in this order
//! of preference: the hub's drain, a notice from another connection or the revocation, a finished store, a committed
//! row, something from the device, the machine's own time-out. At the end what the device sent is still committed.
//!
//! Two carriers exist: a WebSocket ([`super::socket`]) and the calls of a long-poll session ([`super::poll`]). What a
//! device may do, and when its connection ends, is the same on both because it is decided here and in the machine.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::mailbox::{Connection, Refusal};
use super::presence::Notice;
use super::records::DeviceRecord;
use super::state::Hub;
use super::store::{Feed, Mailbox, Pushed, StoreError};
use crate::core::server::{Admission, Input, LinkServer, Output, Row};
use crate::domain::{Code, Seq};
use crate::wire::{CloseCode, HubFrame};

/// Time for the stores that are under way at the end.
const FLUSH: Duration = Duration::from_secs(10);
/// Devices come back from a planned restart after this, and within this more, milliseconds.
const RESTART_AFTER_MS: u64 = 500;
const RESTART_SPREAD_MS: u64 = 4_500;

/// The transport is over.
pub(super) struct Gone;

/// Something from the device.
pub(super) enum Came {
    /// A text frame.
    Frame(String),
    /// A sign of life.
    Heard,
    /// A sign of life with a fresh credential that was verified.
    Verified,
    /// Something that holds no frame, and why.
    Unreadable(String),
    /// The end.
    Over,
}

/// What carries frames to one device and back.
pub(super) trait Carrier: Send {
    /// Sends a frame.
    fn send(&mut self, frame: HubFrame) -> impl Future<Output = Result<(), Gone>> + Send;
    /// Sends a row of the mailbox.
    fn deliver(&mut self, row: Row) -> impl Future<Output = Result<(), Gone>> + Send;
    /// Asks for a sign of life.
    fn ping(&mut self) -> impl Future<Output = Result<(), Gone>> + Send;
    /// Lets what was sent go.
    fn flush(&mut self) -> impl Future<Output = Result<(), Gone>> + Send;
    /// Says goodbye.
    fn close(&mut self, code: CloseCode, reason: String) -> impl Future<Output = ()> + Send;
    /// What comes next; may be cancelled.
    fn next(&mut self) -> impl Future<Output = Came> + Send;
    /// A store that the device waits for is done.
    fn stored(&mut self, _done: &Input) {}
}

/// What a job beside the reading came to.
enum Job {
    Admitted(Result<(Arc<Connection>, Admission, Feed), Refusal>),
    Done(Input),
}

pub(super) struct Shell<C> {
    hub: Arc<Hub>,
    device: Arc<DeviceRecord>,
    carrier: C,
    machine: LinkServer,
    connection: Option<Arc<Connection>>,
    feed: Option<Feed>,
    notices: mpsc::Receiver<Notice>,
    notify: mpsc::Sender<Notice>,
    jobs: FuturesUnordered<BoxFuture<'static, Job>>,
    drained: bool,
}

impl<C: Carrier> Shell<C> {
    pub(super) fn new(hub: Arc<Hub>, device: Arc<DeviceRecord>, carrier: C) -> Self {
        let machine = LinkServer::new(hub.link.clone(), hub.mono.now());
        let (notify, notices) = mpsc::channel(2);
        Self {
            hub,
            device,
            carrier,
            machine,
            connection: None,
            feed: None,
            notices,
            notify,
            jobs: FuturesUnordered::new(),
            drained: false,
        }
    }

    pub(super) async fn run(mut self) {
        tracing::debug!(device = %self.device.id, "a device connects");
        loop {
            if self.carry_out().await.is_err() || self.machine.is_closed() {
                break;
            }
            if self.wait().await.is_err() {
                break;
            }
        }
        self.finish().await;
    }

    /// Takes the machine's outputs until there are none, then lets the frames go.
    async fn carry_out(&mut self) -> Result<(), Gone> {
        let mut wrote = false;
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(frame) => {
                    self.carrier.send(frame).await?;
                    wrote = true;
                }
                Output::Deliver(row) => {
                    self.hub.handed.raise(&self.device.id, row.seq);
                    self.carrier.deliver(row).await?;
                    wrote = true;
                }
                Output::Ping => {
                    self.carrier.ping().await?;
                    wrote = true;
                }
                Output::Close { code, reason } => {
                    self.carrier.close(code, reason).await;
                    return Ok(());
                }
                other => self.start(other),
            }
        }
        if wrote {
            self.carrier.flush().await?;
        }
        Ok(())
    }

    /// Starts what is done beside the reading.
    fn start(&mut self, output: Output) {
        let hub = Arc::clone(&self.hub);
        match (output, self.connection.clone()) {
            (Output::Admit(hello), _) => {
                let (device, notify) = (Arc::clone(&self.device), self.notify.clone());
                self.jobs.push(
                    async move { Job::Admitted(hub.admit(&device, &hello, notify).await) }.boxed(),
                );
            }
            (
                Output::Load {
                    after,
                    limit,
                    max_bytes,
                },
                Some(c),
            ) => self.jobs.push(
                async move {
                    let rows = hub
                        .store
                        .read_after(&c.mailbox, after, limit, max_bytes)
                        .await;
                    Job::Done(match rows {
                        Ok(found) => Input::Loaded {
                            rows: found.rows,
                            more: found.more,
                        },
                        Err(e) => failed(&hub, &c, e),
                    })
                }
                .boxed(),
            ),
            (Output::StoreAck { seq }, Some(c)) => self.jobs.push(
                async move {
                    Job::Done(match hub.store_ack(&c, seq).await {
                        Ok(()) => Input::AckStored { seq },
                        Err(e) => failed(&hub, &c, e),
                    })
                }
                .boxed(),
            ),
            (Output::StoreReports(reports), Some(c)) => self.jobs.push(
                async move {
                    Job::Done(match hub.store_reports(&c, &reports).await {
                        Ok((through_n, rejected)) => Input::ReportsStored {
                            through_n,
                            rejected,
                        },
                        Err(e) => failed(&hub, &c, e),
                    })
                }
                .boxed(),
            ),
            (Output::VerifyToken(token), _) => {
                let verdict = match hub.verify_device_as(&self.device.id, &token) {
                    Ok(_) => Input::TokenAccepted,
                    Err(e) => Input::TokenRefused { code: e.0.code },
                };
                self.jobs.push(async move { Job::Done(verdict) }.boxed());
            }
            (Output::Capacity(free), Some(c)) => {
                hub.presence.set_capacity(&c.device, c.ticket, free);
                hub.slots.told(&c.device);
            }
            (Output::Synced, Some(c)) => {
                hub.presence.synced(&c.device, c.ticket);
                tracing::info!(device = %c.device, "a device is in sync");
            }
            // Before admission the machine asks for nothing else.
            (_, _) => {}
        }
    }

    /// Waits for the next thing to happen and tells the machine.
    async fn wait(&mut self) -> Result<(), Gone> {
        let due = self.machine.poll_timeout().map(|(at, _)| at);
        let due = due.map(|at| Instant::from_std(self.hub.mono.instant(at)));
        let (rows, missed) = match &mut self.feed {
            Some(Feed { rows, missed }) => (Some(rows), Some(missed)),
            None => (None, None),
        };
        let input = tokio::select! {
            biased;
            () = self.hub.draining.cancelled(), if !self.drained => {
                self.drained = true;
                let spread = u64::try_from(Uuid::new_v4().as_u128() % u128::from(RESTART_SPREAD_MS));
                Input::Drain { after_ms: RESTART_AFTER_MS + spread.unwrap_or(0) }
            }
            Some(notice) = self.notices.recv() => match notice {
                Notice::Superseded => Input::Superseded,
                Notice::TakenOver => Input::TakenOver,
                Notice::Revoked => Input::Revoked,
            },
            Some(job) = self.jobs.next() => match job {
                Job::Done(input) => {
                    self.carrier.stored(&input);
                    input
                }
                Job::Admitted(Ok((connection, admission, feed))) => {
                    self.connection = Some(connection);
                    self.feed = Some(feed);
                    Input::Admitted(admission)
                }
                Job::Admitted(Err(r)) => Input::Refused {
                    code: r.code.as_str().to_owned(),
                    message: r.message,
                    close: r.close,
                },
            },
            Some(Pushed { prev, row }) = next_row(rows) => Input::Pushed { prev, row },
            head = next_missed(missed) => Input::Wake { head },
            came = self.carrier.next() => match came {
                Came::Frame(text) => Input::Text(text),
                Came::Heard => Input::Heard,
                Came::Verified => {
                    self.machine.handle(Input::Heard, self.hub.mono.now());
                    Input::TokenAccepted
                }
                Came::Unreadable(why) => unreadable(&why),
                Came::Over => return Err(Gone),
            },
            () = until(due) => {
                self.machine.handle_timeout(self.hub.mono.now());
                return Ok(());
            }
        };
        self.machine.handle(input, self.hub.mono.now());
        Ok(())
    }

    /// Carries out the stores that are under way, and frees the device's place.
    async fn finish(mut self) {
        let hub = Arc::clone(&self.hub);
        let jobs = async {
            while let Some(job) = self.jobs.next().await {
                match job {
                    Job::Admitted(Ok((connection, ..))) => self.connection = Some(connection),
                    Job::Admitted(Err(_)) => {}
                    Job::Done(input) => self.carrier.stored(&input),
                }
            }
        };
        if timeout(FLUSH, jobs).await.is_err() {
            tracing::warn!(device = %self.device.id, "stores of an ended connection did not finish in time");
        }
        if let Some(c) = &self.connection
            && hub.presence.leave(&c.device, c.ticket)
        {
            hub.left(c).await;
            tracing::info!(device = %c.device, "a device left");
        }
    }
}

/// What a failed store means for the connection.
fn failed(hub: &Hub, c: &Connection, e: StoreError) -> Input {
    if e == StoreError::Fenced && !hub.presence.holds(&c.device, c.ticket) {
        return Input::Superseded;
    }
    let refusal = Refusal::from(e);
    Input::Refused {
        code: refusal.code.as_str().to_owned(),
        message: refusal.message,
        close: refusal.close,
    }
}

/// What a message that cannot hold a frame ends the connection with.
fn unreadable(why: &str) -> Input {
    let (code, close) = if why.contains("too long") {
        (Code::TooLarge, CloseCode::TooLarge)
    } else {
        (Code::ProtocolError, CloseCode::Protocol)
    };
    Input::Refused {
        code: code.as_str().to_owned(),
        message: why.to_owned(),
        close,
    }
}

async fn next_row(rows: Option<&mut mpsc::Receiver<Pushed>>) -> Option<Pushed> {
    match rows {
        Some(rows) => rows.recv().await,
        None => std::future::pending().await,
    }
}

async fn next_missed(missed: Option<&mut tokio::sync::watch::Receiver<Seq>>) -> Seq {
    if let Some(missed) = missed
        && missed.changed().await.is_ok()
    {
        return *missed.borrow_and_update();
    }
    std::future::pending().await
}

async fn until(due: Option<Instant>) {
    match due {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
