//! How long a posted task takes until it is durable on the device, beside what this machine takes for the same steps.
//!
//! Measured: `POST /tasks` with a body of 1 KiB at a real hub, until the producer has its 202 **and** the connected
//! daemon has committed the task to its queue; one at a time, after a pause of 2 ms. Hub, daemon and producer have a
//! runtime each; sockets and files are real. The time of the commit is taken on the thread that made it.
//!
//! The bound is the sum of what cannot be left out, each probed at its p50 with the same pauses and the same client,
//! before, between and after the rounds: an HTTP round trip (axum, 1 KiB) + append and fdatasync of 1 KiB (the hub) +
//! half a WebSocket echo (1 KiB) + append and fdatasync once more (the daemon). A shared machine changes its speed
//! within seconds, so only the ratio means something: the rounds are short, each is held against the probes at both of
//! its ends, and the median of the rounds counts.
//!
//! `cargo bench --bench latency [-- --check]`: with `--check` a missed bar is the exit code 1.

#![allow(clippy::print_stdout)]

mod common;

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::ws::{Message as ServerMessage, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use futures::{SinkExt as _, StreamExt as _};
use remote_collab::auth::Token;
use remote_collab::config::{DaemonConfig, Sources};
use remote_collab::core::client::ClientConfig;
use remote_collab::daemon::assembly::{self, Whole};
use remote_collab::daemon::credentials::Credentials;
use remote_collab::daemon::http::HubHttp;
use remote_collab::daemon::link::LinkStatus;
use remote_collab::daemon::projects::Projects;
use remote_collab::daemon::status::Claude;
use remote_collab::daemon::way::Way;
use remote_collab::daemon::{Options, clock};
use remote_collab::domain::{AccountId, Cursor, Trust};
use remote_collab::hub::{self, AdminCall, HubConfig, HubHandle, Rate};
use remote_collab::local::Places;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Message;

use common::{Samples, head, median, row, verdict};

const BAR: f64 = 1.8;
const ROUNDS: usize = 8;
const MEASURED: usize = 250;
const PROBED: usize = 100;
/// Of each kind before the first that counts.
const WARM_UP: usize = 20;
const PAUSE: Duration = Duration::from_millis(2);
const BODY: usize = 1 << 10;
const DEADLINE: Duration = Duration::from_secs(10);
const PROJECT: &str = "bench";

fn main() -> Result<ExitCode> {
    // The project's own folder: temporary folders of the system may be in memory, where nothing is written.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let probes_rt = Builder::new_multi_thread().enable_all().build()?;
    let probes = Probes::start(&probes_rt, dir.path())?;
    let product = Product::start(dir.path())?;
    let here = Builder::new_current_thread().enable_all().build()?;

    let (mut bounds, mut rounds) = (Vec::new(), Vec::new());
    let mut probed = Probed::default();
    here.block_on(async {
        let first = probes.take().await?;
        bounds.push(first.bound());
        probed.extend(&first);
        for _ in 0..ROUNDS {
            rounds.push(product.round().await?);
            let next = probes.take().await?;
            bounds.push(next.bound());
            probed.extend(&next);
        }
        anyhow::Ok(())
    })?;
    product.stop();

    let ratios: Vec<f64> = rounds
        .iter()
        .zip(bounds.windows(2))
        .map(|(round, ends)| round.durable.p50() / f64::midpoint(ends[0], ends[1]))
        .collect();
    head("bound");
    row("HTTP POST round trip", &probed.http, None);
    row("append + fdatasync", &probed.disk, None);
    row("WebSocket echo round trip", &probed.echo, None);
    println!("| bound | {:.0} | | 1.00 |", median(bounds));
    let (mut accepted, mut durable) = (Samples::default(), Samples::default());
    for round in &rounds {
        accepted.0.extend_from_slice(&round.accepted.0);
        durable.0.extend_from_slice(&round.durable.0);
    }
    let ratio = median(ratios.clone());
    row("POST → 202", &accepted, None);
    row(
        "POST → 202 and durable on the device",
        &durable,
        Some(ratio),
    );
    let each: Vec<String> = ratios.iter().map(|r| format!("{r:.2}")).collect();
    println!("\nround by round, × bound: {}", each.join(" "));
    Ok(verdict("POST → durable, × bound", ratio, BAR))
}

/// What this machine takes for the single steps.
struct Probes {
    http: SocketAddr,
    file: PathBuf,
}

#[derive(Debug, Default)]
struct Probed {
    http: Samples,
    disk: Samples,
    echo: Samples,
}

impl Probed {
    fn bound(&self) -> f64 {
        self.http.p50() + 2.0 * self.disk.p50() + self.echo.p50() / 2.0
    }

    fn extend(&mut self, other: &Self) {
        self.http.0.extend(&other.http.0);
        self.disk.0.extend(&other.disk.0);
        self.echo.0.extend(&other.echo.0);
    }
}

impl Probes {
    fn start(rt: &Runtime, dir: &Path) -> Result<Self> {
        let app = Router::new()
            .route("/tasks", post(answer))
            .route("/echo", get(echo));
        let listener = rt.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let http = listener.local_addr()?;
        let listener = listener.tap_io(|io| {
            io.set_nodelay(true).ok();
        });
        rt.spawn(async move { axum::serve(listener, app).await });
        let file = dir.join("probe");
        Ok(Self { http, file })
    }

    async fn take(&self) -> Result<Probed> {
        let mut probed = Probed::default();

        let body = task_body();
        let mut client = Http::connect(self.http, "none").await?;
        for n in 0..WARM_UP + PROBED {
            sleep(PAUSE).await;
            let start = Instant::now();
            client.post(&body).await?;
            if n >= WARM_UP {
                probed.http.push(start.elapsed());
            }
        }

        let mut file = File::create(&self.file)?;
        let block = [b'x'; BODY];
        for n in 0..WARM_UP + PROBED {
            sleep(PAUSE).await;
            let start = Instant::now();
            file.write_all(&block)?;
            file.sync_data()?;
            if n >= WARM_UP {
                probed.disk.push(start.elapsed());
            }
        }

        let tcp = TcpStream::connect(self.http).await?;
        tcp.set_nodelay(true)?;
        let url = format!("ws://{}/echo", self.http);
        let (mut socket, _) = tokio_tungstenite::client_async(url, tcp).await?;
        let text = "x".repeat(BODY);
        for n in 0..WARM_UP + PROBED {
            sleep(PAUSE).await;
            let start = Instant::now();
            socket.send(Message::text(text.clone())).await?;
            socket.next().await.context("the echo ended")??;
            if n >= WARM_UP {
                probed.echo.push(start.elapsed());
            }
        }
        Ok(probed)
    }
}

async fn answer(body: Bytes) -> impl IntoResponse {
    let answer = json!({"id": "01234567-89ab-7def-8123-456789abcdef", "status": "queued", "size": body.len()});
    (StatusCode::ACCEPTED, axum::Json(answer))
}

async fn echo(upgrade: WebSocketUpgrade) -> impl IntoResponse {
    upgrade.on_upgrade(async |mut socket| {
        while let Some(Ok(message @ ServerMessage::Text(_))) = socket.recv().await {
            if socket.send(message).await.is_err() {
                break;
            }
        }
    })
}

/// The hub and the daemon, connected.
struct Product {
    hub_rt: Runtime,
    daemon_rt: Runtime,
    hub: HubHandle,
    daemon: Whole,
    token: String,
}

#[derive(Debug, Default)]
struct Round {
    accepted: Samples,
    durable: Samples,
}

impl Product {
    fn start(dir: &Path) -> Result<Self> {
        let hub_rt = Builder::new_multi_thread().enable_all().build()?;
        let daemon_rt = Builder::new_multi_thread().enable_all().build()?;
        let mut config = HubConfig::local(dir.join("hub"));
        config.rate = Rate {
            per_s: 1_000_000,
            burst: 1_000_000,
        };
        let hub = hub_rt.block_on(hub::start(config))?;
        let token = hub_rt.block_on(producer(&hub))?;
        let daemon = daemon_rt.block_on(daemon(&hub, dir))?;
        Ok(Self {
            hub_rt,
            daemon_rt,
            hub,
            daemon,
            token,
        })
    }

    async fn round(&self) -> Result<Round> {
        let mut durable = self.daemon.handle.store().durable();
        let mut client = Http::connect(self.hub.addr, &self.token).await?;
        let body = task_body();
        let mut round = Round::default();
        for n in 0..WARM_UP + MEASURED {
            sleep(PAUSE).await;
            let before = *durable.borrow_and_update();
            let start = Instant::now();
            let posted = async {
                client.post(&body).await?;
                anyhow::Ok(start.elapsed())
            };
            let both = async { tokio::join!(committed(&mut durable, before), posted) };
            let (commit, accepted) = timeout(DEADLINE, both).await?;
            let (commit, accepted) = (commit?, accepted?);
            if n >= WARM_UP {
                round.accepted.push(accepted);
                round.durable.push(accepted.max(commit - start));
            }
        }
        Ok(round)
    }

    fn stop(self) {
        self.daemon_rt.block_on(self.daemon.stop());
        self.hub_rt.block_on(self.hub.shutdown());
    }
}

/// A token that may post tasks.
async fn producer(hub: &HubHandle) -> Result<String> {
    let call = AdminCall::CreateToken {
        name: "bench".to_owned(),
        account: AccountId::new("default")?,
        scopes: vec!["tasks:write".to_owned()],
        trust: Trust::Run,
        ttl_s: 3_600,
    };
    token(hub, &call).await
}

async fn token(hub: &HubHandle, call: &AdminCall) -> Result<String> {
    let made = hub.admin(call).await?;
    Ok(made["token"].as_str().context("no token")?.to_owned())
}

/// An enrolled daemon with one enabled project and no CLI: tasks reach its queue and wait there.
async fn daemon(hub: &HubHandle, dir: &Path) -> Result<Whole> {
    let (home, project) = (dir.join("daemon"), dir.join(PROJECT));
    std::fs::create_dir(&project)?;
    let places = Places::resolve(Some(&home), &|_| None)?;
    places.create_daemon_dirs()?;
    let call = AdminCall::CreateJoin {
        name: "bench".to_owned(),
        account: AccountId::new("default")?,
    };
    let join = Token::parse(&token(hub, &call).await?)?;
    let key = Credentials::key(&places.daemon())?;
    let http = HubHttp::new(&Way::new(&DaemonConfig::default())?, places.daemon(), None)?;
    let url = hub.url().parse()?;
    let enrolment = http.enrol(&url, &join, key.public(), "bench").await?;
    Credentials::save(&places.daemon(), &enrolment)?;
    Projects::new(places.daemon()).enable(&project, Some(PROJECT.parse()?), clock::wall())?;

    let config = DaemonConfig::load(Sources {
        file: None,
        env: &|_| None,
        flags: &[("local_api", "http://127.0.0.1:0".to_owned(), "bench")],
    })?;
    let options = Options {
        socket: places.socket(&|_| None),
        places,
        config: Arc::new(config),
        claude: Claude {
            path: None,
            version: None,
            problem: Some("a bench has none".to_owned()),
        },
        link: ClientConfig::default(),
        watchdog: remote_collab::daemon::watchdog::Limits::default(),
    };
    let daemon = assembly::start(options, dir.join("claude")).await?;
    let mut status = daemon.handle.link().status();
    timeout(DEADLINE, status.wait_for(LinkStatus::is_synced)).await??;
    Ok(daemon)
}

/// When the cursor moved on from `before`.
async fn committed(
    durable: &mut watch::Receiver<Option<Cursor>>,
    before: Option<Cursor>,
) -> Result<Instant> {
    let stamp = Arc::new(Stamp::default());
    let waker = Waker::from(Arc::clone(&stamp));
    let mut moved = pin!(durable.wait_for(|now| *now != before));
    std::future::poll_fn(|cx| {
        let outer = cx.waker().clone();
        *stamp.outer.lock().unwrap_or_else(PoisonError::into_inner) = Some(outer);
        moved
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .map(|moved| moved.map(drop))
    })
    .await?;
    let at = *stamp.at.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(at.unwrap_or_else(Instant::now))
}

/// A waker that notes when it was called: on the thread of the queue's writer, right after its commit.
#[derive(Debug, Default)]
struct Stamp {
    at: Mutex<Option<Instant>>,
    outer: Mutex<Option<Waker>>,
}

impl Wake for Stamp {
    fn wake(self: Arc<Self>) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let outer = self.outer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outer) = outer.as_ref() {
            outer.wake_by_ref();
        }
    }
}

