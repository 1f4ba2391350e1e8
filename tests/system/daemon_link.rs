//! The daemon's link over real sockets.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::serve::Listener;
use futures::FutureExt;
use futures::future::BoxFuture;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use remote_collab::config::{CaSources, Proxies};
use remote_collab::core::client::ClientConfig;
use remote_collab::daemon::dial::Dialer;
use remote_collab::daemon::http::HubHttp;
use remote_collab::daemon::link::{
    Directory, LinkHandle, LinkParts, LinkStatus, SnapshotSource, link,
};
use remote_collab::daemon::store::{FILE, NewReport, QueueFilter, Store};
use remote_collab::daemon::watchdog::Beat;
use remote_collab::daemon::way::Way;
use remote_collab::domain::{
    Address, Code, Cursor, Envelope, EnvelopeId, EnvelopeKind, Priority, Problem, Receipt, Sender,
    Seq, Stage, Trust, WallMs,
};
use remote_collab::wire::{DeviceFrame, HubFrame, RejectedReport, Resume};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::fake_hub::{DEADLINE, EPOCH, FakeHub, Refusal};

fn way(ca: Option<&Path>) -> Way {
    let ca = CaSources {
        file: ca.map(Path::to_owned),
        ..CaSources::default()
    };
    Way::with(&ca, Proxies::default()).unwrap()
}

struct Empty;

impl SnapshotSource for Empty {
    fn directory(&self) -> BoxFuture<'static, Directory> {
        std::future::ready(Directory::default()).boxed()
    }
}

pub(crate) struct Device {
    pub(crate) store: Store,
    pub(crate) link: LinkHandle,
    stop: CancellationToken,
    running: JoinHandle<()>,
    _capacity: watch::Sender<u32>,
}

impl Device {
    pub(crate) async fn start(dir: &Path) -> Self {
        Self::with(dir, None, ClientConfig::default()).await
    }

    pub(crate) async fn with(dir: &Path, ca: Option<&Path>, config: ClientConfig) -> Self {
        let store = Store::open(&dir.join(FILE)).unwrap();
        let (capacity, free) = watch::channel(2);
        let stop = CancellationToken::new();
        let way = way(ca);
        let parts = LinkParts {
            store: store.clone(),
            dialer: Dialer::new(way.clone()),
            http: HubHttp::new(&way, dir.to_owned(), None).unwrap(),
            poll_interval: Duration::from_secs(1),
            credentials: dir.to_owned(),
            hub: None,
            source: Arc::new(Empty),
            capacity: free,
            config,
            beat: Beat::default(),
        };
        let (link, running) = link(parts, stop.clone());
        let running = tokio::spawn(running);
        link.connect().await;
        Self {
            store,
            link,
            stop,
            running,
            _capacity: capacity,
        }
    }

    pub(crate) async fn until(&self, what: impl Fn(&LinkStatus) -> bool) -> LinkStatus {
        let mut status = self.link.status();
        let seen = timeout(DEADLINE, status.wait_for(|s| what(s))).await;
        match seen {
            Ok(status) => status.unwrap().clone(),
            Err(_) => panic!("never came; it is {:?}", self.link.status().borrow()),
        }
    }

    pub(crate) async fn queued(&self) -> Vec<u128> {
        let rows = self.store.queued(QueueFilter::default(), 1_000).await;
        let rows = rows.unwrap();
        rows.iter().map(|r| r.envelope.id.0.as_u128()).collect()
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        timeout(DEADLINE, self.running).await.unwrap().unwrap();
        drop(self.link);
        timeout(DEADLINE, self.store.close()).await.unwrap();
    }
}

pub(crate) fn message(n: u128) -> Envelope {
    Envelope {
        id: EnvelopeId::from_u128(n),
        kind: EnvelopeKind::Message,
        from: Sender {
            name: "ci".into(),
            trust: Trust::Suggest,
        },
        to: Address::default(),
        priority: Priority::Normal,
        body: serde_json::json!({ "content": "hi" }),
        wake: false,
        created_at: WallMs(1),
        expires_at: WallMs(1),
        attempt: None,
        hops: 0,
        reply_to: None,
    }
}

pub(crate) async fn enrolled() -> (FakeHub, TempDir) {
    let hub = FakeHub::start().await;
    let dir = tempfile::tempdir().unwrap();
    hub.enrol(dir.path(), "http");
    (hub, dir)
}

fn at(seq: u64) -> Cursor {
    Cursor {
        epoch: EPOCH,
        seq: Seq(seq),
    }
}

