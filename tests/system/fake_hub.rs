//! A hub that does what a test tells it: takes connections, shows their frames, says any frame.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path as InPath, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::serve::Listener;
use remote_collab::daemon::credentials::{Credentials, Enrolment};
use remote_collab::domain::{
    AccountId, Cursor, DeviceId, Envelope, Epoch, Problem, Report, Seq, WallMs,
};
use remote_collab::wire::{
    DeviceFrame, Hello, HubFrame, Resume, SUBPROTOCOL, Welcome, decode, encode,
};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// The deadline of every wait in these tests.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
pub(crate) const EPOCH: Epoch = Epoch::from_u128(0xE);

/// What to answer instead of an upgrade.
#[derive(Debug, Clone)]
pub(crate) enum Refusal {
    Problem(Problem),
    Edge(StatusCode),
}

/// The results that devices upload, kept as the scheme says.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    /// By task: the bytes so far and whether they are all.
    pub(crate) texts: BTreeMap<String, (Vec<u8>, bool)>,
    /// Pieces that were taken.
    pub(crate) pieces: usize,
    /// What to answer instead.
    pub(crate) refusal: Option<Problem>,
}

struct Shared {
    uploads: watch::Sender<Uploads>,
    refusals: Mutex<Vec<Refusal>>,
    connections: mpsc::UnboundedSender<Connection>,
    tokens: Mutex<Vec<String>>,
}

/// The hub; its task ends with the runtime of the test.
pub(crate) struct FakeHub {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepted: mpsc::UnboundedReceiver<Connection>,
}

/// One upgraded connection.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: WebSocket,
}

impl FakeHub {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self::serve(listener, address)
    }

    pub(crate) fn serve<L>(listener: L, address: SocketAddr) -> Self
    where
        L: Listener<Addr = SocketAddr> + Send + 'static,
    {
        let (connections, accepted) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            uploads: watch::channel(Uploads::default()).0,
            refusals: Mutex::default(),
            connections,
            tokens: Mutex::default(),
        });
        let app = Router::new()
            .route("/connect", get(connect))
            .route("/tasks/{id}/result", put(upload))
            .with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            shared,
            accepted,
        }
    }

    /// Answers the next dials with these, then upgrades again.
    pub(crate) fn refuse(&self, mut refusals: Vec<Refusal>) {
        refusals.reverse();
        *self.shared.refusals.lock().unwrap() = refusals;
    }

    /// The uploads, as they change.
    pub(crate) fn uploads(&self) -> &watch::Sender<Uploads> {
        &self.shared.uploads
    }

    /// The bearer tokens seen so far.
    pub(crate) fn tokens(&self) -> Vec<String> {
        self.shared.tokens.lock().unwrap().clone()
    }

    /// The next connection.
    pub(crate) async fn accept(&mut self) -> Connection {
        timeout(DEADLINE, self.accepted.recv())
            .await
            .expect("no connection came in time")
            .unwrap()
    }

    /// The next connection with its hello, welcomed as continuing.
    pub(crate) async fn greet(&mut self) -> (Connection, Hello) {
        let mut connection = self.accept().await;
        let hello = connection.hello().await;
        let resume = match hello.last {
            Some(Cursor { epoch, .. }) if epoch == EPOCH => Resume::Continue,
            _ => Resume::Reset,
        };
        connection.welcome(resume, 0).await;
        (connection, hello)
    }

    /// Enrols a device in this folder, without any network.
    pub(crate) fn enrol(&self, dir: &Path, scheme: &str) {
        Credentials::key(dir).unwrap();
        let host = if scheme == "https" {
            "localhost"
        } else {
            "127.0.0.1"
        };
        let enrolment = Enrolment {
            hub: format!("{scheme}://{host}:{}", self.address.port())
                .parse()
                .unwrap(),
            hub_id: "fake".into(),
            device: DeviceId::new("laptop").unwrap(),
            account: AccountId::new("default").unwrap(),
        };
        Credentials::save(dir, &enrolment).unwrap();
    }
}

