//! `GET /connect`: one WebSocket drives one [`LinkServer`].
//!
//! The machine decides; this shell carries out. One task owns the socket: it takes the machine's outputs in order,
//! writes frames under a deadline, runs stores and loads beside the reading (the machine asks for one of each at a
//! time), and feeds back what happened. It waits for, in this order of preference: the hub's drain, a notice from
//! another connection or the revocation, a finished store, a committed row, a frame, the machine's own time-out.
//!
//! A connection is refused before the upgrade by an HTTP answer (`problem+json`, with the hub's time on clock skew),
//! after it by an `error` frame and a close code. At the end what the device sent is still committed.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::response::Response;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::guard::bearer;
use super::mailbox::{Connection, Refusal};
use super::presence::Notice;
use super::problem::{ApiError, ApiResult};
use super::records::DeviceRecord;
use super::state::Hub;
use super::store::{Feed, Mailbox, Pushed, StoreError};
use crate::core::server::{Admission, Input, LinkServer, Output};
use crate::domain::{Code, Seq, limits};
use crate::wire::{CloseCode, SUBPROTOCOL, encode, encode_deliver};

/// The library's read buffer: its default costs 131 KiB per idle connection.
const READ_BUFFER: usize = 4 << 10;
/// What the library takes of a message; above the machine's limit, so that the machine refuses with its own words.
const MAX_MESSAGE: usize = limits::MAX_FRAME_BYTES + (64 << 10);
/// Time for a write.
const WRITE: Duration = Duration::from_secs(10);
/// Time for the peer's close frame, and for the stores that are under way at the end.
const CLOSE: Duration = Duration::from_secs(2);
const FLUSH: Duration = Duration::from_secs(10);
/// Devices come back from a planned restart after this, and within this more, milliseconds.
const RESTART_AFTER_MS: u64 = 500;
const RESTART_SPREAD_MS: u64 = 4_500;

/// The upgrade: version, credential, then the socket's own task.
pub(crate) async fn connect(State(hub): State<Arc<Hub>>, request: Request) -> ApiResult<Response> {
    if hub.draining.is_cancelled() {
        return Err(ApiError::new(Code::GoingAway, "the hub is stopping").retry_after(2));
    }
    let (mut parts, _) = request.into_parts();
    let token = bearer(&parts)?.to_owned();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &())
        .await
        .map_err(|e| {
            ApiError::new(Code::ProtocolError, format!("no WebSocket upgrade: {e}"))
                .hint("only a daemon connects here")
        })?
        .protocols([SUBPROTOCOL]);
    if upgrade.selected_protocol().is_none() {
        return Err(ApiError::new(
            Code::VersionUnsupported,
            format!("this hub speaks `{SUBPROTOCOL}` only"),
        )
        .hint("bring the daemon and the hub to versions that share a sub-protocol"));
    }
    let device = hub.verify_device(&token)?;
    let sockets = hub.sockets.clone();
    Ok(upgrade
        .read_buffer_size(READ_BUFFER)
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .on_upgrade(move |ws| {
            // The HTTP server forgets upgraded connections: the hub tracks them itself.
            sockets.track_future(Socket::new(hub, device, ws).run())
        }))
}

/// What a job beside the reading came to.
enum Job {
    Admitted(Result<(Arc<Connection>, Admission, Feed), Refusal>),
    Done(Input),
}

struct Socket {
    hub: Arc<Hub>,
    device: Arc<DeviceRecord>,
    ws: WebSocket,
    machine: LinkServer,
    connection: Option<Arc<Connection>>,
    feed: Option<Feed>,
    notices: mpsc::Receiver<Notice>,
    notify: mpsc::Sender<Notice>,
    jobs: FuturesUnordered<BoxFuture<'static, Job>>,
    drained: bool,
}

/// The transport is over.
struct Gone;

impl Socket {
    fn new(hub: Arc<Hub>, device: Arc<DeviceRecord>, ws: WebSocket) -> Self {
        let machine = LinkServer::new(hub.link.clone(), hub.mono.now());
        let (notify, notices) = mpsc::channel(2);
        Self {
            hub,
            device,
            ws,
            machine,
            connection: None,
            feed: None,
            notices,
            notify,
            jobs: FuturesUnordered::new(),
            drained: false,
        }
    }

    async fn run(mut self) {
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
                    self.write(Message::Text(encode(&frame).into())).await?;
                    wrote = true;
                }
                Output::Deliver(row) => {
                    let text = encode_deliver(row.seq, &row.json);
                    self.write(Message::Text(text.into())).await?;
                    wrote = true;
                }
                Output::Ping => {
                    self.write(Message::Ping(axum::body::Bytes::new())).await?;
                    wrote = true;
                }
                Output::Close { code, reason } => {
                    self.goodbye(code, reason).await;
                    return Ok(());
                }
                other => self.start(other),
            }
        }
        if wrote {
            within(self.ws.flush()).await?;
        }
        Ok(())
    }

    async fn write(&mut self, message: Message) -> Result<(), Gone> {
        within(self.ws.feed(message)).await
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
                Notice::Revoked => Input::Revoked,
            },
            Some(job) = self.jobs.next() => match job {
                Job::Done(input) => input,
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
            message = self.ws.recv() => match message {
                Some(Ok(Message::Text(text))) => Input::Text(text.as_str().to_owned()),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => Input::Heard,
                Some(Ok(Message::Binary(_))) => unreadable("no frame is binary"),
                Some(Ok(Message::Close(_))) | None => return Err(Gone),
                // Told to the peer if it is still there; a transport that broke does not take the words.
                Some(Err(e)) => unreadable(&e.to_string()),
            },
            () = until(due) => {
                self.machine.handle_timeout(self.hub.mono.now());
                return Ok(());
            }
        };
        self.machine.handle(input, self.hub.mono.now());
        Ok(())
    }

    /// Sends the close frame and waits a little for the peer's, so that it is read and not reset.
    async fn goodbye(&mut self, code: CloseCode, reason: String) {
        let frame = CloseFrame {
            code: code.as_u16(),
            reason: reason.into(),
        };
        if within(self.ws.send(Message::Close(Some(frame))))
            .await
            .is_ok()
        {
            let peer = async {
                while let Some(Ok(message)) = self.ws.recv().await {
                    if matches!(message, Message::Close(_)) {
                        break;
                    }
                }
            };
            // A silent peer is let go.
            drop(timeout(CLOSE, peer).await);
        }
    }

    /// Carries out the stores that are under way, and frees the device's place.
    async fn finish(mut self) {
        let hub = Arc::clone(&self.hub);
        let jobs = async {
            while let Some(job) = self.jobs.next().await {
                if let Job::Admitted(Ok((connection, ..))) = job {
                    self.connection = Some(connection);
                }
            }
        };
        if timeout(FLUSH, jobs).await.is_err() {
            tracing::warn!(device = %self.device.id, "stores of an ended connection did not finish in time");
        }
        if let Some(c) = &self.connection
            && hub.presence.leave(&c.device, c.ticket)
        {
            hub.seen(&c.account, &c.device).await;
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

async fn within<E>(write: impl Future<Output = Result<(), E>>) -> Result<(), Gone> {
    match timeout(WRITE, write).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(Gone),
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