#[tokio::test]
async fn envelopes_are_durable_when_they_are_acked_and_a_burst_shares_commits() {
    let (mut hub, dir) = enrolled().await;
    let device = Device::start(dir.path()).await;
    let (mut connection, hello) = hub.greet().await;
    assert_eq!(hello.last, None);
    for n in 1..=200 {
        connection.deliver(n, message(u128::from(n))).await;
    }
    connection.synced(200).await;
    let acks = connection.acked(200).await;
    assert!(acks < 100, "{acks} acks for 200 envelopes");
    device.until(LinkStatus::is_synced).await;
    assert_eq!(device.store.cursor().await, Ok(Some(at(200))));
    assert_eq!(device.queued().await, (1..=200).collect::<Vec<_>>());
    device.stop().await;
}

#[tokio::test]
async fn a_lost_link_is_reopened_at_the_durable_cursor_and_duplicates_die() {
    let (mut hub, dir) = enrolled().await;
    let device = Device::start(dir.path()).await;
    let (mut first, _) = hub.greet().await;
    first.deliver(1, message(1)).await;
    first.synced(1).await;
    first.acked(1).await;
    device.until(LinkStatus::is_synced).await;
    drop(first);
    device.until(|s| s.state == "RECONNECTING").await;
    let (mut second, hello) = hub.greet().await;
    assert_eq!(hello.last, Some(at(1)));
    second.deliver(2, message(1)).await;
    second.deliver(3, message(3)).await;
    second.synced(3).await;
    second.acked(3).await;
    device.until(LinkStatus::is_synced).await;
    assert_eq!(device.queued().await, [1, 3]);
    device.stop().await;
}

#[tokio::test]
async fn a_hundred_unacked_envelopes_sent_again_are_queued_once_and_in_order() {
    let (mut hub, dir) = enrolled().await;
    let device = Device::start(dir.path()).await;
    let (mut first, _) = hub.greet().await;
    for n in 1..=100 {
        first.deliver(n, message(u128::from(n))).await;
    }
    first.acked(100).await;
    // The hub never learns of the acks, and neither does it after a restart of the daemon.
    drop(first);
    device.stop().await;
    let device = Device::start(dir.path()).await;
    let (mut second, _) = hub.greet().await;
    for n in 1..=100 {
        second.deliver(100 + n, message(u128::from(n))).await;
    }
    second.deliver(201, message(201)).await;
    second.synced(201).await;
    second.acked(201).await;
    let all: Vec<_> = (1..=100).chain([201]).collect();
    assert_eq!(device.queued().await, all);
    device.stop().await;
}

#[tokio::test]
async fn a_reset_keeps_the_queue_and_adopts_the_new_cursor() {
    let (mut hub, dir) = enrolled().await;
    let device = Device::start(dir.path()).await;
    let (mut first, _) = hub.greet().await;
    first.deliver(7, message(1)).await;
    first.acked(7).await;
    drop(first);
    let mut second = hub.accept().await;
    assert_eq!(second.hello().await.last, Some(at(7)));
    let epoch = remote_collab::domain::Epoch::from_u128(0xF);
    second
        .welcome_with(|w| {
            w.epoch = epoch;
            w.resume = Resume::Reset;
        })
        .await;
    second.deliver(1, message(1)).await;
    second.deliver(2, message(2)).await;
    second.synced(2).await;
    second.acked(2).await;
    assert_eq!(device.queued().await, [1, 2]);
    let cursor = Cursor { epoch, seq: Seq(2) };
    assert_eq!(device.store.cursor().await, Ok(Some(cursor)));
    device.stop().await;
}

#[tokio::test]
async fn our_refusals_are_final_and_say_what_to_do() {
    for (code, hint) in [
        (Code::DeviceRevoked, "login"),
        (Code::KeyHeldElsewhere, "stop the other daemon"),
        (Code::VersionUnsupported, "update"),
    ] {
        let (hub, dir) = enrolled().await;
        hub.refuse(vec![Refusal::Problem(Problem::new(code, "no"))]);
        let device = Device::start(dir.path()).await;
        let status = device.until(|s| s.code.is_some()).await;
        assert_eq!(status.state, "DISCONNECTED");
        assert_eq!(status.code.as_deref(), Some(code.as_str()));
        assert!(status.hint.unwrap().contains(hint));
        assert_eq!(status.retry_at, None);
        device.stop().await;
    }
}

#[tokio::test]
async fn an_edge_in_between_is_not_final() {
    let (mut hub, dir) = enrolled().await;
    hub.refuse(vec![
        Refusal::Edge(StatusCode::FORBIDDEN),
        Refusal::Edge(StatusCode::UPGRADE_REQUIRED),
    ]);
    let device = Device::start(dir.path()).await;
    let waiting = device.until(|s| s.retry_at.is_some()).await;
    assert!(waiting.cause.unwrap().contains("403"));
    device.link.connect().await;
    device
        .until(|s| s.cause.as_deref().is_some_and(|c| c.contains("426")))
        .await;
    device.link.connect().await;
    let (mut connection, _) = hub.greet().await;
    connection.synced(0).await;
    device.until(LinkStatus::is_synced).await;
    device.stop().await;
}