/// A task of exactly [`BODY`] bytes.
fn task_body() -> Vec<u8> {
    let empty = json!({"project": PROJECT, "task": ""}).to_string().len();
    let text = "x".repeat(BODY - empty);
    json!({"project": PROJECT, "task": text})
        .to_string()
        .into_bytes()
}

/// The smallest HTTP client that keeps its connection.
struct Http {
    tcp: TcpStream,
    head: String,
    answer: Vec<u8>,
}

impl Http {
    async fn connect(to: SocketAddr, token: &str) -> Result<Self> {
        let tcp = TcpStream::connect(to).await?;
        tcp.set_nodelay(true)?;
        let head = format!(
            "POST /tasks HTTP/1.1\r\nhost: {to}\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: "
        );
        Ok(Self {
            tcp,
            head,
            answer: Vec::with_capacity(4 << 10),
        })
    }

    /// One request; its answer is a 202 or an error.
    async fn post(&mut self, body: &[u8]) -> Result<()> {
        let mut request = format!("{}{}\r\n\r\n", self.head, body.len()).into_bytes();
        request.extend_from_slice(body);
        self.tcp.write_all(&request).await?;
        self.answer.clear();
        loop {
            let read = self.tcp.read_buf(&mut self.answer).await?;
            ensure!(read > 0, "the server closed the connection");
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut response = httparse::Response::new(&mut headers);
            let httparse::Status::Complete(head) = response.parse(&self.answer)? else {
                continue;
            };
            let length = response
                .headers
                .iter()
                .find(|h| h.name.eq_ignore_ascii_case("content-length"))
                .context("an answer without a length")?;
            let length: usize = std::str::from_utf8(length.value)?.parse()?;
            let status = response.code;
            if self.answer.len() >= head + length {
                let body = String::from_utf8_lossy(&self.answer[head..]);
                ensure!(status == Some(202), "the answer is {status:?}: {body}");
                return Ok(());
            }
        }
    }
}