async fn upload(
    State(shared): State<Arc<Shared>>,
    InPath(id): InPath<String>,
    Query(query): Query<BTreeMap<String, String>>,
    body: String,
) -> Response {
    let number = |key: &str| query[key].parse::<usize>().unwrap();
    let (offset, total) = (number("offset"), number("total"));
    assert_eq!((number("attempt"), query["sha256"].len()), (1, 64));
    let mut answer = None;
    shared.uploads.send_modify(|uploads| {
        if let Some(problem) = &uploads.refusal {
            answer = Some(refused(problem));
            return;
        }
        let (text, complete) = uploads.texts.entry(id).or_default();
        if offset == text.len() && !body.is_empty() {
            text.extend_from_slice(body.as_bytes());
            *complete = text.len() == total;
            uploads.pieces += 1;
        }
        let stands =
            serde_json::json!({"received": text.len(), "total": total, "complete": complete});
        answer = Some(axum::Json(stands).into_response());
    });
    answer.unwrap()
}

fn refused(problem: &Problem) -> Response {
    let mut response = Response::new(Body::from(serde_json::to_vec(problem).unwrap()));
    *response.status_mut() = StatusCode::from_u16(problem.status).unwrap();
    let kind = header::HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn connect(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let bearer = headers[header::AUTHORIZATION].to_str().unwrap();
    shared.tokens.lock().unwrap().push(bearer.to_owned());
    let refusal = shared.refusals.lock().unwrap().pop();
    match refusal {
        Some(Refusal::Problem(problem)) => refused(&problem),
        Some(Refusal::Edge(status)) => status.into_response(),
        None => upgrade
            .protocols([SUBPROTOCOL])
            .on_upgrade(move |socket| async move {
                drop(shared.connections.send(Connection { socket }));
            }),
    }
}

impl Connection {
    /// The next frame.
    pub(crate) async fn recv(&mut self) -> DeviceFrame {
        self.recv_or_end().await.expect("the device closed")
    }

    /// The next frame, or `None` when the device closed.
    pub(crate) async fn recv_or_end(&mut self) -> Option<DeviceFrame> {
        loop {
            match timeout(DEADLINE, self.socket.recv())
                .await
                .expect("silence")
            {
                Some(Ok(Message::Text(text))) => {
                    return Some(decode(text.as_str(), 1 << 20).unwrap());
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    pub(crate) async fn hello(&mut self) -> Hello {
        match self.recv().await {
            DeviceFrame::Hello(hello) => hello,
            other => panic!("{other:?} instead of hello"),
        }
    }

    pub(crate) async fn welcome(&mut self, resume: Resume, report_n: u64) {
        self.welcome_with(|w| {
            w.resume = resume;
            w.report_n = report_n;
        })
        .await;
    }

    pub(crate) async fn welcome_with(&mut self, change: impl FnOnce(&mut Welcome)) {
        let mut welcome = Welcome {
            epoch: EPOCH,
            head: Seq(0),
            resume: Resume::Continue,
            generation: 1,
            now: WallMs(0),
            heartbeat_s: 20,
            window: 256,
            max_frame_bytes: 1 << 20,
            auth_expires_in_s: 900,
            report_n: 0,
        };
        change(&mut welcome);
        self.send(HubFrame::Welcome(welcome)).await;
    }

    pub(crate) async fn send(&mut self, frame: HubFrame) {
        self.socket
            .send(Message::text(encode(&frame)))
            .await
            .unwrap();
    }

    /// Sends what may be no frame.
    pub(crate) async fn send_text(&mut self, text: String) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    pub(crate) async fn deliver(&mut self, seq: u64, envelope: Envelope) {
        self.send(HubFrame::Deliver {
            seq: Seq(seq),
            envelope: Box::new(envelope),
        })
        .await;
    }

    pub(crate) async fn synced(&mut self, seq: u64) {
        self.send(HubFrame::Synced { seq: Seq(seq) }).await;
    }

    /// Waits for an ack that covers `seq`; gives how many acks came.
    pub(crate) async fn acked(&mut self, seq: u64) -> usize {
        for acks in 1.. {
            match self.recv().await {
                DeviceFrame::Ack { seq: got } if got.0 >= seq => return acks,
                DeviceFrame::Ack { .. } => {}
                other => panic!("{other:?} instead of an ack"),
            }
        }
        unreachable!()
    }

    /// The next report.
    pub(crate) async fn report(&mut self) -> Report {
        match self.recv().await {
            DeviceFrame::Report(report) => report,
            other => panic!("{other:?} instead of a report"),
        }
    }

    pub(crate) async fn close(mut self, code: u16) {
        let frame = CloseFrame {
            code,
            reason: "test".into(),
        };
        drop(self.socket.send(Message::Close(Some(frame))).await);
    }
}