#[tokio::test]
async fn a_wrong_clock_is_corrected_by_the_hubs_and_each_dial_has_its_own_token() {
    let (mut hub, dir) = enrolled().await;
    let ahead = remote_collab::daemon::clock::wall().plus(3_600_000);
    let mut skew = Problem::new(Code::ClockSkew, "your clock is off");
    skew.now = Some(ahead.0);
    hub.refuse(vec![Refusal::Problem(skew)]);
    let device = Device::start(dir.path()).await;
    hub.greet().await;
    let tokens = hub.tokens();
    assert_eq!(tokens.len(), 2);
    assert_ne!(tokens[0], tokens[1]);
    let key = remote_collab::daemon::credentials::Credentials::key(dir.path()).unwrap();
    let name = remote_collab::domain::DeviceId::new("laptop").unwrap();
    let second = tokens[1].strip_prefix("Bearer ").unwrap();
    remote_collab::auth::verify_connect(key.public(), &name, "fake", second, ahead).unwrap();
    device.stop().await;
}

#[tokio::test]
async fn a_login_on_disk_is_noticed_without_a_restart() {
    let mut hub = FakeHub::start().await;
    let dir = tempfile::tempdir().unwrap();
    let device = Device::start(dir.path()).await;
    device.until(|s| s.code.is_some()).await;
    hub.enrol(dir.path(), "http");
    let (mut connection, _) = hub.greet().await;
    connection.synced(0).await;
    device.until(LinkStatus::is_synced).await;
    device.stop().await;
}

#[tokio::test]
async fn without_credentials_nothing_is_dialled_and_status_says_login() {
    let hub = FakeHub::start().await;
    let dir = tempfile::tempdir().unwrap();
    let device = Device::start(dir.path()).await;
    let status = device.until(|s| s.code.is_some()).await;
    assert_eq!(status.code.as_deref(), Some("token_missing"));
    assert!(hub.tokens().is_empty());
    device.stop().await;
}

#[tokio::test]
async fn a_hub_that_accepts_and_says_nothing_is_given_up_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut hub = FakeHub::start().await;
    hub.address = silent.local_addr().unwrap();
    hub.enrol(dir.path(), "http");
    let config = ClientConfig {
        connect_timeout_ms: 200,
        ..ClientConfig::default()
    };
    let device = Device::with(dir.path(), None, config).await;
    let (mut taken, _) = timeout(DEADLINE, silent.accept()).await.unwrap().unwrap();
    device.until(|s| s.retry_at.is_some()).await;
    let mut rest = Vec::new();
    let end = timeout(DEADLINE, taken.read_to_end(&mut rest)).await;
    end.expect("the abandoned dial was not closed").unwrap();
    device.stop().await;
}

#[tokio::test]
async fn a_hub_that_goes_silent_is_noticed_and_left() {
    let (mut hub, dir) = enrolled().await;
    let config = ClientConfig {
        heartbeat_margin_ms: 100,
        ..ClientConfig::default()
    };
    let device = Device::with(dir.path(), None, config).await;
    let mut connection = hub.accept().await;
    connection.hello().await;
    connection
        .welcome_with(|w| {
            w.heartbeat_s = 1;
            w.resume = Resume::Reset;
        })
        .await;
    connection.synced(0).await;
    device.until(LinkStatus::is_synced).await;
    // The connection stays open, but nobody reads it and so nobody answers a ping.
    let status = device.until(|s| s.state == "RECONNECTING").await;
    assert_eq!(status.cause.as_deref(), Some("the hub went silent"));
    drop(connection);
    device.stop().await;
}

#[tokio::test]
async fn reports_flow_in_order_and_are_forgotten_only_after_their_ack() {
    let (mut hub, dir) = enrolled().await;
    let device = Device::start(dir.path()).await;
    let receipt = |n: u128| {
        NewReport::receipt(
            EnvelopeId::from_u128(n),
            Receipt {
                stage: Stage::Seen,
                at: WallMs(1),
                evidence: None,
            },
        )
    };
    let early = (1..=200).map(receipt).collect();
    device.store.append(early).await.unwrap();
    let (mut first, _) = hub.greet().await;
    first.synced(0).await;
    assert_eq!(first.report().await.n, 1);
    drop(first);
    let (mut second, hello) = hub.greet().await;
    assert_eq!(hello.outbox.next_n, 201);
    second.synced(0).await;
    for n in 1..=200 {
        assert_eq!(second.report().await.n, n);
        let rejected = (n == 9).then(|| RejectedReport {
            n,
            code: "invalid_field".into(),
        });
        let rejected = rejected.into_iter().collect();
        second.send(HubFrame::ReportAck { n, rejected }).await;
    }
    device.store.append(vec![receipt(201)]).await.unwrap();
    assert_eq!(second.report().await.n, 201);
    let rejected = vec![];
    second.send(HubFrame::ReportAck { n: 201, rejected }).await;
    device.until(|s| s.reports_in_flight == 0).await;
    device.stop().await;
    let store = Store::open(&dir.path().join(FILE)).unwrap();
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.outbox, counts.rejected_reports), (0, 1));
}

#[tokio::test]
async fn a_stopping_daemon_says_bye() {
    let (mut hub, dir) = enrolled().await;
    let device = Device::start(dir.path()).await;
    let (mut connection, _) = hub.greet().await;
    connection.synced(0).await;
    device.until(LinkStatus::is_synced).await;
    let stopping = tokio::spawn(device.stop());
    let reason = loop {
        if let DeviceFrame::Bye { reason } = connection.recv().await {
            break reason;
        }
    };
    assert_eq!(reason, "shutdown");
    assert_eq!(connection.recv_or_end().await, None);
    stopping.await.unwrap();
}

#[tokio::test]
async fn a_superseded_daemon_stays_away_until_it_is_told_to_connect() {
    let (mut hub, dir) = enrolled().await;
    let device = Device::start(dir.path()).await;
    let (mut connection, _) = hub.greet().await;
    connection.synced(0).await;
    device.until(LinkStatus::is_synced).await;
    connection.close(4409).await;
    let status = device.until(|s| s.code.is_some()).await;
    assert_eq!(status.code.as_deref(), Some("superseded"));
    device.link.connect().await;
    hub.greet().await;
    device.stop().await;
}

struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (tcp, address) = self.tcp.accept().await.unwrap();
            if let Ok(tls) = self.acceptor.accept(tcp).await {
                return (tls, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// A hub behind a certificate of a private CA, whose PEM is written to `ca`.
async fn tls_hub(ca: &Path) -> FakeHub {
    remote_collab::auth::crypto::install();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(ca, issuer.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let cert = params.signed_by(&key, &issuer).unwrap();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(cert.pem().as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    FakeHub::serve(TlsListener { tcp, acceptor }, address)
}

#[tokio::test]
async fn a_private_ca_is_trusted_when_it_is_named_and_only_then() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let mut hub = tls_hub(&ca).await;
    hub.enrol(dir.path(), "https");
    let stranger = Device::start(dir.path()).await;
    let status = stranger.until(|s| s.retry_at.is_some()).await;
    assert!(status.cause.unwrap().contains("TLS"));
    stranger.stop().await;
    let device = Device::with(dir.path(), Some(&ca), ClientConfig::default()).await;
    let (mut connection, _) = hub.greet().await;
    connection.deliver(1, message(1)).await;
    connection.acked(1).await;
    device.stop().await;
}

/// Not a test by itself: the process that [`acked_envelope_survives_a_killed_daemon`] kills.
#[tokio::test]
async fn the_daemon_to_be_killed() {
    let Some(dir) = std::env::var_os("REMOTE_COLLAB_TEST_DEVICE") else {
        return;
    };
    let device = Device::start(Path::new(&dir)).await;
    device.running.await.unwrap();
}

fn spawn_device(dir: &Path) -> tokio::process::Child {
    tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "daemon_link::the_daemon_to_be_killed"])
        .env("REMOTE_COLLAB_TEST_DEVICE", dir)
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn acked_envelope_survives_a_killed_daemon() {
    let (mut hub, dir) = enrolled().await;
    let mut sent = 0;
    let mut acked = 0;
    for round in 0..5u64 {
        let mut child = spawn_device(dir.path());
        let (mut connection, hello) = hub.greet().await;
        let durable = hello.last.map_or(0, |c| c.seq.0);
        assert!(
            durable >= acked,
            "acked {acked}, but only {durable} is durable"
        );
        // What was sent and not taken is sent again, as a hub does.
        for n in durable + 1..=sent {
            connection.deliver(n, message(u128::from(n))).await;
        }
        for n in sent + 1..=sent + 50 {
            connection.deliver(n, message(u128::from(n))).await;
        }
        sent += 50;
        while acked < sent - 10 * round {
            if let DeviceFrame::Ack { seq } = connection.recv().await {
                acked = seq.0;
            }
        }
        child.start_kill().unwrap();
        timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
        let store = Store::open(&dir.path().join(FILE)).unwrap();
        let rows = store.queued(QueueFilter::default(), 1_000).await.unwrap();
        let ids: Vec<_> = rows.iter().map(|r| r.envelope.id.0.as_u128()).collect();
        let durable = u128::from(store.cursor().await.unwrap().unwrap().seq.0);
        assert!(durable >= u128::from(acked));
        assert_eq!(
            ids,
            (1..=durable).collect::<Vec<_>>(),
            "once each, in order"
        );
        store.close().await;
    }
}
